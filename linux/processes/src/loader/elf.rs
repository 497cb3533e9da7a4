//! The headers of an ELF program (System V ABI, chapters 4 and 5; Linux's `fs/binfmt_elf.c` for the limits).

use crate::Errno;
use alloc::vec::Vec;
use elf::abi::{EM_X86_64, ET_DYN, ET_EXEC, PF_R, PF_W, PF_X, PT_GNU_STACK, PT_INTERP, PT_LOAD, PT_PHDR};
use elf::endian::LittleEndian;
use elf::file::{Class, FileHeader, parse_ident};
use elf::parse::ParsingTable;
use elf::segment::ProgramHeader;
use isola_user_mode::{PAGE_SIZE, PageRights, USER_END};

/// Length of the file header of a 64-bit ELF file, in bytes.
pub const FILE_HEADER_LEN: usize = 64;
/// Length of a program header, in bytes.
const PROGRAM_HEADER_LEN: usize = 56;
/// The most bytes of program headers, as in Linux.
const MOST_HEADER_BYTES: usize = 65_536;
/// The most bytes of the interpreter's path, with its NUL, as in Linux.
const MOST_INTERPRETER_BYTES: u64 = 4_096;

/// The place of the program headers in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderTable {
    kind: ProgramKind,
    entry: u64,
    /// Offset of the first header in the file.
    pub offset: u64,
    /// Number of headers.
    pub count: usize,
}

/// Whether a program has fixed addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// The program must be at its own addresses.
    Fixed,
    /// The program can be at any page; its addresses are offsets.
    PositionIndependent,
}

/// A segment that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address of its first byte, relative to the program's base.
    pub address: u64,
    /// Length in memory, in bytes. Bytes behind those of the file are zero.
    pub memory_len: u64,
    /// Offset of its first byte in the file. Address and offset are equal modulo the page size.
    pub file_offset: u64,
    /// Number of bytes in the file.
    pub file_len: u64,
    /// Permitted accesses.
    pub rights: PageRights,
    /// Whether the program may access it at all.
    pub is_readable: bool,
}

/// The interpreter's path in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterpreterPath {
    /// Offset in the file.
    pub offset: u64,
    /// Length with the NUL at its end, in bytes.
    pub len: usize,
}

/// A program to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Whether its addresses are fixed.
    pub kind: ProgramKind,
    /// Address of its first instruction, relative to its base.
    pub entry: u64,
    /// Its segments, in ascending order of their addresses.
    pub segments: Vec<Segment>,
    /// The path of its interpreter, the dynamic linker.
    pub interpreter: Option<InterpreterPath>,
    /// Address of its program headers, relative to its base (`AT_PHDR`); 0 if no segment contains them.
    pub headers_address: u64,
    /// Number of its program headers (`AT_PHNUM`).
    pub header_count: usize,
    /// Whether it requests an executable stack.
    pub has_executable_stack: bool,
}

impl HeaderTable {
    /// Parses the file header: the first bytes of the file, fewer if the file is shorter.
    ///
    /// # Errors
    /// [`Errno::ENOEXEC`] if it is no ELF program of this processor, or its program headers have an invalid size.
    pub fn parse(file_header: &[u8]) -> Result<Self, Errno> {
        let bytes = file_header.get(..FILE_HEADER_LEN).ok_or(Errno::ENOEXEC)?;
        let (ident, tail) = bytes.split_at(elf::abi::EI_NIDENT);
        let ident = parse_ident::<LittleEndian>(ident).map_err(|_| Errno::ENOEXEC)?;
        if ident.1 != Class::ELF64 {
            return Err(Errno::ENOEXEC);
        }
        let header = FileHeader::parse_tail(ident, tail).map_err(|_| Errno::ENOEXEC)?;
        let kind = match header.e_type {
            ET_EXEC => ProgramKind::Fixed,
            ET_DYN => ProgramKind::PositionIndependent,
            _ => return Err(Errno::ENOEXEC),
        };
        let count = usize::from(header.e_phnum);
        let len = count * PROGRAM_HEADER_LEN;
        let is_valid = header.e_machine == EM_X86_64
            && usize::from(header.e_phentsize) == PROGRAM_HEADER_LEN
            && (1..=MOST_HEADER_BYTES).contains(&len)
            && header.e_phoff.checked_add(len as u64).is_some();
        let table = Self { kind, entry: header.e_entry, offset: header.e_phoff, count };
        if is_valid { Ok(table) } else { Err(Errno::ENOEXEC) }
    }

