//! The block devices of a machine, and the files that are in them.
//!
//! QEMU starts with all devices, each empty. A command inserts a volume's file into one before a cell starts, and
//! removes it after the cell's end, so that other cells, machines and programs can have the file.
//!
//! ```text
//! read-write:  device --- file
//! read-only:   device --- overlay (qcow2, in the machine's folder, removed with it) --- file, open for reading only
//! ```
//!
//! A device that QEMU has started as writable stays so. A cell that writes to a read-only volume nevertheless writes to
//! the overlay, which nobody else reads.

use super::options::{MachineModel, MachineOptions};
use super::qemu::mmio_address;
use super::qmp::{Qmp, QmpError};
use super::state::MachineDir;
use isola_abi::management::DeviceLocation;
use isola_abi::volume::VolumeAccess;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The PCI slot behind that of the last block device.
const END_SLOT: u32 = 31;

/// The number of a microvm's virtio-mmio register block with the first block device. QEMU delivers the interrupts of
/// block 0, at the first pin of its interrupt controller, at the third one (`ioapic_set_irq`).
const FIRST_WINDOW: u32 = 1;

/// How long QEMU may take to create an overlay.
const OVERLAY_LIMIT: Duration = Duration::from_secs(10);

/// A block device of a machine, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DiskSlot(pub u32);

/// The reasons why a file cannot be inserted.
#[derive(Debug, Error)]
pub enum DiskError {
    /// The file is in use.
    #[error(
        "{file} is in use by another cell, machine or program: stop that first, or mount it with `:ro` everywhere"
    )]
    InUse {
        /// The file.
        file: String,
    },
    /// QEMU does not accept the file, or does not answer.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// The overlay cannot be made.
    #[error("the overlay of a read-only volume cannot be made: {0}")]
    Overlay(String),
}

impl DiskSlot {
    /// Returns the device's location in the machine. Devices with higher numbers have higher addresses.
    pub fn location(self, machine: &MachineOptions) -> DeviceLocation {
        match machine.model {
            MachineModel::Q35 => {
                DeviceLocation::Pci { bus: 0, device: self.pci_slot(machine) as u8, function: 0 }
            }
            MachineModel::Microvm => DeviceLocation::Mmio { address: mmio_address(FIRST_WINDOW + self.0) },
        }
    }

