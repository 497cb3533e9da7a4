//! Addresses for cells on a machine's virtual network.

use super::options::Uplink;
use isola_abi::descriptor::NetworkAddress;
use isola_abi::management::{CellInfo, NetworkSpec};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;
use thiserror::Error;

/// The router of QEMU's user-mode network, which is 10.0.2.0/24.
pub const USER_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// The prefix length of that network.
const USER_PREFIX_LEN: u8 = 24;

/// Returns the last bytes of the addresses for cells: above QEMU's own, and below and above the 16 of its DHCP server.
fn user_pool() -> impl Iterator<Item = u8> {
    (16..128).chain(144..255)
}

/// The network that a user requests for a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum NetworkRequest {
    /// A free address on a user-mode network; DHCP on a TAP network.
    #[default]
    Auto,
    /// An address by DHCP.
    Dhcp,
    /// No network.
    None,
    /// A fixed address.
    Fixed(NetworkAddress),
}

/// The reasons why a cell gets no address.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NetworkError {
    /// The text is malformed.
    #[error(
        "{0:?} is no network: write `auto`, `dhcp`, `none`, or ADDRESS/PREFIX[,GATEWAY] as in 10.0.2.20/24,10.0.2.2; with @CELL, as in dhcp@net, it is \
         the network of a service cell"
    )]
    Malformed(String),
    /// A run without a supervisor names a service cell.
    #[error(
        "the network of cell {0:?} is for cells of its machine: leave out --standalone and --hosted, or `@{0}`"
    )]
    NoServiceCell(String),
    /// The service cell assigns the addresses of its clients.
    #[error(
        "service cell {0:?} translates addresses, and assigns those of its clients: write `dhcp@{0}` or `auto@{0}`"
    )]
    Assigned(String),
    /// All addresses are taken.
    #[error("all {} addresses of the user-mode network are taken: remove a cell, or use `--network dhcp`", user_pool().count())]
    Exhausted,
    /// Another cell has the address.
    #[error("cell {cell:?} has the address {ip}: choose another")]
    Taken {
        /// The address.
        ip: Ipv4Addr,
        /// The cell that has it.
        cell: String,
    },
}

impl NetworkRequest {
    /// Returns the network to request from the supervisor for a new cell beside `cells`.
    ///
    /// # Errors
    /// [`NetworkError::Exhausted`] or [`NetworkError::Taken`].
    pub fn resolve(self, uplink: &Uplink, cells: &[CellInfo]) -> Result<NetworkSpec, NetworkError> {
        let holder = |ip: Ipv4Addr| cells.iter().find(|cell| address(cell) == Some(ip));
        match (self, uplink) {
            (Self::None, _) => Ok(NetworkSpec::None),
            (Self::Dhcp, _) | (Self::Auto, Uplink::Tap { .. }) => Ok(NetworkSpec::Dhcp),
            (Self::Fixed(address), _) => match holder(address.ip) {
                Some(cell) => Err(NetworkError::Taken { ip: address.ip, cell: cell.spec.name.clone() }),
                None => Ok(NetworkSpec::Static(address)),
            },
            (Self::Auto, Uplink::User | Uplink::UserWithHost) => {
                let mut pool = user_pool().map(|last| Ipv4Addr::new(10, 0, 2, last));
                let ip = pool.find(|ip| holder(*ip).is_none()).ok_or(NetworkError::Exhausted)?;
                let gateway = Some(USER_GATEWAY);
                Ok(NetworkSpec::Static(NetworkAddress { ip, prefix_len: USER_PREFIX_LEN, gateway }))
            }
        }
    }
}

/// Returns a cell's address: the assigned one, or the one in the cell's report.
pub fn address(cell: &CellInfo) -> Option<Ipv4Addr> {
    cell.spec.static_address().map(|address| address.ip).or(cell.address)
}

impl FromStr for NetworkRequest {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let fixed = || {
            let (address, gateway) = match text.split_once(',') {
                Some((address, gateway)) => (address, Some(gateway.parse().ok()?)),
                None => (text, None),
            };
            let (ip, prefix_len) = address.split_once('/')?;
            let prefix_len = prefix_len.parse().ok().filter(|len| (1..=31).contains(len))?;
            Some(Self::Fixed(NetworkAddress { ip: ip.parse().ok()?, prefix_len, gateway }))
        };
        match text {
            "auto" => Ok(Self::Auto),
            "dhcp" => Ok(Self::Dhcp),
            "none" => Ok(Self::None),
            _ => fixed().ok_or_else(|| NetworkError::Malformed(text.to_owned())),
        }
    }
}

impl fmt::Display for NetworkRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Dhcp => f.write_str("dhcp"),
            Self::None => f.write_str("none"),
            Self::Fixed(address) => {
                write!(f, "{}/{}", address.ip, address.prefix_len)?;
                address.gateway.map_or(Ok(()), |gateway| write!(f, ",{gateway}"))
            }
        }
    }
}

impl TryFrom<String> for NetworkRequest {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Self, NetworkError> {
        text.parse()
    }
}

impl From<NetworkRequest> for String {
    fn from(request: NetworkRequest) -> Self {
        request.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::cell;

    fn at(ip: &str) -> CellInfo {
        let mut cell = cell("other");
        cell.spec.network =
            format!("{ip}/24").parse::<NetworkRequest>().unwrap().resolve(&Uplink::User, &[]).unwrap();
        cell
    }

    #[test]
    fn a_cell_gets_the_first_free_address() {
        let ip = |cells: &[CellInfo]| match NetworkRequest::Auto.resolve(&Uplink::User, cells) {
            Ok(NetworkSpec::Static(address)) => address.ip.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(ip(&[]), "10.0.2.16");
        assert_eq!(ip(&[at("10.0.2.16"), at("10.0.2.18")]), "10.0.2.17");
        let below: Vec<CellInfo> = (16..128).map(|last| at(&format!("10.0.2.{last}"))).collect();
        assert_eq!(ip(&below), "10.0.2.144", "behind those of QEMU's DHCP server");
        let all: Vec<CellInfo> = user_pool().map(|last| at(&format!("10.0.2.{last}"))).collect();
        assert_eq!(NetworkRequest::Auto.resolve(&Uplink::User, &all), Err(NetworkError::Exhausted));
    }

    #[test]
    fn an_address_has_one_cell() {
        let request: NetworkRequest = "10.0.2.20/24,10.0.2.2".parse().unwrap();
        assert!(request.resolve(&Uplink::User, &[at("10.0.2.21")]).is_ok());
        let taken = request.resolve(&Uplink::User, &[at("10.0.2.20")]).unwrap_err();
        assert!(taken.to_string().contains("\"other\""), "{taken}");
    }

    #[test]
    fn auto_means_dhcp_on_a_tap() {
        let tap = Uplink::Tap { interface: "t".into(), queues: None };
        assert_eq!(NetworkRequest::Auto.resolve(&tap, &[]), Ok(NetworkSpec::Dhcp));
    }

    #[test]
    fn network_texts_round_trip() {
        for text in ["auto", "dhcp", "none", "10.0.2.20/24", "192.168.1.9/16,192.168.0.1"] {
            assert_eq!(text.parse::<NetworkRequest>().unwrap().to_string(), text);
        }
        for bad in ["", "host", "10.0.2.20", "10.0.2.20/0", "10.0.2.20/32", "10.0.2.20/24,", "1.2.3/24"] {
            assert!(bad.parse::<NetworkRequest>().is_err(), "{bad}");
        }
    }
}
