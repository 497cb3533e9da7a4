//! Create, recreate, start, destroy.

use super::cell::{Body, Cell, Held, Run};
use super::grow::{Growth, memory_max_bytes};
use super::lend::KeptLoans;
use super::moves::Moves;
use super::pending::{Created, Job, Need, Obstacle};
use super::restart::Restarting;
use super::watch::Watch;
use super::{Cells, shorten};
use crate::effects::{Blueprint, BuildError, BuildFailure, Effects};
use crate::image::{ImagePlan, Source};
use crate::inventory::{CHUNK, CoreRefusal, CoreRequest, CoreToken};
use crate::logs::Log;
use crate::trust;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId, NodeId};
use isola_abi::management::{
    CellSpec, Durations, JournalEvent, MAX_CELLS, ManagementError, NetworkSpec, Text,
};
use isola_abi::size::ByteSize;
use isola_abi::stage::Stage;

/// The parts of a cell that was just built.
struct Built<E: Effects> {
    held: Held<E>,
    core_ids: Vec<CoreId>,
    memory_bytes: u64,
    image_bytes: u64,
    text_bytes: u64,
}

impl<E: Effects> Cells<E> {
    /// Creates a cell from a stored image, now or when enough memory is zero.
    ///
    /// # Errors
    /// Returns the [`ManagementError`]s about names, limits, images and exhausted resources. The state is unchanged
    /// then.
    pub fn create(&mut self, spec: CellSpec) -> Result<Created, ManagementError> {
        let began = self.effects.now_ns();
        let attempt = self.create_now(&spec, began);
        self.begin_create(Job::Create(spec.into()), began, attempt)
    }

    /// Creates a cell, or returns the obstacle.
    pub(super) fn create_now(&mut self, spec: &CellSpec, began: u64) -> Result<CellId, Obstacle> {
        spec.validate()?;
        if self.find(&spec.name).is_ok() || self.pending_specs().any(|pending| pending.name == spec.name) {
            return Err(ManagementError::NameTaken(spec.name.clone()).into());
        }
        let is_full = self.cells.len() + self.pending_specs().count() >= MAX_CELLS;
        let oldest = self.cells.values().find(|cell| cell.is_only_a_record() && !self.is_pending(cell.id));
        let oldest = oldest.map(|cell| cell.id).filter(|_| is_full);
        if is_full && oldest.is_none() {
            let what = format!(
                "there are {MAX_CELLS} cells, none of which has ended for good: stop or remove one of them"
            );
            return Err(ManagementError::OutOfLimits(what).into());
        }
        trust::check(&spec.requirement, &spec.image).map_err(ManagementError::ImageNotTrusted)?;
        let id = CellId(self.next_id);
        let Built { held, core_ids, memory_bytes, image_bytes, text_bytes } = self.build(id, spec)?;
        self.next_id += 1;
        // The record of an ended cell makes room.
        if let Some(name) = oldest.and_then(|id| self.name_of(id)) {
            self.destroy(&name)?;
        }
        let now = self.effects.now_ns();
        let cell = Cell {
            id,
            body: Body::Held(held),
            core_ids,
            moves: Moves::new(),
            core_requests: 0,
            memory_bytes,
            growth: Growth::new(),
            shrink: None,
            image_bytes,
            text_bytes,
            run: Run::Created,
            log: Log::new(),
            restarting: Restarting::new(),
            exit_code: None,
            crash: None,
            created_unix_ns: self.unix_ns(now),
            started_unix_ns: None,
            started_ns: 0,
            durations: Durations { create_ns: Some(now.saturating_sub(began)), ..Durations::default() },
            spec: spec.clone(),
        };
        self.record(began, Some(&cell.spec.name), JournalEvent::Create);
        self.cells.insert(id, cell);
        self.keep(id, Stage::Built);
        self.count_images();
        Ok(id)
    }

    /// Creates an ended cell again with the resources of its specification, from the same image.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`] if it has not ended; and the errors
    /// about images and exhausted resources. The state is unchanged then.
    pub fn recreate(&mut self, name: &str) -> Result<Created, ManagementError> {
        let began = self.effects.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        // A pending restart of the cell is cancelled. If the request is refused, the restart is still due.
        if self.cells.get(&id).is_some_and(|cell| !cell.is_live()) {
            self.cancel_of(id);
        }
        let attempt = self.recreate_now(id, began);
        self.begin_create(Job::Recreate(id), began, attempt)
    }

    /// Creates an ended cell again, or returns the obstacle.
    pub(super) fn recreate_now(&mut self, id: CellId, began: u64) -> Result<CellId, Obstacle> {
        self.rebuild(id, began)?;
        if let Some(cell) = self.cells.get_mut(&id) {
            cell.restarting = Restarting::new();
        }
        self.keep(id, Stage::Built);
        self.count_images();
        Ok(id)
    }

