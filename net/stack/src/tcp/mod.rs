//! TCP (RFC 9293): connections as state machines, and the tables that find them.
//!
//! ```text
//!   segment in ─> FlowMap ─┬─> Connection (connection/): Sender + Receiver + the states between them
//!                          ├─> half-open (listener.rs): a handshake that nobody pays a connection for yet
//!                          │   (or, when there are too many, nothing at all: cookies.rs)
//!                          ├─> TIME-WAIT (time_wait.rs): what is left of a connection that ended
//!                          └─> a listener, or a reset
//! ```
//!
//! [`Tcp`](tables::Tcp) holds the tables and moves entries between them. A [`Connection`](connection) knows
//! neither tables nor devices: it takes segments, calls and time, and says what it wants sent, signalled and
//! waited for. What it sends is made when the device asks for it, from views of the application's memory.
//!
//! Not here: urgent data (delivered in line, RFC 6093), Nagle's delay, F-RTO.

pub(crate) mod congestion;
pub(crate) mod connection;
mod cookies;
pub(crate) mod flow_map;
mod isn;
mod listener;
pub(crate) mod options;
mod reassembly;
mod receive_queue;
mod rto;
pub(crate) mod sack;
pub(crate) mod segment;
mod send_queue;
pub(crate) mod seq;
pub(crate) mod tables;
mod template;
mod time_wait;
mod timestamps;

pub use congestion::{Algorithm, Arrived, CongestionControl, Round, Timeout};
pub use connection::EndCame;

use crate::address::Flow;
use crate::time::Duration;
use core::fmt;

/// TCP's settings and bounds.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Connections, those that the application has closed and that still finish included.
    pub max_connections: usize,
    /// Handshakes that wait for their last segment; further ones are answered with SYN cookies (RFC 4987).
    pub max_half_open: usize,
    /// TIME-WAIT entries; beyond it the oldest is dropped.
    pub max_time_wait: usize,
    /// Listening ports.
    pub max_listeners: usize,
    /// Bytes that a new connection lets its peer send ahead of the application; see `set_window`.
    pub receive_window: u32,
    /// The largest window that `set_window` can set: it decides the scale that is agreed on (RFC 7323).
    pub max_receive_window: u32,
    /// Bytes that a new connection keeps for sending and sending again; see `set_send_limit`.
    pub send_limit: usize,
    /// Pieces that wait beyond a gap in the received data.
    pub reassembly_pieces: usize,
    /// Runs of data under way that are told apart by when they were sent and by what the peer reports of
    /// them: at most twice as many, each of 16 bytes.
    pub sent_runs: usize,
    /// Retransmission timeout before a round trip was measured (RFC 6298 2.1).
    pub rto_initial: Duration,
    /// The shortest timeout. RFC 6298 2.4 asks for 1 s and lets implementations with fine clocks go below.
    pub rto_min: Duration,
    /// The longest timeout, and the longest time between two zero-window probes.
    pub rto_max: Duration,
    /// Timeouts in a row before an established connection is given up (RFC 9293 3.8.3, R2).
    pub max_retransmits: u8,
    /// Times that a SYN, or the answer to one, is sent again.
    pub max_syn_retransmits: u8,
    /// How long an acknowledgement waits for something to travel with: at most 500 ms (RFC 9293 3.8.6.3).
    pub delayed_ack: Duration,
    /// How long TIME-WAIT lasts: twice the longest life of a segment.
    pub time_wait: Duration,
    /// How long a connection that the application closed waits for the peer's end.
    pub fin_wait_2: Duration,
    /// Probing of idle connections, unless `set_keep_alive` says something else; off where `None`.
    pub keep_alive: Option<KeepAlive>,
    /// What decides how much may be under way.
    pub congestion: Algorithm,
    /// Whether routers may mark packets instead of dropping them.
    pub ecn: Ecn,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Not used.
    Never,
    /// Used with peers that ask for it.
    Answered,
    /// Asked for as well: some old middleboxes drop SYNs that do, so that a SYN sent again does not.
    Offered,
}

/// Probing of idle connections (RFC 9293 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence after which the peer is probed.
    pub idle: Duration,
    /// Time between two probes.
    pub interval: Duration,
    /// Probes without an answer after which the connection is given up.
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

/// The largest window that can be told to a peer: 65,535 shifted by 14 (RFC 7323 2.3).
pub(crate) const MAX_WINDOW: u32 = 65_535 << MAX_WINDOW_SCALE;
/// The largest shift of a window.
pub(crate) const MAX_WINDOW_SCALE: u8 = 14;

impl TcpConfig {
    /// The shift with which the largest window can be told.
    pub(crate) fn window_scale(&self) -> u8 {
        let largest = self.max_receive_window.max(self.receive_window);
        (0..MAX_WINDOW_SCALE).find(|&scale| largest >> scale <= 65_535).unwrap_or(MAX_WINDOW_SCALE)
    }
}

/// Why a port cannot be listened at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// Somebody listens there.
    PortInUse(u16),
    /// Port 0 cannot be connected to.
    PortZero,
    /// There are as many listeners as the configuration allows.
    TooManyListeners,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortInUse(port) => write!(f, "TCP port {port} is taken; choose another"),
            Self::PortZero => f.write_str("TCP port 0 does not exist; choose another"),
            Self::TooManyListeners => f.write_str("no listener is free; close one or raise max_listeners"),
        }
    }
}

impl core::error::Error for ListenError {}

/// Why a connection cannot be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The interface has no address yet.
    NoAddress,
    /// There is no way to that address, or no one host behind it.
    NoRoute,
    /// There are as many connections as the configuration allows.
    TooManyConnections,
    /// Every local port is in use towards that peer.
    NoPorts,
    /// No answers come to this core: its share of the flows was given to others.
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

/// Why data was not taken for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The connection is gone.
    NoConnection,
    /// This side was shut down: what is sent comes before `shutdown`.
    ShutDown,
    /// It doesn't fit now. `SendSpace` tells when it does.
    NoSpace {
        /// Bytes that fit now.
        space: usize,
    },
    /// It never fits: it is longer than the connection's send limit, this many bytes.
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

/// What one connection did so far, and how its path looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStats {
    /// Payload bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Payload bytes that came in, in order.
    pub bytes_received: u64,
    /// Segments sent, acknowledgements included.
    pub segments_out: u64,
    /// Segments received.
    pub segments_in: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Smoothed round-trip time, where one was measured.
    pub smoothed_rtt: Option<Duration>,
    /// Retransmission timeout now.
    pub rto: Duration,
    /// Bytes that may be under way.
    pub congestion_window: u32,
    /// Bytes that the peer is ready to take.
    pub peer_window: u32,
    /// Largest payload that is sent in one segment.
    pub mss: u32,
    /// Bytes that were taken for sending and are not acknowledged.
    pub unacked: usize,
    /// Bytes that came in and were not read.
    pub unread: usize,
    /// Bytes under way: sent, and neither acknowledged nor lost, as far as is known.
    pub in_flight: u32,
    /// Bytes that the peer may send.
    pub receive_window: u32,
}

/// A connection as it is shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// Its ends.
    pub flow: Flow,
    /// The state, as RFC 9293 names it.
    pub state: &'static str,
    /// Name of the algorithm that decides how much may be under way.
    pub congestion_control: &'static str,
    /// How long nothing has come from the peer, or since it was probed for that.
    pub silence: Duration,
    /// Its figures.
    pub stats: ConnectionStats,
}
