//! `ptrace`, and copies from and to the memory of other processes.

use super::process_files::may_inspect;
use super::{CallResult, unsupported, word_at};
use crate::Errno;
use crate::exit_status::ExitStatus;
use crate::process::Process;
use crate::signals::{INFO_LEN, SavedContext, Signal, SignalFacts, SignalInfo, SignalSet};
use crate::thread::Thread;
use crate::thread_state::ThreadState;
use crate::tracing::registers::{
    DEBUG_REGISTERS, FXSAVE_LEN, PRESENT_COMPONENTS, REGISTERS_LEN, USER_AREA_LEN, from_words,
    report_components, to_words,
};
use crate::tracing::{Mode, Stop, StopKind, attach, detach};
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers::CAP_SYS_PTRACE;
use isola_linux_abi::ptrace::*;
use isola_linux_memory::{MAX_BUFFERS, ProcessMemory};

/// The options with an effect.
const KNOWN_OPTIONS: u32 = PTRACE_O_TRACESYSGOOD
    | PTRACE_O_TRACEFORK
    | PTRACE_O_TRACEVFORK
    | PTRACE_O_TRACECLONE
    | PTRACE_O_TRACEEXEC
    | PTRACE_O_TRACEVFORKDONE
    | PTRACE_O_TRACEEXIT
    | PTRACE_O_EXITKILL;

/// Sets of registers, from Linux's `uapi/linux/elf.h`.
const NT_PRSTATUS: u64 = 1;
const NT_PRFPREG: u64 = 2;
const NT_X86_XSTATE: u64 = 0x202;

/// `AUDIT_ARCH_X86_64`.
const ARCHITECTURE: u32 = 0xc000_003e;

pub async fn ptrace(thread: &mut Thread, request: u64, tid: u32, address: u64, data: u64) -> CallResult {
    let request = u32::try_from(request).map_err(|_| Errno::EIO)?;
    if request == PTRACE_TRACEME {
        return trace_me(thread);
    }
    let (_, process) = thread.system.family.lock().process_of_thread(tid).ok_or(Errno::ESRCH)?;
    let state = process.thread(tid).ok_or(Errno::ESRCH)?;
    let tracer = thread.process.clone();
    match request {
        PTRACE_ATTACH => begin(thread, &process, &state, None),
        PTRACE_SEIZE if address != 0 || data & !u64::from(KNOWN_OPTIONS) != 0 => Err(Errno::EIO),
        PTRACE_SEIZE => begin(thread, &process, &state, Some(data as u32)),
        PTRACE_KILL => {
            if state.tracing.tracer().is_none_or(|own| !Arc::ptr_eq(&own, &tracer)) {
                return Err(Errno::ESRCH);
            }
            process.end(ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false });
            Ok(0)
        }
        PTRACE_INTERRUPT => {
            state.tracing.request_stop(&tracer)?;
            state.interrupt();
            process.changes.wake_all();
            Ok(0)
        }
        PTRACE_CONT | PTRACE_SYSCALL | PTRACE_SINGLESTEP | PTRACE_LISTEN => {
            let mode = match request {
                PTRACE_SYSCALL => Mode::Calls,
                PTRACE_SINGLESTEP => Mode::Step,
                PTRACE_LISTEN => Mode::Listen,
                _ => Mode::Run,
            };
            state.tracing.resume(&tracer, mode, signal_of(data)?)?;
            state.wake_task();
            Ok(0)
        }
        PTRACE_DETACH => {
            let signal = signal_of(data)?;
            state.tracing.resume(&tracer, Mode::Run, signal)?;
            detach(&tracer, &process, &state);
            Ok(0)
        }
        PTRACE_SETOPTIONS if data & !u64::from(KNOWN_OPTIONS) != 0 => {
            Err(unsupported(thread, &alloc::format!("ptrace options {data:#x}"), Errno::EINVAL))
        }
        PTRACE_SETOPTIONS => state.tracing.set_options(&tracer, data as u32).map(|()| 0),
        _ => access(thread, &tracer, &state, request, address, data).await,
    }
}

/// Returns the signal with which a tracee continues.
fn signal_of(data: u64) -> Result<Option<Signal>, Errno> {
    if data == 0 { Ok(None) } else { Signal::from_number(data).map(Some).map_err(|_| Errno::EIO) }
}

