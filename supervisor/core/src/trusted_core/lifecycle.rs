//! Build, start, end, release.
//!
//! All ends follow one sequence, whatever their cause. The ownership record says *ending*; the cores are reclaimed by
//! INIT, and the devices are reset ([`TrustedCore::end`]). The policy reads the report a last time. Then cores, devices and
//! memory return to the inventory ([`TrustedCore::release`]); the memory is not scrubbed yet.

use super::cell::{OwnedCell, Reclaim};
use super::cores::Moves;
use super::{Quarantined, Rejection, TrustedCore};
use crate::hardware::{Blueprint, BuildError, BuildFailure, CellDevices, Hardware, Reclaimed, SharedOf};
use crate::image::ImagePlan;
use crate::inventory::{CHUNK, CoreRefusal, CoreRequest, CoreToken};
use crate::space::CellSpace;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId, NodeId};
use isola_abi::management::{CellSpec, DeviceLocation, NetworkSpec};
use isola_abi::stage::Stage;

/// A cell to be built.
pub struct BuildRequest<'a> {
    /// The cell's id, which no cell with resources has.
    pub id: CellId,
    /// The cell's specification: number and placement of cores, network, and the contents of its descriptor.
    pub spec: &'a CellSpec,
    /// The layout of the cell's image.
    pub plan: &'a ImagePlan,
    /// Bytes of memory, rounded up to whole chunks, which must be zero and available.
    pub memory_bytes: u64,
    /// The most memory that the cell may have, in bytes.
    pub memory_max_bytes: u64,
    /// The cells for which their last devices are reserved.
    pub waiting: &'a [CellId],
}

/// The reason why a cell was not built. The state is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildRefusal {
    /// A cell with that id has resources.
    IdInUse,
    /// There are no such cores.
    Cores(CoreRefusal),
    /// Too little memory is zero and available.
    Memory,
    /// No network device is free.
    Device,
    /// There is no free block device at this location.
    Disk(DeviceLocation),
    /// The machine could not build the cell.
    Machine(BuildError),
}

/// The fate of an ended cell's resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The bytes of memory that the cell had.
    pub memory_bytes: u64,
    /// The cores that did not come back, and are never used again.
    pub lost: Vec<CoreId>,
    /// Whether all devices were reset, or there were none.
    pub devices_are_back: bool,
}

impl<H: Hardware> TrustedCore<H> {
    /// Builds a cell from free resources. `text` returns the memory from which the cell maps its image, by the node of
    /// its first core; it may move memory between the image store and the free memory.
    ///
    /// # Errors
    /// Returns a [`BuildRefusal`].
    pub fn build(
        &mut self,
        request: &BuildRequest<'_>,
        text: impl FnOnce(&mut Self, NodeId) -> SharedOf<H>,
    ) -> Result<(), BuildRefusal> {
        let BuildRequest { id, spec, plan, memory_bytes, memory_max_bytes, waiting } = *request;
        let memory_bytes = memory_bytes.checked_next_multiple_of(CHUNK).ok_or(BuildRefusal::Memory)?;
        if self.cells.contains_key(&id) || self.unclaimed.contains(&id) {
            return Err(BuildRefusal::IdInUse);
        }
        let wanted = CoreRequest { count: spec.cores as usize, placement: &spec.placement };
        let cores = self.inventory.cores.take(&wanted, id).map_err(BuildRefusal::Cores)?;
        let first = cores.first().and_then(|core| self.inventory.cores.node(core.id()));
        let node = first.unwrap_or(NodeId(0));
        let Some(memory) = self.inventory.memory.take(memory_bytes, node) else {
            cores.into_iter().for_each(|core| self.inventory.cores.put(core));
            return Err(BuildRefusal::Memory);
        };
        let image = text(self, node);
        let mut devices = CellDevices::none();
        let taken = if self.cells.contains_key(&id) {
            Err(BuildRefusal::IdInUse)
        } else {
            self.take_devices(id, spec, waiting, &mut devices)
        };
        let built = match taken {
            Err(refusal) => Err((memory, refusal)),
            Ok(()) => {
                let blueprint = Blueprint {
                    id,
                    spec,
                    memory_max_bytes,
                    plan,
                    image: &image,
                    cores: &cores,
                    slots: self.inventory.cores.slots_of_each_cell(),
                    devices: &mut devices,
                };
                let built = self.hardware.build(blueprint, memory);
                built.map_err(|BuildFailure { memory, cause }| (memory, BuildRefusal::Machine(cause)))
            }
        };
        match built {
            Ok(space) => {
                let network = devices.network.as_ref().filter(|_| !spec.loop_with.is_empty());
                space.links().set_own_mac(network.and_then(H::mac));
                let cell = OwnedCell {
                    space,
                    core_ids: cores.iter().map(CoreToken::id).collect(),
                    slots_with_stacks: cores.len(),
                    cores: cores.into_iter().map(Some).collect(),
                    devices,
                    memory_bytes,
                    stage: Stage::Built,
                    moves: Moves::new(),
                    answered: 0,
                    reclaim: Reclaim::default(),
                    lost: Vec::new(),
                    devices_are_back: true,
                };
                self.cells.insert(id, cell);
                Ok(())
            }
            Err((memory, refusal)) => {
                self.inventory.memory.put(memory);
                cores.into_iter().for_each(|core| self.inventory.cores.put(core));
                self.put_devices(Some(id), devices);
                Err(refusal)
            }
        }
    }

