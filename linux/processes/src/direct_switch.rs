//! Direct switches: a thread that waits hands its core to a thread that it has woken, without a pass of the event loop.
//!
//! ```text
//!   task of A:  program A ── wakes B ── waits ─┐           ┌─ waits: B is parked, A continues ──► ...
//!                                              └► program B ── wakes A ─┘
//! ```
//!
//! A thread that waits in a call which is served at once ([`CallWait`]) is *parked*: its [`Thread`] is in its
//! [`ThreadState`], and its task returns to the event loop. The core that wakes it remembers it ([`Handoffs`]). If the thread
//! that runs there then waits, too, [`run_programs`] continues with the program of the other one, within the same event.
//!
//! The wake-up of the task stays as it is: the woken thread's task is queued behind other events. So a switch only runs a
//! program earlier. The event keeps its slice of time, after which the core's other events run: the present thread then goes
//! back to its own task, as it does for a trap that is not served at once. All this happens on one core: a thread that has
//! moved elsewhere meanwhile is not continued here.
//!
//! Not continued by a switch are threads with signals or other demands, those in a group with a limit of time, and, while a
//! scheduler divides the core's time, those of other accounts.

use crate::calls::{self, AtOnce};
use crate::core_loads::MOST_CORES;
use crate::futex::FutexWaiter;
use crate::thread::Thread;
use crate::thread_state::ThreadState;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll, Waker};
use isola_linux_files::{OpenFile, WaiterKey};
use isola_linux_memory::BoxFuture;
use isola_user_mode::Trap;
use spin::Mutex;

/// The most switches of a run. Then the core's other events have their turn, also where no timer ends the slice.
const MOST_SWITCHES: u32 = 256;

/// A wait in a call that is served at once. The registers are those of the call.
#[derive(Debug)]
pub enum CallWait {
    /// For a wake-up of a futex.
    Futex(FutexWaiter),
    /// For an event of an open file: then the call is attempted again.
    File {
        /// The file, which the call holds.
        file: Arc<OpenFile>,
        /// The place in the file's list of waiting tasks.
        key: WaiterKey,
        /// The time of the monotonic clock at which the call returns 0.
        until_ns: Option<u64>,
    },
}

/// By core: a parked thread that was woken during the present run of programs.
#[derive(Default)]
pub struct Handoffs {
    cores: Box<[Handoff]>,
}

/// In a cache line of its own, as its core writes it at each wake-up.
#[derive(Default)]
#[repr(align(64))]
struct Handoff(Mutex<Option<Arc<ThreadState>>>);

/// What ended a run of programs.
pub enum Ran {
    /// A trap of the task's own thread.
    Trap(Box<Thread>, Trap),
    /// The task's own thread waits.
    Parked,
}

/// What a parked thread does next, in its own task.
pub enum Resumption {
    /// Its program continues.
    Continue,
    /// The trap is served.
    Trap(Trap),
    /// The call ends, as the thread has a signal to handle or ends.
    Interrupted,
}

/// The state of a wait after a wake-up.
enum AfterWait {
    /// The call has its result.
    Over,
    /// It continues.
    Waits,
    /// The call has to be served by the thread's task.
    Unserved,
}

impl Handoffs {
    /// Creates the memory of a cell's cores.
    pub fn new() -> Self {
        Self { cores: (0..MOST_CORES).map(|_| Handoff::default()).collect() }
    }

    /// Remembers a thread that was woken, unless another one was before.
    fn offer(&self, core: usize, state: &Arc<ThreadState>) {
        if let Some(Handoff(next)) = self.cores.get(core) {
            next.lock().get_or_insert_with(|| state.clone());
        }
    }

    fn take(&self, core: usize) -> Option<Arc<ThreadState>> {
        self.cores.get(core)?.0.lock().take()
    }

    /// Returns the thread that continues on the core after `thread`, which waits.
    fn next(&self, core: usize, thread: &Thread) -> Option<Box<Thread>> {
        let state = self.take(core)?;
        let mut next = state.parked.lock().take_if(|next| next.may_follow(core, thread))?;
        match next.after_wait() {
            AfterWait::Over => Some(next),
            AfterWait::Waits => {
                next.park();
                None
            }
            AfterWait::Unserved => {
                next.give_back(Trap::SystemCall);
                None
            }
        }
    }
}