    /// Gives an ended cell its resources again, for a request or a restart. Does not write its ownership record.
    pub(super) fn rebuild(&mut self, id: CellId, began: u64) -> Result<(), Obstacle> {
        let gone = || ManagementError::NoSuchCell(String::new());
        let cell = self.cells.get(&id).ok_or_else(gone)?;
        if !cell.state().has_ended() {
            return Err(cell.wrong_state().into());
        }
        let spec = cell.spec.clone();
        let Built { held, core_ids, memory_bytes, image_bytes, text_bytes } = self.build(id, &spec)?;
        let now = self.effects.now_ns();
        let cell = self.cells.get_mut(&id).ok_or_else(gone)?;
        cell.body = Body::Held(held);
        cell.core_ids = core_ids;
        cell.moves = Moves::new();
        cell.core_requests = 0;
        cell.memory_bytes = memory_bytes;
        cell.growth = Growth::new();
        cell.image_bytes = image_bytes;
        cell.text_bytes = text_bytes;
        cell.run = Run::Created;
        cell.log.restart();
        cell.exit_code = None;
        cell.crash = None;
        cell.durations = Durations { create_ns: Some(now.saturating_sub(began)), ..Durations::default() };
        self.record(began, Some(&spec.name), JournalEvent::Recreate);
        Ok(())
    }

