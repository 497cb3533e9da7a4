//! virtio block devices as queues of the block layer, and the volumes on them.

use crate::console;
use crate::state::AUTHORITY;
use crate::vectors;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_abi::descriptor::Descriptor;
use isola_abi::volume::VolumeMount;
use isola_drivers::block::{self as driver, BlockDevice, BlockInterrupts, BlockOptions, Outcome, Request};
use isola_drivers::device::DeviceError;
use isola_drivers::transport::{self, Transport};
use isola_drivers::virtqueue::{Pending, Refusal, WakeWhen};
use isola_ebbs::{cycles, platform};
use isola_iobuf::{Chain, IoBufMut};
use isola_machine::apic::{self, local};
use isola_machine::device::DeviceRegisters;
use isola_machine::dma::{DmaBuffer, DmaRegion, SegmentPair};
use isola_platform::Instant;
use isola_platform::block::{
    BlockCompletion, BlockControl, BlockLimits, BlockOutcome, BlockPort, BlockQueue, BlockRefusal,
    BlockRequest, CompletionsPending, RejectedBlockRequest, Unmap, VolumePort, Writability, WriteCache,
};
use spin::Mutex;

/// Descriptors of a queue. A long request takes one of them and a table of its own if the device supports tables.
const QUEUE_SIZE: u16 = 128;

/// Initialises the cell's block devices, whose registers are in the order of its volumes. A device that does not work
/// is reported on the console and left out.
pub(crate) fn open(descriptor: &Descriptor, devices: Vec<DeviceRegisters>) -> Vec<VolumePort> {
    let vectors: Vec<u8> = vectors::of_block().collect();
    let each = (vectors.len() / devices.len().max(1)).min(descriptor.core_slot_count as usize);
    let mut ports = Vec::with_capacity(devices.len());
    let volumes = descriptor.volumes.iter().zip(devices);
    for ((mount, registers), vectors) in volumes.zip(vectors.chunks(each.max(1))) {
        match open_device(descriptor, registers, vectors) {
            Ok(port) => ports.push(VolumePort { mount: mount.clone(), port }),
            Err(error) => print_error(mount, &error),
        }
    }
    ports
}

fn print_error(mount: &VolumeMount, error: &dyn core::fmt::Display) {
    console::print(alloc::format!("volume {} at {}: {error}\n", mount.name, mount.path).as_bytes());
}

/// Initialises a device, with a queue for each of `vectors`.
fn open_device(
    descriptor: &Descriptor,
    registers: DeviceRegisters,
    vectors: &[u8],
) -> Result<BlockPort, DeviceError> {
    let here = descriptor.cores.first().map_or(local::id(), |core| core.apic);
    let line = match &registers {
        DeviceRegisters::Mmio { vector, .. } => Some(*vector),
        DeviceRegisters::Pci { .. } => None,
    };
    let messages: Vec<_> =
        vectors.iter().filter_map(|vector| apic::message(AUTHORITY, here, *vector)).collect();
    let interrupts = match line {
        Some(_) => BlockInterrupts::Line,
        None => BlockInterrupts::Messages { queues: &messages, configuration: None },
    };
    // With one line, every queue but the first would need the first core to pass its interrupts on.
    let queues = if line.is_some() { 1 } else { messages.len() as u16 };
    let options = BlockOptions { queues, queue_size: QUEUE_SIZE, interrupts };
    start(transport::open(registers)?, &options, line.as_ref().map_or(vectors, core::slice::from_ref))
}

fn start(
    transport: Box<dyn Transport>,
    options: &BlockOptions<'_>,
    vectors: &[u8],
) -> Result<BlockPort, DeviceError> {
    let (device, queues) = BlockDevice::start(transport, options, &mut DmaRegion::new)?;
    let limits = limits(device.limits());
    let has_line = matches!(options.interrupts, BlockInterrupts::Line);
    let device = Arc::new(Mutex::new(device));
    let queues = vectors.iter().zip(queues).map(|(vector, queue)| {
        Box::new(BareBlockQueue { queue, vector: *vector, has_line, device: device.clone() })
            as Box<dyn BlockQueue + Send>
    });
    Ok(BlockPort { limits, queues: queues.collect(), control: Box::new(BareBlockControl(device)) })
}

