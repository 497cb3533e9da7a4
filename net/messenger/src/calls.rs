//! The calls of this machine that wait for their answers.

use crate::frame::Refusal;
use crate::{CallError, MachineId};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use isola_iobuf::Chain;
use slab::Slab;

/// The waiting calls.
#[derive(Default)]
pub(crate) struct Calls {
    waiting: RefCell<Slab<Waiting>>,
    serial: Cell<u32>,
}

struct Waiting {
    /// Distinguishes the call from an earlier one with the same slab index.
    serial: u32,
    to: MachineId,
    outcome: Option<Result<Chain, Refusal>>,
    waker: Option<Waker>,
}

/// Returns a call's number for frames.
fn number(index: usize, serial: u32) -> u64 {
    u64::from(serial) << 32 | index as u64
}

impl Calls {
    /// Begins a call.
    pub fn begin(&self, to: MachineId) -> PendingCall<'_> {
        let serial = self.serial.get().wrapping_add(1);
        self.serial.set(serial);
        let index = self.waiting.borrow_mut().insert(Waiting { serial, to, outcome: None, waker: None });
        PendingCall { calls: self, index, serial }
    }

    /// Completes a call if it still waits and `from` is the machine that was called.
    pub fn complete(&self, from: MachineId, call: u64, outcome: Result<Chain, Refusal>) {
        let mut waiting = self.waiting.borrow_mut();
        let Some(entry) = waiting.get_mut(call as u32 as usize) else { return };
        if number(call as u32 as usize, entry.serial) != call || entry.to != from || entry.outcome.is_some() {
            return;
        }
        entry.outcome = Some(outcome);
        let waker = entry.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Completes all calls to machines for which `is_gone` returns true, as refused with [`Refusal::Disconnected`].
    pub fn fail(&self, is_gone: impl Fn(MachineId) -> bool) {
        let mut wakers = Vec::new();
        for (_, entry) in self.waiting.borrow_mut().iter_mut() {
            if is_gone(entry.to) && entry.outcome.is_none() {
                entry.outcome = Some(Err(Refusal::Disconnected));
                wakers.extend(entry.waker.take());
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A waiting call. Dropping it discards the answer.
pub(crate) struct PendingCall<'a> {
    calls: &'a Calls,
    index: usize,
    serial: u32,
}

impl PendingCall<'_> {
    /// Returns the call's number.
    pub fn number(&self) -> u64 {
        number(self.index, self.serial)
    }
}

impl Future for PendingCall<'_> {
    type Output = Result<Chain, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut waiting = self.calls.waiting.borrow_mut();
        let Some(entry) = waiting.get_mut(self.index) else {
            return Poll::Ready(Err(CallError::Refused(Refusal::Disconnected)));
        };
        match entry.outcome.take() {
            Some(outcome) => Poll::Ready(outcome.map_err(CallError::Refused)),
            None => {
                entry.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.calls.waiting.borrow_mut().try_remove(self.index);
    }
}
