//! The life-cycle stage of a cell, from which a restarted supervisor decides how to recover the cell.
//!
//! ```text
//!   Built --> Entering --> Entered --> Ending --> Quarantined
//!     |                                  ^
//!     +----------------------------------+
//! ```

use serde::{Deserialize, Serialize};

/// The life-cycle stage of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// No core has entered the cell.
    Built,
    /// The supervisor is sending the cores in. A supervisor that restarts at this stage does not know which cores have
    /// entered, and ends the cell.
    Entering,
    /// The cores have entered the cell.
    Entered,
    /// The supervisor is ending the cell, and takes its resources back.
    Ending,
    /// A core or device that did not come back can still write to the cell's memory.
    Quarantined,
}
