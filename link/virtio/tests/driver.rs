//! The device side against a driver: an honest one, and one that writes anything at any time.

use isola_virtio_device::block::{BlockOperation, BlockRequest, BlockSettings, BlockStatus};
use isola_virtio_device::queue::{EVENT_INDEX, INDIRECT_DESCRIPTORS, VERSION_1};
use isola_virtio_device::{
    Chain, DeviceQueue, DriverFault, DriverMemory, OutsideMemory, QueuePlace, Segment,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const BASE: u64 = 0x40_0000;
const LEN: usize = 1 << 16;
const SIZE: u16 = 8;
const DESCRIPTORS: u64 = BASE;
const AVAILABLE: u64 = BASE + 0x400;
const USED: u64 = BASE + 0x800;
const BUFFERS: u64 = BASE + 0x1000;
const PLACE: QueuePlace =
    QueuePlace { size: SIZE, descriptors: DESCRIPTORS, available: AVAILABLE, used: USED };
const FEATURES: u64 = VERSION_1 | EVENT_INDEX | INDIRECT_DESCRIPTORS;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

type Memory = DriverMemory<Arc<[AtomicU64]>>;

/// A driver, with the device's side of its queue.
struct Rig {
    memory: Memory,
    queue: DeviceQueue<Arc<[AtomicU64]>>,
    available: u16,
}

impl Rig {
    fn new(features: u64) -> Self {
        let words: Arc<[AtomicU64]> = (0..LEN / 8).map(|_| AtomicU64::new(0)).collect();
        let memory = DriverMemory::new(words, BASE);
        let queue = DeviceQueue::new(memory.clone(), PLACE, features).unwrap();
        Self { memory, queue, available: 0 }
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        self.memory.write((address - BASE) as usize, bytes);
    }

    fn get<const LEN: usize>(&self, address: u64) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.memory.read((address - BASE) as usize, &mut bytes);
        bytes
    }

    fn descriptor(&self, table: u64, index: u16, (address, len, flags, next): (u64, u32, u16, u16)) {
        let at = table + 16 * u64::from(index);
        self.put(at, &address.to_le_bytes());
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.put(at + 8, &rest.to_le_bytes());
    }

    fn publish(&mut self, head: u16) {
        self.put(AVAILABLE + 4 + 2 * u64::from(self.available % SIZE), &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.put(AVAILABLE + 2, &self.available.to_le_bytes());
    }

    fn used_index(&self) -> u16 {
        u16::from_le_bytes(self.get(USED + 2))
    }

    fn used(&self, index: u16) -> (u32, u32) {
        let at = USED + 4 + 8 * u64::from(index % SIZE);
        (u32::from_le_bytes(self.get(at)), u32::from_le_bytes(self.get(at + 4)))
    }

    fn set_used_event(&self, event: u16) {
        self.put(AVAILABLE + 4 + 2 * u64::from(SIZE), &event.to_le_bytes());
    }

    fn available_event(&self) -> u16 {
        u16::from_le_bytes(self.get(USED + 4 + 8 * u64::from(SIZE)))
    }
}

fn segment(offset: u64, len: usize, is_writable: bool) -> Segment {
    Segment { offset: (offset - BASE) as usize, len, is_writable }
}

#[test]
fn chains_are_taken_in_order_and_returned_in_any() {
    let mut rig = Rig::new(FEATURES);
    assert!(!rig.queue.has_available());
    assert_eq!(rig.queue.take(), Ok(None));
    for round in 0..100_u16 {
        let heads = [round % SIZE, (round + 3) % SIZE];
        for head in heads {
            rig.descriptor(DESCRIPTORS, head, (BUFFERS + u64::from(head) * 256, 200, WRITE, 0));
            rig.publish(head);
        }
        let chains: Vec<Chain> = (0..2).map(|_| rig.queue.take().unwrap().unwrap()).collect();
        assert_eq!(chains.iter().map(|chain| chain.head).collect::<Vec<_>>(), heads);
        assert_eq!(chains[0].segments, [segment(BUFFERS + u64::from(heads[0]) * 256, 200, true)]);
        rig.queue.give_back(heads[1], 7);
        rig.queue.give_back(heads[0], 9);
        assert_eq!(rig.used_index(), (round + 1) * 2);
        assert_eq!(rig.used(round * 2), (u32::from(heads[1]), 7));
        assert_eq!(rig.used(round * 2 + 1), (u32::from(heads[0]), 9));
    }
}

#[test]
fn a_chain_can_be_in_a_table_of_its_own() {
    let mut rig = Rig::new(FEATURES);
    let table = BUFFERS + 0x2000;
    rig.descriptor(DESCRIPTORS, 5, (table, 48, INDIRECT, 0));
    rig.descriptor(table, 0, (BUFFERS, 16, NEXT, 2));
    rig.descriptor(table, 2, (BUFFERS + 16, 32, NEXT | WRITE, 1));
    rig.descriptor(table, 1, (BUFFERS + 48, 1, WRITE, 9));
    rig.publish(5);
    let segments = rig.queue.take().unwrap().unwrap().segments;
    assert_eq!(segments.len(), 3);
    assert_eq!(segments[2], segment(BUFFERS + 48, 1, true));
    // Without the feature it is a violation.
    let mut rig = Rig::new(VERSION_1);
    rig.descriptor(DESCRIPTORS, 0, (table, 48, INDIRECT, 0));
    rig.publish(0);
    assert_eq!(rig.queue.take(), Err(DriverFault::BadTable));
}

#[test]
fn violations_break_the_queue_for_good() {
    let outside = |address, len| DriverFault::Outside(OutsideMemory { address, len });
    let end = BASE + LEN as u64;
    let table = BUFFERS + 0x2000;
    type Setting = fn(&Rig, u64, u64);
    let cases: [(Setting, DriverFault); 13] = [
        (|rig, _, _| rig.descriptor(DESCRIPTORS, 0, (BASE - 1, 1, 0, 0)), outside(BASE - 1, 1)),
        (|rig, end, _| rig.descriptor(DESCRIPTORS, 0, (end - 4, 5, 0, 0)), outside(end - 4, 5)),
        (
            |rig, _, _| rig.descriptor(DESCRIPTORS, 0, (u64::MAX, u32::MAX, 0, 0)),
            outside(u64::MAX, u32::MAX as usize),
        ),
        (|rig, _, _| rig.descriptor(DESCRIPTORS, 0, (BUFFERS, 1, NEXT, 0)), DriverFault::Endless),
        (|rig, _, _| rig.descriptor(DESCRIPTORS, 0, (BUFFERS, 1, NEXT, 8)), DriverFault::NoDescriptor(8)),
        (
            |rig, _, _| {
                rig.descriptor(DESCRIPTORS, 0, (BUFFERS, 1, NEXT | WRITE, 1));
                rig.descriptor(DESCRIPTORS, 1, (BUFFERS, 1, 0, 0));
            },
            DriverFault::OutOfOrder,
        ),
        (
            |rig, _, table| {
                rig.descriptor(DESCRIPTORS, 0, (table, 16, INDIRECT, 0));
                rig.descriptor(table, 0, (table, 16, INDIRECT, 0));
            },
            DriverFault::BadTable,
        ),
        (
            |rig, _, table| {
                rig.descriptor(DESCRIPTORS, 0, (table, 32, INDIRECT, 0));
                rig.descriptor(table, 0, (BUFFERS, 1, NEXT, 2));
            },
            DriverFault::NoDescriptor(2),
        ),
        (
            |rig, _, table| {
                rig.descriptor(DESCRIPTORS, 0, (BUFFERS, 1, NEXT, 1));
                rig.descriptor(DESCRIPTORS, 1, (table, 16, INDIRECT, 0));
            },
            DriverFault::BadTable,
        ),
        (
            |rig, _, table| rig.descriptor(DESCRIPTORS, 0, (table, 16, INDIRECT | NEXT, 1)),
            DriverFault::BadTable,
        ),
        (|rig, _, table| rig.descriptor(DESCRIPTORS, 0, (table, 0, INDIRECT, 0)), DriverFault::BadTable),
        (|rig, _, table| rig.descriptor(DESCRIPTORS, 0, (table, 24, INDIRECT, 0)), DriverFault::BadTable),
        (|rig, _, table| rig.descriptor(DESCRIPTORS, 0, (table + 4, 16, INDIRECT, 0)), DriverFault::BadTable),
    ];
    for (set, fault) in cases {
        let mut rig = Rig::new(FEATURES);
        set(&rig, end, table);
        rig.publish(0);
        assert_eq!(rig.queue.take(), Err(fault));
        rig.descriptor(DESCRIPTORS, 0, (BUFFERS, 1, 0, 0));
        rig.publish(0);
        assert_eq!(rig.queue.take(), Err(fault), "a broken queue stays broken");
        assert!(rig.queue.has_available(), "and its task hears of it");
        rig.queue.give_back(0, 0);
        assert!(!rig.queue.must_notify(), "no driver waits");
    }
    let mut rig = Rig::new(FEATURES);
    rig.put(AVAILABLE + 2, &(SIZE + 1).to_le_bytes());
    assert_eq!(rig.queue.take(), Err(DriverFault::IndexJump(SIZE + 1)));
    let mut rig = Rig::new(FEATURES);
    rig.put(AVAILABLE + 2, &u16::MAX.to_le_bytes());
    assert_eq!(rig.queue.take(), Err(DriverFault::IndexJump(u16::MAX)), "an index that goes back");
}

#[test]
fn chains_and_queues_can_be_as_long_as_their_limits() {
    let mut rig = Rig::new(FEATURES);
    for index in 0..SIZE {
        let next = if index + 1 < SIZE { NEXT } else { 0 };
        rig.descriptor(DESCRIPTORS, index, (BUFFERS + u64::from(index), 1, next, index + 1));
    }
    // All descriptors are available at once.
    (0..SIZE).for_each(|head| rig.publish(head));
    for head in 0..SIZE {
        assert_eq!(rig.queue.take().unwrap().unwrap().segments.len(), usize::from(SIZE - head));
    }
    let table = BUFFERS + 0x2000;
    rig.descriptor(DESCRIPTORS, 0, (table, 16 * 64, INDIRECT, 0));
    for index in 0..64 {
        rig.descriptor(table, index, (BUFFERS, 1, if index < 63 { NEXT } else { 0 }, index + 1));
    }
    rig.publish(0);
    assert_eq!(rig.queue.take().unwrap().unwrap().segments.len(), 64);
    for size in [2, 256] {
        let place = QueuePlace { size, used: BUFFERS, ..PLACE };
        let place = QueuePlace { available: BUFFERS + 0x2000, descriptors: BUFFERS + 0x4000, ..place };
        assert!(DeviceQueue::new(rig.memory.clone(), place, FEATURES).is_ok(), "{size}");
    }
}

#[test]
fn indices_wrap_around() {
    let mut rig = Rig::new(FEATURES);
    rig.descriptor(DESCRIPTORS, 3, (BUFFERS, 200, WRITE, 0));
    for round in 0..70_000_u32 {
        rig.set_used_event(round as u16);
        rig.publish(3);
        assert_eq!(rig.queue.take().unwrap().map(|chain| chain.head), Some(3));
        assert!(!rig.queue.arm());
        assert_eq!(rig.available_event(), round.wrapping_add(1) as u16);
        rig.queue.give_back(3, round);
        assert_eq!(rig.used(round as u16), (3, round));
        assert!(rig.queue.must_notify(), "{round}");
    }
}

#[test]
fn a_table_longer_than_the_most_segments_ends() {
    let mut rig = Rig::new(FEATURES);
    let table = BUFFERS + 0x2000;
    rig.descriptor(DESCRIPTORS, 0, (table, 16 * 1000, INDIRECT, 0));
    (0..1000).for_each(|index| rig.descriptor(table, index, (BUFFERS, 1, NEXT, index + 1)));
    rig.publish(0);
    assert_eq!(rig.queue.take(), Err(DriverFault::Endless));
}

#[test]
fn queues_that_are_not_in_the_memory_are_refused() {
    let memory = Rig::new(FEATURES).memory;
    let refused = |place| DeviceQueue::new(memory.clone(), place, FEATURES).err();
    assert_eq!(refused(PLACE), None);
    for size in [0, 1, 3, 512, u16::MAX] {
        assert_eq!(refused(QueuePlace { size, ..PLACE }), Some(DriverFault::BadSize(size)));
    }
    let end = BASE + LEN as u64;
    for (descriptors, available, used) in [
        (BASE - 16, AVAILABLE, USED),
        (end - 64, AVAILABLE, USED),
        (DESCRIPTORS, end - 8, USED),
        (DESCRIPTORS, AVAILABLE, end - 68),
        (DESCRIPTORS, AVAILABLE, u64::MAX - 3),
    ] {
        let place = QueuePlace { size: SIZE, descriptors, available, used };
        assert!(matches!(refused(place), Some(DriverFault::Outside(_))), "{place:?}");
    }
    for place in [
        QueuePlace { descriptors: end - 128, ..PLACE },
        QueuePlace { available: end - 22, ..PLACE },
        QueuePlace { used: end - 72, ..PLACE },
    ] {
        assert_eq!(refused(place), None, "{place:?}");
    }
    for place in [
        QueuePlace { descriptors: DESCRIPTORS + 8, ..PLACE },
        QueuePlace { available: AVAILABLE + 1, ..PLACE },
        QueuePlace { used: USED + 2, ..PLACE },
    ] {
        assert!(matches!(refused(place), Some(DriverFault::Unaligned(_))), "{place:?}");
    }
    // Words are read by their offsets, which count as well as the addresses.
    let words: Arc<[AtomicU64]> = (0..LEN / 8).map(|_| AtomicU64::new(0)).collect();
    let shifted = DeviceQueue::new(DriverMemory::new(words, BASE - 8), PLACE, FEATURES);
    assert_eq!(shifted.err(), Some(DriverFault::Unaligned(DESCRIPTORS)));
}

#[test]
fn notifications_come_by_index_and_by_flag() {
    let mut rig = Rig::new(FEATURES);
    rig.set_used_event(1);
    rig.queue.give_back(0, 0);
    assert!(!rig.queue.must_notify(), "the driver waits for the second one");
    rig.queue.give_back(0, 0);
    assert!(rig.queue.must_notify());
    assert!(!rig.queue.must_notify(), "once");
    rig.set_used_event(1);
    rig.queue.give_back(0, 0);
    assert!(!rig.queue.must_notify(), "a past event");
    assert!(!rig.queue.arm());
    assert_eq!(rig.available_event(), 0);
    rig.descriptor(DESCRIPTORS, 0, (BUFFERS, 1, WRITE, 0));
    rig.publish(0);
    assert!(rig.queue.arm(), "one came before");
    rig.queue.take().unwrap().unwrap();
    assert!(!rig.queue.arm());
    assert_eq!(rig.available_event(), 1);
    let mut rig = Rig::new(VERSION_1);
    rig.put(AVAILABLE, &1_u16.to_le_bytes());
    rig.queue.give_back(0, 0);
    assert!(!rig.queue.must_notify());
    rig.put(AVAILABLE, &0_u16.to_le_bytes());
    rig.queue.give_back(0, 0);
    assert!(rig.queue.must_notify());
    assert!(!rig.queue.must_notify(), "once");
    rig.queue.disarm();
    assert_eq!(rig.get::<2>(USED), [1, 0]);
    assert!(!rig.queue.arm());
    assert_eq!(rig.get::<2>(USED), [0, 0]);
}

const DISK: BlockSettings = BlockSettings {
    sectors: 1000,
    block_len: 1024,
    physical_block_len: 4096,
    most_bytes: 8192,
    is_read_only: false,
    has_cache: true,
};

#[test]
fn features_and_configuration_describe_the_disk() {
    let bare = FEATURES | 1 << 2 | 1 << 6 | 1 << 10;
    assert_eq!(DISK.features(), bare | 1 << 9);
    assert_eq!(BlockSettings { is_read_only: true, has_cache: false, ..DISK }.features(), bare | 1 << 5);
    let bytes = DISK.configuration(7);
    assert_eq!(bytes.len(), 60);
    let (capacity, rest) = bytes.split_at(8);
    assert_eq!(capacity, 1000_u64.to_le_bytes());
    // The most segments, the length of a block, and the exponent of physical blocks of four.
    assert_eq!(rest[4..8], 7_u32.to_le_bytes());
    assert_eq!(rest[12..16], 1024_u32.to_le_bytes());
    assert_eq!(rest[16], 2);
    assert!(rest.iter().enumerate().all(|(at, byte)| *byte == 0 || [4, 13, 16].contains(&at)), "{rest:?}");
    assert_eq!(BlockSettings { physical_block_len: 512, block_len: 0, ..DISK }.configuration(7)[24], 9);
}

/// Makes a request with its data in pieces of these lengths, and returns it as the device sees it.
fn request(
    rig: &mut Rig,
    kind: u32,
    sector: u64,
    pieces: &[u32],
    settings: &BlockSettings,
) -> Result<BlockRequest, DriverFault> {
    let header = [u64::from(kind).to_le_bytes(), sector.to_le_bytes()].concat();
    rig.put(BUFFERS, &header);
    let table = BUFFERS + 0x8000;
    let direction = if kind == 0 { WRITE } else { 0 };
    rig.descriptor(table, 0, (BUFFERS, 16, NEXT, 1));
    let mut address = BUFFERS + 0x100;
    for (index, len) in (1..).zip(pieces) {
        rig.descriptor(table, index, (address, *len, NEXT | direction, index + 1));
        address += u64::from(*len);
    }
    let last = pieces.len() as u16 + 1;
    rig.descriptor(table, last, (BUFFERS + 0x20, 1, WRITE, 0));
    rig.descriptor(DESCRIPTORS, 0, (table, 16 * (u32::from(last) + 1), INDIRECT, 0));
    rig.publish(0);
    let chain = rig.queue.take()?.expect("a chain");
    BlockRequest::parse(&rig.memory, chain, settings)
}

#[test]
fn requests_are_checked_against_the_disk() {
    let refused = |status| BlockOperation::Refused(status);
    let io_error = refused(BlockStatus::IoError);
    let read_only = BlockSettings { is_read_only: true, ..DISK };
    let cases: [(u32, u64, &[u32], &BlockSettings, BlockOperation); 15] = [
        (0, 2, &[1024], &DISK, BlockOperation::Read(2)),
        (1, 998, &[100, 924], &DISK, BlockOperation::Write(998)),
        (4, 0, &[], &DISK, BlockOperation::Flush),
        (0, 1000, &[1024], &DISK, io_error),
        (0, 998, &[2048], &DISK, io_error),
        (0, u64::MAX - 1, &[1024], &DISK, io_error),
        (0, 1, &[1024], &DISK, io_error),
        (0, 0, &[512], &DISK, io_error),
        (1, 0, &[], &DISK, io_error),
        (1, 0, &[8192], &DISK, BlockOperation::Write(0)),
        (1, 0, &[8192, 1024], &DISK, io_error),
        (1, 0, &[1024], &read_only, io_error),
        (0, 0, &[1024], &read_only, BlockOperation::Read(0)),
        (11, 0, &[16], &DISK, refused(BlockStatus::Unsupported)),
        (4, 0, &[], &BlockSettings { has_cache: false, ..DISK }, refused(BlockStatus::Unsupported)),
    ];
    for (kind, sector, pieces, settings, operation) in cases {
        let mut rig = Rig::new(FEATURES);
        let request = request(&mut rig, kind, sector, pieces, settings).unwrap();
        assert_eq!(request.operation, operation, "{kind} at {sector} with {pieces:?}");
        request.finish(&mut rig.queue, BlockStatus::IoError);
        assert_eq!((rig.get::<1>(BUFFERS + 0x20), rig.used(0)), ([1], (0, 1)));
    }
}

#[test]
fn data_is_copied_between_pieces_and_the_disk() {
    let mut rig = Rig::new(FEATURES);
    let written = request(&mut rig, 1, 0, &[700, 1, 323], &DISK).unwrap();
    let data: Vec<u8> = (0..1024).map(|at| (at * 7 % 251) as u8).collect();
    rig.put(BUFFERS + 0x100, &data);
    let mut bytes = vec![0; 1024];
    written.copy_in(&rig.memory, 0, &mut bytes);
    assert_eq!(bytes, data);
    let mut bytes = vec![0; 500];
    written.copy_in(&rig.memory, 400, &mut bytes);
    assert_eq!(bytes, data[400..900]);
    written.finish(&mut rig.queue, BlockStatus::Ok);
    assert_eq!((rig.get::<1>(BUFFERS + 0x20), rig.used(0)), ([0], (0, 1)));
    let read = request(&mut rig, 0, 4, &[1000, 1048], &DISK).unwrap();
    assert_eq!(read.data_len, 2048);
    read.copy_out(&rig.memory, 0, &[3; 1024]);
    read.copy_out(&rig.memory, 1024, &[4; 1024]);
    read.finish(&mut rig.queue, BlockStatus::Ok);
    assert_eq!(rig.used(1), (0, 2049));
    assert_eq!(rig.get::<1024>(BUFFERS + 0x100), [3; 1024]);
    assert_eq!(rig.get::<1024>(BUFFERS + 0x100 + 1024), [4; 1024]);
}

/// Returns the request of a chain with these segments: address, length and flags.
fn parsed(rig: &mut Rig, segments: &[(u64, u32, u16)]) -> Result<BlockRequest, DriverFault> {
    for (index, (address, len, flags)) in (0..).zip(segments) {
        let next = if usize::from(index) + 1 < segments.len() { NEXT } else { 0 };
        rig.descriptor(DESCRIPTORS, index, (*address, *len, *flags | next, index + 1));
    }
    rig.publish(0);
    let chain = rig.queue.take().unwrap().unwrap();
    BlockRequest::parse(&rig.memory, chain, &DISK)
}

#[test]
fn chains_that_are_no_requests_are_violations() {
    let parse = |segments: &[(u64, u32, u16)]| parsed(&mut Rig::new(FEATURES), segments).err();
    let none = Some(DriverFault::NoRequest);
    assert_eq!(parse(&[(BUFFERS, 16, 0)]), none, "no status");
    assert_eq!(parse(&[(BUFFERS, 16, WRITE)]), none, "no header");
    assert_eq!(parse(&[(BUFFERS, 15, 0), (BUFFERS, 1, WRITE)]), none, "a short header");
    assert_eq!(parse(&[(BUFFERS, 16, 0), (BUFFERS, 0, WRITE)]), none, "an empty status");
}

/// Header and status may be divided and joined with data (virtio 1.2, 2.7.4).
#[test]
fn headers_and_statuses_are_found_in_any_layout() {
    let mut rig = Rig::new(FEATURES);
    let read =
        parsed(&mut rig, &[(BUFFERS, 8, 0), (BUFFERS + 8, 8, 0), (BUFFERS + 0x100, 1025, WRITE)]).unwrap();
    assert_eq!((read.operation, read.data_len), (BlockOperation::Read(0), 1024));
    read.finish(&mut rig.queue, BlockStatus::Unsupported);
    assert_eq!(rig.get::<1>(BUFFERS + 0x100 + 1024), [2]);
    // The header and the data of a write are one segment.
    let mut rig = Rig::new(FEATURES);
    rig.put(BUFFERS, &1_u64.to_le_bytes());
    rig.put(BUFFERS + 16, &[5; 1024]);
    let write = parsed(&mut rig, &[(BUFFERS, 16 + 1024, 0), (BUFFERS + 0x800, 1, WRITE)]).unwrap();
    assert_eq!((write.operation, write.data_len), (BlockOperation::Write(0), 1024));
    let mut bytes = vec![0; 1024];
    write.copy_in(&rig.memory, 0, &mut bytes);
    assert_eq!(bytes, [5; 1024]);
}

#[test]
fn data_of_both_directions_is_refused() {
    for kind in [0_u64, 1] {
        let mut rig = Rig::new(FEATURES);
        rig.put(BUFFERS, &kind.to_le_bytes());
        let header = (BUFFERS, 16, 0);
        let data = [(BUFFERS + 0x100, 512, 0), (BUFFERS + 0x300, 512, WRITE)];
        let request = parsed(&mut rig, &[header, data[0], data[1], (BUFFERS + 0x20, 1, WRITE)]).unwrap();
        assert_eq!(request.operation, BlockOperation::Refused(BlockStatus::IoError), "{kind}");
    }
}

proptest! {
    /// Whatever a driver writes, each chain is within the memory, and the queue ends in a fault or goes on: no panic, no
    /// endless loop, no more segments than the limit.
    #[test]
    fn no_bytes_of_a_driver_lead_outside(
        features in prop_oneof![Just(FEATURES), Just(VERSION_1), Just(VERSION_1 | EVENT_INDEX)],
        rounds in prop::collection::vec((any::<u16>(), prop::collection::vec((0..LEN / 8, wild_word()), 0..40)), 1..20),
    ) {
        let mut rig = Rig::new(features);
        for (index, writes) in rounds {
            for (at, word) in writes {
                rig.memory.write(at * 8, &word.to_le_bytes());
            }
            rig.put(AVAILABLE + 2, &index.to_le_bytes());
            for _ in 0..2 * SIZE {
                let Ok(Some(chain)) = rig.queue.take() else { break };
                prop_assert!(chain.segments.len() <= 64);
                for Segment { offset, len, .. } in &chain.segments {
                    prop_assert!(offset + len <= LEN);
                }
                match BlockRequest::parse(&rig.memory, chain, &DISK) {
                    Ok(request) => {
                        prop_assert!(request.data_len <= DISK.most_bytes);
                        request.copy_out(&rig.memory, 0, &[1; 8192][..request.data_len]);
                        request.finish(&mut rig.queue, BlockStatus::Ok);
                    }
                    Err(fault) => {
                        rig.queue.break_off(fault);
                    }
                }
                rig.queue.must_notify();
            }
            rig.queue.arm();
        }
    }

    /// A driver sees each of its requests answered once, with its own data.
    #[test]
    fn each_request_is_answered_once(requests in prop::collection::vec((0..2_u32, 0..400_u64, 1..4_usize), 1..40)) {
        let mut rig = Rig::new(FEATURES);
        let mut disk = vec![0; 1000 * 512];
        for (count, (kind, block, blocks)) in (0_u16..).zip(requests) {
            let at = block as usize * 1024;
            let fill = count as u8;
            let pieces = vec![1024; blocks];
            let request = request(&mut rig, kind, block * 2, &pieces, &DISK).unwrap();
            let len = blocks * 1024;
            let mut memory = vec![0; len];
            match request.operation {
                BlockOperation::Write(sector) => {
                    rig.put(BUFFERS + 0x100, &vec![fill; len]);
                    request.copy_in(&rig.memory, 0, &mut disk[sector as usize * 512..][..len]);
                    prop_assert_eq!(&disk[at..at + len], &vec![fill; len][..]);
                }
                BlockOperation::Read(sector) => {
                    request.copy_out(&rig.memory, 0, &disk[sector as usize * 512..][..len]);
                    rig.memory.read((BUFFERS + 0x100 - BASE) as usize, &mut memory);
                    prop_assert_eq!(&memory[..], &disk[at..at + len]);
                }
                operation => prop_assert!(false, "{:?}", operation),
            }
            request.finish(&mut rig.queue, BlockStatus::Ok);
            prop_assert_eq!(rig.used_index(), count + 1);
            prop_assert_eq!(rig.used(count).0, 0);
        }
    }
}

/// Words that often are descriptors, addresses in the memory, or small numbers.
fn wild_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..64_u64,
        (0..LEN as u64 + 16).prop_map(|offset| BASE + offset),
        (0..300_u64, 0..8_u64, 0..10_u64).prop_map(|(len, flags, next)| len | flags << 32 | next << 48),
    ]
}
