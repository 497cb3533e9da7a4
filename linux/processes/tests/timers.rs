//! Timers of processes: POSIX timers, interval timers, timers with descriptors, limits of processor time.

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_linux_abi::numbers as linux;
use isola_linux_processes::ExitStatus;
use isola_linux_processes::signals::Signal;
use isola_linux_sim::Program;
use std::sync::atomic::Ordering;

const EXITED: ExitStatus = ExitStatus::Exited(0);
const MS: u64 = 1_000_000;
/// Where programs store settings, and get results.
const SETTING: u64 = DATA + 0x100;
const RESULT: u64 = DATA + 0x200;
const EVENT: u64 = DATA + 0x300;
const SET: u64 = DATA + 0x400;
const TIME: u64 = DATA + 0x500;
const PATH: u64 = DATA + 0x600;
const ID: u64 = DATA + 0x700;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns a `struct itimerspec`.
fn setting(interval_ns: u64, value_ns: u64) -> Vec<u8> {
    let second = 1000 * MS;
    words(&[interval_ns / second, interval_ns % second, value_ns / second, value_ns % second])
}

/// Returns a `struct sigevent`.
fn event(kind: u32, signal: u32, value: u64, tid: u32) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    [signal, kind, tid].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes
}

trait TimerSteps {
    /// Blocks a signal, which [`SET`] then has.
    fn blocks(self, signal: u32) -> Self;
    /// Waits for the signal of [`SET`], whose facts are at [`RESULT`] then.
    fn waits_for(self, signal: i64) -> Self;
    /// Sleeps.
    fn sleeps(self, ns: u64) -> Self;
    /// Checks the time of the monotonic clock.
    fn at_ms(self, ms: u64) -> Self;
}

impl TimerSteps for Program {
    fn blocks(self, signal: u32) -> Self {
        self.store(SET, &words(&[1 << (signal - 1)]))
            .syscall(linux::__NR_rt_sigprocmask, &[linux::SIG_BLOCK.into(), SET, 0, 8])
            .returns(0)
    }

    fn waits_for(self, signal: i64) -> Self {
        self.syscall(linux::__NR_rt_sigtimedwait, &[SET, RESULT, 0, 8]).returns(signal)
    }

    fn sleeps(self, ns: u64) -> Self {
        self.store(TIME, &words(&[0, ns])).syscall(linux::__NR_nanosleep, &[TIME, 0]).returns(0)
    }

    fn at_ms(self, ms: u64) -> Self {
        self.syscall(linux::__NR_clock_gettime, &[1, TIME]).expect(TIME, &words(&[0, ms * MS]))
    }
}

fn run(program: Program) -> (ExitStatus, Cell) {
    let cell = Cell::new();
    cell.install("/program", program);
    (cell.run(&["/program"]), cell)
}

