//! Initial sequence numbers and local ports that an outsider cannot predict (RFC 6528, RFC 6056).

use super::seq::Seq;
use crate::base::{Flow, Instant, Secret};
use core::net::{IpAddr, SocketAddr};
use siphasher::sip::SipHasher24;

/// First local port of outgoing connections (the dynamic range of RFC 6335).
const FIRST_PORT: u16 = 49_152;
/// Number of dynamic ports.
const PORTS: u16 = u16::MAX - FIRST_PORT + 1;

/// Keyed selection of initial sequence numbers, timestamp offsets and ports for a stack.
#[derive(Debug)]
pub(crate) struct NumberChooser {
    sequence: SipHasher24,
    port: SipHasher24,
    /// Increases with each selection of a port (the counter of RFC 6056 3.3.3).
    next: u16,
}

impl NumberChooser {
    pub fn new(secret: &Secret) -> Self {
        let keyed = |purpose| {
            let (a, b) = secret.keys(purpose);
            SipHasher24::new_with_keys(a, b)
        };
        Self { sequence: keyed(1), port: keyed(2), next: 0 }
    }

    /// Returns the initial sequence number and timestamp offset of a flow, which others must not predict.
    pub fn initial_values(&self, now: Instant, flow: &Flow) -> InitialValues {
        let hash = hash_flow(&self.sequence, flow);
        let sequence = Seq(((now.as_nanos() >> 12) as u32).wrapping_add(hash as u32));
        InitialValues { sequence, timestamp_offset: (hash >> 32) as u32 }
    }

    /// Returns all local ports for a connection to `remote`, in an order that depends on the peer and the counter.
    pub fn ports(&mut self, local: IpAddr, remote: SocketAddr) -> impl Iterator<Item = u16> + use<> {
        let flow = Flow { local: SocketAddr::new(local, 0), remote };
        let start = (hash_flow(&self.port, &flow) as u16).wrapping_add(self.next);
        self.next = self.next.wrapping_add(1);
        (0..PORTS).map(move |step| FIRST_PORT + start.wrapping_add(step) % PORTS)
    }
}

/// The initial values of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InitialValues {
    /// The initial sequence number: a clock with ticks of about 4 microseconds, offset by a secret function of the
    /// flow. Successive connections of a flow do not overlap, and the numbers of other flows reveal nothing about it.
    pub sequence: Seq,
    /// Offset of the timestamp clock (RFC 7323 5.4): independent of the sequence number, and the same for all
    /// connections of the flow.
    pub timestamp_offset: u32,
}

/// Returns the hash of a flow. An IPv4 flow is hashed as twelve bytes, which needs half of the rounds. Other flows are
/// hashed as more bytes, and their hashes are independent of these.
fn hash_flow(hasher: &SipHasher24, flow: &Flow) -> u64 {
    let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (flow.local, flow.remote) else {
        return hasher.hash(&flow_bytes(flow));
    };
    let ([a, b, c, d], [e, f, g, h]) = (local.ip().octets(), remote.ip().octets());
    let ([i, j], [k, l]) = (local.port().to_be_bytes(), remote.port().to_be_bytes());
    hasher.hash(&[a, b, c, d, e, f, g, h, i, j, k, l])
}

/// Returns a flow as bytes for a hash.
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
    use crate::base::Duration;
    use core::net::Ipv4Addr;
    use isola_proves::proves;

    fn flow(port: u16) -> Flow {
        let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        Flow::new(a.into(), port, b.into(), 80)
    }

    #[proves("RFC 6528 3", "the initial sequence number is a clock plus a keyed hash of the flow")]
    #[proves("RFC 9293 3.4.1", "the clock of initial sequence numbers advances every 4 microseconds")]
    #[test]
    fn sequence_numbers_of_a_flow_advance_with_time_and_differ_between_flows() {
        let chooser = NumberChooser::new(&Secret([7; 32]));
        let first = chooser.initial_values(Instant::ZERO, &flow(1)).sequence;
        let later = chooser.initial_values(Instant::ZERO + Duration::from_millis(4), &flow(1)).sequence;
        assert!((970..=980).contains(&later.since(first)), "{}", later.since(first));
        assert_ne!(chooser.initial_values(Instant::ZERO, &flow(2)).sequence, first);
        let other = NumberChooser::new(&Secret([8; 32]));
        assert_ne!(other.initial_values(Instant::ZERO, &flow(1)).sequence, first);
    }

    #[proves("RFC 6335 6", "ports of outgoing connections are dynamic ports, 49152 to 65535")]
    #[proves("RFC 6056 3.3.3", "a keyed hash of the peer and a counter select the first port to try")]
    #[test]
    fn all_dynamic_ports_are_tried_once_from_a_secret_start() {
        let ports = |chooser: &mut NumberChooser, flow: Flow| -> alloc::vec::Vec<u16> {
            chooser.ports(flow.local.ip(), flow.remote).collect()
        };
        let mut chooser = NumberChooser::new(&Secret([7; 32]));
        let first = ports(&mut chooser, flow(0));
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(49_152..=65_535));
        let mut next = first.clone();
        next.rotate_left(1);
        assert_eq!(ports(&mut chooser, flow(0)), next, "the counter advances by one");

        let begins = |secret: u8, peer: u8| {
            let remote = SocketAddr::new(Ipv4Addr::new(10, 0, 0, peer).into(), 80);
            ports(&mut NumberChooser::new(&Secret([secret; 32])), Flow { remote, ..flow(0) })[0]
        };
        let of_peers: alloc::collections::BTreeSet<u16> = (0..50).map(|peer| begins(7, peer)).collect();
        let of_secrets: alloc::collections::BTreeSet<u16> = (0..50).map(|secret| begins(secret, 2)).collect();
        // Of fifty draws from 16,384, some may be equal.
        assert!(of_peers.len() > 45 && of_secrets.len() > 45, "{of_peers:?} {of_secrets:?}");
    }
}
