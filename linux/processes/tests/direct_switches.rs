//! Direct switches: a thread that waits hands its core to the thread that it has woken.

mod common;

use common::{CODE, Cell, DATA, READABLE, Steps, observed_pair};
use isola_linux_abi::net::{AF_UNIX, MSG_DONTWAIT, SO_RCVTIMEO, SOCK_DGRAM, SOCK_STREAM, SOL_SOCKET};
use isola_linux_abi::numbers as linux;
use isola_linux_processes::ExitStatus;
use isola_linux_processes::signals::Signal;
use isola_linux_sim::{Program, STEP_SIZE};
use std::sync::atomic::Ordering;

const EXITED: ExitStatus = ExitStatus::Exited(0);
const TURN: u64 = DATA + 0x100;
const FLAG: u64 = DATA + 0x200;
const PIPES: u64 = DATA + 0x300;
const BYTE: u64 = DATA + 0x400;
const EVENT: u64 = DATA + 0x600;
/// Where the programs of the threads are that a program creates.
const SECOND: u64 = CODE + 0x20_0000;
const THIRD: u64 = CODE + 0x40_0000;

trait SwitchSteps {
    /// Keeps the process on one core.
    fn stays(self) -> Self;
    /// Creates a thread that continues at an address.
    fn creates_thread(self, code: u64) -> Self;
    /// Stores the number of a turn and wakes the other thread.
    fn passes(self, turn: u32) -> Self;
    /// Waits for the end of a turn.
    fn waits(self, turn: u32) -> Self;
    /// Ends the thread.
    fn ends(self) -> Self;
}

impl SwitchSteps for Program {
    fn stays(self) -> Self {
        let program = self.store(DATA + 0x500, &2_u64.to_le_bytes());
        program.syscall(linux::__NR_sched_setaffinity, &[0, 8, DATA + 0x500]).returns(0)
    }

    fn creates_thread(self, code: u64) -> Self {
        let flags = linux::CLONE_VM | linux::CLONE_SIGHAND | linux::CLONE_THREAD;
        self.syscall(linux::__NR_clone, &[flags.into(), DATA + 0xf000, 0, 0, 0]).if_zero(code, 0)
    }

    fn passes(self, turn: u32) -> Self {
        let program = self.store(TURN, &turn.to_le_bytes());
        program.syscall(linux::__NR_futex, &[TURN, u64::from(linux::FUTEX_WAKE), 1])
    }

    fn waits(self, turn: u32) -> Self {
        self.syscall(linux::__NR_futex, &[TURN, u64::from(linux::FUTEX_WAIT), turn.into(), 0])
    }

    fn ends(self) -> Self {
        self.syscall(linux::__NR_exit, &[0])
    }
}

/// Returns the programs of two threads that pass a word to each other. The first does `more` at the end.
fn players(rounds: u32, start: Program, more: impl Fn(u32, Program) -> Program) -> (Program, Program) {
    let (mut first, mut second) = (start, Program::new().waits(0));
    for round in 0..rounds {
        first = more(round, first.passes(2 * round + 1).waits(2 * round + 1));
        second = second.passes(2 * round + 2);
        if round + 1 < rounds {
            second = second.waits(2 * round + 2).returns(0);
        }
    }
    (first.expect(TURN, &(2 * rounds).to_le_bytes()).exits(0), second.ends())
}

fn run(cell: &Cell, first: Program, second: Program) {
    cell.install("/program", first);
    cell.user_mode.place(SECOND, second);
    assert_eq!(cell.run(&["/program"]), EXITED);
    assert_eq!(cell.system.futexes.waiter_count(), 0);
}

#[test]
fn threads_that_take_turns_need_no_events() {
    let cell = Cell::new();
    let (first, second) = players(100, Program::new().stays().creates_thread(SECOND), |_, program| program);
    run(&cell, first, second);
    let polls = cell.environment.polls.load(Ordering::Relaxed);
    assert!(polls < 20, "{polls} polls for 200 turns");
}

#[test]
fn threads_that_wake_each_other_do_not_starve_a_third() {
    let cell = Cell::new();
    // The third thread is ready when the others begin, and has run when they are half done.
    let start = Program::new().stays().creates_thread(SECOND).creates_thread(THIRD);
    let (first, second) = players(400, start, |round, program| match round {
        200 => program.expect(FLAG, b"ran"),
        _ => program,
    });
    cell.user_mode.place(THIRD, Program::new().store(FLAG, b"ran").ends());
    run(&cell, first, second);
}

