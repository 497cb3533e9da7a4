//! What a shard counts, under the names that memcached gives the same counts.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of events since the start or the last reset.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Adds the counts of another shard.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// The counts by name.
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
    /// Descriptions of items, as memcached counts meta commands.
    cmd_meta,
    /// Reads that found their item.
    get_hits,
    /// Reads that did not, expired and flushed ones included.
    get_misses,
    /// Reads that found an item past its end.
    get_expired,
    /// Reads that found an item from before a flush.
    get_flushed,
    /// Deletes of what was not there.
    delete_misses,
    /// Deletes of what was.
    delete_hits,
    /// Increments of what was not there.
    incr_misses,
    /// Increments of what was.
    incr_hits,
    /// Decrements of what was not there.
    decr_misses,
    /// Decrements of what was.
    decr_hits,
    /// Writes over a version of what was not there.
    cas_misses,
    /// Writes over the version that was there.
    cas_hits,
    /// Writes over another version than was there.
    cas_badval,
    /// Touches of what was there.
    touch_hits,
    /// Touches of what was not.
    touch_misses,
    /// Values that were too large.
    store_too_large,
    /// Values that did not fit in the memory.
    store_no_memory,
    /// Items stored.
    total_items,
    /// Items evicted before their end, for their memory.
    evictions,
    /// Of these, the ones that had an end.
    evicted_nonzero,
    /// Items taken out past their end.
    reclaimed,
    /// Of these, the ones that no client ever read.
    expired_unfetched,
    /// Of the evicted ones, those that nobody ever read.
    evicted_unfetched,
    /// Bytes received from clients.
    bytes_read,
    /// Bytes sent to clients.
    bytes_written,
    /// Connections accepted.
    total_connections,
    /// Connections turned down.
    rejected_connections,
}

/// What one shard holds and has done; summed over the shards, with what cores count, what `stats` tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The time of the report, in seconds since 1970.
    pub time: u32,
    /// What was counted.
    pub counters: Counters,
    /// Connections now.
    pub curr_connections: u64,
    /// Cores that have served connections.
    pub cores: u64,
    /// Items now, with the expired ones that are not taken out yet.
    pub curr_items: u64,
    /// Memory of all items and of what finds them.
    pub bytes: u64,
    /// Memory limit.
    pub limit_maxbytes: u64,
    /// Memory of the hash index alone.
    pub hash_bytes: u64,
    /// Buckets of the hash index.
    pub hash_buckets: u64,
    /// How long ago, in seconds, the least recently used item was used.
    pub oldest_age_s: u64,
}

impl Report {
    /// Takes another shard's report in.
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
