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
    /// Returns whether the encoding is longer than [`MAX_SETUP_BYTES`].
    pub fn is_too_long(&self) -> bool {
        let is_empty = self.changes.is_empty() && self.rules.is_empty();
        !is_empty && postcard::to_allocvec(self).map_or(true, |bytes| bytes.len() > MAX_SETUP_BYTES)
    }
}
