//! The mounts: the root volume, further volumes, and the file systems that the personality makes.
//!
//! A root volume for reading is below a layer in memory, which has all changes. A volume for changes is synced a short time
//! after a change, and when the cell ends.

use alloc::sync::Arc;
use core::time::Duration;
use isola::events::spawn_task;
use isola::prelude::*;
use isola::storage::{self, MountedVolume, VolumeAccess, Volumes};
use isola_linux::{TmpfsMount, User};
use isola_linux_abi::numbers::{O_CREAT, O_EXCL, O_WRONLY};
use isola_linux_files::FileSystem;
use isola_linux_files::{
    Caller, CallerIds, Console, Credentials, DescriptorTable, DevPts, DeviceTable, Errno, LastLink,
    MountFlags, MountedFileSystem, Namespace, O_NONBLOCK, OverlayFs, TmpFs, TmpFsOptions, View,
    VolumeChanges, VolumeFs, device_file_system,
};
use isola_linux_memory::UserBuffer;
use isola_linux_processes::System;
use isola_linux_processes::cgroup::cgroup_file_system;
use isola_linux_processes::proc::{proc_file_system, sys_file_system};

/// The part of the memory that files in memory may use: those of the layer above the root volume, and those of each
/// further file system in memory.
const MEMORY_PART: u64 = 4;

/// The most bytes of `/etc/passwd` and `/etc/group` that are read.
const MOST_USERS_LEN: u64 = 1 << 20;

/// The time from a change of a volume to its sync, as Linux's for ext4.
const SYNC_AFTER: Duration = Duration::from_secs(5);

/// The part of the memory that the pages of each volume's files may use while nothing maps them.
const PAGES_PART: u64 = 8;

/// The mounts.
pub struct Root {
    /// All mounts.
    pub namespace: Arc<Namespace>,
    devices: Arc<DeviceTable>,
    volumes: Volumes,
    /// The volumes.
    on_volumes: Vec<Arc<VolumeFs>>,
}

/// Mounts the volumes, and `/dev`.
///
/// # Errors
/// A text for people.
pub async fn mount(console: &Arc<Console>, tmpfs: &[TmpfsMount]) -> Result<Root, String> {
    let volumes = storage::mount().await.map_err(|error| error.to_string())?;
    let text = |error: &dyn core::fmt::Display| error.to_string();
    let root_volume = volumes.iter().find(|volume| volume.path == "/").ok_or(
        "no volume is mounted at /: isola run --rootfs DIRECTORY -- PROGRAM ..., or isola run -v VOLUME:/:ro linux ...",
    )?;
    let devices = Arc::new(DeviceTable::default());
    let lower = files_of(root_volume).await.map_err(|error| text(&error))?;
    let mut on_volumes = alloc::vec![lower.clone()];
    let (files, source): (Arc<dyn FileSystem>, _) = match root_volume.access {
        VolumeAccess::ReadWrite => (lower, root_volume.name.as_bytes().to_vec()),
        VolumeAccess::ReadOnly => {
            let options = TmpFsOptions { devices: devices.clone(), ..files_in_memory(0o755) };
            (OverlayFs::new(&*lower, TmpFs::new(options)), b"overlay".to_vec())
        }
    };
    let namespace = Namespace::new(MountedFileSystem::new(files), &source, MountFlags::default());
    let mut root = Root { namespace, devices: devices.clone(), volumes, on_volumes: Vec::new() };
    let random = |bytes: &mut [u8]| {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&isola::entropy().to_le_bytes()[..piece.len()]);
        }
    };
    let dev = device_file_system(&devices, console, random).map_err(|error| text(&error))?;
    root.mount_at("/dev", dev, "devtmpfs", false).await?;
    root.mount_at("/dev/shm", TmpFs::new(files_in_memory(0o1777)), "tmpfs", false).await?;
    for volume in root.volumes.iter().filter(|volume| volume.path != "/") {
        let files = files_of(volume).await.map_err(|error| text(&error))?;
        on_volumes.push(files.clone());
        root.mount_at(&volume.path, files, &volume.name, volume.access == VolumeAccess::ReadOnly).await?;
    }
    root.on_volumes = on_volumes;
    for files in root.on_volumes.iter().filter(|files| files.is_writable()) {
        spawn_task(sync_after_changes(files.clone())).detach();
    }
    for mount in tmpfs {
        let options = match mount.len_bytes {
            Some(bytes) => TmpFsOptions { permissions: mount.permissions, ..TmpFsOptions::of_len(bytes) },
            None => files_in_memory(mount.permissions),
        };
        root.mount_at(&mount.path, TmpFs::new(options), "tmpfs", false).await?;
    }
    Ok(root)
}