    /// Returns QEMU's options for the device, with a volume that it has from the start, or empty.
    pub(super) fn options(
        self,
        machine: &MachineOptions,
        volume: Option<&(PathBuf, VolumeAccess)>,
    ) -> [(&'static str, String); 2] {
        let node = match volume {
            None => {
                json!({ "driver": "null-co", "size": 0, "read-zeroes": true, "node-name": self.empty() })
            }
            Some((file, access)) => self.volume_node(file, *access),
        };
        let device = match machine.model {
            MachineModel::Q35 => json!({
                "driver": "virtio-blk-pci",
                "disable-legacy": "on",
                "bus": "pcie.0",
                "addr": format!("{:#x}", self.pci_slot(machine)),
                "id": self.device(),
                "drive": node["node-name"],
            }),
            MachineModel::Microvm => json!({
                "driver": "virtio-blk-device",
                "bus": format!("virtio-mmio-bus.{}", FIRST_WINDOW + self.0),
                "id": self.device(),
                "drive": node["node-name"],
            }),
        };
        [("-blockdev", node.to_string()), ("-device", device.to_string())]
    }

    /// Returns the block node of a volume's file.
    fn volume_node(self, file: &Path, access: VolumeAccess) -> Value {
        json!({
            "driver": "raw",
            "node-name": self.volume(),
            "read-only": access == VolumeAccess::ReadOnly,
            "discard": "unmap",
            "file": { "driver": "file", "filename": file },
        })
    }

    fn pci_slot(self, machine: &MachineOptions) -> u32 {
        (END_SLOT + self.0).saturating_sub(machine.disks)
    }

    fn device(self) -> String {
        format!("disk{}", self.0)
    }

    fn empty(self) -> String {
        format!("empty{}", self.0)
    }

    fn volume(self) -> String {
        format!("volume{}", self.0)
    }

    fn overlay(self) -> String {
        format!("overlay{}", self.0)
    }

    /// Returns the path of the overlay. It is absolute, since QEMU, as a daemon, runs in the root folder.
    fn overlay_file(self, dir: &MachineDir) -> PathBuf {
        dir.path().join(format!("overlay{}.qcow2", self.0))
    }
}

/// Inserts a file into a device. No cell may be using the device.
///
/// # Errors
/// [`DiskError`]; the device is empty then.
pub fn insert(
    qmp: &mut Qmp,
    dir: &MachineDir,
    slot: DiskSlot,
    file: &Path,
    access: VolumeAccess,
) -> Result<(), DiskError> {
    remove(qmp, dir, slot)?;
    let inserted = try_insert(qmp, dir, slot, file, access);
    if inserted.is_err() {
        // The first error is the one to report.
        let _ = remove(qmp, dir, slot);
    }
    inserted.map_err(|error| match error {
        DiskError::Qmp(QmpError::Refused { reason, .. }) if reason.contains("lock") => {
            DiskError::InUse { file: file.display().to_string() }
        }
        error => error,
    })
}

fn try_insert(
    qmp: &mut Qmp,
    dir: &MachineDir,
    slot: DiskSlot,
    file: &Path,
    access: VolumeAccess,
) -> Result<(), DiskError> {
    qmp.execute("blockdev-add", &slot.volume_node(file, access))?;
    let node = match access {
        VolumeAccess::ReadOnly => add_overlay(qmp, dir, slot, file)?,
        VolumeAccess::ReadWrite => slot.volume(),
    };
    set_node(qmp, slot, &node)?;
    Ok(())
}

/// Creates the overlay of a read-only volume. Returns its node.
fn add_overlay(qmp: &mut Qmp, dir: &MachineDir, slot: DiskSlot, file: &Path) -> Result<String, DiskError> {
    let overlay = |error: io::Error| DiskError::Overlay(error.to_string());
    let len_bytes = fs::metadata(file).map_err(overlay)?.len();
    let path = slot.overlay_file(dir);
    fs::write(&path, []).map_err(overlay)?;
    let below = format!("{}-file", slot.overlay());
    let of_file = json!({ "driver": "file", "node-name": below, "filename": path });
    qmp.execute("blockdev-add", &of_file)?;
    let job = slot.overlay();
    let options = json!({ "driver": "qcow2", "file": below, "size": len_bytes });
    qmp.execute("blockdev-create", &json!({ "job-id": job, "options": options }))?;
    let end = Instant::now() + OVERLAY_LIMIT;
    loop {
        let jobs = qmp.execute("query-jobs", &Value::Null)?;
        let of_us = |known: &&Value| known["id"] == job.as_str();
        let state = jobs.as_array().and_then(|jobs| jobs.iter().find(of_us)).cloned();
        let Some(state) = state.filter(|state| state["status"] != "concluded") else {
            qmp.execute("job-dismiss", &json!({ "id": job }))?;
            break;
        };
        if Instant::now() > end {
            return Err(DiskError::Overlay(format!("QEMU takes too long, it is {}", state["status"])));
        }
        sleep(Duration::from_millis(1));
    }
    let node = json!({
        "driver": "qcow2",
        "node-name": slot.overlay(),
        "file": below,
        "backing": slot.volume(),
    });
    qmp.execute("blockdev-add", &node)?;
    Ok(slot.overlay())
}

/// Empties a device. No cell may be using it.
///
/// # Errors
/// [`DiskError::Qmp`].
pub fn remove(qmp: &mut Qmp, dir: &MachineDir, slot: DiskSlot) -> Result<(), DiskError> {
    set_node(qmp, slot, &slot.empty())?;
    for node in [slot.overlay(), format!("{}-file", slot.overlay()), slot.volume()] {
        match qmp.execute("blockdev-del", &json!({ "node-name": node })) {
            // There is no such node: nothing to remove.
            Ok(_) | Err(QmpError::Refused { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // There is one for a read-only volume only, and it is removed with the machine at the latest.
    let _ = fs::remove_file(slot.overlay_file(dir));
    Ok(())
}

/// Makes a block node the contents of a device.
fn set_node(qmp: &mut Qmp, slot: DiskSlot, node: &str) -> Result<(), QmpError> {
    // QEMU 7.2 aborts if the device has this node already.
    if node_in(&qmp.execute("query-block", &Value::Null)?, slot) == Some(node) {
        return Ok(());
    }
    let path = format!("/machine/peripheral/{}", slot.device());
    qmp.execute("qom-set", &json!({ "path": path, "property": "drive", "value": node })).map(drop)
}

/// Returns the block node in a device, by QEMU's answer to `query-block`.
fn node_in(devices: &Value, slot: DiskSlot) -> Option<&str> {
    // A PCI device has its block node in a part of its own.
    let (whole, part) = (slot.device(), format!("/machine/peripheral/{}/virtio-backend", slot.device()));
    let of_us = |device: &&Value| device["qdev"].as_str().is_some_and(|name| name == whole || name == part);
    devices.as_array()?.iter().find(of_us)?["inserted"]["node-name"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_in_a_device_is_found_on_both_models() {
        let inserted = |node: &str| json!({ "node-name": node });
        let devices = json!([
            { "device": "", "qdev": "/machine/peripheral/disk1/virtio-backend", "inserted": inserted("empty1") },
            { "device": "", "qdev": "disk10", "inserted": inserted("volume10") },
            { "device": "", "qdev": "disk2" },
        ]);
        assert_eq!(node_in(&devices, DiskSlot(1)), Some("empty1"));
        assert_eq!(node_in(&devices, DiskSlot(10)), Some("volume10"));
        assert_eq!((node_in(&devices, DiskSlot(0)), node_in(&devices, DiskSlot(2))), (None, None));
    }

    #[test]
    fn a_device_is_where_its_options_place_it() {
        let machine = |model| MachineOptions { disks: 4, model, ..crate::test_data::machine_options() };
        let (q35, microvm) = (machine(MachineModel::Q35), machine(MachineModel::Microvm));
        let [_, (_, device)] = DiskSlot(2).options(&q35, None);
        assert!(device.contains(r#""addr":"0x1d""#) && device.contains(r#""drive":"empty2""#), "{device}");
        let pci = DeviceLocation::Pci { bus: 0, device: 29, function: 0 };
        assert_eq!(DiskSlot(2).location(&q35), pci);
        let [_, (_, device)] = DiskSlot(2).options(&microvm, None);
        assert!(device.contains(r#""bus":"virtio-mmio-bus.3""#), "{device}");
        let mmio = DeviceLocation::Mmio { address: 0xfeb0_0600 };
        assert_eq!(DiskSlot(2).location(&microvm), mmio);
    }

    #[test]
    fn any_path_of_a_file_can_be_passed() {
        let machine = MachineOptions { disks: 1, ..crate::test_data::machine_options() };
        let file = PathBuf::from("/a,b\"c d.img");
        let [(_, node), _] = DiskSlot(0).options(&machine, Some(&(file, VolumeAccess::ReadOnly)));
        assert!(node.contains(r#""filename":"/a,b\"c d.img""#), "{node}");
        assert!(node.contains(r#""read-only":true"#), "{node}");
    }
}
