//! Blocking within a fiber.

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

use crate::stack::OwnedStack;

pub(crate) static FIBERS: Ebb<Fibers> = Ebb::new();

/// A core's running fiber, and its unused stacks.
#[derive(Default)]
pub(crate) struct Fibers {
    /// The running fiber, if there is one.
    pub running: RefCell<Option<RunningFiber>>,
    pub stacks: RefCell<Vec<OwnedStack>>,
    /// The number of times that fibers of this core have blocked.
    waits: Cell<u64>,
}

impl Representative for Fibers {
    fn create() -> Self {
        Self::default()
    }
}

/// The fiber that runs on a core.
#[derive(Clone)]
pub(crate) struct RunningFiber {
    /// The way to suspend the fiber; it is on the fiber's own stack.
    pub back: NonNull<Yielder<Waker, ()>>,
    pub waker: Waker,
    /// The number of nested polls at the fiber's resumption, its own included.
    pub polls: u32,
}

impl RunningFiber {
    pub fn new(back: &Yielder<Waker, ()>, waker: Waker) -> Self {
        Self { back: NonNull::from(back), waker, polls: task::nested_polls() }
    }
}

/// Returns whether the caller runs in a fiber, and not in a task that this fiber polls: whether it may call
/// [`block_on`].
pub fn is_in_fiber() -> bool {
    FIBERS.running.borrow().as_ref().is_some_and(|running| running.polls == task::nested_polls())
}

/// Blocks the fiber until `future` completes, and returns its output. Meanwhile the core runs other events. Afterwards
/// the fiber continues for the activity to which it was charged before. A ready future returns at once.
///
/// # Panics
/// Panics outside of a fiber, where no stack can be suspended: `await` the future there. Panics also in a task that a
/// fiber polls, for the same reason, and within a [`quiescence`](isola_events::quiescence) read, whose references must
/// not outlive its event.
pub fn block_on<F: Future>(future: F) -> F::Output {
    assert!(
        !is_reading(),
        "a fiber blocks in a read of data that may be freed: copy it out of the read first"
    );
    assert!(is_in_fiber(), "block_on outside of a fiber: await the future, or block in a fiber");
    let mut future = pin!(future);
    loop {
        let waits = FIBERS.waits.get();
        let waker =
            FIBERS.running.borrow().as_ref().map_or(Waker::noop().clone(), |running| running.waker.clone());
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        // If the poll itself has blocked, in a nested `block_on`, a wake-up for this future may have come meanwhile.
        if FIBERS.waits.get() == waits {
            wait();
        }
    }
}

/// Suspends the fiber until it is woken.
fn wait() {
    let Some(running) = FIBERS.running.borrow().clone() else { return };
    FIBERS.waits.set(FIBERS.waits.get() + 1);
    let activity = current_activity();
    // SAFETY: this code runs in the running fiber: each resumption sets `running`, and the code that resumed the fiber
    // restores it afterwards. The pointer therefore leads to a frame further up on this stack, which ends with the
    // fiber.
    let back = unsafe { running.back.as_ref() };
    let waker = back.suspend(());
    FIBERS.running.replace(Some(RunningFiber::new(back, waker)));
    if current_activity() != activity {
        charge_to(activity);
    }
}
