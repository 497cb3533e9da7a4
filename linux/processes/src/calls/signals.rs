//! Signals.

use super::CallResult;
use super::time::read_timespec;
use crate::Errno;
use crate::process::Process;
use crate::signal_file::SignalFile;
use crate::signals::{
    ACTION_LEN, AlternateStack, Handler, INFO_LEN, SI_TKILL, SI_USER, SavedContext, Signal, SignalAction,
    SignalFacts, SignalInfo, SignalSet,
};
use crate::thread::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::Poll;
use isola_linux_abi::numbers::{
    CAP_KILL, O_CLOEXEC, O_NONBLOCK, O_RDONLY, SIG_BLOCK, SIG_SETMASK, SIG_UNBLOCK,
};
use isola_linux_files::OpenFile;
use isola_user_mode::Access;

/// Flags of `signalfd4`, from Linux's `linux/signalfd.h`.
const SFD_CLOEXEC: u32 = O_CLOEXEC;
const SFD_NONBLOCK: u32 = O_NONBLOCK;

/// The length of a set of signals in calls, in bytes.
const SET_LEN: u64 = 8;

async fn read_set(thread: &Thread, address: u64, len: u64) -> Result<SignalSet, Errno> {
    if len != SET_LEN {
        return Err(Errno::EINVAL);
    }
    thread.memory.read_bytes::<8>(address).await.map(|bytes| SignalSet(u64::from_le_bytes(bytes)))
}

pub async fn rt_sigaction(thread: &mut Thread, number: u32, new: u64, old: u64, len: u64) -> CallResult {
    if len != SET_LEN {
        return Err(Errno::EINVAL);
    }
    let signal = Signal::from_number(number.into())?;
    let action = match new {
        0 => None,
        address => Some(SignalAction::from_bytes(&thread.memory.read_bytes::<ACTION_LEN>(address).await?)),
    };
    let (before, was_ignored) = {
        let mut shared = thread.process.signals.lock();
        let before = shared.actions.get(signal);
        let was_ignored = shared.actions.ignores(signal);
        if let Some(action) = action {
            shared.actions.set(signal, action)?;
            // A pending signal that is ignored now is discarded.
            if shared.actions.ignores(signal) {
                shared.pending.discard(SignalSet::of(signal));
            }
        } else if signal.is_unblockable() && new != 0 {
            return Err(Errno::EINVAL);
        }
        (before, was_ignored)
    };
    if was_ignored && action.is_some() {
        thread.process.timers.resume(&thread.system, &thread.process, signal);
    }
    if action.is_some_and(|action| action.handler == Handler::Ignore) {
        for other in thread.process.threads() {
            other.signals.lock().pending.discard(SignalSet::of(signal));
        }
    }
    if old != 0 {
        thread.memory.write_bytes(old, &before.to_bytes()).await?;
    }
    Ok(0)
}

pub async fn rt_sigprocmask(thread: &mut Thread, how: u32, new: u64, old: u64, len: u64) -> CallResult {
    if len != SET_LEN {
        return Err(Errno::EINVAL);
    }
    let set = match new {
        0 => None,
        address => Some(read_set(thread, address, len).await?),
    };
    let before = change_mask(thread, how, set)?;
    if old != 0 {
        thread.memory.write_bytes(old, &before.0.to_le_bytes()).await?;
    }
    Ok(0)
}

/// Serves `rt_sigprocmask` without a wait; `None` if a set is not within a page that is mapped.
pub fn rt_sigprocmask_at_once(thread: &Thread, [how, new, old, len, ..]: [u64; 6]) -> Option<CallResult> {
    if len != SET_LEN || (old != 0 && thread.memory.try_part(old, SET_LEN as usize, Access::Write).is_none())
    {
        return None;
    }
    let set = match new {
        0 => None,
        address => Some(SignalSet(u64::from_le_bytes(thread.memory.try_read_bytes(address)?))),
    };
    let before = match change_mask(thread, how as u32, set) {
        Ok(before) => before,
        Err(error) => return Some(Err(error)),
    };
    if old != 0 && !thread.memory.try_write_bytes(old, &before.0.to_le_bytes()) {
        // Another thread has unmapped the page meanwhile.
        return Some(Err(Errno::EFAULT));
    }
    Some(Ok(0))
}

