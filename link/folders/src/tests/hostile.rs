//! A hostile client, and a hostile service.

use super::{Service, TestLink, in_cell};
use crate::client::{Connect, Driver, FolderFileSystem, SHARED_PAGES};
use crate::link::Link;
use crate::server::{Folder, MOST_NODES, Session, device_queues};
use crate::wire::{ANSWER_HEADER_LEN, EINVAL, ENFILE, ESTALE, ROOT, answer, message};
use fuse_abi::linux::fuse_opcode;
use isola_abi::volume::VolumeAccess;
use isola_block::BlockError;
use isola_events::{spawn_task, yield_now};
use isola_iobuf::IoBuf;
use isola_virtio_device::driver::{DriverQueue, Part};
use isola_virtio_device::{DeviceQueue, DriverMemory};
use isola_volume_service::client::ConnectError;
use isola_volumes::{FileError, ListPosition, Volume};
use std::cell::Cell;
use std::format;
use std::rc::Rc;
use std::string::{String, ToString};
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec;
use std::vec::Vec;

/// The contents of a file beside the served folder.
pub const SECRET: &[u8] = b"contents beside the served folder";

const OPCODES: [fuse_opcode; 26] = [
    fuse_opcode::FUSE_LOOKUP,
    fuse_opcode::FUSE_FORGET,
    fuse_opcode::FUSE_GETATTR,
    fuse_opcode::FUSE_SETATTR,
    fuse_opcode::FUSE_READLINK,
    fuse_opcode::FUSE_SYMLINK,
    fuse_opcode::FUSE_MKNOD,
    fuse_opcode::FUSE_MKDIR,
    fuse_opcode::FUSE_UNLINK,
    fuse_opcode::FUSE_RMDIR,
    fuse_opcode::FUSE_RENAME2,
    fuse_opcode::FUSE_LINK,
    fuse_opcode::FUSE_READ,
    fuse_opcode::FUSE_WRITE,
    fuse_opcode::FUSE_STATFS,
    fuse_opcode::FUSE_FSYNC,
    fuse_opcode::FUSE_SETXATTR,
    fuse_opcode::FUSE_GETXATTR,
    fuse_opcode::FUSE_LISTXATTR,
    fuse_opcode::FUSE_REMOVEXATTR,
    fuse_opcode::FUSE_INIT,
    fuse_opcode::FUSE_READDIR,
    fuse_opcode::FUSE_BATCH_FORGET,
    fuse_opcode::FUSE_FALLOCATE,
    fuse_opcode::FUSE_OPEN,
    fuse_opcode::FUSE_DESTROY,
];

async fn session(service: &Rc<Service>, access: VolumeAccess) -> Session {
    let folder = Folder::open(&service.volume().await, "web").await.unwrap();
    let mut session = Session::new(folder, access);
    let mut init = vec![0; 64];
    init[0] = 7;
    let message = message(fuse_opcode::FUSE_INIT, 1, 0, (0, 0), &init);
    let answer = session.execute(&message, 4096).await.unwrap().unwrap();
    assert_eq!(answer[4..8], [0; 4]);
    session
}

/// Returns the error of an answer; 0 without one.
fn error(answer: &[u8]) -> i32 {
    -i32::from_le_bytes(answer[4..8].try_into().unwrap())
}

/// Returns arguments that may be right: numbers of files, small and large numbers, names, and anything.
fn arguments(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut arguments = Vec::new();
    for _ in 0..random.usize(..10) {
        match random.u8(..4) {
            0 => arguments.extend(random.u64(..40).to_le_bytes()),
            1 => arguments.extend([0, 1, 4096, u64::MAX, i64::MAX as u64][random.usize(..5)].to_le_bytes()),
            2 => arguments.extend(
                [&b"a\0"[..], b"b\0", b"..\0", b"../other\0", b"/other/secret\0", b"user.x\0"]
                    [random.usize(..6)],
            ),
            _ => arguments.extend((0..random.usize(..20)).map(|_| random.u8(..))),
        }
    }
    arguments
}

#[test]
fn no_message_of_a_client_reaches_beyond_its_folder_and_its_bounds() {
    in_cell(|| async {
        let service = Service::new(false);
        let mut random = fastrand::Rng::with_seed(5);
        for access in [VolumeAccess::ReadWrite, VolumeAccess::ReadOnly] {
            let mut session = session(&service, access).await;
            let mut good = 0;
            for _ in 0..4000 {
                let opcode = OPCODES[random.usize(..OPCODES.len())];
                let node = [ROOT.0, random.u64(..40), random.u64(..)][random.usize(..3)];
                let mut bytes = message(opcode, random.u64(..), node, (0, 0), &arguments(&mut random));
                if random.u8(..20) == 0 {
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(..);
                }
                let room = random.usize(..9000);
                if let Ok(Some(answer)) = session.execute(&bytes, room).await {
                    assert!(answer.len() <= room);
                    assert!(!answer.windows(SECRET.len()).any(|part| part == SECRET), "{opcode:?}");
                    good += usize::from(error(&answer) == 0);
                }
                assert!(session.node_count() <= MOST_NODES);
            }
            assert!(good > 100, "{good} requests were executed");
        }
        let volume = service.volume().await;
        let names: Vec<Vec<u8>> = {
            let (entries, _) = volume.list("/", ListPosition::default(), 100).await.unwrap();
            entries.into_iter().map(|entry| entry.name).collect()
        };
        assert_eq!(names.iter().filter(|name| *name != b"lost+found").count(), 2, "{names:?}");
        let secret = volume.open("/other/secret").await.unwrap().read(0, 100).await.unwrap();
        assert_eq!(&secret[..], SECRET);
    });
}

