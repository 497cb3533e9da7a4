//! Statistics and state of a connection, for display.

use super::{Connection, State};
use crate::base::Instant;
use crate::tcp::{ConnectionStats, ConnectionView};

impl Connection {
    /// Returns the statistics of the connection.
    pub fn stats(&self) -> ConnectionStats {
        ConnectionStats {
            bytes_acked: self.sender.bytes_acked,
            bytes_received: self.receiver.bytes,
            segments_out: self.segments_out,
            segments_in: self.segments_in,
            retransmits: self.sender.retransmits,
            smoothed_rtt: self.sender.rtt.smoothed(),
            rto: self.sender.rtt.timeout(),
            congestion_window: self.sender.control.window(),
            peer_window: self.sender.window,
            mss: self.sender.mss,
            unacked: self.sender.queued(),
            unread: self.receiver.inbox.len(),
            in_flight: self.sender.in_flight(),
            receive_window: self.receiver.window(),
        }
    }

    /// Returns the state and statistics of the connection.
    pub fn view(&self, now: Instant) -> ConnectionView {
        ConnectionView {
            flow: self.flow,
            state: self.state.name(),
            over_link: self.path.is_some_and(|path| path.over_link),
            congestion_control: self.sender.control.name(),
            silence: now.since(self.silent_since),
            stats: self.stats(),
        }
    }
}

impl State {
    /// Returns the state's name in RFC 9293.
    const fn name(self) -> &'static str {
        match self {
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECEIVED",
            Self::Established => "ESTABLISHED",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
            Self::Closed => "CLOSED",
        }
    }
}
