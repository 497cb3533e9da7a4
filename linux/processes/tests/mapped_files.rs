//! Files: mappings of files that shrink, locks of open files, positions of devices.

mod common;

use common::{Cell, DATA, Steps};
use isola_linux_abi::numbers as linux;
use isola_linux_processes::ExitStatus;
use isola_linux_processes::signals::Signal;
use isola_linux_sim::Program;

const MAPPED: u64 = 0x1000_0000;
const LEN: u64 = 3 * 4096;

/// Opens `/file` as descriptor 3, gives it three pages, and maps them at [`MAPPED`]: the first bytes are "file".
fn with_mapped_file(kind: u32) -> Program {
    Program::new()
        .store(DATA, b"/file\0")
        .syscall(linux::__NR_open, &[DATA, (linux::O_RDWR | linux::O_CREAT).into(), 0o600])
        .returns(3)
        .syscall(linux::__NR_ftruncate, &[3, LEN])
        .store(DATA, b"file")
        .syscall(linux::__NR_pwrite64, &[3, DATA, 4, 0])
        .syscall(linux::__NR_pwrite64, &[3, DATA, 4, 4096])
        .syscall(linux::__NR_mmap, &[MAPPED, LEN, 3, u64::from(kind | linux::MAP_FIXED), 3, 0])
        .returns(MAPPED as i64)
        .expect(MAPPED, b"file")
        .expect(MAPPED + 4096, b"file")
}

#[test]
fn a_truncated_file_loses_its_pages_in_all_mappings() {
    for kind in [linux::MAP_SHARED, linux::MAP_PRIVATE] {
        let cell = Cell::new();
        let program = with_mapped_file(kind)
            .store(MAPPED + 4096, b"copy")
            .syscall(linux::__NR_ftruncate, &[3, 4096])
            .returns(0)
            .expect(MAPPED, b"file")
            .syscall(linux::__NR_ftruncate, &[3, LEN])
            .returns(0)
            .expect(MAPPED + 4096, &[0; 4])
            .syscall(linux::__NR_pwrite64, &[3, DATA, 4, 4096])
            .expect(MAPPED + 4096, b"file")
            .syscall(linux::__NR_ftruncate, &[3, 0])
            .returns(0)
            .store(MAPPED, b"x");
        cell.install("/program", program);
        let status = ExitStatus::Killed { signal: Signal::SIGBUS, dumps_core: false };
        assert_eq!(cell.run(&["/program"]), status, "{kind}");
    }
}

#[test]
fn a_hole_reads_as_zeros_in_mappings_and_leaves_private_copies() {
    let punch = u64::from(linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE);
    for (kind, second) in [(linux::MAP_SHARED, &[0; 4]), (linux::MAP_PRIVATE, b"copy")] {
        let cell = Cell::new();
        let program = with_mapped_file(kind)
            .store(MAPPED + 4096, b"copy")
            .syscall(linux::__NR_fallocate, &[3, punch, 0, 2 * 4096])
            .returns(0)
            .expect(MAPPED, &[0; 4])
            .expect(MAPPED + 4096, second)
            .exits(0);
        cell.install("/program", program);
        assert_eq!(cell.run(&["/program"]), ExitStatus::Exited(0), "{kind}");
    }
}

/// Returns a `struct flock` for the whole file.
fn lock(kind: u32, pid: u8) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    (bytes[0], bytes[24]) = (kind as u8, pid);
    bytes
}

#[test]
fn locks_of_open_files_exclude_other_open_files_of_the_same_process() {
    let cell = Cell::new();
    cell.write_file("/file", 0o600, b"x");
    let open = [DATA, linux::O_RDWR.into(), 0];
    let program = Program::new()
        .store(DATA, b"/file\0")
        .syscall(linux::__NR_open, &open)
        .returns(3)
        .syscall(linux::__NR_open, &open)
        .returns(4)
        .store(DATA + 0x100, &lock(linux::F_WRLCK, 0))
        .store(DATA + 0x200, &lock(linux::F_WRLCK, 1))
        .syscall(linux::__NR_fcntl, &[3, linux::F_OFD_SETLK.into(), DATA + 0x200])
        .returns(-22)
        .syscall(linux::__NR_fcntl, &[3, linux::F_OFD_SETLK.into(), DATA + 0x100])
        .returns(0)
        .syscall(linux::__NR_fcntl, &[4, linux::F_OFD_SETLK.into(), DATA + 0x100])
        .returns(-11)
        .syscall(linux::__NR_fcntl, &[4, linux::F_SETLK.into(), DATA + 0x100])
        .returns(-11)
        .syscall(linux::__NR_fcntl, &[4, linux::F_OFD_GETLK.into(), DATA + 0x100])
        .returns(0)
        // The owner is no process.
        .expect(DATA + 0x118, &(-1_i32).to_le_bytes())
        .store(DATA + 0x100, &lock(linux::F_WRLCK, 0))
        .syscall(linux::__NR_close, &[3])
        .syscall(linux::__NR_fcntl, &[4, linux::F_OFD_SETLKW.into(), DATA + 0x100])
        .returns(0)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), ExitStatus::Exited(0));
}

#[test]
fn readahead_is_for_files_that_can_be_read() {
    let cell = Cell::new();
    cell.write_file("/file", 0o600, b"x");
    let program = Program::new()
        .store(DATA, b"/file\0")
        .syscall(linux::__NR_open, &[DATA, linux::O_RDONLY.into(), 0])
        .syscall(linux::__NR_open, &[DATA, linux::O_WRONLY.into(), 0])
        .syscall(linux::__NR_readahead, &[3, 0, 4096])
        .returns(0)
        .syscall(linux::__NR_readahead, &[4, 0, 4096])
        .returns(-9)
        .syscall(linux::__NR_readahead, &[1, 0, 4096])
        .returns(-22)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), ExitStatus::Exited(0));
}
