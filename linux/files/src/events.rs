//! Readiness: events of open files, and their observers.
//!
//! An object computes its events from its own state at any time, and [`Pollee::notify`] passes *changes* to observers.
//! So readiness persists without a waiter, and an observer that is added late first asks for the present state.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::future::Future;
use core::ops::{BitAnd, BitOr};
use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use isola_linux_abi::numbers as linux;
use smallvec::SmallVec;
use spin::Mutex;

/// A set of events, with the bits of `epoll`, of which the lower ones are those of `poll`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Events(pub u32);

impl Events {
    /// No events.
    pub const NONE: Self = Self(0);
    /// There is data to read.
    pub const IN: Self = Self(linux::EPOLLIN | linux::EPOLLRDNORM);
    /// There is space to write.
    pub const OUT: Self = Self(linux::EPOLLOUT | linux::EPOLLWRNORM);
    /// There is urgent data.
    pub const PRI: Self = Self(linux::EPOLLPRI);
    /// The object has failed, or the reader of a pipe is gone.
    pub const ERR: Self = Self(linux::EPOLLERR);
    /// The other end is closed.
    pub const HUP: Self = Self(linux::EPOLLHUP);
    /// The other end sends no more.
    pub const RDHUP: Self = Self(linux::EPOLLRDHUP);
    /// The events that are reported although the program did not ask for them.
    pub const ALWAYS: Self = Self(linux::EPOLLERR | linux::EPOLLHUP);

    /// Returns whether the sets have common events.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Events {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Events {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({:#x})", self.0)
    }
}

/// An observer of events that stays until it is removed.
pub trait Observer: Send + Sync {
    /// Notes that these events may be true now. Returns whether it will deal with them: of
    /// [exclusive](Pollee::observe) observers only the first that does is notified.
    ///
    /// It is called by the core that causes the event, and must not call the observed object.
    fn notify(&self, events: Events) -> bool;
}

/// The observers of an object, and the tasks that wait for it.
#[derive(Default)]
pub struct Pollee {
    lists: Mutex<Lists>,
    /// The number of entries in both lists: without any, `notify` takes no lock.
    count: AtomicUsize,
}

#[derive(Default)]
struct Lists {
    observers: Vec<Registered>,
    waiters: Vec<Waiter>,
    next: u64,
}

struct Registered {
    observer: Weak<dyn Observer>,
    is_exclusive: bool,
}

struct Waiter {
    key: u64,
    events: Events,
    waker: Waker,
}

/// The place of a task in the list of those that wait for an object.
#[derive(Debug)]
pub struct WaiterKey(pub(crate) u64);

/// Whether an observer is notified alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// It is notified of all events.
    Shared,
    /// Of several such observers, one is notified of an event (`EPOLLEXCLUSIVE`).
    Exclusive,
}

impl Pollee {
    /// Creates a list without observers.
    pub const fn new() -> Self {
        let lists = Lists { observers: Vec::new(), waiters: Vec::new(), next: 0 };
        Self { lists: Mutex::new(lists), count: AtomicUsize::new(0) }
    }

    /// Adds an observer. It then has to ask for the events that are true already.
    pub fn observe(&self, observer: &Arc<dyn Observer>, sharing: Sharing) {
        let mut lists = self.lists.lock();
        let is_exclusive = sharing == Sharing::Exclusive;
        lists.observers.push(Registered { observer: Arc::downgrade(observer), is_exclusive });
        self.update(&lists);
    }

    /// Removes an observer.
    pub fn unobserve(&self, observer: &Arc<dyn Observer>) {
        let mut lists = self.lists.lock();
        let observer = Arc::as_ptr(observer).cast::<()>();
        lists.observers.retain(|other| other.observer.as_ptr().cast::<()>() != observer);
        self.update(&lists);
    }

    fn update(&self, lists: &Lists) {
        self.count.store(lists.observers.len() + lists.waiters.len(), Ordering::SeqCst);
    }

