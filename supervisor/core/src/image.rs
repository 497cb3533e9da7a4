//! Validation and layout of a cell image, as untrusted bytes.
//!
//! An image is a static x86-64 ELF executable. Its segments are within the image's part of the address space (see
//! [`isola_abi::layout`]), share no pages, and none is both writable and executable. It has an Isola note (see
//! [`isola_abi::note`]) whose entry points are in an executable segment. Sections are ignored: the host tool removes
//! them. Segments that only a standalone image needs are skipped.

use alloc::vec::Vec;
use core::ops::Range;
use elf::endian::LittleEndian;
use elf::file::{Class, FileHeader, parse_ident};
use elf::note::{Note, NoteIterator};
use elf::segment::{ProgramHeader, SegmentTable};
use elf::{abi as constants, parse::ParseError};
use isola_abi::layout::{IMAGE, IMAGE_MAX_SIZE, PAGE_SIZE};
use isola_abi::management::{ImageFault, MAX_IMAGE};
use isola_abi::note::{BOOT_ALONE, ImageNote, OWNER, TYPE, VECTOR_COUNT, VECTOR_STRIDE};

/// The most program headers of an image.
const MAX_HEADERS: u16 = 64;

/// The largest note segment, in bytes.
const MAX_NOTES: usize = 4096;

/// The bytes with which linkers fill the last page of a segment: zero, and an instruction that traps.
const FILLERS: [u8; 2] = [0, 0xcc];

/// The length of the ELF header, in bytes.
const HEADER_LEN: usize = 64;

/// The length of a program header, in bytes.
const PROGRAM_HEADER_LEN: u16 = 56;

/// A cell's access to a segment's pages. There is no writable and executable kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
    /// Read and execute.
    ReadExecute,
}

/// The source of a segment's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The memory is the cell's own, and the file's bytes are copied to it.
    Copied,
    /// The cell maps the image store's memory.
    Shared,
}

/// A segment: memory that begins with bytes of the file and continues with zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The virtual address of the first byte.
    pub virt: u64,
    /// The bytes of the file at the segment's beginning; within the file, and not more than `memory_len`.
    pub file: Range<usize>,
    /// The length in memory, in bytes; not zero.
    pub memory_len: u64,
    /// The cell's access.
    pub rights: Rights,
    /// The source of the memory: `Copied` until [`ImagePlan::sharing`] has decided.
    pub source: Source,
}

impl Segment {
    /// Returns the addresses of the segment's pages.
    pub fn pages(&self) -> Range<u64> {
        let end = self.virt + self.memory_len;
        self.virt / PAGE_SIZE * PAGE_SIZE..end.next_multiple_of(PAGE_SIZE)
    }

    /// Returns the bytes of the segment's pages.
    fn page_bytes(&self) -> u64 {
        self.pages().end - self.pages().start
    }

    /// Returns the bytes of the file that would back the segment's pages if the file were mapped.
    pub fn file_pages(&self) -> Range<usize> {
        let start = self.file.start - (self.virt % PAGE_SIZE) as usize;
        start..start + self.page_bytes() as usize
    }

    /// Returns whether the file's pages can back the segment's pages: the segment is read-only, its file offset and
    /// address agree modulo the page size, no zeros follow the file's bytes, and the rest of these pages is filler.
    fn is_in_file(&self, pages: &[u8]) -> bool {
        let page_bytes = PAGE_SIZE as usize;
        if self.rights == Rights::ReadWrite
            || self.file.len() as u64 != self.memory_len
            || self.file.start % page_bytes != (self.virt % PAGE_SIZE) as usize
        {
            return false;
        }
        let span = self.file_pages();
        let around = pages.get(span.start..self.file.start).zip(pages.get(self.file.end..span.end));
        let is_filler = |bytes: &[u8]| bytes.iter().all(|byte| FILLERS.contains(byte));
        around.is_some_and(|(before, behind)| is_filler(before) && is_filler(behind))
    }

    fn contains(&self, addresses: &Range<u64>) -> bool {
        self.virt <= addresses.start && addresses.end <= self.virt + self.memory_len
    }
}

/// The segments and entry points of a validated image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePlan {
    entry: u64,
    vectors: u64,
    segments: Vec<Segment>,
}

impl ImagePlan {
    /// Validates an image.
    ///
    /// # Errors
    /// Returns the first defect found.
    pub fn check(bytes: &[u8]) -> Result<Self, ImageFault> {
        if bytes.len() as u64 > MAX_IMAGE {
            return Err(ImageFault::TooLarge);
        }
        let headers = program_headers(bytes)?;
        let mut segments = Vec::new();
        for header in headers.iter() {
            match header.p_type {
                constants::PT_INTERP | constants::PT_DYNAMIC => return Err(ImageFault::NotStatic),
                constants::PT_LOAD if header.p_flags & BOOT_ALONE != 0 => {}
                constants::PT_LOAD if header.p_memsz > 0 => segments.push(segment(&header, bytes)?),
                _ => {}
            }
        }
        segments.sort_by_key(|segment| segment.virt);
        let plan_pages = segments.iter().map(Segment::pages);
        if plan_pages.clone().zip(plan_pages.clone().skip(1)).any(|(one, next)| one.end > next.start) {
            return Err(ImageFault::SegmentPlacement);
        }
        if segments.iter().map(Segment::page_bytes).sum::<u64>() > MAX_IMAGE {
            return Err(ImageFault::TooLarge);
        }
        let note = note(&headers, bytes)?;
        if note.version != isola_abi::VERSION {
            return Err(ImageFault::Version(note.version));
        }
        let plan = Self { entry: note.entry, vectors: note.vectors, segments };
        let vectors_end = note.vectors.saturating_add(VECTOR_COUNT * VECTOR_STRIDE);
        if plan.executes(note.entry..note.entry.saturating_add(1)) && plan.executes(note.vectors..vectors_end)
        {
            Ok(plan)
        } else {
            Err(ImageFault::EntryPlacement)
        }
    }