#[test]
fn mistakes_are_refused() {
    let program = Program::new()
        .syscall(linux::__NR_timer_create, &[99, 0, ID])
        .returns(-22)
        .syscall(linux::__NR_timer_create, &[linux::CLOCK_MONOTONIC_RAW.into(), 0, ID])
        .returns(-95)
        .syscall(linux::__NR_timer_create, &[1, 0x1000, ID])
        .returns(-14)
        .syscall(linux::__NR_timer_create, &[1, 0, 0x1000])
        .returns(-14)
        .store(EVENT, &event(3, 10, 0, 0))
        .syscall(linux::__NR_timer_create, &[1, EVENT, ID])
        .returns(-22)
        .store(EVENT, &event(linux::SIGEV_SIGNAL, 65, 0, 0))
        .syscall(linux::__NR_timer_create, &[1, EVENT, ID])
        .returns(-22)
        .store(EVENT, &event(linux::SIGEV_THREAD_ID, 10, 0, 77))
        .syscall(linux::__NR_timer_create, &[1, EVENT, ID])
        .returns(-22)
        .store(SETTING, &setting(0, MS))
        .syscall(linux::__NR_timer_settime, &[0, 0, SETTING, 0])
        .returns(-22)
        .syscall(linux::__NR_timer_gettime, &[0, RESULT])
        .returns(-22)
        .syscall(linux::__NR_timer_getoverrun, &[0])
        .returns(-22)
        .syscall(linux::__NR_timer_delete, &[0])
        .returns(-22)
        .syscall(linux::__NR_timer_create, &[1, 0, ID])
        .returns(0)
        .expect(ID, &[0; 4])
        .syscall(linux::__NR_timer_settime, &[0, 0, 0, 0])
        .returns(-22)
        .store(SETTING, &words(&[0, 0, 0, 1000 * MS]))
        .syscall(linux::__NR_timer_settime, &[0, 0, SETTING, 0])
        .returns(-22)
        .syscall(linux::__NR_timer_settime, &[0, 0, 0x1000, 0])
        .returns(-14)
        .syscall(linux::__NR_setitimer, &[3, SETTING, 0])
        .returns(-22)
        .store(SETTING, &words(&[0, 1_000_000, 0, 0]))
        .syscall(linux::__NR_setitimer, &[0, SETTING, 0])
        .returns(-22)
        .syscall(linux::__NR_getitimer, &[3, RESULT])
        .returns(-22)
        .syscall(linux::__NR_timerfd_create, &[linux::CLOCK_PROCESS_CPUTIME_ID.into(), 0])
        .returns(-22)
        .syscall(linux::__NR_timerfd_create, &[1, 1])
        .returns(-22)
        .syscall(linux::__NR_timerfd_settime, &[1, 0, SETTING, 0])
        .returns(-22)
        .syscall(linux::__NR_timerfd_gettime, &[1, RESULT])
        .returns(-22)
        .syscall(linux::__NR_timerfd_gettime, &[9, RESULT])
        .returns(-9)
        // The limit of timers.
        .store(SETTING, &words(&[2, 2]))
        .syscall(linux::__NR_setrlimit, &[linux::RLIMIT_SIGPENDING.into(), SETTING])
        .syscall(linux::__NR_timer_create, &[1, 0, ID])
        .returns(0)
        .syscall(linux::__NR_timer_create, &[1, 0, ID])
        .returns(-11)
        .syscall(linux::__NR_timer_delete, &[0])
        .returns(0)
        .syscall(linux::__NR_timer_create, &[1, 0, ID])
        .returns(0)
        .expect(ID, &[0; 4])
        .exits(0);
    assert_eq!(run(program).0, EXITED);
}

#[test]
fn a_timer_counts_the_expirations_that_its_signal_does_not_show() {
    let signal = 40;
    let program = Program::new()
        .blocks(signal)
        .store(EVENT, &event(linux::SIGEV_SIGNAL, signal, 0x1122_3344_5566, 0))
        .syscall(linux::__NR_timer_create, &[1, EVENT, ID])
        .returns(0)
        .store(SETTING, &setting(MS, 2 * MS))
        .syscall(linux::__NR_timer_settime, &[0, 0, SETTING, 0])
        .returns(0)
        .sleeps(6 * MS + MS / 2)
        .waits_for(signal.into())
        // Number, error, code, padding; id, overruns, value.
        .expect(RESULT, &words(&[signal.into(), u64::from(u32::MAX - 1)]))
        .expect(RESULT + 16, &words(&[4 << 32, 0x1122_3344_5566]))
        .syscall(linux::__NR_timer_getoverrun, &[0])
        .returns(4)
        .syscall(linux::__NR_timer_gettime, &[0, RESULT])
        .expect(RESULT, &setting(MS, MS / 2))
        .waits_for(signal.into())
        .expect(RESULT + 16, &words(&[0, 0x1122_3344_5566]))
        .at_ms(7)
        // A new setting discards the signal of the former one.
        .sleeps(3 * MS)
        .store(SETTING, &setting(0, 1000 * MS))
        .syscall(linux::__NR_timer_settime, &[0, 0, SETTING, RESULT])
        .expect(RESULT, &setting(MS, MS))
        .store(TIME, &words(&[0, MS]))
        .syscall(linux::__NR_rt_sigtimedwait, &[SET, RESULT, TIME, 8])
        .returns(-11)
        // An absolute time that has passed.
        .store(SETTING, &setting(0, 5 * MS))
        .syscall(linux::__NR_timer_settime, &[0, linux::TIMER_ABSTIME.into(), SETTING, 0])
        .waits_for(signal.into())
        .at_ms(11)
        .syscall(linux::__NR_timer_delete, &[0])
        .exits(0);
    let (status, cell) = run(program);
    assert_eq!((status, cell.system.alarms.count()), (EXITED, 0));
}

