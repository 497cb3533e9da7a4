//! UDP sockets of a cell, beside another cell and beside each other.

mod common;

use common::{DATAGRAM, Program, address};
use isola_events::{sleep, spawn_task_on, timeout};
use isola_hosted::Loss;
use isola_iobuf::IoBuf;
use isola_linux_abi::net as linux;
use isola_linux_sockets::{Errno, MessageFlags, SocketAddress, Waiting};
use isola_net::UdpSocket;
use isola_platform::CoreIndex;
use isola_test_cells::{CLIENT, SERVER, run_server_and_client};
use std::future::pending;
use std::time::Duration;

#[test]
fn datagrams_return_to_their_sender_from_a_thread_on_another_core() {
    let server = || async {
        let socket = Program::new().socket(linux::AF_INET6, DATAGRAM).await;
        socket.bind("[::]:9").await.unwrap();
        spawn_task_on(CoreIndex(1), || async move {
            loop {
                let received = socket.receive_with(2000, MessageFlags::NONE, Waiting::Permitted).await;
                let (mut bytes, message) = received.unwrap();
                let Some(SocketAddress::Inet6(from)) = message.address else { panic!("{message:?}") };
                bytes.reverse();
                socket.send_to(&bytes, &from.to_string()).await.unwrap();
            }
        });
        pending::<()>().await;
    };
    let client = || async {
        let socket = UdpSocket::bind(4000).unwrap();
        for number in 1..50_u8 {
            let bytes: Vec<u8> = (0..number).collect();
            let answer = loop {
                socket.send_to((SERVER, 9).into(), IoBuf::from(bytes.clone()).into()).unwrap();
                // An answer to an earlier attempt may be late.
                let answer = timeout(Duration::from_millis(50), socket.receive()).await;
                if let Ok(answer) = answer
                    && answer.payload.len() == bytes.len()
                {
                    break answer;
                }
            };
            assert!(answer.payload.iter().eq(bytes.iter().rev()));
            assert_eq!(answer.remote, (SERVER, 9).into());
        }
    };
    run_server_and_client(2, Loss::Never, server, client);
}

#[test]
fn a_refused_datagram_is_an_error_of_a_connected_socket() {
    let server = || async {
        let program = Program::new();
        let socket = program.socket(linux::AF_INET, DATAGRAM).await;
        let nowhere = format!("{CLIENT}:4001");
        socket.connect(&nowhere).await.unwrap();
        socket.send(b"anybody?").await.unwrap();
        assert_eq!(socket.receive(10).await, Err(Errno::ECONNREFUSED));
        assert_eq!(socket.receive_now(10).await, Err(Errno::EAGAIN));
        // One that is not connected does not learn it.
        let free = program.socket(linux::AF_INET, DATAGRAM).await;
        free.send_to(b"anybody?", &nowhere).await.unwrap();
        sleep(Duration::from_millis(20)).await;
        assert_eq!(free.receive_now(10).await, Err(Errno::EAGAIN));
        let out = program.socket(linux::AF_INET, DATAGRAM).await;
        assert_eq!(out.connect("192.0.2.1:80").await, Err(Errno::ENETUNREACH));
        assert_eq!(out.send_to(&[0; 65_508], &nowhere).await, Err(Errno::EMSGSIZE));
        assert_eq!(out.send_to(&[0; 2_000], &nowhere).await, Err(Errno::EMSGSIZE));
        assert_eq!(out.send_to(b"all", "255.255.255.255:9").await, Err(Errno::EACCES));
        free.send_to(b"done", &format!("{CLIENT}:4000")).await.unwrap();
        pending::<()>().await;
    };
    let client = || async {
        let socket = UdpSocket::bind(4000).unwrap();
        assert_eq!(&*socket.receive().await.payload, b"done");
    };
    run_server_and_client(1, Loss::Never, server, client);
}

#[test]
fn sockets_of_a_cell_exchange_datagrams() {
    let client = || async {
        let program = Program::new();
        let one = program.socket(linux::AF_INET, DATAGRAM).await;
        one.bind("127.0.0.1:53").await.unwrap();
        one.set(linux::SOL_IP, linux::IP_PKTINFO, &1_i32.to_ne_bytes()).await.unwrap();
        let other = program.socket(linux::AF_INET6, DATAGRAM).await;
        assert_eq!(other.send(b"x").await, Err(Errno::EDESTADDRREQ));
        assert_eq!(other.receive_now(1).await, Err(Errno::EAGAIN));
        other.connect("[::ffff:127.0.0.1]:53").await.unwrap();
        other.send(b"question").await.unwrap();
        other.send(b"").await.unwrap();
        let peeked = one.receive_with(3, MessageFlags::PEEK, Waiting::Permitted).await.unwrap();
        assert_eq!((peeked.0, peeked.1.len), (b"que".to_vec(), 8));
        let (bytes, message) = one.receive_with(3, MessageFlags::NONE, Waiting::Permitted).await.unwrap();
        assert_eq!(bytes, b"que");
        assert_eq!((message.len, message.flags), (8, MessageFlags::TRUNC));
        let information = &message.ancillary.others[0];
        assert_eq!((information.level, information.kind), (linux::SOL_IP, linux::IP_PKTINFO));
        assert_eq!(information.data, [1, 0, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        assert_eq!(one.receive(10).await, Ok(vec![]));
        let Some(SocketAddress::Inet(from)) = message.address else { panic!("{message:?}") };
        one.send_to(b"answer", &from.to_string()).await.unwrap();
        let (bytes, message) = other.receive_with(99, MessageFlags::NONE, Waiting::Permitted).await.unwrap();
        assert_eq!((&bytes[..], message.address), (&b"answer"[..], Some(address("[::ffff:127.0.0.1]:53"))));
        // Others do not reach a connected socket.
        let third = program.socket(linux::AF_INET, DATAGRAM).await;
        third.send_to(b"intruder", &from.to_string()).await.unwrap();
        assert_eq!(other.receive_now(9).await, Err(Errno::EAGAIN));
        drop(one);
        other.send(b"gone").await.unwrap();
        assert_eq!(other.send(b"gone").await, Err(Errno::ECONNREFUSED));
        // A queue has a bound.
        let slow = program.socket(linux::AF_INET, DATAGRAM).await;
        slow.bind("127.0.0.1:54").await.unwrap();
        for _ in 0..1_000 {
            third.send_to(&[1; 1_000], "127.0.0.1:54").await.unwrap();
        }
        let mut count = 0;
        while slow.receive_now(1_000).await.is_ok() {
            count += 1;
        }
        assert!((100..200).contains(&count), "{count} datagrams");
    };
    run_server_and_client(1, Loss::Never, pending, client);
}
