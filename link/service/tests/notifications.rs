//! Notifications of a volume's driver: one for the requests that end together, and at once for the last one.

use isola_abi::service::{DriverSetup, Hello, QueueSetup, Reply, decode, encode};
use isola_abi::volume::VolumeAccess;
use isola_block::{BlockDevice, BlockSettings};
use isola_channels::{Channel, ChannelError, LinkAccess, SharedMemory, open};
use isola_events::{sleep, yield_now};
use isola_link_sim::{Machine, Port};
use isola_storage_sim::{SimDisk, Timing};
use isola_virtio_device::DriverMemory;
use isola_virtio_device::queue::VERSION_1;
use isola_volume_service::client::SHARED_PAGES;
use isola_volume_service::server::{ServedDevice, serve};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

const BLOCK: usize = 4096;

/// The queue in the shared memory. Device addresses are offsets.
const SIZE: u16 = 64;
const AVAILABLE: usize = 1024;
const USED: usize = 2048;

/// The header and the status of a request, by its number; its data is a page behind these.
const HEADERS: usize = 4096;
const HEADER_STRIDE: usize = 64;
const DATA: usize = 8192;

const NEXT: u64 = 1;
const WRITE: u64 = 2;

/// The requests of a round, and the numbers of those that the disk completes together.
const ROUNDS: [(u16, &[u16]); 5] = [(1, &[1]), (8, &[8]), (8, &[3, 5]), (1, &[1]), (16, &[1, 14, 1])];

type Memory = DriverMemory<&'static [AtomicU64]>;

/// The client's memory, at which the service's side looks as well.
static MEMORY: OnceLock<Memory> = OnceLock::new();

fn used_index(memory: &Memory) -> u16 {
    let mut bytes = [0; 2];
    memory.read(USED + 2, &mut bytes);
    u16::from_le_bytes(bytes)
}

#[test]
fn requests_that_end_together_notify_once_and_the_last_one_at_once() {
    let machine = Machine::new();
    let service = machine.start("store", serve_and_count);
    let client = machine.start("client", |_| read());
    service.join().expect("the service ends");
    client.join().expect("the client ends");
}

/// Serves a volume, and completes its requests by the rounds.
async fn serve_and_count(port: &'static Port) {
    let disk = SimDisk::new(vec![7; 1 << 20]);
    disk.set_timing(Timing::Manual);
    let device = BlockDevice::start(disk.port(), BlockSettings::default()).unwrap();
    let sectors = device.capacity();
    let access = VolumeAccess::ReadWrite;
    serve(ServedDevice { name: "data".into(), device, first: 0, sectors, access }).unwrap();
    let mut returned = 0;
    for (requests, parts) in ROUNDS {
        while disk.in_device().len() < usize::from(requests) {
            sleep(Duration::from_millis(1)).await;
        }
        let memory = MEMORY.get().expect("the client has started its driver");
        let mut left = requests;
        for &part in parts {
            let before = port.doorbells();
            assert_eq!(disk.complete(part.into()), usize::from(part));
            while used_index(memory) == returned {
                yield_now().await;
            }
            (returned, left) = (returned + part, left - part);
            assert_eq!(used_index(memory), returned, "all end in one event");
            if left == 0 {
                assert_eq!(port.doorbells(), before + 1, "the event of the last request notifies");
            }
            for _ in 0..10 {
                yield_now().await;
            }
            assert_eq!(port.doorbells(), before + 1, "{part} requests of {requests} end together");
        }
    }
}

/// Reads blocks by the rounds, with a driver that wants a notification for each request.
async fn read() {
    let (channel, memory) = start().await;
    let mut submitted: u16 = 0;
    for (requests, _) in ROUNDS {
        for request in 0..requests {
            describe(memory, usize::from(request));
            let slot = usize::from((submitted + request) % SIZE);
            memory.write(AVAILABLE + 4 + 2 * slot, &(3 * request).to_le_bytes());
        }
        submitted += requests;
        memory.write(AVAILABLE + 2, &submitted.to_le_bytes());
        channel.bell().ring();
        while used_index(memory) != submitted {
            sleep(Duration::from_millis(1)).await;
        }
        for request in 0..usize::from(requests) {
            let (mut status, mut data) = ([1], [0; BLOCK]);
            memory.read(HEADERS + HEADER_STRIDE * request + 16, &mut status);
            memory.read(DATA + BLOCK * request, &mut data);
            assert_eq!((status, data), ([0], [7; BLOCK]), "request {request}");
            memory.write(DATA + BLOCK * request, &[0; BLOCK]);
        }
    }
}

/// Opens the volume and starts the driver.
async fn start() -> (Channel, &'static Memory) {
    let channel = loop {
        match open("store/data").await {
            Ok(channel) => break channel,
            Err(ChannelError::Closed | ChannelError::Refused(_)) => sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("{error}"),
        }
    };
    let hello = Hello { version: isola_abi::VERSION, access: VolumeAccess::ReadWrite };
    channel.write(&encode(&hello)).await.unwrap();
    let Some(Reply::Offer(_)) = decode(&channel.read().await.unwrap()) else { panic!("no offer") };
    let shared = SharedMemory::new(SHARED_PAGES).unwrap();
    let memory = MEMORY.get_or_init(|| DriverMemory::new(shared.words(), 0));
    channel.map(&shared, LinkAccess::ReadWrite).await.unwrap();
    let place = QueueSetup { size: SIZE, descriptors: 0, available: AVAILABLE as u64, used: USED as u64 };
    let setup = DriverSetup { features: VERSION_1, base: 0, queues: vec![place] };
    channel.write(&encode(&setup)).await.unwrap();
    (channel, memory)
}

/// Writes the descriptors and the header of a read of a block.
fn describe(memory: &Memory, request: usize) {
    let header = HEADERS + HEADER_STRIDE * request;
    memory.write(header, &[0; 8]);
    memory.write(header + 8, &(8 * request as u64).to_le_bytes());
    let first = 3 * request as u64;
    let parts = [
        (header, 16, NEXT | (first + 1) << 16),
        (DATA + BLOCK * request, BLOCK, NEXT | WRITE | (first + 2) << 16),
        (header + 16, 1, WRITE),
    ];
    for (index, (address, len, flags)) in parts.into_iter().enumerate() {
        let at = 16 * (3 * request + index);
        memory.write(at, &(address as u64).to_le_bytes());
        memory.write(at + 8, &(len as u64 | flags << 32).to_le_bytes());
    }
}
