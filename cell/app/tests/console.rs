//! An application's own console.

use isola::console::{CONSOLE, Console};
use isola_hosted::Settings;
use std::sync::Mutex;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Recorder;

impl Console for Recorder {
    fn print(&self, line: &[u8]) {
        LINES.lock().unwrap().push(String::from_utf8_lossy(line).into_owned());
    }
}

#[test]
fn a_replaced_console_gets_the_lines_of_all_cores() {
    isola_hosted::run(Settings { cores: 1, ..Settings::default() }, Vec::new(), |_| {
        CONSOLE.replace(|| Box::new(Recorder)).unwrap();
        isola::println!("first {}", 1);
        assert!(CONSOLE.replace(|| Box::new(Recorder)).is_err(), "a console in use was replaced");
    });
    isola_hosted::run(Settings { cores: 4, ..Settings::default() }, Vec::new(), |_| {
        // The first core to do this does it for the cell.
        let _ = CONSOLE.replace(|| Box::new(Recorder));
        isola::println!("core");
    });
    let mut lines = LINES.lock().unwrap().clone();
    lines.sort();
    assert_eq!(lines, ["core\n", "core\n", "core\n", "core\n", "first 1\n"]);
}
