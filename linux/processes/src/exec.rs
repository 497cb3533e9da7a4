//! `execve`: a process executes another program.

use crate::calls::path_of;
use crate::credentials::{Credentials, FileCapabilities, Ids};
use crate::loader::{
    FILE_HEADER_LEN, HEAD_LEN, HeaderTable, InitialStack, Loaded, Placement, Program, ProgramInput,
    interpreter, load,
};
use crate::process::Process;
use crate::system::System;
use crate::thread::Thread;
use crate::{Errno, exit, tracing};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_abi::user_context::{UserContext, UserRegisters};
use isola_linux_abi::numbers::{
    AT_BASE, AT_CLKTCK, AT_EGID, AT_ENTRY, AT_EUID, AT_FDCWD, AT_FLAGS, AT_GID, AT_HWCAP, AT_HWCAP2,
    AT_MINSIGSTKSZ, AT_PAGESZ, AT_PHDR, AT_PHENT, AT_PHNUM, AT_SECURE, AT_SYSINFO_EHDR, AT_UID,
    CAP_DAC_OVERRIDE, CAP_SYS_PTRACE, MAP_ANONYMOUS, MAP_FIXED, MAP_GROWSDOWN, MAP_PRIVATE, MAP_STACK,
    O_CLOEXEC, O_RDONLY, PROT_EXEC, PROT_READ, PROT_WRITE, RLIMIT_AS, RLIMIT_DATA, RLIMIT_MEMLOCK,
    RLIMIT_STACK, S_ISGID, S_ISUID, S_IXGRP, X_OK,
};
use isola_linux_files::{Caller, FILE_CAPABILITIES, InodeKind, LinkTarget, OpenFile};
use isola_linux_memory::{
    MapObject, MapRequest, MemoryCharge, MemoryLayout, MemoryLimits, ProcessMemory, Protection,
};
use isola_user_mode::PAGE_SIZE;

/// The most interpreters in a row, as in Linux.
const MOST_INTERPRETERS: usize = 4;
/// The stack that is mapped at the start, beside the arguments; it grows on demand.
const INITIAL_STACK: u64 = 132 << 10;
/// The flags of a new program: interrupts are on, and the bit that is always set.
const INITIAL_FLAGS: u64 = 0x202;
/// The ticks of `times` in a second (`AT_CLKTCK`).
pub const TICKS_PER_SECOND: u64 = 100;
/// `AT_HWCAP2`: the program may use the instructions for the bases of FS and GS.
const HWCAP2_FSGSBASE: u64 = 2;
/// The length of a program header.
const PROGRAM_HEADER_LEN: u64 = 56;
/// The least size of a stack for signals with the processor state (`AT_MINSIGSTKSZ`).
const MIN_SIGNAL_STACK: u64 = 3632;

/// A program in memory that no thread executes yet.
struct NewProgram {
    memory: Arc<ProcessMemory>,
    registers: UserRegisters,
    stack: InitialStack,
    executable: LinkTarget,
    name: Vec<u8>,
    /// The credentials with which it starts.
    credentials: Credentials,
    /// Whether these give it more than the old program had.
    gains_rights: bool,
}

/// Opens a file to execute it.
///
/// # Errors
/// Those of execve(2): [`Errno::EACCES`] if it is no file, or may not be executed.
pub async fn open_program(
    thread: &Thread,
    directory: i32,
    path: &[u8],
    at_flags: u32,
) -> Result<Arc<OpenFile>, Errno> {
    let caller = thread.caller();
    let metadata = caller.stat_at(directory, path, at_flags).await?;
    match metadata.kind {
        InodeKind::File => {}
        InodeKind::Symlink => return Err(Errno::ELOOP),
        _ => return Err(Errno::EACCES),
    }
    caller.access_at(directory, path, X_OK, at_flags).await?;
    if path.is_empty() {
        return thread.files.get(directory);
    }
    let mut root = thread.file_credentials.clone();
    // A program can be executed without being read.
    root.capabilities |= 1 << CAP_DAC_OVERRIDE;
    Caller { credentials: &root, ..caller }.open_at(directory, path, O_RDONLY | O_CLOEXEC, 0).await
}

