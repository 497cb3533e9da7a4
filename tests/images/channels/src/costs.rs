//! The costs of messages and packets, for the benchmark group `link`: the machine's clock advances by 1 ns for each
//! instruction of any core. Prints `cost NAME PICOSECONDS` for each operation, and `costs: done`.

use core::time::Duration;
use isola::channels::{Channel, ChannelError, Delivery, Message, multicast, open};
use isola::events::{now, sleep};
use isola::prelude::*;

/// The rounds of a measurement, after a tenth of them that is not measured.
const ROUNDS: u64 = 2000;

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
    let mut began = now();
    for round in 0..ROUNDS + ROUNDS / 10 {
        if round == ROUNDS / 10 {
            began = now();
        }
        channel.write_message(&Message::new([round; 7])).await?;
        channel.read_message().await?;
    }
    // There and back.
    println!("cost wake {}", now().since(began).as_nanos() as u64 * 1000 / ROUNDS / 2);

    let channel = open(&format!("{cell}/echo")).await?;
    let mut packet = Vec::new();
    for round in 0..ROUNDS + ROUNDS / 10 {
        if round == ROUNDS / 10 {
            began = now();
        }
        channel.write(&[1; 64]).await?;
        channel.read_into(&mut packet).await?;
    }
    println!("cost trip {}", now().since(began).as_nanos() as u64 * 1000 / ROUNDS);

    let mut members = Vec::new();
    for cell in cells {
        members.push(open(&format!("{cell}/answer")).await?);
    }
    for round in 0..ROUNDS + ROUNDS / 10 {
        if round == ROUNDS / 10 {
            began = now();
        }
        let deliveries = multicast(&members, &Message::new([round; 7]));
        assert!(deliveries.iter().all(|delivery| *delivery == Delivery::Sent));
        for member in &members {
            member.read_message().await?;
        }
    }
    println!("cost broadcast {}", now().since(began).as_nanos() as u64 * 1000 / ROUNDS);
    println!("costs: done");
    Ok(())
}
