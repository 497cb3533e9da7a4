//! A mounted file system on a fiber, and its files as futures.

use crate::cache_disk::CachedDisk;
use crate::direct::{DirectRead, MOST_MAPS, OpenFileState, Plan, Retention, TRIES, read_pieces};
use crate::ext4::{Access, Ext4, Services};
use crate::file_system::{Entry, FileError, FileId, FileSystem, ListPosition, Metadata, Space};
use crate::jobs::Jobs;
use crate::open_files::Mounted;
use crate::reply::reply;
use crate::schedulers;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_block_cache::BlockCache;
use isola_ebbs::platform;
use isola_events::activity::charge_to;
use isola_events::{current_activity, now};
use isola_fibers::{block_on, spawn_fiber_with_stack};
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_resources::ClientStatistics;

/// The stack of a volume's fiber, in bytes.
const STACK_LEN: usize = 256 * 1024;

/// The most bytes that one read returns.
pub const MOST_READ: usize = 1 << 20;

/// A mounted file system. Clones are handles of the same one; all are on the core that mounted it
/// ([`Volume::share`] serves others).
///
/// Paths are bytes, divided by `/`, from the root directory. `..` is not permitted, and symbolic links are not followed.
///
/// When the last handle and the last file are dropped, the file system is unmounted.
#[derive(Clone)]
pub struct Volume {
    shared: Rc<Shared>,
}

struct Shared {
    jobs: Rc<Jobs<Mounted>>,
    /// The cache below the file system, for direct reads.
    cache: Option<BlockCache>,
    names_version: Rc<Cell<u64>>,
}

/// An open file. It is closed when it is dropped.
pub struct File {
    volume: Volume,
    id: FileId,
    state: Rc<OpenFileState>,
}

/// A file that was just opened.
#[derive(Debug)]
pub struct OpenedFile {
    /// The file.
    pub file: File,
    /// Its metadata.
    pub metadata: Metadata,
    /// Its [version](File::version) with this metadata.
    pub version: u64,
}

/// Bytes of a file that were in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedRead {
    /// Their number.
    pub len: usize,
    /// Whether the file has no more.
    pub at_end: bool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.jobs.close();
    }
}

/// Returns the services of the cell's platform.
fn services() -> Services {
    Services {
        time: || Duration::from_nanos(platform().clock().unix_ns(now())),
        entropy: || platform().entropy(),
    }
}

impl Volume {
    /// Mounts the ext4 file system of a cached device.
    ///
    /// # Errors
    /// Those of [`Ext4::mount`], and [`FileError::NoMemory`] for the fiber's stack.
    pub async fn mount(cache: BlockCache, access: Access) -> Result<Self, FileError> {
        let disk = Rc::new(CachedDisk(cache.clone()));
        Self::start_with(Some(cache), move || Ext4::mount(disk, access, services())).await
    }

    /// Makes an empty ext4 file system on a cached device. The device's earlier contents are lost.
    ///
    /// # Errors
    /// Those of [`Ext4::format`], and [`FileError::NoMemory`] for the fiber's stack.
    pub async fn format(cache: BlockCache) -> Result<(), FileError> {
        let format = move || Ext4::format(Rc::new(CachedDisk(cache)), services());
        spawn_fiber_with_stack(STACK_LEN, format).map_err(|_| FileError::NoMemory)?.await
    }

