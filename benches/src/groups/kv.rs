//! Requests: of a key-value service under the ETC-like mix, and of an echo service.

use super::note;
use crate::error::BenchError;
use crate::load::echo::ping_pong;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::record::Record;
use crate::session::{Counting, Service, Session, System, cost, mib};
use std::collections::BTreeMap;
use std::time::Duration;

/// Connections of the client.
const CONNECTIONS: usize = 16;

/// Low load, in requests a second.
const LOW_RATE: f64 = 500.0;

/// Within this time a part of the requests is to be answered, in us: ten times what EbbRT took for it, on an emulator that is
/// about as much slower.
const WITHIN_US: f64 = 5_000.0;

/// That part. EbbRT's was 0.99; on a host of few processors, the hundredth waits for the host's other work.
const WITHIN_PART: f64 = 0.9;

/// The lowest load at which that is tried, in requests a second, and how much more the next one is.
const LEAST_RATE: f64 = 250.0;
const NEXT_RATE: f64 = core::f64::consts::SQRT_2;

/// Before anything is measured, so much load warms up caches, the emulator's above all.
const WARM_UP: Duration = Duration::from_secs(1);

/// Under which load is measured.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let seconds = session.plan.load.as_secs_f64();
    [
        ("mix", "ETC-like: keys of 20 to 70 bytes, values of 1 to 1024, 90 % get, 10,000 keys".to_owned()),
        ("client", format!("one thread, {CONNECTIONS} connections, sleeps while it waits")),
        ("saturation", format!("closed loop, {seconds} s")),
        ("low load", format!("open loop, {LOW_RATE} requests/s, {seconds} s")),
        ("echo", format!("one connection, {seconds} s")),
        ("within", format!("open loop, from {LEAST_RATE} requests/s by the root of 2, {} s each, twice where it fails", seconds / 4.0)),
        (
            "on 2 processors",
            "and two pairs of queues; the client, the emulator's own thread and both processors share the host's: \
             instructions count, times say less"
                .to_owned(),
        ),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// What runs have in common.
#[derive(Debug, Default)]
pub struct Kv {
    /// The loads at which latencies are compared, in requests a second, once they are known: of one processor, and of two.
    same_load: [Option<f64>; 2],
}

/// The processors of a machine, and what its figures begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processors {
    One,
    Two,
}

impl Processors {
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

    /// What the load is called at which latencies are compared.
    fn same_load(self) -> &'static str {
        match self {
            Self::One => "same load",
            Self::Two => "same load on 2 processors",
        }
    }
}

impl Kv {
    /// Boots twice: for instructions, and for times.
    pub fn run(&mut self, session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
        for counting in [Counting::On, Counting::Off] {
            self.requests(session, system, Processors::One, counting, record)?;
            self.requests(session, system, Processors::Two, counting, record)?;
            self.echo(session, system, counting, record)?;
        }
        Ok(())
    }

    fn requests(
        &mut self,
        session: &Session,
        system: System,
        processors: Processors,
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
        if processors == Processors::One {
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
        // The first run begins with Linux.
        if system == System::Linux {
            same_load.get_or_insert_with(|| (saturated.rate() / 2.0).round());
        }
        let Some(rate) = *same_load else { return Ok(()) };
        let outcome = generator.open(rate, session.plan.load)?;
        note("p50", outcome.latency_us(0.5));
        note("p99", outcome.latency_us(0.99));
        note("within", largest_rate(&mut generator, session.plan.load / 4)?);
        if processors == Processors::One {
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

/// The largest load, in requests a second, at which that part is answered in time; 0 where there is none.
fn largest_rate(generator: &mut Generator, duration: Duration) -> Result<f64, BenchError> {
    let (mut largest, mut rate, mut failed) = (0.0, LEAST_RATE, 0);
    // One that fails at two loads in a row has had enough.
    while failed < 2 {
        // What else goes on makes a service slower, and none faster: a load that fails is tried again.
        let is_in_time = |generator: &mut Generator| {
            generator.open(rate, duration).map(|outcome| outcome.latency_us(WITHIN_PART) <= WITHIN_US)
        };
        if is_in_time(generator)? || is_in_time(generator)? {
            (largest, failed) = (rate, 0);
        } else {
            failed += 1;
        }
        rate *= NEXT_RATE;
    }
    Ok(largest)
}
