//! Group `kv`: requests of a key-value service under the ETC-like mix, and of an echo service.

mod paced;

use super::note;
use crate::error::BenchError;
use crate::load::echo::ping_pong;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::record::Record;
use crate::session::{Counting, Service, Session, System, cost, mib};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of the client's connections.
const CONNECTIONS: usize = 16;

/// The low load, in requests/s.
const LOW_RATE: f64 = 500.0;

/// The time limit for a part of the requests, in us: ten times EbbRT's limit, on an emulator that is about ten times
/// slower.
const WITHIN_US: f64 = 5_000.0;

/// The parts: EbbRT's, and a smaller one on which other work of the host has less effect.
const WITHIN_PARTS: [(f64, &str); 2] = [(0.99, "within-99"), (0.9, "within")];

/// The lowest load for this search, in requests/s, which then doubles; and the number of halvings of the last interval:
/// the error of the largest load is at most 9 %.
const LEAST_RATE: f64 = 250.0;
const HALVINGS: u32 = 3;

/// The number of pending requests on each connection, in batches.
const DEPTHS: [usize; 2] = [4, 16];

/// The load before the measurement, which warms up caches, above all the emulator's.
const WARM_UP: Duration = Duration::from_secs(1);

/// Returns the description of the load.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let seconds = session.plan.load.as_secs_f64();
    [
        ("mix", "ETC-like: keys of 20 to 70 bytes, values of 1 to 1024, 90 % get, 10,000 keys".to_owned()),
        ("client", format!("one thread, {CONNECTIONS} connections, sleeps while it waits")),
        ("saturation", format!("closed loop, {seconds} s")),
        ("batches", format!("closed loop, {DEPTHS:?} requests a connection under way, {seconds} s each")),
        ("low load", format!("open loop, {LOW_RATE} requests/s, {seconds} s")),
        ("echo", format!("one connection, {seconds} s")),
        ("within", format!("open loop, twice the load again and again from {LEAST_RATE} requests/s, then {HALVINGS} steps between the last two, {} s each, twice where it fails", seconds / 4.0)),
        (
            "on 2 processors",
            "and two pairs of queues; the client, the emulator's own thread and both processors share the host's: \
             instructions count, times say less"
                .to_owned(),
        ),
        ("on paced processors", paced::load(session)),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// State that all runs share.
#[derive(Debug, Default)]
pub struct Kv {
    /// The loads for the comparison of latencies, in requests/s, once known: with one processor, and with two.
    same_load: [Option<f64>; 2],
}

/// The number of processors of a machine, which determines the prefix of its figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessorCount {
    One,
    Two,
}

impl ProcessorCount {
    fn count(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::One => "kv",
            Self::Two => "kv-2",
        }
    }

    /// Returns the name of the load for the comparison of latencies.
    fn same_load(self) -> &'static str {
        match self {
            Self::One => "same load",
            Self::Two => "same load on 2 processors",
        }
    }
}

impl Kv {
    /// Boots for instructions, for times, and with paced processors.
    pub fn run(&mut self, session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
        for counting in [Counting::On, Counting::Off] {
            self.requests(session, system, ProcessorCount::One, counting, record)?;
            self.requests(session, system, ProcessorCount::Two, counting, record)?;
            self.echo(session, system, counting, record)?;
        }
        paced::run(session, system, record)
    }

