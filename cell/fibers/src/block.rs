//! Waiting within a fiber.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, Waker};
use corosensei::Yielder;
use isola_ebbs::{Ebb, Representative};
use isola_events::activity::charge_to;
use isola_events::quiescence::is_reading;
use isola_events::{current_activity, task};

use crate::stack::Owned;

pub(crate) static FIBERS: Ebb<Fibers> = Ebb::new();

/// What a core knows of the fiber that runs on it, and the stacks that none uses.
#[derive(Default)]
pub(crate) struct Fibers {
    /// The running fiber, where one runs.
    pub running: RefCell<Option<Running>>,
    pub stacks: RefCell<Vec<Owned>>,
    /// How often fibers of this core have waited.
    waits: Cell<u64>,
}

impl Representative for Fibers {
    fn create() -> Self {
        Self::default()
    }
}

/// The fiber that runs on a core.
#[derive(Clone)]
pub(crate) struct Running {
    /// The way back to whoever resumed it; stands on the fiber's own stack.
    pub back: NonNull<Yielder<Waker, ()>>,
    pub waker: Waker,
    /// Polls that were going on when it was resumed, its own included.
    pub polls: u32,
}

impl Running {
    pub fn new(back: &Yielder<Waker, ()>, waker: Waker) -> Self {
        Self { back: NonNull::from(back), waker, polls: task::nested_polls() }
    }
}

/// Whether the caller runs in a fiber, and not in a task that this has started: whether it may [`block_on`].
pub fn is_in_fiber() -> bool {
    FIBERS.running.borrow().as_ref().is_some_and(|running| running.polls == task::nested_polls())
}

/// Waits until `future` completes, and returns what it gives. The core goes on with other events meanwhile; afterwards the
/// fiber goes on for the activity that it was charged to before. What is ready returns at once.
///
/// # Panics
/// Outside of a fiber, as there is no stack to leave: `await` the future there. In a task that a fiber has started, for
/// the same reason. Within a read of what is reclaimed by [`quiescence`](isola_events::quiescence), which may not outlive
/// its event.
pub fn block_on<F: Future>(future: F) -> F::Output {
    assert!(
        !is_reading(),
        "a fiber blocks while it looks at what may be let go of: copy it out of the read first"
    );
    assert!(is_in_fiber(), "block_on outside of a fiber: await the future, or have a fiber run what blocks");
    let mut future = pin!(future);
    loop {
        let waits = FIBERS.waits.get();
        let waker =
            FIBERS.running.borrow().as_ref().map_or(Waker::noop().clone(), |running| running.waker.clone());
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        // Where the poll itself has waited, by a `block_on` of its own, a wake-up for this future may have come meanwhile.
        if FIBERS.waits.get() == waits {
            wait();
        }
    }
}

/// Leaves the fiber until it is woken.
fn wait() {
    let Some(running) = FIBERS.running.borrow().clone() else { return };
    FIBERS.waits.set(FIBERS.waits.get() + 1);
    let activity = current_activity();
    // SAFETY: the fiber that runs is the one that this code is in: `running` is set by each resumption and put back by who
    // resumed. So what it points to is further up on this very stack, in a frame that ends with the fiber.
    let back = unsafe { running.back.as_ref() };
    let waker = back.suspend(());
    FIBERS.running.replace(Some(Running::new(back, waker)));
    if current_activity() != activity {
        charge_to(activity);
    }
}