#[test]
fn timers_with_one_signal_send_one_each() {
    let mut program = Program::new().blocks(14);
    for id in 0..3 {
        program = program
            .syscall(linux::__NR_timer_create, &[1, 0, ID])
            .store(SETTING, &setting(0, (3 - id) * MS))
            .syscall(linux::__NR_timer_settime, &[id, 0, SETTING, 0])
            .returns(0);
    }
    program = program.sleeps(5 * MS);
    for id in [2_u64, 1, 0] {
        program = program.waits_for(14).expect(RESULT + 16, &words(&[id, id]));
    }
    assert_eq!(run(program.exits(0)).0, EXITED);
}

#[test]
fn an_ignored_timer_continues_when_its_signal_is_handled() {
    let ignore = words(&[1, 0, 0, 0]);
    let program = Program::new()
        .store(DATA, &ignore)
        .syscall(linux::__NR_rt_sigaction, &[14, DATA, 0, 8])
        .store(SETTING, &setting(MS, MS))
        .syscall(linux::__NR_timer_create, &[1, 0, ID])
        .syscall(linux::__NR_timer_settime, &[0, 0, SETTING, 0])
        .store(SETTING, &words(&[0, 1000, 0, 1000]))
        .syscall(linux::__NR_setitimer, &[0, SETTING, 0])
        .sleeps(5 * MS)
        .at_ms(5)
        .blocks(14)
        .store(DATA, &words(&[0, 0, 0, 0]))
        .syscall(linux::__NR_rt_sigaction, &[14, DATA, 0, 8])
        .returns(0)
        .waits_for(14)
        .at_ms(6)
        .waits_for(14)
        .exits(0);
    assert_eq!(run(program).0, EXITED);
}

#[test]
fn an_alarm_ends_a_process_that_does_not_handle_it() {
    let program = Program::new()
        .syscall(linux::__NR_alarm, &[10])
        .returns(0)
        .sleeps(400 * MS)
        .syscall(linux::__NR_alarm, &[1])
        .returns(10)
        .sleeps(800 * MS)
        .syscall(linux::__NR_alarm, &[2])
        .returns(1)
        .syscall(linux::__NR_pause, &[]);
    let (status, cell) = run(program);
    assert_eq!(status, ExitStatus::Killed { signal: Signal::SIGALRM, dumps_core: false });
    assert_eq!(cell.system.alarms.count(), 0);
}

#[test]
fn an_interval_timer_repeats_at_its_times() {
    let program = Program::new()
        .blocks(14)
        .store(SETTING, &words(&[0, 2000, 0, 3000]))
        .syscall(linux::__NR_setitimer, &[0, SETTING, 0])
        .returns(0)
        .waits_for(14)
        .at_ms(3)
        .waits_for(14)
        .at_ms(5)
        .sleeps(3 * MS)
        .waits_for(14)
        .at_ms(8)
        .waits_for(14)
        .at_ms(9)
        .syscall(linux::__NR_getitimer, &[0, RESULT])
        .expect(RESULT, &words(&[0, 2000, 0, 2000]))
        .syscall(linux::__NR_setitimer, &[0, 0, RESULT])
        .expect(RESULT, &words(&[0, 2000, 0, 2000]))
        .exits(0);
    let (status, cell) = run(program);
    assert_eq!((status, cell.system.alarms.count()), (EXITED, 0));
}

