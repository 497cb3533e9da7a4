//! Alarms and sleeps.

use crate::{Outcome, cores};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::pending;
use core::time::Duration;
use isola_events::{Alarm, now, parallel, sleep, timeout};

const MS: Duration = Duration::from_millis(1);

pub async fn alarms_ring_in_the_order_of_their_deadlines() -> Outcome {
    let rung = Rc::new(RefCell::new(Vec::new()));
    // One event sets all alarms, so that none rings before the last is set, even on a slow machine.
    let start = now();
    let alarms = [7, 3, 5, 1, 9].map(|ms| {
        let rung = rung.clone();
        let alarm = Alarm::new(move || rung.borrow_mut().push(ms));
        alarm.set(Some(start + ms * MS));
        alarm
    });
    while alarms.iter().any(Alarm::is_set) {
        sleep(MS).await;
    }
    ensure!(*rung.borrow() == [1, 3, 5, 7, 9], "{:?}", rung.borrow());
    Ok(())
}

pub async fn a_sleep_is_never_short() -> Outcome {
    for duration in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(300), 3 * MS] {
        let start = now();
        sleep(duration).await;
        let slept = now() - start;
        ensure!(slept >= duration, "{slept:?} instead of {duration:?}");
    }
    Ok(())
}

pub async fn an_alarm_that_is_unset_does_not_ring() -> Outcome {
    let rung = Rc::new(Cell::new(0));
    let counted = rung.clone();
    let alarm = Alarm::new(move || counted.set(counted.get() + 1));
    alarm.set(Some(now() + 2 * MS));
    ensure!(alarm.is_set(), "it is not set");
    alarm.set(None);
    sleep(5 * MS).await;
    ensure!(rung.get() == 0 && !alarm.is_set(), "it rang {} times", rung.get());
    alarm.set(Some(now() + MS));
    sleep(5 * MS).await;
    ensure!(rung.get() == 1 && !alarm.is_set(), "it rang {} times", rung.get());
    Ok(())
}

pub async fn a_timeout_ends_a_future_that_takes_too_long() -> Outcome {
    let late = timeout(2 * MS, pending::<()>()).await;
    ensure!(late.is_err(), "a future that never completes has completed");
    let early = timeout(Duration::from_secs(3_600), async { 5 }).await;
    ensure!(early == Ok(5), "a future that is ready: {early:?}");
    Ok(())
}

pub async fn alarms_ring_on_every_core() -> Outcome {
    let slept = parallel(cores(), |part| async move {
        let start = now();
        for _ in 0..3 {
            sleep((1 + part as u32 % 3) * MS).await;
        }
        now() - start
    });
    for (core, slept) in slept.await.into_iter().enumerate() {
        ensure!(slept >= 3 * MS, "core {core} slept {slept:?}");
    }
    Ok(())
}
