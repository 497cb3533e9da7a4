//! Calls that are served at once: while they need no wait, a program does not give its core away.

mod common;

use common::{CODE, Cell, DATA, READABLE, Steps, observed_pair};
use isola_linux_abi::net::{AF_UNIX, MSG_DONTWAIT, MSG_TRUNC, SOCK_DGRAM, SOCK_STREAM};
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

/// `struct msghdr`, and what it points to.
const HEADER: u64 = DATA + 0x300;
const VECTOR: u64 = DATA + 0x400;
const NAME: u64 = DATA + 0x500;
const CONTROL: u64 = DATA + 0x600;

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A socket address of the abstract name `name`.
fn abstract_address(name: &[u8]) -> Vec<u8> {
    [&(AF_UNIX as u16).to_le_bytes()[..], b"\0", name].concat()
}

#[test]
fn messages_with_addresses_need_no_turns() {
    let kind = u64::from(SOCK_DGRAM | linux::O_NONBLOCK);
    let (border, address) = (AREA + 2 * 4096, abstract_address(b"mine"));
    let len = address.len() as u64;
    let program = maps(Program::new())
        .syscall(linux::__NR_socket, &[AF_UNIX.into(), kind, 0])
        .returns(3)
        .store(NAME, &address)
        .syscall(linux::__NR_bind, &[3, NAME, len])
        .returns(0)
        .store(border - 1, b"text")
        .store(VECTOR, &bytes(&[border - 1, 1, border, 3, border + 16, 2, border + 4094, 4]))
        .store(HEADER, &bytes(&[NAME, len, VECTOR, 2, 0, 0, 0]));
    let one = |program: Program, _| {
        program
            .syscall(linux::__NR_sendto, &[3, border - 1, 4, 0, NAME, len])
            .returns(4)
            .syscall(linux::__NR_sendmsg, &[3, HEADER, 0])
            .returns(4)
            .store(HEADER + 64, &20_u32.to_le_bytes())
            .syscall(linux::__NR_recvfrom, &[3, border + 16, 100, 0, NAME + 64, HEADER + 64])
            .returns(4)
            .expect(border + 16, b"text")
            .expect(HEADER + 64, &(len as u32).to_le_bytes())
            .expect(NAME + 64, &address)
            // The message fills one buffer, and two bytes of another, which crosses a page.
            .store(HEADER + 128, &bytes(&[NAME + 64, 20, VECTOR + 32, 2, CONTROL, 64, 0xff]))
            .store(border + 16, &[0; 4])
            .syscall(linux::__NR_recvmsg, &[3, HEADER + 128, 0])
            .returns(4)
            .expect(border + 16, b"te\0\0")
            .expect(border + 4094, b"xt")
            .expect(HEADER + 128, &bytes(&[NAME + 64, len, VECTOR + 32, 2, CONTROL, 0]))
            .expect(HEADER + 128 + 48, &[0; 4])
            .syscall(linux::__NR_recvmsg, &[3, HEADER + 128, 0])
            .returns(-11)
            .store(HEADER + 128 + 8, &20_u32.to_le_bytes())
            .store(HEADER + 128 + 40, &64_u64.to_le_bytes())
    };
    runs_without_turns((0..ROUNDS).fold(program, one));
}

#[test]
fn a_message_that_is_too_long_is_cut_and_says_so() {
    let kind = u64::from(SOCK_DGRAM | linux::O_NONBLOCK);
    let truncated = u64::from(MSG_TRUNC);
    let program = Program::new()
        .syscall(linux::__NR_socketpair, &[AF_UNIX.into(), kind, 0, PAIR])
        .returns(0)
        .store(TEXT, b"text")
        .store(VECTOR, &bytes(&[TEXT + 16, 3]))
        .store(HEADER, &bytes(&[0, 0, VECTOR, 1, 0, 0, 0]));
    let one = |program: Program, _| {
        let send = |program: Program| program.syscall(linux::__NR_write, &[3, TEXT, 4]).returns(4);
        send(send(send(program.store(TEXT + 32, &[0; 4]))))
            .syscall(linux::__NR_recvmsg, &[4, HEADER, 0])
            .returns(3)
            .expect(HEADER + 48, &MSG_TRUNC.to_le_bytes())
            .syscall(linux::__NR_recvfrom, &[4, TEXT + 32, 2, truncated, 0, 0])
            .returns(4)
            .expect(TEXT + 32, b"te\0\0")
            .syscall(linux::__NR_read, &[4, TEXT + 32, 16])
            .returns(4)
            .expect(TEXT + 32, b"text")
    };
    runs_without_turns((0..ROUNDS).fold(program, one));
}

