//! TCP (RFC 9293): connections as state machines, and the tables that find them.
//!
//! ```text
//!   segment in ─> FlowMap ─┬─> Connection (connection/): Sender, Receiver and connection state
//!                          ├─> half-open (listener.rs): a handshake without a connection yet
//!                          │   (if the table is full, a SYN cookie without any state: cookies.rs)
//!                          ├─> TIME-WAIT (time_wait.rs): the remaining state of an ended connection
//!                          └─> a listener, or a reset
//! ```
//!
//! [`Tcp`] holds the tables and moves entries between them. A [`Connection`](connection) knows neither
//! tables nor devices: its inputs are segments, calls and the time, and its outputs are segments, events and its next
//! deadline. A segment is built when the device requests it, from views of the application's memory.
//!
//! The frames of connections in their common forms are parsed by `fast_path.rs` and `ends.rs`, which read Ethernet, IP
//! and TCP header at once. `in_use.rs` keeps this room out of images that do not use it.
//!
//! Not here: urgent data (delivered in line, RFC 6093), Nagle's algorithm, F-RTO.

mod cached_path;
mod congestion;
mod connection;
mod cookies;
mod ends;
mod fast_path;
mod flow_map;
mod in_use;
mod isn;
mod listener;
mod options;
mod reassembly;
mod receive_queue;
mod refusal;
mod rto;
mod sack;
mod segment;
mod send_queue;
mod seq;
mod stack_parts;
mod tables;
mod template;
mod time_wait;
mod timestamps;

pub use congestion::{AckedData, Algorithm, CongestionControl, Round, Timeout};
pub use connection::StreamEnd;
pub use in_use::use_tcp;

pub(crate) use in_use::is_in_use;
pub(crate) use stack_parts::StackParts;
pub(crate) use tables::{MovedFlows, ReadAll, SearchOutcome, TableUpdate, Tcp};

use crate::base::{Duration, Flow};
use core::fmt;

/// TCP's settings and bounds.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Maximum number of connections, including those that the application has closed and whose close is not complete.
    pub max_connections: usize,
    /// Maximum number of handshakes whose last segment is missing. Further SYNs are answered with SYN cookies (RFC
    /// 4987).
    pub max_half_open: usize,
    /// Maximum number of TIME-WAIT entries; a new one beyond it evicts the oldest.
    pub max_time_wait: usize,
    /// Maximum number of listening ports.
    pub max_listeners: usize,
    /// Initial receive window, in bytes: the data that a peer may send before the application reads. See `set_window`.
    pub receive_window: u32,
    /// The largest window that `set_window` accepts. It determines the window scale that a SYN announces (RFC 7323).
    pub max_receive_window: u32,
    /// Initial limit of a connection's send queue (unsent and unacknowledged data), in bytes; see `set_send_limit`.
    pub send_limit: usize,
    /// Maximum number of out-of-order pieces behind a gap in the received data.
    pub reassembly_pieces: usize,
    /// Maximum number of runs of data in flight with different send times or SACK states. With retransmissions a flight
    /// has at most twice as many, of 16 bytes each.
    pub sent_runs: usize,
    /// Retransmission timeout before the first round-trip measurement (RFC 6298 2.1).
    pub rto_initial: Duration,
    /// The shortest timeout. RFC 6298 2.4 recommends 1 s; implementations with fine clocks use less.
    pub rto_min: Duration,
    /// The longest timeout, and the longest interval between two zero-window probes.
    pub rto_max: Duration,
    /// Consecutive timeouts after which an established connection is aborted (RFC 9293 3.8.3, R2).
    pub max_retransmits: u8,
    /// Maximum number of retransmissions of a SYN or SYN-ACK.
    pub max_syn_retransmits: u8,
    /// Longest delay of an acknowledgement: at most 500 ms (RFC 9293 3.8.6.3).
    pub delayed_ack: Duration,
    /// Duration of TIME-WAIT: twice the maximum segment lifetime.
    pub time_wait: Duration,
    /// Time that a connection closed by the application waits in FIN-WAIT-2 for the peer's FIN.
    pub fin_wait_2: Duration,
    /// Keep-alive for connections without a setting by `set_keep_alive`; `None` disables it.
    pub keep_alive: Option<KeepAlive>,
    /// The congestion control algorithm.
    pub congestion: Algorithm,
    /// Use of explicit congestion notification.
    pub ecn: Ecn,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// ECN is not used.
    Never,
    /// ECN is used if the peer's SYN requests it.
    Answered,
    /// Our SYN also requests it. Some old middleboxes drop such SYNs, so a retransmitted SYN does not request it.
    Offered,
}

