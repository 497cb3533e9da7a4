//! Addresses at which a process's memory begins, and its limits.

use isola_user_mode::{PAGE_SIZE, USER_END};

/// The lowest address of a mapping without `MAP_FIXED`, as `/proc/sys/vm/mmap_min_addr` says.
pub const MIN_ADDRESS: u64 = 0x1_0000;

/// The addresses between a stack and the mapping below it, into which the stack does not grow.
pub const STACK_GUARD_GAP: u64 = 256 * PAGE_SIZE;

/// The least distance of the mappings from the end of the addresses: room for the stack.
const MIN_STACK_ROOM: u64 = 128 << 20;

/// The bits of a random page number for the stack (16 GiB) and for mappings (1 TiB), as in Linux.
const STACK_BITS: u32 = 22;
const MAPPING_BITS: u32 = 28;
const BREAK_BITS: u32 = 13;

/// The addresses at which parts of a process's memory begin, at random distances from the defaults (ASLR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    /// The end of the stack.
    pub stack_top: u64,
    /// The end of the uppermost mapping without an address.
    pub mapping_top: u64,
    /// The distance of the break from the end of the program's data.
    pub break_offset: u64,
}

impl MemoryLayout {
    /// Returns a layout with the random distances of a seed; all are 0 without one. `stack` is the limit of the stack in
    /// bytes.
    pub fn new(seed: Option<u64>, stack: u64) -> Self {
        let random = |rotation: u32, bits| {
            seed.map_or(0, |seed| mix(seed.rotate_left(rotation)) >> (64 - bits)) * PAGE_SIZE
        };
        let stack_top = USER_END - random(0, STACK_BITS);
        let most_room = USER_END / 6 * 5 / PAGE_SIZE * PAGE_SIZE;
        let room = stack.clamp(MIN_STACK_ROOM, most_room) / PAGE_SIZE * PAGE_SIZE;
        let room = room + STACK_GUARD_GAP + (PAGE_SIZE << STACK_BITS);
        Self {
            stack_top,
            mapping_top: USER_END
                .saturating_sub(room)
                .saturating_sub(random(21, MAPPING_BITS))
                .max(USER_END / 8),
            break_offset: random(42, BREAK_BITS),
        }
    }
}

/// Distributes the bits of a number (the finaliser of SplitMix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The limits of a process's memory, in bytes (`setrlimit`). [`u64::MAX`] is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// `RLIMIT_AS`: all mappings.
    pub address_space: u64,
    /// `RLIMIT_DATA`: private mappings that are writable, but for stacks.
    pub data: u64,
    /// `RLIMIT_STACK`: a mapping that grows.
    pub stack: u64,
    /// `RLIMIT_MEMLOCK`: locked mappings.
    pub locked: u64,
}

impl MemoryLimits {
    /// Linux's default of `RLIMIT_STACK`.
    pub const DEFAULT_STACK: u64 = 8 << 20;
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self { address_space: u64::MAX, data: u64::MAX, stack: Self::DEFAULT_STACK, locked: u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_leaves_room_for_the_stack_with_any_seed_and_limit() {
        for seed in [None, Some(0), Some(1), Some(0x1234_5678_9abc_def0), Some(u64::MAX)] {
            for stack in [0, MemoryLimits::DEFAULT_STACK, 1 << 40, u64::MAX] {
                let layout = MemoryLayout::new(seed, stack);
                assert!(
                    layout.stack_top.is_multiple_of(PAGE_SIZE)
                        && layout.mapping_top.is_multiple_of(PAGE_SIZE)
                );
                assert!(layout.stack_top <= USER_END && layout.mapping_top >= MIN_ADDRESS);
                assert!(layout.stack_top - layout.mapping_top >= stack.clamp(MIN_STACK_ROOM, 1 << 40));
            }
        }
        let layout = |seed| MemoryLayout::new(Some(seed), MemoryLimits::DEFAULT_STACK);
        assert_ne!(layout(1), layout(2));
        assert_eq!(layout(7), layout(7));
    }
}
