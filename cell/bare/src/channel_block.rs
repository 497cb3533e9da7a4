//! A block device of a service cell as a queue of the block layer.
//!
//! The device reaches one piece of memory, which holds the rings and a pool of buffers of a page. The data of a request
//! is copied there before the request, or back after it (as Linux does for devices that it does not trust: swiotlb with
//! restricted DMA). The requests themselves stay here, so that a caller gets them back unchanged if the device fails.

use crate::block::{self, BareBlockControl, limits, refusal};
use crate::links::LinkBell;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use core::task::Waker;
use isola_abi::layout::PAGE_SIZE;
use isola_abi::service::{DeviceOffer, DriverSetup};
use isola_drivers::block::{self as driver, BlockDevice, BlockInterrupts, BlockOptions, Request};
use isola_drivers::transport::channel::ChannelTransport;
use isola_ebbs::{cycles, platform};
use isola_machine::dma::DmaRegion;
use isola_machine::dma_peer::{SharedBuffer, SharedMemory};
use isola_platform::block::{
    BlockCompletion, BlockOutcome, BlockPort, BlockQueue, BlockRefusal, BlockRequest, CompletionsPending,
    RejectedBlockRequest,
};
use slab::Slab;
use spin::Mutex;

/// Descriptors of the queue. A request of more than two buffers takes one of them and a table.
const QUEUE_SIZE: u16 = 64;

/// The length of a buffer of the pool.
const BUFFER_LEN: usize = PAGE_SIZE as usize;

/// The most buffers of a request.
const MOST_BUFFERS: usize = 16;

/// Starts the driver of a device that the peer of a link offers.
///
/// # Safety
/// No other code of the cell accesses `memory` until the port is dropped.
pub(crate) unsafe fn open(
    slot: usize,
    offer: DeviceOffer,
    memory: &'static [AtomicU64],
) -> Result<(BlockPort, DriverSetup), String> {
    // SAFETY: the queues of the port have the parts of the block, and drop them with the port; those that a driver leaks are not
    // used any more. The caller's promise is for that time.
    let shared =
        unsafe { SharedMemory::over(memory) }.ok_or("the shared memory is not whole pages in a row")?;
    let base = shared.base().ok_or("the shared memory has no device address")?;
    let (transport, settings) = ChannelTransport::new(offer, LinkBell(slot));
    let options = BlockOptions { queues: 1, queue_size: QUEUE_SIZE, interrupts: BlockInterrupts::Line };
    // Memory beyond the shared piece is of no use to the device, which then rejects the queue.
    let mut region = |len| shared.region(len).unwrap_or_else(|| DmaRegion::new(len));
    let (device, queues) =
        BlockDevice::start(Box::new(transport), &options, &mut region).map_err(|error| error.to_string())?;
    let queue = queues.into_iter().next().ok_or("the device has no queue")?;
    let free: Vec<_> = core::iter::from_fn(|| shared.buffer(BUFFER_LEN)).collect();
    let buffers = MOST_BUFFERS.min(usize::from(device.limits().segments)).min(free.len());
    let mut limits = limits(device.limits());
    if buffers * BUFFER_LEN < limits.block_len as usize || device.limits().segment_len < BUFFER_LEN as u32 {
        return Err("the blocks of the device are longer than the shared memory has room for".to_string());
    }
    limits.data_len = limits.data_len.min((buffers * BUFFER_LEN) as u32);
    // Pieces are copied together.
    (limits.pieces, limits.piece_len) = (u16::MAX, u32::MAX);
    let setup = settings.setup(base);
    let device = Arc::new(Mutex::new(device));
    let queue = ChannelBlockQueue {
        most_bytes: limits.data_len as usize,
        queue,
        free,
        lists: Vec::new(),
        requests: Slab::new(),
        _device: device.clone(),
    };
    let port = BlockPort {
        limits,
        control: Box::new(BareBlockControl(device)),
        queues: Vec::from([Box::new(queue) as Box<dyn BlockQueue + Send>]),
    };
    Ok((port, setup))
}

/// A request in the queue, its caller's id, and the reading of the cycle counter at its submission.
struct LentRequest {
    request: BlockRequest,
    id: u64,
    submitted: u64,
}

struct ChannelBlockQueue {
    queue: driver::BlockQueue<Vec<SharedBuffer>, usize>,
    free: Vec<SharedBuffer>,
    /// Empty lists of earlier requests: at most as many as there were requests in the queue at a time.
    lists: Vec<Vec<SharedBuffer>>,
    requests: Slab<LentRequest>,
    most_bytes: usize,
    /// Keeps the device running while the queue is in use.
    _device: Arc<Mutex<BlockDevice>>,
}

