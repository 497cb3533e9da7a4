//! Variables that survive a restart of the image: they are neither zeroed nor overwritten.
//!
//! They are in a section of their own (`machine/link/link.ld`). A failed incarnation could have overwritten them, so
//! contents of more than a number have a checksum.

use super::checksum;
use super::ring::Ring;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::layout::PAGE_SIZE;
use isola_abi::management::MAX_CELLS;

/// The most bytes of an image's initialised variables; larger ones are not copied, so that the image cannot restart.
const MAX_VARIABLES: usize = 1024;

/// The most cells with resources: the most cells at a time, and as many in quarantine.
const MAX_RECORDS: usize = 2 * MAX_CELLS;

/// The most bytes of a survey.
const MAX_SURVEY: usize = 4096;

/// The most bytes of the supervisor checkpoint.
pub const MAX_CHECKPOINT: usize = 48 << 10;

/// Bytes of the journal that survive.
const JOURNAL_BYTES: usize = 64 << 10;

/// The number of recorded restarts: see [`PersistentState::may_restart`].
const REMEMBERED: usize = 5;

/// The variables of every image that survive a restart.
#[repr(C, align(4096))]
pub(super) struct PersistentState {
    /// The interrupt table while the image has no other.
    pub(super) interrupt_table: [AtomicU64; 512],
    /// Whether restarts are enabled.
    pub(super) armed: AtomicU32,
    /// The number of restarts.
    pub(super) restarts: AtomicU32,
    /// The last [`RestartCause`](isola_abi::management::RestartCause), as a number.
    pub(super) cause: AtomicU32,
    /// The cycle counter at the last restart.
    pub(super) ended_cycles: AtomicU64,
    /// Cycles per second.
    pub(super) tsc_hz: AtomicU64,
    /// The core that the image runs on.
    pub(super) apic: AtomicU32,
    /// The address of the loader's start info.
    pub(super) start_info: AtomicU64,
    /// The status register of the one device that works for the image itself: its address, and its length in bytes.
    pub(super) status_register: AtomicU64,
    pub(super) status_len: AtomicU32,
    recent: [AtomicU64; REMEMBERED],
    /// The locations of ownership records, see [`word_of`]. The second word of each pair is the complement of the
    /// first, or, for a rejected record, its copy; for [`UNREADABLE`] it is 0.
    records: [AtomicU64; 2 * MAX_RECORDS],
    variables_len: AtomicU32,
    variables: [AtomicU8; MAX_VARIABLES],
    survey: CheckedBytes<MAX_SURVEY>,
}

/// The entry for a record that could not be read.
const UNREADABLE: u64 = 1;

/// The kind of an ownership record's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// The record of a cell.
    Entered,
    /// A record that an earlier incarnation rejected: its memory may still be written to.
    Rejected,
    /// A record that an earlier incarnation could not read.
    Unreadable,
}

/// Bytes with a checksum that detects changes.
#[repr(C)]
pub(super) struct CheckedBytes<const MAX: usize> {
    len: AtomicU32,
    sum: AtomicU64,
    bytes: [AtomicU8; MAX],
}

impl<const MAX: usize> CheckedBytes<MAX> {
    const fn new() -> Self {
        Self { len: AtomicU32::new(0), sum: AtomicU64::new(0), bytes: [const { AtomicU8::new(0) }; MAX] }
    }

    /// Replaces the contents. Returns whether the bytes fit; if not, there are no contents.
    pub(super) fn write(&self, bytes: &[u8]) -> bool {
        self.len.store(0, Ordering::Relaxed);
        let fits = bytes.len() <= MAX;
        if fits {
            store(&self.bytes, bytes);
            self.sum.store(checksum(bytes), Ordering::Relaxed);
            self.len.store(bytes.len() as u32, Ordering::Release);
        }
        fits
    }

    /// Returns the contents if they are intact.
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        let len = self.len.load(Ordering::Acquire) as usize;
        let bytes: Vec<u8> = self.bytes.get(..len)?.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        (len > 0 && checksum(&bytes) == self.sum.load(Ordering::Relaxed)).then_some(bytes)
    }
}

