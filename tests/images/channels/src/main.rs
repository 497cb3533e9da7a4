//! A test image: channels between cells. The first argument is the role:
//!
//! | role | what the cell does |
//! |---|---|
//! | `serve` | serves `echo`, `slow` (reads nothing), `memory` (adds to words of shared memory), `state` (shares some that survives), `answer` and `drain`; and as the first machine of an application |
//! | `client CELL` | uses all services, and checks the answers |
//! | `call NAME` | uses a service that answers with the bytes it gets, until both sides have ended |
//! | `join FIRST` | joins an application by an address or the name of a cell, and uses its calls and files |
//! | `stay FIRST` | the same, and again after the first machine has ended and is back |
//! | `costs CELL...` | prints the costs of messages, packets and calls |
//! | `calls FIRST` | joins an application by an address or the name of a cell, and prints the cost of a call |
//! | `hold CELL` | exchanges packets until the service ends |
//! | `keep CELL` | keeps the contents of memory of the service when that ends |
//! | `wait CELL` | waits for a packet that never comes, until the peer ends |
//! | `die STEP CELL` | ends at a step of a channel's life |
//! | `hostile CELL` | writes random words to its half, and rings doorbells |
//! | `hostile-neighbour ADDRESS` | the same on links for frames, and sends frames with random contents |
#![no_std]
#![no_main]

use core::sync::atomic::Ordering;
use core::time::Duration;
use isola::channels::{Channel, ChannelError, LinkAccess, Message, SharedMemory, listen, open};
use isola::events::{
    current_activity, register_activity, sleep, spawn_task, spawn_task_for, timeout, yield_now,
};
use isola::prelude::*;

mod costs;
mod hostile;
mod machines;

isola::app!(main);

