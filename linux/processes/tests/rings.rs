//! `io_uring` in a simulated cell.

mod common;

use common::{Cell, DATA, Steps};
use isola_linux_abi::io_uring as abi;
use isola_linux_abi::io_uring::io_uring_op as op;
use isola_linux_abi::numbers as linux;
use isola_linux_processes::ExitStatus;
use isola_linux_sim::Program;
use proptest::prelude::*;

const EXITED: ExitStatus = ExitStatus::Exited(0);
/// Where the programs map the ring, and its submissions.
const RING: u64 = 0x7000_0000;
const SUBMISSIONS: u64 = 0x7100_0000;
const ENTRIES: u32 = 8;
const COMPLETIONS: u32 = 16;
/// The words of the ring.
const TAIL: u64 = RING + 64;
const COMPLETION_HEAD: u64 = RING + 128;
const COMPLETION_TAIL: u64 = RING + 192;
const DROPPED: u64 = RING + 264;
const FLAGS: u64 = RING + 268;
const FIRST_COMPLETION: u64 = RING + 512;
const ARRAY: u64 = FIRST_COMPLETION + COMPLETIONS as u64 * 16;

const ENOENT: i32 = -2;
const EBADF: i32 = -9;
const EAGAIN: i32 = -11;
const EFAULT: i32 = -14;
const EBUSY: i32 = -16;
const EINVAL: i32 = -22;
const ETIME: i32 = -62;
const EOPNOTSUPP: i32 = -95;
const ECANCELED: i32 = -125;

const LINK: u8 = 4;
const HARDLINK: u8 = 8;
const DRAIN: u8 = 2;
const ASYNC: u8 = 16;
const SKIP: u8 = 64;

/// A submission.
#[derive(Clone, Copy, Default)]
struct Entry {
    operation: u8,
    flags: u8,
    descriptor: i32,
    offset: u64,
    address: u64,
    len: u32,
    options: u32,
    buffer: u16,
    data: u64,
}

impl Entry {
    fn new(operation: op, data: u64) -> Self {
        Self { operation: operation as u8, data, ..Self::default() }
    }

    fn of(operation: op, data: u64, descriptor: i32, address: u64, len: u32, offset: u64) -> Self {
        Self { descriptor, address, len, offset, ..Self::new(operation, data) }
    }

    fn with(self, flags: u8) -> Self {
        Self { flags, ..self }
    }

    fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        (bytes[0], bytes[1]) = (self.operation, self.flags);
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(4, &self.descriptor.to_le_bytes());
        put(8, &self.offset.to_le_bytes());
        put(16, &self.address.to_le_bytes());
        put(24, &self.len.to_le_bytes());
        put(28, &self.options.to_le_bytes());
        put(32, &self.data.to_le_bytes());
        put(40, &self.buffer.to_le_bytes());
        bytes
    }
}

/// A program that uses a ring, whose descriptor is 3.
struct RingProgram {
    program: Program,
    tail: u32,
    completed: u32,
}

impl RingProgram {
    fn new() -> Self {
        Self::with_flags(0)
    }

    fn with_flags(flags: u32) -> Self {
        let shared = u64::from(linux::MAP_SHARED | linux::MAP_FIXED);
        let protection = u64::from(linux::PROT_READ | linux::PROT_WRITE);
        let map = |program: Program, address, len, offset: u32| {
            let arguments = [address, len, protection, shared, 3, offset.into()];
            program.syscall(linux::__NR_mmap, &arguments).returns(address as i64)
        };
        let mut parameters = vec![0; 120];
        parameters[8..12].copy_from_slice(&flags.to_le_bytes());
        let mut program = Program::new()
            .store(DATA, &parameters)
            .syscall(linux::__NR_io_uring_setup, &[ENTRIES.into(), DATA])
            .returns(3)
            .expect(DATA, &[ENTRIES.to_le_bytes(), COMPLETIONS.to_le_bytes()].concat());
        program = map(program, RING, 4096, abi::IORING_OFF_SQ_RING);
        program = map(program, SUBMISSIONS, 4096, abi::IORING_OFF_SQES);
        Self { program: program.store(DATA, &[0; 120]), tail: 0, completed: 0 }
    }

