//! Events on non-preemptive per-core loops (EbbRT 2.3 and 3.2.1; Omni-kernel's messages; IncludeOS's tasks). The event
//! is the one unit of work.
//!
//! | module | contents |
//! |---|---|
//! | `vcore_runner`, `presence` | vcores on cores that join and leave while the cell runs; handlers for these changes |
//! | [`elsewhere()`] | a future that runs on another core and is awaited on this one |
//! | [`event`] | events: a closure or a poll of a task, at a resource, for an activity |
//! | [`alarms`], [`queue`] | the containers of a core's alarms and events, which an application can replace |
//! | [`event_loop`] | the loop of a core: interrupts, one event, idle handlers, halt |
//! | [`mailbox`] | events from other cores |
//! | [`processor`] | the division of the cores' time among activities, by a policy of the grid |
//! | [`overload`] | bounds and back-pressure if events are created faster than they run |
//! | [`mod@parallel`] | fork-join over the cell's cores |
//! | [`topology`] | the order in which work is spread over siblings, caches and nodes |
//! | [`pressure`] | memory-pressure handlers |
//! | [`mod@reclaim`] | the memory scheduler: which activity gives memory up, and how much |
//! | [`task`] | `async` on events |
//! | [`future`] | combinators: joins, races, errors that propagate to the first handler |
//! | [`timer`] | alarms and sleeping, without a periodic tick |
//! | [`interrupt`] | interrupts as events |
//! | [`polling`] | adaptive polling: interrupts at low rates, polling at high rates |
//! | [`quiescence`] | work deferred until all events that now run have ended |
//! | [`watchdog`] | reports of events that run too long |
//! | [`yielding`] | long computations that give way to waiting work |
//! | [`profile`] | samples of what each core executes, for the host tool |
//! | [`trace`] | periods of what each core does, for the host tool |
//! | [`idle`] | handlers that run before a core halts |
//! | [`doze`] | wake-up of a halted core by a memory write |
//! | [`activity`] | activities, and the cycle accounting at the boundary between events |
//!
//! An event runs to completion, or to the next `await` of its task, on the core for which it was created. No other
//! event runs there meanwhile, so per-core state needs neither locks nor atomic operations. A long event delays all
//! others of its core, so a long computation calls [`yield_if_needed`].
//!
//! In this crate a *core* is a vcore (an event loop with its per-core state) wherever the difference does not matter.
//! The modules `vcore_runner` and `event_loop` distinguish the two.
//!
//! **Circles of modules.** [`EventLoop`] has all state of a core, and most modules define a part of it with the part's
//! operations. These reach the running core's part by way of [`EVENTS`], without a handle from the caller. For that reason
//! `event_loop` and its parts import from each other. Each part can be read alone, with `event_loop` as the list of parts.
//!
//! Not here: the policies themselves, which are those of `isola-schedulers`, and ledgers, which are built on the counters
//! of [`activity`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod accounting;
pub mod activity;
pub mod affinity;
pub mod alarms;
pub mod doze;
mod elsewhere;
pub mod event;
pub mod event_loop;
pub mod future;
mod grace;
mod halt;
pub mod idle;
pub mod interrupt;
pub mod mailbox;
pub mod overload;
pub mod parallel;
pub mod polling;
mod presence;
pub mod pressure;
pub mod processor;
pub mod profile;
pub mod program;
pub mod queue;
mod queueing;
pub mod quiescence;
pub mod reclaim;
mod room;
mod scheduled_queue;
mod sync;
pub mod task;
pub mod timer;
pub mod topology;
pub mod trace;
mod vcore_runner;
pub mod watchdog;
pub mod yielding;

pub use activity::{current_activity, end_activity, register_activity, register_activity_under};
pub use elsewhere::elsewhere;
pub use event::{
    Event, EventTag, Label, Placement, QueuedEvent, ResourceId, StaticEvent, current_tag, spawn, spawn_on,
};
pub use event_loop::{EVENTS, EventLoop, exit, run};
pub use isola_platform::Instant;
pub use overload::{Overloaded, room};
pub use parallel::parallel;
pub use presence::{on_cores_changed, on_vcore_moved};
pub use pressure::{memory_pressure, on_memory_pressure};
pub use queueing::last_arrival_check;
pub use quiescence::defer;
pub use task::{CancelOnDrop, Task, spawn_task, spawn_task_for, spawn_task_on, start_task, yield_now};
pub use timer::{Alarm, TIMERS, Timers, now, sleep, sleep_until, timeout};
pub use vcore_runner::{give_notice, halted_cores, present_cores, wake_all};
pub use yielding::{has_arrivals, must_yield, yield_if_needed};
