//! What a service cell and its clients agree on before they exchange requests: a virtio device over a link, with its
//! configuration in packets instead of registers.
//!
//! ```text
//!   client                                  service cell
//!   Hello ------------------------------->  reserves the device
//!         <-------------------------------  Reply::Offer, or Reply::Refused and the end
//!   shares one piece of memory, for writing
//!   DriverSetup ------------------------->  checks the queues, and serves them
//! ```
//!
//! All that the two share afterwards is that piece of memory of the client: rings, headers and buffers. Device addresses
//! in it count from [`DriverSetup::base`]. Doorbells of the link are the notifications, in both directions. The end of
//! the link is the reset of the device.

use crate::links::MAX_SERVICE_LEN;
use crate::management::MAX_NAME_LEN;
use crate::volume::VolumeAccess;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The most bytes of a message of this module.
pub const MAX_MESSAGE_BYTES: usize = 512;

/// The most queues of a device.
pub const MAX_QUEUES: usize = 4;

/// The first message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The [`crate::VERSION`] of the client.
    pub version: u32,
    /// What the client is going to do.
    pub access: VolumeAccess,
}

/// The answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The device is reserved for the client.
    Offer(DeviceOffer),
    /// The client does not get it.
    Refused(ServiceRefusal),
}

/// A virtio device, as its registers would describe it (virtio 1.2, 2 and 4.2.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOffer {
    /// The device type.
    pub device_type: u32,
    /// The offered features.
    pub features: u64,
    /// The most descriptors of each queue.
    pub queues: Vec<u16>,
    /// The device's configuration, which does not change.
    pub configuration: Vec<u8>,
}

/// The settings of a driver, which enable the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverSetup {
    /// The accepted features.
    pub features: u64,
    /// The device address of the first byte of the shared memory.
    pub base: u64,
    /// The enabled queues, in the order of [`DeviceOffer::queues`].
    pub queues: Vec<QueueSetup>,
}

/// The position of a split virtqueue, in device addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSetup {
    /// The number of descriptors.
    pub size: u16,
    /// The descriptors.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
}

/// The reason why a client does not get a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceRefusal {
    /// The client is of another version.
    Version(u32),
    /// Another client uses it.
    InUse,
    /// The client wants to write to a volume that the service has for reading.
    ReadOnly,
    /// The service does not understand the client.
    Malformed,
    /// All addresses of the service's network belong to connected clients.
    NoAddress,
}

impl fmt::Display for ServiceRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                f,
                "the service cell has version {version} of the interface, and this cell version {}: build both alike",
                crate::VERSION
            ),
            Self::InUse => f.write_str(
                "another cell uses it: mount a folder with `:ro`, since one cell can write it; a volume in all cells, since \
                 a writer excludes readers",
            ),
            Self::ReadOnly => {
                f.write_str("the service cell has the volume for reading: mount it with `:ro`")
            }
            Self::Malformed => f.write_str("the service cell does not understand this one"),
            Self::NoAddress => f.write_str(
                "the network of the service cell has no address left: start the service cell with a larger one, as in \
                 `nat 10.77.0.0/16`, which has addresses for 256 cells, or end a cell of that network",
            ),
        }
    }
}

impl core::error::Error for ServiceRefusal {}

/// Encodes a message of this module.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).unwrap_or_default()
}

/// Decodes a message of this module; `None` if it is not one.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return None;
    }
    postcard::from_bytes(bytes).ok()
}

/// A volume that a service cell serves, and its place in the client's file tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedVolume {
    /// The name of the service cell.
    pub cell: String,
    /// The name of the volume there, at most [`MAX_SERVICE_LEN`] bytes.
    pub name: String,
    /// The path at which the client mounts it, as [`crate::volume::VolumeMount::path`].
    pub path: String,
    /// What the client may do with it.
    pub access: VolumeAccess,
}

impl ServedVolume {
    /// Returns the name by which the client opens the link.
    pub fn link_name(&self) -> String {
        alloc::format!("{}/{}", self.cell, self.name)
    }

    /// Returns whether both names have a length that exists.
    pub fn has_valid_names(&self) -> bool {
        let is_name =
            |name: &str, most| !name.is_empty() && name.len() <= most && !name.contains(['/', '\0']);
        is_name(&self.cell, MAX_NAME_LEN) && is_name(&self.name, MAX_SERVICE_LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn messages_round_trip_and_others_are_refused() {
        let offer =
            DeviceOffer { device_type: 2, features: 1 << 32, queues: vec![64], configuration: vec![7; 60] };
        let reply = Reply::Offer(offer);
        assert_eq!(decode(&encode(&reply)), Some(reply));
        let queue = QueueSetup { size: 64, descriptors: 1 << 40, available: 2, used: 3 };
        let setup = DriverSetup { features: 1, base: 1 << 40, queues: vec![queue; MAX_QUEUES] };
        let bytes = encode(&setup);
        assert!(bytes.len() < MAX_MESSAGE_BYTES);
        assert_eq!(decode(&bytes), Some(setup));
        assert_eq!(decode::<DriverSetup>(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode::<Vec<u8>>(&encode(&vec![0_u8; MAX_MESSAGE_BYTES])), None);
    }

    #[test]
    fn names_of_served_volumes_have_no_slash_and_fit_a_link() {
        let served = |cell: &str, name: &str| ServedVolume {
            cell: cell.into(),
            name: name.into(),
            path: "/data".into(),
            access: VolumeAccess::ReadWrite,
        };
        assert!(served("store", "web").has_valid_names());
        assert_eq!(served("store", "web").link_name(), "store/web");
        let long = "n".repeat(MAX_SERVICE_LEN + 1);
        for (cell, name) in [("", "web"), ("store", ""), ("a/b", "web"), ("store", "a/b"), ("store", &long)] {
            assert!(!served(cell, name).has_valid_names(), "{cell}/{name}");
        }
    }
}
