//! Ports of this host that stay free until a test uses them.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// Ports from here on are handed out; those below are often somebody's.
const FIRST: u16 = 10_000;

/// Where the ports begin that Linux gives to whoever asks for any: a test that runs beside could be given one of these
/// while nobody listens there yet.
fn ephemeral() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768)
}

/// A port that nobody has, neither for TCP nor for UDP, and that nobody else is given: not by this function, and not by
/// Linux.
///
/// # Panics
/// Where there is none.
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = ephemeral()
        .checked_sub(FIRST)
        .filter(|count| *count > 0)
        .expect("ports that Linux does not give out");
    // Tests of several processes begin at different places.
    let begin = (std::process::id().wrapping_mul(97) % u32::from(count)) as u16;
    (0..count)
        .map(|_| FIRST + (begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))) % count)
        .find(|port| {
            TcpListener::bind(("127.0.0.1", *port)).is_ok() && UdpSocket::bind(("127.0.0.1", *port)).is_ok()
        })
        .expect("a port that nobody has")
}
