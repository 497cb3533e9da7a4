//! The gate: guest instructions of the most important paths, compared with the baseline in `benches/gate.toml`.
//!
//! | module | contents |
//! |---|---|
//! | this | the counts |
//! | [`baseline`] | the baseline |
//! | [`frames`] | a client in frames, without the host's network |
//!
//! Counts depend on the tree, the compiler and the emulator, and hardly on the host. Requests are sequential on one
//! connection, and the median of several batches counts. Machines whose clocks count their own instructions repeat
//! exactly. The links here have no checksum offload, so requests cost more than in group `kv`. The gate needs no
//! permission except to run QEMU.

pub mod baseline;
pub mod frames;

use crate::error::BenchError;
use crate::instructions::Plugin;
use crate::load::mix::Mix;
use crate::load::reply::{ParseResult, parse};
use crate::machine::{Boot, MEMORY_MIB, Machine, Network, Pace};
use crate::network::GUEST_NETWORK;
use crate::session::{ECHO_PORT, KV_PORT, WEB_PORT};
use crate::statistics::median;
use crate::supervised::{MachineSize, SupervisedMachine, spec};
use crate::volume::HostVolume;
use frames::Client;
use isola_abi::management::{CellSpec, Change, Mode, NetworkSpec};
use isola_host::image::ImageStore;
use isola_host::machine::qemu::Qemu;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The number of requests in a batch, of requests before the first batch, and of batches.
const BATCH: u32 = 500;
const WARM_UP: u32 = 1_000;
const BATCHES: u32 = 7;

/// The memory touched for page faults, in MiB, and the number of its pages.
const TOUCHED_MIB: u32 = 64;
const PAGES: f64 = (TOUCHED_MIB * 256) as f64;

/// The processors of the machine with cells, the memory of a cell in MiB, and its name.
const CORES: u32 = 3;
const CELL_MIB: u64 = 64;
const NAME: &str = "gate";

/// The number of rounds of cell creation, of rounds before them, and the limit for a core to leave, in ms.
const ROUNDS: u32 = 9;
const FIRST_ROUNDS: u32 = 2;
const LEAVE_LIMIT_MS: u32 = 5_000;

/// A core that waits for another one executes instructions meanwhile, on a busy host up to thirty times the rest. Core
/// moves are therefore repeated until the smallest counts of this many rounds differ by at most this part, up to a
/// limit of rounds. The part allows for the growth from round to round: over a hundred rounds, a core that leaves takes
/// about 90 instructions more each time, and some rounds take 1,500 more.
const AGREEING: usize = 3;
const AGREE_PART: f64 = 0.03;
const MOST_ROUNDS: u32 = 100;

/// A machine is quiet if its counts stay the same for this many reads in a row.
const QUIET_LOOKS: u32 = 4;
const LOOK_INTERVAL: Duration = Duration::from_millis(30);
const QUIET_LIMIT: Duration = Duration::from_secs(20);

/// The words for a scheduler at every resource of the grid.
const WFQ: &str = "grid.processor=wfq grid.network-write=wfq";

/// The seed of the requests.
const SEED: u64 = 0x6a7e;

/// Numbers of instructions, by name.
pub type Counts = BTreeMap<String, f64>;

/// The programs and images for the counts.
#[derive(Debug)]
pub struct Gate {
    qemu: Qemu,
    images: ImageStore,
    plugin: Plugin,
    _folder: TempDir,
}

impl Gate {
    /// Prepares QEMU, images and plugin.
    ///
    /// # Errors
    /// [`BenchError::Qemu`], [`BenchError::File`], and those of [`Plugin::build`].
    pub fn open() -> Result<Self, BenchError> {
        let folder = tempfile::tempdir().map_err(BenchError::file(std::env::temp_dir()))?;
        let qemu = Qemu::from_environment()?;
        let plugin = Plugin::build(&qemu.program, folder.path())?;
        Ok(Self { qemu, images: ImageStore::from_environment(), plugin, _folder: folder })
    }

    /// Counts everything.
    ///
    /// # Errors
    /// Those of starting a machine and of its client; [`BenchError::NoAgreement`].
    pub fn count(&self) -> Result<Counts, BenchError> {
        let mut counts = self.round_trips()?;
        self.web(&mut counts)?;
        self.page_faults(&mut counts)?;
        self.programs(&mut counts)?;
        self.events(&mut counts)?;
        self.cells(&mut counts)?;
        Ok(counts)
    }