#[test]
fn connections_that_wait_are_accepted_without_turns() {
    let kind = u64::from(SOCK_STREAM | linux::O_NONBLOCK);
    let address = abstract_address(b"server");
    let name = [NAME, address.len() as u64];
    let program = Program::new()
        .syscall(linux::__NR_socket, &[AF_UNIX.into(), kind, 0])
        .returns(3)
        .store(NAME, &address)
        .syscall(linux::__NR_bind, &[3, name[0], name[1]])
        .returns(0)
        .syscall(linux::__NR_listen, &[3, 16])
        .returns(0);
    let one = |program: Program, round| {
        let (number, words) = match round % 2 {
            0 => (linux::__NR_accept, [3, NAME + 64, HEADER, 0]),
            _ => (linux::__NR_accept4, [3, NAME + 64, HEADER, u64::from(linux::O_NONBLOCK)]),
        };
        program
            .store(HEADER, &20_u32.to_le_bytes())
            .syscall(number, &words)
            .returns(-11)
            .syscall(linux::__NR_socket, &[AF_UNIX.into(), kind, 0])
            .returns(4)
            // A task, as it can wait.
            .syscall(linux::__NR_connect, &[4, name[0], name[1]])
            .returns(0)
            .syscall(number, &words)
            .returns(5)
            // The client has no name.
            .expect(HEADER, &2_u32.to_le_bytes())
            .syscall(linux::__NR_shutdown, &[4, 1])
            .returns(0)
            .syscall(linux::__NR_recvfrom, &[5, TEXT, 8, u64::from(MSG_DONTWAIT), 0, 0])
            .returns(0)
            .syscall(linux::__NR_close, &[4])
            .returns(0)
            .syscall(linux::__NR_close, &[5])
            .returns(0)
    };
    let cell = runs((0..ROUNDS).fold(program, one));
    let calls = cell.user_mode.unserved_calls();
    assert!((100..120).contains(&calls), "{calls} calls for {ROUNDS} connections");
}

#[test]
fn a_connection_whose_address_cannot_be_stored_is_lost_as_on_linux() {
    let kind = u64::from(SOCK_STREAM | linux::O_NONBLOCK);
    let address = abstract_address(b"server");
    let name = [NAME, address.len() as u64];
    let program = Program::new()
        .syscall(linux::__NR_socket, &[AF_UNIX.into(), kind, 0])
        .store(NAME, &address)
        .syscall(linux::__NR_bind, &[3, name[0], name[1]])
        .returns(0)
        .syscall(linux::__NR_listen, &[3, 16])
        .syscall(linux::__NR_socket, &[AF_UNIX.into(), kind, 0])
        .syscall(linux::__NR_connect, &[4, name[0], name[1]])
        .returns(0)
        .syscall(linux::__NR_accept4, &[3, NAME, HEADER, 1])
        .returns(-22)
        .store(HEADER, &20_u32.to_le_bytes())
        .syscall(linux::__NR_accept, &[3, 8, HEADER])
        .returns(-14)
        .syscall(linux::__NR_accept, &[3, NAME, HEADER])
        .returns(-11);
    runs(program);
}

#[test]
fn polls_of_ready_descriptors_need_no_turns() {
    let program = Program::new()
        .syscall(linux::__NR_eventfd2, &[0, linux::O_NONBLOCK.into()])
        .returns(3)
        .store(EVENT, &bytes(&[u64::MAX]))
        .store(EVENT, &[3, 0, 0, 0, 5, 0, 9, 9, 0xff, 0xff, 0xff, 0xff, 1, 0, 9, 9, 77, 0, 0, 0, 1, 0, 9, 9]);
    let one = |program: Program, _| {
        program
            // One may be written, one is ignored, and one is not open.
            .syscall(linux::__NR_poll, &[EVENT, 3, u64::MAX])
            .returns(2)
            .expect(
                EVENT,
                &[3, 0, 0, 0, 5, 0, 4, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 77, 0, 0, 0, 1, 0, 0x20, 0],
            )
            .store(EVENT + 4, &[1])
            .syscall(linux::__NR_poll, &[EVENT, 1, 0])
            .returns(0)
            .expect(EVENT + 6, &[0, 0])
            .store(EVENT + 4, &[5])
    };
    let program = (0..ROUNDS).fold(program, one);
    // One that waits, to its limit of time, and arrays that cannot be accessed.
    let program = program
        .store(EVENT + 4, &[1])
        .syscall(linux::__NR_poll, &[EVENT, 1, 1])
        .returns(0)
        .syscall(linux::__NR_poll, &[8, 1, 0])
        .returns(-14)
        .syscall(linux::__NR_poll, &[EVENT, u64::from(u32::MAX), 0])
        .returns(-22);
    runs_without_turns(program);
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