fn trace_me(thread: &Thread) -> CallResult {
    let parent = {
        let family = thread.system.family.lock();
        family.process(family.parent(thread.process.pid)).ok_or(Errno::EPERM)?
    };
    // Its program may not give it rights that the tracer lacks.
    let permitted =
        parent.credentials.lock().as_ref().map_or(0, |credentials| credentials.capabilities.permitted);
    let is_capable = permitted & 1 << CAP_SYS_PTRACE != 0;
    if thread.credentials.capabilities.permitted & !permitted != 0 && !is_capable {
        return Err(Errno::EPERM);
    }
    attach(&parent, &thread.process, &thread.state, 0, false).map(|()| 0)
}

/// Attaches to a thread: `options` are those of `PTRACE_SEIZE`.
fn begin(
    thread: &Thread,
    process: &Arc<Process>,
    state: &Arc<ThreadState>,
    options: Option<u32>,
) -> CallResult {
    if process.pid == thread.process.pid || !may_inspect(thread, process) {
        return Err(Errno::EPERM);
    }
    attach(&thread.process, process, state, options.unwrap_or(0), options.is_some())?;
    if options.is_none() {
        // A standard signal never meets a full queue.
        let _ = thread.system.send_to_thread(process, state, SignalInfo::kernel(Signal::SIGSTOP));
    }
    // It may be stopped with its process, which it reports now.
    process.changes.wake_all();
    Ok(0)
}

/// Reads or changes a stopped thread.
async fn access(
    thread: &mut Thread,
    tracer: &Arc<Process>,
    state: &Arc<ThreadState>,
    request: u32,
    address: u64,
    data: u64,
) -> CallResult {
    let tracing = &state.tracing;
    let memory = tracing.stopped(tracer, |stop| stop.memory.clone())?;
    let own = thread.memory.clone();
    match request {
        PTRACE_PEEKTEXT | PTRACE_PEEKDATA => {
            let word = memory.read_bytes::<8>(address).await.map_err(|_| Errno::EIO)?;
            own.write_bytes(data, &word).await?;
        }
        PTRACE_POKETEXT | PTRACE_POKEDATA => {
            memory.poke(address, &data.to_le_bytes()).await.map_err(|_| Errno::EIO)?;
        }
        PTRACE_PEEKUSR => {
            let index = user_area_index(address)?;
            let word = tracing.stopped(tracer, |stop| words(stop).get(index).copied().unwrap_or(0))?;
            own.write_bytes(data, &word.to_le_bytes()).await?;
        }
        PTRACE_POKEUSR => {
            let index = user_area_index(address)?;
            if (DEBUG_REGISTERS..USER_AREA_LEN).contains(&address) && data != 0 {
                return Err(unsupported(thread, "debug registers", Errno::EINVAL));
            }
            tracing.stopped(tracer, |stop| {
                let mut words = words(stop);
                let Some(word) = words.get_mut(index) else { return Ok(()) };
                *word = data;
                set_words(stop, &words)
            })??;
        }
        PTRACE_GETREGS => {
            let bytes = tracing.stopped(tracer, |stop| bytes_of(&words(stop)))?;
            own.write_bytes(data, &bytes).await?;
        }
        PTRACE_SETREGS => {
            let bytes = own.read_bytes::<REGISTERS_LEN>(data).await?;
            tracing.stopped(tracer, |stop| set_words(stop, &words_of(&bytes)))??;
        }
        PTRACE_GETFPREGS => {
            let bytes = tracing.stopped(tracer, |stop| stop.user.extended_state()[..FXSAVE_LEN].to_vec())?;
            own.write_bytes(data, &bytes).await?;
        }
        PTRACE_SETFPREGS => {
            let bytes = own.read_bytes::<FXSAVE_LEN>(data).await?;
            tracing.stopped(tracer, |stop| set_state(stop, &bytes))??;
        }
        PTRACE_GETREGSET | PTRACE_SETREGSET => {
            return register_set(thread, tracer, state, request == PTRACE_SETREGSET, address, data).await;
        }
        PTRACE_GETEVENTMSG => {
            let message = tracing.stopped(tracer, |stop| stop.reason.message)?;
            own.write_bytes(data, &message.to_le_bytes()).await?;
        }
        PTRACE_GETSIGINFO => {
            let info = tracing.stopped(tracer, |stop| stop.reason.info)?.ok_or(Errno::EINVAL)?;
            own.write_bytes(data, &info.to_bytes()).await?;
        }
        PTRACE_SETSIGINFO => {
            let bytes = own.read_bytes::<INFO_LEN>(data).await?;
            let word = |at: usize| super::half_at(&bytes, at);
            let signal = Signal::from_number(word(0).into())?;
            let facts = SignalFacts::Raw(core::array::from_fn(|index| bytes[16 + index]));
            let info =
                SignalInfo { signal, code: word(8).cast_signed(), errno: word(4).cast_signed(), facts };
            tracing.stopped(tracer, |stop| match stop.reason.info {
                Some(_) => {
                    stop.reason.info = Some(info);
                    Ok(())
                }
                None => Err(Errno::EINVAL),
            })??;
        }
        PTRACE_GETSIGMASK | PTRACE_SETSIGMASK if address != 8 => return Err(Errno::EINVAL),
        PTRACE_GETSIGMASK => {
            let mask = state.signals.lock().blocked;
            own.write_bytes(data, &mask.0.to_le_bytes()).await?;
        }
        PTRACE_SETSIGMASK => {
            let mask = SignalSet(u64::from_le_bytes(own.read_bytes(data).await?));
            state.signals.lock().blocked = mask & !SignalSet::UNBLOCKABLE;
            state.interrupt();
        }
        PTRACE_GET_SYSCALL_INFO => {
            let bytes = tracing.stopped(tracer, |stop| call_information(stop))?;
            let shown = address.min(bytes.len() as u64) as usize;
            own.write_bytes(data, &bytes[..shown]).await?;
            return Ok(bytes.len() as u64);
        }
        _ => return Err(unsupported(thread, &alloc::format!("ptrace request {request:#x}"), Errno::EIO)),
    }
    Ok(0)
}

