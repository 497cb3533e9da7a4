//! Calls that are served at once: while they need no wait, a program does not give its core away.

mod common;

use common::{CODE, Cell, DATA, READABLE, Steps, observed_pair};
use isola_linux_abi::net::{AF_UNIX, SOCK_STREAM};
use isola_linux_abi::numbers as linux;
use isola_linux_files::Console;
use isola_linux_processes::ExitStatus;
use isola_linux_sim::{Program, STEP_SIZE};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

const EXITED: ExitStatus = ExitStatus::Exited(0);
/// Where the programs map memory, and its length.
const AREA: u64 = 0x10_0000_0000;
const LEN: u64 = 8 * 4096;
const PAIR: u64 = DATA;
const TEXT: u64 = DATA + 0x100;
const EVENT: u64 = DATA + 0x200;
const ROUNDS: u32 = 100;

fn maps(program: Program) -> Program {
    let protection = u64::from(linux::PROT_READ | linux::PROT_WRITE);
    let flags = u64::from(linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_FIXED_NOREPLACE);
    let program = program.syscall(linux::__NR_mmap, &[AREA, LEN, protection, flags, u64::MAX, 0]);
    program.returns(AREA as i64).store(AREA + 4096, b"text")
}

#[track_caller]
fn runs(program: Program) -> Cell {
    let cell = Cell::new();
    cell.install("/program", program.exits(0));
    assert_eq!(cell.run(&["/program"]), EXITED);
    cell
}

/// Runs a program of [`ROUNDS`] rounds. Checks that nearly none of its calls came to its task, nor cost a turn of it.
#[track_caller]
fn runs_without_turns(program: Program) {
    let cell = runs(program);
    let (polls, calls) = (cell.environment.polls.load(Ordering::Relaxed), cell.user_mode.unserved_calls());
    assert!(polls < 20 && calls < 20, "{polls} polls and {calls} calls for {ROUNDS} rounds");
}

#[test]
fn changes_of_memory_need_no_turns() {
    let one = |program: Program, _| {
        maps(program)
            .syscall(linux::__NR_mprotect, &[AREA, LEN, u64::from(linux::PROT_NONE)])
            .returns(0)
            .syscall(linux::__NR_mprotect, &[AREA, LEN, u64::from(linux::PROT_READ)])
            .returns(0)
            .expect(AREA + 4096, b"text")
            // As the guard of a thread's stack: the range has two mappings.
            .syscall(linux::__NR_mprotect, &[AREA, 4096, u64::from(linux::PROT_NONE)])
            .returns(0)
            .syscall(linux::__NR_madvise, &[AREA, LEN, u64::from(linux::MADV_DONTNEED)])
            .returns(0)
            .expect(AREA + 4096, &[0; 4])
            .syscall(linux::__NR_munmap, &[AREA, LEN])
            .returns(0)
    };
    runs_without_turns((0..ROUNDS).fold(Program::new(), one));
}

#[test]
fn bytes_and_events_that_are_there_need_no_turns() {
    let kind = u64::from(SOCK_STREAM | linux::O_NONBLOCK);
    let program = observed_pair(Program::new(), kind, PAIR, EVENT).store(TEXT, b"text");
    let one = |program: Program, _| {
        program
            .syscall(linux::__NR_epoll_wait, &[5, EVENT, 16, 0])
            .returns(0)
            .syscall(linux::__NR_write, &[3, TEXT, 2])
            .returns(2)
            .syscall(linux::__NR_sendto, &[3, TEXT + 2, 2, 0, 0, 0])
            .returns(2)
            .syscall(linux::__NR_epoll_wait, &[5, EVENT, 16, u64::MAX])
            .returns(1)
            .expect(EVENT, &READABLE)
            .syscall(linux::__NR_read, &[4, TEXT + 16, 3])
            .returns(3)
            .syscall(linux::__NR_recvfrom, &[4, TEXT + 19, 16384, 0, 0, 0])
            .returns(1)
            .expect(TEXT + 16, b"text")
            .syscall(linux::__NR_read, &[4, TEXT + 16, 16384])
            .returns(-11)
    };
    runs_without_turns((0..ROUNDS).fold(program, one));
}

