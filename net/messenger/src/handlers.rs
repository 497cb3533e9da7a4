//! The Ebbs that this machine serves.

use crate::MAX_CALLS;
use crate::frame::{MAX_PAYLOAD, Refusal};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::RefCell;
use core::future::Future;
use core::pin::Pin;
use isola_ebbs::{EbbId, MachineId};
use isola_iobuf::Chain;

/// A call from another machine or from this one.
#[derive(Debug)]
pub struct Call {
    /// The calling machine.
    pub from: MachineId,
    /// The request as received: hostile bytes.
    pub request: Chain,
}

type Answer = Pin<Box<dyn Future<Output = Result<Chain, Refusal>>>>;
type Handler = Rc<dyn Fn(Call) -> Answer>;

/// The handlers, by Ebb.
#[derive(Default)]
pub(crate) struct Handlers {
    handlers: RefCell<BTreeMap<EbbId, Handler>>,
    /// The number of calls in progress, by caller.
    in_progress: RefCell<BTreeMap<MachineId, usize>>,
}

impl Handlers {
    /// Adds a handler; false if the Ebb has one.
    pub fn add<F>(&self, ebb: EbbId, handler: impl Fn(Call) -> F + 'static) -> bool
    where
        F: Future<Output = Result<Chain, Refusal>> + 'static,
    {
        let mut handlers = self.handlers.borrow_mut();
        let free = !handlers.contains_key(&ebb);
        if free {
            handlers.insert(ebb, Rc::new(move |call| Box::pin(handler(call))));
        }
        free
    }

    /// Returns whether the Ebb has a handler.
    pub fn contains(&self, ebb: EbbId) -> bool {
        self.handlers.borrow().contains_key(&ebb)
    }

    /// Removes a handler. Its calls in progress continue.
    pub fn remove(&self, ebb: EbbId) {
        let removed = self.handlers.borrow_mut().remove(&ebb);
        drop(removed);
    }

    /// Answers a call.
    pub async fn answer(&self, ebb: EbbId, call: Call) -> Result<Chain, Refusal> {
        let handler = self.handlers.borrow().get(&ebb).cloned();
        let answer = handler.ok_or(Refusal::NoSuchEbb)?(call).await?;
        if answer.len() > MAX_PAYLOAD { Err(Refusal::TooLong) } else { Ok(answer) }
    }

    /// Counts a call of another machine; false if it has [`MAX_CALLS`] calls here already.
    pub fn begin(&self, from: MachineId) -> bool {
        let mut in_progress = self.in_progress.borrow_mut();
        let count = in_progress.entry(from).or_default();
        let room = *count < MAX_CALLS;
        *count += usize::from(room);
        room
    }

    /// Counts the end of a call.
    pub fn end(&self, from: MachineId) {
        let mut in_progress = self.in_progress.borrow_mut();
        if let Some(count) = in_progress.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                in_progress.remove(&from);
            }
        }
    }
}
