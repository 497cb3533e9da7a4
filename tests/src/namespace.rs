//! A network of its own: a Linux network namespace with TAP interfaces, for a machine and its clients.
//!
//! On it, frames go between the host's TCP/IP and a cell as they are. QEMU's user-mode network ends every
//! connection itself, and loses connections that come in a burst. It takes root's rights.
//!
//! The namespace has no name: it goes with the last process in it, however that ends.

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
    /// What `isola up --net` is told.
    pub network: &'static str,
    name: &'static str,
    kind: &'static [&'static str],
    subnet: u8,
}

/// An interface that all cells of a machine can be on.
pub const SHARED: Tap = Tap { network: "tap:shared", name: "shared", kind: &[], subnet: 77 };

/// An interface for one device with several queues.
pub const QUEUES: Tap =
    Tap { network: "tap:queues,queues=2", name: "queues", kind: &["multi_queue"], subnet: 78 };

/// A host behind no interface: who answers it gets no answer.
pub const NOBODY: Ipv4Addr = Ipv4Addr::new(10, 77, 200, 1);

/// Length of the prefix of each network.
pub const PREFIX_LEN: u8 = 16;

impl Tap {
    /// The address of the interface.
    fn host(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet, 0, 1)
    }

    /// QEMU's argument for a network device on the interface, called `id`.
    pub fn netdev(&self, id: &str) -> String {
        format!("tap,id={id},ifname={},script=no,downscript=no", self.name)
    }

    /// An address for a cell.
    pub fn cell(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet, 1, 1)
    }
}

/// Runs `inside` in a network of its own: its thread, those that it starts, and the programs that it runs. Returns at
/// once where `ISOLA_SKIP` names `tap`.
///
/// # Panics
///
/// Where the host lacks TAP interfaces or the right to make a network, or where `inside` panics.
#[track_caller]
pub fn run(inside: impl FnOnce() + Send) {
    if !need(Need::Tap) {
        return;
    }
    let holder = Holder::start().expect("a network namespace");
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
    ip(&["link", "set", "lo", "up"]);
    for tap in [SHARED, QUEUES] {
        let host = format!("{}/{PREFIX_LEN}", tap.host());
        ip(&[&["tuntap", "add", tap.name, "mode", "tap"], tap.kind].concat());
        ip(&["address", "add", &host, "dev", tap.name]);
        ip(&["link", "set", tap.name, "up"]);
    }
    // The host has this address, and yet nobody finds it.
    ip(&["address", "add", &NOBODY.to_string(), "dev", "lo"]);
    set("conf/all/arp_ignore", "1");
    set("conf/all/arp_announce", "2");
    // As many connections one after the other as a test likes: those that are over keep their ports for a while.
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
struct Holder(Child);

impl Holder {
    /// `None` without the right to.
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

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
