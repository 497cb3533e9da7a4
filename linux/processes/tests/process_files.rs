//! Descriptors of processes, orphans, siblings, barriers.

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_linux_abi::numbers as linux;
use isola_linux_processes::{ExitStatus, list_processes};
use isola_linux_sim::Program;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

const EXITED: ExitStatus = ExitStatus::Exited(0);
const MS: u64 = 1_000_000;
const RESULT: u64 = DATA + 0x200;
const TIME: u64 = DATA + 0x300;
/// Where the program of a child is.
const CHILD: u64 = CODE + 0x20_0000;
/// Where that of a grandchild is.
const GRANDCHILD: u64 = CODE + 0x30_0000;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn sleeps(program: Program, ms: u64) -> Program {
    program.store(TIME, &words(&[0, ms * MS])).syscall(linux::__NR_nanosleep, &[TIME, 0]).returns(0)
}

fn run(program: Program, child: Program, grandchild: Program) {
    let cell = Cell::new();
    cell.install("/program", program);
    cell.user_mode.place(CHILD, child);
    cell.user_mode.place(GRANDCHILD, grandchild);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn an_operator_sees_the_processes() {
    let cell = Cell::new();
    let system = cell.system.clone();
    let program = sleeps(Program::new().syscall(linux::__NR_fork, &[]).if_zero(CHILD, 0), 5).exits(0);
    cell.install("/program", program);
    cell.user_mode.place(CHILD, sleeps(Program::new(), 2).exits(0));
    let seen = Arc::new(AtomicBool::new(false));
    let has_seen = seen.clone();
    // Until the child is there.
    let operator = poll_fn(move |context| {
        let (count, shown) = list_processes(&system, 10);
        let [first, child] = &shown[..] else {
            context.waker().wake_by_ref();
            return Poll::Pending;
        };
        assert_eq!((count, first.pid, first.parent, child.parent, child.user), (2, 1, 0, 1, 0));
        assert_eq!((first.command.as_str(), first.threads), ("/program", 1));
        assert!(first.resident_bytes >= 4096, "{first:?}");
        let (count, shown) = list_processes(&system, 1);
        assert_eq!((count, shown.len()), (2, 1));
        has_seen.store(true, Ordering::Relaxed);
        Poll::Ready(())
    });
    let console = isola_linux_files::Console::new(Arc::new(Discarded));
    let files = [console.open(), console.open(), console.open()];
    assert_eq!(cell.run_with("/program", files, operator), EXITED);
    assert!(seen.load(Ordering::Relaxed));
}

/// A console without a reader.
struct Discarded;

impl isola_linux_files::ConsoleOutput for Discarded {
    fn write(&self, _bytes: &[u8]) {}
}

#[test]
fn mistakes_are_refused() {
    let program = Program::new()
        .syscall(linux::__NR_pidfd_open, &[0, 0])
        .returns(-22)
        .syscall(linux::__NR_pidfd_open, &[77, 0])
        .returns(-3)
        .syscall(linux::__NR_pidfd_open, &[1, 1])
        .returns(-22)
        .syscall(linux::__NR_pidfd_send_signal, &[0, 0, 0, 0])
        .returns(-9)
        .syscall(linux::__NR_pidfd_open, &[1, 0])
        .returns(3)
        .syscall(linux::__NR_pidfd_send_signal, &[3, 0, 0, 1])
        .returns(-22)
        .syscall(linux::__NR_pidfd_send_signal, &[3, 65, 0, 0])
        .returns(-22)
        .syscall(linux::__NR_pidfd_send_signal, &[3, 10, 0x1000, 0])
        .returns(-14)
        .store(RESULT, &[11, 0, 0, 0])
        .syscall(linux::__NR_pidfd_send_signal, &[3, 10, RESULT, 0])
        .returns(-22)
        .syscall(linux::__NR_pidfd_getfd, &[3, 9, 0])
        .returns(-9)
        .syscall(linux::__NR_pidfd_getfd, &[3, 1, 1])
        .returns(-22)
        .syscall(linux::__NR_pidfd_getfd, &[3, 1, 0])
        .returns(4)
        .syscall(linux::__NR_fcntl, &[4, linux::F_GETFD.into()])
        .returns(1)
        .syscall(linux::__NR_waitid, &[3, 1, 0, 4, 0])
        .returns(-9)
        .syscall(linux::__NR_membarrier, &[0, 1, 0])
        .returns(-22)
        .syscall(linux::__NR_membarrier, &[32, 0, 0])
        .returns(-22)
        .syscall(linux::__NR_membarrier, &[8, 0, 0])
        .returns(-1)
        .syscall(linux::__NR_membarrier, &[16, 0, 0])
        .returns(0)
        .syscall(linux::__NR_membarrier, &[8, 0, 0])
        .returns(0)
        .syscall(linux::__NR_membarrier, &[1, 0, 0])
        .returns(0)
        .syscall(linux::__NR_prctl, &[1, 65])
        .returns(-22)
        .syscall(linux::__NR_prctl, &[2, 0x1000])
        .returns(-14)
        // The first process has no siblings.
        .syscall(linux::__NR_clone, &[(linux::CLONE_PARENT | linux::SIGCHLD).into(), 0, 0, 0, 0])
        .returns(-22)
        .syscall(linux::__NR_clone, &[(linux::CLONE_PIDFD | linux::SIGCHLD).into(), 0, 0x1000, 0, 0])
        .returns(-14)
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .returns(-10)
        .exits(0);
    run(program, Program::new(), Program::new());
}

#[test]
fn a_descriptor_of_a_child_shows_its_end() {
    let flags = u64::from(linux::CLONE_PIDFD | linux::SIGCHLD);
    let program = Program::new()
        .syscall(linux::__NR_clone, &[flags, 0, DATA, 0, 0])
        .if_zero(CHILD, 0)
        .returns(2)
        .expect(DATA, &[3, 0, 0, 0])
        // struct pollfd
        .store(DATA, &[3, 0, 0, 0, 1, 0, 0, 0])
        .syscall(linux::__NR_poll, &[DATA, 1, 0])
        .returns(0)
        .syscall(linux::__NR_pidfd_send_signal, &[3, 15, 0, 0])
        .returns(0)
        .syscall(linux::__NR_poll, &[DATA, 1, u64::MAX])
        .returns(1)
        .syscall(linux::__NR_pidfd_send_signal, &[3, 15, 0, 0])
        .returns(0)
        .syscall(linux::__NR_waitid, &[3, 3, RESULT, 4, 0])
        .returns(0)
        // The process, its user, the signal.
        .expect(RESULT + 12, &[0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0, 0])
        .syscall(linux::__NR_pidfd_send_signal, &[3, 15, 0, 0])
        .returns(-3)
        .exits(0);
    // The child does not have the descriptor.
    let child = Program::new().syscall(linux::__NR_close, &[3]).returns(-9).syscall(linux::__NR_pause, &[]);
    run(program, child, Program::new());
}

#[test]
fn orphans_get_a_signal_and_a_new_parent() {
    let program = Program::new()
        .syscall(linux::__NR_fork, &[])
        .if_zero(CHILD, 0)
        .syscall(linux::__NR_wait4, &[2, RESULT, 0, 0])
        .returns(2)
        .expect(RESULT, &[0; 4])
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .returns(-10)
        .exits(0);
    let grandchild = sleeps(
        Program::new().syscall(linux::__NR_prctl, &[1, 10]).returns(0).syscall(linux::__NR_prctl, &[2, DATA]),
        50,
    );
    let child = Program::new()
        .syscall(linux::__NR_prctl, &[36, 1])
        .syscall(linux::__NR_fork, &[])
        .if_zero(CHILD, 12)
        .syscall(linux::__NR_wait4, &[3, 0, 0, 0])
        .returns(3)
        .syscall(linux::__NR_wait4, &[u64::MAX, RESULT, 0, 0])
        .returns(4)
        .expect(RESULT, &[10, 0, 0, 0])
        .syscall(linux::__NR_prctl, &[37, RESULT])
        .expect(RESULT, &[1, 0, 0, 0])
        .exits(0)
        .exits(9)
        // The middle one, process 3.
        .syscall(linux::__NR_fork, &[])
        .if_zero(GRANDCHILD, 0)
        .store(TIME, &words(&[0, MS]))
        .syscall(linux::__NR_nanosleep, &[TIME, 0])
        .exits(0);
    run(program, child, grandchild);
}

#[test]
fn a_sibling_is_the_parent_s_child() {
    let program = Program::new()
        .syscall(linux::__NR_fork, &[])
        .if_zero(CHILD, 0)
        .store(TIME, &words(&[0, MS]))
        .syscall(linux::__NR_nanosleep, &[TIME, 0])
        .syscall(linux::__NR_wait4, &[3, RESULT, 0, 0])
        .returns(3)
        .expect(RESULT, &[0, 5, 0, 0])
        .syscall(linux::__NR_wait4, &[2, 0, 0, 0])
        .returns(2)
        .exits(0);
    let child = Program::new()
        .syscall(linux::__NR_clone, &[linux::CLONE_PARENT.into(), 0, 0, 0, 0])
        .if_zero(GRANDCHILD, 0)
        .returns(3)
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .returns(-10)
        .exits(0);
    let sibling = Program::new().syscall(linux::__NR_getppid, &[]).returns(1).exits(5);
    run(program, child, sibling);
}

#[test]
fn a_wait_by_a_descriptor_that_does_not_block_returns_eagain() {
    let waits = |options: u32| [linux::P_PIDFD.into(), 3, RESULT, options.into(), 0];
    let program = Program::new().syscall(linux::__NR_fork, &[]).if_zero(CHILD, 0);
    let program = program
        .syscall(linux::__NR_pidfd_open, &[2, linux::O_NONBLOCK.into()])
        .returns(3)
        .syscall(linux::__NR_waitid, &waits(linux::WEXITED))
        .returns(-11)
        .syscall(linux::__NR_waitid, &waits(linux::WEXITED | linux::WNOHANG))
        .returns(0);
    let program = sleeps(program, 9)
        .syscall(linux::__NR_waitid, &waits(linux::WEXITED))
        .returns(0)
        .syscall(linux::__NR_waitid, &waits(linux::WEXITED))
        .returns(-10)
        .exits(0);
    run(program, sleeps(Program::new(), 5).exits(0), Program::new());
}
