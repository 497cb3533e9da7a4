//! The registers of a device: one state behind MMIO and PCI's common registers.

use super::ring::DeviceRing;
use crate::transport::{QueueAddresses, RegisterWindow};
use crate::virtqueue::Suppression;
use isola_machine::dma_peer::PeerMemory;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec;
use std::vec::Vec;

/// A model of a register block.
pub trait Model: Send {
    fn read(&mut self, offset: usize, width: usize) -> u32;
    fn write(&mut self, offset: usize, width: usize, value: u32);
}

/// A window into a [`Model`].
pub struct FakeWindow {
    model: Arc<Mutex<dyn Model>>,
    base: usize,
    len: usize,
}

impl core::fmt::Debug for FakeWindow {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "FakeWindow({:#x}..+{:#x})", self.base, self.len)
    }
}

impl FakeWindow {
    pub fn new(model: Arc<Mutex<dyn Model>>, len: usize) -> Self {
        Self { model, base: 0, len }
    }

    fn check(&self, offset: usize, width: usize) -> usize {
        assert!(offset + width <= self.len, "register {offset:#x} is outside of its window");
        assert_eq!((self.base + offset) % width, 0, "register {offset:#x} is not aligned");
        self.base + offset
    }

    fn read(&self, offset: usize, width: usize) -> u32 {
        let at = self.check(offset, width);
        self.model.lock().unwrap_or_else(PoisonError::into_inner).read(at, width)
    }

    fn write(&self, offset: usize, width: usize, value: u32) {
        let at = self.check(offset, width);
        self.model.lock().unwrap_or_else(PoisonError::into_inner).write(at, width, value);
    }
}

impl RegisterWindow for FakeWindow {
    fn len(&self) -> usize {
        self.len
    }

    fn window(&self, offset: usize, len: usize) -> Option<Self> {
        let fits = offset.checked_add(len)? <= self.len;
        fits.then(|| Self { model: Arc::clone(&self.model), base: self.base + offset, len })
    }

    fn read_u8(&self, offset: usize) -> u8 {
        self.read(offset, 1) as u8
    }

    fn read_u16(&self, offset: usize) -> u16 {
        self.read(offset, 2) as u16
    }

    fn read_u32(&self, offset: usize) -> u32 {
        self.read(offset, 4)
    }

    fn write_u8(&self, offset: usize, value: u8) {
        self.write(offset, 1, value.into());
    }

    fn write_u16(&self, offset: usize, value: u16) {
        self.write(offset, 2, value.into());
    }

    fn write_u32(&self, offset: usize, value: u32) {
        self.write(offset, 4, value);
    }
}

/// A queue's registers.
#[derive(Clone, Debug)]
pub struct FakeQueue {
    pub limit: u16,
    pub size: u16,
    pub entry: u16,
    pub ready: bool,
    pub in_reset: bool,
    pub notify_offset: u16,
    /// Descriptors, available ring, used ring.
    pub addresses: [u64; 3],
}

/// Deliberate protocol violations of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quirks {
    pub hangs_in_reset: bool,
    pub refuses_features: bool,
    pub changes_configuration_always: bool,
    pub refuses_queues: bool,
    pub ignores_queue_size: bool,
    pub has_no_vectors: bool,
    pub never_answers_commands: bool,
    pub hangs_in_queue_reset: bool,
}

/// A device's state.
#[derive(Debug)]
pub struct FakeDevice {
    pub device_type: u32,
    pub version: u32,
    pub magic: u32,
    pub offered: u64,
    pub accepted: u64,
    pub status: u8,
    pub statuses: Vec<u8>,
    pub queues: Vec<FakeQueue>,
    pub configuration: Vec<u8>,
    pub generation: u8,
    pub interrupt_status: u8,
    pub configuration_entry: u16,
    /// The queues that were notified, in order.
    pub notices: Vec<u16>,
    pub quirks: Quirks,
    /// The index of the control queue, its memory, its ring after the first use, its answer, and the received commands.
    pub control: Option<u16>,
    pub memory: Option<PeerMemory>,
    control_ring: Option<DeviceRing>,
    pub control_answer: u8,
    pub commands: Vec<Vec<u8>>,
    select_offered: u32,
    select_accepted: u32,
    select_queue: u16,
}

