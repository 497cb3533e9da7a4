//! The state that a failed supervisor left: cells, as `isola-machine` found them, entered in the inventory.

use crate::effects::{Core, Hardware};
use crate::memory::{Piece, SharedPiece};
use crate::time::Time;
use alloc::vec::Vec;
use isola_abi::id::{NodeId, PhysRange};
use isola_abi::stage::Stage;
use isola_machine::authority::Authority;
use isola_machine::boot::{Machine, RecoveredCell, RecoveredCore, RecoveredState};
use isola_machine::device::Device;
use isola_machine::memory::{MemoryNodes, Region, SharedRegion};
use isola_machine::restart;
use isola_supervisor::cells::Checkpoint;
use isola_supervisor::effects;
use isola_supervisor::images::KeptImage;
use isola_supervisor::inventory::{CHUNK, CoreToken, Inventory};

/// The checkpoint, and its images that still have their memory.
pub type Left = (Checkpoint, Vec<(KeptImage, SharedPiece)>);

/// Returns the checkpoint, and its images whose memory is shared text of recovered cells or free. Removes that memory
/// from `machine`.
pub fn take_images(machine: &mut Machine) -> Left {
    let checkpoint = restart::checkpoint().map(|bytes| Checkpoint::decode(&bytes)).unwrap_or_default();
    let Machine { recovered, memory, authority, .. } = machine;
    let mut texts = recovered.iter_mut().map(|recovered| &mut recovered.texts).next();
    let mut found = |range: PhysRange| {
        let texts = texts.as_deref_mut().into_iter();
        let text = texts.flat_map(|texts| texts.extract_if(.., |text| text.range() == range)).next();
        text.or_else(|| take(memory, range).map(SharedRegion::new))
    };
    let images = checkpoint
        .images
        .iter()
        .filter_map(|image| Some((*image, SharedPiece(found(image.memory)?, *authority))));
    let images = images.collect();
    (checkpoint, images)
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

/// Enters the memory and devices of the recovered cells in the inventory, which has their cores already.
pub fn enter(
    recovered: RecoveredState,
    time: &Time,
    nodes: &MemoryNodes,
    inventory: &mut Inventory<Piece, Core, Device>,
    (checkpoint, images): Left,
    authority: Authority,
) -> effects::RecoveredState<Hardware> {
    let RecoveredState { history, recovered_cells, texts, gone, withheld } = recovered;
    let of_cells = recovered_cells.iter().flat_map(|recovered_cell| recovered_cell.memory.clone());
    let mut owned: Vec<PhysRange> = of_cells.chain(withheld.clone()).collect();
    owned.extend(images.iter().map(|(image, _)| image.memory).chain(texts.iter().map(SharedRegion::range)));
    for (node, range) in nodes.cut(&owned) {
        inventory.memory.add_owned(range, node);
    }
    effects::RecoveredState {
        checkpoint,
        journal: restart::journal_entries(),
        images,
        texts: texts.into_iter().map(|text| SharedPiece(text, authority)).collect(),
        cause: history.cause,
        number: history.restarts,
        ended_ns: time.at_cycles(history.ended_cycles),
        recovered_cells: recovered_cells
            .into_iter()
            .map(|recovered_cell| known(recovered_cell, inventory))
            .collect(),
        gone: u32::try_from(gone).unwrap_or(u32::MAX),
        withheld_bytes: withheld.iter().map(|range| range.len_bytes).sum(),
    }
}

fn known(
    recovered_cell: RecoveredCell,
    inventory: &mut Inventory<Piece, Core, Device>,
) -> effects::RecoveredCell<Hardware> {
    let RecoveredCell { stage, space, cores: all, mut devices, memory, saved_state } = recovered_cell;
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
    devices.iter().for_each(|_| inventory.devices.add_owned());
    let (answered, settled) = (space.answered(), space.settled());
    effects::RecoveredCell {
        stage,
        saved_state,
        space,
        cores,
        core_ids,
        lost,
        device: devices.pop(),
        memory,
        answered,
        settled,
    }
}