#[unsafe(link_section = ".bss.isola_persistent")]
pub(super) static PERSISTENT: PersistentState = PersistentState {
    interrupt_table: [const { AtomicU64::new(0) }; 512],
    armed: AtomicU32::new(0),
    restarts: AtomicU32::new(0),
    cause: AtomicU32::new(0),
    ended_cycles: AtomicU64::new(0),
    tsc_hz: AtomicU64::new(0),
    apic: AtomicU32::new(0),
    start_info: AtomicU64::new(0),
    status_register: AtomicU64::new(0),
    status_len: AtomicU32::new(0),
    recent: [const { AtomicU64::new(0) }; REMEMBERED],
    records: [const { AtomicU64::new(0) }; 2 * MAX_RECORDS],
    variables_len: AtomicU32::new(0),
    variables: [const { AtomicU8::new(0) }; MAX_VARIABLES],
    survey: CheckedBytes::new(),
};

/// The supervisor checkpoint. A static of its own, so that an image that does not divide the machine goes without it.
#[unsafe(link_section = ".bss.isola_persistent.checkpoint")]
pub(super) static CHECKPOINT: CheckedBytes<MAX_CHECKPOINT> = CheckedBytes::new();

/// The supervisor's journal. A static of its own for the same reason.
#[unsafe(link_section = ".bss.isola_persistent.journal")]
pub(super) static JOURNAL: Ring<JOURNAL_BYTES> = Ring::new();

impl PersistentState {
    /// Copies the variables, unless there are too many.
    pub(super) fn save_variables(&self, variables: &[u8]) {
        if variables.len() <= MAX_VARIABLES {
            store(&self.variables, variables);
            self.variables_len.store(variables.len() as u32, Ordering::Relaxed);
        }
    }

    /// Returns the address and length in bytes of the copied variables.
    pub(super) fn variables(&self) -> (u64, u64) {
        (self.variables.as_ptr() as u64, self.variables_len.load(Ordering::Relaxed).into())
    }

    /// Stores the survey of the machine. Returns whether it fits.
    pub(super) fn save_survey(&self, survey: &[u8]) -> bool {
        self.survey.write(survey)
    }

    /// Returns the survey of the machine if it is intact.
    pub(super) fn survey(&self) -> Option<Vec<u8>> {
        self.survey.read()
    }

    /// Enters an ownership record. Returns whether there is room for it.
    pub(super) fn enter_record(&self, record: PhysRange) -> bool {
        let word = word_of(record);
        self.enter(word, !word)
    }

    /// Enters a rejected ownership record. Returns whether there is room for it.
    pub(super) fn enter_rejected(&self, record: PhysRange) -> bool {
        let word = word_of(record);
        self.enter(word, word)
    }

    /// Enters an unreadable ownership record. Returns whether there is room for it.
    pub(super) fn enter_unreadable(&self) -> bool {
        self.enter(UNREADABLE, 0)
    }

    fn enter(&self, word: u64, check: u64) -> bool {
        let free = self.records.chunks_exact(2).find(|pair| pair[0].load(Ordering::Relaxed) == 0);
        if let Some([entry, complement]) = free {
            complement.store(check, Ordering::Relaxed);
            entry.store(word, Ordering::Release);
        }
        free.is_some()
    }

    /// Removes the entry of an ownership record.
    pub(super) fn strike_record(&self, record: PhysRange) {
        let word = word_of(record);
        let entered = self.records.chunks_exact(2).filter(|pair| pair[0].load(Ordering::Relaxed) == word);
        entered.for_each(|pair| pair[0].store(0, Ordering::Release));
    }