    fn then(mut self, add: impl FnOnce(Program) -> Program) -> Self {
        self.program = add(self.program);
        self
    }

    fn puts(mut self, entries: &[Entry]) -> Self {
        for entry in entries {
            let index = self.tail % ENTRIES;
            self.program = self
                .program
                .store(SUBMISSIONS + u64::from(index) * 64, &entry.bytes())
                .store(ARRAY + u64::from(index) * 4, &index.to_le_bytes());
            self.tail += 1;
        }
        let tail = self.tail.to_le_bytes();
        self.then(|program| program.store(TAIL, &tail))
    }

    fn enters(self, count: u32, least: u32, result: i64) -> Self {
        let flags = if least > 0 { abi::IORING_ENTER_GETEVENTS } else { 0 };
        let arguments = [3, count.into(), least.into(), flags.into(), 0, 0];
        self.then(|program| program.syscall(linux::__NR_io_uring_enter, &arguments).returns(result))
    }

    /// Submits entries and waits for so many completions.
    fn submits(self, entries: &[Entry], least: u32) -> Self {
        let count = entries.len() as u32;
        self.puts(entries).enters(count, least, count.into())
    }

    /// Checks the next completions, and takes them.
    fn completes(mut self, completions: &[(u64, i32)]) -> Self {
        for (data, result) in completions {
            let at = FIRST_COMPLETION + u64::from(self.completed % COMPLETIONS) * 16;
            let bytes = [data.to_le_bytes().as_slice(), &result.to_le_bytes()].concat();
            self.program = self.program.expect(at, &bytes);
            self.completed += 1;
        }
        let head = self.completed.to_le_bytes();
        self.then(|program| program.expect(COMPLETION_TAIL, &head).store(COMPLETION_HEAD, &head))
    }

    fn runs(self) {
        let cell = Cell::new();
        cell.write_file("/file", 0o666, b"contents of the file");
        cell.install("/program", self.program.exits(0));
        assert_eq!(cell.run(&["/program"]), EXITED);
    }
}

fn call(program: Program, number: u32, arguments: &[u64], result: i64) -> Program {
    program.syscall(number, arguments).returns(result)
}

