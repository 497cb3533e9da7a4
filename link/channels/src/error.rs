//! The errors of channels.

use core::fmt;
use isola_abi::links::LinkRefusal;

/// The reason why an operation on a channel failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelError {
    /// The cell has no supervisor: it is a standalone image or a Linux process.
    Unsupported,
    /// The calling core is not the cell's first one.
    WrongCore,
    /// The name is not `CELL/SERVICE`, or a part of it is too long.
    BadName,
    /// A listener for that service exists already.
    NameTaken,
    /// The supervisor refused the request.
    Refused(LinkRefusal),
    /// The peer has closed the channel, refused it, violated its protocol, or ended.
    Closed,
    /// The memory is empty, or longer than this part of a channel can be.
    BadSize {
        /// The most pages of 4 KiB.
        most_pages: usize,
    },
    /// The cell has too little memory.
    NoMemory,
    /// The peer's ring is larger than this end permits.
    PeerRing,
    /// The packet is longer than a channel can carry: share memory instead.
    TooLong {
        /// The longest packet, in bytes.
        most_bytes: usize,
    },
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => f.write_str("channels need a supervisor: run the image as a cell"),
            Self::WrongCore => f.write_str("channels belong to the cell's first core: use a task there"),
            Self::BadName => {
                f.write_str("a channel's name is CELL/SERVICE, with at most 24 bytes for SERVICE")
            }
            Self::NameTaken => {
                f.write_str("the cell listens for that service already: drop the other listener")
            }
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Closed => f.write_str("the other cell has closed the channel, or ended"),
            Self::BadSize { most_pages } => write!(f, "choose from 1 to {most_pages} pages"),
            Self::NoMemory => f.write_str("the cell has too little memory: give it more"),
            Self::PeerRing => f.write_str(
                "the other cell's ring is larger than this one permits: raise the limit for rings of peers",
            ),
            Self::TooLong { most_bytes } => {
                write!(f, "a packet has at most {most_bytes} bytes: send several, or share memory")
            }
        }
    }
}

impl core::error::Error for ChannelError {}