    /// Serves the file system that `mount` returns, on a fiber, on which `mount` runs as well.
    ///
    /// # Errors
    /// The error of `mount`, and [`FileError::NoMemory`] for the fiber's stack.
    pub async fn start<F: FileSystem + 'static>(
        mount: impl FnOnce() -> Result<F, FileError> + 'static,
    ) -> Result<Self, FileError> {
        Self::start_with(None, mount).await
    }

    /// Serves a file system whose disk is `cache`: then files are read past the fiber where possible.
    async fn start_with<F: FileSystem + 'static>(
        cache: Option<BlockCache>,
        mount: impl FnOnce() -> Result<F, FileError> + 'static,
    ) -> Result<Self, FileError> {
        let jobs = Rc::new(Jobs::default());
        let on_fiber = jobs.clone();
        let names_version = Rc::new(Cell::new(0));
        let counted_on_fiber = names_version.clone();
        let (send, receive) = reply();
        let serve = move || {
            let mut mounted = match mount() {
                Ok(file_system) => Mounted::new(Box::new(file_system), counted_on_fiber),
                Err(error) => return send(Err(error)),
            };
            send(Ok(()));
            let activity = current_activity();
            while let Some((activity, work)) = block_on(on_fiber.next()) {
                charge_to(activity);
                work(&mut mounted);
            }
            charge_to(activity);
            mounted.end();
        };
        let fiber = spawn_fiber_with_stack(STACK_LEN, serve).map_err(|_| FileError::NoMemory)?;
        jobs.set_fiber(fiber);
        receive.await?;
        schedulers::add(&jobs);
        Ok(Self { shared: Rc::new(Shared { jobs, cache, names_version }) })
    }

    pub(crate) async fn run<T: 'static>(
        &self,
        work: impl FnOnce(&mut Mounted) -> Result<T, FileError> + 'static,
    ) -> Result<T, FileError> {
        self.shared.jobs.run(work).await
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::IsADirectory`], and the errors of the disk.
    pub async fn open(&self, path: impl AsRef<[u8]>) -> Result<File, FileError> {
        self.open_with_metadata(path).await.map(|opened| opened.file)
    }

    /// Opens a file, and returns its metadata with it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with_metadata(&self, path: impl AsRef<[u8]>) -> Result<OpenedFile, FileError> {
        let (path, closes) = (path.as_ref().to_vec(), self.clone());
        let open = move |mounted: &mut Mounted| {
            let (metadata, state) = mounted.open(&path)?;
            let version = state.version();
            Ok(OpenedFile { file: File { id: metadata.id, volume: closes, state }, metadata, version })
        };
        self.run(open).await
    }

    /// Returns whether the file system is on a block device of this cell, and not in another cell, which may change it, and
    /// knows a file by its number while it is open only.
    pub fn is_local(&self) -> bool {
        self.shared.cache.is_some()
    }

    /// Returns the number of operations that have changed names: while it stays, each path leads to the same file.
    pub fn names_version(&self) -> u64 {
        self.shared.names_version.get()
    }

    /// Creates an empty file and opens it.
    ///
    /// # Errors
    /// [`FileError::AlreadyExists`], [`FileError::NotFound`] if the directory does not exist, [`FileError::NoSpace`],
    /// [`FileError::ReadOnly`], and the errors of the disk.
    pub async fn create(&self, path: impl AsRef<[u8]>) -> Result<File, FileError> {
        let (path, closes) = (path.as_ref().to_vec(), self.clone());
        let create = move |mounted: &mut Mounted| {
            let (metadata, state) = mounted.create(&path)?;
            Ok(File { id: metadata.id, volume: closes, state })
        };
        self.run(create).await
    }

    /// Creates an empty directory.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub async fn make_directory(&self, path: impl AsRef<[u8]>) -> Result<(), FileError> {
        let path = path.as_ref().to_vec();
        self.run(move |mounted| mounted.make_directory(&path)).await
    }

    /// Removes a file or an empty directory. An open file can be used until it is closed.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotEmpty`], [`FileError::ReadOnly`], and the errors of the disk.
    pub async fn remove(&self, path: impl AsRef<[u8]>) -> Result<(), FileError> {
        let path = path.as_ref().to_vec();
        self.run(move |mounted| mounted.remove(&path)).await
    }

    /// Gives a file or directory another path. It replaces a file or an empty directory with that path.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotEmpty`], [`FileError::Invalid`] for a directory that would become a part
    /// of itself, [`FileError::ReadOnly`], and the errors of the disk.
    pub async fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<(), FileError> {
        let (from, to) = (from.as_ref().to_vec(), to.as_ref().to_vec());
        self.run(move |mounted| mounted.rename(&from, &to)).await
    }

    /// Returns the metadata of a file or directory.
    ///
    /// # Errors
    /// [`FileError::NotFound`], and the errors of the disk.
    pub async fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata, FileError> {
        let path = path.as_ref().to_vec();
        self.run(move |mounted| mounted.find(&path)).await
    }

    /// Returns up to `most` entries of a directory from a position, and the position after them; `None` at the end. The
    /// first position is the default. Entries that are created or removed meanwhile may be missing or returned.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotADirectory`], and the errors of the disk.
    pub async fn list(
        &self,
        path: impl AsRef<[u8]>,
        from: ListPosition,
        most: usize,
    ) -> Result<(Vec<Entry>, Option<ListPosition>), FileError> {
        let path = path.as_ref().to_vec();
        let list = move |mounted: &mut Mounted| {
            let directory = mounted.find(&path)?.id;
            mounted.file_system()?.list(directory, from, most)
        };
        self.run(list).await
    }

    /// Returns the space of the file system.
    ///
    /// # Errors
    /// [`FileError::Unmounted`].
    pub async fn space(&self) -> Result<Space, FileError> {
        self.run(|mounted| Ok(mounted.file_system()?.space())).await
    }

    /// Returns the service that an activity has received of the volume since `files` has a policy; the default without one.
    pub fn scheduled(&self, activity: ActivityId) -> ClientStatistics {
        self.shared.jobs.statistics(activity)
    }

    /// Makes all changes permanent.
    ///
    /// # Errors
    /// The errors of the disk.
    pub async fn sync(&self) -> Result<(), FileError> {
        self.run(Mounted::sync).await
    }

    /// Makes all changes permanent and unmounts the file system. All later operations fail.
    ///
    /// # Errors
    /// [`FileError::InUse`] if files are open: it stays mounted. With other errors, the next mount recovers it.
    pub async fn unmount(&self) -> Result<(), FileError> {
        self.run(Mounted::unmount).await
    }
}

