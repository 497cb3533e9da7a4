//! The local APIC of the calling core (Intel SDM 3, chapter 10 "Advanced programmable interrupt controller").
//!
//! Its registers are model-specific registers (x2APIC) or a page of memory, mapped at `LOCAL_APIC` in every address
//! space (xAPIC). The image that boots the machine chooses the mode once; a cell gets it from its descriptor.

use crate::authority::Authority;
use crate::cpu::{self, msr, read_msr, write_msr};
use crate::interrupts::{FIRST_INTERRUPT, SPURIOUS_VECTOR};
use core::sync::atomic::{AtomicU8, Ordering};
use isola_abi::descriptor::InterruptMode;
use isola_abi::id::ApicId;
use isola_abi::layout::LOCAL_APIC;

/// Registers, by their offset in the page. The number of a model-specific register is that offset divided by 16.
mod register {
    pub(super) const ID: u32 = 0x20;
    pub(super) const TASK_PRIORITY: u32 = 0x80;
    pub(super) const END_OF_INTERRUPT: u32 = 0xb0;
    pub(super) const SPURIOUS: u32 = 0xf0;
    /// The first of eight registers, of 32 vectors each.
    pub(super) const IN_SERVICE: u32 = 0x100;
    pub(super) const ERROR_STATUS: u32 = 0x280;
    pub(super) const COMMAND: u32 = 0x300;
    pub(super) const COMMAND_HIGH: u32 = 0x310;
    pub(super) const TIMER: u32 = 0x320;
    pub(super) const LINE_0: u32 = 0x350;
    pub(super) const LINE_1: u32 = 0x360;
    pub(super) const ERROR: u32 = 0x370;
    pub(super) const INITIAL_COUNT: u32 = 0x380;
    pub(super) const CURRENT_COUNT: u32 = 0x390;
    pub(super) const DIVIDER: u32 = 0x3e0;
    /// Exists only in x2APIC mode.
    pub(super) const SELF: u32 = 0x3f0;
}

const MASKED: u32 = 1 << 16;
const SOFTWARE_ENABLED: u32 = 1 << 8;
const DELIVERY_PENDING: u32 = 1 << 12;

/// Commands: delivery mode, and "assert".
const FIXED: u32 = 1 << 14;
const TO_SELF: u32 = 1 << 18;
const NON_MASKABLE: u32 = 4 << 8 | 1 << 14;
const INIT: u32 = 5 << 8 | 1 << 14;
const STARTUP: u32 = 6 << 8 | 1 << 14;

const APIC_BASE_X2APIC: u64 = 1 << 10;
const APIC_BASE_ENABLED: u64 = 1 << 11;

/// Polls of a command that is still being delivered, before the next command is sent anyway.
const PATIENCE: u32 = 100_000;

/// 0: xAPIC; 1: x2APIC.
static MODE: AtomicU8 = AtomicU8::new(0);

/// Returns the mode in use.
pub fn mode() -> InterruptMode {
    match MODE.load(Ordering::Relaxed) {
        0 => InterruptMode::XApic,
        _ => InterruptMode::X2Apic,
    }
}

/// Sets the mode in use; to be called before any other function of this module.
pub(crate) fn set_mode(mode: InterruptMode) {
    MODE.store(matches!(mode, InterruptMode::X2Apic) as u8, Ordering::Relaxed);
}

/// Returns x2APIC mode if this machine's processors have it, else xAPIC mode.
pub(crate) fn best_mode() -> InterruptMode {
    if cpu::Features::read().x2apic { InterruptMode::X2Apic } else { InterruptMode::XApic }
}

