//! Terminals and job control: signals of keys, background processes, hang-ups, pseudo-terminals of programs.

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_linux_abi::{numbers as linux, requests};
use isola_linux_files::{
    Caller, CallerIds, Console, ConsoleOutput, Credentials, DescriptorTable, DevPts, DeviceTable, FileSystem,
    LastLink, MountFlags, MountedFileSystem, OpenFile, Ownership, View, device_file_system,
};
use isola_linux_memory::UserBuffer;
use isola_linux_processes::signals::Signal;
use isola_linux_processes::{Environment, ExitStatus};
use isola_linux_sim::{Program, run};
use std::sync::Arc;

const EXITED: ExitStatus = ExitStatus::Exited(0);

/// Creates a terminal, and returns its master and the standard files of a program.
fn terminal(cell: &Cell) -> (Arc<OpenFile>, [Arc<OpenFile>; 3]) {
    let owner = Ownership { user: 0, group: 0, permissions: 0o620 };
    let (master, slave) = cell.system.terminals.create_open(owner, [24, 80, 0, 0]).unwrap();
    let slave = slave.into_open_file(linux::O_RDWR);
    (master.into_open_file(linux::O_RDWR | linux::O_NONBLOCK), [slave.clone(), slave.clone(), slave])
}

async fn type_keys(master: &OpenFile, keys: &[u8]) {
    assert_eq!(master.write(&mut UserBuffer::of_bytes(keys)).await, Ok(keys.len()));
}

fn shown(master: &OpenFile) -> String {
    let mut buffer = UserBuffer::of_bytes(&[0; 4096]);
    let mut contents = buffer.clone();
    let count = run(master.read(&mut buffer)).unwrap_or(0);
    let mut bytes = contents.read_all();
    bytes.truncate(count);
    String::from_utf8(bytes).unwrap()
}

/// Waits until so many milliseconds of the cell's time have passed: when all threads wait.
async fn later(cell: &Arc<common::TestEnvironment>, ms: u64) {
    cell.sleep_until(ms * 1_000_000).await;
}

#[test]
fn a_program_reads_lines_and_knows_its_terminal() {
    let cell = Cell::new();
    let program = Program::new()
        .syscall(linux::__NR_read, &[0, DATA, 100])
        .returns(3)
        .expect(DATA, b"ab\n")
        .syscall(linux::__NR_ioctl, &[0, requests::TIOCGPGRP.into(), DATA])
        .returns(0)
        .expect(DATA, &[1, 0, 0, 0])
        .syscall(linux::__NR_ioctl, &[1, requests::TIOCGSID.into(), DATA])
        .expect(DATA, &[1, 0, 0, 0])
        .syscall(linux::__NR_ioctl, &[2, requests::TIOCGWINSZ.into(), DATA])
        .expect(DATA, &[24, 0, 80, 0, 0, 0, 0, 0])
        .syscall(linux::__NR_write, &[1, DATA, 1])
        .returns(1)
        .syscall(linux::__NR_lseek, &[0, 0, 0])
        .returns(-29)
        .exits(0);
    cell.install("/program", program);
    let (master, files) = terminal(&cell);
    let typing = master.clone();
    assert_eq!(
        cell.run_with("/program", files, async move { type_keys(&typing, b"abx\x7f\n").await }),
        EXITED
    );
    assert_eq!(shown(&master), "abx\u{8} \u{8}\r\n\u{18}");
}

#[test]
fn a_key_ends_the_foreground_program() {
    let cell = Cell::new();
    cell.install("/program", Program::new().syscall(linux::__NR_read, &[0, DATA, 100]).exits(0));
    let (master, files) = terminal(&cell);
    let (typing, environment) = (master.clone(), cell.environment.clone());
    let status = cell.run_with("/program", files, async move {
        later(&environment, 10).await;
        type_keys(&typing, b"lost\x03").await;
    });
    assert_eq!(status, ExitStatus::Killed { signal: Signal::SIGINT, dumps_core: false });
    assert_eq!(shown(&master), "lost^C");
}

#[test]
fn a_hang_up_ends_the_session() {
    let cell = Cell::new();
    cell.install("/program", Program::new().syscall(linux::__NR_read, &[0, DATA, 100]).exits(0));
    let (master, files) = terminal(&cell);
    let environment = cell.environment.clone();
    let status = cell.run_with("/program", files, async move {
        later(&environment, 10).await;
        drop(master);
    });
    assert_eq!(status, ExitStatus::Killed { signal: Signal::SIGHUP, dumps_core: false });
}

