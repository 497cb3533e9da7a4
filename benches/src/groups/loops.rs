//! Group `loop`: TCP between two cells of one machine, over a link and over their devices, beside two processes of the
//! Linux guest over loopback, in netperf's patterns: a stream, and a round trip.
//!
//! The guests measure with their own clocks, which the emulator advances by 1 ns for each instruction of any processor:
//! a time is the number of instructions of both sides together.

use super::note;
use crate::error::BenchError;
use crate::linux::READY;
use crate::machine::{Boot, MEMORY_MIB, Pace};
use crate::network::GUEST;
use crate::record::Record;
use crate::session::{Counting, Service, Session, System};
use crate::supervised::{MachineSize, SupervisedMachine, spec};
use isola_abi::descriptor::NetworkAddress;
use isola_abi::management::{CellSpec, NetworkSpec};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::Ipv4Addr;

/// The image of both cells.
const IMAGE: &str = "netpipe";

/// The cells: one that keeps the machine's first device, which is connected to the host, and the two that talk.
const CELLS: [&str; 3] = ["spare", "server", "client"];

/// The memory of a cell, in MiB.
const CELL_MIB: u64 = 32;

/// The bytes of a message of the stream.
const STREAM_BYTES: usize = 1 << 20;

/// The bytes of a message of the round trip.
const ROUND_BYTES: usize = 64;

/// The number of messages that the Linux client sends, after as many for a warm-up.
const STREAM_MESSAGES: usize = 100;
const ROUND_MESSAGES: usize = 2000;

/// The last line of the Linux guest's command.
const DONE: &str = "guest: loop done";

/// Whether the two cells loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loop {
    On,
    Off,
}

/// Returns the description of the load.
pub fn load() -> BTreeMap<String, String> {
    [
        ("stream", format!("messages of {STREAM_BYTES} bytes, back to back")),
        ("round trip", format!("{ROUND_BYTES} bytes there and back")),
        ("cells", "one core each; their devices are connected by a hub of QEMU's".to_owned()),
        ("Linux", "two processes over loopback, two processors; a loop of read and write".to_owned()),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// Measures once.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    let measured = match system {
        System::Isola => {
            let off = isola(session, Loop::Off)?;
            note_costs(record, system, "loop-off", off);
            isola(session, Loop::On)?
        }
        System::Linux => linux(session)?,
    };
    note_costs(record, system, "loop", measured);
    if system == System::Linux {
        note_costs(record, system, "loop-off", measured);
    }
    Ok(())
}

/// Instructions of both sides.
#[derive(Clone, Copy)]
struct Costs {
    message: f64,
    round_trip: f64,
}

fn note_costs(record: &mut Record, system: System, figure: &str, costs: Costs) {
    note(record, system, &format!("{figure}-stream"), costs.message / STREAM_BYTES as f64);
    note(record, system, &format!("{figure}-round"), costs.round_trip);
}

fn isola(session: &Session, loops: Loop) -> Result<Costs, BenchError> {
    let nic = |number: u32| {
        let netdev = format!("hubport,id=cell{number},hubid=1");
        let device =
            format!("virtio-net-pci,netdev=cell{number},disable-legacy=on,mac=52:54:00:10:00:0{number}");
        ["-netdev".to_owned(), netdev, "-device".to_owned(), device]
    };
    let more: Vec<OsString> = (1..=2).flat_map(nic).map(OsString::from).collect();
    let size = MachineSize { cores: 4, queues: 1, memory_mib: MEMORY_MIB, pace: Pace::InstructionsWhileBusy };
    let mut machine = SupervisedMachine::boot_with(session, size, Counting::Off, more)?;
    let image = session.images.cell_image(IMAGE)?;
    machine.provide(&image)?;
    let address = |number: u8| {
        let [a, b, c, _] = GUEST.octets();
        Ipv4Addr::new(a, b, c, 100 + number)
    };
    let mut begin = |name: &str, number: u8, arguments: &[&str]| -> Result<(), BenchError> {
        let ip = address(number);
        let loop_with = if loops == Loop::On { vec!["*".to_owned()] } else { Vec::new() };
        let spec = CellSpec {
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            network: NetworkSpec::Static(NetworkAddress { ip, prefix_len: 24, gateway: None }),
            loop_with,
            ..spec(name, &image, 1, CELL_MIB)
        };
        machine.client.create(spec)?;
        if number > 0 {
            machine.client.start(name)?;
        }
        Ok(())
    };
    let [spare, server, client] = CELLS;
    begin(spare, 0, &[])?;
    begin(server, 1, &[])?;
    let there = format!("{}:5002", address(1));
    let (stream, round) = (STREAM_BYTES.to_string(), ROUND_BYTES.to_string());
    begin(client, 2, &["connect", &there, "-l", &stream, "-u", &stream, "-s", "to", "-o", "json"])?;
    let message = one_way(&mut machine, client)?;
    // The client's device is free again.
    let _ = machine.client.destroy(client);
    let again = |name: &str| CellSpec {
        arguments: ["connect", &there, "-l", &round, "-u", &round, "-o", "json"].map(str::to_owned).into(),
        network: NetworkSpec::Static(NetworkAddress { ip: address(2), prefix_len: 24, gateway: None }),
        loop_with: if loops == Loop::On { vec!["*".to_owned()] } else { Vec::new() },
        ..spec(name, &image, 1, CELL_MIB)
    };
    machine.client.create(again(client))?;
    machine.client.start(client)?;
    let round_trip = 2.0 * one_way(&mut machine, client)?;
    Ok(Costs { message, round_trip })
}

/// Returns the time of a message in one direction, in ns, once the client has measured.
fn one_way(machine: &mut SupervisedMachine, client: &str) -> Result<f64, BenchError> {
    machine.wait_for_log(client, "kbit_per_s")?;
    let log = String::from_utf8_lossy(&machine.client.logs(client, 0)?.bytes).into_owned();
    value_after(&log, "\"one_way_ns\":").ok_or_else(|| wrong(&log))
}

fn linux(session: &Session) -> Result<Costs, BenchError> {
    let boot =
        Boot { pace: Pace::InstructionsWhileBusy, ..session.boot(System::Linux, Service::Netpipe, 2)? };
    let mut machine = session.machine(&boot, Counting::Off)?;
    machine.wait_for(READY)?;
    machine
        .send_line(&format!("loop to:{STREAM_BYTES}:{STREAM_MESSAGES} both:{ROUND_BYTES}:{ROUND_MESSAGES}"));
    machine.wait_for(DONE)?;
    let console = machine.console().replace('\r', "");
    let value = |label| value_after(&console, label).ok_or_else(|| wrong(&console));
    Ok(Costs { message: value("loop to ")?, round_trip: value("loop both ")? })
}

fn wrong(answer: &str) -> BenchError {
    BenchError::WrongAnswer {
        service: "netpipe".into(),
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
        assert_eq!(value_after("loop to \n", "loop to "), None);
    }
}
