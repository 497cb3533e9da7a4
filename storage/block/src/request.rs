//! Requests as futures.

use crate::device::BlockDevice;
use crate::error::BlockError;
use crate::parts::sector_of;
use alloc::boxed::Box;
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
#[must_use = "a request is submitted when it is polled, or gets a function for its completion"]
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
    follower: RefCell<Follower>,
}

/// The result of a request: the filled buffers of a read.
type Filling = Result<Vec<IoBufMut>, BlockError>;

/// What follows the completion of an operation.
#[derive(Default)]
pub(crate) enum Follower {
    #[default]
    None,
    Task(Waker),
    Function(Box<dyn FnOnce(Filling)>),
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
            follower: RefCell::default(),
        }
    }

    /// Notes that a part was divided in two.
    pub fn add_part(&self) {
        self.parts_left.set(self.parts_left.get() + 1);
    }

    /// Records the outcome of a part. If it was the last, wakes the task of the operation, or calls its function.
    pub fn finish(&self, request: Option<BlockRequest>, outcome: Result<(), BlockError>) {
        match (outcome, request) {
            (Err(error), _) => self.error.set(self.error.get().or(Some(error))),
            (Ok(()), Some(BlockRequest::Read { sector, into })) => {
                self.filled.borrow_mut().add(sector, into);
            }
            (Ok(()), _) => {}
        }
        self.parts_left.set(self.parts_left.get().saturating_sub(1));
        if self.parts_left.get() > 0 {
            return;
        }
        match self.follower.take() {
            Follower::None => {}
            Follower::Task(waker) => waker.wake(),
            Follower::Function(function) => function(self.result()),
        }
    }

    /// Returns the result, once no part is left.
    fn result(&self) -> Filling {
        match self.error.get() {
            Some(error) => Err(error),
            None => Ok(self.filled.take().into_buffers()),
        }
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

    /// Submits the request, and calls `done` with its result in the event that takes its completion, charged to its activity.
    /// A server needs no task for each request then. `done` neither waits nor submits requests. The bound of waiting requests
    /// does not count: the caller has one of its own.
    pub fn on_completion(self, done: impl FnOnce(Result<Vec<IoBufMut>, BlockError>) + 'static) {
        let Self { device, operation, parts } = self;
        if operation.parts_left.get() == 0 {
            return done(operation.result());
        }
        operation.follower.replace(Follower::Function(Box::new(done)));
        for request in parts {
            device.submit(Part { request, operation: operation.clone() });
        }
    }
}

impl Future for Request {
    type Output = Filling;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.operation.parts_left.get() > 0 {
            // Registered first, as a part may complete at its submission.
            this.operation.follower.replace(Follower::Task(context.waker().clone()));
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
        Poll::Ready(this.operation.result())
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sector = self.parts.front().map(sector_of);
        let left = self.operation.parts_left.get();
        f.debug_struct("Request").field("next_sector", &sector).field("parts_left", &left).finish()
    }
}
