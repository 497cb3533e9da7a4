//! Futexes: locks that the kernel passes on, and waits for several words.

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_linux_abi::numbers as linux;
use isola_linux_processes::ExitStatus;
use isola_linux_sim::Program;

const EXITED: ExitStatus = ExitStatus::Exited(0);
const MS: u64 = 1_000_000;
const WORD: u64 = DATA + 0x100;
const LOCK: u64 = DATA + 0x200;
const TIME: u64 = DATA + 0x300;
const LIST: u64 = DATA + 0x400;
/// Where the program of the thread is that a program creates.
const THREAD: u64 = CODE + 0x20_0000;
/// The id of that thread.
const SECOND: u32 = 2;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

trait FutexSteps {
    /// `futex` with these arguments.
    fn futex(self, word: u64, operation: u32, value: u64, timeout: u64, second: u64, third: u64) -> Self;
    /// Creates a thread that continues at [`THREAD`].
    fn creates_thread(self) -> Self;
    /// Sleeps for milliseconds.
    fn sleeps(self, ms: u64) -> Self;
    /// Stores a word of 32 bits.
    fn puts(self, address: u64, word: u32) -> Self;
    /// Checks a word of 32 bits.
    fn has(self, address: u64, word: u32) -> Self;
}

impl FutexSteps for Program {
    fn futex(self, word: u64, operation: u32, value: u64, timeout: u64, second: u64, third: u64) -> Self {
        self.syscall(linux::__NR_futex, &[word, operation.into(), value, timeout, second, third])
    }

    fn creates_thread(self) -> Self {
        let flags = linux::CLONE_VM | linux::CLONE_SIGHAND | linux::CLONE_THREAD;
        self.syscall(linux::__NR_clone, &[flags.into(), DATA + 0xf000, 0, 0, 0]).if_zero(THREAD, 0)
    }

    fn sleeps(self, ms: u64) -> Self {
        self.store(TIME, &words(&[0, ms * MS])).syscall(linux::__NR_nanosleep, &[TIME, 0]).returns(0)
    }

    fn puts(self, address: u64, word: u32) -> Self {
        self.store(address, &word.to_le_bytes())
    }

    fn has(self, address: u64, word: u32) -> Self {
        self.expect(address, &word.to_le_bytes())
    }
}

fn run(program: Program, thread: Program) {
    let cell = Cell::new();
    cell.install("/program", program);
    cell.user_mode.place(THREAD, thread);
    assert_eq!(cell.run(&["/program"]), EXITED);
    assert_eq!(cell.system.futexes.waiter_count(), 0);
    assert!(cell.system.futexes.waited_locks().is_empty());
}

#[test]
fn mistakes_are_refused() {
    let program = Program::new()
        .futex(LOCK, linux::FUTEX_UNLOCK_PI, 0, 0, 0, 0)
        .returns(-1)
        .futex(LOCK + 2, linux::FUTEX_LOCK_PI, 0, 0, 0, 0)
        .returns(-22)
        .futex(0x1000, linux::FUTEX_LOCK_PI, 0, 0, 0, 0)
        .returns(-14)
        .futex(LOCK, linux::FUTEX_LOCK_PI | linux::FUTEX_CLOCK_REALTIME, 0, 0, 0, 0)
        .returns(-38)
        .futex(LOCK, linux::FUTEX_WAKE | linux::FUTEX_CLOCK_REALTIME, 1, 0, 0, 0)
        .returns(-38)
        .futex(LOCK, linux::FUTEX_LOCK_PI, 0, 0x1000, 0, 0)
        .returns(-14)
        .futex(LOCK, linux::FUTEX_TRYLOCK_PI, 0, 0, 0, 0)
        .returns(0)
        .has(LOCK, 1)
        .futex(LOCK, linux::FUTEX_LOCK_PI, 0, 0, 0, 0)
        .returns(-35)
        .futex(LOCK, linux::FUTEX_TRYLOCK_PI, 0, 0, 0, 0)
        .returns(-35)
        .futex(LOCK, linux::FUTEX_UNLOCK_PI, 0, 0, 0, 0)
        .returns(0)
        .has(LOCK, 0)
        // A thread that does not exist.
        .puts(LOCK, 77)
        .futex(LOCK, linux::FUTEX_LOCK_PI2, 0, 0, 0, 0)
        .returns(-3)
        .futex(WORD, linux::FUTEX_CMP_REQUEUE_PI, 2, 1, LOCK, 0)
        .returns(-22)
        .futex(WORD, linux::FUTEX_CMP_REQUEUE_PI, 1, 1, WORD, 0)
        .returns(-22)
        .futex(WORD, linux::FUTEX_CMP_REQUEUE_PI, 1, 1, LOCK, 9)
        .returns(-11)
        .futex(WORD, linux::FUTEX_WAIT_REQUEUE_PI, 9, 0, LOCK, 0)
        .returns(-11)
        .futex(WORD, linux::FUTEX_WAIT_REQUEUE_PI, 0, 0, WORD, 0)
        .returns(-22)
        .exits(0);
    run(program, Program::new());
}

