//! The survey: facts about the machine that only the first incarnation determines. To determine them again would
//! disturb cells, or read values that cells have changed.

use alloc::vec::Vec;
use isola_abi::descriptor::Clock;
use isola_abi::id::{PhysAddr, PhysRange};
use serde::{Deserialize, Serialize};

/// The survey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Survey {
    pub(crate) clock: Clock,
    /// The cycle counter at the start of the first incarnation.
    pub(crate) started_cycles: u64,
    /// The PCI functions for which Isola has drivers.
    pub(crate) functions: Vec<KnownFunction>,
}

/// A PCI function as it was at the first boot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KnownFunction {
    /// Bus, device, function.
    pub(crate) address: (u8, u8, u8),
    /// The address of its configuration space.
    pub(crate) config_address: PhysAddr,
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) command: u16,
    /// Its memory BARs: index and address range.
    pub(crate) bars: Vec<(u8, PhysRange)>,
    /// The BARs' registers.
    pub(crate) bar_values: [u32; 6],
}
