//! Instances of `inotify`: queues of events of watched inodes.
//!
//! The watches themselves, and which change notifies them, are in `watch.rs`. An event that equals the last one in the queue
//! is not added. Beyond [`MOST_EVENTS`] events, one entry says that others are lost.

use crate::Errno;
use crate::calls::last_link;
use crate::credentials::Access;
use crate::events::{Events, Pollee};
use crate::metadata::{InodeKind, Metadata};
use crate::object::FileObject;
use crate::open_file::OpenFile;
use crate::outcome::Outcome;
use crate::walk::Caller;
use crate::watch::{self, Watch};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::{numbers as linux, requests};
use isola_linux_memory::UserBuffer;
use spin::Mutex;

/// The most events of a queue (`/proc/sys/fs/inotify/max_queued_events`).
pub const MOST_EVENTS: usize = 16_384;

/// The options of a watch beside its events.
const OPTIONS: u32 = linux::IN_ONLYDIR
    | linux::IN_DONT_FOLLOW
    | linux::IN_EXCL_UNLINK
    | linux::IN_MASK_CREATE
    | linux::IN_MASK_ADD
    | linux::IN_ISDIR
    | linux::IN_ONESHOT;
/// All bits of a watch. As in Linux, the events that the kernel alone reports are accepted, and change nothing.
const KNOWN: u32 =
    OPTIONS | linux::IN_ALL_EVENTS | linux::IN_UNMOUNT | linux::IN_Q_OVERFLOW | linux::IN_IGNORED;
/// The bits that a watch keeps.
const KEPT: u32 = linux::IN_ALL_EVENTS | linux::IN_EXCL_UNLINK | linux::IN_ONESHOT | linux::IN_MASK_ADD;

/// The length of `struct inotify_event` without a name, and the multiple that the length of a name is padded to.
const HEADER_LEN: usize = size_of::<linux::inotify_event>();

/// An event in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InotifyEvent {
    /// The number of the watch.
    pub watch: i32,
    pub mask: u32,
    /// The same for both events of a move.
    pub cookie: u32,
    /// The name in the watched directory, or none.
    pub name: Box<[u8]>,
}

impl InotifyEvent {
    fn name_len(&self) -> usize {
        if self.name.is_empty() { 0 } else { (self.name.len() + 1).next_multiple_of(HEADER_LEN) }
    }

    fn len(&self) -> usize {
        HEADER_LEN + self.name_len()
    }

    /// Returns whether `next` adds nothing to this event, which is the last one in a queue.
    fn includes(&self, next: &Self) -> bool {
        self.mask & linux::IN_IGNORED == 0
            && (self.watch, self.mask, &self.name) == (next.watch, next.mask, &next.name)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        bytes.extend(self.watch.to_le_bytes());
        for word in [self.mask, self.cookie, self.name_len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.name);
        bytes.resize(self.len(), 0);
        bytes
    }
}

/// The state of an instance, to which its watches refer.
pub(crate) struct InotifyState {
    /// The user whose limits count it.
    user: u32,
    watches: Mutex<Watches>,
    queue: Mutex<VecDeque<InotifyEvent>>,
    pollee: Pollee,
}

#[derive(Default)]
struct Watches {
    by_number: BTreeMap<i32, Arc<Watch>>,
    latest: i32,
}

impl InotifyState {
    /// Adds an event.
    pub fn queue(&self, event: InotifyEvent) {
        let mut queue = self.queue.lock();
        if queue.back().is_some_and(|last| last.includes(&event)) {
            return;
        }
        match queue.len() {
            // The last entry says that events are lost.
            MOST_EVENTS.. => return,
            len if len + 1 == MOST_EVENTS => queue.push_back(InotifyEvent {
                watch: -1,
                mask: linux::IN_Q_OVERFLOW,
                cookie: 0,
                name: Box::default(),
            }),
            _ => queue.push_back(event),
        }
        drop(queue);
        self.pollee.notify(Events::IN);
    }

    /// Ends a watch, with its last event.
    pub fn end(&self, watch: &Arc<Watch>) {
        let removed = self.watches.lock().by_number.remove(&watch.number);
        if removed.is_some() {
            self.removed(watch);
        }
    }

    fn removed(&self, watch: &Arc<Watch>) {
        watch::remove(self.user, watch);
        let name = Box::default();
        self.queue(InotifyEvent { watch: watch.number, mask: linux::IN_IGNORED, cookie: 0, name });
    }
}

/// An instance (`inotify_init1`).
pub struct Inotify {
    state: Arc<InotifyState>,
}

