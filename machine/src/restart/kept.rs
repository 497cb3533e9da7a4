//! What outlives an incarnation of the image: variables that are neither zeroed nor written over when it restarts.
//!
//! They stand in a section of their own (`machine/link/link.ld`). An incarnation that went wrong could have written to them, so
//! what is more than a number has a checksum.

use super::checksum;
use super::ownership::MAX_RECORDS;
use super::ring::Ring;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::layout::PAGE_SIZE;

/// Most bytes of the variables that an image begins with; those of one that has more are not kept.
const MAX_VARIABLES: usize = 1024;

/// Most bytes of a survey.
const MAX_SURVEY: usize = 4096;

/// Most bytes of what else whoever divides the machine wants to know again.
pub const MAX_CHECKPOINT: usize = 48 << 10;

/// Bytes of the journal that are kept.
const JOURNAL_BYTES: usize = 64 << 10;

/// How many restarts are remembered: see [`Kept::may_restart`].
const REMEMBERED: usize = 5;

/// What outlives an incarnation.
#[repr(C, align(4096))]
pub(super) struct Kept {
    /// The interrupt table while there is no other.
    pub(super) interrupt_table: [AtomicU64; 512],
    /// Whether to restart rather than to end the machine.
    pub(super) armed: AtomicU32,
    /// How often it was restarted.
    pub(super) restarts: AtomicU32,
    /// The last [`RestartCause`](isola_abi::management::RestartCause), as a number.
    pub(super) cause: AtomicU32,
    /// The cycle counter at the last restart.
    pub(super) ended_cycles: AtomicU64,
    /// Cycles of a second.
    pub(super) tsc_hz: AtomicU64,
    /// The core that the image runs on.
    pub(super) apic: AtomicU32,
    /// Where the loader's information is.
    pub(super) start_info: AtomicU64,
    /// The status register of the one device that works for the image itself: its address, and its length in bytes.
    pub(super) status_register: AtomicU64,
    pub(super) status_len: AtomicU32,
    recent: [AtomicU64; REMEMBERED],
    /// Where the ownership records of cells are: see [`word_of`], each with its complement in the next word, or, where it does not hold
    /// any more, with itself; [`UNREADABLE`] has 0 there.
    records: [AtomicU64; 2 * MAX_RECORDS],
    variables_len: AtomicU32,
    variables: [AtomicU8; MAX_VARIABLES],
    survey: Note<MAX_SURVEY>,
}

/// What stands in the place of an ownership record that could not be read.
const UNREADABLE: u64 = 1;

/// As what an ownership record was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// As that of a cell.
    Entered,
    /// As one that an earlier incarnation has found not to hold: what it names may still be written to.
    Void,
    /// As one that an earlier incarnation could not read.
    Unreadable,
}

/// Bytes, and a sum by which it is seen that they are still as they were written.
#[repr(C)]
pub(super) struct Note<const MAX: usize> {
    len: AtomicU32,
    sum: AtomicU64,
    bytes: [AtomicU8; MAX],
}

impl<const MAX: usize> Note<MAX> {
    const fn new() -> Self {
        Self { len: AtomicU32::new(0), sum: AtomicU64::new(0), bytes: [const { AtomicU8::new(0) }; MAX] }
    }

    /// Writes these in the place of what was there. Returns whether there is room for them; else nothing is there.
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

    /// What was written, where it is still as it was.
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        let len = self.len.load(Ordering::Acquire) as usize;
        let bytes: Vec<u8> = self.bytes.get(..len)?.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        (len > 0 && checksum(&bytes) == self.sum.load(Ordering::Relaxed)).then_some(bytes)
    }
}

#[unsafe(link_section = ".bss.isola_kept")]
pub(super) static KEPT: Kept = Kept {
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
    survey: Note::new(),
};

/// What else whoever divides the machine wants to know again. By itself, so that an image that divides none is without it.
#[unsafe(link_section = ".bss.isola_kept.checkpoint")]
pub(super) static CHECKPOINT: Note<MAX_CHECKPOINT> = Note::new();

/// The journal of whoever divides the machine. By itself for the same reason.
#[unsafe(link_section = ".bss.isola_kept.journal")]
pub(super) static JOURNAL: Ring<JOURNAL_BYTES> = Ring::new();

impl Kept {
    /// Keeps the variables as they are now. Where there are too many, none.
    pub(super) fn keep_variables(&self, variables: &[u8]) {
        if variables.len() <= MAX_VARIABLES {
            store(&self.variables, variables);
            self.variables_len.store(variables.len() as u32, Ordering::Relaxed);
        }
    }

    /// The variables that were kept: where, and how many bytes.
    pub(super) fn variables(&self) -> (u64, u64) {
        (self.variables.as_ptr() as u64, self.variables_len.load(Ordering::Relaxed).into())
    }

    /// Keeps what was found out about the machine. Returns whether there is room for it.
    pub(super) fn keep_survey(&self, survey: &[u8]) -> bool {
        self.survey.write(survey)
    }

