//! Two cells of this process, connected by a link in memory, with the behaviour of applications.

use isola_ebbs::current_core;
use isola_events::activity::{APPLICATION, charge_to};
use isola_events::polling::PollingThresholds;
use isola_events::{current_activity, elsewhere, register_activity, sleep, spawn_task, timeout};
use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_net::udp::UdpBindError;
use isola_net::{EarlyRead, FailReason, StreamError, TcpStream, UdpSocket, connect, listen, set_polling};
use isola_net_stack::BindError;
use isola_platform::CoreIndex;
use isola_test_cells::{SERVER, dial, read_exactly, run_server_and_client};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

fn address_of(port: u16) -> SocketAddr {
    (SERVER, port).into()
}

async fn echo(mut stream: TcpStream) {
    while let Ok(Some(data)) = stream.read().await {
        if stream.write(data).await.is_err() {
            return;
        }
    }
    stream.shutdown();
}

async fn serve_echo(port: u16) {
    let listening = listen(port, 64, echo).unwrap();
    std::future::pending::<()>().await;
    drop(listening);
}

/// Sends megabytes in both directions concurrently, and checks every byte.
async fn transfer() {
    let mut stream = dial(7).await;
    let block: Vec<u8> = (0..65_521u32).map(|n| (n * 7 % 251) as u8).collect();
    let mut received = 0;
    for _ in 0..32 {
        stream.write(IoBuf::copy_from_slice(&block).into()).await.unwrap();
        let back = read_exactly(&mut stream, block.len()).await;
        received += back.len();
        assert!(back == block);
    }
    assert_eq!(received, 32 * block.len());
    stream.shutdown();
    assert!(matches!(stream.read().await, Ok(None)));
}

#[test]
fn a_stream_transfers_megabytes_in_both_directions() {
    run_server_and_client(1, Loss::Never, || serve_echo(7), transfer);
}

#[test]
fn a_stream_transfers_megabytes_over_a_lossy_link() {
    run_server_and_client(2, Loss::EveryNth(37), || serve_echo(7), transfer);
}

/// The early reader keeps what it reads until a line ends, and wakes the task for each line that begins with `!`.
#[test]
fn an_early_reader_gets_what_arrives_while_the_task_waits_and_wakes_it_when_it_asks() {
    static POLLS: AtomicU64 = AtomicU64::new(0);
    async fn serve() {
        let listening = listen(9, 64, |mut stream: TcpStream| async move {
            let kept = Rc::new(RefCell::new(Vec::new()));
            let early = kept.clone();
            stream.set_early_reader(move |connection, data| {
                let mut kept = early.borrow_mut();
                kept.extend(data.to_vec());
                if kept.first() == Some(&b'!') {
                    return EarlyRead::WakeReader;
                }
                if kept.ends_with(b"\n") {
                    let answer = IoBuf::copy_from_slice(format!("early {}", kept.len()).as_bytes());
                    connection.send(&mut answer.into()).unwrap();
                    kept.clear();
                }
                EarlyRead::Complete
            });
            let mut result = Ok(Some(Chain::new()));
            while let Ok(Some(data)) = result {
                if !data.is_empty() {
                    // It arrived before the task waited.
                    let answer = format!("early {}", data.len());
                    stream.write(IoBuf::copy_from_slice(answer.as_bytes()).into()).await.unwrap();
                }
                if !kept.borrow().is_empty() {
                    // What arrives meanwhile is not for the early reader: the task is not waiting for data.
                    sleep(Duration::from_millis(20)).await;
                    kept.borrow_mut().clear();
                    stream.write(IoBuf::from_static(b"late").into()).await.unwrap();
                    let rest = stream.read().await.unwrap().unwrap();
                    stream.write(rest).await.unwrap();
                }
                result = poll_fn(|context| {
                    POLLS.fetch_add(1, Ordering::Relaxed);
                    match kept.borrow().is_empty() {
                        true => stream.poll_read(context),
                        false => Poll::Ready(Ok(Some(Chain::new()))),
                    }
                })
                .await;
            }
            assert_eq!(result.unwrap().map(|data| data.len()), None);
            stream.remove_early_reader();
            stream.write(IoBuf::from_static(b"end").into()).await.unwrap();
        })
        .unwrap();
        std::future::pending::<()>().await;
        drop(listening);
    }
    run_server_and_client(1, Loss::Never, serve, || async {
        let mut stream = dial(9).await;
        for _ in 0..50 {
            stream.write(IoBuf::from_static(b"12345678\n").into()).await.unwrap();
            assert_eq!(read_exactly(&mut stream, 7).await, b"early 9");
        }
        let polls = POLLS.load(Ordering::Relaxed);
        assert!(polls <= 3, "{polls} polls");
        stream.write(IoBuf::from_static(b"!\n").into()).await.unwrap();
        sleep(Duration::from_millis(5)).await;
        stream.write(IoBuf::from_static(b"rest\n").into()).await.unwrap();
        assert_eq!(read_exactly(&mut stream, 9).await, b"laterest\n");
        stream.write(IoBuf::from_static(b"1\n").into()).await.unwrap();
        assert_eq!(read_exactly(&mut stream, 7).await, b"early 2");
        stream.shutdown();
        assert_eq!(read_exactly(&mut stream, 3).await, b"end");
    });
}

