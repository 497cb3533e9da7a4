//! Restart of the image after a failure, on a machine whose cells continue to run.
//!
//! Only an image that divides the machine restarts, after it has called [`arm`]. An incarnation ends in [`restart`]:
//! the image's variables get their initial values, its heap is empty, and it boots as it did at first
//! ([`crate::boot`]), with new page tables, stacks and descriptor tables. A later boot omits only the steps that a cell
//! would notice:
//!
//! | resource | first boot | later boots |
//! |---|---|---|
//! | clocks | calibrated | from the survey |
//! | devices | enumerated, measured, reset | from the survey; reset if no cell owns them |
//! | interrupt lines | masked | masked if no cell owns them |
//! | other cores | INIT, started, parked | likewise, if they are in no cell |
//! | memory | free; zero if that is known | free if no cell owns it, and dirty |
//!
//! An incarnation knows its predecessor only by the cells' ownership records ([`ownership`]), the survey of the machine
//! by the first incarnation, and the supervisor checkpoint and journal. It reads nothing from the old heap.
//!
//! | file | contents |
//! |---|---|
//! | `persistent` | the variables that survive a restart |
//! | `ownership` | ownership records of cells |
//! | `claims` | validation of ownership records |
//! | `ring` | journal entries |
//! | `survey` | facts about the machine |

mod claims;
mod ownership;
mod persistent;
mod ring;
mod survey;

pub use ownership::{CellResources, DeviceAddress, MAX_SAVED_STATE};

pub(crate) use claims::{Claim, MachineResources, ValidatedClaims, validate};
pub(crate) use ownership::{OwnershipRecord, ownership_record_bytes};
pub(crate) use survey::{KnownFunction, Survey};

use crate::authority::Authority;
use crate::image_bounds::ImageBounds;
use crate::memory::direct;
use crate::registers::Registers;
use crate::{cpu, interrupts, power, serial_line, smp, tables};
use alloc::vec::Vec;
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering};
use isola_abi::descriptor::{Core, LiveWords};
use isola_abi::id::{MAX_CORES, PhysRange};
use isola_abi::layout::{DESCRIPTOR_SIZE, PAGE_SIZE};
use isola_abi::management::RestartCause;
use isola_abi::stage::Stage;
pub use persistent::MAX_CHECKPOINT;
use persistent::{CHECKPOINT, JOURNAL, PERSISTENT, RecordState};

global_asm!(include_str!("restart.s"), options(att_syntax));

/// Whether this incarnation can handle non-maskable interrupts. Unlike persistent variables, this is zeroed at a
/// restart.
static IS_UP: AtomicBool = AtomicBool::new(false);

/// Whether the image has booted by itself. Only [`begin`] sets it: the link drops the code of restarts from an image
/// without a boot.
static OWNS_MACHINE: AtomicBool = AtomicBool::new(false);

/// Whether this incarnation is ending.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Polls of a device's status before the wait for its stop ends.
const PATIENCE: u32 = 100_000;

/// The history of incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartHistory {
    /// Number of restarts so far.
    pub restarts: u32,
    /// Cause of the last restart.
    pub cause: RestartCause,
    /// The cycle counter at the end of the previous incarnation.
    pub ended_cycles: u64,
}

/// Starts an incarnation: the first step of a boot. The first incarnation copies the image's variables, as they were
/// loaded.
pub(crate) fn begin(start_info: u64) {
    OWNS_MACHINE.store(true, Ordering::Relaxed);
    if PERSISTENT.armed.load(Ordering::Relaxed) != 0 {
        return;
    }
    let bounds = ImageBounds::of_image();
    let len = bounds.variables_end - bounds.data_start;
    // SAFETY: from there on so many bytes are the image's initialised variables; no code has changed them so far, and
    // none does while this function reads them: only one core runs.
    let variables = unsafe { core::slice::from_raw_parts(bounds.data_start as *const u8, len as usize) };
    PERSISTENT.save_variables(variables);
    PERSISTENT.start_info.store(start_info, Ordering::Relaxed);
    PERSISTENT.apic.store(cpu::initial_apic_id().0, Ordering::Relaxed);
}

/// Returns the history before this incarnation; `None` in the first.
pub fn history() -> Option<RestartHistory> {
    let cause = RestartCause::from_u32(PERSISTENT.cause.load(Ordering::Relaxed));
    (PERSISTENT.armed.load(Ordering::Relaxed) != 0).then(|| RestartHistory {
        restarts: PERSISTENT.restarts.load(Ordering::Relaxed),
        cause: cause.unwrap_or(RestartCause::Exception),
        ended_cycles: PERSISTENT.ended_cycles.load(Ordering::Relaxed),
    })
}

