//! A thread as a core: its interrupts, its timer, and how it halts.
//!
//! The core's epoll watches an eventfd, by which other threads ring it while it is halted, a timerfd, and the
//! files that stand for devices ([`crate::file`]). It is asked when the core halts, and, for the
//! devices' sake, now and then while the core is busy; a core without devices makes no system call while it runs.

use crate::pending::{MayHalt, Pending, Ring};
use crate::platform::Hosted;
use isola_ebbs::cycles;
use isola_platform::{CoreIndex, CoreSet, PendingVectors};
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What epoll says of the eventfd and the timerfd; for a device it says the vector.
const OWN: u64 = u64::MAX;

/// Events taken from epoll at once.
const BATCH: usize = 64;

/// For how long a busy core does not look at its devices, in cycles: some tens of microseconds.
const BUSY_CYCLES: u64 = 100_000;

/// Plain references: a thread that panicked with the lock held has left them whole.
fn idle() -> MutexGuard<'static, Vec<&'static HostedCore>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The cell that the thread is a processor core of.
    static CELL: Cell<Option<&'static Hosted>> = const { Cell::new(None) };
}

/// A core of a hosted cell, as a device sees it.
#[derive(Debug)]
pub struct HostedCore {
    pending: Pending,
    epoll: OwnedFd,
    bell: OwnedFd,
    timer: OwnedFd,
    /// How many files stand for devices of this core.
    devices: AtomicUsize,
    /// Cycles at which epoll was last asked. The core's own.
    asked_at: AtomicU64,
    /// The cores that the thread runs whose own core this is. The thread's own.
    carried: AtomicU64,
}

/// Cores of cells that have ended.
static IDLE: Mutex<Vec<&'static HostedCore>> = Mutex::new(Vec::new());

impl HostedCore {
    /// A core that no thread is yet: one of a cell that has ended, or another. Whoever still knows it of that cell may
    /// interrupt it, as a device may at any time.
    ///
    /// # Errors
    /// What Linux says where it gives no more file descriptors: a core takes three.
    pub(crate) fn take() -> io::Result<&'static Self> {
        match idle().pop() {
            Some(core) => Ok(core),
            None => Ok(Box::leak(Box::new(Self::new()?))),
        }
    }

    /// Gives back a core that no thread is any more. One with devices is left to them.
    pub(crate) fn give_back(&'static self) {
        if self.devices.load(Ordering::Relaxed) == 0 {
            self.arm_timer(None);
            let _ = self.pending.take();
            self.pending.finish_halt();
            idle().push(self);
        }
    }

    fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        // By edges, so that neither need ever be read: a ring or an expiry is told once.
        for own in [&bell, &timer] {
            epoll::add(&epoll, own, EventData::new_u64(OWN), EventFlags::IN | EventFlags::ET)?;
        }
        let (devices, asked_at, carried) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { pending: Pending::default(), epoll, bell, timer, devices, asked_at, carried })
    }

    /// The core that the calling thread runs; `None` for threads that run none.
    pub fn current() -> Option<&'static Self> {
        CELL.get().map(Hosted::this_core)
    }

    /// Makes the calling thread a processor core of that cell.
    pub(crate) fn enter(cell: &'static Hosted) {
        CELL.set(Some(cell));
    }

    /// Has the calling thread, whose own core this is, be rung for all that it runs. `find` knows the cores.
    pub(crate) fn carry(&self, home: CoreIndex, set: CoreSet, find: impl Fn(CoreIndex) -> &'static Self) {
        let before = CoreSet::from_bits(self.carried.swap(set.bits(), Ordering::Relaxed));
        for core in set.without(home).filter(|core| !before.contains(*core)) {
            let added = epoll::add(&self.epoll, &find(core).epoll, EventData::new_u64(OWN), EventFlags::IN);
            added.expect("an epoll watches another");
        }
        for core in before.without(home).filter(|core| !set.contains(*core)) {
            // It fails where it is not watched, which is as good.
            let _ = epoll::delete(&self.epoll, &find(core).epoll);
        }
    }

    /// Interrupts the core.
    pub fn interrupt(&self, vector: u8) {
        self.ring(self.pending.insert(vector));
    }

    /// Has the core return from its halt, or from the next one.
    pub(crate) fn wake(&self) {
        self.ring(self.pending.wake());
    }

    fn ring(&self, ring: Ring) {
        if ring == Ring::Needed {
            // It fails only where the counter is full: then there is a ring already.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// The vectors of the interrupts that came. On the core alone.
    pub(crate) fn take_interrupts(&self) -> PendingVectors {
        if self.devices.load(Ordering::Relaxed) > 0
            && cycles().wrapping_sub(self.asked_at.load(Ordering::Relaxed)) > BUSY_CYCLES
        {
            self.ask(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        }
        self.pending.take()
    }

    /// Halts until an interrupt comes, for this core or another that its thread runs. On the core alone.
    pub(crate) fn halt(&'static self, home: CoreIndex, find: impl Fn(CoreIndex) -> &'static Self) {
        let others = CoreSet::from_bits(self.carried.load(Ordering::Relaxed)).without(home);
        let others = || others.map(&find);
        let may_halt =
            [self].into_iter().chain(others()).all(|core| core.pending.prepare_halt() == MayHalt::Yes);
        if may_halt {
            self.ask(None);
        }
        for core in others() {
            core.ask(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            core.pending.finish_halt();
        }
        self.pending.finish_halt();
    }

    /// Asks epoll what there is; waits as long for something.
    fn ask(&self, timeout: Option<&Timespec>) {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; BATCH];
        // A signal ends the wait early, which costs the core a pass.
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout) {
            for event in events {
                // What is the core's own had to end the wait, and that is all.
                if let Ok(vector) = u8::try_from(event.data.u64()) {
                    let _ = self.pending.insert(vector);
                }
            }
        }
        self.asked_at.store(cycles(), Ordering::Relaxed);
    }

    /// Has the core's halt end after `delay`, or not by itself. On the core alone.
    pub(crate) fn arm_timer(&self, delay: Option<Duration>) {
        // Zero would disarm it.
        let delay = delay.map_or(Duration::ZERO, |delay| delay.max(Duration::from_nanos(1)));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let tv_sec = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
        let it_value = Timespec { tv_sec, tv_nsec: delay.subsec_nanos().into() };
        let when = Itimerspec { it_interval: zero, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &when)
            .expect("a timer of the core's own takes any time");
    }

    /// Has `vector` raised when something of `interest` is the case with `file`, once for each [`Self::rearm`].
    pub(crate) fn watch(&self, file: BorrowedFd<'_>, interest: EventFlags, vector: u8) -> io::Result<()> {
        epoll::add(&self.epoll, file, EventData::new_u64(vector.into()), interest)?;
        self.devices.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Has the next event of a watched file raise its vector again.
    pub(crate) fn rearm(&self, file: BorrowedFd<'_>, interest: EventFlags, vector: u8) -> io::Result<()> {
        epoll::modify(&self.epoll, file, EventData::new_u64(vector.into()), interest)
    }

    /// Watches a file no longer.
    pub(crate) fn forget(&self, file: BorrowedFd<'_>) {
        if epoll::delete(&self.epoll, file).is_ok() {
            self.devices.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