#[test]
fn a_client_has_the_files_of_its_folder_only_and_a_bounded_number_of_them() {
    in_cell(|| async {
        let service = Service::new(false);
        let volume = service.volume().await;
        let secret = volume.metadata("/other/secret").await.unwrap().id;
        for number in 0..20 {
            volume.create(format!("/web/{number}")).await.unwrap();
        }
        let mut session = session(&service, VolumeAccess::ReadWrite).await;
        // A number that the client has not looked up, of a file that exists.
        let read = message(fuse_opcode::FUSE_READ, 3, secret.0, (0, 0), &[0; 40]);
        assert_eq!(error(&session.execute(&read, 4096).await.unwrap().unwrap()), ESTALE);
        let look_up = |name: String| {
            message(fuse_opcode::FUSE_LOOKUP, 3, ROOT.0, (0, 0), &[name.as_bytes(), b"\0"].concat())
        };
        for name in ["..", ".", "../other", "/other", "other/secret", ""] {
            let answer = session.execute(&look_up(name.into()), 4096).await.unwrap().unwrap();
            assert_eq!(error(&answer), EINVAL, "{name}");
        }
        // A file is forgotten once the client has forgotten each of its answers, one at a time or several.
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        for is_batch in [false, true, false] {
            let mut number = 0;
            for _ in 0..3 {
                let answer = session.execute(&look_up("7".into()), 4096).await.unwrap().unwrap();
                assert_eq!(error(&answer), 0);
                number = u64::from_le_bytes(answer[16..24].try_into().unwrap());
            }
            for (count, left) in [(2, 1), (u64::MAX, 0)] {
                let message = if is_batch {
                    message(fuse_opcode::FUSE_BATCH_FORGET, 3, 0, (0, 0), &words(&[1, number, count]))
                } else {
                    message(fuse_opcode::FUSE_FORGET, 3, number, (0, 0), &words(&[count]))
                };
                assert_eq!(session.execute(&message, 4096).await, Ok(None));
                assert_eq!(session.node_count(), left);
            }
        }
        let answer = session.execute(&look_up("7".into()), 4096).await.unwrap().unwrap();
        assert_eq!(error(&answer), 0);
        volume.make_directory("/web/many").await.unwrap();
        let answer = session.execute(&look_up("many".into()), 4096).await.unwrap().unwrap();
        let many = u64::from_le_bytes(answer[16..24].try_into().unwrap());
        let mut refused = 0;
        for number in 0..MOST_NODES + 5 {
            let name = number.to_string();
            drop(volume.create(format!("/web/many/{name}")).await.unwrap());
            let look_up =
                message(fuse_opcode::FUSE_LOOKUP, 3, many, (0, 0), &[name.as_bytes(), b"\0"].concat());
            match error(&session.execute(&look_up, 4096).await.unwrap().unwrap()) {
                0 => {}
                ENFILE => refused += 1,
                other => panic!("error {other}"),
            }
        }
        assert_eq!(refused, 7);
        assert_eq!(session.node_count(), MOST_NODES);
    });
}

/// A service that answers with any bytes, in any way.
struct Hostile {
    memory: &'static [AtomicU64],
    seed: Cell<u64>,
    connections: Cell<u32>,
}

impl Connect for Hostile {
    type Link = TestLink;

    async fn connect(&self) -> Result<(TestLink, Driver), ConnectError> {
        self.connections.set(self.connections.get() + 1);
        if self.connections.get() > 3 {
            // So that the client gives up before its time limit.
            return Err(ConnectError::Device(String::new()));
        }
        self.seed.set(self.seed.get() + 1);
        let (client, server) = TestLink::pair();
        let driver = Driver::new(self.memory);
        let queues = device_queues(&self.memory, &driver.setup()).unwrap();
        let task = attack(server, queues, self.memory, fastrand::Rng::with_seed(self.seed.get()));
        spawn_task(task).detach();
        Ok((client, driver))
    }
}

