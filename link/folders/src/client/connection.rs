//! A connection to the service: one message at a time, in shared memory.
//!
//! ```text
//!   page 0              the queues: for messages without an answer, and for requests
//!   MESSAGE             the message
//!   ANSWER              room for the answer
//! ```

use super::nodes::number_of;
use crate::link::Link;
use crate::wire::{decode_answer, message};
use crate::{MOST_MESSAGE, QUEUES};
use alloc::vec;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::AtomicU64;
use core::task::Poll;
use fuse_abi::linux::fuse_opcode;
use isola_abi::service::{DriverSetup, QueueSetup};
use isola_virtio_device::DriverMemory;
use isola_virtio_device::driver::{DriverQueue, Part};
use isola_virtio_device::queue::{EVENT_INDEX, VERSION_1};
use isola_volumes::FileId;

const PAGE: usize = 4096;

/// The offsets of the queues.
const NOTICES: usize = 0;
const REQUESTS: usize = 512;

const MESSAGE: usize = PAGE;
const ANSWER: usize = MESSAGE + MOST_MESSAGE;

/// The pages of the shared memory.
pub const SHARED_PAGES: usize = (ANSWER + MOST_MESSAGE) / PAGE;

/// The features that the driver uses: without them it cannot work.
pub const FEATURES: u64 = VERSION_1 | EVENT_INDEX;

/// The connection has ended, or the service has violated the protocol: the answer, if any, is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

/// A request.
#[derive(Clone)]
pub(super) struct Request {
    pub opcode: fuse_opcode,
    pub file: FileId,
    /// User and group, of a new file.
    pub owner: (u32, u32),
    pub arguments: Vec<u8>,
}

/// The driver of a device, which the service does not know yet.
pub struct Driver {
    notices: DriverQueue<&'static [AtomicU64]>,
    requests: DriverQueue<&'static [AtomicU64]>,
}

impl Driver {
    /// Starts the driver in memory of [`SHARED_PAGES`] pages, to which no service has access.
    pub fn new(words: &'static [AtomicU64]) -> Self {
        let queue = |offset| DriverQueue::new(DriverMemory::new(words, 0), offset);
        Self { notices: queue(NOTICES), requests: queue(REQUESTS) }
    }

    /// Returns its settings, for the service.
    pub fn setup(&self) -> DriverSetup {
        let queues: [_; QUEUES] = [&self.notices, &self.requests];
        let queues = queues.into_iter().map(|queue| {
            let place = queue.place();
            QueueSetup {
                size: place.size,
                descriptors: place.descriptors,
                available: place.available,
                used: place.used,
            }
        });
        DriverSetup { features: FEATURES, base: 0, queues: queues.collect() }
    }
}

/// A connection.
pub(super) struct Connection<L> {
    link: L,
    driver: Driver,
    unique: u64,
}

impl<L: Link> Connection<L> {
    pub fn new(link: L, driver: Driver) -> Self {
        Self { link, driver, unique: 0 }
    }

    /// Sends a request. Returns the contents of the answer, or the number of an error.
    pub async fn request(&mut self, request: &Request) -> Result<Result<Vec<u8>, i32>, Lost> {
        let Request { opcode, file, owner, ref arguments } = *request;
        self.unique += 2;
        let bytes = message(opcode, self.unique, number_of(file), owner, arguments);
        let answer = Part { offset: ANSWER, len: MOST_MESSAGE };
        let len = send(&self.link, &mut self.driver.requests, &bytes, answer).await?;
        let mut bytes = vec![0; len];
        self.driver.requests.memory().read(ANSWER, &mut bytes);
        let answer = decode_answer(self.unique, &bytes).ok_or(Lost)?;
        Ok(answer.map(<[u8]>::to_vec))
    }

    /// Sends a message that has no answer.
    pub async fn notice(&mut self, opcode: fuse_opcode, arguments: &[u8]) -> Result<(), Lost> {
        self.unique += 2;
        let bytes = message(opcode, self.unique, 0, (0, 0), arguments);
        let no_answer = Part { offset: ANSWER, len: 0 };
        send(&self.link, &mut self.driver.notices, &bytes, no_answer).await.map(drop)
    }
}

/// Sends a message, and waits until the service has returned it. Returns the length of the answer.
async fn send(
    link: &impl Link,
    queue: &mut DriverQueue<&'static [AtomicU64]>,
    bytes: &[u8],
    answer: Part,
) -> Result<usize, Lost> {
    if bytes.len() > MOST_MESSAGE || queue.is_busy() {
        return Err(Lost);
    }
    queue.memory().write(MESSAGE, bytes);
    if queue.send(Part { offset: MESSAGE, len: bytes.len() }, answer) {
        link.ring();
    }
    let mut closed = pin!(link.closed());
    poll_fn(|context| {
        link.wake_by(context.waker());
        loop {
            match queue.take() {
                Ok(Some(len)) => return Poll::Ready(Ok(len)),
                // Asked after the queue: the last answer of a service that has ended counts.
                Ok(None) if closed.as_mut().poll(context).is_ready() => return Poll::Ready(Err(Lost)),
                Ok(None) if queue.arm() => {}
                Ok(None) => return Poll::Pending,
                Err(_) => return Poll::Ready(Err(Lost)),
            }
        }
    })
    .await
}
