//! The JSON form of a TCP connection of a cell.

use isola_abi::query::Connection;
use serde::Serialize;

/// A TCP connection, as the cell tells of it.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionView {
    /// The cell's address and port.
    pub local: String,
    /// The peer's.
    pub remote: String,
    /// Its state, as RFC 9293 names it.
    pub state: String,
    /// Index of the core that has it, among the cell's.
    pub core: u32,
    /// What decides how much may be under way: `CUBIC`, `NewReno`.
    pub congestion_control: String,
    /// How much it lets be under way.
    pub window_bytes: u32,
    /// How much is under way.
    pub in_flight_bytes: u32,
    /// What was taken for sending and is not acknowledged.
    pub unacked_bytes: u32,
    /// What came and the application has not read.
    pub unread_bytes: u32,
    /// How much the peer lets be sent.
    pub peer_window_bytes: u32,
    /// How much the peer may send.
    pub receive_window_bytes: u32,
    /// The most that a segment carries.
    pub segment_bytes: u32,
    /// The smoothed round trip.
    pub round_trip_ns: Option<u64>,
    /// How long an acknowledgement is waited for at most.
    pub timeout_ns: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Payload received.
    pub received_bytes: u64,
    /// Payload that the peer has acknowledged.
    pub acknowledged_bytes: u64,
    /// How long nothing has come from the peer.
    pub idle_ns: u64,
}

impl ConnectionView {
    /// The JSON form of a connection.
    pub fn new(connection: &Connection) -> Self {
        Self {
            local: connection.local.to_string(),
            remote: connection.remote.to_string(),
            state: connection.state.clone(),
            core: connection.core,
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
