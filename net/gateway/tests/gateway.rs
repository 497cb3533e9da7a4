//! A cell and its host, connected by the gateway.

use isola_abi::hosted::{Forward, Transport};
use isola_events::{exit, run, sleep, spawn_task, timeout};
use isola_gateway::{GATEWAY, GatewayError, start};
use isola_hosted::Settings;
use isola_iobuf::{Chain, IoBuf};
use isola_net::{FailReason, StreamError, TcpStream, UdpSocket, connect, listen};
use isola_platform::CoreIndex;
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{self, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4};
use std::thread;
use std::time::Duration;

const PORT: u16 = 7;

/// Runs a cell with `cores` cores and these published ports until `main` has ended.
fn cell<F: Future<Output = ()> + 'static>(cores: usize, forwards: &[Forward], main: impl Fn() -> F + Sync) {
    let (port, address) = start(forwards).expect("the ports are free");
    let settings = Settings { cores, address: Some(address), ..Settings::default() };
    let codes = isola_hosted::run(settings, vec![port], |_| {
        if isola_ebbs::current_core() == CoreIndex(0) {
            isola_net::start().unwrap();
            let main = main();
            spawn_task(async move {
                let outcome = timeout(Duration::from_secs(60), main).await;
                exit(if outcome.is_ok() { 0 } else { 1 });
            })
            .detach();
        }
        run()
    });
    assert_eq!(codes[0], 0, "the cell took too long");
}

/// Returns a free port of the host, to publish the cell's port there.
fn forward(transport: Transport) -> Forward {
    let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    let bound = match transport {
        Transport::Tcp => net::TcpListener::bind(any).unwrap().local_addr(),
        Transport::Udp => net::UdpSocket::bind(any).unwrap().local_addr(),
    };
    let Ok(SocketAddr::V4(host)) = bound else { panic!("an IPv4 address") };
    Forward { transport, host, cell_port: PORT }
}

