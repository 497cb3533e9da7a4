//! Processes: their creation, ends, waits, signals.

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_linux_abi::numbers as linux;
use isola_linux_abi::prctl;
use isola_linux_files::{Caller, Credentials, OwnerChange};
use isola_linux_processes::signals::Signal;
use isola_linux_processes::{Errno, ExitStatus};
use isola_linux_sim::{Program, STEP_SIZE};

const EXITED: ExitStatus = ExitStatus::Exited(0);

#[test]
fn the_first_process_writes_and_ends_with_its_code() {
    let cell = Cell::new();
    let program = Program::new()
        .store(DATA, b"hello\n")
        .syscall(linux::__NR_write, &[1, DATA, 6])
        .returns(6)
        .syscall(linux::__NR_getpid, &[])
        .returns(1)
        .syscall(linux::__NR_write, &[1, 0x1000, 6])
        .returns(-14)
        .syscall(5000, &[])
        .returns(-38)
        .exits(7);
    cell.install("/hello", program);
    assert_eq!(cell.run(&["/hello"]), ExitStatus::Exited(7));
    assert_eq!(cell.output(), "hello\n");
    assert_eq!(cell.system.missing.entries(), [("call 5000".into(), 1)]);
}

#[test]
fn a_program_finds_its_arguments_on_its_stack() {
    let cell = Cell::new();
    let program = Program::new()
        .step(|processor| {
            let mut word = [0; 8];
            let stack = processor.registers().rsp;
            let mut at = |address, processor: &mut isola_linux_sim::Processor<'_>| {
                processor.load(address, &mut word).map(|()| u64::from_le_bytes(word))
            };
            assert_eq!(at(stack, processor)?, 2);
            let second = at(stack + 16, processor)?;
            let mut text = [0; 4];
            processor.load(second, &mut text)?;
            assert_eq!(&text, b"two\0");
            Ok(())
        })
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program", "two"]), EXITED);
}

