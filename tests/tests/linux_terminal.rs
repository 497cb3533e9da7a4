//! Standard input, terminals, commands and copies of files in cells with Linux programs.

#[path = "../../host/tests/command/pty.rs"]
#[allow(dead_code, reason = "this test uses a part")]
mod pty;

use isola_need::{Need, need};
use isola_tests::isola::Isola;
use pty::Pty;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A machine, and a volume with busybox.
struct Machine {
    isola: Isola,
    folder: TempDir,
}

impl Machine {
    fn up() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("root/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(folder.path().join("root/tmp")).unwrap();
        fs::copy("/bin/busybox", bin.join("busybox")).unwrap();
        for applet in ["sh", "cat", "sleep", "stty", "tty", "id", "ls", "wc"] {
            symlink("busybox", bin.join(applet)).unwrap();
        }
        let machine = Self { isola: Isola::up(&["--cores", "3"]), folder };
        let from = machine.folder.path().join("root").display().to_string();
        let create = ["volume", "create", "root", "--size", "32M", "--from", &from];
        machine.isola.run_with(&create, &[("ISOLA_VOLUMES", &machine.volumes())]).ok();
        machine
    }

    fn volumes(&self) -> PathBuf {
        self.folder.path().join("volumes")
    }

    /// Returns a command with the machine's volumes.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.isola.command(arguments);
        command.env("ISOLA_VOLUMES", self.volumes());
        command
    }

    /// Runs a command with this input. Returns output, error output and exit code.
    fn with_input(&self, arguments: &[&str], input: &[u8]) -> (Vec<u8>, String, Option<i32>) {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap();
        // A program may end before it has read everything.
        drop(writer.join().unwrap());
        (output.stdout, String::from_utf8(output.stderr).unwrap(), output.status.code())
    }

    fn exec(&self, arguments: &[&str]) -> (String, String, Option<i32>) {
        let (out, err, code) = self.with_input(&[&["exec"], arguments].concat(), b"not read");
        (String::from_utf8(out).unwrap(), err, code)
    }
}

const RUN: [&str; 5] = ["run", "--rm", "-v", "root:/:ro", "-i"];

#[test]
fn programs_have_standard_input_commands_and_files_of_the_host() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let machine = Machine::up();
    // Bytes of all values, more than any buffer on the way.
    let bytes: Vec<u8> = (0..400_000_u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect();
    let (out, err, code) = machine.with_input(&[&RUN[..], &["linux", "cat"]].concat(), &bytes);
    assert!(out == bytes && code == Some(0), "{} bytes, {err}, {code:?}", out.len());
    let script = "echo error >&2; read line; echo $line; exit 5";
    let run = [&RUN[..], &["linux", "--", "sh", "-c", script]].concat();
    let (out, err, code) = machine.with_input(&run, b"first\nsecond\n");
    assert_eq!((out.as_slice(), code), (&b"first\n"[..], Some(5)), "{err}");
    assert!(err.contains("error\n"), "{err}");
    // A native image reads no input.
    let (_, err, code) = machine.with_input(&["run", "--rm", "-i", "kv"], b"");
    assert!(code == Some(125) && err.contains("reads no standard input"), "{code:?}: {err}");

    let run = ["run", "-d", "--name", "cell", "-v", "root:/:ro", "linux", "-e", "A=1", "sleep", "1000"];
    machine.isola.run_with(&run, &[("ISOLA_VOLUMES", &machine.volumes())]).ok();
    let script = "cat; tty; id -u; pwd; echo $A $B; exit 7";
    let options = ["-e", "B=2", "-u", "5:6", "-w", "/tmp", "cell", "--", "sh", "-c", script];
    let (out, err, code) = machine.exec(&options);
    assert_eq!((out.as_str(), code), ("not a tty\n5\n/tmp\n1 2\n", Some(7)), "{err}");
    let (_, err, code) = machine.exec(&["cell", "--", "nothing"]);
    assert!(code == Some(127) && err.contains("nothing cannot be executed: ENOENT"), "{code:?}: {err}");
    let (out, _, code) = machine.with_input(&["exec", "-i", "cell", "--", "wc", "-c"], &bytes);
    assert_eq!((out.as_slice(), code), (&b"400000\n"[..], Some(0)));
    copies(&machine, &bytes);
}

fn copies(machine: &Machine, bytes: &[u8]) {
    let folder = machine.folder.path().join("files");
    fs::create_dir_all(folder.join("a/b")).unwrap();
    fs::write(folder.join("a/file"), bytes).unwrap();
    symlink("../file", folder.join("a/b/link")).unwrap();
    let text = |path: &Path| path.display().to_string();
    let run = |arguments: &[&str]| machine.isola.run(arguments);
    run(&["cp", &text(&folder), "cell:/tmp"]).ok();
    let (out, err, _) = machine.exec(&["cell", "--", "sh", "-c", "cd /tmp/files/a; wc -c <b/link; ls"]);
    assert_eq!(out, "400000\nb\nfile\n", "{err}");
    let back = machine.folder.path().join("back");
    run(&["cp", "cell:/tmp/files", &text(&back)]).ok();
    assert!(fs::read(back.join("a/b/link")).unwrap() == bytes);
    assert_eq!(fs::read_link(back.join("a/b/link")).unwrap(), Path::new("../file"));
    run(&["cp", "cell:/none", &text(&back)]).failed(1, "/none: there is no such file");
    run(&["cp", "cell:/dev/null", &text(&back)]).failed(1, "neither a file nor a folder");
    // A text without a length.
    let text_of_proc = machine.folder.path().join("text");
    run(&["cp", "cell:/proc/1/cmdline", &text(&text_of_proc)]).ok();
    assert!(fs::read(text_of_proc).unwrap().ends_with(b"\0"));
    run(&["cp", &text(&back), "cell:relative"]).failed(2, "no absolute path");
    // A copy below a file of the cell.
    run(&["cp", &text(&folder), "cell:/bin/busybox/x"]).failed(1, "ENOTDIR");
}

#[test]
fn a_shell_has_a_terminal_with_job_control() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let machine = Machine::up();
    let mut command = machine.command(&["run", "--rm", "-it", "-v", "root:/:ro", "linux", "sh"]);
    let mut pty = Pty::start(&mut command, (101, 33));
    let mut at = pty.wait_for("# ");
    let mut enter = |pty: &mut Pty, keys: &str, expected: &str| {
        pty.press(keys);
        at = pty.wait_after(at, expected);
    };
    enter(&mut pty, "stty size\r", "33 101");
    pty.resize((50, 20));
    // The terminal is not that of the tool's session, so that the kernel sends no signal.
    let signalled = Command::new("kill").args(["-WINCH", &pty.pid().to_string()]).status().unwrap();
    assert!(signalled.success());
    enter(&mut pty, "while [ \"$(stty size)\" != '20 50' ]; do sleep 0.1; done; echo resiz''ed\r", "resized");
    enter(&mut pty, "tty; sleep 1000\r", "/dev/pts/0\r\n");
    std::thread::sleep(std::time::Duration::from_secs(1));
    enter(&mut pty, "\x03", "^C");
    enter(&mut pty, "echo stat''us $?\r", "status 130");
    enter(&mut pty, "sleep 1000; echo stop''ped\r", "\n");
    std::thread::sleep(std::time::Duration::from_secs(1));
    enter(&mut pty, "\x1a", "Stopped");
    enter(&mut pty, "kill -9 %1; wait; echo do''ne\r", "done");
    pty.press("exit 9\r");
    let (code, output) = pty.end();
    assert_eq!(code, Some(9), "{output}");
}
