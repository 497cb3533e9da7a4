//! Pages that are being read into memory. Faults of several threads and processes share one read.

use crate::{Errno, PageSource};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_memory::frame::Frame;
use spin::Mutex;

/// An object, by its address in memory, and a page. The reader has a reference to the object.
type Key = (usize, u64);

/// The pages in flight, with the tasks that wait for them.
static IN_FLIGHT: Mutex<BTreeMap<Key, Vec<Waker>>> = Mutex::new(BTreeMap::new());

/// Reads a page into memory, or waits until another task has read it.
pub(crate) async fn fetch(source: &Arc<dyn PageSource>, index: u64) -> Result<Frame, Errno> {
    let key = (Arc::as_ptr(source).addr(), index);
    loop {
        if let Some(reader) = Reader::begin(key) {
            let result = match source.frame(index) {
                Some(frame) => Ok(frame),
                None => source.fetch(index).await,
            };
            drop(reader);
            return result;
        }
        arrival(key).await;
        if let Some(frame) = source.frame(index) {
            return Ok(frame);
        }
        // The other task failed, or was cancelled, or the page is gone already.
    }
}

/// The task that reads a page. Its end wakes the others.
struct Reader(Key);

impl Reader {
    fn begin(key: Key) -> Option<Self> {
        let mut in_flight = IN_FLIGHT.lock();
        if in_flight.contains_key(&key) {
            return None;
        }
        in_flight.insert(key, Vec::new());
        Some(Self(key))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let waiting = IN_FLIGHT.lock().remove(&self.0);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Waits until a page is not in flight.
async fn arrival(key: Key) {
    poll_fn(|context| match IN_FLIGHT.lock().get_mut(&key) {
        None => Poll::Ready(()),
        Some(waiting) => {
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        }
    })
    .await;
}
