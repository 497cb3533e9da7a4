//! The page about system calls is that of the table that dispatches them.

use isola_linux_processes::calls::CALLS;
use std::fmt::Write;
use std::path::Path;

/// The line after which the page is generated.
const MARK: &str = "<!-- generated from the table of calls: ISOLA_WRITE=1 cargo test -p isola-linux-processes --test table -->";

#[test]
fn numbers_and_names_are_unique() {
    for (index, call) in CALLS.iter().enumerate() {
        let same = |other: &&isola_linux_processes::calls::Call| {
            other.number == call.number || other.name == call.name
        };
        assert_eq!(CALLS.iter().filter(same).count(), 1, "{}", call.name);
        assert!(call.parameters.len() <= 6);
        assert!(index == 0 || CALLS[index - 1].number < call.number, "{} is out of order", call.name);
    }
}

#[test]
fn the_page_lists_all_calls() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/linux.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, _) = page.split_once(MARK).expect("the page has the mark");
    let mut expected =
        format!("{head}{MARK}\n\n{} calls.\n\n| call | difference from Linux |\n|---|---|\n", CALLS.len());
    for call in CALLS {
        let parameters = call.parameters.join(", ");
        writeln!(expected, "| `{}({parameters})` | {} |", call.name, call.notes).unwrap();
    }
    if std::env::var_os("ISOLA_WRITE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected, "{MARK}");
}
