//! The room of address configuration: the clients of DHCP and DHCPv6, and IPv6 autoconfiguration, as state machines
//! without I/O. The stack sends their messages and applies their results.

mod autoconf;
mod dhcp;
mod dhcp6;

pub(crate) use autoconf::{Autoconf, Conflict, Outgoing};
pub(crate) use dhcp::{
    CLIENT_PORT as DHCP_CLIENT_PORT, Change as DhcpChange, Client as DhcpClient,
    SERVER_PORT as DHCP_SERVER_PORT,
};
pub(crate) use dhcp6::{
    CLIENT_PORT as DHCP6_CLIENT_PORT, Change as Dhcp6Change, Client as Dhcp6Client,
    SERVER_PORT as DHCP6_SERVER_PORT, SERVERS as DHCP6_SERVERS,
};
