//! What a cell image must be. The bytes come from outside: nothing in them is believed before it is checked.
//!
//! An image is a static x86-64 ELF executable whose segments stand within the image's part of the address
//! space (see [`isola_abi::layout`]), on pages of their own, none both writable and executable, with an Isola
//! note (see [`isola_abi::note`]) whose entry points are in an executable segment. Sections are not looked at:
//! the host tool cuts them off. What only an image needs that boots alone is left out.

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

/// Most program headers of an image.
const MAX_HEADERS: u16 = 64;

/// Largest note segment, in bytes.
const MAX_NOTES: usize = 4096;

/// What linkers fill the last page of a segment up with: nothing, and an instruction that traps.
const FILLERS: [u8; 2] = [0, 0xcc];

/// Length of the ELF header, in bytes.
const HEADER_LEN: usize = 64;

/// Length of a program header, in bytes.
const PROGRAM_HEADER_LEN: u16 = 56;

/// What a cell may do with a segment's pages. There is no fourth kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
    /// Read and execute.
    ReadExecute,
}

/// Where the memory of a segment comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is the cell's own, and the file's bytes are copied to it.
    Copied,
    /// It is the memory that the image is kept in.
    Shared,
}

/// A segment: memory that begins with bytes of the file and goes on with zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Virtual address of its first byte.
    pub virt: u64,
    /// Which bytes of the file it begins with; within the file, and no longer than `memory_len`.
    pub file: Range<usize>,
    /// Its length in memory, in bytes, more than none.
    pub memory_len: u64,
    /// What may be done with it.
    pub rights: Rights,
    /// Where its memory comes from: copied, until somebody has looked whether it can be shared.
    pub source: Source,
}

impl Segment {
    /// Addresses of its pages.
    pub fn pages(&self) -> Range<u64> {
        let end = self.virt + self.memory_len;
        self.virt / PAGE_SIZE * PAGE_SIZE..end.next_multiple_of(PAGE_SIZE)
    }

    /// Bytes of its pages.
    fn page_bytes(&self) -> u64 {
        self.pages().end - self.pages().start
    }

    /// Which bytes of the file its pages would be, if they were mapped as they are.
    pub fn file_pages(&self) -> Range<usize> {
        let start = self.file.start - (self.virt % PAGE_SIZE) as usize;
        start..start + self.page_bytes() as usize
    }

    /// Whether the file's pages are what its pages have to be: nothing in it is written, it ends with the file's bytes, and
    /// around them in these pages is what fills a file up.
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

/// How to load and enter an image whose bytes were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePlan {
    /// Address of the entry point.
    pub entry: u64,
    /// Address of the first interrupt vector's entry point.
    pub vectors: u64,
    /// The segments, by address; at least one.
    pub segments: Vec<Segment>,
}

impl ImagePlan {
    /// Checks an image.
    ///
    /// # Errors
    /// What is wrong with it.
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

    /// Has segments stand in the memory that the image is kept in, whose pages these are, as far as they can.
    #[must_use]
    pub fn sharing(mut self, pages: &[u8]) -> Self {
        for segment in &mut self.segments {
            segment.source = if segment.is_in_file(pages) { Source::Shared } else { Source::Copied };
        }
        self
    }

    /// Has all segments be copied.
    #[must_use]
    pub fn copied(mut self) -> Self {
        self.segments.iter_mut().for_each(|segment| segment.source = Source::Copied);
        self
    }

    /// Bytes of memory that its pages take: those of all segments from that source.
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

/// Finds the Isola note: the first one counts.
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

/// The range of `len_bytes` bytes from `offset` on, and these bytes.
fn slice(bytes: &[u8], offset: u64, len_bytes: u64) -> Result<(Range<usize>, &[u8]), ImageFault> {
    let outside = |_: ParseError| ImageFault::Malformed;
    let start = usize::try_from(offset).map_err(|error| outside(error.into()))?;
    let len = usize::try_from(len_bytes).map_err(|error| outside(error.into()))?;
    let end = start.checked_add(len).ok_or(ImageFault::Malformed)?;
    bytes.get(start..end).map(|slice| (start..end, slice)).ok_or(ImageFault::Malformed)
}

#[cfg(test)]
pub(crate) mod tests;
