//! The result of an operation, on its way from the fiber to the future that waits for it.

use alloc::rc::Rc;
use core::cell::RefCell;
use core::future::poll_fn;
use core::task::{Poll, Waker};

/// The result of an operation, on its way to the future that waits for it.
struct Reply<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// Returns a function that sends a result, and a future that completes with it.
pub(crate) fn reply<T>() -> (impl FnOnce(T), impl Future<Output = T>) {
    let reply = Rc::new(RefCell::new(Reply { value: None, waker: None }));
    let there = reply.clone();
    let send = move |value| {
        let mut reply = there.borrow_mut();
        reply.value = Some(value);
        if let Some(waker) = reply.waker.take() {
            waker.wake();
        }
    };
    let receive = poll_fn(move |context| {
        let mut reply = reply.borrow_mut();
        if let Some(value) = reply.value.take() {
            return Poll::Ready(value);
        }
        reply.waker = Some(context.waker().clone());
        Poll::Pending
    });
    (send, receive)
}
