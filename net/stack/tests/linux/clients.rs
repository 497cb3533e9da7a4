//! Linux's side of a connection.

use crate::common::byte_at;
use crate::wire::LINUX6;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A timeout that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sends `amount` bytes of the known stream and shuts down, and at the same time reads the same stream from the peer.
pub fn exchange(stream: TcpStream, amount: usize) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    let known: Vec<u8> = (0..amount).map(byte_at).collect();
    thread::scope(|scope| {
        let sent = scope.spawn(|| {
            (&stream).write_all(&known).expect("the peer accepts all data");
            stream.shutdown(Shutdown::Write).expect("shutdown works");
        });
        let mut received = Vec::new();
        (&stream).read_to_end(&mut received).expect("the peer's stream ends without an error");
        assert!(received == known, "{} of {amount} bytes arrived, or some are wrong", received.len());
        sent.join().expect("all data is sent");
    });
}

/// Assigns the namespace's interface its IPv6 address.
pub fn give_linux_ipv6() {
    let address = format!("{LINUX6}/64");
    let output = Command::new("ip").args(["address", "add", &address, "dev", "shared", "nodad"]).output();
    let output = output.expect("ip (package iproute2) starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Configures Linux to request explicit congestion notification.
pub fn ask_for_ecn() {
    fs::write("/proc/sys/net/ipv4/tcp_ecn", "1").expect("root may set it");
}

/// Returns the output of `ss` for the connections to `peer`.
pub fn ask_linux(peer: SocketAddr) -> String {
    let output = Command::new("ss").args(["-tineH", "dst", &peer.to_string()]).output();
    let output = output.expect("ss (package iproute2) starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns a TCP counter of this namespace, by its name in `nstat` without `TcpExt`.
pub fn linux_counter(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/netstat").expect("Linux's counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let pair = names.split(' ').zip(values.split(' ')).find(|(found, _)| *found == name);
    pair.and_then(|(_, value)| value.parse().ok()).expect("a counter of that name")
}
