//! The buckets of a map, and their chains of links.
//!
//! ```text
//! buckets: [ ──▶ link ──▶ link ──▶ ∅ ]     a link: hash, next, entry
//!          [ ──▶ ∅                   ]     an entry: key and value
//! ```
//!
//! One writer at a time changes one pointer to publish an object that is complete:
//!
//! | operation | the one store | unlinked |
//! |---|---|---|
//! | insert | to the bucket: the new link, whose next is the old first link | |
//! | replace | to the link's entry | the old entry |
//! | remove | to the pointer at the link: its next | link and entry; the link keeps its next for readers |
//!
//! The writer frees unlinked objects, once they have no readers.

use crate::sync::{AtomicPtr, Ordering};
use alloc::boxed::Box;
use core::borrow::Borrow;
use core::ptr::null_mut;

pub(super) struct Entry<K, V> {
    pub key: K,
    pub value: V,
}

pub(super) struct Link<K, V> {
    hash: u64,
    next: AtomicPtr<Link<K, V>>,
    entry: AtomicPtr<Entry<K, V>>,
}

/// An unlinked link, which new readers do not find, and its entry.
pub(super) type UnlinkedPair<K, V> = (*mut Link<K, V>, *mut Entry<K, V>);

/// A hash table that owns its links, and no entry.
pub(super) struct Table<K, V> {
    /// The buckets; their number is a power of two.
    buckets: Box<[AtomicPtr<Link<K, V>>]>,
}

// SAFETY: a table owns its links; the types of their entries may move between cores, as `RcuMap` demands.
unsafe impl<K: Send, V: Send> Send for Table<K, V> {}
// SAFETY: as above.
unsafe impl<K: Send, V: Send> Send for Link<K, V> {}

impl<K, V> Table<K, V> {
    /// Returns a table of empty buckets. `buckets` is a power of two.
    pub fn new(buckets: usize) -> Self {
        Self { buckets: (0..buckets).map(|_| AtomicPtr::new(null_mut())).collect() }
    }

    /// Returns the number of buckets.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    #[inline]
    fn bucket(&self, hash: u64) -> &AtomicPtr<Link<K, V>> {
        // The upper half of the hash: foldhash's lower bits are as good, but other hashers' may not be.
        &self.buckets[(hash >> 32) as usize & (self.buckets.len() - 1)]
    }

    /// Inserts a link at the front of its bucket. One caller at a time.
    fn push(&self, hash: u64, entry: *mut Entry<K, V>) {
        let bucket = self.bucket(hash);
        let next = AtomicPtr::new(bucket.load(Ordering::Relaxed));
        let link = Box::new(Link { hash, next, entry: AtomicPtr::new(entry) });
        bucket.store(Box::into_raw(link), Ordering::Release);
    }