#[test]
fn a_parent_waits_for_its_child_whose_memory_is_its_own() {
    let cell = Cell::new();
    let child = 9;
    let program = Program::new()
        .store(DATA, b"parent")
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        .keeps(DATA + 64)
        .syscall(linux::__NR_wait4, &[u64::MAX, DATA + 32, 0, 0])
        .returns(2)
        .expect(DATA, b"parent")
        .expect(DATA + 32, &[0, 5, 0, 0])
        .exits(0)
        // The child.
        .expect(DATA, b"parent")
        .store(DATA, b"child!")
        .syscall(linux::__NR_getppid, &[])
        .returns(1)
        .exits(5);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_program_executes_another_and_keeps_its_id() {
    let cell = Cell::new();
    let second = CODE + 0x10_0000;
    let first = Program::new()
        .store(DATA, b"/second\0")
        .store(DATA + 0x10, b"argument\0")
        .step(|processor| {
            processor.store(DATA + 0x20, &DATA.to_le_bytes())?;
            processor.store(DATA + 0x28, &(DATA + 0x10).to_le_bytes())
        })
        .syscall(linux::__NR_execve, &[DATA + 0x10, DATA + 0x20, 0])
        .returns(-2)
        .syscall(linux::__NR_execve, &[DATA, DATA + 0x20, 0])
        .step(|_| panic!("the first program is gone"));
    cell.install("/first", first);
    let program = Program::new()
        .step(|processor| {
            let mut word = [0; 8];
            processor.load(DATA, &mut word)?;
            assert_eq!(word, [0; 8], "the memory is new");
            Ok(())
        })
        .syscall(linux::__NR_getpid, &[])
        .returns(1)
        .exits(3);
    cell.install_at("/second", second, program);
    assert_eq!(cell.run(&["/first"]), ExitStatus::Exited(3));
}

#[test]
fn scripts_are_executed_by_their_interpreters() {
    let cell = Cell::new();
    let program = Program::new()
        .step(|processor| {
            let mut count = [0; 8];
            let stack = processor.registers().rsp;
            processor.load(stack, &mut count)?;
            assert_eq!(u64::from_le_bytes(count), 4);
            let mut address = [0; 8];
            processor.load(stack + 24, &mut address)?;
            let mut path = [0; 8];
            processor.load(u64::from_le_bytes(address), &mut path)?;
            assert_eq!(&path, b"/script\0");
            Ok(())
        })
        .exits(0);
    cell.install("/interpreter", program);
    cell.write_file("/script", 0o755, b"#!/interpreter -x\n");
    assert_eq!(cell.run(&["/script", "y"]), EXITED);
}

#[test]
fn a_fault_without_a_handler_ends_the_process_and_says_so() {
    let cell = Cell::new();
    cell.install("/program", Program::new().store(0x1000, b"x"));
    let status = ExitStatus::Killed { signal: Signal::SIGSEGV, dumps_core: false };
    assert_eq!(cell.run(&["/program"]), status);
    let reports = cell.environment.reports.lock().unwrap();
    assert!(reports[0].contains("process 1 ends by SIGSEGV"), "{reports:?}");
    drop(reports);
    let cell = Cell::new();
    cell.install("/program", Program::new().exception(0, 0));
    let status = ExitStatus::Killed { signal: Signal::SIGFPE, dumps_core: false };
    assert_eq!(cell.run(&["/program"]), status);
}

/// Stores a `struct sigaction` with this handler, and a restorer at step `restorer`.
fn action(handler: u64, flags: u64, restorer: u64) -> Vec<u8> {
    [handler, flags | u64::from(linux::SA_RESTORER), restorer, 0]
        .iter()
        .flat_map(|word: &u64| word.to_le_bytes())
        .collect()
}

#[test]
fn a_handler_runs_on_its_frame_and_returns_to_the_program() {
    let cell = Cell::new();
    let (handler, restorer) = (CODE + 7 * STEP_SIZE, CODE + 10 * STEP_SIZE);
    let program = Program::new()
        .store(DATA, &action(handler, u64::from(linux::SA_SIGINFO), restorer))
        .syscall(linux::__NR_rt_sigaction, &[Signal::SIGUSR1.number().into(), DATA, 0, 8])
        .returns(0)
        .syscall(linux::__NR_kill, &[1, Signal::SIGUSR1.number().into()])
        .returns(0)
        .expect(DATA + 0x100, b"handled")
        .exits(0)
        // The handler.
        .step(|processor| {
            let registers = processor.registers();
            assert_eq!(registers.rdi, 10);
            assert_eq!(registers.rsp % 16, 8);
            Ok(())
        })
        .store(DATA + 0x100, b"handled")
        // Return: the address of the restorer is on the stack.
        .step(|processor| {
            let mut word = [0; 8];
            let stack = processor.registers().rsp;
            processor.load(stack, &mut word)?;
            processor.registers().rsp += 8;
            processor.registers().rip = u64::from_le_bytes(word);
            Ok(())
        })
        .syscall(linux::__NR_rt_sigreturn, &[]);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

/// The steps with which a handler returns: the address of the restorer is on the stack, and it calls `rt_sigreturn`.
fn returns_from_handler(program: Program) -> Program {
    let program = program.step(|processor| {
        processor.registers().rsp += 8;
        Ok(())
    });
    program.syscall(linux::__NR_rt_sigreturn, &[])
}

#[test]
fn a_frame_with_a_wrong_state_returns_to_the_program_and_raises_sigsegv_there() {
    /// The offset of the pointer to the processor state in a frame: `uc_mcontext.fpstate`.
    const STATE_POINTER: u64 = 8 + 40 + 184;
    let cell = Cell::new();
    let (first, second) = (CODE + 9 * STEP_SIZE, CODE + 12 * STEP_SIZE);
    let handles = |program: Program, signal: Signal, handler| {
        let program = program.store(DATA, &action(handler, u64::from(linux::SA_SIGINFO), 0));
        program.syscall(linux::__NR_rt_sigaction, &[signal.number().into(), DATA, 0, 8]).returns(0)
    };
    let program = handles(handles(Program::new(), Signal::SIGUSR1, first), Signal::SIGSEGV, second)
        .syscall(linux::__NR_kill, &[1, Signal::SIGUSR1.number().into()])
        .expect(DATA + 0x100, b"segv")
        .exits(0)
        .step(|processor| {
            let pointer = processor.registers().rsp + STATE_POINTER;
            processor.store(pointer, &0x1000_u64.to_le_bytes())
        });
    let program = returns_from_handler(program).store(DATA + 0x100, b"segv");
    cell.install("/program", returns_from_handler(program));
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_signal_without_room_for_its_frame_becomes_sigsegv() {
    let cell = Cell::new();
    let handler = CODE + 10 * STEP_SIZE;
    let stack: Vec<u8> = [0x1000_u64, 0, 0x2000].iter().flat_map(|word| word.to_le_bytes()).collect();
    let handles = |program: Program, signal: Signal, flags: u32| {
        let program = program.store(DATA, &action(handler, u64::from(linux::SA_SIGINFO | flags), 0));
        program.syscall(linux::__NR_rt_sigaction, &[signal.number().into(), DATA, 0, 8]).returns(0)
    };
    let program = Program::new().store(DATA, &stack).syscall(linux::__NR_sigaltstack, &[DATA, 0]).returns(0);
    let program = handles(handles(program, Signal::SIGUSR1, linux::SA_ONSTACK), Signal::SIGSEGV, 0)
        .syscall(linux::__NR_kill, &[1, Signal::SIGUSR1.number().into()])
        .step(|processor| {
            assert_eq!(processor.registers().rdi, Signal::SIGSEGV.number().into());
            Ok(())
        })
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn the_link_to_a_program_is_absolute_although_its_path_was_not() {
    let cell = Cell::new();
    let program = Program::new().store(DATA, b"other\0").syscall(linux::__NR_execve, &[DATA, DATA + 0x20, 0]);
    cell.mount("/proc", isola_linux_processes::proc::proc_file_system(&cell.system));
    cell.install("/program", program);
    let other = Program::new()
        .store(DATA, b"/proc/self/exe\0")
        .syscall(linux::__NR_readlink, &[DATA, DATA + 0x100, 100])
        .returns(6)
        .expect(DATA + 0x100, b"/other\0")
        .exits(0);
    cell.install_at("/other", CODE + 0x10_0000, other);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn the_upper_half_of_the_number_of_a_call_does_not_count() {
    let cell = Cell::new();
    let program = Program::new().call(7 << 32 | u64::from(linux::__NR_getpid), [0; 6]).returns(1).exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_sleep_ends_at_its_time_and_a_signal_interrupts_it() {
    let cell = Cell::new();
    let time: Vec<u8> = [2_u64, 5].iter().flat_map(|word| word.to_le_bytes()).collect();
    let child = 7;
    let program = Program::new()
        .store(DATA, &time)
        .syscall(linux::__NR_nanosleep, &[DATA, 0])
        .returns(0)
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .exits(0)
        // The child ends its sleeping parent.
        .syscall(linux::__NR_kill, &[1, Signal::SIGTERM.number().into()])
        .returns(0)
        .exits(0);
    cell.install("/program", program);
    let status = ExitStatus::Killed { signal: Signal::SIGTERM, dumps_core: false };
    assert_eq!(cell.run(&["/program"]), status);
    use isola_linux_processes::Environment;
    assert_eq!(cell.environment.monotonic_ns(), 2_000_000_005);
}

#[test]
fn threads_share_memory_and_a_join_waits_for_the_cleared_word() {
    let cell = Cell::new();
    let flags = linux::CLONE_VM
        | linux::CLONE_FS
        | linux::CLONE_FILES
        | linux::CLONE_SIGHAND
        | linux::CLONE_THREAD
        | linux::CLONE_SYSVSEM
        | linux::CLONE_SETTLS
        | linux::CLONE_PARENT_SETTID
        | linux::CLONE_CHILD_CLEARTID;
    let (word, stack) = (DATA + 0x200, DATA + 0x8000);
    let child = 8;
    let program = Program::new()
        .syscall(linux::__NR_clone, &[flags.into(), stack, word, word, 0x7000])
        .if_zero(CODE, child)
        .returns(2)
        .expect(word, &[2, 0, 0, 0])
        .syscall(linux::__NR_futex, &[word, linux::FUTEX_WAIT.into(), 2, 0])
        .returns(0)
        .expect(DATA, b"done")
        .exits(0)
        // The thread.
        .step(move |processor| {
            let registers = processor.registers();
            assert_eq!((registers.rsp, registers.fs_base), (stack, 0x7000));
            Ok(())
        })
        .syscall(linux::__NR_sched_yield, &[])
        .syscall(linux::__NR_sched_yield, &[])
        .store(DATA, b"done")
        .syscall(linux::__NR_exit, &[0]);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    assert_eq!(cell.system.futexes.waiter_count(), 0);
}

/// A child that shares the table of descriptors with its parent.
fn clones_with_files(program: Program, child: u64) -> Program {
    let flags = u64::from(linux::CLONE_FILES | linux::SIGCHLD);
    program.syscall(linux::__NR_clone, &[flags, 0, 0, 0, 0]).if_zero(CODE, child)
}

#[test]
fn a_shared_table_of_descriptors_outlives_each_of_its_processes() {
    let cell = Cell::new();
    let child = 11;
    let program = clones_with_files(Program::new().syscall(linux::__NR_eventfd2, &[0, 0]).returns(3), child)
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .returns(2)
        // Its own descriptor, and the child's.
        .syscall(linux::__NR_fcntl, &[3, linux::F_GETFD.into()])
        .returns(0)
        .syscall(linux::__NR_fcntl, &[4, linux::F_GETFD.into()])
        .returns(0)
        .exits(0)
        .syscall(linux::__NR_dup, &[3])
        .returns(4)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn unshare_ends_the_sharing_of_descriptors_and_directories() {
    let cell = Cell::new();
    let child = 11;
    let program = Program::new()
        .syscall(linux::__NR_unshare, &[linux::CLONE_NEWPID.into()])
        .returns(-22)
        .syscall(linux::__NR_unshare, &[0])
        .returns(0);
    let program = clones_with_files(program, child)
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .returns(2)
        .syscall(linux::__NR_fcntl, &[3, linux::F_GETFD.into()])
        .returns(-9)
        .exits(0)
        .syscall(linux::__NR_unshare, &[(linux::CLONE_FILES | linux::CLONE_FS).into()])
        .returns(0)
        .syscall(linux::__NR_eventfd2, &[0, 0])
        .returns(3)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_pipe_connects_parent_and_child() {
    let cell = Cell::new();
    let child = 10;
    let program = Program::new()
        .syscall(linux::__NR_pipe2, &[DATA, 0])
        .returns(0)
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        .syscall(linux::__NR_close, &[4])
        .syscall(linux::__NR_read, &[3, DATA + 0x100, 100])
        .returns(5)
        .syscall(linux::__NR_read, &[3, DATA + 0x200, 100])
        .returns(0)
        .exits(0)
        // The child.
        .store(DATA + 0x300, b"piped")
        .syscall(linux::__NR_write, &[4, DATA + 0x300, 5])
        .returns(5)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn vfork_suspends_the_parent_until_the_child_ends() {
    let cell = Cell::new();
    let child = 4;
    let program = Program::new()
        .syscall(linux::__NR_vfork, &[])
        .if_zero(CODE, child)
        .expect(DATA, b"child")
        .exits(0)
        .syscall(linux::__NR_sched_yield, &[])
        .store(DATA, b"child")
        .syscall(linux::__NR_exit, &[0]);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_program_with_a_set_user_id_bit_runs_as_its_owner() {
    /// Verifies the ids that a call returns: real, effective, saved.
    fn ids(program: Program, call: u32, expected: [u32; 3]) -> Program {
        let at = [DATA + 0x100, DATA + 0x104, DATA + 0x108];
        program.syscall(call, &at).returns(0).step(move |processor| {
            let mut found = [0; 12];
            processor.load(DATA + 0x100, &mut found)?;
            let expected: Vec<u8> = expected.iter().flat_map(|id| id.to_le_bytes()).collect();
            assert_eq!(found[..], expected[..]);
            Ok(())
        })
    }
    // With and without `PR_SET_NO_NEW_PRIVS`.
    for (refused, user, group) in [(false, [33, 0, 0], [33, 7, 7]), (true, [33; 3], [33; 3])] {
        let cell = Cell::new();
        let second = CODE + 0x10_0000;
        let mut first = Program::new()
            .store(DATA, b"/second\0")
            .store(DATA + 0x10, b"/plain\0")
            .syscall(linux::__NR_chown, &[DATA, 0, 7])
            .returns(0)
            .syscall(linux::__NR_chmod, &[DATA, 0o6755])
            .returns(0)
            .syscall(linux::__NR_setresgid, &[33, 33, 33])
            .returns(0)
            .syscall(linux::__NR_setresuid, &[33, 33, 33])
            .returns(0);
        if refused {
            first = first.syscall(linux::__NR_prctl, &[prctl::PR_SET_NO_NEW_PRIVS.into(), 1]).returns(0);
        }
        cell.install("/first", first.syscall(linux::__NR_execve, &[DATA, 0, 0]).returns(0));
        let program = ids(ids(Program::new(), linux::__NR_getresuid, user), linux::__NR_getresgid, group)
            .step(move |processor| {
                // The auxiliary vector is behind the arguments and an empty environment.
                let (mut count, stack) = ([0; 8], processor.registers().rsp);
                processor.load(stack, &mut count)?;
                let mut at = stack + 8 * (u64::from_le_bytes(count) + 3);
                loop {
                    let mut pair = [0; 16];
                    processor.load(at, &mut pair)?;
                    let word = |from: usize| u64::from_le_bytes(pair[from..from + 8].try_into().unwrap());
                    assert_ne!(word(0), 0, "AT_SECURE is there");
                    if word(0) == u64::from(linux::AT_SECURE) {
                        assert_eq!(word(8), u64::from(!refused));
                        return Ok(());
                    }
                    at += 16;
                }
            })
            .syscall(linux::__NR_prctl, &[prctl::PR_GET_DUMPABLE.into()])
            .returns(i64::from(refused))
            // The real user is not privileged: the program can leave its privileges for good.
            .syscall(linux::__NR_setresuid, &[33, 33, 33])
            .returns(0)
            .syscall(linux::__NR_setresuid, &[0, 0, 0])
            .returns(-1)
            .exits(0);
        cell.install_at("/second", second, program);
        assert_eq!(cell.run(&["/first"]), EXITED);
    }
}

#[test]
fn a_process_owns_its_directory_of_proc_and_keeps_its_name_as_a_zombie() {
    const USER_OF_STAT: u64 = DATA + 0x100 + 28;
    let cell = Cell::new();
    cell.mount("/proc", isola_linux_processes::proc::proc_file_system(&cell.system));
    let child = CODE + 0x10_0000;
    let program = Program::new()
        .store(DATA, b"/proc/2\0")
        .store(DATA + 0x10, b"/proc/2/fd\0")
        .store(DATA + 0x20, b"/proc/2/stat\0")
        .syscall(linux::__NR_setresuid, &[33, 33, 33])
        .returns(0)
        .syscall(linux::__NR_fork, &[])
        .if_zero(child, 0)
        .returns(2)
        .store(DATA + 0x80, &[0; 8])
        .store(DATA + 0x88, &1_000_000_u64.to_le_bytes())
        .syscall(linux::__NR_nanosleep, &[DATA + 0x80, 0])
        .returns(0)
        .syscall(linux::__NR_stat, &[DATA, DATA + 0x100])
        .returns(0)
        .expect(USER_OF_STAT, &33_u32.to_le_bytes())
        .syscall(linux::__NR_open, &[DATA + 0x20, 0])
        .returns(3)
        .syscall(linux::__NR_read, &[3, DATA + 0x200, 11])
        .returns(11)
        .expect(DATA + 0x200, b"2 (named) Z")
        // Its own open files can be listed; those of another user's process cannot.
        .store(DATA + 0x16, b"1/fd\0")
        .syscall(linux::__NR_open, &[DATA + 0x10, 0])
        .returns(4)
        .exits(0);
    let named = Program::new()
        .store(DATA, b"named\0")
        .syscall(linux::__NR_prctl, &[prctl::PR_SET_NAME.into(), DATA])
        .returns(0)
        .exits(0);
    cell.user_mode.place(child, named);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_program_opens_its_standard_output_by_its_name_in_proc() {
    let cell = Cell::new();
    cell.mount("/proc", isola_linux_processes::proc::proc_file_system(&cell.system));
    let program = Program::new()
        .store(DATA, b"/proc/self/fd/2\0")
        .store(DATA + 0x20, b"log\n")
        .syscall(linux::__NR_open, &[DATA, (linux::O_WRONLY | linux::O_APPEND).into()])
        .returns(3)
        .syscall(linux::__NR_write, &[3, DATA + 0x20, 4])
        .returns(4)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    assert_eq!(cell.output(), "log\n");
}

#[test]
fn debuggers_find_the_start_of_a_program_in_proc() {
    let cell = Cell::new();
    cell.mount("/proc", isola_linux_processes::proc::proc_file_system(&cell.system));
    let program = Program::new()
        .store(DATA, b"/proc/self/auxv\0")
        .syscall(linux::__NR_open, &[DATA, 0])
        .returns(3)
        .syscall(linux::__NR_read, &[3, DATA + 0x100, 0x1000])
        .step(|processor| {
            let len = processor.registers().rax as usize;
            let mut bytes = vec![0; len];
            processor.load(DATA + 0x100, &mut bytes)?;
            let words: Vec<u64> =
                bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            let pairs: Vec<&[u64]> = words.chunks(2).collect();
            assert!(pairs.contains(&&[linux::AT_ENTRY.into(), CODE][..]), "{pairs:x?}");
            assert_eq!(pairs.last(), Some(&&[u64::from(linux::AT_NULL), 0][..]));
            Ok(())
        })
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_program_that_does_not_exist_leaves_the_first_id_to_the_next() {
    let cell = Cell::new();
    cell.install("/program", Program::new().syscall(linux::__NR_getpid, &[]).returns(1).exits(0));
    assert_eq!(cell.try_run(&["/none"]), Err(isola_linux_processes::Errno::ENOENT));
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn a_file_gives_capabilities_that_its_starter_does_not_have() {
    let second = CODE + 0x10_0000;
    let words = |words: [u32; 5]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let effective = linux::VFS_CAP_REVISION_2 | linux::VFS_CAP_FLAGS_EFFECTIVE;
    let setuid = 1 << linux::CAP_SETUID;
    // The attribute, and the results of execve and setuid.
    for (value, started, changed) in [
        (words([effective, setuid, 0, 0, 0]), true, 0),
        (words([effective, 1, 0, 0, 0]), true, -1),
        (words([linux::VFS_CAP_REVISION_2, setuid, 0, 0, 0]), true, -1),
        (vec![1, 2, 3], false, 0),
    ] {
        for forbids in [false, true] {
            let cell = Cell::new();
            let first = Program::new().store(DATA, b"/second\0");
            let first = match forbids {
                true => first
                    .syscall(linux::__NR_prctl, &[prctl::PR_SET_NO_NEW_PRIVS.into(), 1, 0, 0, 0])
                    .returns(0),
                false => first,
            };
            let first = first
                .syscall(linux::__NR_setuid, &[33])
                .returns(0)
                .syscall(linux::__NR_execve, &[DATA, 0, 0])
                .returns(-22)
                .exits(3);
            cell.install("/first", first);
            let changed = if forbids { -1 } else { changed };
            let program = Program::new()
                .syscall(linux::__NR_setgid, &[7])
                .returns(-1)
                .syscall(linux::__NR_setuid, &[7])
                .returns(changed)
                .syscall(linux::__NR_prctl, &[prctl::PR_GET_DUMPABLE.into()])
                .returns(i64::from(forbids))
                .exits(4);
            cell.install_at("/second", second, program);
            isola_linux_sim::run(cell.as_root(async |caller| {
                let name = b"security.capability";
                caller.set_attribute_at(linux::AT_FDCWD, b"/second", name, &value, 0, 0).await.unwrap();
            }));
            let code = if started || forbids { 4 } else { 3 };
            assert_eq!(cell.run(&["/first"]), ExitStatus::Exited(code), "{value:?}");
        }
    }
}

#[test]
fn capabilities_of_a_file_end_with_a_change_of_its_owner() {
    let cell = Cell::new();
    cell.write_file("/file", 0o755, b"x");
    isola_linux_sim::run(cell.as_root(async |caller| {
        let name = b"security.capability";
        let value = [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let limited = Credentials { capabilities: 1 << linux::CAP_SYS_ADMIN, ..caller.credentials.clone() };
        let limited = Caller { credentials: &limited, ..*caller };
        let refused = limited.set_attribute_at(linux::AT_FDCWD, b"/file", name, &value, 0, 0).await;
        assert_eq!(refused, Err(Errno::EPERM));
        caller.set_attribute_at(linux::AT_FDCWD, b"/file", name, &value, 0, 0).await.unwrap();
        let found = caller.attribute_at(linux::AT_FDCWD, b"/file", name, 0).await;
        assert_eq!(found, Ok(value.to_vec()));
        let owner = OwnerChange { user: Some(7), group: None };
        caller.chown_at(linux::AT_FDCWD, b"/file", owner, 0).await.unwrap();
        let found = caller.attribute_at(linux::AT_FDCWD, b"/file", name, 0).await;
        assert_eq!(found, Err(Errno::ENODATA));
    }));
}
