//! A service and a batch job on one machine, while the load on the service rises and falls (RainForest 6.3.2, figure 10 and
//! table 5, in small): a cell each whose cores follow the load, beside a cgroup each in the Linux guest.
//!
//! | module | what |
//! |---|---|
//! | this | the load, and what is noted of it |
//! | [`cells`] | Isola's side |
//! | [`cgroups`] | Linux's side |
//!
//! Both get a machine of the same processors, each of which executes so many instructions a second and no more
//! (`crate::pace`). The load goes on until the batch job is done.

mod cells;
mod cgroups;

use super::note;
use crate::error::BenchError;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::load::profile::{Profile, Window};
use crate::machine::Machine;
use crate::pace::{self, First};
use crate::record::{Record, Series};
use crate::session::{Service, Session, System};
use crate::timeline::{CORES_OF_SERVICE, OWN_CURVES, P99_MS, REQUESTS};
use cells::Cells;
use cgroups::Cgroups;
use isola_host::elastic::{Bounds, Controller, Donor, Look, Patience, Seen, Step};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Processors of the machine, the supervisor's among them.
const CORES: u32 = 4;

/// Instructions a second of each. All of them together are less than what the emulator executes on one processor of the host,
/// so that the client and the emulator's own thread have another one.
const PACE: u64 = 20_000_000;

/// The batch job counts the primes below this, for each second that loads last.
const NUMBER_PER_S: u64 = 12_500_000;

/// Connections of the client.
const CONNECTIONS: usize = 16;

/// The load, as parts of what saturates Linux's service alone on the machine, and from low to low.
const LEAST: f64 = 0.1;
const MOST: f64 = 0.7;
const PERIOD: Duration = Duration::from_secs(8);

/// The figures of a load of each system's own.
const OWN: &str = "colocation-own";

/// What is looked at at a time.
const WINDOW: Duration = Duration::from_millis(500);

/// How often it is looked whether the batch job is done, and at the service's cores.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Before anything is measured: as fast as the emulator goes, and at the pace.
const WARM_UP: Duration = Duration::from_secs(1);

/// How cores are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Isola: the service borrows the batch cell's core as its events wait.
    Lending,
    /// The same under a load that is Isola's own: as near to what saturates it as Linux's is to what saturates that.
    Own,
    /// Linux: all on all processors, and the service's cgroup first.
    Shares,
    /// Linux: all on all processors, and both cgroups alike.
    Alike,
    /// Linux: all on all processors, the service's threads of a real-time class, and the batch job's of the class for idle
    /// processors.
    RealTime,
    /// Linux: all on all processors, and the batch job's cgroup for idle ones.
    Idle,
    /// Linux: each cgroup has its processors.
    Fixed,
    /// Both: each has its own, and the same controller moves them.
    Moved,
    /// Both: the service with all that it can have, and no batch job: what the others are to be compared with.
    Alone,
    /// Isola: the same under its own load.
    OwnAlone,
}

impl Way {
    /// Whether there is no batch job.
    fn is_alone(self) -> bool {
        matches!(self, Self::Alone | Self::OwnAlone)
    }

    /// Whether the load is Isola's own.
    fn has_own_load(self) -> bool {
        matches!(self, Self::Own | Self::OwnAlone)
    }

    /// The ways of a system.
    fn of(system: System) -> &'static [Self] {
        match system {
            System::Isola => &[Self::Lending, Self::Own, Self::Moved, Self::Alone, Self::OwnAlone],
            System::Linux => &[
                Self::Shares,
                Self::Alike,
                Self::RealTime,
                Self::Idle,
                Self::Fixed,
                Self::Moved,
                Self::Alone,
            ],
        }
    }
}

/// A machine with a service and a batch job.
trait Pair: Send {
    /// The machine.
    fn machine(&mut self) -> &mut Machine;

    /// Starts the batch job.
    fn start_batch(&mut self) -> Result<(), BenchError>;

    /// How long the batch job took, in s; `None` while it runs.
    fn batch_s(&mut self) -> Result<Option<f64>, BenchError>;

    /// Cores that the service has for itself, and those that the batch job has; `None` where they have none for themselves.
    fn cores(&mut self) -> Result<Option<(u32, u32)>, BenchError>;

