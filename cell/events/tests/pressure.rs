//! Memory-pressure handlers run when memory runs low, on their own core, and again while it stays low.

use isola_abi::report::MemoryPressure::{self, Critical, Low, None};
use isola_ebbs::{current_core, platform};
use isola_events::pressure::REPEAT_INTERVAL;
use isola_events::{memory_pressure, on_memory_pressure, sleep, spawn_on};
use isola_platform::CoreIndex;
use isola_test_task::run_task_on;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Sets the level, as the page allocator does.
fn set(pressure: MemoryPressure) {
    platform().report().memory.pressure.store(pressure as u32, Ordering::Relaxed);
}

/// Lets the loop pass until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        sleep(Duration::from_micros(100)).await;
    }
}

#[test]
fn handlers_are_called_at_every_change_and_again_while_memory_is_short() {
    run_task_on(1, || async {
        let calls: Rc<RefCell<Vec<MemoryPressure>>> = Rc::default();
        let log = calls.clone();
        let handler = on_memory_pressure(move |pressure| log.borrow_mut().push(pressure));
        sleep(REPEAT_INTERVAL * 2).await;
        assert!(calls.borrow().is_empty(), "memory is not short");
        set(Low);
        assert_eq!(memory_pressure(), Low);
        assert!(calls.borrow().is_empty(), "handlers do not run within an event");
        until(|| calls.borrow().len() >= 3).await;
        assert!(calls.borrow().iter().all(|call| *call == Low));
        set(Critical);
        until(|| calls.borrow().last() == Some(&Critical)).await;
        set(None);
        until(|| calls.borrow().last() == Some(&None)).await;
        let count = calls.borrow().len();
        sleep(REPEAT_INTERVAL * 3).await;
        assert_eq!(calls.borrow().len(), count, "memory is no longer short");
        drop(handler);
        set(Low);
        sleep(REPEAT_INTERVAL * 2).await;
        assert_eq!(calls.borrow().len(), count, "the handler was removed");
    });
}

#[test]
fn a_handler_may_install_and_remove_handlers() {
    run_task_on(1, || async {
        let installed = Rc::new(RefCell::new(Vec::new()));
        let called = Rc::new(RefCell::new(0));
        let (handlers, inner) = (installed.clone(), called.clone());
        let first = on_memory_pressure(move |_| {
            let inner = inner.clone();
            let mut handlers = handlers.borrow_mut();
            handlers.clear();
            handlers.push(on_memory_pressure(move |_| *inner.borrow_mut() += 1));
        });
        set(Low);
        until(|| *called.borrow() > 2).await;
        drop(first);
    });
}

#[test]
fn halted_cores_are_woken_and_each_calls_its_own_handlers() {
    static CALLS: Mutex<Vec<(CoreIndex, MemoryPressure)>> = Mutex::new(Vec::new());
    run_task_on(3, || async {
        let called = |core, pressure| CALLS.lock().unwrap().contains(&(CoreIndex(core), pressure));
        for core in [1, 2] {
            spawn_on(CoreIndex(core), || {
                let handler = on_memory_pressure(|pressure| {
                    CALLS.lock().unwrap().push((current_core(), pressure));
                });
                std::mem::forget(handler);
            });
        }
        // Both cores are halted again by then.
        sleep(Duration::from_millis(50)).await;
        set(Low);
        until(|| called(1, Low) && called(2, Low)).await;
        set(None);
        until(|| called(1, None) && called(2, None)).await;
    });
    assert!(CALLS.lock().unwrap().iter().all(|(core, _)| *core != CoreIndex(0)));
}
