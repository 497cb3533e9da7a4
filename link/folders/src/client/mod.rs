//! A folder of a service cell as a file system of this cell.

mod connection;
mod file_system;
mod nodes;
mod unsynced;

pub use connection::{Driver, FEATURES, SHARED_PAGES};
pub use file_system::FolderFileSystem;

use crate::link::{ChannelLink, Link};
use crate::{DEVICE_TYPE, MOST_DATA, QUEUES};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use connection::{Connection, Lost, Request};
use core::cell::Cell;
use core::future::Future;
use core::time::Duration;
use fuse_abi::linux::{
    FUSE_INIT_EXT, FUSE_KERNEL_MINOR_VERSION, FUSE_KERNEL_VERSION, FUSE_NO_OPEN_SUPPORT,
    FUSE_NO_OPENDIR_SUPPORT, FUSE_SETXATTR_EXT, fuse_batch_forget_in, fuse_entry_out, fuse_forget_one,
    fuse_init_in, fuse_init_out, fuse_opcode,
};
use isola_abi::service::{DeviceOffer, ServedVolume, encode};
use isola_abi::volume::VolumeAccess;
use isola_block::BlockError;
use isola_channels::{Channel, ChannelError, LinkAccess, SharedMemory};
use isola_events::{now, sleep, timeout};
use isola_platform::Instant;
use isola_volume_service::client::{ANSWER_LIMIT, ConnectError, PAUSE, TIME_LIMIT, introduce_once};
use isola_volumes::{FileError, FileId, RenameKind, Volume};
use nodes::{Nodes, number_of};
use unsynced::Unsynced;

use crate::wire::{ROOT, file_error, put, put_name, take};

/// The least data of a request that a service must permit.
const LEAST_WRITE: usize = 4096;

/// Connects to a service, at first and after each end of a connection.
pub trait Connect {
    /// The connection.
    type Link: Link;

    /// Connects once, and starts the driver.
    fn connect(&self) -> impl Future<Output = Result<(Self::Link, Driver), ConnectError>>;
}

/// Mounts a folder that a service cell serves, on the cell's first core. The service has offered its device on `channel`. The
/// returned volume connects again by itself when the service cell was restarted.
///
/// # Errors
/// A [`ConnectError`].
pub async fn connect(
    volume: &ServedVolume,
    channel: Channel,
    offer: DeviceOffer,
) -> Result<Volume, ConnectError> {
    let memory = SharedMemory::new(SHARED_PAGES)?;
    let connector = Channels { volume: volume.clone(), memory, first: Cell::new(Some((channel, offer))) };
    let (link, driver) = connector.connect().await?;
    let failed = |error: FileError| ConnectError::Device(alloc::format!("{error}"));
    let access = volume.access;
    let mount = move || FolderFileSystem::start(connector, access, link, driver);
    Volume::start(mount).await.map_err(failed)
}

/// Connects to a folder by channels.
struct Channels {
    volume: ServedVolume,
    memory: SharedMemory,
    /// The first channel, with the offer of the service.
    first: Cell<Option<(Channel, DeviceOffer)>>,
}

impl Connect for Channels {
    type Link = ChannelLink;

    async fn connect(&self) -> Result<(ChannelLink, Driver), ConnectError> {
        let (channel, offer) = match self.first.take() {
            Some(first) => first,
            None => introduce_once(&self.volume).await?,
        };
        let is_right = offer.device_type == DEVICE_TYPE
            && offer.queues.len() >= QUEUES
            && offer.queues.iter().take(QUEUES).all(|size| *size >= 2)
            && offer.features & FEATURES == FEATURES;
        if !is_right {
            return Err(ConnectError::Device(String::from(
                "the service offers another device than a folder",
            )));
        }
        let driver = Driver::new(self.memory.words());
        let settled = async {
            channel.map(&self.memory, LinkAccess::ReadWrite).await?;
            channel.write(&encode(&driver.setup())).await
        };
        timeout(ANSWER_LIMIT, settled).await.map_err(|_| ChannelError::Closed)??;
        Ok((ChannelLink::new(channel), driver))
    }
}

/// A client of a folder.
pub(crate) struct Client<C: Connect> {
    connector: C,
    access: VolumeAccess,
    connection: Option<Connection<C::Link>>,
    nodes: Nodes,
    unsynced: Unsynced,
    most_data: usize,
    /// The request to rename that has no answer yet.
    pending: Option<PendingRename>,
    /// Whether the time limit was exceeded: all requests fail.
    has_failed: bool,
}

const DEVICE_FAILED: FileError = FileError::Disk(BlockError::DeviceFailed);

impl<C: Connect> Client<C> {
    fn new(connector: C, access: VolumeAccess) -> Self {
        Self {
            connector,
            access,
            connection: None,
            nodes: Nodes::default(),
            unsynced: Unsynced::default(),
            most_data: MOST_DATA,
            pending: None,
            has_failed: false,
        }
    }

