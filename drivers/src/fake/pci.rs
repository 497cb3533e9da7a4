//! A PCI function: configuration space with capabilities, a BAR with the MSI-X table, a BAR with the registers.
//!
//! ```text
//!   BAR 1   MSI-X table
//!   BAR 4   0x0000 common   0x1000 interrupt status   0x2000 device configuration   0x3000 notification
//! ```

use super::registers::{FakeWindow, Model, SharedDevice, lock};
use std::sync::{Arc, Mutex};
use std::vec;
use std::vec::Vec;

/// Plain memory.
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn u16(&self, offset: usize) -> u16 {
        u16::from_le_bytes([self.0[offset], self.0[offset + 1]])
    }

    pub fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.0[offset..offset + 4].try_into().unwrap())
    }

    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

impl Model for Bytes {
    fn read(&mut self, offset: usize, width: usize) -> u32 {
        (0..width).map(|nth| u32::from(self.0[offset + nth]) << (8 * nth)).sum()
    }

    fn write(&mut self, offset: usize, width: usize, value: u32) {
        self.put(offset, &value.to_le_bytes()[..width]);
    }
}

/// BAR 4.
struct RegisterBar(SharedDevice);

/// Distance between the notification registers of two queues.
const NOTIFY_MULTIPLIER: usize = 4;

impl Model for RegisterBar {
    fn read(&mut self, offset: usize, width: usize) -> u32 {
        let mut device = lock(&self.0);
        match offset {
            0x0000..0x1000 => device.read_common(offset, width),
            0x1000 => core::mem::take(&mut device.interrupt_status).into(),
            0x2000..0x3000 => device.configuration(offset - 0x2000, width),
            _ => panic!("read at {offset:#x}"),
        }
    }

    fn write(&mut self, offset: usize, width: usize, value: u32) {
        let mut device = lock(&self.0);
        match offset {
            0x0000..0x1000 => device.write_common(offset, width, value),
            0x3000..0x4000 => {
                assert_eq!((offset - 0x3000, width), (value as usize * NOTIFY_MULTIPLIER, 2));
                device.notify(value as u16);
            }
            _ => panic!("write at {offset:#x}"),
        }
    }
}

/// A function.
pub struct FakeFunction {
    pub configuration: Arc<Mutex<Bytes>>,
    pub table: Arc<Mutex<Bytes>>,
    registers: Arc<Mutex<RegisterBar>>,
}

/// The offsets of the capabilities in the configuration space of [`FakeFunction::new`].
pub const COMMON_AT: usize = 0x50;
pub const NOTIFY_AT: usize = 0x60;
pub const INTERRUPT_AT: usize = 0x74;
pub const DEVICE_AT: usize = 0x84;
pub const MSI_X_AT: usize = 0x94;

impl FakeFunction {
    /// Returns a modern function with `entries` message interrupts.
    pub fn new(device: &SharedDevice, entries: u16) -> Self {
        let mut config = Bytes(vec![0; 4096]);
        config.put(0x00, &0x1af4_u16.to_le_bytes());
        config.put(0x02, &(0x1040 + lock(device).device_type as u16).to_le_bytes());
        config.put(0x06, &0x10_u16.to_le_bytes());
        config.put(0x34, &[COMMON_AT as u8]);
        let config_len = lock(device).configuration.len() as u32;
        config.put(COMMON_AT, &virtio_capability(NOTIFY_AT, 16, 1, 4, 0x0000, 60));
        config.put(NOTIFY_AT, &virtio_capability(INTERRUPT_AT, 20, 2, 4, 0x3000, 0x1000));
        config.put(NOTIFY_AT + 16, &(NOTIFY_MULTIPLIER as u32).to_le_bytes());
        config.put(INTERRUPT_AT, &virtio_capability(DEVICE_AT, 16, 3, 4, 0x1000, 1));
        let after = if entries > 0 { MSI_X_AT } else { 0 };
        config.put(DEVICE_AT, &virtio_capability(after, 16, 4, 4, 0x2000, config_len));
        if entries > 0 {
            config.put(MSI_X_AT, &[0x11, 0]);
            config.put(MSI_X_AT + 2, &(entries - 1).to_le_bytes());
            config.put(MSI_X_AT + 4, &1_u32.to_le_bytes());
        }
        Self {
            configuration: Arc::new(Mutex::new(config)),
            table: Arc::new(Mutex::new(Bytes(vec![0; 4096]))),
            registers: Arc::new(Mutex::new(RegisterBar(device.clone()))),
        }
    }

    /// Returns the window of the configuration space.
    pub fn config(&self) -> FakeWindow {
        FakeWindow::new(self.configuration.clone(), 4096)
    }

    /// Returns the windows of the BARs.
    pub fn bars(&self) -> [(u8, FakeWindow); 2] {
        [(1, FakeWindow::new(self.table.clone(), 4096)), (4, FakeWindow::new(self.registers.clone(), 0x4000))]
    }

    /// Writes to the configuration space.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        self.configuration.lock().unwrap().put(offset, bytes);
    }
}

/// Returns a vendor capability in virtio's format.
pub fn virtio_capability(next: usize, cap_len: u8, kind: u8, bar: u8, offset: u32, len: u32) -> [u8; 16] {
    let mut bytes = [0x09, next as u8, cap_len, kind, bar, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes[8..12].copy_from_slice(&offset.to_le_bytes());
    bytes[12..16].copy_from_slice(&len.to_le_bytes());
    bytes
}
