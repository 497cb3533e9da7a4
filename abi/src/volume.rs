//! Volumes: block devices with file systems that a cell mounts.

use crate::id::DeviceLocation;
use crate::service::ServedVolume;
use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};

/// The most volumes of a cell.
pub const MAX_VOLUMES: usize = 8;

/// The most bytes of a volume's name.
pub const MAX_VOLUME_NAME_LEN: usize = 63;

/// The most bytes of a volume's path in a cell.
pub const MAX_VOLUME_PATH_LEN: usize = 255;

/// A volume, and its place in the cell's file tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// The block device that contains the volume.
    pub device: DeviceLocation,
    /// The volume's name, for users.
    pub name: String,
    /// The path at which the cell mounts it: absolute, without `.`, `..` and empty components, and not the root.
    pub path: String,
    /// What the cell may do with it. The cell enforces it; the host also protects a read-only volume from the cell.
    pub access: VolumeAccess,
}

/// What a cell may do with a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeAccess {
    /// Read and write.
    #[default]
    ReadWrite,
    /// Read only.
    ReadOnly,
}

/// The reason why a volume cannot be mounted as specified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeError {
    /// There are more than [`MAX_VOLUMES`].
    TooMany,
    /// A name is empty or longer than [`MAX_VOLUME_NAME_LEN`].
    Name,
    /// A path is not absolute, is too long, or has components that it must not have.
    Path,
    /// Two volumes have the same path.
    SamePath,
    /// Two volumes have the same device.
    SameDevice,
    /// The name of a service cell, or of a volume that it serves, is empty, too long or contains a `/`.
    ServiceName,
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooMany => "a cell has at most 8 volumes",
            Self::Name => "the name of a volume has 1 to 63 bytes",
            Self::Path => {
                "the path of a volume is absolute, at most 255 bytes long, not /, and without . and .. in it"
            }
            Self::SamePath => "two volumes have the same path",
            Self::SameDevice => "two volumes have the same block device",
            Self::ServiceName => "the name of a volume of a service cell has 1 to 24 bytes and no `/`",
        })
    }
}

impl core::error::Error for VolumeError {}

/// Checks the volumes of a cell as far as possible without the machine.
///
/// # Errors
/// The first [`VolumeError`].
pub fn validate(volumes: &[VolumeMount]) -> Result<(), VolumeError> {
    if volumes.len() > MAX_VOLUMES {
        return Err(VolumeError::TooMany);
    }
    for (index, volume) in volumes.iter().enumerate() {
        let earlier = &volumes[..index];
        if volume.name.is_empty() || volume.name.len() > MAX_VOLUME_NAME_LEN {
            return Err(VolumeError::Name);
        }
        if !is_mount_path(&volume.path) {
            return Err(VolumeError::Path);
        }
        if earlier.iter().any(|other| other.path == volume.path) {
            return Err(VolumeError::SamePath);
        }
        if earlier.iter().any(|other| other.device == volume.device) {
            return Err(VolumeError::SameDevice);
        }
    }
    Ok(())
}

/// Checks the volumes of a cell that service cells serve, beside those of its own block devices.
///
/// # Errors
/// The first [`VolumeError`].
pub fn validate_served(volumes: &[VolumeMount], served: &[ServedVolume]) -> Result<(), VolumeError> {
    if volumes.len() + served.len() > MAX_VOLUMES {
        return Err(VolumeError::TooMany);
    }
    for (index, volume) in served.iter().enumerate() {
        if !volume.has_valid_names() {
            return Err(VolumeError::ServiceName);
        }
        if !is_mount_path(&volume.path) {
            return Err(VolumeError::Path);
        }
        let others = volumes.iter().map(|other| &other.path);
        if others.chain(served[..index].iter().map(|other| &other.path)).any(|path| *path == volume.path) {
            return Err(VolumeError::SamePath);
        }
    }
    Ok(())
}

/// Returns whether a volume can be mounted at `path`.
pub fn is_mount_path(path: &str) -> bool {
    let Some(relative) = path.strip_prefix('/') else { return false };
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    path.len() <= MAX_VOLUME_PATH_LEN && (relative.is_empty() || relative.split('/').all(is_name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn volume(number: u8, name: &str, path: &str) -> VolumeMount {
        let device = DeviceLocation::Pci { bus: 0, device: number, function: 0 };
        VolumeMount { device, name: name.into(), path: path.into(), access: VolumeAccess::ReadWrite }
    }

    #[test]
    fn only_absolute_paths_without_special_components_can_be_mounted() {
        for good in ["/", "/data", "/var/www", "/a.b/..c"] {
            assert!(is_mount_path(good), "{good}");
        }
        let long = alloc::format!("/{}", "x".repeat(MAX_VOLUME_PATH_LEN));
        for bad in ["", "data", "/data/", "//data", "/a/../b", "/a/./b", "/..", "/a\0b", &long] {
            assert!(!is_mount_path(bad), "{bad}");
        }
    }

    #[test]
    fn volumes_that_contradict_each_other_are_refused() {
        let two = |second| validate(&[volume(1, "a", "/a"), second]);
        assert_eq!(two(volume(2, "a", "/b")), Ok(()), "one volume may be mounted twice, by two devices");
        assert_eq!(two(volume(2, "b", "/a")), Err(VolumeError::SamePath));
        assert_eq!(two(volume(1, "b", "/b")), Err(VolumeError::SameDevice));
        assert_eq!(two(volume(2, "", "/b")), Err(VolumeError::Name));
        assert_eq!(two(volume(2, &"n".repeat(64), "/b")), Err(VolumeError::Name));
        assert_eq!(two(volume(2, "b", "b")), Err(VolumeError::Path));
        let many = |count: u8| -> Vec<VolumeMount> {
            (0..count).map(|number| volume(number, "v", &alloc::format!("/{number}"))).collect()
        };
        assert_eq!(validate(&many(8)), Ok(()));
        assert_eq!(validate(&many(9)), Err(VolumeError::TooMany));
    }

    #[test]
    fn served_volumes_share_paths_and_number_with_the_others() {
        let served = |name: &str, path: &str| ServedVolume {
            cell: "store".into(),
            name: name.into(),
            path: path.into(),
            access: VolumeAccess::ReadWrite,
        };
        let own = [volume(1, "a", "/a")];
        let check = |list: &[ServedVolume]| validate_served(&own, list);
        assert_eq!(check(&[served("b", "/b"), served("b", "/c")]), Ok(()));
        assert_eq!(check(&[served("b", "/a")]), Err(VolumeError::SamePath));
        assert_eq!(check(&[served("b", "/b"), served("c", "/b")]), Err(VolumeError::SamePath));
        assert_eq!(check(&[served("b", "b")]), Err(VolumeError::Path));
        assert_eq!(check(&[served("", "/b")]), Err(VolumeError::ServiceName));
        let many: Vec<_> = (0..8).map(|number| served("b", &alloc::format!("/b{number}"))).collect();
        assert_eq!(check(&many), Err(VolumeError::TooMany));
        assert_eq!(check(&many[..7]), Ok(()));
    }
}
