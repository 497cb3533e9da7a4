//! The placement of a cell: the choice of its cores.

use super::ManagementError;
use crate::id::{CoreId, MAX_MACHINE_CORES, NodeId};
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// The choice of a cell's cores, at its creation and whenever it gets more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorePlacement {
    /// The policy.
    pub policy: PlacementPolicy,
    /// The NUMA node of all the cell's cores. The supervisor also prefers this node for the cell's memory.
    pub node: Option<NodeId>,
    /// The cores from which the supervisor chooses; all cores if empty.
    pub ids: Vec<CoreId>,
}

/// The policy for the location of a cell's cores, relative to each other and to those of other cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlacementPolicy {
    /// Close together: on one node, at one last-level cache, siblings together. A sibling of another cell's core is
    /// chosen only if the node has no other free core.
    #[default]
    Compact,
    /// Far apart: first one core of each physical core, across nodes and caches.
    Spread,
    /// Whole physical cores: no core of another cell is a sibling of this cell's cores.
    Siblings,
}

/// The error for a text that is not a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchPolicy;

/// The policies and their names.
const POLICIES: [(&str, PlacementPolicy); 3] = [
    ("compact", PlacementPolicy::Compact),
    ("spread", PlacementPolicy::Spread),
    ("siblings", PlacementPolicy::Siblings),
];

impl CorePlacement {
    /// Checks the placement as far as possible without the machine, for a cell with `cores` initial cores.
    ///
    /// # Errors
    /// [`ManagementError::OutOfLimits`].
    pub fn validate(&self, cores: u32) -> Result<(), ManagementError> {
        let refuse = |what| Err(ManagementError::OutOfLimits(what));
        let ids = &self.ids;
        if ids.len() > MAX_MACHINE_CORES {
            let count = ids.len();
            return refuse(format!("a machine has at most {MAX_MACHINE_CORES} cores, and {count} are named"));
        }
        if let Some(twice) = ids.iter().enumerate().find(|(index, id)| ids[..*index].contains(id)) {
            return refuse(format!("core {} is named twice", twice.1));
        }
        if !ids.is_empty() && (ids.len() as u32) < cores {
            return refuse(format!("{cores} cores are wanted, and only {} are named: name more", ids.len()));
        }
        Ok(())
    }
}

impl fmt::Display for PlacementPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(POLICIES.iter().find(|(_, policy)| policy == self).map_or("", |(name, _)| name))
    }
}

impl FromStr for PlacementPolicy {
    type Err = NoSuchPolicy;

    fn from_str(text: &str) -> Result<Self, NoSuchPolicy> {
        POLICIES.iter().find(|(name, _)| *name == text).map(|(_, policy)| *policy).ok_or(NoSuchPolicy)
    }
}

impl fmt::Display for NoSuchPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such placement: write `compact`, `spread` or `siblings`")
    }
}

impl core::error::Error for NoSuchPolicy {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn named(ids: impl IntoIterator<Item = u32>) -> CorePlacement {
        CorePlacement { ids: ids.into_iter().map(CoreId).collect(), ..CorePlacement::default() }
    }

    #[test]
    fn policies_round_trip_through_their_names() {
        for (name, policy) in POLICIES {
            assert_eq!((name.parse(), policy.to_string().as_str()), (Ok(policy), name));
        }
        assert_eq!("".parse::<PlacementPolicy>(), Err(NoSuchPolicy));
    }

    #[test]
    fn duplicate_and_too_few_named_cores_are_refused() {
        assert_eq!(named([]).validate(4), Ok(()));
        assert_eq!(named([2, 5]).validate(1), Ok(()), "a cell may later get the other named cores");
        assert_eq!(named(0..256).validate(64), Ok(()));
        for (placement, cores, part) in [
            (named([2, 5]), 3, "name more"),
            (named([2, 2]), 1, "core 2 is named twice"),
            (named(0..257), 1, "at most 256 cores, and 257"),
        ] {
            let Err(ManagementError::OutOfLimits(what)) = placement.validate(cores) else { panic!("{part}") };
            assert!(what.contains(part), "{what}");
        }
    }
}
