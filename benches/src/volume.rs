//! A volume: an ext4 file system on a block device that may have a limited rate.

use crate::error::BenchError;
use crate::program;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The slot of the block device on the bus.
pub const DISK_SLOT: u8 = 16;

/// The length of the volume in bytes.
const VOLUME_LEN: u64 = 64 << 20;

/// The volume's file on the host, removed on drop.
#[derive(Debug)]
pub struct HostVolume {
    path: PathBuf,
    _folder: TempDir,
}

impl HostVolume {
    /// Makes a volume with a file of that name, which can be executed.
    ///
    /// # Errors
    /// [`BenchError::ProgramMissing`], [`BenchError::Program`], [`BenchError::File`].
    pub fn make(name: &str, content: &[u8]) -> Result<Self, BenchError> {
        let root = tempfile::tempdir().map_err(BenchError::file(std::env::temp_dir()))?;
        let file = root.path().join(name);
        let written = fs::write(&file, content)
            .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o755)));
        written.map_err(BenchError::file(&file))?;
        Self::of_folder(root.path())
    }

    /// Makes a volume with the files of a folder.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn of_folder(root: &Path) -> Result<Self, BenchError> {
        program::need(&[("mke2fs", "e2fsprogs")])?;
        let folder = tempfile::tempdir().map_err(BenchError::file(std::env::temp_dir()))?;
        let path = folder.path().join("volume");
        let made = File::create(&path).and_then(|file| file.set_len(VOLUME_LEN));
        made.map_err(BenchError::file(&path))?;
        let (root, volume) = (root.to_string_lossy().into_owned(), path.to_string_lossy().into_owned());
        let format = ["-q", "-t", "ext4", "-b", "4096", "-J", "size=4", "-d", &root, &volume];
        program::run("mke2fs", &format)?;
        Ok(Self { path, _folder: folder })
    }

    /// Returns QEMU's arguments for the device; with a rate, it transfers at most so many bytes per second.
    pub fn arguments(&self, bytes_per_s: Option<u64>) -> Vec<OsString> {
        let limit = bytes_per_s.map(|rate| format!(",throttling.bps-total={rate}")).unwrap_or_default();
        // The contents of the device stay the same for all machines.
        let drive = format!("if=none,id=volume,file={},format=raw,snapshot=on{limit}", self.path.display());
        let device = format!("virtio-blk-pci,drive=volume,disable-legacy=on,addr={DISK_SLOT:#x}");
        ["-drive", &drive, "-device", &device].map(OsString::from).into()
    }
}
