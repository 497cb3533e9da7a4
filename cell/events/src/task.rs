//! `async` on events: a task is a future whose polls are events of the core on which it was spawned.
//!
//! A task never migrates, so its future need not be `Send`. Its waker may be sent to any core: on another core it sends
//! a message, on its own core it queues the event directly. A queued task is not queued again.

use crate::event::{Event, EventTag, Placement, QueuedEvent, Work, current_tag};
use crate::event_loop::EVENTS;
use crate::mailbox;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::task::Wake;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::{Future, poll_fn};
use core::panic::Location;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use isola_abi::id::ActivityId;
use isola_ebbs::current_core;
use isola_platform::CoreIndex;
use slab::Slab;

/// The id of a task of a core. The serial number distinguishes a task from an ended one with the same slab index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    index: usize,
    serial: u64,
}

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Entry {
    serial: u64,
    /// `None` while the task is being polled.
    future: Option<TaskFuture>,
    tag: EventTag,
    /// The source location that spawned it.
    made_at: &'static Location<'static>,
    waker: Arc<TaskWaker>,
}

/// The tasks of a core.
#[derive(Default)]
pub(crate) struct Tasks {
    entries: RefCell<Slab<Entry>>,
    serial: Cell<u64>,
    /// The depth of nested polls.
    polls: Cell<u32>,
}

struct TaskWaker {
    core: CoreIndex,
    task: TaskId,
    queued: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.core == current_core() {
            EVENTS.tasks.schedule(self.task);
        } else {
            mailbox::all().wake_task(self.core, self.task);
        }
    }
}

impl Tasks {
    fn spawn(&self, future: TaskFuture, tag: EventTag, made_at: &'static Location<'static>) -> TaskId {
        let serial = self.serial.replace(self.serial.get() + 1);
        let mut entries = self.entries.borrow_mut();
        let vacant = entries.vacant_entry();
        let task = TaskId { index: vacant.key(), serial };
        let waker = Arc::new(TaskWaker { core: current_core(), task, queued: AtomicBool::new(true) });
        vacant.insert(Entry { serial, future: Some(future), tag, made_at, waker });
        task
    }

    /// Queues the poll of a task, unless the task has ended. Its waker has marked it as queued.
    pub fn schedule(&self, task: TaskId) {
        let entries = self.entries.borrow();
        let Some(entry) = entries.get(task.index).filter(|entry| entry.serial == task.serial) else { return };
        EVENTS.enqueue(QueuedEvent { work: Work::Poll(task), tag: entry.tag, made_at: entry.made_at });
    }

    /// Polls a task, unless it has ended. Inlined into the event loop, which saves 30 instructions per poll.
    #[inline(always)]
    pub fn poll(&self, task: TaskId) {
        let (mut future, waker) = {
            let mut entries = self.entries.borrow_mut();
            let entry = entries.get_mut(task.index).filter(|entry| entry.serial == task.serial);
            let Some(entry) = entry else { return };
            let Some(future) = entry.future.take() else { return };
            (future, entry.waker.clone())
        };
        // Cleared before the poll: a wake-up during the poll must queue the task again.
        waker.queued.store(false, Ordering::Release);
        self.polls.set(self.polls.get() + 1);
        let done = future.as_mut().poll(&mut Context::from_waker(&Waker::from(waker))).is_ready();
        self.polls.set(self.polls.get() - 1);
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(task.index).filter(|entry| entry.serial == task.serial) else {
            // The task was cancelled in its own poll. Its future is dropped without a borrow, as dropping may wake and
            // spawn.
            drop(entries);
            drop(future);
            return;
        };
        if done {
            let entry = entries.remove(task.index);
            drop(entries);
            drop((entry, future));
        } else {
            entry.future = Some(future);
        }
    }

    fn set_activity(&self, task: TaskId, activity: ActivityId) {
        let mut entries = self.entries.borrow_mut();
        if let Some(entry) = entries.get_mut(task.index).filter(|entry| entry.serial == task.serial) {
            entry.tag.activity = activity;
        }
    }

    fn cancel(&self, task: TaskId) {
        let mut entries = self.entries.borrow_mut();
        if entries.get(task.index).is_some_and(|entry| entry.serial == task.serial) {
            let entry = entries.remove(task.index);
            drop(entries);
            drop(entry);
        }
    }
}

struct JoinState<T> {
    output: Cell<Option<T>>,
    waiting: Cell<Option<Waker>>,
}

