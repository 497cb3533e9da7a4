//! The gain of a key-value service from a second processor, with paced processors ([`crate::pace`]). If the host keeps
//! the pace, no processor waits for the other, for the emulator's own thread or for the client.

use super::{WARM_UP, note};
use crate::error::BenchError;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::machine::Boot;
use crate::pace::{self, RealTimePriority};
use crate::record::Record;
use crate::session::{Counting, Service, Session, System};

/// The rate of each processor, in instructions/s: so low that the client could send several times the requests that two
/// processors answer.
const PACE: u64 = 20_000_000;

/// The number of the client's connections, with one processor and with two: enough to keep each processor busy.
const CONNECTIONS: usize = 64;

/// Returns the description of the load.
pub fn load(session: &Session) -> String {
    format!(
        "{} million instructions a second each; closed loop on {CONNECTIONS} connections, {} s",
        PACE / 1_000_000,
        session.plan.load.as_secs_f64()
    )
}

/// Takes one run.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    let one = saturate(session, system, 1)?;
    let two = saturate(session, system, 2)?;
    note(record, system, "kv-paced-throughput", one.requests_per_s);
    note(record, system, "kv-2-paced-throughput", two.requests_per_s);
    note(record, system, "kv-2-paced-gain", two.requests_per_s / one.requests_per_s);
    note(record, system, "kv-paced-lost", one.lost_s + two.lost_s);
    Ok(())
}

/// The outcome of a saturated machine.
struct Saturation {
    requests_per_s: f64,
    /// The time by which its processors fell behind their pace in the measurement.
    lost_s: f64,
}

fn saturate(session: &Session, system: System, processors: u32) -> Result<Saturation, BenchError> {
    let boot = session.boot(system, Service::Kv, processors)?;
    let boot = Boot { extra: session.pacer.arguments().into(), ..boot };
    let guest = session.start_as(&boot, system, Service::Kv, Counting::Off)?;
    let mut generator = Generator::connect(Service::Kv.address(), CONNECTIONS, Mix::etc())?;
    generator.closed(WARM_UP)?;
    pace::set(&guest.machine, PACE)?;
    let _priority = RealTimePriority::set_for(&guest.machine);
    generator.closed(WARM_UP)?;
    let lost_s = pace::lost_s(&guest.machine)?;
    let outcome = generator.closed(session.plan.load)?;
    Ok(Saturation { requests_per_s: outcome.rate(), lost_s: pace::lost_s(&guest.machine)? - lost_s })
}
