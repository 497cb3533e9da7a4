//! Listener reports (RFC 3810): they tell switches that snoop which groups are wanted here.
//!
//! A host of ours listens to nothing but the groups in which its addresses are looked for, from whomever: every
//! report is the whole truth, "exclude nobody", for each of them.

use crate::address6::solicited_node;
use alloc::vec::Vec;
use core::net::Ipv6Addr;

/// Hops of a report: it concerns the link alone.
pub(crate) const HOPS: u8 = 1;
/// The hop-by-hop header that makes routers look: a router alert for MLD (RFC 2711), padded.
pub(crate) const ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];

const REPORT: u8 = 143;
const IS_EXCLUDE: u8 = 2;
const TO_EXCLUDE: u8 = 4;

/// Why a report is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The groups are new.
    Joined,
    /// Somebody asked.
    Asked,
}

/// The report for the groups of these addresses.
pub(crate) fn report(addresses: impl Iterator<Item = Ipv6Addr>, reason: Reason) -> Vec<u8> {
    let mut bytes = Vec::from([REPORT, 0, 0, 0, 0, 0, 0, 0]);
    let kind = if reason == Reason::Joined { TO_EXCLUDE } else { IS_EXCLUDE };
    let mut groups: Vec<Ipv6Addr> = addresses.map(solicited_node).collect();
    groups.sort_unstable();
    groups.dedup();
    for group in &groups {
        bytes.extend_from_slice(&[kind, 0, 0, 0]);
        bytes.extend_from_slice(&group.octets());
    }
    if let Some(count) = bytes.get_mut(6..8) {
        count.copy_from_slice(&(groups.len() as u16).to_be_bytes());
    }
    bytes
}

/// The longest delay that a query allows, in milliseconds (RFC 3810 5.1.3).
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

    #[proves("RFC 3810 5.2", "a report names its groups once each.")]
    #[proves("RFC 3810 5.1.3", "long delays are told as exponent and mantissa.")]
    #[test]
    fn a_report_names_every_group_once() {
        let addresses = ["fe80::12:3456", "fd00::12:3456", "fd00::9"].map(|text| text.parse().unwrap());
        let bytes = report(addresses.into_iter(), Reason::Joined);
        assert_eq!((bytes[0], &bytes[6..8], bytes.len()), (143, &[0, 2][..], 8 + 2 * 20));
        assert_eq!(bytes[8], 4);
        assert_eq!((delay_ms(10_000), delay_ms(0x8000), delay_ms(0xffff)), (10_000, 32_768, 8_387_584));
    }
}
