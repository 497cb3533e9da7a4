//! The web server, standalone on one emulated processor, under load.
//!
//! Sixteen keep-alive connections with pipelined requests take turns with many short connections. So the queues of the
//! network device alternate between full and empty, and driver and device decide at every moment whether the other one
//! needs a notification. A notification that gets lost stops a queue for ever: with a barrier that QEMU 7.2 did not
//! carry out (`machine::dma::full_barrier`), that took 45 to 252 seconds of this load.

use isola_need::LONG;
use isola_tests::qemu::{Machine, MachineType, RunningMachine};
use isola_tests::{ports, wait};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// The duration of the load; the second with `cargo xtask test machine --long`.
const SPAN: Duration = Duration::from_secs(10);
const LONG_SPAN: Duration = Duration::from_secs(300);

/// The duration of each kind of load in turn.
const TURN: Duration = Duration::from_secs(2);

/// The longest time without any answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number of clients, and of the requests that each pipelines.
const CLIENTS: usize = 16;
const PIPELINED: usize = 16;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: stress\r\n\r\n";

/// The kinds of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Pipelined,
    Short,
}

/// The state that the clients share.
struct Shared {
    port: u16,
    begin: Instant,
    answers: AtomicU64,
    is_over: AtomicBool,
}

impl Shared {
    fn load(&self) -> Load {
        match (self.begin.elapsed().as_millis() / TURN.as_millis()).is_multiple_of(2) {
            true => Load::Pipelined,
            false => Load::Short,
        }
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }
}

/// A connection that gives up waiting for an answer when the test is over.
struct Connection<'a> {
    stream: BufReader<TcpStream>,
    shared: &'a Shared,
}

impl<'a> Connection<'a> {
    fn open(shared: &'a Shared) -> io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(Self { stream: BufReader::new(stream), shared })
    }

    fn send(&mut self, requests: usize) -> io::Result<()> {
        self.stream.get_mut().write_all(&REQUEST.repeat(requests))
    }

    /// Reads an answer and counts it.
    fn receive(&mut self) -> io::Result<()> {
        let head =
            self.fill(|stream, head| stream.read_until(b'\n', head), |head| head.ends_with(b"\r\n\r\n"))?;
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        let len = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let len: usize = len.and_then(|len| len.trim().parse().ok()).expect("an answer has a length");
        let body = self.fill(
            |stream, body| stream.take((len - body.len()) as u64).read_to_end(body),
            |body| body.len() == len,
        )?;
        assert!(body.starts_with(b"<!"), "the page is HTML: {}", String::from_utf8_lossy(&body));
        self.shared.answers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Calls `read` until the bytes are whole.
    fn fill(
        &mut self,
        mut read: impl FnMut(&mut BufReader<TcpStream>, &mut Vec<u8>) -> io::Result<usize>,
        is_whole: impl Fn(&[u8]) -> bool,
    ) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while !is_whole(&bytes) {
            match read(&mut self.stream, &mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.shared.goes_on() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }
}

/// Sends requests until the test is over. The client ends its connections, so the server has none in TIME-WAIT.
fn converse(shared: &Shared) -> io::Result<()> {
    while shared.goes_on() {
        let load = shared.load();
        let mut connection = Connection::open(shared)?;
        let requests = if load == Load::Pipelined { PIPELINED } else { 1 };
        loop {
            connection.send(requests)?;
            (0..requests).try_for_each(|_| connection.receive())?;
            if load == Load::Short || shared.load() != load || !shared.goes_on() {
                break;
            }
        }
    }
    Ok(())
}

fn boot(port: u16) -> RunningMachine {
    let network = format!("user,id=n0,hostfwd=tcp:127.0.0.1:{port}-:80");
    let machine = Machine::new(MachineType::Q35, "web").argument("-netdev").argument(network);
    let mut machine = machine.virtio("net", ",netdev=n0").start();
    machine.wait_for("web: TCP port 80");
    machine
}

#[test]
fn a_standalone_image_on_one_emulated_processor_never_stops_answering() {
    let span = if std::env::var_os(LONG).is_some() { LONG_SPAN } else { SPAN };
    let port = ports::free();
    let mut machine = boot(port);
    let (answers, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let shared = Shared { port, begin: Instant::now(), answers, is_over };
    // Until the machine has an address, QEMU resets connections.
    wait::until_true("the first answer", || {
        let ask = |mut connection: Connection<'_>| connection.send(1).and_then(|()| connection.receive());
        Connection::open(&shared).and_then(ask).is_ok()
    });
    let (end, mut progress) = (Instant::now() + span, (0, Instant::now()));
    scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| converse(&shared))).collect();
        while Instant::now() < end && progress.1.elapsed() < PATIENCE {
            sleep(Duration::from_millis(100));
            let answers = shared.answers.load(Ordering::Relaxed);
            if answers != progress.0 {
                progress = (answers, Instant::now());
            }
        }
        let hangs = progress.1.elapsed() >= PATIENCE;
        shared.is_over.store(true, Ordering::Relaxed);
        let after = shared.begin.elapsed();
        eprintln!("{} answers in {after:?}", progress.0);
        assert!(!hangs, "no answer for {PATIENCE:?}, {after:?} after the start:\n{}", machine.serial());
        for client in clients {
            // The last answers may be missing.
            match client.join().expect("answers are right") {
                Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("a connection failed: {error}"),
                _ => {}
            }
        }
    });
}
