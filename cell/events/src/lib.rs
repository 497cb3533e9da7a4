//! The one unit of work: the event, on non-preemptive per-core loops (EbbRT 2.3 and 3.2.1; Omni-kernel's
//! messages; IncludeOS's tasks).
//!
//! | module | what |
//! |---|---|
//! | `carrier`, `presence` | processor cores that come and go while the cell runs, and being told of it |
//! | [`elsewhere()`] | a future of another core, awaited here |
//! | [`event`] | what an event is: a closure or a task's poll, at a resource, for an activity |
//! | [`alarms`], [`queue`] | what a core keeps alarms and events in, which an application can replace |
//! | [`event_loop`] | the loop of a core: interrupts, one event, idle handlers, halt |
//! | [`mailbox`] | events from other cores |
//! | [`overload`] | what happens where more events are made than run |
//! | [`mod@parallel`] | fork-join over the cell's cores |
//! | [`topology`] | where these stand, and in which order work is spread over them |
//! | [`pressure`] | being told that memory runs low |
//! | [`task`] | `async` on events |
//! | [`future`] | futures together: joins, races, errors that flow to the first handler |
//! | [`timer`] | alarms and sleeping, without any periodic tick |
//! | [`interrupt`] | interrupts as events |
//! | [`polling`] | interrupts while they are few, polling while there is much to find |
//! | [`quiescence`] | work that waits until no event that runs now still does |
//! | [`watchdog`] | events that run for too long are named |
//! | [`idle`] | what a core does before it halts |
//! | [`doze`] | how a halted core is woken without an interrupt |
//! | [`activity`] | whom work is charged to, and the cycle accounting at the boundary between events |
//!
//! An event runs to completion, or to the next `await` of its task, on the core that it was made for. Nothing
//! else runs there meanwhile: per-core state needs no locks and no atomics. An event that runs for long holds
//! up all others of its core.
//!
//! What is not here: schedulers between resources and activities (every core's queue is first in, first out unless the
//! application names another), and the ledgers that are built on the counters of [`activity`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod activity;
pub mod alarms;
mod carrier;
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
pub mod queue;
mod queueing;
pub mod quiescence;
mod room;
mod sync;
pub mod task;
pub mod timer;
pub mod topology;
pub mod watchdog;

pub use activity::{current_activity, end_activity, register_activity};
pub use carrier::{give_notice, present_cores, wake_all};
pub use elsewhere::elsewhere;
pub use event::{
    Event, EventTag, Label, Placement, QueuedEvent, ResourceId, StaticEvent, current_tag, spawn, spawn_on,
};
pub use event_loop::{EVENTS, EventLoop, exit, run};
pub use isola_platform::Instant;
pub use overload::{Overloaded, room};
pub use parallel::parallel;
pub use presence::{on_carried, on_cores_changed};
pub use pressure::{memory_pressure, on_memory_pressure};
pub use queueing::last_look;
pub use quiescence::defer;
pub use task::{CancelOnDrop, Task, spawn_task, spawn_task_for, spawn_task_on, start_task, yield_now};
pub use timer::{Alarm, TIMERS, Timers, now, sleep, sleep_until, timeout};
