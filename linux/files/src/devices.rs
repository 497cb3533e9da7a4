//! Devices behind device nodes.

use crate::Errno;
use crate::inode::CallerIds;
use crate::metadata::{DeviceNumber, InodeKind};
use crate::object::FileObject;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use spin::Mutex;

/// Opens a device with the flags of `open`.
pub trait Device: Send + Sync {
    /// Returns the object of the opened device.
    ///
    /// # Errors
    /// Those of the device.
    fn open(&self, flags: u32, caller: CallerIds) -> Result<Arc<dyn FileObject>, Errno>;
}

impl<F> Device for F
where
    F: Fn(u32, CallerIds) -> Result<Arc<dyn FileObject>, Errno> + Send + Sync,
{
    fn open(&self, flags: u32, caller: CallerIds) -> Result<Arc<dyn FileObject>, Errno> {
        self(flags, caller)
    }
}

/// The devices of a system, by their numbers.
#[derive(Default)]
pub struct DeviceTable {
    devices: Mutex<BTreeMap<(bool, DeviceNumber), Arc<dyn Device>>>,
}

impl DeviceTable {
    /// Registers a character device.
    pub fn register(&self, number: DeviceNumber, device: impl Device + 'static) {
        let device: Arc<dyn Device> = Arc::new(device);
        let former = self.devices.lock().insert((false, number), device);
        drop(former);
    }

    /// Opens a device.
    ///
    /// # Errors
    /// [`Errno::ENXIO`] if there is none of this number, and those of the device.
    pub fn open(
        &self,
        kind: InodeKind,
        number: DeviceNumber,
        flags: u32,
        caller: CallerIds,
    ) -> Result<Arc<dyn FileObject>, Errno> {
        let is_block = kind == InodeKind::BlockDevice;
        let device = self.devices.lock().get(&(is_block, number)).cloned();
        device.ok_or(Errno::ENXIO)?.open(flags, caller)
    }
}