    /// Counts the requests of a key-value service and of an echo service, without and with schedulers.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn round_trips(&self) -> Result<Counts, BenchError> {
        let mut counts = Counts::new();
        for (grid, suffix) in [("", ""), (WFQ, "-wfq")] {
            counts.insert(format!("kv-request{suffix}"), self.kv(grid)?);
            counts.insert(format!("echo-round-trip{suffix}"), self.echo(grid)?);
        }
        Ok(counts)
    }

    /// Starts the image `name`, standalone on a machine of one processor.
    fn alone(
        &self,
        name: &str,
        command_line: String,
        pace: Pace,
        extra: Vec<OsString>,
    ) -> Result<Machine, BenchError> {
        let boot = Boot {
            name: format!("Isola's {name}"),
            kernel: self.images.find(name)?,
            initrd: None,
            command_line,
            cores: 1,
            queues: 1,
            memory_mib: MEMORY_MIB,
            pace,
            network: Network::Frames,
            extra,
        };
        // If the clocks count instructions, the guest measures itself and needs no plugin.
        Machine::start(&self.qemu.program, &boot, (pace == Pace::Host).then_some(&self.plugin))
    }

    /// Starts the image `name` with these words for its grid, and connects a client to its service at `port`.
    fn serving(&self, name: &str, port: u16, grid: &str) -> Result<(Machine, Client), BenchError> {
        self.serving_with(name, port, &format!("{grid} --"), Vec::new())
    }

    /// Does the same with these words for its options and arguments, and further arguments of QEMU.
    fn serving_with(
        &self,
        name: &str,
        port: u16,
        words: &str,
        extra: Vec<OsString>,
    ) -> Result<(Machine, Client), BenchError> {
        let mut machine = self.alone(name, format!("ip={GUEST_NETWORK} {words}"), Pace::Host, extra)?;
        machine.wait_for("TCP port")?;
        let client = Client::connect(&mut machine, port)?;
        Ok((machine, client))
    }

    fn kv(&self, grid: &str) -> Result<f64, BenchError> {
        let (machine, mut client) = self.serving("kv", KV_PORT, grid)?;
        let mix = Mix::etc();
        let is_whole = |answer: &[u8]| !matches!(parse(answer), ParseResult::Incomplete);
        let mut request = Vec::new();
        for record in mix.store_all() {
            request.clear();
            mix.write(record, &mut request);
            client.ask(&request, is_whole)?;
        }
        let mut random = fastrand::Rng::with_seed(SEED);
        batches(&machine, |index| {
            if index == 0 {
                // All batches have the same requests.
                random = fastrand::Rng::with_seed(SEED);
            }
            request.clear();
            mix.write(mix.draw(&mut random), &mut request);
            client.ask(&request, is_whole).map(|_| ())
        })
    }

    fn echo(&self, grid: &str) -> Result<f64, BenchError> {
        let (machine, mut client) = self.serving("echo", ECHO_PORT, grid)?;
        let message = [b'e'; 64];
        let ask = |_| client.ask(&message, |answer| answer.len() >= message.len()).map(|_| ());
        batches(&machine, ask)
    }

    /// Counts requests for a page of the image, and of the same page on a volume, which is in the cache.
    fn web(&self, counts: &mut Counts) -> Result<(), BenchError> {
        let page = crate::linux::PAGE;
        let volume = HostVolume::make("index.html", page)?;
        for (name, words, extra) in [
            ("web-request", " --", Vec::new()),
            ("web-volume-request", "volume=/site -- -d /site", volume.arguments(None)),
        ] {
            let (machine, mut client) = self.serving_with("web", WEB_PORT, words, extra)?;
            let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
            let ask = |_| client.ask(request, |answer| answer.ends_with(page)).map(|_| ());
            counts.insert(name.into(), batches(&machine, ask)?);
        }
        Ok(())
    }

    fn page_faults(&self, counts: &mut Counts) -> Result<(), BenchError> {
        let command_line = format!("-- touch on-demand {TOUCHED_MIB}");
        let mut machine = self.alone("regions", command_line, Pace::Instructions, Vec::new())?;
        for (turn, name) in [("first", "page-fault"), ("again", "page-fault-again")] {
            let ns = machine.wait_for_number(&format!("touched {turn}: "))?;
            counts.insert(name.into(), ns as f64 / PAGES);
        }
        Ok(())
    }

    fn programs(&self, counts: &mut Counts) -> Result<(), BenchError> {
        let mut machine = self.alone("programs", "-- costs".into(), Pace::Instructions, Vec::new())?;
        for (label, name) in [("system call", "user-system-call"), ("page fault", "user-page-fault")] {
            let instructions = machine.wait_for_number(&format!("{label}: "))?;
            counts.insert(name.into(), instructions as f64);
        }
        Ok(())
    }

    fn events(&self, counts: &mut Counts) -> Result<(), BenchError> {
        let mut machine = self.alone("costs", "--".into(), Pace::Instructions, Vec::new())?;
        machine.wait_for("costs: all taken")?;
        for (label, name) in [
            ("spawn", "event"),
            ("task", "task"),
            ("yield-check", "yield-check"),
            ("interrupt", "interrupt"),
            ("alarm", "alarm"),
        ] {
            let hundredths = machine.wait_for_number(&format!("\n{label}: "))?;
            counts.insert(name.into(), hundredths as f64 / 100.0);
        }
        Ok(())
    }

    /// Counts the creation of a cell, and the arrival and departure of a core. The machine's processors take turns, so
    /// that the host's load does not add instructions to a waiting processor.
    fn cells(&self, counts: &mut Counts) -> Result<(), BenchError> {
        let size = MachineSize { cores: CORES, queues: 1, memory_mib: MEMORY_MIB, pace: Pace::Turns };
        let mut supervised = SupervisedMachine::start(&self.images, size, Vec::new(), |boot| {
            let boot = Boot { network: Network::Frames, ..boot.clone() };
            Machine::start(&self.qemu.program, &boot, Some(&self.plugin))
        })?;
        let image = self.images.cell_image("echo")?;
        supervised.provide(&image)?;
        let spec = || CellSpec { network: NetworkSpec::None, ..spec(NAME, &image, 1, CELL_MIB) };
        let mut rounds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let counted =
            |supervised: &mut SupervisedMachine,
             work: &mut dyn FnMut(&mut SupervisedMachine) -> Result<(), BenchError>| {
                let before: u64 = quiet(supervised).iter().sum();
                work(supervised)?;
                let after: u64 = quiet(supervised).iter().sum();
                Ok::<_, BenchError>((after - before) as f64)
            };
        for round in 0..ROUNDS + FIRST_ROUNDS {
            let created = counted(&mut supervised, &mut |supervised| {
                Ok(supervised.client.create(spec()).map(|_| ())?)
            })?;
            supervised.client.destroy(NAME)?;
            if round >= FIRST_ROUNDS {
                rounds.entry("cell-create").or_default().push(created);
            }
        }
        supervised.client.create(spec())?;
        supervised.client.start(NAME)?;
        let moves = ["core-online", "core-offline"];
        for round in 0..MOST_ROUNDS + FIRST_ROUNDS {
            if moves.iter().all(|name| rounds.get(name).is_some_and(|counts| agreed(counts).is_some())) {
                break;
            }
            for (name, change) in moves.into_iter().zip([Change::More(1), Change::Less(1)]) {
                let moved = counted(&mut supervised, &mut |supervised| {
                    supervised.client.resize_cores(NAME, change, Vec::new(), LEAVE_LIMIT_MS, Mode::Apply)?;
                    Ok(())
                })?;
                if round >= FIRST_ROUNDS {
                    rounds.entry(name).or_default().push(moved);
                }
            }
        }
        for (name, values) in rounds {
            let count = if moves.contains(&name) { agreed(&values) } else { Some(median(&values)) };
            // If the host was too busy, the counts cannot be compared.
            let disagreement = || {
                let mut least = values.clone();
                least.sort_by(f64::total_cmp);
                least.truncate(2 * AGREEING);
                BenchError::NoAgreement { name, rounds: MOST_ROUNDS, least }
            };
            counts.insert(name.into(), count.ok_or_else(disagreement)?);
        }
        Ok(())
    }
}

