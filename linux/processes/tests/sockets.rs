//! The calls of sockets: the layouts of their arguments, hostile ones, signals.

mod common;

use common::{CODE, Cell, DATA, Steps};
use isola_linux_abi::Errno;
use isola_linux_abi::net::{
    AF_INET, AF_NETLINK, AF_UNIX, SHUT_WR, SO_PASSCRED, SO_PEERCRED, SO_RCVTIMEO, SO_SNDBUF, SO_TYPE,
    SOCK_DGRAM, SOCK_STREAM, SOL_SOCKET,
};
use isola_linux_abi::numbers as linux;
use isola_linux_processes::ExitStatus;
use isola_linux_processes::signals::Signal;
use isola_linux_sim::Program;

const EXITED: ExitStatus = ExitStatus::Exited(0);
/// Addresses of structures in the data of a program.
const PAIR: u64 = DATA;
const TEXT: u64 = DATA + 0x100;
const HEADER: u64 = DATA + 0x200;
const VECTOR: u64 = DATA + 0x300;
const CONTROL: u64 = DATA + 0x400;
const PLACE: u64 = DATA + 0x800;
/// An address without memory.
const NOWHERE: u64 = 0x1000;
const NOSIGNAL: u64 = 0x4000;
const DONTWAIT: u64 = 0x40;

fn error(errno: Errno) -> i64 {
    errno.to_result() as i64
}

/// Runs a program with a pair of sockets: descriptors 3 and 4.
fn run_with_pair(kind: u32, steps: impl FnOnce(Program) -> Program) -> Cell {
    let cell = Cell::new();
    let program = Program::new()
        .syscall(linux::__NR_socketpair, &[AF_UNIX.into(), kind.into(), 0, PAIR])
        .returns(0)
        .expect(PAIR, &[3, 0, 0, 0, 4, 0, 0, 0])
        .store(TEXT, b"hello world");
    cell.install("/program", steps(program).exits(0));
    assert_eq!(cell.run(&["/program"]), EXITED);
    cell
}

