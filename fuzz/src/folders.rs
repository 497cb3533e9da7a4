//! Folders of a service cell, by virtio-fs: the service with a hostile client, and the client with a hostile service.

use crate::input::InputReader;
use crate::storage::{OverlayDisk, SERVICES, image};
use isola_abi::volume::VolumeAccess;
use isola_folder_service::client::{Connect, Driver, FolderFileSystem, SHARED_PAGES};
use isola_folder_service::link::Link;
use isola_folder_service::server::{Folder, MOST_NODES, Session, device_queues};
use isola_folder_service::{MOST_DATA, MOST_MESSAGE};
use isola_iobuf::IoBuf;
use isola_test_task::run_task;
use isola_virtio_device::DeviceQueue;
use isola_volume_service::client::ConnectError;
use isola_volumes::{Access, Ext4, ListPosition, Volume};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// The request that starts a session, and the version of the protocol.
const INIT: u32 = 26;
const MAJOR: u32 = 7;
const MINOR: u32 = 40;

/// The lengths of the headers of messages and answers, in bytes.
const MESSAGE_HEADER_LEN: usize = 40;
const ANSWER_HEADER_LEN: usize = 16;

/// The number after the last known request.
const REQUESTS: u8 = 53;

/// The connections of a run of the client: each but the first may cost a pause.
const MOST_CONNECTIONS: usize = 2;

/// Names of requests: of the file system's own files, new ones, and such that no file can have.
const NAMES: [&[u8]; 8] = [
    b"a long name, number 7\0",
    b"new\0",
    b"other\0",
    b"..\0",
    b"/holes\0",
    b"../holes\0",
    b"user.name\0",
    b"\0",
];

fn message(opcode: u32, node: u64, arguments: &[u8]) -> Vec<u8> {
    let len = (MESSAGE_HEADER_LEN + arguments.len()) as u32;
    let mut message = [len, opcode, 1, 0].into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    message.extend(node.to_le_bytes());
    // User, group, process, and no extensions.
    message.resize(MESSAGE_HEADER_LEN, 0);
    message.extend_from_slice(arguments);
    message
}

/// Returns arguments that a request may have: numbers, names, and any bytes.
fn arguments(input: &mut InputReader<'_>) -> Vec<u8> {
    let mut arguments = Vec::new();
    for _ in 0..input.byte() % 10 {
        match input.byte() % 4 {
            0 => arguments.extend(u64::from(input.byte()).to_le_bytes()),
            1 => {
                let large = [0, 4096, MOST_DATA as u64, u64::from(u32::MAX), u64::MAX, i64::MAX as u64];
                let value = large[usize::from(input.byte()) % large.len()];
                arguments.extend(value.to_le_bytes());
            }
            2 => arguments.extend(NAMES[usize::from(input.byte()) % NAMES.len()]),
            _ => {
                let count = input.byte() % 32;
                arguments.extend(input.bytes(count.into()));
            }
        }
    }
    arguments
}

/// Executes the requests of a hostile client. It has a bounded number of files, and answers that fit, and it changes nothing
/// beside its folder.
pub fn requests(bytes: &[u8]) {
    run_task(|| {
        let bytes = bytes.to_vec();
        async move { execute(&bytes).await }
    });
}

async fn execute(bytes: &[u8]) {
    let mount = || {
        let disk = OverlayDisk::new(Vec::new(), &image().contents);
        Ext4::mount(disk, Access::ReadWrite, SERVICES)
    };
    let volume = Volume::start(mount).await;
    let volume = volume.expect("the file system is not damaged");
    let folder = Folder::open(&volume, "directory").await.expect("the folder exists");
    let mut input = InputReader::new(bytes);
    let access =
        if input.byte().is_multiple_of(4) { VolumeAccess::ReadOnly } else { VolumeAccess::ReadWrite };
    let mut session = Session::new(folder, access);
    let mut init = MAJOR.to_le_bytes().to_vec();
    init.resize(64, 0);
    let started = session.execute(&message(INIT, 0, &init), MOST_MESSAGE).await;
    assert!(started.is_ok_and(|answer| answer.is_some()));
    while !input.is_over() {
        let opcode = u32::from(input.byte() % REQUESTS);
        // The folder has number 1; the file system's files have small numbers.
        let node = u64::from(input.byte() % 48) + u64::from(input.byte() == 0) * (1 << 40);
        let mut request = message(opcode, node, &arguments(&mut input));
        if input.byte() == 0 {
            let at = usize::from(input.byte()) % request.len();
            request[at] = input.byte();
        }
        let room = usize::from(input.word()) >> (input.byte() % 16);
        if let Ok(Some(answer)) = session.execute(&request, room).await {
            assert!((ANSWER_HEADER_LEN..=room).contains(&answer.len()));
        }
        assert!(session.node_count() <= MOST_NODES);
    }
    let outside = volume.open("/holes").await.expect("it is not in the folder");
    assert!(outside.read(0, 4096).await.expect("it is there").iter().all(|byte| *byte == 1));
}

/// The memory that the client shares; one run at a time uses it.
static MEMORY: Mutex<Option<&'static [AtomicU64]>> = Mutex::new(None);

/// A service whose answers come from the input. It answers at once: a message that has no answer then never has one.
struct HostileService {
    bytes: Vec<u8>,
    /// The number of bytes that were read.
    read: Cell<usize>,
    queues: RefCell<Vec<DeviceQueue<&'static [AtomicU64]>>>,
    memory: &'static [AtomicU64],
    connections: Cell<usize>,
}

