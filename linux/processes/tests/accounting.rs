//! Activities of processes: what is charged to them, and which shares and limits they have.

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_abi::query::ActivityTraffic;
use isola_linux_abi::numbers as linux;
use isola_linux_processes::cgroup::cgroup_file_system;
use isola_linux_processes::{Errno, ExitStatus};
use isola_linux_sim::{Program, STEP_SIZE};
use std::sync::atomic::Ordering;

const EXITED: ExitStatus = ExitStatus::Exited(0);
/// Private memory that anybody may map.
const ANONYMOUS: u64 = (linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_FIXED) as u64;
/// The address of memory that a program maps.
const MAPPED: u64 = 0x10_0000_0000;

/// A cell with the groups at their usual place.
fn cell_with_groups() -> Cell {
    let cell = Cell::new();
    cell.mount("/sys", isola_linux_processes::proc::sys_file_system(&cell.system));
    cell.mount("/sys/fs/cgroup", cgroup_file_system(&cell.system));
    cell.write_text("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +memory +pids +io\n").unwrap();
    cell
}

/// Steps of these tests.
trait MoreSteps {
    /// Adds `fork` and a jump of the child.
    fn forks(self, child: u64) -> Self;
    /// Adds a wait for a child, whose status goes to [`DATA`].
    fn waits(self) -> Self;
    /// Adds a write of a text to a file: 4 steps.
    fn writes_file(self, path: &str, text: &str) -> Self;
    /// Maps private memory and writes to one page after the other, up to `pages`: 3 steps.
    fn touches(self, base: u64, step: u64, pages: u64) -> Self;
}

impl MoreSteps for Program {
    fn forks(self, child: u64) -> Self {
        self.syscall(linux::__NR_fork, &[]).if_zero(CODE, child)
    }

    fn waits(self) -> Self {
        self.syscall(linux::__NR_wait4, &[u64::MAX, DATA, 0, 0])
    }

    fn writes_file(self, path: &str, text: &str) -> Self {
        let (path, text) = (format!("{path}\0"), text.to_string());
        let len = text.len() as u64;
        self.store(DATA + 0x100, path.as_bytes())
            .store(DATA + 0x200, text.as_bytes())
            .syscall(linux::__NR_open, &[DATA + 0x100, u64::from(linux::O_WRONLY), 0])
            .step(move |processor| {
                let file = processor.registers().rax;
                assert!((file as i64) >= 0, "open: {}", file as i64);
                let registers = processor.registers();
                registers.rdi = file;
                registers.rsi = DATA + 0x200;
                registers.rdx = len;
                registers.rax = linux::__NR_write.into();
                Err(isola_user_mode::Trap::SystemCall)
            })
    }

    fn touches(self, base: u64, step: u64, pages: u64) -> Self {
        let rights = u64::from(linux::PROT_READ | linux::PROT_WRITE);
        self.syscall(linux::__NR_mmap, &[MAPPED, pages << 12, rights, ANONYMOUS, u64::MAX, 0])
            .step(|processor| {
                processor.registers().rbx = MAPPED;
                Ok(())
            })
            .step(move |processor| {
                let address = processor.registers().rbx;
                processor.store(address, &[1])?;
                processor.registers().rbx = address + 4096;
                if processor.registers().rbx < MAPPED + (pages << 12) {
                    processor.registers().rip = base + (step + 2) * STEP_SIZE;
                }
                Ok(())
            })
    }
}

#[test]
fn every_cycle_is_charged_to_the_activity_of_a_process_which_ends_with_it() {
    let cell = Cell::new();
    let child = 6;
    let program = Program::new()
        .forks(child)
        .waits()
        .returns(2)
        .syscall(linux::__NR_getpid, &[])
        .exits(0)
        // The child executes nothing but calls.
        .syscall(linux::__NR_getpid, &[])
        .syscall(linux::__NR_nanosleep, &[DATA, 0])
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    let all = cell.environment.grid.all();
    let names: Vec<_> = all.iter().map(|activity| activity.name.as_str()).collect();
    assert_eq!(names, ["application", "1 program", "2 program"]);
    assert!(all[1..].iter().all(|activity| activity.has_ended && activity.cycles > 50), "{all:?}");
    // Conservation: the use of ended activities is that of the application.
    assert_eq!(all[0].cycles, cell.cycles());
}