/// Keep-alive of idle connections (RFC 9293 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence of the peer after which the first probe is sent.
    pub idle: Duration,
    /// Interval between two probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection is aborted.
    pub probes: u8,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            max_connections: 16_384,
            max_half_open: 1_024,
            max_time_wait: 4_096,
            max_listeners: 256,
            receive_window: 256 << 10,
            max_receive_window: 4 << 20,
            send_limit: 256 << 10,
            reassembly_pieces: 256,
            sent_runs: 512,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(60),
            max_retransmits: 10,
            max_syn_retransmits: 5,
            delayed_ack: Duration::from_millis(40),
            time_wait: Duration::from_secs(60),
            fin_wait_2: Duration::from_secs(60),
            keep_alive: None,
            congestion: Algorithm::Cubic,
            ecn: Ecn::Answered,
        }
    }
}

/// The largest window that a segment can announce: 65,535 shifted by 14 (RFC 7323 2.3).
pub(crate) const MAX_WINDOW: u32 = 65_535 << MAX_WINDOW_SCALE;
/// The largest window scale.
pub(crate) const MAX_WINDOW_SCALE: u8 = 14;

impl TcpConfig {
    /// Returns the smallest window scale with which the largest window can be announced.
    pub(crate) fn window_scale(&self) -> u8 {
        let largest = self.max_receive_window.max(self.receive_window);
        (0..MAX_WINDOW_SCALE).find(|&scale| largest >> scale <= 65_535).unwrap_or(MAX_WINDOW_SCALE)
    }
}

/// A reason why a port cannot be opened for listening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// Another listener has the port.
    PortInUse(u16),
    /// No peer can connect to port 0.
    PortZero,
    /// `max_listeners` listeners exist.
    TooManyListeners,
    /// The program does not use TCP: see [`use_tcp`].
    NotInUse,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortInUse(port) => write!(f, "TCP port {port} is taken; choose another"),
            Self::PortZero => f.write_str("TCP port 0 does not exist; choose another"),
            Self::NotInUse => f.write_str("the program does not use TCP yet; call use_tcp before"),
            Self::TooManyListeners => f.write_str("no listener is free; close one or raise max_listeners"),
        }
    }
}

impl core::error::Error for ListenError {}

/// A reason why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The interface has no address yet.
    NoAddress,
    /// No route leads to the address, or it is not a unicast address.
    NoRoute,
    /// `max_connections` connections exist.
    TooManyConnections,
    /// All local ports are in use towards that peer.
    NoPorts,
    /// This core owns no flow buckets, so it would not receive the peer's answers.
    NoShare,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAddress => "the interface has no address yet; wait for AddressChanged",
            Self::NoRoute => "no way leads there; check address, port and gateway",
            Self::TooManyConnections => "no connection is free; close one or raise max_connections",
            Self::NoShare => "this core has given its share of the network away; connect on another core",
            Self::NoPorts => "no local port is free towards that peer; close a connection to it",
        })
    }
}

impl core::error::Error for ConnectError {}

/// A reason why data was not accepted for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The connection no longer exists.
    NoConnection,
    /// `shutdown` has already closed the sending direction.
    ShutDown,
    /// The data does not fit now. The event `SendSpace` reports space.
    NoSpace {
        /// Bytes that fit now.
        space: usize,
    },
    /// The data is longer than the connection's send limit (in bytes) and can never fit.
    TooLong(usize),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoConnection => f.write_str("the connection is gone"),
            Self::ShutDown => f.write_str("the connection was shut down for sending"),
            Self::NoSpace { space } => write!(f, "{space} bytes fit now; wait for SendSpace"),
            Self::TooLong(limit) => {
                write!(f, "more than the send limit of {limit} bytes; send it in parts or raise the limit")
            }
        }
    }
}

impl core::error::Error for SendError {}

/// Counters of one connection and the state of its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStats {
    /// Payload bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    /// Segments sent, acknowledgements included.
    pub segments_out: u64,
    /// Segments received.
    pub segments_in: u64,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Smoothed round-trip time; `None` before the first measurement.
    pub smoothed_rtt: Option<Duration>,
    /// Current retransmission timeout.
    pub rto: Duration,
    /// Congestion window, in bytes.
    pub congestion_window: u32,
    /// The peer's receive window, in bytes.
    pub peer_window: u32,
    /// Largest payload of one segment.
    pub mss: u32,
    /// Bytes accepted for sending and not acknowledged.
    pub unacked: usize,
    /// Bytes received in order and not read.
    pub unread: usize,
    /// Bytes in flight: sent, and neither acknowledged nor deemed lost.
    pub in_flight: u32,
    /// Our receive window, in bytes.
    pub receive_window: u32,
}

/// A connection as the `isola` command displays it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// The local and remote address and port.
    pub flow: Flow,
    /// The state's name in RFC 9293.
    pub state: &'static str,
    /// Whether its frames go over a link in memory.
    pub over_link: bool,
    /// Name of the congestion control algorithm.
    pub congestion_control: &'static str,
    /// Time since the peer's last segment or, if later, since the last keep-alive probe.
    pub silence: Duration,
    /// Counters and path state.
    pub stats: ConnectionStats,
}
