//! A running cell's cores: requests for more or fewer, and the plug of cores. The core moves them.

use super::Parts;
use super::cell::Cell;
use super::ticket::Ticket;
use alloc::format;
use alloc::vec::Vec;
use isola_abi::id::{CoreId, NodeId};
use isola_abi::management::{Change, CoresResized, ManagementError};
use isola_abi::size::ByteSize;
use isola_supervisor_core::Hardware;
use isola_supervisor_core::inventory::CHUNK;

/// The result of a request for more or fewer cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoresResize {
    /// The cores were moved, or would be.
    Done(CoresResized),
    /// The moves are in progress; [`Cells::take_cores_resized`](super::Cells::take_cores_resized) will have the result.
    Pending(Ticket),
}

/// A wanted change of a cell's cores.
#[derive(Clone, Debug)]
pub struct CoresWanted<'a> {
    /// The change of their number.
    pub change: Change<u32>,
    /// The cores that may be plugged or unplugged; empty: any.
    pub ids: &'a [CoreId],
    /// How long a core may take to leave, in ms.
    pub limit_ms: u32,
}

/// A cell's core requests.
#[derive(Debug, Default)]
pub(super) struct CoreRequests {
    /// The operator's request in progress.
    pub(super) resize: Option<CoreResizing>,
    /// The requests of the cell's own cores that were handled, as counted in its report.
    pub(super) handled: u32,
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct CoreResizing {
    pub(super) ticket: Ticket,
    pub(super) before: u32,
    pub(super) limit_ms: u32,
    pub(super) moved: Vec<CoreId>,
    pub(super) stuck: Option<CoreId>,
    pub(super) since_ns: u64,
}

impl Cell {
    /// Sends free cores to the cell. The times are those of the beginning and the deadline.
    pub(super) fn plug_cores<H: Hardware>(
        &mut self,
        parts: &mut Parts<'_, H>,
        chosen: &[CoreId],
        times_ns: (u64, u64),
    ) -> Result<(), ManagementError> {
        let end = parts.core.inventory().cores.slots_of_each_cell();
        let Some(owned) = parts.owned(self) else { return Ok(()) };
        // The stacks of all slots are allocated first, so that nothing has changed if that fails.
        let mut slots = Vec::new();
        for core in chosen {
            let from = slots.last().map_or(0, |(slot, _)| slot + 1);
            let Some(slot) = owned.vacant_slot(from, end) else {
                let what = format!(
                    "{:?} has no vacant slot for core {core}: events whose cores were taken by force have to end first",
                    self.spec.name
                );
                return Err(ManagementError::OutOfLimits(what));
            };
            slots.push((slot, *core));
        }
        for (slot, core) in &slots {
            self.allocate_stacks(parts, *slot, *core)?;
        }
        for (slot, core) in slots {
            // A core that the machine does not admit stays free.
            let _ = parts.core.plug_core(self.id, core, slot, times_ns);
        }
        Ok(())
    }

    /// Allocates stacks for a core slot. If this takes another chunk, the chunk belongs to the cell from then on.
    fn allocate_stacks<H: Hardware>(
        &mut self,
        parts: &mut Parts<'_, H>,
        slot: usize,
        core: CoreId,
    ) -> Result<(), ManagementError> {
        if parts.core.allocate_stacks(self.id, slot).is_ok() {
            return Ok(());
        }
        let node = parts.core.inventory().cores.node(core).unwrap_or(NodeId(0));
        parts.images.make_room(CHUNK, None, parts.core);
        self.growth.stack_bytes += parts.core.add_stack_memory(self.id, node);
        let is_ready = parts.core.allocate_stacks(self.id, slot).is_ok();
        // The cell does not know of its stack memory, so the limit of its requests is reduced by it.
        if let Some(owned) = parts.owned(self) {
            owned.set_limit(self.pool_limit_bytes(owned.memory_bytes()));
        }
        parts.save(self);
        let (wanted, free) = (ByteSize(CHUNK), ByteSize(parts.core.inventory().memory.free()));
        if is_ready { Ok(()) } else { Err(ManagementError::MemoryExhausted { wanted, free }) }
    }
}