#[test]
fn an_unlock_gives_the_lock_to_the_first_waiter() {
    let program = Program::new()
        .futex(LOCK, linux::FUTEX_LOCK_PI, 0, 0, 0, 0)
        .creates_thread()
        .sleeps(1)
        .has(LOCK, 1 | linux::FUTEX_WAITERS)
        .futex(LOCK, linux::FUTEX_UNLOCK_PI, 0, 0, 0, 0)
        .returns(0)
        .has(LOCK, SECOND)
        // The thread has the lock for 5 ms.
        .store(TIME, &words(&[0, 3 * MS]))
        .futex(LOCK, linux::FUTEX_LOCK_PI2, 0, TIME, 0, 0)
        .returns(-110)
        .syscall(linux::__NR_clock_gettime, &[1, TIME])
        .expect(TIME, &words(&[0, 3 * MS]))
        .futex(LOCK, linux::FUTEX_LOCK_PI, 0, 0, 0, 0)
        .returns(0)
        .has(LOCK, 1)
        .syscall(linux::__NR_clock_gettime, &[1, TIME])
        .expect(TIME, &words(&[0, 6 * MS]))
        .exits(0);
    let thread = Program::new()
        .futex(LOCK, linux::FUTEX_LOCK_PI, 0, 0, 0, 0)
        .returns(0)
        .sleeps(5)
        .futex(LOCK, linux::FUTEX_UNLOCK_PI, 0, 0, 0, 0)
        .returns(0)
        .syscall(linux::__NR_pause, &[]);
    run(program, thread);
}

#[test]
fn a_waiter_gets_the_lock_of_an_owner_that_ends() {
    let program = Program::new()
        .creates_thread()
        .sleeps(1)
        .has(LOCK, SECOND)
        .futex(LOCK, linux::FUTEX_LOCK_PI, 0, 0, 0, 0)
        .returns(0)
        .has(LOCK, 1 | linux::FUTEX_OWNER_DIED)
        .exits(0);
    let thread = Program::new()
        .futex(LOCK, linux::FUTEX_LOCK_PI, 0, 0, 0, 0)
        .sleeps(3)
        .syscall(linux::__NR_exit, &[0]);
    run(program, thread);
}

#[test]
fn the_end_of_an_owner_reaches_waiters_in_its_robust_list() {
    // A list with one lock, whose word is 16 bytes behind its entry.
    let (head, entry) = (LIST, LOCK - 16);
    let program = Program::new()
        .creates_thread()
        .sleeps(1)
        .futex(LOCK, linux::FUTEX_LOCK_PI, 0, 0, 0, 0)
        .returns(0)
        .has(LOCK, 1 | linux::FUTEX_OWNER_DIED)
        .exits(0);
    let thread = Program::new()
        .store(head, &words(&[entry | 1, 16, 0]))
        .store(entry, &words(&[head]))
        .syscall(linux::__NR_set_robust_list, &[head, 24])
        .returns(0)
        .futex(LOCK, linux::FUTEX_LOCK_PI, 0, 0, 0, 0)
        .sleeps(3)
        .syscall(linux::__NR_exit, &[0]);
    run(program, thread);
}

