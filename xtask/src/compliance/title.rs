//! The titles of RFCs.

/// Returns the title of an RFC; `None` if the table lacks it.
pub fn title(rfc: u32) -> Option<&'static str> {
    let at = TITLES.binary_search_by_key(&rfc, |(number, _)| *number).ok()?;
    TITLES.get(at).map(|(_, title)| *title)
}

/// The titles, by number.
const TITLES: &[(u32, &str)] = &[
    (768, "User Datagram Protocol"),
    (791, "Internet Protocol"),
    (792, "Internet Control Message Protocol"),
    (815, "IP Datagram Reassembly Algorithms"),
    (826, "An Ethernet Address Resolution Protocol"),
    (894, "A Standard for the Transmission of IP Datagrams over Ethernet Networks"),
    (919, "Broadcasting Internet Datagrams"),
    (1034, "Domain Names: Concepts and Facilities"),
    (1035, "Domain Names: Implementation and Specification"),
    (1071, "Computing the Internet Checksum"),
    (1122, "Requirements for Internet Hosts: Communication Layers"),
    (1123, "Requirements for Internet Hosts: Application and Support"),
    (1191, "Path MTU Discovery"),
    (1337, "TIME-WAIT Assassination Hazards in TCP"),
    (1624, "Computation of the Internet Checksum via Incremental Update"),
    (1858, "Security Considerations for IP Fragment Filtering"),
    (2018, "TCP Selective Acknowledgment Options"),
    (2131, "Dynamic Host Configuration Protocol"),
    (2132, "DHCP Options and BOOTP Vendor Extensions"),
    (2181, "Clarifications to the DNS Specification"),
    (2308, "Negative Caching of DNS Queries"),
    (2464, "Transmission of IPv6 Packets over Ethernet Networks"),
    (2883, "An Extension to the Selective Acknowledgement (SACK) Option for TCP"),
    (3042, "Enhancing TCP's Loss Recovery Using Limited Transmit"),
    (3128, "Protection Against a Variant of the Tiny Fragment Attack"),
    (3168, "The Addition of Explicit Congestion Notification (ECN) to IP"),
    (3396, "Encoding Long Options in DHCPv4"),
    (3442, "The Classless Static Route Option for DHCPv4"),
    (3596, "DNS Extensions to Support IP Version 6"),
    (3986, "Uniform Resource Identifier (URI): Generic Syntax"),
    (4291, "IP Version 6 Addressing Architecture"),
    (4429, "Optimistic Duplicate Address Detection for IPv6"),
    (4443, "Internet Control Message Protocol for IPv6 (ICMPv6)"),
    (4821, "Packetization Layer Path MTU Discovery"),
    (4861, "Neighbor Discovery for IP version 6"),
    (4862, "IPv6 Stateless Address Autoconfiguration"),
    (4987, "TCP SYN Flooding Attacks and Common Mitigations"),
    (5095, "Deprecation of Type 0 Routing Headers in IPv6"),
    (5227, "IPv4 Address Conflict Detection"),
    (5452, "Measures for Making DNS More Resilient against Forged Answers"),
    (5681, "TCP Congestion Control"),
    (5682, "Forward RTO-Recovery (F-RTO)"),
    (5722, "Handling of Overlapping IPv6 Fragments"),
    (5927, "ICMP Attacks against TCP"),
    (5961, "Improving TCP's Robustness to Blind In-Window Attacks"),
    (6056, "Recommendations for Transport-Protocol Port Randomization"),
    (6093, "On the Implementation of the TCP Urgent Mechanism"),
    (6191, "Reducing the TIME-WAIT State Using TCP Timestamps"),
    (6298, "Computing TCP's Retransmission Timer"),
    (6335, "Procedures for the Management of the Service Name and Port Number Registry"),
    (6528, "Defending against Sequence Number Attacks"),
    (6582, "The NewReno Modification to TCP's Fast Recovery Algorithm"),
    (6633, "Deprecation of ICMP Source Quench Messages"),
    (6675, "A Conservative Loss Recovery Algorithm Based on SACK for TCP"),
    (6691, "TCP Options and Maximum Segment Size (MSS)"),
    (6724, "Default Address Selection for IPv6"),
    (6864, "Updated Specification of the IPv4 ID Field"),
    (6891, "Extension Mechanisms for DNS (EDNS(0))"),
    (6928, "Increasing TCP's Initial Window"),
    (6935, "IPv6 and UDP Checksums for Tunneled Packets"),
    (6937, "Proportional Rate Reduction for TCP"),
    (6946, "Processing of IPv6 \"Atomic\" Fragments"),
    (6980, "Security Implications of IPv6 Fragmentation with IPv6 Neighbor Discovery"),
    (7112, "Implications of Oversized IPv6 Header Chains"),
    (7217, "A Method for Generating Semantically Opaque Interface Identifiers with IPv6 SLAAC"),
    (7323, "TCP Extensions for High Performance"),
    (7413, "TCP Fast Open"),
    (7766, "DNS Transport over TCP"),
    (8021, "Generation of IPv6 Atomic Fragments Considered Harmful"),
    (8106, "IPv6 Router Advertisement Options for DNS Configuration"),
    (8200, "Internet Protocol, Version 6 (IPv6)"),
    (8201, "Path MTU Discovery for IP version 6"),
    (8311, "Relaxing Restrictions on ECN Experimentation"),
    (8415, "Dynamic Host Configuration Protocol for IPv6 (DHCPv6)"),
    (8504, "IPv6 Node Requirements"),
    (8511, "TCP Alternative Backoff with ECN (ABE)"),
    (8961, "Requirements for Time-Based Loss Detection"),
    (8981, "Temporary Address Extensions for SLAAC in IPv6"),
    (8985, "The RACK-TLP Loss Detection Algorithm for TCP"),
    (9110, "HTTP Semantics"),
    (9111, "HTTP Caching"),
    (9112, "HTTP/1.1"),
    (9293, "Transmission Control Protocol (TCP)"),
    (9406, "HyStart++: Modified Slow Start for TCP"),
    (9438, "CUBIC for Fast and Long-Distance Networks"),
    (9937, "Proportional Rate Reduction"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_found_by_number() {
        assert!(TITLES.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(title(768), Some("User Datagram Protocol"));
        assert_eq!(title(769), None);
    }
}
