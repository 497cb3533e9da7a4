//! Processes that trace others.

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_linux_abi::numbers as linux;
use isola_linux_abi::ptrace::*;
use isola_linux_processes::ExitStatus;
use isola_linux_sim::{Processor, Program};
use isola_user_mode::Trap;

const EXITED: ExitStatus = ExitStatus::Exited(0);
const EPERM: i64 = -1;
const ESRCH: i64 = -3;
const EIO: i64 = -5;
const EINVAL: i64 = -22;
const ENOSYS: i64 = -38;

/// Where tests store ids, statuses, and results of calls.
const PID: u64 = DATA + 0x100;
const STATUS: u64 = DATA + 0x110;
const OUT: u64 = DATA + 0x200;
/// The tracer's program begins here; that of the tracee at [`TRACEE`], that of its child at [`GRANDCHILD`].
const TRACEE: u64 = CODE + 0x400;
const GRANDCHILD: u64 = CODE + 0x600;

/// Indices of words of `struct user_regs_struct`.
const RAX: u64 = 10;
const ORIG_RAX: u64 = 15;
const FLAGS: u64 = 18;

fn word(processor: &mut Processor<'_>, address: u64) -> Result<u64, Trap> {
    let mut bytes = [0; 8];
    processor.load(address, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Steps of a tracer.
trait TracerSteps {
    /// Adds `ptrace` of the process whose id is at [`PID`].
    fn ptrace(self, request: u32, address: u64, data: u64) -> Self;
    /// Adds a call with the id at [`PID`] as its first argument.
    fn of_tracee(self, number: u32, rest: &[u64]) -> Self;
    /// Adds a wait for a process, and a check of its status.
    fn waits(self, status: u32) -> Self;
    /// Adds a check of a word.
    fn word(self, address: u64, value: u64) -> Self;
    /// Adds a check of a register of the tracee.
    fn register(self, index: u64, value: u64) -> Self;
    /// Continues the child of `fork` elsewhere, and stores its id at [`PID`].
    fn forks(self, child: u64) -> Self;
}

impl TracerSteps for Program {
    fn ptrace(self, request: u32, address: u64, data: u64) -> Self {
        self.step(move |processor| {
            let pid = word(processor, PID)?;
            let registers = processor.registers();
            (registers.rax, registers.rdi, registers.rsi) = (linux::__NR_ptrace.into(), request.into(), pid);
            (registers.rdx, registers.r10) = (address, data);
            Ok(())
        })
        .system_call()
    }

    fn of_tracee(self, number: u32, rest: &[u64]) -> Self {
        let rest = rest.to_vec();
        self.step(move |processor| {
            let pid = word(processor, PID)?;
            let registers = processor.registers();
            (registers.rax, registers.rdi) = (number.into(), pid);
            let places = [
                &mut registers.rsi,
                &mut registers.rdx,
                &mut registers.r10,
                &mut registers.r8,
                &mut registers.r9,
            ];
            places.into_iter().zip(&rest).for_each(|(place, word)| *place = *word);
            Ok(())
        })
        .system_call()
    }

    fn waits(self, status: u32) -> Self {
        self.of_tracee(linux::__NR_wait4, &[STATUS, linux::__WALL.into(), 0])
            .step(|processor| {
                let pid = word(processor, PID)?;
                assert_eq!(processor.registers().rax, pid);
                Ok(())
            })
            .expect(STATUS, &status.to_le_bytes())
    }

    fn word(self, address: u64, value: u64) -> Self {
        self.step(move |processor| {
            assert_eq!(word(processor, address)? as i64, value as i64, "the word at {address:#x}");
            Ok(())
        })
    }

    fn register(self, index: u64, value: u64) -> Self {
        self.ptrace(PTRACE_PEEKUSR, 8 * index, OUT).returns(0).word(OUT, value)
    }

    fn forks(self, child: u64) -> Self {
        self.syscall(linux::__NR_fork, &[])
            .step(move |processor| {
                if processor.registers().rax == 0 {
                    processor.registers().rip = child;
                }
                Ok(())
            })
            .keeps(PID)
    }
}

/// Returns the first steps of a tracee: it lets its parent trace it, and stops.
fn tracee() -> Program {
    raises(Program::new().syscall(linux::__NR_ptrace, &[PTRACE_TRACEME.into()]).returns(0), linux::SIGSTOP)
}

/// Adds the sending of a signal to the thread itself.
fn raises(program: Program, signal: u32) -> Program {
    program
        .syscall(linux::__NR_gettid, &[])
        .step(move |processor| {
            let registers = processor.registers();
            (registers.rdi, registers.rsi) = (registers.rax, signal.into());
            registers.rax = linux::__NR_tkill.into();
            Ok(())
        })
        .system_call()
}

fn run(tracer: Program, tracee: Program) -> ExitStatus {
    let cell = Cell::new();
    cell.user_mode.place(TRACEE, tracee);
    cell.install("/tracer", tracer);
    cell.run(&["/tracer"])
}

const STOPPED: u32 = 0x7f | linux::SIGSTOP << 8;
const CALL: u32 = 0x7f | (linux::SIGTRAP | 0x80) << 8;
const TRAPPED: u32 = 0x7f | linux::SIGTRAP << 8;

const fn event(number: u32) -> u32 {
    TRAPPED | number << 16
}

#[test]
fn a_tracer_sees_and_changes_calls() {
    let tracee = tracee()
        .syscall(linux::__NR_getpid, &[])
        .returns(77)
        .syscall(linux::__NR_getppid, &[])
        .returns(99)
        .exits(3);
    let tracer = Program::new()
        .forks(TRACEE)
        .waits(STOPPED)
        .ptrace(PTRACE_SETOPTIONS, 0, PTRACE_O_TRACESYSGOOD.into())
        .returns(0)
        .ptrace(PTRACE_GET_SYSCALL_INFO, 88, OUT)
        .returns(24)
        .ptrace(PTRACE_SYSCALL, 0, 0)
        .returns(0)
        // It is no longer stopped.
        .waits(CALL)
        .register(ORIG_RAX, linux::__NR_getpid.into())
        .register(RAX, ENOSYS as u64)
        .ptrace(PTRACE_GETEVENTMSG, 0, OUT)
        .word(OUT, 1)
        .ptrace(PTRACE_GET_SYSCALL_INFO, 88, OUT)
        .returns(80)
        .word(OUT, 0xc000_003e_0000_0001)
        .word(OUT + 24, linux::__NR_getpid.into())
        .ptrace(PTRACE_SYSCALL, 0, 0)
        .waits(CALL)
        .register(RAX, 2)
        .ptrace(PTRACE_GET_SYSCALL_INFO, 88, OUT)
        .returns(33)
        .word(OUT + 24, 2)
        .ptrace(PTRACE_POKEUSR, 8 * RAX, 77)
        .returns(0)
        .ptrace(PTRACE_SYSCALL, 0, 0)
        .waits(CALL)
        // The call is skipped.
        .ptrace(PTRACE_GETREGS, 0, OUT)
        .returns(0)
        .store(OUT + 8 * ORIG_RAX, &u64::MAX.to_le_bytes())
        .store(OUT + 8 * RAX, &99_u64.to_le_bytes())
        .ptrace(PTRACE_SETREGS, 0, OUT)
        .returns(0)
        .ptrace(PTRACE_SYSCALL, 0, 0)
        .waits(CALL)
        .register(RAX, 99)
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(0x300)
        .ptrace(PTRACE_CONT, 0, 0)
        .returns(ESRCH)
        .of_tracee(linux::__NR_wait4, &[0, 0, 0])
        .returns(-10)
        .exits(0);
    assert_eq!(run(tracer, tracee), EXITED);
}

#[test]
fn a_tracer_decides_about_signals() {
    let tracee = raises(raises(tracee(), linux::SIGUSR1), linux::SIGUSR1).exits(3);
    let stopped = 0x7f | linux::SIGUSR1 << 8;
    let tracer = Program::new()
        .forks(TRACEE)
        .waits(STOPPED)
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(stopped)
        .ptrace(PTRACE_GETSIGINFO, 0, OUT)
        .returns(0)
        .expect(OUT, &[10, 0, 0, 0, 0, 0, 0, 0, 0xfa, 0xff, 0xff, 0xff])
        .ptrace(PTRACE_CONT, 0, 65)
        .returns(EIO)
        .ptrace(PTRACE_CONT, 0, 0)
        .returns(0)
        .waits(stopped)
        .ptrace(PTRACE_CONT, 0, linux::SIGTERM.into())
        .waits(linux::SIGTERM)
        .exits(0);
    assert_eq!(run(tracer, tracee), EXITED);
}

#[test]
fn a_stop_signal_that_a_tracer_passes_on_stops_the_process() {
    let tracee = raises(tracee(), linux::SIGTSTP).exits(3);
    let stopped = 0x7f | linux::SIGTSTP << 8;
    let tracer = Program::new()
        .syscall(linux::__NR_setsid, &[])
        .forks(TRACEE)
        .of_tracee(linux::__NR_setpgid, &[0])
        .waits(STOPPED)
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(stopped)
        .ptrace(PTRACE_CONT, 0, linux::SIGTSTP.into())
        // The stop of the process.
        .waits(stopped)
        .ptrace(PTRACE_GETSIGINFO, 0, OUT)
        .returns(EINVAL)
        // The parent is the tracer, and sees it once.
        .of_tracee(linux::__NR_wait4, &[STATUS, (linux::WUNTRACED | linux::WNOHANG).into(), 0])
        .returns(0)
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(0x300)
        .exits(0);
    assert_eq!(run(tracer, tracee), EXITED);
}

#[test]
fn a_tracer_reads_and_writes_memory() {
    let tracee = tracee().expect(DATA, b"POKEDold").exits(3);
    let tracer = Program::new()
        .store(DATA, b"original")
        .store(DATA + 0x40, b"original")
        .forks(TRACEE)
        .waits(STOPPED)
        .ptrace(PTRACE_PEEKDATA, DATA + 0x40, OUT)
        .returns(0)
        .expect(OUT, b"original")
        .ptrace(PTRACE_POKEDATA, DATA, u64::from_le_bytes(*b"POKEDold"))
        .returns(0)
        // A page of a file that the program may not write, as for a breakpoint.
        .ptrace(PTRACE_POKETEXT, CODE + 0xff8, 0x1234)
        .returns(0)
        .ptrace(PTRACE_PEEKTEXT, CODE + 0xff8, OUT)
        .returns(0)
        .word(OUT, 0x1234)
        .word(CODE + 0xff8, 0)
        .expect(DATA, b"original")
        .ptrace(PTRACE_PEEKTEXT, 0x1000, OUT)
        .returns(EIO)
        .ptrace(PTRACE_POKETEXT, 0x1000, 0)
        .returns(EIO)
        .ptrace(PTRACE_PEEKUSR, 3, OUT)
        .returns(EIO)
        .ptrace(PTRACE_PEEKUSR, 912, OUT)
        .returns(EIO)
        .ptrace(PTRACE_POKEUSR, 848, 1)
        .returns(EINVAL)
        // process_vm_readv: 4 and 4 bytes to 8.
        .step(|processor| {
            for (index, word) in [OUT, 8, DATA, 4, DATA + 0x44, 4].into_iter().enumerate() {
                processor.store(OUT + 0x40 + 8 * index as u64, &word.to_le_bytes())?;
            }
            Ok(())
        })
        .of_tracee(linux::__NR_process_vm_readv, &[OUT + 0x40, 1, OUT + 0x50, 2, 0])
        .returns(8)
        .expect(OUT, b"POKEinal")
        .of_tracee(linux::__NR_process_vm_readv, &[OUT + 0x40, 1, OUT + 0x50, 2, 1])
        .returns(EINVAL)
        .of_tracee(linux::__NR_process_vm_readv, &[OUT + 0x40, 1, 0x1000, 2, 0])
        .returns(-14)
        .ptrace(PTRACE_DETACH, 0, 0)
        .returns(0)
        .ptrace(PTRACE_PEEKDATA, DATA, OUT)
        .returns(ESRCH)
        .waits(0x300)
        .exits(0);
    assert_eq!(run(tracer, tracee), EXITED);
}

#[test]
fn sets_of_registers_are_read_and_written() {
    let tracee = tracee().exits(3);
    let vector = OUT + 0x800;
    let sets = |address: u64, len: u64| {
        move |processor: &mut Processor<'_>| {
            processor.store(vector, &address.to_le_bytes())?;
            processor.store(vector + 8, &len.to_le_bytes())
        }
    };
    let tracer = Program::new()
        .forks(TRACEE)
        .waits(STOPPED)
        .step(sets(OUT, 4096))
        .ptrace(PTRACE_GETREGSET, 1, vector)
        .returns(0)
        .word(vector + 8, 216)
        .ptrace(PTRACE_SETREGSET, 1, vector)
        .returns(0)
        .step(sets(OUT, 20))
        .ptrace(PTRACE_GETREGSET, 1, vector)
        .returns(EINVAL)
        .step(sets(OUT, 4096))
        .ptrace(PTRACE_GETREGSET, 0x202, vector)
        .returns(0)
        .word(vector + 8, 576)
        .word(OUT + 464, 3)
        .store(OUT + 160, b"register")
        .ptrace(PTRACE_SETREGSET, 0x202, vector)
        .returns(0)
        .step(sets(OUT, 100))
        .ptrace(PTRACE_SETREGSET, 0x202, vector)
        .returns(EINVAL)
        .ptrace(PTRACE_GETFPREGS, 0, OUT)
        .returns(0)
        .expect(OUT + 160, b"register")
        .ptrace(PTRACE_SETFPREGS, 0, OUT)
        .returns(0)
        .ptrace(PTRACE_GETREGSET, 7, vector)
        .returns(EINVAL)
        .ptrace(PTRACE_SETSIGMASK, 8, OUT)
        .returns(0)
        .ptrace(PTRACE_GETSIGMASK, 4, OUT)
        .returns(EINVAL)
        .ptrace(0x7777, 0, 0)
        .returns(EIO)
        .ptrace(PTRACE_SETOPTIONS, 0, 0x80)
        .returns(EINVAL)
        .ptrace(PTRACE_KILL, 0, 0)
        .returns(0)
        .waits(linux::SIGKILL)
        .exits(0);
    assert_eq!(run(tracer, tracee), EXITED);
}

#[test]
fn children_of_a_tracee_are_traced_from_their_begin() {
    let tracee = tracee()
        .syscall(linux::__NR_fork, &[])
        .step(|processor| {
            if processor.registers().rax == 0 {
                processor.registers().rip = GRANDCHILD;
            }
            Ok(())
        })
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .returns(3)
        .exits(3);
    let cell = Cell::new();
    cell.user_mode.place(TRACEE, tracee);
    cell.user_mode.place(GRANDCHILD, Program::new().exits(4));
    let options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEEXIT;
    let tracer = Program::new()
        .forks(TRACEE)
        .waits(STOPPED)
        .ptrace(PTRACE_SETOPTIONS, 0, options.into())
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(event(PTRACE_EVENT_FORK))
        .ptrace(PTRACE_GETEVENTMSG, 0, OUT)
        .word(OUT, 3)
        .ptrace(PTRACE_CONT, 0, 0)
        .store(PID, &3_u64.to_le_bytes())
        .waits(STOPPED)
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(event(PTRACE_EVENT_EXIT))
        .ptrace(PTRACE_GETEVENTMSG, 0, OUT)
        .word(OUT, 0x400)
        .ptrace(PTRACE_CONT, 0, 0)
        // Its tracer, which is not its parent, learns of its end, too.
        .waits(0x400)
        .store(PID, &2_u64.to_le_bytes())
        .waits(0x7f | linux::SIGCHLD << 8)
        .ptrace(PTRACE_CONT, 0, linux::SIGCHLD.into())
        .waits(event(PTRACE_EVENT_EXIT))
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(0x300)
        .exits(0);
    cell.install("/tracer", tracer);
    assert_eq!(cell.run(&["/tracer"]), EXITED);
}

#[test]
fn threads_of_a_tracee_are_traced_and_their_ends_reported() {
    let flags = linux::CLONE_VM | linux::CLONE_SIGHAND | linux::CLONE_THREAD;
    let tracee = tracee()
        .syscall(linux::__NR_clone, &[flags.into(), DATA + 0x4000, 0, 0, 0])
        .step(|processor| {
            if processor.registers().rax == 0 {
                processor.registers().rip = GRANDCHILD;
            }
            Ok(())
        })
        // Until the other thread executes a program.
        .syscall(linux::__NR_pause, &[])
        .exits(3);
    let cell = Cell::new();
    cell.user_mode.place(TRACEE, tracee);
    // A second thread creates a third one, which ends, and executes a program.
    let second = Program::new()
        .syscall(linux::__NR_clone, &[flags.into(), DATA + 0x5000, 0, 0, 0])
        .step(|processor| {
            if processor.registers().rax == 0 {
                processor.registers().rip = GRANDCHILD + 0x80;
            }
            Ok(())
        })
        .store(DATA, b"/second\0")
        .syscall(linux::__NR_execve, &[DATA, 0, 0]);
    cell.user_mode.place(GRANDCHILD, second);
    cell.user_mode.place(GRANDCHILD + 0x80, Program::new().syscall(linux::__NR_exit, &[5]));
    cell.install_at("/second", CODE + 0x10_0000, Program::new().exits(6));
    let options = PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC;
    let of = |program: Program, tid: u64| program.store(PID, &tid.to_le_bytes());
    let tracer = Program::new()
        .forks(TRACEE)
        .waits(STOPPED)
        .ptrace(PTRACE_SETOPTIONS, 0, options.into())
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(event(PTRACE_EVENT_CLONE))
        .ptrace(PTRACE_GETEVENTMSG, 0, OUT)
        .word(OUT, 3)
        .ptrace(PTRACE_CONT, 0, 0);
    let tracer = of(tracer, 3).waits(STOPPED).ptrace(PTRACE_CONT, 0, 0).waits(event(PTRACE_EVENT_CLONE));
    let tracer = of(tracer, 4).waits(STOPPED).ptrace(PTRACE_CONT, 0, 0).waits(0x500);
    let tracer = of(tracer.ptrace(PTRACE_CONT, 0, 0).returns(ESRCH), 3).ptrace(PTRACE_CONT, 0, 0);
    // The thread has the id of the process then.
    let tracer = of(tracer, 2)
        .waits(event(PTRACE_EVENT_EXEC))
        .ptrace(PTRACE_GETEVENTMSG, 0, OUT)
        .word(OUT, 3)
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(0x600)
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .returns(-10)
        .exits(0);
    cell.install("/tracer", tracer);
    assert_eq!(cell.run(&["/tracer"]), EXITED);
}

#[test]
fn a_program_that_a_tracee_executes_stops_at_its_begin() {
    let execs =
        |program: Program| program.store(DATA, b"/second\0").syscall(linux::__NR_execve, &[DATA, 0, 0]);
    let second = CODE + 0x10_0000;
    let cell = Cell::new();
    cell.user_mode.place(TRACEE, execs(tracee()));
    cell.install_at("/second", second, execs(Program::new()));
    let tracer = Program::new()
        .forks(TRACEE)
        .waits(STOPPED)
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(TRAPPED)
        .register(16, second)
        .ptrace(PTRACE_SETOPTIONS, 0, PTRACE_O_TRACEEXEC.into())
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(event(PTRACE_EVENT_EXEC))
        .ptrace(PTRACE_GETEVENTMSG, 0, OUT)
        .word(OUT, 2)
        .ptrace(PTRACE_CONT, 0, linux::SIGKILL.into())
        .waits(event(PTRACE_EVENT_EXEC))
        .ptrace(PTRACE_KILL, 0, 0)
        .waits(linux::SIGKILL)
        .exits(0);
    cell.install("/tracer", tracer);
    assert_eq!(cell.run(&["/tracer"]), EXITED);
}

#[test]
fn a_seized_process_stops_at_request_and_its_calls_continue() {
    // A pause, which a stop does not end.
    let tracee = Program::new().syscall(linux::__NR_pause, &[]).exits(9);
    let stop = event(PTRACE_EVENT_STOP);
    let stopped = STOPPED | PTRACE_EVENT_STOP << 16;
    let tracer = Program::new()
        .forks(TRACEE)
        .ptrace(PTRACE_SEIZE, 1, 0)
        .returns(EIO)
        .ptrace(PTRACE_SEIZE, 0, PTRACE_O_TRACESYSGOOD.into())
        .returns(0)
        .ptrace(PTRACE_ATTACH, 0, 0)
        .returns(EPERM)
        .ptrace(PTRACE_CONT, 0, 0)
        .returns(ESRCH)
        .ptrace(PTRACE_INTERRUPT, 0, 0)
        .returns(0)
        .waits(stop)
        .ptrace(PTRACE_CONT, 0, 0)
        // A stop of the process that the tracer leaves as it is.
        .of_tracee(linux::__NR_kill, &[linux::SIGSTOP.into()])
        .waits(STOPPED)
        .ptrace(PTRACE_LISTEN, 0, 0)
        .returns(EIO)
        .ptrace(PTRACE_CONT, 0, linux::SIGSTOP.into())
        .waits(stopped)
        .ptrace(PTRACE_LISTEN, 0, 0)
        .returns(0)
        .ptrace(PTRACE_CONT, 0, 0)
        .returns(ESRCH)
        .of_tracee(linux::__NR_kill, &[linux::SIGCONT.into()])
        .waits(stop)
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(0x7f | linux::SIGCONT << 8)
        .ptrace(PTRACE_CONT, 0, 0)
        .ptrace(PTRACE_INTERRUPT, 0, 0)
        .waits(stop)
        .ptrace(PTRACE_DETACH, 0, linux::SIGTERM.into())
        .returns(0)
        .of_tracee(linux::__NR_kill, &[linux::SIGTERM.into()])
        .waits(linux::SIGTERM)
        .exits(0);
    assert_eq!(run(tracer, tracee), EXITED);
}

#[test]
fn a_tracer_attaches_to_a_stopped_process_and_leaves_it_stopped() {
    let tracee = raises(Program::new(), linux::SIGSTOP).exits(3);
    let tracer = Program::new()
        .forks(TRACEE)
        .of_tracee(linux::__NR_wait4, &[STATUS, linux::WUNTRACED.into(), 0])
        .expect(STATUS, &STOPPED.to_le_bytes())
        .ptrace(PTRACE_ATTACH, 0, 0)
        .returns(0)
        .waits(STOPPED)
        .ptrace(PTRACE_DETACH, 0, 0)
        .returns(0)
        .of_tracee(linux::__NR_wait4, &[STATUS, linux::WNOHANG.into(), 0])
        .returns(0)
        .of_tracee(linux::__NR_kill, &[linux::SIGCONT.into()])
        .waits(0x300)
        .exits(0);
    assert_eq!(run(tracer, tracee), EXITED);
}

#[test]
fn a_single_step_ends_after_a_call() {
    let tracee = tracee().syscall(linux::__NR_getpid, &[]).exits(3);
    let tracer = Program::new()
        .forks(TRACEE)
        .waits(STOPPED)
        .ptrace(PTRACE_SINGLESTEP, 0, 0)
        .returns(0)
        .waits(TRAPPED)
        .register(RAX, 2)
        .ptrace(PTRACE_PEEKUSR, 8 * FLAGS, OUT)
        // The flag is the kernel's own.
        .step(|processor| {
            assert_eq!(word(processor, OUT)? & 0x100, 0);
            Ok(())
        })
        .ptrace(PTRACE_CONT, 0, 0)
        .waits(0x300)
        .exits(0);
    assert_eq!(run(tracer, tracee), EXITED);
}

#[test]
fn a_stepping_program_has_the_trap_flag() {
    let tracee = tracee()
        .step(|processor| {
            assert_ne!(processor.registers().rflags & 0x100, 0);
            Ok(())
        })
        .exception(1, 0);
    let tracer = Program::new()
        .forks(TRACEE)
        .waits(STOPPED)
        .ptrace(PTRACE_SINGLESTEP, 0, 0)
        .waits(TRAPPED)
        .ptrace(PTRACE_GETSIGINFO, 0, OUT)
        // TRAP_TRACE
        .word(OUT + 8, 2)
        .ptrace(PTRACE_KILL, 0, 0)
        .waits(linux::SIGKILL)
        .exits(0);
    assert_eq!(run(tracer, tracee), EXITED);
}

#[test]
fn the_end_of_a_tracer_resumes_its_tracees() {
    for (options, status) in [(0, 0x300), (PTRACE_O_EXITKILL, linux::SIGKILL)] {
        let cell = Cell::new();
        let traced = Program::new().syscall(linux::__NR_ptrace, &[PTRACE_TRACEME.into()]);
        cell.user_mode.place(GRANDCHILD, raises(traced, linux::SIGCHLD).exits(3));
        let tracer = Program::new()
            .forks(GRANDCHILD)
            .waits(0x7f | linux::SIGCHLD << 8)
            .ptrace(PTRACE_SETOPTIONS, 0, options.into())
            .returns(0)
            .exits(0);
        cell.user_mode.place(TRACEE, tracer);
        // The first process adopts the tracee.
        let first = Program::new()
            .forks(TRACEE)
            .waits(0)
            .syscall(linux::__NR_wait4, &[u64::MAX, STATUS, 0, 0])
            .returns(3)
            .expect(STATUS, &status.to_le_bytes())
            .exits(0);
        cell.install("/first", first);
        assert_eq!(cell.run(&["/first"]), EXITED);
    }
}

#[test]
fn tracing_needs_permission() {
    let cell = Cell::new();
    // A process of another user.
    cell.user_mode.place(TRACEE, Program::new().syscall(linux::__NR_pause, &[]).exits(0));
    let tracer = Program::new()
        .forks(TRACEE)
        .ptrace(PTRACE_CONT, 0, 0)
        .returns(ESRCH)
        .syscall(linux::__NR_ptrace, &[PTRACE_ATTACH.into(), 1, 0, 0])
        .returns(EPERM)
        .syscall(linux::__NR_ptrace, &[PTRACE_ATTACH.into(), 99, 0, 0])
        .returns(ESRCH)
        .syscall(linux::__NR_setuid, &[1000])
        .returns(0)
        .ptrace(PTRACE_ATTACH, 0, 0)
        .returns(EPERM)
        .ptrace(PTRACE_SEIZE, 0, 0)
        .returns(EPERM)
        .of_tracee(linux::__NR_process_vm_readv, &[DATA, 0, DATA, 0, 0])
        .returns(EPERM)
        .exits(0);
    cell.install("/tracer", tracer);
    assert_eq!(cell.run(&["/tracer"]), EXITED);
}
