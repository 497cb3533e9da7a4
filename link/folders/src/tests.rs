//! Clients and a service in one cell, over queues in ordinary memory. The service crashes, and loses what its disk has not
//! flushed.

mod hostile;
mod model;

use crate::client::{Connect, Driver, FolderFileSystem, SHARED_PAGES};
use crate::link::Link;
use crate::server::{Folder, Session, device_queues, serve_queues};
use isola_abi::volume::VolumeAccess;
use isola_block::BlockError;
use isola_events::{exit, run, spawn_task, yield_now};
use isola_fibers::block_on;
use isola_hosted::Settings;
use isola_volume_service::client::ConnectError;
use isola_volumes::{Access, Disk, Ext4, FileError, FileSystem, Services, Volume};
use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::task::{Poll, Waker};
use std::time::Duration;
use std::vec;
use std::vec::Vec;

/// Runs `main` in a cell.
fn in_cell<F: Future<Output = ()> + 'static>(main: impl Fn() -> F + Sync) {
    let codes = isola_hosted::run(Settings::default(), Vec::new(), |_| {
        let main = main();
        spawn_task(async move {
            main.await;
            exit(0);
        })
        .detach();
        run()
    });
    assert_eq!(codes, [0]);
}

/// A disk in memory with a volatile cache.
struct TestDisk {
    contents: RefCell<Vec<u8>>,
    /// The contents without the writes since the latest flush.
    permanent: RefCell<Vec<u8>>,
    unflushed: RefCell<Vec<(usize, Vec<u8>)>>,
    /// Whether other events run before each request.
    is_slow: bool,
}

impl TestDisk {
    fn new(contents: Vec<u8>, is_slow: bool) -> Rc<Self> {
        Rc::new(Self {
            permanent: RefCell::new(contents.clone()),
            contents: RefCell::new(contents),
            unflushed: RefCell::default(),
            is_slow,
        })
    }

    fn wait(&self) {
        if self.is_slow {
            block_on(yield_now());
        }
    }
}

impl Disk for TestDisk {
    fn len(&self) -> u64 {
        self.contents.borrow().len() as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.wait();
        into.copy_from_slice(&self.contents.borrow()[at as usize..][..into.len()]);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        self.wait();
        self.contents.borrow_mut()[at as usize..][..from.len()].copy_from_slice(from);
        self.unflushed.borrow_mut().push((at as usize, from.to_vec()));
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.wait();
        for (at, bytes) in self.unflushed.take() {
            self.permanent.borrow_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}

fn services() -> Services {
    Services { time: || Duration::from_secs(1_800_000_000), entropy: || 0x9e37_79b9_7f4a_7c15 }
}

/// Returns a file system with the folders `web` and `other`, and a file in the latter.
fn image() -> Vec<u8> {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    let make = || {
        let disk = TestDisk::new(vec![0; 64 << 20], false);
        Ext4::format(disk.clone(), services()).unwrap();
        let mut files = Ext4::mount(disk.clone(), Access::ReadWrite, services()).unwrap();
        files.make_directory(files.root(), b"web").unwrap();
        let other = files.make_directory(files.root(), b"other").unwrap().id;
        let secret = files.create(other, b"secret").unwrap().id;
        files.write(secret, 0, hostile::SECRET).unwrap();
        files.unmount().unwrap();
        disk.contents.take()
    };
    IMAGE.get_or_init(make).clone()
}

/// One end of a connection.
#[derive(Default)]
struct End {
    bell: Cell<Option<Waker>>,
    closer: Cell<Option<Waker>>,
}

struct TestLink {
    own: Rc<End>,
    peer: Rc<End>,
    is_open: Rc<Cell<bool>>,
}

impl TestLink {
    fn pair() -> (Self, Self) {
        let (one, other, is_open) = (Rc::<End>::default(), Rc::<End>::default(), Rc::new(Cell::new(true)));
        let end = |own: &Rc<End>, peer: &Rc<End>| Self {
            own: own.clone(),
            peer: peer.clone(),
            is_open: is_open.clone(),
        };
        (end(&one, &other), end(&other, &one))
    }

    /// Returns a function that ends the connection.
    fn closing(&self) -> impl Fn() + 'static {
        let (ends, is_open) = ([self.own.clone(), self.peer.clone()], self.is_open.clone());
        move || {
            is_open.set(false);
            for end in &ends {
                end.closer.take().into_iter().for_each(Waker::wake);
            }
        }
    }
}

impl Drop for TestLink {
    fn drop(&mut self) {
        self.closing()();
    }
}

impl Link for TestLink {
    fn ring(&self) {
        self.peer.bell.take().into_iter().for_each(Waker::wake);
    }

