//! Scripts: conversations written down segment by segment, played against one stack.
//!
//! A script is the peer's side of one or several connections, one step per line:
//!
//! ```text
//! # RFC 9293 3.8.6.1: a zero window is probed
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
//! - `+TIME` (in seconds, or `40ms`) is the time since the previous step, zero by default. Time is simulated; an
//!   expected segment has to be sent at its time, to a millisecond.
//! - `<` is a segment that the script sends, `>` one that the stack has to send. Any other segment from the stack is a
//!   failure. `FLAGS START:END(LENGTH)` and `ack` count from each side's first sequence number. Flags are letters of
//!   `FSRPEW`, `.` is ACK. `win` and `<options>` are compared if present; options are `mss N`, `wscale N`, `sackOK`,
//!   `TS val N ecr N`, `sack A:B C:D`, `nop`, `eol`, `raw HEX`. The stack's timestamps count from its first, `*` is
//!   any. `[ect0]`, `[ect1]`, `[ce]` are the values of the IP header's ECN field.
//! - `< icmp too_big MTU START` and `< icmp unreachable START` are ICMP errors about the stack's segment.
//! - Calls are the application's: see [`Call`]. It sends and reads one known stream.
//! - `event NAME` requires that event from the stack, `quiet TIME` requires that it sends nothing for that time, and
//!   `assert NAME VALUE` checks one of its statistics.
//! - A letter distinguishes several connections: `b< S 0:0(0)`, `b accept`.
//! - `set NAME VALUE`, before all other steps, changes the configuration: see [`settings`].
//!
//! Every script holds over IPv4 and over IPv6, except those with ICMP errors, which are IPv4's. Scripts are written for
//! IPv4: over IPv6, the stack's MSS is 20 bytes less than the script says.
//!
//! [`Script::parse`] parses, [`Script::play`] plays. A failure names file and line, and shows both the expected and the
//! actual segment.

mod parse;
mod play;
mod settings;
mod wire;

use crate::{host_ip, host_ip6};
use isola_net_stack::Duration;
use std::net::IpAddr;
pub(crate) use wire::{Segment, TcpOption};

/// A parsed script.
#[derive(Debug)]
pub struct Script {
    /// The file name for failures.
    file: String,
    /// The `set` lines: line, name, value.
    settings: Vec<(usize, String, String)>,
    steps: Vec<Step>,
}

/// The IP version below TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns the address of host `number`.
    fn host(self, number: u8) -> IpAddr {
        match self {
            Self::V4 => host_ip(number).into(),
            Self::V6 => host_ip6(number).into(),
        }
    }
}

impl Script {
    /// Returns the families over which the script holds.
    pub fn families(&self) -> &'static [Family] {
        let is_icmp = |step: &Step| matches!(step.action, Action::Icmp(_));
        if self.steps.iter().any(is_icmp) { &[Family::V4] } else { &[Family::V4, Family::V6] }
    }
}

/// One line of a script.
#[derive(Debug)]
struct Step {
    line: usize,
    text: String,
    /// The time since the previous step.
    after: Duration,
    /// The connection; `a` is 0.
    connection: u8,
    action: Action,
}

#[derive(Debug)]
enum Action {
    /// The script sends this segment.
    Send(Segment),
    /// The stack has to send this segment.
    Expect(Segment),
    Icmp(IcmpError),
    /// The stack has to send nothing for this time.
    Quiet(Duration),
    /// The stack has to have reported this event: `accepted`, `closed`, `failed timed out`, ... `none`.
    Event(String),
    /// A statistic has to have this value.
    Assert(String, String),
    Call(Call),
}

/// An ICMP error about the stack's segment that begins at `start`.
#[derive(Clone, Copy, Debug)]
enum IcmpError {
    TooBig { mtu: u16, start: u32 },
    Unreachable { start: u32 },
}

/// A call by the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `listen [BACKLOG]`: on port 80.
    Listen(usize),
    /// `unlisten`.
    Unlisten,
    /// `connect`: to the script's port.
    Connect,
    /// `accept`: requires that the connection of this letter was accepted.
    Accept,
    /// `write BYTES`.
    Write(usize),
    /// `read BYTES`: requires exactly this many bytes.
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