    /// Removes and returns the entries of all ownership records; `None` for entries that are damaged.
    pub(super) fn take_records(&self) -> Vec<Option<(PhysRange, RecordState)>> {
        let entered = self.records.chunks_exact(2).filter_map(|pair| {
            let (word, complement) = (pair[0].swap(0, Ordering::Relaxed), pair[1].load(Ordering::Relaxed));
            let location = PhysRange::new(PhysAddr(word & !(PAGE_SIZE - 1)), word % PAGE_SIZE * PAGE_SIZE);
            let state = match complement {
                _ if complement == !word => Some(RecordState::Entered),
                _ if complement == word => Some(RecordState::Rejected),
                0 if word == UNREADABLE => Some(RecordState::Unreadable),
                _ => None,
            };
            (word != 0).then(|| Some((location, state?)))
        });
        entered.collect()
    }

    /// Returns whether the image may restart now, and if so, counts the restart. The limit of five restarts per minute
    /// ends a series in which every incarnation fails.
    pub(super) fn may_restart(&self, now_cycles: u64) -> bool {
        let number = self.restarts.load(Ordering::Relaxed) as usize;
        let Some(oldest) = self.recent.get(number % REMEMBERED) else { return false };
        let since = now_cycles.wrapping_sub(oldest.load(Ordering::Relaxed));
        let minute = self.tsc_hz.load(Ordering::Relaxed).saturating_mul(60);
        if number >= REMEMBERED && since < minute {
            return false;
        }
        oldest.store(now_cycles, Ordering::Relaxed);
        self.restarts.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Packs a record's location into a word: its address, and in the lowest bits its number of pages.
fn word_of(record: PhysRange) -> u64 {
    record.start.0 | (record.len_bytes / PAGE_SIZE)
}

fn store(to: &[AtomicU8], from: &[u8]) {
    to.iter().zip(from).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;

    fn persistent() -> Box<PersistentState> {
        // SAFETY: the type consists of atomic integers, for which zero is a valid value.
        unsafe { Box::<PersistentState>::new_zeroed().assume_init() }
    }

    #[test]
    fn an_overwritten_survey_is_ignored() {
        let persistent = persistent();
        assert_eq!(persistent.survey(), None);
        assert!(persistent.save_survey(b"another") && !persistent.save_survey(&[0; MAX_SURVEY + 1]));
        assert_eq!(persistent.survey(), None, "a survey that does not fit removes the older one");
        assert!(persistent.save_survey(b"a machine"));
        assert_eq!(persistent.survey().as_deref(), Some(&b"a machine"[..]));
        persistent.survey.bytes[3].store(b'x', Ordering::Relaxed);
        assert_eq!(persistent.survey(), None);
        persistent.survey.len.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(persistent.survey(), None);
    }

    #[test]
    fn entries_of_records_are_found_and_damaged_ones_detected() {
        let (persistent, record) =
            (persistent(), |number: u64| PhysRange::new(PhysAddr(number << 12), number << 12));
        for number in 1..=4 {
            assert!(persistent.enter_record(record(number)));
        }
        persistent.strike_record(record(2));
        persistent.records[4].store(0x3008, Ordering::Relaxed);
        let entered = |number| Some((record(number), RecordState::Entered));
        assert_eq!(persistent.take_records(), [entered(1), None, entered(4)]);
        assert!(persistent.take_records().is_empty());
        assert!(
            persistent.enter_unreadable()
                && persistent.enter_rejected(record(4))
                && persistent.enter_record(record(3))
        );
        let unreadable = Some((PhysRange::new(PhysAddr(0), PAGE_SIZE), RecordState::Unreadable));
        assert_eq!(
            persistent.take_records(),
            [unreadable, Some((record(4), RecordState::Rejected)), entered(3)]
        );
        for number in 1..=MAX_RECORDS as u64 {
            assert!(persistent.enter_record(record(number)));
        }
        assert!(!persistent.enter_record(record(1)));
    }

    #[test]
    fn only_frequent_restarts_are_refused() {
        let persistent = persistent();
        persistent.tsc_hz.store(1000, Ordering::Relaxed);
        let hasty = (0..20).take_while(|second| persistent.may_restart(1_000_000 + second * 1000)).count();
        assert_eq!(hasty, REMEMBERED);
        assert!((2..50).all(|hour| persistent.may_restart(hour * 3_600_000)));
    }
}
