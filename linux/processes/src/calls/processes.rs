//! Processes and threads: their creation, programs, ends, and waits for them.

use super::time::{USAGE_LEN, usage};
use super::{CallResult, unsupported};
use crate::Errno;
use crate::clone::{CloneRequest, clone_thread};
use crate::exec::execute;
use crate::exit_status::ExitStatus;
use crate::family::{ChildSelector, WaitOptions, WaitedChild};
use crate::loader::ProgramInput;
use crate::process::Process;
use crate::signals::{INFO_LEN, Signal, SignalFacts, SignalInfo};
use crate::thread::Thread;
use crate::tracing;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers::{
    __WALL, __WCLONE, __WNOTHREAD, AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, CLONE_FILES, CLONE_FS,
    CLONE_PARENT_SETTID, CLONE_PIDFD, CLONE_VFORK, CLONE_VM, O_NONBLOCK, P_ALL, P_PGID, P_PID, P_PIDFD,
    SIGCHLD, WCONTINUED, WEXITED, WNOHANG, WNOWAIT, WSTOPPED, WUNTRACED,
};

pub async fn fork(thread: &mut Thread) -> CallResult {
    clone_thread(thread, CloneRequest { exit_signal: SIGCHLD.into(), ..CloneRequest::default() }).await
}

pub async fn vfork(thread: &mut Thread) -> CallResult {
    let flags = (CLONE_VFORK | CLONE_VM).into();
    clone_thread(thread, CloneRequest { flags, exit_signal: SIGCHLD.into(), ..CloneRequest::default() }).await
}

pub async fn clone(
    thread: &mut Thread,
    flags: u64,
    stack: u64,
    parent_tid: u64,
    child_tid: u64,
    tls: u64,
) -> CallResult {
    /// The bits of the flags that are a signal.
    const SIGNAL: u64 = 0xff;
    const BOTH: u64 = (CLONE_PIDFD | CLONE_PARENT_SETTID) as u64;
    if flags & BOTH == BOTH {
        // Both would be stored at one address.
        return Err(Errno::EINVAL);
    }
    let request = CloneRequest {
        flags: flags & 0xffff_ff00,
        exit_signal: flags & SIGNAL,
        stack_pointer: stack,
        parent_tid,
        child_tid,
        tls,
        pidfd: parent_tid,
    };
    clone_thread(thread, request).await
}

pub async fn clone3(thread: &mut Thread, arguments: u64, size: u64) -> CallResult {
    /// The sizes of `struct clone_args` of its first version and of the largest that is known.
    const SIZES: core::ops::RangeInclusive<u64> = 64..=88;
    if size < *SIZES.start() {
        return Err(Errno::EINVAL);
    }
    if size > crate::calls::PAGE {
        return Err(Errno::E2BIG);
    }
    let mut bytes = alloc::vec![0; size as usize];
    thread.memory.read_to(arguments, &mut bytes).await?;
    if bytes.iter().skip(*SIZES.end() as usize).any(|byte| *byte != 0) {
        return Err(Errno::E2BIG);
    }
    let word = |index: usize| {
        let at = 8 * index;
        bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(core::array::from_fn(|index| word[index])))
    };
    let (stack, stack_len) = (word(5), word(6));
    if (stack == 0) != (stack_len == 0) || word(4) > 64 {
        return Err(Errno::EINVAL);
    }
    // A chosen id, and a cgroup.
    if word(8) != 0 || word(9) != 0 || word(0) & CLONE_INTO_CGROUP != 0 {
        return Err(unsupported(thread, "clone3 with set_tid or cgroup", Errno::EINVAL));
    }
    let request = CloneRequest {
        flags: word(0),
        pidfd: word(1),
        child_tid: word(2),
        parent_tid: word(3),
        exit_signal: word(4),
        stack_pointer: stack.wrapping_add(stack_len),
        tls: word(7),
    };
    clone_thread(thread, request).await
}

const CLONE_INTO_CGROUP: u64 = 1 << 33;

