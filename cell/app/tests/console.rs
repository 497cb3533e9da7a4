//! An application's own console.

use isola::console::{CONSOLE, Console};
use isola_hosted::Settings;
use std::sync::Mutex;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Kept;

impl Console for Kept {
    fn print(&self, line: &[u8]) {
        LINES.lock().unwrap().push(String::from_utf8_lossy(line).into_owned());
    }
}

#[test]
fn lines_go_where_the_application_says_on_all_cores() {
    isola_hosted::run(Settings { cores: 1, ..Settings::default() }, Vec::new(), |_| {
        CONSOLE.replace(|| Box::new(Kept)).unwrap();
        isola::println!("first {}", 1);
        assert!(CONSOLE.replace(|| Box::new(Kept)).is_err(), "it is in use");
    });
    isola_hosted::run(Settings { cores: 4, ..Settings::default() }, Vec::new(), |_| {
        // The first core to come does it for all.
        let _ = CONSOLE.replace(|| Box::new(Kept));
        isola::println!("core");
    });
    let mut lines = LINES.lock().unwrap().clone();
    lines.sort();
    assert_eq!(lines, ["core\n", "core\n", "core\n", "core\n", "first 1\n"]);
}