#[test]
fn an_interrupt_returns_a_thread_to_its_own_task() {
    let cell = Cell::new();
    let start = Program::new().stays().creates_thread(SECOND).creates_thread(THIRD);
    let (first, _) = players(1, start, |_, program| program);
    // The second thread runs in the task of the first when its slice ends. The third one then has its turn.
    let second = Program::new().waits(0).interrupt().expect(FLAG, b"ran").passes(2).ends();
    cell.user_mode.place(THIRD, Program::new().store(FLAG, b"ran").ends());
    run(&cell, first, second);
}

/// Returns the programs of a parent and a child that pass a byte through two pipes.
fn pipe_players(rounds: u32) -> Program {
    let (there, back) = ((3, 4), (5, 6));
    let program = Program::new()
        .stays()
        .syscall(linux::__NR_pipe, &[PIPES])
        .returns(0)
        .syscall(linux::__NR_pipe, &[PIPES + 8])
        .returns(0)
        .store(BYTE, b"x")
        .syscall(linux::__NR_fork, &[])
        .if_zero(SECOND, 0);
    let one = |program: Program, call: u32, end: u64| program.syscall(call, &[end, BYTE, 1]).returns(1);
    (0..rounds)
        .fold(program, |program, _| one(one(program, linux::__NR_write, there.1), linux::__NR_read, back.0))
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .returns(2)
        .exits(0)
}

fn pipe_child(rounds: u32) -> Program {
    let one = |program: Program, call: u32, end: u64| program.syscall(call, &[end, BYTE, 1]).returns(1);
    (0..rounds)
        .fold(Program::new(), |program, _| one(one(program, linux::__NR_read, 3), linux::__NR_write, 6))
        .exits(0)
}

#[test]
fn processes_with_pipes_switch_and_pay_for_their_own_cycles() {
    let cell = Cell::new();
    run(&cell, pipe_players(100), pipe_child(100));
    let polls = cell.environment.polls.load(Ordering::Relaxed);
    assert!(polls < 40, "{polls} polls for 200 turns");
    let all = cell.environment.grid.all();
    let cycles = |name: &str| {
        let activity = all.iter().find(|activity| activity.name == name);
        activity.unwrap_or_else(|| panic!("{name} is no activity: {all:?}")).cycles
    };
    // A turn has a few readings of the counter, of ten cycles each; the child has as many turns as its parent.
    let (parent, child) = (cycles("1 program"), cycles("2 program"));
    assert!(child > parent / 3 && parent > child / 3, "{parent} and {child} cycles");
}

#[test]
fn under_a_policy_other_accounts_wait_for_the_scheduler() {
    let cell = Cell::new();
    cell.environment.has_policy.store(true, Ordering::Relaxed);
    run(&cell, pipe_players(100), pipe_child(100));
    let polls = cell.environment.polls.load(Ordering::Relaxed);
    assert!(polls > 200, "{polls} polls for 200 turns");
    let cell = Cell::new();
    cell.environment.has_policy.store(true, Ordering::Relaxed);
    let (first, second) = players(100, Program::new().stays().creates_thread(SECOND), |_, program| program);
    run(&cell, first, second);
    let polls = cell.environment.polls.load(Ordering::Relaxed);
    assert!(polls < 20, "{polls} polls of one account");
}

/// Makes a pair of sockets, 3 and 4, and an event poll, 5, that observes the second one.
fn sockets(program: Program) -> Program {
    observed_pair(program, SOCK_STREAM.into(), PIPES, EVENT)
}

