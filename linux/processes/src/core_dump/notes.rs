//! The notes of a core file: structures of Linux's `uapi/linux/elfcore.h` and `include/linux/elfcore-compat.h`.

use super::DumpedThread;
use crate::proc::command_line;
use crate::signals::SignalInfo;
use crate::thread::Thread;
use crate::tracing::registers::{FXSAVE_LEN, report_components};
use alloc::vec::Vec;
use isola_linux_memory::Mapping;
use isola_user_mode::PAGE_SIZE;
use object::elf::{
    ELF_NOTE_CORE, ELF_NOTE_LINUX, NT_AUXV, NT_FILE, NT_FPREGSET, NT_PRPSINFO, NT_PRSTATUS, NT_SIGINFO,
    NT_X86_XSTATE, NoteHeader64, NoteType,
};
use object::{LittleEndian, U32, bytes_of};

/// The lengths of `struct elf_prstatus` and `struct elf_prpsinfo`.
const STATUS_LEN: usize = 336;
const INFORMATION_LEN: usize = 136;
/// The lengths of a program's name and of its arguments in the latter.
const NAME_LEN: usize = 16;
const ARGUMENTS_LEN: usize = 80;
/// The longest auxiliary vector.
const AUXILIARY_LEN: u64 = 4096;

/// The ids of the process in its notes.
struct Ids {
    process: u32,
    parent: u32,
    group: u32,
    session: u32,
}

/// Returns the notes of a process. The first of its threads has the signal.
pub(super) async fn notes(thread: &Thread, info: &SignalInfo, threads: &[DumpedThread]) -> Vec<u8> {
    let pid = thread.process.pid;
    let ids = {
        let family = thread.system.family.lock();
        let (group, session) = (family.group(pid).unwrap_or(0), family.session(pid).unwrap_or(0));
        Ids { process: pid, parent: family.parent(pid), group, session }
    };
    let mut notes = Notes(Vec::new());
    for (index, one) in threads.iter().enumerate() {
        notes.add(ELF_NOTE_CORE, NT_PRSTATUS, &status(one, info, &ids));
        if index == 0 {
            notes.add(ELF_NOTE_CORE, NT_PRPSINFO, &information(thread, &ids));
            notes.add(ELF_NOTE_CORE, NT_SIGINFO, &info.to_bytes());
            notes.add(ELF_NOTE_CORE, NT_AUXV, &auxiliary(thread).await);
            notes.add(ELF_NOTE_CORE, NT_FILE, &files(&thread.memory.mappings()));
        }
        notes.add(ELF_NOTE_CORE, NT_FPREGSET, &one.state[..FXSAVE_LEN]);
        let mut state = one.state.clone();
        report_components(&mut state);
        notes.add(ELF_NOTE_LINUX, NT_X86_XSTATE, &state);
    }
    notes.0
}

struct Notes(Vec<u8>);

impl Notes {
    fn add(&mut self, name: &[u8], kind: NoteType, contents: &[u8]) {
        let endian = LittleEndian;
        let header = NoteHeader64 {
            n_namesz: U32::new(endian, name.len() as u32 + 1),
            n_descsz: U32::new(endian, contents.len() as u32),
            n_type: U32::new(endian, kind),
        };
        self.0.extend(bytes_of(&header));
        self.0.extend(name);
        self.0.push(0);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self.0.extend(contents);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// A structure that is filled field by field.
struct Fields<const LEN: usize>([u8; LEN]);

impl<const LEN: usize> Fields<LEN> {
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn put_ids(&mut self, offset: usize, ids: [u32; 4]) {
        ids.iter().enumerate().for_each(|(index, id)| self.put(offset + 4 * index, &id.to_le_bytes()));
    }
}

fn status(thread: &DumpedThread, info: &SignalInfo, ids: &Ids) -> [u8; STATUS_LEN] {
    let mut fields = Fields([0; STATUS_LEN]);
    let number = info.signal.number();
    fields.put(0, &u32::from(number).to_le_bytes());
    fields.put(4, &info.code.to_le_bytes());
    fields.put(8, &info.errno.to_le_bytes());
    fields.put(12, &u16::from(number).to_le_bytes());
    fields.put(16, &thread.pending.0.to_le_bytes());
    fields.put(24, &thread.blocked.0.to_le_bytes());
    fields.put_ids(32, [thread.tid, ids.parent, ids.group, ids.session]);
    for (offset, ns) in [(48, thread.time.user_ns), (64, thread.time.system_ns)] {
        fields.put(offset, &(ns / 1_000_000_000).to_le_bytes());
        fields.put(offset + 8, &(ns % 1_000_000_000 / 1000).to_le_bytes());
    }
    for (index, word) in thread.registers.iter().enumerate() {
        fields.put(112 + 8 * index, &word.to_le_bytes());
    }
    // The floating-point registers are valid.
    fields.put(328, &1_u32.to_le_bytes());
    fields.0
}

fn information(thread: &Thread, ids: &Ids) -> [u8; INFORMATION_LEN] {
    let mut fields = Fields([0; INFORMATION_LEN]);
    fields.put(0, &[0, b'R', 0, thread.process.control.nice() as u8]);
    let credentials = &thread.credentials;
    fields.put(16, &credentials.user.real.to_le_bytes());
    fields.put(20, &credentials.group.real.to_le_bytes());
    fields.put_ids(24, [ids.process, ids.parent, ids.group, ids.session]);
    let name = thread.state.name.lock().clone();
    fields.put(40, &name[..name.len().min(NAME_LEN - 1)]);
    let mut arguments = command_line(&thread.process);
    arguments.pop();
    arguments.truncate(ARGUMENTS_LEN - 1);
    arguments.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    fields.put(56, &arguments);
    fields.0
}

async fn auxiliary(thread: &Thread) -> Vec<u8> {
    let (start, end) = thread.process.program.lock().auxiliary;
    let mut bytes = alloc::vec![0; end.saturating_sub(start).min(AUXILIARY_LEN) as usize];
    match thread.memory.read_to(start, &mut bytes).await {
        Ok(()) => bytes,
        // The program has unmapped its stack.
        Err(_) => Vec::new(),
    }
}

/// Returns the table of the mapped files: addresses, offsets in pages, paths.
fn files(mappings: &[Mapping]) -> Vec<u8> {
    let (mut words, mut paths) = (Vec::new(), Vec::new());
    let mut count = 0_u64;
    for mapping in mappings {
        let Some(object) = &mapping.object else { continue };
        let path = object.path();
        if !path.starts_with(b"/") {
            continue;
        }
        words.extend([mapping.start, mapping.end, object.first]);
        paths.extend(path);
        paths.push(0);
        count += 1;
    }
    let words = [count, PAGE_SIZE].into_iter().chain(words);
    words.flat_map(u64::to_le_bytes).chain(paths).collect()
}