#[test]
fn a_background_process_stops_when_it_reads() {
    let cell = Cell::new();
    let child = 17;
    let group = DATA + 64;
    let program = Program::new()
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        .syscall(linux::__NR_wait4, &[u64::MAX, DATA, linux::WUNTRACED.into(), 0])
        .returns(2)
        // Stopped by SIGTTIN.
        .expect(DATA, &[0x7f, 21, 0, 0])
        .store(group, &[2, 0, 0, 0])
        .syscall(linux::__NR_ioctl, &[0, requests::TIOCSPGRP.into(), group])
        .returns(0)
        .syscall(linux::__NR_kill, &[2, linux::SIGCONT.into()])
        .returns(0)
        .syscall(linux::__NR_wait4, &[u64::MAX, DATA, 0, 0])
        .returns(2)
        .expect(DATA, &[0, 7, 0, 0])
        // A group that does not exist, and one that is in no session of this terminal.
        .store(group, &[99, 0, 0, 0])
        .syscall(linux::__NR_ioctl, &[0, requests::TIOCSPGRP.into(), group])
        .exits(0)
        .exits(1)
        // The child, in a group of its own, at step 17.
        .syscall(linux::__NR_setpgid, &[0, 0])
        .syscall(linux::__NR_read, &[0, DATA, 100])
        .returns(3)
        .expect(DATA, b"hi\n")
        .exits(7);
    cell.install("/program", program);
    let (master, files) = terminal(&cell);
    let status = cell.run_with("/program", files, async move {
        type_keys(&master, b"hi\n").await;
        // The master stays open.
        std::future::pending::<()>().await;
    });
    assert_eq!(status, EXITED);
}

#[test]
fn an_orphaned_background_process_gets_an_error() {
    let cell = Cell::new();
    // A session's leader that is in the background itself: no process could continue it.
    let program = Program::new().syscall(linux::__NR_read, &[0, DATA, 100]).returns(-5).exits(0);
    cell.install("/program", program);
    let (master, files) = terminal(&cell);
    let session = files[0].terminal().unwrap().terminal().clone();
    // The controlling terminal of the session 1 with another foreground group.
    let status = cell.run_with("/program", files, async move {
        session.give_to(1, 77);
        type_keys(&master, b"hi\n").await;
        std::future::pending::<()>().await;
    });
    assert_eq!(status, EXITED);
}

#[test]
fn reads_without_lines_wait_for_bytes_and_for_a_time() {
    let cell = Cell::new();
    let mut settings = isola_linux_files::TerminalSettings::default();
    settings.local &= !(linux::ICANON | linux::ECHO);
    settings.characters[linux::VMIN as usize] = 3;
    let three = settings.to_bytes();
    settings.characters[linux::VMIN as usize] = 0;
    settings.characters[linux::VTIME as usize] = 5;
    let half_a_second = settings.to_bytes();
    let program = Program::new()
        .store(DATA, &three[..36])
        .syscall(linux::__NR_ioctl, &[0, requests::TCSETS.into(), DATA])
        .returns(0)
        .syscall(linux::__NR_read, &[0, DATA + 100, 100])
        .returns(4)
        .expect(DATA + 100, b"abcd")
        .store(DATA, &half_a_second[..36])
        .syscall(linux::__NR_ioctl, &[0, requests::TCSETSF.into(), DATA])
        .syscall(linux::__NR_read, &[0, DATA + 100, 100])
        .returns(0)
        .exits(0);
    cell.install("/program", program);
    let (master, files) = terminal(&cell);
    let environment = cell.environment.clone();
    let times = environment.clone();
    let status = cell.run_with("/program", files, async move {
        later(&environment, 10).await;
        type_keys(&master, b"ab").await;
        later(&environment, 20).await;
        type_keys(&master, b"cd").await;
        std::future::pending::<()>().await;
    });
    assert_eq!(status, EXITED);
    assert_eq!(times.monotonic_ns(), 520_000_000);
}

struct Silent;

impl ConsoleOutput for Silent {
    fn write(&self, _bytes: &[u8]) {}
}

/// Mounts `/dev` and `/dev/pts`.
fn mount_devices(cell: &Cell) {
    let devices = Arc::new(DeviceTable::default());
    let console = Console::new(Arc::new(Silent));
    let dev = device_file_system(&devices, &console, |bytes| bytes.fill(0)).unwrap();
    cell.system.terminals.register(&devices);
    let pts = DevPts::new(&cell.system.terminals);
    let mounts: [(&[u8], Arc<dyn FileSystem>); 2] = [(b"/dev", dev), (b"/dev/pts", pts)];
    for (path, files) in mounts {
        run(async {
            let view = View::new(cell.system.namespace.clone());
            let (credentials, descriptors) = (Credentials::root(), DescriptorTable::new());
            let ids = CallerIds { process: 1, thread: 1 };
            let caller = Caller { view: &view, credentials: &credentials, descriptors: &descriptors, ids };
            let _ = caller.make_directory_at(linux::AT_FDCWD, path, 0o755).await;
            let point = caller.locate(linux::AT_FDCWD, path, LastLink::Follow).await.unwrap();
            let mounted = MountedFileSystem::new(files);
            cell.system.namespace.mount(&point, mounted, b"x", MountFlags::default()).unwrap();
        });
    }
}