/// Runs a parent and a child that pass a byte 100 times, the child with waits for events that have a limit of time. Returns the
/// polls.
fn passes_by_events(timeout_ms: u64) -> u64 {
    const ROUNDS: u32 = 100;
    let cell = Cell::new();
    let send = |program: Program, end: u64| {
        let flags = u64::from(MSG_DONTWAIT);
        program.syscall(linux::__NR_sendto, &[end, BYTE, 1, flags, 0, 0]).returns(1)
    };
    // With a buffer that is longer than its page.
    let receive =
        |program: Program| program.syscall(linux::__NR_recvfrom, &[3, BYTE, 8192, 0, 0, 0]).returns(1);
    let start = sockets(Program::new().stays().store(BYTE, b"x"));
    let parent = (0..ROUNDS).fold(start.syscall(linux::__NR_fork, &[]).if_zero(SECOND, 0), |program, _| {
        receive(send(program, 3))
    });
    let parent = parent.syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0]).returns(2).exits(0);
    let child = (0..ROUNDS).fold(Program::new(), |program, round| {
        let wait = if round % 2 == 0 { linux::__NR_epoll_wait } else { linux::__NR_epoll_pwait };
        let program = program
            .store(EVENT, &[0; 12])
            .syscall(wait, &[5, EVENT, 4, timeout_ms, 0])
            .returns(1)
            .expect(EVENT, &READABLE);
        send(program.syscall(linux::__NR_read, &[4, BYTE, 16]).returns(1), 4)
    });
    run(&cell, parent, child.exits(0));
    cell.environment.polls.load(Ordering::Relaxed)
}

#[test]
fn waits_for_sockets_and_events_switch() {
    let polls = passes_by_events(u64::MAX);
    assert!(polls < 40, "{polls} polls for 200 turns");
    // The child's own task sets the timer of each wait.
    let polls = passes_by_events(1000);
    assert!(polls < 150, "{polls} polls for 200 turns with a limit");
}

#[test]
fn waits_for_messages_switch() {
    const ROUNDS: u32 = 100;
    const HEADER: u64 = DATA + 0x700;
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let cell = Cell::new();
    let send = |program: Program, end: u64| program.syscall(linux::__NR_write, &[end, BYTE, 1]).returns(1);
    let start = Program::new()
        .stays()
        .syscall(linux::__NR_socketpair, &[AF_UNIX.into(), SOCK_DGRAM.into(), 0, PIPES])
        .returns(0)
        .store(BYTE, b"x")
        .store(HEADER + 64, &words(&[BYTE + 8, 16]))
        .store(HEADER, &words(&[0, 0, HEADER + 64, 1, 0, 0, 0]));
    let parent = (0..ROUNDS).fold(start.syscall(linux::__NR_fork, &[]).if_zero(SECOND, 0), |program, _| {
        send(program, 3).syscall(linux::__NR_recvfrom, &[3, BYTE + 8, 16, 0, 0, 0]).returns(1)
    });
    let parent = parent.syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0]).returns(2).exits(0);
    let child = (0..ROUNDS).fold(Program::new(), |program, _| {
        let program = program.store(BYTE + 8, &[0]).syscall(linux::__NR_recvmsg, &[4, HEADER, 0]).returns(1);
        send(program.expect(BYTE + 8, b"x"), 4)
    });
    run(&cell, parent, child.exits(0));
    let polls = cell.environment.polls.load(Ordering::Relaxed);
    assert!(polls < 40, "{polls} polls for 200 turns");
}

#[test]
fn waits_for_connections_switch() {
    const ROUNDS: u32 = 50;
    let name = [&(AF_UNIX as u16).to_le_bytes()[..], b"\0server"].concat();
    let (address, len) = (DATA + 0x700, name.len() as u64);
    let cell = Cell::new();
    let start = Program::new()
        .stays()
        .syscall(linux::__NR_socket, &[AF_UNIX.into(), SOCK_STREAM.into(), 0])
        .returns(3)
        .store(address, &name)
        .syscall(linux::__NR_bind, &[3, address, len])
        .returns(0)
        .syscall(linux::__NR_listen, &[3, 16])
        .returns(0);
    let parent =
        (0..ROUNDS).fold(start.syscall(linux::__NR_fork, &[]).if_zero(SECOND, 0), |program, round| {
            let program = match round % 2 {
                0 => program.syscall(linux::__NR_accept, &[3, 0, 0]),
                _ => program.syscall(linux::__NR_accept4, &[3, 0, 0, linux::O_CLOEXEC.into()]),
            };
            let flags = if round % 2 == 0 { 0 } else { 1 };
            program
                .returns(4)
                .syscall(linux::__NR_fcntl, &[4, 1, 0])
                .returns(flags)
                // The client waits for the end.
                .syscall(linux::__NR_close, &[4])
                .returns(0)
        });
    let parent = parent.syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0]).returns(2).exits(0);
    let child = (0..ROUNDS).fold(Program::new(), |program, _| {
        program
            .syscall(linux::__NR_socket, &[AF_UNIX.into(), SOCK_STREAM.into(), 0])
            .returns(4)
            .syscall(linux::__NR_connect, &[4, address, len])
            .returns(0)
            .syscall(linux::__NR_read, &[4, BYTE, 1])
            .returns(0)
            .syscall(linux::__NR_close, &[4])
            .returns(0)
    });
    run(&cell, parent, child.exits(0));
}

