//! Connections that have not said who they are: so many a core, and for so long. Whoever says it at once, as machines do, is
//! none for long, however many others come.

use crate::GREETING;
use alloc::collections::BTreeMap;
use core::cell::{Cell, RefCell};
use core::future::Future;
use isola_ebbs::{Ebb, Representative};
use isola_events::future::{AbortHandle, abortable};
use isola_events::timeout;

/// Most of them on a core. Where another comes, the oldest is let go of.
pub(crate) const MAX_STRANGERS: usize = 64;

static STRANGERS: Ebb<Strangers> = Ebb::new();

#[derive(Default)]
struct Strangers {
    /// In the order in which they came.
    greeting: RefCell<BTreeMap<u64, AbortHandle>>,
    come: Cell<u64>,
}

impl Representative for Strangers {
    fn create() -> Self {
        Self::default()
    }
}

/// What a connection says of itself; `None` where it took too long, or others came in its stead.
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
