//! Watches of inodes: which instances of `inotify` are notified of a change.
//!
//! A watch keeps its inode, so the inode's address is its identity. One table has the watches of all instances. Without any
//! watch, a change costs the load of a counter.
//!
//! A change of a file is an event of the file itself and, with its name, of its directory. The file system is changed
//! first, and the instances are notified then, without any lock of a file system.
//!
//! Lock order: the watches of an instance, then the table. Neither is held while an event is queued.

use crate::Errno;
use crate::dentry::{Dentry, MountedFileSystem};
use crate::inode::Inode;
use crate::inotify::{InotifyEvent, InotifyState};
use crate::metadata::InodeKind;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use isola_linux_abi::numbers as linux;
use spin::Mutex;

/// The most instances of a user (`/proc/sys/fs/inotify/max_user_instances`).
pub const MOST_INSTANCES: u32 = 128;
/// The most watches of a user (`/proc/sys/fs/inotify/max_user_watches`).
pub const MOST_WATCHES: u32 = 65_536;

/// The events that report the watch itself, and that cannot be disabled.
const ALWAYS: u32 = linux::IN_IGNORED | linux::IN_UNMOUNT;

/// A watch of an inode by an instance.
pub(crate) struct Watch {
    /// Its number in the instance.
    pub number: i32,
    pub instance: Weak<InotifyState>,
    inode: Arc<dyn Inode>,
    /// The address of the file system.
    mounted: usize,
    /// The events and options.
    mask: AtomicU32,
}

impl Watch {
    pub fn new(
        number: i32,
        instance: Weak<InotifyState>,
        inode: Arc<dyn Inode>,
        mounted: &MountedFileSystem,
        mask: u32,
    ) -> Arc<Self> {
        let mounted = core::ptr::from_ref(mounted).addr();
        Arc::new(Self { number, instance, inode, mounted, mask: AtomicU32::new(mask) })
    }

    pub fn is_of(&self, inode: &Arc<dyn Inode>) -> bool {
        address(&self.inode) == address(inode)
    }

    /// Replaces the events, or adds to them with `IN_MASK_ADD`.
    pub fn change(&self, mask: u32) {
        if mask & linux::IN_MASK_ADD != 0 {
            self.mask.fetch_or(mask & !linux::IN_MASK_ADD, Ordering::Relaxed);
        } else {
            self.mask.store(mask, Ordering::Relaxed);
        }
    }

    fn mask(&self) -> u32 {
        self.mask.load(Ordering::Relaxed)
    }

    /// Queues an event, if the watch asks for it. A watch for one event ends with it.
    fn notify(self: &Arc<Self>, events: u32, cookie: u32, name: &[u8]) {
        let mask = self.mask();
        if events & (mask | ALWAYS) & (linux::IN_ALL_EVENTS | ALWAYS) == 0 {
            return;
        }
        let Some(instance) = self.instance.upgrade() else { return };
        // As in Linux, these events do not show the type.
        let hides_type = events & (linux::IN_MOVE_SELF | linux::IN_DELETE_SELF) != 0;
        let shown = if hides_type { events & !linux::IN_ISDIR } else { events };
        instance.queue(InotifyEvent { watch: self.number, mask: shown, cookie, name: name.into() });
        if mask & linux::IN_ONESHOT != 0 && events & ALWAYS == 0 {
            instance.end(self);
        }
    }
}

/// Instances and watches of a user.
#[derive(Clone, Copy, Default)]
struct Usage {
    instances: u32,
    watches: u32,
}

struct Table {
    /// By the address of the inode.
    watches: BTreeMap<usize, Vec<Arc<Watch>>>,
    users: BTreeMap<u32, Usage>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { watches: BTreeMap::new(), users: BTreeMap::new() });
/// The number of watches.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The cookie of the latest move.
static COOKIE: AtomicU32 = AtomicU32::new(0);

fn address(inode: &Arc<dyn Inode>) -> usize {
    Arc::as_ptr(inode).addr()
}

/// Returns whether there are watches.
#[inline]
pub(crate) fn are_any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Counts an instance of a user.
///
/// # Errors
/// [`Errno::EMFILE`].
pub(crate) fn add_instance(user: u32) -> Result<(), Errno> {
    let mut table = TABLE.lock();
    let usage = table.users.entry(user).or_default();
    if usage.instances >= MOST_INSTANCES {
        return Err(Errno::EMFILE);
    }
    usage.instances += 1;
    Ok(())
}

pub(crate) fn remove_instance(user: u32) {
    let mut table = TABLE.lock();
    if let Some(usage) = table.users.get_mut(&user) {
        usage.instances -= 1;
        if usage.instances == 0 && usage.watches == 0 {
            table.users.remove(&user);
        }
    }
}

