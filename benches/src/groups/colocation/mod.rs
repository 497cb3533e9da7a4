//! Group `colocation`: a service and a batch job on one machine, under varying load on the service (a small version of
//! RainForest 6.3.2, figure 10 and table 5). Isola runs two cells whose cores follow the load; the Linux guest runs two
//! cgroups.
//!
//! | module | contents |
//! |---|---|
//! | this | the load, and the record of its outcome |
//! | [`cells`] | Isola's side |
//! | [`cgroups`] | Linux's side |
//!
//! Both systems get the same number of processors, each with a fixed rate of instructions (`crate::pace`). The load
//! lasts until the batch job ends.

mod cells;
mod cgroups;

use super::note;
use crate::error::BenchError;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::load::profile::{LoadWindow, Profile};
use crate::machine::Machine;
use crate::pace::{self, RealTimePriority};
use crate::record::{Record, Series};
use crate::session::{Service, Session, System};
use crate::timeline::{CORES_OF_SERVICE, OWN_CURVES, P99_MS, REQUESTS};
use cells::Cells;
use cgroups::Cgroups;
use isola_host::elastic::{Bounds, Controller, Observation, Step, WindowLatency};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// The number of processors, including the supervisor's.
const CORES: u32 = 4;

/// The rate of each processor, in instructions/s. Together they need less than one processor of the host, which leaves
/// another for the client and the emulator's own thread.
const PACE: u64 = 20_000_000;

/// The batch job counts the primes below this number times the length of a load in s.
const NUMBER_PER_S: u64 = 12_500_000;

/// The number of the client's connections.
const CONNECTIONS: usize = 16;

/// The smallest and the largest load, as fractions of the saturation load of Linux's service without a batch job; and
/// the period from one smallest load to the next.
const LEAST: f64 = 0.1;
const MOST: f64 = 0.7;
const PERIOD: Duration = Duration::from_secs(8);

/// The prefix of figures under each system's own load.
const OWN: &str = "colocation-own";

/// The length of a measurement window.
const WINDOW: Duration = Duration::from_millis(500);

/// The interval at which the batch job's end and the service's cores are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The most attempts at a division: one in which processors lost too much time is not valid and is repeated.
const ATTEMPTS: u32 = 3;

/// The length of each warm-up: unpaced, and then paced.
const WARM_UP: Duration = Duration::from_secs(1);

/// The division of processors between service and batch job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// Isola: the service borrows the batch cell's core when its queueing delays are long.
    Lending,
    /// The same under Isola's own load: the same fraction of its saturation load as for Linux.
    Own,
    /// Linux: all processors for both cgroups, with the largest weight for the service's.
    Shares,
    /// Linux: all processors for both cgroups, with equal weights.
    Alike,
    /// Linux: all processors for both cgroups, SCHED_FIFO for the service and SCHED_IDLE for the batch job.
    RealTime,
    /// Linux: all processors for both cgroups, `cpu.idle` for the batch job's.
    Idle,
    /// Linux: a fixed set of processors for each cgroup.
    Fixed,
    /// Both systems: separate processors, which the same controller moves.
    Moved,
    /// Both systems: the service with its largest number of processors, without a batch job, for comparison.
    Alone,
    /// Isola: the same under its own load.
    OwnAlone,
}

impl Division {
    /// Returns whether there is no batch job.
    fn is_alone(self) -> bool {
        matches!(self, Self::Alone | Self::OwnAlone)
    }

    /// Returns whether the load is Isola's own.
    fn has_own_load(self) -> bool {
        matches!(self, Self::Own | Self::OwnAlone)
    }

    /// Returns the divisions that a system is measured with.
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
trait SharedMachine: Send {
    /// Returns the machine.
    fn machine(&mut self) -> &mut Machine;

    /// Starts the batch job.
    fn start_batch(&mut self) -> Result<(), BenchError>;

    /// Returns the batch job's run time in s; `None` while it runs.
    fn batch_s(&mut self) -> Result<Option<f64>, BenchError>;

    /// Returns the numbers of the service's and the batch job's processors; `None` if they share all.
    fn cores(&mut self) -> Result<Option<(u32, u32)>, BenchError>;

    /// Moves a core from the batch job to the service, or back.
    fn step(&mut self, step: Step) -> Result<(), BenchError>;
}

/// State that all runs share.
#[derive(Debug, Default)]
pub struct Colocation {
    /// The saturation load of Linux's service in requests/s, and of Isola's, once measured.
    linux: Option<f64>,
    isola: Option<f64>,
}

/// The outcome of a load.
struct Outcome {
    rate: f64,
    p50_us: f64,
    p99_us: f64,
    /// `None` without a batch job.
    batch_s: Option<f64>,
    lost_s: f64,
    windows: Vec<LoadWindow>,
    /// The times since the start, and the numbers of cores of the service.
    cores: Vec<(Duration, u32)>,
}

/// Returns the description of the load.
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

/// Returns the bound of the batch job's count.
fn number(session: &Session) -> u64 {
    NUMBER_PER_S * session.plan.load.as_secs()
}

impl Colocation {
    /// Takes one run: each division of the system, on a separate machine.
    pub fn run(&mut self, session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
        let mut lost_s = 0.0_f64;
        for &division in Division::of(system) {
            let mut attempt = 1;
            let outcome = loop {
                // In the first run Linux comes first, so its saturation load is known.
                let Some(outcome) = self.measure(session, system, division, record)? else { return Ok(()) };
                if outcome.lost_s <= pace::MOST_LOST_S || attempt == ATTEMPTS {
                    break outcome;
                }
                eprintln!(
                    "bench: the processors of {system:?}, {division:?}, lost {:.2} s; it is measured again",
                    outcome.lost_s
                );
                attempt += 1;
            };
            outcome.note(system, division, record);
            lost_s = lost_s.max(outcome.lost_s);
        }
        note(record, system, "colocation-lost", lost_s);
        Ok(())
    }