/// Returns the index of a word of `struct user`.
fn user_area_index(offset: u64) -> Result<usize, Errno> {
    if offset.is_multiple_of(8) && offset < USER_AREA_LEN { Ok(offset as usize / 8) } else { Err(Errno::EIO) }
}

fn words(stop: &Stop) -> [u64; REGISTERS_LEN / 8] {
    to_words(&stop.user.context().registers, stop.reason.call)
}

fn set_words(stop: &mut Stop, words: &[u64; REGISTERS_LEN / 8]) -> Result<(), Errno> {
    stop.reason.call = from_words(words, &mut stop.user.context_mut().registers)?;
    Ok(())
}

fn bytes_of(words: &[u64; REGISTERS_LEN / 8]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words_of(bytes: &[u8; REGISTERS_LEN]) -> [u64; REGISTERS_LEN / 8] {
    core::array::from_fn(|index| word_at(bytes, 8 * index))
}

/// Replaces the first bytes of the processor state: those of x87 and SSE, or all.
fn set_state(stop: &mut Stop, bytes: &[u8]) -> Result<(), Errno> {
    let mut state = stop.user.extended_state().to_vec();
    state[..bytes.len()].copy_from_slice(bytes);
    SavedContext::clear_reserved(&mut state);
    if bytes.len() == FXSAVE_LEN {
        // x87 and SSE are no longer in their initial states.
        state[PRESENT_COMPONENTS] |= 3;
    }
    stop.user.set_extended_state(&state).map_err(|_| Errno::EINVAL)
}

/// `PTRACE_GETREGSET` and `PTRACE_SETREGSET`, with a `struct iovec` at `vector`.
async fn register_set(
    thread: &mut Thread,
    tracer: &Arc<Process>,
    state: &Arc<ThreadState>,
    sets: bool,
    set: u64,
    vector: u64,
) -> CallResult {
    let own = thread.memory.clone();
    let place = own.read_bytes::<16>(vector).await?;
    let (buffer, room) = (word_at(&place, 0), word_at(&place, 8));
    let tracing = &state.tracing;
    let mut bytes = match set {
        NT_PRSTATUS => tracing.stopped(tracer, |stop| bytes_of(&words(stop)))?,
        NT_PRFPREG => tracing.stopped(tracer, |stop| stop.user.extended_state()[..FXSAVE_LEN].to_vec())?,
        NT_X86_XSTATE => {
            let mut bytes = tracing.stopped(tracer, |stop| stop.user.extended_state().to_vec())?;
            report_components(&mut bytes);
            bytes
        }
        _ => return Err(Errno::EINVAL),
    };
    let len = room.min(bytes.len() as u64) as usize;
    // Whole words, as of a set that is an array.
    if !len.is_multiple_of(if set == NT_PRSTATUS { 8 } else { 1 })
        || (set == NT_X86_XSTATE && sets && len < bytes.len())
    {
        return Err(Errno::EINVAL);
    }
    if sets {
        own.read_to(buffer, &mut bytes[..len]).await?;
        tracing.stopped(tracer, |stop| match set {
            NT_PRSTATUS => set_words(stop, &core::array::from_fn(|index| word_at(&bytes, 8 * index))),
            _ => set_state(stop, &bytes),
        })??;
    } else {
        own.write_bytes(buffer, &bytes[..len]).await?;
    }
    own.write_bytes(vector + 8, &(len as u64).to_le_bytes()).await?;
    Ok(0)
}

/// Returns `struct ptrace_syscall_info`, as long as it is for the kind of stop.
fn call_information(stop: &Stop) -> Vec<u8> {
    let registers = &stop.user.context().registers;
    let kind = match stop.reason.kind {
        StopKind::CallEntry => PTRACE_SYSCALL_INFO_ENTRY,
        StopKind::CallExit => PTRACE_SYSCALL_INFO_EXIT,
        _ => PTRACE_SYSCALL_INFO_NONE,
    };
    let mut bytes: Vec<u8> = [kind, ARCHITECTURE].iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut put = |word: u64| bytes.extend(word.to_le_bytes());
    put(registers.rip);
    put(registers.rsp);
    match stop.reason.kind {
        StopKind::CallEntry => {
            put(stop.reason.call);
            let crate::tracing::registers::Arguments(arguments) = registers.into();
            arguments.into_iter().for_each(put);
        }
        StopKind::CallExit => {
            /// Results from here on are errors.
            const FIRST_ERROR: u64 = 4095_u64.wrapping_neg();
            put(registers.rax);
            bytes.push(u8::from(registers.rax >= FIRST_ERROR));
        }
        _ => {}
    }
    bytes
}

/// A part of a process's memory.
struct Part {
    address: u64,
    len: u64,
}

/// Reads an array of `struct iovec`.
async fn parts(memory: &ProcessMemory, vector: u64, count: u64) -> Result<Vec<Part>, Errno> {
    if count > MAX_BUFFERS {
        return Err(Errno::EINVAL);
    }
    let mut bytes = alloc::vec![0; 16 * count as usize];
    memory.read_to(vector, &mut bytes).await?;
    let parts: Vec<Part> =
        bytes.chunks(16).map(|part| Part { address: word_at(part, 0), len: word_at(part, 8) }).collect();
    let total = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.len));
    if total.is_none_or(|total| total > i64::MAX as u64) { Err(Errno::EINVAL) } else { Ok(parts) }
}

