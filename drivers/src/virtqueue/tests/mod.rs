//! A queue, and the device's side of it in software.

mod hostile;
mod interleavings;
mod lending;
mod random;

use super::*;
use crate::fake::ring::DeviceRing;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_machine::dma_peer::{SharedBuffer, SharedMemory};
use std::sync::Arc;
use std::vec::Vec;

/// A notifier that counts.
#[derive(Debug, Default)]
struct Counter(Arc<AtomicUsize>);

impl Notify for Counter {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

const BY_INDEX: QueueOptions = QueueOptions {
    suppression: Suppression::EventIndex,
    indirection: Indirection::Never,
    headers: Headers::None,
};
const BY_FLAGS: QueueOptions = QueueOptions { suppression: Suppression::Flags, ..BY_INDEX };
const BOTH: [QueueOptions; 2] = [BY_INDEX, BY_FLAGS];

/// A queue, its device side, and memory for both.
struct Rig<B> {
    memory: SharedMemory,
    queue: VirtQueue<B>,
    ring: DeviceRing,
    notices: Arc<AtomicUsize>,
}

impl<B> Rig<B> {
    fn new(size: u16, options: QueueOptions) -> Self {
        let memory = SharedMemory::new(1 << 20);
        let liveness = Liveness::default();
        let mut queue = VirtQueue::new(size, options, liveness, &mut |len| memory.region(len).unwrap());
        let counter = Counter::default();
        let notices = counter.0.clone();
        queue.connect(Box::new(counter));
        let ring = DeviceRing::new(memory.peer(), queue.addresses(), options.suppression);
        Self { memory, queue, ring, notices }
    }

    /// Creates a rig in the state after `count` buffers.
    fn after(count: u16, size: u16, options: QueueOptions) -> Self {
        let mut rig = Self::new(size, options);
        rig.ring = rig.ring.after(count);
        rig.queue.rings.set_available_index(count);
        let count = u64::from(count) + (1 << 16);
        (rig.queue.staged, rig.queue.published) = (count, count);
        (rig.queue.returned, rig.queue.taken) = (count, count);
        rig
    }

    fn notices(&self) -> usize {
        self.notices.load(Ordering::Relaxed)
    }

    fn buffer(&self, content: &[u8]) -> SharedBuffer {
        let mut buffer = self.memory.buffer(content.len()).unwrap();
        buffer.write(content);
        buffer
    }
}

fn content(buffer: &SharedBuffer) -> Vec<u8> {
    let mut bytes = std::vec![0; buffer.len()];
    buffer.read(&mut bytes);
    bytes
}

/// Returns device addresses and lengths of a buffer's segments.
fn segments(buffer: &impl DmaBuffer) -> Vec<(u64, u32)> {
    let mut segments = Vec::new();
    buffer.for_each_segment(|start, len| segments.push((start as u64, len as u32)));
    segments
}
