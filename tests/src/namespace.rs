//! A network of its own: a Linux network namespace with one TAP interface, for a machine and its clients.
//!
//! On it, frames go between the host's TCP/IP and a cell as they are. QEMU's user-mode network ends every
//! connection itself, and loses connections that come in a burst. It takes root's rights.
//!
//! The namespace has no name: it goes with the last process in it, however that ends.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;

/// The interface, to be given to `isola up --net`.
pub const NETWORK: &str = "tap:isola";

/// The name of the interface.
const INTERFACE: &str = "isola";

/// The host's address on the interface.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Length of the network's prefix.
pub const PREFIX_LEN: u8 = 16;

/// An address of the network that a cell may have.
pub fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 1, number)
}

/// Runs `inside` in a network of its own: its thread, those that it starts, and the programs that it runs. Without
/// root's rights, or on a host without TAP interfaces, it is left out, and this is said.
pub fn run(inside: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: a network namespace with a TAP interface takes root's rights");
    }
    if let Err(error) = File::open("/dev/net/tun") {
        return eprintln!("skipped: this host has no TAP interfaces: /dev/net/tun: {error}");
    }
    let holder = Holder::start();
    let ended = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let network = File::open(format!("/proc/{}/ns/net", holder.0.id())).expect("it has a network");
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("this thread may move there");
            prepare();
            inside();
        });
        thread.join()
    });
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

fn prepare() {
    let host = format!("{HOST}/{PREFIX_LEN}");
    ip(&["link", "set", "lo", "up"]);
    ip(&["tuntap", "add", INTERFACE, "mode", "tap"]);
    ip(&["address", "add", &host, "dev", INTERFACE]);
    ip(&["link", "set", INTERFACE, "up"]);
    // As many connections one after the other as a test likes: those that are over keep their ports for a while.
    for (setting, value) in [("ip_local_port_range", "1024 65535"), ("tcp_tw_reuse", "1")] {
        fs::write(format!("/proc/sys/net/ipv4/{setting}"), value).expect("root may set it");
    }
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("ip (package iproute2) starts");
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A process that keeps a network namespace until its standard input ends.
struct Holder(Child);

impl Holder {
    fn start() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo ready; cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("unshare (package util-linux) starts");
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line);
        assert!(read.is_ok() && line == "ready\n", "no network namespace was made");
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
