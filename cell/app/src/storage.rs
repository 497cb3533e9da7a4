//! The cell's volumes: file systems on its block devices, which keep their files across cells and machines.
//!
//! ```ignore
//! let volumes = storage::mount().await?;
//! let (volume, path) = volumes.find("/data/greeting").ok_or("no volume at /data")?;
//! let file = volume.create(path).await?;
//! file.write(0, IoBuf::copy_from_slice(b"hello")).await?;
//! file.sync().await?;
//! volumes.unmount().await?;
//! ```
//!
//! [`DISK`] is the resource by whose policy the requests to the devices are ordered, and
//! [`FILES`](isola_resources::FILES) that for the operations of the file systems.

pub use crate::folder_server::{ServeFoldersError, serve_folders};
pub use crate::volume_server::{ServeError, serve_volumes};
pub use isola_abi::volume::VolumeAccess;
pub use isola_block::BlockError;
pub use isola_block_cache::{BlockCache, Budget, CacheUse};
pub use isola_volume_service::client::ConnectError;
pub use isola_volumes::{
    CachedRead, Entry, File, FileError, FileKind, FileSink, FileSource, ListPosition, MOST_READ, Metadata,
    NAME_LEN, OpenedFile, SharedFile, SharedVolume, Space, Volume,
};

use crate::memory::{HolderRegistration, MemoryHolder, ReclaimCause, VacatedMemory, register_memory_holder};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_abi::grid::Resource;
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_abi::service::ServedVolume;
use isola_abi::volume::VolumeMount;
use isola_block::{BlockDevice, BlockSettings};
use isola_block_cache::CacheSettings;
use isola_ebbs::{Ebb, Representative, current_core, platform};
use isola_platform::block::{BlockPort, VolumePort};
use isola_resources::{DISK, merged};
use isola_volume_service::client;
use isola_volumes::Access;

/// The divisor of the cell's memory that gives the share for the caches of all volumes.
const CACHE_PART: usize = 4;

/// The most blocks that one event moves to other memory.
const MOST_VACATED: usize = 64;

/// The devices that a core serves.
static DEVICES: Ebb<Devices> = Ebb::new();

#[derive(Default)]
struct Devices {
    devices: RefCell<Vec<BlockDevice>>,
    caches: RefCell<Vec<BlockCache>>,
}

impl Representative for Devices {
    fn create() -> Self {
        Self::default()
    }
}

/// The mounted volumes of the cell, on the core that called [`mount`].
pub struct Volumes {
    mounted: Vec<MountedVolume>,
}

/// A mounted volume.
pub struct MountedVolume {
    /// Its name.
    pub name: String,
    /// The path at which it is mounted.
    pub path: String,
    /// What the cell may do with it.
    pub access: VolumeAccess,
    /// The file system.
    pub volume: Volume,
    /// The cache of its blocks; `None` for a folder of a service cell, which has the blocks.
    pub cache: Option<BlockCache>,
    _holder: Option<HolderRegistration>,
}

/// A volume that cannot be mounted, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountError {
    /// The path at which it was to be mounted.
    pub path: String,
    /// The reason.
    pub reason: MountFailure,
}

