//! Initial sequence numbers and local ports that an outsider cannot foresee (RFC 6528, RFC 6056).

use super::seq::Seq;
use crate::address::Flow;
use crate::config::Secret;
use crate::time::Instant;
use core::net::{IpAddr, SocketAddr};
use siphasher::sip::SipHasher24;

/// First local port of outgoing connections (RFC 6335's dynamic range).
const FIRST_PORT: u16 = 49_152;
/// How many there are.
const PORTS: u16 = u16::MAX - FIRST_PORT + 1;

/// Keyed choices of one stack.
#[derive(Debug)]
pub(crate) struct Chooser {
    sequence: SipHasher24,
    port: SipHasher24,
    /// Moves on with each port given out (RFC 6056 3.3.3's counter).
    next: u16,
}

impl Chooser {
    pub fn new(secret: &Secret) -> Self {
        let keyed = |purpose| {
            let (a, b) = secret.keys(purpose);
            SipHasher24::new_with_keys(a, b)
        };
        Self { sequence: keyed(1), port: keyed(2), next: 0 }
    }

    /// Where a flow's numbers begin that others must not foresee.
    pub fn beginning(&self, now: Instant, flow: &Flow) -> Beginning {
        let hash = hash_flow(&self.sequence, flow);
        let sequence = Seq(((now.as_nanos() >> 12) as u32).wrapping_add(hash as u32));
        Beginning { sequence, timestamp_offset: (hash >> 32) as u32 }
    }

    /// Local ports to try for a connection to `remote`, in an order of their own for each peer.
    pub fn ports(&mut self, local: IpAddr, remote: SocketAddr) -> impl Iterator<Item = u16> + use<> {
        let flow = Flow { local: SocketAddr::new(local, 0), remote };
        let start = (hash_flow(&self.port, &flow) as u16).wrapping_add(self.next);
        self.next = self.next.wrapping_add(1);
        (0..PORTS).map(move |step| FIRST_PORT + start.wrapping_add(step) % PORTS)
    }
}

/// Where the numbers of a flow begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// The initial sequence number: a clock of about 4 microseconds, offset by a secret function of the flow, so that
    /// successive connections of one flow do not overlap and no other flow's tell anything.
    pub sequence: Seq,
    /// Where the timestamps' clock begins (RFC 7323 5.4): independent of the sequence number, and the same for all
    /// connections of the flow.
    pub timestamp_offset: u32,
}

/// The hash of a flow. One of IPv4 is hashed in twelve bytes, which takes half of the rounds; the hash of others is of another
/// length, and so does not depend on this one.
fn hash_flow(hasher: &SipHasher24, flow: &Flow) -> u64 {
    let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (flow.local, flow.remote) else {
        return hasher.hash(&flow_bytes(flow));
    };
    let ([a, b, c, d], [e, f, g, h]) = (local.ip().octets(), remote.ip().octets());
    let ([i, j], [k, l]) = (local.port().to_be_bytes(), remote.port().to_be_bytes());
    hasher.hash(&[a, b, c, d, e, f, g, h, i, j, k, l])
}

/// A flow as bytes to be hashed.
pub(crate) fn flow_bytes(flow: &Flow) -> [u8; 36] {
    let mut bytes = [0; 36];
    for (end, into) in [flow.local, flow.remote].into_iter().zip(bytes.as_chunks_mut::<18>().0) {
        let (port, ip) = into.split_at_mut(2);
        port.copy_from_slice(&end.port().to_be_bytes());
        match end.ip() {
            IpAddr::V4(address) => ip.iter_mut().zip(address.octets()).for_each(|(to, from)| *to = from),
            IpAddr::V6(address) => ip.copy_from_slice(&address.octets()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use core::net::Ipv4Addr;
    use isola_proves::proves;

    fn flow(port: u16) -> Flow {
        let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        Flow::new(a.into(), port, b.into(), 80)
    }

    #[proves("RFC 6528 3", "the first number is a clock plus a keyed hash of the flow")]
    #[proves("RFC 9293 3.4.1", "the clock of first numbers advances every 4 microseconds")]
    #[test]
    fn numbers_of_a_flow_advance_with_time_and_flows_differ() {
        let chooser = Chooser::new(&Secret([7; 32]));
        let first = chooser.beginning(Instant::ZERO, &flow(1)).sequence;
        let later = chooser.beginning(Instant::ZERO + Duration::from_millis(4), &flow(1)).sequence;
        assert!((970..=980).contains(&later.since(first)), "{}", later.since(first));
        assert_ne!(chooser.beginning(Instant::ZERO, &flow(2)).sequence, first);
        let other = Chooser::new(&Secret([8; 32]));
        assert_ne!(other.beginning(Instant::ZERO, &flow(1)).sequence, first);
    }

    #[proves("RFC 6335 6", "ports of connections that the stack makes are dynamic ports, 49152 to 65535")]
    #[proves("RFC 6056 3.3.3", "a keyed hash of the peer and a counter choose the port that is tried first")]
    #[test]
    fn all_dynamic_ports_are_tried_once_from_a_beginning_that_others_cannot_tell() {
        let ports = |chooser: &mut Chooser, flow: Flow| -> alloc::vec::Vec<u16> {
            chooser.ports(flow.local.ip(), flow.remote).collect()
        };
        let mut chooser = Chooser::new(&Secret([7; 32]));
        let first = ports(&mut chooser, flow(0));
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(49_152..=65_535));
        let mut next = first.clone();
        next.rotate_left(1);
        assert_eq!(ports(&mut chooser, flow(0)), next, "the counter moves on");

        let begins = |secret: u8, peer: u8| {
            let remote = SocketAddr::new(Ipv4Addr::new(10, 0, 0, peer).into(), 80);
            ports(&mut Chooser::new(&Secret([secret; 32])), Flow { remote, ..flow(0) })[0]
        };
        let of_peers: alloc::collections::BTreeSet<u16> = (0..50).map(|peer| begins(7, peer)).collect();
        let of_secrets: alloc::collections::BTreeSet<u16> = (0..50).map(|secret| begins(secret, 2)).collect();
        // Fifty draws of 16,384: not all need differ.
        assert!(of_peers.len() > 45 && of_secrets.len() > 45, "{of_peers:?} {of_secrets:?}");
    }
}
