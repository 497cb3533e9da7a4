//! A private network: a network namespace with this process and the machines, and one tap device for the current
//! machine.
//!
//! The namespace has no name. It ends, with the device, when the last process in it ends, even if that process is
//! killed.

use crate::error::BenchError;
use crate::program;
use std::env;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The tap device.
pub const TAP: &str = "tap0";

/// The address of machines.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// The same with the prefix length.
pub const GUEST_NETWORK: &str = "10.77.0.2/24";

/// The MAC address of machines.
pub const GUEST_MAC: &str = "52:54:00:77:00:02";

/// The host's address, with the prefix length.
const HOST_NETWORK: &str = "10.77.0.1/24";

/// The environment variable that marks a process in its namespace.
const INSIDE: &str = "ISOLA_BENCH_INSIDE";

/// Returns the address of a service on the machine.
pub fn service(port: u16) -> SocketAddr {
    (GUEST, port).into()
}

/// Moves this process into a new network namespace: outside of one, executes the program again in it.
///
/// # Errors
/// [`BenchError::NoNamespace`], [`BenchError::ProgramMissing`], [`BenchError::Program`], [`BenchError::File`].
pub fn enter() -> Result<(), BenchError> {
    if env::var_os(INSIDE).is_none() {
        program::need(&[("unshare", "util-linux"), ("setpriv", "util-linux"), ("ip", "iproute2")])?;
        // Root needs no user namespace; another user becomes root of one, if the kernel allows it.
        let how: &[&str] =
            if rustix::process::geteuid().is_root() { &["--net"] } else { &["--net", "--map-root-user"] };
        program::run_in(Command::new("unshare").args(how).arg("true"))
            .map_err(|_| BenchError::NoNamespace)?;
        let this = env::current_exe().map_err(BenchError::file("/proc/self/exe"))?;
        let mut again = Command::new("unshare");
        again.args(how).arg(this).args(env::args_os().skip(1)).env(INSIDE, "1");
        return Err(BenchError::Program { line: "unshare".into(), output: again.exec().to_string() });
    }
    program::run("ip", &["link", "set", "lo", "up"])?;
    // Each short connection leaves a port in TIME-WAIT: use more ports, and reuse one after a second instead of a
    // minute.
    for (name, value) in [("ip_local_port_range", "1024 65535"), ("tcp_tw_reuse", "1")] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).map_err(BenchError::file(&path))?;
    }
    // With the default slack, a sleeping client wakes up to 50 us late.
    let _ = fs::write("/proc/self/timerslack_ns", "1");
    Ok(())
}

/// Creates the tap device again, with `queues` queues.
///
/// # Errors
/// [`BenchError::NoNamespace`], [`BenchError::Program`].
pub fn make_tap(queues: u32) -> Result<(), BenchError> {
    // At the first call there is no device.
    let _ = program::run("ip", &["link", "delete", TAP]);
    let mut add = vec!["tuntap", "add", "dev", TAP, "mode", "tap"];
    if queues > 1 {
        add.push("multi_queue");
    }
    program::run("ip", &add).map_err(|_| BenchError::NoNamespace)?;
    // Only measured packets should reach a machine, so IPv6 is disabled. If that fails, its few packets do no harm.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{TAP}/disable_ipv6"), "1");
    program::run("ip", &["address", "add", HOST_NETWORK, "dev", TAP])?;
    program::run("ip", &["link", "set", TAP, "up"])?;
    // A static neighbour entry saves connections from waiting for ARP. Connections to the machine before may have
    // started a resolution.
    let neighbour =
        ["neighbour", "replace", &GUEST.to_string(), "lladdr", GUEST_MAC, "dev", TAP, "nud", "permanent"];
    program::run("ip", &neighbour).map(|_| ())
}
