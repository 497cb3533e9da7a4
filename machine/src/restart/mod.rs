//! The image restarts where it went wrong, on a machine on which cells run on.
//!
//! Only an image that divides the machine does so, once it has said that it is ready for it ([`arm`]). An incarnation ends in
//! [`restart`]: the image's variables become what they were when it was loaded, its heap is empty, and it comes up by
//! the way by which it came up at first ([`crate::boot`]): with new page tables, new stacks, new descriptor tables. What
//! that way leaves out the second time is all that would be felt in a cell.
//!
//! | what | the first time | again |
//! |---|---|---|
//! | clocks | calibrated | as in the survey |
//! | devices | found, measured, reset | as in the survey; reset where no cell has them |
//! | interrupt lines | masked | masked where no cell has them |
//! | other cores | INIT, started, parked | likewise, where they are in no cell |
//! | memory | free, zero where that is known | what no cell has is free, and dirty |
//!
//! An incarnation knows the one before from the ownership records of cells ([`ownership`]) and from the survey of the machine, of
//! which the first incarnation left a copy. Everything else is forgotten: nothing of the heap is looked at.
//!
//! | file | what |
//! |---|---|
//! | `kept` | the variables that outlive an incarnation |
//! | `ownership` | what a cell holds, written down |
//! | `claims` | who has what, from ownership records that nobody vouches for |
//! | `ring` | entries of a journal |
//! | `survey` | what was found out about the machine |

mod claims;
mod kept;
mod ownership;
mod ring;
mod survey;

pub use ownership::{DevicePlace, Holding, MAX_SAVED_STATE};

pub(crate) use claims::{Claim, Facts, Settled, settle};
pub(crate) use ownership::{OwnershipRecord, ownership_record_bytes};
pub(crate) use survey::{KnownFunction, Survey};

use crate::authority::Authority;
use crate::image::Bounds;
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
pub use kept::MAX_CHECKPOINT;
use kept::{CHECKPOINT, JOURNAL, KEPT, Standing};

global_asm!(include_str!("restart.s"), options(att_syntax));

/// Whether this incarnation has come so far that it can take interrupts that cannot be masked. Unlike what is kept, this is
/// zeroed when the next one begins.
static IS_UP: AtomicBool = AtomicBool::new(false);

/// Whether this incarnation is on its way out.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// How long a device may take to stop, in looks at its status.
const PATIENCE: u32 = 100_000;

/// What an incarnation is told of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// How often the image was restarted.
    pub restarts: u32,
    /// Why, the last time.
    pub cause: RestartCause,
    /// The cycle counter at the end of the incarnation before.
    pub ended_cycles: u64,
}

/// Called first of all, in each incarnation: keeps the image's variables as they were loaded, in the first.
pub(crate) fn begin(start_info: u64) {
    if KEPT.armed.load(Ordering::Relaxed) != 0 {
        return;
    }
    let bounds = Bounds::of_image();
    let len = bounds.variables_end - bounds.data_start;
    // SAFETY: from there on so many bytes are the image's variables; nothing has begun to change them, and nothing does
    // while this function looks at them: there is one core.
    let variables = unsafe { core::slice::from_raw_parts(bounds.data_start as *const u8, len as usize) };
    KEPT.keep_variables(variables);
    KEPT.start_info.store(start_info, Ordering::Relaxed);
    KEPT.apic.store(cpu::initial_apic_id().0, Ordering::Relaxed);
}

/// What was before this incarnation; `None` in the first.
pub fn past() -> Option<Past> {
    let cause = RestartCause::from_u32(KEPT.cause.load(Ordering::Relaxed));
    (KEPT.armed.load(Ordering::Relaxed) != 0).then(|| Past {
        restarts: KEPT.restarts.load(Ordering::Relaxed),
        cause: cause.unwrap_or(RestartCause::Exception),
        ended_cycles: KEPT.ended_cycles.load(Ordering::Relaxed),
    })
}