    fn wake_by(&self, waker: &Waker) {
        self.own.bell.set(Some(waker.clone()));
    }

    async fn closed(&self) {
        poll_fn(|context| {
            self.own.closer.set(Some(context.waker().clone()));
            if self.is_open.get() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}

/// A service cell.
struct Service {
    disk: RefCell<Rc<TestDisk>>,
    volume: RefCell<Option<Volume>>,
    /// End the connections.
    clients: RefCell<Vec<Box<dyn Fn()>>>,
    crashes: Cell<usize>,
}

impl Service {
    fn new(is_slow: bool) -> Rc<Self> {
        Rc::new(Self {
            disk: RefCell::new(TestDisk::new(image(), is_slow)),
            volume: RefCell::default(),
            clients: RefCell::default(),
            crashes: Cell::new(0),
        })
    }

    /// Ends at once. All writes since the disk's latest flush are lost.
    fn crash(&self) {
        self.crashes.set(self.crashes.get() + 1);
        self.clients.take().iter().for_each(|close| close());
        let disk = self.disk.borrow().clone();
        self.disk.replace(TestDisk::new(disk.permanent.borrow().clone(), disk.is_slow));
        // It changes its own disk only, which is of no use any more.
        core::mem::forget(self.volume.take());
    }

    /// Returns the volume of the present incarnation.
    async fn volume(&self) -> Volume {
        loop {
            if let Some(volume) = &*self.volume.borrow() {
                return volume.clone();
            }
            let (disk, crashes) = (self.disk.borrow().clone(), self.crashes.get());
            let volume = Volume::start(|| Ext4::mount(disk, Access::ReadWrite, services())).await.unwrap();
            if self.crashes.get() == crashes && self.volume.borrow().is_none() {
                self.volume.replace(Some(volume));
            } else {
                core::mem::forget(volume);
            }
        }
    }
}

struct TestConnector {
    service: Rc<Service>,
    access: VolumeAccess,
    memory: &'static [AtomicU64],
}

impl TestConnector {
    fn new(service: &Rc<Service>, access: VolumeAccess) -> Self {
        let memory: Vec<AtomicU64> = (0..SHARED_PAGES * 512).map(|_| AtomicU64::new(0)).collect();
        Self { service: service.clone(), access, memory: memory.leak() }
    }
}

impl Connect for TestConnector {
    type Link = TestLink;

    async fn connect(&self) -> Result<(TestLink, Driver), ConnectError> {
        let crashes = self.service.crashes.get();
        let volume = self.service.volume().await;
        let folder = Folder::open(&volume, "web").await.map_err(|_| ConnectError::Protocol)?;
        if self.service.crashes.get() != crashes {
            return Err(ConnectError::Protocol);
        }
        let (client, server) = TestLink::pair();
        let driver = Driver::new(self.memory);
        let queues = device_queues(&self.memory, &driver.setup()).unwrap();
        let mut session = Session::new(folder, self.access);
        self.service.clients.borrow_mut().push(Box::new(server.closing()));
        let service = self.service.clone();
        spawn_task(async move {
            let mut serving = pin!(serve_queues(&server, queues, &mut session));
            poll_fn(|context| match service.crashes.get() == crashes {
                true => serving.as_mut().poll(context),
                // In the middle of a request.
                false => Poll::Ready(()),
            })
            .await;
        })
        .detach();
        Ok((client, driver))
    }
}

/// Mounts the folder `web`.
async fn mount(service: &Rc<Service>, access: VolumeAccess) -> Result<Volume, FileError> {
    let connector = TestConnector::new(service, access);
    let (link, driver) = connector.connect().await.unwrap();
    Volume::start(move || FolderFileSystem::start(connector, access, link, driver)).await
}
