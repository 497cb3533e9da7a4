//! How files are exported.

/// What may be done with the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// They are read.
    ReadOnly,
    /// They are read and written.
    ReadWrite,
}
