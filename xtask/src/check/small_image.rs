//! The smallest image that serves UDP occupies less than 1 MiB of a cell's memory.
//!
//! Counted is the memory of the segments that a supervisor loads into a cell, in whole pages: code, constants, and
//! variables including zeroed ones. Not counted is the segment of boot code, which cells do not get. The check builds
//! the image (`cargo small`), in a profile of its own: a minute.

use std::fs;

use object::Endianness;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

use super::{Check, Findings};
use crate::cargo::{cargo, succeeds};
use crate::error::Error;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "small-image",
    about: "the smallest image that serves UDP occupies less than 1 MiB",
    remedy: "find the largest symbols with `nm -SC --size-sort target/small/primes`; docs/decisions/0095-small-images.md \
             says where the bytes are",
    run,
};

/// The ceiling, in bytes.
const CEILING: u64 = 1 << 20;
/// The image, which `cargo small` builds.
const IMAGE: &str = "target/small/primes";
/// The segment flag that excludes a segment from cells (`BOOT_ALONE` of `abi/src/note.rs`).
const NOT_IN_CELLS: u32 = 0x0010_0000;
/// The unit in which a cell's memory is mapped, in bytes.
const PAGE: u64 = 4096;

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    if !succeeds(cargo(workspace).args(["small", "--quiet"]))? {
        return Ok(Findings::of(vec!["`cargo small` fails; cargo says why above".into()]));
    }
    let path = workspace.root().join(IMAGE);
    let bytes = fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
    let segments = segments(&bytes).map_err(|error| Error::Image { path, reason: error.to_string() })?;
    Ok(judge(memory(&segments)))
}

/// A loaded segment: its flags, and its length in memory in bytes.
type Segment = (u32, u64);

/// Returns the loaded segments of an image.
fn segments(image: &[u8]) -> object::Result<Vec<Segment>> {
    let header = FileHeader64::<Endianness>::parse(image)?;
    let endian = header.endian()?;
    let loaded = header.program_headers(endian, image)?.iter();
    let loaded = loaded.filter(|segment| segment.p_type(endian) == PT_LOAD);
    Ok(loaded.map(|segment| (segment.p_flags(endian).0, segment.p_memsz(endian))).collect())
}

/// Returns the memory that these segments occupy in a cell, in bytes.
fn memory(segments: &[Segment]) -> u64 {
    let in_cells = segments.iter().filter(|(flags, _)| flags & NOT_IN_CELLS == 0);
    in_cells.map(|(_, len)| len.next_multiple_of(PAGE)).sum()
}

/// Returns the findings for an image that occupies `bytes`.
fn judge(bytes: u64) -> Findings {
    let text = format!("{IMAGE} occupies {bytes} bytes of a cell's memory; the ceiling is {CEILING}");
    match bytes < CEILING {
        true => Findings { notes: vec![text], ..Findings::default() },
        false => Findings::of(vec![text]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_all_segments_count_but_those_of_boot_code() {
        assert_eq!(memory(&[(5, 4097), (4, 1), (6, 8192), (NOT_IN_CELLS | 6, 1 << 20)]), 5 * PAGE);
    }

    #[test]
    fn an_image_of_a_mebibyte_is_too_large() {
        assert_eq!(judge(CEILING).failures.len(), 1);
        assert!(judge(CEILING - PAGE).failures.is_empty());
    }
}
