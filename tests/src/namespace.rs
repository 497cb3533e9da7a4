//! A private network: a Linux network namespace with TAP interfaces, for a machine and its clients.
//!
//! A TAP interface passes frames unchanged between the host's TCP/IP and a cell. QEMU's user-mode network terminates
//! every connection itself, and loses some connections of a burst. The namespace requires root.
//!
//! The namespace has no name: it ends with the last process in it, even if that process is killed.

use isola_need::{Need, need};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;

/// A TAP interface, and the network behind it.
#[derive(Clone, Copy, Debug)]
pub struct Tap {
    /// The value of `isola up --net`.
    pub network: &'static str,
    name: &'static str,
    kind: &'static [&'static str],
    subnet: u8,
}

/// An interface for all cells of a machine.
pub const SHARED: Tap = Tap { network: "tap:shared", name: "shared", kind: &[], subnet: 77 };

/// An interface for one device with several queues.
pub const QUEUES: Tap =
    Tap { network: "tap:queues,queues=2", name: "queues", kind: &["multi_queue"], subnet: 78 };

/// An address that the host accepts but that does not answer ARP: replies to it are lost.
pub const NOBODY: Ipv4Addr = Ipv4Addr::new(10, 77, 200, 1);

/// The prefix length of each network.
pub const PREFIX_LEN: u8 = 16;

impl Tap {
    /// Returns the address of the host's interface.
    fn host(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet, 0, 1)
    }

    /// Returns QEMU's argument for a network backend on the interface, with the id `id`.
    pub fn netdev(&self, id: &str) -> String {
        format!("tap,id={id},ifname={},script=no,downscript=no", self.name)
    }

    /// Returns the address of a cell.
    pub fn cell(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet, 1, 1)
    }
}

/// Runs `inside` in a new network namespace, on a thread of its own. Threads and programs that it starts share the
/// namespace. Returns at once if `ISOLA_SKIP` names `tap`.
///
/// # Panics
///
/// If the host lacks TAP interfaces or the permission to create a network namespace, or if `inside` panics.
#[track_caller]
pub fn run(inside: impl FnOnce() + Send) {
    if !need(Need::Tap) {
        return;
    }
    let holder = NamespaceHolder::start().expect("a network namespace");
    let ended = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let network = File::open(format!("/proc/{}/ns/net", holder.0.id())).expect("it has a network");
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("this thread may enter the namespace");
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
    ip(&["link", "set", "lo", "up"]);
    for tap in [SHARED, QUEUES] {
        let host = format!("{}/{PREFIX_LEN}", tap.host());
        ip(&[&["tuntap", "add", tap.name, "mode", "tap"], tap.kind].concat());
        ip(&["address", "add", &host, "dev", tap.name]);
        ip(&["link", "set", tap.name, "up"]);
    }
    // The host accepts packets to this address, but answers no ARP request for it.
    ip(&["address", "add", &NOBODY.to_string(), "dev", "lo"]);
    set("conf/all/arp_ignore", "1");
    set("conf/all/arp_announce", "2");
    // Allows many connections in sequence: closed ones occupy their ports for a while (TIME-WAIT).
    set("ip_local_port_range", "1024 65535");
    set("tcp_tw_reuse", "1");
}

fn set(setting: &str, value: &str) {
    fs::write(format!("/proc/sys/net/ipv4/{setting}"), value).expect("root may set it");
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("ip (package iproute2) starts");
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A process that keeps a network namespace until its standard input ends.
struct NamespaceHolder(Child);

impl NamespaceHolder {
    /// Returns `None` without the permission to create a namespace.
    fn start() -> Option<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo ready; cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("unshare (package util-linux) starts");
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line);
        let holder = Self(child);
        (read.is_ok() && line == "ready\n").then_some(holder)
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
