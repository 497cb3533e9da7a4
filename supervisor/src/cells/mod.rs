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
//! any of these four states. The resources of a cell are in the core (`isola-supervisor-core`); after its end only the
//! record here remains.
//!
//! An ended cell can be created again: under its id, with its log continued, on any free cores and memory, from its
//! image, as long as the image store has it (see [`crate::images`]).
//!
//! All work happens in calls: requests, notifications ([`Cells::on_notification`]), deadlines ([`Cells::tick`]) and
//! slices of work ([`Cells::work`]). Each does a bounded amount of work, and none waits for a cell, except for the return
//! of reclaimed cores and the acknowledgement of a TLB shootdown. [`Cells::next_deadline_ns`] says when to call
//! [`Cells::tick`].
//!
//! [`Cells`] consists of parts. A function that needs a few of them takes these as parameters; those that need all are
//! methods of [`Cells`], in the files marked with a star.
//!
//! | file | contents |
//! |---|---|
//! | this * | the parts, at boot and after a restart of the supervisor; work in slices |
//! | `create` * | create, recreate, start, restart, destroy |
//! | `end` * | notification, deadlines, stop, end |
//! | `resize` * | requests to resize a cell's cores or memory |
//! | `lend` * | loans of cores and memory |
//! | `links` * | requests about links between cells |
//! | `pending` * | requests and restarts that wait for memory to be scrubbed, or for an image to be hashed |
//! | `queries` * | requests that change nothing |
//! | `cell`, `table` | a cell's record, and all of them |
//! | `cores`, `memory`, `grow` | a running cell's cores and memory |
//! | `restart` | the restart policies |
//! | `watch` | the watchdog for hung cells |
//! | `sampling` * | samples for profiles |
//! | `usage` | information on a cell, for responses |
//! | `saved_state`, `checkpoint`, `recover` | the notes in ownership records, the supervisor checkpoint, and recovery |
//! | `ticket` | requests that are answered later |

mod cell;
mod checkpoint;
mod cores;
mod create;
mod end;
mod grow;
mod lend;
mod links;
mod memory;
mod pending;
mod queries;
mod recover;
mod resize;
mod restart;
mod sampling;
mod saved_state;
mod table;
mod ticket;
mod usage;
mod watch;

pub use checkpoint::Checkpoint;
pub use cores::{CoresResize, CoresWanted};
pub use end::Stop;
pub use memory::Resize;
pub use pending::Created;
pub use recover::SupervisorState;
pub use ticket::{Resized, Ticket};
pub use usage::Detail;

use crate::images::{Images, Measure};
use crate::journal::Journal;
use alloc::string::String;
use alloc::vec::Vec;
use cell::Cell;
use isola_abi::id::CellId;
use isola_abi::integrity::ImageDigest;
use isola_abi::management::{Decision, JournalEvent, MAX_NAME_LEN, ManagementError, max_cells};
use isola_supervisor_core::hardware::{InventoryOf, RecoveredState};
use isola_supervisor_core::inventory::Scrub;
use isola_supervisor_core::trusted_core::{OwnedCell, Recovery};
use isola_supervisor_core::{Hardware, TrustedCore};
use recover::{NUMBERS, adopt_all};
use table::CellTable;

/// The length of a scrub slice, in ns. Notifications and requests are served between two slices.
const SCRUB_SLICE_NS: u64 = 300_000;

/// The most bytes that a slice scrubs: 400,000 instructions' work. A slice and the pass after it, which may read all output of a
/// cell that has ended, delay notifications by less than a millisecond.
pub(crate) const SCRUB_SLICE: u64 = 3 << 18;

/// The bytes scrubbed between two readings of the clock: a microsecond's work on hardware. QEMU's emulator (7.2) takes up to a
/// second for a page that held code, because each store searches all translations of the page.
const SCRUB_STEP: u64 = 4 << 10;

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

/// All cells of the machine, with the trusted core, the image store and the journal.
pub struct Cells<H: Hardware> {
    core: TrustedCore<H>,
    boot: Boot,
    table: CellTable,
    journal: Journal,
    images: Images<H>,
    loans: lend::Loans,
    pending: pending::PendingRequests,
    answers: ticket::Answers,
    /// When samples for profiles are due.
    samples_due_ns: Option<u64>,
}