    /// Returns the length of the program headers, in bytes.
    pub fn bytes_len(&self) -> usize {
        self.count * PROGRAM_HEADER_LEN
    }

    /// Parses the program headers, which are `bytes`.
    ///
    /// # Errors
    /// [`Errno::ENOEXEC`] if they are too short or name no segment; [`Errno::EINVAL`] if a segment's addresses are
    /// invalid, or the segments are not in ascending order.
    pub fn program(&self, bytes: &[u8]) -> Result<Program, Errno> {
        let bytes = bytes.get(..self.bytes_len()).ok_or(Errno::ENOEXEC)?;
        let headers: ParsingTable<'_, LittleEndian, ProgramHeader> =
            ParsingTable::new(LittleEndian, Class::ELF64, bytes);
        let mut program = Program {
            kind: self.kind,
            entry: self.entry,
            segments: Vec::new(),
            interpreter: None,
            headers_address: 0,
            header_count: self.count,
            // Without the header, as in programs of old compilers, the stack is executable.
            has_executable_stack: true,
        };
        let mut named_headers = None;
        for header in headers {
            match header.p_type {
                PT_LOAD if header.p_memsz == 0 => {}
                PT_LOAD => program.segments.push(segment(&header)?),
                PT_INTERP if program.interpreter.is_none() => {
                    if !(2..=MOST_INTERPRETER_BYTES).contains(&header.p_filesz) {
                        return Err(Errno::ENOEXEC);
                    }
                    let len = header.p_filesz as usize;
                    program.interpreter = Some(InterpreterPath { offset: header.p_offset, len });
                }
                PT_PHDR => named_headers = Some(header.p_vaddr),
                PT_GNU_STACK => program.has_executable_stack = header.p_flags & PF_X != 0,
                _ => {}
            }
        }
        if program.segments.is_empty() {
            return Err(Errno::ENOEXEC);
        }
        let ends = program.segments.windows(2).all(|pair| pair[0].end() <= pair[1].address);
        if !ends {
            return Err(Errno::EINVAL);
        }
        program.headers_address = named_headers.or_else(|| self.mapped_headers(&program)).unwrap_or(0);
        Ok(program)
    }

    /// Returns the address at which a segment contains the program headers.
    fn mapped_headers(&self, program: &Program) -> Option<u64> {
        let contains = |segment: &&Segment| {
            segment.file_offset <= self.offset
                && self.offset + self.bytes_len() as u64
                    <= segment.file_offset.saturating_add(segment.file_len)
        };
        let segment = program.segments.iter().find(contains)?;
        segment.address.checked_add(self.offset - segment.file_offset)
    }
}

/// Checks the header of a segment.
fn segment(header: &ProgramHeader) -> Result<Segment, Errno> {
    let segment = Segment {
        address: header.p_vaddr,
        memory_len: header.p_memsz,
        file_offset: header.p_offset,
        file_len: header.p_filesz,
        rights: PageRights { writable: header.p_flags & PF_W != 0, executable: header.p_flags & PF_X != 0 },
        is_readable: header.p_flags & (PF_R | PF_W | PF_X) != 0,
    };
    let is_valid = segment.file_len <= segment.memory_len
        && segment.address % PAGE_SIZE == segment.file_offset % PAGE_SIZE
        && segment.address.checked_add(segment.memory_len).is_some_and(|end| end <= USER_END)
        && segment.file_offset.checked_add(segment.file_len).is_some_and(|end| end <= i64::MAX as u64);
    if is_valid { Ok(segment) } else { Err(Errno::EINVAL) }
}

impl Segment {
    /// Returns the address behind its last byte.
    pub fn end(&self) -> u64 {
        self.address + self.memory_len
    }

    /// Returns the address of its first page.
    pub fn first_page(&self) -> u64 {
        self.address - self.address % PAGE_SIZE
    }
}

impl Program {
    /// Returns the address of its first page, relative to its base.
    pub fn start(&self) -> u64 {
        self.segments.first().map_or(0, Segment::first_page)
    }