pub async fn execve(thread: &mut Thread, path: u64, arguments: u64, environment: u64) -> CallResult {
    execveat(thread, AT_FDCWD, path, arguments, environment, 0).await
}

pub async fn execveat(
    thread: &mut Thread,
    directory: i32,
    path: u64,
    arguments: u64,
    environment: u64,
    flags: u32,
) -> CallResult {
    if flags & !(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = thread.memory.path(path).await?;
    let mut input = ProgramInput {
        arguments: strings(thread, arguments).await?,
        environment: strings(thread, environment).await?,
        path: path.clone(),
    };
    if input.arguments.is_empty() {
        // As Linux since 5.18.
        input.arguments.push(Vec::new());
    }
    let file = crate::exec::open_program(thread, directory, &path, flags).await?;
    execute(thread, file, input).await?;
    // The new program starts with zeros in its registers.
    Ok(0)
}

/// Reads a list of addresses of strings, which ends with 0.
async fn strings(thread: &Thread, list: u64) -> Result<Vec<Vec<u8>>, Errno> {
    use crate::loader::MOST_ARGUMENT_BYTES;
    let mut strings = Vec::new();
    let mut len = 0;
    if list == 0 {
        // As in Linux, no list at all is an empty list.
        return Ok(strings);
    }
    loop {
        let place = list.checked_add(8 * strings.len() as u64).ok_or(Errno::EFAULT)?;
        let address = u64::from_le_bytes(thread.memory.read_bytes::<8>(place).await?);
        if address == 0 {
            return Ok(strings);
        }
        let bad = |error| if error == Errno::ENAMETOOLONG { Errno::E2BIG } else { error };
        let string = thread.memory.string(address, MOST_ARGUMENT_BYTES).await.map_err(bad)?;
        len += string.len() + 9;
        if len > MOST_ARGUMENT_BYTES {
            return Err(Errno::E2BIG);
        }
        strings.push(string);
    }
}

pub fn exit(thread: &mut Thread, code: u32) -> CallResult {
    thread.end(code as u8);
    Ok(0)
}

pub fn exit_group(thread: &mut Thread, code: u32) -> CallResult {
    thread.process.end(ExitStatus::Exited(code as u8));
    Ok(0)
}

pub async fn wait4(thread: &mut Thread, pid: i32, status: u64, options: u32, resources: u64) -> CallResult {
    const KNOWN: u32 = WNOHANG | WUNTRACED | WCONTINUED | __WNOTHREAD | __WALL | __WCLONE;
    if options & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let selector = match pid {
        -1 => ChildSelector::Any,
        0 => ChildSelector::Group(thread.system.family.lock().group(thread.process.pid)?),
        1.. => ChildSelector::Process(pid as u32),
        i32::MIN => return Err(Errno::ESRCH),
        group => ChildSelector::Group(group.unsigned_abs()),
    };
    if options & __WCLONE != 0 && options & __WALL == 0 {
        // Children that send no SIGCHLD; none are counted as such here.
        return Err(Errno::ECHILD);
    }
    let wanted = WaitOptions {
        exited: true,
        stopped: options & WUNTRACED != 0,
        continued: options & WCONTINUED != 0,
        keeps: false,
    };
    let Some(child) = wait(thread, selector, wanted, options & WNOHANG != 0).await? else { return Ok(0) };
    if status != 0 {
        thread.memory.write_bytes(status, &child.status.word().to_le_bytes()).await?;
    }
    if resources != 0 {
        thread.memory.write_bytes(resources, &usage(child.time, 0)).await?;
    }
    Ok(child.pid.into())
}

pub async fn waitid(
    thread: &mut Thread,
    kind: u32,
    id: u32,
    info: u64,
    options: u32,
    resources: u64,
) -> CallResult {
    const KNOWN: u32 = WNOHANG | WNOWAIT | WEXITED | WSTOPPED | WCONTINUED | __WNOTHREAD | __WALL | __WCLONE;
    if options & !KNOWN != 0 || options & (WEXITED | WSTOPPED | WCONTINUED) == 0 {
        return Err(Errno::EINVAL);
    }
    let mut is_nonblocking = false;
    let selector = match kind {
        P_ALL => ChildSelector::Any,
        P_PIDFD => {
            let file = thread.files.get(id as i32)?;
            is_nonblocking = file.flags() & O_NONBLOCK != 0;
            ChildSelector::Process(super::process_files::process_of(thread, id as i32)?.pid)
        }
        P_PID if id > 0 => ChildSelector::Process(id),
        P_PGID if id == 0 => ChildSelector::Group(thread.system.family.lock().group(thread.process.pid)?),
        P_PGID => ChildSelector::Group(id),
        _ => return Err(unsupported(thread, &alloc::format!("waitid of kind {kind}"), Errno::EINVAL)),
    };
    let wanted = WaitOptions {
        exited: options & WEXITED != 0,
        stopped: options & WSTOPPED != 0,
        continued: options & WCONTINUED != 0,
        keeps: options & WNOWAIT != 0,
    };
    let returns_at_once = options & WNOHANG != 0;
    let child = wait(thread, selector, wanted, returns_at_once || is_nonblocking).await?;
    if child.is_none() && !returns_at_once {
        return Err(Errno::EAGAIN);
    }
    if info != 0 {
        let bytes = child.as_ref().map_or([0; INFO_LEN], |child| {
            let (code, status) = child.status.code_and_status();
            let uid = child.process.user.lock().real;
            let facts = SignalFacts::Child { pid: child.pid, uid, status, user_ticks: 0, system_ticks: 0 };
            SignalInfo { signal: Signal::SIGCHLD, code, errno: 0, facts }.to_bytes()
        });
        thread.memory.write_bytes(info, &bytes).await?;
    }
    if resources != 0 {
        let bytes = child.map_or([0; USAGE_LEN], |child| usage(child.time, 0));
        thread.memory.write_bytes(resources, &bytes).await?;
    }
    Ok(0)
}

pub fn unshare(thread: &mut Thread, flags: u32) -> CallResult {
    if flags & !(CLONE_FILES | CLONE_FS) != 0 {
        return Err(unsupported(thread, &alloc::format!("unshare with flags {flags:#x}"), Errno::EINVAL));
    }
    if flags & CLONE_FILES != 0 {
        unshare_files(thread);
    }
    if flags & CLONE_FS != 0 && Arc::strong_count(&thread.view) > 1 {
        thread.view = Arc::new(thread.view.fork());
        show_of_first_thread(thread);
    }
    Ok(0)
}

/// Gives the thread a table of descriptors of its own.
pub(super) fn unshare_files(thread: &mut Thread) {
    if Arc::strong_count(&thread.files) > 1 {
        thread.files = Arc::new(thread.files.fork());
        show_of_first_thread(thread);
    }
}

/// Updates what the process's directory in `/proc` shows: the files of the first thread.
fn show_of_first_thread(thread: &Thread) {
    if thread.state.tid() == thread.process.pid {
        thread.process.show(&thread.files, &thread.view);
    }
}

/// Waits for a child.
async fn wait(
    thread: &Thread,
    selector: ChildSelector,
    options: WaitOptions,
    returns_at_once: bool,
) -> Result<Option<WaitedChild<Arc<Process>>>, Errno> {
    let (system, process) = (&thread.system, &thread.process);
    let check = || match tracing::wait(system, process, selector, options) {
        Some(Some(tracee)) => Some(Ok(tracee)),
        tracees => match system.family.lock().wait(process.pid, selector, options) {
            Err(Errno::ECHILD) if tracees.is_some() => None,
            result => result.transpose(),
        },
    };
    if returns_at_once {
        return check().transpose();
    }
    match check() {
        Some(result) => result.map(Some),
        None => thread.interruptible(process.changes.wait_until(check)).await?.map(Some),
    }
}