/// Enables this core's APIC, for all vectors, with its timer stopped and its local lines masked.
pub(crate) fn enable() {
    // SAFETY: every processor that Isola runs on has the register, and supports the selected mode.
    unsafe {
        let base = read_msr(msr::APIC_BASE) | APIC_BASE_ENABLED;
        let extended = if mode() == InterruptMode::X2Apic { APIC_BASE_X2APIC } else { 0 };
        write_msr(msr::APIC_BASE, base | extended);
    }
    write(register::TASK_PRIORITY, 0);
    write(register::SPURIOUS, SOFTWARE_ENABLED | u32::from(SPURIOUS_VECTOR));
    for line in [register::TIMER, register::LINE_0, register::LINE_1, register::ERROR] {
        write(line, MASKED);
    }
    write(register::INITIAL_COUNT, 0);
    write(register::ERROR_STATUS, 0);
}

/// Enables the machine's own non-maskable interrupt, as QEMU's command `inject-nmi` raises it, on this core.
pub fn accept_non_maskable(_: Authority) {
    write(register::LINE_1, 4 << 8);
}

/// Acknowledges all interrupts that may be in service.
pub(crate) fn end_all_interrupts() {
    (0..16).for_each(|_| end_of_interrupt());
}

/// Returns this core's APIC id.
pub fn id() -> ApicId {
    match mode() {
        InterruptMode::XApic => ApicId(read(register::ID) >> 24),
        InterruptMode::X2Apic => ApicId(read(register::ID)),
    }
}

/// Returns whether an interrupt with this vector is in service on this core: begun and not yet acknowledged.
pub(crate) fn is_in_service(vector: u8) -> bool {
    let word = read(register::IN_SERVICE + 0x10 * u32::from(vector / 32));
    word >> (vector % 32) & 1 != 0
}

/// Interrupts another core, or this one.
///
/// # Panics
/// If the vector belongs to an exception: the other core would have to detect that it is an interrupt.
pub fn send(_: Authority, to: ApicId, vector: u8) {
    assert!(vector >= FIRST_INTERRUPT, "vector {vector} belongs to an exception");
    // SAFETY: the vector is not one of an exception.
    unsafe { send_unchecked(to, vector) };
}

/// As [`send`], with any vector.
///
/// # Safety
/// If the vector belongs to an exception, the handler of the other core must recognise it as an interrupt.
pub unsafe fn send_unchecked(to: ApicId, vector: u8) {
    command(to, FIXED | u32::from(vector));
}

/// Interrupts this core. May be called at any point of another interrupt's sending.
pub(crate) fn send_to_self(vector: u8) {
    match mode() {
        InterruptMode::X2Apic => write(register::SELF, u32::from(vector)),
        // The shorthand for this core leaves the command's upper half unchanged.
        InterruptMode::XApic => write(register::COMMAND, FIXED | TO_SELF | u32::from(vector)),
    }
}

/// Sends a core a non-maskable interrupt.
pub fn send_non_maskable(_: Authority, to: ApicId) {
    command(to, NON_MASKABLE);
}

/// Stops a core, whatever it executes; it then waits for [`send_startup`].
pub(crate) fn send_init(to: ApicId) {
    command(to, INIT);
}

/// Starts a stopped core at physical page `page`, in real mode.
pub(crate) fn send_startup(to: ApicId, page: u8) {
    command(to, STARTUP | u32::from(page));
}

/// Acknowledges the interrupt in service.
#[inline]
pub(crate) fn end_of_interrupt() {
    write(register::END_OF_INTERRUPT, 0);
}

/// Divisors of the timer's clock (1, 16 and 128) with their encodings.
const DIVISORS: [(u64, u32); 3] = [(1, 0b1011), (16, 0b0011), (128, 0b1010)];

/// Returns the divisor's encoding and the count for a delay in ticks. A delay beyond the longest ends early.
fn count_for(delay_ticks: u64) -> (u32, u32) {
    let fitting = DIVISORS.iter().find(|(divisor, _)| delay_ticks.div_ceil(*divisor) <= u64::from(u32::MAX));
    match fitting {
        Some((divisor, code)) => (*code, delay_ticks.div_ceil(*divisor).max(1) as u32),
        None => (DIVISORS[2].1, u32::MAX),
    }
}

