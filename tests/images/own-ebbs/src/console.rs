//! A console that numbers its lines.

use core::sync::atomic::{AtomicU32, Ordering};
use isola::console::{CellConsole, Console};
use isola::prelude::*;

/// A console that numbers lines from 1.
#[derive(Default)]
pub struct Numbered {
    printed: AtomicU32,
}

impl Console for Numbered {
    fn print(&self, line: &[u8]) {
        let number = self.printed.fetch_add(1, Ordering::Relaxed) + 1;
        let numbered = [format!("{number}. ").as_bytes(), line].concat();
        CellConsole.print(&numbered);
    }
}
