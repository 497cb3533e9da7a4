//! Group `link`: what messages and packets between cells cost, beside pipes and unix sockets between processes of the Linux
//! guest. Each cell has one core of its own; Linux has one core, on which the two processes need no interrupts between
//! cores.
//!
//! The guests measure instructions with their own clocks, as in group `linux`. The clock advances with the instructions of
//! all processors, so a round trip is what both sides execute.

use super::linux::{DONE, cost};
use super::note;
use crate::error::BenchError;
use crate::linux::READY;
use crate::machine::{Boot, MEMORY_MIB, Pace};
use crate::record::Record;
use crate::session::{Counting, Service, Session, System};
use crate::supervised::{MachineSize, SupervisedMachine, spec};
use isola_abi::management::{CellSpec, NetworkSpec};
use std::collections::BTreeMap;

/// The operations of the cell that measures, and their figures.
const OF_CELLS: [(&str, &str); 7] = [
    ("message", "link-message"),
    ("wake", "link-wake"),
    ("trip", "link-pipe"),
    ("trip", "link-socket"),
    ("polled", "link-polled"),
    ("call", "link-call"),
    ("broadcast", "link-broadcast-8"),
];

/// The operations of the Linux program, and their figures.
const OF_LINUX: [(&str, &str); 2] = [("pipe-64", "link-pipe"), ("socket-64", "link-socket")];

/// The image, and the cells that serve.
const IMAGE: &str = "channels";
const SERVERS: [&str; 8] = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"];

/// The cell that measures.
const CLIENT: &str = "client";

/// The memory of a cell, in MiB.
const CELL_MIB: u64 = 8;

/// Returns the description of the load.
pub fn load() -> BTreeMap<String, String> {
    let what = "a cell on a core of its own, and eight that serve it; the mean of 2,000 rounds";
    [("messages".to_owned(), what.to_owned())].into()
}

/// Runs the programs once.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    let (output, figures) = match system {
        System::Isola => (isola(session)?, &OF_CELLS[..]),
        System::Linux => (linux(session)?, &OF_LINUX[..]),
    };
    for (operation, figure) in figures {
        let value = cost(&output, operation).ok_or_else(|| BenchError::WrongAnswer {
            service: "the program of costs".into(),
            request: (*operation).into(),
            answer: output.clone(),
        })?;
        note(record, system, figure, value);
    }
    Ok(())
}

fn isola(session: &Session) -> Result<String, BenchError> {
    let size = MachineSize {
        cores: SERVERS.len() as u32 + 2,
        queues: 1,
        memory_mib: MEMORY_MIB,
        pace: Pace::InstructionsWhileBusy,
    };
    let mut machine = SupervisedMachine::boot(session, size, Counting::Off)?;
    let image = session.images.cell_image(IMAGE)?;
    machine.provide(&image)?;
    let cell = |name: &str, arguments: Vec<String>, accept: Vec<String>| CellSpec {
        arguments,
        accept,
        network: NetworkSpec::None,
        ..spec(name, &image, 1, CELL_MIB)
    };
    for name in SERVERS {
        machine.client.create(cell(name, vec!["serve".into()], vec![CLIENT.into()]))?;
        machine.client.start(name)?;
        machine.wait_for_log(name, "serving")?;
    }
    let arguments = std::iter::once("costs").chain(SERVERS).map(Into::into).collect();
    machine.client.create(cell(CLIENT, arguments, Vec::new()))?;
    machine.client.start(CLIENT)?;
    machine.wait_for_log(CLIENT, DONE)?;
    Ok(String::from_utf8_lossy(&machine.client.logs(CLIENT, 0)?.bytes).into_owned())
}

fn linux(session: &Session) -> Result<String, BenchError> {
    let boot = Boot { pace: Pace::InstructionsWhileBusy, ..session.boot(System::Linux, Service::Kv, 1)? };
    let mut machine = session.machine(&boot, Counting::Off)?;
    machine.wait_for(READY)?;
    machine.send_line("costs link");
    machine.wait_for(DONE)?;
    Ok(machine.console().replace('\r', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_print_each_figure() {
        let c = include_str!("../../linux/costs.c");
        let rust = include_str!("../../../tests/images/channels/src/costs.rs");
        for (operation, figure) in OF_LINUX.iter().chain(&OF_CELLS) {
            let prints = [
                format!("measure(\"{operation}\", "),
                format!("\"cost {operation} "),
                format!("Total::new(\"{operation}\")"),
            ];
            assert!(
                c.contains(&prints[0]) || prints[1..].iter().any(|print| rust.contains(print)),
                "{operation}"
            );
            assert!(crate::kinds::KINDS.iter().any(|kind| kind.name == *figure));
        }
        assert!(rust.contains(DONE));
    }
}