    /// Returns the entry of `key`.
    ///
    /// # Safety
    /// No link or entry that is in the table, or is unlinked meanwhile, is freed for as long as the caller uses the
    /// result.
    #[inline]
    pub unsafe fn entry<Q>(&self, hash: u64, key: &Q) -> Option<&Entry<K, V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut next = self.bucket(hash).load(Ordering::Acquire);
        // SAFETY: by this function's contract.
        while let Some(link) = unsafe { next.as_ref() } {
            if link.hash == hash {
                // SAFETY: as above; a link always has an entry.
                let entry = unsafe { &*link.entry.load(Ordering::Acquire) };
                if entry.key.borrow() == key {
                    return Some(entry);
                }
            }
            next = link.next.load(Ordering::Acquire);
        }
        None
    }

    /// Calls `visit` with the hash of each key and its entry, until it returns a value.
    ///
    /// # Safety
    /// No link that is in the table, or is unlinked meanwhile, is freed during the call.
    pub unsafe fn find<R>(&self, mut visit: impl FnMut(u64, *mut Entry<K, V>) -> Option<R>) -> Option<R> {
        for bucket in &self.buckets {
            let mut next = bucket.load(Ordering::Acquire);
            // SAFETY: by this function's contract.
            while let Some(link) = unsafe { next.as_ref() } {
                next = link.next.load(Ordering::Acquire);
                if let Some(result) = visit(link.hash, link.entry.load(Ordering::Acquire)) {
                    return Some(result);
                }
            }
        }
        None
    }

    /// Inserts an entry, and returns the entry that its key had before.
    ///
    /// # Safety
    /// The caller is the only writer; `entry` is from a box, which the caller gives up; and no link or entry is freed
    /// during the call.
    pub unsafe fn put(&self, hash: u64, entry: *mut Entry<K, V>) -> Option<*mut Entry<K, V>>
    where
        K: Eq,
    {
        // SAFETY: by this function's contract.
        let key = unsafe { &(*entry).key };
        // SAFETY: by this function's contract.
        let Some(pointer) = (unsafe { self.position(hash, key) }) else {
            self.push(hash, entry);
            return None;
        };
        // SAFETY: `position` found a link there, and only writers unlink.
        let link = unsafe { &*pointer.load(Ordering::Relaxed) };
        Some(link.entry.swap(entry, Ordering::AcqRel))
    }

    /// Unlinks the link of `key`, and returns it with its entry.
    ///
    /// # Safety
    /// The caller is the only writer, and no link or entry is freed during the call.
    pub unsafe fn take<Q>(&self, hash: u64, key: &Q) -> Option<UnlinkedPair<K, V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        // SAFETY: by this function's contract.
        let pointer = unsafe { self.position(hash, key) }?;
        let unlinked = pointer.load(Ordering::Relaxed);
        // SAFETY: `position` found a link there, and only writers unlink.
        let link = unsafe { &*unlinked };
        pointer.store(link.next.load(Ordering::Relaxed), Ordering::Release);
        Some((unlinked, link.entry.load(Ordering::Relaxed)))
    }

    /// Returns a table of `buckets` buckets with the same entries.
    ///
    /// # Safety
    /// The caller is the only writer, and no link is freed during the call.
    pub unsafe fn resized(&self, buckets: usize) -> Self {
        let resized = Self::new(buckets);
        // SAFETY: by this function's contract.
        let _: Option<()> = unsafe {
            self.find(|hash, entry| {
                resized.push(hash, entry);
                None
            })
        };
        resized
    }

    /// Returns the pointer to the link of `key`.
    ///
    /// # Safety
    /// The caller is the only writer, and no link is freed for as long as it uses the result.
    unsafe fn position<Q>(&self, hash: u64, key: &Q) -> Option<&AtomicPtr<Link<K, V>>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut pointer = self.bucket(hash);
        // SAFETY: by this function's contract.
        while let Some(link) = unsafe { pointer.load(Ordering::Relaxed).as_ref() } {
            // SAFETY: as above; a link always has an entry.
            if link.hash == hash && unsafe { &*link.entry.load(Ordering::Relaxed) }.key.borrow() == key {
                return Some(pointer);
            }
            pointer = &link.next;
        }
        None
    }
}

