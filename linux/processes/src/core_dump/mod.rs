//! Core files (core(5)): the memory and the registers of a process that a signal ends.
//!
//! ```text
//!   thread with the signal:  Process::begin_dump ── waits for the others ── writes the file ── end_dump ── ends
//!   each other thread:       ends ── gives its registers to the process ── waits for end_dump ── ends
//! ```
//!
//! The other threads stop before they change memory by their ends (robust futexes, `CLONE_CHILD_CLEARTID`). SIGKILL, as by a lack
//! of memory, ends a dump early.
//!
//! Not here: the choice of pages (`isola-linux-memory`).

mod name;
mod notes;

pub use name::CorePattern;
pub(crate) use name::{PatternFile, UsesPidFile};

use crate::Errno;
use crate::exit_status::ExitStatus;
use crate::family::ProcessorTime;
use crate::process::Process;
use crate::signals::{SignalInfo, SignalSet};
use crate::thread::{Thread, give_way};
use crate::tracing::registers::{WORDS, to_words};
use crate::tracing::show_interruption;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers::{AT_FDCWD, O_CREAT, O_EXCL, O_NOFOLLOW, O_WRONLY, RLIMIT_CORE, RLIMIT_FSIZE};
use isola_linux_files::OpenFile;
use isola_linux_memory::{FramePart, Mapping, UserBuffer};
use isola_user_mode::PAGE_SIZE;
use object::elf::{self, FileHeader64, Ident, ProgramHeader64};
use object::{LittleEndian, U16, U32, U64, bytes_of};

/// The least limit with which there is a core file, as in Linux.
const LEAST_LIMIT: u64 = PAGE_SIZE;
/// The bytes of a mapping whose pages are looked up in one step.
const STEP: u64 = 16 << 20;
/// The most pages of one write.
const PAGES_AT_ONCE: usize = 64;
/// The permissions of a core file.
const PERMISSIONS: u32 = 0o600;

/// A thread of a process whose core file is written.
#[derive(Debug)]
pub struct DumpedThread {
    tid: u32,
    registers: [u64; WORDS],
    /// The processor state, as XSAVE stores it.
    state: Vec<u8>,
    blocked: SignalSet,
    pending: SignalSet,
    time: ProcessorTime,
}

impl DumpedThread {
    fn of(thread: &mut Thread) -> Self {
        let call = show_interruption(thread);
        let (blocked, pending) = {
            let signals = thread.state.signals.lock();
            (signals.blocked, signals.pending.set())
        };
        Self {
            tid: thread.state.tid(),
            registers: to_words(thread.registers(), call),
            state: thread.user.extended_state().to_vec(),
            blocked,
            pending,
            time: thread.time(),
        }
    }

    /// Returns its id.
    pub fn tid(&self) -> u32 {
        self.tid
    }
}

/// Gives the registers of a thread that ends to its process, if that is being dumped, and waits for the end of the dump.
pub async fn join(thread: &mut Thread) {
    let process = thread.process.clone();
    if process.is_dumped() {
        process.add_dumped(DumpedThread::of(thread));
        process.dump_ended().await;
    }
}

/// Ends the process by a signal, after it has written a core file, if its limit and the pattern permit one.
pub async fn end_process(thread: &mut Thread, info: &SignalInfo) {
    let process = thread.process.clone();
    let status = |dumps_core| ExitStatus::Killed { signal: info.signal, dumps_core };
    let limit = process.limits.lock().soft(RLIMIT_CORE);
    let name = thread.system.core_pattern.name(thread, info.signal, limit);
    let is_dumped = limit >= LEAST_LIMIT && !name.is_empty() && process.is_dumpable();
    if !is_dumped || !process.begin_dump(&thread.state, status(false)) {
        return process.end(status(false));
    }
    let others = process.all_dumped(&thread.state).await;
    let dump =
        Dump { info, limit, threads: core::iter::once(DumpedThread::of(thread)).chain(others).collect() };
    let result = dump.write(thread, &name).await;
    let shown = String::from_utf8_lossy(&name);
    let pid = process.pid;
    thread.system.environment.report(&match &result {
        Ok(()) => format!("linux: process {pid} has written the core file {shown}"),
        Err(error) => format!("linux: process {pid} has written no core file {shown}: {error:?}"),
    });
    process.end_dump(status(result.is_ok()));
}

struct Dump<'a> {
    info: &'a SignalInfo,
    limit: u64,
    /// That with the signal is the first.
    threads: Vec<DumpedThread>,
}

/// A mapping, and the length of its contents in the file.
struct Segment {
    mapping: Mapping,
    len: u64,
}

impl Dump<'_> {
    /// Writes the file. One that ends early because of its limit, or of a lack of space, is a core file all the same.
    async fn write(&self, thread: &Thread, name: &[u8]) -> Result<(), Errno> {
        let mut segments = Vec::new();
        for mapping in thread.memory.mappings() {
            let len = thread.memory.dumped_len(&mapping).await;
            segments.push(Segment { mapping, len });
        }
        let notes = notes::notes(thread, self.info, &self.threads).await;
        let (head, first) = head(&segments, &notes);
        let caller = thread.caller();
        // As in Linux, an older core file is replaced, not changed: it may be open, or another's.
        let _ = caller.unlink_at(AT_FDCWD, name, 0).await;
        let file =
            caller.open_at(AT_FDCWD, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW, PERMISSIONS).await?;
        let process = &thread.process;
        let most_len = process.limits.lock().soft(RLIMIT_FSIZE);
        let mut output = Output { file: &file, process, left: self.limit, most_len };
        // The program headers show which contents are missing.
        let _ = output.write_all(thread, &head, &segments, first).await;
        if process.is_dump_cancelled() { Err(Errno::EINTR) } else { Ok(()) }
    }
}

