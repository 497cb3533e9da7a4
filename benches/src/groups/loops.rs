//! Group `loop`: TCP between two cells of one machine, over a link and over their devices, beside two processes of the
//! Linux guest over loopback, in netperf's patterns: a stream, and a round trip; and a key-value cell that another cell asks.
//!
//! Instructions are measured by the guests' own clocks, which the emulator then advances by 1 ns for each instruction of any
//! processor: a time is the number of instructions of both sides together. That holds only while no processor waits for a
//! device, so traffic over devices has times and rates by the host's clock alone.

use super::note;
use crate::error::BenchError;
use crate::linux::READY;
use crate::machine::{Boot, MEMORY_MIB, Pace};
use crate::network::GUEST;
use crate::record::Record;
use crate::session::{Counting, Service, Session, System};
use crate::supervised::{LIMIT, MachineSize, SupervisedMachine, spec};
use isola_abi::descriptor::NetworkAddress;
use isola_abi::management::{CellSpec, NetworkSpec};
use isola_host::image::CellImage;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::Ipv4Addr;

/// The images: both sides of messages, the key-value cell and the cell that asks it, both sides of calls.
const NETPIPE: &str = "netpipe";
const KV: &str = "kv";
const KV_CLIENT: &str = "kv-client";
const CHANNELS: &str = "channels";

/// The cells: one that keeps the machine's first device, which is connected to the host, and the two that talk.
const SPARE: &str = "spare";
const SERVER: &str = "server";
const CLIENT: &str = "client";

/// The memory of a cell, in MiB.
const CELL_MIB: u64 = 64;

/// The connections to the key-value cell.
const CONNECTIONS: u32 = 16;

/// The bytes of a message of the stream.
const STREAM_BYTES: usize = 1 << 20;

/// The bytes of a message of the round trip.
const ROUND_BYTES: usize = 64;

/// The number of messages that the Linux client sends, after as many for a warm-up.
const STREAM_MESSAGES: usize = 100;
const ROUND_MESSAGES: usize = 2000;

/// The text of a server's log behind which it accepts connections.
const PORT_OPEN: &str = "TCP port";

/// The label of the cost of a call.
const CALL: &str = "cost call ";

/// The last line of the Linux guest's command.
const DONE: &str = "guest: loop done";

/// Whether the two cells loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loop {
    On,
    Off,
}

/// Returns the description of the load.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let seconds = session.plan.load.as_secs_f64();
    [
        ("stream", format!("messages of {STREAM_BYTES} bytes, back to back")),
        ("round trip", format!("{ROUND_BYTES} bytes there and back")),
        ("call", format!("{ROUND_BYTES} bytes to the messenger of the other cell, which answers with them")),
        (
            "requests",
            format!("get of 100 bytes, one after the other on {CONNECTIONS} connections, {seconds} s"),
        ),
        ("cells", "one core each; their devices are connected by a hub of QEMU's".to_owned()),
        (
            "Linux",
            "two processes over loopback, a loop of read and write; two processors for rates".to_owned(),
        ),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// Measures once.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    let by_instructions = Pace::InstructionsWhileBusy;
    let (counted, timed) = match system {
        System::Isola => {
            let mut by_count = Pair::boot(session, by_instructions, Loop::On)?;
            let counted = by_count.messages()?;
            record.isola("loop-call", by_count.call_ns()?);
            drop(by_count);
            let mut off = Pair::boot(session, Pace::Host, Loop::Off)?;
            let (messages, requests) = (off.messages()?, off.requests()?);
            drop(off);
            record.peer("loop-on-stream", messages.megabytes_per_s());
            record.peer("loop-on-round", messages.round_us());
            record.peer("loop-on-kv", requests.per_s);
            record.peer("loop-on-kv-p99", requests.p99_us);
            let mut on = Pair::boot(session, Pace::Host, Loop::On)?;
            let (messages, requests) = (on.messages()?, on.requests()?);
            record.isola("loop-on-stream", messages.megabytes_per_s());
            record.isola("loop-on-round", messages.round_us());
            record.isola("loop-on-kv", requests.per_s);
            record.isola("loop-on-kv-p99", requests.p99_us);
            (counted, messages)
        }
        System::Linux => (linux(session, by_instructions, 1)?, linux(session, Pace::Host, 2)?),
    };
    note(record, system, "loop-stream", counted.message_ns / STREAM_BYTES as f64);
    note(record, system, "loop-round", counted.round_ns);
    note(record, system, "loop-stream-rate", timed.megabytes_per_s());
    Ok(())
}

