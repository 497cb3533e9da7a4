//! Return addresses of the active functions. All code of an image keeps frame pointers.
//!
//! The walk reads only the stack of this core. An overwritten chain of frames ends the walk and cannot make it fault,
//! so the walk is possible at any moment, also in exception handlers.

use crate::image_bounds::ImageBounds;
use crate::interrupts::ExceptionFrame;
use core::arch::asm;
use core::ops::Range;
use isola_abi::layout::{DEVICES, PAGE_SIZE, REGIONS, REGIONS_SIZE, STACK_SIZE, STACK_SLOT, STACKS};

/// The most pages of a fiber stack between two frames: a frame of 64 KiB.
const MAX_FRAME_PAGES: u64 = 16;

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

/// Fills `into` with the return addresses of an interrupted context, innermost first, on its main stack `stack` or on a
/// fiber's stack, whose words `region_word` returns if their pages are present. Returns their number: 0 if the context
/// runs on neither. The walk ends at the first frame outside of these stacks, and at the first return address outside
/// of the image's code. `stack` must be mapped.
pub(crate) fn walk_interrupted(
    context: &ExceptionFrame,
    stack: Range<u64>,
    region_word: fn(u64) -> Option<u64>,
    into: &mut [u64],
) -> usize {
    let main_word = |address: u64| {
        // SAFETY: `frames_of_context` reads only addresses within the stack of a core slot whose context this core runs,
        // which is mapped.
        unsafe { (address as *const u64).read_volatile() }
    };
    let ImageBounds { text_start, text_end, .. } = ImageBounds::of_image();
    let is_code = |address: u64| (text_start..text_end).contains(&address);
    frames_of_context((context.rsp, context.rbp), stack, main_word, region_word, is_code, into)
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

/// Returns the main stack of a core slot.
pub(crate) fn main_stack_of_slot(slot: usize) -> Range<u64> {
    let start = STACKS + slot as u64 * STACK_SLOT + PAGE_SIZE;
    start..start + STACK_SIZE
}

/// Follows the frames of an interrupted context with these stack and frame pointers, from a fiber's stack also to the
/// main stack `main`, on which the fiber was resumed. Stores their return addresses, as far as they are code.
fn frames_of_context(
    (stack_pointer, first): (u64, u64),
    main: Range<u64>,
    main_word: impl Fn(u64) -> u64,
    region_word: impl Fn(u64) -> Option<u64>,
    is_code: impl Fn(u64) -> bool,
    into: &mut [u64],
) -> usize {
    let in_region = |address: u64| address.wrapping_sub(REGIONS) < REGIONS_SIZE;
    let mut above = stack_pointer;
    let mut frame = first;
    for (count, place) in into.iter_mut().enumerate() {
        let is_above = frame >= above && frame.is_multiple_of(8);
        let words = if !is_above || !(main.contains(&above) || in_region(above)) {
            None
        } else if (main.start..=main.end - 16).contains(&frame) {
            Some((main_word(frame), main_word(frame + 8)))
        } else if in_region(frame) {
            // Between two stacks is a page that is not present.
            let (last, page) = (above / PAGE_SIZE, frame / PAGE_SIZE);
            let is_same_stack = page - last <= MAX_FRAME_PAGES
                && (last + 1..page).all(|between| region_word(between * PAGE_SIZE).is_some());
            is_same_stack.then(|| region_word(frame).zip(region_word(frame + 8))).flatten()
        } else {
            None
        };
        let Some((next, address)) = words.filter(|(_, address)| is_code(*address)) else { return count };
        *place = address;
        above = frame + 16;
        frame = next;
    }
    into.len()
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

    /// Walks fake stacks: the main one, and a fiber's at `REGIONS + 0x1000..REGIONS + 0x4000`.
    fn walk_context(words: &[(u64, u64)], pointers: (u64, u64)) -> alloc::vec::Vec<u64> {
        let word =
            |address: u64| words.iter().find(|(place, _)| *place == address).map_or(0, |(_, word)| *word);
        let main_word = |address: u64| {
            assert!(MAIN.contains(&address) && MAIN.contains(&(address + 7)), "{address:#x} is outside");
            word(address)
        };
        let is_present = |address: &u64| (REGIONS + 0x1000..REGIONS + 0x4000).contains(address);
        let region_word = |address: u64| Some(address).filter(is_present).map(word);
        let mut found = [0; 8];
        let is_code = |address| (1..100).contains(&address);
        let count = frames_of_context(pointers, MAIN, main_word, region_word, is_code, &mut found);
        found[..count].to_vec()
    }

    const MAIN: Range<u64> = STACKS + 0x1000..STACKS + 0x2000;
    const FIBER: u64 = REGIONS + 0x1000;

    #[test]
    fn the_frames_of_a_fiber_are_followed_to_the_main_stack() {
        let words = [
            (FIBER + 0x100, FIBER + 0x2800),
            (FIBER + 0x108, 7),
            (FIBER + 0x2800, MAIN.start + 0x100),
            (FIBER + 0x2808, 8),
            (MAIN.start + 0x100, 0),
            (MAIN.start + 0x108, 9),
        ];
        assert_eq!(walk_context(&words, (FIBER + 0x80, FIBER + 0x100)), [7, 8, 9]);
        // From the main stack no chain leads to a fiber's.
        assert_eq!(walk_context(&words, (MAIN.start, FIBER + 0x100)), []);
    }

    #[test]
    fn a_wrong_frame_pointer_ends_the_walk_of_a_context() {
        let inside =
            [FIBER - 8, FIBER - 0x1000, FIBER + 0x2ff8, FIBER + 0x3000, FIBER + 0x10_0000, FIBER + 0x101];
        let outside =
            [0, 8, MAIN.start - 8, MAIN.end - 8, MAIN.end, u64::MAX, u64::MAX - 7, REGIONS + REGIONS_SIZE];
        for next in inside.into_iter().chain(outside) {
            let words = [(FIBER + 0x100, next), (FIBER + 0x108, 7), (MAIN.start, next), (MAIN.start + 8, 7)];
            assert_eq!(walk_context(&words, (FIBER + 0x80, FIBER + 0x100)), [7], "{next:#x}");
            assert_eq!(walk_context(&words, (MAIN.start, MAIN.start)), [7], "{next:#x}");
            assert_eq!(walk_context(&[], (FIBER, next)), [], "{next:#x}");
            assert_eq!(walk_context(&words, (0x7000, FIBER + 0x100)), [], "the stack pointer is elsewhere");
        }
        // A return address that is no code.
        let words = [(MAIN.start, MAIN.start + 0x80), (MAIN.start + 8, 7), (MAIN.start + 0x88, 100)];
        assert_eq!(walk_context(&words, (MAIN.start, MAIN.start)), [7]);
    }

    #[test]
    fn only_addresses_in_stack_slots_have_a_main_stack() {
        let slot = STACKS + 3 * STACK_SLOT;
        assert_eq!(main_stack_of(slot + 0x8_1000), Some(slot + PAGE_SIZE..slot + PAGE_SIZE + STACK_SIZE));
        assert_eq!(main_stack_of(0x7fff_0000_0000), None);
        assert_eq!(walk(frame_pointer(), &mut [0; 4]), 0);
    }
}