impl ThreadState {
    /// Offers the thread for a direct switch, if it is parked, and wakes its task.
    pub(crate) fn wake_parked(self: &Arc<Self>) {
        if let Some(thread) = &*self.parked.lock() {
            thread.system.handoffs.offer(self.core.load(Ordering::Relaxed) as usize, self);
        }
        self.wake_task();
    }
}

/// Runs the program of a thread, and of those that it wakes before it waits, until a trap that is not served at once. To be
/// called by the thread's task.
pub fn run_programs(mut thread: Box<Thread>) -> Ran {
    let system = thread.system.clone();
    let environment = &*system.environment;
    let core = environment.current_core();
    // A thread that was woken earlier has its turn in the order of events.
    drop(system.handoffs.take(core));
    let task = Arc::as_ptr(&thread.state);
    let mut now = environment.cycles().0;
    let mut switches = 0;
    loop {
        thread.state.meter.enter_user(now);
        let trap = thread.run_program();
        now = environment.cycles().0;
        thread.state.meter.leave_user(now);
        let is_own = core::ptr::eq(task, Arc::as_ptr(&thread.state));
        if thread.wait.is_none() {
            if is_own {
                return Ran::Trap(thread, trap);
            }
            thread.state.meter.end(now);
            thread.give_back(trap);
            return Ran::Parked;
        }
        let next = (switches < MOST_SWITCHES).then(|| system.handoffs.next(core, &thread)).flatten();
        thread.state.meter.end(now);
        let Some(next) = next else {
            thread.park();
            return Ran::Parked;
        };
        switches += 1;
        if !Arc::ptr_eq(&next.account, &thread.account) {
            environment.activities().charge_to(next.account.activity());
        }
        next.state.meter.begin(now);
        core::mem::replace(&mut thread, next).park();
    }
}

impl Thread {
    /// Returns whether the parked thread may continue on the core when `thread` waits.
    fn may_follow(&self, core: usize, thread: &Self) -> bool {
        // While it is parked, its task is on that core.
        self.state.core.load(Ordering::Relaxed) as usize == core
            && !self.state.has_attention()
            && self.returned.is_none()
            && !self.process.control.is_limited()
            && (Arc::ptr_eq(&self.account, &thread.account) || !self.system.environment.has_policy())
    }

    /// Leaves the thread to the next one that continues it.
    fn park(self: Box<Self>) {
        let state = self.state.clone();
        *state.parked.lock() = Some(self);
    }

    /// The limit of the present wait. The thread's own task sets the timer: a wake-up has queued the task before another one
    /// runs its program.
    fn wait_limit(&self) -> Option<u64> {
        match self.wait {
            Some(CallWait::File { until_ns, .. }) => until_ns,
            _ => None,
        }
    }

    /// Ends a wait at its limit of time.
    fn expire(&mut self) -> Resumption {
        self.cancel_wait();
        self.registers().rax = 0;
        Resumption::Continue
    }

    /// Leaves the thread to its own task, which serves a trap of its program.
    fn give_back(mut self: Box<Self>, trap: Trap) {
        let state = self.state.clone();
        if trap == Trap::Interrupt {
            self.attend_to_processor_timers();
            state.is_preempted.store(true, Ordering::Relaxed);
        }
        self.returned = Some(trap);
        *state.parked.lock() = Some(self);
        state.wake_task();
    }

    /// Makes the call wait for an event of an open file ([`OpenFile::begin_read_wait`]), perhaps with a limit of time.
    pub(crate) fn wait_for(&mut self, file: Arc<OpenFile>, until_ns: Option<u64>) -> AtOnce {
        match file.begin_read_wait(|| Waker::from(self.state.clone())) {
            Some(key) => {
                self.wait = Some(CallWait::File { file, key, until_ns });
                AtOnce::Waits
            }
            None => AtOnce::Unserved,
        }
    }