    /// Takes the devices of a new cell from the inventory.
    fn take_devices(
        &mut self,
        id: CellId,
        spec: &CellSpec,
        waiting: &[CellId],
        devices: &mut CellDevices<H::Device>,
    ) -> Result<(), BuildRefusal> {
        if spec.network != NetworkSpec::None {
            let device = self.inventory.devices.take(id, waiting).ok_or(BuildRefusal::Device)?;
            devices.network = Some(device);
        }
        for volume in &spec.volumes {
            let disk = self.inventory.disks.take(volume.device);
            devices.disks.push(disk.ok_or(BuildRefusal::Disk(volume.device))?);
        }
        Ok(())
    }

    /// Returns the devices of a cell, which have been reset or were never used, to the inventory.
    fn put_devices(&mut self, id: Option<CellId>, devices: CellDevices<H::Device>) {
        devices.network.into_iter().for_each(|device| self.inventory.devices.put(device, id));
        for disk in devices.disks {
            self.inventory.disks.put(H::location(&disk), disk);
        }
    }

    /// Starts a cell that was built. Its ownership record says *entering*, with the policy's `notes`, until the policy
    /// [saves](Self::save) other ones.
    ///
    /// # Errors
    /// Returns a [`Rejection`].
    pub fn start(&mut self, id: CellId, notes: Vec<u8>) -> Result<(), Rejection> {
        let cell = self.cells.get_mut(&id).ok_or(Rejection::NoSuchCell)?;
        if cell.stage != Stage::Built {
            return Err(Rejection::WrongStage);
        }
        cell.stage = Stage::Entered;
        cell.space.save(Stage::Entering, notes);
        // The first core enters last: when it wakes the others, most of them have entered.
        for slot in (0..cell.cores.len()).rev() {
            cell.cores[slot] = cell.cores[slot].take().map(|core| cell.space.admit(core, slot).0);
        }
        self.note_neighbour_change(id);
        Ok(())
    }

    /// Writes the policy's notes to a cell's ownership record.
    pub fn save(&mut self, id: CellId, notes: Vec<u8>) {
        if let Some(cell) = self.cells.get_mut(&id) {
            cell.space.save(cell.stage, notes);
        }
    }

    /// Ends a running cell: its ownership record says *ending*, with the policy's `notes`; then its cores are reclaimed
    /// and its devices are reset. Report and ledger can be read until the cell is [released](Self::release).
    ///
    /// # Errors
    /// Returns a [`Rejection`].
    pub fn end(&mut self, id: CellId, notes: Vec<u8>) -> Result<(), Rejection> {
        let cell = self.cells.get_mut(&id).ok_or(Rejection::NoSuchCell)?;
        if !cell.is_entered() {
            return Err(Rejection::WrongStage);
        }
        cell.stage = Stage::Ending;
        cell.space.save(Stage::Ending, notes);
        let cores = core::mem::take(&mut cell.cores).into_iter().flatten().collect();
        let Reclaimed { back, lost } = self.hardware.reclaim(cores);
        cell.cores = back.into_iter().map(Some).collect();
        cell.lost = lost;
        cell.devices_are_back = reset(&mut self.hardware, &mut cell.devices);
        self.end_links(id);
        Ok(())
    }

    /// Returns the resources of a cell that has ended or was never started to the inventory. If a core or a device
    /// could still write to the memory, also a core of a peer, memory and devices go to quarantine.
    ///
    /// # Errors
    /// Returns a [`Rejection`].
    pub fn release(&mut self, id: CellId) -> Result<Released, Rejection> {
        let cell = self.cells.get(&id).ok_or(Rejection::NoSuchCell)?;
        if cell.is_entered() {
            return Err(Rejection::WrongStage);
        }
        let mut cell = self.cells.remove(&id).ok_or(Rejection::NoSuchCell)?;
        if cell.stage == Stage::Built {
            cell.devices_are_back = reset(&mut self.hardware, &mut cell.devices);
        }
        Ok(self.take_back(Some(id), cell))
    }

    /// Takes back the resources of a cell whose cores were reclaimed and whose devices were reset, as far as they came
    /// back. `id` is `None` for a cell that could not be recovered.
    pub(super) fn take_back(&mut self, id: Option<CellId>, cell: OwnedCell<H>) -> Released {
        let OwnedCell { mut space, cores, devices, memory_bytes, moves, lost, devices_are_back, .. } = cell;
        cores.into_iter().flatten().for_each(|core| self.inventory.cores.put(core));
        let is_exposed = self.exposed.iter().any(|range| space.can_lend(*range));
        if devices_are_back && lost.is_empty() && !moves.has_lost && !is_exposed {
            self.put_devices(id, devices);
            let memory = self.hardware.dismantle(space);
            self.inventory.memory.put(memory);
        } else {
            self.exposed.extend(space.peer_memory());
            space.save(Stage::Quarantined, Vec::new());
            self.quarantine.push(Quarantined { memory_bytes, _parts: (space, devices) });
        }
        lost.iter().for_each(|core| self.inventory.cores.lose(*core));
        Released { memory_bytes, lost, devices_are_back }
    }
}

/// Resets the devices of a cell. Returns whether all were reset.
pub(super) fn reset<H: Hardware>(hardware: &mut H, devices: &mut CellDevices<H::Device>) -> bool {
    let mut all = true;
    // Every device is reset, also after one that could not be.
    for device in devices.iter_mut() {
        all &= hardware.reset(device);
    }
    all
}
