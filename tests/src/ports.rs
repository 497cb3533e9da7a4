//! Ports of this host that stay free until a test uses them.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::IntoRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// The first port that this module allocates; other programs often use lower ones.
const FIRST: u16 = 10_000;

/// Returns Linux's first ephemeral port. From there on, Linux may assign a port to another test before this one
/// listens.
fn ephemeral() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768)
}

/// Reserves a port until this process ends, against other processes with tests. Returns whether no process has it.
fn reserve(port: u16) -> bool {
    // The abstract address belongs to the same network namespace as the port. Linux frees it with the process.
    let address = SocketAddr::from_abstract_name(format!("isola-tests-port-{port}"));
    let reserved = address.and_then(|address| UnixListener::bind_addr(&address));
    reserved.map(IntoRawFd::into_raw_fd).is_ok()
}

/// Allocates a port that no process has bound, neither for TCP nor for UDP. Neither this function nor Linux assigns it
/// again while this process runs.
///
/// # Panics
/// If there is none.
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count =
        ephemeral().checked_sub(FIRST).filter(|count| *count > 0).expect("ports below the ephemeral range");
    // Processes begin at different ports: one that ended a moment ago may have left a program that uses its ports.
    let begin = (std::process::id().wrapping_mul(97) % u32::from(count)) as u16;
    (0..count)
        .map(|_| FIRST + (begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))) % count)
        .find(|port| {
            reserve(*port)
                && TcpListener::bind(("127.0.0.1", *port)).is_ok()
                && UdpSocket::bind(("127.0.0.1", *port)).is_ok()
        })
        .expect("a port that is not in use")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// The variable that makes a process of this test reserve the port that it names.
    const PORT: &str = "ISOLA_TEST_PORT";

    #[test]
    fn a_port_of_another_process_is_reserved_until_that_process_ends() {
        if let Ok(port) = std::env::var(PORT) {
            assert!(reserve(port.parse().unwrap()));
            return;
        }
        let port = free();
        assert!(!reserve(port) && TcpListener::bind(("127.0.0.1", port)).is_ok());
        // Another process reserves a port only if this one has not.
        let reserves_elsewhere = |port: u16| {
            let name = "ports::tests::a_port_of_another_process_is_reserved_until_that_process_ends";
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", name]).env(PORT, port.to_string());
            command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
        };
        assert!(!reserves_elsewhere(port));
        assert!((FIRST..ephemeral()).rev().any(|port| reserves_elsewhere(port) && reserve(port)));
    }
}
