//! A queue of a block device, and the task that serves it.
//!
//! The task polls the queue: it takes completions, submits waiting requests, notifies the device once for all of them,
//! and enables the interrupt, which wakes the task again. A submission wakes the task as well. If completions wait
//! before the interrupt is enabled (always, on a device that executes requests at submission), the task polls again
//! behind the core's other events. So callers see no difference between synchronous devices and those with interrupts.

use crate::error::BlockError;
use crate::follower;
use crate::parts::{self, halves};
use crate::queue_port::{DeviceControl, QueuePort};
use crate::request::{Operation, Part, Request};
use crate::usage::{BlockUsage, Usages, count};
use crate::waiting::{Next, Waiting};
use alloc::boxed::Box;
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_activities::INFRASTRUCTURE;
use isola_events::activity::charge_to;
use isola_events::interrupt::{Interrupt, InterruptError, on_interrupt};
use isola_events::{Alarm, Instant, current_activity, now, on_vcore_moved, spawn_task_for};
use isola_iobuf::{Chain, IoBufMut};
use isola_platform::block::{
    BlockCompletion, BlockLimits, BlockOutcome, BlockPort, BlockQueue, BlockRefusal, BlockRequest,
    CompletionsPending, RejectedBlockRequest, Unmap, Writability, WriteCache,
};
use isola_resources::{ClientStatistics, GridResource, Resource};
use slab::Slab;

/// The most completions of a poll. Further ones follow after the core's other events.
const BATCH: usize = 64;

/// The settings of a device's queue.
#[derive(Clone, Copy, Debug)]
pub struct BlockSettings {
    /// The time after which a request in the device makes the device count as failed.
    pub time_limit: Duration,
    /// The most requests that wait for room in the device: per activity while there is a policy.
    pub most_waiting: usize,
    /// The most requests in the device while there is a policy. A smaller depth makes shares more exact, a larger one
    /// the device faster.
    pub depth: u16,
    /// The resource whose policy orders the requests.
    pub resource: Option<GridResource>,
}

impl Default for BlockSettings {
    fn default() -> Self {
        Self { time_limit: Duration::from_secs(30), most_waiting: 1024, depth: 32, resource: None }
    }
}

/// A queue of a block device, served by the core that started it.
#[derive(Clone)]
pub struct BlockDevice {
    shared: Rc<Shared>,
}

struct Shared {
    limits: BlockLimits,
    settings: BlockSettings,
    control: DeviceControl,
    queue: RefCell<Box<dyn BlockQueue + Send>>,
    in_device: RefCell<Slab<Submitted>>,
    waiting: RefCell<Waiting>,
    /// The futures that wait for room among the waiting requests.
    room: RefCell<Vec<Waker>>,
    usages: RefCell<Usages>,
    failure: Cell<Option<BlockError>>,
    /// Wakes the task that serves the queue.
    task: RefCell<Waker>,
    /// Rings when a request may have exceeded the time limit.
    time_limit: Alarm,
    /// Rings when an activity at its limit may submit again.
    throttle: Alarm,
    interrupt: RefCell<Option<Interrupt>>,
}

/// A handle that does not keep the device.
pub(crate) struct WeakDevice(Weak<Shared>);

impl WeakDevice {
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Wakes the task that serves the device, which follows changes of the settings.
    pub fn wake(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.wake();
        }
    }
}

/// A request in the device.
struct Submitted {
    operation: Rc<Operation>,
    bytes: u64,
    at: Instant,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The task finds the device gone, and ends.
        self.task.get_mut().wake_by_ref();
    }
}

/// Returns a handler that wakes the task of a device.
fn wake_task(device: &Weak<Shared>) -> impl Fn() + 'static {
    let device = device.clone();
    move || {
        if let Some(shared) = device.upgrade() {
            shared.wake();
        }
    }
}

impl BlockDevice {
    /// Serves the first queue of a device on the calling core. [`QueuePort`] is for the others.
    ///
    /// # Errors
    /// [`InterruptError::Taken`] if the queue's vector has a handler on this core.
    ///
    /// # Panics
    /// If the port has no queue: drivers and platforms create none without.
    pub fn start(port: BlockPort, settings: BlockSettings) -> Result<Self, InterruptError> {
        let first = QueuePort::divide(port).into_iter().next();
        Self::serve(first.expect("a block device has a queue"), settings)
    }

