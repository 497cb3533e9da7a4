//! Idle handlers: work that waits until a core has nothing else to do, before it halts. Drivers poll in events instead
//! ([`polling`](crate::polling)), as a core that is always busy never runs its idle handlers.

use crate::event_loop::EVENTS;
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::RefCell;

/// The result of an idle handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Idle {
    /// There is no work, and an interrupt announces the next.
    MayHalt,
    /// There is no work, but the core must call the handler again.
    KeepPolling,
    /// The handler did or queued work.
    Worked,
}

type Handler = dyn Fn() -> Idle;

/// The idle handlers of a core.
#[derive(Default)]
pub(crate) struct IdleHandlers {
    handlers: RefCell<Vec<Weak<Handler>>>,
}

/// Keeps an idle handler installed until dropped.
#[must_use = "the handler is removed when this is dropped"]
pub struct IdleHandler {
    _handler: Rc<Handler>,
}

/// Installs a handler that runs on this core whenever no event waits, until the returned value is dropped.
pub fn on_idle(handler: impl Fn() -> Idle + 'static) -> IdleHandler {
    let handler: Rc<Handler> = Rc::new(handler);
    EVENTS.idle.handlers.borrow_mut().push(Rc::downgrade(&handler));
    IdleHandler { _handler: handler }
}

impl IdleHandlers {
    /// Returns whether handlers may be installed.
    #[inline]
    pub fn has_any(&self) -> bool {
        !self.handlers.borrow().is_empty()
    }

    /// Runs all handlers. Returns the busiest result.
    #[inline(never)]
    pub fn run(&self) -> Idle {
        let mut answer = Idle::MayHalt;
        let mut next = 0;
        // Iterates by index and holds no borrow across a call, as handlers may install or remove handlers.
        loop {
            let handler = match self.handlers.borrow().get(next) {
                Some(handler) => handler.upgrade(),
                None => break,
            };
            match handler {
                Some(handler) => {
                    answer = answer.max(handler());
                    next += 1;
                }
                None => drop(self.handlers.borrow_mut().remove(next)),
            }
        }
        answer
    }
}
