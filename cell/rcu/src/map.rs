//! A hash table that cores read without locks, and without writing anything.
//!
//! ```text
//! table ──▶ buckets: [ ──▶ link ──▶ link ──▶ ∅ ]     a link: hash, next, entry
//!                    [ ──▶ ∅                   ]     an entry: key and value
//! ```
//!
//! A writer, one at a time, changes a pointer to publish what it made before, and retires what that took out:
//!
//! | to | one store to | retired |
//! |---|---|---|
//! | insert | the bucket: the new link, whose next is the old first | |
//! | replace | the link's entry | the old entry |
//! | remove | whatever points at the link: its next | link and entry; the link keeps its next for who stands on it |
//! | grow, shrink | `table`: new buckets of new links to the same entries | the old buckets and links |
//!
//! So a reader finds each key that is in the map all the while it looks, once, with one of its values of that time.

use crate::retired::{check, retire};
use alloc::boxed::Box;
use core::borrow::Borrow;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::marker::PhantomData;
use core::ptr::{from_mut, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use isola_ebbs::{CellEbb, Representative, platform};
use isola_events::quiescence::{self, Domain};
use spin::Mutex;

static SEEDS: CellEbb<Seeds> = CellEbb::new();

/// What the cell's hashes begin with. foldhash would take addresses for that, which are the same in every run of an
/// image.
struct Seeds(SharedSeed);

impl Representative for Seeds {
    fn create() -> Self {
        Self(SharedSeed::from_u64(platform().entropy()))
    }
}

/// Buckets of the smallest table.
const FEWEST_BUCKETS: usize = 8;

struct Entry<K, V> {
    key: K,
    value: V,
}

struct Link<K, V> {
    hash: u64,
    next: AtomicPtr<Link<K, V>>,
    entry: AtomicPtr<Entry<K, V>>,
}

/// Owns its links, and no entry.
struct Table<K, V> {
    /// A power of two of them.
    buckets: Box<[AtomicPtr<Link<K, V>>]>,
}

/// A hash table of a cell's cores. To be made by the cell that uses it, as a representative of an Ebb for one.
pub struct RcuMap<K, V, S = SeedableRandomState> {
    table: AtomicPtr<Table<K, V>>,
    /// Changed by writers alone.
    len: AtomicUsize,
    writers: Mutex<()>,
    hasher: S,
    domain: Domain,
    owned: PhantomData<(K, V)>,
}

// SAFETY: cores read keys and values at the same time (`Sync`), and they are dropped on whichever core (`Send`).
unsafe impl<K: Send + Sync, V: Send + Sync, S: Sync> Sync for RcuMap<K, V, S> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Send> Send for RcuMap<K, V, S> {}
// SAFETY: a table's links are its own; their entries are of types that may move, as `RcuMap` demands.
unsafe impl<K: Send, V: Send> Send for Table<K, V> {}
// SAFETY: as above.
unsafe impl<K: Send, V: Send> Send for Link<K, V> {}

impl<K, V> Table<K, V> {
    fn new(buckets: usize) -> Self {
        Self { buckets: (0..buckets).map(|_| AtomicPtr::new(null_mut())).collect() }
    }

    #[inline]
    fn bucket(&self, hash: u64) -> &AtomicPtr<Link<K, V>> {
        // The upper half: foldhash's lower bits alone are as good, but other hashers' may not be.
        &self.buckets[(hash >> 32) as usize & (self.buckets.len() - 1)]
    }

    /// Puts a link in front of its bucket. One caller at a time.
    fn push(&self, hash: u64, entry: *mut Entry<K, V>) {
        let bucket = self.bucket(hash);
        let next = AtomicPtr::new(bucket.load(Ordering::Relaxed));
        let link = Box::new(Link { hash, next, entry: AtomicPtr::new(entry) });
        bucket.store(Box::into_raw(link), Ordering::Release);
    }

    /// Calls `visit` with each link, until that returns a value.
    ///
    /// # Safety
    /// No link that is in the table, or is taken out meanwhile, is freed meanwhile.
    unsafe fn find_link<R>(&self, mut visit: impl FnMut(&Link<K, V>) -> Option<R>) -> Option<R> {
        for bucket in &self.buckets {
            let mut next = bucket.load(Ordering::Acquire);
            // SAFETY: by this function's contract.
            while let Some(link) = unsafe { next.as_ref() } {
                next = link.next.load(Ordering::Acquire);
                if let Some(result) = visit(link) {
                    return Some(result);
                }
            }
        }
        None
    }
}

impl<K, V> Drop for Table<K, V> {
    fn drop(&mut self) {
        for bucket in &mut self.buckets {
            let mut next = *bucket.get_mut();
            while !next.is_null() {
                // SAFETY: links are boxes of their table alone, and nobody has the table any more.
                let mut link = unsafe { Box::from_raw(next) };
                next = *link.next.get_mut();
            }
        }
    }
}

impl<K, V> RcuMap<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// An empty table for the calling core's cell, with a hash that differs from run to run.
    pub fn new() -> Self {
        Self::with_hasher(SeedableRandomState::with_seed(platform().entropy(), &SEEDS.0))
    }
}

