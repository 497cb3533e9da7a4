//! Group `web`: requests of a web server for a page, which is in Isola's image and in nginx's folder.

use super::note;
use crate::error::BenchError;
use crate::linux::PAGE;
use crate::load::page::Client;
use crate::record::Record;
use crate::session::{Counting, Service, Session, System, cost};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of persistent connections.
const CONNECTIONS: usize = 16;

/// The load before the measurement, which warms up caches, above all the emulator's.
const WARM_UP: Duration = Duration::from_secs(1);

/// Returns the description of the load.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let seconds = session.plan.load.as_secs_f64();
    [
        ("page", format!("{} bytes, which the client compares", PAGE.len())),
        ("saturation", format!("one thread, {CONNECTIONS} connections in turns, {seconds} s")),
        ("alone", format!("one connection, {seconds} s")),
        ("connect", format!("a connection a request, one after the other, {seconds} s")),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// Boots twice: for instructions, and for times.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    for counting in [Counting::On, Counting::Off] {
        let mut guest = session.start(system, Service::Web, counting)?;
        let (machine, duration) = (&mut guest.machine, session.plan.load);
        let client = Client::new(Service::Web.address(), PAGE);
        let mut streams = client.connect(CONNECTIONS)?;
        client.staying(&mut streams, WARM_UP)?;
        let (saturated, saturated_cost) = cost(machine, || client.staying(&mut streams, duration))?;
        let (alone, alone_cost) = cost(machine, || client.staying(&mut streams[..1], duration))?;
        client.connecting(WARM_UP)?;
        let (connect, connect_cost) = cost(machine, || client.connecting(duration))?;
        if counting == Counting::On {
            note(record, system, "web-instructions", saturated_cost.instructions);
            note(record, system, "web-alone-instructions", alone_cost.instructions);
            note(record, system, "web-connect-instructions", connect_cost.instructions);
        } else {
            note(record, system, "web-cpu", saturated_cost.cpu_us);
            note(record, system, "web-throughput", saturated.rate());
            note(record, system, "web-alone-round-trip", alone.latency_us(0.5));
            note(record, system, "web-connect-round-trip", connect.latency_us(0.5));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::KINDS;

    #[test]
    fn the_figures_state_the_length_of_the_page() {
        let about = KINDS.iter().find(|kind| kind.name == "web-instructions").unwrap().about;
        assert!(about.contains(&format!("a page of {} bytes", PAGE.len())), "{about}");
    }
}
