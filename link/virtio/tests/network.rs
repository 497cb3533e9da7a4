//! The device side of a network device against a driver: an honest one, and one that writes anything at any time.

use isola_virtio_device::net::{HEADER_LEN, NetSettings, SentFrame, deliver};
use isola_virtio_device::queue::{EVENT_INDEX, INDIRECT_DESCRIPTORS, VERSION_1};
use isola_virtio_device::{Chain, DeviceQueue, DriverFault, DriverMemory, QueuePlace, Segment};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const BASE: u64 = 0x10_0000;
const LEN: usize = 1 << 15;
const SIZE: u16 = 8;
const PLACE: QueuePlace =
    QueuePlace { size: SIZE, descriptors: BASE, available: BASE + 0x100, used: BASE + 0x200 };
const BUFFERS: u64 = BASE + 0x1000;
const FEATURES: u64 = VERSION_1 | EVENT_INDEX | INDIRECT_DESCRIPTORS;
const WRITE: u16 = 2;
const SETTINGS: NetSettings = NetSettings { mac: [2, 0, 0, 0, 0, 7], mtu: 1500 };

type Memory = DriverMemory<Arc<[AtomicU64]>>;

fn memory() -> Memory {
    DriverMemory::new((0..LEN / 8).map(|_| AtomicU64::new(0)).collect(), BASE)
}

fn put(memory: &Memory, address: u64, bytes: &[u8]) {
    memory.write((address - BASE) as usize, bytes);
}

fn get(memory: &Memory, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read((address - BASE) as usize, &mut bytes);
    bytes
}

/// Writes a chain of segments, and makes it the first available one.
fn publish(memory: &Memory, segments: &[(u64, u32, u16)]) {
    for (index, (address, len, flags)) in segments.iter().enumerate() {
        let at = PLACE.descriptors + 16 * index as u64;
        let next = u16::from(index + 1 < segments.len());
        put(memory, at, &address.to_le_bytes());
        let rest = u64::from(*len) | u64::from(flags | next) << 32 | (index as u64 + 1) << 48;
        put(memory, at + 8, &rest.to_le_bytes());
    }
    put(memory, PLACE.available + 4, &0_u16.to_le_bytes());
    put(memory, PLACE.available + 2, &1_u16.to_le_bytes());
}

fn queue(memory: &Memory) -> DeviceQueue<Arc<[AtomicU64]>> {
    DeviceQueue::new(memory.clone(), PLACE, FEATURES).unwrap()
}

fn parse(memory: &Memory) -> Result<SentFrame, DriverFault> {
    let chain = queue(memory).take()?.unwrap();
    SentFrame::parse(memory, chain)
}

fn used(memory: &Memory) -> (u16, u32, u32) {
    let bytes = get(memory, PLACE.used + 2, 10);
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    (u16::from_le_bytes([bytes[0], bytes[1]]), word(2), word(6))
}

#[test]
fn the_configuration_has_the_layout_of_the_specification() {
    assert_eq!(SETTINGS.configuration(), [2, 0, 0, 0, 0, 7, 1, 0, 1, 0, 0xdc, 5]);
    assert_eq!(SETTINGS.longest_frame(), 1518);
    let transmit_offloads = 1 | 1 << 11 | 1 << 12;
    assert_eq!(SETTINGS.features() & transmit_offloads, 0);
}

#[test]
fn a_chain_that_is_no_frame_breaks_the_protocol() {
    let header = HEADER_LEN as u32;
    for segments in [
        &[(BUFFERS, header - 1, 0)][..],
        &[(BUFFERS, 0, 0)],
        &[(BUFFERS, 4, 0), (BUFFERS, 7, 0)],
        &[(BUFFERS, header + 60, WRITE)],
        &[(BUFFERS, header + 60, 0), (BUFFERS, 1, WRITE)],
    ] {
        let memory = memory();
        publish(&memory, segments);
        assert_eq!(parse(&memory), Err(DriverFault::NoRequest), "{segments:?}");
    }
    // Offloads that were not offered: a checksum, and segmentation.
    for (offset, value) in [(0, 1), (1, 1), (1, 4), (1, 0x80)] {
        let memory = memory();
        put(&memory, BUFFERS + offset, &[value]);
        publish(&memory, &[(BUFFERS, header + 60, 0)]);
        assert_eq!(parse(&memory), Err(DriverFault::NoRequest), "{offset}: {value}");
    }
    let memory = memory();
    publish(&memory, &[(BUFFERS, header, 0)]);
    assert!(parse(&memory).unwrap().is_empty(), "the caller decides about the length");
}

