//! Connections that have not greeted yet: a limited number per core, for a limited time. A machine greets at once, so
//! its connection is among them only briefly, however many others arrive.

use crate::GREETING;
use alloc::collections::BTreeMap;
use core::cell::{Cell, RefCell};
use core::future::Future;
use isola_ebbs::{Ebb, Representative};
use isola_events::future::{AbortHandle, abortable};
use isola_events::timeout;

/// The maximum number of them per core. A further one replaces the oldest.
pub(crate) const MAX_STRANGERS: usize = 64;

static STRANGERS: Ebb<Strangers> = Ebb::new();

#[derive(Default)]
struct Strangers {
    /// By order of arrival.
    greeting: RefCell<BTreeMap<u64, AbortHandle>>,
    come: Cell<u64>,
}

impl Representative for Strangers {
    fn create() -> Self {
        Self::default()
    }
}

/// Returns the greeting of a connection; `None` if it took too long, or newer connections replaced it.
pub(crate) async fn greeted<T>(greeting: impl Future<Output = T>) -> Option<T> {
    let (greeting, handle) = abortable(timeout(GREETING, greeting));
    let number = STRANGERS.come.get();
    STRANGERS.come.set(number + 1);
    let oldest = {
        let mut strangers = STRANGERS.greeting.borrow_mut();
        strangers.insert(number, handle);
        if strangers.len() > MAX_STRANGERS { strangers.pop_first() } else { None }
    };
    if let Some((_, oldest)) = oldest {
        oldest.abort();
    }
    let said = greeting.await;
    STRANGERS.greeting.borrow_mut().remove(&number);
    said.ok()?.ok()
}
