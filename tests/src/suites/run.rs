//! Runs the programs of a suite, in cells of a machine or on this host.

use super::output::{DriverOutput, ProgramRun};
use super::{Suite, SuiteProgram};
use crate::isola::Isola;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The time without a line, beyond a program's limit, after which a cell counts as lost: the driver kills a program at its
/// limit by the cell's own clock.
const SILENCE: Duration = Duration::from_secs(60);
/// The time for a cell's start and for its end.
const START: Duration = Duration::from_secs(120);
/// The cell's name.
const CELL: &str = "suite";

impl Suite {
    /// Runs programs in a cell of 2 cores; all if `names` is empty. If the cell ends or hangs, that is a failure of the
    /// program that ran in it, and the next programs run in a new cell.
    pub fn run_in_cells(&self, isola: &Isola, names: &[String]) -> Vec<ProgramRun> {
        let root = self.root().display().to_string();
        let options =
            ["run", "--rm", "--name", CELL, "--cores", "2", "--memory", self.memory, "--rootfs", &root, "--"];
        self.run_all("cell", names, |arguments| {
            let mut command = isola.command(&options);
            command.args(arguments);
            (command, Box::new(|| drop(isola.run(&["rm", "--force", CELL]))))
        })
    }

    /// Runs programs as root in namespaces of this host.
    pub fn run_on_linux(&self, names: &[String]) -> Vec<ProgramRun> {
        self.run_all("linux", names, |arguments| {
            let mut command = Command::new(self.source().join("../on-linux"));
            command.arg(self.root()).args(&arguments[1..]).stdin(Stdio::null());
            (command, Box::new(|| ()))
        })
    }

    /// Starts the driver by `start`, again after each loss of the cell, until it has come to its end. `start` also returns
    /// what ends the cell by force.
    fn run_all<'a>(
        &self,
        place: &str,
        names: &[String],
        start: impl Fn(&[String]) -> (Command, Box<dyn Fn() + 'a>),
    ) -> Vec<ProgramRun> {
        let programs = self.programs();
        let mut log = File::create(self.work().join(format!("{place}.log"))).unwrap();
        let mut output = DriverOutput::default();
        let mut first = 0;
        while !output.done {
            let mut arguments =
                vec!["/suite/driver".to_owned(), "/suite/programs".to_owned(), first.to_string()];
            arguments.extend_from_slice(names);
            let (mut command, end_by_force) = start(&arguments);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            follow(child, &programs, &mut output, &mut log, &*end_by_force);
            if !output.done {
                let name = output.lose_cell();
                let name = name.unwrap_or_else(|| panic!("the cell ended between two programs: see {log:?}"));
                println!("{name}: the cell ended");
                first = programs.iter().position(|program| program.name == name).expect("it is listed") + 1;
            }
        }
        output.runs
    }
}

/// Takes the driver's output until its end, or until it shows nothing for too long.
fn follow(
    mut child: Child,
    programs: &[SuiteProgram],
    output: &mut DriverOutput,
    log: &mut File,
    end_by_force: &dyn Fn(),
) {
    let (sender, lines) = mpsc::channel::<Vec<u8>>();
    let streams: [Box<dyn std::io::Read + Send>; 2] =
        [Box::new(child.stdout.take().expect("piped")), Box::new(child.stderr.take().expect("piped"))];
    for stream in streams {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut lines = BufReader::new(stream).split(b'\n');
            while let Some(Ok(line)) = lines.next() {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    loop {
        let limit = output.running().and_then(|name| programs.iter().find(|program| program.name == name));
        let patience = limit.map_or(START, |program| Duration::from_secs(program.limit_s) + SILENCE);
        match lines.recv_timeout(patience) {
            Ok(line) => {
                log.write_all(&line).and_then(|()| log.write_all(b"\n")).unwrap();
                let ended = output.runs.len();
                output.take(String::from_utf8_lossy(&line).trim_end_matches('\r'));
                if let Some(run) = output.runs.get(ended) {
                    println!(
                        "{}: {}, {:.1} s",
                        run.name,
                        run.end,
                        Duration::from_millis(run.took_ms).as_secs_f64()
                    );
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                end_by_force();
                let _ = child.kill();
                break;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let _ = child.wait();
}