#[test]
fn an_owner_that_ends_before_its_wake_up_wakes_a_waiter() {
    // The pending entry of the list is unlocked already: its word is 0.
    let program = Program::new()
        .puts(LOCK, SECOND | linux::FUTEX_WAITERS)
        .creates_thread()
        .futex(LOCK, linux::FUTEX_WAIT, (SECOND | linux::FUTEX_WAITERS).into(), 0, 0, 0)
        .returns(0)
        .exits(0);
    let thread = Program::new()
        .sleeps(1)
        .store(LIST, &words(&[LIST, 16, LOCK - 16]))
        .syscall(linux::__NR_set_robust_list, &[LIST, 24])
        .puts(LOCK, 0)
        .syscall(linux::__NR_exit, &[0]);
    run(program, thread);
}

#[test]
fn a_thread_that_waits_for_a_wake_up_gets_no_lock() {
    let program = Program::new()
        .creates_thread()
        .sleeps(1)
        .futex(WORD, linux::FUTEX_CMP_REQUEUE_PI, 1, 5, LOCK, 0)
        .returns(-22)
        .has(LOCK, 0)
        .futex(WORD, linux::FUTEX_WAKE, 1, 0, 0, 0)
        .returns(1)
        .syscall(linux::__NR_pause, &[]);
    let thread = Program::new().futex(WORD, linux::FUTEX_WAIT, 0, 0, 0, 0).returns(0).exits(0);
    run(program, thread);
}

#[test]
fn requeued_threads_get_the_lock() {
    for holds in [false, true] {
        let mut program = Program::new().creates_thread().sleeps(1);
        if holds {
            program = program.futex(LOCK, linux::FUTEX_LOCK_PI, 0, 0, 0, 0).returns(0);
        }
        program = program
            // The waiter expects another lock.
            .futex(WORD, linux::FUTEX_CMP_REQUEUE_PI, 1, 5, TIME, 0)
            .returns(-22)
            .futex(WORD, linux::FUTEX_WAKE, 1, 0, 0, 0)
            .returns(0)
            .futex(WORD, linux::FUTEX_CMP_REQUEUE_PI, 1, 5, LOCK, 0)
            .returns(1);
        if holds {
            program = program
                .has(LOCK, 1 | linux::FUTEX_WAITERS)
                .futex(LOCK, linux::FUTEX_UNLOCK_PI, 0, 0, 0, 0)
                .returns(0);
        }
        program = program.has(LOCK, SECOND).syscall(linux::__NR_pause, &[]);
        let thread = Program::new()
            .futex(WORD, linux::FUTEX_WAIT_REQUEUE_PI, 0, 0, LOCK, 0)
            .returns(0)
            .has(LOCK, SECOND)
            .exits(0);
        run(program, thread);
    }
}

#[test]
fn a_thread_waits_for_several_words() {
    let list = |first: u64, second: u64, flags: u64| words(&[first, WORD, flags, second, LOCK, flags]);
    let program = Program::new()
        .syscall(linux::__NR_futex_waitv, &[LIST, 0, 0, 0, 1])
        .returns(-22)
        .syscall(linux::__NR_futex_waitv, &[LIST, 129, 0, 0, 1])
        .returns(-22)
        .syscall(linux::__NR_futex_waitv, &[LIST, 2, 1, 0, 1])
        .returns(-22)
        .syscall(linux::__NR_futex_waitv, &[0x1000, 2, 0, 0, 1])
        .returns(-14)
        .store(LIST, &list(0, 0, 1))
        .syscall(linux::__NR_futex_waitv, &[LIST, 2, 0, 0, 1])
        .returns(-22)
        .store(LIST, &list(0, 9, 2))
        .syscall(linux::__NR_futex_waitv, &[LIST, 2, 0, 0, 1])
        .returns(-11)
        .store(LIST, &list(0, 0, 2))
        .store(TIME, &words(&[0, 2 * MS]))
        .syscall(linux::__NR_futex_waitv, &[LIST, 2, 0, TIME, 2])
        .returns(-22)
        .syscall(linux::__NR_futex_waitv, &[LIST, 2, 0, TIME, 1])
        .returns(-110)
        .creates_thread()
        .syscall(linux::__NR_futex_waitv, &[LIST, 2, 0, 0, 1])
        .returns(1)
        .exits(0);
    let thread = Program::new()
        .sleeps(1)
        .futex(LOCK, linux::FUTEX_WAKE, 1, 0, 0, 0)
        .returns(1)
        .syscall(linux::__NR_pause, &[]);
    run(program, thread);
}