impl<K, V> Drop for Table<K, V> {
    fn drop(&mut self) {
        for bucket in &self.buckets {
            let mut next = bucket.load(Ordering::Relaxed);
            while !next.is_null() {
                // SAFETY: links are from boxes and belong to their table alone, which has no other owner.
                let link = unsafe { Box::from_raw(next) };
                next = link.next.load(Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use alloc::vec::Vec;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// A value that loom tracks: reading it before its publication is a race.
    struct Tracked(UnsafeCell<u32>);

    impl Tracked {
        fn look(&self) -> u32 {
            // SAFETY: the value is not written after its creation.
            self.0.with(|value| unsafe { *value })
        }
    }

    type Map = Table<u32, Tracked>;

    fn boxed(key: u32, value: u32) -> *mut Entry<u32, Tracked> {
        Box::into_raw(Box::new(Entry { key, value: Tracked(UnsafeCell::new(value)) }))
    }

    fn hash(key: u32) -> u64 {
        u64::from(key) << 32
    }

    /// Inserts the keys 1 to `most`, each with ten times its number as value.
    fn fill(table: &Map, most: u32) {
        for key in 1..=most {
            // SAFETY: the only writer; nothing is freed before all threads have ended.
            assert!(unsafe { table.put(hash(key), boxed(key, key * 10)) }.is_none());
        }
    }

    /// Spawns a reader of `key`, a thread that returns the value it finds.
    fn read(table: &Arc<Map>, key: u32) -> thread::JoinHandle<Option<u32>> {
        let table = table.clone();
        thread::spawn(move || {
            // SAFETY: unlinked objects are freed when all threads have ended.
            unsafe { table.entry(hash(key), &key) }.map(|entry| entry.value.look())
        })
    }

    /// Frees the table, its entries and the unlinked entries.
    fn free(table: Arc<Map>, entries: Vec<*mut Entry<u32, Tracked>>) {
        let mut entries = entries;
        // SAFETY: the threads have ended.
        let _: Option<()> = unsafe {
            table.find(|_, entry| {
                entries.push(entry);
                None
            })
        };
        // SAFETY: as above; each entry is from a box, and in the list once.
        entries.into_iter().for_each(|entry| drop(unsafe { Box::from_raw(entry) }));
    }

    #[test]
    fn a_reader_finds_the_old_or_the_new_value_completely() {
        loom::model(|| {
            let table = Arc::new(Map::new(1));
            // SAFETY: the only writer; nothing is freed before all threads have ended.
            let before = unsafe {
                table.put(hash(1), boxed(1, 10));
                let readers = [read(&table, 1), read(&table, 2)];
                let before = table.put(hash(1), boxed(1, 11));
                table.put(hash(2), boxed(2, 20));
                let [one, two] = readers.map(|reader| reader.join().unwrap());
                assert!(matches!(one, Some(10 | 11)), "{one:?}");
                assert!(matches!(two, None | Some(20)), "{two:?}");
                before
            };
            free(table, before.into_iter().collect());
        });
    }

    #[test]
    fn a_reader_at_an_unlinked_link_finds_the_rest_of_the_chain() {
        loom::model(|| {
            let table = Arc::new(Map::new(1));
            // SAFETY: as above.
            unsafe {
                fill(&table, 3);
                let readers = [read(&table, 1), read(&table, 2)];
                let (link, entry) = table.take(hash(2), &2).unwrap();
                let [one, two] = readers.map(|reader| reader.join().unwrap());
                assert_eq!(one, Some(10));
                assert!(matches!(two, None | Some(20)), "{two:?}");
                drop(Box::from_raw(link));
                free(table, Vec::from([entry]));
            }
        });
    }

    #[test]
    fn a_key_is_found_while_the_table_is_replaced_by_a_larger_one() {
        loom::model(|| {
            let first = Box::into_raw(Box::new(Map::new(1)));
            let pointer = Arc::new(AtomicPtr::new(first));
            // SAFETY: as above; the first table is freed when the reader has ended.
            unsafe {
                fill(&*first, 2);
                let reader = {
                    let pointer = pointer.clone();
                    thread::spawn(move || {
                        let table = &*pointer.load(Ordering::Acquire);
                        table.entry(hash(1), &1).map(|entry| entry.value.look())
                    })
                };
                let second = (*first).resized(2);
                second.put(hash(3), boxed(3, 30));
                let second = Box::into_raw(Box::new(second));
                let before = pointer.swap(second, Ordering::AcqRel);
                assert_eq!(reader.join().unwrap(), Some(10));
                drop(Box::from_raw(before));
                free(Arc::new(*Box::from_raw(second)), Vec::new());
            }
        });
    }
}
