//! Group `connections`: connections opened and closed, with a byte in each direction.

use super::note;
use crate::error::BenchError;
use crate::load::short::connections;
use crate::record::Record;
use crate::session::{Counting, Service, Session, System, cost};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of concurrent connections for the rate.
const AT_ONCE: usize = 8;

/// The load before the measurement, which warms up caches, above all the emulator's.
const WARM_UP: Duration = Duration::from_secs(1);

/// Returns the description of the load.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let seconds = session.plan.load.as_secs_f64();
    [
        ("connection", "made and closed by the client, with a byte there and back between".to_owned()),
        ("rate", format!("{AT_ONCE} threads with a connection each, {seconds} s")),
        ("alone", format!("one thread, {seconds} s")),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// Boots twice: for instructions, and for times.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    for counting in [Counting::On, Counting::Off] {
        let mut guest = session.start(system, Service::Short, counting)?;
        let (address, duration) = (Service::Short.address(), session.plan.load);
        connections(address, 1, WARM_UP)?;
        let (alone, alone_cost) = cost(&mut guest.machine, || connections(address, 1, duration))?;
        let (many, many_cost) = cost(&mut guest.machine, || connections(address, AT_ONCE, duration))?;
        if counting == Counting::On {
            note(record, system, "connection-instructions", alone_cost.instructions);
            note(record, system, "connection-rate-instructions", many_cost.instructions);
        } else {
            note(record, system, "connection-cpu", alone_cost.cpu_us);
            note(record, system, "connection-time", alone.latency_us(0.5));
            note(record, system, "connection-rate", many.rate());
            note(record, system, "connection-rate-cpu", many_cost.cpu_us);
        }
    }
    Ok(())
}
