//! What a shard answers, in the words of neither protocol.

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
    /// The item that was read.
    Hit(Hit),
    /// There is no such item. Has the key of a read, which one form of answer repeats.
    Miss(Option<IoBuf>),
    /// The item is stored, as the version of this number.
    Stored {
        /// The new version.
        cas: u64,
    },
    /// The condition of an `add`, `replace`, `append` or `prepend` does not hold.
    NotStored(NotStored),
    /// The item is of another version than the client knows.
    Exists,
    /// The item is gone.
    Deleted,
    /// The item has its new expiration time.
    Touched {
        /// Its version, which a touch leaves as it is.
        cas: u64,
        /// The client's bits.
        flags: u32,
    },
    /// The number after counting.
    Number {
        /// The number.
        value: u64,
        /// The new version.
        cas: u64,
        /// How long the item lives.
        time_left: TimeLeft,
    },
    /// Counting on what is no decimal number of 64 bits.
    NotANumber,
    /// The value is larger than a value may be.
    TooLarge,
    /// The item does not fit in the shard's memory, whatever is evicted.
    OutOfMemory,
    /// The shard has done what all shards do.
    Done,
    /// An outcome that takes more room than that of a usual request.
    Details(Box<Details>),
}

/// An outcome that takes more room than that of a usual request. All share one pointer of [`Response`], so that the code that
/// moves and drops responses stays short.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is always in memory of its own")]
pub enum Details {
    /// The item that a meta command read, with its metadata.
    Item(Description),
    /// The shard's counters.
    Report(Report),
    /// Counts of requests by the prefix of their key.
    Prefixes(Prefixes),
    /// Items by name.
    List(Vec<Listed>),
}

impl From<Details> for Response {
    fn from(details: Details) -> Self {
        Self::Details(Box::new(details))
    }
}

/// Which condition of a store does not hold: the binary protocol tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// `add`, and there is an item.
    Present,
    /// `replace`, and there is none.
    Absent,
    /// `append` or `prepend`, and there is none.
    NothingToExtend,
}

/// An item as it was when it was read. Shares the item's memory, and stays what it is when the item is
/// overwritten or evicted.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The client's bits.
    pub flags: u32,
    /// The version.
    pub cas: u64,
    /// Key and value.
    pub body: Body,
}

/// An item with its metadata.
#[derive(Clone, Debug)]
pub struct Description {
    /// The item.
    pub hit: Hit,
    /// How long it lives.
    pub time_left: TimeLeft,
    /// How long ago, in seconds, it was last read or written, before the command.
    pub idle_s: u32,
    /// Whether it was read since it was stored, before the command.
    pub was_read: bool,
    /// Memory that it takes, in bytes.
    pub item_bytes: usize,
    /// Whether it is marked as stale.
    pub is_stale: bool,
    /// Whether an earlier client was asked to store it anew.
    pub is_promised: bool,
    /// Whether this client is to store it anew.
    pub is_won: bool,
}

/// An item in a list.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Key and value.
    pub body: Body,
    /// When it ends.
    pub deadline: Deadline,
}

/// Seconds until an item ends, `None` for one without an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeLeft {
    /// As the command found it.
    pub before: Option<u32>,
    /// As the command left it.
    pub after: Option<u32>,
}

/// Key and value of an item.
#[derive(Clone, Debug)]
pub enum Body {
    /// Both in one piece of memory.
    Whole(Answer),
    /// A large value: in the frames it came in, or in blocks.
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
    /// The key.
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Whole(answer) => answer.key(),
            Self::Parts(parts) => &parts.key,
        }
    }

    /// Length of the value, in bytes.
    pub fn value_len(&self) -> usize {
        match self {
            Self::Whole(answer) => answer.value_len(),
            Self::Parts(parts) => parts.value.len(),
        }
    }

    /// The value's views.
    pub fn value(&self) -> Chain {
        match self {
            Self::Whole(answer) => answer.value_view(),
            Self::Parts(parts) => parts.value.clone(),
        }
    }

    /// Key and value, where the value is in one piece.
    pub fn slices(&self) -> Option<(&[u8], &[u8])> {
        match self {
            Self::Whole(answer) => Some((answer.key(), answer.value())),
            Self::Parts(_) => None,
        }
    }
}
