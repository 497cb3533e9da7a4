//! Counters of the stack: dropped frames by reason, and other statistics for operators.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// A counter. A frame that is dropped is counted under exactly one reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Counter {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Counter {
            /// All counters, in numerical order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Returns the displayed name: lower case with underscores.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

counters! {
    /// Frames passed to `receive`.
    FramesIn = "frames_in",
    /// Bytes of those frames.
    BytesIn = "bytes_in",
    /// Frames returned by `poll_transmit`.
    FramesOut = "frames_out",
    /// Bytes of those frames.
    BytesOut = "bytes_out",
    /// Frames of several buffers that were copied into one, as the fast path does not handle them.
    LongFramesCopied = "long_frames_copied",
    /// Shorter than an Ethernet header.
    DropEthernetShort = "drop_ethernet_short",
    /// Addressed to another interface.
    DropEthernetAddress = "drop_ethernet_address",
    /// An unsupported EtherType.
    DropEtherType = "drop_ethertype",
    /// Not a well-formed ARP packet for IPv4 on Ethernet.
    DropArpMalformed = "drop_arp_malformed",
    /// An ARP packet for another host.
    DropArpNotForUs = "drop_arp_not_for_us",
    /// An IPv4 header with impossible lengths or version.
    DropIpv4Malformed = "drop_ipv4_malformed",
    /// An IPv4 header with a wrong checksum.
    DropIpv4Checksum = "drop_ipv4_checksum",
    /// A fragment with an invalid length or offset.
    DropFragmentMalformed = "drop_fragment_malformed",
    /// A first fragment without the transport header.
    DropFragmentTiny = "drop_fragment_tiny",
    /// A fragment that overlaps another of its packet, or belongs to a packet with an overlap.
    DropFragmentOverlap = "drop_fragment_overlap",
    /// A duplicate fragment.
    DropFragmentRepeated = "drop_fragment_repeated",
    /// A fragment dropped for lack of room, or of a packet with too many fragments.
    DropFragmentLimit = "drop_fragment_limit",
    /// A fragment whose packet was not complete in time.
    DropFragmentTime = "drop_fragment_time",
    /// A packet from an impossible address.
    DropIpv4Source = "drop_ipv4_source",
    /// A packet to an address that is not this interface's.
    DropIpv4Address = "drop_ipv4_address",
    /// An unsupported transport protocol.
    DropIpv4Protocol = "drop_ipv4_protocol",
    /// An IPv6 header, or an extension header, with invalid lengths or version.
    DropIpv6Malformed = "drop_ipv6_malformed",
    /// Too many or misplaced IPv6 extension headers, or an option that requires a discard.
    DropIpv6Extension = "drop_ipv6_extension",
    /// A routing header with segments left.
    DropIpv6Routing = "drop_ipv6_routing",
    /// An IPv6 packet from an impossible address.
    DropIpv6Source = "drop_ipv6_source",
    /// An IPv6 packet to another address or group.
    DropIpv6Address = "drop_ipv6_address",
    /// An IPv6 packet of an unsupported transport protocol.
    DropIpv6Protocol = "drop_ipv6_protocol",
    /// A malformed neighbour discovery message, or one from another link.
    DropNdpInvalid = "drop_ndp_invalid",
    /// A router, network or address for which the tables have no room.
    DropNdpTable = "drop_ndp_table",
    /// No address configured yet.
    DropNoAddress = "drop_no_address",
    /// A truncated ICMP message or one with a wrong checksum.
    DropIcmpMalformed = "drop_icmp_malformed",
    /// An ICMP message that this stack neither answers nor uses.
    DropIcmpIgnored = "drop_icmp_ignored",
    /// An echo request or an error without an answer because of the rate limit.
    DropIcmpRate = "drop_icmp_rate",
    /// An ICMP error about a packet that this stack did not send.
    DropIcmpUnrelated = "drop_icmp_unrelated",
    /// A truncated UDP datagram.
    DropUdpMalformed = "drop_udp_malformed",
    /// A UDP datagram with a wrong checksum.
    DropUdpChecksum = "drop_udp_checksum",
    /// A UDP datagram for an unbound port.
    DropUdpPort = "drop_udp_port",
    /// A UDP datagram for a socket whose queue is full.
    DropUdpQueueFull = "drop_udp_queue_full",
    /// A truncated TCP segment or one with impossible lengths.
    DropTcpMalformed = "drop_tcp_malformed",
    /// A TCP segment with a wrong checksum.
    DropTcpChecksum = "drop_tcp_checksum",
    /// A TCP segment with an invalid combination of flags.
    DropTcpFlags = "drop_tcp_flags",
    /// A TCP segment without a connection or listener.
    DropTcpPort = "drop_tcp_port",
    /// A TCP segment outside the receive window.
    DropTcpWindow = "drop_tcp_window",
    /// A TCP segment from before a wrap of the sequence numbers, by its timestamp, or without a timestamp on a
    /// connection that uses them (RFC 7323).
    DropTcpOld = "drop_tcp_old",
    /// A TCP segment that acknowledges unsent data, or data that is too old.
    DropTcpAck = "drop_tcp_ack",
    /// A reset whose sequence number is not exactly the expected one (RFC 5961).
    DropTcpReset = "drop_tcp_reset",
    /// Data that arrived after this side had stopped reading.
    DropTcpAfterClose = "drop_tcp_after_close",
    /// Out-of-order data beyond the reassembly limits.
    DropTcpReassembly = "drop_tcp_reassembly",
    /// The completion of a handshake for a listener whose backlog is full.
    DropTcpBacklog = "drop_tcp_backlog",
    /// A half-open handshake dropped after a timeout, or because the table is full.
    DropTcpHalfOpen = "drop_tcp_half_open",
    /// A connection rejected because the connection table is full.
    DropTcpTableFull = "drop_tcp_table_full",
    /// A TIME-WAIT entry replaced by a newer one.
    DropTcpTimeWait = "drop_tcp_time_wait",
    /// A packet dropped because its neighbour's queue is full.
    DropNeighbourQueue = "drop_neighbour_queue",
    /// A packet dropped because its neighbour did not answer.
    DropNeighbourSilent = "drop_neighbour_silent",
    /// A neighbour replaced by a newer one.
    DropNeighbourCache = "drop_neighbour_cache",
    /// A packet to an address without a route.
    DropNoRoute = "drop_no_route",
    /// A packet dropped because the transmit queue is full.
    DropTransmitQueue = "drop_transmit_queue",
    /// A malformed DHCP message, or one for another client.
    DropDhcp = "drop_dhcp",
    /// A frame dropped because its core has too many waiting events. Counted by the steering core.
    DropCoreBusy = "drop_core_busy",
    /// A frame dropped because its activity has too many frames that wait for its share of the core.
    DropActivityBusy = "drop_activity_busy",
    /// A frame without room in the device, with the most allowed frames waiting. Counted by the core that serves the
    /// device.
    DropDeviceFull = "drop_device_full",
    /// Too many frames wait for room in the ring of a neighbour.
    DropLinkFull = "drop_link_full",
    /// A frame from a link with an address that is not that neighbour's.
    DropLinkSource = "drop_link_source",
    /// A packet that a service cell does not translate, or that belongs to no flow of a client.
    DropNat = "drop_nat",
    /// A packet of a client that has too many flows.
    DropNatFull = "drop_nat_full",
    /// A long frame dropped at critical memory pressure. Counted by the core that receives from the device.
    DropMemoryShort = "drop_memory_short",
    /// A frame dropped because its activity has more memory than its hard budget. Counted by the core that processes the
    /// frame.
    DropActivityMemory = "drop_activity_memory",
    /// Reassembled packets.
    Reassembled = "reassembled",
    /// Credible messages of routers that a packet exceeded the path MTU.
    PathMtuLearned = "path_mtu_learned",
    /// Connections that reduced their segments because long ones were lost without a message.
    PathMtuGuessed = "path_mtu_guessed",
    /// Address conflicts with other hosts.
    AddressConflicts = "address_conflicts",
    /// Resets suppressed by the rate limit.
    ResetRate = "reset_rate_limited",
    /// Challenge acknowledgements suppressed by the rate limit.
    ChallengeRate = "challenge_rate_limited",
    /// Connections accepted by listeners.
    TcpAccepted = "tcp_accepted",
    /// Connections opened by `connect`.
    TcpConnected = "tcp_connected",
    /// SYNs answered with a cookie, as the table of half-open handshakes was full.
    TcpCookiesOut = "tcp_cookies_out",
    /// Handshakes completed by a valid cookie.
    TcpCookiesIn = "tcp_cookies_in",
    /// Segments with an invalid cookie.
    TcpCookiesWrong = "tcp_cookies_wrong",
    /// Segments retransmitted after a timeout.
    TcpTimeouts = "tcp_timeouts",
    /// Losses detected by acknowledgements, not by a timeout.
    TcpFastRetransmits = "tcp_fast_retransmits",
    /// Tail loss probes (RFC 8985).
    TcpTailProbes = "tcp_tail_probes",
    /// Timeouts and detected losses that were spurious, and were undone.
    TcpSpurious = "tcp_spurious",
    /// Window reductions because of congestion marks (RFC 3168).
    TcpMarks = "tcp_marks",
    /// Zero-window probes sent.
    TcpProbes = "tcp_probes",
    /// Segments stored out of order.
    TcpOutOfOrder = "tcp_out_of_order",
    /// Received payload bytes that were copied to release large buffers.
    TcpCompactedBytes = "tcp_compacted_bytes",
    /// Resets sent.
    TcpResetsOut = "tcp_resets_out",
    /// Resets accepted.
    TcpResetsIn = "tcp_resets_in",
    /// Connections aborted because the peer stopped answering.
    TcpTimedOut = "tcp_timed_out",
}

