//! Ports of this host that stay free until a test uses them.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// The first port that this module allocates; other programs often use lower ones.
const FIRST: u16 = 10_000;

/// Returns Linux's first ephemeral port. From there on, Linux may assign a port to another test before this one
/// listens.
fn ephemeral() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768)
}

/// Allocates a port that no process has bound, neither for TCP nor for UDP. Neither this function nor Linux assigns it
/// again.
///
/// # Panics
/// If there is none.
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count =
        ephemeral().checked_sub(FIRST).filter(|count| *count > 0).expect("ports below the ephemeral range");
    // Concurrent test processes begin at different ports.
    let begin = (std::process::id().wrapping_mul(97) % u32::from(count)) as u16;
    (0..count)
        .map(|_| FIRST + (begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))) % count)
        .find(|port| {
            TcpListener::bind(("127.0.0.1", *port)).is_ok() && UdpSocket::bind(("127.0.0.1", *port)).is_ok()
        })
        .expect("a port that is not in use")
}
