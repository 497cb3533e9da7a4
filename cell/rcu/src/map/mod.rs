//! A hash table that cores read without locks, and without writing anything.
//!
//! Writers, one at a time, retire what they take out of its [`Table`]. Growing and shrinking puts another table in its
//! place, of new buckets and links to the same entries; the old table goes with its links.
//!
//! A reader finds each key that is in the map all the while it looks, once, with one of its values of that time.

mod table;

use crate::retired::{check, retire};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use alloc::boxed::Box;
use core::borrow::Borrow;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::marker::PhantomData;
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use isola_ebbs::{CellEbb, Representative, platform};
use isola_events::quiescence::{self, Domain};
use spin::Mutex;
use table::{Entry, Table};

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
            unsafe {
                let table = &*self.table.load(Ordering::Acquire);
                table.entry(hash, key).map(|entry| look(&entry.value))
            }
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
                table.find(|_, entry| {
                    let entry = &*entry;
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
        let entry = Box::into_raw(Box::new(Entry { key, value }));
        // SAFETY: the only writer; links and entries are freed only after this event, and the entry is a box.
        let before = unsafe { table.put(hash, entry) };
        if let Some(before) = before {
            // SAFETY: no link has the entry any more; it is a box, given up here alone.
            unsafe { retire(before) };
        } else {
            let len = self.len.fetch_add(1, Ordering::Relaxed) + 1;
            if len > table.buckets() {
                self.resize(table, table.buckets() * 2);
            }
        }
        drop(writing);
        before.is_some()
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
        // SAFETY: the only writer; links and entries are freed only after this event.
        let Some((link, entry)) = (unsafe { table.take(hash, key) }) else { return false };
        // SAFETY: nothing points at the link any more, nor at the entry but the link; both are boxes, given up here alone.
        unsafe {
            retire(entry);
            retire(link);
        }
        let len = self.len.fetch_sub(1, Ordering::Relaxed) - 1;
        if table.buckets() > FEWEST_BUCKETS && len < table.buckets() / 8 {
            self.resize(table, table.buckets() / 2);
        }
        drop(writing);
        true
    }

    /// Moves the entries of `table`, which is the map's, to one of that many buckets. To be called by the only writer.
    fn resize(&self, table: &Table<K, V>, buckets: usize) {
        // SAFETY: the caller is the only writer: nobody unlinks or frees.
        let resized = unsafe { table.resized(buckets) };
        let before = self.table.swap(Box::into_raw(Box::new(resized)), Ordering::AcqRel);
        // SAFETY: the map does not have the table any more, which is a box, given up here alone. It frees its links, and no
        // entry.
        unsafe { retire(before) };
    }
}

impl<K, V, S> Drop for RcuMap<K, V, S> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the map any more, and readers do not outlive their borrow of it: table, links and entries
        // are its alone. Entries are freed first, as the table does not do it.
        unsafe {
            let table = Box::from_raw(self.table.load(Ordering::Relaxed));
            let _: Option<()> = table.find(|_, entry| {
                drop(Box::from_raw(entry));
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
