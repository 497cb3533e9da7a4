//! The settings of the grid with which a cell starts.

use super::{ActivityRule, GridChange};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The maximum length of an encoded [`GridSetup`], in bytes.
pub const MAX_SETUP_BYTES: usize = 1024;

/// The settings of the grid with which a cell starts, also after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridSetup {
    /// Changes of the resources' settings, in their order. The entitlement of an activity holds for each activity that
    /// has its name, whenever that is registered.
    pub changes: Vec<GridChange>,
    /// The rules that attribute connections, in their order.
    pub rules: Vec<ActivityRule>,
}

impl GridSetup {
    /// Returns the length of the encoding in bytes, 0 without settings.
    pub fn encoded_len(&self) -> usize {
        if self.changes.is_empty() && self.rules.is_empty() {
            return 0;
        }
        postcard::to_allocvec(self).map_or(usize::MAX, |bytes| bytes.len())
    }
}
