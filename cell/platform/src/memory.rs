//! Memory that the platform wants back from holders in the cell that could do without some.

use core::ops::Range;

/// The platform's demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MemoryDemand {
    /// There is none.
    #[default]
    None,
    /// This many bytes are to be freed, whichever they are.
    Free(usize),
    /// No memory at these addresses is to be in use: their holders copy it to other memory, or free it.
    Vacate(Range<usize>),
}
