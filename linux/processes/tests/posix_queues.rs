//! POSIX message queues between processes.

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_linux_abi::numbers as linux;
use isola_linux_processes::ExitStatus;
use isola_linux_sim::Program;

const EXITED: ExitStatus = ExitStatus::Exited(0);
const NAME: u64 = DATA;
const ATTRIBUTES: u64 = DATA + 0x100;
const TIME: u64 = DATA + 0x200;
const TEXT: u64 = DATA + 0x300;
const RECEIVED: u64 = DATA + 0x400;
const PRIORITY: u64 = DATA + 0x500;
const EVENT: u64 = DATA + 0x600;
const MASK: u64 = DATA + 0x700;

const CREATE: u64 = linux::O_CREAT as u64;
const EXCLUSIVE: u64 = linux::O_EXCL as u64;
const NONBLOCK: u64 = linux::O_NONBLOCK as u64;
const WRITE: u64 = linux::O_WRONLY as u64;
const BOTH: u64 = linux::O_RDWR as u64;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the first steps: the name of a queue, and the attributes of one with 2 messages of 16 bytes.
fn begin() -> Program {
    Program::new().store(NAME, b"queue\0").store(ATTRIBUTES, &words(&[0, 2, 16, 0, 0, 0, 0, 0]))
}

fn run(program: Program) -> ExitStatus {
    let cell = Cell::new();
    cell.install("/program", program);
    cell.run(&["/program"])
}

