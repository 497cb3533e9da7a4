//! The responses of shards, independent of the protocol.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use isola_iobuf::{Chain, IoBuf};

use crate::answer::Answer;
use crate::shard::{Prefixes, Report};
use crate::time::Deadline;

/// The outcome of a request.
#[derive(Debug)]
pub enum Response {
    /// The item of a read.
    Hit(Hit),
    /// There is no such item. Contains the key of a read, because one form of answer repeats it.
    Miss(Option<IoBuf>),
    /// The item was stored.
    Stored {
        /// The new version.
        cas: u64,
    },
    /// The condition of an `add`, `replace`, `append` or `prepend` does not hold.
    NotStored(NotStored),
    /// The item has another version than the client expects.
    Exists,
    /// The item was removed, or marked as stale.
    Deleted,
    /// The item has its new expiration time.
    Touched {
        /// The version, which a touch does not change.
        cas: u64,
        /// The flags of the client.
        flags: u32,
    },
    /// The number after the arithmetic operation.
    Number {
        /// The number.
        value: u64,
        /// The new version.
        cas: u64,
        /// The time to live of the item.
        time_left: TimeLeft,
    },
    /// The value is not a decimal number of 64 bits.
    NotANumber,
    /// The value exceeds the maximum length.
    TooLarge,
    /// The item does not fit in the shard's memory, even after evicting all others.
    OutOfMemory,
    /// The shard has done its part of an operation on all shards.
    Done,
    /// An outcome that is larger than that of a usual request.
    Details(Box<Details>),
}

/// An outcome that is larger than that of a usual request. All share one pointer of [`Response`], so that the code that
/// moves and drops responses stays short.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is always in memory of its own")]
pub enum Details {
    /// The item that a meta command read, with its metadata.
    Item(Description),
    /// The shard's counters.
    Report(Report),
    /// The counts of requests by key prefix.
    Prefixes(Prefixes),
    /// A list of items.
    List(Vec<ListedItem>),
}

impl From<Details> for Response {
    fn from(details: Details) -> Self {
        Self::Details(Box::new(details))
    }
}

/// The condition of a store that does not hold. The binary protocol has different statuses for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// An `add` found an item.
    Present,
    /// A `replace` found no item.
    Absent,
    /// An `append` or `prepend` found no item.
    NothingToExtend,
}

/// An item at the time of its read. It shares the item's memory, and does not change when the item is overwritten or
/// evicted.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The flags of the client.
    pub flags: u32,
    /// The version.
    pub cas: u64,
    /// The key and the value.
    pub body: Body,
}

/// An item with its metadata.
#[derive(Clone, Debug)]
pub struct Description {
    /// The item.
    pub hit: Hit,
    /// The time to live of the item.
    pub time_left: TimeLeft,
    /// The time since the last read or write before the command, in seconds.
    pub idle_s: u32,
    /// Whether the item was read between its last store and the command.
    pub was_read: bool,
    /// The memory of the item, in bytes.
    pub item_bytes: usize,
    /// Whether the item is marked as stale.
    pub is_stale: bool,
    /// Whether the server has asked an earlier client to store the item again.
    pub is_promised: bool,
    /// Whether the server asks this client to store the item again.
    pub is_won: bool,
}

/// An item in a list.
#[derive(Clone, Debug)]
pub struct ListedItem {
    /// The key and the value.
    pub body: Body,
    /// The deadline of the item.
    pub deadline: Deadline,
}

/// The seconds until an item expires; `None` if it never expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeLeft {
    /// The time before the command.
    pub before: Option<u32>,
    /// The time after the command.
    pub after: Option<u32>,
}

/// The key and the value of an item.
#[derive(Clone, Debug)]
pub enum Body {
    /// The key and the value in contiguous memory.
    Whole(Answer),
    /// A large value, in the received frames or in blocks.
    Parts(Arc<Parts>),
}

/// The key and the views of a large value.
#[derive(Debug)]
pub struct Parts {
    /// The key, in memory of its own.
    pub key: IoBuf,
    /// The value.
    pub value: Chain,
}

impl Body {
    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Whole(answer) => answer.key(),
            Self::Parts(parts) => &parts.key,
        }
    }

    /// Returns the length of the value, in bytes.
    pub fn value_len(&self) -> usize {
        match self {
            Self::Whole(answer) => answer.value_len(),
            Self::Parts(parts) => parts.value.len(),
        }
    }

    /// Returns the views of the value.
    pub fn value(&self) -> Chain {
        match self {
            Self::Whole(answer) => answer.value_view(),
            Self::Parts(parts) => parts.value.clone(),
        }
    }

    /// Returns the key and the value if the value is contiguous.
    pub fn slices(&self) -> Option<(&[u8], &[u8])> {
        match self {
            Self::Whole(answer) => Some((answer.key(), answer.value())),
            Self::Parts(_) => None,
        }
    }
}
