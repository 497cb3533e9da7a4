//! A network of one's own: a network namespace in which this process, the machines and nobody else are, with one tap
//! device that leads to the machine of the moment.
//!
//! The namespace has no name. It goes, and the device with it, when the last process in it ends, whichever way.

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

/// Theirs, with the length of the network's prefix.
pub const GUEST_NETWORK: &str = "10.77.0.2/24";

/// The MAC address of machines.
pub const GUEST_MAC: &str = "52:54:00:77:00:02";

/// The address of this side.
const HOST_NETWORK: &str = "10.77.0.1/24";

/// Says that the process is in its namespace.
const INSIDE: &str = "ISOLA_BENCH_INSIDE";

/// The address of a service of the machine.
pub fn service(port: u16) -> SocketAddr {
    (GUEST, port).into()
}

/// Makes sure that this process is in a network namespace of its own: where it is not, it begins anew in one.
///
/// # Errors
/// [`BenchError::NoNamespace`], or what failed in setting it up.
pub fn enter() -> Result<(), BenchError> {
    if env::var_os(INSIDE).is_none() {
        program::need(&[("unshare", "util-linux"), ("setpriv", "util-linux"), ("ip", "iproute2")])?;
        // Root makes one as it is; another user becomes root of a user namespace for it, where that is allowed.
        let how: &[&str] =
            if rustix::process::geteuid().is_root() { &["--net"] } else { &["--net", "--map-root-user"] };
        program::run_in(Command::new("unshare").args(how).arg("true"))
            .map_err(|_| BenchError::NoNamespace)?;
        let this = env::current_exe().map_err(BenchError::file("/proc/self/exe"))?;
        let mut again = Command::new("unshare");
        again.args(how).arg(this).args(env::args_os().skip(1)).env(INSIDE, "1");
        return Err(BenchError::Program { line: "unshare".into(), said: again.exec().to_string() });
    }
    program::run("ip", &["link", "set", "lo", "up"])?;
    // Short connections leave a port each that rests for a minute: there are more ports then, and they rest for a second.
    for (name, value) in [("ip_local_port_range", "1024 65535"), ("tcp_tw_reuse", "1")] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).map_err(BenchError::file(&path))?;
    }
    // A client that sleeps until a time wakes at that time, and not 50 us later.
    let _ = fs::write("/proc/self/timerslack_ns", "1");
    Ok(())
}

/// Makes the tap device anew, with so many queues.
///
/// # Errors
/// What failed in setting it up.
pub fn make_tap(queues: u32) -> Result<(), BenchError> {
    // The first time there is none.
    let _ = program::run("ip", &["link", "delete", TAP]);
    let mut add = vec!["tuntap", "add", "dev", TAP, "mode", "tap"];
    if queues > 1 {
        add.push("multi_queue");
    }
    program::run("ip", &add).map_err(|_| BenchError::NoNamespace)?;
    // The network is IPv4 only: nothing but what is measured shall reach a machine. Where that cannot be set, the
    // few packets of IPv6 do no harm.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{TAP}/disable_ipv6"), "1");
    program::run("ip", &["address", "add", HOST_NETWORK, "dev", TAP])?;
    program::run("ip", &["link", "set", TAP, "up"])?;
    // Known beforehand, so that no attempt to connect waits for an address to be resolved. Connections to the machine before may
    // have asked already.
    let neighbour =
        ["neighbour", "replace", &GUEST.to_string(), "lladdr", GUEST_MAC, "dev", TAP, "nud", "permanent"];
    program::run("ip", &neighbour).map(|_| ())
}
