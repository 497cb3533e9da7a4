//! Memory pressure: who can do without some of what it holds is called when memory runs low.
//!
//! The page allocator judges how short memory is ([`MemoryPressure`] says at which marks), and the platform has it say so
//! in the cell's report. The loop looks there in every pass, for one load; nobody is called from within an allocator. A
//! handler is called on the core that it was installed on, between events, for the activity that installed it:
//!
//! - when the level changes, for worse or for better;
//! - once more every [`AGAIN`], as long as memory is short and the core has something to do: who has given something
//!   back, and holds more since, is asked again.
//!
//! A halted core is woken when the level changes, by the core that first notices.

use crate::activity::{Accounting, Charge};
use crate::event_loop::EVENTS;
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_abi::report::{CorePhase, MemoryPressure};
use isola_ebbs::{CellEbb, Representative, current_core, platform};
use isola_platform::{CoreIndex, Instant};

static ANNOUNCED: CellEbb<Announced> = CellEbb::new();

/// While memory is short, handlers are called once more after this.
pub const AGAIN: Duration = Duration::from_millis(1);

/// The last level that all cores were woken for.
struct Announced {
    level: AtomicU32,
}

impl Representative for Announced {
    fn create() -> Self {
        Self { level: AtomicU32::new(MemoryPressure::None as u32) }
    }
}

type Handler = dyn Fn(MemoryPressure);

/// The handlers of a core.
pub(crate) struct PressureHandlers {
    /// How short memory is, in the cell's report.
    level: &'static AtomicU32,
    handlers: RefCell<Vec<(ActivityId, Weak<Handler>)>>,
    /// The level that the core knows of.
    seen: Cell<u32>,
    /// While memory is short: when handlers were last called.
    called: Cell<Option<Instant>>,
}

/// Keeps a handler installed for as long as it lives.
#[must_use = "the handler is removed when this is dropped"]
pub struct PressureHandler {
    _handler: Rc<Handler>,
}

/// Has `handler` called on this core when memory runs low and while it is, and when it no longer is, until the returned
/// value is dropped. It should give back what can be done without; it must not wait for anything.
pub fn on_memory_pressure(handler: impl Fn(MemoryPressure) + 'static) -> PressureHandler {
    let handler: Rc<Handler> = Rc::new(handler);
    let activity = EVENTS.current_tag().activity;
    EVENTS.pressure.handlers.borrow_mut().push((activity, Rc::downgrade(&handler)));
    PressureHandler { _handler: handler }
}

/// How short memory is now.
pub fn memory_pressure() -> MemoryPressure {
    MemoryPressure::from_u32(level().load(Ordering::Relaxed)).unwrap_or(MemoryPressure::None)
}

fn level() -> &'static AtomicU32 {
    &platform().report().memory.pressure
}

impl PressureHandlers {
    /// None yet.
    pub fn new() -> Self {
        Self { level: level(), handlers: RefCell::default(), seen: Cell::default(), called: Cell::default() }
    }

    /// What the loop does in every pass.
    #[inline]
    pub fn look(&self, accounting: &Accounting) {
        if !self.is_calm() {
            self.call(self.level.load(Ordering::Relaxed), accounting);
        }
    }

    /// Returns whether memory is not short and handlers know that.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.level.load(Ordering::Relaxed) | self.seen.get() == MemoryPressure::None as u32
    }

    #[cold]
    fn call(&self, level: u32, accounting: &Accounting) {
        let changed = self.seen.replace(level) != level;
        if changed {
            announce(level);
        }
        let now = crate::now();
        if !changed && self.called.get().is_some_and(|called| now.since(called) < AGAIN) {
            return;
        }
        self.called.set(Some(now));
        let pressure = MemoryPressure::from_u32(level).unwrap_or(MemoryPressure::None);
        let mut next = 0;
        // By index, and without a borrow across a call: handlers may come and go in a handler.
        loop {
            let handler = match self.handlers.borrow().get(next) {
                Some((activity, handler)) => (*activity, handler.upgrade()),
                None => return,
            };
            match handler {
                (activity, Some(handler)) => {
                    EVENTS.retag(activity);
                    handler(pressure);
                    accounting.switch(Charge::Loop);
                    next += 1;
                }
                (_, None) => drop(self.handlers.borrow_mut().remove(next)),
            }
        }
    }
}

/// Wakes all other cores that have joined, if nobody has for that level.
fn announce(level: u32) {
    if ANNOUNCED.level.swap(level, Ordering::Relaxed) != level {
        let here = current_core();
        let cores = (0..platform().descriptor().core_places).map(CoreIndex);
        cores.filter(|core| *core != here && has_joined(*core)).for_each(|core| platform().wake(core));
    }
}

/// Whether that core was ever needed: one that was not has no handlers, and sleeps on.
fn has_joined(core: CoreIndex) -> bool {
    let report = platform().report().cores.get(core.0 as usize);
    report.is_some_and(|core| core.phase.load(Ordering::Relaxed) != CorePhase::Asleep as u32)
}
