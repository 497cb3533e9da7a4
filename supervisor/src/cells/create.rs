//! Create, start, destroy.

use super::cell::{Body, Cell, Run, Soundness};
use super::watch::Watch;
use super::{Cells, shorten};
use crate::effects::{Blueprint, BuildError, BuildFailure, Effects};
use crate::image::ImagePlan;
use crate::inventory::{CHUNK, Chunk, CoreToken};
use crate::logs::Log;
use crate::staging::Staged;
use alloc::vec::Vec;
use isola_abi::id::{CellId, NodeId};
use isola_abi::layout::PAGE_SIZE;
use isola_abi::management::{CellSpec, Durations, JournalEvent, ManagementError, NetworkSpec};
use isola_abi::size::ByteSize;

impl<E: Effects> Cells<E> {
    /// Creates a cell from the image that was sent, which becomes the cell's.
    ///
    /// # Errors
    /// All of [`ManagementError`] that is about names, limits, images and exhaustion. Nothing has changed then,
    /// but that the image is gone where building the cell failed although everything was there.
    pub fn create(
        &mut self,
        spec: CellSpec,
        staged: &mut Option<Staged<E::Memory>>,
    ) -> Result<CellId, ManagementError> {
        let began = self.effects.now_ns();
        spec.validate()?;
        if self.find(&spec.name).is_ok() {
            return Err(ManagementError::NameTaken(spec.name));
        }
        let image = staged.as_ref().and_then(Staged::image).ok_or(ManagementError::NoImage)?;
        let plan = ImagePlan::check(image).map_err(ManagementError::ImageRejected)?;
        let image_len = image.len();
        let staged_bytes = staged.as_ref().map_or(0, Staged::memory_bytes);
        let memory_bytes = self.check_exhaustion(&spec, &plan, image_len, staged_bytes)?;

        let id = CellId(self.next_id);
        let cores = self.inventory.cores.take(spec.cores as usize, id).unwrap_or_default();
        let node = cores.first().and_then(|core| self.inventory.cores.node(core.id())).unwrap_or(NodeId(0));
        let mut memory = self.inventory.memory.take(memory_bytes - staged_bytes, node).unwrap_or_default();
        let mut device = match spec.network {
            NetworkSpec::None => None,
            NetworkSpec::Dhcp | NetworkSpec::Static(_) => self.inventory.devices.take(),
        };
        let image = staged.take().ok_or(ManagementError::NoImage)?.into_memory();
        let kept_bytes = kept_bytes(image_len);
        let image = if kept_bytes < staged_bytes {
            let (image, rest) = image.split(kept_bytes);
            memory.push(rest);
            image
        } else {
            image
        };
        let blueprint = Blueprint {
            id,
            spec: &spec,
            plan: &plan,
            image: crate::effects::Pages::read(&image, image_len),
            cores: &cores,
            device: device.as_mut(),
        };
        let space = match self.effects.build(blueprint, memory) {
            Ok(space) => space,
            Err(BuildFailure { mut memory, cause }) => {
                memory.push(image);
                self.inventory.memory.put(memory);
                cores.into_iter().for_each(|core| self.inventory.cores.put(core));
                device.into_iter().for_each(|device| self.inventory.devices.put(device));
                return Err(refusal(cause, &spec, kept_bytes));
            }
        };
        self.next_id += 1;
        let now = self.effects.now_ns();
        let cell = Cell {
            id,
            plan,
            image,
            image_len,
            body: Body::Built(space),
            core_ids: cores.iter().map(CoreToken::id).collect(),
            cores,
            device,
            soundness: Soundness::Sound,
            memory_bytes,
            run: Run::Created,
            log: Log::new(),
            exit_code: None,
            crash: None,
            created_unix_ns: self.unix_ns(now),
            started_unix_ns: None,
            started_ns: 0,
            durations: Durations { create_ns: Some(now.saturating_sub(began)), ..Durations::default() },
            spec,
        };
        self.record(began, Some(&cell.spec.name), JournalEvent::Create);
        self.cells.insert(id, cell);
        Ok(id)
    }