    /// Starts a connection. The client has its files and its unsynced changes of earlier incarnations of the service again.
    async fn start(&mut self, link: C::Link, driver: Driver) -> Result<(), Lost> {
        let mut connection = Connection::new(link, driver);
        self.most_data = initialize(&mut connection).await?;
        self.find_again(&mut connection).await?;
        let (nodes, unsynced) = (&self.nodes, &mut self.unsynced);
        unsynced.repeat(&mut connection, |file| nodes.is_lost(file)).await?;
        self.connection = Some(connection);
        Ok(())
    }

    /// Looks up the paths of all known files.
    async fn find_again(&mut self, connection: &mut Connection<C::Link>) -> Result<(), Lost> {
        let mut walk = Walk { connection, numbers: BTreeMap::new(), lookups: BTreeMap::new() };
        if let Some(PendingRename { from, to, file, kind }) = &self.pending
            && walk.find(to).await? == Some(number_of(*file))
        {
            // The former incarnation has executed it.
            self.nodes.moved(from, to, *kind);
        }
        for (path, id) in self.nodes.forget_lookups() {
            let found = walk.find(&path).await?;
            self.nodes.found(id, found == Some(number_of(id)));
        }
        let Walk { lookups, .. } = walk;
        let nodes = &mut self.nodes;
        let unknown = lookups.into_iter().filter(|(number, count)| !nodes.looked_up(*number, *count));
        forget(connection, unknown.collect()).await
    }

    /// Sends a request, again to each next incarnation of the service until one has answered. Returns the contents of the
    /// answer.
    async fn call(
        &mut self,
        opcode: fuse_opcode,
        file: FileId,
        arguments: Vec<u8>,
    ) -> Result<Vec<u8>, FileError> {
        self.call_for(Request { opcode, file, owner: (0, 0), arguments }).await
    }

    async fn call_for(&mut self, request: Request) -> Result<Vec<u8>, FileError> {
        self.outcome(&request).await?.0.map_err(file_error)
    }

    /// Returns the answer or the number of an error, and whether the request was sent more than once.
    async fn outcome(&mut self, request: &Request) -> Result<(Result<Vec<u8>, i32>, bool), FileError> {
        let deadline = now() + TIME_LIMIT;
        let mut is_repeated = false;
        loop {
            if let Some(answer) = self.outcome_once(request, deadline).await? {
                return Ok((answer, is_repeated));
            }
            is_repeated = true;
        }
    }

    /// As [`Self::outcome`], but returns `None` if the connection ends before the answer.
    async fn outcome_once(
        &mut self,
        request: &Request,
        deadline: Instant,
    ) -> Result<Option<Result<Vec<u8>, i32>>, FileError> {
        if self.has_failed {
            return Err(DEVICE_FAILED);
        }
        let left = Duration::from_nanos(deadline.as_ns().saturating_sub(now().as_ns()));
        match timeout(left, self.attempt(request)).await {
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(Attempt::Lost)) => {
                self.connection = None;
                Ok(None)
            }
            Ok(Err(Attempt::File(error))) => Err(error),
            Err(_) | Ok(Err(Attempt::Failed)) => {
                self.connection = None;
                self.has_failed = true;
                Err(DEVICE_FAILED)
            }
        }
    }

    /// Ends the connection.
    fn end(&mut self) {
        self.connection = None;
    }

    async fn attempt(&mut self, request: &Request) -> Result<Result<Vec<u8>, i32>, Attempt> {
        if self.connection.is_none() {
            self.connect_again().await?;
        }
        // After the connection: it may have shown that the file is lost.
        if self.nodes.is_lost(request.file) {
            return Err(Attempt::File(FileError::NotFound));
        }
        let connection = self.connection.as_mut().ok_or(Attempt::Lost)?;
        connection.request(request).await.map_err(|Lost| Attempt::Lost)
    }

    async fn connect_again(&mut self) -> Result<(), Attempt> {
        loop {
            match self.connector.connect().await {
                Ok((link, driver)) => {
                    if self.start(link, driver).await.is_ok() {
                        return Ok(());
                    }
                }
                Err(error) if error.is_temporary() => {}
                Err(ConnectError::Channel(_)) => {}
                // The service is another one now.
                Err(_) => return Err(Attempt::Failed),
            }
            sleep(PAUSE).await;
        }
    }

    /// Notes the file of an answer. Returns its number in this cell.
    ///
    /// # Errors
    /// [`FileError::Damaged`] if the service cannot mean it.
    fn know(&mut self, entry: &fuse_entry_out, path: Option<Vec<u8>>) -> Result<FileId, FileError> {
        let is_number = entry.nodeid != ROOT.0 && (1..=u64::from(u32::MAX)).contains(&entry.nodeid);
        if !is_number {
            return Err(FileError::Damaged);
        }
        let is_symlink = entry.attr.mode & crate::wire::TYPE_MASK == crate::wire::TYPE_SYMLINK;
        Ok(self.nodes.know(entry.nodeid, path, is_symlink))
    }

    /// Forgets files without users, if there are many.
    async fn forget(&mut self) {
        let forgotten = self.nodes.forget();
        if let Some(connection) = &mut self.connection
            && forget(connection, forgotten).await.is_err()
        {
            self.connection = None;
        }
    }

    /// Makes all changes permanent.
    async fn sync(&mut self) -> Result<(), FileError> {
        if !self.unsynced.is_empty() {
            self.call(fuse_opcode::FUSE_SYNCFS, ROOT, alloc::vec![0; 8]).await?;
        }
        self.unsynced.synced()
    }
}

