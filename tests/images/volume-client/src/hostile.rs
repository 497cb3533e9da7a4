//! A client of a served volume that violates the protocol: in its messages, in its rings, and by its silence or end.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;
use isola::channels::{Channel, ChannelError, LinkAccess, SharedMemory, open};
use isola::events::{now, sleep, timeout, yield_now};
use isola::println;
use isola_abi::service::{
    DeviceOffer, DriverSetup, Hello, QueueSetup, Reply, ServiceRefusal, decode, encode,
};
use isola_abi::volume::VolumeAccess;

/// The shared memory of a connection.
const PAGES: usize = 16;

/// The queue in it: descriptors at its begin, then the two rings.
const QUEUE_SIZE: u16 = 64;
const AVAILABLE: u64 = 1024;
const USED: u64 = 2048;

/// The silent connections at a time.
const MOST_SILENT: usize = 4;

/// How long the service may take to end a connection. It waits 5 s for each step of a client.
const END_LIMIT: Duration = Duration::from_secs(20);

/// How long a connection may take while the service still serves the one before.
const OPEN_LIMIT: Duration = Duration::from_secs(20);

fn text(error: ChannelError) -> String {
    error.to_string()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.next() as u8).collect()
    }
}

/// Violates the protocol `count` times. Whatever the service answers, it must end each connection, and open the next one.
pub async fn attack(volume: &str, count: u32) -> Result<String, String> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut silent = Vec::new();
    for number in 0..count {
        match number % 6 {
            0 => malformed(volume, &mut random).await?,
            1 if silent.len() < MOST_SILENT => silent.push(open_soon(volume).await?),
            1 | 2 => bad_setup(volume, &mut random).await?,
            3 => bad_rings(volume, &mut random).await?,
            4 => revoked(volume, &mut random).await?,
            _ => flood(volume, &mut random).await?,
        }
    }
    for channel in silent {
        ended(&channel, "a silent client").await?;
    }
    println!("volume-client: {count} attacks");
    Ok("the service ended all connections".to_string())
}