#[test]
fn a_computing_program_gets_the_signals_of_processor_time() {
    for (which, signal) in [(1, Signal::SIGVTALRM), (2, Signal::SIGPROF)] {
        let cell = Cell::new();
        cell.environment.cycles_more.store(MS, Ordering::Relaxed);
        let program = Program::new()
            .store(SETTING, &words(&[0, 0, 0, 50_000]))
            .syscall(linux::__NR_setitimer, &[which, SETTING, 0])
            .returns(0)
            .jump(CODE, 3);
        cell.install("/program", program);
        assert_eq!(cell.run(&["/program"]), ExitStatus::Killed { signal, dumps_core: false });
    }
}

#[test]
fn timers_of_processor_clocks_expire_and_do_not_tick_while_the_process_sleeps() {
    for clock in [linux::CLOCK_PROCESS_CPUTIME_ID, linux::CLOCK_THREAD_CPUTIME_ID] {
        let cell = Cell::new();
        let program = Program::new()
            .store(EVENT, &event(linux::SIGEV_SIGNAL, 10, 0, 0))
            .syscall(linux::__NR_timer_create, &[clock.into(), EVENT, ID])
            .returns(0)
            .store(SETTING, &setting(0, 20 * MS))
            .syscall(linux::__NR_timer_settime, &[0, 0, SETTING, 0])
            .returns(0)
            .store(TIME, &words(&[1000, 0]))
            .syscall(linux::__NR_nanosleep, &[TIME, 0])
            .returns(0)
            .step({
                let system = std::sync::Arc::downgrade(&cell.system);
                let environment = cell.environment.clone();
                move |_| {
                    // One alarm for each run of the program before the sleep, not one for each interval of the sleep.
                    assert!(system.upgrade().unwrap().alarms.count() <= 1);
                    assert!(environment.sleeps.load(Ordering::Relaxed) < 10);
                    environment.cycles_more.store(MS, Ordering::Relaxed);
                    Ok(())
                }
            })
            .jump(CODE, 10);
        cell.install("/program", program);
        let status = ExitStatus::Killed { signal: Signal::SIGUSR1, dumps_core: false };
        assert_eq!(cell.run(&["/program"]), status);
    }
}

#[test]
fn the_limit_of_processor_time_ends_a_process() {
    for (soft, hard, signal) in [(1, 9, Signal::SIGXCPU), (1, 1, Signal::SIGKILL)] {
        let cell = Cell::new();
        cell.environment.cycles_more.store(MS, Ordering::Relaxed);
        let program = Program::new()
            .store(SETTING, &words(&[soft, hard]))
            .syscall(linux::__NR_setrlimit, &[linux::RLIMIT_CPU.into(), SETTING])
            .returns(0)
            .jump(CODE, 3);
        cell.install("/program", program);
        // The limit of core files is 0.
        assert_eq!(cell.run(&["/program"]), ExitStatus::Killed { signal, dumps_core: false });
    }
}

#[test]
fn a_timer_with_a_descriptor_is_read_at_its_time() {
    let program = Program::new()
        .syscall(linux::__NR_timerfd_create, &[0, 0])
        .returns(3)
        .store(SETTING, &setting(2 * MS, 3 * MS))
        .syscall(linux::__NR_timerfd_settime, &[3, 0, SETTING, 0])
        .returns(0)
        .syscall(linux::__NR_read, &[3, RESULT, 8])
        .returns(8)
        .expect(RESULT, &words(&[1]))
        .at_ms(3)
        .sleeps(5 * MS)
        .syscall(linux::__NR_read, &[3, RESULT, 8])
        .expect(RESULT, &words(&[2]))
        .syscall(linux::__NR_timerfd_gettime, &[3, RESULT])
        .expect(RESULT, &setting(2 * MS, MS))
        .syscall(linux::__NR_read, &[3, RESULT, 8])
        .at_ms(9)
        .syscall(linux::__NR_close, &[3])
        .exits(0);
    let (status, cell) = run(program);
    assert_eq!((status, cell.system.alarms.count()), (EXITED, 0));
}