/// A spawned task. Awaiting it returns the output of its future. Dropping it does not end the task.
#[must_use = "await it, or let the task run on with `detach`"]
pub struct Task<T> {
    task: TaskId,
    join: Rc<JoinState<T>>,
}

impl<T> Task<T> {
    /// Drops the handle; the task runs to its end.
    pub fn detach(self) {}

    /// Makes its polls from the next wake-up on events of `activity`: for a task that works for several.
    pub fn set_activity(&self, activity: ActivityId) {
        EVENTS.tasks.set_activity(self.task, activity);
    }

    /// Polls the task within the running event, to whose activity it is charged. To be called outside of tasks.
    pub fn poll_now(&self) {
        EVENTS.tasks.poll(self.task);
    }

    /// Ends the task and drops its future.
    pub fn cancel(self) {
        EVENTS.tasks.cancel(self.task);
    }

    /// Ties the task to the returned value: dropping that value ends the task.
    pub fn cancel_on_drop(self) -> CancelOnDrop<T> {
        CancelOnDrop { task: self }
    }
}

/// A task that is cancelled when this value is dropped. Awaiting it returns the output of its future.
#[derive(Debug)]
#[must_use = "the task is cancelled when this is dropped"]
pub struct CancelOnDrop<T> {
    task: Task<T>,
}

impl<T> Future for CancelOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.task).poll(context)
    }
}

impl<T> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        EVENTS.tasks.cancel(self.task.task);
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match self.join.output.take() {
            Some(output) => Poll::Ready(output),
            None => {
                self.join.waiting.set(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({})", self.task.serial)
    }
}

/// Runs `future` on this core, for the current activity. Its first poll is an event of its own; [`start_task`] suits a
/// future that is often ready at once.
#[track_caller]
pub fn spawn_task<T: 'static>(future: impl Future<Output = T> + 'static) -> Task<T> {
    spawn_task_for(current_tag().activity, future)
}

/// Runs `future` on this core, for `activity`: for code that spawns tasks on behalf of others.
#[track_caller]
pub fn spawn_task_for<T: 'static>(
    activity: ActivityId,
    future: impl Future<Output = T> + 'static,
) -> Task<T> {
    let task = make(EventTag { activity, ..current_tag() }, Location::caller(), future);
    EVENTS.tasks.schedule(task.task);
    task
}

/// Runs `future` on this core, and polls it for the first time at once, within the running event: a ready future
/// completes without a trip through the queue (EbbRT 3.4, `Then` of a fulfilled future). Later polls are separate
/// events.
///
/// The future must not rely on actions of its creator after this call, as it may complete before.
#[track_caller]
pub fn start_task<T: 'static>(future: impl Future<Output = T> + 'static) -> Task<T> {
    let task = make(current_tag(), Location::caller(), future);
    EVENTS.tasks.poll(task.task);
    task
}

/// Creates a task without scheduling a poll.
fn make<T: 'static>(
    tag: EventTag,
    made_at: &'static Location<'static>,
    future: impl Future<Output = T> + 'static,
) -> Task<T> {
    let join = Rc::new(JoinState { output: Cell::new(None), waiting: Cell::new(None) });
    let outcome = join.clone();
    let future = Box::pin(async move {
        outcome.output.set(Some(future.await));
        if let Some(waiting) = outcome.waiting.take() {
            waiting.wake();
        }
    });
    Task { task: EVENTS.tasks.spawn(future, tag, made_at), join }
}

/// Runs the future that `future` creates on `core`, for the current activity. The closure runs there, so its future
/// need not be `Send`.
///
/// # Panics
/// If the cell has no such core.
#[track_caller]
pub fn spawn_task_on<F: Future<Output = ()> + 'static>(
    core: CoreIndex,
    future: impl FnOnce() -> F + Send + 'static,
) {
    spawn_task_from(Location::caller(), core, future);
}

/// Does the same as [`spawn_task_on`], with `made_at` as the source location.
pub(crate) fn spawn_task_from<F: Future<Output = ()> + 'static>(
    made_at: &'static Location<'static>,
    core: CoreIndex,
    future: impl FnOnce() -> F + Send + 'static,
) {
    Event::new().at(Placement::Core(core)).spawn_from(made_at, move || {
        let task = make(current_tag(), made_at, future());
        EVENTS.tasks.schedule(task.task);
    });
}

/// Returns the depth of nested polls: more than one if a task has started another.
pub fn nested_polls() -> u32 {
    EVENTS.tasks.polls.get()
}

/// Lets all waiting events of this core run first; with a policy ([`processor`](crate::processor)), those that it
/// prefers.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if core::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
