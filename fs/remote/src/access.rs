//! The access that an export allows.

/// The operations on files that an export allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}
