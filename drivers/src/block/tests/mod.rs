//! A block device from reset to running, its requests, and reset, over all transports.

mod channel;
mod hostile;
mod limits;
mod random;
mod requests;
mod start;

use super::*;
use crate::fake::disk::FakeDisk;
use crate::fake::registers::{FakeDevice, SharedDevice, lock, mmio};
use crate::transport::mmio::MmioTransport;
use crate::virtqueue::{Fault, Pending, Refusal, WakeWhen};
use isola_machine::dma_peer::{SharedBuffer, SharedMemory};
use std::sync::{Arc, Mutex};
use std::vec;
use std::vec::Vec;

type Buffer = Vec<SharedBuffer>;
type Queue = BlockQueue<Buffer, u32>;

const VERSION_1: u64 = 1 << 32;
const EVENT_INDEX: u64 = 1 << 29;
const INDIRECT: u64 = 1 << 28;
/// Without a write cache or any option.
const BASIC: u64 = VERSION_1;
/// All that the driver uses but `VIRTIO_BLK_F_RO`.
const EVERYTHING: u64 = VERSION_1 | EVENT_INDEX | INDIRECT | bits::ALL & !bits::READ_ONLY;

/// The capacity of the device, in sectors.
const SECTORS: u64 = 64;

const LINE: BlockOptions<'static> =
    BlockOptions { queues: 1, queue_size: 16, interrupts: BlockInterrupts::Line };

struct Rig {
    memory: SharedMemory,
    device: SharedDevice,
}

impl Rig {
    /// A device with 64 sectors in blocks of 1 KiB and two queues.
    fn new(offered: u64) -> Self {
        let mut device = FakeDevice::new(2, offered, 2, vec![0; 60]);
        let memory = SharedMemory::new(12 << 20);
        device.memory = Some(memory.peer());
        let rig = Self { memory, device: Arc::new(Mutex::new(device)) };
        rig.configure(0, &SECTORS.to_le_bytes());
        // Segments of 8 KiB, six of them; blocks of 1 KiB, physical ones of 4 KiB, best requests of 32.
        for (offset, value) in
            [(8, 8192), (12, 6), (20, 1024), (28, 32), (36, 16), (40, 1), (44, 8), (48, 32)]
        {
            rig.configure(offset, &u32::to_le_bytes(value));
        }
        rig.configure(24, &[2]);
        rig.configure(34, &2_u16.to_le_bytes());
        rig.configure(56, &[1]);
        rig
    }

    /// Writes to the device's configuration.
    fn configure(&self, offset: usize, bytes: &[u8]) {
        lock(&self.device).configuration[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn start_on(
        &self,
        transport: Box<dyn Transport>,
        options: &BlockOptions<'_>,
    ) -> Result<(BlockDevice, Vec<Queue>), DeviceError> {
        BlockDevice::start(transport, options, &mut |len| self.memory.region(len).unwrap())
    }

    fn start(&self, options: &BlockOptions<'_>) -> Result<(BlockDevice, Vec<Queue>), DeviceError> {
        if channel::is_selected() {
            return self.start_over_channel(options);
        }
        self.start_on(Box::new(MmioTransport::new(mmio(&self.device)).unwrap()), options)
    }

    /// Starts the device with one queue, and returns the device's side of it, too.
    fn start_one(&self) -> (BlockDevice, Queue, FakeDisk) {
        let (device, mut queues) = self.start(&LINE).unwrap();
        (device, queues.remove(0), self.disk(0))
    }

    fn disk(&self, queue: u16) -> FakeDisk {
        FakeDisk::new(lock(&self.device).ring(queue), SECTORS as usize)
    }

    /// Returns a buffer with segments of these lengths, filled with the byte.
    fn buffer(&self, lens: &[usize], fill: u8) -> Buffer {
        let segment = |len: &usize| {
            let mut buffer = self.memory.buffer(*len).unwrap();
            buffer.write(&vec![fill; *len]);
            buffer
        };
        lens.iter().map(segment).collect()
    }

    fn read(&self, sector: u64, lens: &[usize]) -> Request<Buffer> {
        Request::Read { sector, into: self.buffer(lens, 0xee) }
    }

    fn write(&self, sector: u64, lens: &[usize], fill: u8) -> Request<Buffer> {
        Request::Write { sector, from: self.buffer(lens, fill) }
    }
}

/// Returns the reason for which a queue rejects a request.
fn refusal(queue: &mut Queue, request: Request<Buffer>) -> RequestRefusal {
    queue.submit(request, 0).unwrap_err().reason
}

/// Returns the bytes of a buffer.
fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut all = Vec::new();
    for segment in buffer {
        let start = all.len();
        all.resize(start + segment.len(), 0);
        segment.read(&mut all[start..]);
    }
    all
}

/// Returns the bytes of a completed request's buffer.
fn contents(completed: &Completed<Buffer, u32>) -> Vec<u8> {
    bytes(completed.request.as_ref().and_then(Request::buffer).expect("a buffer"))
}