#[test]
fn a_limit_of_time_ends_a_wait_that_began_in_another_thread_s_run() {
    let cell = Cell::new();
    let parent = sockets(Program::new().stays().store(BYTE, b"x"))
        .syscall(linux::__NR_fork, &[])
        .if_zero(SECOND, 0)
        .syscall(linux::__NR_sendto, &[3, BYTE, 1, MSG_DONTWAIT.into(), 0, 0])
        .returns(1)
        .syscall(linux::__NR_read, &[3, BYTE, 1])
        .returns(1)
        .syscall(linux::__NR_epoll_wait, &[5, EVENT, 4, 30])
        .returns(0)
        .exits(0);
    let child = Program::new()
        .syscall(linux::__NR_epoll_wait, &[5, EVENT, 4, 60_000])
        .returns(1)
        .syscall(linux::__NR_read, &[4, BYTE, 16])
        .returns(1)
        .syscall(linux::__NR_epoll_wait, &[5, EVENT, 4, 20])
        .returns(0)
        .syscall(linux::__NR_sendto, &[4, BYTE, 1, MSG_DONTWAIT.into(), 0, 0])
        .returns(1)
        .exits(0);
    run(&cell, parent, child);
}

#[test]
fn waits_with_a_limit_of_time_end() {
    let cell = Cell::new();
    // struct timeval, of 20 ms.
    let limit: Vec<u8> = [0_u64, 20_000].iter().flat_map(|word| word.to_le_bytes()).collect();
    let option = [4, SOL_SOCKET.into(), SO_RCVTIMEO.into(), DATA + 0x700, 16];
    let program = sockets(Program::new())
        .syscall(linux::__NR_epoll_wait, &[5, EVENT, 4, 20])
        .returns(0)
        .store(DATA + 0x700, &limit)
        .syscall(linux::__NR_setsockopt, &option)
        .returns(0)
        .syscall(linux::__NR_read, &[4, BYTE, 1])
        .returns(-11)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn the_end_of_a_stream_ends_a_wait() {
    let cell = Cell::new();
    let parent = sockets(Program::new().stays())
        .syscall(linux::__NR_fork, &[])
        .if_zero(SECOND, 0)
        .syscall(linux::__NR_close, &[4])
        .returns(0)
        .syscall(linux::__NR_read, &[3, BYTE, 1])
        .returns(0)
        .exits(0);
    run(&cell, parent, Program::new().exits(0));
}

#[test]
fn a_wait_that_its_task_continues_keeps_its_limit_of_time() {
    const EVENTS: u64 = DATA + 0x8000;
    let time =
        |ms: u64| [0, ms * 1_000_000].iter().flat_map(|word: &u64| word.to_le_bytes()).collect::<Vec<_>>();
    let sleep = |program: Program| program.syscall(linux::__NR_nanosleep, &[DATA + 0x700, 0]).returns(0);
    let cell = Cell::new();
    let first = sockets(Program::new().stays())
        .store(DATA + 0x700, &time(30))
        .store(EVENTS, &[0; 12])
        .syscall(
            linux::__NR_clone,
            &[
                u64::from(linux::CLONE_VM | linux::CLONE_SIGHAND | linux::CLONE_THREAD | linux::CLONE_FILES),
                DATA + 0xf000,
                0,
                0,
                0,
            ],
        )
        .if_zero(SECOND, 0)
        .syscall(linux::__NR_epoll_wait, &[5, EVENTS, 4, 40])
        .returns(0)
        .expect(FLAG, &[1])
        .exits(0);
    // After 30 ms an event comes and goes, and the page of the buffer has gone. After 60 ms the wait is over.
    let second = sleep(Program::new())
        .store(FLAG, &[1])
        .syscall(linux::__NR_madvise, &[EVENTS, 4096, u64::from(linux::MADV_DONTNEED)])
        .returns(0)
        .syscall(linux::__NR_sendto, &[3, BYTE, 1, MSG_DONTWAIT.into(), 0, 0])
        .returns(1)
        .syscall(linux::__NR_read, &[4, BYTE, 1])
        .returns(1);
    run(&cell, first, sleep(second).store(FLAG, &[2]).ends());
}

/// A program that gets SIGUSR1, whose action has `flags`, while `wait` waits, which returns EINTR after the handler.
fn signalled(flags: u32, wait: impl Fn(Program) -> Program) {
    let action: Vec<u8> = [THIRD, u64::from(linux::SA_RESTORER | flags), THIRD + 2 * STEP_SIZE, 0]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let cell = Cell::new();
    let usr1 = u64::from(Signal::SIGUSR1.number());
    let start = Program::new()
        .stays()
        .store(DATA, &action)
        .syscall(linux::__NR_rt_sigaction, &[usr1, DATA, 0, 8])
        .returns(0)
        .syscall(linux::__NR_pipe, &[PIPES])
        .returns(0)
        .creates_thread(SECOND);
    let program = wait(start).returns(-4).expect(FLAG, b"handled").exits(0);
    let handler = Program::new()
        .store(FLAG, b"handled")
        .step(|processor| {
            let mut word = [0; 8];
            let stack = processor.registers().rsp;
            processor.load(stack, &mut word)?;
            processor.registers().rsp += 8;
            processor.registers().rip = u64::from_le_bytes(word);
            Ok(())
        })
        .syscall(linux::__NR_rt_sigreturn, &[]);
    cell.user_mode.place(THIRD, handler);
    let second = Program::new().syscall(linux::__NR_tgkill, &[1, 1, usr1]).returns(0).ends();
    run(&cell, program, second);
}

#[test]
fn a_signal_ends_the_wait_of_a_parked_thread() {
    signalled(0, |program| program.waits(0));
    signalled(0, |program| program.syscall(linux::__NR_read, &[3, BYTE, 1]));
    let with_pair = |program: Program| {
        program.syscall(linux::__NR_socketpair, &[AF_UNIX.into(), SOCK_STREAM.into(), 0, PIPES]).returns(0)
    };
    signalled(0, |program| with_pair(program).syscall(linux::__NR_read, &[5, BYTE, 1]));
    // As on Linux, never restarted.
    signalled(linux::SA_RESTART, |program| {
        let program = program.syscall(linux::__NR_epoll_create1, &[0]).returns(5);
        program.syscall(linux::__NR_epoll_wait, &[5, EVENT, 1, u64::MAX])
    });
}

#[test]
fn a_read_keeps_its_file_while_it_waits() {
    let cell = Cell::new();
    let first = Program::new()
        .stays()
        .syscall(linux::__NR_pipe, &[PIPES])
        .returns(0)
        .store(BYTE + 1, b"y")
        .syscall(
            linux::__NR_clone,
            &[
                u64::from(linux::CLONE_VM | linux::CLONE_SIGHAND | linux::CLONE_THREAD | linux::CLONE_FILES),
                DATA + 0xf000,
                0,
                0,
                0,
            ],
        )
        .if_zero(SECOND, 0)
        .syscall(linux::__NR_read, &[3, BYTE, 1])
        .returns(1)
        .expect(BYTE, b"y")
        .syscall(linux::__NR_read, &[3, BYTE, 1])
        .returns(-9)
        .syscall(linux::__NR_read, &[4, BYTE, 1])
        .returns(-9)
        .exits(0);
    let second = Program::new()
        .syscall(linux::__NR_close, &[3])
        .returns(0)
        .syscall(linux::__NR_write, &[4, BYTE + 1, 1])
        .returns(1)
        .ends();
    run(&cell, first, second);
}

#[test]
fn a_killed_process_leaves_no_waiting_thread() {
    let cell = Cell::new();
    let program = Program::new()
        .creates_thread(SECOND)
        .syscall(linux::__NR_sched_yield, &[])
        .syscall(linux::__NR_sched_yield, &[])
        .exits(0);
    run(&cell, program, Program::new().waits(0));
}
