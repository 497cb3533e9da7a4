//! A thread as a core: its interrupts, its timer, and its halt.
//!
//! The core's epoll watches an eventfd, which other threads write to wake the halted core, a timerfd, and the files
//! that act as devices ([`crate::file`]). The core polls it when it halts and, for the devices' sake, at intervals
//! while it is busy; a core without devices makes no system call while it runs.

use crate::pending::{EventfdWrite, MayHalt, Pending};
use isola_ebbs::cycles;
use isola_platform::{CoreIndex, CoreSet, PendingVectors};
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The epoll data of the eventfd and the timerfd; that of a device is its vector.
const NO_VECTOR: u64 = u64::MAX;

/// Events taken from epoll at once.
const BATCH: usize = 64;

/// The interval in cycles at which a busy core polls its devices: some tens of microseconds.
const BUSY_CYCLES: u64 = 100_000;

/// Ignores poisoning: these are plain references, valid even if a thread panicked with the lock held.
fn idle() -> MutexGuard<'static, Vec<&'static HostedCore>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A core of a hosted cell, as a device sees it.
#[derive(Debug)]
pub struct HostedCore {
    pending: Pending,
    epoll: OwnedFd,
    wake_fd: OwnedFd,
    timer: OwnedFd,
    /// The number of files that act as devices of this core.
    devices: AtomicUsize,
    /// The cycle count of the last epoll. Used by the core only.
    polled_at: AtomicU64,
    /// The vcores that the thread runs, whose home this is. Used by the thread only.
    vcores: AtomicU64,
}

/// Cores of ended cells.
static IDLE: Mutex<Vec<&'static HostedCore>> = Mutex::new(Vec::new());

impl HostedCore {
    /// Returns a core without a thread: one of an ended cell, or a new one. A device of the ended cell may still
    /// interrupt it, which is harmless.
    ///
    /// # Errors
    /// The error of Linux if it provides no more file descriptors: a core needs three.
    pub(crate) fn take() -> io::Result<&'static Self> {
        match idle().pop() {
            Some(core) => Ok(core),
            None => Ok(Box::leak(Box::new(Self::new()?))),
        }
    }

    /// Returns a core whose thread has ended. A core with devices is left to them.
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
        let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        // Edge-triggered, so that neither has to be read: epoll reports a write or an expiry once.
        for own in [&wake_fd, &timer] {
            epoll::add(&epoll, own, EventData::new_u64(NO_VECTOR), EventFlags::IN | EventFlags::ET)?;
        }
        let (devices, polled_at, vcores) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { pending: Pending::default(), epoll, wake_fd, timer, devices, polled_at, vcores })
    }

    /// Makes the calling thread, whose home vcore this is, wake up for all vcores of `set`. `find` returns a vcore's
    /// core.
    pub(crate) fn run_vcores(
        &self,
        home: CoreIndex,
        set: CoreSet,
        find: impl Fn(CoreIndex) -> &'static Self,
    ) {
        let before = CoreSet::from_bits(self.vcores.swap(set.bits(), Ordering::Relaxed));
        for core in set.without(home).filter(|core| !before.contains(*core)) {
            let added =
                epoll::add(&self.epoll, &find(core).epoll, EventData::new_u64(NO_VECTOR), EventFlags::IN);
            added.expect("an epoll watches another");
        }
        for core in before.without(home).filter(|core| !set.contains(*core)) {
            // This fails if it is not watched, which is harmless.
            let _ = epoll::delete(&self.epoll, &find(core).epoll);
        }
    }

    /// Interrupts the core.
    pub fn interrupt(&self, vector: u8) {
        self.write_eventfd(self.pending.insert(vector));
    }

    /// Makes the core return from its halt, or from its next one.
    pub(crate) fn wake(&self) {
        self.write_eventfd(self.pending.wake());
    }

    fn write_eventfd(&self, write: EventfdWrite) {
        if write == EventfdWrite::Needed {
            // This fails only if the counter is full: then a wake-up is pending already.
            let _ = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
        }
    }

    /// Returns the vectors of the interrupts that arrived. To be called on the core itself.
    pub(crate) fn take_interrupts(&self) -> PendingVectors {
        self.poll_devices();
        self.pending.take()
    }

    /// Returns whether an interrupt has arrived. To be called on the core itself.
    pub(crate) fn has_interrupts(&self) -> bool {
        self.poll_devices();
        self.pending.has_any()
    }

    /// Looks for interrupts of devices, if the last look is long ago.
    fn poll_devices(&self) {
        if self.devices.load(Ordering::Relaxed) > 0
            && cycles().wrapping_sub(self.polled_at.load(Ordering::Relaxed)) > BUSY_CYCLES
        {
            self.poll_epoll(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        }
    }

    /// Halts until an interrupt arrives for this vcore or another of the same thread. To be called on the core itself.
    pub(crate) fn halt(&'static self, home: CoreIndex, find: impl Fn(CoreIndex) -> &'static Self) {
        let others = CoreSet::from_bits(self.vcores.load(Ordering::Relaxed)).without(home);
        let others = || others.map(&find);
        let may_halt =
            [self].into_iter().chain(others()).all(|core| core.pending.prepare_halt() == MayHalt::Yes);
        if may_halt {
            self.poll_epoll(None);
        }
        for core in others() {
            core.poll_epoll(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            core.pending.finish_halt();
        }
        self.pending.finish_halt();
    }

    /// Polls epoll, and waits for up to `timeout` for an event.
    fn poll_epoll(&self, timeout: Option<&Timespec>) {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; BATCH];
        // A signal ends the wait early, which costs the core a pass.
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout) {
            for event in events {
                // An event of the eventfd or the timerfd only has to end the wait.
                if let Ok(vector) = u8::try_from(event.data.u64()) {
                    let _ = self.pending.insert(vector);
                }
            }
        }
        self.polled_at.store(cycles(), Ordering::Relaxed);
    }

    /// Makes the core's halt end after `delay`, or not by time. To be called on the core itself.
    pub(crate) fn arm_timer(&self, delay: Option<Duration>) {
        // Zero would disarm the timer.
        let delay = delay.map_or(Duration::ZERO, |delay| delay.max(Duration::from_nanos(1)));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let tv_sec = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
        let it_value = Timespec { tv_sec, tv_nsec: delay.subsec_nanos().into() };
        let when = Itimerspec { it_interval: zero, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &when)
            .expect("a timer of the core's own takes any time");
    }

    /// Makes `file` raise `vector` when it is ready for `interest`, once for each [`Self::rearm`].
    pub(crate) fn watch(&self, file: BorrowedFd<'_>, interest: EventFlags, vector: u8) -> io::Result<()> {
        epoll::add(&self.epoll, file, EventData::new_u64(vector.into()), interest)?;
        self.devices.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the next event of a watched file raise its vector again.
    pub(crate) fn rearm(&self, file: BorrowedFd<'_>, interest: EventFlags, vector: u8) -> io::Result<()> {
        epoll::modify(&self.epoll, file, EventData::new_u64(vector.into()), interest)
    }

    /// Ends the watch of a file.
    pub(crate) fn forget(&self, file: BorrowedFd<'_>) {
        if epoll::delete(&self.epoll, file).is_ok() {
            self.devices.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
