//! Group `bulk`: bulk data on one connection, received and sent.

use super::note;
use crate::error::BenchError;
use crate::load::netpipe::{Direction, NetpipeClient};
use crate::network::service;
use crate::record::Record;
use crate::session::{Counting, NETPIPE_PORT, Service, Session, System, cost};
use std::collections::BTreeMap;
use std::time::Duration;

/// The bytes of one read or write in the guest.
pub const MESSAGE_BYTES: usize = 64 << 10;

/// The number of messages between two time checks: 16 MiB.
pub const MESSAGES: u32 = 256;

/// The number of messages in a MiB.
pub const PER_MIB: f64 = (1 << 20) as f64 / MESSAGE_BYTES as f64;

/// The number of bytes in a MB.
pub const MB: f64 = 1e6;

/// The load before the measurement, which warms up caches, above all the emulator's.
const WARM_UP: Duration = Duration::from_millis(500);

/// Returns the description of the load.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let (kib, seconds) = (MESSAGE_BYTES >> 10, session.plan.load.as_secs_f64());
    [
        ("bulk", format!("one connection, {seconds} s each way")),
        (
            "Linux",
            format!("a loop of read or write with a buffer of {kib} KiB, or of sendfile as much at once"),
        ),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// Boots twice: for instructions, and for times.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    for counting in [Counting::On, Counting::Off] {
        let mut guest = session.start(system, Service::Netpipe, counting)?;
        // Isola sends views of memory in both comparisons.
        let (write, sendfile) = match system {
            System::Isola => (NETPIPE_PORT, NETPIPE_PORT),
            System::Linux => (NETPIPE_PORT, NETPIPE_PORT + 1),
        };
        let directions = [
            ("bulk-receive", Direction::ToService, write),
            ("bulk-send", Direction::FromService, write),
            ("bulk-sendfile", Direction::FromService, sendfile),
        ];
        for (figure, direction, port) in directions {
            let mut client = NetpipeClient::connect(service(port), MESSAGE_BYTES)?;
            client.repeat_for(direction, MESSAGE_BYTES, MESSAGES, WARM_UP)?;
            let work = || client.repeat_for(direction, MESSAGE_BYTES, MESSAGES, session.plan.load);
            let (outcome, cost) = cost(&mut guest.machine, work)?;
            if counting == Counting::On {
                note(record, system, &format!("{figure}-instructions"), cost.instructions * PER_MIB);
            } else {
                note(record, system, &format!("{figure}-cpu"), cost.cpu_us * PER_MIB);
                note(record, system, figure, outcome.rate() * MESSAGE_BYTES as f64 / MB);
            }
        }
    }
    Ok(())
}