    /// Serves a queue on the calling core.
    pub(crate) fn serve(port: QueuePort, settings: BlockSettings) -> Result<Self, InterruptError> {
        let QueuePort { limits, control, queue } = port;
        let shared = Rc::new_cyclic(|device| Shared {
            limits,
            settings,
            control,
            queue: RefCell::new(queue),
            in_device: RefCell::default(),
            waiting: RefCell::new(Waiting::new(settings.resource)),
            room: RefCell::default(),
            usages: RefCell::default(),
            failure: Cell::default(),
            task: RefCell::new(Waker::noop().clone()),
            time_limit: Alarm::new(wake_task(device)),
            throttle: Alarm::new(wake_task(device)),
            interrupt: RefCell::default(),
        });
        let device = Rc::downgrade(&shared);
        let interrupted = {
            let device = device.clone();
            move || {
                if let Some(shared) = device.upgrade() {
                    shared.queue.borrow_mut().disable_interrupts();
                    shared.wake();
                }
            }
        };
        let vector = {
            let mut queue = shared.queue.borrow_mut();
            queue.attach();
            queue.vector()
        };
        if let Some(vector) = vector {
            shared.interrupt.replace(Some(on_interrupt(vector, interrupted)?));
        }
        let moved = device.clone();
        on_vcore_moved(move || {
            if let Some(shared) = moved.upgrade() {
                shared.queue.borrow_mut().redirect();
                // Interrupts may have gone to the previous core.
                shared.wake();
            }
        });
        let serve = poll_fn(move |context| {
            let Some(shared) = device.upgrade() else { return Poll::Ready(()) };
            if !shared.task.borrow().will_wake(context.waker()) {
                shared.task.replace(context.waker().clone());
                shared.queue.borrow_mut().wake_by(context.waker());
            }
            if shared.poll() == CompletionsPending::Yes {
                context.waker().wake_by_ref();
            }
            Poll::Pending
        });
        spawn_task_for(INFRASTRUCTURE, serve).detach();
        let device = Self { shared };
        if let Some(resource) = settings.resource {
            follower::add(&device, resource);
        }
        Ok(device)
    }

    /// Returns the limits of the device's own requests.
    pub fn limits(&self) -> &BlockLimits {
        &self.shared.limits
    }

    /// Returns whether the device rejects writes.
    pub fn is_read_only(&self) -> bool {
        self.shared.limits.writability == Writability::ReadOnly
    }

    /// Reads the capacity in sectors, which can change.
    pub fn capacity(&self) -> u64 {
        self.shared.control.capacity()
    }

    /// Reads sectors into the data parts of buffers. Each buffer consists of whole logical blocks.
    pub fn read(&self, sector: u64, into: Vec<IoBufMut>) -> Request {
        self.request(parts::of_read(&self.shared.limits, sector, into))
    }

    /// Writes whole logical blocks.
    pub fn write(&self, sector: u64, from: Chain) -> Request {
        self.write_for(current_activity(), sector, from)
    }

    /// Writes whole logical blocks for an activity: that of a cache's block instead of the one that writes it back.
    pub fn write_for(&self, activity: ActivityId, sector: u64, from: Chain) -> Request {
        let parts = match self.is_read_only() {
            true => Err(BlockRefusal::ReadOnly),
            false => parts::of_write(&self.shared.limits, sector, from),
        };
        Request::new(self.clone(), activity, parts.map_err(BlockError::from))
    }

    /// Makes all completed writes permanent.
    pub fn flush(&self) -> Request {
        self.request(Ok(match self.shared.limits.cache {
            WriteCache::None => Vec::new(),
            WriteCache::Volatile => Vec::from([BlockRequest::Flush]),
        }))
    }

    /// Declares the contents of sectors unneeded.
    pub fn discard(&self, sector: u64, sectors: u64) -> Request {
        let discard = |sector, sectors| BlockRequest::Discard { sector, sectors };
        self.request(parts::of_range(self.shared.limits.discard_sectors, sector, sectors, discard))
    }

    /// Fills sectors with zeros.
    pub fn write_zeroes(&self, sector: u64, sectors: u64, unmap: Unmap) -> Request {
        let fill = |sector, sectors| BlockRequest::WriteZeroes { sector, sectors, unmap };
        self.request(parts::of_range(self.shared.limits.write_zeroes_sectors, sector, sectors, fill))
    }

    /// Returns the use of the device by an activity.
    pub fn usage(&self, activity: ActivityId) -> BlockUsage {
        self.shared.usages.borrow().get(activity)
    }

