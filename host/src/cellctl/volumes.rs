//! The volumes of cells, and the block devices that contain them.
//!
//! A cell has its block devices from its creation until its records are removed, as its specification names them. The
//! volumes' files are in the devices only from the cell's start to its end.

use super::CellError;
use crate::machine::LockedMachine;
use crate::machine::cells::{CellRecord, RecordedVolume};
use crate::machine::disks::{self, DiskSlot};
use crate::volume::store::VolumeStore;
use crate::volume::{VolumeSource, VolumeSpec};
use isola_abi::management::CellInfo;
use isola_abi::service::ServedVolume;
use isola_abi::volume::{MAX_VOLUME_NAME_LEN, VolumeMount};
use std::collections::BTreeSet;

/// Returns the volumes of a new cell that service cells serve, and the others.
pub(super) fn divide(volumes: Vec<VolumeSpec>) -> (Vec<ServedVolume>, Vec<VolumeSpec>) {
    let mut served = Vec::new();
    let mut own = Vec::new();
    for volume in volumes {
        match volume.source {
            VolumeSource::Served { name, cell } => served.push(ServedVolume {
                cell,
                name: name.as_str().to_owned(),
                path: volume.path,
                access: volume.access,
            }),
            _ => own.push(volume),
        }
    }
    (served, own)
}

/// Chooses a block device for each volume of a new cell.
///
/// # Errors
/// [`CellError::Volume`] if a volume does not exist, or [`CellError::NoDisk`].
pub(super) fn choose(
    locked: &LockedMachine,
    volumes: &[VolumeSpec],
) -> Result<Vec<(VolumeMount, RecordedVolume)>, CellError> {
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    let store = VolumeStore::from_environment()?;
    let options = &locked.record.options;
    let taken: BTreeSet<DiskSlot> = locked.cells().volumes().map(|(_, volume)| volume.slot).collect();
    let mut free = (0..options.disks).map(DiskSlot).filter(|slot| !taken.contains(slot));
    volumes
        .iter()
        .map(|volume| {
            let file = store.resolve(&volume.source)?;
            let slot = free.next().ok_or(CellError::NoDisk { disks: options.disks })?;
            let mut name = volume.source.to_string();
            name.truncate(name.floor_char_boundary(MAX_VOLUME_NAME_LEN));
            let device = slot.location(options);
            let mount = VolumeMount { device, name, path: volume.path.clone(), access: volume.access };
            Ok((mount, RecordedVolume { slot, file, access: volume.access, is_inserted: false }))
        })
        .collect()
}

/// Inserts the volumes of a cell that is about to start.
///
/// # Errors
/// [`CellError`]; no volume of the cell is inserted then.
pub(super) fn insert(locked: &LockedMachine, cell: &CellInfo) -> Result<(), CellError> {
    let Some(mut record) = with_volumes(locked, cell) else { return Ok(()) };
    let mut qmp = locked.qmp()?;
    // Recorded first: a command that is killed in between leaves nothing inserted that the records do not know.
    record.volumes.iter_mut().for_each(|volume| volume.is_inserted = true);
    locked.cells().save(&cell.spec.name, &record)?;
    for volume in &record.volumes {
        let inserted = disks::insert(&mut qmp, &locked.dir, volume.slot, &volume.file, volume.access);
        if let Err(error) = inserted {
            // QEMU serves one connection at a time.
            drop(qmp);
            remove(locked, cell)?;
            return Err(error.into());
        }
    }
    Ok(())
}

/// Removes the volumes of a cell that does not run from their devices.
///
/// # Errors
/// [`CellError`].
pub(super) fn remove(locked: &LockedMachine, cell: &CellInfo) -> Result<(), CellError> {
    let Some(mut record) = with_volumes(locked, cell) else { return Ok(()) };
    if record.volumes.iter().all(|volume| !volume.is_inserted) {
        return Ok(());
    }
    let mut qmp = locked.qmp()?;
    for volume in &mut record.volumes {
        disks::remove(&mut qmp, &locked.dir, volume.slot)?;
        volume.is_inserted = false;
    }
    Ok(locked.cells().save(&cell.spec.name, &record)?)
}

fn with_volumes(locked: &LockedMachine, cell: &CellInfo) -> Option<CellRecord> {
    locked.cells().load(&cell.spec.name, cell.id).filter(|record| !record.volumes.is_empty())
}
