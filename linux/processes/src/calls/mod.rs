//! The table of system calls.
//!
//! Each entry names a call, its parameters, and the function that serves it; the number is the kernel's. The table
//! generates the dispatch and `docs/linux.md`. A function returns the value of RAX, or an error. One that can wait is
//! `async`. One that never waits, and accesses no registers, can be served at once (`at_once`), while the program's core counts
//! as halted. So can one that waits only before it has an effect (`tried`): if it would wait, it is served anew by the thread's
//! task.

mod asynchronous;
mod files;
mod futex;
mod identity;
mod information;
mod ipc;
mod memory;
mod process_files;
mod processes;
mod ptrace;
mod rings;
mod scheduling;
mod signals;
mod sockets;
mod time;
mod timers;
mod trace;
mod words;

pub(crate) use files::install;
pub(crate) use files::pipe_wait as splice_wait;
pub use information::{RELEASE, VERSION};
pub(crate) use memory::path_of;
pub(crate) use time::SECOND;
pub use time::process_time;
pub(crate) use words::{half_at, word_at};

use crate::Errno;
use crate::rseq::rseq_at_once;
use crate::thread::Thread;
use crate::tracing::registers::Arguments;
use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use isola_linux_abi::numbers;
use isola_linux_files::OpenFile;
use isola_linux_sockets::Waiting;
use isola_user_mode::TrapAnswer;
use words::Word;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: u64,
    /// Its name.
    pub name: &'static str,
    /// The names of its parameters.
    pub parameters: &'static [&'static str],
    /// Differences from Linux; empty if none is known.
    pub notes: &'static str,
}

/// The result of a call.
pub type CallResult = Result<u64, Errno>;

/// The outcome of an attempt to serve a call at once.
pub enum AtOnce {
    /// The call has a result.
    Served(CallResult),
    /// The thread waits ([`Thread::wait`]).
    Waits,
    /// The call is to be served by the thread's task.
    Unserved,
}

impl AtOnce {
    fn answer(self, number: u64) -> TrapAnswer {
        match self {
            Self::Served(Ok(value)) => TrapAnswer::Resume(value),
            Self::Served(Err(errno)) => TrapAnswer::Resume(errno.to_result()),
            // The registers stay those of the call.
            Self::Waits => TrapAnswer::Stop(number),
            Self::Unserved => TrapAnswer::Unserved,
        }
    }
}