#[test]
fn arrays_of_buffers_and_settings_of_sockets_need_no_turns() {
    /// `struct msghdr` with the array of buffers.
    const HEADER: u64 = DATA + 0x300;
    const VECTOR: u64 = DATA + 0x400;
    const STAT: u64 = DATA + 0x600;
    let kind = u64::from(SOCK_STREAM | linux::O_NONBLOCK);
    // The second buffer crosses a page.
    let (border, nowhere) = (AREA + 2 * 4096, 8);
    let vector = [TEXT, 1, nowhere, 0, border - 1, 3];
    let header = [0, 0, VECTOR, 3, 0, 0, 0];
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let program = maps(Program::new())
        .syscall(linux::__NR_socketpair, &[AF_UNIX.into(), kind, 0, PAIR])
        .returns(0)
        .syscall(linux::__NR_epoll_create1, &[0])
        .returns(5)
        .store(EVENT, &READABLE)
        .store(TEXT, b"a")
        .store(border - 1, b"bcd")
        .store(VECTOR, &bytes(&vector))
        .store(HEADER, &bytes(&header));
    let one = |program: Program, _| {
        program
            .syscall(linux::__NR_epoll_ctl, &[5, linux::EPOLL_CTL_ADD.into(), 4, EVENT])
            .returns(0)
            .syscall(linux::__NR_writev, &[3, VECTOR, 3])
            .returns(4)
            .syscall(linux::__NR_sendmsg, &[3, HEADER, 0])
            .returns(4)
            .syscall(linux::__NR_read, &[4, TEXT + 16, 16])
            .returns(8)
            .expect(TEXT + 16, b"abcdabcd")
            .syscall(linux::__NR_epoll_ctl, &[5, linux::EPOLL_CTL_DEL.into(), 4, 0])
            .returns(0)
            .syscall(linux::__NR_fstat, &[3, STAT])
            .returns(0)
            .syscall(linux::__NR_lseek, &[3, 0, 0])
            .returns(-29)
    };
    runs_without_turns((0..ROUNDS).fold(program, one));
}

#[test]
fn ids_are_those_of_the_present() {
    let child = 15;
    let program = Program::new()
        .syscall(linux::__NR_getpid, &[])
        .returns(1)
        .syscall(linux::__NR_gettid, &[])
        .returns(1)
        .syscall(linux::__NR_getppid, &[])
        .returns(0)
        .syscall(linux::__NR_setresgid, &[5, 6, 7])
        .returns(0)
        .syscall(linux::__NR_setresuid, &[8, 9, 10])
        .returns(0)
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .returns(2)
        .exits(0);
    let ids = [
        (linux::__NR_getuid, 8),
        (linux::__NR_geteuid, 9),
        (linux::__NR_getgid, 5),
        (linux::__NR_getegid, 6),
        (linux::__NR_getpid, 2),
        (linux::__NR_gettid, 2),
        (linux::__NR_getppid, 1),
    ];
    let program = ids.into_iter().fold(program, |program, (call, id)| program.syscall(call, &[]).returns(id));
    runs_without_turns(program);
}

#[test]
fn an_orphan_sees_its_new_parent() {
    let (child, orphan, tries) = (5, 10, AtomicU64::new(0));
    let program = Program::new()
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .exits(0)
        .syscall(linux::__NR_getppid, &[])
        .returns(1)
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, orphan)
        .exits(0)
        .syscall(linux::__NR_sched_yield, &[])
        .syscall(linux::__NR_getppid, &[])
        .step(move |processor| {
            assert!(tries.fetch_add(1, Ordering::Relaxed) < 1000, "the parent's end changes the id");
            match processor.registers().rax {
                2 => processor.registers().rip = CODE + orphan * STEP_SIZE,
                parent => assert_eq!(parent, 1),
            }
            Ok(())
        });
    runs(program);
}

/// The end of a call waits until no other core can use the pages that it has removed.
#[test]
fn a_program_continues_when_other_cores_have_flushed() {
    type Call = (u32, [u64; 3]);
    const CALLS: [Call; 3] = [
        (linux::__NR_munmap, [AREA, LEN, 0]),
        (linux::__NR_madvise, [AREA, LEN, linux::MADV_DONTNEED as u64]),
        (linux::__NR_mprotect, [AREA, LEN, linux::PROT_READ as u64]),
    ];
    for (number, words) in CALLS {
        let cell = Cell::new();
        let (user_mode, is_flushed) = (cell.user_mode, Arc::new(AtomicBool::new(false)));
        let was_flushed = is_flushed.clone();
        let program = maps(Program::new())
            .step(move |_| {
                user_mode.hold_flushes();
                Ok(())
            })
            .syscall(number, &words)
            .returns(0)
            .step(move |_| {
                assert!(was_flushed.load(Ordering::SeqCst), "call {number}: the flush was not over");
                Ok(())
            })
            .exits(0);
        cell.install("/program", program);
        let before = user_mode.flushes();
        let mut polls = 0;
        let beside = poll_fn(move |context| {
            context.waker().wake_by_ref();
            // The tasks have their turns in the meantime.
            polls += u32::from(user_mode.flushes() > before);
            if polls < 40 {
                return Poll::Pending;
            }
            is_flushed.store(true, Ordering::SeqCst);
            user_mode.end_flushes();
            if polls < 400 { Poll::Pending } else { Poll::Ready(()) }
        });
        let console = Console::new(Arc::new(Silent));
        let files = [console.open(), console.open(), console.open()];
        assert_eq!(cell.run_with("/program", files, beside), EXITED);
    }
}

struct Silent;

impl isola_linux_files::ConsoleOutput for Silent {
    fn write(&self, _: &[u8]) {}
}

#[test]
fn reads_of_objects_that_have_no_bytes_fail_at_once() {
    let program = Program::new()
        .syscall(linux::__NR_epoll_create1, &[0])
        .returns(3)
        .syscall(linux::__NR_pidfd_open, &[1, 0])
        .returns(4)
        .syscall(linux::__NR_read, &[3, TEXT, 8])
        .returns(-22)
        .syscall(linux::__NR_read, &[4, TEXT, 8])
        .returns(-22);
    runs(program);
}
