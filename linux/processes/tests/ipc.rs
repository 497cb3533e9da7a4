//! System V inter-process communication between processes.

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_linux_abi::numbers as linux;
use isola_linux_processes::ExitStatus;
use isola_linux_sim::Program;

const EXITED: ExitStatus = ExitStatus::Exited(0);
const CREATE: u64 = 0o1000;
const NOWAIT: u64 = 0o4000;
const RESULT: u64 = DATA + 0x200;
const TEXT: u64 = DATA + 0x400;
/// An address of an attachment.
const PLACE: u64 = 0x7000_0000;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns a `struct sembuf`.
fn operation(index: u16, change: i16, flags: u16) -> Vec<u8> {
    [index, change as u16, flags].iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn run(program: Program) -> (ExitStatus, Cell) {
    let cell = Cell::new();
    cell.install("/program", program);
    (cell.run(&["/program"]), cell)
}

#[test]
fn mistakes_are_refused() {
    let program = Program::new()
        .syscall(linux::__NR_shmget, &[0, 0, 0o600])
        .returns(-22)
        .syscall(linux::__NR_shmget, &[0, 65 << 20, 0o600])
        .returns(-22)
        .syscall(linux::__NR_shmget, &[0, 4096, 0o4600])
        .returns(-12)
        .syscall(linux::__NR_shmget, &[7, 4096, 0o600])
        .returns(-2)
        .syscall(linux::__NR_shmat, &[5, 0, 0])
        .returns(-22)
        .syscall(linux::__NR_shmdt, &[DATA])
        .returns(-22)
        .syscall(linux::__NR_shmctl, &[5, 2, RESULT])
        .returns(-22)
        .syscall(linux::__NR_shmctl, &[5, 99, RESULT])
        .returns(-22)
        .syscall(linux::__NR_shmget, &[0, 4096, 0o600])
        .returns(0)
        .syscall(linux::__NR_shmat, &[0, 1, 0])
        .returns(-22)
        .syscall(linux::__NR_shmat, &[0, DATA, 0])
        .returns(-22)
        .syscall(linux::__NR_shmat, &[0, 0, 1])
        .returns(-22)
        .syscall(linux::__NR_shmat, &[0, 0, 0o40_000])
        .returns(-22)
        .syscall(linux::__NR_shmctl, &[0, 2, 0x1000])
        .returns(-14)
        .syscall(linux::__NR_semget, &[0, 0, 0o600])
        .returns(-22)
        .syscall(linux::__NR_semget, &[0, 32_001, 0o600])
        .returns(-22)
        .syscall(linux::__NR_semget, &[0, u64::MAX, 0o600])
        .returns(-22)
        .syscall(linux::__NR_semget, &[0, 32_000, 0o600])
        .returns(0)
        .syscall(linux::__NR_semget, &[0, 1, 0o600])
        .returns(-28)
        .syscall(linux::__NR_semop, &[0, DATA, 0])
        .returns(-22)
        .syscall(linux::__NR_semop, &[0, DATA, 501])
        .returns(-7)
        .syscall(linux::__NR_semop, &[0, 0x1000, 1])
        .returns(-14)
        .syscall(linux::__NR_semop, &[9, DATA, 1])
        .returns(-22)
        .syscall(linux::__NR_semctl, &[0, 32_000, 12, 0])
        .returns(-22)
        .syscall(linux::__NR_semctl, &[0, 0, 17, 0x1000])
        .returns(-14)
        .syscall(linux::__NR_msgget, &[0, 0o600])
        .returns(0)
        .syscall(linux::__NR_msgsnd, &[0, TEXT, 8193, 0])
        .returns(-22)
        .syscall(linux::__NR_msgsnd, &[0, TEXT, 1, 0])
        .returns(-22)
        .store(TEXT, &words(&[1]))
        .syscall(linux::__NR_msgsnd, &[0, DATA + 0xfff8, 8, 0])
        .returns(-22)
        .syscall(linux::__NR_msgsnd, &[3, TEXT, 1, 0])
        .returns(-22)
        .syscall(linux::__NR_msgrcv, &[0, TEXT, u64::MAX, 0, 0])
        .returns(-22)
        .syscall(linux::__NR_msgrcv, &[0, TEXT, 1, 0, NOWAIT])
        .returns(-42)
        .syscall(linux::__NR_msgctl, &[0, 77, 0])
        .returns(-22)
        .exits(0);
    assert_eq!(run(program).0, EXITED);
}

#[test]
fn a_segment_lives_until_its_last_detachment() {
    let child = 19;
    let program = Program::new()
        .syscall(linux::__NR_shmget, &[7, 8000, CREATE | 0o600])
        .returns(0)
        .syscall(linux::__NR_shmat, &[0, PLACE, 0])
        .returns(PLACE as i64)
        .store(PLACE + 4096, b"first")
        .syscall(linux::__NR_shmctl, &[0, 0, 0])
        .returns(0)
        .syscall(linux::__NR_shmget, &[7, 8000, 0o600])
        .returns(-2)
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        .syscall(linux::__NR_wait4, &[u64::MAX, RESULT, 0, 0])
        .expect(RESULT, &[0; 4])
        .expect(PLACE + 4096, b"child")
        .syscall(linux::__NR_shmctl, &[0, 2, RESULT])
        // Key, mode with SHM_DEST, size, attachments.
        .expect(RESULT, &[0; 4])
        .expect(RESULT + 20, &0o1600_u32.to_le_bytes())
        .expect(RESULT + 48, &words(&[8000]))
        .jump(CODE, 25)
        // The child.
        .expect(PLACE + 4096, b"first")
        .store(PLACE + 4096, b"child")
        .syscall(linux::__NR_shmctl, &[0, 2, RESULT])
        .expect(RESULT + 88, &words(&[2]))
        .exits(0)
        .exits(9)
        // The parent.
        .expect(RESULT + 88, &words(&[1]))
        .syscall(linux::__NR_shmdt, &[PLACE + 4096])
        .returns(-22)
        .syscall(linux::__NR_shmdt, &[PLACE])
        .returns(0)
        .syscall(linux::__NR_shmctl, &[0, 2, RESULT])
        .returns(-22)
        .exits(0);
    let (status, cell) = run(program);
    assert_eq!(status, EXITED);
    assert_eq!(cell.system.ipc.memories.lock().count(), 0);
}

#[test]
fn a_semaphore_makes_a_process_wait_and_is_restored_at_the_end_of_another() {
    let child = 12;
    let program = Program::new()
        .syscall(linux::__NR_semget, &[0, 1, 0o600])
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        .store(DATA, &operation(0, -5, 0))
        .store(RESULT, &words(&[1, 0]))
        // The value is 5 only while the child lives.
        .syscall(linux::__NR_semtimedop, &[0, DATA, 1, RESULT])
        .returns(-11)
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .syscall(linux::__NR_semctl, &[0, 0, 12, 0])
        .returns(1)
        .exits(0)
        .exits(9)
        // The child: 1 stays, 3 are undone.
        .store(DATA, &operation(0, 3, 0x1000))
        .syscall(linux::__NR_semop, &[0, DATA, 1])
        .store(DATA, &operation(0, 1, 0))
        .syscall(linux::__NR_semop, &[0, DATA, 1])
        .returns(0)
        .syscall(linux::__NR_semctl, &[0, 0, 14, 0])
        .returns(1)
        .syscall(linux::__NR_semctl, &[0, 0, 12, 0])
        .returns(4)
        .exits(0);
    let (status, cell) = run(program);
    assert_eq!(status, EXITED);
    let mut table = cell.system.ipc.semaphores.table.lock();
    assert_eq!(table.get(0).unwrap().1.semaphores()[0].waiting_for_more, 0);
}

#[test]
fn a_removed_queue_ends_the_waits() {
    let child = 9;
    let program = Program::new()
        .syscall(linux::__NR_msgget, &[0, 0o600])
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        .syscall(linux::__NR_msgrcv, &[0, TEXT, 100, 0, 0])
        .returns(3)
        .expect(TEXT, &[7, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c'])
        .syscall(linux::__NR_msgrcv, &[0, TEXT, 100, 0, 0])
        .returns(-43)
        .exits(0)
        // The child.
        .store(RESULT, &words(&[0, 1000]))
        .syscall(linux::__NR_nanosleep, &[RESULT, 0])
        .store(TEXT, &[7, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c'])
        .syscall(linux::__NR_msgsnd, &[0, TEXT, 3, 0])
        .returns(0)
        .syscall(linux::__NR_nanosleep, &[RESULT, 0])
        .syscall(linux::__NR_msgctl, &[0, 0, 0])
        .returns(0)
        .exits(0);
    assert_eq!(run(program).0, EXITED);
}

#[test]
fn strangers_are_refused() {
    let program = Program::new()
        .syscall(linux::__NR_shmget, &[7, 4096, CREATE | 0o640])
        .syscall(linux::__NR_semget, &[7, 1, CREATE | 0o600])
        .syscall(linux::__NR_msgget, &[7, CREATE | 0o600])
        .syscall(linux::__NR_setresuid, &[5, 5, 5])
        .returns(0)
        .syscall(linux::__NR_setresgid, &[5, 5, 5])
        .syscall(linux::__NR_shmat, &[0, 0, 0])
        .returns(-13)
        .syscall(linux::__NR_shmctl, &[0, 0, 0])
        .returns(-1)
        .store(DATA, &operation(0, 1, 0))
        .syscall(linux::__NR_semop, &[0, DATA, 1])
        .returns(-13)
        .syscall(linux::__NR_semctl, &[0, 0, 16, 1])
        .returns(-13)
        .syscall(linux::__NR_semctl, &[0, 0, 0, 0])
        .returns(-1)
        .store(TEXT, &words(&[1]))
        .syscall(linux::__NR_msgsnd, &[0, TEXT, 1, 0])
        .returns(-13)
        .syscall(linux::__NR_msgctl, &[0, 0, 0])
        .returns(-1)
        .exits(0);
    assert_eq!(run(program).0, EXITED);
}
