//! Operations that continue after the call that submits them: `io_uring` and Linux AIO.
//!
//! ```text
//!   io_uring_enter -> entries (entry.rs) -> Chain (chain.rs) -> Operation (operation.rs) -> completion in the Ring (ring.rs)
//!   io_submit      -> iocb               -> task             -> Operation                -> completion in the AioContext
//! ```
//!
//! An [`Operation`] is what a call does, without its thread. It is first attempted at its submission, as it mostly need not
//! wait; one that would wait is dropped and begins again as a task. So it keeps the bytes that it has moved in itself.
//!
//! The memory of rings is shared with programs, which write to it at any time. Each value is read once, and checked before
//! its use; positions that the kernel advances are its own copies.
//!
//! An operation does not keep the table of descriptors alive: a process that ends closes its files, and the end of a ring
//! cancels its operations.

mod aio;
mod chain;
mod entry;
mod in_flight;
mod operation;
mod pages;
mod registered;
mod ring;

pub use aio::{AioContext, AioContexts, AioRequest, EVENT_LEN, MOST_AIO_EVENTS};
pub use entry::{CancelRequest, is_supported};
pub use operation::{Bytes, FileChoice, Operation, Submitter};
pub use pages::{PARAMETERS_LEN, RingPages};
pub use registered::{MOST_BUFFERS, MOST_FILES, Registered, RegisteredBuffer};
pub use ring::{MOST_COMPLETIONS, MOST_ENTRIES, MOST_OPERATIONS, Ring, RingFile};

use alloc::sync::Arc;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

/// Polls a future once. Returns `None` if it would wait.
pub async fn once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        })
    })
    .await
}

/// Adds to the counter of an event counter that programs registered for completions.
fn signal(counter: &Option<Arc<isola_linux_files::OpenFile>>) {
    if let Some(counter) =
        counter.as_ref().and_then(|file| file.object_as::<isola_linux_files::EventCounter>())
    {
        counter.signal(1);
    }
}
