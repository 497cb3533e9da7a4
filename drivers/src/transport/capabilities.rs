//! The positions of a PCI function's virtio registers, from its capabilities (virtio 1.2, 4.1.4; PCI Local Bus 3.0, 6.7
//! and 6.8.2).

use super::RegisterWindow;
use core::fmt;

/// Bytes of configuration space that can contain these capabilities.
pub(super) const CONFIGURATION_LEN: usize = 256;

/// The most capabilities that fit behind the header of 64 bytes, as each takes at least 4: a longer list has a loop.
const MAX_CAPABILITIES: usize = (CONFIGURATION_LEN - 64) / 4;

const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const CAPABILITIES: usize = 0x34;
const MSI_X: u8 = 0x11;
const VENDOR: u8 = 0x09;

/// The structure types of virtio capabilities (virtio 1.2, 4.1.4).
mod kind {
    pub const COMMON: u8 = 1;
    pub const NOTIFY: u8 = 2;
    pub const INTERRUPT_STATUS: u8 = 3;
    pub const DEVICE: u8 = 4;
}

/// A range of a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BarRange {
    /// The BAR's index.
    pub bar: u8,
    /// The offset in the BAR, in bytes.
    pub offset: usize,
    /// The length, in bytes.
    pub len: usize,
}

/// The positions of a virtio function's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capabilities {
    pub common: BarRange,
    pub notify: BarRange,
    /// Distance between the notification registers of two queues, in bytes.
    pub notify_multiplier: u32,
    pub interrupt_status: BarRange,
    /// The device's configuration, which not all devices have.
    pub device: Option<BarRange>,
    pub msi_x: Option<MsiX>,
}

/// The MSI-X capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MsiX {
    /// The capability's offset in configuration space.
    pub at: usize,
    /// The number of interrupts.
    pub entries: u16,
    /// The position of the table.
    pub table: BarRange,
}

/// The defect of a function's capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapabilityError {
    /// The list of capabilities has a loop.
    Endless,
    /// A capability extends beyond configuration space.
    OutsideConfiguration {
        /// The capability's offset.
        at: usize,
    },
    /// The position of common registers, notification registers or interrupt status is missing.
    Missing,
    /// Registers are in a BAR that the function does not have, or outside of it.
    OutsideBar {
        /// The BAR.
        bar: u8,
    },
    /// The offset of registers is not a multiple of 4.
    NotAligned,
}

impl fmt::Display for CapabilityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endless => f.write_str("the PCI function's list of capabilities has a loop"),
            Self::OutsideConfiguration { at } => {
                write!(f, "the PCI function's capability at {at:#x} leaves configuration space")
            }
            Self::Missing => f.write_str("the PCI function does not say where its virtio registers are"),
            Self::OutsideBar { bar } => write!(f, "the PCI function has registers outside of its BAR {bar}"),
            Self::NotAligned => f.write_str("the PCI function's registers are not aligned"),
        }?;
        f.write_str(": the device is broken")
    }
}

impl core::error::Error for CapabilityError {}

impl Capabilities {
    /// Walks the capabilities of a function with the configuration space `config` of at least [`CONFIGURATION_LEN`]
    /// bytes. Of several positions of the same registers, takes the first that `usable` accepts, as virtio requires.
    pub(super) fn walk(
        config: &impl RegisterWindow,
        usable: impl Fn(&BarRange) -> bool,
    ) -> Result<Self, CapabilityError> {
        let mut found = FoundCapabilities::default();
        if config.read_u16(STATUS) & STATUS_CAPABILITIES != 0 {
            let mut at = pointer(config, CAPABILITIES);
            let mut count = 0;
            while at != 0 {
                if count == MAX_CAPABILITIES {
                    return Err(CapabilityError::Endless);
                }
                count += 1;
                found.visit(config, at, &usable)?;
                at = pointer(config, at + 1);
            }
        }
        found.complete()
    }
}

/// The capabilities found so far.
#[derive(Debug, Default)]
struct FoundCapabilities {
    common: Option<BarRange>,
    notify: Option<(BarRange, u32)>,
    interrupt_status: Option<BarRange>,
    device: Option<BarRange>,
    msi_x: Option<MsiX>,
}

impl FoundCapabilities {
    fn visit(
        &mut self,
        config: &impl RegisterWindow,
        at: usize,
        usable: &impl Fn(&BarRange) -> bool,
    ) -> Result<(), CapabilityError> {
        let within = |len: usize| {
            let inside = at >= 64 && at + len <= CONFIGURATION_LEN;
            inside.then_some(()).ok_or(CapabilityError::OutsideConfiguration { at })
        };
        within(4)?;
        match config.read_u8(at) {
            MSI_X => {
                within(12)?;
                let control = config.read_u16(at + 2);
                let table = config.read_u32(at + 4);
                let entries = (control & 0x7ff) + 1;
                let range = BarRange {
                    bar: (table & 7) as u8,
                    offset: (table & !7) as usize,
                    len: usize::from(entries) * super::msix::ENTRY_LEN,
                };
                self.msi_x.get_or_insert(MsiX { at, entries, table: range });
            }
            VENDOR => {
                within(16)?;
                let range = BarRange {
                    bar: config.read_u8(at + 4),
                    offset: config.read_u32(at + 8) as usize,
                    len: config.read_u32(at + 12) as usize,
                };
                if !usable(&range) {
                    return Ok(());
                }
                match config.read_u8(at + 3) {
                    kind::COMMON => _ = self.common.get_or_insert(range),
                    kind::NOTIFY => {
                        within(20)?;
                        self.notify.get_or_insert((range, config.read_u32(at + 16)));
                    }
                    kind::INTERRUPT_STATUS => _ = self.interrupt_status.get_or_insert(range),
                    kind::DEVICE => _ = self.device.get_or_insert(range),
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn complete(self) -> Result<Capabilities, CapabilityError> {
        let (notify, notify_multiplier) = self.notify.ok_or(CapabilityError::Missing)?;
        Ok(Capabilities {
            common: self.common.ok_or(CapabilityError::Missing)?,
            notify,
            notify_multiplier,
            interrupt_status: self.interrupt_status.ok_or(CapabilityError::Missing)?,
            device: self.device,
            msi_x: self.msi_x,
        })
    }
}

/// Reads a pointer to a capability. Its two lowest bits are reserved.
fn pointer(config: &impl RegisterWindow, at: usize) -> usize {
    usize::from(config.read_u8(at) & !3)
}
