//! The kinds of queries, and the records of their answers, encoded by postcard.

use super::records::whole;
use super::{MemoryPart, ProcessUsage, ProfileSpec, RecordError, TraceSpec};
use crate::grid::{
    ActivityRule, Entitlement, GridChange, MemoryBudget, PolicyKind, Rate, Resource, RuleChange,
};
use crate::session::SessionKey;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU32;
use serde::{Deserialize, Serialize};

/// A query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// The counters of each core's protocol stack, answered by [`AnswerRecord`]s.
    Counters,
    /// The TCP connections, and without a filter also the connected machines of the application, answered by
    /// [`AnswerRecord`]s.
    Connections {
        /// The selected connections.
        filter: FrameFilter,
        /// The maximum number of connections per core, and of machines.
        most: u32,
    },
    /// The frames received and sent from now on, until [`Query::EndCapture`] or until the reader stops. The answer's
    /// records begin with a [`FrameHead`].
    Capture(CaptureSpec),
    /// Ends a capture, a trace or a profile.
    EndCapture,
    /// The settings of the resource grid, and the activities that have competed, answered by [`AnswerRecord`]s.
    Grid,
    /// A change of the resource grid, answered like [`Query::Grid`], or by [`AnswerRecord::Refused`].
    ChangeGrid(GridChange),
    /// A change of the rules that attribute connections, answered like [`Query::Grid`], or by
    /// [`AnswerRecord::Refused`].
    ChangeRules(RuleChange),
    /// The activities and their usage, answered by [`AnswerRecord::Activities`] and one [`AnswerRecord::Activity`] each.
    Activities {
        /// The maximum number of activities: those that have used most, and the activities above them.
        most: u32,
    },
    /// What the cores do from now on, until [`Query::EndCapture`] or until the reader stops, answered by
    /// [`TraceRecord`](super::TraceRecord)s.
    Trace(TraceSpec),
    /// The call stacks of the cores at each NMI for a sample from now on, until [`Query::EndCapture`] or until the reader
    /// stops, answered by [`ProfileRecord`](super::ProfileRecord)s.
    Profile(ProfileSpec),
    /// The port for a [session](crate::session) that this key opens, answered by [`AnswerRecord::SessionPort`] or
    /// [`AnswerRecord::Refused`].
    OpenSession(SessionKey),
    /// The processes of a cell with Linux programs, answered by [`AnswerRecord::Processes`] and one
    /// [`AnswerRecord::Process`] each, or by [`AnswerRecord::Refused`].
    Processes {
        /// The maximum number of processes: those that have used most time.
        most: u32,
    },
    /// The account of the cell's memory, answered by [`AnswerRecord::MemoryParts`].
    MemoryParts,
}

/// A selection of frames or connections: all given fields must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameFilter {
    /// A TCP or UDP port, on either side.
    pub port: Option<u16>,
    /// An address, on either side.
    pub host: Option<IpAddr>,
}

/// The specification of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// The selected frames.
    pub filter: FrameFilter,
    /// The maximum number of captured bytes per frame.
    pub snap_len: u32,
}

/// A record of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerRecord {
    /// The start of the answer. The answer is complete after as many [`AnswerRecord::Done`] as there are cores.
    Begin {
        /// The number of cores that answer.
        cores: u32,
    },
    /// The counters' names, in the order of each [`AnswerRecord::Counters`].
    Names(Vec<CounterName>),
    /// The counters of one core.
    Counters(Vec<u64>),
    /// A connection.
    Connection(Box<Connection>),
    /// The settings of a resource.
    GridSettings(GridSettings),
    /// What an activity has received at one of a resource's schedulers.
    GridClient(Box<GridClient>),
    /// The memory of an activity.
    MemoryUse(Box<MemoryUse>),
    /// An entitlement that was set, whether its activity competes or not.
    GridEntitlement(Box<GridEntitlement>),
    /// A rule that attributes connections. Rules come in their order.
    ActivityRule(Box<ActivityRule>),
    /// All activities together.
    Activities {
        /// The number of activities.
        count: u64,
        /// The cycles that all activities have used since the cell's start, ended ones included.
        cycles: u64,
    },
    /// An activity. Its parent comes before it.
    Activity(Box<ActivityUsage>),
    /// The cell refuses the query, for this reason.
    Refused(String),
    /// The TCP port at which the cell awaits the session.
    SessionPort(u16),
    /// The end of one core's part of the answer.
    Done {
        /// The core's index in the cell.
        core: u32,
        /// The number of selected connections, including those above the query's maximum.
        connections: u32,
        /// The number of handshakes without their last segment.
        half_open: u32,
        /// The number of connections in TIME-WAIT.
        time_wait: u32,
    },
    /// All processes together.
    Processes {
        /// The number of processes.
        count: u64,
    },
    /// A process.
    Process(Box<ProcessUsage>),
    /// All parts of the memory that the cell manages.
    MemoryParts(Vec<MemoryPart>),
    /// A connected machine of the application.
    ConnectedMachine(ConnectedMachine),
}

