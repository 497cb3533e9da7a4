//! What a core does before it halts: what can wait until it has nothing else to do. Drivers that poll do so in events
//! ([`polling`](crate::polling)), as a core that is always busy never comes here.

use crate::event_loop::EVENTS;
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::RefCell;

/// What an idle handler found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Idle {
    /// Nothing, and it is told by an interrupt when there is something.
    MayHalt,
    /// Nothing, but the core must come back to it.
    KeepPolling,
    /// Work, which it did or queued.
    Worked,
}

type Handler = dyn Fn() -> Idle;

/// The idle handlers of a core.
#[derive(Default)]
pub(crate) struct IdleHandlers {
    handlers: RefCell<Vec<Weak<Handler>>>,
}

/// Keeps an idle handler installed for as long as it lives.
#[must_use = "the handler is removed when this is dropped"]
pub struct IdleHandler {
    _handler: Rc<Handler>,
}

/// Has `handler` called on this core whenever no event waits, until the returned value is dropped.
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

    /// Runs all handlers. Returns the busiest answer.
    #[inline(never)]
    pub fn run(&self) -> Idle {
        let mut answer = Idle::MayHalt;
        let mut next = 0;
        // By index, and without a borrow across a call: handlers may come and go in a handler.
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