impl File {
    pub(crate) fn of(volume: Volume, id: FileId, state: Rc<OpenFileState>) -> Self {
        Self { volume, id, state }
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Returns the number of the file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Returns the number of begun and ended changes of the contents: while it stays even and the same, the file has the
    /// same contents.
    pub fn version(&self) -> u64 {
        self.state.version()
    }

    /// Returns up to `len` bytes from a position, at most [`MOST_READ`]: fewer at the end of the file. The bytes are
    /// those of one moment. They are views of cached blocks where possible, and then the volume's other operations do
    /// not delay the read.
    ///
    /// # Errors
    /// The errors of the disk.
    pub async fn read_chain(&self, offset: u64, len: usize) -> Result<Chain, FileError> {
        self.read_retaining(offset, len, Retention::Keep).await
    }

    /// As [`Self::read_chain`], for a caller that keeps the contents itself: their blocks do not stay in the cache.
    ///
    /// # Errors
    /// As [`Self::read_chain`].
    pub async fn read_once(&self, offset: u64, len: usize) -> Result<Chain, FileError> {
        self.read_retaining(offset, len, Retention::Forget).await
    }

    pub(crate) async fn read_retaining(
        &self,
        offset: u64,
        len: usize,
        retention: Retention,
    ) -> Result<Chain, FileError> {
        let len = len.min(MOST_READ);
        if let Some(cache) = &self.volume.shared.cache {
            for _ in 0..TRIES {
                match self.read_directly(cache, offset, len, retention).await? {
                    DirectRead::Done(read) => return Ok(read),
                    DirectRead::Changed => {}
                    DirectRead::Impossible => break,
                }
            }
        }
        self.read_on_fiber(offset, len).await
    }

    /// Reads past the fiber, unless the file changes meanwhile.
    async fn read_directly(
        &self,
        cache: &BlockCache,
        offset: u64,
        len: usize,
        retention: Retention,
    ) -> Result<DirectRead, FileError> {
        let (version, id) = (self.state.version(), self.id);
        let (mut read, mut maps) = (Chain::new(), 0);
        while read.len() < len {
            let position = offset.saturating_add(read.len() as u64);
            let outcome = match self.state.plan(position, len - read.len()) {
                Plan::Direct(pieces) if pieces.is_empty() => break,
                Plan::Direct(pieces) => {
                    read_pieces(cache, pieces, retention).await.map(|pieces| read.append(pieces))
                }
                Plan::Unknown if maps < MOST_MAPS => {
                    maps += 1;
                    let learn = move |mounted: &mut Mounted| mounted.learn_extents(id, position);
                    if !self.volume.run(learn).await? {
                        return Ok(DirectRead::Impossible);
                    }
                    Ok(())
                }
                Plan::Unknown | Plan::ByFileSystem => return Ok(DirectRead::Impossible),
            };
            if self.state.version() != version {
                return Ok(DirectRead::Changed);
            }
            outcome?;
        }
        Ok(DirectRead::Done(read))
    }

    /// Appends up to `len` bytes from a position to `into` without waiting, as views, as far as they are in the cache.
    /// Returns `None` if only [`Self::read_chain`] can read the file at present.
    pub fn append_cached(&self, offset: u64, len: usize, into: &mut Chain) -> Option<CachedRead> {
        let cache = self.volume.shared.cache.as_ref()?;
        let (len, at_end) = self.state.append_cached(cache, offset, len, into)?;
        Some(CachedRead { len, at_end })
    }

    /// Reads on the volume's fiber, with a copy.
    async fn read_on_fiber(&self, offset: u64, len: usize) -> Result<Chain, FileError> {
        let id = self.id;
        let read = move |mounted: &mut Mounted| {
            let file_system = mounted.file_system()?;
            let rest = file_system.metadata(id)?.len.saturating_sub(offset);
            let len = len.min(usize::try_from(rest).unwrap_or(usize::MAX));
            let mut buffer = IoBufMut::with_room(0, len);
            buffer.extend();
            let count = file_system.read(id, offset, buffer.data_mut())?;
            buffer.truncate(count);
            Ok(Chain::from(buffer.freeze()))
        };
        self.volume.run(read).await
    }

    /// Returns up to `len` bytes from a position in one buffer, at most [`MOST_READ`]: fewer at the end of the file.
    /// [`Self::read_chain`] does not copy.
    ///
    /// # Errors
    /// The errors of the disk.
    pub async fn read(&self, offset: u64, len: usize) -> Result<IoBuf, FileError> {
        let mut chain = self.read_chain(offset, len).await?;
        if chain.parts().len() == 1 {
            return Ok(chain.pop_front().unwrap_or_else(|| IoBuf::from_static(&[])));
        }
        let mut buffer = IoBufMut::with_room(0, chain.len());
        buffer.extend();
        // The buffer is as long as the chain.
        let _ = chain.copy_to_slice(buffer.data_mut());
        Ok(buffer.freeze())
    }

    /// Writes bytes at a position. The file grows if necessary; a gap reads as zeros. Only [`Self::sync`] makes the
    /// write permanent.
    ///
    /// # Errors
    /// [`FileError::NoSpace`], [`FileError::ReadOnly`], and the errors of the disk. A part may have been written.
    pub async fn write(&self, offset: u64, from: impl Into<Chain>) -> Result<(), FileError> {
        let (id, from) = (self.id, from.into());
        let write = move |file_system: &mut dyn FileSystem| {
            let mut offset = offset;
            for part in from.parts() {
                file_system.write(id, offset, part)?;
                offset = offset.checked_add(part.len() as u64).ok_or(FileError::TooLarge)?;
            }
            Ok(())
        };
        self.volume.run(move |mounted| mounted.change(id, write)).await
    }

    /// Sets the length. New bytes are zeros.
    ///
    /// # Errors
    /// As [`Self::write`], and [`FileError::Fragmented`].
    pub async fn truncate(&self, len: u64) -> Result<(), FileError> {
        let id = self.id;
        let truncate = move |file_system: &mut dyn FileSystem| file_system.truncate(id, len);
        self.volume.run(move |mounted| mounted.change(id, truncate)).await
    }

    /// Returns the metadata.
    ///
    /// # Errors
    /// The errors of the disk.
    pub async fn metadata(&self) -> Result<Metadata, FileError> {
        let id = self.id;
        self.volume.run(move |mounted| mounted.file_system()?.metadata(id)).await
    }

    /// Makes all changes of the volume permanent, those of this file included.
    ///
    /// # Errors
    /// The errors of the disk.
    pub async fn sync(&self) -> Result<(), FileError> {
        self.volume.sync().await
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let id = self.id;
        // An error leaves the storage in use until the next mount.
        self.volume.shared.jobs.add(Box::new(move |mounted| {
            let _ = mounted.close(id);
        }));
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Volume")
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("id", &self.id).finish()
    }
}
