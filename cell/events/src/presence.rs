//! Handlers for cores that join or leave, and for the transfer of a vcore to another core.

use crate::vcore_runner::{FIRST, present_cores};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use isola_ebbs::current_core;
use isola_platform::CoreSet;

type CoresHandler = Rc<dyn Fn(CoreSet)>;
type VcoreMovedHandler = Rc<dyn Fn()>;

/// The handlers of a core.
#[derive(Default)]
pub(crate) struct Presence {
    cores: RefCell<Vec<CoresHandler>>,
    vcore_moved: RefCell<Vec<VcoreMovedHandler>>,
}

/// Installs a handler that runs on the cell's first core whenever cores join or leave, with the [cores that are
/// present](crate::present_cores): for code that spreads work over them. The handler stays until the cell ends.
///
/// # Panics
/// If called on another core.
pub fn on_cores_changed(handler: impl Fn(CoreSet) + 'static) {
    assert!(
        current_core() == FIRST,
        "changes of the cores are reported on the first core: install the handler there"
    );
    crate::EVENTS.presence.cores.borrow_mut().push(Rc::new(handler));
}

/// Installs a handler that runs on this vcore after another core has begun to run it: for code that has programmed a
/// device's interrupt destination. Interrupts that arrived meanwhile may have gone to the previous core. The handler
/// stays until the cell ends.
pub fn on_vcore_moved(handler: impl Fn() + 'static) {
    crate::EVENTS.presence.vcore_moved.borrow_mut().push(Rc::new(handler));
}

impl Presence {
    pub fn cores_changed(&self) {
        // No borrow is held during the calls, as handlers may install handlers.
        let handlers = self.cores.borrow().clone();
        handlers.into_iter().for_each(|handler| handler(present_cores()));
    }

    pub fn vcore_moved(&self) {
        let handlers = self.vcore_moved.borrow().clone();
        handlers.into_iter().for_each(|handler| handler());
    }
}
