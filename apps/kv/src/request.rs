//! The requests of clients, independent of the protocol.

use isola_iobuf::{Chain, IoBuf};

use crate::key::Key;
use crate::time::Exptime;

/// A request to one shard. It shares the received frames and refers to no state of the connection.
#[derive(Debug)]
pub enum Request {
    /// An operation on one item, for the shard of its key.
    Item {
        /// The key of the item.
        key: Key,
        /// The operation.
        operation: Operation,
    },
    /// An operation for every shard.
    All(Broadcast),
}

/// The operations on all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broadcast {
    /// Invalidates all items that were stored before a time: now, or the given time.
    Flush(Exptime),
    /// Reports the counters.
    Stats,
    /// Sets the counters of events to zero.
    ResetStats,
    /// Enables or disables the counts of requests by key prefix.
    CountPrefixes(bool),
    /// Reports the counts by key prefix.
    PrefixStats,
    /// Lists up to `limit` items, the most recently used first.
    List {
        /// The largest number of items.
        limit: usize,
    },
}

/// The operations on one item.
#[derive(Debug)]
pub enum Operation {
    /// Reads the item.
    Get,
    /// Reads the item and changes its expiration time.
    GetAndTouch(Exptime),
    /// Changes the expiration time.
    Touch(Exptime),
    /// Writes the item.
    Store(Store),
    /// Rejects a store because of its size, before its value has arrived.
    RejectStore(ExistingItem),
    /// Removes the item; if there is a `cas`, only if the item has that version.
    Delete {
        /// The version that the client expects.
        cas: Option<u64>,
    },
    /// Adds to the decimal number that the item holds, or subtracts from it.
    Count(Count),
    /// Reads the item with its metadata, as a meta get does.
    MetaGet(MetaGet),
    /// Reads the item's metadata and changes nothing.
    Inspect,
    /// Marks the item as stale and gives it a new version; if there is a `cas`, only if the item has that version.
    Invalidate {
        /// The version that the client expects.
        cas: Option<u64>,
        /// The new expiration time of the item.
        exptime: Option<Exptime>,
    },
}

/// A read with the options of a meta get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaGet {
    /// The new expiration time of an existing item.
    pub exptime: Option<Exptime>,
    /// Creates an empty item with this expiration time if there is none, for the client to fill.
    pub vivify: Option<Exptime>,
    /// The remaining time to live below which the client is to store the item again.
    pub recache: Option<Exptime>,
    /// Whether the read counts as a use of the item.
    pub bump: Bump,
}

/// Whether a read counts as a use of the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bump {
    /// The item becomes the most recently used one.
    #[default]
    Used,
    /// The eviction order, the time of last use and the "was read" flag do not change.
    Unnoticed,
}

/// A write of an item.
#[derive(Debug)]
pub struct Store {
    /// The condition and the kind of the write.
    pub mode: StoreMode,
    /// 32 bits that the server stores for the client.
    pub flags: u32,
    /// The expiration time of the item.
    pub exptime: Exptime,
    /// The version that the item must have.
    pub cas: Option<u64>,
    /// The effect of a `cas` that is older than the item's version.
    pub older: OlderVersion,
    /// The value.
    pub value: Payload,
}

/// The effect of a store whose version is older than the item's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OlderVersion {
    /// The store is rejected.
    #[default]
    Refused,
    /// The store succeeds, keeps the item's expiration time, and marks the item as stale.
    StoredAsStale,
}

/// The effect of a rejected store on the existing item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingItem {
    /// The item is removed, so that no client reads a value that its writer believes to be overwritten.
    Removed,
    /// The item remains: the writer set a condition, so it has to check the result anyway.
    Kept,
}

/// The condition and the kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Stores always.
    Set,
    /// Stores only if there is no item.
    Add,
    /// Stores only if there is an item.
    Replace,
    /// Appends to the existing value; the flags and the expiration time do not change.
    Append,
    /// Prepends to the existing value; the flags and the expiration time do not change.
    Prepend,
}

/// An arithmetic operation on an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The direction.
    pub direction: Direction,
    /// The number to add or subtract.
    pub delta: u64,
    /// The number and the expiration time of the item to create if there is none, or `None` to create no item.
    pub initial: Option<(u64, Exptime)>,
    /// The version that the item must have.
    pub cas: Option<u64>,
    /// The new expiration time of an existing item.
    pub exptime: Option<Exptime>,
}

/// The direction of an arithmetic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Adds; wraps at 2^64.
    Up,
    /// Subtracts; stops at 0.
    Down,
}

/// The bytes of a value as they arrived. They are mostly one view, which saves a small value the memory of a chain.
#[derive(Clone, Debug)]
pub enum Payload {
    /// The value is in one frame.
    One(IoBuf),
    /// The value spans several frames.
    Many(Chain),
}

impl Payload {
    /// Removes the first `count` bytes of `input`.
    ///
    /// Returns `None`, and changes nothing, if `input` is shorter.
    pub(crate) fn take(input: &mut Chain, count: usize) -> Option<Self> {
        if count == 0 {
            return Some(Self::One(IoBuf::from_static(b"")));
        }
        if let Some(view) = input.front().and_then(|front| front.slice(0..count)) {
            input.advance(count);
            return Some(Self::One(view));
        }
        input.split_to(count).map(Self::Many)
    }

    /// Returns the length, in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::One(view) => view.len(),
            Self::Many(chain) => chain.len(),
        }
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the views, in order.
    pub fn parts(&self) -> impl Iterator<Item = &IoBuf> {
        let (one, many) = match self {
            Self::One(view) => (Some(view), None),
            Self::Many(chain) => (None, Some(chain.parts())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}
