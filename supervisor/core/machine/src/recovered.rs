//! The state that a failed supervisor left: cells, as `isola-machine` found them, entered in the inventory.

use crate::hardware::{Core, MachineHardware};
use crate::memory::SharedPiece;
use crate::space::Space;
use crate::time::Time;
use alloc::vec::Vec;
use isola_abi::descriptor::DeviceKind;
use isola_abi::id::{NodeId, PhysRange};
use isola_abi::stage::Stage;
use isola_machine::authority::Authority;
use isola_machine::boot::{Machine, RecoveredCell, RecoveredCore, RecoveredState};
use isola_machine::memory::{MemoryNodes, Region, SharedRegion};
use isola_supervisor_core::hardware::{self, CellDevices, InventoryOf};
use isola_supervisor_core::inventory::{CHUNK, CoreToken};

/// Returns the images whose memory, as `range_of` gives it, is shared text of recovered cells or free, with that memory.
/// Removes it from `machine`. The ranges are not trusted.
pub fn take_images<T>(
    machine: &mut Machine,
    images: impl Iterator<Item = T>,
    range_of: impl Fn(&T) -> PhysRange,
) -> Vec<(T, SharedPiece)> {
    let Machine { recovered, memory, authority, .. } = machine;
    let mut texts = recovered.iter_mut().map(|recovered| &mut recovered.texts).next();
    let mut find = |range: PhysRange| {
        let texts = texts.as_deref_mut().into_iter();
        let text = texts.flat_map(|texts| texts.extract_if(.., |text| text.range() == range)).next();
        text.or_else(|| take(memory, range).map(SharedRegion::new))
    };
    let found = images.filter_map(|image| {
        let memory = find(range_of(&image))?;
        Some((image, SharedPiece(memory, *authority)))
    });
    found.collect()
}

/// Cuts whole chunks out of free regions; `None` if no single region contains `range`.
fn take(memory: &mut Vec<(NodeId, Region)>, range: PhysRange) -> Option<Region> {
    let is_chunks = range.start.0.is_multiple_of(CHUNK) && range.len_bytes.is_multiple_of(CHUNK);
    let end = range.start.0.checked_add(range.len_bytes).filter(|_| is_chunks && range.len_bytes > 0)?;
    let has =
        |(_, region): &(NodeId, Region)| region.range().start <= range.start && end <= region.range().end().0;
    let index = memory.iter().position(has)?;
    let (node, mut region) = memory.swap_remove(index);
    let before = range.start.0 - region.range().start.0;
    if before > 0 {
        match region.split(before) {
            Ok((first, rest)) => {
                memory.push((node, first));
                region = rest;
            }
            Err(whole) => {
                memory.push((node, whole));
                return None;
            }
        }
    }
    if region.len_bytes() > range.len_bytes {
        match region.split(range.len_bytes) {
            Ok((first, rest)) => {
                memory.push((node, rest));
                region = first;
            }
            Err(whole) => {
                memory.push((node, whole));
                return None;
            }
        }
    }
    Some(region)
}

/// Enters the memory and devices of the recovered cells, and the memory of stored `images`, in the inventory, which has
/// the cells' cores already. Returns the cells, and other shared memory from which they map text.
pub fn enter(
    recovered: RecoveredState,
    time: &Time,
    nodes: &MemoryNodes,
    inventory: &mut InventoryOf<MachineHardware>,
    images: impl Iterator<Item = PhysRange>,
    authority: Authority,
) -> (hardware::RecoveredState<MachineHardware>, Vec<SharedPiece>) {
    let RecoveredState { history, recovered_cells, texts, gone, withheld } = recovered;
    let of_cells = recovered_cells.iter().flat_map(|recovered_cell| recovered_cell.memory.clone());
    let mut owned: Vec<PhysRange> = of_cells.chain(withheld.clone()).collect();
    owned.extend(images.chain(texts.iter().map(SharedRegion::range)));
    for (node, range) in nodes.cut(&owned) {
        inventory.memory.add_owned(range, node);
    }
    let cells = recovered_cells.into_iter();
    let recovered = hardware::RecoveredState {
        cause: history.cause,
        number: history.restarts,
        ended_ns: time.at_cycles(history.ended_cycles),
        recovered_cells: cells.map(|cell| recovered_cell(cell, inventory, authority)).collect(),
        gone: u32::try_from(gone).unwrap_or(u32::MAX),
        withheld_bytes: withheld.iter().map(|range| range.len_bytes).sum(),
    };
    (recovered, texts.into_iter().map(|text| SharedPiece(text, authority)).collect())
}

fn recovered_cell(
    cell: RecoveredCell,
    inventory: &mut InventoryOf<MachineHardware>,
    authority: Authority,
) -> hardware::RecoveredCell<MachineHardware> {
    let RecoveredCell { stage, space, cores: all, devices: all_devices, memory, saved_state } = cell;
    let space = Space::new(space, authority);
    let mut lost = Vec::new();
    let mut core = |core| match core {
        RecoveredCore::Away(core) => Some(Core::Away(core)),
        RecoveredCore::Parked(core) => Some(Core::Parked(core)),
        RecoveredCore::Lost(id) => {
            lost.push(id);
            None
        }
    };
    let cores: Vec<Option<Core>> = all.into_iter().map(|at| at.and_then(&mut core)).collect();
    let core_ids = match stage {
        Stage::Built => cores.iter().flatten().map(CoreToken::id).collect(),
        _ => space.core_ids(),
    };
    let mut devices = CellDevices::none();
    for device in all_devices {
        if device.kind() == Some(DeviceKind::Block) {
            inventory.disks.add_owned();
            devices.disks.push(device);
        } else {
            inventory.devices.add_owned();
            devices.network = Some(device);
        }
    }
    let (answered, settled) = space.answered_and_settled();
    hardware::RecoveredCell {
        stage,
        saved_state,
        space,
        cores,
        core_ids,
        lost,
        devices,
        memory,
        answered,
        settled,
    }
}
