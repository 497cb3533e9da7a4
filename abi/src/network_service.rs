//! Networks of service cells: a cell serves its network device to others, as virtio network devices over links (see
//! [`crate::service`]).
//!
//! A client opens the link by its own name, `CELL/NAME`, and the supervisor refuses any other name ([`CellSpec::accepts`]).
//! So the serving cell knows the client's name without trust in the client, and assigns hardware address and activity by
//! it.
//!
//! [`CellSpec::accepts`]: crate::management::CellSpec::accepts

use crate::descriptor::NetworkAddress;
use crate::links::MAX_SERVICE_LEN;
use crate::management::MAX_NAME_LEN;
use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};

/// The service name by which a cell listens for clients of any name.
pub const ANY_CLIENT: &str = "*";

/// The part of a cell in a served network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkService {
    /// None: it has a network device of its own, or no network.
    #[default]
    None,
    /// Its network device is a port of another cell's.
    Client(NetworkPort),
    /// It serves its network device to other cells. The device receives the frames for all hardware addresses.
    Server,
}

/// The network device of a cell that another cell serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPort {
    /// The name of the service cell.
    pub cell: String,
    /// The client's address; by DHCP if `None`.
    pub address: Option<NetworkAddress>,
}

/// The reason why a cell cannot have a part in a served network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkServiceError {
    /// The name of the service cell is not one.
    ServiceName,
    /// The client's name is too long for the name of a link's service.
    ClientName,
    /// A client has a network device of its own.
    TwoDevices,
    /// A service cell has none.
    NoDevice,
}

impl fmt::Display for NetworkServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServiceName => {
                f.write_str("the network of a service cell is named by the cell, as in dhcp@net")
            }
            Self::ClientName => write!(
                f,
                "a cell with the network of a service cell has a name of at most {MAX_SERVICE_LEN} bytes"
            ),
            Self::TwoDevices => f.write_str(
                "a cell has a network device of its own or the network of a service cell, not both",
            ),
            Self::NoDevice => {
                f.write_str("a cell that serves its network needs one: leave out `--network none`")
            }
        }
    }
}

impl core::error::Error for NetworkServiceError {}

impl NetworkService {
    /// Checks the part of a cell with this name, which has a device or not.
    ///
    /// # Errors
    /// A [`NetworkServiceError`].
    pub fn validate(&self, name: &str, has_device: bool) -> Result<(), NetworkServiceError> {
        match self {
            Self::Client(NetworkPort { cell, .. }) => {
                let is_name = !cell.is_empty() && cell.len() <= MAX_NAME_LEN && !cell.contains(['/', '\0']);
                match () {
                    () if has_device => Err(NetworkServiceError::TwoDevices),
                    () if !is_name => Err(NetworkServiceError::ServiceName),
                    () if name.len() > MAX_SERVICE_LEN => Err(NetworkServiceError::ClientName),
                    () => Ok(()),
                }
            }
            Self::Server if !has_device => Err(NetworkServiceError::NoDevice),
            Self::Server | Self::None => Ok(()),
        }
    }

    /// Returns the device that another cell serves, if it is one.
    pub fn port(&self) -> Option<&NetworkPort> {
        if let Self::Client(port) = self { Some(port) } else { None }
    }
}

/// The first message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkHello {
    /// The [`crate::VERSION`] of the client.
    pub version: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_fit_the_cell_are_refused() {
        let client = |cell: &str| NetworkService::Client(NetworkPort { cell: cell.into(), address: None });
        assert_eq!(client("net").validate("web", false), Ok(()));
        assert_eq!(client("net").validate("web", true), Err(NetworkServiceError::TwoDevices));
        for bad in ["", "a/b", "a\0", &"n".repeat(MAX_NAME_LEN + 1)] {
            assert_eq!(client(bad).validate("web", false), Err(NetworkServiceError::ServiceName), "{bad}");
        }
        let long = "n".repeat(MAX_SERVICE_LEN + 1);
        assert_eq!(client("net").validate(&long, false), Err(NetworkServiceError::ClientName));
        assert_eq!(client("net").validate(&long[1..], false), Ok(()));
        assert_eq!(NetworkService::Server.validate(&long, true), Ok(()));
        assert_eq!(NetworkService::Server.validate("net", false), Err(NetworkServiceError::NoDevice));
        assert_eq!(NetworkService::None.validate("kv", false), Ok(()));
    }
}