    /// Notifies observers and waiting tasks that these events may be true now. The object's state was changed before, and
    /// none of its locks is held.
    pub fn notify(&self, events: Events) {
        // The state was changed before this load; a waiter checks the state after it was counted.
        core::sync::atomic::fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) > 0 {
            self.notify_all(events);
        }
    }

    #[inline(never)]
    fn notify_all(&self, events: Events) {
        let mut lists = self.lists.lock();
        if lists.observers.is_empty()
            && let [only] = &lists.waiters[..]
        {
            // As below, without lists.
            let woken = if only.events.intersects(events) { lists.waiters.pop() } else { None };
            self.update(&lists);
            drop(lists);
            woken.into_iter().for_each(|waiter| waiter.waker.wake());
            return;
        }
        let mut wakers = SmallVec::<[Waker; 2]>::new();
        let mut observers = SmallVec::<[(Arc<dyn Observer>, bool); 2]>::new();
        // A waiter that is woken registers itself again if it waits on: further events until then need not wake it.
        let woken = lists.waiters.extract_if(.., |waiter| waiter.events.intersects(events));
        wakers.extend(woken.map(|waiter| waiter.waker));
        lists.observers.retain(|registered| {
            let observer = registered.observer.upgrade();
            let is_alive = observer.is_some();
            observers.extend(observer.map(|observer| (observer, registered.is_exclusive)));
            is_alive
        });
        self.update(&lists);
        drop(lists);
        wakers.into_iter().for_each(Waker::wake);
        let mut is_taken = false;
        let mut taker = None;
        for (observer, is_exclusive) in &observers {
            if *is_exclusive && is_taken {
                continue;
            }
            if observer.notify(events) && *is_exclusive {
                is_taken = true;
                taker = Some(observer);
            }
        }
        if let Some(taker) = taker {
            self.put_last(taker);
        }
    }

    /// Moves an exclusive observer behind the others, so that they take turns.
    fn put_last(&self, observer: &Arc<dyn Observer>) {
        let observer = Arc::as_ptr(observer).cast::<()>();
        let observers = &mut self.lists.lock().observers;
        if let Some(at) = observers.iter().position(|other| other.observer.as_ptr().cast::<()>() == observer)
        {
            let registered = observers.remove(at);
            observers.push(registered);
        }
    }

    /// Waits until `ready` returns one of these events, or an error or hang-up. Returns all that it returned.
    pub fn wait<F: Fn() -> Events>(&self, events: Events, ready: F) -> WaitForEvents<'_, F> {
        WaitForEvents { pollee: self, events: events | Events::ALWAYS, ready, key: None }
    }

    pub(crate) fn set_waiter(&self, key: &mut Option<u64>, events: Events, waker: &Waker) {
        let mut lists = self.lists.lock();
        if let Some(waiter) = key.and_then(|key| lists.waiters.iter_mut().find(|waiter| waiter.key == key)) {
            waiter.waker.clone_from(waker);
            drop(lists);
            core::sync::atomic::fence(Ordering::SeqCst);
        } else {
            drop(lists);
            *key = Some(self.add_waiter(events, waker.clone()));
        }
    }

    /// Adds a waker, and returns its key. The caller then has to ask for the events that are true already.
    pub(crate) fn add_waiter(&self, events: Events, waker: Waker) -> u64 {
        let mut lists = self.lists.lock();
        let key = lists.next;
        lists.next += 1;
        lists.waiters.push(Waiter { key, events, waker });
        self.update(&lists);
        drop(lists);
        core::sync::atomic::fence(Ordering::SeqCst);
        key
    }

    pub(crate) fn remove_waiter(&self, key: Option<u64>) {
        let Some(key) = key else { return };
        // The waiter that was added before was woken.
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut lists = self.lists.lock();
        let at = lists.waiters.iter().position(|waiter| waiter.key == key);
        let removed = at.map(|at| lists.waiters.swap_remove(at));
        self.update(&lists);
        drop(lists);
        drop(removed);
    }
}

/// The future of [`Pollee::wait`].
#[must_use = "futures do nothing unless polled"]
pub struct WaitForEvents<'a, F> {
    pollee: &'a Pollee,
    events: Events,
    ready: F,
    key: Option<u64>,
}

impl<F> Unpin for WaitForEvents<'_, F> {}

impl<F: Fn() -> Events> Future for WaitForEvents<'_, F> {
    type Output = Events;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Events> {
        let this = &mut *self;
        let ready = (this.ready)();
        if ready.intersects(this.events) {
            return Poll::Ready(ready);
        }
        this.pollee.set_waiter(&mut this.key, this.events, context.waker());
        // An event between the check and the registration would be lost otherwise.
        let ready = (this.ready)();
        if ready.intersects(this.events) { Poll::Ready(ready) } else { Poll::Pending }
    }
}

impl<F> Drop for WaitForEvents<'_, F> {
    fn drop(&mut self) {
        self.pollee.remove_waiter(self.key);
    }
}
