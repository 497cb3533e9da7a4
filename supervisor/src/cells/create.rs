//! Create, recreate, start, restart, destroy.

use super::cell::{Cell, ImageBytes, Run, Times};
use super::grow::memory_max_bytes;
use super::lend::SavedLoans;
use super::pending::{Created, Job, Need, Obstacle};
use super::restart::Restarting;
use super::watch::Watch;
use super::{Cells, shorten};
use crate::trust;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::id::{CellId, NodeId};
use isola_abi::management::{CellSpec, Durations, JournalEvent, ManagementError, NetworkSpec, Text};
use isola_abi::size::ByteSize;
use isola_supervisor_core::Hardware;
use isola_supervisor_core::hardware::BuildError;
use isola_supervisor_core::image::{ImagePlan, Source};
use isola_supervisor_core::inventory::{CHUNK, CoreRefusal, CoreRequest};
use isola_supervisor_core::trusted_core::{BuildRefusal, BuildRequest, Released};

impl<H: Hardware> Cells<H> {
    /// Creates a cell from a stored image, now or when enough memory is zero.
    ///
    /// # Errors
    /// Returns the [`ManagementError`]s about names, limits, images and exhausted resources. The state is unchanged
    /// then.
    pub fn create(&mut self, spec: CellSpec) -> Result<Created, ManagementError> {
        let began = self.core.now_ns();
        let attempt = self.create_now(&spec, began);
        self.begin_create(Job::Create(spec.into()), began, attempt)
    }

    /// Creates a cell, or returns the obstacle.
    pub(super) fn create_now(&mut self, spec: &CellSpec, began: u64) -> Result<CellId, Obstacle> {
        spec.validate()?;
        if self.find(&spec.name).is_ok() || self.pending.specs().any(|pending| pending.name == spec.name) {
            return Err(ManagementError::NameTaken(spec.name.clone()).into());
        }
        let limit = self.table.limit();
        let is_full = self.table.len() + self.pending.specs().count() >= limit;
        let oldest = self.table.iter().find(|cell| !cell.uses_image() && !self.pending.is_about(cell.id));
        let oldest = oldest.map(|cell| cell.id).filter(|_| is_full);
        if is_full && oldest.is_none() {
            let what = format!(
                "there are {limit} cells, none of which has ended for good: stop or remove one of them"
            );
            return Err(ManagementError::OutOfLimits(what).into());
        }
        trust::check(&spec.requirement, &spec.image).map_err(ManagementError::ImageNotTrusted)?;
        let id = self.table.next_id();
        let image = self.build(id, spec)?;
        // The record of an ended cell makes room.
        if let Some(name) = oldest.and_then(|id| self.table.name_of(id)) {
            self.destroy(&name)?;
        }
        let now = self.core.now_ns();
        let times = Times {
            created_unix_ns: self.journal.unix_ns(now),
            started_unix_ns: None,
            started_ns: 0,
            durations: Durations { create_ns: Some(now.saturating_sub(began)), ..Durations::default() },
        };
        self.record(began, Some(&spec.name), JournalEvent::Create);
        self.table.insert(Cell::new(id, spec.clone(), image, times));
        self.save(id);
        self.count_images();
        Ok(id)
    }

    /// Creates an ended cell again with the resources of its specification, from the same image.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`] if it has not ended; and the errors
    /// about images and exhausted resources. The state is unchanged then.
    pub fn recreate(&mut self, name: &str) -> Result<Created, ManagementError> {
        let began = self.core.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        // A pending restart of the cell is cancelled. If the request is refused, the restart is still due.
        if self.table.get(id).is_some_and(|cell| !cell.is_live()) {
            self.cancel_about(id);
        }
        let attempt = self.recreate_now(id, began);
        self.begin_create(Job::Recreate(id), began, attempt)
    }

    /// Creates an ended cell again, or returns the obstacle.
    pub(super) fn recreate_now(&mut self, id: CellId, began: u64) -> Result<CellId, Obstacle> {
        self.rebuild(id, began)?;
        if let Some(cell) = self.table.get_mut(id) {
            cell.restarting = Restarting::new();
        }
        self.save(id);
        self.count_images();
        Ok(id)
    }

    /// Gives an ended cell its resources again, for a request or a restart. Does not write its ownership record.
    fn rebuild(&mut self, id: CellId, began: u64) -> Result<(), Obstacle> {
        let gone = || ManagementError::NoSuchCell(String::new());
        let cell = self.table.get(id).ok_or_else(gone)?;
        if !cell.state().has_ended() {
            return Err(cell.wrong_state().into());
        }
        let spec = cell.spec.clone();
        let image = self.build(id, &spec)?;
        let now = self.core.now_ns();
        self.table.get_mut(id).ok_or_else(gone)?.rebuild(image, now.saturating_sub(began));
        self.record(began, Some(&spec.name), JournalEvent::Recreate);
        Ok(())
    }