/// The times of messages by the guest's clock.
#[derive(Clone, Copy)]
struct Messages {
    message_ns: f64,
    round_ns: f64,
}

impl Messages {
    fn megabytes_per_s(self) -> f64 {
        STREAM_BYTES as f64 * 1e3 / self.message_ns
    }

    fn round_us(self) -> f64 {
        self.round_ns / 1e3
    }
}

/// The requests to the key-value cell.
#[derive(Clone, Copy)]
struct Requests {
    per_s: f64,
    p99_us: f64,
}

/// A machine with a cell that serves and one that asks it, one after the other for each measurement.
struct Pair<'s> {
    session: &'s Session,
    machine: SupervisedMachine,
    loops: Loop,
    /// Whether the two cells exist.
    has_cells: bool,
}

impl<'s> Pair<'s> {
    fn boot(session: &'s Session, pace: Pace, loops: Loop) -> Result<Self, BenchError> {
        let nic = |number: u32| {
            let netdev = format!("hubport,id=cell{number},hubid=1");
            let device =
                format!("virtio-net-pci,netdev=cell{number},disable-legacy=on,mac=52:54:00:10:00:0{number}");
            ["-netdev".to_owned(), netdev, "-device".to_owned(), device]
        };
        let more: Vec<OsString> = (1..=2).flat_map(nic).map(OsString::from).collect();
        let size = MachineSize { cores: 4, queues: 1, memory_mib: MEMORY_MIB, pace };
        let mut machine = SupervisedMachine::boot_with(session, size, Counting::Off, more)?;
        let image = session.images.cell_image(NETPIPE)?;
        machine.provide(&image)?;
        machine.client.create(spec(SPARE, &image, 1, CELL_MIB))?;
        Ok(Self { session, machine, loops, has_cells: false })
    }

    /// Measures a stream and round trips.
    fn messages(&mut self) -> Result<Messages, BenchError> {
        let [stream, round] = [STREAM_BYTES, ROUND_BYTES].map(|bytes| bytes.to_string());
        let there = format!("{}:5002", address(1));
        let client = ["connect", &there, "-o", "json"];
        let to_server = [&client[..], &["-l", &stream, "-u", &stream, "-s", "to"]].concat();
        let message_ns =
            self.value((NETPIPE, &[], PORT_OPEN), (NETPIPE, &to_server), "\"one_way_ns\":", "kbit_per_s")?;
        let both = [&client[..], &["-l", &round, "-u", &round]].concat();
        let server = (NETPIPE, &[][..], PORT_OPEN);
        let one_way_ns = self.value(server, (NETPIPE, &both), "\"one_way_ns\":", "kbit_per_s")?;
        Ok(Messages { message_ns, round_ns: 2.0 * one_way_ns })
    }

    /// Measures calls of the messenger, by TCP, as the server accepts no channels.
    fn call_ns(&mut self) -> Result<f64, BenchError> {
        let there = format!("{}:9000", address(1));
        let server = (CHANNELS, &["serve"][..], "channels: serving");
        let picoseconds = self.value(server, (CHANNELS, &["calls", &there]), CALL, "costs: done")?;
        Ok(picoseconds / 1e3)
    }

    /// Measures requests to a key-value cell.
    fn requests(&mut self) -> Result<Requests, BenchError> {
        let there = format!("{}:11211", address(1));
        let (connections, seconds) = (CONNECTIONS.to_string(), self.session.plan.load.as_secs().to_string());
        let client = [&*there, &connections, &seconds];
        let per_s = self.value((KV, &[], PORT_OPEN), (KV_CLIENT, &client), "rate ", "p99 ")?;
        let p99_us = self.find(" p99 ")? / 1e3;
        Ok(Requests { per_s, p99_us })
    }