/// The parts that a change of one cell needs.
struct Parts<'a, H: Hardware> {
    core: &'a mut TrustedCore<H>,
    journal: &'a mut Journal,
    images: &'a mut Images<H>,
    loans: &'a lend::Loans,
    answers: &'a mut ticket::Answers,
}

impl<H: Hardware> Parts<'_, H> {
    /// Returns the cell's resources.
    fn owned(&self, cell: &Cell) -> Option<&OwnedCell<H>> {
        self.core.cell(cell.id)
    }

    /// Enters an event about the cell in the journal that lasted from `since_ns` until now.
    fn record(&mut self, cell: &Cell, since_ns: u64, event: JournalEvent) {
        self.journal.enter(self.core, since_ns, Some(&cell.spec.name), event);
    }

    /// Saves the cell's notes in its ownership record.
    fn save(&mut self, cell: &Cell) {
        self.core.save(cell.id, cell.notes(self.loans.saved(cell, self.core)));
    }
}

impl<H: Hardware> Cells<H> {
    /// Returns no cells, on a machine that has just booted.
    pub fn new(hardware: H, inventory: InventoryOf<H>, boot: Boot) -> Self {
        let core = TrustedCore::new(hardware, inventory);
        let mut cells = Self::with_journal(core, boot, Journal::new(), 1);
        cells.journal.enter_at(&mut cells.core, boot.unix_ns, boot.ready_ns, None, JournalEvent::Boot);
        cells
    }

    /// Returns the cells that a failed supervisor left. `inventory` has the resources without an owner among them.
    pub fn recover(
        hardware: H,
        inventory: InventoryOf<H>,
        boot: Boot,
        recovered: RecoveredState<H>,
        state: SupervisorState<H>,
    ) -> Self {
        let (core, recovery) = TrustedCore::recover(hardware, inventory, recovered);
        let Recovery { cause, number, ended_ns, gone, cells: unclaimed } = recovery;
        let SupervisorState { checkpoint, journal, images, texts } = state;
        let journal = Journal::resume(u64::from(number) * u64::from(NUMBERS), &journal);
        let mut cells = Self::with_journal(core, boot, journal, number.saturating_mul(NUMBERS).max(1));
        let adopted = adopt_all(unclaimed, &mut cells.core, &mut cells.table, &mut cells.loans);
        cells.images = Images::resume(images, texts);
        checkpoint.enter_ended_cells(&mut cells.table);
        cells.count_images();
        cells.loans.resume_debts(adopted.debts, &mut cells.core, &cells.table);
        cells.resume_lenders();
        let (found, gone) = (adopted.found, gone + adopted.gone);
        cells.record(ended_ns, None, JournalEvent::Restart { cause, number, found, gone });
        let ids: Vec<CellId> = cells.table.iter().map(|cell| cell.id).collect();
        ids.into_iter().for_each(|id| cells.serve_link(id));
        cells
    }

    /// Returns no cells. The first one will have the id `next_id`.
    fn with_journal(core: TrustedCore<H>, boot: Boot, journal: Journal, next_id: u32) -> Self {
        let limit = max_cells(core.inventory().cores.count());
        Self {
            core,
            boot,
            table: CellTable::new(next_id, limit),
            journal: journal.booted_at(boot.unix_ns),
            images: Images::new(),
            loans: lend::Loans::new(),
            pending: pending::PendingRequests::default(),
            answers: ticket::Answers::default(),
            samples_due_ns: None,
        }
    }

    /// Returns the trusted core.
    pub fn core(&mut self) -> &mut TrustedCore<H> {
        &mut self.core
    }

    /// Returns the journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Enters an event in the journal that lasted from `since_ns` until now.
    pub fn record(&mut self, since_ns: u64, cell: Option<&str>, event: JournalEvent) {
        self.journal.enter(&mut self.core, since_ns, cell, event);
    }

    /// Enters an event about a cell in the journal that lasted from `since_ns` until now.
    fn record_about(&mut self, id: CellId, since_ns: u64, event: JournalEvent) {
        let name = self.table.get(id).map(|cell| cell.spec.name.as_str());
        self.journal.enter(&mut self.core, since_ns, name, event);
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
        let unix_ns = self.journal.unix_ns(self.core.now_ns());
        let event = JournalEvent::Decision(decision);
        self.journal.enter_at(&mut self.core, unix_ns, duration_ns, cell, event);
        Ok(())
    }

