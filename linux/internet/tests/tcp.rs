//! TCP sockets of a cell, beside another cell and beside each other.

mod common;

use common::{Open, Program, STREAM, address};
use isola_events::{sleep, spawn_task, spawn_task_on, timeout, yield_now};
use isola_hosted::Loss;
use isola_iobuf::IoBuf;
use isola_linux_abi::net as linux;
use isola_linux_files::Events;
use isola_linux_sockets::{Errno, MessageFlags, Shutdown, SocketAddress, Waiting};
use isola_net::{FailReason, StreamError, TcpStream, listen};
use isola_platform::CoreIndex;
use isola_test_cells::{CLIENT, dial, read_exactly, rotate_flows, run_server_and_client};
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SEND: Shutdown = Shutdown { receive: false, send: true };

/// Sends all bytes back, in reads of different lengths.
async fn echo(socket: Open) {
    let mut len = 1;
    loop {
        let bytes = socket.receive(len).await.unwrap();
        if bytes.is_empty() {
            break;
        }
        assert_eq!(socket.send(&bytes).await, Ok(bytes.len()));
        len = len * 7 % 40_009;
    }
    socket.file().socket().shutdown(SEND).unwrap();
    // The last reference of the socket closes it, after the peer has read all.
    while socket.file().socket().ready().0 & 0x10 == 0 {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Accepts connections for ever, and serves them by tasks that take turns on the cores.
async fn serve(cores: u32, port: &str) {
    let program = Program::new();
    let listener = program.listener(port, 16).await;
    let mut next = 0;
    loop {
        let socket = listener.accept().await.unwrap();
        next = (next + 1) % cores;
        spawn_task_on(CoreIndex(next), || echo(socket));
    }
}

/// Sends a stream of bytes to a port of the server, and checks that it returns.
async fn check_echo(port: u16, total: usize) {
    let mut stream = dial(port).await;
    let (mut read, mut write) = stream.split();
    let byte = |at: usize| (at * 31 + at / 251) as u8;
    let sending = async {
        let mut at = 0;
        while at < total {
            let len = (1 + at % 9_973).min(total - at);
            let piece: Vec<u8> = (at..at + len).map(byte).collect();
            write.write(IoBuf::from(piece).into()).await.unwrap();
            at += len;
        }
        write.shutdown();
    };
    let receiving = async {
        let mut at = 0;
        while let Some(data) = read.read().await.unwrap() {
            for received in data.parts().flat_map(|part| part.iter()) {
                assert_eq!(*received, byte(at), "byte {at}");
                at += 1;
            }
        }
        assert_eq!(at, total);
    };
    isola_events::future::join(sending, receiving).await;
}

#[test]
fn bytes_return_from_a_server_on_one_core() {
    run_server_and_client(1, Loss::Never, || serve(1, "0.0.0.0:7"), || check_echo(7, 3_000_000));
}

#[test]
fn bytes_return_from_threads_on_other_cores_than_their_connections() {
    let client = || async {
        let tasks: Vec<_> = (0..6).map(|_| spawn_task(check_echo(7, 400_000))).collect();
        for task in tasks {
            task.await;
        }
    };
    run_server_and_client(3, Loss::Never, || serve(3, "[::]:7"), client);
}

#[test]
fn lost_frames_lose_no_bytes() {
    run_server_and_client(2, Loss::EveryNth(29), || serve(2, "0.0.0.0:7"), || check_echo(7, 300_000));
}

#[test]
fn connections_move_with_their_flows_while_threads_use_them() {
    static DONE: AtomicUsize = AtomicUsize::new(0);
    let server = || async {
        spawn_task(serve(3, "0.0.0.0:7")).detach();
        let mut staying = 0;
        while DONE.load(Ordering::Relaxed) < 4 {
            staying += rotate_flows(1).await.staying;
        }
        assert_eq!(staying, 0);
        pending::<()>().await;
    };
    let client = || async {
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                spawn_task(async {
                    check_echo(7, 300_000).await;
                    DONE.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    };
    run_server_and_client(3, Loss::Never, server, client);
}

#[test]
fn a_server_that_does_not_read_stops_its_peer() {
    let server = || async {
        let listener = Program::new().listener("0.0.0.0:7", 4).await;
        let socket = listener.accept().await.unwrap();
        sleep(Duration::from_millis(300)).await;
        // The waiting bytes are bounded by the socket's buffer and the window of the stack.
        let waiting = socket.file().socket().readable_len().unwrap();
        assert!((100_000..131_072 + (256 << 10)).contains(&waiting), "{waiting} bytes wait");
        let mut total = 0;
        loop {
            let bytes = socket.receive(65_536).await.unwrap();
            total += bytes.len();
            if bytes.is_empty() {
                break;
            }
        }
        socket.send(&(total as u32).to_le_bytes()).await.unwrap();
        pending::<()>().await;
    };
    let client = || async {
        let mut stream = dial(7).await;
        let piece = IoBuf::from(vec![5; 50_000]);
        for _ in 0..40 {
            stream.write(piece.clone().into()).await.unwrap();
        }
        stream.shutdown();
        assert_eq!(read_exactly(&mut stream, 4).await, 2_000_000_u32.to_le_bytes());
    };
    run_server_and_client(1, Loss::Never, server, client);
}

#[test]
fn sockets_connect_to_other_machines() {
    let server = || async {
        let program = Program::new();
        let to = format!("{CLIENT}:9");
        let socket = program.socket(linux::AF_INET, STREAM).await;
        let begun = socket.connect_to(&address(&to), Waiting::Refused).await;
        assert_eq!(begun, Err(Errno::EINPROGRESS));
        assert_eq!(socket.connect_to(&address(&to), Waiting::Refused).await, Err(Errno::EALREADY));
        let file = socket.file();
        file.socket().pollee().wait(Events::OUT, || file.socket().ready()).await;
        assert_eq!(socket.option(linux::SOL_SOCKET, linux::SO_ERROR), Ok(0));
        assert_eq!(socket.connect(&to).await, Err(Errno::EISCONN));
        assert_eq!(file.socket().peer_address(), Ok(address(&to)));
        socket.send(b"question").await.unwrap();
        assert_eq!(socket.receive_exactly(6).await, b"answer");
        assert_eq!(socket.receive(1).await, Ok(vec![]));
        // No listener.
        let refused = program.socket(linux::AF_INET, STREAM).await;
        let nowhere = format!("{CLIENT}:10");
        assert_eq!(refused.connect(&nowhere).await, Err(Errno::ECONNREFUSED));
        assert_eq!(refused.send(b"x").await, Err(Errno::EPIPE));
        // A second attempt of the same socket, and an address without a route.
        assert_eq!(refused.connect(&nowhere).await, Err(Errno::ECONNREFUSED));
        let lost = program.socket(linux::AF_INET, STREAM).await;
        assert_eq!(lost.connect("192.0.2.1:80").await, Err(Errno::ENETUNREACH));
        let mut done = isola_net::connect((CLIENT, 11).into()).await.unwrap();
        done.shutdown();
        pending::<()>().await;
    };
    let client = || async {
        let answer = |mut stream: TcpStream| async move {
            assert_eq!(read_exactly(&mut stream, 8).await, b"question");
            stream.write(IoBuf::from_static(b"answer").into()).await.unwrap();
        };
        let _listening = listen(9, 4, answer).unwrap();
        static DONE: AtomicUsize = AtomicUsize::new(0);
        let _end = listen(11, 4, |_| async { DONE.store(1, Ordering::Relaxed) }).unwrap();
        while DONE.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    run_server_and_client(1, Loss::Never, server, client);
}

#[test]
fn a_reset_is_an_error_once_and_then_a_broken_pipe() {
    let server = || async {
        let listener = Program::new().listener("0.0.0.0:7", 4).await;
        let socket = listener.accept().await.unwrap();
        assert_eq!(socket.receive(10).await, Err(Errno::ECONNRESET));
        assert_eq!(socket.send(b"x").await, Err(Errno::EPIPE));
        assert_eq!(socket.receive(10).await, Ok(vec![]));
        // Unread bytes at the close, or no time to linger, reset the connection.
        let socket = listener.accept().await.unwrap();
        let file = socket.file();
        file.socket().pollee().wait(Events::IN, || file.socket().ready()).await;
        drop(socket);
        let socket = listener.accept().await.unwrap();
        socket.set(linux::SOL_SOCKET, linux::SO_LINGER, &[1, 0, 0, 0, 0, 0, 0, 0]).await.unwrap();
        drop(socket);
        // An orderly close delivers all bytes that were sent.
        let socket = listener.accept().await.unwrap();
        socket.send(&vec![3; 300_000]).await.unwrap();
        drop(socket);
        pending::<()>().await;
    };
    let client = || async {
        let stream = dial(7).await;
        sleep(Duration::from_millis(20)).await;
        stream.abort();
        let mut unread = dial(7).await;
        unread.write(IoBuf::from_static(b"unread").into()).await.unwrap();
        let reset = StreamError::Failed(FailReason::Reset);
        assert_eq!(unread.read().await.map(|_| ()), Err(reset));
        assert_eq!(dial(7).await.read().await.map(|_| ()), Err(reset));
        let mut stream = dial(7).await;
        assert_eq!(read_exactly(&mut stream, 300_000).await, vec![3; 300_000]);
        assert!(stream.read().await.unwrap().is_none());
    };
    run_server_and_client(1, Loss::Never, server, client);
}

/// Runs a body in a cell with two cores and an idle neighbour.
fn alone<F: Future<Output = ()> + 'static>(body: impl FnOnce(Program) -> F + Send + 'static) {
    run_server_and_client(1, Loss::Never, pending, move || body(Program::new()));
}

#[test]
fn sockets_of_a_cell_connect_to_each_other() {
    alone(async |program| {
        for (listening, to) in [
            ("127.0.0.1:80", "127.0.0.1:80".to_owned()),
            ("0.0.0.0:80", "127.9.9.9:80".to_owned()),
            ("0.0.0.0:80", format!("{CLIENT}:80")),
            ("0.0.0.0:80", "0.0.0.0:80".to_owned()),
            ("[::1]:80", "[::1]:80".to_owned()),
            ("[::]:80", "[::ffff:127.0.0.1]:80".to_owned()),
            ("[::]:80", "127.0.0.1:80".to_owned()),
        ] {
            let listener = program.listener(listening, 4).await;
            let socket = program.socket(if to.starts_with('[') { 10 } else { 2 }, STREAM).await;
            assert_eq!(listener.accept_now().err(), Some(Errno::EAGAIN));
            socket.connect(&to).await.unwrap();
            let server = listener.accept().await.unwrap();
            let local = socket.local();
            assert!(
                matches!(&local, SocketAddress::Inet(a) if a.port() > 1024)
                    || matches!(&local, SocketAddress::Inet6(a) if a.port() > 1024)
            );
            socket.send(b"ab").await.unwrap();
            let peeked = server.receive_with(9, MessageFlags::PEEK, Waiting::Permitted).await.unwrap();
            assert_eq!(peeked.0, b"ab");
            assert_eq!(server.receive(1).await.unwrap(), b"a");
            assert_eq!(server.receive(9).await.unwrap(), b"b");
            assert_eq!(server.receive_now(9).await, Err(Errno::EAGAIN));
            socket.file().socket().shutdown(SEND).unwrap();
            assert_eq!(server.receive(9).await, Ok(vec![]));
            assert_eq!(socket.send(b"x").await, Err(Errno::EPIPE));
            server.send(b"still").await.unwrap();
            drop(server);
            assert_eq!(socket.receive_exactly(5).await, b"still");
            assert_eq!(socket.receive(5).await, Ok(vec![]));
        }
    });
}

#[test]
fn a_stream_between_two_sockets_is_complete_and_bounded() {
    alone(async |program| {
        let listener = program.listener("127.0.0.1:80", 4).await;
        let client = program.socket(2, STREAM).await;
        client.connect("127.0.0.1:80").await.unwrap();
        let server = listener.accept().await.unwrap();
        let mut filled = 0;
        loop {
            match client.send_with(&[1; 10_000], MessageFlags::NONE, Waiting::Refused).await {
                Ok(count) => filled += count,
                Err(error) => break assert_eq!(error, Errno::EAGAIN),
            }
        }
        assert_eq!(filled, 131_072);
        assert!(!client.file().socket().ready().intersects(Events::OUT));
        assert_eq!(client.option(6, linux::TCP_NODELAY), Ok(0));
        let total = 5_000_000;
        let task = spawn_task(async move { client.send(&vec![2; total]).await.unwrap() });
        let (mut ones, mut twos) = (0, 0);
        while ones + twos < filled + total {
            for byte in server.receive(33_333).await.unwrap() {
                *(if byte == 1 { &mut ones } else { &mut twos }) += 1;
            }
        }
        assert_eq!((ones, twos), (filled, total));
        assert_eq!(task.await, total);
        assert_eq!(server.receive(1).await, Ok(vec![]));
    });
}

#[test]
fn addresses_in_use_and_unknown_ones_are_refused() {
    alone(async |program| {
        let _first = program.listener("0.0.0.0:80", 1).await;
        let second = program.socket(2, STREAM).await;
        assert_eq!(second.bind("127.0.0.1:80").await, Err(Errno::EADDRINUSE));
        assert_eq!(second.bind("192.0.2.1:80").await, Err(Errno::EADDRNOTAVAIL));
        assert_eq!(second.connect("127.0.0.1:81").await, Err(Errno::ECONNREFUSED));
        assert_eq!(second.accept_now().err(), Some(Errno::EINVAL));
        assert_eq!(second.receive(1).await, Err(Errno::ENOTCONN));
        assert_eq!(second.file().socket().shutdown(SEND), Err(Errno::ENOTCONN));
        assert_eq!(second.file().socket().peer_address(), Err(Errno::ENOTCONN));
        assert_eq!(second.set(6, linux::TCP_KEEPCNT, &200_i32.to_ne_bytes()).await, Err(Errno::EINVAL));
        assert_eq!(second.set(6, 999, &[0; 4]).await, Err(Errno::ENOPROTOOPT));
        assert_eq!(second.set(6, linux::TCP_NODELAY, &[1]).await, Err(Errno::EINVAL));
        let chosen = program.listener("0.0.0.0:0", 1).await;
        let SocketAddress::Inet(own) = chosen.local() else { panic!() };
        assert!(own.port() >= 32768);
    });
}

#[test]
fn a_full_backlog_refuses_and_a_closed_listener_resets() {
    alone(async |program| {
        let listener = program.listener("127.0.0.1:80", 1).await;
        let mut waiting = Vec::new();
        for _ in 0..2 {
            let socket = program.socket(2, STREAM).await;
            socket.connect("127.0.0.1:80").await.unwrap();
            waiting.push(socket);
        }
        let third = program.socket(2, STREAM).await;
        assert_eq!(third.connect("127.0.0.1:80").await, Err(Errno::ECONNREFUSED));
        drop(listener.accept().await.unwrap());
        third.connect("127.0.0.1:80").await.unwrap();
        drop(listener);
        assert_eq!(waiting[0].receive(1).await, Ok(vec![]));
        assert_eq!(waiting[1].receive(1).await, Err(Errno::ECONNRESET));
        assert_eq!(third.receive(1).await, Err(Errno::ECONNRESET));
    });
}

#[test]
fn cork_holds_bytes_back_until_it_is_removed_or_too_long() {
    let server = || async {
        let listener = Program::new().listener("0.0.0.0:7", 4).await;
        let socket = listener.accept().await.unwrap();
        socket.set(6, linux::TCP_CORK, &1_i32.to_ne_bytes()).await.unwrap();
        socket.send(b"head").await.unwrap();
        sleep(Duration::from_millis(50)).await;
        socket.send(b"body").await.unwrap();
        socket.set(6, linux::TCP_CORK, &0_i32.to_ne_bytes()).await.unwrap();
        socket.receive(1).await.unwrap();
        socket.send_with(b"late", MessageFlags::MORE, Waiting::Permitted).await.unwrap();
        pending::<()>().await;
    };
    let client = || async {
        let mut stream = dial(7).await;
        assert_eq!(stream.read().await.unwrap().unwrap().to_vec(), b"headbody");
        stream.write(IoBuf::from_static(b"x").into()).await.unwrap();
        assert!(timeout(Duration::from_millis(100), stream.read()).await.is_err());
        assert_eq!(stream.read().await.unwrap().unwrap().to_vec(), b"late");
        yield_now().await;
    };
    run_server_and_client(1, Loss::Never, server, client);
}
