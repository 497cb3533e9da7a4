//! The JSON forms of a cell's TCP connections and of the connected machines of its application.

use isola_abi::query::{ConnectedMachine, Connection};
use serde::Serialize;

/// A TCP connection, as the cell reports it.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionView {
    /// The cell's address and port.
    pub local: String,
    /// The peer's address and port.
    pub remote: String,
    /// The state, as RFC 9293 names it.
    pub state: String,
    /// The index of the connection's core, among the cell's.
    pub core: u32,
    /// The path of its frames: `device`, or `link` to another cell of the machine.
    pub path: &'static str,
    /// The congestion control algorithm: `CUBIC`, `NewReno`.
    pub congestion_control: String,
    /// The congestion window.
    pub window_bytes: u32,
    /// The bytes in flight.
    pub in_flight_bytes: u32,
    /// The bytes in the send queue that are not acknowledged.
    pub unacked_bytes: u32,
    /// The received bytes that the application has not read.
    pub unread_bytes: u32,
    /// The window that the peer advertises.
    pub peer_window_bytes: u32,
    /// The window advertised to the peer.
    pub receive_window_bytes: u32,
    /// The maximum segment size.
    pub segment_bytes: u32,
    /// The smoothed round trip time.
    pub round_trip_ns: Option<u64>,
    /// The retransmission timeout.
    pub timeout_ns: u64,
    /// The number of retransmitted segments.
    pub retransmits: u64,
    /// The payload received.
    pub received_bytes: u64,
    /// The payload that the peer has acknowledged.
    pub acknowledged_bytes: u64,
    /// The time since the last segment from the peer.
    pub idle_ns: u64,
}

impl ConnectionView {
    /// Creates the JSON form of a connection.
    pub fn new(connection: &Connection) -> Self {
        Self {
            local: connection.local.to_string(),
            remote: connection.remote.to_string(),
            state: connection.state.clone(),
            core: connection.core,
            path: path(connection),
            congestion_control: connection.congestion.clone(),
            window_bytes: connection.window,
            in_flight_bytes: connection.in_flight,
            unacked_bytes: connection.send_queue,
            unread_bytes: connection.receive_queue,
            peer_window_bytes: connection.peer_window,
            receive_window_bytes: connection.receive_window,
            segment_bytes: connection.mss,
            round_trip_ns: connection.round_trip_ns,
            timeout_ns: connection.timeout_ns,
            retransmits: connection.retransmits,
            received_bytes: connection.bytes_in,
            acknowledged_bytes: connection.bytes_out,
            idle_ns: connection.idle_ns,
        }
    }
}

/// A machine of the cell's application, as the cell reports it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ConnectedMachineView {
    /// The machine's number; 1 is the first machine.
    pub number: u32,
    /// The transport of its frames: `tcp`, or `channel` to another cell of the machine.
    pub transport: &'static str,
}

impl ConnectedMachineView {
    /// Creates the JSON form of a connected machine.
    pub fn new(machine: &ConnectedMachine) -> Self {
        Self { number: machine.number, transport: if machine.over_channel { "channel" } else { "tcp" } }
    }
}

/// Returns the name of a connection's path.
pub fn path(connection: &Connection) -> &'static str {
    if connection.over_link { "link" } else { "device" }
}