/// Enables restarts: from now on the image restarts after a failure, as it could recover its cells, and takes
/// non-maskable interrupts. `device` is the one that works for the image itself. Returns whether the image can restart.
pub fn arm(_: Authority, device: &crate::device::Device) -> bool {
    let (_, variables_len) = PERSISTENT.variables();
    let status = device.status_register();
    let can = variables_len > 0 && PERSISTENT.survey().is_some() && status.is_some();
    if let (true, Some((register, len))) = (can, status) {
        PERSISTENT.status_register.store(register, Ordering::Relaxed);
        PERSISTENT.status_len.store(len, Ordering::Relaxed);
        let mut page = [0; PAGE_SIZE as usize];
        tables::fill_interrupt_table(&mut page, interrupts::vectors());
        tables::use_current_stack(&mut page);
        for (to, from) in PERSISTENT.interrupt_table.iter().zip(page.chunks_exact(8)) {
            to.store(from.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)), Ordering::Relaxed);
        }
        PERSISTENT.armed.store(1, Ordering::Relaxed);
        IS_UP.store(true, Ordering::Relaxed);
    }
    can
}

/// Returns whether this is a later incarnation that cannot handle non-maskable interrupts so far.
pub(crate) fn is_beginning() -> bool {
    !IS_UP.load(Ordering::Relaxed) && PERSISTENT.armed.load(Ordering::Relaxed) != 0
}

/// Stores the survey of the machine for later incarnations.
pub(crate) fn save_survey(survey: &Survey) {
    PERSISTENT.tsc_hz.store(survey.clock.tsc_hz, Ordering::Relaxed);
    if let Ok(bytes) = postcard::to_allocvec(survey) {
        let _ = PERSISTENT.save_survey(&bytes);
    }
}

/// Stores the supervisor checkpoint: at most [`MAX_CHECKPOINT`] bytes. Returns whether they fit; if not, the next
/// incarnation finds no checkpoint. Safe without an authority: the bytes are variables of the caller's own image, and a
/// restarted supervisor validates them like any untrusted input.
pub fn save_checkpoint(bytes: &[u8]) -> bool {
    CHECKPOINT.write(bytes)
}

/// Returns the checkpoint of the previous incarnation; `None` if it was overwritten, or none was stored.
pub fn checkpoint() -> Option<Vec<u8>> {
    history()?;
    CHECKPOINT.read()
}

/// Stores a journal entry, over the oldest ones. Returns whether it is short enough.
pub fn save_journal_entry(bytes: &[u8]) -> bool {
    JOURNAL.append(bytes)
}

/// Returns the intact journal entries of previous incarnations, unordered; none in the first incarnation.
pub fn journal_entries() -> Vec<Vec<u8>> {
    history().map(|_| JOURNAL.entries()).unwrap_or_default()
}

/// Returns the survey by the first incarnation; `None` in the first, and if it was overwritten.
pub(crate) fn survey() -> Option<Survey> {
    history()?;
    postcard::from_bytes(&PERSISTENT.survey()?).ok()
}

/// The number of unreadable ownership records.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnreadableRecords {
    pub(crate) all: usize,
    /// Those that no earlier incarnation has counted.
    pub(crate) new: usize,
}

/// Removes and returns the ownership records of the previous incarnation in these ranges of memory, with the number of
/// unreadable ones.
pub(crate) fn take_claims(memory: &[PhysRange]) -> (Vec<Claim>, UnreadableRecords) {
    let found = PERSISTENT.take_records();
    let count = found.len();
    let was_counted =
        |found: &&Option<(PhysRange, RecordState)>| matches!(found, Some((_, RecordState::Unreadable)));
    let counted = found.iter().filter(was_counted).count();
    let read = |(location, state): (PhysRange, RecordState)| {
        if state == RecordState::Unreadable {
            return None;
        }
        let inside = |range: &&PhysRange| range.start <= location.start && location.end() <= range.end();
        memory.iter().find(inside)?;
        // SAFETY: it is RAM in the direct map that the image does not use otherwise. If it belongs to a cell, as an
        // overwritten address can name any memory, the bytes are invalid, but no code relies on them.
        let pages =
            unsafe { core::slice::from_raw_parts(direct(location.start), location.len_bytes as usize) };
        let (resources, number) = ownership::read(pages)?;
        let cores = cores_of(&resources, memory);
        let claim = Claim { location, state, number, resources, cores };
        Some(if state == RecordState::Rejected { claim.into_rejected() } else { claim })
    };
    let claims: Vec<Claim> = found.into_iter().flatten().filter_map(read).collect();
    let all = count - claims.len();
    (claims, UnreadableRecords { all, new: all - counted })
}

