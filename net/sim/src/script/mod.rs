//! Conversations written down segment by segment, and the hand that plays them against one stack.
//!
//! A script is the peer's side of one or several connections, a line a step:
//!
//! ```text
//! # RFC 9293 3.8.6.1: a shut window is probed
//! set receive_window 4000
//! listen
//!        < S 0:0(0) win 60000 <mss 1000>
//!        > S. 0:0(0) ack 1 <mss 1460>
//! +0.01  < . 1:1(0) ack 1 win 0
//!        accept
//!        write 5
//! +0.2   > P. 1:2(1) ack 1
//!        quiet 0.1
//! ```
//!
//! - `+TIME` (in seconds, or `40ms`) is how long after the step before; none is at once. Time is simulated,
//!   and a segment that is expected has to be sent at its moment, to a millisecond.
//! - `<` is a segment that the script sends, `>` one that the stack has to send. Whatever else it sends is a
//!   failure. `FLAGS START:END(LENGTH)` and `ack` count from each side's first sequence number. Flags are
//!   letters of `FSRPEW`, `.` is ACK. `win` and `<options>` are compared where they are written; options are
//!   `mss N`, `wscale N`, `sackOK`, `TS val N ecr N`, `sack A:B C:D`, `nop`, `eol`, `raw HEX`. The stack's
//!   timestamps count from its first, `*` is any. `[ect0]`, `[ect1]`, `[ce]` stand for the bits of the IP header.
//! - `< icmp too_big MTU START` and `< icmp unreachable START` are ICMP errors about the stack's segment.
//! - Calls are the application's: see [`Call`]. What it sends and reads is one known stream.
//! - `event NAME` wants the stack to have said so, `quiet TIME` wants it to send nothing for so long, and
//!   `assert NAME VALUE` looks at its figures.
//! - Several connections are told apart by a letter: `b< S 0:0(0)`, `b accept`.
//! - `set NAME VALUE`, before everything else, changes the configuration: see [`settings`].
//!
//! Every script holds over IPv4 and over IPv6, but one with ICMP errors, which are IPv4's. It is written for IPv4: an MSS that
//! the stack tells over IPv6 is 20 bytes less than what stands here.
//!
//! [`Script::parse`] reads, [`Script::play`] plays. A failure names file and line, and shows both sides.

mod parse;
mod play;
mod settings;
mod wire;

use crate::{host_ip, host_ip6};
use isola_net_stack::Duration;
use std::net::IpAddr;
pub(crate) use wire::{Segment, TcpOption};

/// A conversation that can be played.
#[derive(Debug)]
pub struct Script {
    /// The file, as failures name it.
    file: String,
    /// `set` lines: line, name, value.
    settings: Vec<(usize, String, String)>,
    steps: Vec<Step>,
}

/// What TCP stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The address of the host with a number.
    fn host(self, number: u8) -> IpAddr {
        match self {
            Self::V4 => host_ip(number).into(),
            Self::V6 => host_ip6(number).into(),
        }
    }
}

impl Script {
    /// The families over which the script holds.
    pub fn families(&self) -> &'static [Family] {
        let is_icmp = |step: &Step| matches!(step.action, Action::Icmp(_));
        if self.steps.iter().any(is_icmp) { &[Family::V4] } else { &[Family::V4, Family::V6] }
    }
}

/// One line.
#[derive(Debug)]
struct Step {
    line: usize,
    text: String,
    /// How long after the step before.
    after: Duration,
    /// Which connection, `a` being 0.
    connection: u8,
    action: Action,
}

#[derive(Debug)]
enum Action {
    /// The script sends.
    Send(Segment),
    /// The stack has to send.
    Expect(Segment),
    Icmp(IcmpError),
    /// The stack sends nothing for so long.
    Quiet(Duration),
    /// The stack has said so: `accepted`, `closed`, `failed timed out`, ... `none`.
    Event(String),
    /// A figure has this value.
    Assert(String, String),
    Call(Call),
}

/// An ICMP error about the segment that begins at a number of the stack's.
#[derive(Clone, Copy, Debug)]
enum IcmpError {
    TooBig { mtu: u16, start: u32 },
    Unreachable { start: u32 },
}

/// What an application does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `listen [BACKLOG]`: at port 80.
    Listen(usize),
    /// `unlisten`.
    Unlisten,
    /// `connect`: to the script's port.
    Connect,
    /// `accept`: the connection of this letter is there.
    Accept,
    /// `write BYTES`.
    Write(usize),
    /// `read BYTES`: exactly so many are there.
    Read(usize),
    /// `shutdown`.
    ShutDown,
    /// `close`.
    Close,
    /// `abort`.
    Abort,
    /// `set_window BYTES`.
    SetWindow(u32),
    /// `set_send_limit BYTES`.
    SetSendLimit(usize),
    /// `keep_alive IDLE INTERVAL PROBES`.
    KeepAlive(Duration, Duration, u8),
}
