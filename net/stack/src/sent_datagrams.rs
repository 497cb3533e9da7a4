//! Which long datagrams were sent lately: a router's word that one was too long is believed where it quotes one of them
//! (RFC 8899 4.6.1). Who does not see the way would have to guess that one went, by which port, and how long it was.
//!
//! Datagrams that every way takes are not noted, and cost nothing here.

use crate::address::Flow;
use crate::path_mtu::least_mtu;
use crate::time::{Duration, Instant};
use alloc::vec::Vec;

/// Datagrams that are remembered, of different lengths or ends; the one that was noted first goes for another.
const REMEMBERED: usize = 32;
/// How long a router has to answer.
const BELIEVED: Duration = Duration::from_secs(10);

/// A datagram that was sent: by its ends and the length in its header.
#[derive(Debug, PartialEq)]
struct Sent {
    flow: Flow,
    len: u16,
    at: Instant,
}

/// What was sent lately and not every way takes.
#[derive(Debug, Default)]
pub(crate) struct SentDatagrams {
    sent: Vec<Sent>,
    /// Where the next one is noted, once the memory is full.
    next: usize,
}

impl SentDatagrams {
    /// Notes a datagram of `len` bytes, header included, in a packet of `packet_len`.
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

    /// Whether a datagram of `len` bytes was sent so lately that a router may have something to say about it.
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
    fn no_number_of_datagrams_makes_it_grow_and_the_latest_are_known() {
        let mut sent = SentDatagrams::default();
        for len in 600..1400 {
            sent.note(Instant::ZERO, &flow(1), len, usize::from(len) + 20);
        }
        assert_eq!(sent.sent.len(), REMEMBERED);
        assert!(sent.has(Instant::ZERO, &flow(1), 1399) && !sent.has(Instant::ZERO, &flow(1), 600));
        assert!(sent.has(Instant::ZERO, &flow(1), 1400 - REMEMBERED as u16));
    }

    #[test]
    fn short_ones_are_not_noted_and_one_sent_again_is_noted_once() {
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
