//! Being told that cores have come or gone, and that another processor core runs this core.

use crate::carrier::{FIRST, present_cores};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use isola_ebbs::current_core;
use isola_platform::CoreSet;

type CoresHandler = Rc<dyn Fn(CoreSet)>;
type CarriedHandler = Rc<dyn Fn()>;

/// Who is told on this core.
#[derive(Default)]
pub(crate) struct Presence {
    cores: RefCell<Vec<CoresHandler>>,
    carried: RefCell<Vec<CarriedHandler>>,
}

/// Has `handler` called, on the cell's first core, with the [cores that are present](crate::present_cores) whenever some
/// have come or gone: for who spreads something over them. For good.
///
/// # Panics
/// On another core.
pub fn on_cores_changed(handler: impl Fn(CoreSet) + 'static) {
    assert!(current_core() == FIRST, "who comes and goes is told on the first core: register there");
    crate::EVENTS.presence.cores.borrow_mut().push(Rc::new(handler));
}

/// Has `handler` called on this core when another processor core has begun to run it: for who has told a device where its
/// interrupts are to go. What came meanwhile may have gone to the one before. For good.
pub fn on_carried(handler: impl Fn() + 'static) {
    crate::EVENTS.presence.carried.borrow_mut().push(Rc::new(handler));
}

impl Presence {
    pub fn cores_changed(&self) {
        // Without a borrow: handlers may come in a handler.
        let handlers = self.cores.borrow().clone();
        handlers.into_iter().for_each(|handler| handler(present_cores()));
    }

    pub fn carried_by_another(&self) {
        let handlers = self.carried.borrow().clone();
        handlers.into_iter().for_each(|handler| handler());
    }
}
