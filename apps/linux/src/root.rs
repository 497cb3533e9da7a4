//! The mounts: the root volume below a layer in memory, further volumes, and the file systems that the personality makes.

use alloc::sync::Arc;
use isola::prelude::*;
use isola::storage::{self, Volumes};
use isola_linux_files::FileSystem;
use isola_linux_files::{
    Caller, CallerIds, Console, Credentials, DescriptorTable, DevPts, DeviceTable, Errno, LastLink,
    MountFlags, MountedFileSystem, Namespace, OverlayFs, TmpFs, TmpFsOptions, View, VolumeFs,
    device_file_system,
};
use isola_linux_processes::System;
use isola_linux_processes::proc::{proc_file_system, sys_file_system};

/// The part of the memory that files in memory may use: those of the layer above the root volume, and those of each
/// further file system in memory.
const MEMORY_PART: u64 = 4;

/// The mounts.
pub struct Root {
    /// All mounts.
    pub namespace: Arc<Namespace>,
    devices: Arc<DeviceTable>,
    volumes: Volumes,
}

/// Mounts the volumes, and `/dev`.
///
/// # Errors
/// A text for people.
pub async fn mount(console: &Arc<Console>) -> Result<Root, String> {
    let volumes = storage::mount().await.map_err(|error| error.to_string())?;
    let text = |error: &dyn core::fmt::Display| error.to_string();
    let root = volumes.iter().find(|volume| volume.path == "/").ok_or(
        "no volume is mounted at /: isola volume create ROOT --size SIZE --from DIRECTORY, then \
         isola run -v ROOT:/:ro linux ...",
    )?;
    let lower = VolumeFs::new(root.volume.share()).await.map_err(|error| text(&error))?;
    let devices = Arc::new(DeviceTable::default());
    let options = TmpFsOptions { devices: devices.clone(), ..files_in_memory(0o755) };
    let root = OverlayFs::new(&*lower, TmpFs::new(options));
    let namespace = Namespace::new(MountedFileSystem::new(root), b"overlay", MountFlags::default());
    let root = Root { namespace, devices: devices.clone(), volumes };
    let random = |bytes: &mut [u8]| {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&isola::entropy().to_le_bytes()[..piece.len()]);
        }
    };
    let dev = device_file_system(&devices, console, random).map_err(|error| text(&error))?;
    root.mount_at("/dev", dev, "devtmpfs", false).await?;
    root.mount_at("/dev/shm", TmpFs::new(files_in_memory(0o1777)), "tmpfs", false).await?;
    for volume in root.volumes.iter().filter(|volume| volume.path != "/") {
        let files = VolumeFs::new(volume.volume.share()).await.map_err(|error| text(&error))?;
        root.mount_at(&volume.path, files, &volume.name, true).await?;
    }
    Ok(root)
}

/// Returns the options of a file system in memory.
fn files_in_memory(permissions: u32) -> TmpFsOptions {
    TmpFsOptions { permissions, ..TmpFsOptions::of_len(isola::memory_free() as u64 / MEMORY_PART) }
}

impl Root {
    /// Mounts `/proc` and `/sys`, which show the state of the system, and `/dev/pts` with its terminals.
    ///
    /// # Errors
    /// A text for people.
    pub async fn mount_generated(&self, system: &Arc<System>) -> Result<(), String> {
        system.terminals.register(&self.devices);
        self.mount_at("/dev/pts", DevPts::new(&system.terminals), "devpts", false).await?;
        self.mount_at("/proc", proc_file_system(system), "proc", false).await?;
        self.mount_at("/sys", sys_file_system(system), "sysfs", true).await
    }

    /// Mounts a file system at a path, whose directories are created if they do not exist.
    async fn mount_at(
        &self,
        path: &str,
        files: Arc<dyn FileSystem>,
        source: &str,
        read_only: bool,
    ) -> Result<(), String> {
        let view = View::new(self.namespace.clone());
        let (credentials, descriptors) = (Credentials::root(), DescriptorTable::new());
        let ids = CallerIds { process: 1, thread: 1 };
        let caller = Caller { view: &view, credentials: &credentials, descriptors: &descriptors, ids };
        let here = isola_linux_files::AT_FDCWD;
        for (end, _) in
            path.char_indices().skip(1).filter(|(_, letter)| *letter == '/').chain([(path.len(), '/')])
        {
            match caller.make_directory_at(here, &path.as_bytes()[..end], 0o755).await {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(format!("{path} cannot be created: {error}")),
            }
        }
        let failed = |error: Errno| format!("{path} cannot be mounted: {error}");
        let point = caller.locate(here, path.as_bytes(), LastLink::Follow).await.map_err(failed)?;
        let flags = MountFlags { read_only, ..MountFlags::default() };
        let mounted = MountedFileSystem::new(files);
        self.namespace.mount(&point, mounted, source.as_bytes(), flags).map_err(failed)?;
        Ok(())
    }
}
