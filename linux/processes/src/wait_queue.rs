//! Tasks that wait for a condition, on any core.

use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use spin::Mutex;

/// The tasks that wait for changes of a state.
#[derive(Debug, Default)]
pub struct WaitQueue {
    wakers: Mutex<Vec<Waker>>,
}

impl WaitQueue {
    /// Waits until `check` returns a value. It is called again after each [`Self::wake_all`].
    pub async fn wait_until<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| {
            if let Some(value) = check() {
                return Poll::Ready(value);
            }
            {
                let mut wakers = self.wakers.lock();
                if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                    wakers.push(context.waker().clone());
                }
            }
            // The state may have changed before the waker was in the list.
            check().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Makes all waiting tasks check their conditions.
    pub fn wake_all(&self) {
        let wakers = core::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use core::cell::Cell;
    use core::future::Future;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use core::task::Context;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_is_woken_once_for_each_change_it_waits_for() {
        let (queue, state, counter) = (WaitQueue::default(), Cell::new(0), Arc::new(Counter::default()));
        let waker = Waker::from(counter.clone());
        let mut context = Context::from_waker(&waker);
        let mut wait = Box::pin(queue.wait_until(|| (state.get() == 2).then_some("done")));
        assert!(
            wait.as_mut().poll(&mut context).is_pending() && wait.as_mut().poll(&mut context).is_pending()
        );
        state.set(1);
        queue.wake_all();
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        assert!(wait.as_mut().poll(&mut context).is_pending());
        state.set(2);
        queue.wake_all();
        queue.wake_all();
        assert_eq!(counter.0.load(Ordering::Relaxed), 2);
        assert_eq!(wait.as_mut().poll(&mut context), Poll::Ready("done"));
    }
}