    /// Returns the use of the device by activities that have ended. With the use by the others, this is all use.
    pub fn usage_of_ended(&self) -> BlockUsage {
        self.shared.usages.borrow().of_ended()
    }

    /// Returns the service of each activity by the policy; empty without one.
    pub fn grid_report(&self, resource: Resource, core: u32) -> Vec<GridClient> {
        self.shared.waiting.borrow().report(resource, core)
    }

    /// Returns the service of an activity by the policy; the default without one.
    pub fn scheduled(&self, activity: ActivityId) -> ClientStatistics {
        self.shared.waiting.borrow().statistics(activity)
    }

    /// Returns the error of all further requests, if the device has failed.
    pub fn failure(&self) -> Option<BlockError> {
        self.shared.failure.get()
    }

    /// Returns a handle that does not keep the device.
    pub(crate) fn downgrade(&self) -> WeakDevice {
        WeakDevice(Rc::downgrade(&self.shared))
    }

    fn request(&self, parts: Result<Vec<BlockRequest>, BlockRefusal>) -> Request {
        Request::new(self.clone(), current_activity(), parts.map_err(BlockError::from))
    }

    /// Returns whether a request of an activity may be submitted now.
    pub(crate) fn has_room(&self, activity: ActivityId) -> bool {
        self.shared.waiting.borrow().len_for(activity) < self.shared.settings.most_waiting
    }

    /// Wakes a future when other requests have left the queue of waiting ones.
    pub(crate) fn wait_for_room(&self, waker: &Waker) {
        self.shared.room.borrow_mut().push(waker.clone());
    }

    /// Passes a request to the device, or adds it to the waiting ones.
    pub(crate) fn submit(&self, part: Part) {
        let shared = &self.shared;
        shared.follow_policy();
        let mut waiting = shared.waiting.borrow_mut();
        if waiting.must_order() || !shared.device_has_room(&waiting) {
            waiting.add(part);
        } else {
            shared.submit(part, &mut waiting);
        }
        drop(waiting);
        shared.wake();
    }
}

impl Shared {
    fn wake(&self) {
        self.task.borrow().wake_by_ref();
    }

    /// Follows changes of the resource's settings.
    fn follow_policy(&self) {
        self.waiting.borrow_mut().follow_policy();
    }

    fn device_has_room(&self, waiting: &Waiting) -> bool {
        !waiting.has_policy() || self.in_device.borrow().len() < usize::from(self.settings.depth.max(1))
    }

    /// Passes a request to the device. Returns whether it has room for more.
    fn submit(&self, part: Part, waiting: &mut Waiting) -> bool {
        let Part { request, operation } = part;
        if let Some(failure) = self.failure.get() {
            self.finish(&operation, Some(request), Err(failure));
            return true;
        }
        let bytes = parts::cost_of(&request);
        let mut in_device = self.in_device.borrow_mut();
        // If others are in the device, the alarm is that of the oldest, or has just rung and is about to be set for it.
        let must_set_alarm = in_device.is_empty() && !self.time_limit.is_set();
        let entry = in_device.vacant_entry();
        let rejected = match self.queue.borrow_mut().submit(request, entry.key() as u64) {
            Ok(()) => {
                let at = now();
                if must_set_alarm {
                    self.time_limit.set(Some(at + self.settings.time_limit));
                }
                entry.insert(Submitted { operation, bytes, at });
                return true;
            }
            Err(rejected) => rejected,
        };
        drop(in_device);
        let RejectedBlockRequest { request, reason } = rejected;
        match reason {
            BlockRefusal::Full => {
                waiting.put_back(Part { request, operation });
                return false;
            }
            BlockRefusal::TooLong | BlockRefusal::TooManyPieces => {
                match halves(request, self.limits.block_len) {
                    Ok((first, second)) => {
                        operation.add_part();
                        waiting.put_back(Part { request: second, operation: operation.clone() });
                        waiting.put_back(Part { request: first, operation });
                    }
                    Err(request) => self.finish(&operation, Some(request), Err(reason.into())),
                }
            }
            BlockRefusal::DeviceFailed => {
                self.failure.set(Some(BlockError::DeviceFailed));
                self.finish(&operation, Some(request), Err(BlockError::DeviceFailed));
            }
            _ => self.finish(&operation, Some(request), Err(reason.into())),
        }
        true
    }

