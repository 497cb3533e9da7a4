//! The costs of messages, packets and calls, for the benchmark groups `link` and `loop`: the machine's clock advances by 1 ns for each
//! instruction of any core. Prints `cost NAME PICOSECONDS` for each operation, and `costs: done`.

use crate::machines;
use core::time::Duration;
use isola::channels::{Channel, ChannelError, Delivery, Message, listen, multicast, open};
use isola::events::{Instant, now, sleep, spawn_task};
use isola::prelude::*;

/// The rounds of a measurement, those before it, and the pause between two.
const ROUNDS: u64 = 2000;
const FIRST_ROUNDS: u64 = 200;
const PAUSE: Duration = Duration::from_micros(60);

/// The messages of a batch, which fit a ring, and the number of batches.
const BATCH: u64 = 63;
const BATCHES: usize = 51;

/// Serves `drain`, by two channels at a time: each message of the first announces a batch in the second, for which this side
/// has not waited. Answers how long it took to read the batch, in ns.
pub fn serve_drain() -> Result<(), ChannelError> {
    let listener = listen("drain")?;
    let serving = async move {
        loop {
            let (Ok(control), Ok(data)) = (listener.accept().await, listener.accept().await) else {
                continue;
            };
            let _ = drain(&control, &data).await;
        }
    };
    spawn_task(serving).detach();
    Ok(())
}

async fn drain(control: &Channel, data: &Channel) -> Result<(), ChannelError> {
    loop {
        let count = control.read_message().await?.words()[0];
        let began = now();
        let mut left = count;
        while left > 0 {
            left -= u64::from(data.try_read_message()?.is_some());
        }
        let took_ns = now().since(began).as_nanos() as u64;
        control.write_message(&Message::new([took_ns; 7])).await?;
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
        self.end_round_at(now());
    }

    fn end_round_at(&mut self, ended: Instant) {
        if self.rounds > FIRST_ROUNDS {
            self.total_ns += ended.since(self.began).as_nanos() as u64;
        }
    }

    fn print(&self) {
        println!("cost {} {}", self.name, self.total_ns * 1000 / ROUNDS);
    }
}

/// Answers each message with the time at which it was read. All cells of a machine have one clock.
pub async fn answer(channel: &Channel) -> Result<(), ChannelError> {
    loop {
        channel.read_message().await?;
        channel.write_message(&Message::new([now().as_ns(); 7])).await?;
    }
}

/// Measures calls to a first machine, by its address or the name of its cell.
pub async fn measure_calls_to(first: &str) {
    sleep(Duration::from_millis(100)).await;
    let _first = machines::join_by(first).await;
    measure_calls().await;
    println!("costs: done");
}

/// Measures calls to the first machine, which this one has joined.
async fn measure_calls() {
    let mut total = Total::new("call");
    while total.has_next().await {
        machines::echo(&[1; 64]).await;
        total.end_round();
    }
    total.print();
}

/// Measures all, against cells that serve; broadcasts to all of them.
pub async fn measure(cells: &[&str]) -> Result<(), ChannelError> {
    let Some(cell) = cells.first() else { return Err(ChannelError::BadName) };
    // Idle cores zero their free pages first.
    sleep(Duration::from_millis(100)).await;
    let control = open(&format!("{cell}/drain")).await?;
    let data = open(&format!("{cell}/drain")).await?;
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let began = now();
        for _ in 0..BATCH {
            assert_eq!(data.try_write_message(&Message::new([1; 7])), Delivery::Sent);
        }
        let sent_ns = now().since(began).as_nanos() as u64;
        control.write_message(&Message::new([BATCH; 7])).await?;
        batches.push(sent_ns + control.read_message().await?.words()[0]);
        sleep(PAUSE).await;
    }
    batches.sort_unstable();
    println!("cost message {}", batches[BATCHES / 2] * 1000 / BATCH);

    let channel = open(&format!("{cell}/answer")).await?;
    let mut total = Total::new("wake");
    while total.has_next().await {
        channel.write_message(&Message::new([1; 7])).await?;
        let read_at = channel.read_message().await?.words()[0];
        total.end_round_at(Instant::from_ns(read_at));
    }
    total.print();

    let channel = open(&format!("{cell}/echo")).await?;
    let (mut total, mut packet) = (Total::new("trip"), Vec::new());
    while total.has_next().await {
        channel.write(&[1; 64]).await?;
        channel.read_into(&mut packet).await?;
        total.end_round();
    }
    total.print();
    // Without pauses both sides poll for the other's packet.
    let mut began = now();
    for round in 0..FIRST_ROUNDS + ROUNDS {
        if round == FIRST_ROUNDS {
            began = now();
        }
        channel.write(&[1; 64]).await?;
        channel.read_into(&mut packet).await?;
    }
    println!("cost polled {}", now().since(began).as_nanos() as u64 * 1000 / ROUNDS);
    let _first = machines::join_by(cell).await;
    measure_calls().await;

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
    total.print();
    println!("costs: done");
    Ok(())
}
