//! What a second processor is worth to a key-value service, where processors have a pace ([`crate::pace`]): as long as the host
//! keeps it, none of them waits for the other, for the emulator's own thread or for the client.

use super::{WARM_UP, note};
use crate::error::BenchError;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::machine::Boot;
use crate::pace::{self, First};
use crate::record::Record;
use crate::session::{Counting, Service, Session, System};

/// Instructions a second of each processor: so few that the client could ask for several times as many requests as two of
/// them answer.
const PACE: u64 = 20_000_000;

/// Connections of the client, on one processor and on two: so many that each processor always has requests that wait.
const CONNECTIONS: usize = 64;

/// Under which load is measured.
pub fn load(session: &Session) -> String {
    format!(
        "{} million instructions a second each; closed loop on {CONNECTIONS} connections, {} s",
        PACE / 1_000_000,
        session.plan.load.as_secs_f64()
    )
}

/// A run.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    let one = saturate(session, system, 1)?;
    let two = saturate(session, system, 2)?;
    note(record, system, "kv-paced-throughput", one.requests_per_s);
    note(record, system, "kv-2-paced-throughput", two.requests_per_s);
    note(record, system, "kv-2-paced-gain", two.requests_per_s / one.requests_per_s);
    note(record, system, "kv-paced-lost", one.lost_s + two.lost_s);
    Ok(())
}

/// What a machine did.
struct Saturated {
    requests_per_s: f64,
    /// What its processors could not catch up of their pace.
    lost_s: f64,
}

fn saturate(session: &Session, system: System, processors: u32) -> Result<Saturated, BenchError> {
    let boot = session.boot(system, Service::Kv, processors)?;
    let boot = Boot { extra: session.pacer.arguments().into(), ..boot };
    let guest = session.start_as(&boot, system, Service::Kv, Counting::Off)?;
    let mut generator = Generator::connect(Service::Kv.address(), CONNECTIONS, Mix::etc())?;
    generator.closed(WARM_UP)?;
    pace::set(&guest.machine, PACE)?;
    let _first = First::take(&guest.machine);
    generator.closed(WARM_UP)?;
    let outcome = generator.closed(session.plan.load)?;
    Ok(Saturated { requests_per_s: outcome.rate(), lost_s: pace::lost_s(&guest.machine)? })
}