    fn finish(&self, operation: &Operation, request: Option<BlockRequest>, outcome: Result<(), BlockError>) {
        if outcome.is_err() {
            self.usages.borrow_mut().of(operation.activity, operation.generation).failed += 1;
        }
        operation.finish(request, outcome);
    }

    /// Takes completions, submits waiting requests, and enables the interrupt. Returns whether there is more to do.
    fn poll(&self) -> CompletionsPending {
        self.follow_policy();
        let mut taken = self.take_completions(BATCH);
        if self.exceeds_time_limit() {
            self.failure.set(Some(BlockError::TimedOut));
            self.queue.borrow_mut().give_up();
            taken = self.take_completions(usize::MAX);
        }
        if taken > 0 {
            charge_to(INFRASTRUCTURE);
        }
        self.submit_waiting();
        self.room.take().into_iter().for_each(Waker::wake);
        let mut queue = self.queue.borrow_mut();
        queue.flush();
        if taken >= BATCH {
            return CompletionsPending::Yes;
        }
        match queue.enable_interrupts() {
            CompletionsPending::Yes => {
                queue.disable_interrupts();
                CompletionsPending::Yes
            }
            CompletionsPending::No => CompletionsPending::No,
        }
    }

    fn take_completions(&self, most: usize) -> usize {
        let mut taken = 0;
        while taken < most {
            let Some(completion) = self.queue.borrow_mut().take_completion() else { break };
            self.complete(completion);
            taken += 1;
        }
        taken
    }

    fn complete(&self, completion: BlockCompletion) {
        let BlockCompletion { id, outcome, request, submitted, ahead, .. } = completion;
        let Some(Submitted { operation, bytes, .. }) = self.in_device.borrow_mut().try_remove(id as usize)
        else {
            return;
        };
        // The rest of the work is for the activity, including the wake-up of its task.
        charge_to(operation.activity);
        let device_ns = now().as_ns().saturating_sub(submitted.as_ns());
        let outcome = match outcome {
            BlockOutcome::Done => Ok(()),
            BlockOutcome::IoError => Err(BlockError::Io),
            BlockOutcome::Unsupported => Err(BlockError::Unsupported),
            BlockOutcome::DeviceFailed => {
                let failure = self.failure.get().unwrap_or(BlockError::DeviceFailed);
                self.failure.set(Some(failure));
                Err(failure)
            }
        };
        if outcome.is_ok() {
            let mut usages = self.usages.borrow_mut();
            let usage = usages.of(operation.activity, operation.generation);
            usage.add(request.as_ref(), bytes, device_ns, ahead);
            count(operation.activity, operation.generation, request.as_ref(), bytes);
        }
        self.finish(&operation, request, outcome);
    }

    /// Returns whether a request in the device exceeds the time limit. Sets the alarm for the oldest otherwise.
    fn exceeds_time_limit(&self) -> bool {
        if self.failure.get().is_some() || self.time_limit.is_set() {
            // The alarm is never later than the oldest request's limit.
            return false;
        }
        let oldest = self.in_device.borrow().iter().map(|(_, submitted)| submitted.at).min();
        let Some(oldest) = oldest else { return false };
        let deadline = oldest + self.settings.time_limit;
        if now() >= deadline {
            return true;
        }
        self.time_limit.set(Some(deadline));
        false
    }

    fn submit_waiting(&self) {
        let mut waiting = self.waiting.borrow_mut();
        if self.failure.get().is_some() {
            let all = waiting.take_all();
            drop(waiting);
            all.into_iter().for_each(|Part { request, operation }| {
                let failure = self.failure.get().unwrap_or(BlockError::DeviceFailed);
                self.finish(&operation, Some(request), Err(failure));
            });
            return;
        }
        while self.device_has_room(&waiting) {
            match waiting.take_next() {
                Next::Part(part) => {
                    if !self.submit(part, &mut waiting) {
                        return;
                    }
                }
                Next::NotBefore(ns) => return self.throttle.set(Some(Instant::from_ns(ns))),
                Next::None => break,
            }
        }
        if waiting.is_empty() && self.in_device.borrow().is_empty() {
            waiting.idle();
        }
    }
}

impl fmt::Debug for BlockDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_device = self.shared.in_device.borrow().len();
        f.debug_struct("BlockDevice")
            .field("limits", &self.shared.limits)
            .field("in_device", &in_device)
            .finish()
    }
}
