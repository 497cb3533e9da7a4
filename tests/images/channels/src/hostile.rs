//! A peer that writes whatever it can.

use core::sync::atomic::Ordering;
use core::time::Duration;
use isola::channels::{ChannelError, SharedMemory, open};
use isola::events::{sleep, yield_now};
use isola::prelude::*;
use isola_abi::links::{LinkDemand, LinkState, MAX_LINKS, service_name};
use isola_ebbs::platform;

/// The number of attacks.
const ATTACKS: u64 = 40;

/// Opens links to the peer's services, writes random or plausible words to its half of each, and rings doorbells.
pub async fn attack(cell: &str) -> Result<(), ChannelError> {
    // Starts the runtime, which wakes this task at doorbells no more than a sleep does.
    drop(open(&format!("{cell}/echo")).await?);
    sleep(Duration::from_millis(5)).await;
    let Some(port) = platform().links() else { return Err(ChannelError::Unsupported) };
    let table = port.table();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for attack in 0..ATTACKS {
        let half = SharedMemory::new(1)?.words();
        let service = service_name(if attack % 3 == 0 { "memory" } else { "echo" }).unwrap_or_default();
        let demand = LinkDemand::Open { target: cell.into(), service, memory: port.range_of(half) };
        let number = port.send(&demand);
        let slot = loop {
            match table.answer(number) {
                Some(answer) => break answer.map_err(ChannelError::Refused)?,
                None => yield_now().await,
            }
        };
        while table.get(slot).is_some_and(|link| link.state() == LinkState::Waiting) {
            yield_now().await;
        }
        for _ in 0..200 {
            let word = (next() % half.len() as u64) as usize;
            // The indices, and lengths that fit in some cases.
            let index = [word, 8, 16, 17, 24, 32 + 8 * (word % 8)][(next() % 6) as usize];
            let value = [next(), next() % 64, ((next() % 8) << 32) | (next() % 300)][(next() % 3) as usize];
            half[index].store(value, Ordering::Relaxed);
            port.ring_doorbell(slot);
        }
        sleep(Duration::from_millis(1)).await;
        for demand in [LinkDemand::Close { slot }, LinkDemand::Close { slot: MAX_LINKS }] {
            let number = port.send(&demand);
            while table.answer(number).is_none() {
                yield_now().await;
            }
        }
    }
    println!("channels: {ATTACKS} attacks");
    Ok(())
}
