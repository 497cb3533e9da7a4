//! The syntax of core placements: `spread`, a node, `2,5-7`.

use isola_abi::id::{CoreId, MAX_CORES, MAX_MACHINE_CORES, NodeId};
use isola_abi::management::{CorePlacement, PlacementPolicy};
use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A request for the placement of a cell's cores. The supervisor chooses all that is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementRequest {
    /// The placement policy.
    pub policy: Option<PlacementPolicy>,
    /// The NUMA node.
    pub node: Option<u32>,
    /// The cores to choose from.
    pub core_ids: Option<CoreIds>,
}

/// Core ids, written `2,5-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreIds(Vec<CoreId>);

/// A set of a cell's own cores, by core slot, written `2,5-7`: core `n` is bit `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellCores(pub u64);

/// The error for a text that is not a list of cores.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{text:?} names no cores: write numbers below {limit} and ranges of them, as in 2,5-7")]
pub struct BadCoreIds {
    text: String,
    limit: usize,
}

impl PlacementRequest {
    /// Returns this request, with unset fields from `written`.
    pub fn or(self, written: Self) -> Self {
        Self {
            policy: self.policy.or(written.policy),
            node: self.node.or(written.node),
            core_ids: self.core_ids.or(written.core_ids),
        }
    }

    /// Returns the number of cores for a cell without a given number: all named ones, or one.
    pub fn cores(&self) -> u32 {
        self.core_ids.as_ref().map_or(1, |ids| ids.0.len() as u32)
    }

    /// Converts the request to the form of the management protocol.
    pub fn placement(self) -> CorePlacement {
        CorePlacement {
            policy: self.policy.unwrap_or_default(),
            node: self.node.map(NodeId),
            ids: self.core_ids.map_or_else(Vec::new, |ids| ids.0),
        }
    }
}

impl FromStr for CoreIds {
    type Err = BadCoreIds;

    fn from_str(text: &str) -> Result<Self, BadCoreIds> {
        parse(text, MAX_MACHINE_CORES).map(Self)
    }
}

impl FromStr for CellCores {
    type Err = BadCoreIds;

    fn from_str(text: &str) -> Result<Self, BadCoreIds> {
        Ok(Self(parse(text, MAX_CORES)?.into_iter().fold(0, |bits, core| bits | 1 << core.0)))
    }
}

/// Parses numbers below `limit`. Returns them in ascending order, each once.
fn parse(text: &str, limit: usize) -> Result<Vec<CoreId>, BadCoreIds> {
    let bad = || BadCoreIds { text: text.to_owned(), limit };
    let number = |text: &str| {
        let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|text| text.parse().ok()).filter(|id| (*id as usize) < limit).ok_or_else(bad)
    };
    let mut ids = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (number(first)?, number(last)?);
        if first > last {
            return Err(bad());
        }
        ids.extend((first..=last).map(CoreId));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

impl fmt::Display for CoreIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ranges(&self.0))
    }
}

impl<'de> Deserialize<'de> for CoreIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Formats cores as `2,5-7`. They must be sorted.
pub fn ranges(ids: &[CoreId]) -> String {
    let runs = ids.chunk_by(|one, next| next.0 == one.0 + 1);
    let run = |run: &[CoreId]| match run {
        [] => String::new(),
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_named_by_numbers_and_ranges() {
        for (text, shown) in [("2", "2"), ("2,5-7", "2,5-7"), ("7,5,6,5", "5-7"), ("0-255", "0-255")] {
            assert_eq!(text.parse::<CoreIds>().unwrap().to_string(), shown);
        }
        for bad in ["", ",", "1,", "-", "3-2", "1-", "256", "0-256", "a", "+1", "4294967297", " 1"] {
            assert_eq!(bad.parse::<CoreIds>(), Err(BadCoreIds { text: bad.into(), limit: 256 }), "{bad}");
        }
    }

    #[test]
    fn cores_of_a_cell_are_a_set_of_64() {
        assert_eq!("0,2-3".parse(), Ok(CellCores(0b1101)));
        assert_eq!(("63".parse(), "0-63".parse()), (Ok(CellCores(1 << 63)), Ok(CellCores(u64::MAX))));
        let refused = "1,64".parse::<CellCores>().unwrap_err();
        assert!(refused.to_string().contains("numbers below 64"), "{refused}");
    }

    #[test]
    fn arguments_override_the_manifest() {
        let ids = |text: &str| Some(text.parse().unwrap());
        let given = PlacementRequest { node: Some(1), ..PlacementRequest::default() };
        let written =
            PlacementRequest { policy: Some(PlacementPolicy::Spread), node: Some(0), core_ids: ids("4-6") };
        let both = given.or(written);
        assert_eq!(both.cores(), 3);
        let placement = both.placement();
        assert_eq!((placement.policy, placement.node), (PlacementPolicy::Spread, Some(NodeId(1))));
        assert_eq!(PlacementRequest::default().placement(), CorePlacement::default());
        assert_eq!(PlacementRequest::default().cores(), 1);
    }
}
