//! Calls on files in a simulated cell: what mappings, signals and several descriptors have to do with them.

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_linux_abi::numbers as linux;
use isola_linux_processes::ExitStatus;
use isola_linux_processes::signals::Signal;
use isola_linux_sim::Program;

const EXITED: ExitStatus = ExitStatus::Exited(0);
const PAGE: u64 = 4096;
/// Where the programs map files.
const MAP: u64 = 0x7000_0000;

const SHARED: u64 = (linux::MAP_SHARED | linux::MAP_FIXED) as u64;
const READ: u64 = linux::PROT_READ as u64;
const READ_WRITE: u64 = (linux::PROT_READ | linux::PROT_WRITE) as u64;
const EPERM: i64 = -1;
const EBADF: i64 = -9;
const EAGAIN: i64 = -11;
const EACCES: i64 = -13;
const EBUSY: i64 = -16;
const EINVAL: i64 = -22;
const ENOTTY: i64 = -25;
const ESPIPE: i64 = -29;
const EPIPE: i64 = -32;

fn run(program: Program) -> ExitStatus {
    let cell = Cell::new();
    cell.write_file("/file", 0o666, &[7; 3 * PAGE as usize]);
    cell.install("/program", program);
    cell.run(&["/program"])
}

/// Begins a program with a string at [`DATA`].
fn with_name(name: &str) -> Program {
    Program::new().store(DATA, &[name.as_bytes(), &[0]].concat())
}

fn opens(program: Program, flags: u32) -> Program {
    program.syscall(linux::__NR_open, &[DATA, flags.into(), 0])
}

#[test]
fn a_mapped_page_of_a_truncated_file_is_a_bus_error() {
    let program = opens(with_name("/file"), linux::O_RDWR)
        .returns(3)
        .syscall(linux::__NR_mmap, &[MAP, 3 * PAGE, READ_WRITE, SHARED, 3, 0])
        .expect(MAP + 2 * PAGE, &[7])
        .store(MAP + 2 * PAGE, &[8])
        .syscall(linux::__NR_ftruncate, &[3, PAGE + 5])
        .returns(0)
        // The rest of the last page reads as zeros.
        .expect(MAP + PAGE + 4, &[7, 0])
        .expect(MAP + 2 * PAGE, &[8])
        .exits(0);
    let status = ExitStatus::Killed { signal: Signal::SIGBUS, dumps_core: false };
    assert_eq!(run(program), status);
}