/// Says that the image shall restart from now on where it goes wrong, as it would find its cells again; and that it
/// takes interrupts that cannot be masked. `device` is the one that works for the image
/// itself. Returns whether it can.
pub fn arm(_: Authority, device: &crate::device::Device) -> bool {
    let (_, variables_len) = KEPT.variables();
    let status = device.status_register();
    let can = variables_len > 0 && KEPT.survey().is_some() && status.is_some();
    if let (true, Some((register, len))) = (can, status) {
        KEPT.status_register.store(register, Ordering::Relaxed);
        KEPT.status_len.store(len, Ordering::Relaxed);
        let mut page = [0; PAGE_SIZE as usize];
        tables::fill_interrupt_table(&mut page, interrupts::vectors());
        tables::use_current_stack(&mut page);
        for (to, from) in KEPT.interrupt_table.iter().zip(page.chunks_exact(8)) {
            to.store(from.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)), Ordering::Relaxed);
        }
        KEPT.armed.store(1, Ordering::Relaxed);
        IS_UP.store(true, Ordering::Relaxed);
    }
    can
}

/// Whether this incarnation has not come so far yet that it can take interrupts that cannot be masked, and another was before.
pub(crate) fn is_beginning() -> bool {
    !IS_UP.load(Ordering::Relaxed) && KEPT.armed.load(Ordering::Relaxed) != 0
}

/// Keeps what was found out about the machine.
pub(crate) fn keep_survey(survey: &Survey) {
    KEPT.tsc_hz.store(survey.clock.tsc_hz, Ordering::Relaxed);
    if let Ok(bytes) = postcard::to_allocvec(survey) {
        let _ = KEPT.keep_survey(&bytes);
    }
}

/// Keeps what whoever divides the machine wants to know again, beside cells: at most [`MAX_CHECKPOINT`] bytes. Returns whether
/// there is room for it; else the next incarnation finds none. Safe without an authority: the bytes are variables of the caller's own
/// image, and the supervisor checks them like anything hostile when it restarts.
pub fn save_checkpoint(bytes: &[u8]) -> bool {
    CHECKPOINT.write(bytes)
}

/// What the incarnation before has kept; `None` where it was written over, or there was none.
pub fn checkpoint() -> Option<Vec<u8>> {
    past()?;
    CHECKPOINT.read()
}

/// Keeps an entry of the journal of whoever divides the machine, over the oldest ones. Returns whether it is short enough.
pub fn keep_entry(bytes: &[u8]) -> bool {
    JOURNAL.append(bytes)
}

/// The entries of the incarnations before that are whole, in any order; none in the first incarnation.
pub fn entries() -> Vec<Vec<u8>> {
    past().map(|_| JOURNAL.entries()).unwrap_or_default()
}

/// What an earlier incarnation has found out about the machine; `None` in the first, and where that was written over.
pub(crate) fn survey() -> Option<Survey> {
    past()?;
    postcard::from_bytes(&KEPT.survey()?).ok()
}

/// How many ownership records cannot be read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unread {
    pub(crate) all: usize,
    /// Those that no earlier incarnation has counted.
    pub(crate) new: usize,
}

/// The ownership records that the previous incarnation has left, in memory of these ranges, and how many there are that cannot be read.
pub(crate) fn take_claims(memory: &[PhysRange]) -> (Vec<Claim>, Unread) {
    let found = KEPT.take_records();
    let count = found.len();
    let was_counted =
        |found: &&Option<(PhysRange, Standing)>| matches!(found, Some((_, Standing::Unreadable)));
    let counted = found.iter().filter(was_counted).count();
    let read = |(place, standing): (PhysRange, Standing)| {
        if standing == Standing::Unreadable {
            return None;
        }
        let inside = |range: &&PhysRange| range.start <= place.start && place.end() <= range.end();
        memory.iter().find(inside)?;
        // SAFETY: it is RAM in the direct map, which nobody else uses: should it be a cell's, as what is written over can
        // say anything, then bytes are read that do not make sense, and nothing is taken for granted of them.
        let pages = unsafe { core::slice::from_raw_parts(direct(place.start), place.len_bytes as usize) };
        let (holding, number) = ownership::read(pages)?;
        let cores = cores_of(&holding, memory);
        let claim = Claim { place, standing, number, holding, cores };
        Some(if standing == Standing::Void { claim.of_what_is_gone() } else { claim })
    };
    let claims: Vec<Claim> = found.into_iter().flatten().filter_map(read).collect();
    let all = count - claims.len();
    (claims, Unread { all, new: all - counted })
}