impl ChannelBlockQueue {
    /// Takes buffers for `len` bytes from the pool; `None` while it has fewer.
    fn take_buffers(&mut self, len: usize) -> Option<Vec<SharedBuffer>> {
        let count = len.div_ceil(BUFFER_LEN);
        let first = self.free.len().checked_sub(count)?;
        let mut buffers = self.lists.pop().unwrap_or_default();
        buffers.extend(self.free.drain(first..));
        for (index, buffer) in buffers.iter_mut().enumerate() {
            buffer.set_len(BUFFER_LEN.min(len - index * BUFFER_LEN));
        }
        Some(buffers)
    }

    fn give_buffers(&mut self, request: Request<Vec<SharedBuffer>>) {
        if let Request::Read { into: mut buffers, .. } | Request::Write { from: mut buffers, .. } = request {
            self.free.append(&mut buffers);
            self.lists.push(buffers);
        }
    }

    /// Returns the request for the driver, with the data of a write in buffers.
    fn prepare(&mut self, request: &BlockRequest) -> Result<Request<Vec<SharedBuffer>>, BlockRefusal> {
        Ok(match request {
            BlockRequest::Read { sector, into } => {
                let len = into.iter().map(|buffer| buffer.len()).sum();
                Request::Read { sector: *sector, into: self.buffers_for(len)? }
            }
            BlockRequest::Write { sector, from } => {
                let mut buffers = self.buffers_for(from.len())?;
                copy_in(from.parts().map(|part| &part[..]), &mut buffers);
                Request::Write { sector: *sector, from: buffers }
            }
            BlockRequest::Flush => Request::Flush,
            BlockRequest::Discard { .. } | BlockRequest::WriteZeroes { .. } => {
                return Err(BlockRefusal::NotOffered);
            }
        })
    }

    fn buffers_for(&mut self, len: usize) -> Result<Vec<SharedBuffer>, BlockRefusal> {
        if len > self.most_bytes {
            return Err(BlockRefusal::TooLong);
        }
        self.take_buffers(len).ok_or(BlockRefusal::Full)
    }
}

/// Copies parts of data to buffers, each of which is filled before the next.
fn copy_in<'a>(parts: impl Iterator<Item = &'a [u8]>, buffers: &mut [SharedBuffer]) {
    let mut buffers = buffers.iter_mut();
    let mut current = buffers.next();
    let mut filled = 0;
    for mut part in parts {
        while let Some(buffer) = current.as_mut().filter(|_| !part.is_empty()) {
            let count = part.len().min(buffer.len() - filled);
            let (now, later) = part.split_at(count);
            buffer.write_at(filled, now);
            (part, filled) = (later, filled + count);
            if filled == buffer.len() {
                (current, filled) = (buffers.next(), 0);
            }
        }
    }
}

/// Copies data back from buffers.
fn copy_out(buffers: &[SharedBuffer], parts: &mut [isola_iobuf::IoBufMut]) {
    let mut buffers = buffers.iter();
    let mut current = buffers.next();
    let mut taken = 0;
    for part in parts {
        let mut rest = part.data_mut();
        while let Some(buffer) = current.filter(|_| !rest.is_empty()) {
            let count = rest.len().min(buffer.len() - taken);
            let (now, later) = rest.split_at_mut(count);
            buffer.read_at(taken, now);
            (rest, taken) = (later, taken + count);
            if taken == buffer.len() {
                (current, taken) = (buffers.next(), 0);
            }
        }
    }
}

impl BlockQueue for ChannelBlockQueue {
    fn vector(&self) -> Option<u8> {
        None
    }

    fn attach(&mut self) {}

    /// The one who opened the link wakes the task, at its doorbells.
    fn wake_by(&mut self, _: &Waker) {}

    fn submit(&mut self, request: BlockRequest, id: u64) -> Result<(), RejectedBlockRequest> {
        let prepared = match self.prepare(&request) {
            Ok(prepared) => prepared,
            Err(reason) => return Err(RejectedBlockRequest { request, reason }),
        };
        let key = self.requests.insert(LentRequest { request, id, submitted: cycles() });
        self.queue.submit(prepared, key).map_err(|rejected| {
            self.give_buffers(rejected.request);
            let request = self.requests.remove(key).request;
            RejectedBlockRequest { request, reason: refusal(rejected.reason) }
        })
    }

    fn flush(&mut self) {
        self.queue.publish();
    }

    fn take_completion(&mut self) -> Option<BlockCompletion> {
        let completed = self.queue.take_completed()?;
        let LentRequest { mut request, id, submitted } = self.requests.try_remove(completed.tag)?;
        let outcome = block::outcome(completed.outcome);
        if let Some(returned) = completed.request {
            if let (
                Request::Read { into: buffers, .. },
                BlockRequest::Read { into, .. },
                BlockOutcome::Done,
            ) = (&returned, &mut request, outcome)
            {
                copy_out(buffers, into);
            }
            self.give_buffers(returned);
        }
        Some(BlockCompletion {
            id,
            outcome,
            request: Some(request),
            data_len: completed.data_len,
            submitted: platform().clock().instant(submitted),
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
        block::enable_interrupts(&mut self.queue)
    }

    fn disable_interrupts(&mut self) {
        block::disable_interrupts(&mut self.queue);
    }
}