#[test]
fn mistakes_are_refused() {
    let long = [vec![b'x'; 256], vec![0]].concat();
    let program = begin()
        .syscall(linux::__NR_mq_open, &[NAME, BOTH, 0, 0])
        .returns(-2)
        .syscall(linux::__NR_mq_open, &[0x1000, BOTH, 0, 0])
        .returns(-14)
        .syscall(linux::__NR_mq_open, &[NAME, CREATE | 3, 0o600, 0])
        .returns(-22)
        .store(TEXT, b"a/b\0")
        .syscall(linux::__NR_mq_open, &[TEXT, CREATE | BOTH, 0o600, 0])
        .returns(-13)
        .store(TEXT, b"\0")
        .syscall(linux::__NR_mq_open, &[TEXT, CREATE | BOTH, 0o600, 0])
        .returns(-2)
        .store(TEXT, &long)
        .syscall(linux::__NR_mq_open, &[TEXT, CREATE | BOTH, 0o600, 0])
        .returns(-36)
        .syscall(linux::__NR_mq_open, &[NAME, CREATE | BOTH, 0o600, 0x1000])
        .returns(-14)
        .store(ATTRIBUTES, &words(&[0, 0, 16]))
        .syscall(linux::__NR_mq_open, &[NAME, CREATE | BOTH, 0o600, ATTRIBUTES])
        .returns(-22)
        .store(ATTRIBUTES, &words(&[0, u64::MAX, 16]))
        .syscall(linux::__NR_mq_open, &[NAME, CREATE | BOTH, 0o600, ATTRIBUTES])
        .returns(-22)
        // More than RLIMIT_MSGQUEUE, which is 819,200.
        .store(ATTRIBUTES, &words(&[0, 1000, 16_384]))
        .syscall(linux::__NR_mq_open, &[NAME, CREATE | BOTH, 0o600, ATTRIBUTES])
        .returns(-24)
        .syscall(linux::__NR_mq_unlink, &[NAME])
        .returns(-2)
        .store(ATTRIBUTES, &words(&[0, 2, 16]))
        .syscall(linux::__NR_mq_open, &[NAME, CREATE | WRITE, 0o600, ATTRIBUTES])
        .returns(3)
        .syscall(linux::__NR_mq_open, &[NAME, CREATE | EXCLUSIVE | BOTH, 0o600, ATTRIBUTES])
        .returns(-17)
        .syscall(linux::__NR_mq_timedreceive, &[3, RECEIVED, 16, 0, 0])
        .returns(-9)
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 17, 0, 0])
        .returns(-90)
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 1, 32_768, 0])
        .returns(-22)
        .syscall(linux::__NR_mq_timedsend, &[3, 0x1000, 1, 0, 0])
        .returns(-14)
        .syscall(linux::__NR_mq_timedsend, &[1, TEXT, 1, 0, 0])
        .returns(-9)
        .store(TIME, &words(&[0, 1_000_000_000]))
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 1, 0, TIME])
        .returns(-22)
        .syscall(linux::__NR_mq_open, &[NAME, NONBLOCK, 0, 0])
        .returns(4)
        .syscall(linux::__NR_mq_timedsend, &[4, TEXT, 1, 0, 0])
        .returns(-9)
        .syscall(linux::__NR_mq_timedreceive, &[4, RECEIVED, 15, 0, 0])
        .returns(-90)
        .syscall(linux::__NR_mq_timedreceive, &[4, RECEIVED, 16, 0, 0])
        .returns(-11)
        .store(EVENT, &words(&[0, 2 << 32 | 10, 0]))
        .syscall(linux::__NR_mq_notify, &[3, EVENT])
        .returns(-22)
        .store(EVENT, &words(&[0, 65, 0]))
        .syscall(linux::__NR_mq_notify, &[3, EVENT])
        .returns(-22)
        .syscall(linux::__NR_mq_notify, &[1, 0])
        .returns(-9)
        .store(ATTRIBUTES, &words(&[1, 0, 0, 0, 0, 0, 0, 0]))
        .syscall(linux::__NR_mq_getsetattr, &[3, ATTRIBUTES, 0])
        .returns(-22)
        .syscall(linux::__NR_mq_getsetattr, &[1, 0, 0])
        .returns(-9)
        .exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn messages_come_by_priority_and_age_and_a_full_queue_takes_none() {
    let program = begin()
        .syscall(linux::__NR_mq_open, &[NAME, CREATE | BOTH | NONBLOCK, 0o600, ATTRIBUTES])
        .returns(3)
        .store(TEXT, b"one")
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 3, 5, 0])
        .returns(0)
        .store(TEXT, b"two")
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 3, 7, 0])
        .returns(0)
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 3, 7, 0])
        .returns(-11)
        .syscall(linux::__NR_mq_timedreceive, &[3, RECEIVED, 16, PRIORITY, 0])
        .returns(3)
        .expect(RECEIVED, b"two")
        .expect(PRIORITY, &[7, 0, 0, 0])
        .store(TEXT, b"new")
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 3, 5, 0])
        .returns(0)
        .syscall(linux::__NR_mq_getsetattr, &[3, 0, RECEIVED])
        .returns(0)
        .expect(RECEIVED, &words(&[NONBLOCK, 2, 16, 2, 0, 0, 0, 0]))
        .syscall(linux::__NR_mq_timedreceive, &[3, RECEIVED, 16, PRIORITY, 0])
        .expect(RECEIVED, b"one")
        .syscall(linux::__NR_mq_timedreceive, &[3, RECEIVED, 100, 0, 0])
        .returns(3)
        .expect(RECEIVED, b"new")
        // Without a name the queue lives as long as its descriptors.
        .syscall(linux::__NR_mq_unlink, &[NAME])
        .returns(0)
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 0, 0, 0])
        .returns(0)
        .syscall(linux::__NR_mq_timedreceive, &[3, RECEIVED, 16, 0, 0])
        .returns(0)
        .syscall(linux::__NR_mq_open, &[NAME, BOTH, 0, 0])
        .returns(-2)
        // A wait ends at its time, 0.5 s after the start of the test.
        .store(ATTRIBUTES, &words(&[0, 0, 0, 0, 0, 0, 0, 0]))
        .syscall(linux::__NR_mq_getsetattr, &[3, ATTRIBUTES, 0])
        .returns(0)
        .store(TIME, &words(&[1_700_000_000, 500_000_000]))
        .syscall(linux::__NR_mq_timedreceive, &[3, RECEIVED, 16, 0, TIME])
        .returns(-110)
        .exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn a_receiver_waits_for_a_message_and_a_sender_for_room() {
    let child = 12;
    let program = begin()
        .syscall(linux::__NR_mq_open, &[NAME, CREATE | BOTH, 0o600, ATTRIBUTES])
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        .syscall(linux::__NR_mq_timedreceive, &[3, RECEIVED, 16, 0, 0])
        .returns(2)
        .syscall(linux::__NR_nanosleep, &[TIME, 0])
        .syscall(linux::__NR_mq_timedreceive, &[3, RECEIVED, 16, 0, 0])
        .returns(2)
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .exits(0)
        // The child, which sends three messages to a queue of two while the parent sleeps.
        .store(TIME, &words(&[0, 1000]))
        .syscall(linux::__NR_nanosleep, &[TIME, 0])
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 2, 0, 0])
        .returns(0)
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 2, 0, 0])
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 2, 0, 0])
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 2, 0, 0])
        .returns(0)
        .exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn a_message_in_an_empty_queue_notifies_a_process_once() {
    let signals = 1_u64 << (10 - 1);
    let program = begin()
        .store(MASK, &words(&[signals]))
        .syscall(linux::__NR_rt_sigprocmask, &[0, MASK, 0, 8])
        .syscall(linux::__NR_mq_open, &[NAME, CREATE | BOTH | NONBLOCK, 0o600, ATTRIBUTES])
        // SIGUSR1 with the value 0x77.
        .store(EVENT, &words(&[0x77, 10, 0]))
        .syscall(linux::__NR_mq_notify, &[3, EVENT])
        .returns(0)
        .syscall(linux::__NR_mq_notify, &[3, EVENT])
        .returns(-16)
        .syscall(linux::__NR_read, &[3, RECEIVED, 100])
        .returns(60)
        .expect(RECEIVED, b"QSIZE:0          NOTIFY:0     SIGNO:10    NOTIFY_PID:1     \n")
        .syscall(linux::__NR_write, &[3, RECEIVED, 1])
        .returns(-22)
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 1, 0, 0])
        .store(TIME, &words(&[0, 0]))
        .syscall(linux::__NR_rt_sigtimedwait, &[MASK, RECEIVED, TIME, 8])
        .returns(10)
        // `si_code` is SI_MESGQ, and the value is behind the sender.
        .expect(RECEIVED + 8, &(-3_i32).to_le_bytes())
        .expect(RECEIVED + 24, &words(&[0x77]))
        // The notification is over, and one for a queue with messages waits until it is empty.
        .syscall(linux::__NR_mq_notify, &[3, EVENT])
        .returns(0)
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 1, 0, 0])
        .syscall(linux::__NR_rt_sigtimedwait, &[MASK, RECEIVED, TIME, 8])
        .returns(-11)
        .syscall(linux::__NR_mq_timedreceive, &[3, RECEIVED, 16, 0, 0])
        .syscall(linux::__NR_mq_timedreceive, &[3, RECEIVED, 16, 0, 0])
        .syscall(linux::__NR_mq_notify, &[3, 0])
        .returns(0)
        .syscall(linux::__NR_mq_timedsend, &[3, TEXT, 1, 0, 0])
        .syscall(linux::__NR_rt_sigtimedwait, &[MASK, RECEIVED, TIME, 8])
        .returns(-11)
        .exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn strangers_are_refused() {
    let program = begin()
        .syscall(linux::__NR_mq_open, &[NAME, CREATE | BOTH, 0o644, ATTRIBUTES])
        .returns(3)
        .syscall(linux::__NR_setresgid, &[5, 5, 5])
        .syscall(linux::__NR_setresuid, &[5, 5, 5])
        .returns(0)
        .syscall(linux::__NR_mq_open, &[NAME, BOTH, 0, 0])
        .returns(-13)
        .syscall(linux::__NR_mq_unlink, &[NAME])
        .returns(-1)
        .syscall(linux::__NR_mq_open, &[NAME, 0, 0, 0])
        .returns(4)
        // Without the capability, a queue has at most 10 messages.
        .store(TEXT, b"other\0")
        .store(ATTRIBUTES, &words(&[0, 11, 16]))
        .syscall(linux::__NR_mq_open, &[TEXT, CREATE | BOTH, 0o600, ATTRIBUTES])
        .returns(-22)
        .exits(0);
    assert_eq!(run(program), EXITED);
}