    /// Continues the call in which the thread waits.
    fn after_wait(&mut self) -> AfterWait {
        let served = match self.wait.take() {
            None => return AfterWait::Over,
            Some(CallWait::Futex(waiter)) if waiter.is_woken() => {
                self.spare_waiter = Some(waiter);
                AtOnce::Served(Ok(0))
            }
            Some(wait @ CallWait::Futex(_)) => {
                self.wait = Some(wait);
                AtOnce::Waits
            }
            Some(CallWait::File { file, key, until_ns }) => {
                file.end_wait(key);
                self.until_ns = until_ns;
                calls::continue_at_once(self, file, until_ns)
            }
        };
        match served {
            AtOnce::Served(result) => {
                self.registers().rax = result.unwrap_or_else(|errno| errno.to_result());
                AfterWait::Over
            }
            AtOnce::Waits => AfterWait::Waits,
            AtOnce::Unserved => AfterWait::Unserved,
        }
    }

    /// Ends the wait without a result, unless it has one.
    fn cancel_wait(&mut self) -> Resumption {
        match self.wait.take() {
            // A wake-up at the same time counts.
            Some(CallWait::Futex(waiter)) if self.system.futexes.withdraw(&waiter) => {
                self.registers().rax = 0;
                return Resumption::Continue;
            }
            Some(CallWait::File { file, key, .. }) => file.end_wait(key),
            Some(CallWait::Futex(_)) | None => {}
        }
        Resumption::Interrupted
    }

    fn resumption(&mut self) -> Option<Resumption> {
        if let Some(trap) = self.returned.take() {
            return Some(Resumption::Trap(trap));
        }
        match self.after_wait() {
            AfterWait::Over => Some(Resumption::Continue),
            AfterWait::Unserved => Some(Resumption::Trap(Trap::SystemCall)),
            AfterWait::Waits if self.is_interrupted() => Some(self.cancel_wait()),
            AfterWait::Waits => None,
        }
    }
}

/// Waits until the parked thread of the calling task has something to do, and returns it. A wake-up before the first poll has
/// queued the task again.
pub fn resumed(state: &Arc<ThreadState>) -> Resumed<'_> {
    Resumed { state, was_polled: false, timer: None }
}

/// The future of [`resumed`].
#[must_use = "the thread is parked until this is awaited"]
pub struct Resumed<'a> {
    state: &'a Arc<ThreadState>,
    was_polled: bool,
    /// The timer of the present wait, and its time.
    timer: Option<(u64, BoxFuture<'static, ()>)>,
}

impl Resumed<'_> {
    /// Returns whether a wait of the thread is at its limit of time. Otherwise the task is woken then.
    fn has_expired(&mut self, thread: &Thread, context: &mut Context<'_>) -> bool {
        let Some(until_ns) = thread.wait_limit() else {
            self.timer = None;
            return false;
        };
        if self.timer.as_ref().is_none_or(|(set_ns, _)| *set_ns != until_ns) {
            self.timer = Some((until_ns, thread.system.environment.sleep_until(until_ns)));
        }
        self.timer.as_mut().is_some_and(|(_, timer)| timer.as_mut().poll(context).is_ready())
    }
}

impl Future for Resumed<'_> {
    type Output = (Box<Thread>, Resumption);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let is_first = !core::mem::replace(&mut self.was_polled, true);
        let taken = self.state.parked.lock().take();
        let Some(mut thread) = taken else { return Poll::Pending };
        // The run that has parked the thread saw no reason to continue.
        let resumption = if is_first { None } else { thread.resumption() };
        if let Some(resumption) = resumption {
            return Poll::Ready((thread, resumption));
        }
        if self.has_expired(&thread, context) {
            let resumption = thread.expire();
            return Poll::Ready((thread, resumption));
        }
        thread.park();
        Poll::Pending
    }
}

impl Drop for Resumed<'_> {
    fn drop(&mut self) {
        // The task ends while the thread waits: the thread has references to itself.
        let taken = self.state.parked.lock().take();
        if let Some(mut thread) = taken {
            thread.cancel_wait();
        }
    }
}

impl fmt::Debug for Handoffs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handoffs({} cores)", self.cores.len())
    }
}
