//! `poll` and `select`: one wait for several open files.

use crate::events::Events;
use crate::open_file::OpenFile;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// An open file that a `poll` waits for.
#[derive(Clone, Debug)]
pub struct PollEntry {
    /// The file; `None` for a descriptor that is ignored, or not open.
    pub file: Option<Arc<OpenFile>>,
    /// The events that end the wait. `poll` adds [`Events::ALWAYS`] to those that the program asks for; `select` does not.
    pub events: Events,
}

impl PollEntry {
    /// Returns those of its events that are true now.
    fn ready(&self) -> Events {
        self.file.as_ref().map_or(Events::NONE, |file| file.ready() & self.events)
    }
}

/// Waits until one of the files is ready. Returns the events of each. The caller adds the timeout.
pub fn poll_files(entries: &[PollEntry]) -> PollFiles<'_> {
    PollFiles { entries, keys: Vec::new() }
}

/// Returns the present events of each file, and whether there are any.
pub fn ready_files(entries: &[PollEntry]) -> (Vec<Events>, bool) {
    let ready: Vec<_> = entries.iter().map(PollEntry::ready).collect();
    let is_any = ready.iter().any(|events| !events.is_empty());
    (ready, is_any)
}

/// The future of [`poll_files`].
#[must_use = "futures do nothing unless polled"]
pub struct PollFiles<'a> {
    entries: &'a [PollEntry],
    /// The keys of this future in the lists of the files.
    keys: Vec<Option<u64>>,
}

impl Future for PollFiles<'_> {
    type Output = Vec<Events>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (ready, is_any) = ready_files(self.entries);
        if is_any {
            return Poll::Ready(ready);
        }
        let mut keys = core::mem::take(&mut self.keys);
        keys.resize(self.entries.len(), None);
        for (index, entry) in self.entries.iter().enumerate() {
            if let Some(pollee) = entry.file.as_ref().and_then(|file| file.pollee()) {
                pollee.set_waiter(&mut keys[index], entry.events | Events::ALWAYS, context.waker());
            }
        }
        self.keys = keys;
        // An event between the check and the registration would be lost otherwise.
        let (ready, is_any) = ready_files(self.entries);
        if is_any { Poll::Ready(ready) } else { Poll::Pending }
    }
}

impl Drop for PollFiles<'_> {
    fn drop(&mut self) {
        for (entry, key) in self.entries.iter().zip(&self.keys) {
            if let Some(pollee) = entry.file.as_ref().and_then(|file| file.pollee()) {
                pollee.remove_waiter(*key);
            }
        }
    }
}
