//! The counters of a shard, under memcached's names.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counts of events since the start or the last reset.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Adds the counts of another shard.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// Returns the counts with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Reads.
    cmd_get,
    /// Writes.
    cmd_set,
    /// Flushes.
    cmd_flush,
    /// Changes of an expiration time, with or without a read.
    cmd_touch,
    /// Inspections of items by the meta command `me`, as in memcached.
    cmd_meta,
    /// Reads that found their item.
    get_hits,
    /// Reads that found no item, or an expired or flushed one.
    get_misses,
    /// Reads that found an expired item.
    get_expired,
    /// Reads that found a flushed item.
    get_flushed,
    /// Deletes that found no item.
    delete_misses,
    /// Deletes that found their item.
    delete_hits,
    /// Increments that found no item.
    incr_misses,
    /// Increments that found their item.
    incr_hits,
    /// Decrements that found no item.
    decr_misses,
    /// Decrements that found their item.
    decr_hits,
    /// Writes with a version that found no item.
    cas_misses,
    /// Writes with a version that was accepted.
    cas_hits,
    /// Writes with a version that differed from the item's.
    cas_badval,
    /// Touches that found their item.
    touch_hits,
    /// Touches that found no item.
    touch_misses,
    /// Values that were too large.
    store_too_large,
    /// Values that did not fit in the memory.
    store_no_memory,
    /// Stored items.
    total_items,
    /// Items evicted before their expiration to free memory.
    evictions,
    /// Evicted items that had an expiration time.
    evicted_nonzero,
    /// Dead items removed.
    reclaimed,
    /// Expired items removed that no client had read.
    expired_unfetched,
    /// Evicted items that no client had read.
    evicted_unfetched,
    /// Bytes received from clients.
    bytes_read,
    /// Bytes sent to clients.
    bytes_written,
    /// Accepted connections.
    total_connections,
    /// Rejected connections.
    rejected_connections,
}

/// The counts and the memory use of one shard. `stats` reports the sum over the shards and the counts of the cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The time of the report, in seconds since 1970.
    pub time: u32,
    /// The counts of events.
    pub counters: Counters,
    /// The number of open connections.
    pub curr_connections: u64,
    /// The number of cores that have served connections.
    pub cores: u64,
    /// The number of items, including dead ones that are not removed yet.
    pub curr_items: u64,
    /// The memory of the items, without that of the hash index, in bytes.
    pub bytes: u64,
    /// The memory limit, in bytes.
    pub limit_maxbytes: u64,
    /// The memory of the hash index, in bytes.
    pub hash_bytes: u64,
    /// The number of buckets of the hash index.
    pub hash_buckets: u64,
    /// The time since the last use of the least recently used item, in seconds.
    pub oldest_age_s: u64,
}

impl Report {
    /// Adds the report of another shard.
    pub fn add(&mut self, other: &Self) {
        self.time = self.time.max(other.time);
        self.counters.add(&other.counters);
        self.curr_connections += other.curr_connections;
        self.cores += other.cores;
        self.curr_items += other.curr_items;
        self.bytes += other.bytes;
        self.limit_maxbytes += other.limit_maxbytes;
        self.hash_bytes += other.hash_bytes;
        self.hash_buckets += other.hash_buckets;
        self.oldest_age_s = self.oldest_age_s.max(other.oldest_age_s);
    }
}