    /// Returns the address of the entry point.
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// Returns the address of the first interrupt vector's entry point.
    pub fn vectors(&self) -> u64 {
        self.vectors
    }

    /// Returns the segments, by address; at least one.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Makes all segments shared that can be mapped from the image store's memory, whose contents are `pages`.
    #[must_use]
    pub fn sharing(mut self, pages: &[u8]) -> Self {
        for segment in &mut self.segments {
            segment.source = if segment.is_in_file(pages) { Source::Shared } else { Source::Copied };
        }
        self
    }

    /// Makes all segments copied.
    #[must_use]
    pub fn copied(mut self) -> Self {
        self.segments.iter_mut().for_each(|segment| segment.source = Source::Copied);
        self
    }

    /// Returns the bytes of the pages of all segments with that source.
    pub fn memory_bytes(&self, source: Source) -> u64 {
        self.segments.iter().filter(|segment| segment.source == source).map(Segment::page_bytes).sum()
    }

    fn executes(&self, addresses: Range<u64>) -> bool {
        let executable = self.segments.iter().filter(|segment| segment.rights == Rights::ReadExecute);
        executable.into_iter().any(|segment| segment.contains(&addresses))
    }
}

fn program_headers(bytes: &[u8]) -> Result<SegmentTable<'_, LittleEndian>, ImageFault> {
    let (ident, tail) = bytes.split_at_checked(constants::EI_NIDENT).ok_or(ImageFault::NotElf)?;
    let parsed = parse_ident::<LittleEndian>(ident).and_then(|ident| FileHeader::parse_tail(ident, tail));
    let header = parsed.map_err(|_| ImageFault::NotElf)?;
    if header.class != Class::ELF64 || header.e_machine != constants::EM_X86_64 || bytes.len() < HEADER_LEN {
        return Err(ImageFault::NotElf);
    }
    if header.e_type != constants::ET_EXEC {
        return Err(ImageFault::NotStatic);
    }
    if header.e_phentsize != PROGRAM_HEADER_LEN || !(1..=MAX_HEADERS).contains(&header.e_phnum) {
        return Err(ImageFault::Malformed);
    }
    let len_bytes = u64::from(header.e_phnum) * u64::from(PROGRAM_HEADER_LEN);
    let table = slice(bytes, header.e_phoff, len_bytes)?;
    Ok(SegmentTable::new(LittleEndian, Class::ELF64, table.1))
}

fn segment(header: &ProgramHeader, bytes: &[u8]) -> Result<Segment, ImageFault> {
    let (file, _) = slice(bytes, header.p_offset, header.p_filesz)?;
    if header.p_filesz > header.p_memsz {
        return Err(ImageFault::Malformed);
    }
    let end = header.p_vaddr.checked_add(header.p_memsz).ok_or(ImageFault::SegmentPlacement)?;
    if header.p_vaddr < IMAGE || end > IMAGE + IMAGE_MAX_SIZE {
        return Err(ImageFault::SegmentPlacement);
    }
    let writable = header.p_flags & constants::PF_W != 0;
    let executable = header.p_flags & constants::PF_X != 0;
    let rights = match (writable, executable) {
        (true, true) => return Err(ImageFault::WritableCode),
        (true, false) => Rights::ReadWrite,
        (false, true) => Rights::ReadExecute,
        (false, false) => Rights::Read,
    };
    Ok(Segment { virt: header.p_vaddr, file, memory_len: header.p_memsz, rights, source: Source::Copied })
}

/// Returns the first Isola note.
fn note(headers: &SegmentTable<'_, LittleEndian>, bytes: &[u8]) -> Result<ImageNote, ImageFault> {
    for header in headers.iter().filter(|header| header.p_type == constants::PT_NOTE) {
        let (_, notes) = slice(bytes, header.p_offset, header.p_filesz)?;
        let notes = notes.get(..MAX_NOTES).unwrap_or(notes);
        let align = if header.p_align == 8 { 8 } else { 4 };
        for note in NoteIterator::new(LittleEndian, Class::ELF64, align, notes) {
            if let Note::Unknown(note) = note
                && note.n_type == u64::from(TYPE)
                && note.name.strip_suffix(&[0]).unwrap_or(note.name) == OWNER.as_bytes()
            {
                return ImageNote::decode(note.desc).ok_or(ImageFault::Malformed);
            }
        }
    }
    Err(ImageFault::NoNote)
}

/// Returns the range of `len_bytes` bytes from `offset` on, and these bytes.
fn slice(bytes: &[u8], offset: u64, len_bytes: u64) -> Result<(Range<usize>, &[u8]), ImageFault> {
    let outside = |_: ParseError| ImageFault::Malformed;
    let start = usize::try_from(offset).map_err(|error| outside(error.into()))?;
    let len = usize::try_from(len_bytes).map_err(|error| outside(error.into()))?;
    let end = start.checked_add(len).ok_or(ImageFault::Malformed)?;
    bytes.get(start..end).map(|slice| (start..end, slice)).ok_or(ImageFault::Malformed)
}

#[cfg(test)]
mod tests;
