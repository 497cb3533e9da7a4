//! A peer that writes whatever it can.

use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use isola::channels::{ChannelError, SharedMemory, open};
use isola::events::{sleep, yield_now};
use isola::net::wait_for_address;
use isola::prelude::*;
use isola_abi::links::{LinkDemand, LinkRefusal, LinkState, MAX_LINKS, service_name};
use isola_ebbs::platform;

/// The number of attacks.
const ATTACKS: u64 = 40;

/// The layout of a half, as the peer expects it: words of a line, lines before the entries, the first word, and the words
/// of the sender's and the receiver's index.
const LINE: usize = 8;
const HEADER: usize = 4 * LINE;
const MARK: u64 = 0x0031_6b6e_696c_6f73;
const HEAD: usize = LINE;
const WAKE_AT: usize = 2 * LINE + 1;
const ROOM_AT: usize = 3 * LINE;

/// The pages of a half for frames, and its entries.
const FRAME_PAGES: usize = 33;
const ENTRIES: u64 = 2048;

/// The hardware addresses that are tried, from this cell's own on in both directions.
const MACS: u8 = 8;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Opens links to the peer's services, writes random or plausible words to its half of each, and rings doorbells.
pub async fn attack(cell: &str) -> Result<(), ChannelError> {
    // Starts the runtime, which wakes this task at doorbells no more than a sleep does.
    drop(open(&format!("{cell}/echo")).await?);
    sleep(Duration::from_millis(5)).await;
    let port = platform().links().ok_or(ChannelError::Unsupported)?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for attack in 0..ATTACKS {
        let half = SharedMemory::new(1)?.words();
        let service = service_name(if attack % 3 == 0 { "memory" } else { "echo" }).unwrap_or_default();
        let demand = LinkDemand::Open { target: cell.into(), service, memory: port.range_of(half) };
        let slot = opened(&demand).await.map_err(ChannelError::Refused)?;
        write_words(half, slot, &mut random);
        sleep(Duration::from_millis(1)).await;
        for demand in [LinkDemand::Close { slot }, LinkDemand::Close { slot: MAX_LINKS }] {
            let _ = answer(&demand).await;
        }
    }
    println!("channels: {ATTACKS} attacks");
    Ok(())
}

/// Opens links for frames to the neighbour with this address, writes random words or frames to its half of each, and rings
/// doorbells.
pub async fn attack_neighbour(peer: Ipv4Addr) -> Result<(), ChannelError> {
    let own = wait_for_address().await.address;
    let port = platform().links().ok_or(ChannelError::Unsupported)?;
    let own_mac = port.table().own_mac().ok_or(ChannelError::Unsupported)?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut attacks, mut frames) = (0, 0);
    for round in 0..ATTACKS {
        for step in 1..=MACS {
            let mut mac = own_mac;
            let last = mac[5];
            mac[5] = if round % 2 == 0 { last.wrapping_add(step) } else { last.wrapping_sub(step) };
            let half = SharedMemory::new(FRAME_PAGES)?.words();
            initialise(half);
            let demand = LinkDemand::OpenNeighbour { mac, memory: port.range_of(half) };
            let Ok(slot) = opened(&demand).await else { continue };
            attacks += 1;
            if random.next().is_multiple_of(2) {
                write_words(half, slot, &mut random);
            } else {
                frames += write_frames(half, slot, &mut random, (own_mac, own), (mac, peer)).await;
            }
            sleep(Duration::from_millis(2)).await;
            let _ = answer(&LinkDemand::Close { slot }).await;
        }
        // The peer has given its end back by then.
        sleep(Duration::from_millis(20)).await;
    }
    println!("channels: {attacks} attacks with {frames} frames");
    if attacks == 0 || frames == 0 { Err(ChannelError::Closed) } else { Ok(()) }
}