    /// Starts a cell that was created or recreated.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`], or [`ManagementError::WrongState`] if the cell runs or has ended.
    pub fn start(&mut self, name: &str) -> Result<CellId, ManagementError> {
        let began = self.effects.now_ns();
        let id = self.find(name)?;
        let cell = self.cells.get_mut(&id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
        let places = self.inventory.cores.count_for_cells();
        if !matches!((&cell.body, &cell.run), (Body::Held(_), Run::Created)) {
            return Err(cell.wrong_state());
        }
        cell.started_ns = began;
        cell.started_unix_ns = Some(self.boot.unix_ns.saturating_add(began));
        let saved_state = cell.saved_state(KeptLoans::default());
        let Body::Held(held) = &mut cell.body else { return Err(cell.wrong_state()) };
        self.effects.keep(&mut held.space, Stage::Entering, saved_state);
        // The first core enters last: when it wakes the others, most of them have entered.
        for place in (0..held.cores.len()).rev() {
            held.cores[place] =
                held.cores[place].take().map(|core| self.effects.admit(&mut held.space, core, place).0);
        }
        let now = self.effects.now_ns();
        cell.started_ns = now;
        cell.durations.start_ns = Some(now.saturating_sub(began));
        cell.run = Run::Running { watch: Watch::new(cell.spec.watchdog_ms, places, now) };
        let unix_ns = self.boot.unix_ns.saturating_add(now);
        cell.started_unix_ns = Some(unix_ns);
        let name = cell.spec.name.clone();
        self.write_entry(unix_ns, now.saturating_sub(began), Some(&name), JournalEvent::Start);
        self.keep(id, Stage::Entered);
        Ok(id)
    }

    /// Removes a cell that is not running. The resources of a cell that was never started return to the inventory.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`], or [`ManagementError::WrongState`] if the cell runs.
    pub fn destroy(&mut self, name: &str) -> Result<(), ManagementError> {
        let began = self.effects.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        if let Some(cell) = self.cells.get(&id).filter(|cell| cell.is_live()) {
            return Err(cell.wrong_state());
        }
        self.cancel_of(id);
        let cell = self.cells.remove(&id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
        if let Body::Held(mut held) = cell.body {
            let device_is_back = self.reset(&mut held);
            self.take_back(Some(id), held, cell.memory_bytes, device_is_back);
            if !device_is_back {
                self.record(began, Some(name), JournalEvent::DeviceLost);
            }
        }
        self.count_images();
        self.record(began, Some(name), JournalEvent::Destroy);
        Ok(())
    }

    /// Builds a cell from free resources.
    fn build(&mut self, id: CellId, spec: &CellSpec) -> Result<Built<E>, Obstacle> {
        if !self.images.is_measured(&spec.image) {
            return Err(Obstacle::Needs(Need::Image(spec.image)));
        }
        let (mut plan, image) = self.images.plan(&spec.image)?;
        if spec.text == Text::Private {
            plan = plan.copied();
        }
        let (memory_bytes, node) = self.check_exhaustion(id, spec, &plan)?;
        self.images.make_room(memory_bytes, Some(&spec.image), &mut self.inventory.memory);
        if !self.inventory.memory.is_ready(memory_bytes, node) {
            return Err(Obstacle::Needs(Need::Memory(memory_bytes, node)));
        }
        let request = CoreRequest { count: spec.cores as usize, placement: &spec.placement };
        let cores = self.inventory.cores.take(&request, id).map_err(|refusal| self.told(refusal))?;
        let memory = self.inventory.memory.take(memory_bytes, node).unwrap_or_default();
        let image = match plan.memory_bytes(Source::Shared) {
            0 => image,
            _ => self.images.on_node(&spec.image, image, node, &mut self.inventory.memory),
        };
        let mut device = match spec.network {
            NetworkSpec::None => None,
            NetworkSpec::Dhcp | NetworkSpec::Static(_) => {
                let waiting = self.waiting();
                self.inventory.devices.take(id, &waiting)
            }
        };
        let blueprint = Blueprint {
            id,
            spec,
            memory_max_bytes: memory_max_bytes(spec, memory_bytes),
            plan: &plan,
            image: &image,
            cores: &cores,
            places: self.inventory.cores.count_for_cells(),
            device: device.as_mut(),
        };
        match self.effects.build(blueprint, memory) {
            Ok(space) => {
                let core_ids = cores.iter().map(CoreToken::id).collect();
                let held = Held { space, cores: cores.into_iter().map(Some).collect(), device };
                let image_bytes = plan.memory_bytes(Source::Copied);
                let text_bytes = plan.memory_bytes(Source::Shared);
                Ok(Built { held, core_ids, memory_bytes, image_bytes, text_bytes })
            }
            Err(BuildFailure { memory, cause }) => {
                self.inventory.memory.put(memory);
                // This releases a copy of the image that was made for the cell.
                drop(image);
                self.count_images();
                cores.into_iter().for_each(|core| self.inventory.cores.put(core));
                device.into_iter().for_each(|device| self.inventory.devices.put(device, Some(id)));
                Err(refusal(cause, spec).into())
            }
        }
    }

    /// Checks that there are enough resources. Returns the cell's bytes of memory and the node of its first core.
    fn check_exhaustion(
        &self,
        id: CellId,
        spec: &CellSpec,
        plan: &ImagePlan,
    ) -> Result<(u64, NodeId), ManagementError> {
        let inventory = &self.inventory;
        let request = CoreRequest { count: spec.cores as usize, placement: &spec.placement };
        let chosen = inventory.cores.choose(&request, id).map_err(|refusal| self.told(refusal))?;
        let idle = self.images.idle_bytes() - self.images.idle_bytes_of(&spec.image);
        let free = inventory.memory.available() + idle;
        let exhausted = ManagementError::MemoryExhausted { wanted: spec.memory, free: ByteSize(free) };
        let Some(bytes) = spec.memory.0.checked_next_multiple_of(CHUNK).filter(|&bytes| bytes <= free) else {
            return Err(exhausted);
        };
        let least = self.effects.least_memory(plan, spec.cores as usize, inventory.cores.count_for_cells());
        if bytes < least {
            let least = ByteSize(least.next_multiple_of(CHUNK));
            return Err(ManagementError::MemoryTooSmall { wanted: spec.memory, least });
        }
        if spec.network != NetworkSpec::None && !inventory.devices.has_for(id, &self.waiting()) {
            return Err(ManagementError::DevicesExhausted);
        }
        let node = chosen.first().and_then(|core| inventory.cores.node(*core)).unwrap_or(NodeId(0));
        Ok((bytes, node))
    }
}

impl<E: Effects> Cells<E> {
    /// Converts a refusal of cores to an error of the management protocol, with cell names.
    pub(super) fn told(&self, refusal: CoreRefusal) -> ManagementError {
        refusal.told(|id| self.cells.get(&id).map_or_else(String::new, |cell| cell.spec.name.clone()))
    }
}

impl<E: Effects> Cell<E> {
    /// Returns the error that the cell's state does not permit an operation.
    pub(super) fn wrong_state(&self) -> ManagementError {
        ManagementError::WrongState { name: self.spec.name.clone(), state: self.state() }
    }
}

fn refusal(cause: BuildError, spec: &CellSpec) -> ManagementError {
    match cause {
        BuildError::TooSmall { least_bytes } => {
            let least = ByteSize(least_bytes.next_multiple_of(CHUNK));
            ManagementError::MemoryTooSmall { wanted: spec.memory, least }
        }
        BuildError::DescriptorTooLong => {
            let what = "what the cell has to know does not fit in its descriptor: pass fewer arguments";
            ManagementError::OutOfLimits(what.into())
        }
    }
}
