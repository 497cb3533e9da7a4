//! What the first incarnation found out about the machine that a later one must not find out again: it would disturb cells, or
//! see what they changed.

use alloc::vec::Vec;
use isola_abi::descriptor::Clock;
use isola_abi::id::{PhysAddr, PhysRange};
use serde::{Deserialize, Serialize};

/// What was found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Survey {
    pub(crate) clock: Clock,
    /// The cycle counter when the first incarnation began.
    pub(crate) started_cycles: u64,
    /// The functions on PCI that Isola has drivers for.
    pub(crate) functions: Vec<KnownFunction>,
}

/// A function on PCI, as it was when the machine booted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KnownFunction {
    /// Bus, device, function.
    pub(crate) address: (u8, u8, u8),
    /// Where its configuration space is.
    pub(crate) config_place: PhysAddr,
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) command: u16,
    /// Its memory BARs: which, and where.
    pub(crate) bars: Vec<(u8, PhysRange)>,
    /// The BARs' registers.
    pub(crate) bar_values: [u32; 6],
}
