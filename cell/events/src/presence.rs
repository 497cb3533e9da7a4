//! Handlers for cores that join or leave, and for the transfer of a vcore to another core.

use crate::carrier::{FIRST, present_cores};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use isola_ebbs::current_core;
use isola_platform::CoreSet;

type CoresHandler = Rc<dyn Fn(CoreSet)>;
type CarriedHandler = Rc<dyn Fn()>;

/// The handlers of a core.
#[derive(Default)]
pub(crate) struct Presence {
    cores: RefCell<Vec<CoresHandler>>,
    carried: RefCell<Vec<CarriedHandler>>,
}

/// Installs a handler that runs on the cell's first core whenever cores join or leave, with the [cores that are
/// present](crate::present_cores): for code that spreads work over them. The handler stays until the cell ends.
///
/// # Panics
/// If called on another core.
pub fn on_cores_changed(handler: impl Fn(CoreSet) + 'static) {
    assert!(current_core() == FIRST, "who comes and goes is told on the first core: register there");
    crate::EVENTS.presence.cores.borrow_mut().push(Rc::new(handler));
}

/// Installs a handler that runs on this vcore after another core has begun to run it: for code that has programmed a
/// device's interrupt destination. Interrupts that arrived meanwhile may have gone to the previous core. The handler
/// stays until the cell ends.
pub fn on_carried(handler: impl Fn() + 'static) {
    crate::EVENTS.presence.carried.borrow_mut().push(Rc::new(handler));
}

impl Presence {
    pub fn cores_changed(&self) {
        // No borrow is held during the calls, as handlers may install handlers.
        let handlers = self.cores.borrow().clone();
        handlers.into_iter().for_each(|handler| handler(present_cores()));
    }

    pub fn carried_by_another(&self) {
        let handlers = self.carried.borrow().clone();
        handlers.into_iter().for_each(|handler| handler());
    }
}
