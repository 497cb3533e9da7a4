//! Links between cells: the rings with a hostile peer, and the device side of virtio with a hostile driver.

use crate::input::InputReader;
use isola_link_rings::{Broken, HEADER_LINES, Half, LINE_BYTES, LINE_WORDS, Ring, SendError};
use isola_virtio_device::block::{BlockRequest, BlockSettings, BlockStatus};
use isola_virtio_device::net::{self, NetSettings, SentFrame};
use isola_virtio_device::queue::{EVENT_INDEX, INDIRECT_DESCRIPTORS, VERSION_1};
use isola_virtio_device::{DeviceQueue, DriverMemory, QueuePlace};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ENTRIES: usize = 8;

/// Performs operations on a ring, while the peer writes any words to its half. A broken ring stays broken, and no packet is
/// longer than a ring.
pub fn ring(bytes: &[u8]) {
    let memory = || -> Arc<[AtomicU64]> {
        (0..(HEADER_LINES + ENTRIES) * LINE_WORDS).map(|_| AtomicU64::new(0)).collect()
    };
    let (own, peer) = (memory(), memory());
    let half = |words: &Arc<[AtomicU64]>| Half::new(words.clone()).expect("it has room");
    half(&own).init();
    half(&peer).init();
    let mut ring = Ring::new(half(&own), half(&peer));
    let (mut input, mut packet) = (InputReader::new(bytes), Vec::new());
    while !input.is_over() {
        let step = input.byte();
        let was_broken = ring.is_broken();
        let is_broken = match step % 6 {
            0 => ring.send(&vec![step; usize::from(input.byte()) * 4]) == Err(SendError::Broken),
            1 => match ring.receive(&mut packet) {
                Ok(_) => {
                    assert!(packet.len() <= ENTRIES * LINE_BYTES - 8);
                    false
                }
                Err(Broken) => true,
            },
            2 => {
                let _ = ring.release();
                false
            }
            3 => ring.arm().is_err(),
            4 => ring.await_room(usize::from(input.byte())).is_err(),
            _ => {
                let index = usize::from(input.byte()) % peer.len();
                let mut value = [0; 8];
                value.iter_mut().for_each(|byte| *byte = input.byte());
                peer[index].store(u64::from_le_bytes(value), Ordering::Relaxed);
                false
            }
        };
        assert!(!is_broken || ring.is_broken());
        assert!(!was_broken || ring.is_broken());
    }
}

/// The length of the memory that a driver shares, in bytes.
const SHARED_LEN: usize = 4096;

/// Returns memory of zeros that a driver shares.
fn shared_memory() -> Arc<[AtomicU64]> {
    (0..SHARED_LEN / 8).map(|_| AtomicU64::new(0)).collect()
}

/// Returns a queue of four descriptors in shared memory, from the offset `at` on: 192 bytes.
fn queue_at(words: &Arc<[AtomicU64]>, at: u64, features: u64) -> DeviceQueue<Arc<[AtomicU64]>> {
    let place = QueuePlace { size: 4, descriptors: at, available: at + 64, used: at + 128 };
    let queue = DeviceQueue::new(DriverMemory::new(words.clone(), 0), place, features);
    queue.expect("it is in the memory")
}

/// Serves a driver that writes any words at any place between two requests. Everything that a chain names is in the memory.
pub fn driver(bytes: &[u8]) {
    let settings = BlockSettings {
        sectors: 64,
        block_len: 512,
        physical_block_len: 4096,
        most_bytes: 4096,
        is_read_only: false,
        has_cache: true,
    };
    let words = shared_memory();
    let mut queue = queue_at(&words, 0, VERSION_1 | EVENT_INDEX | INDIRECT_DESCRIPTORS);
    let mut input = InputReader::new(bytes);
    while !input.is_over() {
        let index = usize::from(input.byte()) | usize::from(input.byte() & 1) << 8;
        let mut value = [0; 8];
        value.iter_mut().for_each(|byte| *byte = input.byte());
        words[index].store(u64::from_le_bytes(value), Ordering::Relaxed);
        let Ok(Some(chain)) = queue.take() else {
            queue.arm();
            continue;
        };
        assert!(chain.segments.iter().all(|segment| segment.offset + segment.len <= SHARED_LEN));
        match BlockRequest::parse(queue.memory(), chain, &settings) {
            Ok(request) => {
                request.copy_out(queue.memory(), 0, &vec![7; request.data_len]);
                request.finish(&mut queue, BlockStatus::Ok);
                queue.must_notify();
            }
            Err(fault) => {
                queue.break_off(fault);
            }
        }
    }
}

/// Serves a driver of a network device, which writes any words at any place between two frames: takes frames from one queue and
/// delivers frames to the other. Everything that a chain names is in the memory, and no frame is copied beyond its length.
pub fn network(bytes: &[u8]) {
    let settings = NetSettings { mac: [2, 0, 0, 0, 0, 1], mtu: 1500 };
    let words = shared_memory();
    let [mut receive, mut transmit] = [0, 256].map(|at| queue_at(&words, at, settings.features()));
    let mut is_broken = false;
    let mut input = InputReader::new(bytes);
    while !input.is_over() {
        let index = usize::from(input.byte()) | usize::from(input.byte() & 1) << 8;
        let mut value = [0; 8];
        value.iter_mut().for_each(|byte| *byte = input.byte());
        words[index].store(u64::from_le_bytes(value), Ordering::Relaxed);
        match transmit.take() {
            Ok(Some(chain)) => {
                let room: usize = chain.segments.iter().map(|segment| segment.len).sum();
                match SentFrame::parse(transmit.memory(), chain) {
                    Ok(frame) => {
                        assert!(frame.len() + net::HEADER_LEN <= room);
                        let mut copy = vec![0; frame.len().min(settings.longest_frame())];
                        frame.copy_to(transmit.memory(), &mut copy);
                        transmit.give_back(frame.head(), 0);
                        transmit.must_notify();
                    }
                    Err(fault) => _ = transmit.break_off(fault),
                }
            }
            Ok(None) => _ = transmit.arm(),
            Err(_) => {}
        }
        let (head, rest) = ([7; 14], vec![8; usize::from(input.byte())]);
        let delivered = net::deliver(&mut receive, || [&head[..], &rest].into_iter(), true);
        assert!(!is_broken || delivered.is_err(), "a broken queue stays broken");
        is_broken = delivered.is_err();
        if delivered == Ok(true) {
            receive.must_notify();
        } else {
            receive.arm();
        }
    }
}