/// Returns the median of the smallest `counts` once they agree; `None` before.
fn agreed(counts: &[f64]) -> Option<f64> {
    let mut sorted = counts.to_vec();
    sorted.sort_by(f64::total_cmp);
    let least = sorted.first_chunk::<AGREEING>()?;
    (least[AGREEING - 1] <= least[0] * (1.0 + AGREE_PART)).then(|| median(least))
}

/// Returns the instructions of a request: the median of several batches. Each request gets its index in the batch.
fn batches(machine: &Machine, mut ask: impl FnMut(u32) -> Result<(), BenchError>) -> Result<f64, BenchError> {
    for index in 0..WARM_UP {
        ask(index)?;
    }
    let mut counts = Vec::new();
    for _ in 0..BATCHES {
        let before = machine.instructions().unwrap_or_default();
        for index in 0..BATCH {
            ask(index)?;
        }
        let after = machine.instructions().unwrap_or_default();
        counts.push((after - before) as f64 / f64::from(BATCH));
    }
    Ok(median(&counts))
}

/// Waits until all cores are idle; returns the instructions that each has executed.
fn quiet(supervised: &mut SupervisedMachine) -> Vec<u64> {
    let deadline = Instant::now() + QUIET_LIMIT;
    let (mut last, mut same) = (supervised.machine.instructions_by_processor(), 0);
    while same < QUIET_LOOKS && Instant::now() < deadline {
        sleep(LOOK_INTERVAL);
        let now = supervised.machine.instructions_by_processor();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_counts_of_core_moves_count_once_three_rounds_agree() {
        assert_eq!(agreed(&[30_000.0, 30_100.0]), None, "two rounds are too few");
        assert_eq!(agreed(&[1e6, 30_000.0, 8e5, 30_100.0]), None);
        assert_eq!(agreed(&[1e6, 30_000.0, 30_500.0, 8e5, 30_100.0]), Some(30_100.0));
        assert_eq!(agreed(&[30_000.0, 31_000.0, 30_100.0]), None, "they differ by more than 3 %");
    }
}