/// Makes the thread's process execute the program in an open file. On an error before the old program's end, the process
/// continues with it; after that point it ends.
///
/// # Errors
/// Those of execve(2).
pub async fn execute(thread: &mut Thread, file: Arc<OpenFile>, input: ProgramInput) -> Result<(), Errno> {
    let program = prepare(thread, file, input).await?;
    if !thread.process.end_other_threads(&thread.state).await {
        return Err(Errno::EAGAIN);
    }
    exit::release_robust_futexes(thread).await;
    exit::clear_tid(thread).await;
    thread.rseq = None;
    let context = UserContext { registers: program.registers, ..UserContext::default() };
    let user = Arc::clone(program.memory.space()).create_thread(context);
    let old = core::mem::replace(&mut thread.memory, program.memory);
    thread.user = user.into();
    thread.files = replace_shared_files(thread);
    thread.files.exec();
    thread.process.aio.clear();
    thread.process.show(&thread.files, &thread.view);
    let tid = thread.state.tid();
    if tid != thread.process.pid {
        thread.system.family.lock().remove_thread(tid);
        thread.state.set_tid(thread.process.pid);
        tracing::leads_process(thread);
    }
    {
        let mut facts = thread.process.program.lock();
        facts.executable = Some(program.executable);
        facts.arguments = program.stack.arguments;
        facts.environment = program.stack.environment;
        facts.auxiliary = program.stack.auxiliary;
        facts.memory = Some(thread.memory.clone());
    }
    thread.system.show_name(&thread.process, &program.name);
    *thread.state.name.lock() = program.name;
    thread.process.timers.delete_all(&thread.system, &thread.process);
    thread.process.signals.lock().actions.reset_functions();
    thread.state.signals.lock().alternate = Default::default();
    if program.gains_rights {
        thread.process.parent_death_signal.store(0, Ordering::Relaxed);
    }
    thread.set_credentials(program.credentials);
    thread.process.is_dumpable.store(!program.gains_rights, Ordering::Relaxed);
    thread.restart = None;
    thread.system.family.lock().executed(thread.process.pid);
    if core::mem::take(&mut thread.has_parents_memory) {
        thread.process.release_parent();
    } else if Arc::strong_count(&old) == 1 {
        old.clear().await;
    }
    tracing::executed(thread, tid).await;
    Ok(())
}

/// Returns the open files as the process's own: `execve` ends the sharing of `CLONE_FILES`.
fn replace_shared_files(thread: &Thread) -> Arc<isola_linux_files::DescriptorTable> {
    if Arc::strong_count(&thread.files) == 1 { thread.files.clone() } else { Arc::new(thread.files.fork()) }
}

/// Loads the program, and its interpreter, into new memory.
async fn prepare(thread: &Thread, file: Arc<OpenFile>, mut input: ProgramInput) -> Result<NewProgram, Errno> {
    let mut file = file;
    let name = name_of(&input.path);
    for _ in 0..=MOST_INTERPRETERS {
        let head = file.read_bytes(0, HEAD_LEN).await?;
        let Some(script) = interpreter(&head)? else {
            return load_program(thread, &file, &head, input, name).await;
        };
        // The interpreter gets its argument and the script's path instead of the script's name.
        let mut arguments = alloc::vec![script.path.clone()];
        arguments.extend(script.argument);
        arguments.push(input.path.clone());
        arguments.extend(input.arguments.into_iter().skip(1));
        input.arguments = arguments;
        file = open_program(thread, AT_FDCWD, &script.path, 0).await?;
        input.path = script.path;
    }
    Err(Errno::ELOOP)
}