#[test]
fn timers_belong_to_one_process_and_one_program() {
    let cell = Cell::new();
    let second = CODE + 0x10_0000;
    let program = Program::new()
        .syscall(linux::__NR_timer_create, &[1, 0, ID])
        .store(SETTING, &setting(0, 5 * MS))
        .syscall(linux::__NR_timer_settime, &[0, 0, SETTING, 0])
        .store(SETTING, &words(&[0, 0, 60, 0]))
        .syscall(linux::__NR_setitimer, &[0, SETTING, 0])
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, 13)
        .syscall(linux::__NR_wait4, &[u64::MAX, RESULT, 0, 0])
        .expect(RESULT, &[0; 4])
        .store(PATH, b"/second\0")
        .syscall(linux::__NR_execve, &[PATH, 0, 0])
        .exits(9)
        .exits(9)
        // The child has neither.
        .syscall(linux::__NR_timer_gettime, &[0, RESULT])
        .returns(-22)
        .syscall(linux::__NR_getitimer, &[0, RESULT])
        .expect(RESULT, &words(&[0, 0, 0, 0]))
        .exits(0);
    cell.install("/program", program);
    let program = Program::new()
        .syscall(linux::__NR_timer_gettime, &[0, RESULT])
        .returns(-22)
        .sleeps(10 * MS)
        .syscall(linux::__NR_alarm, &[0])
        .returns(60)
        .exits(0);
    cell.install_at("/second", second, program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_thread_sleeps_by_the_time_of_its_process() {
    let program = Program::new()
        .store(TIME, &words(&[0, 0]))
        .syscall(linux::__NR_clock_nanosleep, &[2, 1, TIME, 0])
        .returns(0)
        .syscall(linux::__NR_clock_nanosleep, &[3, 1, TIME, 0])
        .returns(-22)
        // The clock of the process by its number, as clock_getcpuclockid returns it: the complement of the id.
        .syscall(linux::__NR_clock_gettime, &[u64::from((!1_u32) << 3 | 2), RESULT])
        .returns(0)
        .syscall(linux::__NR_clock_gettime, &[u64::from((!77_u32) << 3 | 2), RESULT])
        .returns(-22)
        .syscall(linux::__NR_clock_gettime, &[u64::from((!1_u32) << 3 | 3), RESULT])
        .returns(-22)
        .exits(0);
    assert_eq!(run(program).0, EXITED);
}

#[test]
fn a_program_finds_the_vdso_above_the_clock_page() {
    /// The key of the image's address in the auxiliary vector.
    const SYSINFO_EHDR: u64 = 33;
    let program = Program::new()
        .step(|processor| {
            let load = |address, processor: &mut isola_linux_sim::Processor<'_>| {
                let mut word = [0; 8];
                processor.load(address, &mut word).map(|()| u64::from_le_bytes(word))
            };
            // Behind the number of arguments, the arguments and the environment, each with a 0 at its end.
            let mut at = processor.registers().rsp + 8;
            for _ in 0..2 {
                while load(at, processor)? != 0 {
                    at += 8;
                }
                at += 8;
            }
            while load(at, processor)? != SYSINFO_EHDR {
                at += 16;
            }
            let image = load(at + 8, processor)?;
            let mut bytes = [0; 4];
            processor.load(image, &mut bytes)?;
            assert_eq!(&bytes, b"\x7fELF");
            processor.execute(image)?;
            processor.load(image - 4096, &mut bytes)?;
            assert_eq!(bytes, [0; 4], "the sequence number");
            Ok(())
        })
        .exits(0);
    assert_eq!(run(program).0, EXITED);
}

