//! A semaphore: a limit on concurrent operations, beyond which others wait.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::{Poll, Waker};

/// A semaphore.
#[derive(Debug)]
pub(crate) struct Semaphore {
    free: Cell<usize>,
    waiting: RefCell<Vec<Waker>>,
}

/// A permit, returned on drop.
#[derive(Debug)]
pub(crate) struct Permit(Rc<Semaphore>);

impl Semaphore {
    pub fn new(permits: usize) -> Rc<Self> {
        Rc::new(Self { free: Cell::new(permits), waiting: RefCell::default() })
    }

    /// Takes a permit, if one is free.
    pub fn try_take(self: &Rc<Self>) -> Option<Permit> {
        self.free.set(self.free.get().checked_sub(1)?);
        Some(Permit(self.clone()))
    }

    /// Waits for a permit.
    pub async fn take(self: &Rc<Self>) -> Permit {
        poll_fn(|context| match self.try_take() {
            Some(permit) => Poll::Ready(permit),
            None => {
                self.waiting.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.free.set(self.0.free.get() + 1);
        // All are woken: a single one may no longer wait, and the others would not be woken.
        self.0.waiting.take().into_iter().for_each(Waker::wake);
    }
}
