//! Linux's side of the colocation, in the guest: one cgroup for the service, and one for the batch job.

use super::{CORES, Division, SharedMachine, number};
use crate::error::BenchError;
use crate::linux::{BATCH_DONE, SET_ANSWER};
use crate::machine::{Boot, Machine};
use crate::session::{Counting, Service, Session, System};
use isola_host::elastic::Step;

/// CPU weights of cgroups: Linux's largest, smallest and default.
const MOST_WEIGHT: u32 = 10_000;
const LEAST_WEIGHT: u32 = 1;
const USUAL_WEIGHT: u32 = 100;

/// The number of the service's processors with a fixed division.
const FIXED: u32 = 3;

/// The guest with both cgroups.
pub struct Cgroups {
    machine: Machine,
    /// The number of the service's processors, if the cgroups have separate ones.
    cores: Option<u32>,
    /// The bound of the batch job's count.
    number: u64,
    /// The length of the output before the batch job's start.
    output_before: usize,
}

/// The bound of a count that takes no time.
const SMALL_NUMBER: u64 = 1_000;

impl Cgroups {
    /// Boots the guest and starts the service, with the CPU settings of `division`. The batch job starts later.
    pub fn boot(session: &Session, division: Division) -> Result<Self, BenchError> {
        let boot = session.boot(System::Linux, Service::Colocated, CORES)?;
        let boot = Boot { extra: session.pacer.arguments().into(), ..boot };
        let machine = session.start_as(&boot, System::Linux, Service::Colocated, Counting::Off)?.machine;
        let mut this = Self { machine, cores: None, number: number(session), output_before: 0 };
        match division {
            Division::Fixed => this.divide(FIXED)?,
            Division::Moved => this.divide(1)?,
            Division::Alike => {
                this.set("cpu.weight", &USUAL_WEIGHT.to_string(), &USUAL_WEIGHT.to_string())?
            }
            Division::RealTime => this.set("classes", "", "")?,
            Division::Idle => this.set("cpu.idle", "0", "1")?,
            // Without a batch job the weight has no effect.
            Division::Shares | Division::Lending | Division::Own | Division::Alone | Division::OwnAlone => {
                this.set("cpu.weight", &MOST_WEIGHT.to_string(), &LEAST_WEIGHT.to_string())?;
            }
        }
        // Before the pace begins, so that the emulator has translated the code that starts a program: otherwise a
        // processor loses up to a second there.
        this.machine.ask(&format!("batch {SMALL_NUMBER} {CORES}"), BATCH_DONE)?;
        Ok(this)
    }

    /// Gives the service the first processors, and the batch job the others.
    fn divide(&mut self, cores: u32) -> Result<(), BenchError> {
        self.cores = Some(cores);
        self.set("cpuset.cpus", &format!("0-{}", cores - 1), &format!("{cores}-{}", CORES - 1))
    }

    fn set(&mut self, what: &str, service: &str, batch: &str) -> Result<(), BenchError> {
        match self.machine.ask(&format!("{what} {service} {batch}"), SET_ANSWER)? {
            0 => Ok(()),
            _ => Err(self.machine.late(&format!("{what} of {service} and {batch}"))),
        }
    }
}

impl SharedMachine for Cgroups {
    fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    fn start_batch(&mut self) -> Result<(), BenchError> {
        self.output_before = self.machine.output_len();
        self.machine.send_line(&format!("batch {} {CORES}", self.number));
        Ok(())
    }

    fn batch_s(&mut self) -> Result<Option<f64>, BenchError> {
        Ok(self.machine.number(BATCH_DONE, self.output_before)?.map(|time_us| time_us as f64 / 1e6))
    }

    fn cores(&mut self) -> Result<Option<(u32, u32)>, BenchError> {
        Ok(self.cores.map(|cores| (cores, CORES - cores)))
    }

    fn step(&mut self, step: Step) -> Result<(), BenchError> {
        match (step, self.cores) {
            (Step::Take(..), Some(cores)) => self.divide(cores + 1),
            (Step::Give(..), Some(cores)) => self.divide(cores - 1),
            _ => Ok(()),
        }
    }
}
