//! What the stack counted: every frame it dropped, by reason, and what else an operator asks for.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// Something that is counted. A frame that goes nowhere is counted under exactly one reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Counter {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Counter {
            /// All counters, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The counter's name as it is shown: lower case with underscores.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

counters! {
    /// Frames handed to `receive`.
    FramesIn = "frames_in",
    /// Bytes of those frames.
    BytesIn = "bytes_in",
    /// Frames handed out by `poll_transmit`.
    FramesOut = "frames_out",
    /// Bytes of those frames.
    BytesOut = "bytes_out",
    /// Frames of several buffers that were copied together, as they were not fast-path ones.
    LongFramesCopied = "long_frames_copied",
    /// Shorter than an Ethernet header.
    DropEthernetShort = "drop_ethernet_short",
    /// Addressed to another interface.
    DropEthernetAddress = "drop_ethernet_address",
    /// An EtherType that nothing here speaks.
    DropEtherType = "drop_ethertype",
    /// Not a well-formed ARP packet for IPv4 on Ethernet.
    DropArpMalformed = "drop_arp_malformed",
    /// An ARP packet between others.
    DropArpNotForUs = "drop_arp_not_for_us",
    /// An IPv4 header with impossible lengths or version.
    DropIpv4Malformed = "drop_ipv4_malformed",
    /// An IPv4 header whose checksum does not fit.
    DropIpv4Checksum = "drop_ipv4_checksum",
    /// A fragment with an impossible length or place.
    DropFragmentMalformed = "drop_fragment_malformed",
    /// A first fragment without its transport's header.
    DropFragmentTiny = "drop_fragment_tiny",
    /// A fragment that overlaps another of its packet, or belongs to a packet where that happened.
    DropFragmentOverlap = "drop_fragment_overlap",
    /// A fragment that came before.
    DropFragmentRepeated = "drop_fragment_repeated",
    /// A fragment dropped for want of room, or of a packet in too many of them.
    DropFragmentLimit = "drop_fragment_limit",
    /// A fragment whose fellows did not come in time.
    DropFragmentTime = "drop_fragment_time",
    /// A packet from an address that nobody can have.
    DropIpv4Source = "drop_ipv4_source",
    /// A packet to an address that is not this interface's.
    DropIpv4Address = "drop_ipv4_address",
    /// A transport protocol that nothing here speaks.
    DropIpv4Protocol = "drop_ipv4_protocol",
    /// An IPv6 header, or an extension of it, with impossible lengths or version.
    DropIpv6Malformed = "drop_ipv6_malformed",
    /// IPv6 extension headers that are too many, out of place, or have options that forbid to go on.
    DropIpv6Extension = "drop_ipv6_extension",
    /// A routing header that wants the packet sent on.
    DropIpv6Routing = "drop_ipv6_routing",
    /// An IPv6 packet from an address that nobody can have.
    DropIpv6Source = "drop_ipv6_source",
    /// An IPv6 packet to an address or group that is not this interface's.
    DropIpv6Address = "drop_ipv6_address",
    /// An IPv6 packet for a transport that nothing here speaks.
    DropIpv6Protocol = "drop_ipv6_protocol",
    /// A message of neighbour discovery that is malformed, or came from afar.
    DropNdpInvalid = "drop_ndp_invalid",
    /// A router, network or address that is not taken because there are as many as the tables hold.
    DropNdpTable = "drop_ndp_table",
    /// No address configured yet.
    DropNoAddress = "drop_no_address",
    /// A truncated ICMP message or one with a wrong checksum.
    DropIcmpMalformed = "drop_icmp_malformed",
    /// An ICMP message that nothing here answers or uses.
    DropIcmpIgnored = "drop_icmp_ignored",
    /// An echo request or an error not answered because of the rate limit.
    DropIcmpRate = "drop_icmp_rate",
    /// An ICMP error about something this stack never sent.
    DropIcmpUnrelated = "drop_icmp_unrelated",
    /// A truncated UDP datagram.
    DropUdpMalformed = "drop_udp_malformed",
    /// A UDP datagram with a wrong checksum.
    DropUdpChecksum = "drop_udp_checksum",
    /// A UDP datagram for a port that nobody bound.
    DropUdpPort = "drop_udp_port",
    /// A UDP datagram for a socket whose queue is full.
    DropUdpQueueFull = "drop_udp_queue_full",
    /// A truncated TCP segment or one with impossible lengths.
    DropTcpMalformed = "drop_tcp_malformed",
    /// A TCP segment with a wrong checksum.
    DropTcpChecksum = "drop_tcp_checksum",
    /// A TCP segment with a combination of flags that means nothing.
    DropTcpFlags = "drop_tcp_flags",
    /// A TCP segment for no connection and no listener.
    DropTcpPort = "drop_tcp_port",
    /// A TCP segment outside the receive window.
    DropTcpWindow = "drop_tcp_window",
    /// A TCP segment from before the sequence numbers wrapped, as its timestamp tells, or without one where
    /// both sides use them (RFC 7323).
    DropTcpOld = "drop_tcp_old",
    /// A TCP segment that acknowledges what was never sent, or too old data.
    DropTcpAck = "drop_tcp_ack",
    /// A reset whose sequence number is not exactly the expected one (RFC 5961).
    DropTcpReset = "drop_tcp_reset",
    /// Data that arrived after this side stopped reading.
    DropTcpAfterClose = "drop_tcp_after_close",
    /// Out-of-order data beyond the reassembly limits.
    DropTcpReassembly = "drop_tcp_reassembly",
    /// The completion of a handshake for a listener whose backlog is full.
    DropTcpBacklog = "drop_tcp_backlog",
    /// A handshake given up, because nothing came or the table is full.
    DropTcpHalfOpen = "drop_tcp_half_open",
    /// A connection not made because the connection table is full.
    DropTcpTableFull = "drop_tcp_table_full",
    /// A TIME-WAIT entry dropped for a newer one.
    DropTcpTimeWait = "drop_tcp_time_wait",
    /// A packet dropped because its neighbour's queue is full.
    DropNeighbourQueue = "drop_neighbour_queue",
    /// A packet dropped because its neighbour does not answer.
    DropNeighbourSilent = "drop_neighbour_silent",
    /// A neighbour forgotten for a newer one.
    DropNeighbourCache = "drop_neighbour_cache",
    /// A packet to an address without a route.
    DropNoRoute = "drop_no_route",
    /// A packet dropped because the transmit queue is full.
    DropTransmitQueue = "drop_transmit_queue",
    /// A DHCP message that is malformed or not meant for this client.
    DropDhcp = "drop_dhcp",
    /// A frame dropped for another core that has too many events waiting. Counted by who steers frames.
    DropCoreBusy = "drop_core_busy",
    /// A frame to be sent that the device had no room for, with as many waiting as may. Counted by who serves the device.
    DropDeviceFull = "drop_device_full",
    /// A long frame dropped because next to no memory was left. Counted by who takes frames from the device.
    DropMemoryShort = "drop_memory_short",
    /// Packets put together from fragments.
    Reassembled = "reassembled",
    /// Times that a router said, credibly, that a packet was too long for its way.
    PathMtuLearned = "path_mtu_learned",
    /// Times that a connection sends shorter segments because long ones vanish without a word.
    PathMtuGuessed = "path_mtu_guessed",
    /// Addresses that somebody else turned out to have.
    AddressConflicts = "address_conflicts",
    /// A reset not sent because of the rate limit.
    ResetRate = "reset_rate_limited",
    /// A challenge acknowledgement not sent because of the rate limit.
    ChallengeRate = "challenge_rate_limited",
    /// Connections accepted by listeners.
    TcpAccepted = "tcp_accepted",
    /// Connections made by `connect`.
    TcpConnected = "tcp_connected",
    /// SYNs that were answered with a cookie, as the table of half-open handshakes was full.
    TcpCookiesOut = "tcp_cookies_out",
    /// Handshakes completed by a cookie that came back.
    TcpCookiesIn = "tcp_cookies_in",
    /// Segments that might have brought a cookie back and did not.
    TcpCookiesWrong = "tcp_cookies_wrong",
    /// Segments sent again after a timeout.
    TcpTimeouts = "tcp_timeouts",
    /// Losses found by acknowledgements, not by a timeout.
    TcpFastRetransmits = "tcp_fast_retransmits",
    /// Probes of a tail that was not acknowledged in time (RFC 8985).
    TcpTailProbes = "tcp_tail_probes",
    /// Timeouts and losses found that turned out to be none, and were taken back.
    TcpSpurious = "tcp_spurious",
    /// Times that the window shrank as routers had marked what was sent (RFC 3168).
    TcpMarks = "tcp_marks",
    /// Zero-window probes sent.
    TcpProbes = "tcp_probes",
    /// Segments that arrived ahead of a gap and were kept.
    TcpOutOfOrder = "tcp_out_of_order",
    /// Received payload bytes that were copied so as not to pin large buffers.
    TcpCompactedBytes = "tcp_compacted_bytes",
    /// Resets sent.
    TcpResetsOut = "tcp_resets_out",
    /// Resets accepted.
    TcpResetsIn = "tcp_resets_in",
    /// Connections given up because the peer stopped answering.
    TcpTimedOut = "tcp_timed_out",
}

impl Counter {
    /// The layer that the counter belongs to, as its name tells.
    pub fn layer(self) -> &'static str {
        let name = self.name().trim_start_matches("drop_");
        let is_of = |&&(beginning, _): &&(&str, &str)| name.starts_with(beginning);
        LAYERS.iter().find(is_of).map_or("ip", |(_, layer)| layer)
    }
}

/// What the names of a layer's counters begin with, behind `drop_`. All others are IP's.
const LAYERS: &[(&str, &str)] = &[
    ("frames_", "device"),
    ("bytes_", "device"),
    ("long_", "device"),
    ("core_", "device"),
    ("device_", "device"),
    ("memory_", "device"),
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

/// The values of all [`Counter`]s since the stack was made.
#[derive(Clone, Debug)]
pub struct Counters([u64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

impl Counters {
    /// Nothing counted yet.
    pub const fn new() -> Self {
        Self([0; Counter::ALL.len()])
    }

    /// The value of one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.get(counter as usize).copied().unwrap_or(0)
    }

    /// All counters with their values, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }

    /// Counts.
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
    fn every_counter_has_a_name_of_its_own_and_the_layer_that_it_belongs_to() {
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
