//! A cell image as the host handles it: an ELF file. The loadable segments are sent to the machine; the symbols remain
//! on the host.
//!
//! The supervisor repeats all checks; those here give a quick and clear error.

use isola_abi::management::{ImageFault, MAX_IMAGE};
use isola_abi::note::{self, ImageNote};
use isola_abi::size::ByteSize;
use object::LittleEndian;
use object::elf::{EM_X86_64, ET_EXEC, FileHeader64, PT_LOAD, PT_NOTE, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use thiserror::Error;

type Header = FileHeader64<LittleEndian>;

/// The fields of the ELF-64 header that locate the sections: `e_shoff`, and `e_shentsize` to `e_shstrndx` (System V
/// ABI, chapter 4).
const SECTION_FIELDS: [std::ops::Range<usize>; 2] = [0x28..0x30, 0x3a..0x40];

/// The headers of an ELF file, checked for consistency.
#[derive(Debug)]
pub struct ElfImage<'data> {
    file: &'data [u8],
    header: &'data Header,
    segments: &'data [ProgramHeader64<LittleEndian>],
}

/// The reasons why a file is not a usable cell image.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ImageError {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// The supervisor would reject the image for the same reason.
    #[error("{0}")]
    Fault(ImageFault),
    /// The image is too long even without the sections that are not loaded.
    #[error("its loaded part takes {}, and the maximum is {}", ByteSize(*.0), ByteSize(MAX_IMAGE))]
    TooLong(u64),
}

impl<'data> ElfImage<'data> {
    /// Parses the headers of a static x86-64 executable.
    ///
    /// # Errors
    /// [`ImageError::Fault`].
    pub fn parse(file: &'data [u8]) -> Result<Self, ImageError> {
        let not_elf = |_| ImageError::Fault(ImageFault::NotElf);
        let header = Header::parse(file).map_err(not_elf)?;
        header.endian().map_err(not_elf)?;
        if header.e_machine(LittleEndian) != EM_X86_64 {
            return Err(ImageError::Fault(ImageFault::NotElf));
        }
        if header.e_type(LittleEndian) != ET_EXEC {
            return Err(ImageError::Fault(ImageFault::NotStatic));
        }
        let segments = header
            .program_headers(LittleEndian, file)
            .map_err(|_| ImageError::Fault(ImageFault::Malformed))?;
        Ok(Self { file, header, segments })
    }

    /// Checks that the image was linked as a cell image of this version.
    ///
    /// # Errors
    /// [`ImageError::Fault`].
    pub fn check_note(&self) -> Result<(), ImageError> {
        let note = self.note()?.ok_or(ImageError::Fault(ImageFault::NoNote))?;
        if note.version == isola_abi::VERSION {
            Ok(())
        } else {
            Err(ImageError::Fault(ImageFault::Version(note.version)))
        }
    }

    /// Returns the file up to the end of the loaded data, with the section fields of its header cleared.
    ///
    /// # Errors
    /// [`ImageError::Fault`] if a segment exceeds the file, or [`ImageError::TooLong`].
    pub fn trimmed(&self) -> Result<Vec<u8>, ImageError> {
        let malformed = ImageError::Fault(ImageFault::Malformed);
        let table = self.header.e_phoff(LittleEndian).checked_add(size_of_val(self.segments) as u64);
        let ends = self
            .segments
            .iter()
            .filter(|segment| matches!(segment.p_type(LittleEndian), PT_LOAD | PT_NOTE))
            .map(|segment| segment.p_offset(LittleEndian).checked_add(segment.p_filesz(LittleEndian)));
        let mut end = table.unwrap_or(u64::MAX).max(size_of::<Header>() as u64);
        for segment_end in ends {
            end = end.max(segment_end.ok_or(malformed.clone())?);
        }
        if end > MAX_IMAGE {
            return Err(ImageError::TooLong(end));
        }
        let mut bytes = self.file.get(..end as usize).ok_or(malformed.clone())?.to_vec();
        for field in SECTION_FIELDS {
            bytes.get_mut(field).ok_or(malformed.clone())?.fill(0);
        }
        Ok(bytes)
    }