#[test]
fn a_mapped_page_in_a_hole_reads_as_zeros() {
    let hole = (linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE) as u64;
    let program = opens(with_name("/file"), linux::O_RDWR)
        .syscall(linux::__NR_mmap, &[MAP, 3 * PAGE, READ_WRITE, SHARED, 3, 0])
        .store(MAP + PAGE, &[8])
        .syscall(linux::__NR_fallocate, &[3, hole, PAGE, PAGE])
        .returns(0)
        .expect(MAP + PAGE, &[0])
        .expect(MAP, &[7])
        .store(MAP + PAGE, &[9])
        .syscall(linux::__NR_pread64, &[3, DATA + 0x100, 1, PAGE])
        .returns(1)
        .expect(DATA + 0x100, &[9])
        .exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn a_seal_against_writes_waits_for_mappings_and_forbids_new_ones() {
    let fcntl = |program: Program, command: u32, argument: u32| {
        program.syscall(linux::__NR_fcntl, &[3, command.into(), argument.into()])
    };
    let map = |program: Program, address, protection| {
        program.syscall(linux::__NR_mmap, &[address, PAGE, protection, SHARED, 3, 0])
    };
    let seal = |program| fcntl(program, linux::F_ADD_SEALS, linux::F_SEAL_WRITE);
    let mut program = with_name("sealed")
        .syscall(linux::__NR_memfd_create, &[DATA, linux::MFD_ALLOW_SEALING.into()])
        .returns(3)
        .syscall(linux::__NR_ftruncate, &[3, PAGE])
        .returns(0);
    program = map(program, MAP, READ_WRITE).returns(MAP as i64).store(MAP, b"before");
    program = seal(program).returns(EBUSY);
    // A mapping that is read-only now could become writable.
    program = program.syscall(linux::__NR_mprotect, &[MAP, PAGE, READ]).returns(0);
    program = seal(program).returns(EBUSY);
    program = program.syscall(linux::__NR_munmap, &[MAP, PAGE]).returns(0);
    program = seal(program).returns(0);
    program = fcntl(program, linux::F_GET_SEALS, 0).returns(linux::F_SEAL_WRITE.into());
    program = map(program, MAP, READ_WRITE).returns(EPERM);
    program = map(program, MAP, READ).returns(MAP as i64).expect(MAP, b"before");
    program = program.syscall(linux::__NR_mprotect, &[MAP, PAGE, READ_WRITE]).returns(EACCES);
    program = program.syscall(linux::__NR_write, &[3, DATA, 1]).returns(EPERM);
    // A private mapping changes a copy.
    let private = u64::from(linux::MAP_PRIVATE | linux::MAP_FIXED);
    program = program
        .syscall(linux::__NR_mmap, &[MAP + PAGE, PAGE, READ_WRITE, private, 3, 0])
        .store(MAP + PAGE, b"copied")
        .expect(MAP, b"before")
        .exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn locks_of_open_files_exclude_each_other_and_end_with_the_file() {
    /// `struct flock`: type, whence, start, length, process.
    fn flock(kind: u32, start: u64, len: u64, pid: u32) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[..2].copy_from_slice(&(kind as u16).to_le_bytes());
        bytes[8..16].copy_from_slice(&start.to_le_bytes());
        bytes[16..24].copy_from_slice(&len.to_le_bytes());
        bytes[24..28].copy_from_slice(&pid.to_le_bytes());
        bytes
    }
    let lock = DATA + 0x100;
    let call = |program: Program, file, command: u32| {
        program.syscall(linux::__NR_fcntl, &[file, command.into(), lock])
    };
    let mut program = opens(opens(with_name("/file"), linux::O_RDWR).returns(3), linux::O_RDWR).returns(4);
    program =
        call(program.store(lock, &flock(linux::F_WRLCK, 10, 5, 1)), 3, linux::F_OFD_SETLK).returns(EINVAL);
    program = call(program.store(lock, &flock(linux::F_WRLCK, 10, 5, 0)), 3, linux::F_OFD_SETLK).returns(0);
    // Another open file of the same process, and record locks of the process, conflict.
    program =
        call(program.store(lock, &flock(linux::F_RDLCK, 14, 1, 0)), 4, linux::F_OFD_SETLK).returns(EAGAIN);
    program = call(program, 4, linux::F_SETLK).returns(EAGAIN);
    program =
        call(program, 4, linux::F_OFD_GETLK).returns(0).expect(lock, &flock(linux::F_WRLCK, 10, 5, u32::MAX));
    program = call(program.store(lock, &flock(linux::F_RDLCK, 15, 1, 0)), 4, linux::F_OFD_SETLK).returns(0);
    // A descriptor of the same open file is the same owner, and the lock ends with the last of them.
    program = program.syscall(linux::__NR_dup, &[3]).returns(5).syscall(linux::__NR_close, &[3]).returns(0);
    program =
        call(program.store(lock, &flock(linux::F_WRLCK, 10, 5, 0)), 4, linux::F_OFD_SETLK).returns(EAGAIN);
    program = program.syscall(linux::__NR_close, &[5]).returns(0);
    program = call(program, 4, linux::F_OFD_SETLKW).returns(0).exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn pages_of_a_program_and_of_files_pass_through_pipes() {
    let vector = |address: u64, len: u64| [address.to_le_bytes(), len.to_le_bytes()].concat();
    let (offsets, out) = (DATA + 0x200, DATA + 0x2000);
    let program = opens(with_name("/file"), linux::O_RDWR)
        .returns(3)
        .syscall(linux::__NR_pipe2, &[DATA + 0x100, linux::O_NONBLOCK.into()])
        .returns(0)
        .store(DATA + 0x1000, b"memory")
        .store(offsets, &vector(DATA + 0x1000, 6))
        .syscall(linux::__NR_vmsplice, &[5, offsets, 1, 64])
        .returns(EINVAL)
        .syscall(linux::__NR_vmsplice, &[3, offsets, 1, 0])
        .returns(EBADF)
        .syscall(linux::__NR_vmsplice, &[5, offsets, 1, 0])
        .returns(6)
        // The pipe refers to the page.
        .store(DATA + 0x1000, b"M")
        .store(offsets, &(3 * PAGE - 2).to_le_bytes())
        .syscall(linux::__NR_splice, &[3, offsets, 5, 0, 100, 0])
        .returns(2)
        .expect(offsets, &(3 * PAGE).to_le_bytes())
        .syscall(linux::__NR_splice, &[3, offsets, 5, 0, 100, 0])
        .returns(0)
        .syscall(linux::__NR_splice, &[3, 0, 3, 0, 100, 0])
        .returns(EINVAL)
        .syscall(linux::__NR_read, &[4, out, 100])
        .returns(8)
        .expect(out, b"Memory\x07\x07")
        .syscall(linux::__NR_splice, &[4, 0, 3, 0, 100, 0])
        .returns(EAGAIN)
        .exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn a_splice_to_a_pipe_without_reader_sends_a_signal() {
    let program = opens(with_name("/file"), linux::O_RDWR)
        .syscall(linux::__NR_pipe2, &[DATA + 0x100, 0])
        .syscall(linux::__NR_close, &[4])
        .syscall(linux::__NR_splice, &[3, 0, 5, 0, 1, 0])
        .returns(EPIPE)
        .exits(0);
    let status = ExitStatus::Killed { signal: Signal::SIGPIPE, dumps_core: false };
    assert_eq!(run(program), status);
}

#[test]
fn ranges_of_files_are_written() {
    let write = u64::from(linux::SYNC_FILE_RANGE_WRITE);
    let program = opens(with_name("/file"), linux::O_RDWR)
        .returns(3)
        .syscall(linux::__NR_pipe2, &[DATA + 0x100, 0])
        .syscall(linux::__NR_sync_file_range, &[9, 0, 0, write])
        .returns(EBADF)
        .syscall(linux::__NR_sync_file_range, &[3, 0, 0, 8])
        .returns(EINVAL)
        .syscall(linux::__NR_sync_file_range, &[3, u64::MAX, 0, write])
        .returns(EINVAL)
        .syscall(linux::__NR_sync_file_range, &[3, 0, u64::MAX, write])
        .returns(EINVAL)
        .syscall(linux::__NR_sync_file_range, &[3, 1, i64::MAX as u64, write])
        .returns(EINVAL)
        .syscall(linux::__NR_sync_file_range, &[5, 0, 0, write])
        .returns(ESPIPE)
        .syscall(linux::__NR_sync_file_range, &[3, 0, 4096, write])
        .returns(0)
        .syscall(linux::__NR_sync_file_range, &[3, 0, 0, 7])
        .returns(0)
        // Programs ask so whether a file is a terminal: nothing is missing.
        .syscall(linux::__NR_ioctl, &[3, 0x5401, DATA + 0x100])
        .returns(ENOTTY)
        .exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn reads_that_must_not_wait_and_appends_at_any_offset() {
    let vector = DATA + 0x200;
    let entry = [(DATA + 0x300).to_le_bytes(), 4_u64.to_le_bytes()].concat();
    let (nowait, append) = (u64::from(linux::RWF_NOWAIT), u64::from(linux::RWF_APPEND));
    let program = opens(with_name("/file"), linux::O_RDWR)
        .returns(3)
        .syscall(linux::__NR_pipe2, &[DATA + 0x100, 0])
        .store(vector, &entry)
        .syscall(linux::__NR_preadv2, &[4, vector, 1, u64::MAX, 0, nowait])
        .returns(EAGAIN)
        .syscall(linux::__NR_preadv2, &[3, vector, 1, 0, 0, nowait])
        .returns(4)
        .syscall(linux::__NR_preadv2, &[3, vector, 1, 0, 0, append])
        .returns(-95)
        .syscall(linux::__NR_preadv2, &[3, vector, 1, -2_i64 as u64, 0, 0])
        .returns(EINVAL)
        .syscall(linux::__NR_pwritev2, &[3, vector, 1, 0, 0, append])
        .returns(4)
        .syscall(linux::__NR_lseek, &[3, 0, linux::SEEK_END.into()])
        .returns(3 * PAGE as i64 + 4)
        .exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn a_child_sees_events_of_its_parent_s_watch() {
    let event = |watch: u32, mask: u32, name: &[u8]| {
        let mut bytes = [watch, mask, 0, 16].map(u32::to_le_bytes).concat();
        bytes.extend_from_slice(name);
        bytes.resize(32, 0);
        bytes
    };
    // The child reads what the parent causes.
    let event_bytes = event(1, linux::IN_CREATE, b"new");
    let program = with_name("/")
        .syscall(linux::__NR_inotify_init1, &[0])
        .syscall(linux::__NR_inotify_add_watch, &[3, DATA, linux::IN_CREATE.into()])
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, 10)
        .store(DATA, b"new\0")
        .syscall(linux::__NR_creat, &[DATA, 0o600])
        .syscall(linux::__NR_wait4, &[u64::MAX, DATA + 0x800, 0, 0])
        .expect(DATA + 0x800, &[0; 4])
        .exits(0)
        .syscall(linux::__NR_read, &[3, DATA + 0x100, 100])
        .returns(32)
        .expect(DATA + 0x100, &event_bytes)
        .exits(0);
    assert_eq!(run(program), EXITED);
}

#[test]
fn the_file_system_of_a_file_is_written() {
    let cell = Cell::new();
    let program = Program::new()
        .syscall(linux::__NR_syncfs, &[99])
        .returns(-9)
        .store(DATA, b"/file\0")
        .syscall(
            linux::__NR_openat,
            &[linux::AT_FDCWD as u64, DATA, (linux::O_CREAT | linux::O_RDWR).into(), 0o600],
        )
        .returns(3)
        .syscall(linux::__NR_syncfs, &[3])
        .returns(0)
        .syscall(linux::__NR_pipe2, &[DATA, 0])
        .syscall(linux::__NR_syncfs, &[4])
        .returns(0)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), ExitStatus::Exited(0));
}