async fn attack(
    link: TestLink,
    mut queues: Vec<DeviceQueue<&'static [AtomicU64]>>,
    memory: &'static [AtomicU64],
    mut random: fastrand::Rng,
) {
    for round in 0..random.usize(..400) {
        yield_now().await;
        if random.u8(..60) == 0 {
            // The rings and the answers, but not the message, which the client does not read back.
            let index = if random.bool() { random.usize(..100) } else { random.usize(17_000..30_000) };
            memory[index]
                .store(random.u64(..) & [u64::MAX, 0xff, 0xffff][random.usize(..3)], Ordering::Relaxed);
        }
        let index = random.usize(..queues.len());
        let Ok(Some(chain)) = queues[index].take() else {
            link.ring();
            continue;
        };
        let message = chain.message(queues[index].memory(), 1 << 20).unwrap();
        let unique = u64::from_le_bytes(message[8..16].try_into().unwrap());
        let mut contents = vec![0; [0, 16, 64, 104, 128, 300, 9000][random.usize(..7)]];
        for _ in 0..random.usize(..20) {
            if !contents.is_empty() {
                let at = random.usize(..contents.len());
                contents[at] = random.u8(..);
            }
        }
        if round == 0 && contents.len() >= 24 {
            // Most connections get beyond the negotiation.
            contents.fill(0);
            (contents[0], contents[22]) = (7, 1);
        }
        let outcome = if random.u8(..8) == 0 { Err(random.i32(..)) } else { Ok(&contents[..]) };
        let mut answer = answer(unique, outcome);
        if random.u8(..20) == 0 {
            let at = random.usize(..ANSWER_HEADER_LEN);
            answer[at] ^= random.u8(..);
        }
        let len = chain.answer(queues[index].memory(), &answer) as u32;
        let len = if random.u8(..40) == 0 { random.u32(..) } else { len };
        queues[index].give_back(chain.head, len);
        link.ring();
    }
}

#[test]
fn no_answer_of_a_service_breaks_its_client() {
    in_cell(|| async {
        for seed in 0..60 {
            let memory: Vec<AtomicU64> = (0..SHARED_PAGES * 512).map(|_| AtomicU64::new(0)).collect();
            let hostile =
                Hostile { memory: memory.leak(), seed: Cell::new(seed * 10), connections: Cell::new(0) };
            let (link, driver) = hostile.connect().await.unwrap();
            let start = move || FolderFileSystem::start(hostile, VolumeAccess::ReadWrite, link, driver);
            let Ok(volume) = Volume::start(start).await else { continue };
            for _ in 0..6 {
                let _ = volume.list("/", ListPosition::default(), 10).await;
                let _ = volume.create("/a").await;
                let _ = volume.rename("/a", "/b").await;
                if let Ok(file) = volume.open("/b").await {
                    let read = file.read(0, 100).await;
                    assert!(read.is_err() || read.unwrap().len() <= 100);
                    let _ = file.write(5, IoBuf::from(vec![1; 10_000])).await;
                }
                let _ = volume.remove("/b").await;
                let _ = volume.space().await;
                let _ = volume.sync().await;
            }
        }
    });
}

#[test]
fn a_service_that_is_replaced_by_another_one_fails_the_client_for_good() {
    in_cell(|| async {
        let memory: Vec<AtomicU64> = (0..SHARED_PAGES * 512).map(|_| AtomicU64::new(0)).collect();
        let hostile = Hostile { memory: memory.leak(), seed: Cell::new(0), connections: Cell::new(9) };
        let (link, _) = TestLink::pair();
        let driver = Driver::new(hostile.memory);
        let start = move || FolderFileSystem::start(hostile, VolumeAccess::ReadWrite, link, driver);
        let failed = FileError::Disk(BlockError::DeviceFailed);
        assert_eq!(Volume::start(start).await.err(), Some(failed));
    });
}

/// One message at a time is one of a queue of two descriptors: the device may return it once, and write so much.
#[test]
fn a_driver_queue_rejects_what_it_has_not_sent() {
    use isola_virtio_device::driver::DeviceFault;
    let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
    let words: &'static [AtomicU64] = words.leak();
    let memory = || DriverMemory::new(words, 0);
    let fresh = || {
        let queue = DriverQueue::new(memory(), 0);
        let device = DeviceQueue::new(memory(), queue.place(), crate::server::FEATURES).unwrap();
        (queue, device)
    };
    let (message, answer) = (Part { offset: 128, len: 8 }, Part { offset: 256, len: 16 });
    for (head, written, fault) in [(1, 4, DeviceFault::NoChain(1)), (0, 17, DeviceFault::TooLong(17))] {
        let (mut queue, mut device) = fresh();
        queue.send(message, answer);
        assert_eq!(queue.take(), Ok(None));
        device.give_back(head, written);
        assert_eq!(queue.take(), Err(fault));
    }
    let (mut queue, mut device) = fresh();
    device.give_back(0, 0);
    assert_eq!(queue.take(), Err(DeviceFault::IndexJump(1)));
    let (mut queue, mut device) = fresh();
    for round in 0..70_000 {
        assert!(!device.arm());
        assert!(queue.send(message, answer), "the device wants a notification");
        let chain = device.take().unwrap().unwrap();
        assert_eq!((chain.head, chain.segments.len()), (0, 2));
        assert!(!queue.arm());
        device.give_back(chain.head, 16);
        assert!(device.must_notify());
        assert!(queue.is_busy() && queue.arm());
        assert_eq!(queue.take(), Ok(Some(16)), "round {round}");
    }
}
