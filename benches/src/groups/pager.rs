//! Group `pager`: touches every page of a large region, with each pager in turn, beside a Linux process that touches as
//! much fresh memory.
//!
//! The guests measure instructions with their own clocks: the emulator advances these by 1 ns for each instruction.

use crate::error::BenchError;
use crate::linux::READY;
use crate::machine::{Boot, Pace};
use crate::record::Record;
use crate::session::{Counting, Service, Session, System};
use std::collections::BTreeMap;

/// The touched memory, in MiB.
const REGION_MIB: u32 = 1024;

/// Memory of the machines, in MiB.
const MACHINE_MIB: u32 = 2048;

/// The number of 4 KiB pages in the region.
const PAGES: f64 = (REGION_MIB * 256) as f64;

/// The image.
const IMAGE: &str = "regions";

/// Isola's pagers: the image's name, the prefix of the figures, and the guest command for the peer's value.
const PAGERS: [(&str, &str, &str); 4] = [
    ("on-demand", "page", "touch"),
    ("around", "page-around", "touch"),
    ("prefault", "page-prefault", "touch"),
    ("large", "page-2m", "touch-large"),
];

/// The image's names of turns, and the suffixes of their figures: memory that was never used, used memory that must be
/// cleared, and used memory that the idle cell has cleared. In the last two no other memory is free.
const TURNS: [(&str, &str); 3] = [("first", ""), ("again", "-again"), ("cleared", "-cleared")];

/// Returns the description of the load.
pub fn load() -> BTreeMap<String, String> {
    let what = format!(
        "one byte of each page of {REGION_MIB} MiB, in order, on machines of {MACHINE_MIB} MiB, of which Isola's \
         image takes the rest first; Linux without transparent huge pages, for 2 MiB with"
    );
    [("touched".to_owned(), what)].into()
}

/// Boots twice: for instructions, and for times.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    for pace in [Pace::Instructions, Pace::Host] {
        let boot = session.boot(system, Service::Kv, 1)?;
        let boot = Boot { memory_mib: MACHINE_MIB, pace, ..boot };
        match system {
            System::Isola => isola(session, boot, record)?,
            System::Linux => linux(session, boot, record)?,
        }
    }
    Ok(())
}

fn isola(session: &Session, boot: Boot, record: &mut Record) -> Result<(), BenchError> {
    let kernel = session.images.find(IMAGE)?;
    for (pager, figure, _) in PAGERS {
        let (name, command_line) = (format!("Isola's {IMAGE}"), format!("-- touch {pager} {REGION_MIB}"));
        let boot = Boot { name, kernel: kernel.clone(), command_line, ..boot.clone() };
        let mut machine = session.machine(&boot, Counting::Off)?;
        for (turn, suffix) in TURNS {
            let ns = machine.wait_for_number(&format!("touched {turn}: "))?;
            let (figure, value) = figure_of(&format!("{figure}{suffix}"), boot.pace, ns);
            record.isola(&figure, value);
        }
    }
    Ok(())
}

fn linux(session: &Session, boot: Boot, record: &mut Record) -> Result<(), BenchError> {
    let mut machine = session.machine(&boot, Counting::Off)?;
    machine.wait_for(READY)?;
    for (_, figure, question) in PAGERS {
        for (_, suffix) in TURNS {
            let ns = machine.ask(&format!("{question} {REGION_MIB}"), "guest: touched ")?;
            let (figure, value) = figure_of(&format!("{figure}{suffix}"), boot.pace, ns);
            record.peer(&figure, value);
        }
    }
    Ok(())
}

/// Returns the name of the figure, and its value for `ns`.
fn figure_of(name: &str, pace: Pace, ns: u64) -> (String, f64) {
    match pace {
        Pace::Instructions | Pace::InstructionsWhileBusy => {
            (format!("{name}-instructions"), ns as f64 / PAGES)
        }
        Pace::Host | Pace::Turns => (format!("{name}-time"), ns as f64 / PAGES),
    }
}