    /// Moves a core from the batch job to the service, or back.
    fn step(&mut self, step: Step) -> Result<(), BenchError>;
}

/// What runs have in common.
#[derive(Debug, Default)]
pub struct Colocation {
    /// What saturates Linux's service, in requests a second, once it is known; and Isola's.
    linux: Option<f64>,
    isola: Option<f64>,
}

/// What came of a load beside a batch job.
struct Outcome {
    rate: f64,
    p50_us: f64,
    p99_us: f64,
    /// `None` where there was no batch job.
    batch_s: Option<f64>,
    lost_s: f64,
    windows: Vec<Window>,
    /// When, since the beginning, and how many.
    cores: Vec<(Duration, u32)>,
}

/// Under which load is measured.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    [
        ("machine", format!("{CORES} processors of {} million instructions a second each", PACE / 1_000_000)),
        ("batch job", format!("primes below {}", number(session))),
        (
            "client",
            format!("open loop on {CONNECTIONS} connections, from low to low in {} s", PERIOD.as_secs()),
        ),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// What the batch job counts to.
fn number(session: &Session) -> u64 {
    NUMBER_PER_S * session.plan.load.as_secs()
}

impl Colocation {
    /// A run: each of the system's ways, on a machine of its own.
    pub fn run(&mut self, session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
        let mut lost_s = 0.0;
        for &way in Way::of(system) {
            if way.has_own_load() && self.isola.is_none() {
                let mut cells = Cells::boot_service(session)?;
                self.isola = Some(saturation(session, &mut cells)?);
            }
            let mut pair: Box<dyn Pair> = match system {
                System::Isola if way.is_alone() => Box::new(Cells::boot_service(session)?),
                System::Isola => Box::new(Cells::boot(session, way)?),
                System::Linux => Box::new(Cgroups::boot(session, way)?),
            };
            if system == System::Linux && self.linux.is_none() {
                self.linux = Some(saturation(session, &mut *pair)?);
            }
            let (whose, saturation) =
                if way.has_own_load() { ("own", self.isola) } else { ("both", self.linux) };
            // The first run begins with Linux.
            let Some(saturation) = saturation else { return Ok(()) };
            let profile = Profile { least: LEAST * saturation, most: MOST * saturation, period: PERIOD };
            record.setting.load.insert(
                format!("requests/s, {whose}"),
                format!("{:.0} to {:.0}; {saturation:.0} saturate", profile.least, profile.most),
            );
            let (mut generator, _first) = ready(&mut *pair)?;
            generator.open(profile.least, WARM_UP)?;
            let outcome = if way.is_alone() {
                alone(&mut *pair, &mut generator, &profile, session.plan.load)?
            } else {
                together(&mut *pair, &mut generator, &profile, way)?
            };
            outcome.note(system, way, record);
            lost_s += outcome.lost_s;
        }
        note(record, system, "colocation-lost", lost_s);
        Ok(())
    }
}

/// A client that has warmed up a machine, which keeps its pace from then on.
fn ready(pair: &mut dyn Pair) -> Result<(Generator, First), BenchError> {
    let mut generator = Generator::connect(Service::Colocated.address(), CONNECTIONS, Mix::etc())?;
    generator.closed(WARM_UP)?;
    pace::set(pair.machine(), PACE)?;
    let first = First::take(pair.machine());
    generator.closed(WARM_UP)?;
    Ok((generator, first))
}

/// What saturates a service, in requests a second, while nothing else runs.
fn saturation(session: &Session, pair: &mut dyn Pair) -> Result<f64, BenchError> {
    let (mut generator, _first) = ready(pair)?;
    Ok(generator.closed(session.plan.load)?.rate())
}

/// The load with no batch job, for four times the length of a load: about as long as one takes beside it.
fn alone(
    pair: &mut dyn Pair,
    generator: &mut Generator,
    profile: &Profile,
    load: Duration,
) -> Result<Outcome, BenchError> {
    let lost_s = pace::lost_s(pair.machine())?;
    let (outcome, windows) =
        generator.fluctuating(profile, WINDOW, |windows| WINDOW * windows.len() as u32 >= 4 * load)?;
    Ok(Outcome {
        rate: outcome.rate(),
        p50_us: outcome.latency_us(0.5),
        p99_us: outcome.latency_us(0.99),
        batch_s: None,
        lost_s: pace::lost_s(pair.machine())? - lost_s,
        windows: windows.closed().to_vec(),
        cores: Vec::new(),
    })
}