macro_rules! calls {
    ($($(#[doc = $notes:literal])* $number:ident($($parameter:ident),*) => $path:path $([$kind:ident])?;)*) => {
        /// All calls, in the order of the table.
        pub const CALLS: &[Call] = &[$(Call {
            number: numbers::$number as u64,
            name: stringify!($number).split_at(NUMBER_PREFIX.len()).1,
            parameters: &[$(stringify!($parameter)),*],
            notes: concat!($($notes),*),
        }),*];

        /// Dispatches a call.
        async fn dispatch(thread: &mut Thread, number: u64, words: [u64; 6]) -> CallResult {
            // As in Linux since 5.14, the upper half of RAX does not count.
            match number as u32 {
                $(numbers::$number => {
                    let [$($parameter,)* ..] = words;
                    calls!(@run thread, $path, ($($parameter),*) $([$kind])?)
                })*
                _ => Err(missing(thread, number)),
            }
        }

        /// Dispatches a call that is served at once.
        #[allow(unused_variables, reason = "most calls are not served at once")]
        fn dispatch_at_once(thread: &mut Thread, number: u64, words: [u64; 6]) -> Option<CallResult> {
            match u32::try_from(number).unwrap_or(u32::MAX) {
                $(numbers::$number => {
                    let [$($parameter,)* ..] = words;
                    calls!(@at_once thread, $path, ($($parameter),*) $([$kind])?)
                })*
                _ => None,
            }
        }
    };
    (@run $thread:ident, $path:path, ($($parameter:ident),*) $([at_once])?) => {
        $path($thread, $(Word::from_word($parameter)),*)
    };
    (@at_once $thread:ident, $path:path, ($($parameter:ident),*) [at_once]) => {
        Some($path($thread, $(Word::from_word($parameter)),*))
    };
    (@at_once $thread:ident, $path:path, ($($parameter:ident),*) [tried]) => {
        tried(move || $path($thread, $(Word::from_word($parameter)),*))
    };
    (@at_once $thread:ident, $path:path, ($($parameter:ident),*) $([wait])?) => {
        None
    };
    (@run $thread:ident, $path:path, ($($parameter:ident),*) [$kind:ident]) => {
        $path($thread, $(Word::from_word($parameter)),*).await
    };
}

/// The beginning of the names of call numbers.
const NUMBER_PREFIX: &str = "__NR_";

/// The size of a page.
pub(crate) const PAGE: u64 = isola_user_mode::PAGE_SIZE;

calls! {
    __NR_read(descriptor, address, len) => files::read [wait];
    __NR_write(descriptor, address, len) => files::write [wait];
    __NR_open(path, flags, mode) => files::open [wait];
    __NR_close(descriptor) => files::close [at_once];
    __NR_stat(path, buffer) => files::stat [tried];
    __NR_fstat(descriptor, buffer) => files::fstat [tried];
    __NR_lstat(path, buffer) => files::lstat [tried];
    __NR_poll(list, count, timeout_ms) => files::poll [wait];
    __NR_lseek(descriptor, offset, whence) => files::lseek [tried];
    #[doc = "MAP_HUGETLB is ENOMEM."]
    __NR_mmap(address, len, protection, flags, descriptor, offset) => memory::mmap [wait];
    __NR_mprotect(address, len, protection) => memory::mprotect [wait];
    __NR_munmap(address, len) => memory::munmap [wait];
    __NR_brk(address) => memory::brk [wait];
    __NR_rt_sigaction(number, new, old, len) => signals::rt_sigaction [wait];
    __NR_rt_sigprocmask(how, new, old, len) => signals::rt_sigprocmask [wait];
    __NR_rt_sigreturn() => signals::rt_sigreturn [wait];
    #[doc = "See the files."]
    __NR_ioctl(descriptor, request, argument) => files::ioctl [wait];
    __NR_pread64(descriptor, address, len, offset) => files::pread64 [wait];
    __NR_pwrite64(descriptor, address, len, offset) => files::pwrite64 [wait];
    __NR_readv(descriptor, vector, count) => files::readv [wait];
    __NR_writev(descriptor, vector, count) => files::writev [wait];
    __NR_access(path, mode) => files::access [tried];
    __NR_pipe(descriptors) => files::pipe [wait];
    __NR_select(count, readable, writable, exceptional, timeout) => files::select [wait];
    __NR_sched_yield() => scheduling::sched_yield [wait];
    __NR_mremap(address, len, new_len, flags, new_address) => memory::mremap [wait];
    __NR_msync(address, len, flags) => memory::msync [wait];
    __NR_mincore(address, len, states) => memory::mincore [wait];
    #[doc = "MADV_FREE drops pages at once; huge-page advice is recorded only."]
    __NR_madvise(address, len, advice) => memory::madvise [wait];
    #[doc = "No huge pages."]
    __NR_shmget(key, len, flags) => ipc::shmget;
    __NR_shmat(id, address, flags) => ipc::shmat [wait];
    #[doc = "The times do not count attachments by fork, nor ends of processes."]
    __NR_shmctl(id, command, buffer) => ipc::shmctl [wait];
    __NR_dup(descriptor) => files::dup [at_once];
    __NR_dup2(from, to) => files::dup2 [at_once];
    __NR_pause() => signals::pause [wait];
    __NR_nanosleep(request, remaining) => time::nanosleep [wait];
    __NR_getitimer(which, setting) => timers::getitimer [wait];
    __NR_alarm(seconds) => timers::alarm;
    __NR_setitimer(which, new, old) => timers::setitimer [wait];
    __NR_getpid() => identity::getpid;
    __NR_sendfile(to, from, offset, len) => files::sendfile [wait];
    __NR_socket(domain, kind, protocol) => sockets::socket [at_once];
    __NR_connect(descriptor, address, len) => sockets::connect [wait];
    __NR_accept(descriptor, address, len) => sockets::accept [wait];
    __NR_sendto(descriptor, buffer, len, flags, address, address_len) => sockets::sendto [wait];
    #[doc = "MSG_ERRQUEUE is always EAGAIN; at most 256 KiB of a stream at once."]
    __NR_recvfrom(descriptor, buffer, len, flags, address, address_len) => sockets::recvfrom [wait];
    __NR_sendmsg(descriptor, header, flags) => sockets::sendmsg [wait];
    #[doc = "MSG_ERRQUEUE is always EAGAIN."]
    __NR_recvmsg(descriptor, header, flags) => sockets::recvmsg [wait];
    __NR_shutdown(descriptor, how) => sockets::shutdown [at_once];
    __NR_bind(descriptor, address, len) => sockets::bind [wait];
    __NR_listen(descriptor, backlog) => sockets::listen [wait];
    __NR_getsockname(descriptor, address, len) => sockets::getsockname [tried];
    __NR_getpeername(descriptor, address, len) => sockets::getpeername [tried];
    __NR_socketpair(domain, kind, protocol, descriptors) => sockets::socketpair [wait];
    #[doc = "SO_RCVLOWAT is stored only; no SO_PEEK_OFF, no filters, no time stamps of unix sockets."]
    __NR_setsockopt(descriptor, level, name, value, len) => sockets::setsockopt [tried];
    __NR_getsockopt(descriptor, level, name, value, len) => sockets::getsockopt [wait];
    #[doc = "CLONE_SIGHAND only with CLONE_THREAD; no namespaces; no CLONE_PTRACE."]
    __NR_clone(flags, stack, parent_tid, child_tid, tls) => processes::clone [wait];
    __NR_fork() => processes::fork [wait];
    __NR_vfork() => processes::vfork [wait];
    __NR_execve(path, arguments, environment) => processes::execve [wait];
    __NR_exit(code) => processes::exit;
    __NR_wait4(pid, status, options, resources) => processes::wait4 [wait];
    __NR_kill(pid, number) => signals::kill;
    __NR_uname(buffer) => information::uname [tried];
    __NR_semget(key, count, flags) => ipc::semget;
    __NR_semop(id, operations, count) => ipc::semop [wait];
    #[doc = "At most 32,000 semaphores in all sets."]
    __NR_semctl(id, index, command, argument) => ipc::semctl [wait];
    __NR_shmdt(address) => ipc::shmdt [wait];
    #[doc = "Full queues use at most a 32nd of the cell's memory."]
    __NR_msgget(key, flags) => ipc::msgget;
    __NR_msgsnd(id, message, len, flags) => ipc::msgsnd [wait];
    #[doc = "No MSG_COPY."]
    __NR_msgrcv(id, message, len, kind, flags) => ipc::msgrcv [wait];
    __NR_msgctl(id, command, buffer) => ipc::msgctl [wait];
    #[doc = "No leases, no signals for input (F_SETOWN has no effect)."]
    __NR_fcntl(descriptor, command, argument) => files::fcntl [wait];
    __NR_flock(descriptor, operation) => files::flock [wait];
    __NR_fsync(descriptor) => files::fsync [wait];
    __NR_fdatasync(descriptor) => files::fsync [wait];
    __NR_truncate(path, len) => files::truncate [wait];
    __NR_ftruncate(descriptor, len) => files::ftruncate [wait];
    __NR_getcwd(buffer, len) => files::getcwd [wait];
    __NR_chdir(path) => files::chdir [wait];
    __NR_fchdir(descriptor) => files::fchdir [wait];
    __NR_rename(path, new_path) => files::rename [wait];
    __NR_mkdir(path, mode) => files::mkdir [wait];
    __NR_rmdir(path) => files::rmdir [wait];
    __NR_creat(path, mode) => files::creat [wait];
    __NR_link(path, new_path) => files::link [wait];
    __NR_unlink(path) => files::unlink [wait];
    __NR_symlink(target, path) => files::symlink [wait];
    __NR_readlink(path, buffer, len) => files::readlink [tried];
    __NR_chmod(path, mode) => files::chmod [wait];
    __NR_fchmod(descriptor, mode) => files::fchmod [wait];
    __NR_chown(path, user, group) => files::chown [wait];
    __NR_fchown(descriptor, user, group) => files::fchown [wait];
    __NR_lchown(path, user, group) => files::lchown [wait];
    __NR_umask(mask) => files::umask [at_once];
    __NR_gettimeofday(time, zone) => time::gettimeofday [tried];
    __NR_getrlimit(resource, limit) => identity::getrlimit [wait];
    #[doc = "Times, resident memory, page faults and turns only."]
    __NR_getrusage(who, buffer) => time::getrusage [wait];
    __NR_sysinfo(buffer) => information::sysinfo [wait];
    __NR_times(buffer) => time::times [wait];
    #[doc = "All threads of a tracer may use it. No SYSEMU, no SECCOMP options, no debug registers; of 64-bit programs only."]
    __NR_ptrace(request, tid, address, data) => ptrace::ptrace [wait];
    __NR_getuid() => identity::getuid;
    __NR_getgid() => identity::getgid;
    __NR_setuid(id) => identity::setuid;
    __NR_setgid(id) => identity::setgid;
    __NR_geteuid() => identity::geteuid;
    __NR_getegid() => identity::getegid;
    __NR_setpgid(pid, group) => identity::setpgid;
    __NR_getppid() => identity::getppid;
    __NR_getpgrp() => identity::getpgrp [at_once];
    __NR_setsid() => identity::setsid;
    __NR_setreuid(real, effective) => identity::setreuid;
    __NR_setregid(real, effective) => identity::setregid;
    __NR_getgroups(size, list) => identity::getgroups [wait];
    __NR_setgroups(size, list) => identity::setgroups [wait];
    __NR_setresuid(real, effective, saved) => identity::setresuid;
    __NR_getresuid(real, effective, saved) => identity::getresuid [wait];
    __NR_setresgid(real, effective, saved) => identity::setresgid;
    __NR_getresgid(real, effective, saved) => identity::getresgid [wait];
    __NR_getpgid(pid) => identity::getpgid [at_once];
    __NR_setfsuid(id) => identity::setfsuid;
    __NR_setfsgid(id) => identity::setfsgid;
    __NR_getsid(pid) => identity::getsid [at_once];
    #[doc = "The calling process only."]
    __NR_capget(header, data) => identity::capget [wait];
    #[doc = "The calling process only."]
    __NR_capset(header, data) => identity::capset [wait];
    __NR_rt_sigpending(set, len) => signals::rt_sigpending [wait];
    __NR_rt_sigtimedwait(set, info, timeout, len) => signals::rt_sigtimedwait [wait];
    __NR_rt_sigqueueinfo(pid, number, info) => signals::rt_sigqueueinfo [wait];
    __NR_rt_sigsuspend(set, len) => signals::rt_sigsuspend [wait];
    __NR_sigaltstack(new, old) => signals::sigaltstack [wait];
    __NR_mknod(path, mode, device) => files::mknod [wait];
    #[doc = "Linux only; of the flags ADDR_NO_RANDOMIZE."]
    __NR_personality(persona) => information::personality;
    __NR_statfs(path, buffer) => files::statfs [wait];
    __NR_fstatfs(descriptor, buffer) => files::fstatfs [wait];
    __NR_getpriority(which, who) => scheduling::getpriority;
    #[doc = "A priority is that of the process."]
    __NR_setpriority(which, who, nice) => scheduling::setpriority;
    #[doc = "The policy is that of the process."]
    __NR_sched_setparam(tid, parameter) => scheduling::sched_setparam [wait];
    __NR_sched_getparam(tid, parameter) => scheduling::sched_getparam [wait];
    #[doc = "The policy is that of the process. SCHED_FIFO and SCHED_RR give the highest weight, not precedence; no SCHED_DEADLINE."]
    __NR_sched_setscheduler(tid, policy, parameter) => scheduling::sched_setscheduler [wait];
    __NR_sched_getscheduler(tid) => scheduling::sched_getscheduler;
    __NR_sched_get_priority_max(policy) => scheduling::sched_get_priority_max;
    __NR_sched_get_priority_min(policy) => scheduling::sched_get_priority_min;
    __NR_sched_rr_get_interval(tid, interval) => scheduling::sched_rr_get_interval [wait];
    __NR_mlock(address, len) => memory::mlock [wait];
    __NR_munlock(address, len) => memory::munlock;
    __NR_mlockall(flags) => memory::mlockall [wait];
    __NR_munlockall() => memory::munlockall;
    #[doc = "Names, capabilities, no-new-privileges, keep-capabilities, dumpable, parent-death signal (when the parent's process ends), subreaper."]
    __NR_prctl(option, argument, third, fourth) => identity::prctl [wait];
    __NR_arch_prctl(code, address) => identity::arch_prctl [wait];
    #[doc = "Reads only: changes are EPERM. The clock is not synchronised (TIME_ERROR)."]
    __NR_adjtimex(buffer) => time::adjtimex [wait];
    __NR_setrlimit(resource, limit) => identity::setrlimit [wait];
    __NR_chroot(path) => files::chroot [wait];
    __NR_sync() => files::sync [wait];
    #[doc = "Always EPERM: the clock is that of the machine."]
    __NR_settimeofday(time, zone) => time::settimeofday [wait];
    #[doc = "Always EPERM."]
    __NR_mount() => information::administration;
    #[doc = "Always EPERM."]
    __NR_umount2() => information::administration;
    #[doc = "Always EPERM."]
    __NR_swapon() => information::administration;
    #[doc = "Always EPERM."]
    __NR_swapoff() => information::administration;
    #[doc = "Always EPERM."]
    __NR_reboot() => information::administration;
    __NR_sethostname(name, len) => information::sethostname [wait];
    __NR_gettid() => identity::gettid;
    #[doc = "Up to 256 pages."]
    __NR_readahead(descriptor, offset, len) => files::readahead [wait];
    __NR_setxattr(path, name, value, len, flags) => files::setxattr [wait];
    __NR_lsetxattr(path, name, value, len, flags) => files::lsetxattr [wait];
    __NR_fsetxattr(descriptor, name, value, len, flags) => files::fsetxattr [wait];
    __NR_getxattr(path, name, buffer, len) => files::getxattr [wait];
    __NR_lgetxattr(path, name, buffer, len) => files::lgetxattr [wait];
    __NR_fgetxattr(descriptor, name, buffer, len) => files::fgetxattr [wait];
    __NR_listxattr(path, buffer, len) => files::listxattr [wait];
    __NR_llistxattr(path, buffer, len) => files::llistxattr [wait];
    __NR_flistxattr(descriptor, buffer, len) => files::flistxattr [wait];
    __NR_removexattr(path, name) => files::removexattr [wait];
    __NR_lremovexattr(path, name) => files::lremovexattr [wait];
    __NR_fremovexattr(descriptor, name) => files::fremovexattr [wait];
    __NR_tkill(tid, number) => signals::tkill;
    __NR_time(address) => time::time [wait];
    #[doc = "All threads have the same priority, which no lock changes."]
    __NR_futex(word, operation, value, timeout, second, third) => futex::futex [wait];
    __NR_sched_setaffinity(tid, len, mask) => scheduling::sched_setaffinity [wait];
    __NR_sched_getaffinity(tid, len, mask) => scheduling::sched_getaffinity [tried];
    __NR_io_setup(most, context) => asynchronous::io_setup [wait];
    __NR_io_destroy(context) => asynchronous::io_destroy [wait];
    __NR_io_getevents(context, least, most, events, timeout) => asynchronous::io_getevents [wait];
    __NR_io_submit(context, count, list) => asynchronous::io_submit [wait];
    __NR_io_cancel(context, iocb, result) => asynchronous::io_cancel [wait];
    __NR_epoll_create(size) => files::epoll_create;
    __NR_getdents64(descriptor, buffer, len) => files::getdents64 [wait];
    __NR_set_tid_address(address) => identity::set_tid_address [at_once];
    __NR_restart_syscall() => time::restart_syscall [wait];
    __NR_semtimedop(id, operations, count, timeout) => ipc::semtimedop [wait];
    #[doc = "POSIX_FADV_WILLNEED reads up to 256 pages; others are checked, without effect."]
    __NR_fadvise64(descriptor, offset, len, advice) => files::fadvise64 [wait];
    #[doc = "No processor time of other processes."]
    __NR_timer_create(clock, event, id) => timers::timer_create [wait];
    __NR_timer_settime(id, flags, new, old) => timers::timer_settime [wait];
    __NR_timer_gettime(id, setting) => timers::timer_gettime [wait];
    __NR_timer_getoverrun(id) => timers::timer_getoverrun;
    __NR_timer_delete(id) => timers::timer_delete;
    #[doc = "Always EPERM: the clock is that of the machine."]
    __NR_clock_settime(clock, time) => time::clock_settime [wait];
    __NR_clock_gettime(clock, time) => time::clock_gettime [tried];
    __NR_clock_getres(clock, resolution) => time::clock_getres [wait];
    __NR_clock_nanosleep(clock, flags, request, remaining) => time::clock_nanosleep [wait];
    __NR_exit_group(code) => processes::exit_group;
    __NR_epoll_wait(epoll, events, most, timeout_ms) => files::epoll_wait [wait];
    __NR_epoll_ctl(epoll, operation, descriptor, event) => files::epoll_ctl [tried];
    __NR_tgkill(group, tid, number) => signals::tgkill;
    __NR_mq_open(name, flags, mode, attributes) => ipc::mq_open [wait];
    __NR_mq_unlink(name) => ipc::mq_unlink [wait];
    __NR_mq_timedsend(descriptor, message, len, priority, timeout) => ipc::mq_timedsend [wait];
    __NR_mq_timedreceive(descriptor, message, len, priority, timeout) => ipc::mq_timedreceive [wait];
    #[doc = "No SIGEV_THREAD. A notification ends with the process, not when it closes the queue."]
    __NR_mq_notify(descriptor, event) => ipc::mq_notify [wait];
    __NR_mq_getsetattr(descriptor, new, old) => ipc::mq_getsetattr [wait];
    __NR_waitid(kind, id, info, options, resources) => processes::waitid [wait];
    #[doc = "A priority is that of the process, and a weight at block devices."]
    __NR_ioprio_set(which, who, priority) => scheduling::ioprio_set;
    __NR_ioprio_get(which, who) => scheduling::ioprio_get;
    __NR_inotify_init() => files::inotify_init;
    __NR_inotify_add_watch(instance, path, mask) => files::inotify_add_watch [wait];
    __NR_inotify_rm_watch(instance, watch) => files::inotify_rm_watch;
    __NR_openat(directory, path, flags, mode) => files::openat [wait];
    __NR_mkdirat(directory, path, mode) => files::mkdirat [wait];
    __NR_mknodat(directory, path, mode, device) => files::mknodat [wait];
    __NR_fchownat(directory, path, user, group, flags) => files::fchownat [wait];
    __NR_newfstatat(directory, path, buffer, flags) => files::newfstatat [tried];
    __NR_unlinkat(directory, path, flags) => files::unlinkat [wait];
    __NR_renameat(directory, path, new_directory, new_path) => files::renameat [wait];
    __NR_linkat(directory, path, new_directory, new_path, flags) => files::linkat [wait];
    __NR_symlinkat(target, directory, path) => files::symlinkat [wait];
    __NR_readlinkat(directory, path, buffer, len) => files::readlinkat [tried];
    __NR_fchmodat(directory, path, mode) => files::fchmodat [wait];
    __NR_faccessat(directory, path, mode) => files::faccessat [tried];
    __NR_pselect6(count, readable, writable, exceptional, timeout, mask) => files::pselect6 [wait];
    __NR_ppoll(list, count, timeout, mask, len) => files::ppoll [wait];
    #[doc = "CLONE_FILES and CLONE_FS only."]
    __NR_unshare(flags) => processes::unshare;
    __NR_set_robust_list(head, len) => identity::set_robust_list [at_once];
    __NR_get_robust_list(pid, head, len) => identity::get_robust_list [wait];
    __NR_splice(from, from_offset, to, to_offset, len, flags) => files::splice [wait];
    __NR_tee(from, to, len, flags) => files::tee [wait];
    #[doc = "A wait is an fsync; without one it has no effect."]
    __NR_sync_file_range(descriptor, offset, len, flags) => files::sync_file_range [wait];
    __NR_vmsplice(descriptor, vector, count, flags) => files::vmsplice [wait];
    __NR_utimensat(directory, path, times, flags) => files::utimensat [wait];
    __NR_epoll_pwait(epoll, events, most, timeout_ms, mask) => files::epoll_pwait [wait];
    __NR_signalfd(descriptor, set, len) => signals::signalfd [wait];
    __NR_timerfd_create(clock, flags) => timers::timerfd_create;
    __NR_eventfd(count) => files::eventfd;
    __NR_fallocate(descriptor, mode, offset, len) => files::fallocate [wait];
    __NR_timerfd_settime(descriptor, flags, new, old) => timers::timerfd_settime [wait];
    __NR_timerfd_gettime(descriptor, setting) => timers::timerfd_gettime [wait];
    __NR_accept4(descriptor, address, len, flags) => sockets::accept4 [wait];
    #[doc = "A child that inherits the descriptor reads its parent's signals; a read takes those of all threads."]
    __NR_signalfd4(descriptor, set, len, flags) => signals::signalfd4 [wait];
    __NR_eventfd2(count, flags) => files::eventfd2 [at_once];
    __NR_epoll_create1(flags) => files::epoll_create1 [at_once];
    __NR_dup3(from, to, flags) => files::dup3 [at_once];
    __NR_pipe2(descriptors, flags) => files::pipe2 [wait];
    __NR_inotify_init1(flags) => files::inotify_init1;
    __NR_preadv(descriptor, vector, count, offset) => files::preadv [wait];
    __NR_pwritev(descriptor, vector, count, offset) => files::pwritev [wait];
    __NR_rt_tgsigqueueinfo(group, tid, number, info) => signals::rt_tgsigqueueinfo [wait];
    __NR_recvmmsg(descriptor, vector, count, flags, timeout) => sockets::recvmmsg [wait];
    __NR_prlimit64(pid, resource, new, old) => identity::prlimit64 [wait];
    #[doc = "Always EOPNOTSUPP."]
    __NR_name_to_handle_at(directory, path, handle, mount, flags) => files::name_to_handle_at;
    #[doc = "Always EOPNOTSUPP."]
    __NR_open_by_handle_at(mount, handle, flags) => files::open_by_handle_at;
    #[doc = "As adjtimex; CLOCK_REALTIME only."]
    __NR_clock_adjtime(clock, buffer) => time::clock_adjtime [wait];
    __NR_syncfs(descriptor) => files::syncfs [wait];
    __NR_sendmmsg(descriptor, vector, count, flags) => sockets::sendmmsg [wait];
    __NR_getcpu(core, node) => scheduling::getcpu [tried];
    __NR_process_vm_readv(pid, local, local_count, remote, remote_count, flags) => ptrace::process_vm_readv [wait];
    __NR_process_vm_writev(pid, local, local_count, remote, remote_count, flags) => ptrace::process_vm_writev [wait];
    #[doc = "As sched_setscheduler."]
    __NR_sched_setattr(tid, attributes, flags) => scheduling::sched_setattr [wait];
    __NR_sched_getattr(tid, attributes, size, flags) => scheduling::sched_getattr [wait];
    __NR_renameat2(directory, path, new_directory, new_path, flags) => files::renameat2 [wait];
    __NR_getrandom(buffer, len, flags) => information::getrandom [wait];
    #[doc = "No huge pages."]
    __NR_memfd_create(name, flags) => memory::memfd_create [wait];
    __NR_execveat(directory, path, arguments, environment, flags) => processes::execveat [wait];
    #[doc = "No SYNC_CORE, no RSEQ."]
    __NR_membarrier(command, flags, core) => process_files::membarrier [wait];
    __NR_mlock2(address, len, flags) => memory::mlock2 [wait];
    __NR_copy_file_range(from, from_offset, to, to_offset, len, flags) => files::copy_file_range [wait];
    __NR_preadv2(descriptor, vector, count, offset, high, flags) => files::preadv2 [wait];
    __NR_pwritev2(descriptor, vector, count, offset, high, flags) => files::pwritev2 [wait];
    __NR_statx(directory, path, flags, mask, buffer) => files::statx [tried];
    __NR_io_pgetevents(context, least, most, events, timeout, mask) => asynchronous::io_pgetevents [wait];
    #[doc = "Page faults abort a sequence as well."]
    __NR_rseq(area, len, flags, signature) => crate::rseq::rseq [wait];
    #[doc = "Processes only (no PIDFD_SELF, PIDFD_THREAD); no signals to groups."]
    __NR_pidfd_send_signal(descriptor, number, info, flags) => process_files::pidfd_send_signal [wait];
    #[doc = "No IORING_SETUP_SQPOLL, IOPOLL."]
    __NR_io_uring_setup(entries, parameters) => rings::io_uring_setup [wait];
    #[doc = "Files only, no sockets; no multishot operations, no buffers that the kernel chooses."]
    __NR_io_uring_enter(ring, submissions, least, flags, argument, len) => rings::io_uring_enter [wait];
    #[doc = "Files, buffers, an event counter, probes."]
    __NR_io_uring_register(ring, operation, argument, count) => rings::io_uring_register [wait];
    #[doc = "No PIDFD_THREAD."]
    __NR_pidfd_open(pid, flags) => process_files::pidfd_open;
    #[doc = "As clone; no set_tid, no cgroup."]
    __NR_clone3(arguments, size) => processes::clone3 [wait];
    __NR_close_range(first, last, flags) => files::close_range;
    #[doc = "RESOLVE_CACHED is EAGAIN; O_TMPFILE has no restrictions."]
    __NR_openat2(directory, path, how, len) => files::openat2 [wait];
    __NR_pidfd_getfd(descriptor, target, flags) => process_files::pidfd_getfd;
    __NR_faccessat2(directory, path, mode, flags) => files::faccessat2 [wait];
    __NR_futex_waitv(words, count, flags, timeout, clock) => futex::futex_waitv [wait];
    __NR_fchmodat2(directory, path, mode, flags) => files::fchmodat2 [wait];
}

const WAIT_FOR_EVENTS: u64 = numbers::__NR_epoll_wait as u64;
const WAIT_FOR_EVENTS_MASKED: u64 = numbers::__NR_epoll_pwait as u64;
const ACCEPT: u64 = numbers::__NR_accept as u64;
const ACCEPT_FLAGS: u64 = numbers::__NR_accept4 as u64;
const RECEIVE: u64 = numbers::__NR_recvfrom as u64;
const RECEIVE_MESSAGE: u64 = numbers::__NR_recvmsg as u64;

/// Continues the call of a parked thread, which has waited for an event of `file`, perhaps with a limit of time.
pub fn continue_at_once(thread: &mut Thread, file: Arc<OpenFile>, until_ns: Option<u64>) -> AtOnce {
    let registers = &*thread.registers();
    let (number, Arguments(words)) = (registers.rax, Arguments::from(registers));
    match number {
        WAIT_FOR_EVENTS | WAIT_FOR_EVENTS_MASKED => files::events_at_once(thread, file, words, until_ns),
        ACCEPT => sockets::accept_connection(thread, file, words, 0),
        ACCEPT_FLAGS => sockets::accept_connection(thread, file, words, words[3] as u32),
        RECEIVE => sockets::receive_from(thread, file, words, Waiting::Permitted),
        RECEIVE_MESSAGE => sockets::receive_message(thread, file, words, Waiting::Permitted),
        _ if file.is_socket() => sockets::read_socket_at_once(thread, file, words[1], words[2]),
        _ => files::read_file_at_once(thread, file, words[1], words[2]),
    }
}

/// Returns the error of the call of a parked thread that a signal interrupts.
pub fn interruption(number: u64) -> Errno {
    match number {
        WAIT_FOR_EVENTS | WAIT_FOR_EVENTS_MASKED => Errno::EINTR,
        _ => Errno::ERESTARTSYS,
    }
}

/// Serves a call while the program of the thread runs, if it does not have to wait. The registers of the thread are not
/// accessible.
#[inline]
pub fn serve_at_once(thread: &mut Thread, number: u64, words: [u64; 6]) -> TrapAnswer {
    const READ: u64 = numbers::__NR_read as u64;
    const WRITE: u64 = numbers::__NR_write as u64;
    const SIGNAL_MASK: u64 = numbers::__NR_rt_sigprocmask as u64;
    const FUTEX: u64 = numbers::__NR_futex as u64;
    const BREAK: u64 = numbers::__NR_brk as u64;
    const MAP: u64 = numbers::__NR_mmap as u64;
    const UNMAP: u64 = numbers::__NR_munmap as u64;
    const PROTECT: u64 = numbers::__NR_mprotect as u64;
    const ADVISE: u64 = numbers::__NR_madvise as u64;
    const POLL: u64 = numbers::__NR_poll as u64;
    const RESTARTABLE_SEQUENCES: u64 = numbers::__NR_rseq as u64;
    const READ_AT: u64 = numbers::__NR_pread64 as u64;
    const SEND: u64 = numbers::__NR_sendto as u64;
    const SEND_MESSAGE: u64 = numbers::__NR_sendmsg as u64;
    const WRITE_VECTOR: u64 = numbers::__NR_writev as u64;
    // Calls that can wait, where they do not have to, or where the thread can be parked.
    let result = match number {
        READ => return files::read_at_once(thread, words).answer(number),
        WRITE => files::write_at_once(thread, words),
        SIGNAL_MASK => signals::rt_sigprocmask_at_once(thread, words),
        FUTEX => return futex::futex_at_once(thread, words).answer(number),
        BREAK => memory::brk_at_once(thread, words),
        MAP => return memory::mmap_at_once(thread, words),
        UNMAP => return memory::munmap_at_once(thread, words),
        PROTECT => return memory::mprotect_at_once(thread, words),
        RECEIVE => return sockets::recvfrom_at_once(thread, words).answer(number),
        RECEIVE_MESSAGE => return sockets::recvmsg_at_once(thread, words).answer(number),
        ACCEPT => return sockets::accept_at_once(thread, words, 0).answer(number),
        ACCEPT_FLAGS => return sockets::accept_at_once(thread, words, words[3] as u32).answer(number),
        POLL => files::poll_at_once(thread, words),
        SEND => sockets::sendto_at_once(thread, words),
        SEND_MESSAGE => sockets::sendmsg_at_once(thread, words),
        WRITE_VECTOR => files::writev_at_once(thread, words),
        READ_AT => files::pread_at_once(thread, words),
        RESTARTABLE_SEQUENCES => rseq_at_once(thread, words).map(Ok),
        WAIT_FOR_EVENTS => return files::epoll_wait_at_once(thread, words).answer(number),
        // Without a mask.
        WAIT_FOR_EVENTS_MASKED if words[4] == 0 => {
            return files::epoll_wait_at_once(thread, words).answer(number);
        }
        ADVISE => return memory::madvise_at_once(thread, words),
        _ => dispatch_at_once(thread, number, words),
    };
    match result {
        None => TrapAnswer::Unserved,
        Some(Ok(value)) => TrapAnswer::Resume(value),
        Some(Err(errno)) => TrapAnswer::Resume(errno.to_result()),
    }
}

/// Returns the result of a call that does not wait. One that waits, or is interrupted, has had no effect.
#[inline(never)]
fn tried<F: Future<Output = CallResult>>(call: impl FnOnce() -> F) -> Option<CallResult> {
    now(call()).filter(|result| !matches!(result, Err(errno) if *errno >= Errno::ERESTARTSYS))
}

/// Returns the result of a future that is ready at its first poll.
fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Serves a call.
pub async fn serve(thread: &mut Thread, number: u64, words: [u64; 6]) -> CallResult {
    if !thread.system.traces {
        return dispatch(thread, number, words).await;
    }
    let traced = trace::TracedCall::begin(thread, call(number), number, &words).await;
    const EXECVE: u64 = numbers::__NR_execve as u64;
    const EXIT: u64 = numbers::__NR_exit as u64;
    const EXIT_GROUP: u64 = numbers::__NR_exit_group as u64;
    let system = thread.system.clone();
    if matches!(number, EXIT | EXIT_GROUP) {
        system.environment.report(&traced.without_result());
        return dispatch(thread, number, words).await;
    }
    let result = dispatch(thread, number, words).await;
    if number == EXECVE && result.is_ok() {
        // The memory with the arguments is gone.
        system.environment.report(&(traced.without_result().trim_end_matches('?').to_string() + "0"));
        return result;
    }
    system.environment.report(&traced.end(thread, result).await);
    result
}

/// Returns the call with this number.
pub fn call(number: u64) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.number == number)
}

/// Counts a call that does not exist.
fn missing(thread: &Thread, number: u64) -> Errno {
    thread.system.missing.count(&format!("call {number}"));
    Errno::ENOSYS
}

/// Counts a feature of a call that does not exist.
pub(crate) fn unsupported(thread: &Thread, feature: &str, errno: Errno) -> Errno {
    thread.system.missing.count(feature);
    errno
}