/// Stores rejected ownership records for the next incarnation, as the resources that they name may still be in use, and
/// as many unreadable ones.
pub(crate) fn save_rejected_claims(locations: impl Iterator<Item = PhysRange>, unread: usize) {
    // There is room: these records were there before, as were those of all present cells.
    locations.for_each(|location| _ = PERSISTENT.enter_rejected(location));
    (0..unread).for_each(|_| _ = PERSISTENT.enter_unreadable());
}

/// Returns the cores that a cell has now, by core slot.
fn cores_of(resources: &CellResources, memory: &[PhysRange]) -> Vec<Option<Core>> {
    let descriptor = PhysRange::new(resources.descriptor, DESCRIPTOR_SIZE);
    let is_memory = resources.descriptor.0.is_multiple_of(PAGE_SIZE)
        && resources.descriptor.0.checked_add(DESCRIPTOR_SIZE).is_some()
        && memory.iter().any(|range| range.start <= descriptor.start && descriptor.end() <= range.end());
    match resources.stage {
        Stage::Quarantined => Vec::new(),
        Stage::Built => resources.cores.iter().copied().map(Some).collect(),
        Stage::Entering | Stage::Entered | Stage::Ending if is_memory => {
            // SAFETY: it is RAM in the direct map, as for the ownership record; the words are atomic integers, for
            // which any bytes are valid, and no code relies on their values either.
            let live = unsafe { &*direct(resources.descriptor).cast::<LiveWords>() };
            let core_slots = (resources.core_slots as usize).min(MAX_CORES);
            (0..core_slots).map(|slot| live.core_slots.core(slot)).collect()
        }
        Stage::Entering | Stage::Entered | Stage::Ending => Vec::new(),
    }
}

/// Ends this incarnation and starts the next, if restarts are enabled and not too frequent. Without [`arm`], ends the
/// machine with exit code 1; if restarts are too frequent, or on another core than the image's own, stops this core for
/// good.
pub fn restart(authority: Authority, cause: RestartCause) -> ! {
    if !OWNS_MACHINE.load(Ordering::Relaxed) || PERSISTENT.armed.load(Ordering::Relaxed) == 0 {
        power::exit(authority, 1);
    }
    if cpu::initial_apic_id().0 != PERSISTENT.apic.load(Ordering::Relaxed) {
        // A parked core has failed. The image runs on another core, and can continue without this one.
        power::stop();
    }
    let now = cpu::cycles();
    if !PERSISTENT.may_restart(now) {
        serial_line!("too many restarts: the cells continue without a supervisor");
        power::stop();
    }
    PERSISTENT.cause.store(cause as u32, Ordering::Relaxed);
    PERSISTENT.ended_cycles.store(now, Ordering::Relaxed);
    // SAFETY: `arm` filled the table, and its handlers are in the image, which is at the same address in this space and
    // in that of the early tables.
    unsafe { tables::load_interrupt_table(PERSISTENT.interrupt_table.as_ptr() as u64) };
    if !IS_ENDING.swap(true, Ordering::Relaxed) {
        stop_device();
    }
    smp::wait_for_departures(PERSISTENT.tsc_hz.load(Ordering::Relaxed));
    let (variables, len) = PERSISTENT.variables();
    // SAFETY: the overwritten and zeroed memory belongs to the image, and no code of this incarnation runs any more:
    // its other cores, which are parked, access none of it before they are interrupted, and no core interrupts them.
    unsafe {
        asm!(
            "jmp isola_restart",
            in("rdi") variables,
            in("rsi") len,
            in("rdx") PERSISTENT.start_info.load(Ordering::Relaxed),
            options(noreturn)
        )
    }
}

/// Stops the device that works for the image itself: it would write to memory that is the heap of the next incarnation.
fn stop_device() {
    let address = PERSISTENT.status_register.load(Ordering::Relaxed);
    let Some(base) = core::ptr::NonNull::new(address as *mut u8) else { return };
    let len = PERSISTENT.status_len.load(Ordering::Relaxed) as usize;
    // SAFETY: `arm` stored the address of the register, which is mapped permanently in this address space. A reset of
    // the device only affects this incarnation.
    let register = unsafe { Registers::new(base, len) };
    let is_reset = |register: &Registers| match len {
        1 => register.read_u8(0) == 0,
        _ => register.read_u32(0) == 0,
    };
    match len {
        1 => register.write_u8(0, 0),
        _ => register.write_u32(0, 0),
    }
    (0..PATIENCE).any(|_| is_reset(&register));
}

/// Returns a checksum that detects accidental, not intentional, changes (FNV-1a).
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