    fn requests(
        &mut self,
        session: &Session,
        system: System,
        processors: ProcessorCount,
        counting: Counting,
        record: &mut Record,
    ) -> Result<(), BenchError> {
        let mut note = |figure: &str, value| {
            note(record, system, &format!("{}-{figure}", processors.prefix()), value);
        };
        let mut guest = session.start_on(processors.count(), system, Service::Kv, counting)?;
        let mut generator = Generator::connect(Service::Kv.address(), CONNECTIONS, Mix::etc())?;
        generator.closed(WARM_UP)?;
        let machine = &mut guest.machine;
        let (saturated, cost_saturated) = cost(machine, || generator.closed(session.plan.load))?;
        match counting {
            Counting::On => note("instructions", cost_saturated.instructions),
            Counting::Off => {
                note("cpu", cost_saturated.cpu_us);
                note("throughput", saturated.rate());
            }
        }
        for depth in DEPTHS {
            let (batches, cost) = cost(machine, || generator.closed_with(depth, session.plan.load))?;
            match counting {
                Counting::On => note(&format!("depth-{depth}-instructions"), cost.instructions),
                Counting::Off => note(&format!("depth-{depth}-throughput"), batches.rate()),
            }
        }
        if processors == ProcessorCount::One {
            let (_, cost_low) = cost(machine, || generator.open(LOW_RATE, session.plan.load))?;
            match counting {
                Counting::On => note("instructions-low", cost_low.instructions),
                Counting::Off => note("cpu-low", cost_low.cpu_us),
            }
        }
        if counting == Counting::On {
            return Ok(());
        }
        let same_load = &mut self.same_load[processors as usize];
        // In the first run Linux comes first and sets the load.
        if system == System::Linux {
            same_load.get_or_insert_with(|| (saturated.rate() / 2.0).round());
        }
        let Some(rate) = *same_load else { return Ok(()) };
        let outcome = generator.open(rate, session.plan.load)?;
        note("p50", outcome.latency_us(0.5));
        note("p99", outcome.latency_us(0.99));
        for (part, figure) in WITHIN_PARTS {
            note(figure, largest_rate(&mut generator, part, session.plan.load / 4)?);
        }
        if processors == ProcessorCount::One {
            note("memory", mib(machine.touched_bytes()?));
        }
        let how = format!("open loop, {rate} requests/s, {} s", session.plan.load.as_secs_f64());
        record.setting.load.insert(processors.same_load().to_owned(), how);
        Ok(())
    }

    fn echo(
        &self,
        session: &Session,
        system: System,
        counting: Counting,
        record: &mut Record,
    ) -> Result<(), BenchError> {
        let mut guest = session.start(system, Service::Echo, counting)?;
        ping_pong(&mut guest.stream, WARM_UP)?;
        let (outcome, cost) = cost(&mut guest.machine, || ping_pong(&mut guest.stream, session.plan.load))?;
        if counting == Counting::On {
            note(record, system, "echo-instructions", cost.instructions);
        } else {
            note(record, system, "echo-cpu", cost.cpu_us);
            note(record, system, "echo-round-trip", outcome.latency_us(0.5));
        }
        Ok(())
    }
}

/// Returns the largest load, in requests/s, at which this part of the requests is answered in time; 0 if there is none.
fn largest_rate(generator: &mut Generator, part: f64, duration: Duration) -> Result<f64, BenchError> {
    largest(|rate| {
        let mut is_in_time =
            || generator.open(rate, duration).map(|outcome| outcome.latency_us(part) <= WITHIN_US);
        // Other work of the host can only slow a service down, so a failed load is tried again.
        Ok(is_in_time()? || is_in_time()?)
    })
}

/// Returns the largest rate that `holds`, by doubling the rate and then halving the last interval.
fn largest(mut holds: impl FnMut(f64) -> Result<bool, BenchError>) -> Result<f64, BenchError> {
    let (mut largest, mut rate) = (0.0, LEAST_RATE);
    while holds(rate)? {
        (largest, rate) = (rate, rate * 2.0);
    }
    if largest == 0.0 {
        return Ok(0.0);
    }
    let mut fails = rate;
    for _ in 0..HALVINGS {
        let between = f64::sqrt(largest * fails);
        if holds(between)? { largest = between } else { fails = between }
    }
    Ok(largest.round())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_load_is_found_to_nine_per_cent() {
        for limit in [260.0, 700.0, 4_000.0, 63_000.0] {
            let found = largest(|rate| Ok(rate <= limit)).unwrap();
            assert!(found <= limit + 0.5 && found * 1.091 >= limit, "{found} of {limit}");
        }
        assert_eq!(largest(|_| Ok(false)).unwrap(), 0.0);
    }
}
