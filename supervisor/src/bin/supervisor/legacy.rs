//! What a supervisor that went wrong has left: cells, as the machine's, entered in the inventory.

use crate::effects::{Core, Hardware};
use crate::memory::Piece;
use crate::time::Time;
use alloc::vec::Vec;
use isola_abi::id::PhysRange;
use isola_abi::rebirth::Stage;
use isola_machine::boot::{Legacy, Survivor, SurvivorCore};
use isola_machine::device::Device;
use isola_machine::memory::MemoryNodes;
use isola_supervisor::effects;
use isola_supervisor::inventory::{CoreToken, Inventory};

/// Enters in the inventory what cells have. Its cores are there already.
pub fn enter(
    legacy: Legacy,
    time: &Time,
    nodes: &MemoryNodes,
    inventory: &mut Inventory<Piece, Core, Device>,
) -> effects::Legacy<Hardware> {
    let Legacy { past, survivors, gone, withheld } = legacy;
    let owned: Vec<PhysRange> =
        survivors.iter().flat_map(|survivor| survivor.memory.clone()).chain(withheld.clone()).collect();
    for (node, range) in nodes.cut(&owned) {
        inventory.memory.add_owned(range, node);
    }
    effects::Legacy {
        cause: past.cause,
        number: past.restarts,
        ended_ns: time.at_cycles(past.ended_cycles),
        survivors: survivors.into_iter().map(|survivor| known(survivor, inventory)).collect(),
        gone: u32::try_from(gone).unwrap_or(u32::MAX),
        withheld_bytes: withheld.iter().map(|range| range.len_bytes).sum(),
    }
}

fn known(survivor: Survivor, inventory: &mut Inventory<Piece, Core, Device>) -> effects::Survivor<Hardware> {
    let Survivor { stage, space, cores: all, mut devices, memory, keepsake } = survivor;
    let mut lost = Vec::new();
    let mut core = |core| match core {
        SurvivorCore::Away(core) => Some(Core::Away(core)),
        SurvivorCore::Parked(core) => Some(Core::Parked(core)),
        SurvivorCore::Lost(id) => {
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
    effects::Survivor {
        stage,
        keepsake,
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