    /// Returns the address behind its last page, relative to its base.
    pub fn end(&self) -> u64 {
        self.segments.last().map_or(0, |last| last.end().next_multiple_of(PAGE_SIZE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// The bytes of an ELF file's headers.
    fn headers(kind: u16, entry: u64, headers: &[[u64; 7]]) -> Vec<u8> {
        let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for half in [kind, 62] {
            bytes.extend(half.to_le_bytes());
        }
        bytes.extend(1_u32.to_le_bytes());
        for word in [entry, 64, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(0_u32.to_le_bytes());
        for half in [64, 56, headers.len() as u16, 0, 0, 0] {
            bytes.extend(half.to_le_bytes());
        }
        for [kind, flags, rest @ ..] in headers {
            bytes.extend((*kind as u32).to_le_bytes());
            bytes.extend((*flags as u32).to_le_bytes());
            let [offset, address, file_len, memory_len, align] = rest;
            for word in [offset, address, address, file_len, memory_len, align] {
                bytes.extend(word.to_le_bytes());
            }
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Program, Errno> {
        let table = HeaderTable::parse(bytes)?;
        table.program(&bytes[table.offset as usize..])
    }

    #[test]
    fn a_dynamic_program_has_segments_interpreter_and_headers() {
        let program = parse(&headers(
            3,
            0x1040,
            &[
                [3, 4, 0x318, 0x318, 28, 28, 1],
                [1, 4, 0, 0, 0x628, 0x628, 4096],
                [1, 5, 0x1000, 0x1000, 0x100, 0x100, 4096],
                [1, 6, 0x2df0, 0x3df0, 0x220, 0x1228, 4096],
                [0x6474_e551, 6, 0, 0, 0, 0, 16],
            ],
        ))
        .unwrap();
        assert_eq!(program.kind, ProgramKind::PositionIndependent);
        assert_eq!(program.interpreter, Some(InterpreterPath { offset: 0x318, len: 28 }));
        assert_eq!((program.headers_address, program.header_count), (64, 5));
        assert_eq!((program.start(), program.end(), program.entry), (0, 0x6000, 0x1040));
        assert!(!program.has_executable_stack);
        let rights: Vec<_> =
            program.segments.iter().map(|part| (part.rights.writable, part.rights.executable)).collect();
        assert_eq!(rights, [(false, false), (false, true), (true, false)]);
    }

    #[test]
    fn files_that_are_no_programs_are_refused() {
        let good = headers(2, 0x40_1000, &[[1, 5, 0, 0x40_0000, 100, 100, 4096]]);
        assert_eq!(parse(&good).unwrap().segments.len(), 1);
        assert!(parse(&good).unwrap().has_executable_stack);
        for len in [0, 3, 16, 63] {
            assert_eq!(parse(&good[..len]), Err(Errno::ENOEXEC));
        }
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            parse(&bytes)
        };
        // Magic, 32 bits, big-endian, object file, other processor, size of a program header, no program header.
        for (at, byte) in [(0, 0), (4, 1), (5, 2), (16, 1), (18, 3), (54, 32), (56, 0)] {
            assert_eq!(changed(at, byte), Err(Errno::ENOEXEC), "byte {at}");
        }
        let shorter = HeaderTable::parse(&good).unwrap().program(&good[64..119]);
        assert_eq!(shorter, Err(Errno::ENOEXEC));
        assert_eq!(parse(&headers(2, 0, &[[4, 4, 0, 0, 0, 0, 0]])), Err(Errno::ENOEXEC), "no segment");
    }

    #[test]
    fn segments_with_invalid_addresses_are_refused() {
        let load = |offset, address, file_len, memory_len| {
            parse(&headers(2, 0, &[[1, 5, offset, address, file_len, memory_len, 4096]])).map(|_| ())
        };
        assert_eq!(load(0, 0x40_0000, 1, 1), Ok(()));
        assert_eq!(load(1, 0x40_0000, 1, 1), Err(Errno::EINVAL), "offset and address differ");
        assert_eq!(load(0, 0x40_0000, 2, 1), Err(Errno::EINVAL), "more bytes in the file");
        assert_eq!(load(0, USER_END, 1, 1), Err(Errno::EINVAL), "behind the program's addresses");
        assert_eq!(load(0, 0x40_0000, 1, u64::MAX), Err(Errno::EINVAL), "length overflows");
        assert_eq!(load(!4095, 0, 4096, 4096), Err(Errno::EINVAL), "offset overflows");
        let overlap = [[1, 5, 0, 0x40_0000, 1, 0x2000, 1], [1, 5, 0, 0x40_1000, 1, 1, 1]];
        assert_eq!(parse(&headers(2, 0, &overlap)), Err(Errno::EINVAL));
        let interpreter = |len| parse(&headers(3, 0, &[[3, 4, 0, 0, len, len, 1]])).map(|_| ());
        assert_eq!((interpreter(1), interpreter(4097)), (Err(Errno::ENOEXEC), Err(Errno::ENOEXEC)));
    }
}
