//! Restartable sequences (`rseq`).

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_linux_abi::numbers as linux;
use isola_linux_processes::ExitStatus;
use isola_linux_sim::{Program, STEP_SIZE};

const EXITED: ExitStatus = ExitStatus::Exited(0);
const SIGNATURE: u64 = 0x5305_3053;
const AREA: u64 = DATA;
const SEQUENCE: u64 = DATA + 0x100;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the address of a step.
fn step(index: u64) -> u64 {
    CODE + index * STEP_SIZE
}

fn run(program: Program) -> ExitStatus {
    let cell = Cell::new();
    cell.install("/program", program);
    cell.run(&["/program"])
}

#[test]
fn mistakes_are_refused() {
    let rseq = linux::__NR_rseq;
    let program = Program::new()
        .syscall(rseq, &[AREA, 32, 1, SIGNATURE])
        .returns(-22)
        .syscall(rseq, &[AREA, 32, 2, SIGNATURE])
        .returns(-22)
        .syscall(rseq, &[AREA, 31, 0, SIGNATURE])
        .returns(-22)
        .syscall(rseq, &[AREA + 8, 32, 0, SIGNATURE])
        .returns(-22)
        .syscall(rseq, &[0, 32, 0, SIGNATURE])
        .returns(-14)
        .syscall(rseq, &[1 << 47, 32, 0, SIGNATURE])
        .returns(-14)
        .syscall(rseq, &[AREA, 32, 0, SIGNATURE])
        .returns(0)
        .syscall(rseq, &[AREA, 32, 0, SIGNATURE])
        .returns(-16)
        .syscall(rseq, &[AREA, 32, 0, 1])
        .returns(-1)
        .syscall(rseq, &[AREA + 32, 32, 0, SIGNATURE])
        .returns(-22)
        .syscall(rseq, &[AREA, 32, 1, 1])
        .returns(-1)
        .syscall(rseq, &[AREA + 32, 32, 1, SIGNATURE])
        .returns(-22)
        .syscall(rseq, &[AREA, 32, 1, SIGNATURE])
        .returns(0)
        .expect(AREA, &words(&[0xffff_ffff_0000_0000]))
        .syscall(rseq, &[AREA, 32, 0, SIGNATURE])
        .returns(0)
        .exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn an_area_that_cannot_be_written_is_a_fault_of_the_program() {
    let program = Program::new().syscall(linux::__NR_rseq, &[0x1000, 32, 0, SIGNATURE]).exits(0);
    let ExitStatus::Killed { signal, .. } = run(program) else { panic!("the program continued") };
    assert_eq!(signal.number(), 11);
}

/// A program that is interrupted in front of its step 6, with a sequence of `steps` steps from step `start` on. Its handler is
/// step 8. The memory in front of it is zeros.
fn interrupted(signature: u64, (start, steps): (u64, u64)) -> Program {
    Program::new()
        .store(AREA, &words(&[0, 0, 0, 0]))
        .store(SEQUENCE, &words(&[0, step(start), steps * STEP_SIZE, step(8)]))
        .syscall(linux::__NR_rseq, &[AREA, 32, 0, signature])
        .returns(0)
        .store(AREA + 8, &words(&[SEQUENCE]))
        .interrupt()
        .expect(AREA + 8, &words(&[0]))
        .exits(9)
        .expect(AREA + 8, &words(&[0]))
        .exits(0)
}

#[test]
fn an_interrupted_sequence_continues_at_its_handler() {
    assert_eq!(run(interrupted(0, (5, 2))), EXITED);
    assert_eq!(run(interrupted(0, (6, 1))), EXITED);
}

#[test]
fn a_program_outside_of_its_sequence_continues() {
    assert_eq!(run(interrupted(0, (5, 1))), ExitStatus::Exited(9));
    assert_eq!(run(interrupted(0, (7, 1))), ExitStatus::Exited(9));
}

#[test]
fn a_sequence_without_the_signature_or_with_its_handler_inside_is_a_fault() {
    let ends_by_fault = |program| {
        let status = run(program);
        let ExitStatus::Killed { signal, .. } = status else { panic!("{status:?}") };
        assert_eq!(signal.number(), 11);
    };
    ends_by_fault(interrupted(SIGNATURE, (5, 2)));
    ends_by_fault(interrupted(0, (5, 4)));
    ends_by_fault(interrupted(0, (5, u64::MAX / 4)));
}

#[test]
fn children_inherit_the_registration_and_threads_and_new_programs_do_not() {
    let child = 10;
    let program = Program::new()
        .store(DATA + 0x400, b"/second\0")
        .syscall(linux::__NR_rseq, &[AREA, 32, 0, SIGNATURE])
        .returns(0)
        .store(AREA, &words(&[0x1234_5678, 0]))
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        // The parent: its words stay as it stays on its core.
        .syscall(linux::__NR_wait4, &[u64::MAX, DATA + 0x300, 0, 0])
        .expect(DATA + 0x300, &[0; 4])
        .syscall(linux::__NR_execve, &[DATA + 0x400, 0, 0])
        .exits(1)
        // The child: the kernel has written its core, the second one.
        .expect(AREA, &words(&[1 << 32 | 1]))
        .syscall(linux::__NR_rseq, &[AREA, 32, 0, SIGNATURE])
        .returns(-16)
        .exits(0);
    let cell = Cell::new();
    cell.install("/program", program);
    let second = Program::new().syscall(linux::__NR_rseq, &[AREA, 32, 0, SIGNATURE]).returns(0).exits(0);
    cell.install_at("/second", CODE + 0x10_0000, second);
    assert_eq!(cell.run(&["/program"]), EXITED);
}