/// The name of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterName {
    /// The protocol layer.
    pub layer: String,
    /// The counter's name: lower case with underscores.
    pub name: String,
}

/// A TCP connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The cell's address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The connection's state, by its name in RFC 9293.
    pub state: String,
    /// The index of the core that owns the connection.
    pub core: u32,
    /// Whether its frames go over a link to another cell of the machine instead of the device.
    pub over_link: bool,
    /// The name of the congestion control algorithm.
    pub congestion: String,
    /// The congestion window, in bytes.
    pub window: u32,
    /// Bytes in flight.
    pub in_flight: u32,
    /// Bytes in the send queue, unsent or unacknowledged.
    pub send_queue: u32,
    /// Received bytes that the application has not read.
    pub receive_queue: u32,
    /// The send window that the peer advertises, in bytes.
    pub peer_window: u32,
    /// The receive window, in bytes.
    pub receive_window: u32,
    /// The maximum segment size, in bytes of payload.
    pub mss: u32,
    /// The smoothed round-trip time in ns, after the first measurement.
    pub round_trip_ns: Option<u64>,
    /// The retransmission timeout, in ns.
    pub timeout_ns: u64,
    /// The number of retransmitted segments.
    pub retransmits: u64,
    /// Payload received, in bytes.
    pub bytes_in: u64,
    /// Payload acknowledged by the peer, in bytes.
    pub bytes_out: u64,
    /// The time since the last segment from the peer, in ns.
    pub idle_ns: u64,
}

/// A machine of the cell's application that is connected to the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectedMachine {
    /// The machine's number; 1 is the first machine.
    pub number: u32,
    /// Whether its frames go over a channel to another cell of the machine instead of a TCP connection.
    pub over_channel: bool,
}

/// The settings of a resource, without those of activities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridSettings {
    /// The resource.
    pub resource: Resource,
    /// The policy; `None` without a scheduler.
    pub policy: Option<PolicyKind>,
    /// The most requests of an activity that one decision dispatches.
    pub batch: NonZeroU32,
    /// The most that each scheduler serves.
    pub limit: Option<Rate>,
    /// The most that each scheduler can serve, if that is known: for the processor, the rate of the cycle counter.
    pub capacity: Option<Rate>,
    /// The number of entitlements that were set: more than the answer has records of, if there are many.
    pub entitlements: u32,
}

/// An entitlement that was set at a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GridEntitlement {
    /// The resource.
    pub resource: Resource,
    /// The name of the activities that have it.
    pub name: String,
    /// The entitlement.
    pub entitlement: Entitlement,
}

/// What an activity has received at one of a resource's schedulers, in competition with others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridClient {
    /// The resource.
    pub resource: Resource,
    /// The index of the scheduler's core.
    pub core: u32,
    /// The activity's id.
    pub activity: u32,
    /// The activity above it; `None` without a parent.
    pub parent: Option<u32>,
    /// The activity's name.
    pub name: String,
    /// The activity's entitlement.
    pub entitlement: Entitlement,
    /// The number of requests that wait now.
    pub waiting: u64,
    /// The number of dispatched requests.
    pub dispatched: u64,
    /// Their cost, in the resource's metric.
    pub cost: u64,
    /// The sum of their waiting times, in ns.
    pub waited_ns: u64,
    /// The longest waiting time, in ns.
    pub longest_wait_ns: u64,
}

