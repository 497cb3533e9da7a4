//! Several queues of a device, each for a core.

use crate::device::{BlockDevice, BlockSettings};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_events::interrupt::InterruptError;
use isola_platform::block::{BlockControl, BlockLimits, BlockPort, BlockQueue};
use spin::Mutex;

/// A queue of a block device that no core serves yet. It is started on the core that shall serve it.
///
/// Each queue has a handle ([`BlockDevice`]), a policy, bounds and counts of its own, as each core has at the processor.
/// A flush by one queue makes the writes permanent that any of them has completed.
pub struct QueuePort {
    pub(crate) limits: BlockLimits,
    pub(crate) control: DeviceControl,
    pub(crate) queue: Box<dyn BlockQueue + Send>,
}

/// The device as a whole, which its queues share.
#[derive(Clone)]
pub(crate) struct DeviceControl(Arc<Mutex<Box<dyn BlockControl + Send>>>);

impl DeviceControl {
    /// Reads the capacity, in sectors.
    pub fn capacity(&self) -> u64 {
        self.0.lock().capacity()
    }
}

impl QueuePort {
    /// Divides a device into its queues, of which there is at least one.
    pub fn divide(port: BlockPort) -> Vec<Self> {
        let BlockPort { limits, control, queues } = port;
        let control = DeviceControl(Arc::new(Mutex::new(control)));
        queues.into_iter().map(|queue| Self { limits, control: control.clone(), queue }).collect()
    }

    /// Serves the queue on the calling core.
    ///
    /// # Errors
    /// [`InterruptError::Taken`] if the queue's vector has a handler on this core.
    pub fn start(self, settings: BlockSettings) -> Result<BlockDevice, InterruptError> {
        BlockDevice::serve(self, settings)
    }
}