impl Counter {
    /// Returns the counter's layer, by its name.
    pub fn layer(self) -> &'static str {
        let name = self.name().trim_start_matches("drop_");
        let is_of = |&&(beginning, _): &&(&str, &str)| name.starts_with(beginning);
        LAYERS.iter().find(is_of).map_or("ip", |(_, layer)| layer)
    }
}

/// The prefixes of the counters' names for each layer, after `drop_`. All others belong to IP.
const LAYERS: &[(&str, &str)] = &[
    ("frames_", "device"),
    ("bytes_", "device"),
    ("long_", "device"),
    ("core_", "device"),
    ("activity_", "device"),
    ("device_", "device"),
    ("link_", "device"),
    ("memory_", "device"),
    // Of a service cell's device, before its stack.
    ("nat", "device"),
    ("transmit_", "device"),
    ("ether", "ethernet"),
    ("arp_", "neighbours"),
    ("ndp_", "neighbours"),
    ("neighbour_", "neighbours"),
    ("address_", "neighbours"),
    ("icmp_", "icmp"),
    ("udp_", "udp"),
    ("dhcp", "udp"),
    ("tcp_", "tcp"),
    ("reset_", "tcp"),
    ("challenge_", "tcp"),
    ("path_mtu_guessed", "tcp"),
];

