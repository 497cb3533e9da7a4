//! A process that is one cell, with the network of its specification.

use crate::gateway;
use isola_abi::descriptor::NetworkAddress;
use isola_abi::hosted::{HostedNetwork, HostedSpec};
use isola_hosted::process::{NOT_RUN, Process};
use isola_hosted::tap::{self, TapOffloads};
use isola_platform::network::NetworkPort;

/// Runs a cell as this process: `begin` on its first core, then the event loops of all cores. Returns the process's
/// exit code.
pub fn run(begin: fn()) -> i32 {
    let outcome = Process::open().and_then(|process| {
        let (network, address) = open(&process.spec).map_err(|error| format!("{}: {error}", process.name))?;
        process.run(network, address, begin, isola_events::run)
    });
    outcome.unwrap_or_else(|error| {
        eprintln!("{error}");
        NOT_RUN
    })
}

fn open(spec: &HostedSpec) -> Result<(Vec<NetworkPort>, Option<NetworkAddress>), String> {
    match &spec.network {
        HostedNetwork::None => Ok((Vec::new(), None)),
        HostedNetwork::User => {
            let (port, address) = gateway::start(&spec.forwards).map_err(|error| error.to_string())?;
            Ok((vec![port], Some(address)))
        }
        HostedNetwork::Tap { interface, address } => {
            let port = tap::open(interface, spec.cores as usize, TapOffloads::ChecksumsAndSegmentation)
                .map_err(|error| {
                    format!(
                        "the TAP interface {interface} cannot be opened: {error}; run as root, or create an \
                     interface that you own and no other process uses: ip tuntap add {interface} mode tap \
                     multi_queue user $USER"
                    )
                })?;
            Ok((vec![port], *address))
        }
    }
}
