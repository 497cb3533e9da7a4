//! What outlives this supervisor beside the cells that hold something: which images it keeps, and the records of cells that
//! have ended, with when they are to be started again. Noted whenever it changes; like all that a supervisor leaves that
//! has gone wrong it is not believed, but looked at: an image that is found again is measured before it is used.

use super::Cells;
use super::cell::{Body, Cell, End, Run};
use super::grow::Growth;
use super::info::Usage;
use super::keep::Keepsake;
use super::lend::KeptLoans;
use super::moves::Moves;
use super::restart::Restarting;
use crate::effects::Effects;
use crate::images::KeptImage;
use crate::logs::Log;
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_abi::management::{Crash, MAX_CELLS};
use serde::{Deserialize, Serialize};

/// What a supervisor has left beside cells that hold something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estate {
    /// The images, in the order of their use.
    pub images: Vec<KeptImage>,
    records: Vec<Record>,
}

/// A cell that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    keepsake: Keepsake,
    end: End,
    exit_code: Option<i32>,
    crash: Option<Crash>,
    /// When it is to be started again.
    next_ns: Option<u64>,
}

impl Estate {
    /// What was written; nothing where it is not what a supervisor writes.
    pub fn decode(bytes: &[u8]) -> Self {
        postcard::from_bytes(bytes).unwrap_or_default()
    }
}

impl<E: Effects> Cells<E> {
    /// Notes which images are kept, and which cells have ended. Where there is no room for all of it, without what is known
    /// of crashes; then without those cells that wait for nothing.
    pub(super) fn keep_estate(&mut self) {
        let records = self.cells.values().filter_map(Record::of).collect();
        let mut estate = Estate { images: self.images.kept(), records };
        if self.write(&estate) {
            return;
        }
        estate.records.iter_mut().for_each(|record| record.crash = None);
        if !self.write(&estate) {
            estate.records.retain(|record| record.next_ns.is_some());
            self.write(&estate);
        }
    }

    fn write(&mut self, estate: &Estate) -> bool {
        postcard::to_allocvec(estate).is_ok_and(|bytes| self.effects.keep_estate(&bytes))
    }

    /// Knows cells again that had ended.
    pub(super) fn take_over_records(&mut self, estate: Estate) {
        for record in estate.records {
            let Keepsake { id, spec, .. } = &record.keepsake;
            let is_new = !self.cells.contains_key(id) && self.find(&spec.name).is_err();
            if is_new && spec.validate().is_ok() && self.cells.len() < MAX_CELLS {
                self.next_id = self.next_id.max(id.0.saturating_add(1));
                self.cells.insert(*id, record.into_cell());
            }
        }
    }
}

impl Record {
    fn of<E: Effects>(cell: &Cell<E>) -> Option<Self> {
        let Run::Ended(end) = cell.run else { return None };
        Some(Self {
            keepsake: cell.to_keepsake(KeptLoans::default()),
            end,
            exit_code: cell.exit_code,
            crash: cell.crash.clone(),
            next_ns: cell.restarting.next_ns(),
        })
    }

    /// The cell. What it had printed and used is forgotten.
    fn into_cell<E: Effects>(self) -> Cell<E> {
        let Self { keepsake, end, exit_code, crash, next_ns } = self;
        Cell {
            id: keepsake.id,
            body: Body::Gone(Box::new(Usage::forgotten(end))),
            core_ids: Vec::new(),
            moves: Moves::new(),
            core_wishes: 0,
            memory_bytes: 0,
            growth: Growth::resume(0, 0, keepsake.limit, 0),
            shrink: None,
            image_bytes: keepsake.image_bytes,
            text_bytes: keepsake.text_bytes,
            run: Run::Ended(end),
            log: Log::new(),
            restarting: Restarting::resume(keepsake.restarts, next_ns),
            exit_code,
            crash,
            created_unix_ns: keepsake.created_unix_ns,
            started_unix_ns: keepsake.started_unix_ns,
            started_ns: keepsake.started_ns,
            durations: keepsake.durations,
            spec: keepsake.spec,
        }
    }
}
