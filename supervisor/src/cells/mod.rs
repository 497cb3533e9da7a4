//! The cells and their life cycle.
//!
//! ```text
//!               start             stop request             deadline
//!    Created ----------> Running --------------> Stopping ----------> Killed
//!                           |                       |
//!         exit, crash, hang |                       | exit, crash
//!                           v                       |
//!                   Exited or Crashed <-------------+
//! ```
//!
//! `recreate` leads from `Exited`, `Crashed` and `Killed` back to `Created`; `destroy` removes the record of a cell in
//! any of these four states.
//!
//! All ends follow one sequence, whatever their cause. The supervisor reclaims the cores by INIT, resets the device,
//! reads the report a last time, and then returns cores, device and memory to the inventory; the memory is not scrubbed
//! yet (see [`crate::inventory::memory`]). Only a record of the cell remains. Memory is free only if nothing can still
//! write to it: if a core or a device does not come back, memory and device stay in quarantine instead.
//!
//! An ended cell can be created again: under its id, with its log continued, on any free cores and memory, from its
//! image, as long as the image store has it (see [`crate::images`]).
//!
//! All work happens in calls: requests, notifications ([`Cells::doorbell`]), deadlines ([`Cells::tick`]) and slices of
//! work ([`Cells::work`]). Each does a bounded amount of work, and none waits for a cell, except for the return of
//! reclaimed cores and the acknowledgement of a TLB shootdown. [`Cells::next_deadline_ns`] says when to call
//! [`Cells::tick`].
//!
//! | file | contents |
//! |---|---|
//! | `cell` | a cell's record |
//! | `create` | create, recreate, start, destroy |
//! | `end` | stop, notification, end |
//! | `images` | requests about the image store |
//! | `grow` | memory requests of cells |
//! | `restart` | restarts by policy |
//! | `memory` | resizing of a cell's memory by request |
//! | `pending` | requests and restarts that wait for memory to be scrubbed, or for an image to be hashed |
//! | `force` | forced core reclaim |
//! | `moves` | plug and unplug of cores |
//! | `keep`, `checkpoint`, `recover` | saved cell state, the supervisor checkpoint, and recovery after a restart |
//! | `ticket` | identifiers of requests that are answered later |
//! | `lend` | core loans |
//! | `query` | queries to cells |
//! | `watch` | the watchdog for hung cells |
//! | `info` | information on cells and machine, for responses |

mod cell;
mod checkpoint;
mod create;
mod end;
mod force;
mod grow;
mod images;
mod info;
mod keep;
mod lend;
mod memory;
mod moves;
mod pending;
mod query;
mod recover;
mod restart;
mod ticket;
mod watch;

pub use checkpoint::Checkpoint;
pub use end::Stop;
pub use info::Detail;
pub use memory::{Resize, Resized};
pub use moves::{CoresResize, CoresWanted};
pub use pending::Created;
pub use ticket::Ticket;

use crate::effects::Effects;
use crate::images::Images;
use crate::inventory::{Inventory, Scrub};
use crate::journal::Journal;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use cell::Cell;
use isola_abi::id::CellId;
use isola_abi::management::{CoresResized, Decision, JournalEvent, MAX_NAME_LEN, ManagementError};

/// The length of a scrub slice, in ns. Notifications and requests are served between two slices.
const SCRUB_SLICE_NS: u64 = 300_000;

/// The most bytes that a slice scrubs: half a million instructions' work.
pub(crate) const SCRUB_SLICE: u64 = 1 << 20;

/// The bytes scrubbed between two readings of the clock: some ten microseconds' work.
const SCRUB_STEP: u64 = 16 << 10;

/// The inventory of a machine with the effects `E`.
pub type InventoryOf<E> = Inventory<<E as Effects>::Memory, <E as Effects>::Core, <E as Effects>::Device>;

/// Facts that were measured during boot.
#[derive(Clone, Copy, Debug)]
pub struct Boot {
    /// The time of day of the supervisor's first instruction, in ns since 1970-01-01 UTC.
    pub unix_ns: u64,
    /// The time from the first instruction until the supervisor could answer requests, in ns.
    pub ready_ns: u64,
    /// The rate of the time-stamp counter, in Hz.
    pub tsc_hz: u64,
    /// Bytes of memory that the supervisor itself uses.
    pub memory_supervisor: u64,
    /// The number of the supervisor's restarts.
    pub restarts: u32,
}

/// All cells of the machine, with the inventory, the image store and the journal.
pub struct Cells<E: Effects> {
    effects: E,
    inventory: InventoryOf<E>,
    boot: Boot,
    journal: Journal,
    images: Images<E::Memory>,
    cells: BTreeMap<CellId, Cell<E>>,
    next_id: u32,
    ended: Vec<CellId>,
    resized: Vec<Resized>,
    cores_resized: Vec<(Ticket, Result<CoresResized, ManagementError>)>,
    created: Vec<(Ticket, Result<CellId, ManagementError>)>,
    pending: Vec<pending::Pending>,
    tickets: ticket::Tickets,
    quarantine: Vec<Quarantined<E>>,
    /// Bytes of memory that an earlier incarnation could not recover, and that stay out of use.
    withheld_bytes: u64,
    loans: lend::Loans,
}

/// The resources of an ended cell to which a lost core or device may still write.
struct Quarantined<E: Effects> {
    memory_bytes: u64,
    /// Kept so that they are never used again.
    _parts: (E::Space, Option<E::Device>),
}