/// Leaves the next incarnation ownership records that were found and do not hold, where what they named may still be in use, and as many that
/// cannot be read.
pub(crate) fn leave_claims(places: impl Iterator<Item = PhysRange>, unread: usize) {
    // There is room: they were there before, as were those of all cells that there are by now.
    places.for_each(|place| _ = KEPT.enter_void(place));
    (0..unread).for_each(|_| _ = KEPT.enter_unreadable());
}

/// Which cores a cell has by now, by place.
fn cores_of(holding: &Holding, memory: &[PhysRange]) -> Vec<Option<Core>> {
    let descriptor = PhysRange::new(holding.descriptor, DESCRIPTOR_SIZE);
    let is_memory = holding.descriptor.0.is_multiple_of(PAGE_SIZE)
        && holding.descriptor.0.checked_add(DESCRIPTOR_SIZE).is_some()
        && memory.iter().any(|range| range.start <= descriptor.start && descriptor.end() <= range.end());
    match holding.stage {
        Stage::Quarantined => Vec::new(),
        Stage::Built => holding.cores.iter().copied().map(Some).collect(),
        Stage::Entering | Stage::Entered | Stage::Ending if is_memory => {
            // SAFETY: it is RAM in the direct map, as for the ownership record; the words are atomic integers, for which anything is a
            // value, and what they say is not taken for granted either.
            let live = unsafe { &*direct(holding.descriptor).cast::<LiveWords>() };
            let places = (holding.places as usize).min(MAX_CORES);
            (0..places).map(|place| live.places.core(place)).collect()
        }
        Stage::Entering | Stage::Entered | Stage::Ending => Vec::new(),
    }
}

/// Ends this incarnation, and begins the next: where the image is ready for that, and does not go wrong all the time. Else it
/// ends the machine, or, where cells run, this core alone.
pub fn restart(authority: Authority, cause: RestartCause) -> ! {
    if KEPT.armed.load(Ordering::Relaxed) == 0 {
        power::exit(authority, 1);
    }
    if cpu::initial_apic_id().0 != KEPT.apic.load(Ordering::Relaxed) {
        // A core that waits for something to do has gone wrong. The image runs on another one, and knows how to do without.
        power::stop();
    }
    let now = cpu::cycles();
    if !KEPT.may_restart(now) {
        serial_line!("this goes wrong all the time: the cells are on their own from now on");
        power::stop();
    }
    KEPT.cause.store(cause as u32, Ordering::Relaxed);
    KEPT.ended_cycles.store(now, Ordering::Relaxed);
    // SAFETY: the table was filled by `arm`, and leads to handlers in the image, which is at the same place in this space
    // and in the one of the early tables.
    unsafe { tables::load_interrupt_table(KEPT.interrupt_table.as_ptr() as u64) };
    if !IS_ENDING.swap(true, Ordering::Relaxed) {
        stop_device();
    }
    smp::see_off(KEPT.tsc_hz.load(Ordering::Relaxed));
    let (variables, len) = KEPT.variables();
    // SAFETY: what is written over and zeroed is the image's own, and nothing of this incarnation is used any more: its other
    // cores, which are parked, do not look at it before they are interrupted, and nobody does that.
    unsafe {
        asm!(
            "jmp isola_restart",
            in("rdi") variables,
            in("rsi") len,
            in("rdx") KEPT.start_info.load(Ordering::Relaxed),
            options(noreturn)
        )
    }
}

/// Stops the device that works for the image itself: it would write to memory that is the heap of the next incarnation.
fn stop_device() {
    let address = KEPT.status_register.load(Ordering::Relaxed);
    let Some(base) = core::ptr::NonNull::new(address as *mut u8) else { return };
    let len = KEPT.status_len.load(Ordering::Relaxed) as usize;
    // SAFETY: `arm` has stored there where the register is mapped, for good, in this address space. Resetting the device
    // breaks nothing but this incarnation.
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

/// A sum that tells bytes that were written over from those that were not, by mistake and not by intent (FNV-1a).
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