/// The reason why a volume cannot be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountFailure {
    /// The device does not work.
    Device,
    /// The service cell that has the volume does not serve it.
    Service(ConnectError),
    /// The device does not fit the cache.
    Block(BlockError),
    /// The file system cannot be read.
    File(FileError),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the volume at {} cannot be mounted: ", self.path)?;
        match &self.reason {
            MountFailure::Device => {
                f.write_str("its block device does not work; the line before has the reason")
            }
            MountFailure::Service(error) => error.fmt(f),
            MountFailure::Block(error) => error.fmt(f),
            MountFailure::File(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for MountError {}

/// Mounts the cell's volumes on the calling core, in the order of the cell's specification. A cell without volumes, and
/// every call after the first, gets none.
///
/// # Errors
/// [`MountError`] for the first volume that cannot be mounted; the others are unmounted again.
pub async fn mount() -> Result<Volumes, MountError> {
    static MOUNTED: AtomicBool = AtomicBool::new(false);
    if MOUNTED.swap(true, Ordering::Relaxed) {
        return Ok(Volumes { mounted: Vec::new() });
    }
    let ports = platform().open_volumes();
    let served = &platform().descriptor().served_volumes;
    let capacity = crate::memory_total() / CACHE_PART / (ports.len() + served.len()).max(1);
    let mut volumes = Volumes { mounted: Vec::new() };
    let expected = &platform().descriptor().volumes;
    let is_open = |mount: &VolumeMount| ports.iter().any(|port| port.mount.path == mount.path);
    // The platform leaves out a device that does not work, after it has printed the reason.
    let broken = expected.iter().find(|mount| !is_open(mount));
    if let Some(mount) = broken {
        return Err(MountError { path: mount.path.clone(), reason: MountFailure::Device });
    }
    let settings = BlockSettings { resource: Some(DISK), ..BlockSettings::default() };
    for VolumePort { mount: VolumeMount { name, path, access, .. }, port } in ports {
        volumes.mounted.push(mount_one(Mounting { name, path, access, settings }, port, capacity).await?);
    }
    for volume in served {
        volumes.mounted.push(mount_served(volume, settings, capacity).await?);
    }
    Ok(volumes)
}

/// Mounts what a service cell serves: its offer says whether it is a volume or a folder.
async fn mount_served(
    served: &ServedVolume,
    settings: BlockSettings,
    capacity: usize,
) -> Result<MountedVolume, MountError> {
    let ServedVolume { path, access, .. } = served.clone();
    let name = format!("{}@{}", served.name, served.cell);
    let failed = |error| MountError { path: path.clone(), reason: MountFailure::Service(error) };
    let (channel, offer) = client::introduce(served).await.map_err(failed)?;
    if offer.device_type == isola_folder_service::DEVICE_TYPE {
        let folder = isola_folder_service::client::connect(served, channel, offer).await;
        let volume = folder.map_err(failed)?;
        return Ok(MountedVolume { name, path, access, volume, cache: None, _holder: None });
    }
    let port = client::connect(served, channel, offer).await.map_err(failed)?;
    let settings = BlockSettings { time_limit: client::TIME_LIMIT, ..settings };
    mount_one(Mounting { name, path, access, settings }, port, capacity).await
}

/// A volume that is about to be mounted.
struct Mounting {
    name: String,
    path: String,
    access: VolumeAccess,
    settings: BlockSettings,
}

async fn mount_one(
    mounting: Mounting,
    port: BlockPort,
    capacity: usize,
) -> Result<MountedVolume, MountError> {
    let Mounting { name, path, access, settings } = mounting;
    let failed = |reason| MountError { path: path.clone(), reason };
    let device = BlockDevice::start(port, settings).map_err(|_| failed(MountFailure::Device))?;
    adopt(&device);
    let settings = CacheSettings { capacity, dirty: capacity / 4, seed: platform().entropy() };
    let cache = BlockCache::new(device, settings).map_err(|error| failed(MountFailure::Block(error)))?;
    let mount_access = match access {
        VolumeAccess::ReadWrite => Access::ReadWrite,
        VolumeAccess::ReadOnly => Access::ReadOnly,
    };
    DEVICES.caches.borrow_mut().push(cache.clone());
    let volume = Volume::mount(cache.clone(), mount_access)
        .await
        .map_err(|error| failed(MountFailure::File(error)))?;
    let holder = register_memory_holder(CachedBlocks(cache.clone()));
    Ok(MountedVolume { name, path, access, volume, cache: Some(cache), _holder: Some(holder) })
}

/// The blocks of a cache as memory that the cell could do without.
struct CachedBlocks(BlockCache);

impl MemoryHolder for CachedBlocks {
    fn held(&self, _: ReclaimCause) -> Vec<(ActivityId, usize)> {
        self.0.held()
    }

    fn free(&self, _: ReclaimCause, activity: ActivityId, len_bytes: usize) -> usize {
        self.0.shrink_activity(activity, len_bytes)
    }

    fn vacate(&self, memory: &VacatedMemory, _: u64) -> Option<u64> {
        let originals = self.0.vacate(memory, MOST_VACATED);
        (originals.len() == MOST_VACATED).then_some(0)
    }
}

impl Volumes {
    /// Returns the volumes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &MountedVolume> {
        self.mounted.iter()
    }

    /// Returns the volume that contains an absolute path, and the rest of the path in that volume.
    pub fn find<'a>(&self, path: &'a str) -> Option<(&Volume, &'a str)> {
        let within = |mounted: &MountedVolume| {
            // The root contains every path, and its own ends with the slash that begins the rest.
            let rest = path.strip_prefix(mounted.path.trim_end_matches('/'))?;
            (rest.is_empty() || rest.starts_with('/')).then_some(rest)
        };
        let all = self.mounted.iter().filter_map(|mounted| Some((mounted, within(mounted)?)));
        // A volume can be mounted below another one.
        let (mounted, rest) = all.min_by_key(|(_, rest)| rest.len())?;
        Some((&mounted.volume, if rest.is_empty() { "/" } else { rest }))
    }

    /// Makes all changes permanent, and unmounts all volumes. A cell that ends without it loses the changes since the
    /// last sync, and its next mount takes longer.
    ///
    /// # Errors
    /// The first error, with the path; the other volumes are unmounted nevertheless. After [`FileError::InUse`], a later
    /// call can unmount the rest.
    pub async fn unmount(&self) -> Result<(), MountError> {
        let mut result = Ok(());
        for mounted in &self.mounted {
            // One that was unmounted before needs no more.
            if let Err(error) = mounted.volume.unmount().await
                && error != FileError::Unmounted
            {
                let failed = MountError { path: mounted.path.clone(), reason: MountFailure::File(error) };
                result = result.and(Err(failed));
            }
        }
        result
    }
}

impl fmt::Debug for Volumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.mounted.iter().map(|mounted| &mounted.path)).finish()
    }
}

/// Returns the memory of the cached blocks of the calling core's devices, in bytes.
pub(crate) fn cached_bytes() -> usize {
    DEVICES.caches.borrow().iter().map(BlockCache::memory_bytes).sum()
}

/// Adds a device to those that this core reports.
pub(crate) fn adopt(device: &BlockDevice) {
    DEVICES.devices.borrow_mut().push(device.clone());
}

/// Returns the clients of the calling core's devices, by activity.
pub(crate) fn disk_report() -> Vec<GridClient> {
    let devices = DEVICES.devices.borrow();
    merged(devices.iter().flat_map(|device| device.grid_report(Resource::Disk, current_core().0)))
}