/// Connects to a published port; tries again until the cell listens, as the connection is reset before.
fn dial(forward: Forward) -> net::TcpStream {
    loop {
        let mut stream = net::TcpStream::connect(forward.host).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = [0];
        if stream.write_all(b"?").is_ok() && stream.read_exact(&mut answer).is_ok() {
            assert_eq!(answer, *b"?");
            return stream;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

async fn echo(mut stream: TcpStream) {
    while let Ok(Some(data)) = stream.read().await {
        if stream.write(data).await.is_err() {
            return;
        }
    }
    stream.shutdown();
}

/// Serves echo until `client`, a thread of the host, has ended.
async fn serve_until(client: thread::JoinHandle<()>) {
    let listening = listen(PORT, 64, echo).unwrap();
    while !client.is_finished() {
        sleep(Duration::from_millis(2)).await;
    }
    drop(listening);
    client.join().expect("the client thread succeeds");
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n * 7 % 251) as u8).collect()
}

#[test]
fn a_published_port_forwards_megabytes_and_both_ends() {
    let tcp = forward(Transport::Tcp);
    cell(2, &[tcp], move || {
        serve_until(thread::spawn(move || {
            let mut stream = dial(tcp);
            let sent = pattern(3_000_000);
            let (mut reader, expected) = (stream.try_clone().unwrap(), sent.clone());
            let reading = thread::spawn(move || {
                let mut back = Vec::new();
                reader.read_to_end(&mut back).unwrap();
                assert!(back == expected);
            });
            stream.write_all(&sent).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            reading.join().unwrap();
        }))
    });
}

#[test]
fn many_concurrent_connections_are_answered() {
    let tcp = forward(Transport::Tcp);
    cell(3, &[tcp], move || {
        serve_until(thread::spawn(move || {
            let clients: Vec<_> = (0..50_u8)
                .map(|number| {
                    thread::spawn(move || {
                        let mut stream = dial(tcp);
                        for turn in 0..50 {
                            stream.write_all(&[number, turn]).unwrap();
                            let mut back = [0; 2];
                            stream.read_exact(&mut back).unwrap();
                            assert_eq!(back, [number, turn]);
                        }
                    })
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
        }))
    });
}

#[test]
fn a_connection_that_the_cell_resets_is_reset_on_the_host() {
    let tcp = forward(Transport::Tcp);
    cell(1, &[tcp], move || async move {
        let listening = listen(PORT, 4, |mut stream: TcpStream| async move {
            let _ = stream.read().await;
            stream.abort();
        })
        .unwrap();
        let client = thread::spawn(move || {
            let mut stream = net::TcpStream::connect(tcp.host).unwrap();
            stream.write_all(b"?").unwrap();
            let error = stream.read_exact(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        });
        while !client.is_finished() {
            sleep(Duration::from_millis(2)).await;
        }
        client.join().unwrap();
        drop(listening);
    });
}

#[test]
fn answers_to_published_datagrams_return_to_their_senders() {
    let udp = forward(Transport::Udp);
    cell(2, &[udp], move || async move {
        let socket = UdpSocket::bind(PORT).unwrap();
        spawn_task(async move {
            loop {
                let datagram = socket.receive().await;
                let _ = socket.send_to(datagram.remote, datagram.payload.into());
            }
        })
        .detach();
        let clients = thread::spawn(move || {
            let clients: Vec<_> = (0..20)
                .map(|_| {
                    let client = net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                    client.connect(udp.host).unwrap();
                    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                    client
                })
                .collect();
            for turn in 0..10_u8 {
                for (number, client) in (0..).zip(&clients) {
                    let sent = [number, turn];
                    let mut back = [0; 16];
                    // A lost datagram is sent again.
                    while client.send(&sent).is_err() || client.recv(&mut back).is_err() || back[..2] != sent
                    {
                    }
                }
            }
        });
        while !clients.is_finished() {
            sleep(Duration::from_millis(2)).await;
        }
        clients.join().unwrap();
    });
}

#[test]
fn the_cell_reaches_listening_ports_of_its_host_and_others_refuse() {
    let host = net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = host.local_addr().unwrap().port();
    let unused_port = forward(Transport::Tcp).host.port();
    thread::spawn(move || {
        for stream in host.incoming() {
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut all = Vec::new();
                stream.read_to_end(&mut all).unwrap();
                all.reverse();
                stream.write_all(&all).unwrap();
            });
        }
    });
    cell(3, &[], move || async move {
        for turn in 0..20 {
            let refused = connect((GATEWAY, unused_port).into()).await.unwrap_err();
            assert_eq!(refused, StreamError::Failed(FailReason::Refused));
            let mut stream = connect((GATEWAY, port).into()).await.unwrap();
            let sent = pattern(10_000 * turn);
            stream.write(IoBuf::copy_from_slice(&sent).into()).await.unwrap();
            stream.shutdown();
            let mut back = Chain::new();
            while let Some(data) = stream.read().await.unwrap() {
                back.append(data);
            }
            assert!(back.to_vec().iter().eq(sent.iter().rev()), "turn {turn}");
        }
    });
}

#[test]
fn datagrams_of_the_cell_reach_its_host_and_answers_return() {
    let host = net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = host.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = host.recv_from(&mut buffer) {
            buffer[..len].reverse();
            host.send_to(&buffer[..len], from).unwrap();
        }
    });
    cell(2, &[], move || async move {
        for own in 5_000..5_010 {
            let socket = UdpSocket::bind(own).unwrap();
            loop {
                socket.send_to((GATEWAY, port).into(), IoBuf::from_static(b"abc").into()).unwrap();
                if let Ok(answer) = timeout(Duration::from_millis(200), socket.receive()).await {
                    assert_eq!(*answer.payload, *b"cba");
                    break;
                }
            }
        }
    });
}

#[test]
fn the_error_names_a_port_in_use() {
    let taken = net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let Ok(SocketAddr::V4(host)) = taken.local_addr() else { panic!("an IPv4 address") };
    let refused = start(&[Forward { transport: Transport::Tcp, host, cell_port: PORT }]).err();
    let text = refused.as_ref().map(GatewayError::to_string).unwrap_or_default();
    assert!(text.contains(&host.to_string()) && text.contains("choose another"), "{text}");
}
