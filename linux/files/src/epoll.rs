//! Event polls: sets of open files whose readiness a program waits for at once.
//!
//! An entry observes its file's [`Pollee`]. If the file reports events, the entry puts itself on the list of ready entries,
//! once; a wait takes entries from the list and asks each file for its present events. A level-triggered entry that is
//! still ready returns to the list's end, so readiness persists without a waiter. An edge-triggered entry returns with the
//! next report, a one-shot one after it was armed anew.
//!
//! Lock order: the table of entries, then the list of ready ones. Neither is held while a file is asked or observers are
//! notified.

use crate::Errno;
use crate::events::{Events, Observer, Pollee, Sharing};
use crate::metadata::{InodeKind, Metadata};
use crate::object::FileObject;
use crate::open_file::OpenFile;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use isola_linux_abi::numbers as linux;
use smallvec::SmallVec;
use spin::Mutex;

/// The most event polls that contain each other.
const MOST_NESTED: usize = 5;

/// Ready events that need no memory of the heap.
const FEW_EVENTS: usize = 8;

/// The options of an entry beside its events.
const OPTIONS: u32 = linux::EPOLLET | linux::EPOLLONESHOT | linux::EPOLLWAKEUP | linux::EPOLLEXCLUSIVE;
/// The events that may be combined with `EPOLLEXCLUSIVE`.
const WITH_EXCLUSIVE: u32 = linux::EPOLLIN
    | linux::EPOLLOUT
    | linux::EPOLLERR
    | linux::EPOLLHUP
    | linux::EPOLLWAKEUP
    | linux::EPOLLET
    | linux::EPOLLEXCLUSIVE;

/// An event as programs pass it: `struct epoll_event`, which has 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// The events, with options if it is an interest.
    pub events: u32,
    /// The program's own value.
    pub data: u64,
}

impl EpollEvent {
    /// The length in a program's memory.
    pub const LEN: usize = 12;

    /// Returns the bytes in a program's memory.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.events.to_le_bytes());
        bytes[4..].copy_from_slice(&self.data.to_le_bytes());
        bytes
    }

    /// Returns the event of these bytes.
    pub fn of_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [a, b, c, d, data @ ..] = bytes;
        Self { events: u32::from_le_bytes([a, b, c, d]), data: u64::from_le_bytes(data) }
    }
}

/// The entries of event polls that refer to an open file. They end with it.
#[derive(Default)]
pub(crate) struct Watches(Mutex<Vec<Weak<Entry>>>);

impl Watches {
    /// Ends all entries, as the file ends.
    pub fn end(&mut self) {
        for entry in core::mem::take(self.0.get_mut()) {
            let Some(entry) = entry.upgrade() else { continue };
            if let Some(epoll) = entry.epoll.upgrade() {
                epoll.remove(&entry);
            }
        }
    }
}

/// Descriptor and identity of an open file.
type EntryKey = (i32, u64);

struct Entry {
    this: Weak<Self>,
    key: EntryKey,
    file: Weak<OpenFile>,
    epoll: Weak<EpollState>,
    interest: Mutex<Interest>,
    is_queued: AtomicBool,
}

#[derive(Clone, Copy)]
struct Interest {
    event: EpollEvent,
    /// A one-shot entry was reported and is to be armed.
    is_disarmed: bool,
    is_removed: bool,
}

impl Interest {
    fn events(&self) -> Events {
        if self.is_disarmed || self.is_removed {
            return Events::NONE;
        }
        Events(self.event.events & !OPTIONS) | Events::ALWAYS
    }

    fn has(&self, option: u32) -> bool {
        self.event.events & option != 0
    }
}

#[derive(Default)]
struct EpollState {
    entries: Mutex<BTreeMap<EntryKey, Arc<Entry>>>,
    ready: Mutex<VecDeque<Arc<Entry>>>,
    pollee: Pollee,
    /// The event polls that contain this one, perhaps several times.
    containers: Mutex<Vec<Weak<EpollState>>>,
}

/// An event poll (`epoll_create1`).
pub struct Epoll {
    state: Arc<EpollState>,
}

/// Held while an event poll is added to another, so that two such calls do not close a loop.
static NESTING: Mutex<()> = Mutex::new(());

impl Observer for Entry {
    fn notify(&self, events: Events) -> bool {
        let interest = *self.interest.lock();
        if !interest.events().intersects(events) {
            return false;
        }
        let Some(epoll) = self.epoll.upgrade() else { return false };
        if self.is_queued.load(Ordering::Relaxed) {
            // Without a second reference and a look at the list.
            epoll.pollee.notify(Events::IN);
        } else if let Some(this) = self.this.upgrade() {
            epoll.queue(this);
        }
        true
    }
}