    /// What was found out about the machine, where it is still as it was written.
    pub(super) fn survey(&self) -> Option<Vec<u8>> {
        self.survey.read()
    }

    /// Enters where an ownership record is. Returns whether there is a place for it.
    pub(super) fn enter_record(&self, record: PhysRange) -> bool {
        let word = word_of(record);
        self.enter(word, !word)
    }

    /// Enters where an ownership record is that does not hold any more. Returns whether there is a place for it.
    pub(super) fn enter_void(&self, record: PhysRange) -> bool {
        let word = word_of(record);
        self.enter(word, word)
    }

    /// Enters that there is an ownership record of which nothing is known. Returns whether there is a place for it.
    pub(super) fn enter_unreadable(&self) -> bool {
        self.enter(UNREADABLE, 0)
    }

    fn enter(&self, word: u64, check: u64) -> bool {
        let free = self.records.chunks_exact(2).find(|pair| pair[0].load(Ordering::Relaxed) == 0);
        if let Some([place, complement]) = free {
            complement.store(check, Ordering::Relaxed);
            place.store(word, Ordering::Release);
        }
        free.is_some()
    }

    /// Strikes an ownership record out.
    pub(super) fn strike_record(&self, record: PhysRange) {
        let word = word_of(record);
        let entered = self.records.chunks_exact(2).filter(|pair| pair[0].load(Ordering::Relaxed) == word);
        entered.for_each(|pair| pair[0].store(0, Ordering::Release));
    }

    /// Strikes all ownership records out, and returns where they were; `None` for those that can't be told any more.
    pub(super) fn take_records(&self) -> Vec<Option<(PhysRange, Standing)>> {
        let entered = self.records.chunks_exact(2).filter_map(|pair| {
            let (word, complement) = (pair[0].swap(0, Ordering::Relaxed), pair[1].load(Ordering::Relaxed));
            let place = PhysRange::new(PhysAddr(word & !(PAGE_SIZE - 1)), word % PAGE_SIZE * PAGE_SIZE);
            let standing = match complement {
                _ if complement == !word => Some(Standing::Entered),
                _ if complement == word => Some(Standing::Void),
                0 if word == UNREADABLE => Some(Standing::Unreadable),
                _ => None,
            };
            (word != 0).then(|| Some((place, standing?)))
        });
        entered.collect()
    }

    /// Whether the image may be restarted now, and if so, notes that it is. An image that goes wrong whenever it begins
    /// shall not do so for ever: five times within a minute is too often.
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

/// An ownership record's place in a word: where it begins, and in the lowest bits how many pages it has.
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

    fn kept() -> Box<Kept> {
        // SAFETY: it is atomic integers, for which zero is a value.
        unsafe { Box::<Kept>::new_zeroed().assume_init() }
    }

    #[test]
    fn a_survey_that_was_written_over_is_none() {
        let kept = kept();
        assert_eq!(kept.survey(), None);
        assert!(kept.keep_survey(b"another") && !kept.keep_survey(&[0; MAX_SURVEY + 1]));
        assert_eq!(kept.survey(), None, "what does not fit leaves nothing that is older");
        assert!(kept.keep_survey(b"a machine"));
        assert_eq!(kept.survey().as_deref(), Some(&b"a machine"[..]));
        kept.survey.bytes[3].store(b'x', Ordering::Relaxed);
        assert_eq!(kept.survey(), None);
        kept.survey.len.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(kept.survey(), None);
    }

    #[test]
    fn ownership_records_are_found_again_and_those_that_were_written_over_are_told_apart() {
        let (kept, record) = (kept(), |number: u64| PhysRange::new(PhysAddr(number << 12), number << 12));
        for number in 1..=4 {
            assert!(kept.enter_record(record(number)));
        }
        kept.strike_record(record(2));
        kept.records[4].store(0x3008, Ordering::Relaxed);
        let entered = |number| Some((record(number), Standing::Entered));
        assert_eq!(kept.take_records(), [entered(1), None, entered(4)]);
        assert!(kept.take_records().is_empty());
        assert!(kept.enter_unreadable() && kept.enter_void(record(4)) && kept.enter_record(record(3)));
        let unreadable = Some((PhysRange::new(PhysAddr(0), PAGE_SIZE), Standing::Unreadable));
        assert_eq!(kept.take_records(), [unreadable, Some((record(4), Standing::Void)), entered(3)]);
        for number in 1..=MAX_RECORDS as u64 {
            assert!(kept.enter_record(record(number)));
        }
        assert!(!kept.enter_record(record(1)));
    }

    #[test]
    fn an_image_that_goes_wrong_whenever_it_begins_is_given_up_and_one_that_does_so_now_and_then_is_not() {
        let kept = kept();
        kept.tsc_hz.store(1000, Ordering::Relaxed);
        let hasty = (0..20).take_while(|second| kept.may_restart(1_000_000 + second * 1000)).count();
        assert_eq!(hasty, REMEMBERED);
        assert!((2..50).all(|hour| kept.may_restart(hour * 3_600_000)));
    }
}