/// The load, until the batch job is done.
fn together(
    pair: &mut dyn Pair,
    generator: &mut Generator,
    profile: &Profile,
    way: Way,
) -> Result<Outcome, BenchError> {
    let lost_s = pace::lost_s(pair.machine())?;
    let seen = Mutex::new(Vec::new());
    let (watched, (outcome, windows)) = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(pair, way, &seen));
        let outcome = generator.fluctuating(profile, WINDOW, |windows| {
            if let Ok(mut seen) = seen.lock()
                && seen.len() < windows.len()
            {
                *seen = windows.to_vec();
            }
            watcher.is_finished()
        });
        // A thread that panics has a defect, which is to be seen.
        let watched = watcher.join().expect("the thread that waits for the batch job");
        Ok::<_, BenchError>((watched?, outcome?))
    })?;
    Ok(Outcome {
        rate: outcome.rate(),
        p50_us: outcome.latency_us(0.5),
        p99_us: outcome.latency_us(0.99),
        batch_s: Some(watched.batch_s),
        lost_s: pace::lost_s(pair.machine())? - lost_s,
        windows: windows.closed().to_vec(),
        cores: watched.cores,
    })
}

/// What was seen of a batch job and of the service's cores.
struct Watched {
    batch_s: f64,
    cores: Vec<(Duration, u32)>,
}

