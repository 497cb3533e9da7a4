//! The arguments and the exit code of an application.

use alloc::string::String;
use alloc::vec::Vec;

/// The arguments of the application, without its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    all: Vec<String>,
}

impl Arguments {
    pub(crate) fn new(all: Vec<String>) -> Self {
        Self { all }
    }

    /// Returns the argument at `index`, from 0.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.all.get(index).map(String::as_str)
    }

    /// Returns all arguments, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(String::as_str)
    }
}

/// The exit code of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(pub i32);

impl ExitCode {
    /// The application has succeeded.
    pub const SUCCESS: Self = Self(0);
    /// The application has failed.
    pub const FAILURE: Self = Self(1);
    /// The arguments are invalid.
    pub const USAGE: Self = Self(2);
}