    /// Restarts a cell whose restart is due, or schedules the next attempt. The checkpoint says that the restart is due
    /// until the cell runs, as a restarted supervisor does not recover a cell that was only *entering*.
    pub(super) fn restart(&mut self, id: CellId) {
        let began = self.core.now_ns();
        if let Err(need) = self.restart_now(id, began) {
            self.put_off(Job::Restart(id), began, need);
        }
    }

    /// Restarts a cell, or schedules the next attempt.
    ///
    /// # Errors
    /// Returns the missing prerequisite.
    pub(super) fn restart_now(&mut self, id: CellId, began: u64) -> Result<(), Need> {
        let Some(name) = self.table.name_of(id) else { return Ok(()) };
        let rebuilt = self.rebuild(id, began);
        let Some(cell) = self.table.get_mut(id) else { return Ok(()) };
        match rebuilt {
            Err(Obstacle::Needs(need)) => return Err(need),
            Err(Obstacle::Refused(error)) => {
                let after_ns = cell.restarting.refused(&error, began);
                self.count_images();
                self.record(began, Some(&name), JournalEvent::RestartRefused { error, after_ns });
            }
            Ok(()) => {
                cell.restarting.restarted();
                // Cannot fail, as the cell was just built.
                let _ = self.start(&name);
                self.count_images();
            }
        }
        Ok(())
    }

    /// Handles a stop request. Returns whether the cell had ended and awaited a restart.
    pub(super) fn stop_restarting(&mut self, id: CellId) -> bool {
        let began = self.core.now_ns();
        if !self.table.get_mut(id).is_some_and(|cell| cell.restarting.stop()) {
            return false;
        }
        self.cancel_about(id);
        self.count_images();
        self.record_about(id, began, JournalEvent::RestartCancelled);
        true
    }

    /// Returns the cells that await a restart.
    fn waiting(&self) -> Vec<CellId> {
        let waiting = self.table.iter().filter(|cell| cell.restarting.next_ns().is_some());
        waiting.map(|cell| cell.id).collect()
    }

