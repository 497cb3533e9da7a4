//! A core that leaves hands on what its representatives hold.
//!
//! A representative stays where it is: it is emptied, and used again when the core comes back. What it held travels as a
//! closure to the core that takes over, which invokes the same Ebb there. So a representative needs no more than to
//! know what of it outlives its core.

use crate::core_block::current;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What a representative hands on: to be run on the core that takes over, as an event.
pub type Handover = Box<dyn FnOnce() + Send>;

/// What can be asked for its [`Handover`], on the core that it was made on.
pub(crate) trait Folds {
    fn fold(&self) -> Option<Handover>;

    /// Whether it still exists.
    fn is_alive(&self) -> bool {
        true
    }
}

/// A core's representatives, in the order in which they were made.
pub(crate) enum Made {
    /// Of an Ebb that is there for good.
    Static(&'static dyn Folds),
    /// Of one that may have been torn down.
    Dynamic(Box<dyn Folds>),
}

impl Made {
    pub fn is_alive(&self) -> bool {
        match self {
            Self::Static(_) => true,
            Self::Dynamic(made) => made.is_alive(),
        }
    }
}

/// Empties the calling core's representatives, the youngest first, and returns what they hand on, in that order: who was
/// made later may use who was made earlier, here and there.
///
/// The core can go on afterwards, and starts from nothing. Representatives that are made while this runs are not asked.
pub fn fold_this_core() -> Vec<Handover> {
    let core = current();
    let made = core.take_made();
    let handovers = made.iter().rev().filter_map(|made| match made {
        Made::Static(made) => made.fold(),
        Made::Dynamic(made) => made.fold(),
    });
    let handovers = handovers.collect();
    core.put_back_made(made);
    handovers
}
