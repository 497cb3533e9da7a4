//! What a client asks of the store, in the words of neither protocol.

use isola_iobuf::{Chain, IoBuf};

use crate::key::Key;
use crate::time::Exptime;

/// Work for one shard. It shares the received frames and refers to nothing of the connection.
#[derive(Debug)]
pub enum Request {
    /// An operation on one item, for the shard that owns its key.
    Item {
        /// The item's key.
        key: Key,
        /// What to do.
        operation: Operation,
    },
    /// An operation for every shard.
    All(Broadcast),
}

/// What every shard does for one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broadcast {
    /// Makes everything disappear that is stored before a moment: now, or the given one.
    Flush(Exptime),
    /// Reports the counters.
    Stats,
    /// Sets the counters that count events to zero.
    ResetStats,
    /// Begins to count requests by the prefix of their key, or stops it.
    CountPrefixes(bool),
    /// Reports these counts.
    PrefixStats,
    /// Names up to this many items, those that were used last first.
    List {
        /// The most.
        limit: usize,
    },
}

/// What to do with one item.
#[derive(Debug)]
pub enum Operation {
    /// Reads it.
    Get,
    /// Reads it and changes its expiration time.
    GetAndTouch(Exptime),
    /// Changes its expiration time.
    Touch(Exptime),
    /// Writes it.
    Store(Store),
    /// Counts a store that is turned down for its size before its value is there.
    RejectStore(Stale),
    /// Removes it; where there is a `cas`, only if the item is of that version.
    Delete {
        /// The version that the client knows.
        cas: Option<u64>,
    },
    /// Adds to the decimal number that it holds, or subtracts from it.
    Count(Count),
    /// Reads it with its metadata, as a meta get does.
    MetaGet(MetaGet),
    /// Reads its metadata, and changes nothing.
    Inspect,
    /// Marks it as stale, as a new version; where there is a `cas`, only if the item is of that version.
    Invalidate {
        /// The version that the client knows.
        cas: Option<u64>,
        /// The item's new expiration time.
        exptime: Option<Exptime>,
    },
}

/// A read that may change more than the order of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaGet {
    /// The item's new expiration time, where it is there.
    pub exptime: Option<Exptime>,
    /// Where there is no item, creates an empty one with this expiration time, for the client to fill.
    pub vivify: Option<Exptime>,
    /// Where less than this time is left, the client is to store the item anew.
    pub recache: Option<Exptime>,
    /// Whether the read counts as a use of the item.
    pub bump: Bump,
}

/// Whether a read counts as a use of the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bump {
    /// The item becomes the one that was used last.
    #[default]
    Used,
    /// Eviction order, time of last use and "was read" do not change.
    Unnoticed,
}

/// A write of an item.
#[derive(Debug)]
pub struct Store {
    /// On what condition, and how.
    pub mode: StoreMode,
    /// 32 bits of the client's, kept as they are.
    pub flags: u32,
    /// When the item ends.
    pub exptime: Exptime,
    /// Stores only over the item of this version.
    pub cas: Option<u64>,
    /// The effect of a `cas` that is an older version than the item's.
    pub older: OlderVersion,
    /// The value.
    pub value: Payload,
}

/// The effect of a store whose version is older than the item's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OlderVersion {
    /// Nothing: it is refused.
    #[default]
    Refused,
    /// It stores, keeps the item's expiration time, and marks the item as stale.
    StoredAsStale,
}

/// What becomes of the item that a store which is turned down was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// It goes, so that nobody reads what its writer believes to be overwritten.
    Goes,
    /// It stays: the writer set a condition, and has to look what came of it anyway.
    Stays,
}

/// On what condition a value is stored, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Always.
    Set,
    /// Only where there is no item.
    Add,
    /// Only where there is one.
    Replace,
    /// Behind the value that is there; its flags and expiration time stay.
    Append,
    /// In front of the value that is there; its flags and expiration time stay.
    Prepend,
}

/// Arithmetic on an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Up or down.
    pub direction: Direction,
    /// By how much.
    pub delta: u64,
    /// What to store where there is no item, or `None` to leave it so.
    pub initial: Option<(u64, Exptime)>,
    /// Counts only where the item is of this version.
    pub cas: Option<u64>,
    /// The new expiration time of an item that was there.
    pub exptime: Option<Exptime>,
}

/// Which way to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Wraps at 2^64.
    Up,
    /// Stops at 0.
    Down,
}

/// A value's bytes as they arrived: mostly one view, which spares a small value the memory of a chain.
#[derive(Clone, Debug)]
pub enum Payload {
    /// All in one frame.
    One(IoBuf),
    /// Over several frames.
    Many(Chain),
}

impl Payload {
    /// Takes the first `count` bytes off `input`, which holds them.
    ///
    /// Returns `None`, and changes nothing, where it does not.
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

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::One(view) => view.len(),
            Self::Many(chain) => chain.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The views in order.
    pub fn parts(&self) -> impl Iterator<Item = &IoBuf> {
        let (one, many) = match self {
            Self::One(view) => (Some(view), None),
            Self::Many(chain) => (None, Some(chain.parts())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}
