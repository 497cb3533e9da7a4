//! virtio over PCI: the modern interface, with message interrupts (virtio 1.2, 4.1).
//!
//! A function is given by windows of its configuration space and its memory BARs, which the caller has mapped. The
//! addresses in the BARs stay unchanged.

use super::capabilities::{BarRange, CONFIGURATION_LEN, Capabilities, CapabilityError};
use super::{
    EntryIndex, IndexNotifier, InterruptCause, MessageControl, MessageEntry, Notify, QueueAddresses,
    QueueIndex, RegisterWindow, Transport, TransportError,
};
use alloc::boxed::Box;
use isola_machine::apic::InterruptMessage;

/// Red Hat's vendor id, which all virtio devices have.
const VENDOR_ID: u16 = 0x1af4;

/// The device id of a modern device is this base plus the device type.
const MODERN_BASE: u16 = 0x1040;

/// Device ids of transitional devices, whose type is their subsystem id.
const TRANSITIONAL: core::ops::RangeInclusive<u16> = 0x1000..=0x103f;

/// Registers of configuration space.
mod configuration {
    pub const VENDOR: usize = 0x00;
    pub const DEVICE: usize = 0x02;
    pub const COMMAND: usize = 0x04;
    pub const SUBSYSTEM: usize = 0x2e;
    pub const COMMAND_MEMORY: u16 = 1 << 1;
    pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
    pub const COMMAND_NO_LINE_INTERRUPT: u16 = 1 << 10;
    pub const MSI_X_ENABLE: u16 = 1 << 15;
    pub const MSI_X_MASK_ALL: u16 = 1 << 14;
}

/// The common registers (virtio 1.2, 4.1.4.3).
mod common {
    pub const DEVICE_FEATURES_SELECT: usize = 0;
    pub const DEVICE_FEATURES: usize = 4;
    pub const DRIVER_FEATURES_SELECT: usize = 8;
    pub const DRIVER_FEATURES: usize = 12;
    pub const CONFIGURATION_ENTRY: usize = 16;
    pub const STATUS: usize = 20;
    pub const GENERATION: usize = 21;
    pub const QUEUE_SELECT: usize = 22;
    pub const QUEUE_SIZE: usize = 24;
    pub const QUEUE_ENTRY: usize = 26;
    pub const QUEUE_ENABLE: usize = 28;
    pub const QUEUE_NOTIFY: usize = 30;
    pub const QUEUE_DESCRIPTORS: usize = 32;
    pub const QUEUE_DRIVER: usize = 40;
    pub const QUEUE_DEVICE: usize = 48;
    pub const LEN: usize = 56;
    /// Only devices of virtio 1.2 have it.
    pub const QUEUE_RESET: usize = 58;
}

/// No interrupt.
const NO_ENTRY: EntryIndex = EntryIndex(0xffff);

/// A device on PCI.
#[derive(Debug)]
pub struct PciTransport<W> {
    device_type: u32,
    common: W,
    notify: W,
    notify_multiplier: usize,
    interrupt_status: W,
    device: Option<W>,
    /// The MSI-X table and its number of entries.
    messages: Option<(W, u16)>,
}