/// Enters a watch of a user's instance.
///
/// # Errors
/// [`Errno::ENOSPC`] if the user has too many.
pub(crate) fn add(user: u32, watch: Arc<Watch>) -> Result<(), Errno> {
    let mut table = TABLE.lock();
    let usage = table.users.entry(user).or_default();
    if usage.watches >= MOST_WATCHES {
        return Err(Errno::ENOSPC);
    }
    usage.watches += 1;
    table.watches.entry(address(&watch.inode)).or_default().push(watch);
    COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Removes a watch of a user's instance, if it is entered.
pub(crate) fn remove(user: u32, watch: &Arc<Watch>) {
    let key = address(&watch.inode);
    let mut table = TABLE.lock();
    let Some(watches) = table.watches.get_mut(&key) else { return };
    let Some(at) = watches.iter().position(|other| Arc::ptr_eq(other, watch)) else { return };
    let removed = watches.swap_remove(at);
    if watches.is_empty() {
        table.watches.remove(&key);
    }
    if let Some(usage) = table.users.get_mut(&user) {
        usage.watches -= 1;
    }
    COUNT.fetch_sub(1, Ordering::Relaxed);
    drop(table);
    drop(removed);
}

fn watches_of(inode: &Arc<dyn Inode>) -> Vec<Arc<Watch>> {
    TABLE.lock().watches.get(&address(inode)).cloned().unwrap_or_default()
}

fn type_of(kind: InodeKind) -> u32 {
    if kind == InodeKind::Directory { linux::IN_ISDIR } else { 0 }
}

/// Notes an event of an open file: for its directory, with its name, and for itself. Watches with `IN_EXCL_UNLINK` do not
/// report it once the name is removed.
pub(crate) fn note(dentry: &Dentry, events: u32) {
    if are_any() {
        note_watched(dentry, events, dentry.is_removed());
    }
}

/// Notes a change of a file's attributes or length, as [`note`] does. `IN_EXCL_UNLINK` has no effect on such changes.
pub(crate) fn note_change(dentry: &Dentry, events: u32) {
    if are_any() {
        note_watched(dentry, events, false);
    }
}

#[inline(never)]
fn note_watched(dentry: &Dentry, events: u32, is_excludable: bool) {
    let events = events | type_of(dentry.kind());
    let reports = |watch: &Watch| !is_excludable || watch.mask() & linux::IN_EXCL_UNLINK == 0;
    if let Some((parent, name)) = dentry.parent_and_name() {
        let watches = watches_of(parent.inode());
        watches.iter().filter(|watch| reports(watch)).for_each(|watch| watch.notify(events, 0, &name));
    }
    let watches = watches_of(dentry.inode());
    watches.iter().filter(|watch| reports(watch)).for_each(|watch| watch.notify(events, 0, b""));
}

/// Notes an event of an inode itself.
pub(crate) fn note_inode(inode: &Arc<dyn Inode>, events: u32) {
    if are_any() {
        let events = events | type_of(inode.kind());
        watches_of(inode).iter().for_each(|watch| watch.notify(events, 0, b""));
    }
}

/// Notes an event of a directory's name, whose inode has this type.
pub(crate) fn note_name(directory: &Dentry, name: &[u8], kind: InodeKind, events: u32) {
    if are_any() {
        note_names(directory, name, kind, events, 0);
    }
}

fn note_names(directory: &Dentry, name: &[u8], kind: InodeKind, events: u32, cookie: u32) {
    let events = events | type_of(kind);
    watches_of(directory.inode()).iter().for_each(|watch| watch.notify(events, cookie, name));
}

/// Notes that a file has moved from a name to another one. Both events have the same cookie.
pub(crate) fn note_move(from: (&Dentry, &[u8]), to: (&Dentry, &[u8]), moved: &Dentry) {
    if !are_any() {
        return;
    }
    let cookie = COOKIE.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
    note_names(from.0, from.1, moved.kind(), linux::IN_MOVED_FROM, cookie);
    note_names(to.0, to.1, moved.kind(), linux::IN_MOVED_TO, cookie);
}

/// Ends the watches of an inode with this event, if `is_ended` says so.
pub(crate) fn note_end(inode: &Arc<dyn Inode>, is_ended: impl FnOnce() -> bool) {
    if !are_any() {
        return;
    }
    let watches = watches_of(inode);
    if !watches.is_empty() && is_ended() {
        end(&watches, linux::IN_DELETE_SELF);
    }
}

/// Ends the watches of a file system that is unmounted.
pub(crate) fn note_unmount(mounted: &MountedFileSystem) {
    if !are_any() {
        return;
    }
    let mounted = core::ptr::from_ref(mounted).addr();
    let is_of = |watch: &&Arc<Watch>| watch.mounted == mounted;
    let watches: Vec<_> = TABLE.lock().watches.values().flatten().filter(is_of).cloned().collect();
    end(&watches, linux::IN_UNMOUNT);
}

fn end(watches: &[Arc<Watch>], event: u32) {
    for watch in watches {
        watch.notify(event, 0, b"");
        if let Some(instance) = watch.instance.upgrade() {
            instance.end(watch);
        }
    }
}