pub(crate) fn limits(limits: &driver::BlockLimits) -> BlockLimits {
    let some = |value: u32| (value > 0).then_some(value);
    BlockLimits {
        block_len: limits.block_len,
        physical_block_len: limits.physical_block_len,
        optimal_len: some(limits.optimal_len),
        data_len: limits.data_len,
        pieces: limits.segments,
        piece_len: limits.segment_len,
        writability: match limits.writability {
            driver::Writability::Writable => Writability::Writable,
            driver::Writability::ReadOnly => Writability::ReadOnly,
        },
        cache: match limits.cache {
            driver::WriteCache::Volatile => WriteCache::Volatile,
            driver::WriteCache::None => WriteCache::None,
        },
        discard_sectors: some(limits.discard_sectors),
        write_zeroes_sectors: some(limits.write_zeroes_sectors),
    }
}

pub(crate) struct BareBlockControl(pub(crate) Arc<Mutex<BlockDevice>>);

impl BlockControl for BareBlockControl {
    fn capacity(&mut self) -> u64 {
        let mut device = self.0.lock();
        device.update_capacity().unwrap_or_else(|_| device.capacity())
    }
}

/// The data of a request.
enum BlockData {
    Into(Vec<IoBufMut>),
    From(Chain),
}

// SAFETY: the memory of the buffers is on the heap, owned by their `IoBufMut`s, and that of the views on the heap or in
// the image's constants, kept alive and unchanged by their reference counts. It stays in place when they are moved.
unsafe impl DmaBuffer for BlockData {
    fn for_each_segment(&self, mut visit: impl FnMut(*const u8, usize)) {
        match self {
            Self::Into(buffers) => buffers.iter().for_each(|buffer| visit(buffer.as_ptr(), buffer.len())),
            Self::From(chain) => chain.parts().for_each(|part| visit(part.as_ptr(), part.len())),
        }
    }

    #[inline]
    fn segment_pair(&self) -> Option<SegmentPair> {
        let (start, len) = match self {
            Self::Into(buffers) => {
                let [buffer] = &buffers[..] else { return None };
                (buffer.as_ptr(), buffer.len())
            }
            Self::From(chain) => {
                let mut parts = chain.parts();
                let part = parts.next().filter(|_| parts.len() == 0)?;
                (part.as_ptr(), part.len())
            }
        };
        (len > 0).then_some(SegmentPair { first: (start, len), second: None })
    }
}

/// The caller's id of a request, and the reading of the cycle counter at its submission.
#[derive(Clone, Copy)]
struct Tag {
    id: u64,
    submitted: u64,
}

struct BareBlockQueue {
    queue: driver::BlockQueue<BlockData, Tag>,
    vector: u8,
    /// Whether the device has an interrupt line, which has to be acknowledged at the device.
    has_line: bool,
    /// Keeps the device running while the queue is in use.
    device: Arc<Mutex<BlockDevice>>,
}

impl BlockQueue for BareBlockQueue {
    fn vector(&self) -> Option<u8> {
        Some(self.vector)
    }

    fn attach(&mut self) {
        self.redirect();
    }

    fn redirect(&mut self) {
        if let Some(message) = apic::message(AUTHORITY, local::id(), self.vector) {
            self.queue.redirect(message);
        }
    }

    fn submit(&mut self, request: BlockRequest, id: u64) -> Result<(), RejectedBlockRequest> {
        let tag = Tag { id, submitted: cycles() };
        self.queue.submit(to_driver(request), tag).map_err(|rejected| RejectedBlockRequest {
            request: from_driver(rejected.request),
            reason: refusal(rejected.reason),
        })
    }

    fn flush(&mut self) {
        self.queue.publish();
    }

    fn take_completion(&mut self) -> Option<BlockCompletion> {
        let completed = self.queue.take_completed()?;
        Some(BlockCompletion {
            id: completed.tag.id,
            outcome: outcome(completed.outcome),
            request: completed.request.map(from_driver),
            data_len: completed.data_len,
            submitted: instant(completed.tag.submitted),
            ahead: completed.ahead,
        })
    }