impl<W: RegisterWindow> PciTransport<W> {
    /// Opens the device of the function with this configuration space and these memory BARs, by index. Enables its
    /// memory access and message interrupts, all of which are masked until they are configured.
    ///
    /// # Errors
    /// [`TransportError::NotVirtio`], [`TransportError::Legacy`], [`TransportError::Capability`],
    /// [`TransportError::WindowTooShort`].
    pub fn new(config: W, bars: &[(u8, W)]) -> Result<Self, TransportError> {
        if config.len() < CONFIGURATION_LEN {
            return Err(TransportError::WindowTooShort { len: config.len(), needed: CONFIGURATION_LEN });
        }
        let device_type = device_type(&config)?;
        let capabilities = Capabilities::walk(&config, |range| cut(bars, range).is_ok());
        let capabilities = match capabilities {
            Err(CapabilityError::Missing) if is_transitional(&config) => return Err(TransportError::Legacy),
            other => other?,
        };
        let common = cut(bars, &capabilities.common)?;
        if common.len() < common::LEN {
            return Err(TransportError::WindowTooShort { len: common.len(), needed: common::LEN });
        }
        let interrupt_status = cut(bars, &capabilities.interrupt_status)?;
        if interrupt_status.is_empty() {
            return Err(TransportError::WindowTooShort { len: 0, needed: 1 });
        }
        let command = config.read_u16(configuration::COMMAND) | configuration::COMMAND_MEMORY;
        config.write_u16(configuration::COMMAND, command);
        let messages = match capabilities.msi_x {
            Some(msi_x) => {
                let table = cut(bars, &msi_x.table)?;
                for index in 0..msi_x.entries {
                    if let Some(mut entry) = MessageEntry::new(&table, index) {
                        entry.mask();
                    }
                }
                let control = config.read_u16(msi_x.at + 2) & !configuration::MSI_X_MASK_ALL;
                config.write_u16(msi_x.at + 2, control | configuration::MSI_X_ENABLE);
                Some((table, msi_x.entries))
            }
            None => None,
        };
        let transport = Self {
            device_type,
            common,
            notify: cut(bars, &capabilities.notify)?,
            notify_multiplier: capabilities.notify_multiplier as usize,
            interrupt_status,
            device: capabilities.device.map(|range| cut(bars, &range)).transpose()?,
            messages,
        };
        let allowed = configuration::COMMAND_BUS_MASTER | configuration::COMMAND_NO_LINE_INTERRUPT;
        config.write_u16(configuration::COMMAND, command | allowed);
        Ok(transport)
    }

    fn write_u64(&self, register: usize, value: u64) {
        self.common.write_u32(register, value as u32);
        self.common.write_u32(register + 4, (value >> 32) as u32);
    }
}

/// Returns the type of the function's device.
fn device_type(config: &impl RegisterWindow) -> Result<u32, TransportError> {
    if config.read_u16(configuration::VENDOR) != VENDOR_ID {
        return Err(TransportError::NotVirtio);
    }
    match config.read_u16(configuration::DEVICE) {
        id if TRANSITIONAL.contains(&id) => Ok(u32::from(config.read_u16(configuration::SUBSYSTEM))),
        id @ MODERN_BASE..=0x107f => Ok(u32::from(id - MODERN_BASE)),
        _ => Err(TransportError::NotVirtio),
    }
}

fn is_transitional(config: &impl RegisterWindow) -> bool {
    TRANSITIONAL.contains(&config.read_u16(configuration::DEVICE))
}

/// Returns the registers at `range`. All structures contain words, so their offsets must be multiples of 4.
fn cut<W: RegisterWindow>(bars: &[(u8, W)], range: &BarRange) -> Result<W, CapabilityError> {
    if !range.offset.is_multiple_of(4) {
        return Err(CapabilityError::NotAligned);
    }
    let bar = bars.iter().find(|(index, _)| *index == range.bar);
    bar.and_then(|(_, registers)| registers.window(range.offset, range.len))
        .ok_or(CapabilityError::OutsideBar { bar: range.bar })
}

impl<W: RegisterWindow> Transport for PciTransport<W> {
    fn device_type(&self) -> u32 {
        self.device_type
    }

    fn status(&self) -> u8 {
        self.common.read_u8(common::STATUS)
    }

    fn set_status(&mut self, status: u8) {
        self.common.write_u8(common::STATUS, status);
    }

    fn device_features(&mut self) -> u64 {
        let half = |select| {
            self.common.write_u32(common::DEVICE_FEATURES_SELECT, select);
            u64::from(self.common.read_u32(common::DEVICE_FEATURES))
        };
        half(0) | half(1) << 32
    }