impl Inotify {
    /// Creates an instance without watches, with the flags of `inotify_init1`, that counts against the limits of `user`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for other flags, [`Errno::EMFILE`] if the user has [`MOST_INSTANCES`](watch::MOST_INSTANCES).
    pub fn open(flags: u32, user: u32) -> Result<Arc<OpenFile>, Errno> {
        if flags & !(linux::IN_CLOEXEC | linux::IN_NONBLOCK) != 0 {
            return Err(Errno::EINVAL);
        }
        watch::add_instance(user)?;
        let (watches, queue) = (Mutex::default(), Mutex::default());
        let state = Arc::new(InotifyState { user, watches, queue, pollee: Pollee::new() });
        Ok(OpenFile::of_object(Arc::new(Self { state }), flags & linux::IN_NONBLOCK))
    }

    /// Watches the file of a path for the events of `mask`, or changes its watch (`inotify_add_watch`). Returns the number of
    /// the watch.
    ///
    /// # Errors
    /// Those of inotify_add_watch(2).
    pub async fn add_watch(&self, caller: &Caller<'_>, path: &[u8], mask: u32) -> Result<i32, Errno> {
        check_mask(mask)?;
        let nofollow = if mask & linux::IN_DONT_FOLLOW != 0 { linux::AT_SYMLINK_NOFOLLOW } else { 0 };
        let location = caller.locate(linux::AT_FDCWD, path, last_link(nofollow)).await?;
        if mask & linux::IN_ONLYDIR != 0 && location.dentry.kind() != InodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        caller.check(&location, Access::READ)?;
        let inode = location.inode();
        let mut watches = self.state.watches.lock();
        if let Some(known) = watches.by_number.values().find(|watch| watch.is_of(inode)) {
            if mask & linux::IN_MASK_CREATE != 0 {
                return Err(Errno::EEXIST);
            }
            known.change(mask & KEPT);
            return Ok(known.number);
        }
        // Numbers are not reused before all others were: a program may still have events of the former watch.
        let next = |number: i32| if number == i32::MAX { 1 } else { number + 1 };
        let mut number = next(watches.latest);
        while watches.by_number.contains_key(&number) {
            number = next(number);
        }
        let mask = mask & KEPT & !linux::IN_MASK_ADD;
        let instance = Arc::downgrade(&self.state);
        let watch = Watch::new(number, instance, inode.clone(), &location.mount.mounted, mask);
        watch::add(self.state.user, watch.clone())?;
        watches.latest = number;
        watches.by_number.insert(number, watch);
        Ok(number)
    }

    /// Ends a watch (`inotify_rm_watch`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is none with this number.
    pub fn remove_watch(&self, number: i32) -> Result<(), Errno> {
        let watch = self.state.watches.lock().by_number.remove(&number).ok_or(Errno::EINVAL)?;
        self.state.removed(&watch);
        Ok(())
    }
}

/// Checks the events and options of a watch, before its descriptor and path.
///
/// # Errors
/// [`Errno::EINVAL`].
fn check_mask(mask: u32) -> Result<(), Errno> {
    const EXCLUDED: u32 = linux::IN_MASK_ADD | linux::IN_MASK_CREATE;
    if mask & !KNOWN != 0 || mask & KNOWN == 0 || mask & EXCLUDED == EXCLUDED {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

impl Drop for Inotify {
    fn drop(&mut self) {
        let watches = core::mem::take(&mut self.state.watches.lock().by_number);
        watches.values().for_each(|watch| watch::remove(self.state.user, watch));
        watch::remove_instance(self.state.user);
    }
}

impl FileObject for Inotify {
    fn read(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        let mut queue = self.state.queue.lock();
        let Some(first) = queue.front() else { return Err(Errno::EAGAIN) };
        if first.len() > buffer.len() {
            return Err(Errno::EINVAL);
        }
        let (mut taken, mut left) = (Vec::new(), buffer.len());
        while let Some(event) = queue.pop_front_if(|event| event.len() <= left) {
            left -= event.len();
            taken.push(event);
        }
        drop(queue);
        Ok(taken.iter().map(|event| buffer.write(&event.bytes())).sum())
    }

    fn ready(&self) -> Events {
        if self.state.queue.lock().is_empty() { Events::NONE } else { Events::IN }
    }

    fn pollee(&self) -> Option<&Pollee> {
        Some(&self.state.pollee)
    }

    fn control<'a>(&'a self, request: u32, _argument: u64, buffer: &'a mut UserBuffer) -> Outcome<'a, u64> {
        if request != requests::FIONREAD {
            return Outcome::error(Errno::ENOTTY);
        }
        let len: usize = self.state.queue.lock().iter().map(InotifyEvent::len).sum();
        buffer.write(&(len as i32).to_ne_bytes());
        Outcome::ok(0)
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(InodeKind::File, 0, 0o600)
    }

    fn description(&self) -> Vec<u8> {
        b"anon_inode:inotify".to_vec()
    }
}
