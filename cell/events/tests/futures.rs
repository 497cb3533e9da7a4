//! Futures from an application's view, and the number of events that they cost.

use isola_events::future::{Either, TryFutureExt, join, join_all, ready, select, try_join};
use isola_events::{sleep, spawn, spawn_task, start_task, yield_now};
use isola_test_task::run_task;
use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Returns the number of events charged to the application on this core so far.
fn events() -> u64 {
    isola_ebbs::platform().ledger().core(0)[0].events.load(Ordering::Relaxed)
}

#[test]
fn ready_futures_continue_without_an_event() {
    run_task(|| async {
        let before = events();
        let mut sum = 0;
        for number in 0..100 {
            sum += ready(number).await;
            sum += start_task(async move { ready(number).await }).await;
        }
        assert_eq!((sum, events() - before), (9900, 0));
        for number in 0..100 {
            sum += spawn_task(async move { number }).await;
        }
        assert_eq!((sum, events() - before), (14850, 200), "a spawned task costs two events");
    });
}

#[test]
fn a_started_task_runs_before_its_creator_continues_and_may_await_later() {
    run_task(|| async {
        let steps = Rc::new(RefCell::new(Vec::new()));
        let log = steps.clone();
        let task = start_task(async move {
            log.borrow_mut().push("first poll");
            yield_now().await;
            log.borrow_mut().push("second poll");
        });
        steps.borrow_mut().push("creator");
        task.await;
        assert_eq!(*steps.borrow(), ["first poll", "creator", "second poll"]);
    });
}

#[test]
fn a_task_woken_in_its_own_first_poll_is_polled_again() {
    run_task(|| async {
        // Each level is started within the poll of the level above.
        fn nested(levels: u32) -> std::pin::Pin<Box<dyn Future<Output = u32>>> {
            Box::pin(async move {
                yield_now().await;
                if levels == 0 { 0 } else { 1 + start_task(nested(levels - 1)).await }
            })
        }
        assert_eq!(start_task(nested(50)).await, 50);
    });
}

#[test]
fn joins_wait_for_all_futures_and_races_for_the_first() {
    async fn after<T>(ms: u64, value: T) -> T {
        sleep(Duration::from_millis(ms)).await;
        value
    }
    run_task(|| async {
        assert_eq!(join(after(3, 'a'), after(1, 'b')).await, ('a', 'b'));
        let all = (0..50).map(|number| after(number % 7, number));
        assert_eq!(join_all(all).await, (0..50).collect::<Vec<_>>());
        let race = select(Box::pin(after(1, "fast")), Box::pin(pending::<&str>())).await;
        assert!(matches!(race, Either::Left(("fast", _))));
    });
}

#[test]
fn an_error_propagates_to_the_first_handler() {
    #[derive(Debug, PartialEq)]
    struct Refused;
    async fn address(known: bool) -> Result<u32, Refused> {
        yield_now().await;
        if known { Ok(7) } else { Err(Refused) }
    }
    async fn send(known: bool) -> Result<u32, Refused> {
        let address = address(known).await?;
        Ok(address * 2)
    }
    run_task(|| async {
        let handled = Rc::new(Cell::new(0));
        let count = handled.clone();
        let value = send(false)
            .and_then(|sent| async move { Ok::<_, Refused>(sent + 1) })
            .or_else(|Refused| async move {
                count.set(count.get() + 1);
                Ok::<_, Refused>(0)
            })
            .and_then(|value| ready(Ok(value + 5)));
        assert_eq!((value.await, handled.get()), (Ok(5), 1));
        assert_eq!(send(true).await, Ok(14));
        // The other future, which would never complete, is dropped at the first error.
        assert_eq!(try_join(pending::<Result<(), Refused>>(), send(false)).await, Err(Refused));
    });
}

#[test]
fn dropping_cancel_on_drop_ends_the_task_and_awaiting_it_returns_the_output() {
    struct Dropped(Rc<Cell<bool>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    run_task(|| async {
        let ended = Rc::new(Cell::new(false));
        let guard = Dropped(ended.clone());
        let tied = start_task(async move {
            let _guard = guard;
            pending::<()>().await;
        })
        .cancel_on_drop();
        spawn(move || drop(tied));
        yield_now().await;
        assert!(ended.get(), "the task outlives its guard");
        assert_eq!(spawn_task(async { 6 * 7 }).cancel_on_drop().await, 42);
    });
}