/// Returns the files of a volume.
async fn files_of(mounted: &MountedVolume) -> Result<Arc<VolumeFs>, storage::FileError> {
    let changes = match mounted.access {
        VolumeAccess::ReadWrite => VolumeChanges::Permitted,
        VolumeAccess::ReadOnly => VolumeChanges::Refused,
    };
    let most_pages = isola::memory_total() as u64 / PAGES_PART / 4096;
    VolumeFs::new(mounted.volume.share(), changes, most_pages).await
}

/// Makes changes of a volume permanent, a short time after each first one.
async fn sync_after_changes(files: Arc<VolumeFs>) {
    loop {
        files.changed().await;
        isola::events::sleep(SYNC_AFTER).await;
        if let Err(error) = files.sync().await {
            println!("linux: changes of a volume cannot be written: {error}");
        }
    }
}

/// Returns the options of a file system in memory.
fn files_in_memory(permissions: u32) -> TmpFsOptions {
    TmpFsOptions { permissions, ..TmpFsOptions::of_len(isola::memory_free() as u64 / MEMORY_PART) }
}

impl Root {
    /// Returns the file systems of the volumes.
    pub fn volumes(&self) -> &[Arc<VolumeFs>] {
        &self.on_volumes
    }

    /// Makes the changes of all volumes permanent and unmounts them, when the processes have ended. Files that they had open,
    /// or that a copy of the host tool reads, are closed.
    pub async fn close(self) {
        for files in &self.on_volumes {
            if let Err(error) = files.close().await {
                println!("linux: changes of a volume cannot be written: {error}");
            }
        }
        if let Err(error) = self.volumes.unmount().await {
            // The next mount replays the journal.
            println!("linux: a volume cannot be unmounted: {error}");
        }
    }

    /// Mounts `/proc` and `/sys`, which show the state of the system, and `/dev/pts` with its terminals.
    ///
    /// # Errors
    /// A text for people.
    pub async fn mount_generated(&self, system: &Arc<System>) -> Result<(), String> {
        system.terminals.register(&self.devices);
        self.mount_at("/dev/pts", DevPts::new(&system.terminals), "devpts", false).await?;
        self.mount_at("/proc", proc_file_system(system), "proc", false).await?;
        self.mount_at("/sys", sys_file_system(system), "sysfs", true).await?;
        self.mount_at("/sys/fs/cgroup", cgroup_file_system(system), "cgroup2", false).await
    }

    /// Creates a file with these contents, unless it exists.
    ///
    /// # Errors
    /// A text for people.
    pub async fn create_file(&self, path: &str, contents: &str) -> Result<(), String> {
        let view = View::new(self.namespace.clone());
        let (credentials, descriptors) = (Credentials::root(), DescriptorTable::new());
        let ids = CallerIds { process: 1, thread: 1 };
        let caller = Caller { view: &view, credentials: &credentials, descriptors: &descriptors, ids };
        let flags = O_CREAT | O_EXCL | O_WRONLY;
        match caller.open_at(isola_linux_files::AT_FDCWD, path.as_bytes(), flags, 0o644).await {
            Ok(file) => {
                let mut bytes = UserBuffer::of_bytes(contents.as_bytes());
                file.write(&mut bytes).await.map_err(|error| format!("{path} cannot be written: {error}"))?;
                Ok(())
            }
            // A root volume without /etc belongs to a program that needs no such files.
            Err(Errno::EEXIST | Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
            Err(error) => Err(format!("{path} cannot be created: {error}")),
        }
    }

    /// Mounts a file system at a path, whose directories are created if they do not exist.
    ///
    /// # Errors
    /// A text for people.
    pub async fn mount_at(
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

/// Finds the user that a text names, by the files of the root file system.
///
/// # Errors
/// A text for people.
pub async fn find_user(namespace: &Arc<Namespace>, text: &str) -> Result<User, String> {
    let (passwd, group) = (read(namespace, "/etc/passwd").await, read(namespace, "/etc/group").await);
    isola_linux::find_user(text, &passwd, &group)
}

/// Returns the users that the root file system names.
pub async fn user_names(namespace: &Arc<Namespace>) -> Vec<(u32, String)> {
    isola_linux::user_names(&read(namespace, "/etc/passwd").await)
}

/// Reads the start of a file; nothing if there is none.
async fn read(namespace: &Arc<Namespace>, path: &str) -> Vec<u8> {
    let view = View::new(namespace.clone());
    let (credentials, descriptors) = (Credentials::root(), DescriptorTable::new());
    let ids = CallerIds { process: 1, thread: 1 };
    let caller = Caller { view: &view, credentials: &credentials, descriptors: &descriptors, ids };
    let here = isola_linux_files::AT_FDCWD;
    // A named pipe of that name must not wait for a writer.
    let Ok(file) = caller.open_at(here, path.as_bytes(), O_NONBLOCK, 0).await else {
        return Vec::new();
    };
    let len = file.metadata().len.min(MOST_USERS_LEN) as usize;
    file.read_bytes(0, len).await.unwrap_or_default()
}
