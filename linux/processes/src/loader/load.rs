//! Mapping a program into memory (Linux's `load_elf_binary`).

use super::elf::{Program, ProgramKind, Segment};
use crate::Errno;
use alloc::vec;
use isola_linux_abi::numbers::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_PRIVATE, PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE,
};
use isola_linux_memory::{MapObject, MapRequest, ProcessMemory};
use isola_user_mode::PAGE_SIZE;

/// The lowest address of a position-independent program with an interpreter, as in Linux: two thirds of all addresses.
const PROGRAM_BASE: u64 = 0x5555_5555_4000;
/// The number of different pages at which it can begin.
const PROGRAM_BASE_PAGES: u64 = 1 << 28;

/// Where a position-independent program is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// With the mappings: an interpreter, or a program without one.
    Anywhere,
    /// As a program with an interpreter, at a page chosen by this random number; so the heap behind it can grow.
    Program(u64),
}

/// The addresses of a loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The number that is added to the program's addresses.
    pub base: u64,
    /// Its first instruction.
    pub entry: u64,
    /// Behind its last byte.
    pub end: u64,
}

/// Maps the segments of a program.
///
/// # Errors
/// [`Errno::ENOMEM`] if there is no room, [`Errno::EFAULT`] if the file ends before a segment, and those of the file.
pub async fn load(
    memory: &ProcessMemory,
    program: &Program,
    file: &MapObject,
    placement: Placement,
) -> Result<Loaded, Errno> {
    let len = program.end() - program.start();
    // The whole range is reserved first, so that no other mapping gets into its gaps.
    let reserve = |address, flags| MapRequest {
        address,
        len,
        protection: PROT_NONE,
        flags: MAP_PRIVATE | MAP_ANONYMOUS | flags,
        ..MapRequest::default()
    };
    let start = match (program.kind, placement) {
        (ProgramKind::Fixed, _) => memory.map(reserve(program.start(), MAP_FIXED_NOREPLACE)).await?,
        (ProgramKind::PositionIndependent, Placement::Anywhere) => memory.map(reserve(0, 0)).await?,
        (ProgramKind::PositionIndependent, Placement::Program(random)) => {
            let address = PROGRAM_BASE + random % PROGRAM_BASE_PAGES * PAGE_SIZE;
            memory.map(reserve(address, 0)).await?
        }
    };
    let base = start.wrapping_sub(program.start());
    for segment in &program.segments {
        map_segment(memory, segment, file, base).await?;
    }
    // Gaps between segments are unmapped, as in Linux.
    for pair in program.segments.windows(2) {
        let gap = pair[0].end().next_multiple_of(PAGE_SIZE)..pair[1].first_page();
        if !gap.is_empty() {
            memory.unmap(base.wrapping_add(gap.start), gap.end - gap.start).await?;
        }
    }
    let end = program.segments.last().map_or(0, Segment::end);
    Ok(Loaded { base, entry: base.wrapping_add(program.entry), end: base.wrapping_add(end) })
}

/// Maps a segment: its part in the file privately, the rest as zeros.
async fn map_segment(
    memory: &ProcessMemory,
    segment: &Segment,
    file: &MapObject,
    base: u64,
) -> Result<(), Errno> {
    let address = base.wrapping_add(segment.address);
    let first_page = base.wrapping_add(segment.first_page());
    let offset_in_page = segment.address % PAGE_SIZE;
    let protection = if segment.is_readable { PROT_READ } else { PROT_NONE }
        | if segment.rights.writable { PROT_WRITE } else { 0 }
        | if segment.rights.executable { PROT_EXEC } else { 0 };
    let file_end = address + segment.file_len;
    let end = (address + segment.memory_len).next_multiple_of(PAGE_SIZE);
    let mut next = first_page;
    if segment.file_len > 0 {
        next = file_end.next_multiple_of(PAGE_SIZE);
        let request = MapRequest {
            address: first_page,
            len: next - first_page,
            protection,
            flags: MAP_PRIVATE | MAP_FIXED,
            offset: segment.file_offset - offset_in_page,
            object: Some(file.clone()),
            name: "",
        };
        memory.map(request).await?;
        // The rest of the last page belongs to the zeros. A segment that cannot be written has none that matter.
        if segment.memory_len > segment.file_len && segment.rights.writable && next > file_end {
            memory.write_bytes(file_end, &vec![0; (next - file_end) as usize]).await?;
        }
    }
    if next < end {
        let request = MapRequest {
            address: next,
            len: end - next,
            protection,
            flags: MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS,
            ..MapRequest::default()
        };
        memory.map(request).await?;
    }
    Ok(())
}