/// The file that is written.
struct Output<'a> {
    file: &'a Arc<OpenFile>,
    process: &'a Process,
    /// The bytes that the limit permits.
    left: u64,
    /// The limit of the file's length.
    most_len: u64,
}

impl Output<'_> {
    async fn write_all(
        &mut self,
        thread: &Thread,
        head: &[u8],
        segments: &[Segment],
        first: u64,
    ) -> Result<(), Errno> {
        self.write(0, UserBuffer::of_bytes(head)).await?;
        let mut offset = first;
        for Segment { mapping, len } in segments {
            let end = mapping.start + len;
            let mut start = mapping.start;
            while start < end {
                let next = (start + STEP).min(end);
                let pages = thread.memory.dumped_pages(mapping, start, next).await;
                // Neighbours are written together.
                for run in pages.chunk_by(|(page, _), (next, _)| page + PAGE_SIZE == *next) {
                    for pages in run.chunks(PAGES_AT_ONCE) {
                        let part = |frame: &isola_memory::frame::Frame| FramePart {
                            frame: frame.clone(),
                            offset: 0,
                            len: PAGE_SIZE as usize,
                        };
                        let parts = pages.iter().map(|(_, frame)| part(frame)).collect();
                        let at = offset + (pages[0].0 - mapping.start);
                        self.write(at, UserBuffer::new(parts)).await?;
                    }
                }
                start = next;
                give_way().await;
                if self.process.is_dump_cancelled() {
                    return Err(Errno::EINTR);
                }
            }
            offset += len;
        }
        // The pages at the end may be zeros, which are not written.
        self.file.truncate(offset.cast_signed()).await
    }

    async fn write(&mut self, mut offset: u64, mut buffer: UserBuffer) -> Result<(), Errno> {
        let is_whole = buffer.len() as u64 <= self.left;
        buffer.limit(self.left as usize);
        while !buffer.is_empty() {
            if offset + buffer.len() as u64 > self.most_len {
                return Err(Errno::EFBIG);
            }
            let count = self.file.write_at(offset, &mut buffer).await? as u64;
            if count == 0 {
                return Err(Errno::ENOSPC);
            }
            self.left -= count;
            offset += count;
        }
        if is_whole { Ok(()) } else { Err(Errno::EFBIG) }
    }
}

/// Returns the begin of the file, up to the contents of the first mapping, and their offset.
fn head(segments: &[Segment], notes: &[u8]) -> (Vec<u8>, u64) {
    let endian = LittleEndian;
    let u64_of = |value| U64::new(endian, value);
    let count = segments.len() + 1;
    let (header_len, entry_len) =
        (size_of::<FileHeader64<LittleEndian>>(), size_of::<ProgramHeader64<LittleEndian>>());
    let notes_at = header_len + count * entry_len;
    let first = (notes_at + notes.len()).next_multiple_of(PAGE_SIZE as usize);
    let header = FileHeader64 {
        e_ident: Ident {
            magic: elf::ELFMAG,
            class: elf::ELFCLASS64,
            data: elf::ELFDATA2LSB,
            version: elf::EV_CURRENT,
            os_abi: elf::ELFOSABI_SYSV,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(endian, elf::ET_CORE),
        e_machine: U16::new(endian, elf::EM_X86_64),
        e_version: U32::new(endian, 1),
        e_entry: u64_of(0),
        e_phoff: u64_of(header_len as u64),
        e_shoff: u64_of(0),
        e_flags: U32::new(endian, elf::FileFlags(0)),
        e_ehsize: U16::new(endian, header_len as u16),
        e_phentsize: U16::new(endian, entry_len as u16),
        // A process has fewer mappings than 2^16.
        e_phnum: U16::new(endian, count as u16),
        e_shentsize: U16::new(endian, 0),
        e_shnum: U16::new(endian, 0),
        e_shstrndx: U16::new(endian, elf::SHN_UNDEF),
    };
    let mut bytes = bytes_of(&header).to_vec();
    let entry = |kind, flags, offset: u64, address, file_len, memory_len, alignment| ProgramHeader64 {
        p_type: U32::new(endian, kind),
        p_flags: U32::new(endian, flags),
        p_offset: u64_of(offset),
        p_vaddr: u64_of(address),
        p_paddr: u64_of(0),
        p_filesz: u64_of(file_len),
        p_memsz: u64_of(memory_len),
        p_align: u64_of(alignment),
    };
    let no_flags = elf::ProgramFlags(0);
    bytes.extend(bytes_of(&entry(elf::PT_NOTE, no_flags, notes_at as u64, 0, notes.len() as u64, 0, 4)));
    let mut offset = first as u64;
    for Segment { mapping, len } in segments {
        let protection = mapping.protection;
        let flag = |has: bool, flag: elf::ProgramFlags| if has { flag.0 } else { 0 };
        let flags = flag(protection.readable, elf::PF_R)
            | flag(protection.writable, elf::PF_W)
            | flag(protection.executable, elf::PF_X);
        let memory_len = mapping.end - mapping.start;
        let flags = elf::ProgramFlags(flags);
        let entry = entry(elf::PT_LOAD, flags, offset, mapping.start, *len, memory_len, PAGE_SIZE);
        bytes.extend(bytes_of(&entry));
        offset += len;
    }
    bytes.extend(notes);
    bytes.resize(first, 0);
    (bytes, first as u64)
}