impl<K, V> Default for RcuMap<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V, S> RcuMap<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher,
{
    /// An empty table for the calling core's cell, with that hash.
    pub fn with_hasher(hasher: S) -> Self {
        let table = AtomicPtr::new(Box::into_raw(Box::new(Table::new(FEWEST_BUCKETS))));
        let (len, writers, domain) = (AtomicUsize::new(0), Mutex::new(()), Domain::current());
        Self { table, len, writers, hasher, domain, owned: PhantomData }
    }

    /// How many keys are in it.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `look` with the value of `key`; `None` where it has none.
    ///
    /// # Panics
    /// On a core of another cell.
    #[inline]
    pub fn read<Q, R>(&self, key: &Q, look: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        check(self.domain);
        let hash = self.hasher.hash_one(key);
        quiescence::read(|| {
            // SAFETY: table, links and entries are freed only after this event (the crate's argument).
            let mut next =
                unsafe { &*self.table.load(Ordering::Acquire) }.bucket(hash).load(Ordering::Acquire);
            // SAFETY: as above.
            while let Some(link) = unsafe { next.as_ref() } {
                if link.hash == hash {
                    // SAFETY: as above; a link always has an entry.
                    let entry = unsafe { &*link.entry.load(Ordering::Acquire) };
                    if entry.key.borrow() == key {
                        return Some(look(&entry.value));
                    }
                }
                next = link.next.load(Ordering::Acquire);
            }
            None
        })
    }

