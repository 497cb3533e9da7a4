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
pub(crate) const MAX_PENDING_GREETINGS: usize = 64;

static GREETINGS: Ebb<PendingGreetings> = Ebb::new();

#[derive(Default)]
struct PendingGreetings {
    /// By order of arrival.
    greeting: RefCell<BTreeMap<u64, AbortHandle>>,
    next_number: Cell<u64>,
}

impl Representative for PendingGreetings {
    fn create() -> Self {
        Self::default()
    }
}

/// Returns the greeting of a connection; `None` if it took too long, or newer connections replaced it.
pub(crate) async fn receive_in_time<T>(greeting: impl Future<Output = T>) -> Option<T> {
    let (greeting, handle) = abortable(timeout(GREETING, greeting));
    let number = GREETINGS.next_number.get();
    GREETINGS.next_number.set(number + 1);
    let oldest = {
        let mut pending = GREETINGS.greeting.borrow_mut();
        pending.insert(number, handle);
        if pending.len() > MAX_PENDING_GREETINGS { pending.pop_first() } else { None }
    };
    if let Some((_, oldest)) = oldest {
        oldest.abort();
    }
    let outcome = greeting.await;
    GREETINGS.greeting.borrow_mut().remove(&number);
    outcome.ok()?.ok()
}