/// The values of all [`Counter`]s since the creation of the stack.
#[derive(Clone, Debug)]
pub struct Counters([u64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

impl Counters {
    /// Returns zero counts.
    pub const fn new() -> Self {
        Self([0; Counter::ALL.len()])
    }

    /// Returns the value of one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.get(counter as usize).copied().unwrap_or(0)
    }

    /// Iterates over all counters with their values, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }

    /// Adds to a counter.
    pub fn add(&mut self, counter: Counter, count: u64) {
        if let Some(value) = self.0.get_mut(counter as usize) {
            *value = value.wrapping_add(count);
        }
    }

    pub(crate) fn bump(&mut self, counter: Counter) {
        self.add(counter, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn every_counter_has_a_unique_name_and_its_layer() {
        let names: BTreeSet<&str> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(names.len(), Counter::ALL.len());
        assert_eq!(Counter::DropTcpPort.layer(), "tcp");
        assert_eq!(Counter::DropEtherType.layer(), "ethernet");
        assert_eq!(Counter::DropFragmentTiny.layer(), "ip");
        assert_eq!(Counter::DropCoreBusy.layer(), "device");
        for (beginning, layer) in LAYERS {
            let of_layer =
                |counter: &&Counter| counter.name().trim_start_matches("drop_").starts_with(beginning);
            assert_eq!(
                Counter::ALL.iter().find(of_layer).map(|counter| counter.layer()),
                Some(*layer),
                "{beginning}"
            );
        }
    }
}