/// A request to rename, by paths.
pub(crate) struct PendingRename {
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub file: FileId,
    pub kind: RenameKind,
}

/// Look-ups of paths, each part of them once.
struct Walk<'a, L> {
    connection: &'a mut Connection<L>,
    /// The service's numbers of the paths that exist.
    numbers: BTreeMap<Vec<u8>, Option<u64>>,
    /// How often the service has returned each number.
    lookups: BTreeMap<u64, u64>,
}

impl<L: Link> Walk<'_, L> {
    /// Returns the service's number of a path, if it exists.
    async fn find(&mut self, path: &[u8]) -> Result<Option<u64>, Lost> {
        let mut number = Some(ROOT.0);
        let mut start = 0;
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let part = path.get(..end).unwrap_or_default();
            number = match (self.numbers.get(part), number) {
                (Some(known), _) => *known,
                (None, None) => None,
                (None, Some(directory)) => {
                    let name = path.get(start..end).unwrap_or_default();
                    let found = look_up(self.connection, FileId(directory), name).await?;
                    found.into_iter().for_each(|found| *self.lookups.entry(found).or_default() += 1);
                    self.numbers.insert(part.to_vec(), found);
                    found
                }
            };
            start = end + 1;
        }
        Ok(number)
    }
}

/// The reason why a request has no answer.
enum Attempt {
    /// The connection has ended.
    Lost,
    /// The file is not there any more.
    File(FileError),
    /// The service is another one.
    Failed,
}

/// Negotiates the protocol. Returns the most data of a request.
async fn initialize<L: Link>(connection: &mut Connection<L>) -> Result<usize, Lost> {
    let init = fuse_init_in {
        major: FUSE_KERNEL_VERSION,
        minor: FUSE_KERNEL_MINOR_VERSION,
        flags: FUSE_NO_OPEN_SUPPORT | FUSE_NO_OPENDIR_SUPPORT | FUSE_SETXATTR_EXT | FUSE_INIT_EXT,
        ..Default::default()
    };
    let mut arguments = Vec::new();
    put(&mut arguments, &init);
    let request = Request { opcode: fuse_opcode::FUSE_INIT, file: FileId(0), owner: (0, 0), arguments };
    let answer = connection.request(&request).await?.map_err(|_| Lost)?;
    let service: fuse_init_out = take(&mut &answer[..]).ok_or(Lost)?;
    let is_right = service.major == FUSE_KERNEL_VERSION && service.flags & !init.flags == 0;
    let most_data = (service.max_write as usize).min(MOST_DATA);
    if is_right && most_data >= LEAST_WRITE { Ok(most_data) } else { Err(Lost) }
}

/// Looks up a name. Returns the service's number of the file, if it exists.
async fn look_up<L: Link>(
    connection: &mut Connection<L>,
    directory: FileId,
    name: &[u8],
) -> Result<Option<u64>, Lost> {
    let mut arguments = Vec::new();
    put_name(&mut arguments, name);
    let request = Request { opcode: fuse_opcode::FUSE_LOOKUP, file: directory, owner: (0, 0), arguments };
    let Ok(answer) = connection.request(&request).await? else { return Ok(None) };
    let entry: fuse_entry_out = take(&mut &answer[..]).ok_or(Lost)?;
    Ok(Some(entry.nodeid))
}

/// Forgets files, given by the service's number and how often it has returned them.
async fn forget<L: Link>(connection: &mut Connection<L>, files: Vec<(u64, u64)>) -> Result<(), Lost> {
    /// The most files in one message.
    const MOST: usize = 1024;
    for some in files.chunks(MOST) {
        let mut arguments = Vec::new();
        put(&mut arguments, &fuse_batch_forget_in { count: some.len() as u32, dummy: 0 });
        for (nodeid, nlookup) in some.iter().copied() {
            put(&mut arguments, &fuse_forget_one { nodeid, nlookup });
        }
        connection.notice(fuse_opcode::FUSE_BATCH_FORGET, &arguments).await?;
    }
    Ok(())
}