/// Starts the batch job, and waits for its end; meanwhile moves cores, where they are moved from outside.
fn watch(pair: &mut dyn Pair, way: Way, seen: &Mutex<Vec<Window>>) -> Result<Watched, BenchError> {
    pair.start_batch()?;
    let (begin, mut cores) = (Instant::now(), Vec::new());
    let mut mover = (way == Way::Moved).then(|| Mover::new(seen));
    loop {
        if let Some(batch_s) = pair.batch_s()? {
            return Ok(Watched { batch_s, cores });
        }
        if let Some((service, batch)) = pair.cores()? {
            cores.push((begin.elapsed(), service));
            if let Some(step) = mover.as_mut().and_then(|mover| mover.look(service, batch)) {
                pair.step(step)?;
            }
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Moves cores as the client's latencies say: the same for both systems.
struct Mover<'a> {
    seen: &'a Mutex<Vec<Window>>,
    looked_at: usize,
    controller: Controller,
}

/// The bounds between which the controller keeps the 99th percentile, and windows that it looks at at a time.
const BOUNDS_NS: (u64, u64) = (4_000_000, 12_000_000);
const WINDOWS: usize = 2;

impl<'a> Mover<'a> {
    fn new(seen: &'a Mutex<Vec<Window>>) -> Self {
        let bounds = Bounds { lower_ns: BOUNDS_NS.0, upper_ns: BOUNDS_NS.1 };
        Self { seen, looked_at: 0, controller: Controller::new(bounds, 1, CORES, Patience::default()) }
    }

    /// A step, where new windows are over and call for one.
    fn look(&mut self, service: u32, batch: u32) -> Option<Step> {
        let p99_us = {
            let seen = self.seen.lock().ok()?;
            let new = seen.get(self.looked_at..)?;
            if new.len() < WINDOWS {
                return None;
            }
            self.looked_at = seen.len();
            new.iter().map(|window| window.p99_us).fold(0.0, f64::max)
        };
        let donor = Donor { cores: batch, least: 1, most: CORES };
        let seen = Seen::Percentile((p99_us * 1e3) as u64);
        let look = Look { seen, cores: service, donors: vec![donor] };
        Some(self.controller.decide(&look))
    }
}

impl Outcome {
    /// Notes the figures of a way, and the windows of the ways that are drawn.
    fn note(&self, system: System, way: Way, record: &mut Record) {
        let prefixes: &[&str] = match (system, way) {
            // Isola's stands beside each of Linux's.
            (System::Isola, Way::Lending) => &[
                "colocation",
                "colocation-alike",
                "colocation-realtime",
                "colocation-idle",
                "colocation-fixed",
            ],
            (System::Linux, Way::Alike) => &["colocation-alike"],
            (System::Linux, Way::RealTime) => &["colocation-realtime"],
            (System::Linux, Way::Idle) => &["colocation-idle"],
            (System::Isola, Way::Alone) => &["colocation-alone"],
            (System::Isola, Way::OwnAlone) => &["colocation-own-alone"],
            (System::Linux, Way::Alone) => &["colocation-alone", "colocation-own-alone"],
            (System::Linux, Way::Fixed) => &["colocation-fixed"],
            (System::Isola, Way::Own) => &[OWN],
            (System::Linux, Way::Shares) => &["colocation", OWN],
            (_, Way::Moved) => &["colocation-moved"],
            _ => &["colocation"],
        };
        for prefix in prefixes {
            note(record, system, &format!("{prefix}-p50"), self.p50_us / 1e3);
            note(record, system, &format!("{prefix}-p99"), self.p99_us / 1e3);
            if let Some(batch_s) = self.batch_s {
                note(record, system, &format!("{prefix}-batch"), batch_s);
            }
            if *prefix == OWN {
                note(record, system, &format!("{prefix}-rate"), self.rate);
            }
        }
        match way {
            Way::Lending | Way::Shares => self.note_windows(system, "", record),
            Way::Own => self.note_windows(system, OWN_CURVES, record),
            _ => {}
        }
    }

    fn note_windows(&self, system: System, prefix: &str, record: &mut Record) {
        let mut point = |curve: &str, index: usize, value: f64| {
            let Series { isola, peer } =
                record.point(&format!("{prefix}{curve}"), index as u64 * WINDOW.as_millis() as u64);
            match system {
                System::Isola => isola.push(value),
                System::Linux => peer.push(value),
            }
        };
        for (index, window) in self.windows.iter().enumerate() {
            point(REQUESTS, index, window.rate);
            point(P99_MS, index, window.p99_us / 1e3);
            let (begin, end) = (WINDOW * index as u32, WINDOW * (index as u32 + 1));
            let counts: Vec<f64> = self
                .cores
                .iter()
                .filter(|(at, _)| (begin..end).contains(at))
                .map(|(_, count)| f64::from(*count))
                .collect();
            if !counts.is_empty() {
                point(CORES_OF_SERVICE, index, counts.iter().sum::<f64>() / counts.len() as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_moved_by_windows_that_nobody_has_looked_at_yet() {
        let window = |p99_us| Window { rate: 1_000.0, p99_us };
        let seen = Mutex::new(vec![window(1e6)]);
        let mut mover = Mover::new(&seen);
        assert_eq!(mover.look(1, 2), None, "one window says too little");
        seen.lock().unwrap().push(window(100.0));
        assert!(matches!(mover.look(1, 2), Some(Step::Take(0, _))));
        assert_eq!(mover.look(2, 1), None, "nothing new");
        // The requests that waited before the move say nothing of what comes behind it.
        seen.lock().unwrap().extend([window(1e6), window(1e6)]);
        assert!(matches!(mover.look(2, 1), Some(Step::Stay(_))));
        seen.lock().unwrap().extend([window(1e6), window(1e6)]);
        assert!(matches!(mover.look(2, 1), Some(Step::Stay(_))), "the batch job keeps a core");
    }

    #[test]
    fn each_way_is_drawn_or_compared_with_figures_that_there_are() {
        for system in [System::Isola, System::Linux] {
            let mut record = crate::record::tests::record("colocation-lost", &[], &[]);
            for &way in Way::of(system) {
                let window = Window { rate: 100.0, p99_us: 2_000.0 };
                let cores = vec![(Duration::from_millis(100), 1), (Duration::from_millis(300), 2)];
                let (p50_us, p99_us) = (1_000.0, 2_000.0);
                let windows = vec![window; 2];
                let batch_s = (!way.is_alone()).then_some(9.0);
                let outcome = Outcome { rate: 100.0, p50_us, p99_us, batch_s, lost_s: 0.0, windows, cores };
                outcome.note(system, way, &mut record);
            }
            let kinds = crate::kinds::KINDS.iter().filter(|kind| kind.name.starts_with("colocation"));
            for kind in kinds.filter(|kind| kind.name != "colocation-lost") {
                let series = record.series(kind.name).unwrap();
                let noted = if system == System::Isola { &series.isola } else { &series.peer };
                assert_eq!(noted.len(), 1, "{} of {system:?}", kind.name);
            }
        }
    }
}