/// The memory of an activity without a parent, at the resource `memory`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// The activity's id.
    pub activity: u32,
    /// The activity's name.
    pub name: String,
    /// The activity's entitlement: its budget, and its place in the order of requests that wait.
    pub entitlement: Entitlement,
    /// The memory.
    pub memory: ActivityMemory,
    /// The number of the activity's requests that wait for memory.
    pub waiting: u64,
}

/// The memory of an activity that has no activity above it, those below it included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityMemory {
    /// The bytes that the ledger counts for the activity.
    pub charged_bytes: u64,
    /// The budget.
    pub budget: MemoryBudget,
    /// The bytes that the activity has lost so far, to others or to its hard budget.
    pub reclaimed_bytes: u64,
}

/// An activity and what it has used since its registration, its descendants' usage included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityUsage {
    /// The activity's id.
    pub activity: u32,
    /// The activity above it; `None` without a parent.
    pub parent: Option<u32>,
    /// The activity's name.
    pub name: String,
    /// Cycles of the activity's events.
    pub cycles: u64,
    /// The number of events that ran.
    pub events: u64,
    /// What was moved for it.
    pub traffic: ActivityTraffic,
    /// The activity's memory; `None` if it has a parent.
    pub memory: Option<ActivityMemory>,
}

/// The bytes that devices have moved for an activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityTraffic {
    /// The bytes of received frames, from the Ethernet header on.
    pub received_bytes: u64,
    /// The bytes of sent frames.
    pub sent_bytes: u64,
    /// Completed reads of block devices.
    pub reads: u64,
    /// The bytes of these.
    pub read_bytes: u64,
    /// Completed writes to block devices.
    pub writes: u64,
    /// The bytes of these.
    pub written_bytes: u64,
}

/// The direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// Received by the cell.
    In,
    /// Sent by the cell.
    Out,
}

/// The header in front of a captured frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameHead {
    /// Time of day, in ns since 1970-01-01 UTC.
    pub unix_ns: u64,
    /// The frame's direction.
    pub direction: Direction,
    /// The frame's length in bytes. The record may contain fewer.
    pub len_bytes: u32,
    /// The checksum that the device has to complete.
    pub sum: Option<PartialSum>,
}

/// A checksum left to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialSum {
    /// The offset of the first summed byte in the frame. The sum extends to the frame's end.
    pub start: u16,
    /// The offset of the checksum field from `start`. The field contains the sum of the pseudo-header.
    pub offset: u16,
    /// The payload of each segment into which the device splits the frame, in bytes; `None` without segmentation.
    pub segment_len: Option<u16>,
}

impl FrameFilter {
    /// Returns whether the filter selects everything.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the filter selects a flow between two addresses.
    pub fn matches(&self, one: SocketAddr, other: SocketAddr) -> bool {
        let either = |is: &dyn Fn(SocketAddr) -> bool| is(one) || is(other);
        self.port.is_none_or(|port| either(&|side| side.port() == port))
            && self.host.is_none_or(|host| either(&|side| side.ip() == host))
    }
}

impl Query {
    /// Returns the encoded query.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Decodes a query.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        whole(bytes).ok()
    }
}

impl AnswerRecord {
    /// Returns the encoded record.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// [`RecordError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        whole(bytes)
    }
}

impl FrameHead {
    /// The maximum length of the result of [`Self::encode`], in bytes.
    pub const MAX_ENCODED: usize = 32;

    /// Encodes the header into `buffer`, and returns its bytes.
    pub fn encode<'b>(&self, buffer: &'b mut [u8; Self::MAX_ENCODED]) -> &'b [u8] {
        postcard::to_slice(self, buffer).map_or(&[][..], |bytes| bytes)
    }

    /// Decodes a record into its header and the captured bytes of the frame.
    ///
    /// # Errors
    /// [`RecordError::Malformed`], also if there are more captured bytes than the frame's length.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), RecordError> {
        let (head, frame) = postcard::take_from_bytes::<Self>(bytes).map_err(|_| RecordError::Malformed)?;
        if frame.len() > head.len_bytes as usize {
            return Err(RecordError::Malformed);
        }
        Ok((head, frame))
    }
}
