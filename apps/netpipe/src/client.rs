//! The client, which sends requests and measures.

use crate::endpoint::{Endpoint, EndpointError};
use crate::round::{Direction, MAX_COUNT, Round};
use crate::sizes::sizes;
use core::fmt;
use core::time::Duration;
use isola_events::now;
use isola_net::TcpStream;

/// The settings of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The direction of messages.
    pub direction: Direction,
    /// The minimum size of a message, in bytes.
    pub least: usize,
    /// The maximum size of a message, in bytes.
    pub most: usize,
    /// The approximate duration of a round.
    pub round: Duration,
    /// The number of rounds per size. The fastest counts, as other load can only slow a round down.
    pub rounds: u32,
    /// The minimum number of messages in a round.
    pub least_count: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            direction: Direction::Both,
            least: 1,
            most: 8 << 20,
            round: Duration::from_millis(200),
            rounds: 3,
            least_count: 3,
        }
    }
}

/// The result for one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// The size, in bytes.
    pub size: usize,
    /// The number of messages in a round.
    pub count: u32,
    /// The time of a message in one direction, in ns: half of its round trip, or the interval between messages.
    pub one_way_ns: u64,
}

impl Measurement {
    /// Returns the throughput in one direction, in kbit/s.
    pub fn kbit_per_s(&self) -> u64 {
        (self.size as u64).saturating_mul(8_000_000) / self.one_way_ns.max(1)
    }

    /// Formats the measurement as a line of JSON.
    pub fn json(&self) -> impl fmt::Display {
        let (Self { size, count, one_way_ns }, kbit) = (*self, self.kbit_per_s());
        fmt::from_fn(move |f| {
            write!(
                f,
                "{{\"bytes\":{size},\"count\":{count},\"one_way_ns\":{one_way_ns},\"kbit_per_s\":{kbit}}}"
            )
        })
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kbit, ns) = (self.kbit_per_s(), self.one_way_ns);
        write!(
            f,
            "{:>8} bytes {:>7} times {:>7}.{:02} Mbit/s in {:>7}.{:02} us",
            self.size,
            self.count,
            kbit / 1_000,
            kbit % 1_000 / 10,
            ns / 1_000,
            ns % 1_000 / 10
        )
    }
}

/// Measures all sizes over a connection to a server, and passes each result to `report`.
///
/// # Errors
/// [`EndpointError`], for example if the server closes the connection.
pub async fn measure_all(
    stream: TcpStream,
    settings: Settings,
    mut report: impl FnMut(Measurement),
) -> Result<(), EndpointError> {
    let mut endpoint = Endpoint::new(stream);
    let sizes = sizes(settings.most).into_iter().filter(|size| *size >= settings.least);
    // A warm-up round for both sides and for the stack's estimates, and for the number of messages of the first size: the
    // time of a shorter message would give too many of them.
    let size = sizes.clone().next().unwrap_or(1);
    let first = Round { direction: settings.direction, size, count: settings.least_count.max(1) };
    let mut last_ns = measure(&mut endpoint, first).await?;
    for size in sizes {
        let round_ns = settings.round.as_nanos() as u64;
        let directions = if settings.direction == Direction::Both { 2 } else { 1 };
        let count = (round_ns / (directions * last_ns).max(1)).min(u64::from(MAX_COUNT)) as u32;
        let round =
            Round { direction: settings.direction, size, count: count.max(settings.least_count).max(1) };
        let mut best_ns = u64::MAX;
        for _ in 0..settings.rounds.max(1) {
            best_ns = best_ns.min(measure(&mut endpoint, round).await?);
        }
        report(Measurement { size, count: round.count, one_way_ns: best_ns });
        last_ns = best_ns;
    }
    endpoint.send_bytes(&Round::END.to_bytes()).await?;
    endpoint.shutdown();
    // The server closes its side in reply.
    endpoint.receive(1).await.map_or_else(
        |error| if error == EndpointError::Short { Ok(()) } else { Err(error) },
        |()| Err(EndpointError::Protocol),
    )
}

/// Runs a round, and returns the time of a message in one direction, in ns.
async fn measure(endpoint: &mut Endpoint, round: Round) -> Result<u64, EndpointError> {
    endpoint.send_bytes(&round.to_bytes()).await?;
    let start = now();
    match round.direction {
        Direction::Both => {
            for _ in 0..round.count {
                endpoint.send(round.size).await?;
                endpoint.receive(round.size as u64).await?;
            }
        }
        Direction::ToServer => {
            for _ in 0..round.count {
                endpoint.send(round.size).await?;
            }
            endpoint.receive(1).await?;
        }
        Direction::ToClient => endpoint.receive(round.bytes()).await?,
    }
    let taken = now().since(start).as_nanos() as u64;
    let directions = if round.direction == Direction::Both { 2 } else { 1 };
    Ok((taken / u64::from(round.count.max(1)) / directions).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_measurement_prints_size_throughput_and_time() {
        let measurement = Measurement { size: 1_000, count: 7, one_way_ns: 12_345 };
        assert_eq!(measurement.kbit_per_s(), 648_035);
        assert_eq!(
            measurement.to_string(),
            "    1000 bytes       7 times     648.03 Mbit/s in      12.34 us"
        );
        let json = "{\"bytes\":1000,\"count\":7,\"one_way_ns\":12345,\"kbit_per_s\":648035}";
        assert_eq!(measurement.json().to_string(), json);
    }
}
