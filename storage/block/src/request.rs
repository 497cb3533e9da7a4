//! Requests as futures.

use crate::device::BlockDevice;
use crate::error::BlockError;
use crate::parts::sector_of;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_activities::generation;
use isola_iobuf::IoBufMut;
use isola_platform::block::BlockRequest;

/// A request to a device. Completes with the filled buffers of a read in their order, and with none for other requests.
#[must_use = "a request is submitted when it is polled"]
pub struct Request {
    device: BlockDevice,
    operation: Rc<Operation>,
    /// The parts that were not submitted yet.
    parts: VecDeque<BlockRequest>,
}

/// A request whose parts may be in the device.
pub(crate) struct Operation {
    pub activity: ActivityId,
    /// That of the activity at the request.
    pub generation: Generation,
    parts_left: Cell<usize>,
    error: Cell<Option<BlockError>>,
    filled: RefCell<Filled>,
    waker: RefCell<Option<Waker>>,
}

/// The filled buffers of a read's parts, with their first sectors.
#[derive(Default)]
struct Filled {
    /// The part that was completed first, usually the only one.
    first: Option<(u64, Vec<IoBufMut>)>,
    others: Vec<(u64, Vec<IoBufMut>)>,
}

impl Filled {
    fn add(&mut self, sector: u64, buffers: Vec<IoBufMut>) {
        match &self.first {
            None => self.first = Some((sector, buffers)),
            Some(_) => self.others.push((sector, buffers)),
        }
    }

    /// Returns the buffers of all parts in the order of their sectors.
    fn into_buffers(self) -> Vec<IoBufMut> {
        let Self { first, others: mut parts } = self;
        match first {
            Some((_, buffers)) if parts.is_empty() => buffers,
            first => {
                parts.extend(first);
                parts.sort_unstable_by_key(|(sector, _)| *sector);
                parts.into_iter().flat_map(|(_, buffers)| buffers).collect()
            }
        }
    }
}

/// A part of an operation on its way to the device.
pub(crate) struct Part {
    pub request: BlockRequest,
    pub operation: Rc<Operation>,
}

impl Operation {
    fn new(activity: ActivityId, parts: usize) -> Self {
        Self {
            activity,
            generation: generation(activity),
            parts_left: Cell::new(parts),
            error: Cell::default(),
            filled: RefCell::default(),
            waker: RefCell::default(),
        }
    }

    /// Notes that a part was divided in two.
    pub fn add_part(&self) {
        self.parts_left.set(self.parts_left.get() + 1);
    }

    /// Records the outcome of a part. Returns the waker if it was the last.
    pub fn finish(&self, request: Option<BlockRequest>, outcome: Result<(), BlockError>) -> Option<Waker> {
        match (outcome, request) {
            (Err(error), _) => self.error.set(self.error.get().or(Some(error))),
            (Ok(()), Some(BlockRequest::Read { sector, into })) => {
                self.filled.borrow_mut().add(sector, into);
            }
            (Ok(()), _) => {}
        }
        self.parts_left.set(self.parts_left.get().saturating_sub(1));
        if self.parts_left.get() > 0 { None } else { self.waker.take() }
    }
}

impl Request {
    pub(crate) fn new(
        device: BlockDevice,
        activity: ActivityId,
        parts: Result<Vec<BlockRequest>, BlockError>,
    ) -> Self {
        let (parts, error) = match parts {
            Ok(parts) => (parts.into(), None),
            Err(error) => (VecDeque::new(), Some(error)),
        };
        let operation = Rc::new(Operation::new(activity, parts.len()));
        operation.error.set(error);
        Self { device, operation, parts }
    }
}

impl Future for Request {
    type Output = Result<Vec<IoBufMut>, BlockError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.operation.parts_left.get() > 0 {
            // Registered first, as a part may complete at its submission.
            this.operation.waker.replace(Some(context.waker().clone()));
        }
        while let Some(request) = this.parts.pop_front() {
            if !this.device.has_room(this.operation.activity) {
                this.parts.push_front(request);
                this.device.wait_for_room(context.waker());
                return Poll::Pending;
            }
            this.device.submit(Part { request, operation: this.operation.clone() });
        }
        if this.operation.parts_left.get() > 0 {
            return Poll::Pending;
        }
        Poll::Ready(match this.operation.error.get() {
            Some(error) => Err(error),
            None => Ok(this.operation.filled.take().into_buffers()),
        })
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sector = self.parts.front().map(sector_of);
        let left = self.operation.parts_left.get();
        f.debug_struct("Request").field("next_sector", &sector).field("parts_left", &left).finish()
    }
}