/// The arguments of `process_vm_readv` and `process_vm_writev`.
type Vectors = (u64, u64, u64, u64);

pub async fn process_vm_readv(
    thread: &mut Thread,
    pid: u32,
    local: u64,
    local_count: u64,
    remote: u64,
    remote_count: u64,
    flags: u64,
) -> CallResult {
    copy(thread, pid, (local, local_count, remote, remote_count), flags, false).await
}

pub async fn process_vm_writev(
    thread: &mut Thread,
    pid: u32,
    local: u64,
    local_count: u64,
    remote: u64,
    remote_count: u64,
    flags: u64,
) -> CallResult {
    copy(thread, pid, (local, local_count, remote, remote_count), flags, true).await
}

/// Copies between the caller's memory and that of another process, page by page, up to the first byte that is not accessible.
async fn copy(
    thread: &Thread,
    pid: u32,
    (local, local_count, remote, remote_count): Vectors,
    flags: u64,
    writes: bool,
) -> CallResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let mut local = parts(&thread.memory, local, local_count).await?.into_iter().peekable();
    let mut remote = parts(&thread.memory, remote, remote_count).await?.into_iter().peekable();
    let (_, process) = thread.system.family.lock().process_of_thread(pid).ok_or(Errno::ESRCH)?;
    if !may_inspect(thread, &process) {
        return Err(Errno::EPERM);
    }
    let other = process.program.lock().memory.clone().ok_or(Errno::ESRCH)?;
    let mut done = 0;
    let mut bytes = alloc::vec![0; super::PAGE as usize];
    loop {
        while local.next_if(|part| part.len == 0).is_some() {}
        while remote.next_if(|part| part.len == 0).is_some() {}
        let (Some(here), Some(there)) = (local.peek_mut(), remote.peek_mut()) else { return Ok(done) };
        let within_page = super::PAGE - there.address % super::PAGE;
        let len = here.len.min(there.len).min(within_page);
        let bytes = &mut bytes[..len as usize];
        let copied = if writes {
            match thread.memory.read_to(here.address, bytes).await {
                Ok(()) => other.write_bytes(there.address, bytes).await,
                error => error,
            }
        } else {
            match other.read_to(there.address, bytes).await {
                Ok(()) => thread.memory.write_bytes(here.address, bytes).await,
                error => error,
            }
        };
        match copied {
            Err(error) if done == 0 => return Err(error),
            Err(_) => return Ok(done),
            Ok(()) => {}
        }
        for part in [here, there] {
            part.address += len;
            part.len -= len;
        }
        done += len;
    }
}
