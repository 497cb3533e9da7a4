//! Open files in messages that were not received yet (`SCM_RIGHTS`).
//!
//! A socket whose open file is only in queues that no process can reach would stay for ever: for example a socket in its own
//! queue. When the number of sockets in flight has doubled since the last time, a collection finds such sockets: those to
//! which no path leads from an open file with a reference outside of queues. It empties their queues.
//!
//! Closing a socket closes the files in its queue, which may be sockets with queues. They are closed one after the other,
//! not within each other, so that a chain of any length needs no stack.

use super::names::Names;
use super::socket::UnixSocket;
use crate::Errno;
use crate::socket_file::SocketFile;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use isola_linux_files::OpenFile;
use spin::{Mutex, MutexGuard};

/// The most open files of a message (Linux's `SCM_MAX_FD`).
pub const MOST_RIGHTS: usize = 253;
/// The most open files in the messages of all unix sockets. Linux limits them for each user, by `RLIMIT_NOFILE`.
pub const MOST_IN_FLIGHT: usize = 1 << 16;
/// Fewer sockets in flight cause no collection.
const FEW_SOCKETS: usize = 16;

/// Returns the unix socket of an open file.
fn unix_socket(file: &OpenFile) -> Option<&UnixSocket> {
    file.object_as::<SocketFile>()?.socket().downcast::<UnixSocket>()
}

/// The open files in flight.
#[derive(Default)]
pub(super) struct Flight {
    /// Held by calls that pass open files, so that a collection sees each file in one place.
    passing: Mutex<Collection>,
    files: AtomicUsize,
    /// Files to close.
    closing: Mutex<Vec<Arc<OpenFile>>>,
    is_closing: AtomicBool,
}

/// The state of collections.
#[derive(Default)]
pub(super) struct Collection {
    /// The unix sockets in flight.
    sockets: usize,
    /// The number of them that causes the next collection.
    threshold: usize,
}

impl Flight {
    /// Excludes collections while files are passed.
    pub fn hold(&self) -> MutexGuard<'_, Collection> {
        self.passing.lock()
    }

    /// Counts files that are sent.
    pub fn sent(&self, held: &mut Collection, files: &[Arc<OpenFile>]) {
        self.files.fetch_add(files.len(), Ordering::Relaxed);
        held.sockets += files.iter().filter(|file| unix_socket(file).is_some()).count();
    }

    /// Counts files that were received, or whose message was dropped.
    pub fn received(&self, held: &mut Collection, files: &[Arc<OpenFile>]) {
        self.files.fetch_sub(files.len(), Ordering::Relaxed);
        held.sockets -= files.iter().filter(|file| unix_socket(file).is_some()).count();
    }

    /// Checks that so many files can be sent, after a collection if it is time for one.
    pub fn check(&self, names: &Names, count: usize) -> Result<(), Errno> {
        let in_flight = || self.files.load(Ordering::Relaxed);
        let is_due = {
            let held = self.hold();
            held.sockets >= held.threshold.max(FEW_SOCKETS)
        };
        if is_due || in_flight() + count > MOST_IN_FLIGHT {
            self.collect(names);
        }
        if in_flight() + count > MOST_IN_FLIGHT { Err(Errno::ETOOMANYREFS) } else { Ok(()) }
    }

    /// Returns the number of files in flight.
    pub fn count(&self) -> usize {
        self.files.load(Ordering::Relaxed)
    }

    /// Closes files.
    pub fn close(&self, files: Vec<Arc<OpenFile>>) {
        if files.is_empty() {
            return;
        }
        self.closing.lock().extend(files);
        // A file that closes others adds them to the list, and returns here.
        while !self.is_closing.swap(true, Ordering::Acquire) {
            loop {
                let next = self.closing.lock().pop();
                if next.is_none() {
                    break;
                }
                drop(next);
            }
            self.is_closing.store(false, Ordering::Release);
            if self.closing.lock().is_empty() {
                break;
            }
        }
    }

    /// Empties the queues that no process can reach.
    fn collect(&self, names: &Names) {
        let sockets = names.sockets();
        let mut held = self.hold();
        // Files by their identity: the number in queues, all references, and the socket.
        let mut files: BTreeMap<usize, (usize, usize, Option<u64>)> = BTreeMap::new();
        let mut queues: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        let by_id: BTreeMap<u64, &Arc<UnixSocket>> =
            sockets.iter().map(|socket| (socket.id(), socket)).collect();
        for socket in &sockets {
            let mut queued = Vec::new();
            socket.each_right(|file| {
                let key = Arc::as_ptr(file) as usize;
                let entry = files.entry(key).or_default();
                entry.0 += 1;
                entry.1 = Arc::strong_count(file);
                entry.2 = unix_socket(file).map(UnixSocket::id);
                queued.push(key);
            });
            // A connection that waits to be accepted is reached by its listening socket.
            queues.entry(socket.queue_owner()).or_default().extend(queued);
        }
        let in_flight: BTreeSet<u64> = files.values().filter_map(|(.., socket)| *socket).collect();
        let has_outside = |(queued, references, _): &(usize, usize, Option<u64>)| references > queued;
        let outside = files.values().filter(|file| has_outside(file)).filter_map(|(.., socket)| *socket);
        let never_sent = queues.keys().copied().filter(|id| !in_flight.contains(id));
        let mut reached: BTreeSet<u64> = BTreeSet::new();
        let mut next: Vec<u64> = outside.chain(never_sent).collect();
        while let Some(id) = next.pop() {
            if reached.insert(id) {
                let queued = queues.get(&id).into_iter().flatten();
                next.extend(queued.filter_map(|key| files.get(key)?.2));
            }
        }
        let mut dropped = Vec::new();
        for (id, socket) in &by_id {
            if !reached.contains(&socket.queue_owner()) && !reached.contains(id) {
                dropped.extend(socket.take_rights());
            }
        }
        self.received(&mut held, &dropped);
        held.threshold = held.sockets * 2;
        drop(held);
        drop(sockets);
        self.close(dropped);
    }
}