    fn accept_features(&mut self, features: u64) {
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.common.write_u32(common::DRIVER_FEATURES_SELECT, select);
            self.common.write_u32(common::DRIVER_FEATURES, half);
        }
    }

    fn queue_limit(&mut self, queue: QueueIndex) -> u16 {
        self.common.write_u16(common::QUEUE_SELECT, queue.0);
        self.common.read_u16(common::QUEUE_SIZE)
    }

    fn enable_queue(
        &mut self,
        queue: QueueIndex,
        addresses: QueueAddresses,
        entry: Option<EntryIndex>,
    ) -> Result<Box<dyn Notify>, TransportError> {
        let common = &self.common;
        common.write_u16(common::QUEUE_SELECT, queue.0);
        if common.read_u16(common::QUEUE_ENABLE) != 0 {
            return Err(TransportError::QueueInUse { queue });
        }
        let offset = usize::from(common.read_u16(common::QUEUE_NOTIFY)).checked_mul(self.notify_multiplier);
        let register = offset
            .filter(|offset| offset.is_multiple_of(2))
            .and_then(|offset| self.notify.window(offset, 2))
            .ok_or(TransportError::NotifyOutside { queue })?;
        common.write_u16(common::QUEUE_SIZE, addresses.size);
        if common.read_u16(common::QUEUE_SIZE) != addresses.size {
            return Err(TransportError::QueueRefused { queue });
        }
        let entry = entry.unwrap_or(NO_ENTRY);
        common.write_u16(common::QUEUE_ENTRY, entry.0);
        if common.read_u16(common::QUEUE_ENTRY) != entry.0 {
            return Err(TransportError::NoSuchEntry { entry });
        }
        self.write_u64(common::QUEUE_DESCRIPTORS, addresses.descriptors);
        self.write_u64(common::QUEUE_DRIVER, addresses.available);
        self.write_u64(common::QUEUE_DEVICE, addresses.used);
        common.write_u16(common::QUEUE_ENABLE, 1);
        if common.read_u16(common::QUEUE_ENABLE) != 1 {
            return Err(TransportError::QueueRefused { queue });
        }
        Ok(Box::new(IndexNotifier { register, queue }))
    }

    fn can_reset_queues(&self) -> bool {
        self.common.len() >= common::QUEUE_RESET + 2
    }

    fn begin_queue_reset(&mut self, queue: QueueIndex) {
        if self.can_reset_queues() {
            self.common.write_u16(common::QUEUE_SELECT, queue.0);
            self.common.write_u16(common::QUEUE_RESET, 1);
        }
    }

    fn is_queue_reset(&mut self, queue: QueueIndex) -> bool {
        self.common.write_u16(common::QUEUE_SELECT, queue.0);
        self.can_reset_queues()
            && self.common.read_u16(common::QUEUE_RESET) == 0
            && self.common.read_u16(common::QUEUE_ENABLE) == 0
    }

    fn generation(&self) -> u32 {
        u32::from(self.common.read_u8(common::GENERATION))
    }

    fn configuration_u8(&self, offset: usize) -> Option<u8> {
        let device = self.device.as_ref()?;
        (offset < device.len()).then(|| device.read_u8(offset))
    }

    fn configuration_u16(&self, offset: usize) -> Option<u16> {
        let device = self.device.as_ref()?;
        let within = offset.is_multiple_of(2) && offset.checked_add(2)? <= device.len();
        within.then(|| device.read_u16(offset))
    }

    fn configuration_u32(&self, offset: usize) -> Option<u32> {
        let device = self.device.as_ref()?;
        let within = offset.is_multiple_of(4) && offset.checked_add(4)? <= device.len();
        within.then(|| device.read_u32(offset))
    }

    fn acknowledge(&mut self) -> InterruptCause {
        // The read clears it.
        InterruptCause::from_status(self.interrupt_status.read_u8(0))
    }

    fn message_entries(&self) -> u16 {
        self.messages.as_ref().map_or(0, |(_, entries)| *entries)
    }

    fn set_message(
        &mut self,
        entry: EntryIndex,
        message: InterruptMessage,
    ) -> Result<Box<dyn MessageControl>, TransportError> {
        let (table, _) = self.messages.as_ref().ok_or(TransportError::NoSuchEntry { entry })?;
        let mut control = MessageEntry::new(table, entry.0).ok_or(TransportError::NoSuchEntry { entry })?;
        control.redirect(message);
        Ok(Box::new(control))
    }

    fn set_configuration_entry(&mut self, entry: EntryIndex) -> Result<(), TransportError> {
        self.common.write_u16(common::CONFIGURATION_ENTRY, entry.0);
        let taken = self.common.read_u16(common::CONFIGURATION_ENTRY) == entry.0;
        taken.then_some(()).ok_or(TransportError::NoSuchEntry { entry })
    }
}