    /// Starts a cell that was created or has ended.
    ///
    /// # Errors
    /// [`ManagementError::NoSuchCell`], [`ManagementError::WrongState`] where it runs, and
    /// [`ManagementError::CoresExhausted`] or [`ManagementError::DevicesExhausted`] where what it was given did
    /// not come back from its last run.
    pub fn start(&mut self, name: &str) -> Result<CellId, ManagementError> {
        let began = self.effects.now_ns();
        let id = self.find(name)?;
        let cell = self.cells.get_mut(&id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
        if cell.is_live() {
            return Err(ManagementError::WrongState { name: cell.spec.name.clone(), state: cell.state() });
        }
        match cell.soundness {
            Soundness::Sound => {}
            Soundness::CoreLost => {
                let (wanted, free) = (cell.spec.cores, cell.cores.len() as u32);
                return Err(ManagementError::CoresExhausted { wanted, free });
            }
            Soundness::DeviceLost => return Err(ManagementError::DevicesExhausted),
        }
        if !matches!(cell.run, Run::Created) || matches!(cell.body, Body::Loose(_)) {
            rebuild(&mut self.effects, cell)?;
        }
        let Body::Built(space) = &mut cell.body else {
            return Err(ManagementError::WrongState { name: cell.spec.name.clone(), state: cell.state() });
        };
        cell.log.restart();
        self.effects.start(space, &mut cell.cores);
        let now = self.effects.now_ns();
        cell.exit_code = None;
        cell.crash = None;
        cell.started_ns = now;
        cell.durations.start_ns = Some(now.saturating_sub(began));
        cell.durations.first_sign_ns = None;
        cell.durations.reclaim_ns = None;
        cell.run = Run::Running { watch: Watch::new(cell.spec.watchdog_ms, cell.cores.len(), now) };
        let unix_ns = self.boot.unix_ns.saturating_add(now);
        cell.started_unix_ns = Some(unix_ns);
        let name = cell.spec.name.as_str();
        self.journal.record(unix_ns, now.saturating_sub(began), Some(name), JournalEvent::Start);
        Ok(id)
    }

    /// Gives back everything that a cell that is not running holds, and forgets it.
    ///
    /// # Errors
    /// [`ManagementError::NoSuchCell`], and [`ManagementError::WrongState`] where it runs.
    pub fn destroy(&mut self, name: &str) -> Result<(), ManagementError> {
        let began = self.effects.now_ns();
        let id = self.find(name)?;
        let gone = ManagementError::NoSuchCell(shorten(name));
        if let Some(cell) = self.cells.get(&id).filter(|cell| cell.is_live()) {
            return Err(ManagementError::WrongState { name: cell.spec.name.clone(), state: cell.state() });
        }
        let mut cell = self.cells.remove(&id).ok_or(gone)?;
        // One that ended was reset then; one that was never started, or could not be again, has the device still.
        if let Some(device) = &mut cell.device
            && !self.effects.reset(device)
            && cell.soundness == Soundness::Sound
        {
            cell.soundness = Soundness::DeviceLost;
        }
        cell.cores.drain(..).for_each(|core| self.inventory.cores.put(core));
        if cell.soundness != Soundness::Sound {
            self.quarantine.push(cell);
        } else {
            let mut memory = match cell.body {
                Body::Built(space) => self.effects.dismantle(space),
                Body::Loose(memory) => memory,
            };
            memory.push(cell.image);
            self.inventory.memory.put(memory);
            cell.device.into_iter().for_each(|device| self.inventory.devices.put(device));
        }
        self.record(began, Some(name), JournalEvent::Destroy);
        Ok(())
    }

    /// Whether there is enough of everything. Returns the bytes of memory that the cell is to have.
    fn check_exhaustion(
        &self,
        spec: &CellSpec,
        plan: &ImagePlan,
        image_len: usize,
        staged_bytes: u64,
    ) -> Result<u64, ManagementError> {
        let inventory = &self.inventory;
        let (wanted, free) = (spec.cores, inventory.cores.free() as u32);
        if wanted > free {
            return Err(ManagementError::CoresExhausted { wanted, free });
        }
        let free = inventory.memory.free().saturating_add(staged_bytes);
        let exhausted = ManagementError::MemoryExhausted { wanted: spec.memory, free: ByteSize(free) };
        let Some(bytes) = spec.memory.0.checked_next_multiple_of(CHUNK).filter(|&bytes| bytes <= free) else {
            return Err(exhausted);
        };
        let own = self.effects.least_memory(plan, spec.cores as usize);
        let least = own.saturating_add(kept_bytes(image_len)).max(staged_bytes);
        if bytes < least {
            let least = ByteSize(least.next_multiple_of(CHUNK));
            return Err(ManagementError::MemoryTooSmall { wanted: spec.memory, least });
        }
        if spec.network != NetworkSpec::None && inventory.devices.free() == 0 {
            return Err(ManagementError::DevicesExhausted);
        }
        Ok(bytes)
    }
}

/// Builds an ended cell anew from its kept image.
fn rebuild<E: Effects>(effects: &mut E, cell: &mut Cell<E>) -> Result<(), ManagementError> {
    let memory = match core::mem::replace(&mut cell.body, Body::Loose(Vec::new())) {
        Body::Built(space) => {
            let mut memory = effects.dismantle(space);
            for piece in &mut memory {
                let len_bytes = piece.range().len_bytes;
                piece.zero(0, len_bytes);
            }
            memory
        }
        Body::Loose(memory) => memory,
    };
    let blueprint = Blueprint {
        id: cell.id,
        spec: &cell.spec,
        plan: &cell.plan,
        image: crate::effects::Pages::read(&cell.image, cell.image_len),
        cores: &cell.cores,
        device: cell.device.as_mut(),
    };
    match effects.build(blueprint, memory) {
        Ok(space) => cell.body = Body::Built(space),
        Err(BuildFailure { mut memory, cause }) => {
            for piece in &mut memory {
                let len_bytes = piece.range().len_bytes;
                piece.zero(0, len_bytes);
            }
            cell.body = Body::Loose(memory);
            return Err(refusal(cause, &cell.spec, kept_bytes(cell.image_len)));
        }
    }
    Ok(())
}

/// Bytes of memory in which an image is kept.
fn kept_bytes(image_len: usize) -> u64 {
    (image_len as u64).next_multiple_of(PAGE_SIZE)
}

fn refusal(cause: BuildError, spec: &CellSpec, kept_bytes: u64) -> ManagementError {
    match cause {
        BuildError::TooSmall { least_bytes } => {
            let least = ByteSize(least_bytes.saturating_add(kept_bytes).next_multiple_of(CHUNK));
            ManagementError::MemoryTooSmall { wanted: spec.memory, least }
        }
        BuildError::DescriptorTooLong => {
            let what = "what the cell has to know does not fit in its descriptor: pass fewer arguments";
            ManagementError::OutOfLimits(what.into())
        }
    }
}