#[test]
fn a_receive_buffer_without_room_breaks_the_queue() {
    for segments in
        [&[(BUFFERS, 71, WRITE)][..], &[(BUFFERS, 2000, 0)], &[(BUFFERS, 2000, 0), (BUFFERS, 2000, WRITE)]]
    {
        let memory = memory();
        publish(&memory, segments);
        let mut queue = queue(&memory);
        let parts = || [&[1_u8; 60][..]].into_iter();
        let delivered = deliver(&mut queue, parts, false);
        assert_eq!(delivered, Err(DriverFault::NoRequest), "{segments:?}");
        assert_eq!(deliver(&mut queue, parts, false), Err(DriverFault::NoRequest), "for good");
        assert_eq!(used(&memory).0, 0);
    }
    let memory = memory();
    assert_eq!(deliver(&mut queue(&memory), || [&[1_u8; 60][..]].into_iter(), false), Ok(false), "no buffer");
}

/// Cuts `len` bytes into segments behind each other, with gaps.
fn segments(cuts: &[usize], len: usize, flags: u16) -> Vec<(u64, u32, u16)> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (len + 1)).collect();
    ends.push(len);
    ends.sort_unstable();
    let starts = std::iter::once(0).chain(ends.clone());
    let segment = |(index, (start, end)): (usize, (usize, usize))| {
        (BUFFERS + (start + 5 * index) as u64, (end - start) as u32, flags)
    };
    starts.zip(ends).enumerate().map(segment).collect()
}

proptest! {
    #[test]
    fn frames_are_read_from_any_segments(frame in prop::collection::vec(any::<u8>(), 1..1600), cuts in prop::collection::vec(any::<usize>(), 0..6)) {
        let memory = memory();
        let bytes = [&[0; HEADER_LEN][..], &frame].concat();
        let segments = segments(&cuts, bytes.len(), 0);
        let mut rest = &bytes[..];
        for (address, len, _) in &segments {
            let (part, later) = rest.split_at(*len as usize);
            put(&memory, *address, part);
            rest = later;
        }
        publish(&memory, &segments);
        let sent = parse(&memory).unwrap();
        prop_assert_eq!((sent.head(), sent.len()), (0, frame.len()));
        let mut copy = vec![0; frame.len()];
        sent.copy_to(&memory, &mut copy);
        prop_assert_eq!(copy, frame);
    }

    #[test]
    fn frames_are_delivered_to_any_segments(
        frame in prop::collection::vec(any::<u8>(), 1..1600),
        cut in any::<usize>(),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
        spare in 0..300_usize,
        is_valid in any::<bool>(),
    ) {
        let memory = memory();
        put(&memory, BUFFERS, &[0xee; 4096]);
        let len = HEADER_LEN + frame.len();
        let segments = segments(&cuts, len + spare, WRITE);
        publish(&memory, &segments);
        let mut queue = queue(&memory);
        let (first, second) = frame.split_at(cut % (frame.len() + 1));
        prop_assert_eq!(deliver(&mut queue, || [first, second].into_iter(), is_valid), Ok(true));
        prop_assert_eq!(used(&memory), (1, 0, len as u32));
        let written: Vec<u8> =
            segments.iter().flat_map(|(address, len, _)| get(&memory, *address, *len as usize)).collect();
        prop_assert_eq!(&written[..HEADER_LEN], &[if is_valid { 2 } else { 0 }, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        prop_assert_eq!(&written[HEADER_LEN..len], &frame[..]);
        prop_assert!(written[len..].iter().all(|byte| *byte == 0xee), "and nothing behind it");
        prop_assert_eq!(deliver(&mut queue, || [first, second].into_iter(), is_valid), Ok(false));
    }

    /// A driver that writes anything: no panic, no read or write outside of what a chain names, and a frame has a bounded
    /// length.
    #[test]
    fn a_hostile_driver_gets_a_fault_or_a_frame(words in prop::collection::vec(any::<u64>(), 0x300 / 8), near in any::<bool>(), frame in prop::collection::vec(any::<u8>(), 14..1518)) {
        let memory = memory();
        for (index, mut word) in words.into_iter().enumerate() {
            if near && index % 2 == 0 {
                word = BASE + word % LEN as u64;
            } else if near {
                word &= 0x0007_0003_0000_0fff;
            }
            put(&memory, BASE + 8 * index as u64, &word.to_le_bytes());
        }
        put(&memory, PLACE.available + 2, &4_u16.to_le_bytes());
        let mut transmit = queue(&memory);
        for _ in 0..8 {
            match transmit.take() {
                Ok(Some(chain)) => {
                    let whole: usize = chain.segments.iter().map(|segment: &Segment| segment.len).sum();
                    let Chain { head, .. } = chain;
                    match SentFrame::parse(&memory, chain) {
                        Ok(sent) => {
                            prop_assert_eq!(sent.len() + HEADER_LEN, whole);
                            let mut copy = vec![0; sent.len().min(SETTINGS.longest_frame())];
                            sent.copy_to(&memory, &mut copy);
                            transmit.give_back(head, 0);
                        }
                        Err(fault) => prop_assert_eq!(fault, DriverFault::NoRequest),
                    }
                }
                Ok(None) | Err(_) => break,
            }
        }
        let mut receive = queue(&memory);
        for _ in 0..8 {
            if deliver(&mut receive, || [&frame[..]].into_iter(), false) != Ok(true) {
                break;
            }
        }
    }
}
