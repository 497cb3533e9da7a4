//! The network of programs: the internet sockets, and the files by which programs find names and servers.

use crate::root::Root;
use alloc::sync::Arc;
use core::fmt::Write;
use core::net::IpAddr;
use core::time::Duration;
use isola::net;
use isola::prelude::*;
use isola_linux_internet::{CellInterfaces, Internet};
use isola_linux_processes::System;

/// How long the start waits for an address of a cell that requests one.
const ADDRESS_TIME: Duration = Duration::from_secs(3);

/// The names of the cell itself.
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";

/// Gives programs internet sockets, and the files of names that the root volume lacks.
///
/// # Errors
/// A text for people.
pub async fn start(system: &Arc<System>, root: &Root) -> Result<(), String> {
    Internet::new(isola::entropy).register(&system.sockets);
    system.sockets.set_interfaces(Arc::new(CellInterfaces));
    if net::interface::link().is_some() {
        // Programs that ask for the cell's address at their start expect one. Without, they have loopback.
        let _ = isola::events::timeout(ADDRESS_TIME, net::wait_for_address()).await;
    }
    let name = system.host_name.lock().clone();
    let mut hosts = HOSTS.to_owned();
    if let Some(own) = net::address() {
        let _ = writeln!(hosts, "{} {name}", own.address);
    }
    root.create_file("/etc/hosts", &hosts).await?;
    root.create_file("/etc/hostname", &format!("{name}\n")).await?;
    let servers = name_servers();
    if !servers.is_empty() {
        let lines = servers.iter().map(|server| format!("nameserver {server}\n")).collect::<String>();
        root.create_file("/etc/resolv.conf", &lines).await?;
    }
    Ok(())
}

/// Returns the name servers that the network announced.
fn name_servers() -> Vec<IpAddr> {
    let v4 = net::address().into_iter().flat_map(|own| own.dns).flatten().map(IpAddr::from);
    let v6 = net::ipv6();
    v4.chain(v6.dns.into_iter().flatten().map(IpAddr::from)).collect()
}