impl EpollState {
    fn queue(&self, entry: Arc<Entry>) {
        if !entry.is_queued.swap(true, Ordering::AcqRel) {
            self.ready.lock().push_back(entry);
        }
        self.pollee.notify(Events::IN);
    }

    fn remove(&self, entry: &Arc<Entry>) {
        entry.interest.lock().is_removed = true;
        let removed = self.entries.lock().remove(&entry.key);
        drop(removed);
    }

    /// Returns the event polls that this one contains directly.
    fn nested(&self) -> Vec<Arc<Self>> {
        let files: Vec<_> = self.entries.lock().values().filter_map(|entry| entry.file.upgrade()).collect();
        files.iter().filter_map(|file| file.object_as::<Epoll>().map(|epoll| epoll.state.clone())).collect()
    }

    /// Returns whether this event poll is `other` or contains it.
    fn contains(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || self.nested().iter().any(|nested| nested.contains(other))
    }

    /// Returns the number of event polls in the longest chain from this one downwards.
    fn depth(&self) -> usize {
        1 + self.nested().iter().map(|nested| nested.depth()).max().unwrap_or(0)
    }

    /// Returns the number of event polls in the longest chain from this one upwards.
    fn height(&self) -> usize {
        1 + self
            .containers
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .map(|above| above.height())
            .max()
            .unwrap_or(0)
    }

    /// Returns the present events of an entry's file that it is interested in.
    fn present(entry: &Entry) -> Events {
        let interest = *entry.interest.lock();
        match entry.file.upgrade() {
            Some(file) if !interest.is_removed => file.ready() & interest.events(),
            _ => Events::NONE,
        }
    }
}

