//! The costs of messages and packets, for the benchmark group `link`: the machine's clock advances by 1 ns for each
//! instruction of any core. Prints `cost NAME PICOSECONDS` for each operation, and `costs: done`.

use core::time::Duration;
use isola::channels::{Channel, ChannelError, Delivery, Message, multicast, open};
use isola::events::{Instant, now, sleep};
use isola::prelude::*;

/// The rounds of a measurement, those before it, and the pause between two.
const ROUNDS: u64 = 2000;
const FIRST_ROUNDS: u64 = 200;
const PAUSE: Duration = Duration::from_micros(60);

/// The messages of a batch, which fit a ring, and the number of batches.
const BATCH: u64 = 63;
const BATCHES: usize = 51;

/// The time in which the sender of a batch has finished, and that after which it begins.
const BATCH_TIME: Duration = Duration::from_micros(300);
const HEAD_START: Duration = Duration::from_micros(100);

/// Receives batches: reads each after it was written, and answers how long that took, in ns.
pub async fn drain(channel: &Channel) -> Result<(), ChannelError> {
    loop {
        let count = channel.read_message().await?.words()[0];
        // Meanwhile the sender writes the batch, for which this side does not wait.
        sleep(BATCH_TIME).await;
        let began = now();
        for _ in 0..count {
            channel.read_message().await?;
        }
        let took_ns = now().since(began).as_nanos() as u64;
        channel.write_message(&Message::new([took_ns; 7])).await?;
    }
}

/// The time of the rounds of a measurement. Between two of them the cell halts, so that the rate of interrupts stays below
/// that at which links are polled.
struct Total {
    name: &'static str,
    rounds: u64,
    total_ns: u64,
    began: Instant,
}

impl Total {
    fn new(name: &'static str) -> Self {
        Self { name, rounds: 0, total_ns: 0, began: now() }
    }

    /// Begins the next round, unless it was the last.
    async fn has_next(&mut self) -> bool {
        sleep(PAUSE).await;
        self.rounds += 1;
        self.began = now();
        self.rounds <= ROUNDS + FIRST_ROUNDS
    }

    fn end_round(&mut self) {
        let took_ns = now().since(self.began).as_nanos() as u64;
        if self.rounds > FIRST_ROUNDS {
            self.total_ns += took_ns;
        }
    }

    /// Prints the cost of one of `parts` equal parts of a round.
    fn print(&self, parts: u64) {
        println!("cost {} {}", self.name, self.total_ns * 1000 / ROUNDS / parts);
    }
}

/// Answers messages.
pub async fn answer(channel: &Channel) -> Result<(), ChannelError> {
    loop {
        let message = channel.read_message().await?;
        channel.write_message(&message).await?;
    }
}

/// Measures all, against cells that serve; broadcasts to all of them.
pub async fn measure(cells: &[&str]) -> Result<(), ChannelError> {
    let Some(cell) = cells.first() else { return Err(ChannelError::BadName) };
    // Idle cores zero their free pages first.
    sleep(Duration::from_millis(100)).await;
    let channel = open(&format!("{cell}/drain")).await?;
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        channel.write_message(&Message::new([BATCH; 7])).await?;
        sleep(HEAD_START).await;
        let began = now();
        for _ in 0..BATCH {
            assert_eq!(channel.try_write_message(&Message::new([1; 7])), Delivery::Sent);
        }
        let sent_ns = now().since(began).as_nanos() as u64;
        batches.push(sent_ns + channel.read_message().await?.words()[0]);
    }
    batches.sort_unstable();
    println!("cost message {}", batches[BATCHES / 2] * 1000 / BATCH);

    let channel = open(&format!("{cell}/answer")).await?;
    let mut total = Total::new("wake");
    while total.has_next().await {
        channel.write_message(&Message::new([1; 7])).await?;
        channel.read_message().await?;
        total.end_round();
    }
    // There and back.
    total.print(2);

    let channel = open(&format!("{cell}/echo")).await?;
    let (mut total, mut packet) = (Total::new("trip"), Vec::new());
    while total.has_next().await {
        channel.write(&[1; 64]).await?;
        channel.read_into(&mut packet).await?;
        total.end_round();
    }
    total.print(1);

    let mut members = Vec::new();
    for cell in cells {
        members.push(open(&format!("{cell}/answer")).await?);
    }
    let mut total = Total::new("broadcast");
    while total.has_next().await {
        let deliveries = multicast(&members, &Message::new([1; 7]));
        for member in &members {
            member.read_message().await?;
        }
        total.end_round();
        assert!(deliveries.iter().all(|delivery| *delivery == Delivery::Sent));
    }
    total.print(1);
    println!("costs: done");
    Ok(())
}
