//! Group `linux`: what an unmodified Linux program's system calls cost in a cell, beside the Linux guest. One program,
//! linked statically (`benches/linux/costs.c`), runs in both, on one core.
//!
//! The guests measure instructions with their own clocks: the emulator advances these by 1 ns for each instruction. While
//! all processors are idle the clocks are the host's, as the disk would exceed its time limit otherwise.

use super::note;
use crate::error::BenchError;
use crate::linux::{COSTS, READY};
use crate::machine::{Boot, MEMORY_MIB, Pace};
use crate::record::Record;
use crate::session::{Counting, Service, Session, System};
use crate::supervised::{MachineSize, SupervisedMachine, spec};
use crate::volume::{DISK_SLOT, HostVolume};
use isola_abi::management::{CellSpec, DeviceLocation, NetworkSpec};
use isola_abi::volume::{VolumeAccess, VolumeMount};
use std::collections::BTreeMap;

/// The program's names of operations, and their figures.
const FIGURES: [(&str, &str); 8] = [
    ("call", "linux-call"),
    ("call-served", "linux-call-served"),
    ("fault", "linux-fault"),
    ("futex", "linux-futex"),
    ("pipe", "linux-pipe"),
    ("fork", "linux-fork"),
    ("exec", "linux-exec"),
    ("thread", "linux-thread"),
];

/// The image, and the name of the cell.
const IMAGE: &str = "linux";

/// The memory of the cell, in MiB.
const CELL_MIB: u64 = 256;

/// The program's last line.
pub(super) const DONE: &str = "costs: done";

/// Returns the description of the load.
pub fn load() -> BTreeMap<String, String> {
    let what =
        "one static program on one core; the mean of thousands of operations, after a short run of each";
    [("program".to_owned(), what.to_owned())].into()
}

/// Runs the program once.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    let output = match system {
        System::Isola => isola(session)?,
        System::Linux => linux(session)?,
    };
    for (operation, figure) in FIGURES {
        let value = cost(&output, operation).ok_or_else(|| BenchError::WrongAnswer {
            service: "the program of costs".into(),
            request: operation.into(),
            answer: output.clone(),
        })?;
        note(record, system, figure, value);
    }
    Ok(())
}

/// Returns the instructions of an operation, from the program's output.
pub(super) fn cost(output: &str, operation: &str) -> Option<f64> {
    let label = format!("cost {operation} ");
    let picoseconds: f64 = output.lines().find_map(|line| line.strip_prefix(&label))?.trim().parse().ok()?;
    Some((picoseconds / 1000.0).round())
}

fn isola(session: &Session) -> Result<String, BenchError> {
    let program = std::fs::read(session.costs()).map_err(BenchError::file(session.costs()))?;
    let volume = HostVolume::make(COSTS, &program)?;
    let size = MachineSize { cores: 2, queues: 1, memory_mib: MEMORY_MIB, pace: Pace::InstructionsWhileBusy };
    let mut machine = SupervisedMachine::boot_with(session, size, Counting::Off, volume.arguments(None))?;
    let image = session.images.cell_image(IMAGE)?;
    machine.provide(&image)?;
    let root = VolumeMount {
        device: DeviceLocation::Pci { bus: 0, device: DISK_SLOT, function: 0 },
        name: "root".into(),
        path: "/".into(),
        access: VolumeAccess::ReadOnly,
    };
    let spec = CellSpec {
        arguments: vec![format!("/{COSTS}")],
        network: NetworkSpec::None,
        volumes: vec![root],
        ..spec(IMAGE, &image, 1, CELL_MIB)
    };
    machine.client.create(spec)?;
    machine.client.start(IMAGE)?;
    machine.wait_for_log(IMAGE, DONE)?;
    Ok(String::from_utf8_lossy(&machine.client.logs(IMAGE, 0)?.bytes).into_owned())
}

fn linux(session: &Session) -> Result<String, BenchError> {
    let boot = Boot { pace: Pace::InstructionsWhileBusy, ..session.boot(System::Linux, Service::Kv, 1)? };
    let mut machine = session.machine(&boot, Counting::Off)?;
    machine.wait_for(READY)?;
    machine.send_line("costs");
    machine.wait_for(DONE)?;
    Ok(machine.console().replace('\r', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_found_in_the_output() {
        let output = "x\ncost call 338400\ncost fault 3557000\n";
        assert_eq!((cost(output, "call"), cost(output, "fault")), (Some(338.0), Some(3557.0)));
        assert_eq!(cost(output, "pipe"), None);
    }

    #[test]
    fn the_program_prints_each_figure() {
        let source = include_str!("../../linux/costs.c");
        for (operation, figure) in FIGURES {
            assert!(source.contains(&format!("measure(\"{operation}\", ")));
            assert!(crate::kinds::KINDS.iter().any(|kind| kind.name == figure));
        }
        assert!(source.contains(DONE));
    }
}
