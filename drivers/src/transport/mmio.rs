//! virtio-mmio: a device behind one window of registers (virtio 1.2, 4.2).

use super::{
    EntryIndex, InterruptCause, Notify, QueueAddresses, QueueIndex, RegisterWindow, Transport, TransportError,
};
use alloc::boxed::Box;

/// "virt", little-endian.
const MAGIC: u32 = 0x7472_6976;

/// Bytes of registers before the device's configuration.
const CONFIGURATION: usize = 0x100;

/// Offsets of the registers (virtio 1.2, 4.2.2).
mod register {
    pub const MAGIC: usize = 0x000;
    pub const VERSION: usize = 0x004;
    pub const DEVICE_TYPE: usize = 0x008;
    pub const DEVICE_FEATURES: usize = 0x010;
    pub const DEVICE_FEATURES_SELECT: usize = 0x014;
    pub const DRIVER_FEATURES: usize = 0x020;
    pub const DRIVER_FEATURES_SELECT: usize = 0x024;
    pub const QUEUE_SELECT: usize = 0x030;
    pub const QUEUE_SIZE_MAX: usize = 0x034;
    pub const QUEUE_SIZE: usize = 0x038;
    pub const QUEUE_READY: usize = 0x044;
    pub const QUEUE_NOTIFY: usize = 0x050;
    pub const INTERRUPT_STATUS: usize = 0x060;
    pub const INTERRUPT_ACKNOWLEDGE: usize = 0x064;
    pub const STATUS: usize = 0x070;
    pub const QUEUE_DESCRIPTORS: usize = 0x080;
    pub const QUEUE_DRIVER: usize = 0x090;
    pub const QUEUE_DEVICE: usize = 0x0a0;
    pub const GENERATION: usize = 0x0fc;
}

/// A device on virtio-mmio.
#[derive(Debug)]
pub struct MmioTransport<W> {
    registers: W,
    device_type: u32,
}

impl<W: RegisterWindow> MmioTransport<W> {
    /// Opens the device behind `registers`.
    ///
    /// # Errors
    /// [`TransportError::NotVirtio`], [`TransportError::Vacant`] for a slot without a device,
    /// [`TransportError::Legacy`], [`TransportError::Version`], [`TransportError::WindowTooShort`].
    pub fn new(registers: W) -> Result<Self, TransportError> {
        if registers.len() < CONFIGURATION {
            return Err(TransportError::WindowTooShort { len: registers.len(), needed: CONFIGURATION });
        }
        if registers.read_u32(register::MAGIC) != MAGIC {
            return Err(TransportError::NotVirtio);
        }
        // A vacant slot can have the legacy version number, and is not reported as a legacy device.
        let device_type = registers.read_u32(register::DEVICE_TYPE);
        match (registers.read_u32(register::VERSION), device_type) {
            (1 | 2, 0) => Err(TransportError::Vacant),
            (1, _) => Err(TransportError::Legacy),
            (2, _) => Ok(Self { registers, device_type }),
            (version, _) => Err(TransportError::Version(version)),
        }
    }

    fn write_u64(&self, register: usize, value: u64) {
        self.registers.write_u32(register, value as u32);
        self.registers.write_u32(register + 4, (value >> 32) as u32);
    }
}

impl<W: RegisterWindow> Transport for MmioTransport<W> {
    fn device_type(&self) -> u32 {
        self.device_type
    }

    fn status(&self) -> u8 {
        self.registers.read_u32(register::STATUS) as u8
    }

    fn set_status(&mut self, status: u8) {
        self.registers.write_u32(register::STATUS, u32::from(status));
    }

    fn device_features(&mut self) -> u64 {
        let half = |select| {
            self.registers.write_u32(register::DEVICE_FEATURES_SELECT, select);
            u64::from(self.registers.read_u32(register::DEVICE_FEATURES))
        };
        half(0) | half(1) << 32
    }

    fn accept_features(&mut self, features: u64) {
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.registers.write_u32(register::DRIVER_FEATURES_SELECT, select);
            self.registers.write_u32(register::DRIVER_FEATURES, half);
        }
    }

    fn queue_limit(&mut self, queue: QueueIndex) -> u16 {
        self.registers.write_u32(register::QUEUE_SELECT, u32::from(queue.0));
        u16::try_from(self.registers.read_u32(register::QUEUE_SIZE_MAX)).unwrap_or(1 << 15)
    }

    fn enable_queue(
        &mut self,
        queue: QueueIndex,
        addresses: QueueAddresses,
        entry: Option<EntryIndex>,
    ) -> Result<Box<dyn Notify>, TransportError> {
        if let Some(entry) = entry {
            return Err(TransportError::NoSuchEntry { entry });
        }
        let registers = &self.registers;
        registers.write_u32(register::QUEUE_SELECT, u32::from(queue.0));
        if registers.read_u32(register::QUEUE_READY) != 0 {
            return Err(TransportError::QueueInUse { queue });
        }
        registers.write_u32(register::QUEUE_SIZE, u32::from(addresses.size));
        self.write_u64(register::QUEUE_DESCRIPTORS, addresses.descriptors);
        self.write_u64(register::QUEUE_DRIVER, addresses.available);
        self.write_u64(register::QUEUE_DEVICE, addresses.used);
        registers.write_u32(register::QUEUE_READY, 1);
        if registers.read_u32(register::QUEUE_READY) != 1 {
            return Err(TransportError::QueueRefused { queue });
        }
        let register = registers
            .window(register::QUEUE_NOTIFY, 4)
            .ok_or(TransportError::WindowTooShort { len: registers.len(), needed: CONFIGURATION })?;
        Ok(Box::new(MmioNotifier { register, queue }))
    }

    fn generation(&self) -> u32 {
        self.registers.read_u32(register::GENERATION)
    }

    fn configuration_u8(&self, offset: usize) -> Option<u8> {
        let offset = offset.checked_add(CONFIGURATION)?;
        (offset < self.registers.len()).then(|| self.registers.read_u8(offset))
    }

    fn configuration_u16(&self, offset: usize) -> Option<u16> {
        let offset = offset.checked_add(CONFIGURATION)?;
        let within = offset.is_multiple_of(2) && offset + 1 < self.registers.len();
        within.then(|| self.registers.read_u16(offset))
    }

    fn configuration_u32(&self, offset: usize) -> Option<u32> {
        let offset = offset.checked_add(CONFIGURATION)?;
        let within = offset.is_multiple_of(4) && offset + 3 < self.registers.len();
        within.then(|| self.registers.read_u32(offset))
    }

    fn acknowledge(&mut self) -> InterruptCause {
        let status = self.registers.read_u32(register::INTERRUPT_STATUS);
        if status != 0 {
            self.registers.write_u32(register::INTERRUPT_ACKNOWLEDGE, status);
        }
        InterruptCause::from_status(status as u8)
    }
}

/// Notifies by writing a queue's index to the register that all queues share.
#[derive(Debug)]
struct MmioNotifier<W> {
    register: W,
    queue: QueueIndex,
}

impl<W: RegisterWindow> Notify for MmioNotifier<W> {
    #[inline]
    fn notify(&self) {
        self.register.write_u32(0, u32::from(self.queue.0));
    }
}
