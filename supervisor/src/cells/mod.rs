//! The cells, and what becomes of them.
//!
//! ```text
//!               start                 asked to stop               in time, or not at all
//!    Created ----------> Running ----------------------> Stopping ----------------------+
//!                         |   |                             |                           |
//!       says it is done   |   |  says it crashed, or hangs  |  time is up               |
//!                         v   v                             v                           |
//!     create once more  Exited Crashed                   Killed <- - - - - - - - - - - -+
//!    Created <--------- any of these, holding nothing ---------> forgotten   (or Exited, Crashed)
//! ```
//!
//! An end is always the same, whatever led to it: the cores are taken back by force, then the device is reset,
//! then the cell's last words are read, and at once all that it held is free again: cores, device, and last the
//! memory, as it is (see [`crate::inventory::memory`] for who scrubs it). Of the cell there is only a record
//! then. Memory is free only when nothing is left that could write to it: where a core or a device did not come
//! back, memory and device go to the quarantine instead, and stay there.
//!
//! A cell that has ended can be created once more: under its id, with its log, in other memory and on whichever
//! cores are free then, from its image, as long as that is kept (see [`crate::images`]).
//!
//! Everything happens in calls: requests, doorbells ([`Cells::doorbell`]), time ([`Cells::tick`]) and slices of work
//! ([`Cells::work`]). No call waits for anything, and each does a bounded amount of work; no time passes unless
//! [`Cells::next_deadline_ns`] says when to look again.
//!
//! | file | what |
//! |---|---|
//! | `cell` | a cell's record |
//! | `create` | create, create once more, start, destroy |
//! | `end` | stop, doorbell, end |
//! | `images` | the images that are kept |
//! | `grow` | cells that ask for more memory |
//! | `restart` | cells that are started again by themselves |
//! | `memory` | memory that comes and goes by request |
//! | `pending` | requests and restarts that wait for memory to be scrubbed, or an image to be measured |
//! | `force` | cores that are taken from the middle of what they do |
//! | `moves` | cores that come and leave while a cell runs |
//! | `keep`, `checkpoint`, `recover` | what outlives this supervisor, of cells and beside them, and how the next one begins |
//! | `ticket` | which request an answer that comes later belongs to |
//! | `lend` | cores that cells have for a while |
//! | `watch` | cells that stand still |
//! | `info` | what is told of cells and machine |

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

/// How long a slice of scrubbing takes, in ns: notifications and requests are served between two.
const SCRUB_SLICE_NS: u64 = 300_000;

/// How much is scrubbed in a slice at most, in bytes: half a million instructions' work.
pub(crate) const SCRUB_SLICE: u64 = 1 << 20;

/// How much is scrubbed before somebody looks at the clock, in bytes: some ten microseconds' work.
const SCRUB_STEP: u64 = 16 << 10;

/// The inventory of a machine of these effects.
pub type InventoryOf<E> = Inventory<<E as Effects>::Memory, <E as Effects>::Core, <E as Effects>::Device>;

/// What was found out while the machine came up.
#[derive(Clone, Copy, Debug)]
pub struct Boot {
    /// Time of day of the supervisor's first instruction, in ns since 1970-01-01 UTC.
    pub unix_ns: u64,
    /// From there to the first request that it could answer, in ns.
    pub ready_ns: u64,
    /// Rate of the time-stamp counter.
    pub tsc_hz: u64,
    /// Bytes of memory that the supervisor keeps for itself.
    pub memory_supervisor: u64,
    /// How often the supervisor has restarted.
    pub restarts: u32,
}

/// All cells of the machine, and all that they are made of.
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
    /// Memory that a supervisor before this one has lost.
    withheld_bytes: u64,
    loans: lend::Loans,
}

/// What a cell held to which something that did not come back may still write.
struct Quarantined<E: Effects> {
    memory_bytes: u64,
    /// Kept, so that nobody else gets them.
    _parts: (E::Space, Option<E::Device>),
}

/// All that has memory.
#[cfg(test)]
pub(crate) struct Parts<'a, E: Effects> {
    pub(crate) effects: &'a E,
    pub(crate) memory: &'a crate::inventory::Memory<E::Memory>,
    pub(crate) store: &'a Images<E::Memory>,
    /// The cells that hold something, and those to whose memory something may still write.
    pub(crate) held: Vec<&'a E::Space>,
    pub(crate) out_of_use: Vec<&'a E::Space>,
}

impl<E: Effects> Cells<E> {
    /// No cells, on a machine that has just come up.
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

    /// What the machine can do.
    pub fn effects(&mut self) -> &mut E {
        &mut self.effects
    }

    /// What is left where a supervisor goes wrong: the machine, and what is in the memory of images.
    #[cfg(test)]
    pub(crate) fn into_parts(self) -> (E, Vec<crate::effects::SharedOf<E>>) {
        let Self { effects, images, .. } = self;
        (effects, images.into_memory())
    }

    /// Who has what, for a look at all of it.
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

    /// What the machine has.
    pub fn inventory(&mut self) -> &mut InventoryOf<E> {
        &mut self.inventory
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Enters something in the journal that took from `since_ns` until now.
    pub fn record(&mut self, since_ns: u64, cell: Option<&str>, event: JournalEvent) {
        let now = self.effects.now_ns();
        self.write_entry(self.unix_ns(now), now.saturating_sub(since_ns), cell, event);
    }

    fn write_entry(&mut self, unix_ns: u64, duration_ns: u64, cell: Option<&str>, event: JournalEvent) {
        let entry = self.journal.record(unix_ns, duration_ns, cell, event);
        if let Ok(bytes) = postcard::to_allocvec(&entry) {
            self.effects.keep_entry(&bytes);
        }
    }

    /// Enters a decision in the journal that somebody else made.
    ///
    /// # Errors
    /// [`ManagementError::OutOfLimits`] where it is too long.
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

    /// The id of the cell of that name.
    ///
    /// # Errors
    /// [`ManagementError::NoSuchCell`].
    pub fn find(&self, name: &str) -> Result<CellId, ManagementError> {
        let found = self.cells.values().find(|cell| cell.spec.name == name);
        found.map(|cell| cell.id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))
    }

    /// The cells that have ended since this was last asked.
    pub fn take_ended(&mut self) -> Vec<CellId> {
        core::mem::take(&mut self.ended)
    }

    /// Does a slice of work that somebody waits for, or else scrubs free memory for a moment: so little that
    /// notifications can wait for it. Returns whether there is more to do.
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
        // Only a chunk more that is zero changes what cells that wait are answered.
        if scrub == Scrub::Finished || self.inventory.memory.dirty() < dirty {
            self.grow_waiting();
        }
        if self.pending.is_empty() { scrub } else { Scrub::Unfinished }
    }

    /// Time of day, in ns since 1970-01-01 UTC.
    fn unix_ns(&self, now_ns: u64) -> u64 {
        self.boot.unix_ns.saturating_add(now_ns)
    }
}

/// A name as it can be repeated to the asker: not longer than a name can be.
pub fn shorten(name: &str) -> String {
    let end = name.floor_char_boundary(MAX_NAME_LEN);
    name.get(..end).unwrap_or_default().into()
}

#[cfg(test)]
mod tests;
