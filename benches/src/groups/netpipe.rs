//! Group `netpipe`: the NetPIPE curve, one-way times of messages of all sizes.

use super::note;
use crate::curve::{INSTRUCTIONS, ONE_WAY_US};
use crate::error::BenchError;
use crate::load::netpipe::{Direction, NetpipeClient};
use crate::record::Record;
use crate::session::{Counting, Guest, Service, Session, System, cost};
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest message, in bytes.
const MOST: usize = 4 << 20;

/// The sizes with figures, and the figures' names.
const SIZES: [(usize, &str); 3] = [(1, "netpipe-1"), (64 << 10, "netpipe-64k"), (MOST, "netpipe-4m")];

/// The number of rounds for each size. The fastest counts, because other work of the host can only slow a round down.
const ROUNDS: u32 = 3;

/// The load before the measurement, which warms up caches, above all the emulator's.
const WARM_UP: Duration = Duration::from_millis(500);

/// Returns the description of the load.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let round = round_time(session).as_millis();
    [
        (
            "curve",
            format!(
                "powers of two and the middles between them; times: the best of {ROUNDS} rounds of about {round} ms; \
                 instructions: {} to {} messages",
                counted_messages(MOST),
                counted_messages(1),
            ),
        ),
        ("figures of a size", format!("{} s", figure_time(session).as_secs_f64())),
        ("Linux", "a loop of read and write, each of a whole message".to_owned()),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// Returns the sizes: powers of two, and the middles between them.
fn sizes() -> impl Iterator<Item = usize> {
    let bases = (0..=MOST.ilog2()).flat_map(|power| [1 << power, (1 << power) + (1 << power) / 2]);
    // There is no integer between 1 and 2.
    bases.enumerate().filter(|(index, size)| *index != 1 && *size <= MOST).map(|(_, size)| size)
}

/// Returns the approximate length of a round of the curve.
fn round_time(session: &Session) -> Duration {
    session.plan.load / 80
}

/// Returns the number of messages whose instructions are counted for a point of the curve: 32 MiB of them, within
/// bounds.
fn counted_messages(size: usize) -> u32 {
    u32::try_from((32 << 20) / size).unwrap_or(u32::MAX).clamp(8, 500)
}

/// Returns the length of the measurement for a figure.
fn figure_time(session: &Session) -> Duration {
    session.plan.load / 2
}

/// Boots twice: for instructions, and for times.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    for counting in [Counting::On, Counting::Off] {
        let mut guest = session.start(system, Service::Netpipe, counting)?;
        let mut client = NetpipeClient::connect(Service::Netpipe.address(), MOST)?;
        client.repeat_for(Direction::Both, 1, 100, WARM_UP)?;
        client.repeat_for(Direction::Both, MOST, 1, WARM_UP)?;
        for (size, figure) in SIZES {
            let count = client.count_for(size, round_time(session))?;
            let work = || client.repeat_for(Direction::Both, size, count, figure_time(session));
            let (outcome, cost) = cost(&mut guest.machine, work)?;
            if counting == Counting::On {
                note(record, system, &format!("{figure}-instructions"), cost.instructions);
            } else {
                note(record, system, &format!("{figure}-cpu"), cost.cpu_us);
                note(record, system, &format!("{figure}-time"), outcome.latency_us(0.5) / 2.0);
            }
        }
        curve(session, system, &mut guest, counting, &mut client, record)?;
    }
    Ok(())
}

/// Measures a point of the curve for each size.
fn curve(
    session: &Session,
    system: System,
    guest: &mut Guest,
    counting: Counting,
    client: &mut NetpipeClient,
    record: &mut Record,
) -> Result<(), BenchError> {
    let mut most: f64 = 0.0;
    for size in sizes() {
        let (curve, value) = if counting == Counting::On {
            let work = || client.repeat_times(Direction::Both, size, counted_messages(size), 1);
            let (_, cost) = cost(&mut guest.machine, work)?;
            (INSTRUCTIONS, cost.instructions)
        } else {
            let count = client.count_for(size, round_time(session))?;
            let mut best = Duration::MAX;
            for _ in 0..ROUNDS {
                best = best.min(client.round(Direction::Both, size, count)?);
            }
            (ONE_WAY_US, best.as_secs_f64() * 1e6 / f64::from(count) / 2.0)
        };
        let series = record.point(curve, size as u64);
        match system {
            System::Isola => series.isola.push(value),
            System::Linux => series.peer.push(value),
        }
        most = most.max(size as f64 / value);
    }
    if counting == Counting::Off {
        // A byte per us is a MB per s.
        note(record, system, "netpipe-most", most);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_and_the_middles() {
        let all: Vec<usize> = sizes().collect();
        assert_eq!(all[..7], [1, 2, 3, 4, 6, 8, 12]);
        assert_eq!(all.last(), Some(&MOST));
        assert!(all.is_sorted_by(|one, next| one < next));
    }
}