    /// Returns the id of the cell with that name.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`] if there is none.
    pub fn find(&self, name: &str) -> Result<CellId, ManagementError> {
        self.table.find(name)
    }

    /// Returns the cells that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<CellId> {
        core::mem::take(&mut self.answers.ended)
    }

    /// Begins the upload of an image.
    ///
    /// # Errors
    /// Returns [`ManagementError::ImageRejected`] for an invalid length, or [`ManagementError::MemoryExhausted`].
    pub fn begin_image(&mut self, len_bytes: u64) -> Result<(), ManagementError> {
        self.images.begin(len_bytes, &mut self.core)
    }

    /// Adds the next bytes of the uploaded image.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoImage`] if no upload has begun, or [`ManagementError::OutOfLimits`].
    pub fn append_image(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ManagementError> {
        self.images.append(offset, bytes)
    }

    /// Returns whether uploaded bytes are not hashed yet. Requests wait for that, as only a hashed image is stored.
    pub fn is_measuring(&self) -> bool {
        self.images.is_measuring()
    }

    /// Discards an incomplete upload.
    pub fn discard_upload(&mut self) {
        self.images.discard_upload(&mut self.core);
    }

    /// Does a slice of the work for which a request waits; otherwise scrubs free memory for [`SCRUB_SLICE_NS`]. A slice
    /// is short enough for notifications to wait for it. Returns whether there is more to do.
    pub fn work(&mut self) -> Scrub {
        if self.measure() || self.complete_pending() {
            return Scrub::Unfinished;
        }
        let end = self.core.now_ns().saturating_add(SCRUB_SLICE_NS);
        let (dirty, near) = (self.core.inventory().memory.dirty(), self.pending.wanted_node());
        let mut scrub = Scrub::Finished;
        for _ in 0..SCRUB_SLICE / SCRUB_STEP {
            scrub = self.core.scrub(SCRUB_STEP, near);
            if scrub == Scrub::Finished || self.core.now_ns() >= end {
                break;
            }
        }
        // The answers to waiting cells change only when another chunk is zero.
        if scrub == Scrub::Finished || self.core.inventory().memory.dirty() < dirty {
            self.grow_waiting();
            self.settle_memory();
        }
        if self.pending.is_empty() { scrub } else { Scrub::Unfinished }
    }

    /// Hashes a slice of the uploaded image, or of one for which a request waits. Returns whether there was one.
    fn measure(&mut self) -> bool {
        let wanted = self.pending.wanted_image();
        match self.images.measure(wanted.as_ref(), &mut self.core) {
            Measure::Idle => return false,
            Measure::Begun => {}
            Measure::Done => self.count_images(),
        }
        true
    }

    /// Counts the users of each image after a change, and saves the checkpoint.
    fn count_images(&mut self) {
        let table = &self.table;
        let pending: Vec<ImageDigest> = self.pending.images(table).copied().collect();
        let uses = |digest: &_| {
            let of_cells = table.iter().filter(|cell| cell.uses_image()).map(|cell| &cell.spec.image);
            of_cells.chain(&pending).filter(|used| *used == digest).count() as u32
        };
        self.images.count(&mut self.core, uses);
        self.save_checkpoint();
    }

    /// Saves the checkpoint.
    fn save_checkpoint(&mut self) {
        checkpoint::save(&mut self.core, &self.table, &self.images);
    }

    /// Saves a cell's notes in its ownership record.
    fn save(&mut self, id: CellId) {
        if let Some(cell) = self.table.get(id) {
            self.core.save(id, cell.notes(self.loans.saved(cell, &self.core)));
        }
    }

    /// Returns a cell, and the parts that a change of it needs.
    fn parts(&mut self, id: CellId) -> Option<(&mut Cell, Parts<'_, H>)> {
        let Self { core, journal, images, loans, answers, table, .. } = self;
        Some((table.get_mut(id)?, Parts { core, journal, images, loans, answers }))
    }
}

/// Truncates a name to the longest length of a name, for use in a response.
pub fn shorten(name: &str) -> String {
    let end = name.floor_char_boundary(MAX_NAME_LEN);
    name.get(..end).unwrap_or_default().into()
}

#[cfg(test)]
mod tests;
