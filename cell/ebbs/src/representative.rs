//! The interface of representatives.

/// A representative of an Ebb on one core or in one cell.
pub trait Representative: Sized + 'static {
    /// Creates the representative, on the core of its first use: the Ebb's fault handler.
    ///
    /// It must not call the Ebb itself.
    fn create() -> Self;
}