impl Epoll {
    /// Creates an event poll, with the flags of `epoll_create1`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn open(flags: u32) -> Result<Arc<OpenFile>, Errno> {
        if flags & !linux::EPOLL_CLOEXEC != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(OpenFile::of_object(Arc::new(Self { state: Arc::default() }), linux::O_RDWR))
    }

    /// Adds the open file of a descriptor.
    ///
    /// # Errors
    /// [`Errno::EEXIST`], [`Errno::EPERM`] for a file or directory, [`Errno::ELOOP`] for a loop of event polls or more than
    /// five that contain each other, [`Errno::EINVAL`] for this event poll itself and for wrong options.
    pub fn add(&self, descriptor: i32, file: &Arc<OpenFile>, event: EpollEvent) -> Result<(), Errno> {
        let object = file.object().ok_or(Errno::EPERM)?;
        let nested = object.downcast::<Self>();
        if nested.is_some_and(|nested| Arc::ptr_eq(&nested.state, &self.state)) {
            return Err(Errno::EINVAL);
        }
        let is_exclusive = event.events & linux::EPOLLEXCLUSIVE != 0;
        if is_exclusive && (event.events & !WITH_EXCLUSIVE != 0 || nested.is_some()) {
            return Err(Errno::EINVAL);
        }
        let nesting = nested.map(|_| NESTING.lock());
        if let Some(nested) = nested {
            if nested.state.contains(&self.state) {
                return Err(Errno::ELOOP);
            }
            if nested.state.depth() + self.state.height() > MOST_NESTED {
                return Err(Errno::ELOOP);
            }
        }
        let entry = Arc::new_cyclic(|this| Entry {
            this: this.clone(),
            key: (descriptor, file.id()),
            file: Arc::downgrade(file),
            epoll: Arc::downgrade(&self.state),
            interest: Mutex::new(Interest { event, is_disarmed: false, is_removed: false }),
            is_queued: AtomicBool::new(false),
        });
        {
            let mut entries = self.state.entries.lock();
            if entries.contains_key(&entry.key) {
                return Err(Errno::EEXIST);
            }
            entries.insert(entry.key, entry.clone());
        }
        file.watches.0.lock().push(Arc::downgrade(&entry));
        if let Some(pollee) = file.pollee() {
            let observer: Arc<dyn Observer> = entry.clone();
            pollee.observe(&observer, if is_exclusive { Sharing::Exclusive } else { Sharing::Shared });
        }
        if let Some(nested) = nested {
            let mut containers = nested.state.containers.lock();
            containers.retain(|above| above.strong_count() > 0);
            containers.push(Arc::downgrade(&self.state));
        }
        drop(nesting);
        self.queue_if_ready(entry);
        Ok(())
    }

    fn queue_if_ready(&self, entry: Arc<Entry>) {
        if !EpollState::present(&entry).is_empty() {
            self.state.queue(entry);
        }
    }

    fn entry(&self, descriptor: i32, file: &Arc<OpenFile>) -> Result<Arc<Entry>, Errno> {
        self.state.entries.lock().get(&(descriptor, file.id())).cloned().ok_or(Errno::ENOENT)
    }

    /// Changes the interest in an open file, and arms a one-shot entry anew.
    ///
    /// # Errors
    /// [`Errno::ENOENT`], [`Errno::EINVAL`] with `EPOLLEXCLUSIVE`.
    pub fn modify(&self, descriptor: i32, file: &Arc<OpenFile>, event: EpollEvent) -> Result<(), Errno> {
        let entry = self.entry(descriptor, file)?;
        {
            let mut interest = entry.interest.lock();
            if (event.events | interest.event.events) & linux::EPOLLEXCLUSIVE != 0 {
                return Err(Errno::EINVAL);
            }
            *interest = Interest { event, is_disarmed: false, is_removed: interest.is_removed };
        }
        self.queue_if_ready(entry);
        Ok(())
    }

    /// Removes an open file.
    ///
    /// # Errors
    /// [`Errno::ENOENT`].
    pub fn delete(&self, descriptor: i32, file: &Arc<OpenFile>) -> Result<(), Errno> {
        let entry = self.entry(descriptor, file)?;
        self.state.remove(&entry);
        if let Some(nested) = file.object_as::<Self>() {
            let mut containers = nested.state.containers.lock();
            let at =
                containers.iter().position(|above| core::ptr::eq(above.as_ptr(), Arc::as_ptr(&self.state)));
            at.map(|at| containers.swap_remove(at));
        }
        file.watches.0.lock().retain(|other| !core::ptr::eq(other.as_ptr(), Arc::as_ptr(&entry)));
        if let Some(pollee) = file.pollee() {
            let observer: Arc<dyn Observer> = entry;
            pollee.unobserve(&observer);
        }
        Ok(())
    }

    /// Takes up to `most` ready events, without waiting, and passes them to `take`. Returns their number.
    pub fn take(&self, most: usize, mut take: impl FnMut(EpollEvent)) -> usize {
        // Each entry that is on the list now is seen once.
        let mut left = self.state.ready.lock().len();
        let mut taken = 0;
        let mut again = SmallVec::<[Arc<Entry>; FEW_EVENTS]>::new();
        while taken < most && left > 0 {
            left -= 1;
            let Some(entry) = self.state.ready.lock().pop_front() else { break };
            // A report from here on queues the entry anew.
            entry.is_queued.store(false, Ordering::Relaxed);
            // Pairs with the fence in `Pollee::notify`: the report sees this store, or the file's events below are new.
            fence(Ordering::SeqCst);
            let ready = EpollState::present(&entry);
            if ready.is_empty() {
                continue;
            }
            let mut interest = entry.interest.lock();
            let event = EpollEvent { events: ready.0, data: interest.event.data };
            taken += 1;
            if interest.has(linux::EPOLLONESHOT) {
                interest.is_disarmed = true;
            }
            let is_again = !interest.has(linux::EPOLLONESHOT) && !interest.has(linux::EPOLLET);
            drop(interest);
            take(event);
            if is_again {
                again.push(entry);
            }
        }
        for entry in again {
            if !entry.is_queued.swap(true, Ordering::AcqRel) {
                self.state.ready.lock().push_back(entry);
            }
        }
        taken
    }

    /// Waits for at least one event, and returns up to `most`. The caller adds the timeout.
    pub async fn wait(&self, most: usize) -> Vec<EpollEvent> {
        loop {
            let mut events = Vec::new();
            if self.take(most, |event| events.push(event)) > 0 {
                return events;
            }
            let ready = || if self.state.ready.lock().is_empty() { Events::NONE } else { Events::IN };
            self.state.pollee.wait(Events::IN, ready).await;
        }
    }
}

impl FileObject for Epoll {
    fn can_be_read(&self) -> bool {
        false
    }

    fn ready(&self) -> Events {
        // Entries on the list may have ceased to be ready.
        let entries: Vec<_> = self.state.ready.lock().iter().cloned().collect();
        let is_ready = entries.iter().any(|entry| !EpollState::present(entry).is_empty());
        if is_ready { Events::IN } else { Events::NONE }
    }

    fn pollee(&self) -> Option<&Pollee> {
        Some(&self.state.pollee)
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(InodeKind::File, 0, 0o600)
    }

    fn description(&self) -> Vec<u8> {
        b"anon_inode:[eventpoll]".to_vec()
    }
}
