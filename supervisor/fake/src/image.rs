//! Valid images, and images with one defect.

use alloc::vec;
use alloc::vec::Vec;
use elf::abi as constants;
use isola_abi::layout::IMAGE;
use isola_abi::note::{ImageNote, TYPE};

/// The length of the ELF header, in bytes.
const HEADER_LEN: usize = 64;

/// The length of a program header, in bytes.
const PROGRAM_HEADER_LEN: u16 = 56;

const R: u32 = constants::PF_R;
const W: u32 = constants::PF_W;
const X: u32 = constants::PF_X;
/// The address of the code.
pub const CODE: u64 = IMAGE + 0x10_0000;

/// A builder of ELF files, valid by default.
#[derive(Clone)]
pub struct Builder {
    /// The type in the header.
    pub elf_type: u16,
    /// The version, the entry point and the vectors of the note.
    pub note: Option<(u32, u64, u64)>,
    /// Address, flags, bytes in the file, length in memory.
    pub segments: Vec<(u64, u32, Vec<u8>, u64)>,
    /// The type of another program header.
    pub extra_header: Option<u32>,
    /// The page size by which the segments' file offsets agree with their addresses.
    pub page_bytes: usize,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            elf_type: constants::ET_EXEC,
            note: Some((isola_abi::VERSION, CODE + 0x1000, CODE)),
            segments: vec![
                (CODE, R | X, vec![0xcc; 0x2000], 0x2000),
                (CODE + 0x2000, R, vec![1; 100], 100),
                (CODE + 0x3000, R | W, vec![2; 10], 0x5000),
            ],
            extra_header: None,
            page_bytes: 0x1000,
        }
    }
}

impl Builder {
    /// Returns the file.
    pub fn build(&self) -> Vec<u8> {
        let mut notes = Vec::new();
        if let Some((version, entry, vectors)) = self.note {
            for word in [4u32, 8, 18, u32::from_le_bytes(*b"Xen\0"), 0x1000, 0] {
                notes.extend(word.to_le_bytes());
            }
            for word in [6u32, ImageNote::LEN as u32, TYPE] {
                notes.extend(word.to_le_bytes());
            }
            notes.extend(b"Isola\0\0\0");
            notes.extend(u64::from(version).to_le_bytes());
            notes.extend(entry.to_le_bytes());
            notes.extend(vectors.to_le_bytes());
        }
        let count = self.segments.len() + 1 + usize::from(self.extra_header.is_some());
        let mut data_offset = HEADER_LEN + count * PROGRAM_HEADER_LEN as usize;
        let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend(self.elf_type.to_le_bytes());
        bytes.extend(constants::EM_X86_64.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        // A removed section table must not matter.
        for word in [CODE, HEADER_LEN as u64, 0x7fff_ffff] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(0u32.to_le_bytes());
        for half in [HEADER_LEN as u16, PROGRAM_HEADER_LEN, count as u16, 64, 5, 4] {
            bytes.extend(half.to_le_bytes());
        }
        let mut data: Vec<u8> = Vec::new();
        let page_bytes = self.page_bytes;
        let mut header = |kind: u32, flags: u32, virt: u64, content: &[u8], memory: u64| {
            let place = virt as usize % page_bytes;
            while kind == constants::PT_LOAD && data_offset % page_bytes != place {
                data.push(0);
                data_offset += 1;
            }
            bytes.extend(kind.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
            let offset = data_offset as u64;
            for word in [offset, virt, virt.wrapping_sub(IMAGE), content.len() as u64, memory, 4] {
                bytes.extend(word.to_le_bytes());
            }
            data.extend(content);
            data_offset += content.len();
        };
        header(constants::PT_NOTE, R, CODE, &notes, notes.len() as u64);
        for (virt, flags, content, memory) in &self.segments {
            header(constants::PT_LOAD, *flags, *virt, content, *memory);
        }
        if let Some(kind) = self.extra_header {
            header(kind, R, 0, &[], 0);
        }
        bytes.extend(data);
        bytes
    }
}
