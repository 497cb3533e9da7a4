//! The destination of `println!`: an Ebb that an application can replace.

use alloc::boxed::Box;
use core::fmt;
use isola_ebbs::{CellEbb, Representative, platform};

/// The application's console. [`CellEbb::replace`] it to redirect or copy the lines, in the function that the
/// application names as `components` ([`app!`](crate::app)) or first in `main`.
pub static CONSOLE: CellEbb<Box<dyn Console>> = CellEbb::new();

/// A destination of the lines that an application prints.
pub trait Console: Send + Sync {
    /// Prints a line, with its line feed. Any core may call this at any time.
    fn print(&self, line: &[u8]);
}

/// The default console: the cell's console, the source of `isola logs`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CellConsole;

impl Console for CellConsole {
    fn print(&self, line: &[u8]) {
        platform().print(line);
    }
}

impl Representative for Box<dyn Console> {
    fn create() -> Self {
        Box::new(CellConsole)
    }
}

#[doc(hidden)]
pub fn print_line(text: fmt::Arguments<'_>) {
    CONSOLE.print(alloc::format!("{text}\n").as_bytes());
}
