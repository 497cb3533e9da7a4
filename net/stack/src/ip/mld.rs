//! Multicast listener reports (RFC 3810), by which snooping switches learn the groups of this host.
//!
//! The only groups are the solicited-node groups of the interface's addresses, from any source: every report has, for
//! each of them, an exclude-mode record with an empty source list.

use crate::base::solicited_node;
use alloc::vec::Vec;
use core::net::Ipv6Addr;

/// The hop limit of a report, which is limited to the link.
pub(crate) const HOPS: u8 = 1;
/// The hop-by-hop header of a report: a router alert for MLD (RFC 2711), padded.
pub(crate) const ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];

const REPORT: u8 = 143;
const IS_EXCLUDE: u8 = 2;
const TO_EXCLUDE: u8 = 4;

/// The reason for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The groups are new.
    Joined,
    /// A query.
    Asked,
}

/// Returns the report of the groups of these addresses.
pub(crate) fn report(addresses: impl Iterator<Item = Ipv6Addr>, reason: Reason) -> Vec<u8> {
    let mut bytes = Vec::from([REPORT, 0, 0, 0, 0, 0, 0, 0]);
    let kind = if reason == Reason::Joined { TO_EXCLUDE } else { IS_EXCLUDE };
    let mut groups: Vec<Ipv6Addr> = Vec::new();
    for group in addresses.map(solicited_node) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for group in &groups {
        bytes.extend_from_slice(&[kind, 0, 0, 0]);
        bytes.extend_from_slice(&group.octets());
    }
    if let Some(count) = bytes.get_mut(6..8) {
        count.copy_from_slice(&(groups.len() as u16).to_be_bytes());
    }
    bytes
}

/// Returns the maximum response delay that a query encodes, in milliseconds (RFC 3810 5.1.3).
pub(crate) const fn delay_ms(code: u16) -> u64 {
    if code < 0x8000 {
        return code as u64;
    }
    ((code as u64 & 0xfff) | 0x1000) << (((code >> 12) & 7) + 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    #[proves("RFC 3810 5.2", "a report has each group once.")]
    #[proves("RFC 3810 5.1.3", "long delays are encoded as exponent and mantissa.")]
    #[test]
    fn a_report_has_each_group_once() {
        let addresses = ["fe80::12:3456", "fd00::12:3456", "fd00::9"].map(|text| text.parse().unwrap());
        let bytes = report(addresses.into_iter(), Reason::Joined);
        assert_eq!((bytes[0], &bytes[6..8], bytes.len()), (143, &[0, 2][..], 8 + 2 * 20));
        assert_eq!(bytes[8], 4);
        assert_eq!((delay_ms(10_000), delay_ms(0x8000), delay_ms(0xffff)), (10_000, 32_768, 8_387_584));
    }
}
