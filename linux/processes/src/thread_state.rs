//! The part of a thread that others use: its signals, and the request to leave its program or its wait.

use crate::meter::Meter;
use crate::quick_calls::{self, Answer};
use crate::signals::{AlternateStack, PendingSignals, Signal, SignalActions, SignalSet};
use crate::thread::Thread;
use crate::tracing::Tracing;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::task::Waker;
use isola_user_mode::{QuickAnswers, QuickCalls};
use spin::Mutex;

/// The signals of a thread.
#[derive(Debug, Default)]
pub struct ThreadSignals {
    /// Signals that are not delivered.
    pub blocked: SignalSet,
    /// Signals sent to this thread.
    pub pending: PendingSignals,
    /// The mask that a call replaced until a handler runs (`sigsuspend`, `ppoll`).
    pub saved_mask: Option<SignalSet>,
    /// Signals for which the thread waits in `sigtimedwait`: they end the wait although they are blocked.
    pub awaited: SignalSet,
    /// The stack for handlers with `SA_ONSTACK`.
    pub alternate: AlternateStack,
}

/// A thread, as others see it.
#[derive(Debug)]
pub struct ThreadState {
    /// Its ids, as answers of calls.
    answers: QuickAnswers,
    /// Its signals.
    pub signals: Mutex<ThreadSignals>,
    /// The name, of at most 15 bytes (`PR_SET_NAME`).
    pub name: Mutex<Vec<u8>>,
    /// Its cycles.
    pub meter: Meter,
    /// The cores on which it may run, a bit for each.
    pub allowed_cores: AtomicU64,
    /// Whether it has left its core to others, and waits for it again.
    pub is_preempted: AtomicBool,
    /// The core of its task.
    pub core: AtomicU32,
    /// Whether the thread checks for signals, stops and its end before the program continues.
    has_attention: AtomicBool,
    /// Whether the thread ends: it takes no lock any more.
    is_ending: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// Its tracer.
    pub tracing: Tracing,
    /// The thread itself while it is parked ([`direct_switch`](crate::direct_switch)).
    pub(crate) parked: Mutex<Option<Box<Thread>>>,
}

impl ThreadState {
    /// Creates a thread with these blocked signals.
    pub fn new(tid: u32, blocked: SignalSet, name: Vec<u8>) -> Self {
        let signals = ThreadSignals { blocked, ..ThreadSignals::default() };
        let answers = QuickAnswers::default();
        answers.set(Answer::Thread as usize, tid.into());
        Self {
            answers,
            signals: Mutex::new(signals),
            name: Mutex::new(name),
            meter: Meter::default(),
            allowed_cores: AtomicU64::new(u64::MAX),
            is_preempted: AtomicBool::new(false),
            core: AtomicU32::new(0),
            has_attention: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            waker: Mutex::new(None),
            tracing: Tracing::default(),
            parked: Mutex::new(None),
        }
    }

    /// Returns its id.
    pub fn tid(&self) -> u32 {
        self.answers.get(Answer::Thread as usize) as u32
    }

    /// Sets its id: that of the process, for a thread that executes a new program.
    pub fn set_tid(&self, tid: u32) {
        self.set_answer(Answer::Thread, tid);
    }

    /// Returns the calls that need no service, with their results.
    pub fn quick_calls(&self) -> QuickCalls<'_> {
        QuickCalls { numbers: &quick_calls::NUMBERS, answers: &self.answers }
    }

    /// Sets the result of such a call.
    pub fn set_answer(&self, answer: Answer, id: u32) {
        self.answers.set(answer as usize, id.into());
    }

    /// Makes the thread check for signals, stops and its end: it leaves the program or a wait that can be interrupted.
    pub fn interrupt(&self) {
        self.has_attention.store(true, Ordering::SeqCst);
        self.wake_task();
    }

    /// Makes the event loop poll the thread's task.
    pub(crate) fn wake_task(&self) {
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
    }

    /// Records that the thread ends.
    pub fn set_ending(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
    }

    /// Returns whether the thread ends.
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Records the thread's task.
    pub fn set_waker(&self, waker: &Waker) {
        let mut place = self.waker.lock();
        match &mut *place {
            Some(old) => old.clone_from(waker),
            None => *place = Some(waker.clone()),
        }
    }

    /// Returns whether the thread runs, or waits for a core only.
    pub fn is_runnable(&self) -> bool {
        self.meter.runs() || self.is_preempted.load(Ordering::Relaxed)
    }

    /// Returns whether the thread was interrupted since [`Self::take_attention`].
    #[inline]
    pub fn has_attention(&self) -> bool {
        self.has_attention.load(Ordering::Relaxed)
    }

    /// Returns whether the thread was interrupted, and forgets it.
    pub fn take_attention(&self) -> bool {
        self.has_attention.swap(false, Ordering::SeqCst)
    }
}

/// The waker of a thread that waits in a call which is served at once.
impl Wake for ThreadState {
    fn wake(self: Arc<Self>) {
        self.wake_parked();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_parked();
    }
}

impl ThreadSignals {
    /// Returns whether a signal reaches the thread: it is not blocked, or the thread waits for it.
    pub fn accepts(&self, signal: Signal) -> bool {
        !self.blocked.contains(signal) || self.awaited.contains(signal)
    }

    /// Returns the signals that are pending here or in `shared` and not blocked.
    pub fn deliverable(&self, shared: SignalSet) -> SignalSet {
        (self.pending.set() | shared) & !self.blocked
    }
}

/// The signals of a process.
#[derive(Debug, Default)]
pub struct ProcessSignals {
    /// Its actions.
    pub actions: SignalActions,
    /// Signals sent to the process, for any of its threads.
    pub pending: PendingSignals,
}
