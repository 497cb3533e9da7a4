//! Alarms on a core whose hardware timer disagrees with the cycle counter.
#![cfg(not(loom))]

use isola_ebbs::{current_core, platform};
use isola_events::{exit, run, sleep, spawn_on, spawn_task, spawn_task_on};
use isola_hosted::Settings;
use isola_platform::CoreIndex;
use std::time::Duration;

#[test]
fn an_alarm_rings_although_the_hardware_timer_fired_early() {
    let settings = Settings { cores: 2, ..Settings::default() };
    let codes = isola_hosted::run(settings, Vec::new(), |_| {
        if current_core() == CoreIndex(0) {
            spawn_task(async {
                sleep(Duration::from_millis(400)).await;
                exit(0);
            })
            .detach();
            spawn_task_on(CoreIndex(1), || async {
                sleep(Duration::from_millis(300)).await;
                // Simulates a timer that has fired: it is no longer armed, and the core is running.
                spawn_on(CoreIndex(0), || platform().arm_timer(None));
                sleep(Duration::from_secs(20)).await;
                exit(1);
            });
        }
        run()
    });
    assert_eq!(codes, [0, 0], "a core halts without an armed timer, and its alarm never rings");
}
