//! How far a cell is, where that decides what becomes of it when its supervisor begins anew.
//!
//! ```text
//!   Built --> Entering --> Entered --> Ending
//!     |                                  |
//!     +------------> Ending <------------+--> Quarantined
//! ```

use serde::{Deserialize, Serialize};

/// How far a cell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// No core has entered it.
    Built,
    /// Its cores are on their way in. A supervisor that goes wrong here cannot tell which of them are there: the cell ends
    /// with it.
    Entering,
    /// Its cores are in it.
    Entered,
    /// It is being taken apart: nothing of it is needed any more.
    Ending,
    /// Something that did not come back can still write to its memory.
    Quarantined,
}
