//! The server of a service cell's volumes: other cells mount them.
//!
//! Each block device of the cell is a volume, with the last part of its path as its name. A device with a partition table
//! has a volume for each partition instead, by the partition's name.

use crate::storage::{MountError, MountFailure, adopt};
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use isola_abi::volume::VolumeMount;
use isola_block::{BlockDevice, BlockSettings};
use isola_channels::ChannelError;
use isola_ebbs::platform;
use isola_platform::block::VolumePort;
use isola_resources::DISK;
use isola_volume_service::partitions::{self, Partition, PartitionError};
use isola_volume_service::server::{MOST_IN_DISK, ServedDevice, serve};

/// The reason why a cell cannot serve its volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServeError {
    /// It has none.
    NoVolume,
    /// A device does not work.
    Device(MountError),
    /// The partitions of a device cannot be served.
    Partitions {
        /// The path of the volume.
        path: String,
        /// The reason.
        reason: PartitionError,
    },
    /// A volume has no name of 1 to 24 bytes, or two have the same.
    Name {
        /// The path of the volume.
        path: String,
        /// The reason.
        reason: ChannelError,
    },
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVolume => f.write_str("there is no volume to serve: start the cell with -v VOLUME:/NAME"),
            Self::Device(error) => error.fmt(f),
            Self::Partitions { path, reason } => write!(f, "the volume at {path}: {reason}"),
            Self::Name { path, reason } => {
                write!(f, "the volume at {path} cannot be served by the last part of its path: {reason}")
            }
        }
    }
}

impl core::error::Error for ServeError {}

/// Serves all block devices of the cell, on its first core, to the cells that it accepts. Returns the names of the volumes.
///
/// # Errors
/// A [`ServeError`].
pub async fn serve_volumes() -> Result<Vec<String>, ServeError> {
    let ports = platform().open_volumes();
    let expected = &platform().descriptor().volumes;
    let is_open = |mount: &VolumeMount| ports.iter().any(|port| port.mount.path == mount.path);
    // The platform leaves out a device that does not work, after it has printed the reason.
    let failed =
        |path: &str| ServeError::Device(MountError { path: path.to_string(), reason: MountFailure::Device });
    if let Some(mount) = expected.iter().find(|mount| !is_open(mount)) {
        return Err(failed(&mount.path));
    }
    let mut names = Vec::new();
    for VolumePort { mount: VolumeMount { path, access, .. }, port } in ports {
        let settings =
            BlockSettings { resource: Some(DISK), depth: MOST_IN_DISK, ..BlockSettings::default() };
        let device = BlockDevice::start(port, settings).map_err(|_| failed(&path))?;
        adopt(&device);
        let table = partitions::read(&device).await;
        let table = table.map_err(|reason| ServeError::Partitions { path: path.clone(), reason })?;
        let whole = || {
            let name = path.rsplit('/').next().unwrap_or_default().to_string();
            vec![Partition { name, first: 0, sectors: device.capacity() }]
        };
        for Partition { name, first, sectors } in table.unwrap_or_else(whole) {
            let served = ServedDevice { name: name.clone(), device: device.clone(), first, sectors, access };
            serve(served).map_err(|reason| ServeError::Name { path: path.clone(), reason })?;
            names.push(name);
        }
    }
    if names.is_empty() { Err(ServeError::NoVolume) } else { Ok(names) }
}