    fn note(&self) -> Result<Option<ImageNote>, ImageError> {
        let malformed = |_| ImageError::Fault(ImageFault::Malformed);
        for segment in self.segments {
            let Some(mut notes) = segment.notes(LittleEndian, self.file).map_err(malformed)? else {
                continue;
            };
            while let Some(note) = notes.next().map_err(malformed)? {
                let own = note.name() == note::OWNER.as_bytes() && note.n_type(LittleEndian).0 == note::TYPE;
                if own {
                    let decoded = ImageNote::decode(note.desc());
                    return decoded.map(Some).ok_or(ImageError::Fault(ImageFault::Malformed));
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the smallest file that passes as a cell image, with 1000 bytes after the loaded data.
    pub(crate) fn cell_elf() -> Vec<u8> {
        cell_elf_of(isola_abi::VERSION)
    }

    fn cell_elf_of(version: u32) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend(2_u16.to_le_bytes()); // ET_EXEC
        file.extend(62_u16.to_le_bytes()); // EM_X86_64
        file.extend(1_u32.to_le_bytes());
        for word in [isola_abi::layout::IMAGE, 64, 1000_u64] {
            file.extend(word.to_le_bytes()); // entry, e_phoff, e_shoff
        }
        file.extend(0_u32.to_le_bytes());
        for half in [64_u16, 56, 2, 64, 3, 2] {
            file.extend(half.to_le_bytes());
        }
        let mut segment = |kind: u32, flags: u32, offset: u64, len: u64| {
            file.extend(kind.to_le_bytes());
            file.extend(flags.to_le_bytes());
            for word in [offset, isola_abi::layout::IMAGE + offset, offset, len, len, 4] {
                file.extend(word.to_le_bytes());
            }
        };
        segment(1, 5, 0, 300); // PT_LOAD
        segment(4, 4, 176, 44); // PT_NOTE
        for word in [6_u32, ImageNote::LEN as u32, note::TYPE] {
            file.extend(word.to_le_bytes());
        }
        file.extend(b"Isola\0\0\0");
        file.extend(version.to_le_bytes());
        file.extend([0; 20]);
        file.resize(1300, 0xee);
        file
    }

    #[test]
    fn trimming_removes_only_data_that_is_not_loaded() {
        let file = cell_elf();
        let image = ElfImage::parse(&file).unwrap();
        image.check_note().unwrap();
        let trimmed = image.trimmed().unwrap();
        assert_eq!(trimmed.len(), 300);
        assert_eq!(trimmed[64..], file[64..300]);
        let again = ElfImage::parse(&trimmed).unwrap();
        again.check_note().unwrap();
        assert_eq!(again.trimmed().unwrap(), trimmed);
    }

    #[test]
    fn other_files_are_rejected_with_the_reason() {
        let fault = |file: &[u8]| match ElfImage::parse(file).and_then(|image| image.check_note()) {
            Err(ImageError::Fault(fault)) => fault,
            other => panic!("{other:?}"),
        };
        assert_eq!(fault(b""), ImageFault::NotElf);
        assert_eq!(fault(b"#!/bin/sh\n"), ImageFault::NotElf);
        assert_eq!(fault(&cell_elf_of(99)), ImageFault::Version(99));
        let change = |at: usize, byte: u8| {
            let mut file = cell_elf();
            file[at] = byte;
            file
        };
        assert_eq!(fault(&change(16, 3)), ImageFault::NotStatic);
        assert_eq!(fault(&change(18, 3)), ImageFault::NotElf);
        assert_eq!(fault(&change(188, b'X')), ImageFault::NoNote);
        assert_eq!(fault(&change(56, 200)), ImageFault::Malformed);
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(fault(&own), ImageFault::NotStatic);
    }

    #[test]
    fn truncated_and_corrupted_files_cause_no_panic() {
        let file = cell_elf();
        for len in 0..file.len() {
            let _ = ElfImage::parse(&file[..len]).and_then(|image| image.trimmed());
        }
        for at in 0..220 {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = file.clone();
                changed[at] = byte;
                if let Ok(image) = ElfImage::parse(&changed) {
                    let _ = image.check_note();
                    let _ = image.trimmed();
                }
            }
        }
    }
}