/// All owners of memory.
#[cfg(test)]
pub(crate) struct Parts<'a, E: Effects> {
    pub(crate) effects: &'a E,
    pub(crate) memory: &'a crate::inventory::Memory<E::Memory>,
    pub(crate) store: &'a Images<E::Memory>,
    /// The spaces of cells with resources; `out_of_use` has those in quarantine.
    pub(crate) held: Vec<&'a E::Space>,
    pub(crate) out_of_use: Vec<&'a E::Space>,
}

impl<E: Effects> Cells<E> {
    /// Returns no cells, on a machine that has just booted.
    pub fn new(effects: E, inventory: InventoryOf<E>, boot: Boot) -> Self {
        let mut cells = Self::with_journal(effects, inventory, boot, Journal::new());
        cells.write_entry(boot.unix_ns, boot.ready_ns, None, JournalEvent::Boot);
        cells
    }

    fn with_journal(effects: E, inventory: InventoryOf<E>, boot: Boot, journal: Journal) -> Self {
        Self {
            effects,
            inventory,
            boot,
            journal,
            images: Images::new(),
            cells: BTreeMap::new(),
            next_id: 1,
            ended: Vec::new(),
            resized: Vec::new(),
            cores_resized: Vec::new(),
            created: Vec::new(),
            pending: Vec::new(),
            tickets: ticket::Tickets::new(),
            quarantine: Vec::new(),
            withheld_bytes: 0,
            loans: lend::Loans::new(),
        }
    }

    /// Returns the machine's hardware operations.
    pub fn effects(&mut self) -> &mut E {
        &mut self.effects
    }

    /// Returns the parts that survive a failure of the supervisor: the machine, and the memory of the image store.
    #[cfg(test)]
    pub(crate) fn into_parts(self) -> (E, Vec<crate::effects::SharedOf<E>>) {
        let Self { effects, images, .. } = self;
        (effects, images.into_memory())
    }

    /// Returns all owners of memory, for a check of all ranges.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> Parts<'_, E> {
        let held = self.cells.values().filter_map(Cell::held).map(|held| &held.space);
        Parts {
            effects: &self.effects,
            memory: &self.inventory.memory,
            store: &self.images,
            held: held.collect(),
            out_of_use: self.quarantine.iter().map(|kept| &kept._parts.0).collect(),
        }
    }

    /// Returns the inventory.
    pub fn inventory(&mut self) -> &mut InventoryOf<E> {
        &mut self.inventory
    }

    /// Returns the journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Enters an event in the journal that lasted from `since_ns` until now.
    pub fn record(&mut self, since_ns: u64, cell: Option<&str>, event: JournalEvent) {
        let now = self.effects.now_ns();
        self.write_entry(self.unix_ns(now), now.saturating_sub(since_ns), cell, event);
    }

    fn write_entry(&mut self, unix_ns: u64, duration_ns: u64, cell: Option<&str>, event: JournalEvent) {
        let entry = self.journal.record(unix_ns, duration_ns, cell, event);
        if let Ok(bytes) = postcard::to_allocvec(&entry) {
            self.effects.save_journal_entry(&bytes);
        }
    }

    /// Enters a decision of another program in the journal.
    ///
    /// # Errors
    /// Returns [`ManagementError::OutOfLimits`] or [`ManagementError::BadName`] if a text is too long.
    pub fn note(
        &mut self,
        cell: Option<&str>,
        duration_ns: u64,
        decision: Decision,
    ) -> Result<(), ManagementError> {
        decision.validate()?;
        if let Some(name) = cell.filter(|name| name.len() > MAX_NAME_LEN) {
            return Err(ManagementError::BadName(shorten(name)));
        }
        let now = self.effects.now_ns();
        self.write_entry(self.unix_ns(now), duration_ns, cell, JournalEvent::Decision(decision));
        Ok(())
    }

    /// Returns the id of the cell with that name.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`] if there is none.
    pub fn find(&self, name: &str) -> Result<CellId, ManagementError> {
        let found = self.cells.values().find(|cell| cell.spec.name == name);
        found.map(|cell| cell.id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))
    }

    /// Returns the cells that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<CellId> {
        core::mem::take(&mut self.ended)
    }

    /// Does a slice of the work for which a request waits; otherwise scrubs free memory for [`SCRUB_SLICE_NS`]. A slice
    /// is short enough for notifications to wait for it. Returns whether there is more to do.
    pub fn work(&mut self) -> Scrub {
        if self.measure() || self.do_pending() {
            return Scrub::Unfinished;
        }
        let end = self.effects.now_ns().saturating_add(SCRUB_SLICE_NS);
        let (dirty, near) = (self.inventory.memory.dirty(), self.wanted_node());
        let mut scrub = Scrub::Finished;
        for _ in 0..SCRUB_SLICE / SCRUB_STEP {
            scrub = self.inventory.memory.scrub(SCRUB_STEP, near);
            if scrub == Scrub::Finished || self.effects.now_ns() >= end {
                break;
            }
        }
        // The answers to waiting cells change only when another chunk is zero.
        if scrub == Scrub::Finished || self.inventory.memory.dirty() < dirty {
            self.grow_waiting();
        }
        if self.pending.is_empty() { scrub } else { Scrub::Unfinished }
    }

    /// Returns the time of day at `now_ns`, in ns since 1970-01-01 UTC.
    fn unix_ns(&self, now_ns: u64) -> u64 {
        self.boot.unix_ns.saturating_add(now_ns)
    }
}

/// Truncates a name to the longest length of a name, for use in a response.
pub fn shorten(name: &str) -> String {
    let end = name.floor_char_boundary(MAX_NAME_LEN);
    name.get(..end).unwrap_or_default().into()
}

#[cfg(test)]
mod tests;
