//! Requests and datagrams of an activity whose reception others accompany: work of another activity that comes first.

use isola_abi::id::ActivityId;
use isola_abi::report::RECLAIM;
use isola_ebbs::platform;
use isola_events::activity::charge_to;
use isola_events::event::Event;
use isola_events::{register_activity, sleep};
use isola_hosted::{Loss, link};
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_net::port::{Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedFrame};
use isola_net::{
    ConnectionHandler, Datagram, DatagramRecipient, SharedUdpSocket, TcpConnection, UdpSocket, listen_with,
};
use isola_platform::VacatedMemory;
use isola_resources::{Entitlement, PROCESSOR, PolicyKind, Priority};
use isola_test_cells::{SERVER, dial, read_exactly, run_server_and_client, run_server_and_client_over};
use std::future::pending;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A device that makes work of another activity while the event that takes frames processes one: then the core asks whether
/// there is another frame.
struct Interrupting(Box<dyn NetworkQueue + Send>);

/// Whether that work accompanies the next frame.
static ARMED: AtomicBool = AtomicBool::new(false);
static URGENT: AtomicU32 = AtomicU32::new(0);
static ORDER: Mutex<Vec<&str>> = Mutex::new(Vec::new());

impl NetworkQueue for Interrupting {
    fn vector(&self) -> Option<u8> {
        self.0.vector()
    }

    fn offloads(&self) -> Offloads {
        self.0.offloads()
    }

    fn attach(&mut self) {
        self.0.attach();
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        self.0.receive()
    }

    fn may_have_received(&self) -> bool {
        if ARMED.swap(false, Ordering::Relaxed) {
            let urgent = ActivityId(URGENT.load(Ordering::Relaxed));
            Event::new().charged_to(urgent).spawn(|| ORDER.lock().unwrap().push("urgent"));
            // The loop has work before its next event, as after an interrupt.
            platform().report().memory.pressure.fetch_or(RECLAIM, Ordering::SeqCst);
        }
        self.0.may_have_received()
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        self.0.send(frame)
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut)) {
        self.0.reclaim(recycle);
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        self.0.enable_interrupts()
    }

    fn disable_interrupts(&mut self) {
        self.0.disable_interrupts();
    }

    fn redirect(&mut self) {}

    fn vacate(&mut self, _: &VacatedMemory) {}

    fn has_failed(&self) -> bool {
        false
    }
}

struct Echo;

impl ConnectionHandler for Echo {
    fn received(&mut self, connection: &TcpConnection, mut data: Chain) {
        // Frames that arrive while other events wait are divided, and the device is not asked.
        let missed = ARMED.swap(false, Ordering::Relaxed);
        ORDER.lock().unwrap().push(if missed { "missed" } else { "request" });
        connection.send(&mut data).unwrap();
    }
}

#[test]
fn a_received_request_waits_for_work_that_arrives_meanwhile_and_comes_first() {
    let (server_port, client_port) = link(Loss::Never);
    let queues = server_port.queues.into_iter().map(|queue| Box::new(Interrupting(queue)) as _);
    let server_port = NetworkPort { queues: queues.collect(), ..server_port };
    let server = || async {
        PROCESSOR.set_policy(Some(PolicyKind::Priority));
        let urgent = register_activity("urgent").unwrap();
        PROCESSOR
            .set_entitlement(urgent, Entitlement { priority: Priority(200), ..Entitlement::default() })
            .unwrap();
        URGENT.store(urgent.0, Ordering::Relaxed);
        charge_to(register_activity("requests").unwrap());
        let _listener = listen_with(7, 8, |_| Echo).unwrap();
        pending::<()>().await;
    };
    let client = || async {
        let mut stream = dial(7).await;
        loop {
            // The server has all frames so far.
            sleep(Duration::from_millis(20)).await;
            ORDER.lock().unwrap().clear();
            ARMED.store(true, Ordering::Relaxed);
            stream.write(IoBuf::from_static(b"work").into()).await.unwrap();
            assert_eq!(read_exactly(&mut stream, 4).await, b"work");
            if *ORDER.lock().unwrap() != ["missed"] {
                break;
            }
        }
    };
    run_server_and_client_over((server_port, client_port), 1, server, client);
    assert_eq!(*ORDER.lock().unwrap(), ["urgent", "request"]);
}

/// A recipient that notes the datagrams of its activity.
struct Noting(&'static str);

static DATAGRAMS: Mutex<Vec<&str>> = Mutex::new(Vec::new());

impl DatagramRecipient for Noting {
    fn received(&self, _datagram: Datagram) {
        DATAGRAMS.lock().unwrap().push(self.0);
    }

    fn refused(&self, _remote: SocketAddr) {}
}

static STEP: AtomicU32 = AtomicU32::new(0);
const KNOWN: u32 = 1;
const BLOCKED: u32 = 2;
const SENT: u32 = 3;

/// Sends a datagram to each of several ports of an activity while the server is busy, so that the server takes all frames
/// at once, and one to another activity. Returns how many of the former are delivered before that.
fn busy_datagrams_before_a_quiet_one() -> Option<usize> {
    const BUSY: Range<u16> = 20..32;
    const QUIET: u16 = 32;
    let server = || async {
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        let mut sockets = Vec::new();
        for (name, ports) in [("busy", BUSY), ("quiet", QUIET..QUIET + 1)] {
            charge_to(register_activity(name).unwrap());
            let bind = |port| SharedUdpSocket::bind(port, Arc::new(Noting(name))).unwrap();
            sockets.extend(ports.map(bind));
        }
        while STEP.load(Ordering::Acquire) != KNOWN {
            sleep(Duration::from_millis(1)).await;
        }
        STEP.store(BLOCKED, Ordering::Release);
        // So that one event takes all frames.
        while STEP.load(Ordering::Acquire) != SENT {}
        pending::<()>().await;
        drop(sockets);
    };
    let client = || async {
        let socket = UdpSocket::bind(9).unwrap();
        let send = |port| socket.send_to((SERVER, port).into(), IoBuf::from_static(b"data").into()).unwrap();
        // Until the client knows the server's hardware address, it keeps one datagram only.
        while DATAGRAMS.lock().unwrap().is_empty() {
            send(QUIET);
            sleep(Duration::from_millis(20)).await;
        }
        sleep(Duration::from_millis(20)).await;
        DATAGRAMS.lock().unwrap().clear();
        STEP.store(KNOWN, Ordering::Release);
        while STEP.load(Ordering::Acquire) != BLOCKED {
            sleep(Duration::from_millis(1)).await;
        }
        BUSY.chain([QUIET]).for_each(send);
        // An event of the client sends meanwhile.
        sleep(Duration::from_millis(5)).await;
        STEP.store(SENT, Ordering::Release);
        while DATAGRAMS.lock().unwrap().len() <= BUSY.len() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    run_server_and_client(1, Loss::Never, server, client);
    STEP.store(0, Ordering::Release);
    core::mem::take(&mut *DATAGRAMS.lock().unwrap()).iter().position(|name| *name == "quiet")
}

#[test]
fn datagrams_of_a_batch_of_frames_are_delivered_in_the_order_of_the_policy() {
    // If other events wait as the server takes the frames, these are divided already.
    for _ in 0..25 {
        let before = busy_datagrams_before_a_quiet_one();
        assert!(before <= Some(1), "{before:?} datagrams of the other activity came first");
    }
}