async fn main(arguments: Arguments) -> ExitCode {
    let words: Vec<&str> = arguments.iter().collect();
    let done = match words[..] {
        ["serve"] => serve().await,
        ["client", cell] => use_all(cell).await,
        ["call", name] => call(name).await,
        ["join", first] => {
            machines::join(first).await;
            Ok(())
        }
        ["stay", first] => {
            machines::stay(first).await;
            Ok(())
        }
        ["costs", ref cells @ ..] => costs::measure(cells).await,
        ["calls", first] => {
            costs::measure_calls_to(first).await;
            Ok(())
        }
        ["hold", cell] => hold(cell).await,
        ["keep", cell] => keep(cell).await,
        ["wait", cell] => wait(cell).await,
        ["die", step, cell] => die(step, cell).await,
        ["hostile", cell] => hostile::attack(cell).await,
        ["hostile-neighbour", peer] => match peer.parse() {
            Ok(peer) => hostile::attack_neighbour(peer).await,
            Err(_) => return ExitCode::USAGE,
        },
        _ => {
            println!(
                "usage: channels serve | client CELL | call NAME | join FIRST | stay FIRST | costs CELL... | calls FIRST | hold CELL | keep CELL | wait CELL | die STEP CELL | hostile CELL | hostile-neighbour ADDRESS"
            );
            return ExitCode::USAGE;
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("channels: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), ChannelError> {
    for service in ["echo", "memory", "state", "slow", "answer"] {
        let listener = listen(service)?;
        let activity = register_activity(service).unwrap_or_else(|_| current_activity());
        spawn_task(async move {
            loop {
                if let Ok(channel) = listener.accept().await {
                    spawn_task_for(activity, async move {
                        let _ = match service {
                            "echo" => echo(&channel).await,
                            "memory" => add(&channel).await,
                            "state" => share_state(&channel).await,
                            "answer" => costs::answer(&channel).await,
                            _ => {
                                channel.closed().await;
                                Ok(())
                            }
                        };
                    })
                    .detach();
                }
            }
        })
        .detach();
    }
    costs::serve_drain()?;
    let _first_machine = machines::host().await;
    println!("channels: serving");
    isola::stop_requested().await;
    Ok(())
}

async fn echo(channel: &Channel) -> Result<(), ChannelError> {
    let mut packet = Vec::new();
    loop {
        channel.read_into(&mut packet).await?;
        channel.write(&packet).await?;
    }
}

/// Adds 1 to the last word of the peer's memory for each packet, which it answers.
async fn add(channel: &Channel) -> Result<(), ChannelError> {
    let memory = channel.mapped().await?;
    loop {
        let packet = channel.read().await?;
        let last = memory.len() - 1;
        let stored = memory.store(last, memory.load(last).unwrap_or_default() + 1);
        channel.write(if stored { &packet } else { b"read-only" }).await?;
    }
}

/// The pages of the service `state`, and the value of each of their words.
const STATE_PAGES: usize = 200;
const STATE: u64 = 0x5eed_0000;

/// Shares memory that survives this cell.
async fn share_state(channel: &Channel) -> Result<(), ChannelError> {
    let memory = SharedMemory::new(STATE_PAGES)?;
    for (index, word) in (0_u64..).zip(memory.words()) {
        word.store(STATE + index, Ordering::Relaxed);
    }
    channel.map_surviving(&memory).await?;
    channel.closed().await;
    Ok(())
}

/// Keeps the memory of the service `state` at the end of its cell.
async fn keep(cell: &str) -> Result<(), ChannelError> {
    let channel = open(&format!("{cell}/state")).await?;
    let memory = channel.mapped().await?;
    let is_right = || (0..memory.len()).all(|index| memory.load(index) == Some(STATE + index as u64));
    assert_eq!((memory.len(), is_right()), (STATE_PAGES * 512, true));
    memory.keep().await?;
    println!("channels: keeping");
    channel.closed().await;
    assert!(is_right(), "the contents survive their owner");
    drop((channel, memory));
    println!("channels: the contents were kept");
    Ok(())
}

async fn use_all(cell: &str) -> Result<(), ChannelError> {
    let channel = open(&format!("{cell}/echo")).await?;
    for len in (0..200).chain([1000, channel.most_bytes() - 1, channel.most_bytes()]) {
        let packet: Vec<u8> = (0..len).map(|index| (index * 7 + len) as u8).collect();
        channel.write(&packet).await?;
        assert_eq!(channel.read().await?, packet, "{len} bytes");
    }
    let most_bytes = channel.most_bytes();
    assert_eq!(channel.write(&vec![0; most_bytes + 1]).await, Err(ChannelError::TooLong { most_bytes }));
    for number in 0..1000 {
        channel.write_message(&Message::new([number; 7])).await?;
        assert_eq!(channel.read_message().await?.words(), &[number; 7]);
    }
    println!("channels: echo is right");

    // 1 MiB.
    let memory = SharedMemory::new(256)?;
    let words = memory.words();
    let last = &words[words.len() - 1];
    for (access, answer, sum) in
        [(LinkAccess::ReadWrite, &b"add"[..], 41), (LinkAccess::Read, b"read-only", 40)]
    {
        let adder = open(&format!("{cell}/memory")).await?;
        last.store(40, Ordering::Release);
        adder.map(&memory, access).await?;
        adder.write(b"add").await?;
        assert_eq!(adder.read().await?, answer);
        assert_eq!(last.load(Ordering::Acquire), sum);
        adder.unmap().await?;
        adder.write(b"add").await?;
        adder.read().await?;
        assert_eq!(last.load(Ordering::Acquire), sum, "it is revoked");
    }
    println!("channels: shared memory is right");

    let slow = open(&format!("{cell}/slow")).await?;
    let mut sent = 0;
    while timeout(Duration::from_millis(20), slow.write(&[1; 100])).await.is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 64, "two lines a packet of 128");
    assert_eq!(open(&format!("{cell}/absent")).await.err(), Some(ChannelError::Closed));
    println!("channels: a writer without a reader waits");
    Ok(())
}

/// Uses a service that answers with the bytes it gets, in packets of any length, until both directions have ended.
async fn call(name: &str) -> Result<(), ChannelError> {
    let channel = open(name).await?;
    for len in [1, 56, 57, 1000, 8000] {
        let packet: Vec<u8> = (0..len).map(|index| (index * 7 + len) as u8).collect();
        channel.write(&packet).await?;
        let mut answer = Vec::new();
        while answer.len() < packet.len() {
            let part = channel.read().await?;
            assert!(!part.is_empty(), "the service has ended after {} of {len} bytes", answer.len());
            answer.extend(part);
        }
        assert_eq!(answer, packet);
    }
    channel.finish().await?;
    assert_eq!(channel.read().await?, [], "the service ends its direction, too");
    println!("channels: the service is right");
    Ok(())
}

/// Exchanges packets and uses shared memory, until the service ends.
async fn hold(cell: &str) -> Result<(), ChannelError> {
    let channel = open(&format!("{cell}/echo")).await?;
    let adder = open(&format!("{cell}/memory")).await?;
    let memory = SharedMemory::new(3)?;
    adder.map(&memory, LinkAccess::ReadWrite).await?;
    let last = memory.words().last().ok_or(ChannelError::NoMemory)?;
    for round in 0_u64.. {
        channel.write(&round.to_le_bytes()).await?;
        assert_eq!(channel.read().await?, round.to_le_bytes());
        adder.write(b"add").await?;
        assert_eq!(adder.read().await?, b"add");
        assert_eq!(last.load(Ordering::Acquire), round + 1);
        if round % 10 == 0 {
            println!("channels: {round} rounds");
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

async fn wait(cell: &str) -> Result<(), ChannelError> {
    let channel = open(&format!("{cell}/echo")).await?;
    println!("channels: waiting");
    let error = channel.read().await.err();
    println!("channels: {error:?}, {}", channel.is_open());
    assert_eq!(channel.write(b"more").await, Err(ChannelError::Closed));
    Ok(())
}

/// Ends the cell while it has channels in different states.
async fn die(step: &str, cell: &str) -> Result<(), ChannelError> {
    let name = format!("{cell}/echo");
    if step == "opening" {
        spawn_task(async move { open(&name).await.map(|_| ()) }).detach();
        yield_now().await;
        panic!("dies while opening");
    }
    let channel = open(&name).await?;
    match step {
        "open" => {}
        "writing" => {
            // The service waits for room in its own ring then.
            while timeout(Duration::from_millis(20), channel.write(&[3; 1000])).await.is_ok() {}
        }
        "sharing" => {
            let adder = open(&format!("{cell}/memory")).await?;
            adder.map(&SharedMemory::new(1)?, LinkAccess::ReadWrite).await?;
            for _ in 0..20 {
                adder.write(b"add").await?;
            }
        }
        _ => sleep(Duration::from_millis(10)).await,
    }
    panic!("dies at the step {step}");
}
