//! Interrupts as events: a handler runs in the loop, between events, with interrupts off, to completion.

use crate::activity::{Accounting, Charge, add};
use crate::event_loop::EVENTS;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::RefCell;
use isola_ebbs::platform;

/// The handlers of a core, by vector.
#[derive(Default)]
pub(crate) struct Handlers {
    by_vector: RefCell<BTreeMap<u8, Rc<dyn Fn()>>>,
}

/// Has `handler` called on this core after each arrival of the interrupt `vector`; several arrivals that come
/// close together may be one call. Replaces a handler that the vector had.
pub fn on_interrupt(vector: u8, handler: impl Fn() + 'static) {
    EVENTS.handlers.by_vector.borrow_mut().insert(vector, Rc::new(handler));
}

impl Handlers {
    /// Lets interrupts in, and runs the handlers of those that came. A vector without a handler is counted and
    /// otherwise ignored: it has done its work if it woke the core.
    pub fn run_pending(&self, accounting: &Accounting) {
        let pending = platform().take_interrupts();
        if pending.is_empty() {
            return;
        }
        accounting.switch(Charge::Interrupt);
        for vector in pending {
            add(&accounting.report().interrupts, 1);
            let handler = self.by_vector.borrow().get(&vector).cloned();
            if let Some(handler) = handler {
                handler();
            }
        }
        accounting.switch(Charge::Loop);
    }
}