#[test]
fn a_program_creates_a_terminal() {
    let cell = Cell::new();
    mount_devices(&cell);
    let path = DATA + 256;
    let program = Program::new()
        .store(path, b"/dev/ptmx\0")
        .store(path + 32, b"/dev/pts/0\0")
        .store(path + 64, b"/dev/tty\0")
        // No controlling terminal yet.
        .syscall(linux::__NR_open, &[path + 64, linux::O_RDWR.into()])
        .returns(-6)
        .syscall(linux::__NR_open, &[path, (linux::O_RDWR | linux::O_NOCTTY).into()])
        .returns(3)
        // Locked.
        .syscall(linux::__NR_open, &[path + 32, linux::O_RDWR.into()])
        .returns(-5)
        .syscall(linux::__NR_ioctl, &[3, requests::TIOCGPTN.into(), DATA])
        .expect(DATA, &[0, 0, 0, 0])
        .syscall(linux::__NR_ioctl, &[3, requests::TIOCSPTLCK.into(), DATA])
        .returns(0)
        // The session's leader gets it as its controlling terminal.
        .syscall(linux::__NR_open, &[path + 32, linux::O_RDWR.into()])
        .returns(4)
        .syscall(linux::__NR_open, &[path + 64, linux::O_RDWR.into()])
        .returns(5)
        .syscall(linux::__NR_ioctl, &[5, requests::TIOCGPGRP.into(), DATA])
        .expect(DATA, &[1, 0, 0, 0])
        .syscall(linux::__NR_ioctl, &[3, requests::TIOCGPTPEER.into(), linux::O_RDWR.into()])
        .returns(6)
        // From the master to the slave, and its echo.
        .store(DATA, b"key\n")
        .syscall(linux::__NR_write, &[3, DATA, 4])
        .returns(4)
        .syscall(linux::__NR_read, &[6, DATA + 16, 16])
        .returns(4)
        .syscall(linux::__NR_read, &[3, DATA + 16, 16])
        .returns(5)
        .expect(DATA + 16, b"key\r\n")
        // SIGHUP is ignored; a closed master is the end of the file.
        .store(DATA, &[1, 0, 0, 0, 0, 0, 0, 0])
        .syscall(linux::__NR_rt_sigaction, &[linux::SIGHUP.into(), DATA, 0, 8])
        .returns(0)
        .syscall(linux::__NR_close, &[3])
        .returns(0)
        .syscall(linux::__NR_read, &[4, DATA, 16])
        .returns(0)
        .syscall(linux::__NR_write, &[4, DATA, 1])
        .returns(-5)
        .syscall(linux::__NR_ioctl, &[4, requests::TCGETS.into(), DATA])
        .returns(-5)
        .syscall(linux::__NR_open, &[path + 32, linux::O_RDWR.into()])
        .returns(-2)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn no_request_harms_the_cell() {
    let cell = Cell::new();
    mount_devices(&cell);
    let mut program = Program::new()
        .store(DATA, b"/dev/ptmx\0")
        .syscall(linux::__NR_open, &[DATA, linux::O_RDWR.into()])
        .syscall(linux::__NR_ioctl, &[3, requests::TIOCGPTPEER.into(), linux::O_RDWR.into()])
        .returns(4)
        // `TIOCNOTTY` sends it.
        .store(DATA, &[1, 0, 0, 0, 0, 0, 0, 0])
        .syscall(linux::__NR_rt_sigaction, &[linux::SIGHUP.into(), DATA, 0, 8])
        .store(DATA, &[0xff; 64]);
    let coded = [1_u64 << 30, 2 << 30, 3 << 30].into_iter().flat_map(|direction| {
        (0..0x60)
            .flat_map(move |number| [4, 36, 44, 0x3fff].map(|len| direction | len << 16 | 0x5400 | number))
    });
    for request in (0x5400..0x5480).chain(coded) {
        for descriptor in [3, 4] {
            for argument in [0, 1, DATA, u64::MAX] {
                program = program.syscall(linux::__NR_ioctl, &[descriptor, request, argument]);
            }
        }
    }
    // It still works.
    let settings = isola_linux_files::TerminalSettings::default().to_bytes();
    program = program
        .store(DATA, &settings[..36])
        .syscall(linux::__NR_ioctl, &[4, requests::TCSETSF.into(), DATA])
        .returns(0)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}