/// Arms the timer to interrupt this core once, with `vector`, after `delay_ticks` ticks of the undivided timer.
/// Replaces the previous setting. A delay of more than 128 * 2^32 ticks ends early: minutes, on any machine.
pub fn arm_timer(_: Authority, vector: u8, delay_ticks: u64) {
    let (divider, count) = count_for(delay_ticks);
    write(register::DIVIDER, divider);
    write(register::TIMER, u32::from(vector));
    write(register::INITIAL_COUNT, count);
}

/// Stops the timer.
pub fn disarm_timer(_: Authority) {
    write(register::INITIAL_COUNT, 0);
    write(register::TIMER, MASKED);
}

/// Starts the timer at its highest count, without an interrupt, for calibration.
pub(crate) fn start_count() {
    write(register::DIVIDER, DIVISORS[0].1);
    write(register::TIMER, MASKED);
    write(register::INITIAL_COUNT, u32::MAX);
}

/// Returns the ticks since [`start_count`].
pub(crate) fn ticks_counted() -> u32 {
    u32::MAX - read(register::CURRENT_COUNT)
}

fn command(to: ApicId, command: u32) {
    match mode() {
        InterruptMode::X2Apic => {
            let register = msr::X2APIC + register::COMMAND / 16;
            // A write of the command register is not ordered after writes of memory (SDM 3, 10.12.3).
            core::sync::atomic::fence(Ordering::SeqCst);
            // SAFETY: the register exists in this mode. A command changes no memory; the callers are responsible for
            // its effect on the receiver.
            unsafe { write_msr(register, u64::from(to.0) << 32 | u64::from(command)) };
        }
        InterruptMode::XApic => {
            let delivered = |_: &u32| read(register::COMMAND) & DELIVERY_PENDING == 0;
            loop {
                let sender = read(register::ID);
                (0..PATIENCE).find(delivered);
                write(register::COMMAND_HIGH, to.0 << 24);
                write(register::COMMAND, command);
                // Between the two writes, another core may have resumed this context, or this core may have run another
                // one (`cell/suspended.rs`): then the command went to another receiver, which finds no reason for the
                // interrupt.
                if read(register::ID) == sender && read(register::COMMAND_HIGH) == to.0 << 24 {
                    break;
                }
            }
        }
    }
}

fn read(register: u32) -> u32 {
    match mode() {
        // SAFETY: `register` is one of the constants above, which exist in this mode.
        InterruptMode::X2Apic => unsafe { read_msr(msr::X2APIC + register / 16) as u32 },
        InterruptMode::XApic => {
            // SAFETY: in this mode every address space maps the registers there.
            unsafe { ((LOCAL_APIC + u64::from(register)) as *const u32).read_volatile() }
        }
    }
}

#[inline]
fn write(register: u32, value: u32) {
    match mode() {
        // SAFETY: as for `read`.
        InterruptMode::X2Apic => unsafe { write_msr(msr::X2APIC + register / 16, u64::from(value)) },
        InterruptMode::XApic => {
            // SAFETY: as for `read`.
            unsafe { ((LOCAL_APIC + u64::from(register)) as *mut u32).write_volatile(value) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finest_divisor_that_can_express_the_delay_is_chosen() {
        assert_eq!(count_for(0), (0b1011, 1));
        assert_eq!(count_for(u64::from(u32::MAX)), (0b1011, u32::MAX));
        assert_eq!(count_for(1 << 32), (0b0011, 1 << 28));
        assert_eq!(count_for((1 << 36) + 1), (0b1010, (1 << 29) + 1));
        assert_eq!(count_for(u64::MAX), (0b1010, u32::MAX));
    }

    #[test]
    fn a_timer_within_its_range_is_never_early() {
        for delay in [1, 15, 17, 1 << 31, (1 << 33) + 1, (1 << 38) + 77] {
            let (code, count) = count_for(delay);
            let divisor = DIVISORS.iter().find(|(_, c)| *c == code).unwrap().0;
            assert!(u64::from(count) * divisor >= delay, "{delay}");
        }
    }
}
