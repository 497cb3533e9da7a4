//! Recently sent long datagrams: a router's message that a datagram was too long is accepted if it quotes one of them
//! (RFC 8899 4.6.1). An off-path attacker has to guess that one was sent, its ports and its length.
//!
//! Datagrams that every path supports are not recorded and cost nothing here.

use crate::base::{Duration, Flow, Instant};
use crate::ip::least_mtu;
use alloc::vec::Vec;

/// The most recorded datagrams of different lengths or flows; the oldest is replaced.
const REMEMBERED: usize = 32;
/// The time for which a router's message is accepted.
const BELIEVED: Duration = Duration::from_secs(10);

/// A sent datagram: its flow and the length in its header.
#[derive(Debug, PartialEq)]
struct Sent {
    flow: Flow,
    len: u16,
    at: Instant,
}

/// Recently sent datagrams that not every path supports.
#[derive(Debug, Default)]
pub(crate) struct SentDatagrams {
    sent: Vec<Sent>,
    /// The index of the next record, once the table is full.
    next: usize,
}

impl SentDatagrams {
    /// Records a datagram of `len` bytes, header included, in a packet of `packet_len`.
    pub fn note(&mut self, at: Instant, flow: &Flow, len: u16, packet_len: usize) {
        if packet_len <= least_mtu(flow.remote.ip()) {
            return;
        }
        let sent = Sent { flow: *flow, len, at };
        if let Some(known) = self.sent.iter_mut().find(|known| known.len == len && known.flow == *flow) {
            *known = sent;
        } else if self.sent.len() < REMEMBERED {
            self.sent.push(sent);
        } else {
            self.sent[self.next] = sent;
            self.next = (self.next + 1) % REMEMBERED;
        }
    }

    /// Returns whether a datagram of `len` bytes was sent recently enough for a router's message.
    pub fn has(&self, now: Instant, flow: &Flow, len: u16) -> bool {
        let is_meant = |sent: &Sent| sent.len == len && sent.flow == *flow && now <= sent.at + BELIEVED;
        self.sent.iter().any(is_meant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;

    fn flow(port: u16) -> Flow {
        Flow::new(IpAddr::from([10, 0, 0, 1]), port, IpAddr::from([10, 0, 0, 2]), 9)
    }

    #[test]
    fn the_table_is_bounded_and_has_the_latest_datagrams() {
        let mut sent = SentDatagrams::default();
        for len in 600..1400 {
            sent.note(Instant::ZERO, &flow(1), len, usize::from(len) + 20);
        }
        assert_eq!(sent.sent.len(), REMEMBERED);
        assert!(sent.has(Instant::ZERO, &flow(1), 1399) && !sent.has(Instant::ZERO, &flow(1), 600));
        assert!(sent.has(Instant::ZERO, &flow(1), 1400 - REMEMBERED as u16));
    }

    #[test]
    fn short_datagrams_are_not_recorded_and_repeated_ones_once() {
        let (mut sent, later) = (SentDatagrams::default(), Instant::ZERO + Duration::from_secs(8));
        sent.note(Instant::ZERO, &flow(1), 500, 576);
        sent.note(Instant::ZERO, &flow(1), 600, 620);
        sent.note(later, &flow(1), 600, 620);
        assert_eq!(sent.sent, [Sent { flow: flow(1), len: 600, at: later }]);
        assert!(sent.has(later + BELIEVED, &flow(1), 600));
        assert!(!sent.has(later + BELIEVED + Duration::from_nanos(1), &flow(1), 600));
        assert!(!sent.has(later, &flow(2), 600) && !sent.has(later, &flow(1), 601));
    }
}