async fn load_program(
    thread: &Thread,
    file: &Arc<OpenFile>,
    head: &[u8],
    input: ProgramInput,
    name: Vec<u8>,
) -> Result<NewProgram, Errno> {
    input.check()?;
    let (program, source) = parse(file, head).await?;
    let linker = match program.interpreter {
        None => None,
        Some(place) => {
            let mut path = file.read_bytes(place.offset, place.len).await?;
            // The path ends with a NUL, and has no other.
            if path.pop() != Some(0) || path.contains(&0) {
                return Err(Errno::ENOEXEC);
            }
            let linker = open_program(thread, AT_FDCWD, &path, 0).await?;
            let head = linker.read_bytes(0, FILE_HEADER_LEN).await?;
            let bad = |error| if error == Errno::ENOEXEC { Errno::ELIBBAD } else { error };
            Some(parse(&linker, &head).await.map_err(bad)?)
        }
    };
    let system = &thread.system;
    let (credentials, is_secure) = credentials_of(thread, file).await?;
    let is_same = |before: Ids, after: Ids| before.effective == after.effective;
    let gains_rights = !is_same(thread.credentials.user, credentials.user)
        || !is_same(thread.credentials.group, credentials.group)
        || credentials.capabilities.permitted & !thread.credentials.capabilities.permitted != 0;
    if gains_rights {
        thread.process.has_fixed_addresses.store(false, Ordering::Relaxed);
    }
    let random =
        (!thread.process.has_fixed_addresses.load(Ordering::Relaxed)).then(|| system.environment.random());
    let charge = thread.process.control.group().charge();
    let memory = new_memory(system, random, memory_limits(&thread.process), charge)?;
    let placement = match linker {
        Some(_) => Placement::Program(random.map_or(0, |_| system.environment.random())),
        None => Placement::Anywhere,
    };
    let loaded = load(&memory, &program, &source, placement).await?;
    memory.set_break_start(loaded.end.next_multiple_of(PAGE_SIZE));
    let start = match &linker {
        Some((linker, source)) => load(&memory, linker, source, Placement::Anywhere).await?,
        None => loaded,
    };
    let mut auxiliary =
        auxiliary(&credentials, is_secure, &program, loaded, linker.is_some().then_some(start));
    auxiliary.push((AT_SYSINFO_EHDR, system.vdso.map(&memory).await?));
    let top = memory.layout().stack_top;
    let stack = input.lay_out(top, &auxiliary, system.random_bytes())?;
    let len = (stack.bytes.len() as u64 + INITIAL_STACK).next_multiple_of(PAGE_SIZE);
    let executable = if program.has_executable_stack { PROT_EXEC } else { 0 };
    let request = MapRequest {
        address: top - len,
        len,
        protection: PROT_READ | PROT_WRITE | executable,
        flags: MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_STACK,
        name: "[stack]",
        ..MapRequest::default()
    };
    memory.map(request).await?;
    memory.write_bytes(stack.pointer, &stack.bytes).await?;
    let registers = UserRegisters {
        rip: start.entry,
        rsp: stack.pointer,
        rflags: INITIAL_FLAGS,
        ..UserRegisters::default()
    };
    let executable = match file.location() {
        Some(location) => LinkTarget::Location(location.clone()),
        None => LinkTarget::Object(file.clone()),
    };
    Ok(NewProgram { memory, registers, stack, executable, name, credentials, gains_rights })
}

/// Parses the headers of an ELF file, of which `head` are the first bytes. Also returns its pages.
async fn parse(file: &OpenFile, head: &[u8]) -> Result<(Program, MapObject), Errno> {
    let table = HeaderTable::parse(head)?;
    let headers = file.read_bytes(table.offset, table.bytes_len()).await?;
    let program = table.program(&headers)?;
    let source = file.pages().map_err(|_| Errno::EACCES)?;
    Ok((program, MapObject { source, permitted: Protection::ALL, path: path_of(file) }))
}

