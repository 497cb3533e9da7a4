//! Memory pressure: handlers release memory when it runs low.
//!
//! The page allocator determines the level ([`MemoryPressure`] documents the bounds), and the platform publishes it in
//! the cell's report. The loop checks it there in every pass, with one load; allocators never call handlers. A handler
//! runs on the core on which it was installed, between events, for the activity that installed it:
//!
//! - when the level changes, in either direction;
//! - again every [`REPEAT_INTERVAL`] while memory is short and the core has work: a handler may meanwhile hold more
//!   memory than after its last call.
//!
//! A handler stops work that needs memory. What the cell could do without is freed by its holders, when the memory
//! scheduler asks them ([`crate::reclaim`]).
//!
//! At a change of level, the first core that notices it wakes the halted cores.

use crate::accounting::{Accounting, Charge};
use crate::event_loop::EVENTS;
use crate::reclaim;
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_abi::report::{CorePhase, MemoryPressure, PRESSURE_LEVEL};
use isola_ebbs::{CellEbb, Representative, current_core, platform};
use isola_platform::{CoreIndex, Instant};

static ANNOUNCED: CellEbb<AnnouncedLevel> = CellEbb::new();

/// Interval of repeated calls while memory is short.
pub const REPEAT_INTERVAL: Duration = Duration::from_millis(1);

/// The last level for which all cores were woken.
struct AnnouncedLevel {
    level: AtomicU32,
}

impl Representative for AnnouncedLevel {
    fn create() -> Self {
        Self { level: AtomicU32::new(MemoryPressure::None as u32) }
    }
}

type Handler = dyn Fn(MemoryPressure);

/// The handlers of a core.
pub(crate) struct PressureHandlers {
    /// The pressure level, in the cell's report, and a flag for the memory scheduler.
    level: &'static AtomicU32,
    handlers: RefCell<Vec<(ActivityId, Weak<Handler>)>>,
    /// The level for which the handlers were last called.
    seen: Cell<u32>,
    /// The time of the handlers' last call.
    called: Cell<Option<Instant>>,
}

/// Keeps a handler installed until dropped.
#[must_use = "the handler is removed when this is dropped"]
pub struct PressureHandler {
    _handler: Rc<Handler>,
}

/// Installs a handler that runs on this core when memory runs low, repeatedly while it is low, and when it no longer
/// is, until the returned value is dropped. The handler should release dispensable memory, and must not wait.
pub fn on_memory_pressure(handler: impl Fn(MemoryPressure) + 'static) -> PressureHandler {
    let handler: Rc<Handler> = Rc::new(handler);
    let activity = EVENTS.current_tag().activity;
    EVENTS.pressure.handlers.borrow_mut().push((activity, Rc::downgrade(&handler)));
    PressureHandler { _handler: handler }
}

/// Returns the current pressure level.
pub fn memory_pressure() -> MemoryPressure {
    MemoryPressure::from_u32(level().load(Ordering::Relaxed)).unwrap_or(MemoryPressure::None)
}

fn level() -> &'static AtomicU32 {
    &platform().report().memory.pressure
}

impl PressureHandlers {
    /// Creates an empty set of handlers.
    pub fn new() -> Self {
        Self { level: level(), handlers: RefCell::default(), seen: Cell::default(), called: Cell::default() }
    }

    /// Checks the level, in every pass of the loop.
    #[inline]
    pub fn check(&self, accounting: &Accounting) {
        if !self.is_calm() {
            self.check_word(self.level.load(Ordering::Relaxed), accounting);
        }
    }

    /// Returns whether memory is not short and the handlers have been called for that.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.level.load(Ordering::Relaxed) | self.seen.get() == MemoryPressure::None as u32
    }

    #[cold]
    fn check_word(&self, word: u32, accounting: &Accounting) {
        let level = word & PRESSURE_LEVEL;
        if word != MemoryPressure::None as u32 {
            reclaim::look(word);
        }
        if level | self.seen.get() != MemoryPressure::None as u32 {
            self.call(level, accounting);
        }
    }

    fn call(&self, level: u32, accounting: &Accounting) {
        let changed = self.seen.replace(level) != level;
        if changed {
            announce(level);
        }
        let now = crate::now();
        if !changed && self.called.get().is_some_and(|called| now.since(called) < REPEAT_INTERVAL) {
            return;
        }
        self.called.set(Some(now));
        let pressure = MemoryPressure::from_u32(level).unwrap_or(MemoryPressure::None);
        let mut next = 0;
        // Iterates by index and holds no borrow across a call, as handlers may install or remove handlers.
        loop {
            let handler = match self.handlers.borrow().get(next) {
                Some((activity, handler)) => (*activity, handler.upgrade()),
                None => return,
            };
            match handler {
                (activity, Some(handler)) => {
                    EVENTS.retag(activity);
                    handler(pressure);
                    accounting.end_handlers();
                    accounting.switch(Charge::Loop);
                    next += 1;
                }
                (_, None) => drop(self.handlers.borrow_mut().remove(next)),
            }
        }
    }
}

/// Wakes all other cores that have joined, unless another core has done so for this level.
fn announce(level: u32) {
    if ANNOUNCED.level.swap(level, Ordering::Relaxed) != level {
        let here = current_core();
        let cores = (0..platform().descriptor().core_slot_count).map(CoreIndex);
        cores.filter(|core| *core != here && has_joined(*core)).for_each(|core| platform().wake(core));
    }
}

/// Returns whether that core was ever needed. Other cores have no handlers and stay asleep.
fn has_joined(core: CoreIndex) -> bool {
    let report = platform().report().cores.get(core.0 as usize);
    report.is_some_and(|core| core.phase.load(Ordering::Relaxed) != CorePhase::Asleep as u32)
}
