//! What a cell can be asked, and the records that it answers with, encoded by postcard.

use super::RecordError;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// What each core's protocol stack has counted. Answered by [`Fact`]s.
    Counters,
    /// The TCP connections. Answered by [`Fact`]s.
    Connections {
        /// Which ones.
        filter: FrameFilter,
        /// At most so many of each core.
        most: u32,
    },
    /// The frames that come and go from now on, until this is asked for no more, or nobody reads. Answered by records that
    /// begin with a [`FrameHead`].
    Capture(CaptureSpec),
    /// Ends a capture.
    EndCapture,
}

/// Which frames or connections are meant: those that have all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameFilter {
    /// A TCP or UDP port, of either side.
    pub port: Option<u16>,
    /// An address, of either side.
    pub host: Option<IpAddr>,
}

/// What is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// Which frames.
    pub filter: FrameFilter,
    /// At most so many bytes of each.
    pub snap_len: u32,
}

/// A record of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fact {
    /// The answer begins: it is complete when so many cores are [`Fact::Done`].
    Begin {
        /// How many.
        cores: u32,
    },
    /// What counters there are, in the order of all [`Fact::Counters`].
    Names(Vec<CounterName>),
    /// What a core has counted.
    Counters(Vec<u64>),
    /// A connection.
    Connection(Box<Connection>),
    /// A core has told all that it is going to tell.
    Done {
        /// Its index in the cell.
        core: u32,
        /// How many connections were meant, those that were not told included.
        connections: u32,
        /// Handshakes that lack their last segment.
        half_open: u32,
        /// Connections that have ended, and whose last segments may still be on their way.
        time_wait: u32,
    },
}

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterName {
    /// The layer that it belongs to.
    pub layer: String,
    /// Its name: lower case with underscores.
    pub name: String,
}

/// A TCP connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The cell's address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Its state, as RFC 9293 names it.
    pub state: String,
    /// Index of the core that has it.
    pub core: u32,
    /// The congestion control's name.
    pub congestion: String,
    /// Bytes that the congestion control lets be under way.
    pub window: u32,
    /// Bytes under way.
    pub in_flight: u32,
    /// Bytes that wait to be sent or acknowledged.
    pub send_queue: u32,
    /// Bytes that the application has not read.
    pub receive_queue: u32,
    /// Bytes that the peer lets be sent.
    pub peer_window: u32,
    /// Bytes that the peer may send.
    pub receive_window: u32,
    /// Most payload of a segment.
    pub mss: u32,
    /// The smoothed round trip in ns, once there is one.
    pub round_trip_ns: Option<u64>,
    /// How long an acknowledgement is waited for at most, in ns.
    pub timeout_ns: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Payload received, in bytes.
    pub bytes_in: u64,
    /// Payload that the peer has acknowledged, in bytes.
    pub bytes_out: u64,
    /// How long nothing has come from the peer, in ns.
    pub idle_ns: u64,
}

/// Which way a frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// The cell received it.
    In,
    /// The cell sent it.
    Out,
}

/// What stands in front of a captured frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameHead {
    /// Time of day, in ns since 1970-01-01 UTC.
    pub unix_ns: u64,
    /// Which way it went.
    pub direction: Direction,
    /// Length of the frame, in bytes; what follows may be less.
    pub len_bytes: u32,
    /// The checksum that the device was to fill in.
    pub sum: Option<PartialSum>,
}

/// A checksum that is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialSum {
    /// First byte to sum, counted from the frame's first, up to its end.
    pub start: u16,
    /// Where the checksum stands, counted from `start`: it holds the sum of the pseudo-header.
    pub offset: u16,
    /// Payload of each segment that the device was to make of the frame; none where it was to make one.
    pub segment_len: Option<u16>,
}

impl FrameFilter {
    /// Whether everything is meant.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a flow between these is meant.
    pub fn matches(&self, one: SocketAddr, other: SocketAddr) -> bool {
        let either = |is: &dyn Fn(SocketAddr) -> bool| is(one) || is(other);
        self.port.is_none_or(|port| either(&|side| side.port() == port))
            && self.host.is_none_or(|host| either(&|side| side.ip() == host))
    }
}

impl Query {
    /// The bytes of the question.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// The question of these bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        whole(bytes).ok()
    }
}

impl Fact {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// The record of these bytes.
    ///
    /// # Errors
    /// [`RecordError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        whole(bytes)
    }
}

impl FrameHead {
    /// Most bytes that [`Self::encode`] makes.
    pub const MAX_ENCODED: usize = 32;

    /// The bytes that stand in front of the frame's, in `buffer`.
    pub fn encode<'b>(&self, buffer: &'b mut [u8; Self::MAX_ENCODED]) -> &'b [u8] {
        postcard::to_slice(self, buffer).map_or(&[][..], |bytes| bytes)
    }

    /// The head of a record, and what was captured of the frame.
    ///
    /// # Errors
    /// [`RecordError::Malformed`], also where there is more of a frame than it is long.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), RecordError> {
        let (head, frame) = postcard::take_from_bytes::<Self>(bytes).map_err(|_| RecordError::Malformed)?;
        if frame.len() > head.len_bytes as usize {
            return Err(RecordError::Malformed);
        }
        Ok((head, frame))
    }
}

fn whole<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RecordError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(RecordError::Malformed),
    }
}
