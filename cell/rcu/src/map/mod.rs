//! A hash table that cores read without locks and without stores.
//!
//! Writers exclude each other, and retire the entries that they unlink from the [`Table`]. To grow or shrink, a writer
//! replaces the table by one with new buckets and new links to the same entries; the old table is retired with its
//! links.
//!
//! A reader finds each key that is in the map for the whole read exactly once, with one of the values that it had in
//! that time.

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

/// The seed of the cell's hashes. By default foldhash uses addresses, which are the same in every run of an image.
struct Seeds(SharedSeed);

impl Representative for Seeds {
    fn create() -> Self {
        Self(SharedSeed::from_u64(platform().entropy()))
    }
}

/// The number of buckets of the smallest table.
const FEWEST_BUCKETS: usize = 8;

/// A hash table that the cores of a cell share. It belongs to the cell that creates it, for example as a representative
/// of an Ebb: here a table of routes, which each request reads and an operator changes rarely.
///
/// ```
/// use isola_ebbs::{CellEbb, Representative, current_core};
/// use isola_events::{exit, spawn, spawn_on};
/// use isola_hosted::Settings;
/// use isola_platform::CoreIndex;
/// use isola_rcu::RcuMap;
///
/// static ROUTES: CellEbb<Routes> = CellEbb::new();
///
/// struct Routes(RcuMap<u16, &'static str>);
///
/// impl Representative for Routes {
///     fn create() -> Self {
///         Self(RcuMap::new())
///     }
/// }
///
/// /// Returns the back end of a port, on any core.
/// fn backend(port: u16) -> Option<&'static str> {
///     ROUTES.0.get(&port)
/// }
///
/// let cell = isola_hosted::run(Settings { cores: 2, ..Settings::default() }, Vec::new(), |_| {
///     if current_core() == CoreIndex(0) {
///         spawn(|| {
///             ROUTES.0.insert(80, "web");
///             spawn_on(CoreIndex(1), || exit(if backend(80) == Some("web") { 0 } else { 1 }));
///         });
///     }
///     isola_events::run()
/// });
/// assert_eq!(cell, [0, 0]);
/// ```
pub struct RcuMap<K, V, S = SeedableRandomState> {
    table: AtomicPtr<Table<K, V>>,
    /// Only writers change it.
    len: AtomicUsize,
    writers: Mutex<()>,
    hasher: S,
    domain: Domain,
    owned: PhantomData<(K, V)>,
}

// SAFETY: several cores read keys and values at the same time (`Sync`), and any core may drop them (`Send`).
unsafe impl<K: Send + Sync, V: Send + Sync, S: Sync> Sync for RcuMap<K, V, S> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Send> Send for RcuMap<K, V, S> {}
impl<K, V> RcuMap<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Creates an empty table for the calling core's cell, with a hash that differs from run to run.
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
    /// Creates an empty table for the calling core's cell, with this hash.
    pub fn with_hasher(hasher: S) -> Self {
        let table = AtomicPtr::new(Box::into_raw(Box::new(Table::new(FEWEST_BUCKETS))));
        let (len, writers, domain) = (AtomicUsize::new(0), Mutex::new(()), Domain::current());
        Self { table, len, writers, hasher, domain, owned: PhantomData }
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns whether the table has no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `look` with the value of `key`; returns `None` if it has none.
    ///
    /// # Panics
    /// Panics on a core of another cell.
    #[inline]
    pub fn read<Q, R>(&self, key: &Q, look: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        check(self.domain);
        let hash = self.hasher.hash_one(key);
        quiescence::read(|| {
            // SAFETY: table, links and entries are freed only after this event (the crate's soundness argument).
            unsafe {
                let table = &*self.table.load(Ordering::Acquire);
                table.entry(hash, key).map(|entry| look(&entry.value))
            }
        })
    }

    /// Returns a clone of the value of `key`.
    ///
    /// # Panics
    /// Panics on a core of another cell.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        self.read(key, V::clone)
    }

    /// Calls `look` with each key and its value, in no particular order, until it returns a value. Concurrent
    /// insertions and removals may or may not be seen.
    ///
    /// # Panics
    /// Panics on a core of another cell.
    pub fn find<R>(&self, mut look: impl FnMut(&K, &V) -> Option<R>) -> Option<R> {
        check(self.domain);
        quiescence::read(|| {
            // SAFETY: table, links and entries are freed only after this event (the crate's soundness argument).
            unsafe {
                let table = &*self.table.load(Ordering::Acquire);
                table.find(|_, entry| {
                    let entry = &*entry;
                    look(&entry.key, &entry.value)
                })
            }
        })
    }

    /// Sets the value of `key`. A previous value is dropped once it has no readers. Returns whether there was one.
    ///
    /// # Panics
    /// Panics on a core of another cell.
    pub fn insert(&self, key: K, value: V) -> bool {
        check(self.domain);
        let hash = self.hasher.hash_one(&key);
        let writing = self.writers.lock();
        // SAFETY: only a writer frees the table, and this is the only writer.
        let table = unsafe { &*self.table.load(Ordering::Relaxed) };
        let entry = Box::into_raw(Box::new(Entry { key, value }));
        // SAFETY: this is the only writer; links and entries are freed only after this event; and the entry is from a
        // box.
        let before = unsafe { table.put(hash, entry) };
        if let Some(before) = before {
            // SAFETY: no link has the entry any more; it is from a box, and given up only here.
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

    /// Removes `key`; its value is dropped once it has no readers. Returns whether there was one.
    ///
    /// # Panics
    /// Panics on a core of another cell.
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        check(self.domain);
        let hash = self.hasher.hash_one(key);
        let writing = self.writers.lock();
        // SAFETY: only a writer frees the table, and this is the only writer.
        let table = unsafe { &*self.table.load(Ordering::Relaxed) };
        // SAFETY: this is the only writer; links and entries are freed only after this event.
        let Some((link, entry)) = (unsafe { table.take(hash, key) }) else { return false };
        // SAFETY: no pointer leads to the link any more, and only the link leads to the entry; both are from boxes, and
        // given up only here.
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

    /// Moves the entries of `table`, the map's present table, to a new one with `buckets` buckets. To be called by the
    /// only writer.
    fn resize(&self, table: &Table<K, V>, buckets: usize) {
        // SAFETY: the caller is the only writer: no other code unlinks or frees.
        let resized = unsafe { table.resized(buckets) };
        let before = self.table.swap(Box::into_raw(Box::new(resized)), Ordering::AcqRel);
        // SAFETY: the map no longer has the table, which is from a box, and given up only here. It frees its links, and
        // no entry.
        unsafe { retire(before) };
    }
}

impl<K, V, S> Drop for RcuMap<K, V, S> {
    fn drop(&mut self) {
        // SAFETY: the map has no other owner, and readers do not outlive their borrow of it, so table, links and
        // entries belong to the map alone. Entries are freed first, because the table does not free them.
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