/// Changes the mask of the thread, if there is a set. Returns the mask before.
fn change_mask(thread: &Thread, how: u32, set: Option<SignalSet>) -> Result<SignalSet, Errno> {
    let Some(set) = set else { return Ok(thread.state.signals.lock().blocked) };
    let before = {
        let mut signals = thread.state.signals.lock();
        let before = signals.blocked;
        let blocked = match how {
            SIG_BLOCK => before | set,
            SIG_UNBLOCK => before & !set,
            SIG_SETMASK => set,
            _ => return Err(Errno::EINVAL),
        };
        signals.blocked = blocked & !SignalSet::UNBLOCKABLE;
        before
    };
    // After the change: a sender that has not seen it has added its signal before.
    let shared = thread.process.signals.lock().pending.set();
    if !thread.state.signals.lock().deliverable(shared).is_empty() {
        thread.state.interrupt();
    }
    Ok(before)
}

pub async fn rt_sigpending(thread: &mut Thread, set: u64, len: u64) -> CallResult {
    if len > SET_LEN {
        return Err(Errno::EINVAL);
    }
    let pending = {
        let shared = thread.process.signals.lock().pending.set();
        let signals = thread.state.signals.lock();
        (shared | signals.pending.set()) & signals.blocked
    };
    thread.memory.write_bytes(set, &pending.0.to_le_bytes()[..len as usize]).await?;
    Ok(0)
}

pub async fn rt_sigsuspend(thread: &mut Thread, set: u64, len: u64) -> CallResult {
    let set = read_set(thread, set, len).await?;
    replace_mask(thread, set);
    let never = poll_fn(|_| Poll::<()>::Pending);
    match thread.interruptible(never).await {
        Ok(()) => Ok(0),
        Err(_) => Err(Errno::ERESTARTNOHAND),
    }
}

/// Replaces the mask until a handler has run, or the call ends without one.
pub fn replace_mask(thread: &Thread, set: SignalSet) {
    let mut signals = thread.state.signals.lock();
    let before = signals.blocked;
    signals.saved_mask.get_or_insert(before);
    signals.blocked = set & !SignalSet::UNBLOCKABLE;
    drop(signals);
    thread.state.interrupt();
}

/// As [`replace_mask`], with the set of so many bytes at an address; a null pointer leaves the mask as it is.
pub async fn replace_mask_by(thread: &Thread, address: u64, len: u64) -> Result<(), Errno> {
    if address != 0 {
        let set = read_set(thread, address, len).await?;
        replace_mask(thread, set);
    }
    Ok(())
}

/// Restores the mask that [`replace_mask`] replaced, as the call ends without a signal.
pub fn restore_mask(thread: &Thread) {
    let mut signals = thread.state.signals.lock();
    if let Some(mask) = signals.saved_mask.take() {
        signals.blocked = mask;
    }
}

pub async fn pause(thread: &mut Thread) -> CallResult {
    match thread.interruptible(poll_fn(|_| Poll::<()>::Pending)).await {
        Ok(()) => Ok(0),
        Err(_) => Err(Errno::ERESTARTNOHAND),
    }
}

pub async fn rt_sigtimedwait(thread: &mut Thread, set: u64, info: u64, timeout: u64, len: u64) -> CallResult {
    let wanted = read_set(thread, set, len).await? & !SignalSet::UNBLOCKABLE;
    let until_ns = match timeout {
        0 => None,
        address => {
            let time = read_timespec(thread, address).await?;
            Some(thread.system.environment.monotonic_ns().saturating_add(time))
        }
    };
    let take = || {
        let mut shared = thread.process.signals.lock();
        let mut signals = thread.state.signals.lock();
        signals.pending.take(wanted).or_else(|| shared.pending.take(wanted))
    };
    let found = match take() {
        Some(found) => Some(found),
        None => {
            thread.state.signals.lock().awaited = wanted;
            let arrived = poll_fn(|_| take().map_or(Poll::Pending, Poll::Ready));
            let result = thread.interruptible_until(until_ns, arrived).await;
            thread.state.signals.lock().awaited = SignalSet::EMPTY;
            result.map_err(|_| Errno::EINTR)?
        }
    };
    let mut found = found.ok_or(Errno::EAGAIN)?;
    thread.process.timers.delivered(&thread.system, &thread.process, &mut found);
    if info != 0 {
        thread.memory.write_bytes(info, &found.to_bytes()).await?;
    }
    Ok(found.signal.number().into())
}

