//! A test image: requests to the block devices of its volumes, without a file system.
//!
//! | arguments | effect |
//! |---|---|
//! | `fill SEED` | fills every device with a pattern, and makes it permanent |
//! | `check SEED` | checks that every device has that pattern |
//! | `limits` | makes requests that the devices or their queues refuse |
//! | `wait` | opens the devices, and waits until it is stopped |
//!
//! The requests of `fill` and `check` go to all queues of a device in turn.
//!
//! It waits for completions by interrupts alone: if one were lost, it would not end.
#![no_std]
#![no_main]

use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use isola::events::interrupt::on_interrupt;
use isola::events::timer::sleep;
use isola::iobuf::{Chain, IoBuf, IoBufMut};
use isola::prelude::*;
use isola_ebbs::platform;
use isola_platform::block::{
    BlockLimits, BlockOutcome, BlockPort, BlockQueue, BlockRefusal, BlockRequest, CompletionsPending,
    SECTOR_LEN, VolumePort,
};

extern crate alloc;

isola::app!(main);

/// Sectors of a request of `fill` and `check`: 64 KiB.
const SECTORS: u64 = 128;

/// The most requests in flight.
const DEPTH: u16 = 16;

async fn main(arguments: Arguments) -> ExitCode {
    let volumes = platform().open_volumes();
    let words: Vec<&str> = arguments.iter().collect();
    let seed = words.get(1).and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let mut worst = ExitCode::SUCCESS;
    for VolumePort { mount, port } in volumes {
        let BlockPort { limits, mut control, queues } = port;
        let (sectors, count) = (control.capacity(), queues.len());
        println!("disks: {} at {} has {sectors} sectors and {count} queues", mount.name, mount.path);
        let queues: Vec<Device> = queues.into_iter().map(|queue| Device::new(queue, limits)).collect();
        let Some(first) = queues.first() else { return ExitCode::FAILURE };
        let result = match words.first().copied() {
            Some("fill") => fill(&queues, sectors, seed).await,
            Some("check") => check(&queues, sectors, seed).await,
            Some("limits") => refusals(first, sectors).await,
            Some("wait") => Ok(()),
            _ => Err("usage: disks fill SEED | check SEED | limits | wait".into()),
        };
        match result {
            Ok(()) => println!("disks: {} is done", mount.path),
            Err(error) => {
                println!("disks: {} failed: {error}", mount.path);
                worst = ExitCode::FAILURE;
            }
        }
    }
    if words.first() == Some(&"wait") {
        println!("disks: waiting");
        isola::stop_requested().await;
    }
    worst
}

/// The id of a completed request, its outcome, and the request with its data.
type Done = (u64, BlockOutcome, Option<BlockRequest>);

/// A queue of a device.
struct Device {
    queue: Rc<RefCell<Box<dyn BlockQueue + Send>>>,
    limits: BlockLimits,
    done: Rc<RefCell<Vec<Done>>>,
    interrupts: Rc<Cell<u32>>,
    _interrupt: isola::events::interrupt::Interrupt,
}

impl Device {
    fn new(mut queue: Box<dyn BlockQueue + Send>, limits: BlockLimits) -> Self {
        queue.attach();
        let vector = queue.vector().unwrap_or_default();
        let queue = Rc::new(RefCell::new(queue));
        let done = Rc::new(RefCell::new(Vec::new()));
        let interrupts = Rc::new(Cell::new(0));
        let (at_interrupt, into, counter) = (queue.clone(), done.clone(), interrupts.clone());
        let interrupt = on_interrupt(vector, move || {
            counter.set(counter.get() + 1);
            let mut queue = at_interrupt.borrow_mut();
            queue.disable_interrupts();
            take_all(&mut **queue, &mut into.borrow_mut());
        });
        take_all(&mut **queue.borrow_mut(), &mut done.borrow_mut());
        let interrupt = interrupt.expect("the vector of the queue has no handler yet");
        Self { queue, limits, done, interrupts, _interrupt: interrupt }
    }

    /// Submits a request; waits while the queue has as many as it should.
    async fn submit(&self, request: BlockRequest, id: u64) -> Result<(), String> {
        while self.queue.borrow().in_flight() >= DEPTH {
            sleep(Duration::from_micros(100)).await;
        }
        let mut queue = self.queue.borrow_mut();
        let submitted = queue.submit(request, id);
        queue.flush();
        submitted.map_err(|rejected| rejected.reason.to_string())
    }

    /// Waits until no request is in flight.
    async fn finish(&self) {
        while self.queue.borrow().in_flight() > 0 {
            sleep(Duration::from_micros(100)).await;
        }
    }
}

/// Takes all completions, and enables the next interrupt.
fn take_all(queue: &mut dyn BlockQueue, done: &mut Vec<Done>) {
    loop {
        while let Some(completion) = queue.take_completion() {
            done.push((completion.id, completion.outcome, completion.request));
        }
        if queue.enable_interrupts() == CompletionsPending::No {
            return;
        }
    }
}

