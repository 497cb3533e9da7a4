//! A queue of a block device: requests in, completions out. It belongs to one core at a time.

use super::capacity::Capacity;
use super::configuration::BlockLimits;
use super::request::{CheckedRequest, Request, RequestRefusal, check};
use crate::transport::MessageControl;
use crate::virtqueue::{Answer, Fault, Pending, RejectedBuffer, Suppression, VirtQueue, WakeWhen};
use alloc::boxed::Box;
use core::fmt;
use isola_machine::apic::InterruptMessage;
use isola_machine::dma::DmaBuffer;

/// The statuses of a request (virtio 1.2, 5.2.6).
mod status {
    pub const OK: u8 = 0;
    pub const IO_ERROR: u8 = 1;
    pub const UNSUPPORTED: u8 = 2;
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device has executed it.
    Done,
    /// The device failed to execute it; the sectors of a write have any contents.
    IoError,
    /// The device does not support it.
    Unsupported,
    /// The device violated the protocol or was given up: the request may or may not have been executed.
    DeviceFailed(Fault),
}

/// A request that ended, with the facts that a resource's consumption record needs.
#[derive(Debug)]
pub struct Completed<B, T> {
    /// The caller's tag.
    pub tag: T,
    /// The outcome.
    pub outcome: Outcome,
    /// The request with its buffer. `None` if the device may still access the buffer, which the queue keeps until the
    /// device has been reset.
    pub request: Option<Request<B>>,
    /// The length of its data, in bytes.
    pub data_len: u32,
    /// The number of requests that were in the queue when this one was submitted.
    pub ahead: u16,
}

/// A rejected request with the reason.
#[derive(Debug)]
pub struct RejectedRequest<B, T> {
    /// The request.
    pub request: Request<B>,
    /// The caller's tag.
    pub tag: T,
    /// The reason.
    pub reason: RequestRefusal,
}

impl<B, T> fmt::Display for RejectedRequest<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<B: fmt::Debug, T: fmt::Debug> core::error::Error for RejectedRequest<B, T> {}

/// A request in the queue.
#[derive(Debug)]
pub(super) struct LentRequest<B, T> {
    request: Request<B>,
    tag: T,
    data_len: u32,
    ahead: u16,
}

impl<B, T> LentRequest<B, T> {
    /// Checks the device's answer.
    fn check(&self, answer: Answer) -> Result<(), Fault> {
        match answer.status {
            status::OK => match &self.request {
                Request::Read { .. } if answer.written < self.data_len => {
                    Err(Fault::Incomplete { written: answer.written, asked: self.data_len })
                }
                _ => Ok(()),
            },
            status::IO_ERROR | status::UNSUPPORTED => Ok(()),
            status => Err(Fault::UnknownStatus { status }),
        }
    }
}

/// A queue of requests with buffers `B`, each with a tag `T` of the caller's, for example an id and the time.
///
/// Every submitted request completes once, also if the device violates the protocol.
#[derive(Debug)]
pub struct BlockQueue<B, T> {
    queue: VirtQueue<LentRequest<B, T>>,
    limits: BlockLimits,
    capacity: Capacity,
    message: Option<Box<dyn MessageControl>>,
    /// The slots of the broken queue whose requests were reported as failed.
    failed: u16,
}

impl<B: DmaBuffer, T: Copy> BlockQueue<B, T> {
    pub(super) fn new(
        queue: VirtQueue<LentRequest<B, T>>,
        limits: BlockLimits,
        capacity: Capacity,
        message: Option<Box<dyn MessageControl>>,
    ) -> Self {
        let mut queue = Self { queue, limits, capacity, message, failed: 0 };
        queue.disable_interrupts();
        queue
    }

    /// Returns the limits of requests.
    pub fn limits(&self) -> &BlockLimits {
        &self.limits
    }