#[test]
fn wrong_parameters_are_refused() {
    let parameters = |completions: u32, flags: u32, reserved: u32| {
        let mut bytes = vec![0; 120];
        bytes[4..8].copy_from_slice(&completions.to_le_bytes());
        bytes[8..12].copy_from_slice(&flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&reserved.to_le_bytes());
        bytes
    };
    let size = abi::IORING_SETUP_CQSIZE;
    let mut program = Program::new();
    for (entries, bytes, result) in [
        (0, parameters(0, 0, 0), EINVAL),
        (32_769, parameters(0, 0, 0), EINVAL),
        (8, parameters(0, 0, 1), EINVAL),
        (8, parameters(0, 1 << 30, 0), EINVAL),
        (8, parameters(0, abi::IORING_SETUP_SQPOLL, 0), EINVAL),
        (8, parameters(0, abi::IORING_SETUP_DEFER_TASKRUN, 0), EINVAL),
        (8, parameters(0, size, 0), EINVAL),
        (8, parameters(4, size, 0), EINVAL),
        (8, parameters(65_537, size, 0), EINVAL),
        (5, parameters(9, size, 0), 3),
    ] {
        program = program.store(DATA, &bytes);
        program = call(program, linux::__NR_io_uring_setup, &[entries, DATA], result.into());
    }
    // 5 and 9 are rounded up.
    program = program.expect(DATA, &[8, 0, 0, 0, 16, 0, 0, 0]);
    program = call(program, linux::__NR_io_uring_setup, &[8, 0x1000], EFAULT.into());
    program = call(program, linux::__NR_io_uring_enter, &[1, 0, 0, 0, 0, 0], EOPNOTSUPP.into());
    program = call(program, linux::__NR_io_uring_enter, &[9, 0, 0, 0, 0, 0], EBADF.into());
    program = call(program, linux::__NR_io_uring_enter, &[3, 0, 0, 1 << 20, 0, 0], EINVAL.into());
    for operation in [100, abi::io_uring_register_op::IORING_REGISTER_PERSONALITY as u64] {
        program = call(program, linux::__NR_io_uring_register, &[3, operation, 0, 0], EINVAL.into());
    }
    let cell = Cell::new();
    cell.install("/program", program.exits(0));
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn operations_complete_with_their_results() {
    let path =
        Entry { options: linux::O_RDWR, ..Entry::of(op::IORING_OP_OPENAT, 1, linux::AT_FDCWD, DATA, 0, 0) };
    let read =
        |data, descriptor, offset| Entry::of(op::IORING_OP_READ, data, descriptor, DATA + 0x100, 8, offset);
    let unknown = Entry { operation: 200, data: 5, ..Entry::default() };
    RingProgram::new()
        .then(|program| program.store(DATA, b"/file\0"))
        .submits(&[path, Entry::new(op::IORING_OP_NOP, 2)], 2)
        .completes(&[(1, 4), (2, 0)])
        .submits(&[read(3, 4, 12), read(4, 9, 0)], 2)
        .completes(&[(3, 8), (4, EBADF)])
        .then(|program| program.expect(DATA + 0x100, b"the file"))
        // Without an offset, at the position.
        .submits(&[read(6, 4, u64::MAX), read(7, 4, u64::MAX), unknown], 3)
        .completes(&[(6, 8), (7, 8), (5, EINVAL)])
        .then(|program| program.expect(DATA + 0x100, b" of the "))
        .submits(&[Entry::of(op::IORING_OP_READ, 8, 4, 0x1000, 8, 0)], 1)
        .completes(&[(8, EFAULT)])
        .submits(
            &[
                Entry::of(op::IORING_OP_FALLOCATE, 9, 4, 100, 0, 0),
                Entry::of(op::IORING_OP_FSYNC, 10, 4, 0, 0, 0),
            ],
            2,
        )
        .completes(&[(9, 0), (10, 0)])
        .submits(
            &[Entry::of(op::IORING_OP_CLOSE, 11, 4, 0, 0, 0), Entry::of(op::IORING_OP_CLOSE, 12, 3, 0, 0, 0)],
            2,
        )
        .completes(&[(11, 0), (12, EBADF)])
        .then(|program| program.store(DATA + 0x40, b"/dir\0/none\0"))
        .submits(
            &[
                Entry::of(op::IORING_OP_MKDIRAT, 13, linux::AT_FDCWD, DATA + 0x40, 0o700, 0),
                Entry::of(op::IORING_OP_STATX, 14, linux::AT_FDCWD, DATA + 0x40, 0, DATA + 0x400),
                Entry::of(
                    op::IORING_OP_RENAMEAT,
                    15,
                    linux::AT_FDCWD,
                    DATA + 0x45,
                    -100_i32 as u32,
                    DATA + 0x40,
                ),
                Entry {
                    options: linux::AT_REMOVEDIR,
                    ..Entry::of(op::IORING_OP_UNLINKAT, 16, linux::AT_FDCWD, DATA + 0x40, 0, 0)
                },
            ],
            4,
        )
        .completes(&[(13, 0), (14, 0), (15, ENOENT), (16, 0)])
        .runs();
}

/// Creates a pipe, whose ends are 4 and 5.
fn with_pipe(program: Program) -> Program {
    call(program, linux::__NR_pipe2, &[DATA + 0x80, 0], 0)
}

#[test]
fn an_operation_that_waits_is_a_task_and_ends_later() {
    let read = Entry::of(op::IORING_OP_READ, 1, 4, DATA + 0x100, 8, 0);
    let write = Entry::of(op::IORING_OP_WRITE, 2, 5, DATA + 0x200, 5, 0);
    let poll = Entry { options: linux::POLLIN, ..Entry::of(op::IORING_OP_POLL_ADD, 3, 4, 0, 0, 0) };
    RingProgram::new()
        .then(with_pipe)
        .then(|program| program.store(DATA + 0x200, b"bytes"))
        .submits(&[read], 0)
        .completes(&[])
        .submits(&[write], 2)
        .completes(&[(2, 5), (1, 5)])
        .then(|program| program.expect(DATA + 0x100, b"bytes"))
        .submits(&[poll], 0)
        .completes(&[])
        .submits(&[write], 2)
        .completes(&[(2, 5), (3, linux::POLLIN as i32)])
        // Forced to be a task, and without a completion of its success.
        .submits(&[read.with(ASYNC), write.with(SKIP)], 1)
        .completes(&[(1, 8)])
        .runs();
}

#[test]
fn links_end_with_a_failure_unless_they_are_hard() {
    let nop = |data| Entry::new(op::IORING_OP_NOP, data);
    let fails = |data| Entry::of(op::IORING_OP_FSYNC, data, 77, 0, 0, 0);
    let short = |data| Entry::of(op::IORING_OP_WRITE, data, 5, DATA, 4, 0);
    let all = Entry::of(op::IORING_OP_READ, 9, 4, DATA, 8, 0);
    RingProgram::new()
        .submits(&[nop(1).with(LINK), fails(2).with(LINK), nop(3).with(LINK), nop(4), nop(5)], 5)
        .completes(&[(1, 0), (2, EBADF), (3, ECANCELED), (4, ECANCELED), (5, 0)])
        .submits(&[fails(1).with(HARDLINK), nop(2)], 2)
        .completes(&[(1, EBADF), (2, 0)])
        .then(with_pipe)
        // A read of fewer bytes than asked for ends a chain, too.
        .submits(&[short(8).with(LINK), all.with(LINK), nop(10)], 3)
        .completes(&[(8, 4), (9, 4), (10, ECANCELED)])
        // The second waits for the first.
        .submits(&[all.with(HARDLINK), nop(10)], 0)
        .completes(&[])
        .submits(&[short(8)], 3)
        .completes(&[(8, 4), (9, 4), (10, 0)])
        .runs();
}

#[test]
fn a_drained_entry_waits_for_earlier_ones_and_later_ones_for_it() {
    let nop = |data| Entry::new(op::IORING_OP_NOP, data);
    let read = Entry::of(op::IORING_OP_READ, 1, 4, DATA, 4, 0);
    RingProgram::new()
        .then(with_pipe)
        .submits(&[read, nop(2), nop(3).with(DRAIN), nop(4)], 1)
        .completes(&[(2, 0)])
        .then(|program| call(program, linux::__NR_write, &[5, DATA, 4], 4))
        .enters(0, 3, 0)
        .completes(&[(1, 4), (3, 0), (4, 0)])
        .runs();
}

#[test]
fn timeouts_end_waits_and_operations_can_be_cancelled() {
    let timespec = [0_u64, 1000].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let timeout = |data, count| Entry::of(op::IORING_OP_TIMEOUT, data, -1, DATA + 0x40, 1, count);
    let limit = |data| Entry::of(op::IORING_OP_LINK_TIMEOUT, data, -1, DATA + 0x40, 1, 0);
    let read = |data| Entry::of(op::IORING_OP_READ, data, 4, DATA, 4, 0);
    let cancel = |data, key| Entry::of(op::IORING_OP_ASYNC_CANCEL, data, -1, key, 0, 0);
    let nop = |data| Entry::new(op::IORING_OP_NOP, data);
    RingProgram::new()
        .then(with_pipe)
        .then(|program| program.store(DATA + 0x40, &timespec))
        .submits(&[timeout(1, 0)], 1)
        .completes(&[(1, ETIME)])
        .submits(&[timeout(1, 2), nop(2), nop(3)], 3)
        .completes(&[(2, 0), (3, 0), (1, 0)])
        .submits(&[read(4).with(LINK), limit(5)], 2)
        .completes(&[(4, ECANCELED), (5, ETIME)])
        .submits(&[nop(4).with(LINK), limit(5)], 2)
        .completes(&[(4, 0), (5, ECANCELED)])
        .submits(&[limit(6)], 1)
        .completes(&[(6, EINVAL)])
        .submits(&[cancel(7, 8)], 1)
        .completes(&[(7, ENOENT)])
        .submits(&[read(8), timeout(9, 0)], 0)
        .submits(&[cancel(10, 8), Entry::of(op::IORING_OP_TIMEOUT_REMOVE, 11, -1, 9, 0, 0)], 4)
        .completes(&[(10, 0), (11, 0), (8, ECANCELED), (9, ECANCELED)])
        .submits(&[read(8), read(8)], 0)
        .submits(&[Entry { options: abi::IORING_ASYNC_CANCEL_ALL, ..cancel(12, 8) }], 3)
        .completes(&[(12, 2), (8, ECANCELED), (8, ECANCELED)])
        .runs();
}

#[test]
fn files_and_buffers_are_registered() {
    use abi::io_uring_register_op as register;
    let registers = |program: Program, operation: register, argument, count, result: i32| {
        let arguments = [3, operation as u64, argument, count];
        call(program, linux::__NR_io_uring_register, &arguments, result.into())
    };
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let read = |data, index, buffer, address, len| Entry {
        buffer,
        flags: 1,
        ..Entry::of(op::IORING_OP_READ_FIXED, data, index, address, len, 0)
    };
    RingProgram::new()
        .then(|program| program.store(DATA, b"/file\0"))
        .then(|program| call(program, linux::__NR_open, &[DATA, linux::O_RDWR.into(), 0], 4))
        .then(|program| call(program, linux::__NR_eventfd2, &[0, 0], 5))
        .then(|program| program.store(DATA + 0x40, &[4_i32, -1].map(i32::to_le_bytes).concat()))
        .then(|program| registers(program, register::IORING_UNREGISTER_FILES, 0, 0, -6))
        .then(|program| registers(program, register::IORING_REGISTER_FILES, DATA + 0x40, 2, 0))
        .then(|program| registers(program, register::IORING_REGISTER_FILES, DATA + 0x40, 2, EBUSY))
        .then(|program| program.store(DATA + 0x60, &words(&[DATA + 0x100, 0x40, 0, 0])))
        .then(|program| registers(program, register::IORING_REGISTER_BUFFERS, DATA + 0x60, 2, 0))
        .then(|program| program.store(DATA + 0x80, &5_i32.to_le_bytes()))
        .then(|program| registers(program, register::IORING_REGISTER_EVENTFD, DATA + 0x80, 1, 0))
        .then(|program| call(program, linux::__NR_close, &[4], 0))
        .submits(
            &[read(1, 0, 0, DATA + 0x108, 8), read(2, 1, 0, DATA + 0x100, 8), read(3, 2, 0, DATA + 0x100, 8)],
            3,
        )
        .completes(&[(1, 8), (2, EBADF), (3, EBADF)])
        .then(|program| program.expect(DATA + 0x106, b"\0\0contents"))
        .submits(
            &[read(1, 0, 1, DATA + 0x100, 8), read(2, 0, 0, DATA + 0x13c, 8), read(3, 0, 0, 1, u32::MAX)],
            3,
        )
        .completes(&[(1, EFAULT), (2, EFAULT), (3, EFAULT)])
        .then(|program| call(program, linux::__NR_read, &[5, DATA + 0x200, 8], 8))
        .then(|program| program.expect(DATA + 0x200, &[6]))
        .then(|program| {
            program.store(DATA + 0x40, &words(&[1, DATA + 0x48])).store(DATA + 0x48, &words(&[DATA + 0x50]))
        })
        .then(|program| program.store(DATA + 0x50, &5_i32.to_le_bytes()))
        .then(|program| registers(program, register::IORING_REGISTER_FILES_UPDATE, DATA + 0x40, 1, 1))
        .then(|program| registers(program, register::IORING_UNREGISTER_BUFFERS, 0, 0, 0))
        .then(|program| registers(program, register::IORING_UNREGISTER_EVENTFD, 0, 0, 0))
        .submits(&[read(1, 0, 0, DATA + 0x100, 8)], 1)
        .completes(&[(1, EFAULT)])
        // A ring must not refer to itself.
        .then(|program| registers(program, register::IORING_UNREGISTER_FILES, 0, 0, 0))
        .then(|program| program.store(DATA + 0x40, &3_i32.to_le_bytes()))
        .then(|program| registers(program, register::IORING_REGISTER_FILES, DATA + 0x40, 1, EBADF))
        .then(|program| program.store(DATA + 0x300, &[0; 16 + 8 * 64]))
        .then(|program| registers(program, register::IORING_REGISTER_PROBE, DATA + 0x300, 64, 0))
        .then(|program| program.expect(DATA + 0x310, &[0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0]))
        .then(|program| program.expect(DATA + 0x310 + 8 * op::IORING_OP_SEND as u64, &[26, 0, 0, 0]))
        .runs();
}

#[test]
fn completions_that_do_not_fit_are_kept() {
    let nops: Vec<_> = (0..8).map(|data| Entry::new(op::IORING_OP_NOP, data)).collect();
    let results = |range: std::ops::Range<u64>| range.map(|data| (data % 8, 0)).collect::<Vec<_>>();
    let overflow = abi::IORING_SQ_CQ_OVERFLOW.to_le_bytes();
    RingProgram::new()
        .submits(&nops, 0)
        .submits(&nops, 0)
        .then(|program| program.expect(FLAGS, &[0; 4]))
        .submits(&nops, 0)
        .then(|program| program.expect(FLAGS, &overflow))
        .puts(&nops[..1])
        .enters(1, 0, EBUSY.into())
        .completes(&results(0..16))
        // The entry continues once there is room.
        .enters(1, 9, 1)
        .then(|program| program.expect(FLAGS, &[0; 4]))
        .completes(&[results(16..24), vec![(0, 0)]].concat())
        .runs();
}

#[test]
fn the_end_of_a_program_cancels_what_waits() {
    // The cell ends only after all tasks have.
    let read = Entry::of(op::IORING_OP_READ, 1, 4, DATA, 4, 0);
    let forever = [u64::from(u32::MAX), 0].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let timeout = Entry::of(op::IORING_OP_TIMEOUT, 2, -1, DATA + 0x40, 1, 0);
    RingProgram::new()
        .then(with_pipe)
        .then(|program| program.store(DATA + 0x40, &forever))
        .submits(&[read, read.with(LINK), timeout, timeout, Entry::new(op::IORING_OP_NOP, 3).with(DRAIN)], 0)
        .runs();
}

#[test]
fn a_disabled_ring_takes_entries_once_it_is_enabled() {
    use abi::io_uring_register_op::IORING_REGISTER_ENABLE_RINGS as ENABLE;
    let nop = Entry::new(op::IORING_OP_NOP, 1);
    RingProgram::with_flags(abi::IORING_SETUP_R_DISABLED)
        .puts(&[nop])
        .enters(1, 0, -77)
        .then(|program| call(program, linux::__NR_io_uring_register, &[3, ENABLE as u64, 0, 0], 0))
        .then(|program| call(program, linux::__NR_io_uring_register, &[3, ENABLE as u64, 0, 0], -77))
        .enters(1, 1, 1)
        .completes(&[(1, 0)])
        .runs();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a program writes to its ring, calls return, and the ring works again once its words are right.
    #[test]
    fn hostile_rings_harm_nobody(
        words in prop::collection::vec((0u64..1024, any::<u32>()), 0..20),
        indices in prop::collection::vec(prop_oneof![3 => 0u32..9, 1 => any::<u32>()], 8),
        entries in prop::collection::vec((0u8..64, any::<u8>(), -1i32..6, any::<[u8; 58]>()), 8),
        tail in prop_oneof![Just(8u32), any::<u32>()],
        head in prop_oneof![Just(0u32), any::<u32>()],
        count in any::<u32>(),
    ) {
        let mut program = with_pipe(RingProgram::new().program);
        for (index, (operation, flags, descriptor, rest)) in entries.iter().enumerate() {
            let mut bytes = [*operation, *flags, 0, 0, 0, 0].to_vec();
            bytes.extend_from_slice(rest);
            bytes[4..8].copy_from_slice(&descriptor.to_le_bytes());
            program = program.store(SUBMISSIONS + index as u64 * 64, &bytes);
        }
        for (word, value) in words {
            program = program.store(RING + word * 4, &value.to_le_bytes());
        }
        for (index, value) in (0_u64..).zip(indices) {
            program = program.store(ARRAY + index * 4, &value.to_le_bytes());
        }
        program = program.store(TAIL, &tail.to_le_bytes()).store(COMPLETION_HEAD, &head.to_le_bytes());
        let checked = |program: Program| program.step(|processor| {
            let result = processor.registers().rax as i64;
            assert!((-4095..=i64::from(ENTRIES)).contains(&result), "{result}");
            Ok(())
        });
        for _ in 0..3 {
            program = program.syscall(linux::__NR_io_uring_enter, &[3, count.into(), 0, 1, 0, 0]);
            program = checked(program);
        }

        let cell = Cell::new();
        cell.install("/program", program.exits(0));
        prop_assert_eq!(cell.run(&["/program"]), EXITED);
    }
}

#[test]
fn an_index_that_does_not_exist_is_dropped() {
    let nop = Entry::new(op::IORING_OP_NOP, 1);
    RingProgram::new()
        .puts(&[nop, nop])
        .then(|program| program.store(ARRAY, &8_u32.to_le_bytes()))
        // The call submits fewer than it was to, and does not wait.
        .enters(2, 9, 0)
        .then(|program| program.expect(DROPPED, &[1, 0, 0, 0]))
        .enters(2, 1, 1)
        .completes(&[(1, 0)])
        .runs();
}

#[test]
fn aio_operations_have_events() {
    let iocb =
        |data: u64, operation: u16, descriptor: u32, memory: u64, len: u64, flags: u32, counter: u32| {
            let mut bytes = vec![0; 64];
            let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
            put(0, &data.to_le_bytes());
            put(16, &operation.to_le_bytes());
            put(20, &descriptor.to_le_bytes());
            put(24, &memory.to_le_bytes());
            put(32, &len.to_le_bytes());
            put(56, &flags.to_le_bytes());
            put(60, &counter.to_le_bytes());
            bytes
        };
    let (list, first, second, events, context) =
        (DATA + 0x40, DATA + 0x400, DATA + 0x440, DATA + 0x800, DATA + 0x20);
    // The context's address is only known to the program.
    let with_context = |program: Program, number: u32, rest: [u64; 4], result: i64| {
        program
            .step(move |processor| {
                let mut word = [0; 8];
                processor.load(context, &mut word)?;
                let registers = processor.registers();
                (registers.rax, registers.rdi) = (number.into(), u64::from_le_bytes(word));
                (registers.rsi, registers.rdx, registers.r10, registers.r8) =
                    (rest[0], rest[1], rest[2], rest[3]);
                Err(isola_user_mode::Trap::SystemCall)
            })
            .returns(result)
    };
    let event = |data: u64, iocb: u64, result: i64| {
        [data, iocb, result as u64, 0].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>()
    };
    let zero = [0; 16];
    let mut program = Program::new().store(DATA, b"/file\0");
    program = call(program, linux::__NR_open, &[DATA, linux::O_RDWR.into(), 0], 3);
    program = call(program, linux::__NR_pipe2, &[DATA + 0x80, 0], 0);
    program = call(program, linux::__NR_eventfd2, &[0, linux::EFD_NONBLOCK.into()], 6);
    program = call(program, linux::__NR_io_setup, &[0, context], EINVAL.into());
    program = call(program, linux::__NR_io_setup, &[70_000, context], EAGAIN.into());
    program = call(program, linux::__NR_io_setup, &[2, context], 0);
    program = call(program, linux::__NR_io_setup, &[2, context], EINVAL.into());
    program = call(program, linux::__NR_io_submit, &[0x1000, 1, list], EINVAL.into());
    program = program.store(list, &[first.to_le_bytes(), second.to_le_bytes(), first.to_le_bytes()].concat());
    program = program.store(first, &iocb(7, 99, 3, 0, 0, 0, 0));
    program = with_context(program, linux::__NR_io_submit, [1, list, 0, 0], EINVAL.into());
    program = program.store(first, &iocb(7, 0, 9, 0, 0, 0, 0));
    program = with_context(program, linux::__NR_io_submit, [1, list, 0, 0], EBADF.into());
    // A read of the file, with an event counter, and a read of a pipe, which waits.
    program = program.store(first, &iocb(7, 0, 3, DATA + 0x200, 8, 1, 6));
    program = program.store(second, &iocb(8, 0, 4, DATA + 0x300, 8, 0, 0));
    program = with_context(program, linux::__NR_io_submit, [3, list, 0, 0], 2);
    program = program.store(DATA + 0x60, &zero);
    program = with_context(program, linux::__NR_io_getevents, [2, 1, events, 0], EINVAL.into());
    program = with_context(program, linux::__NR_io_getevents, [1, 5, events, 0], 1);
    program = program.expect(events, &event(7, first, 8)).expect(DATA + 0x200, b"contents");
    program = call(program, linux::__NR_read, &[6, DATA + 0x200, 8], 8);
    program = with_context(program, linux::__NR_io_getevents, [1, 5, events, DATA + 0x60], 0);
    program = call(program, linux::__NR_write, &[5, DATA, 3], 3);
    program = with_context(program, linux::__NR_io_getevents, [1, 5, events, 0], 1);
    program = program.expect(events, &event(8, second, 3));
    // A read that is cancelled, and one that ends with its context.
    program = with_context(program, linux::__NR_io_submit, [1, list + 8, 0, 0], 1);
    program = with_context(program, linux::__NR_io_cancel, [first, 0, 0, 0], EINVAL.into());
    program = with_context(program, linux::__NR_io_cancel, [second, 0, 0, 0], -115);
    program = with_context(program, linux::__NR_io_getevents, [1, 5, events, 0], 1);
    program = program.expect(events, &event(8, second, ECANCELED.into()));
    program = with_context(program, linux::__NR_io_submit, [1, list + 8, 0, 0], 1);
    program = with_context(program, linux::__NR_io_destroy, [0, 0, 0, 0], 0);
    program = with_context(program, linux::__NR_io_destroy, [0, 0, 0, 0], EINVAL.into());
    let cell = Cell::new();
    cell.write_file("/file", 0o666, b"contents of the file");
    cell.install("/program", program.exits(0));
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn memory_is_advised_by_a_ring() {
    let advise = |data, address, len, advice| Entry {
        options: advice,
        ..Entry::of(op::IORING_OP_MADVISE, data, 0, address, len, 0)
    };
    RingProgram::new()
        .then(|program| program.store(DATA + 0x1000, b"gone"))
        .submits(&[advise(1, DATA + 0x1000, 4096, linux::MADV_DONTNEED)], 1)
        .completes(&[(1, 0)])
        .then(|program| program.expect(DATA + 0x1000, &[0; 4]))
        .submits(&[advise(2, DATA + 1, 4096, linux::MADV_DONTNEED)], 1)
        .submits(&[advise(3, DATA, 4096, 99)], 1)
        .submits(&[advise(4, 0x1000, 4096, linux::MADV_DONTNEED)], 1)
        .completes(&[(2, EINVAL), (3, EINVAL), (4, -12)])
        .runs();
}