    /// The value of `key`.
    ///
    /// # Panics
    /// On a core of another cell.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        self.read(key, V::clone)
    }

    /// Calls `look` with each key and its value, in no order, until that returns a value. Of what is put in or taken out
    /// meanwhile, some may be seen.
    ///
    /// # Panics
    /// On a core of another cell.
    pub fn find<R>(&self, mut look: impl FnMut(&K, &V) -> Option<R>) -> Option<R> {
        check(self.domain);
        quiescence::read(|| {
            // SAFETY: table, links and entries are freed only after this event (the crate's argument).
            unsafe {
                let table = &*self.table.load(Ordering::Acquire);
                table.find_link(|link| {
                    let entry = &*link.entry.load(Ordering::Acquire);
                    look(&entry.key, &entry.value)
                })
            }
        })
    }

    /// Sets the value of `key`. What it had is dropped once nobody looks at it. Returns whether it had one.
    ///
    /// # Panics
    /// On a core of another cell.
    pub fn insert(&self, key: K, value: V) -> bool {
        check(self.domain);
        let hash = self.hasher.hash_one(&key);
        let writing = self.writers.lock();
        // SAFETY: the table is freed by a writer alone, and this is the only one.
        let table = unsafe { &*self.table.load(Ordering::Relaxed) };
        // SAFETY: links are freed only after this event.
        let known = unsafe { Self::position(table, hash, &key) };
        let entry = Box::into_raw(Box::new(Entry { key, value }));
        let had = known.is_some();
        if let Some(place) = known {
            // SAFETY: `position` found a link there, and writers alone unlink.
            let link = unsafe { &*place.load(Ordering::Relaxed) };
            let before = link.entry.swap(entry, Ordering::AcqRel);
            // SAFETY: no link has the entry any more; it is a box, given up here alone.
            unsafe { retire(before) };
        } else {
            table.push(hash, entry);
            let len = self.len.fetch_add(1, Ordering::Relaxed) + 1;
            if len > table.buckets.len() {
                self.resize(table, table.buckets.len() * 2);
            }
        }
        drop(writing);
        had
    }

    /// Takes `key` out; its value is dropped once nobody looks at it. Returns whether it had one.
    ///
    /// # Panics
    /// On a core of another cell.
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        check(self.domain);
        let hash = self.hasher.hash_one(key);
        let writing = self.writers.lock();
        // SAFETY: the table is freed by a writer alone, and this is the only one.
        let table = unsafe { &*self.table.load(Ordering::Relaxed) };
        // SAFETY: links are freed only after this event.
        let Some(place) = (unsafe { Self::position(table, hash, key) }) else { return false };
        let unlinked = place.load(Ordering::Relaxed);
        // SAFETY: `position` found a link there, and writers alone unlink.
        let link = unsafe { &*unlinked };
        place.store(link.next.load(Ordering::Relaxed), Ordering::Release);
        let entry = link.entry.load(Ordering::Relaxed);
        // SAFETY: nothing points at the link any more, nor at the entry but the link; both are boxes, given up here alone.
        unsafe {
            retire(entry);
            retire(unlinked);
        }
        let len = self.len.fetch_sub(1, Ordering::Relaxed) - 1;
        if table.buckets.len() > FEWEST_BUCKETS && len < table.buckets.len() / 8 {
            self.resize(table, table.buckets.len() / 2);
        }
        drop(writing);
        true
    }

    /// What points at the link of `key`.
    ///
    /// # Safety
    /// The caller is the only writer, and no link is freed for as long as it uses what this returns.
    unsafe fn position<'a, Q>(table: &'a Table<K, V>, hash: u64, key: &Q) -> Option<&'a AtomicPtr<Link<K, V>>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut place = table.bucket(hash);
        // SAFETY: by this function's contract.
        while let Some(link) = unsafe { place.load(Ordering::Relaxed).as_ref() } {
            // SAFETY: as above; a link always has an entry.
            if link.hash == hash && unsafe { &*link.entry.load(Ordering::Relaxed) }.key.borrow() == key {
                return Some(place);
            }
            place = &link.next;
        }
        None
    }

    /// Moves the entries of `table`, which is the map's, to one of that many buckets. To be called by the only writer.
    fn resize(&self, table: &Table<K, V>, buckets: usize) {
        let resized = Box::new(Table::new(buckets));
        // SAFETY: the caller is the only writer: nobody unlinks or frees.
        let _: Option<()> = unsafe {
            table.find_link(|link| {
                resized.push(link.hash, link.entry.load(Ordering::Relaxed));
                None
            })
        };
        let before = self.table.swap(Box::into_raw(resized), Ordering::AcqRel);
        // SAFETY: the map does not have the table any more, which is a box, given up here alone. It frees its links, and no
        // entry.
        unsafe { retire(before) };
    }
}

impl<K, V, S> Drop for RcuMap<K, V, S> {
    fn drop(&mut self) {
        let table = from_mut(self.table.get_mut());
        // SAFETY: nobody else has the map any more, and readers do not outlive their borrow of it: table, links and entries
        // are its alone. Entries are freed first, as the table does not do it.
        unsafe {
            let table = Box::from_raw(*table);
            let _: Option<()> = table.find_link(|link| {
                drop(Box::from_raw(link.entry.load(Ordering::Relaxed)));
                None
            });
        }
    }
}

impl<K, V, S> fmt::Debug for RcuMap<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcuMap").field("len", &self.len.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}