    /// Submits a request. The next [`Self::publish`] makes it available to the device, and [`Self::take_completed`]
    /// returns it.
    ///
    /// # Errors
    /// Returns the request with the reason. [`Refusal::Full`](crate::virtqueue::Refusal::Full) is temporary: it ends
    /// when completions are taken.
    pub fn submit(&mut self, request: Request<B>, tag: T) -> Result<(), RejectedRequest<B, T>> {
        let CheckedRequest { parts, data_len } = match check(&request, &self.limits, self.capacity.sectors())
        {
            Ok(checked) => checked,
            Err(reason) => return Err(RejectedRequest { request, tag, reason }),
        };
        let lent = LentRequest { request, tag, data_len, ahead: self.queue.outstanding() };
        let pair = lent.request.buffer().and_then(DmaBuffer::segment_pair);
        let only = pair.filter(|pair| pair.second.is_none()).map(|pair| pair.first);
        let result = self.queue.lend_request(&parts, lent, only, &|lent, visit| {
            if let Some(buffer) = lent.request.buffer() {
                buffer.for_each_segment(visit);
            }
        });
        result.map_err(|RejectedBuffer { buffer: LentRequest { request, tag, .. }, reason }| {
            RejectedRequest { request, tag, reason: RequestRefusal::Queue(reason) }
        })
    }

    /// Makes submitted requests available to the device, and notifies it if it requested that.
    pub fn publish(&mut self) {
        self.queue.publish();
    }

    /// Returns the next completed request. After a protocol violation each request of the queue completes as
    /// [`Outcome::DeviceFailed`], without its buffer.
    pub fn take_completed(&mut self) -> Option<Completed<B, T>> {
        let (lent, answer) = match self.queue.take_request(LentRequest::check) {
            Ok(returned) => returned?,
            Err(fault) => return self.take_failed(fault),
        };
        let LentRequest { request, tag, data_len, ahead } = lent;
        let outcome = match answer.status {
            status::OK => Outcome::Done,
            status::UNSUPPORTED => Outcome::Unsupported,
            // No other status passes the check.
            _ => Outcome::IoError,
        };
        Some(Completed { tag, outcome, request: Some(request), data_len, ahead })
    }

    /// Returns the next request that failed with the device.
    #[cold]
    fn take_failed(&mut self, fault: Fault) -> Option<Completed<B, T>> {
        while self.failed < self.queue.size() {
            let slot = self.failed;
            self.failed += 1;
            if let Some(&mut LentRequest { tag, data_len, ahead, .. }) = self.queue.lent_in(slot) {
                let outcome = Outcome::DeviceFailed(fault);
                return Some(Completed { tag, outcome, request: None, data_len, ahead });
            }
        }
        None
    }

    /// Gives the device up, because it does not answer or requests a reset: all its requests fail. Only a reset makes
    /// it usable again.
    pub fn give_up(&mut self) {
        self.queue.break_off(Fault::Silent);
    }

    /// Returns the number of submitted requests that were not taken back.
    pub fn in_flight(&self) -> u16 {
        self.queue.outstanding()
    }

    /// Returns the number of free descriptors. A request takes one for each segment of its data and two or three more,
    /// or a single one if the device supports indirect tables, the request is long and a table is free.
    pub fn room(&self) -> u16 {
        self.queue.room()
    }

    /// Returns whether completions wait for [`Self::take_completed`].
    pub fn has_completed(&self) -> bool {
        self.queue.has_returned()
    }

    /// Enables one interrupt for completions: the handler takes all of them, then enables it again. Returns
    /// [`Pending::Yes`] if there are some already, or the device failed: an interrupt may not come.
    pub fn enable_interrupts(&mut self, when: WakeWhen) -> Pending {
        self.queue.arm(when)
    }

    /// Returns whether [`Self::enable_interrupts`] arms the queue for one interrupt only.
    pub fn interrupts_once(&self) -> bool {
        self.queue.suppression() == Suppression::EventIndex
    }

    /// Disables interrupts.
    pub fn disable_interrupts(&mut self) {
        self.queue.disarm();
    }

    /// Redirects the queue's interrupt. Does nothing if the device has one line.
    pub fn redirect(&mut self, message: InterruptMessage) {
        if let Some(control) = &mut self.message {
            control.redirect(message);
        }
    }

    /// Returns the device's protocol violation, if there was one.
    pub fn fault(&self) -> Option<Fault> {
        self.queue.fault()
    }
}