    /// Starts a cell that was created or recreated.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`], or [`ManagementError::WrongState`] if the cell runs or has ended.
    pub fn start(&mut self, name: &str) -> Result<CellId, ManagementError> {
        let began = self.core.now_ns();
        let id = self.find(name)?;
        let slots = self.core.inventory().cores.slots_of_each_cell();
        let cell = self.table.get_mut(id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
        if !matches!(cell.run, Run::Created) {
            return Err(cell.wrong_state());
        }
        cell.times.started_ns = began;
        cell.times.started_unix_ns = Some(self.journal.unix_ns(began));
        self.core.start(id, cell.notes(SavedLoans::default())).map_err(|_| cell.wrong_state())?;
        let now = self.core.now_ns();
        cell.times.started_ns = now;
        cell.times.durations.start_ns = Some(now.saturating_sub(began));
        cell.run = Run::Running { watch: Watch::new(cell.spec.watchdog_ms, slots, now) };
        let unix_ns = self.journal.unix_ns(now);
        cell.times.started_unix_ns = Some(unix_ns);
        let (duration_ns, name) = (now.saturating_sub(began), Some(cell.spec.name.as_str()));
        self.journal.enter_at(&mut self.core, unix_ns, duration_ns, name, JournalEvent::Start);
        self.save(id);
        Ok(id)
    }

    /// Removes a cell that is not running. The resources of a cell that was never started return to the inventory.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`], or [`ManagementError::WrongState`] if the cell runs.
    pub fn destroy(&mut self, name: &str) -> Result<(), ManagementError> {
        let began = self.core.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        if let Some(cell) = self.table.get(id).filter(|cell| cell.is_live()) {
            return Err(cell.wrong_state());
        }
        self.cancel_about(id);
        self.table.remove(id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
        // Only a cell that was never started still has resources.
        if let Ok(Released { devices_are_back: false, .. }) = self.core.release(id) {
            self.record(began, Some(name), JournalEvent::DeviceLost);
        }
        self.count_images();
        self.record(began, Some(name), JournalEvent::Destroy);
        Ok(())
    }

    /// Builds a cell from free resources. Returns the memory of its image.
    fn build(&mut self, id: CellId, spec: &CellSpec) -> Result<ImageBytes, Obstacle> {
        if !self.images.is_measured(&spec.image) {
            return Err(Obstacle::Needs(Need::Image(spec.image)));
        }
        let (mut plan, image) = self.images.plan(&spec.image)?;
        if spec.text == Text::Private {
            plan = plan.copied();
        }
        let (memory_bytes, node, free) = self.check_exhaustion(id, spec, &plan)?;
        if memory_bytes > free {
            return match self.claim_memory(spec, memory_bytes) {
                true => Err(Obstacle::Needs(Need::Loan(memory_bytes, node))),
                false => {
                    Err(ManagementError::MemoryExhausted { wanted: spec.memory, free: ByteSize(free) }.into())
                }
            };
        }
        self.images.make_room(memory_bytes, Some(&spec.image), &mut self.core);
        if !self.core.inventory().memory.is_ready(memory_bytes, node) {
            return Err(Obstacle::Needs(Need::Memory(memory_bytes, node)));
        }
        let waiting = if spec.network == NetworkSpec::None { Vec::new() } else { self.waiting() };
        let request = BuildRequest {
            id,
            spec,
            plan: &plan,
            memory_bytes,
            memory_max_bytes: memory_max_bytes(spec, memory_bytes),
            waiting: &waiting,
        };
        let shared = plan.memory_bytes(Source::Shared);
        let images = &mut self.images;
        let built = self.core.build(&request, |core, node| match shared {
            0 => image,
            _ => images.on_node(&spec.image, image, node, core),
        });
        if let Err(refusal) = built {
            // This releases a copy of the image that was made for the cell.
            self.count_images();
            return Err(self.build_error(refusal, spec).into());
        }
        self.enter_claimed(id, &spec.name);
        Ok(ImageBytes { copied: plan.memory_bytes(Source::Copied), shared })
    }

    /// Checks that there are enough resources other than memory. Returns the cell's bytes of memory, the node of its first
    /// core, and the bytes of free memory.
    fn check_exhaustion(
        &self,
        id: CellId,
        spec: &CellSpec,
        plan: &ImagePlan,
    ) -> Result<(u64, NodeId, u64), ManagementError> {
        let inventory = self.core.inventory();
        let request = CoreRequest { count: spec.cores as usize, placement: &spec.placement };
        let chosen = inventory.cores.choose(&request, id).map_err(|refusal| self.core_error(refusal))?;
        let idle = self.images.idle_bytes() - self.images.idle_bytes_of(&spec.image);
        let free = inventory.memory.available() + idle;
        let bytes = spec.memory.0.checked_next_multiple_of(CHUNK).unwrap_or(u64::MAX);
        let slots = inventory.cores.slots_of_each_cell();
        let least = self.core.hardware().least_memory(plan, spec.cores as usize, slots);
        if bytes < least {
            let least = ByteSize(least.next_multiple_of(CHUNK));
            return Err(ManagementError::MemoryTooSmall { wanted: spec.memory, least });
        }
        if spec.network != NetworkSpec::None && !inventory.devices.has_for(id, &self.waiting()) {
            return Err(ManagementError::DevicesExhausted);
        }
        if let Some(volume) = spec.volumes.iter().find(|volume| !inventory.disks.has(volume.device)) {
            return Err(ManagementError::DiskNotFree(volume.device));
        }
        let node = chosen.first().and_then(|core| inventory.cores.node(*core)).unwrap_or(NodeId(0));
        Ok((bytes, node, free))
    }

    /// Converts a refusal of cores to an error of the management protocol, with cell names.
    pub(super) fn core_error(&self, refusal: CoreRefusal) -> ManagementError {
        refusal.into_error(|id| self.table.name_of(id).unwrap_or_default())
    }

    fn build_error(&self, refusal: BuildRefusal, spec: &CellSpec) -> ManagementError {
        match refusal {
            BuildRefusal::Cores(refusal) => self.core_error(refusal),
            BuildRefusal::Device => ManagementError::DevicesExhausted,
            BuildRefusal::Disk(location) => ManagementError::DiskNotFree(location),
            BuildRefusal::IdInUse => ManagementError::NameTaken(spec.name.clone()),
            BuildRefusal::Memory => {
                let free = ByteSize(self.core.inventory().memory.available());
                ManagementError::MemoryExhausted { wanted: spec.memory, free }
            }
            BuildRefusal::Machine(BuildError::TooSmall { least_bytes }) => {
                let least = ByteSize(least_bytes.next_multiple_of(CHUNK));
                ManagementError::MemoryTooSmall { wanted: spec.memory, least }
            }
            BuildRefusal::Machine(BuildError::DescriptorTooLong) => {
                let what = "what the cell has to know does not fit in its descriptor: pass fewer arguments";
                ManagementError::OutOfLimits(what.into())
            }
        }
    }
}
