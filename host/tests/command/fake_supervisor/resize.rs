//! Memory and cores of running cells.

use super::Supervisor;
use isola_abi::id::CoreId;
use isola_abi::management::*;
use isola_abi::size::ByteSize;
use std::cmp::Ordering;

impl Supervisor {
    /// Resizes the memory of a cell. A cell with the behaviour `hungry` returns only half of the requested memory.
    pub(super) fn resize_memory(
        &mut self,
        name: String,
        memory: Change<ByteSize>,
        mode: Mode,
    ) -> Result<MemoryResized, ManagementError> {
        let cell = self.cell(&name)?;
        if cell.info.state != CellState::Running {
            return Err(ManagementError::WrongState { name, state: cell.info.state });
        }
        let had = cell.info.memory;
        let Some(wanted) = memory.of(had.0).filter(|bytes| *bytes > 0).map(ByteSize) else {
            return Err(ManagementError::OutOfLimits("that is no size for a cell".into()));
        };
        if wanted.0 > had.0 + (1 << 29) {
            let wanted = ByteSize(wanted.0 - had.0);
            return Err(ManagementError::MemoryExhausted { wanted, free: ByteSize(1 << 29) });
        }
        let least = ByteSize(8 << 20);
        if wanted < least {
            return Err(ManagementError::MemoryInUse { wanted, least });
        }
        let is_hungry = cell.info.spec.arguments.first().is_some_and(|first| first == "hungry");
        let (has, kept) = match wanted.0.cmp(&had.0) {
            Ordering::Less if is_hungry && mode == Mode::Apply => {
                (ByteSize((had.0 + wanted.0) / 2), Some(ReclaimShortfall::InUse))
            }
            _ => (wanted, None),
        };
        if mode == Mode::Apply {
            (cell.info.memory, cell.info.memory_given) = (has, has);
            self.note(Some(&name), JournalEvent::ResizeMemory { from: had, to: has, wanted });
        }
        Ok(MemoryResized { had, wanted, has, limit: has, moved: ByteSize(0), kept, took_ns: 40_000 })
    }

    /// Moves cores at once: unplugs the last ones, or plugs the named ones, or any free ones.
    pub(super) fn resize_cores(
        &mut self,
        name: &str,
        change: Change<u32>,
        named: &[CoreId],
        mode: Mode,
    ) -> Result<CoresResized, ManagementError> {
        let machine = self.machine();
        let free = machine.cores.iter().filter(|core| core.owner == CoreOwner::Free).map(|core| core.id);
        let free: Vec<CoreId> = free.filter(|id| named.is_empty() || named.contains(id)).collect();
        let cell = self.cell(name)?;
        let before = cell.info.cores.len() as u32;
        let after = change.of(before.into()).unwrap_or_default() as u32;
        if after == 0 {
            return Err(ManagementError::OutOfLimits("a cell keeps a core".into()));
        }
        let wanted = after.saturating_sub(before);
        if wanted > free.len() as u32 {
            return Err(ManagementError::CoresExhausted { wanted, free: free.len() as u32 });
        }
        let (like, mut cores) = (cell.info.cores[0].clone(), cell.info.cores.clone());
        let gone = cores.split_off(after.min(before) as usize);
        let came = free.iter().take(wanted as usize).map(|id| CoreUsage { id: *id, ..like.clone() });
        let came: Vec<CoreUsage> = came.collect();
        let moved: Vec<CoreId> = gone.iter().chain(&came).map(|core| core.id).collect();
        if mode == Mode::Apply {
            cores.extend(came);
            (cell.info.cores, cell.info.spec.cores) = (cores, after);
            for core in &moved {
                let event = match before < after {
                    true => JournalEvent::CoreCame { core: *core, cores: after },
                    false => JournalEvent::CoreLeft { core: *core, cores: after },
                };
                self.note(Some(name), event);
            }
        }
        Ok(CoresResized { before, after, cores: moved, duration_ns: 250_000 })
    }
}