/// Returns the byte of the pattern at a position.
fn byte(seed: u64, position: u64) -> u8 {
    (seed ^ position ^ (position >> 9).wrapping_mul(0x9e37_79b9)) as u8
}

async fn fill(queues: &[Device], sectors: u64, seed: u64) -> Result<(), String> {
    for (first, device) in (0..sectors).step_by(SECTORS as usize).zip(queues.iter().cycle()) {
        let len = SECTORS.min(sectors - first) * u64::from(SECTOR_LEN);
        let start = first * u64::from(SECTOR_LEN);
        let bytes: Vec<u8> = (start..start + len).map(|position| byte(seed, position)).collect();
        // Two views, so that the device gathers them.
        let (one, two) = bytes.split_at(bytes.len() / 2);
        let mut from = Chain::new();
        from.push_back(IoBuf::copy_from_slice(one));
        from.push_back(IoBuf::copy_from_slice(two));
        device.submit(BlockRequest::Write { sector: first, from }, first).await?;
    }
    finish_all(queues).await;
    // A flush by one queue holds for the writes of all.
    queues[0].submit(BlockRequest::Flush, u64::MAX).await?;
    finish_all(queues).await;
    let done: Vec<Done> =
        queues.iter().flat_map(|device| core::mem::take(&mut *device.done.borrow_mut())).collect();
    let expected = sectors.div_ceil(SECTORS) + 1;
    let failed = done.iter().find(|(_, outcome, _)| *outcome != BlockOutcome::Done);
    match failed {
        Some((id, outcome, _)) => Err(format!("the write at sector {id}: {outcome:?}")),
        None if done.len() as u64 != expected => Err(format!("{} of {expected} completed", done.len())),
        None if queues.iter().any(|device| device.interrupts.get() == 0) => {
            Err("no interrupt of a queue came".into())
        }
        None => Ok(()),
    }
}

/// Waits until no request is in flight.
async fn finish_all(queues: &[Device]) {
    for device in queues {
        device.finish().await;
    }
}

async fn check(queues: &[Device], sectors: u64, seed: u64) -> Result<(), String> {
    let mut read = 0;
    for (first, device) in (0..sectors).step_by(SECTORS as usize).zip(queues.iter().cycle()) {
        let len = (SECTORS.min(sectors - first) * u64::from(SECTOR_LEN)) as usize;
        let mut buffer = IoBufMut::with_room(0, len);
        buffer.append(len).ok_or("a buffer has too little room")?;
        device.submit(BlockRequest::Read { sector: first, into: vec![buffer] }, first).await?;
        read += compare(device, seed)?;
    }
    finish_all(queues).await;
    for device in queues {
        read += compare(device, seed)?;
    }
    let expected = sectors * u64::from(SECTOR_LEN);
    if read == expected { Ok(()) } else { Err(format!("{read} of {expected} bytes were read")) }
}

/// Compares the data of completed reads with the pattern. Returns their number of bytes.
fn compare(device: &Device, seed: u64) -> Result<u64, String> {
    let mut bytes = 0;
    for (first, outcome, request) in device.done.borrow_mut().drain(..) {
        let (BlockOutcome::Done, Some(BlockRequest::Read { into, .. })) = (outcome, request) else {
            return Err(format!("the read at sector {first}: {outcome:?}"));
        };
        let mut position = first * u64::from(SECTOR_LEN);
        for buffer in &into {
            for found in buffer.iter() {
                if *found != byte(seed, position) {
                    return Err(format!("byte {position} is {found}, not {}", byte(seed, position)));
                }
                position += 1;
            }
            bytes += buffer.len() as u64;
        }
    }
    Ok(bytes)
}

async fn refusals(device: &Device, sectors: u64) -> Result<(), String> {
    let view = |len: usize| -> Chain { IoBuf::copy_from_slice(&vec![0; len]).into() };
    let data_len = device.limits.data_len as usize;
    for (request, expected) in [
        (BlockRequest::Write { sector: sectors, from: view(512) }, BlockRefusal::OutsideDevice),
        (BlockRequest::Write { sector: u64::MAX, from: view(512) }, BlockRefusal::OutsideDevice),
        (BlockRequest::Write { sector: 0, from: view(511) }, BlockRefusal::Misaligned),
        (BlockRequest::Write { sector: 0, from: view(0) }, BlockRefusal::Misaligned),
        (BlockRequest::Write { sector: 0, from: view(data_len + 512) }, BlockRefusal::TooLong),
    ] {
        let refused = device.queue.borrow_mut().submit(request, 0).map_err(|rejected| rejected.reason);
        if refused != Err(expected) {
            return Err(format!("{refused:?} instead of {expected:?}"));
        }
    }
    Ok(())
}