#[test]
fn a_wait_is_no_processor_time() {
    let cell = Cell::new();
    let program = Program::new()
        .store(DATA, &3_u64.to_le_bytes())
        .syscall(linux::__NR_nanosleep, &[DATA, 0])
        .returns(0)
        .syscall(linux::__NR_clock_gettime, &[linux::CLOCK_PROCESS_CPUTIME_ID.into(), DATA])
        .returns(0)
        .syscall(linux::__NR_clock_gettime, &[linux::CLOCK_MONOTONIC.into(), DATA + 16])
        .step(|processor| {
            let mut bytes = [0; 24];
            processor.load(DATA, &mut bytes)?;
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!((word(0), word(16)), (0, 3), "no second of processor time in a sleep of three");
            assert!(word(8) > 0);
            Ok(())
        })
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn niceness_is_a_weight_of_the_process_which_children_inherit() {
    let cell = Cell::new();
    let child = 12;
    let program = Program::new()
        .syscall(linux::__NR_setpriority, &[0, 0, 5])
        .returns(0)
        .syscall(linux::__NR_getpriority, &[0, 0])
        .returns(15)
        .syscall(linux::__NR_setpriority, &[7, 0, 5])
        .returns(-22)
        .syscall(linux::__NR_setpriority, &[0, 999, 5])
        .returns(-3)
        .forks(child)
        .waits()
        .exits(0)
        // The child gives up its rights.
        .syscall(linux::__NR_getpriority, &[0, 0])
        .returns(15)
        .syscall(linux::__NR_setuid, &[1000])
        .syscall(linux::__NR_setpriority, &[0, 0, 10])
        .returns(0)
        .syscall(linux::__NR_setpriority, &[0, 0, 9])
        .returns(-13)
        .syscall(linux::__NR_setpriority, &[0, 1, 15])
        .returns(-1)
        .syscall(linux::__NR_ioprio_set, &[1, 0, 1 << 13])
        .returns(-1)
        .syscall(linux::__NR_ioprio_set, &[1, 0, 2 << 13 | 7])
        .returns(0)
        .syscall(linux::__NR_ioprio_get, &[1, 0])
        .returns(2 << 13 | 7)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    let grid = &cell.environment.grid;
    assert_eq!(grid.named("1 program").processor.weight, 32);
    assert_eq!((grid.named("2 program").processor.weight, grid.named("2 program").disk.weight), (10, 25));
}

#[test]
fn real_time_policies_need_a_capability() {
    let cell = Cell::new();
    let set = |policy: u32| [0, policy.into(), DATA];
    let program = Program::new()
        .store(DATA, &10_u32.to_le_bytes())
        .syscall(linux::__NR_sched_setscheduler, &set(linux::SCHED_NORMAL))
        .returns(-22)
        .syscall(linux::__NR_sched_setscheduler, &set(linux::SCHED_FIFO))
        .returns(0)
        .syscall(linux::__NR_sched_getscheduler, &[0])
        .returns(linux::SCHED_FIFO.into())
        .syscall(linux::__NR_setuid, &[1000])
        .syscall(linux::__NR_sched_setscheduler, &set(linux::SCHED_RR))
        .returns(-1)
        .syscall(linux::__NR_sched_setscheduler, &set(77))
        .returns(-22)
        .store(DATA, &0_u32.to_le_bytes())
        .syscall(linux::__NR_sched_setscheduler, &set(linux::SCHED_IDLE))
        .returns(0)
        .syscall(linux::__NR_sched_getattr, &[0, DATA, 48, 0])
        .returns(0)
        .expect(DATA, &[48, 0, 0, 0, 5, 0, 0, 0])
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    assert_eq!(cell.environment.grid.named("1 program").processor.weight, 1);
}

#[test]
fn a_process_moves_to_a_group_whose_activity_is_its_parent() {
    let cell = cell_with_groups();
    cell.make_directory("/sys/fs/cgroup/batch").unwrap();
    cell.write_text("/sys/fs/cgroup/batch/cpu.weight", "300\n").unwrap();
    let program = Program::new()
        .writes_file("/sys/fs/cgroup/batch/cgroup.procs", "0\n")
        .returns(2)
        .syscall(linux::__NR_getpid, &[])
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    let all = cell.environment.grid.all();
    let group = all.iter().position(|activity| activity.name == "cgroup batch").unwrap();
    assert_eq!(all[group].processor.weight, 300);
    let processes: Vec<_> = all.iter().filter(|activity| activity.name == "1 program").collect();
    let parents: Vec<_> = processes.iter().map(|process| process.parent.unwrap()).collect();
    assert_eq!(parents, [0, group], "the thread has changed to an account in the group");
    assert!(processes.iter().all(|process| process.has_ended && process.cycles > 0));
    // What is left of a thread's last event is the group's.
    assert!(all[group].cycles >= processes[1].cycles);
    assert_eq!(all[0].cycles + all[group].cycles, cell.cycles());
    assert_eq!(cell.read_file("/sys/fs/cgroup/batch/cgroup.events").unwrap(), "populated 0\nfrozen 0\n");
    cell.remove_directory("/sys/fs/cgroup/batch").unwrap();
}

#[test]
fn io_stat_has_the_requests_to_devices_of_a_group() {
    let cell = cell_with_groups();
    cell.make_directory("/sys/fs/cgroup/batch").unwrap();
    let read = || cell.read_file("/sys/fs/cgroup/batch/io.stat").unwrap();
    assert_eq!(read(), "", "without requests there is no line, as in Linux");
    let traffic = ActivityTraffic {
        reads: 3,
        read_bytes: 12_288,
        writes: 2,
        written_bytes: 8_192,
        ..Default::default()
    };
    cell.environment.grid.count_traffic("cgroup batch", traffic);
    assert_eq!(read(), "254:0 rbytes=12288 wbytes=8192 rios=3 wios=2 dbytes=0 dios=0\n");
    cell.environment.grid.count_traffic("application", traffic);
    assert_eq!(cell.read_file("/sys/fs/cgroup/io.stat").unwrap(), read());
}

#[test]
fn groups_are_created_removed_and_refused_as_in_linux() {
    let cell = cell_with_groups();
    let write = |path: &str, text: &str| cell.write_text(path, text);
    assert_eq!(cell.make_directory("/sys/fs/cgroup/a"), Ok(()));
    assert_eq!(cell.make_directory("/sys/fs/cgroup/a"), Err(Errno::EEXIST));
    assert_eq!(cell.make_directory("/sys/fs/cgroup/cgroup.procs"), Err(Errno::EEXIST));
    assert_eq!(cell.read_file("/sys/fs/cgroup/cgroup.controllers").unwrap(), "cpu io memory pids\n");
    assert_eq!(cell.read_file("/sys/fs/cgroup/a/memory.max").unwrap(), "max\n");
    assert_eq!(write("/sys/fs/cgroup/a/memory.max", "1M\n"), Ok(()));
    assert_eq!(cell.read_file("/sys/fs/cgroup/a/memory.max").unwrap(), "1048576\n");
    assert_eq!(write("/sys/fs/cgroup/a/cpu.weight", "0"), Err(Errno::ERANGE));
    assert_eq!(write("/sys/fs/cgroup/a/cpu.max", "50000"), Ok(()));
    assert_eq!(cell.read_file("/sys/fs/cgroup/a/cpu.max").unwrap(), "50000 100000\n");
    assert_eq!(write("/sys/fs/cgroup/a/cpu.weight.nice", "-5"), Ok(()));
    assert_eq!(cell.read_file("/sys/fs/cgroup/a/cpu.weight").unwrap(), "304\n");
    assert_eq!(write("/sys/fs/cgroup/a/cgroup.threads", "1"), Err(Errno::EOPNOTSUPP));
    assert_eq!(write("/sys/fs/cgroup/a/cgroup.procs", "77"), Err(Errno::ESRCH));
    assert_eq!(write("/sys/fs/cgroup/a/io.max", "254:0 rbps=1000000 wbps=max"), Ok(()));
    assert_eq!(cell.environment.grid.named("cgroup a").disk.bytes_per_second, Some(1_000_000));
    // The group below has the controllers that this one passes on.
    assert_eq!(cell.make_directory("/sys/fs/cgroup/a/b"), Ok(()));
    assert_eq!(cell.read_file("/sys/fs/cgroup/a/b/memory.max"), Err(Errno::ENOENT));
    assert_eq!(write("/sys/fs/cgroup/a/cgroup.subtree_control", "+memory"), Ok(()));
    assert_eq!(cell.read_file("/sys/fs/cgroup/a/b/memory.max").unwrap(), "max\n");
    assert_eq!(write("/sys/fs/cgroup/cgroup.subtree_control", "-memory"), Err(Errno::EBUSY));
    assert_eq!(cell.remove_directory("/sys/fs/cgroup/a"), Err(Errno::EBUSY));
    assert_eq!(cell.remove_directory("/sys/fs/cgroup/a/b"), Ok(()));
    assert_eq!(cell.remove_directory("/sys/fs/cgroup/a"), Ok(()));
    assert_eq!(cell.remove_directory("/sys/fs/cgroup/a"), Err(Errno::ENOENT));
    // Levels are limited, as activities nest no deeper.
    let mut path = String::from("/sys/fs/cgroup");
    for level in 0..7 {
        path += "/deep";
        let expected = if level < 6 { Ok(()) } else { Err(Errno::EAGAIN) };
        assert_eq!(cell.make_directory(&path), expected, "{path}");
    }
    assert_eq!(write("/sys/fs/cgroup/cgroup.max.descendants", "6"), Ok(()));
    assert_eq!(cell.make_directory("/sys/fs/cgroup/more"), Err(Errno::EAGAIN));
    assert!(cell.read_file("/sys/fs/cgroup/cpu.stat").unwrap().starts_with("usage_usec "));
}

#[test]
fn a_limit_of_processor_time_holds() {
    let cell = cell_with_groups();
    cell.make_directory("/sys/fs/cgroup/slow").unwrap();
    cell.write_text("/sys/fs/cgroup/slow/cpu.max", "10000 100000").unwrap();
    // A call takes some 0.3 ms.
    cell.environment.cycles_more.store(100_000, Ordering::Relaxed);
    let mut program = Program::new().writes_file("/sys/fs/cgroup/slow/cgroup.procs", "0\n");
    for _ in 0..300 {
        program = program.syscall(linux::__NR_getpgrp, &[]);
    }
    cell.install("/program", program.exits(0));
    assert_eq!(cell.run(&["/program"]), EXITED);
    use isola_linux_processes::Environment;
    let (used_ms, passed_ms) = (cell.cycles() / 1_000_000, cell.environment.monotonic_ns() / 1_000_000);
    assert!(used_ms > 60, "{used_ms} ms");
    // The simulated clock passes while all wait only: the waits are nine tenths.
    assert!(used_ms <= passed_ms / 10 + 40, "{used_ms} ms in {passed_ms} ms");
    let stat = cell.read_file("/sys/fs/cgroup/slow/cpu.stat").unwrap();
    let throttled = stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap();
    assert!(throttled.parse::<u64>().unwrap() >= 6, "{stat}");
}

#[test]
fn a_process_that_leaks_is_killed_and_the_others_continue() {
    let cell = Cell::new();
    let child = 6;
    let program = Program::new()
        .forks(child)
        .waits()
        .returns(2)
        .expect(DATA, &[9, 0, 0, 0])
        .exits(0)
        .touches(CODE, child, 1 << 20)
        .step(|_| panic!("the cell has less memory"));
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    let reports = cell.environment.reports.lock().unwrap();
    assert_eq!(*reports, ["linux: out of memory: killed process 2 (program), 39 MiB"]);
}

#[test]
fn a_process_with_a_higher_adjustment_is_killed_in_place_of_the_one_that_needs_memory() {
    let cell = Cell::new();
    cell.mount("/proc", isola_linux_processes::proc::proc_file_system(&cell.system));
    let (victim, leaker) = (10, 19);
    let program = Program::new()
        .forks(victim)
        .forks(leaker)
        .syscall(linux::__NR_wait4, &[2, DATA, 0, 0])
        .expect(DATA, &[9, 0, 0, 0])
        .syscall(linux::__NR_wait4, &[3, DATA, 0, 0])
        .expect(DATA, &[0, 0, 0, 0])
        .exits(0)
        .exits(1)
        // The victim has some memory, and sleeps.
        .writes_file("/proc/self/oom_score_adj", "1000")
        .touches(CODE, victim + 4, 50)
        .store(DATA, &1_000_000_u64.to_le_bytes())
        .syscall(linux::__NR_nanosleep, &[DATA, 0])
        // The other one waits until the victim sleeps, and needs nearly all memory.
        .store(DATA, &1_u64.to_le_bytes())
        .syscall(linux::__NR_nanosleep, &[DATA, 0])
        .touches(CODE, leaker + 2, 9_960)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    let reports = cell.environment.reports.lock().unwrap();
    assert!(reports[0].starts_with("linux: out of memory: killed process 2 (program)"), "{reports:?}");
    assert_eq!(reports.len(), 1);
}

#[test]
fn a_limit_of_memory_kills_in_its_group_only() {
    let cell = cell_with_groups();
    cell.make_directory("/sys/fs/cgroup/small").unwrap();
    cell.write_text("/sys/fs/cgroup/small/memory.max", "400K").unwrap();
    let child = 6;
    let program = Program::new()
        .forks(child)
        .waits()
        .returns(2)
        .expect(DATA, &[9, 0, 0, 0])
        .exits(0)
        .writes_file("/sys/fs/cgroup/small/cgroup.procs", "0\n")
        .touches(CODE, child + 4, 5_000)
        .step(|_| panic!("the group has less memory"));
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    let reports = cell.environment.reports.lock().unwrap();
    assert_eq!(*reports, ["linux: out of memory of cgroup /small: killed process 2 (program), 0 MiB"]);
    assert_eq!(cell.read_file("/sys/fs/cgroup/small/memory.current").unwrap(), "0\n");
    assert_eq!(cell.read_file("/sys/fs/cgroup/small/memory.peak").unwrap(), "409600\n");
    let events = cell.read_file("/sys/fs/cgroup/small/memory.events").unwrap();
    assert!(events.contains("\noom 1\noom_kill 1\n"), "{events}");
}

#[test]
fn a_limit_of_threads_refuses_children() {
    let cell = cell_with_groups();
    cell.make_directory("/sys/fs/cgroup/few").unwrap();
    cell.write_text("/sys/fs/cgroup/few/pids.max", "1").unwrap();
    let program = Program::new()
        .writes_file("/sys/fs/cgroup/few/cgroup.procs", "0\n")
        .syscall(linux::__NR_fork, &[])
        .returns(-11)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    assert_eq!(cell.read_file("/sys/fs/cgroup/few/pids.events").unwrap(), "max 1\n");
}

#[test]
fn a_group_is_killed_as_a_whole() {
    let cell = cell_with_groups();
    cell.make_directory("/sys/fs/cgroup/doomed").unwrap();
    let child = 11;
    let program = Program::new()
        .forks(child)
        .store(DATA, &1_u64.to_le_bytes())
        .syscall(linux::__NR_nanosleep, &[DATA, 0])
        .writes_file("/sys/fs/cgroup/doomed/cgroup.kill", "1")
        .waits()
        .expect(DATA, &[9, 0, 0, 0])
        .exits(0)
        .writes_file("/sys/fs/cgroup/doomed/cgroup.procs", "0\n")
        .store(DATA, &1_000_000_u64.to_le_bytes())
        .syscall(linux::__NR_nanosleep, &[DATA, 0])
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_thread_moves_to_an_allowed_core_before_its_call_returns() {
    let cell = Cell::new();
    let on = |core: u32| {
        move |processor: &mut isola_linux_sim::Processor<'_>| {
            let mut bytes = [0; 4];
            processor.load(DATA + 8, &mut bytes)?;
            assert_eq!(u32::from_le_bytes(bytes), core);
            Ok(())
        }
    };
    let program = Program::new()
        .store(DATA, &4_u64.to_le_bytes())
        .syscall(linux::__NR_sched_getaffinity, &[-1_i64 as u64, 8, DATA])
        .returns(-3)
        .syscall(linux::__NR_sched_setaffinity, &[-1_i64 as u64, 8, DATA])
        .returns(-3)
        .syscall(linux::__NR_sched_setaffinity, &[0, 8, DATA])
        .returns(0)
        .syscall(linux::__NR_getcpu, &[DATA + 8, 0, 0])
        .step(on(2))
        .store(DATA, &0_u64.to_le_bytes())
        .syscall(linux::__NR_sched_getaffinity, &[0, 8, DATA])
        .returns(8)
        .expect(DATA, &[4, 0, 0, 0, 0, 0, 0, 0])
        // The cell has three cores.
        .store(DATA, &8_u64.to_le_bytes())
        .syscall(linux::__NR_sched_setaffinity, &[0, 8, DATA])
        .returns(-22)
        .syscall(linux::__NR_sched_getaffinity, &[0, 4, DATA])
        .returns(-22)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_thread_that_shares_its_core_moves_to_an_idle_one() {
    let cell = Cell::new();
    let environment = cell.environment.clone();
    let program = Program::new()
        .syscall(linux::__NR_getcpu, &[DATA, 0, 0])
        .step(move |_| {
            environment.has_competition.store(true, Ordering::Relaxed);
            environment.halted_cores.store(0b100, Ordering::Relaxed);
            Err(isola_user_mode::Trap::Interrupt)
        })
        .syscall(linux::__NR_getcpu, &[DATA + 4, 0, 0])
        .expect(DATA + 4, &[2, 0, 0, 0])
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_file_grows_up_to_its_limit_and_then_a_signal_is_sent() {
    let cell = Cell::new();
    cell.write_file("/file", 0o644, b"");
    let child = 8;
    let limit = [10_u64, 10].map(u64::to_le_bytes).concat();
    let program = Program::new()
        .store(DATA + 0x40, &limit)
        .syscall(linux::__NR_setrlimit, &[linux::RLIMIT_FSIZE.into(), DATA + 0x40])
        .returns(0)
        .forks(child)
        .waits()
        // Signal 25, without the mark of a core file: their limit is 0.
        .expect(DATA, &[25, 0, 0, 0])
        .exits(0)
        .writes_file("/file", "twelve letters")
        .returns(10)
        .syscall(linux::__NR_write, &[3, DATA, 1])
        .step(|_| panic!("SIGXFSZ ends the process"));
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    assert_eq!(cell.read_file("/file").unwrap(), "twelve let");
}

#[test]
fn a_trace_shows_calls_as_strace_does() {
    let cell = Cell::with_traces(true);
    let program = Program::new()
        .store(DATA, b"/none\0")
        .store(DATA + 16, b"hello\n")
        .syscall(linux::__NR_open, &[DATA, u64::from(linux::O_RDWR | linux::O_CREAT | linux::O_EXCL), 0o600])
        .syscall(linux::__NR_open, &[DATA, u64::from(linux::O_RDWR | linux::O_CREAT | linux::O_EXCL), 0o600])
        .syscall(linux::__NR_write, &[3, DATA + 16, 6])
        .syscall(linux::__NR_pread64, &[3, DATA + 32, 4, 1])
        .syscall(linux::__NR_open, &[1, 0, 0])
        .syscall(5000, &[])
        .exits(3);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), ExitStatus::Exited(3));
    let reports = cell.environment.reports.lock().unwrap();
    let expected = [
        r#"[pid 1] open("/none", O_RDWR|O_CREAT|O_EXCL, 0o600) = 3"#,
        r#"[pid 1] open("/none", O_RDWR|O_CREAT|O_EXCL, 0o600) = -1 EEXIST (File exists)"#,
        r#"[pid 1] write(3, "hello\n", 6) = 6"#,
        r#"[pid 1] pread64(3, "ello", 4, 1) = 4"#,
        "[pid 1] open(1, O_RDONLY, 0o0) = -1 EFAULT (Bad address)",
        "[pid 1] syscall_0x1388() = -1 ENOSYS (Function not implemented)",
        "[pid 1] exit_group(3) = ?",
    ];
    assert_eq!(*reports, expected);
}

#[test]
fn files_of_proc_show_the_use_of_a_process() {
    let cell = Cell::new();
    cell.mount("/proc", isola_linux_processes::proc::proc_file_system(&cell.system));
    let shown = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let system = cell.system.clone();
    let kept = shown.clone();
    let environment = cell.environment.clone();
    let read = move |path: &str| {
        use isola_linux_files::{Caller, CallerIds, Credentials, DescriptorTable, View};
        let view = View::new(system.namespace.clone());
        let (credentials, descriptors) = (Credentials::root(), DescriptorTable::new());
        let ids = CallerIds { process: 1, thread: 1 };
        let caller = Caller { view: &view, credentials: &credentials, descriptors: &descriptors, ids };
        isola_linux_sim::run(async {
            let file = caller.open_at(linux::AT_FDCWD, path.as_bytes(), linux::O_RDONLY, 0).await.unwrap();
            String::from_utf8(file.read_bytes(0, 65_536).await.unwrap()).unwrap()
        })
    };
    let program = Program::new()
        .syscall(linux::__NR_setpriority, &[0, 0, 5])
        .store(DATA, b"x")
        .syscall(linux::__NR_write, &[1, DATA, 1])
        .step(move |_| {
            let traffic =
                ActivityTraffic { read_bytes: 4_096, written_bytes: 512, ..ActivityTraffic::default() };
            environment.grid.count_traffic("1 program", traffic);
            let paths =
                ["stat", "status", "io", "cgroup", "oom_score_adj", "smaps_rollup", "sched", "task/1/stat"];
            let system = ["loadavg", "stat", "uptime", "meminfo", "cpuinfo", "vmstat"];
            let of_process = paths.iter().map(|name| read(&format!("/proc/1/{name}")));
            let texts = of_process.chain(system.iter().map(|name| read(&format!("/proc/{name}"))));
            kept.lock().unwrap().extend(texts);
            Ok(())
        })
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    let shown = shown.lock().unwrap();
    let [
        stat,
        status,
        io,
        cgroup,
        adjustment,
        rollup,
        sched,
        task,
        loadavg,
        all,
        uptime,
        meminfo,
        cpuinfo,
        vmstat,
    ] = &shown[..]
    else {
        panic!("{shown:?}")
    };
    let fields: Vec<&str> = stat.split_whitespace().collect();
    assert_eq!((fields.len(), fields[1], fields[2]), (52, "(program)", "R"), "{stat}");
    assert_eq!((fields[17], fields[18]), ("25", "5"), "priority and niceness: {stat}");
    assert_eq!(task.split_whitespace().count(), 52);
    assert!(
        status.contains("\nGid:\t0\t0\t0\t0\n") && status.contains("\nCpus_allowed_list:\t0-2\n"),
        "{status}"
    );
    assert!(io.contains("wchar: 1\nsyscr: 0\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 512\n"), "{io}");
    assert_eq!((cgroup.as_str(), adjustment.as_str()), ("0::/\n", "0\n"));
    assert!(rollup.contains("[rollup]\nRss:"), "{rollup}");
    assert!(sched.contains("se.load.weight : 32\n"), "{sched}");
    assert!(loadavg.ends_with("1/1 1\n"), "{loadavg}");
    // Of each core, 2 s were busy and 3 s idle.
    assert!(all.contains("cpu2 ") && all.contains(" 300 0 0 0 0 0 0\n"), "{all}");
    assert!(uptime.ends_with(" 9.00\n"), "{uptime}");
    assert!(meminfo.contains("MemTotal:          65536 kB\n"), "{meminfo}");
    assert!(cpuinfo.contains(" sse2 ") && cpuinfo.matches("processor\t: ").count() == 3, "{cpuinfo}");
    assert!(vmstat.contains("nr_free_pages 8192\n"), "{vmstat}");
}
