//! Fibers as tasks.

use crate::block::{FIBERS, RunningFiber};
use crate::stack::{FiberError, OwnedStack, STACK_LEN};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use corosensei::{Coroutine, CoroutineResult};
use isola_abi::id::ActivityId;
use isola_events::{Task, spawn_task};

/// The maximum number of unused stacks of [`STACK_LEN`] that a core keeps for later fibers.
const MOST_KEPT_STACKS: usize = 64;

/// A spawned fiber. Awaiting it returns the result of its closure. Dropping it does not end the fiber.
#[must_use = "await it, or let the fiber run on with `detach`"]
pub struct Fiber<T> {
    task: Task<T>,
}

impl<T> Fiber<T> {
    /// Drops the handle; the fiber continues.
    pub fn detach(self) {}

    /// Makes its resumptions from the next wake-up on events of `activity`: for a fiber that works for several.
    pub fn set_activity(&self, activity: ActivityId) {
        self.task.set_activity(activity);
    }

    /// Resumes it within the running event, to whose activity it is charged. To be called outside of tasks.
    pub fn resume_now(&self) {
        self.task.poll_now();
    }
}

impl<T> Future for Fiber<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.task).poll(context)
    }
}

impl<T> fmt::Debug for Fiber<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fiber").field(&self.task).finish()
    }
}

/// Runs `work` on this core, on a stack of [`STACK_LEN`] bytes, for the activity of the caller.
///
/// # Errors
/// [`FiberError::Stack`] if there is no memory for a stack.
#[track_caller]
pub fn spawn_fiber<T: 'static>(work: impl FnOnce() -> T + 'static) -> Result<Fiber<T>, FiberError> {
    spawn_fiber_with_stack(STACK_LEN, work)
}

/// Runs `work` on this core, on a stack of `len_bytes`, rounded up to whole pages, for the activity of the caller.
///
/// # Errors
/// [`FiberError::Stack`] if there is no memory for a stack.
#[track_caller]
pub fn spawn_fiber_with_stack<T: 'static>(
    len_bytes: usize,
    work: impl FnOnce() -> T + 'static,
) -> Result<Fiber<T>, FiberError> {
    let kept = if len_bytes == STACK_LEN { FIBERS.stacks.borrow_mut().pop() } else { None };
    let stack = match kept {
        Some(stack) => stack,
        None => OwnedStack::new(len_bytes)?,
    };
    let coroutine = Coroutine::with_stack(stack, |back, waker: Waker| {
        FIBERS.running.replace(Some(RunningFiber::new(back, waker)));
        work()
    });
    Ok(Fiber { task: spawn_task(Stackful { coroutine: Some(coroutine) }) })
}

/// The future of a fiber's task.
struct Stackful<T> {
    /// `None` after the closure has returned.
    coroutine: Option<Coroutine<Waker, (), T, OwnedStack>>,
}

impl<T> Future for Stackful<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // A coroutine is a pointer to its stack, and may move.
        let this = &mut *self;
        let Some(coroutine) = &mut this.coroutine else { return Poll::Pending };
        // The caller may be a fiber itself, which continues after this.
        let caller = FIBERS.running.take();
        let result = coroutine.resume(context.waker().clone());
        FIBERS.running.replace(caller);
        match result {
            CoroutineResult::Yield(()) => Poll::Pending,
            CoroutineResult::Return(output) => {
                this.coroutine.take().into_iter().for_each(|done| keep(done.into_stack()));
                Poll::Ready(output)
            }
        }
    }
}

impl<T> Unpin for Stackful<T> {}

/// Keeps a stack for a later fiber of this core.
fn keep(stack: OwnedStack) {
    let mut stacks = FIBERS.stacks.borrow_mut();
    if stack.len_bytes() == STACK_LEN && stacks.len() < MOST_KEPT_STACKS {
        stacks.push(stack);
    }
}

impl<T> Drop for Stackful<T> {
    fn drop(&mut self) {
        // A fiber that has started and not returned cannot be dropped: its stack stays allocated forever.
        if let Some(coroutine) = self.coroutine.take().filter(Coroutine::started) {
            core::mem::forget(coroutine);
        }
    }
}