/// Opens a channel; a service that has no free link yet has one soon.
async fn open_soon(volume: &str) -> Result<Channel, String> {
    let deadline = now() + OPEN_LIMIT;
    loop {
        match open(volume).await {
            Ok(channel) => return Ok(channel),
            Err(error) if now() >= deadline => return Err(format!("no channel: {error}")),
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
    }
}

async fn ended(channel: &Channel, client: &str) -> Result<(), String> {
    timeout(END_LIMIT, channel.closed()).await.map_err(|_| format!("the link to {client} does not end"))
}

/// Sends no `Hello`.
async fn malformed(volume: &str, random: &mut Random) -> Result<(), String> {
    let channel = open_soon(volume).await?;
    channel.write(&random.bytes(2000)).await.map_err(text)?;
    match timeout(END_LIMIT, channel.read()).await {
        Ok(Ok(answer)) if matches!(decode(&answer), Some(Reply::Refused(_))) => Ok(()),
        // Random bytes can be a `Hello`.
        Ok(Ok(answer)) if decode::<Reply>(&answer).is_some() => Ok(()),
        Ok(Err(ChannelError::Closed)) => Ok(()),
        other => Err(format!("the answer to a malformed client is {other:?}")),
    }
}

/// Says `Hello`, and returns the offer of the service. It may still serve the connection before.
async fn offered(volume: &str) -> Result<(Channel, DeviceOffer), String> {
    let deadline = now() + OPEN_LIMIT;
    loop {
        let channel = open_soon(volume).await?;
        let hello = Hello { version: isola_abi::VERSION, access: VolumeAccess::ReadWrite };
        channel.write(&encode(&hello)).await.map_err(text)?;
        let answer = timeout(END_LIMIT, channel.read()).await.map_err(|_| "no answer to a client")?;
        match answer.ok().and_then(|answer| decode(&answer)) {
            Some(Reply::Offer(offer)) => return Ok((channel, offer)),
            Some(Reply::Refused(ServiceRefusal::InUse)) | None if now() < deadline => {
                sleep(Duration::from_millis(5)).await;
            }
            other => return Err(format!("the answer to a client is {other:?}")),
        }
    }
}

/// Names queues that are outside of the memory, or that no queue can be; or accepts features that were not offered.
async fn bad_setup(volume: &str, random: &mut Random) -> Result<(), String> {
    let (channel, offer) = offered(volume).await?;
    let memory = SharedMemory::new(PAGES).map_err(text)?;
    let mut place =
        || [0, 1, 8, 64 << 10, (64 << 10) - 8, u64::MAX, u64::MAX - 7, 1 << 63][random.below(8) as usize];
    let queue = QueueSetup { size: place() as u16, descriptors: place(), available: place(), used: place() };
    let (features, base) = (offer.features ^ place(), place());
    let queues = vec![queue; place() as usize % 4];
    let setup = DriverSetup { features, base, queues };
    if random.below(2) == 0 {
        channel.map(&memory, LinkAccess::Read).await.map_err(text)?;
    } else {
        channel.map(&memory, LinkAccess::ReadWrite).await.map_err(text)?;
    }
    // The service may have ended the link already.
    let _ = channel.write(&encode(&setup)).await;
    // It may be a queue by chance.
    channel.bell().ring();
    if queue.size == 0 || queue.size > QUEUE_SIZE || features & !offer.features != 0 {
        ended(&channel, "a client with a bad queue").await?;
    }
    Ok(())
}

/// Opens a channel, and sets up the queue as a driver does.
async fn started(volume: &str) -> Result<(Channel, SharedMemory), String> {
    let (channel, offer) = offered(volume).await?;
    let memory = SharedMemory::new(PAGES).map_err(text)?;
    channel.map(&memory, LinkAccess::ReadWrite).await.map_err(text)?;
    let queue = QueueSetup { size: QUEUE_SIZE, descriptors: 0, available: AVAILABLE, used: USED };
    let setup = DriverSetup { features: offer.features, base: 0, queues: vec![queue] };
    channel.write(&encode(&setup)).await.map_err(text)?;
    Ok((channel, memory))
}

/// Writes descriptors of a read of 4 KiB, and makes it available `count` times.
fn request(memory: &SharedMemory, count: u64) {
    let words = memory.words();
    let descriptor = |index: usize, address: u64, len: u64, flags: u64, next: u64| {
        words[2 * index].store(address, Ordering::Relaxed);
        words[2 * index + 1].store(len | flags << 32 | next << 48, Ordering::Relaxed);
    };
    const NEXT: u64 = 1;
    const WRITE: u64 = 2;
    descriptor(0, 4096, 16, NEXT, 1);
    descriptor(1, 8192, 4096, NEXT | WRITE, 2);
    descriptor(2, 4112, 1, WRITE, 0);
    // Flags and index of the available ring, whose entries are all 0: the first descriptor.
    words[AVAILABLE as usize / 8].store(count << 16, Ordering::Release);
}

/// Writes random or plausible words to the rings and descriptors while the service uses them.
async fn bad_rings(volume: &str, random: &mut Random) -> Result<(), String> {
    let (channel, memory) = started(volume).await?;
    request(&memory, 1 + random.below(u64::from(QUEUE_SIZE)));
    channel.bell().ring();
    let words = memory.words();
    for _ in 0..300 {
        if !channel.is_open() {
            break;
        }
        let (ring, any) = (AVAILABLE / 8 + random.below(20), random.below(words.len() as u64));
        let index = [random.below(6), ring, USED / 8 + random.below(20), any][random.below(4) as usize];
        let value =
            [random.next(), random.below(1 << 16) << 16, random.below(1 << 13)][random.below(3) as usize];
        words[index as usize].store(value, Ordering::Relaxed);
        channel.bell().ring();
        if random.below(16) == 0 {
            yield_now().await;
        }
    }
    Ok(())
}

/// Takes the memory back while requests are in execution.
async fn revoked(volume: &str, random: &mut Random) -> Result<(), String> {
    let (channel, memory) = started(volume).await?;
    request(&memory, 1 + random.below(u64::from(QUEUE_SIZE)));
    channel.bell().ring();
    for _ in 0..random.below(20) {
        yield_now().await;
    }
    let _ = channel.unmap().await;
    channel.bell().ring();
    Ok(())
}

/// Sends doorbells without requests, and packets that the service does not expect.
async fn flood(volume: &str, random: &mut Random) -> Result<(), String> {
    let (channel, _memory) = started(volume).await?;
    for _ in 0..2000 {
        channel.bell().ring();
    }
    for _ in 0..200 {
        let packet = random.bytes(1000);
        if timeout(Duration::from_millis(5), channel.write(&packet)).await.is_err() {
            break;
        }
        channel.bell().ring();
    }
    Ok(())
}

/// Ends the cell at a step of a connection.
pub async fn die(step: &str, volume: &str) -> Result<String, String> {
    match step {
        "hello" => core::mem::forget(open_soon(volume).await?),
        "offer" => core::mem::forget(offered(volume).await?),
        "map" => {
            let (channel, _) = offered(volume).await?;
            let memory = SharedMemory::new(PAGES).map_err(text)?;
            channel.map(&memory, LinkAccess::ReadWrite).await.map_err(text)?;
        }
        _ => {
            let (channel, memory) = started(volume).await?;
            request(&memory, u64::from(QUEUE_SIZE));
            channel.bell().ring();
            for _ in 0..3 {
                yield_now().await;
            }
        }
    }
    panic!("dies at the step {step}");
}
