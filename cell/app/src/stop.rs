//! The supervisor's requests: to stop, and queries of the host tool.

use crate::{grid_query, println};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_abi::descriptor::{REQUEST_VECTOR, Request};
use isola_ebbs::{Ebb, Representative, platform};
use isola_events::exit;
use isola_events::interrupt::on_interrupt;

static STOP: Ebb<Stop> = Ebb::new();

/// The tasks on the first core that wait for a stop request.
#[derive(Default)]
struct Stop {
    waited_for: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Representative for Stop {
    fn create() -> Self {
        Self::default()
    }
}

/// Installs the handler of the supervisor's requests, on the first core.
pub(crate) fn listen() {
    let listening = on_interrupt(REQUEST_VECTOR, || {
        isola_net::query::answer_new(grid_query::answer);
        if platform().request() != Request::Stop {
            return;
        }
        if STOP.waited_for.get() {
            STOP.waiting.take().into_iter().for_each(Waker::wake);
        } else {
            exit(0);
        }
    });
    match listening {
        Ok(interrupt) => interrupt.keep(),
        Err(error) => println!("requests of the supervisor: {error}"),
    }
}

/// Completes when the supervisor requests the cell to stop; the application then finishes its work and returns. For
/// tasks on the first core.
///
/// If no task has awaited this when the request comes, the cell exits at once with code 0.
pub async fn stop_requested() {
    poll_fn(|context| {
        STOP.waited_for.set(true);
        if platform().request() == Request::Stop {
            return Poll::Ready(());
        }
        STOP.waiting.borrow_mut().push(context.waker().clone());
        Poll::Pending
    })
    .await
}