impl HostileService {
    fn is_over(&self) -> bool {
        self.read.get() == self.bytes.len()
    }

    /// Answers the messages that wait.
    fn answer(&self) {
        let mut input = InputReader::new(&self.bytes[self.read.get()..]);
        for queue in &mut *self.queues.borrow_mut() {
            while let Some(chain) = queue.take().ok().flatten().filter(|_| !input.is_over()) {
                let Ok(message) = chain.message(queue.memory(), MOST_MESSAGE) else { break };
                let answer = answer_to(&message, &mut input);
                let written = chain.answer(queue.memory(), &answer);
                queue.give_back(chain.head, written as u32 + u32::from(input.byte() == 1));
                if input.byte() == 1 {
                    // The queues are at the beginning.
                    let value = u64::from_le_bytes([input.byte(); 8]);
                    self.memory[usize::from(input.byte())].store(value, Ordering::Relaxed);
                }
            }
        }
        self.read.set(self.bytes.len() - input.left());
    }
}

/// Returns an answer, usually one that could be right.
fn answer_to(message: &[u8], input: &mut InputReader<'_>) -> Vec<u8> {
    let opcode =
        message.get(4..8).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes));
    let unique = message.get(8..16).unwrap_or_default();
    let mut contents = Vec::new();
    match input.byte() % 4 {
        0 if opcode == Some(INIT) => {
            contents.extend([MAJOR, MINOR, 0, 0, 0, MOST_DATA as u32].into_iter().flat_map(u32::to_le_bytes));
            contents.resize(64, 0);
        }
        0 => {
            // A number, as an entry begins with, and a mode at the position that entries have it.
            contents.extend(u64::from(input.byte()).to_le_bytes());
            contents.resize(128, input.byte());
            let mode: u32 = [0o100_644, 0o040_755, 0o120_777][usize::from(input.byte() % 3)];
            contents[100..104].copy_from_slice(&mode.to_le_bytes());
        }
        1 => {
            let count = input.word() % 600;
            contents.extend(input.bytes(count.into()));
        }
        2 => contents.resize(usize::from(input.word()), 0x2e),
        _ => {}
    }
    let error = if input.byte().is_multiple_of(8) { -i32::from(input.byte()) } else { 0 };
    let len = (ANSWER_HEADER_LEN + contents.len()) as u32 ^ u32::from(input.byte().is_multiple_of(32));
    let mut answer = [&len.to_le_bytes(), &error.to_le_bytes(), unique].concat();
    answer.extend(contents);
    answer
}

/// The client's end of a connection.
struct HostileLink(Rc<HostileService>);

impl Link for HostileLink {
    fn ring(&self) {
        self.0.answer();
    }

    fn wake_by(&self, _: &Waker) {
        self.0.answer();
    }

    /// The client asks when it has no answer.
    async fn closed(&self) {}
}

struct Connector(Rc<HostileService>);

impl Connect for Connector {
    type Link = HostileLink;

    async fn connect(&self) -> Result<(HostileLink, Driver), ConnectError> {
        let service = &self.0;
        let connections = service.connections.get();
        if connections == MOST_CONNECTIONS || service.is_over() {
            return Err(ConnectError::Device("the input is over".into()));
        }
        service.connections.set(connections + 1);
        service.memory.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let driver = Driver::new(service.memory);
        let queues = device_queues(&service.memory, &driver.setup()).expect("the driver is honest");
        service.queues.replace(queues);
        Ok((HostileLink(service.clone()), driver))
    }
}

/// Uses a folder whose service is hostile: errors are permitted, panics and waits without end are not.
pub fn answers(bytes: &[u8]) {
    let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || -> &'static [AtomicU64] {
        (0..SHARED_PAGES * 512).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak()
    };
    let words = *memory.get_or_insert_with(make);
    run_task(|| {
        let service = HostileService {
            bytes: bytes.to_vec(),
            read: Cell::new(0),
            queues: RefCell::default(),
            memory: words,
            connections: Cell::new(0),
        };
        use_service(Rc::new(service))
    });
}

async fn use_service(service: Rc<HostileService>) {
    let connector = Connector(service);
    let Ok((link, driver)) = connector.connect().await else { return };
    let started =
        Volume::start(move || FolderFileSystem::start(connector, VolumeAccess::ReadWrite, link, driver))
            .await;
    let Ok(volume) = started else { return };
    if let Ok((entries, _)) = volume.list("/", ListPosition::default(), 20).await {
        assert!(entries.len() <= 20);
        assert!(entries.iter().all(|entry| !entry.name.is_empty() && !entry.name.contains(&b'/')));
    }
    for path in ["/new", "/directory/new"] {
        let _ = volume.create(path).await;
        let Ok(file) = volume.open(path).await else { continue };
        if let Ok(read) = file.read(10, 5000).await {
            assert!(read.len() <= 5000);
        }
        let _ = file.write(4096, IoBuf::from(vec![1; 9000])).await;
        let _ = file.truncate(10).await;
    }
    let _ = volume.make_directory("/other").await;
    let _ = volume.rename("/new", "/other/new").await;
    let _ = volume.remove("/other").await;
    let _ = volume.space().await;
    let _ = volume.sync().await;
    let _ = volume.unmount().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: u64) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..random.usize(..1500)).map(|_| random.u8(..)).collect()
    }

    #[test]
    fn random_requests_and_answers_violate_no_guarantee() {
        for seed in 0..30 {
            requests(&random(seed));
            answers(&random(seed));
        }
    }
}
