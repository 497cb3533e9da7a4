//! Group `library`: costs of the library OS itself. The image `costs` runs as a process for times, and on a machine
//! whose clocks count its instructions.

use super::{begin, now};
use crate::error::BenchError;
use crate::figure::Group;
use crate::machine::{Boot, Pace};
use crate::program;
use crate::record::Record;
use crate::session::{Counting, Service, Session, System};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The name of the image and of the process.
const COSTS: &str = "costs";

/// Times: the figure, and the program's names for it and for the peer's.
const CALLS: [(&str, &str, &str); 5] = [
    ("ebb-inlined", "call-ebb", "call-inlined"),
    ("ebb-afresh", "call-ebb-afresh", "call-inlined-afresh"),
    ("ebb-not-inlined", "call-ebb", "call-not-inlined"),
    ("ebb-virtual", "call-ebb", "call-virtual"),
    ("ebb-dynamic", "call-dynamic-ebb", "call-inlined"),
];

/// Times without a peer, in ns.
const TIMES: [&str; 5] = ["spawn", "task", "start-task", "other-core", "interrupt"];

/// Instructions, by the program's names.
const INSTRUCTIONS: [&str; 6] = ["spawn", "task", "start-task", "yield", "interrupt", "alarm"];

/// Measures the group.
pub fn run(session: &Session, command: String) -> Result<Record, BenchError> {
    let mut record =
        Record::new(Group::Library, now(), command, session.setting(Group::Library, BTreeMap::new()));
    let runs = session.plan.runs;
    for run in 0..runs {
        begin(&mut record, run, session.plan)?;
        process(&mut record)?;
        machine(session, &mut record)?;
    }
    record.setting.machines = session.take_machines();
    Ok(record)
}

/// Returns the cycles in the program's line `name`.
fn reported(text: &str, name: &str) -> Option<f64> {
    let lines = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    lines?.trim().parse().ok().map(|hundredths: f64| hundredths / 100.0)
}

fn process(record: &mut Record) -> Result<(), BenchError> {
    let this = std::env::current_exe().map_err(BenchError::file("/proc/self/exe"))?;
    let program = this.parent().unwrap_or(Path::new(".")).join("../hosted").join(COSTS);
    let mut command = Command::new(&program);
    command.env("ISOLA_CELL", "cores=2");
    let text = program::run_in(&mut command)?;
    let wanted = |name: &str| {
        reported(&text, name)
            .ok_or_else(|| BenchError::Program { line: format!("{command:?}"), output: text.clone() })
    };
    for (figure, isola, peer) in CALLS {
        record.isola(figure, wanted(isola)?);
        record.peer(figure, wanted(peer)?);
    }
    let cycles_per_ns = wanted("cycles-per-second")? * 100.0 / 1e9;
    for figure in TIMES {
        record.isola(figure, wanted(figure)? / cycles_per_ns);
    }
    Ok(())
}

fn machine(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let boot = session.boot(System::Isola, Service::Kv, 1)?;
    let (name, kernel) = (format!("Isola's {COSTS}"), session.images.find(COSTS)?);
    let boot = Boot { name, kernel, pace: Pace::Instructions, ..boot };
    let mut machine = session.machine(&boot, Counting::Off)?;
    machine.wait_for("costs: all taken")?;
    let mut number =
        |name: &str| machine.wait_for_number(&format!("{name}: ")).map(|number| number as f64 / 100.0);
    record.isola("ebb-instructions", number("call-ebb")?);
    record.peer("ebb-instructions", number("call-inlined")?);
    record.isola("ebb-afresh-instructions", number("call-ebb-afresh")?);
    record.peer("ebb-afresh-instructions", number("call-inlined-afresh")?);
    for name in INSTRUCTIONS {
        record.isola(&format!("{name}-instructions"), number(&format!("\n{name}"))?);
    }
    Ok(())
}