#[test]
fn signals_are_read_from_a_descriptor() {
    let program = Program::new()
        .store(SET, &words(&[1 << 9 | 1 << 13]))
        .syscall(linux::__NR_signalfd4, &[u64::MAX, SET, 8, 1])
        .returns(-22)
        .syscall(linux::__NR_signalfd4, &[u64::MAX, SET, 4, 0])
        .returns(-22)
        .syscall(linux::__NR_signalfd4, &[u64::MAX, 0x1000, 8, 0])
        .returns(-14)
        .syscall(linux::__NR_signalfd4, &[0, SET, 8, 0])
        .returns(-22)
        .syscall(linux::__NR_signalfd4, &[77, SET, 8, 0])
        .returns(-9)
        .syscall(linux::__NR_rt_sigprocmask, &[0, SET, 0, 8])
        .syscall(linux::__NR_signalfd4, &[u64::MAX, SET, 8, linux::O_NONBLOCK.into()])
        .returns(3)
        .syscall(linux::__NR_read, &[3, RESULT, 256])
        .returns(-11)
        .syscall(linux::__NR_tkill, &[1, 10])
        .syscall(linux::__NR_read, &[3, RESULT, 127])
        .returns(-22)
        .syscall(linux::__NR_read, &[3, RESULT, 256])
        .returns(128)
        .expect(RESULT, &[10, 0, 0, 0])
        // A read waits for the signal of a timer.
        .syscall(linux::__NR_fcntl, &[3, linux::F_SETFL.into(), 0])
        .store(SETTING, &words(&[0, 0, 0, 5000]))
        .syscall(linux::__NR_setitimer, &[0, SETTING, 0])
        .syscall(linux::__NR_read, &[3, RESULT, 256])
        .returns(128)
        .expect(RESULT, &[14, 0, 0, 0])
        .at_ms(5)
        // SIGUSR1 is no longer wanted.
        .store(SET, &words(&[1 << 13]))
        .syscall(linux::__NR_signalfd4, &[3, SET, 8, 0])
        .returns(3)
        .syscall(linux::__NR_kill, &[1, 10])
        .store(DATA, &[3, 0, 0, 0, 1, 0, 0, 0])
        .syscall(linux::__NR_poll, &[DATA, 1, 0])
        .returns(0)
        .syscall(linux::__NR_kill, &[1, 14])
        .syscall(linux::__NR_poll, &[DATA, 1, u64::MAX])
        .returns(1)
        .exits(0);
    assert_eq!(run(program).0, EXITED);
}

#[test]
fn the_clock_can_be_read_as_unsynchronised_and_not_be_set() {
    const TIMEX: u64 = DATA + 0x800;
    let program = Program::new()
        .store(TIME, &words(&[1, 1_000_000_000]))
        .syscall(linux::__NR_clock_settime, &[0, TIME])
        .returns(-22)
        .store(TIME, &words(&[1, 0]))
        .syscall(linux::__NR_clock_settime, &[1, TIME])
        .returns(-22)
        .syscall(linux::__NR_clock_settime, &[0, 0x1000])
        .returns(-14)
        .syscall(linux::__NR_clock_settime, &[0, TIME])
        .returns(-1)
        .syscall(linux::__NR_settimeofday, &[TIME, 0])
        .returns(-1)
        .syscall(linux::__NR_settimeofday, &[0, 0x1000])
        .returns(-14)
        .syscall(linux::__NR_adjtimex, &[0x1000])
        .returns(-14)
        // A change of the frequency.
        .store(TIMEX, &words(&[2]))
        .syscall(linux::__NR_adjtimex, &[TIMEX])
        .returns(-1)
        .store(TIMEX, &words(&[0, 77]))
        .syscall(linux::__NR_adjtimex, &[TIMEX])
        .returns(5)
        .expect(TIMEX, &words(&[0, 0, 0, 16_000_000, 16_000_000, 0x40, 2, 1, 32_768_000, 1_700_000_000]))
        .expect(TIMEX + 88, &words(&[10_000]))
        .store(TIMEX, &words(&[0xa001]))
        .syscall(linux::__NR_clock_adjtime, &[0, TIMEX])
        .returns(5)
        .syscall(linux::__NR_clock_adjtime, &[1, TIMEX])
        .returns(-95)
        .syscall(linux::__NR_clock_adjtime, &[99, TIMEX])
        .returns(-22)
        .syscall(linux::__NR_mount, &[TIME, TIME, TIME, 0, 0])
        .returns(-1)
        .syscall(linux::__NR_reboot, &[0, 0, 0, 0])
        .returns(-1)
        .exits(0);
    assert_eq!(run(program).0, EXITED);
}
