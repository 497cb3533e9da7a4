//! Return addresses of the active functions. All code of an image keeps frame pointers.
//!
//! The walk reads only the stack of this core. An overwritten chain of frames ends the walk and cannot make it fault,
//! so the walk is possible at any moment, also in exception handlers.

use core::arch::asm;
use core::ops::Range;
use isola_abi::layout::{DEVICES, PAGE_SIZE, STACK_SIZE, STACK_SLOT, STACKS};

/// Fills `into` with return addresses, innermost first, starting with the frame at `frame_pointer` (RBP). Returns their
/// number: 0 if this core does not run on a stack of a cell or a supervisor.
pub fn walk(frame_pointer: u64, into: &mut [u64]) -> usize {
    let Some(stack) = main_stack_of(stack_pointer()) else { return 0 };
    let read = |address: u64| {
        // SAFETY: `frames` reads only addresses within the stack. The stack is mapped: this core runs on it, or on
        // another stack of the same slot.
        unsafe { (address as *const u64).read_volatile() }
    };
    frames(frame_pointer, stack, read, into)
}

/// Returns the frame pointer of the caller.
#[inline(always)]
pub fn frame_pointer() -> u64 {
    let value;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("mov {}, rbp", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

#[inline(always)]
fn stack_pointer() -> u64 {
    let value;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("mov {}, rsp", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Returns the main stack of the stack slot that contains `address`.
fn main_stack_of(address: u64) -> Option<Range<u64>> {
    if !(STACKS..DEVICES).contains(&address) {
        return None;
    }
    let start = address / STACK_SLOT * STACK_SLOT + PAGE_SIZE;
    Some(start..start + STACK_SIZE)
}

/// Follows the frames from `first` and stores their return addresses. A frame holds the caller's frame pointer, then
/// the return address. The frames of callers are at higher addresses.
fn frames(first: u64, stack: Range<u64>, read: impl Fn(u64) -> u64, into: &mut [u64]) -> usize {
    let mut frame = first;
    let mut above = stack.start;
    for (count, place) in into.iter_mut().enumerate() {
        if frame < above || frame > stack.end - 16 || !frame.is_multiple_of(8) {
            return count;
        }
        let address = read(frame + 8);
        if address == 0 {
            return count;
        }
        *place = address;
        above = frame + 16;
        frame = read(frame);
    }
    into.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: Range<u64> = 0x1000..0x2000;

    fn walk_fake(words: &[(u64, u64)], first: u64) -> alloc::vec::Vec<u64> {
        let read = |address: u64| {
            assert!(STACK.contains(&address) && STACK.contains(&(address + 7)), "{address:#x} is outside");
            words.iter().find(|(place, _)| *place == address).map_or(0, |(_, word)| *word)
        };
        let mut found = [0; 8];
        let count = frames(first, STACK, read, &mut found);
        found[..count].to_vec()
    }

    #[test]
    fn frames_are_followed_to_the_outermost() {
        let words = [(0x1100, 0x1200), (0x1108, 7), (0x1200, 0x1ff0), (0x1208, 8), (0x1ff0, 0), (0x1ff8, 9)];
        assert_eq!(walk_fake(&words, 0x1100), [7, 8, 9]);
    }

    #[test]
    fn an_overwritten_chain_ends_the_walk() {
        for next in [0x1100, 0x1108, 0x10f8, 0x0ff8, 0x1ff8, 0x2000, 0x1201, u64::MAX, u64::MAX - 7] {
            assert_eq!(walk_fake(&[(0x1100, next), (0x1108, 7)], 0x1100), [7], "{next:#x}");
        }
        for first in [0, 0xff8, 0x1ff8, 0x2000, u64::MAX - 15] {
            assert_eq!(walk_fake(&[], first), []);
        }
    }

    #[test]
    fn a_long_chain_fills_the_buffer() {
        let words: alloc::vec::Vec<_> =
            (0..20).flat_map(|n| [(0x1100 + 16 * n, 0x1110 + 16 * n), (0x1108 + 16 * n, n + 1)]).collect();
        assert_eq!(walk_fake(&words, 0x1100), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn only_addresses_in_stack_slots_have_a_main_stack() {
        let slot = STACKS + 3 * STACK_SLOT;
        assert_eq!(main_stack_of(slot + 0x8_1000), Some(slot + PAGE_SIZE..slot + PAGE_SIZE + STACK_SIZE));
        assert_eq!(main_stack_of(0x7fff_0000_0000), None);
        assert_eq!(walk(frame_pointer(), &mut [0; 4]), 0);
    }
}