/// Creates memory for a program, at addresses chosen by a random number, or the same as ever without one. Its frames are charged to this account.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn new_memory(
    system: &System,
    random: Option<u64>,
    limits: MemoryLimits,
    charge: Arc<dyn MemoryCharge>,
) -> Result<Arc<ProcessMemory>, Errno> {
    let space = system.user_mode.create_space().map_err(|_| Errno::ENOMEM)?;
    let layout = MemoryLayout::new(random, limits.stack);
    Ok(ProcessMemory::new(space, layout, limits, charge))
}

/// Returns the limits of a process's memory.
pub fn memory_limits(process: &Process) -> MemoryLimits {
    let limits = process.limits.lock();
    MemoryLimits {
        address_space: limits.soft(RLIMIT_AS),
        data: limits.soft(RLIMIT_DATA),
        stack: limits.soft(RLIMIT_STACK),
        locked: limits.soft(RLIMIT_MEMLOCK),
    }
}

/// Returns the credentials with which a program starts, and whether its starter may not have all its rights. A script's own bits
/// have no effect: the file is the interpreter.
async fn credentials_of(thread: &Thread, file: &OpenFile) -> Result<(Credentials, bool), Errno> {
    let mut credentials = thread.credentials.clone();
    let tracer = thread.state.tracing.tracer().and_then(|tracer| tracer.credentials.lock().clone());
    let is_refused = credentials.no_new_privileges
        || tracer.is_some_and(|tracer| !tracer.has(CAP_SYS_PTRACE))
        || file.location().is_none_or(|location| location.mount().flags.no_set_user_id);
    let metadata = file.metadata();
    let has = |bits: u32| !is_refused && metadata.permissions & bits == bits;
    // Without the permission of the group to execute it, the set-group-id bit had another meaning.
    let group = has(S_ISGID | S_IXGRP).then_some(metadata.group);
    let capabilities = match file.inode().filter(|_| !is_refused) {
        Some(inode) => file_capabilities(inode.attribute(FILE_CAPABILITIES).await)?,
        None => None,
    };
    let is_secure = credentials.execute(has(S_ISUID).then_some(metadata.user), group, capabilities)?;
    Ok((credentials, is_secure))
}

/// Returns the capabilities of a file from its extended attribute.
fn file_capabilities(value: Result<Vec<u8>, Errno>) -> Result<Option<FileCapabilities>, Errno> {
    match value {
        Ok(value) => FileCapabilities::parse(&value),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the auxiliary vector but its addresses in the stack.
fn auxiliary(
    credentials: &Credentials,
    is_secure: bool,
    program: &Program,
    loaded: Loaded,
    linker: Option<Loaded>,
) -> Vec<(u32, u64)> {
    let (user, group) = (credentials.user, credentials.group);
    alloc::vec![
        (AT_HWCAP, hardware_capabilities()),
        (AT_PAGESZ, PAGE_SIZE),
        (AT_CLKTCK, TICKS_PER_SECOND),
        (AT_PHDR, loaded.base.wrapping_add(program.headers_address)),
        (AT_PHENT, PROGRAM_HEADER_LEN),
        (AT_PHNUM, program.header_count as u64),
        (AT_BASE, linker.map_or(0, |linker| linker.base)),
        (AT_FLAGS, 0),
        (AT_ENTRY, loaded.entry),
        (AT_UID, user.real.into()),
        (AT_EUID, user.effective.into()),
        (AT_GID, group.real.into()),
        (AT_EGID, group.effective.into()),
        // The linker then ignores LD_PRELOAD and its like.
        (AT_SECURE, is_secure.into()),
        (AT_HWCAP2, HWCAP2_FSGSBASE),
        (AT_MINSIGSTKSZ, MIN_SIGNAL_STACK),
    ]
}

/// Returns `AT_HWCAP`: the word EDX of CPUID leaf 1.
fn hardware_capabilities() -> u64 {
    core::arch::x86_64::__cpuid(1).edx.into()
}

/// Returns the name of a thread that executes a path: the last component, at most 15 bytes.
fn name_of(path: &[u8]) -> Vec<u8> {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    name[..name.len().min(15)].to_vec()
}
