//! The end that asks and measures.

use crate::end::{End, EndError};
use crate::round::{MAX_COUNT, Round, Way};
use crate::sizes::sizes;
use core::fmt;
use core::time::Duration;
use isola_events::now;
use isola_net::TcpStream;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which way messages go.
    pub way: Way,
    /// The longest message, in bytes.
    pub most: usize,
    /// How long a round takes, about.
    pub round: Duration,
    /// Rounds of each size. The fastest counts: what else goes on makes others slower, and none faster.
    pub rounds: u32,
    /// Messages of a round at least.
    pub least_count: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { way: Way::Both, most: 8 << 20, round: Duration::from_millis(200), rounds: 3, least_count: 3 }
    }
}

/// What a size came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The size, in bytes.
    pub size: usize,
    /// Messages of a round.
    pub count: u32,
    /// How long a message takes one way, in ns: half of its time there and back, or the time from one to the next.
    pub one_way_ns: u64,
}

impl Measured {
    /// How much one way carries, in kbit/s.
    pub fn kbit_per_s(&self) -> u64 {
        (self.size as u64).saturating_mul(8_000_000) / self.one_way_ns.max(1)
    }

    /// The measurement as a line of JSON.
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

impl fmt::Display for Measured {
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

/// Measures all sizes over a connection to a server, and tells each.
///
/// # Errors
/// [`EndError`], where the server leaves.
pub async fn measure_all(
    stream: TcpStream,
    settings: Settings,
    mut tell: impl FnMut(Measured),
) -> Result<(), EndError> {
    let mut end = End::new(stream);
    // Both ends, and the stack's estimates, have seen a few messages before any counts.
    let first = Round { way: settings.way, size: 1, count: settings.least_count.max(1) };
    let mut last_ns = measure(&mut end, first).await?;
    for size in sizes(settings.most) {
        let round_ns = settings.round.as_nanos() as u64;
        let ways = if settings.way == Way::Both { 2 } else { 1 };
        let count = (round_ns / (ways * last_ns).max(1)).min(u64::from(MAX_COUNT)) as u32;
        let round = Round { way: settings.way, size, count: count.max(settings.least_count).max(1) };
        let mut best_ns = u64::MAX;
        for _ in 0..settings.rounds.max(1) {
            best_ns = best_ns.min(measure(&mut end, round).await?);
        }
        tell(Measured { size, count: round.count, one_way_ns: best_ns });
        last_ns = best_ns;
    }
    end.say(&Round::END.to_bytes()).await?;
    end.shutdown();
    // The server says that it has heard.
    end.receive(1).await.map_or_else(
        |error| if error == EndError::Short { Ok(()) } else { Err(error) },
        |()| Err(EndError::Protocol),
    )
}

/// How long a message of a round takes one way, in ns.
async fn measure(end: &mut End, round: Round) -> Result<u64, EndError> {
    end.say(&round.to_bytes()).await?;
    let begun = now();
    match round.way {
        Way::Both => {
            for _ in 0..round.count {
                end.send(round.size).await?;
                end.receive(round.size as u64).await?;
            }
        }
        Way::ToServer => {
            for _ in 0..round.count {
                end.send(round.size).await?;
            }
            end.receive(1).await?;
        }
        Way::ToClient => end.receive(round.bytes()).await?,
    }
    let taken = now().since(begun).as_nanos() as u64;
    let ways = if round.way == Way::Both { 2 } else { 1 };
    Ok((taken / u64::from(round.count.max(1)) / ways).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_measurement_says_size_throughput_and_time() {
        let measured = Measured { size: 1_000, count: 7, one_way_ns: 12_345 };
        assert_eq!(measured.kbit_per_s(), 648_035);
        assert_eq!(measured.to_string(), "    1000 bytes       7 times     648.03 Mbit/s in      12.34 us");
        let json = "{\"bytes\":1000,\"count\":7,\"one_way_ns\":12345,\"kbit_per_s\":648035}";
        assert_eq!(measured.json().to_string(), json);
    }
}
