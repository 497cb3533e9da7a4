//! A test image: an application that replaces Isola's event manager, timers and console by its own, and prints their
//! effects.
#![no_std]
#![no_main]

mod console;
mod list;
mod urgent_first;

use core::time::Duration;
use isola::console::CONSOLE;
use isola::ebbs::{CoreIndex, EbbInUse};
use isola::events::{
    EVENTS, Event, EventLoop, TIMERS, Timers, elsewhere, now, sleep_until, spawn_task, yield_now,
};
use isola::future::join_all;
use isola::prelude::*;
use isola::sync::Mutex;
use list::List;
use urgent_first::{URGENT, UrgentFirst};

isola::app!(main, components: components);

/// The completed events and alarms, in order.
static DONE: Mutex<String> = Mutex::new(String::new());

fn components() -> Result<(), EbbInUse> {
    EVENTS.replace(|| EventLoop::with_queue(UrgentFirst::default()))?;
    TIMERS.replace(|| Timers::with_alarms(List::default()))?;
    CONSOLE.replace(|| Box::new(console::Numbered::default()))
}

async fn main(_: Arguments) -> ExitCode {
    for core in 0..isola::core_count() as u32 {
        println!("core {core}: events {}", elsewhere(CoreIndex(core), events).await);
        println!("core {core}: alarms {}", elsewhere(CoreIndex(core), alarms).await);
    }
    ExitCode::SUCCESS
}

/// Creates four events, of which the last two are urgent.
async fn events() -> String {
    let make = |event: Event, name: char| event.spawn(move || DONE.lock().push(name));
    make(Event::new(), 'a');
    make(Event::new(), 'b');
    make(Event::new().resource(URGENT), 'c');
    make(Event::new().resource(URGENT), 'd');
    yield_now().await;
    core::mem::take(&mut DONE.lock())
}

/// Begins four sleeps that end in another order.
async fn alarms() -> String {
    // All are set long before the first is due, even on a busy machine. Each is a task of its own: if several are due
    // at once, they run in the order in which they were woken.
    let begin = now() + Duration::from_millis(200);
    let sleeps = [(3, 'w'), (1, 'x'), (4, 'y'), (2, 'z')].map(|(ms, name)| {
        spawn_task(async move {
            sleep_until(begin + Duration::from_millis(ms)).await;
            DONE.lock().push(name);
        })
    });
    join_all(sleeps).await;
    core::mem::take(&mut DONE.lock())
}
