//! Isola's side of the colocation: one cell for the service, and one for the batch job.

use super::{CORES, Division, SharedMachine, number};
use crate::error::BenchError;
use crate::machine::{MEMORY_MIB, Machine, Pace};
use crate::session::{Counting, Service, Session};
use crate::supervised::{MachineSize, SupervisedMachine, spec};
use isola_abi::management::{CellSpec, Change, LendingSpec, Mode, NetworkSpec};
use isola_host::elastic::Step;

/// The names of the cells.
const SERVICE: &str = "kv";
const BATCH: &str = "batch";

/// The most cores of the service: the supervisor has one, and the batch job keeps one.
const SERVICE_CORES: u32 = CORES - 2;

/// The memory of the cells, in MiB.
const SERVICE_MIB: u64 = 128;
const BATCH_MIB: u64 = 32;

/// The queueing delay of the service above which it borrows a core, in us: the time of a dozen requests.
const BORROW_ABOVE_US: u32 = 5_000;

/// The default limit for a core to leave its cell, in ms.
const LEAVE_LIMIT_MS: u32 = 10;

/// The text before and after the time in the batch job's last line.
const TIME: (&str, &str) = (" in ", " us");

/// The machine with both cells.
pub struct Cells {
    supervised: SupervisedMachine,
}

impl Cells {
    /// Boots the machine, and starts the service without a batch job, on its largest number of cores.
    pub fn boot_service(session: &Session) -> Result<Self, BenchError> {
        let mut this = Self { supervised: boot(session)? };
        let kv = session.images.cell_image(SERVICE)?;
        this.supervised.provide(&kv)?;
        this.supervised.client.create(spec(SERVICE, &kv, SERVICE_CORES, SERVICE_MIB))?;
        this.start_service()?;
        Ok(this)
    }

    /// Boots the machine, and starts the service on one core. The batch job's cell gets the others, and starts later.
    pub fn boot(session: &Session, division: Division) -> Result<Self, BenchError> {
        let mut supervised = boot(session)?;
        let (kv, primes) = (session.images.cell_image(SERVICE)?, session.images.cell_image("primes")?);
        supervised.provide(&kv)?;
        supervised.provide(&primes)?;
        let (service, batch) = match division {
            Division::Lending | Division::Own => (
                LendingSpec { priority: 1, borrow_above_us: BORROW_ABOVE_US, ..LendingSpec::default() },
                LendingSpec { lends: CORES, ..LendingSpec::default() },
            ),
            _ => Default::default(),
        };
        supervised.client.create(CellSpec { lending: service, ..spec(SERVICE, &kv, 1, SERVICE_MIB) })?;
        supervised.client.create(CellSpec {
            lending: batch,
            network: NetworkSpec::None,
            arguments: vec!["batch".into(), number(session).to_string()],
            // All cores but the supervisor's and the service's.
            ..spec(BATCH, &primes, CORES - 2, BATCH_MIB)
        })?;
        let mut this = Self { supervised };
        this.start_service()?;
        Ok(this)
    }

    fn start_service(&mut self) -> Result<(), BenchError> {
        self.supervised.client.start(SERVICE)?;
        Service::Colocated.first_answer(&mut self.supervised.machine).map(|_| ())
    }

    /// Returns the number of cores in a cell.
    fn present(&mut self, cell: &str) -> Result<u32, BenchError> {
        let cores = self.supervised.client.inspect(cell)?.cores;
        Ok(cores.iter().filter(|core| core.is_present).count() as u32)
    }

    fn change(&mut self, cell: &str, change: Change<u32>) -> Result<(), BenchError> {
        self.supervised.client.resize_cores(cell, change, Vec::new(), LEAVE_LIMIT_MS, Mode::Apply)?;
        Ok(())
    }
}

/// Boots the machine with a supervisor only.
fn boot(session: &Session) -> Result<SupervisedMachine, BenchError> {
    let size = MachineSize { cores: CORES, queues: CORES, memory_mib: MEMORY_MIB, pace: Pace::Host };
    SupervisedMachine::boot_with(session, size, Counting::Off, session.pacer.arguments().into())
}

impl SharedMachine for Cells {
    fn machine(&mut self) -> &mut Machine {
        &mut self.supervised.machine
    }

    fn start_batch(&mut self) -> Result<(), BenchError> {
        self.supervised.client.start(BATCH)?;
        Ok(())
    }

    fn batch_s(&mut self) -> Result<Option<f64>, BenchError> {
        if !self.supervised.client.inspect(BATCH)?.state.has_ended() {
            return Ok(None);
        }
        let output = self.supervised.client.logs(BATCH, 0)?.bytes;
        let output = String::from_utf8_lossy(&output).into_owned();
        let time = output.rsplit_once(TIME.0).and_then(|(_, time)| time.split_once(TIME.1));
        let time_us: Option<f64> = time.and_then(|(time, _)| time.parse().ok());
        time_us.map(|time_us| Some(time_us / 1e6)).ok_or_else(|| self.supervised.machine.ended(&output))
    }

    fn cores(&mut self) -> Result<Option<(u32, u32)>, BenchError> {
        Ok(Some((self.present(SERVICE)?, self.present(BATCH)?)))
    }

    fn step(&mut self, step: Step) -> Result<(), BenchError> {
        let (from, to) = match step {
            Step::Take(..) => (BATCH, SERVICE),
            Step::Give(..) => (SERVICE, BATCH),
            Step::Stay(_) => return Ok(()),
        };
        self.change(from, Change::Less(1))?;
        self.change(to, Change::More(1))
    }
}