/// Returns `struct msghdr`.
fn header(name: (u64, u32), buffers: (u64, u64), control: (u64, u64)) -> Vec<u8> {
    let words = [name.0, name.1.into(), buffers.0, buffers.1, control.0, control.1, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns `struct iovec`.
fn part(address: u64, len: u64) -> Vec<u8> {
    [address, len].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns a control message.
fn control(len: u64, level: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend(level.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn bytes_pass_and_a_missing_reader_is_a_signal() {
    run_with_pair(SOCK_STREAM, |program| {
        program
            .syscall(linux::__NR_write, &[3, TEXT, 5])
            .returns(5)
            .syscall(linux::__NR_sendto, &[3, TEXT + 5, 6, 0, 0, 0])
            .returns(6)
            .syscall(linux::__NR_read, &[4, PLACE, 100])
            .returns(11)
            .expect(PLACE, b"hello world")
            .syscall(linux::__NR_recvfrom, &[4, PLACE, 100, DONTWAIT, 0, 0])
            .returns(error(Errno::EAGAIN))
            .syscall(linux::__NR_shutdown, &[3, SHUT_WR.into()])
            .returns(0)
            .syscall(linux::__NR_recvfrom, &[4, PLACE, 100, 0, 0, 0])
            .returns(0)
            .syscall(linux::__NR_sendto, &[3, TEXT, 1, NOSIGNAL, 0, 0])
            .returns(error(Errno::EPIPE))
    });
    let cell = Cell::new();
    let program = Program::new()
        .syscall(linux::__NR_socketpair, &[AF_UNIX.into(), SOCK_STREAM.into(), 0, PAIR])
        .syscall(linux::__NR_close, &[4])
        .syscall(linux::__NR_write, &[3, TEXT, 1])
        .exits(0);
    cell.install("/program", program);
    let killed = ExitStatus::Killed { signal: Signal::SIGPIPE, dumps_core: false };
    assert_eq!(cell.run(&["/program"]), killed);
}

#[test]
fn a_datagram_without_a_receiver_is_no_signal() {
    run_with_pair(SOCK_DGRAM, |program| {
        program
            .syscall(linux::__NR_shutdown, &[3, SHUT_WR.into()])
            .returns(0)
            .syscall(linux::__NR_write, &[3, TEXT, 1])
            .returns(error(Errno::EPIPE))
            .syscall(linux::__NR_writev, &[3, NOWHERE, 1])
            .returns(error(Errno::EFAULT))
            // A message with a part that cannot be read is not sent.
            .syscall(linux::__NR_sendto, &[4, DATA + 0xfff0, 0x100, 0, 0, 0])
            .returns(error(Errno::EFAULT))
            .syscall(linux::__NR_recvfrom, &[3, PLACE, 1, DONTWAIT, 0, 0])
            .returns(error(Errno::EAGAIN))
    });
}

#[test]
fn descriptors_pass_with_their_control_message() {
    let rights = control(20, SOL_SOCKET, 1, &[4, 0, 0, 0]);
    run_with_pair(SOCK_STREAM, |program| {
        program
            .store(VECTOR, &part(TEXT, 5))
            .store(CONTROL, &rights)
            .store(HEADER, &header((0, 0), (VECTOR, 1), (CONTROL, 24)))
            .syscall(linux::__NR_sendmsg, &[3, HEADER, 0])
            .returns(5)
            .store(VECTOR, &part(PLACE, 100))
            .store(HEADER, &header((PLACE + 0x100, 50), (VECTOR, 1), (CONTROL, 64)))
            .store(CONTROL, &[0; 64])
            .syscall(linux::__NR_recvmsg, &[4, HEADER, 0x4000_0000])
            .returns(5)
            .expect(PLACE, b"hello")
            .expect(CONTROL, &control(20, SOL_SOCKET, 1, &[5, 0, 0, 0]))
            // No name, 24 bytes of control messages, MSG_CMSG_CLOEXEC.
            .expect(HEADER + 8, &[0, 0, 0, 0])
            .expect(HEADER + 40, &24_u64.to_le_bytes())
            .expect(HEADER + 48, &0x4000_0000_u32.to_le_bytes())
            .syscall(linux::__NR_fcntl, &[5, linux::F_GETFD.into()])
            .returns(1)
            .syscall(linux::__NR_write, &[5, TEXT, 11])
            .returns(11)
            .syscall(linux::__NR_read, &[3, PLACE, 100])
            .returns(11)
    });
}

#[test]
fn hostile_messages_are_errors() {
    let send = |program: Program, header: Vec<u8>, expected: i64| {
        program.store(HEADER, &header).syscall(linux::__NR_sendmsg, &[3, HEADER, 0]).returns(expected)
    };
    let cell = run_with_pair(SOCK_STREAM, |mut program| {
        program = program.store(VECTOR, &part(TEXT, 5));
        let good = (VECTOR, 1);
        for (messages, len, expected) in [
            (control(15, SOL_SOCKET, 1, &[]), 24, Errno::EINVAL),
            (control(25, SOL_SOCKET, 1, &[]), 24, Errno::EINVAL),
            (control(u64::MAX, SOL_SOCKET, 1, &[]), 24, Errno::EINVAL),
            (control(20, SOL_SOCKET, 1, &[99, 0, 0, 0]), 24, Errno::EBADF),
            (control(20, SOL_SOCKET, 1, &[0xff; 4]), 24, Errno::EBADF),
            (control(20, SOL_SOCKET, 2, &[1, 0, 0, 0]), 24, Errno::EINVAL),
            (control(28, SOL_SOCKET, 2, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), 28, Errno::ESRCH),
            (control(20, SOL_SOCKET, 77, &[1, 0, 0, 0]), 24, Errno::EINVAL),
        ] {
            program = program.store(CONTROL, &messages);
            program = send(program, header((0, 0), good, (CONTROL, len)), error(expected));
        }
        // Messages of other levels, and a rest without space for a header, are ignored.
        program = program.store(CONTROL, &control(16, 6, 1, &[]));
        program = send(program, header((0, 0), good, (CONTROL, 16)), 5);
        program = send(program, header((0, 0), good, (CONTROL, 15)), 5);
        for (header, expected) in [
            (header((0, 0), good, (CONTROL, 1 << 40)), Errno::ENOBUFS),
            (header((0, 0), good, (CONTROL, 129 << 10)), Errno::ENOBUFS),
            (header((0, 0), good, (NOWHERE, 24)), Errno::EFAULT),
            (header((0, 0), (VECTOR, 1025), (0, 0)), Errno::EMSGSIZE),
            (header((0, 0), (NOWHERE, 1), (0, 0)), Errno::EFAULT),
            (header((TEXT, u32::MAX), good, (0, 0)), Errno::EINVAL),
            (header((NOWHERE, 16), good, (0, 0)), Errno::EFAULT),
        ] {
            program = send(program, header, error(expected));
        }
        program
            .store(VECTOR, &part(TEXT, u64::MAX))
            .syscall(linux::__NR_sendmsg, &[3, HEADER, 0])
            .returns(error(Errno::EFAULT))
            .syscall(linux::__NR_sendmsg, &[3, NOWHERE, 0])
            .returns(error(Errno::EFAULT))
            .syscall(linux::__NR_recvmsg, &[4, u64::MAX - 8, 0])
            .returns(error(Errno::EFAULT))
            .syscall(linux::__NR_recvmmsg, &[4, u64::MAX - 8, 2, 0, 0])
            .returns(error(Errno::EFAULT))
            .syscall(linux::__NR_sendmmsg, &[3, NOWHERE, 1, 0])
            .returns(error(Errno::EFAULT))
            .syscall(linux::__NR_sendmmsg, &[3, NOWHERE, 0, 0])
            .returns(0)
    });
    assert_eq!(cell.system.unix_sockets.files_in_flight(), 0);
}

#[test]
fn a_received_file_without_a_place_is_closed() {
    let rights = control(20, SOL_SOCKET, 1, &[4, 0, 0, 0]);
    run_with_pair(SOCK_STREAM, |program| {
        program
            .store(VECTOR, &part(TEXT, 5))
            .store(CONTROL, &rights)
            .store(HEADER, &header((0, 0), (VECTOR, 1), (CONTROL, 24)))
            .syscall(linux::__NR_sendmsg, &[3, HEADER, 0])
            .returns(5)
            .syscall(linux::__NR_sendmsg, &[3, HEADER, 0])
            .returns(5)
            // No room for a descriptor: MSG_CTRUNC.
            .store(VECTOR, &part(PLACE, 5))
            .store(HEADER, &header((0, 0), (VECTOR, 1), (CONTROL, 19)))
            .syscall(linux::__NR_recvmsg, &[4, HEADER, 0])
            .returns(5)
            .expect(HEADER + 40, &[0; 8])
            .expect(HEADER + 48, &8_u32.to_le_bytes())
            // The control messages cannot be stored: the descriptor is closed again.
            .store(HEADER, &header((0, 0), (VECTOR, 1), (NOWHERE, 64)))
            .syscall(linux::__NR_recvmsg, &[4, HEADER, 0])
            .returns(error(Errno::EFAULT))
            .syscall(linux::__NR_dup, &[3])
            .returns(5)
    });
}

#[test]
fn options_have_the_layouts_of_linux() {
    let set = linux::__NR_setsockopt;
    let get = linux::__NR_getsockopt;
    let (level, four) = (u64::from(SOL_SOCKET), 4_u32.to_le_bytes());
    let cell = run_with_pair(SOCK_STREAM, |program| {
        program
            .store(TEXT, &[0x10, 0x27, 0, 0])
            .store(PLACE, &four)
            .syscall(set, &[3, level, SO_SNDBUF.into(), TEXT, 4])
            .returns(0)
            .syscall(get, &[3, level, SO_SNDBUF.into(), TEXT, PLACE])
            .returns(0)
            .expect(TEXT, &20_000_u32.to_le_bytes())
            .syscall(set, &[3, level, SO_SNDBUF.into(), TEXT, 3])
            .returns(error(Errno::EINVAL))
            .syscall(set, &[3, level, SO_SNDBUF.into(), NOWHERE, 4])
            .returns(error(Errno::EFAULT))
            .syscall(set, &[3, level, SO_SNDBUF.into(), TEXT, u64::MAX])
            .returns(error(Errno::EINVAL))
            .syscall(set, &[3, level, SO_TYPE.into(), TEXT, 4])
            .returns(error(Errno::ENOPROTOOPT))
            .syscall(set, &[3, level, 250, TEXT, 4])
            .returns(error(Errno::ENOPROTOOPT))
            .syscall(get, &[3, 6, 1, TEXT, PLACE])
            .returns(error(Errno::EOPNOTSUPP))
            .syscall(get, &[3, level, SO_TYPE.into(), TEXT, NOWHERE])
            .returns(error(Errno::EFAULT))
            // A short place gets a part.
            .store(PLACE, &[1, 0, 0, 0])
            .store(TEXT, &[9; 4])
            .syscall(get, &[3, level, SO_TYPE.into(), TEXT, PLACE])
            .returns(0)
            .expect(TEXT, &[1, 9, 9, 9])
            .store(PLACE, &12_u32.to_le_bytes())
            .syscall(get, &[3, level, SO_PEERCRED.into(), TEXT, PLACE])
            .returns(0)
            .expect(TEXT, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
            .syscall(set, &[3, level, SO_PASSCRED.into(), TEXT, 4])
            .returns(0)
            .syscall(set, &[0, level, SO_PASSCRED.into(), TEXT, 4])
            .returns(error(Errno::ENOTSOCK))
            .syscall(set, &[77, level, SO_PASSCRED.into(), TEXT, 4])
            .returns(error(Errno::EBADF))
            // SIOCGIFCONF: the length, and the loopback interface.
            .store(TEXT, &[0; 16])
            .syscall(linux::__NR_ioctl, &[3, 0x8912, TEXT])
            .returns(0)
            .expect(TEXT, &40_u32.to_le_bytes())
            .store(TEXT + 8, &PLACE.to_le_bytes())
            .syscall(linux::__NR_ioctl, &[3, 0x8912, TEXT])
            .returns(0)
            .expect(PLACE, b"lo\0")
            .expect(PLACE + 16, &[2, 0, 0, 0, 127, 0, 0, 1])
    });
    assert!(cell.system.missing.entries().iter().any(|(name, _)| name == "socket option 250 of level 1"));
}

#[test]
fn a_time_limit_ends_a_call() {
    run_with_pair(SOCK_STREAM, |program| {
        program
            .store(PLACE, &part(0, 50_000))
            .syscall(linux::__NR_setsockopt, &[3, SOL_SOCKET.into(), SO_RCVTIMEO.into(), PLACE, 16])
            .returns(0)
            .syscall(linux::__NR_read, &[3, TEXT, 1])
            .returns(error(Errno::EAGAIN))
            .syscall(linux::__NR_recvfrom, &[3, TEXT, 1, 0, 0, 0])
            .returns(error(Errno::EAGAIN))
    });
}

#[test]
fn a_server_accepts_its_child() {
    let address = [&[1, 0][..], b"/socket\0"].concat();
    let cell = Cell::new();
    let child = 20;
    let program = Program::new()
        .syscall(linux::__NR_socket, &[AF_UNIX.into(), SOCK_STREAM.into(), 0])
        .returns(3)
        .store(TEXT, &address)
        .syscall(linux::__NR_bind, &[3, TEXT, 10])
        .returns(0)
        .syscall(linux::__NR_listen, &[3, 5])
        .returns(0)
        .syscall(linux::__NR_fork, &[])
        .if_zero(CODE, child)
        .store(PLACE, &20_u32.to_le_bytes())
        .syscall(linux::__NR_accept4, &[3, TEXT, PLACE, linux::O_CLOEXEC.into()])
        .returns(4)
        // The child has no name: only the family.
        .expect(PLACE, &2_u32.to_le_bytes())
        .syscall(linux::__NR_recvfrom, &[4, PLACE, 100, 0x100, 0, 0])
        .returns(6)
        .expect(PLACE, b"/socke")
        .syscall(linux::__NR_wait4, &[u64::MAX, 0, 0, 0])
        .syscall(linux::__NR_accept4, &[3, 0, 0, 0x10])
        .returns(error(Errno::EINVAL))
        .exits(0)
        // The child.
        .syscall(linux::__NR_socket, &[AF_UNIX.into(), SOCK_STREAM.into(), 0])
        .returns(4)
        .syscall(linux::__NR_connect, &[4, TEXT, 10])
        .returns(0)
        .syscall(linux::__NR_write, &[4, TEXT + 2, 6])
        .returns(6)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    assert_eq!(cell.system.unix_sockets.socket_count(), 0);
}

#[test]
fn sendfile_sends_the_pages_of_a_file() {
    let path = b"/contents\0";
    let contents: Vec<u8> = (0..9000_u32).map(|number| (number / 3) as u8).collect();
    let sendfile = linux::__NR_sendfile;
    let cell = Cell::new();
    cell.write_file("/contents", 0o644, &contents);
    let program = Program::new()
        .syscall(linux::__NR_socketpair, &[AF_UNIX.into(), SOCK_STREAM.into(), 0, PAIR])
        .store(TEXT, path)
        .syscall(linux::__NR_open, &[TEXT, 0, 0])
        .returns(5)
        .store(TEXT, &4000_u64.to_le_bytes())
        .syscall(sendfile, &[3, 5, TEXT, 3000])
        .returns(3000)
        .expect(TEXT, &7000_u64.to_le_bytes())
        .syscall(linux::__NR_read, &[4, PLACE, 9000])
        .returns(3000)
        .expect(PLACE, &contents[4000..7000])
        .syscall(linux::__NR_lseek, &[5, 100, 0])
        .returns(100)
        .syscall(sendfile, &[3, 5, 0, 1 << 30])
        .returns(8900)
        .syscall(linux::__NR_lseek, &[5, 0, 1])
        .returns(9000)
        .syscall(linux::__NR_read, &[4, PLACE, 9000])
        .returns(8900)
        .expect(PLACE, &contents[100..])
        .syscall(sendfile, &[3, 5, 0, 10])
        .returns(0)
        .syscall(sendfile, &[3, 5, NOWHERE, 10])
        .returns(error(Errno::EFAULT))
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
}

#[test]
fn sockets_of_missing_families_are_refused_and_counted() {
    let cell = Cell::new();
    let socket = linux::__NR_socket;
    let program = Program::new()
        .syscall(socket, &[AF_INET.into(), SOCK_STREAM.into(), 0])
        .returns(error(Errno::EAFNOSUPPORT))
        .syscall(socket, &[1000, SOCK_STREAM.into(), 0])
        .returns(error(Errno::EAFNOSUPPORT))
        .syscall(socket, &[AF_UNIX.into(), 4, 0])
        .returns(error(Errno::ESOCKTNOSUPPORT))
        .syscall(socket, &[AF_UNIX.into(), 0x100 | u64::from(SOCK_STREAM), 0])
        .returns(error(Errno::EINVAL))
        .syscall(linux::__NR_socketpair, &[AF_NETLINK.into(), SOCK_DGRAM.into(), 0, PAIR])
        .returns(error(Errno::EOPNOTSUPP))
        .syscall(linux::__NR_socketpair, &[AF_UNIX.into(), SOCK_DGRAM.into(), 0, NOWHERE])
        .returns(error(Errno::EFAULT))
        // The descriptors of the failed call are free.
        .syscall(socket, &[AF_UNIX.into(), SOCK_DGRAM.into(), 0])
        .returns(3)
        .exits(0);
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), EXITED);
    assert!(cell.system.missing.entries().contains(&("socket of family 2".into(), 1)));
}