#[test]
fn connections_spread_over_the_cores_and_stay_there() {
    static SERVED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
    async fn serve() {
        let listening = listen(9, 64, |mut stream: TcpStream| async move {
            let core = current_core();
            SERVED.lock().unwrap().insert(core.0);
            while let Ok(Some(data)) = stream.read().await {
                assert_eq!(current_core(), core);
                stream.write(data).await.unwrap();
            }
        })
        .unwrap();
        std::future::pending::<()>().await;
        drop(listening);
    }
    async fn client() {
        let clients: Vec<_> = (0..64u32)
            .map(|number| {
                spawn_task(async move {
                    let mut stream = dial(9).await;
                    for turn in 0..20u32 {
                        let word = (number << 16 | turn).to_be_bytes();
                        stream.write(IoBuf::copy_from_slice(&word).into()).await.unwrap();
                        assert_eq!(read_exactly(&mut stream, 4).await, word);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await;
        }
    }
    run_server_and_client(3, Loss::Never, serve, client);
    assert_eq!(SERVED.lock().unwrap().len(), 3);
    run_server_and_client(24, Loss::Never, serve, client);
    assert!(SERVED.lock().unwrap().len() > 12, "64 flows use too few cores");
}

/// Sends the activity for which a connection is served.
async fn name_the_activity(mut stream: TcpStream) {
    let activity = current_activity().0.to_le_bytes();
    stream.write(Chain::from(IoBuf::from(activity.to_vec()))).await.unwrap();
    stream.shutdown();
}

#[test]
fn connections_are_charged_to_the_activity_that_listens() {
    run_server_and_client(
        1,
        Loss::Never,
        || async {
            let listening = listen(7, 8, name_the_activity).unwrap();
            charge_to(register_activity("another").unwrap());
            let other = listen(8, 8, name_the_activity).unwrap();
            std::future::pending::<()>().await;
            drop((listening, other));
        },
        || async {
            let mut served_for = Vec::new();
            for port in [7, 8] {
                served_for.push(read_exactly(&mut dial(port).await, 4).await);
            }
            assert_eq!(served_for, [APPLICATION.0, 2].map(|activity| activity.to_le_bytes().to_vec()));
        },
    );
}

#[test]
fn a_port_without_a_listener_refuses_connections() {
    async fn client() {
        let refused = connect(address_of(4)).await.unwrap_err();
        assert_eq!(refused, StreamError::Failed(FailReason::Refused));
    }
    run_server_and_client(2, Loss::Never, || async {}, client);
}

#[test]
fn a_port_has_one_listener_and_is_free_after_its_end() {
    async fn serve() {
        let first = listen(5, 4, echo).unwrap();
        assert!(listen(5, 4, echo).is_err());
        drop(first);
        serve_echo(5).await;
    }
    async fn client() {
        let mut stream = dial(5).await;
        stream.write(IoBuf::from_static(b"hello").into()).await.unwrap();
        assert_eq!(read_exactly(&mut stream, 5).await, b"hello");
    }
    run_server_and_client(1, Loss::Never, serve, client);
}

#[test]
fn a_dropped_stream_ends_for_its_peer() {
    async fn serve() {
        let listening = listen(6, 4, |stream: TcpStream| async move { drop(stream) }).unwrap();
        std::future::pending::<()>().await;
        drop(listening);
    }
    async fn client() {
        let mut stream = dial(6).await;
        assert!(matches!(stream.read().await, Ok(None)));
    }
    run_server_and_client(2, Loss::Never, serve, client);
}

#[test]
fn datagrams_of_all_flows_reach_the_core_that_bound_the_port() {
    static RECEIVED: AtomicU64 = AtomicU64::new(0);
    async fn serve() {
        let socket = UdpSocket::bind(3).unwrap();
        loop {
            let datagram = socket.receive().await;
            assert_eq!(current_core(), CoreIndex(0));
            RECEIVED.fetch_add(1, Ordering::Relaxed);
            socket.send_to(datagram.remote, datagram.payload.into()).unwrap();
        }
    }
    async fn client() {
        for port in 2_000..2_032u16 {
            let socket = UdpSocket::bind(port).unwrap();
            loop {
                socket.send_to(address_of(3), IoBuf::copy_from_slice(&port.to_be_bytes()).into()).unwrap();
                if let Ok(answer) = timeout(Duration::from_millis(200), socket.receive()).await {
                    assert_eq!(*answer.payload, port.to_be_bytes());
                    break;
                }
            }
        }
    }
    run_server_and_client(3, Loss::Never, serve, client);
    assert!(RECEIVED.load(Ordering::Relaxed) >= 32);
}

#[test]
fn a_datagram_port_belongs_to_one_core_until_it_is_closed() {
    async fn bind_elsewhere() -> Result<(), UdpBindError> {
        elsewhere(CoreIndex(1), || async { UdpSocket::bind(3).map(drop) }).await
    }
    async fn serve() {
        let in_use = Err(UdpBindError::Bind(BindError::PortInUse(3)));
        let socket = UdpSocket::bind(3).unwrap();
        assert_eq!(UdpSocket::bind(3).map(drop), in_use);
        assert_eq!(bind_elsewhere().await, in_use);
        drop(socket);
        assert_eq!(bind_elsewhere().await, Ok(()));
        // Neither the rejected bind nor the closed socket diverts the port's datagrams.
        let socket = UdpSocket::bind(3).unwrap();
        assert_eq!(bind_elsewhere().await, in_use);
        loop {
            let datagram = socket.receive().await;
            socket.send_to(datagram.remote, datagram.payload.into()).unwrap();
        }
    }
    async fn client() {
        for port in 2_000..2_016 {
            let socket = UdpSocket::bind(port).unwrap();
            loop {
                socket.send_to(address_of(3), IoBuf::from_static(b"there?").into()).unwrap();
                if timeout(Duration::from_millis(200), socket.receive()).await.is_ok() {
                    break;
                }
            }
        }
    }
    run_server_and_client(2, Loss::Never, serve, client);
}

#[test]
fn a_polled_device_loses_nothing_and_interrupts_again_when_it_is_quiet() {
    fn interrupts() -> u64 {
        isola_ebbs::platform().report().cores[0].interrupts.load(Ordering::Relaxed)
    }
    fn idle_cycles() -> u64 {
        isola_ebbs::platform().report().cores[0].idle_cycles.load(Ordering::Relaxed)
    }
    // Two interrupts in a window of a second enable polling; less than one frame in a later second disables it.
    const POLLED: PollingThresholds =
        PollingThresholds { poll_above: 2, interrupt_below: 1, window: Duration::from_secs(1) };
    run_server_and_client(
        1,
        Loss::Never,
        || serve_echo(7),
        || async {
            set_polling(POLLED);
            let mut stream = dial(7).await;
            for _ in 0..5 {
                stream.write(Chain::from(IoBuf::from(vec![1; 100]))).await.unwrap();
                stream.read().await.unwrap();
            }
            let (before, idle) = (interrupts(), idle_cycles());
            for _ in 0..100 {
                stream.write(Chain::from(IoBuf::from(vec![1; 100]))).await.unwrap();
                stream.read().await.unwrap();
            }
            assert_eq!(
                (interrupts(), idle_cycles()),
                (before, idle),
                "the device interrupted, or the core halted"
            );
            // After two windows without a frame, later on a busy host.
            let mut waited = 0;
            while idle_cycles() == idle {
                waited += 1;
                assert!(waited < 300, "the core still polls");
                sleep(Duration::from_millis(100)).await;
            }
            stream.write(Chain::from(IoBuf::from(vec![1; 100]))).await.unwrap();
            stream.read().await.unwrap();
            assert!(interrupts() > before, "the device does not interrupt any more");
        },
    );
}