    fn give_up(&mut self) {
        self.queue.give_up();
    }

    fn in_flight(&self) -> u16 {
        self.queue.in_flight()
    }

    fn enable_interrupts(&mut self) -> CompletionsPending {
        enable_interrupts(&mut self.queue)
    }

    fn disable_interrupts(&mut self) {
        if self.has_line {
            self.device.lock().acknowledge();
        }
        disable_interrupts(&mut self.queue);
    }
}

fn instant(cycles: u64) -> Instant {
    platform().clock().instant(cycles)
}

fn to_driver(request: BlockRequest) -> Request<BlockData> {
    match request {
        BlockRequest::Read { sector, into } => Request::Read { sector, into: BlockData::Into(into) },
        BlockRequest::Write { sector, from } => Request::Write { sector, from: BlockData::From(from) },
        BlockRequest::Flush => Request::Flush,
        BlockRequest::Discard { sector, sectors } => Request::Discard { sector, sectors },
        BlockRequest::WriteZeroes { sector, sectors, unmap } => {
            let unmap = match unmap {
                Unmap::Allowed => driver::Unmap::Allowed,
                Unmap::Never => driver::Unmap::Never,
            };
            Request::WriteZeroes { sector, sectors, unmap }
        }
    }
}

fn from_driver(request: Request<BlockData>) -> BlockRequest {
    match request {
        Request::Read { sector, into: data } | Request::Write { sector, from: data } => match data {
            BlockData::Into(into) => BlockRequest::Read { sector, into },
            BlockData::From(from) => BlockRequest::Write { sector, from },
        },
        Request::Flush => BlockRequest::Flush,
        Request::Discard { sector, sectors } => BlockRequest::Discard { sector, sectors },
        Request::WriteZeroes { sector, sectors, unmap } => {
            let unmap = match unmap {
                driver::Unmap::Allowed => Unmap::Allowed,
                driver::Unmap::Never => Unmap::Never,
            };
            BlockRequest::WriteZeroes { sector, sectors, unmap }
        }
    }
}

pub(crate) const fn outcome(outcome: Outcome) -> BlockOutcome {
    match outcome {
        Outcome::Done => BlockOutcome::Done,
        Outcome::IoError => BlockOutcome::IoError,
        Outcome::Unsupported => BlockOutcome::Unsupported,
        Outcome::DeviceFailed(_) => BlockOutcome::DeviceFailed,
    }
}

pub(crate) fn enable_interrupts<B: DmaBuffer, T: Copy>(
    queue: &mut driver::BlockQueue<B, T>,
) -> CompletionsPending {
    match queue.enable_interrupts(WakeWhen::Returned) {
        // The requests of a failed device complete without it, and those that completed need no other look.
        Pending::Yes if queue.fault().is_some() && queue.in_flight() == 0 => CompletionsPending::No,
        Pending::Yes => CompletionsPending::Yes,
        Pending::No => CompletionsPending::No,
    }
}

pub(crate) fn disable_interrupts<B: DmaBuffer, T: Copy>(queue: &mut driver::BlockQueue<B, T>) {
    // A queue armed for one interrupt sends no other, and the caller has had that one or has found completions.
    if !queue.interrupts_once() {
        queue.disable_interrupts();
    }
}

pub(crate) fn refusal(reason: driver::RequestRefusal) -> BlockRefusal {
    use driver::RequestRefusal as From;
    match reason {
        From::Queue(Refusal::Full) => BlockRefusal::Full,
        From::Queue(Refusal::TooManySegments) => BlockRefusal::TooManyPieces,
        From::Queue(Refusal::NotDeviceMemory) => BlockRefusal::NotDeviceMemory,
        From::Queue(Refusal::Empty) => BlockRefusal::Misaligned,
        From::Queue(_) => BlockRefusal::DeviceFailed,
        From::OutsideDevice { .. } => BlockRefusal::OutsideDevice,
        From::Misaligned { .. } => BlockRefusal::Misaligned,
        From::TooLong => BlockRefusal::TooLong,
        From::ReadOnly => BlockRefusal::ReadOnly,
        From::NotOffered => BlockRefusal::NotOffered,
    }
}