/// Makes a demand of the supervisor, and returns its answer.
async fn answer(demand: &LinkDemand) -> Result<usize, LinkRefusal> {
    let Some(port) = platform().links() else { return Err(LinkRefusal::Malformed) };
    let number = port.send(demand);
    loop {
        match port.table().answer(number) {
            Some(answer) => return answer,
            None => yield_now().await,
        }
    }
}

/// Opens a link, and waits until the peer has accepted or refused it.
async fn opened(demand: &LinkDemand) -> Result<usize, LinkRefusal> {
    let slot = answer(demand).await?;
    let Some(port) = platform().links() else { return Err(LinkRefusal::Malformed) };
    while port.table().get(slot).is_some_and(|link| link.state() == LinkState::Waiting) {
        yield_now().await;
    }
    Ok(slot)
}

fn ring(slot: usize) {
    platform().links().into_iter().for_each(|port| port.ring_doorbell(slot));
}

/// Writes the header of a half without entries.
fn initialise(half: &[AtomicU64]) {
    for (index, value) in [(HEAD, 0), (2 * LINE, 0), (WAKE_AT, u64::MAX), (ROOM_AT, u64::MAX), (0, MARK)] {
        half[index].store(value, Ordering::Release);
    }
}

/// Writes 200 words: indices, lengths that fit in some cases, and others.
fn write_words(half: &[AtomicU64], slot: usize, random: &mut Random) {
    for _ in 0..200 {
        let word = (random.next() % half.len() as u64) as usize;
        let index = [word, 8, 16, 17, 24, 32 + 8 * (word % 8)][(random.next() % 6) as usize];
        let value = [random.next(), random.next() % 64, ((random.next() % 8) << 32) | (random.next() % 300)]
            [(random.next() % 3) as usize];
        half[index].store(value, Ordering::Relaxed);
        ring(slot);
    }
}

/// Sends frames of TCP and UDP with random lengths and contents behind right addresses, over a right ring. Returns their
/// number.
async fn write_frames(
    half: &[AtomicU64],
    slot: usize,
    random: &mut Random,
    (own_mac, own): ([u8; 6], Ipv4Addr),
    (peer_mac, peer): ([u8; 6], Ipv4Addr),
) -> u64 {
    let (mut head, mut frames) = (0, 0);
    for _ in 0..60 {
        let len =
            [random.next() % 60, random.next() % 1500, random.next() % 9000][(random.next() % 3) as usize];
        let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        // The padding before the frame; mostly the right one.
        let padding = if random.next().is_multiple_of(8) { random.next() as u8 % 12 } else { 2 };
        let said = if random.next().is_multiple_of(8) { random.next() as u16 } else { bytes.len() as u16 };
        let protocol = if random.next().is_multiple_of(2) { 6 } else { 17 };
        let [total_high, total_low] = said.saturating_add(20).to_be_bytes();
        let port = (5002_u16 + (random.next() % 2) as u16).to_be_bytes();
        bytes.iter_mut().skip(2).zip(port).for_each(|(byte, part)| *byte = part);
        let ip = [0x45, 0, total_high, total_low, 0, 0, 0x40, 0, 64, protocol, 0, 0];
        let prefix = vec![padding; usize::from(padding.max(1))];
        let (own, peer) = (own.octets(), peer.octets());
        let frame = [&prefix[..], &peer_mac, &own_mac, &[8, 0], &ip, &own, &peer, &bytes].concat();
        let lines = (8 + frame.len()).div_ceil(8 * LINE) as u64;
        // All entries are written once, so that none is in use.
        if head + lines > ENTRIES {
            break;
        }
        let at = HEADER + head as usize * LINE;
        half[at].store((head << 32) | frame.len() as u64, Ordering::Relaxed);
        for (index, word) in frame.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            half[at + 1 + index].store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        head += lines;
        frames += 1;
        half[HEAD].store(head, Ordering::Release);
        ring(slot);
        yield_now().await;
    }
    frames
}
