//! What an application is told at its start, and what it says at its end.

use alloc::string::String;
use alloc::vec::Vec;

/// The arguments of the application; its name is not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    all: Vec<String>,
}

impl Arguments {
    pub(crate) fn new(all: Vec<String>) -> Self {
        Self { all }
    }

    /// The argument of that index, from 0.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.all.get(index).map(String::as_str)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(String::as_str)
    }
}

/// What a cell ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(pub i32);

impl ExitCode {
    /// It did what it was for.
    pub const SUCCESS: Self = Self(0);
    /// It could not.
    pub const FAILURE: Self = Self(1);
    /// Its arguments make no sense.
    pub const USAGE: Self = Self(2);
}
