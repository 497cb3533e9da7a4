//! Where `println!` goes: an Ebb, which an application can put its own in the place of.

use alloc::boxed::Box;
use core::fmt;
use isola_ebbs::{CellEbb, Representative, platform};

/// The console of the application. [`CellEbb::replace`] it to have lines go elsewhere as well, or instead: in the function
/// that names the application's components ([`app!`](crate::app)), or first thing in `main`.
pub static CONSOLE: CellEbb<Box<dyn Console>> = CellEbb::new();

/// What takes the lines that an application prints.
pub trait Console: Send + Sync {
    /// Takes a line, its end included. Any core may print at any time.
    fn print(&self, line: &[u8]);
}

/// Isola's own: the cell's console, which `isola logs` shows.
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
