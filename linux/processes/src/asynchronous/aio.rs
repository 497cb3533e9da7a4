//! Contexts of Linux AIO: queues of the events of operations that `io_submit` has begun.
//!
//! A context has the address of a page in the program, as libaio reads it. The page is zeros, so that libaio takes events by
//! `io_getevents` and not from a ring in that page.

use super::in_flight::{End, InFlight};
use super::operation::{Operation, Submitter};
use super::{once, signal};
use crate::Errno;
use crate::environment::{TaskMaker, TaskPlacement};
use crate::wait_queue::WaitQueue;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_files::OpenFile;
use spin::Mutex;

/// The most events of all contexts of a process (`/proc/sys/fs/aio-max-nr`).
pub const MOST_AIO_EVENTS: u32 = 65_536;

/// The length of `struct io_event`.
pub const EVENT_LEN: usize = 32;

/// The contexts of a process, by their addresses.
#[derive(Default)]
pub struct AioContexts(Mutex<BTreeMap<u64, Arc<AioContext>>>);

/// A context.
pub struct AioContext {
    /// The most events that are not taken, and operations that are not complete.
    most: u32,
    state: Mutex<State>,
    changes: WaitQueue,
}

#[derive(Default)]
struct State {
    events: VecDeque<[u8; EVENT_LEN]>,
    in_flight: Vec<Arc<InFlight>>,
    is_closed: bool,
}

/// An operation that `io_submit` begins.
pub struct AioRequest {
    /// The program's value.
    pub data: u64,
    /// The address of its `struct iocb`.
    pub address: u64,
    /// What it does.
    pub operation: Operation,
    /// The event counter that is signalled at its end.
    pub counter: Option<Arc<OpenFile>>,
}

impl AioContexts {
    /// Returns whether a context for so many events more is within the limit.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`].
    pub fn check(&self, most: u32) -> Result<(), Errno> {
        let used: u64 = self.0.lock().values().map(|context| u64::from(context.most)).sum();
        if used + u64::from(most) > MOST_AIO_EVENTS.into() { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// Adds a context.
    pub fn add(&self, address: u64, most: u32) {
        let (state, changes) = (Mutex::default(), WaitQueue::default());
        self.0.lock().insert(address, Arc::new(AioContext { most, state, changes }));
    }

    /// Returns a context.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn get(&self, address: u64) -> Result<Arc<AioContext>, Errno> {
        self.0.lock().get(&address).cloned().ok_or(Errno::EINVAL)
    }

    /// Ends a context, and cancels its operations.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn remove(&self, address: u64) -> Result<(), Errno> {
        let context = self.0.lock().remove(&address).ok_or(Errno::EINVAL)?;
        context.close();
        Ok(())
    }

    /// Ends all contexts, as the process or its program ends.
    pub fn clear(&self) {
        let contexts = core::mem::take(&mut *self.0.lock());
        contexts.values().for_each(|context| context.close());
    }
}

impl AioContext {
    /// Begins an operation.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if there is no room for its event.
    pub async fn submit(
        self: &Arc<Self>,
        submitter: &Arc<Submitter>,
        request: AioRequest,
    ) -> Result<(), Errno> {
        let in_flight = Arc::new(InFlight::new(request.address, -1, false));
        {
            let mut state = self.state.lock();
            if state.events.len() + state.in_flight.len() >= self.most as usize {
                return Err(Errno::EAGAIN);
            }
            state.in_flight.push(in_flight.clone());
        }
        let AioRequest { data, address, mut operation, counter } = request;
        if let Some(result) = once(operation.attempt(submitter, None)).await {
            self.complete(&in_flight, (data, address), result, &counter);
            return Ok(());
        }
        let (context, submitter) = (self.clone(), submitter.clone());
        let environment = submitter.system.environment.clone();
        let task: TaskMaker = Box::new(move || {
            Box::pin(async move {
                let attempt = operation.attempt(&submitter, None);
                let result = match in_flight.bounded(&submitter.system, None, attempt).await {
                    End::Done(result) => result,
                    End::Cancelled | End::TimedOut => Err(Errno::ECANCELED),
                };
                context.complete(&in_flight, (data, address), result, &counter);
            })
        });
        environment.spawn(task, TaskPlacement::default());
        Ok(())
    }

    fn complete(
        &self,
        in_flight: &Arc<InFlight>,
        (data, address): (u64, u64),
        result: Result<u64, Errno>,
        counter: &Option<Arc<OpenFile>>,
    ) {
        let result = match result {
            Ok(value) => value,
            Err(errno) if errno >= Errno::ERESTARTSYS => Errno::EINTR.to_result(),
            Err(errno) => errno.to_result(),
        };
        let mut event = [0; EVENT_LEN];
        for (part, word) in event.chunks_exact_mut(8).zip([data, address, result, 0]) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        let mut state = self.state.lock();
        if let Some(at) = state.in_flight.iter().position(|other| Arc::ptr_eq(other, in_flight)) {
            state.in_flight.swap_remove(at);
        }
        if !state.is_closed {
            state.events.push_back(event);
        }
        drop(state);
        self.changes.wake_all();
        signal(counter);
    }

    /// Takes at most `most` events.
    pub fn take(&self, most: usize) -> Vec<[u8; EVENT_LEN]> {
        let mut state = self.state.lock();
        let count = most.min(state.events.len());
        state.events.drain(..count).collect()
    }

    /// Waits until there are so many events, or the context ends.
    pub async fn wait_for(&self, count: usize) {
        let count = count.min(self.most as usize);
        let check = || {
            let state = self.state.lock();
            (state.events.len() >= count || state.is_closed).then_some(())
        };
        self.changes.wait_until(check).await;
    }

    /// Cancels the operation of the `struct iocb` at an address. Its event says so.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is none.
    pub fn cancel(&self, address: u64) -> Result<(), Errno> {
        let state = self.state.lock();
        let found = state.in_flight.iter().find(|operation| operation.user_data == address).cloned();
        drop(state);
        found.filter(|operation| operation.cancel()).map(drop).ok_or(Errno::EINVAL)
    }

    fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let in_flight = core::mem::take(&mut state.in_flight);
        drop(state);
        for operation in in_flight {
            operation.cancel();
        }
        self.changes.wake_all();
    }
}
