//! Rules that attribute accepted connections to activities.

use alloc::string::String;
use core::net::SocketAddr;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Attributes accepted TCP connections to an activity: all given conditions must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityRule {
    /// The port that the connection was made to.
    pub port: Option<u16>,
    /// The network that the peer's address is in.
    pub peer: Option<IpNet>,
    /// The name of the activity.
    pub activity: String,
    /// Whether each connection has an activity of its own below that one, named by the peer's address and port.
    pub each_connection: bool,
}

impl ActivityRule {
    /// Returns whether the conditions hold for a connection.
    pub fn matches(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.port.is_none_or(|port| port == local.port())
            && self.peer.is_none_or(|network| network.contains(&remote.ip()))
    }
}

/// A change of a cell's rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleChange {
    /// Adds a rule behind the others.
    Add(ActivityRule),
    /// Removes all rules.
    Clear,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn rule(port: Option<u16>, peer: Option<&str>) -> ActivityRule {
        let peer = peer.map(|network| network.parse().unwrap());
        ActivityRule { port, peer, activity: "web".to_string(), each_connection: false }
    }

    #[test]
    fn all_conditions_of_a_rule_must_hold() {
        let local = |port| SocketAddr::from(([10, 0, 2, 16], port));
        let remote = SocketAddr::from(([192, 168, 7, 1], 40_000));
        assert!(rule(None, None).matches(local(80), remote));
        assert!(rule(Some(80), Some("192.168.0.0/16")).matches(local(80), remote));
        assert!(!rule(Some(80), Some("192.168.0.0/16")).matches(local(81), remote));
        assert!(!rule(Some(80), Some("192.168.0.0/24")).matches(local(80), remote));
        assert!(rule(None, Some("192.168.7.1/32")).matches(local(1), remote));
        assert!(!rule(None, Some("::/0")).matches(local(1), remote), "an IPv4 peer is in no IPv6 network");
    }
}
