//! The network of a new cell: the machine's, or that of a service cell.

use super::network::{NetworkError, NetworkRequest};
use super::options::Uplink;
use isola_abi::management::{CellInfo, NetworkSpec};
use isola_abi::network_service::{NetworkPort, NetworkService};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The network that a user chooses for a cell: `REQUEST`, on a network device of its own, or `REQUEST@CELL`, on the device
/// that a service cell serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkChoice {
    /// The requested address.
    pub request: NetworkRequest,
    /// The service cell; `None` for a device of its own.
    pub cell: Option<String>,
}

impl NetworkChoice {
    /// Returns the network to request from the supervisor for a new cell beside `cells`.
    ///
    /// # Errors
    /// [`NetworkError::Exhausted`], [`NetworkError::Taken`] or [`NetworkError::Assigned`].
    pub fn resolve(
        self,
        uplink: &Uplink,
        cells: &[CellInfo],
    ) -> Result<(NetworkSpec, NetworkService), NetworkError> {
        if let Some(cell) = self.cell.as_ref().filter(|cell| translates(cell, cells)) {
            let NetworkRequest::Fixed(_) = self.request else {
                let port = NetworkPort { cell: cell.clone(), address: None };
                return Ok((NetworkSpec::None, NetworkService::Client(port)));
            };
            return Err(NetworkError::Assigned(cell.clone()));
        }
        let own = self.request.resolve(uplink, cells)?;
        let Some(cell) = self.cell else { return Ok((own, NetworkService::None)) };
        let address = if let NetworkSpec::Static(address) = own { Some(address) } else { None };
        Ok((NetworkSpec::None, NetworkService::Client(NetworkPort { cell, address })))
    }

    /// Returns the request for a device of its own.
    ///
    /// # Errors
    /// [`NetworkError::NoServiceCell`] if it names a service cell.
    pub fn of_machine(self) -> Result<NetworkRequest, NetworkError> {
        self.cell.map_or(Ok(self.request), |cell| Err(NetworkError::NoServiceCell(cell)))
    }
}

/// Returns whether the service cell `name` translates the addresses of its clients, which is an argument of its application.
pub fn translates(name: &str, cells: &[CellInfo]) -> bool {
    let service = cells.iter().find(|cell| cell.spec.name == name);
    service.is_some_and(|cell| {
        cell.spec.network_service == NetworkService::Server
            && cell.spec.arguments.first().is_some_and(|argument| argument == "nat")
    })
}

impl From<NetworkRequest> for NetworkChoice {
    fn from(request: NetworkRequest) -> Self {
        Self { request, cell: None }
    }
}

impl FromStr for NetworkChoice {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let Some((request, cell)) = text.split_once('@') else {
            return Ok(Self::from(text.parse::<NetworkRequest>()?));
        };
        let request = request.parse()?;
        if cell.is_empty() || request == NetworkRequest::None {
            return Err(NetworkError::Malformed(text.to_owned()));
        }
        Ok(Self { request, cell: Some(cell.to_owned()) })
    }
}

impl fmt::Display for NetworkChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)?;
        self.cell.as_ref().map_or(Ok(()), |cell| write!(f, "@{cell}"))
    }
}

impl TryFrom<String> for NetworkChoice {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Self, NetworkError> {
        text.parse()
    }
}

impl From<NetworkChoice> for String {
    fn from(choice: NetworkChoice) -> Self {
        choice.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::network::address;
    use crate::test_data::cell;

    #[test]
    fn choices_round_trip() {
        for text in ["auto", "none", "dhcp@net", "auto@net", "10.0.2.20/24,10.0.2.2@net"] {
            assert_eq!(text.parse::<NetworkChoice>().unwrap().to_string(), text);
        }
        for bad in ["none@net", "dhcp@", "@net", "net", "10.0.2.20@net"] {
            assert!(bad.parse::<NetworkChoice>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_client_takes_no_device_but_an_address_of_the_same_network() {
        let resolve = |text: &str, cells: &[CellInfo]| {
            text.parse::<NetworkChoice>().unwrap().resolve(&Uplink::User, cells).unwrap()
        };
        let mut client = cell("web");
        (client.spec.network, client.spec.network_service) = resolve("auto@net", &[]);
        assert_eq!(client.spec.network, NetworkSpec::None);
        assert_eq!(address(&client), Some([10, 0, 2, 16].into()));
        let (network, service) = resolve("auto", &[client]);
        assert_eq!(service, NetworkService::None);
        assert!(matches!(network, NetworkSpec::Static(own) if own.ip.octets() == [10, 0, 2, 17]));
        let (_, service) = resolve("dhcp@net", &[]);
        assert_eq!(service.port(), Some(&NetworkPort { cell: "net".into(), address: None }));
    }

    #[test]
    fn a_service_cell_that_translates_assigns_addresses() {
        let mut net = cell("net");
        net.spec.network_service = NetworkService::Server;
        let resolve = |text: &str, net: &CellInfo| {
            text.parse::<NetworkChoice>().unwrap().resolve(&Uplink::User, std::slice::from_ref(net))
        };
        assert!(resolve("auto@net", &net).unwrap().1.port().unwrap().address.is_some());
        net.spec.arguments = vec!["nat".into(), "10.77.0.0/16".into()];
        for text in ["auto@net", "dhcp@net"] {
            let (network, service) = resolve(text, &net).unwrap();
            assert_eq!((network, service.port().unwrap().address), (NetworkSpec::None, None), "{text}");
        }
        let error = resolve("10.0.2.20/24@net", &net).unwrap_err();
        assert_eq!(error, NetworkError::Assigned("net".into()));
        assert!(resolve("auto@other", &net).unwrap().1.port().unwrap().address.is_some());
    }

    #[test]
    fn a_run_without_a_supervisor_has_no_service_cells() {
        let error = "dhcp@net".parse::<NetworkChoice>().unwrap().of_machine().unwrap_err();
        assert!(error.to_string().contains("net"), "{error}");
        assert_eq!("dhcp".parse::<NetworkChoice>().unwrap().of_machine(), Ok(NetworkRequest::Dhcp));
    }
}