    /// Starts a server and, once its log has `ready`, a client, in place of those before. Once the client's log has `last`,
    /// returns the number behind `label` in it.
    fn value(
        &mut self,
        (server, served, ready): (&str, &[&str], &str),
        (client, asked): (&str, &[&str]),
        label: &str,
        last: &str,
    ) -> Result<f64, BenchError> {
        if self.has_cells {
            for name in [CLIENT, SERVER] {
                // The client may have ended by itself. The device is free after the removal.
                let _ = self.machine.client.stop(name, 1_000, LIMIT);
                self.machine.client.destroy(name)?;
            }
        }
        self.has_cells = true;
        self.start(SERVER, server, 1, served)?;
        self.machine.wait_for_log(SERVER, ready)?;
        self.start(CLIENT, client, 2, asked)?;
        self.machine.wait_for_log(CLIENT, last)?;
        self.find(label)
    }

    fn start(&mut self, name: &str, image: &str, number: u8, arguments: &[&str]) -> Result<(), BenchError> {
        let image: CellImage = self.session.images.cell_image(image)?;
        self.machine.provide(&image)?;
        let ip = address(number);
        let spec = CellSpec {
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            network: NetworkSpec::Static(NetworkAddress { ip, prefix_len: 24, gateway: None }),
            loop_with: if self.loops == Loop::On { vec!["*".to_owned()] } else { Vec::new() },
            ..spec(name, &image, 1, CELL_MIB)
        };
        self.machine.client.create(spec)?;
        self.machine.client.start(name)?;
        Ok(())
    }

    /// Returns the number behind a label of the client's log.
    fn find(&mut self, label: &str) -> Result<f64, BenchError> {
        let log = String::from_utf8_lossy(&self.machine.client.logs(CLIENT, 0)?.bytes).into_owned();
        value_after(&log, label).ok_or_else(|| wrong(&log))
    }
}

fn address(number: u8) -> Ipv4Addr {
    let [a, b, c, _] = GUEST.octets();
    Ipv4Addr::new(a, b, c, 100 + number)
}

fn linux(session: &Session, pace: Pace, cores: u32) -> Result<Messages, BenchError> {
    let boot = Boot { pace, ..session.boot(System::Linux, Service::Netpipe, cores)? };
    let mut machine = session.start_as(&boot, System::Linux, Service::Netpipe, Counting::Off)?.machine;
    machine.wait_for(READY)?;
    machine
        .send_line(&format!("loop to:{STREAM_BYTES}:{STREAM_MESSAGES} both:{ROUND_BYTES}:{ROUND_MESSAGES}"));
    machine.wait_for(DONE)?;
    let console = machine.console().replace('\r', "");
    let value = |label| value_after(&console, label).ok_or_else(|| wrong(&console));
    Ok(Messages { message_ns: value("loop to ")?, round_ns: value("loop both ")? })
}

fn wrong(answer: &str) -> BenchError {
    BenchError::WrongAnswer {
        service: "a cell or a process".into(),
        request: "a measurement".into(),
        answer: answer.into(),
    }
}

/// Returns the number behind a label.
fn value_after(text: &str, label: &str) -> Option<f64> {
    let (_, rest) = text.split_once(label)?;
    let end = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_in_the_output() {
        assert_eq!(value_after("x\nloop to 3384\nloop both 77", "loop both "), Some(77.0));
        assert_eq!(value_after("{\"one_way_ns\":12,\"k\":1}", "\"one_way_ns\":"), Some(12.0));
        assert_eq!(value_after("cost call 8123456\n", CALL), Some(8_123_456.0));
        assert_eq!(value_after("kv-client: rate 9 p99 1200\n", " p99 "), Some(1200.0));
        assert_eq!(value_after("loop to \n", "loop to "), None);
    }
}