pub type SharedDevice = Arc<Mutex<FakeDevice>>;

impl FakeDevice {
    pub fn new(device_type: u32, offered: u64, queues: u16, configuration: Vec<u8>) -> Self {
        let queue = FakeQueue {
            limit: 256,
            size: 256,
            entry: 0xffff,
            ready: false,
            in_reset: false,
            notify_offset: 0,
            addresses: [0; 3],
        };
        Self {
            device_type,
            version: 2,
            magic: 0x7472_6976,
            offered,
            accepted: 0,
            status: 0,
            statuses: vec![],
            queues: (0..queues).map(|index| FakeQueue { notify_offset: index, ..queue.clone() }).collect(),
            configuration,
            generation: 0,
            interrupt_status: 0,
            configuration_entry: 0xffff,
            notices: vec![],
            quirks: Quirks::default(),
            control: None,
            memory: None,
            control_ring: None,
            control_answer: 0,
            commands: vec![],
            select_offered: 0,
            select_accepted: 0,
            select_queue: 0,
        }
    }

    /// Returns the device's side of a queue that the driver has enabled.
    pub fn ring(&self, queue: u16) -> DeviceRing {
        let queue = &self.queues[usize::from(queue)];
        assert!(queue.ready, "the queue was not set up");
        let [descriptors, available, used] = queue.addresses;
        let at = QueueAddresses { size: queue.size, descriptors, available, used };
        let by_index = self.accepted & 1 << 29 != 0;
        let suppression = if by_index { Suppression::EventIndex } else { Suppression::Flags };
        DeviceRing::new(self.memory.clone().expect("memory"), at, suppression)
    }

    fn queue(&mut self) -> Option<&mut FakeQueue> {
        self.queues.get_mut(usize::from(self.select_queue))
    }

    fn half(value: u64, select: u32) -> u32 {
        match select {
            0 => value as u32,
            1 => (value >> 32) as u32,
            _ => 0,
        }
    }

    fn set_status(&mut self, status: u8) {
        self.statuses.push(status);
        if status == 0 {
            self.accepted = 0;
            self.control_ring = None;
            for queue in &mut self.queues {
                queue.ready = false;
                queue.entry = 0xffff;
            }
            if self.quirks.hangs_in_reset {
                return;
            }
        }
        self.status = status;
        if self.quirks.refuses_features {
            self.status &= !8;
        }
    }

    fn set_accepted(&mut self, half: u32) {
        let shift = 32 * self.select_accepted;
        self.accepted = self.accepted & !(0xffff_ffff << shift) | u64::from(half) << shift;
    }

    fn set_address(&mut self, which: usize, high: bool, value: u32) {
        let Some(queue) = self.queue() else { return };
        let address = &mut queue.addresses[which];
        *address = if high {
            *address & 0xffff_ffff | u64::from(value) << 32
        } else {
            *address & !0xffff_ffff | u64::from(value)
        };
    }

    pub fn notify(&mut self, queue: u16) {
        assert!(self.status & 4 != 0, "notified before it runs");
        self.notices.push(queue);
        if self.control == Some(queue) && !self.quirks.never_answers_commands {
            let mut ring = self.control_ring.take().unwrap_or_else(|| self.ring(queue));
            while let Some(chain) = ring.take() {
                self.commands.push(ring.read(&chain));
                ring.answer(&chain, &[self.control_answer]);
            }
            ring.ask_for_notice();
            self.control_ring = Some(ring);
        }
    }

    pub fn configuration(&self, offset: usize, width: usize) -> u32 {
        (0..width).map(|nth| u32::from(self.configuration[offset + nth]) << (8 * nth)).sum()
    }

    fn generation(&mut self) -> u8 {
        if self.quirks.changes_configuration_always {
            self.generation = self.generation.wrapping_add(1);
        }
        self.generation
    }

    fn ready(&mut self, value: u32) {
        let refuses = self.quirks.refuses_queues;
        if let Some(queue) = self.queue() {
            queue.ready = value == 1 && !refuses;
        }
    }

