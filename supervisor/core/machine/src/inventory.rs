//! The supervisor's share of the memory, and the inventory of the machine's cores, memory and devices.

use crate::hardware::{Core, MachineHardware};
use crate::memory::Piece;
use alloc::vec::Vec;
use isola_abi::descriptor::DeviceKind;
use isola_abi::id::CoreId;
use isola_machine::boot::{Machine, RecoveredCell};
use isola_machine::heap::StaticHeap;
use isola_supervisor_core::hardware::InventoryOf;
use isola_supervisor_core::inventory::{CHUNK, Cores, Devices, Disks, Inventory, Memory};

/// Extends the supervisor's heap by at least `len_bytes` bytes of the machine's memory, up to whole chunks. Returns the
/// bytes added.
pub fn extend_heap<const LEN: usize>(machine: &mut Machine, heap: &StaticHeap<LEN>, len_bytes: u64) -> u64 {
    let mut given = 0;
    for (node, region) in core::mem::take(&mut machine.memory) {
        let missing = len_bytes.saturating_sub(given);
        if missing == 0 {
            machine.memory.push((node, region));
            continue;
        }
        // Cells cannot use the part before the first whole chunk, so the heap gets all of it.
        let edge = region.range().start.0.next_multiple_of(CHUNK) - region.range().start.0;
        let taken = edge + missing.saturating_sub(edge).next_multiple_of(CHUNK);
        let taken = taken.min(region.len_bytes());
        match region.split(taken) {
            Ok((ours, rest)) => {
                given += ours.len_bytes();
                heap.extend(ours);
                machine.memory.push((node, rest));
            }
            Err(whole) => machine.memory.push((node, whole)),
        }
    }
    given
}

/// Moves the machine's cores, memory, network devices and block devices into an inventory.
pub fn inventory(machine: &mut Machine) -> InventoryOf<MachineHardware> {
    let (devices, disks) = (Devices::new(), Disks::new());
    let mut inventory = Inventory { cores: Cores::new(), memory: Memory::new(), devices, disks };
    let parked: Vec<_> = machine.parked.drain(..).collect();
    let mut others: Vec<_> = parked.into_iter().map(|core| (core.core(), Core::Parked(core))).collect();
    let recovered_cells = machine.recovered.iter().flat_map(|recovered| &recovered.recovered_cells);
    let owned: Vec<CoreId> = recovered_cells.flat_map(RecoveredCell::core_ids).collect();
    for core in &machine.cores {
        let (id, node, site) = (core.id, core.node, core.site);
        if *core == machine.boot_core {
            inventory.cores.add_supervisor(id, node, site);
        } else if owned.contains(&id) {
            inventory.cores.add_owned(id, node, site);
        } else if let Some(index) = others.iter().position(|(parked, _)| parked.id == id) {
            inventory.cores.add(others.swap_remove(index).1, node, site);
        } else {
            log::warn!("core {id} did not come up");
            inventory.cores.add_failed(id, node, site);
        }
    }
    for (node, region) in machine.memory.drain(..) {
        // The parts at the edges, less than a chunk each, stay unused.
        drop(inventory.memory.add(Piece(region, machine.authority), node));
    }
    for device in machine.devices.drain(..) {
        match device.kind() {
            Some(DeviceKind::Network) => inventory.devices.add(device),
            Some(DeviceKind::Block) => inventory.disks.add(device.location(), device),
            _ => {}
        }
    }
    log::info!(
        "{} cores, {} MiB of memory, {} network devices and {} block devices for cells",
        inventory.cores.free(),
        inventory.memory.total() >> 20,
        inventory.devices.total(),
        inventory.disks.total()
    );
    inventory
}
