//! Output on a terminal: no control characters of a cell. A pipe and JSON get the exact text.

use crate::pty::Pty;
use crate::sandbox::Sandbox;

/// Clears the screen, sets the title, returns to the start of the line, and reorders the following text.
const HOSTILE: &str = "\x1b[2J\x1b]0;x\x07\r\u{9b}31m\u{202e}";

/// [`HOSTILE`] in printable form.
const SHOWN: &str = r"\x1b[2J\x1b]0;x\x07\x0d\x9b31m\u{202e}";

/// Returns the output of a command to a terminal: its standard and its error output.
fn on_terminal(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let mut command = sandbox.command(arguments);
    let (code, text) = Pty::start(&mut command, (80, 24)).end();
    assert_eq!(code, Some(0), "{arguments:?}: {text:?}");
    text
}

fn commands(text: &str) -> Vec<char> {
    // The terminal driver itself ends lines with CR LF.
    let text = text.replace("\r\n", "\n");
    text.chars().filter(|&c| c.is_control() && c != '\n' && c != '\t' || c == '\u{202e}').collect()
}

#[test]
fn a_terminal_gets_no_control_characters_of_a_cell() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv", HOSTILE]).ok();
    for arguments in [&["logs", "kv"][..], &["inspect", "kv"]] {
        let text = on_terminal(&sandbox, arguments);
        assert_eq!(commands(&text), [], "{arguments:?}: {text:?}");
        assert!(text.contains(SHOWN), "{arguments:?}: {text:?}");
    }
    for arguments in [&["ps"][..], &["events"], &["inspect", "-c", "kv"]] {
        assert_eq!(commands(&on_terminal(&sandbox, arguments)), [], "{arguments:?}");
    }
}

#[test]
fn a_pipe_gets_the_exact_text() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv", HOSTILE]).ok();
    assert_eq!(sandbox.isola(&["logs", "kv"]).ok(), format!("kv: started [{HOSTILE}]\n"));
    assert_eq!(sandbox.json(&["inspect", "kv"])["arguments"][0], HOSTILE);
}