pub async fn signalfd4(thread: &mut Thread, descriptor: i32, set: u64, len: u64, flags: u32) -> CallResult {
    if flags & !(SFD_CLOEXEC | SFD_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let set = read_set(thread, set, len).await?;
    if descriptor == -1 {
        let object = Arc::new(SignalFile::new(&thread.system, &thread.process, set));
        let file = OpenFile::of_object(object, O_RDONLY | flags & SFD_NONBLOCK);
        return super::files::install(thread, file, flags);
    }
    thread.files.get(descriptor)?.object_as::<SignalFile>().ok_or(Errno::EINVAL)?.set(set);
    Ok(descriptor as u64)
}

pub async fn signalfd(thread: &mut Thread, descriptor: i32, set: u64, len: u64) -> CallResult {
    signalfd4(thread, descriptor, set, len, 0).await
}

pub async fn sigaltstack(thread: &mut Thread, new: u64, old: u64) -> CallResult {
    let stack_pointer = thread.registers().rsp;
    let wanted = match new {
        0 => None,
        address => Some(thread.memory.read_bytes::<{ AlternateStack::BYTES }>(address).await?),
    };
    let before = {
        let mut signals = thread.state.signals.lock();
        let before = signals.alternate;
        if let Some(bytes) = wanted {
            if before.contains(stack_pointer) {
                return Err(Errno::EPERM);
            }
            signals.alternate = AlternateStack::from_bytes(&bytes)?;
        }
        before
    };
    if old != 0 {
        thread.memory.write_bytes(old, &before.to_bytes(stack_pointer)).await?;
    }
    Ok(0)
}

pub async fn rt_sigreturn(thread: &mut Thread) -> CallResult {
    match return_from_handler(thread).await {
        Ok(rax) => Ok(rax),
        // A frame that cannot be read or has invalid contents ends the program, as in Linux.
        Err(_) => {
            thread.force(SignalInfo::kernel(Signal::SIGSEGV));
            Ok(0)
        }
    }
}

/// Restores the state from the frame on the stack. Returns RAX.
async fn return_from_handler(thread: &mut Thread) -> CallResult {
    let now = *thread.registers();
    let address = SavedContext::address(now.rsp);
    let bytes = thread.memory.read_bytes::<{ SavedContext::BYTES }>(address).await?;
    let saved = SavedContext::from_bytes(&bytes, &now);
    // Before anything can fail, as in Linux: a handler of SIGSEGV returns to where the signal came, and not to this call.
    *thread.registers() = saved.registers;
    thread.state.signals.lock().blocked = saved.mask;
    let state_len = thread.user.extended_state().len();
    if saved.state_address != 0 {
        let mut state = alloc::vec![0; state_len];
        thread.memory.read_to(saved.state_address, &mut state).await?;
        SavedContext::clear_reserved(&mut state);
        thread.user.set_extended_state(&state).map_err(|_| Errno::EFAULT)?;
    }
    let alternate = AlternateStack::from_bytes(&saved.alternate);
    let mut signals = thread.state.signals.lock();
    if let Ok(alternate) = alternate
        && !signals.alternate.contains(saved.registers.rsp)
    {
        signals.alternate = alternate;
    }
    drop(signals);
    thread.state.interrupt();
    Ok(saved.registers.rax)
}

/// Returns whether the caller may send a signal to a process.
pub fn may_signal(thread: &Thread, target: &Process, signal: Option<Signal>) -> bool {
    if thread.credentials.has(CAP_KILL) || target.pid == thread.process.pid {
        return true;
    }
    let session = |pid| thread.system.family.lock().session(pid);
    if signal == Some(Signal::SIGCONT) && session(target.pid) == session(thread.process.pid) {
        return true;
    }
    let user = thread.credentials.user;
    let target = *target.user.lock();
    [target.real, target.saved].iter().any(|id| *id == user.real || *id == user.effective)
}

/// Returns the signal of a call; `None` for 0, which only checks.
pub fn signal_or_check(number: u32) -> Result<Option<Signal>, Errno> {
    if number == 0 { Ok(None) } else { Signal::from_number(number.into()).map(Some) }
}

pub fn kill(thread: &mut Thread, pid: i32, number: u32) -> CallResult {
    let signal = signal_or_check(number)?;
    let targets: Vec<Arc<Process>> = {
        let family = thread.system.family.lock();
        match pid {
            1.. => family.process(pid as u32).into_iter().collect(),
            0 => family.in_group(family.group(thread.process.pid)?),
            -1 => {
                let others = family.processes().filter(|(other, _)| {
                    *other != crate::family::INIT && *other != thread.process.pid && !family.is_zombie(*other)
                });
                others.map(|(_, process)| process.clone()).collect()
            }
            i32::MIN => return Err(Errno::ESRCH),
            group => family.in_group(group.unsigned_abs()),
        }
    };
    if targets.is_empty() {
        return Err(Errno::ESRCH);
    }
    let (sender, user) = (thread.process.pid, thread.credentials.user.real);
    let mut result = Err(Errno::EPERM);
    for target in targets {
        if !may_signal(thread, &target, signal) {
            continue;
        }
        if let Some(signal) = signal {
            thread.system.send(&target, SignalInfo::sent(signal, SI_USER, sender, user))?;
        }
        result = Ok(0);
    }
    result
}

pub fn tgkill(thread: &mut Thread, group: i32, tid: i32, number: u32) -> CallResult {
    if group <= 0 || tid <= 0 {
        return Err(Errno::EINVAL);
    }
    send_to_thread(thread, Some(group as u32), tid as u32, number)
}

pub fn tkill(thread: &mut Thread, tid: i32, number: u32) -> CallResult {
    if tid <= 0 {
        return Err(Errno::EINVAL);
    }
    send_to_thread(thread, None, tid as u32, number)
}

fn send_to_thread(thread: &Thread, group: Option<u32>, tid: u32, number: u32) -> CallResult {
    let signal = signal_or_check(number)?;
    let (pid, process) = thread.system.family.lock().process_of_thread(tid).ok_or(Errno::ESRCH)?;
    if group.is_some_and(|group| group != pid) {
        return Err(Errno::ESRCH);
    }
    if !may_signal(thread, &process, signal) {
        return Err(Errno::EPERM);
    }
    // A thread that has ended but whose process waits for others, or for its parent, takes no signal.
    if let (Some(signal), Some(target)) = (signal, process.thread(tid)) {
        let info = SignalInfo::sent(signal, SI_TKILL, thread.process.pid, thread.credentials.user.real);
        thread.system.send_to_thread(&process, &target, info)?;
    }
    Ok(0)
}

/// Reads the `siginfo_t` of `rt_sigqueueinfo`. A program may not pretend to be the kernel or `kill`.
pub async fn read_info(
    thread: &Thread,
    signal: Signal,
    address: u64,
    is_self: bool,
) -> Result<SignalInfo, Errno> {
    let bytes = thread.memory.read_bytes::<INFO_LEN>(address).await?;
    let word = |at: usize| i32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let code = word(8);
    if (code >= 0 || code == SI_TKILL) && !is_self {
        return Err(Errno::EPERM);
    }
    let facts = SignalFacts::Raw(core::array::from_fn(|index| bytes[16 + index]));
    Ok(SignalInfo { signal, code, errno: word(4), facts })
}

pub async fn rt_sigqueueinfo(thread: &mut Thread, pid: i32, number: u32, info: u64) -> CallResult {
    let signal = Signal::from_number(number.into())?;
    let info = read_info(thread, signal, info, pid as u32 == thread.process.pid).await?;
    let target = thread.system.family.lock().process(pid as u32).ok_or(Errno::ESRCH)?;
    if !may_signal(thread, &target, Some(signal)) {
        return Err(Errno::EPERM);
    }
    thread.system.send(&target, info)?;
    Ok(0)
}

pub async fn rt_tgsigqueueinfo(
    thread: &mut Thread,
    group: i32,
    tid: i32,
    number: u32,
    info: u64,
) -> CallResult {
    if group <= 0 || tid <= 0 {
        return Err(Errno::EINVAL);
    }
    let signal = Signal::from_number(number.into())?;
    let info = read_info(thread, signal, info, group as u32 == thread.process.pid).await?;
    let (pid, process) = thread.system.family.lock().process_of_thread(tid as u32).ok_or(Errno::ESRCH)?;
    if pid != group as u32 {
        return Err(Errno::ESRCH);
    }
    if !may_signal(thread, &process, Some(signal)) {
        return Err(Errno::EPERM);
    }
    if let Some(target) = process.thread(tid as u32) {
        thread.system.send_to_thread(&process, &target, info)?;
    }
    Ok(0)
}