    /// Measures a division on a machine of its own; `None` while Linux's saturation load is unknown.
    fn measure(
        &mut self,
        session: &Session,
        system: System,
        division: Division,
        record: &mut Record,
    ) -> Result<Option<Outcome>, BenchError> {
        if division.has_own_load() && self.isola.is_none() {
            let mut cells = Cells::boot_service(session)?;
            self.isola = Some(saturation(session, &mut cells)?);
        }
        let mut pair: Box<dyn SharedMachine> = match system {
            System::Isola if division.is_alone() => Box::new(Cells::boot_service(session)?),
            System::Isola => Box::new(Cells::boot(session, division)?),
            System::Linux => Box::new(Cgroups::boot(session, division)?),
        };
        if system == System::Linux && self.linux.is_none() {
            self.linux = Some(saturation(session, &mut *pair)?);
        }
        let (whose, saturation) =
            if division.has_own_load() { ("own", self.isola) } else { ("both", self.linux) };
        let Some(saturation) = saturation else { return Ok(None) };
        let profile = Profile { least: LEAST * saturation, most: MOST * saturation, period: PERIOD };
        record.setting.load.insert(
            format!("requests/s, {whose}"),
            format!("{:.0} to {:.0}; {saturation:.0} saturate", profile.least, profile.most),
        );
        let (mut generator, _priority) = ready(&mut *pair)?;
        generator.open(profile.least, WARM_UP)?;
        let outcome = if division.is_alone() {
            measure_alone(&mut *pair, &mut generator, &profile, session.plan.load)?
        } else {
            measure_with_batch(&mut *pair, &mut generator, &profile, division)?
        };
        Ok(Some(outcome))
    }
}

/// Connects a client and warms the machine up, which keeps its pace from then on.
fn ready(pair: &mut dyn SharedMachine) -> Result<(Generator, RealTimePriority), BenchError> {
    let mut generator = Generator::connect(Service::Colocated.address(), CONNECTIONS, Mix::etc())?;
    generator.closed(WARM_UP)?;
    pace::set(pair.machine(), PACE)?;
    let priority = RealTimePriority::set_for(pair.machine());
    generator.closed(WARM_UP)?;
    Ok((generator, priority))
}

/// Returns the saturation load of the service in requests/s, without a batch job.
fn saturation(session: &Session, pair: &mut dyn SharedMachine) -> Result<f64, BenchError> {
    let (mut generator, _priority) = ready(pair)?;
    Ok(generator.closed(session.plan.load)?.rate())
}

/// Applies the load without a batch job, for four times the length of a load: about as long as with one.
fn measure_alone(
    pair: &mut dyn SharedMachine,
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

/// Applies the load until the batch job ends.
fn measure_with_batch(
    pair: &mut dyn SharedMachine,
    generator: &mut Generator,
    profile: &Profile,
    division: Division,
) -> Result<Outcome, BenchError> {
    let lost_s = pace::lost_s(pair.machine())?;
    let observed = Mutex::new(Vec::new());
    let (batch_run, (outcome, windows)) = thread::scope(|scope| {
        let observer = scope.spawn(|| observe_batch(pair, division, &observed));
        let outcome = generator.fluctuating(profile, WINDOW, |windows| {
            if let Ok(mut observed) = observed.lock()
                && observed.len() < windows.len()
            {
                *observed = windows.to_vec();
            }
            observer.is_finished()
        });
        // A panic of the thread is a defect and must surface.
        let batch_run = observer.join().expect("the thread that waits for the batch job");
        Ok::<_, BenchError>((batch_run?, outcome?))
    })?;
    Ok(Outcome {
        rate: outcome.rate(),
        p50_us: outcome.latency_us(0.5),
        p99_us: outcome.latency_us(0.99),
        batch_s: Some(batch_run.batch_s),
        lost_s: pace::lost_s(pair.machine())? - lost_s,
        windows: windows.closed().to_vec(),
        cores: batch_run.cores,
    })
}

/// The observations during a batch job.
struct BatchRun {
    batch_s: f64,
    cores: Vec<(Duration, u32)>,
}

/// Starts the batch job and waits for its end. Meanwhile moves cores, for [`Division::Moved`].
fn observe_batch(
    pair: &mut dyn SharedMachine,
    division: Division,
    observed: &Mutex<Vec<LoadWindow>>,
) -> Result<BatchRun, BenchError> {
    pair.start_batch()?;
    let (begin, mut cores) = (Instant::now(), Vec::new());
    let mut mover = (division == Division::Moved).then(|| CoreMover::new(observed));
    loop {
        if let Some(batch_s) = pair.batch_s()? {
            return Ok(BatchRun { batch_s, cores });
        }
        if let Some((service, batch)) = pair.cores()? {
            cores.push((begin.elapsed(), service));
            if let Some(step) = mover.as_mut().and_then(|mover| mover.decide(service, batch)) {
                pair.step(step)?;
            }
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Moves cores by the client's latencies, in the same way for both systems.
struct CoreMover<'a> {
    observed: &'a Mutex<Vec<LoadWindow>>,
    decided_windows: usize,
    controller: Controller,
}

/// The controller's bounds for the 99th percentile, in ns, and the number of windows for each decision.
const BOUNDS_NS: (u64, u64) = (4_000_000, 12_000_000);
const WINDOWS: usize = 2;

impl<'a> CoreMover<'a> {
    fn new(observed: &'a Mutex<Vec<LoadWindow>>) -> Self {
        let bounds = Bounds { lower_ns: BOUNDS_NS.0, upper_ns: BOUNDS_NS.1 };
        Self { observed, decided_windows: 0, controller: Controller::new(bounds) }
    }

    /// Returns the controller's decision, once enough new windows have ended.
    fn decide(&mut self, service: u32, batch: u32) -> Option<Step> {
        let p99_us = {
            let observed = self.observed.lock().ok()?;
            let new = observed.get(self.decided_windows..)?;
            if new.len() < WINDOWS {
                return None;
            }
            self.decided_windows = observed.len();
            new.iter().map(|window| window.p99_us).fold(0.0, f64::max)
        };
        let seen = WindowLatency::Percentile((p99_us * 1e3) as u64);
        // Each side keeps a core.
        let (borrowed, most) = (service.saturating_sub(1), (service + batch).saturating_sub(1));
        let look = Observation { seen, cores: service, borrowed, most };
        Some(self.controller.decide(&look))
    }
}

impl Outcome {
    /// Records the figures of a division, and the windows of those that have a plot.
    fn note(&self, system: System, division: Division, record: &mut Record) {
        let prefixes: &[&str] = match (system, division) {
            // Isola's figure is the counterpart of each of Linux's.
            (System::Isola, Division::Lending) => &[
                "colocation",
                "colocation-alike",
                "colocation-realtime",
                "colocation-idle",
                "colocation-fixed",
            ],
            (System::Linux, Division::Alike) => &["colocation-alike"],
            (System::Linux, Division::RealTime) => &["colocation-realtime"],
            (System::Linux, Division::Idle) => &["colocation-idle"],
            (System::Isola, Division::Alone) => &["colocation-alone"],
            (System::Isola, Division::OwnAlone) => &["colocation-own-alone"],
            (System::Linux, Division::Alone) => &["colocation-alone", "colocation-own-alone"],
            (System::Linux, Division::Fixed) => &["colocation-fixed"],
            (System::Isola, Division::Own) => &[OWN],
            (System::Linux, Division::Shares) => &["colocation", OWN],
            (_, Division::Moved) => &["colocation-moved"],
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
        match division {
            Division::Lending | Division::Shares => self.note_windows(system, "", record),
            Division::Own => self.note_windows(system, OWN_CURVES, record),
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
    fn each_window_is_used_for_one_decision() {
        let window = |p99_us| LoadWindow { rate: 1_000.0, p99_us };
        let observed = Mutex::new(vec![window(1e6)]);
        let mut mover = CoreMover::new(&observed);
        assert_eq!(mover.decide(1, 2), None, "one window is too few");
        observed.lock().unwrap().push(window(100.0));
        assert!(matches!(mover.decide(1, 2), Some(Step::Take(_))));
        assert_eq!(mover.decide(2, 1), None, "there is no new window");
        // Requests from before the move do not predict the latency after it.
        observed.lock().unwrap().extend([window(1e6), window(1e6)]);
        assert!(matches!(mover.decide(2, 1), Some(Step::Stay(_))));
        observed.lock().unwrap().extend([window(1e6), window(1e6)]);
        assert!(matches!(mover.decide(2, 1), Some(Step::Stay(_))), "the batch job keeps a core");
    }

    #[test]
    fn every_figure_gets_one_value_in_a_run() {
        for system in [System::Isola, System::Linux] {
            let mut record = crate::record::tests::record("colocation-lost", &[], &[]);
            for &division in Division::of(system) {
                let window = LoadWindow { rate: 100.0, p99_us: 2_000.0 };
                let cores = vec![(Duration::from_millis(100), 1), (Duration::from_millis(300), 2)];
                let (p50_us, p99_us) = (1_000.0, 2_000.0);
                let windows = vec![window; 2];
                let batch_s = (!division.is_alone()).then_some(9.0);
                let outcome = Outcome { rate: 100.0, p50_us, p99_us, batch_s, lost_s: 0.0, windows, cores };
                outcome.note(system, division, &mut record);
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