    fn reset_queue(&mut self) {
        assert!(self.accepted & 1 << 40 != 0, "a queue is reset without the feature");
        let hangs = self.quirks.hangs_in_queue_reset;
        if let Some(queue) = self.queue() {
            queue.in_reset = hangs;
            queue.ready &= hangs;
            queue.entry = 0xffff;
        }
    }

    /// Reads PCI's common registers.
    pub fn read_common(&mut self, offset: usize, width: usize) -> u32 {
        match (offset, width) {
            (4, 4) => Self::half(self.offered, self.select_offered),
            (16, 2) => self.configuration_entry.into(),
            (20, 1) => self.status.into(),
            (21, 1) => self.generation().into(),
            (24, 2) => self.queue().map_or(0, |queue| queue.size.into()),
            (26, 2) => self.queue().map_or(0xffff, |queue| queue.entry.into()),
            (28, 2) => self.queue().map_or(0, |queue| queue.ready.into()),
            (30, 2) => self.queue().map_or(0, |queue| queue.notify_offset.into()),
            (58, 2) => self.queue().map_or(0, |queue| queue.in_reset.into()),
            _ => panic!("read of {width} bytes at {offset}"),
        }
    }

    /// Writes PCI's common registers.
    pub fn write_common(&mut self, offset: usize, width: usize, value: u32) {
        let quirks = self.quirks;
        let entry = if quirks.has_no_vectors { 0xffff } else { value as u16 };
        match (offset, width) {
            (0, 4) => self.select_offered = value,
            (8, 4) => self.select_accepted = value,
            (12, 4) => self.set_accepted(value),
            (16, 2) => self.configuration_entry = entry,
            (20, 1) => self.set_status(value as u8),
            (22, 2) => self.select_queue = value as u16,
            (24, 2) if quirks.ignores_queue_size => {}
            (24, 2) => _ = self.queue().map(|queue| queue.size = value as u16),
            (26, 2) => _ = self.queue().map(|queue| queue.entry = entry),
            (28, 2) => self.ready(value),
            (58, 2) => self.reset_queue(),
            (32..=52, 4) => self.set_address((offset - 32) / 8, offset % 8 == 4, value),
            _ => panic!("write of {width} bytes at {offset}"),
        }
    }
}

impl Model for FakeDevice {
    fn read(&mut self, offset: usize, width: usize) -> u32 {
        if offset >= 0x100 {
            return self.configuration(offset - 0x100, width);
        }
        assert_eq!(width, 4, "registers are read as words");
        match offset {
            0x000 => self.magic,
            0x004 => self.version,
            0x008 => self.device_type,
            0x010 => Self::half(self.offered, self.select_offered),
            0x034 => self.queue().map_or(0, |queue| queue.limit.into()),
            0x044 => self.queue().map_or(0, |queue| queue.ready.into()),
            0x060 => self.interrupt_status.into(),
            0x070 => self.status.into(),
            0x0fc => self.generation().into(),
            _ => panic!("read at {offset:#x}"),
        }
    }

    fn write(&mut self, offset: usize, width: usize, value: u32) {
        assert_eq!(width, 4, "registers are written as words");
        match offset {
            0x014 => self.select_offered = value,
            0x020 => self.set_accepted(value),
            0x024 => self.select_accepted = value,
            0x030 => self.select_queue = value as u16,
            0x038 => _ = self.queue().map(|queue| queue.size = value as u16),
            0x044 => self.ready(value),
            0x050 => self.notify(value as u16),
            0x064 => self.interrupt_status &= !(value as u8),
            0x070 => self.set_status(value as u8),
            0x080..=0x0a4 => self.set_address((offset - 0x80) / 16, offset % 8 == 4, value),
            _ => panic!("write at {offset:#x}"),
        }
    }
}

/// Returns the device's MMIO window.
pub fn mmio(device: &SharedDevice) -> FakeWindow {
    let len = 0x100 + lock(device).configuration.len();
    FakeWindow::new(device.clone(), len)
}

/// Locks the device's state.
pub fn lock(device: &SharedDevice) -> MutexGuard<'_, FakeDevice> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}
