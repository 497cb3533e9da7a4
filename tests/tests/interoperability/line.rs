//! Linux's TCP/IP and a cell, over a link that loses, reorders, delays, duplicates and corrupts frames.
//!
//! ```text
//! client -- Linux's TCP/IP -- TAP "shared" == this test == TAP "far" -- bridge -- TAP "line" -- QEMU -- cell
//! ```
//!
//! The test opens two interfaces and forwards frames between them. TCP on both sides must recover from the faults.

use isola_hosted::tap::{self, TapOffloads};
use isola_iobuf::IoBufMut;
use isola_net_sim::{Link, Random};
use isola_net_stack::Duration as Nanos;
use isola_platform::network::{Frame, NetworkQueue};
use isola_tests::isola::Isola;
use isola_tests::kv::{Connection, value};
use isola_tests::namespace::{self, PREFIX_LEN, SHARED};
use isola_tests::wait;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that each connection echoes.
const AMOUNT: usize = 300_000;

/// The forwarder's sleep while no frame is pending.
const PAUSE: Duration = Duration::from_micros(200);

/// Returns the link's faults; probabilities are in thousandths.
fn impaired_link() -> Link {
    Link {
        latency: Nanos::from_millis(1),
        // Longer than the time between frames, so that frames are reordered.
        jitter: Nanos::from_millis(3),
        loss: 20,
        duplication: 20,
        corruption: 5,
        ..Link::good()
    }
}

/// Numbers of frames, by their fate on the link.
#[derive(Debug, Default)]
struct Counts {
    carried: u64,
    lost: u64,
    duplicated: u64,
    corrupted: u64,
}

/// A frame in transit: its arrival time, sequence number, destination interface, and bytes.
type FrameInTransit = (Duration, u64, usize, Vec<u8>);

/// Forwards frames between the two interfaces until `done`.
fn forward(link: &Link, seed: u64, done: &AtomicBool) -> Counts {
    let open = |name| {
        tap::open(name, 1, TapOffloads::None).expect("the interface is there").queues.pop().expect("a queue")
    };
    let mut ends: [Box<dyn NetworkQueue + Send>; 2] = [open(SHARED_NAME), open("far")];
    let (begun, mut random, mut counts) = (Instant::now(), Random::new(seed), Counts::default());
    let mut flying: BinaryHeap<Reverse<FrameInTransit>> = BinaryHeap::new();
    let mut number = 0;
    while !done.load(Ordering::Relaxed) {
        let mut idle = true;
        for (from, end) in ends.iter_mut().enumerate() {
            while let Some(frame) = end.receive() {
                idle = false;
                let mut bytes = frame.frame.to_vec();
                counts.carried += 1;
                if random.happens(link.loss) {
                    counts.lost += 1;
                    continue;
                }
                // Only bytes after the IPv4 header: the transport's checksum covers neither the time to live nor ARP.
                if bytes.get(12..14) == Some(&[8, 0]) && random.happens(link.corruption) {
                    let at = 34 + random.below(bytes.len().saturating_sub(34).max(1) as u64) as usize;
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << random.below(8);
                        counts.corrupted += 1;
                    }
                }
                let twice = random.happens(link.duplication);
                counts.duplicated += u64::from(twice);
                for _ in 0..1 + u32::from(twice) {
                    let delay = link.latency.as_nanos() + random.below(link.jitter.as_nanos() + 1);
                    number += 1;
                    let at = begun.elapsed() + Duration::from_nanos(delay);
                    flying.push(Reverse((at, number, 1 - from, bytes.clone())));
                }
            }
        }
        while flying.peek().is_some_and(|Reverse((at, ..))| *at <= begun.elapsed()) {
            let Some(Reverse((_, _, to, bytes))) = flying.pop() else { break };
            idle = false;
            let mut head = IoBufMut::with_room(0, bytes.len());
            head.append_slice(&bytes).expect("the buffer has the size of the frame");
            // If the interface has no room, the frame is lost.
            let _ =
                ends[to].send(Frame { head, payload: Default::default(), checksum: None, segment_len: None });
        }
        if idle {
            thread::sleep(PAUSE);
        }
    }
    counts
}

/// The name of the namespace's interface with the host's address.
const SHARED_NAME: &str = "shared";

/// Runs `with` in a namespace, with a machine at the far end of a faulty link and a cell of `image` on the machine.
fn over_a_bad_line(seed: u64, image: &str, with: impl FnOnce(&Isola) + Send) {
    namespace::run(|| {
        for arguments in [
            "tuntap add far mode tap",
            "tuntap add line mode tap",
            "link add bridge type bridge",
            "link set far master bridge",
            "link set line master bridge",
            "link set bridge up",
            "link set far up",
            "link set line up",
        ] {
            crate::program::run("ip", &arguments.split(' ').collect::<Vec<_>>());
        }
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let line = scope.spawn(|| forward(&impaired_link(), seed, &done));
            // Ends the forwarder also if the test panics.
            let end = StopOnDrop(&done);
            let isola = Isola::up(&["--net", "tap:line"]);
            let network = format!("{}/{PREFIX_LEN}", SHARED.cell());
            isola.run(&["run", "-d", "--name", "far", "--cores", "2", "--network", &network, image]).ok();
            with(&isola);
            let cell = isola.cell("far");
            assert_eq!(cell["state"], "running", "{cell:#}");
            drop(end);
            let counts = line.join().expect("the line");
            let Counts { lost, duplicated, corrupted, .. } = counts;
            assert!(lost > 0 && duplicated > 0 && corrupted > 0, "the link had too few faults: {counts:?}");
        });
    });
}

/// Ends the forwarder on drop.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends a stream to an echo server, and reads it back at the same time.
fn echoes(address: SocketAddr, number: u64) {
    let sent = value(number, AMOUNT);
    let stream = TcpStream::connect(address).expect("a connection");
    for set in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
        set(&stream, Some(wait::TIMEOUT)).expect("a timeout");
    }
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            (&stream).write_all(&sent).expect("the cell receives all bytes");
            stream.shutdown(Shutdown::Write).expect("an end");
        });
        let mut received = Vec::new();
        (&stream).read_to_end(&mut received).expect("the cell closes the stream");
        assert!(received == sent, "{} of {AMOUNT} bytes were echoed, or wrong ones", received.len());
        writer.join().expect("the writer");
    });
}

#[test]
fn a_cell_echoes_streams_over_a_faulty_link() {
    over_a_bad_line(1, "echo", |isola| {
        let address = SocketAddr::from((SHARED.cell(), 7));
        wait::until_true("the cell listens", || TcpStream::connect(address).is_ok());
        thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || echoes(address, number));
            }
        });
        let counters = &isola.cell("far")["counters"];
        assert!(
            counters["tcp_fast_retransmits"].as_u64() > Some(0),
            "the cell retransmitted nothing: {counters:#}"
        );
    });
}

#[test]
fn every_request_over_a_faulty_link_gets_one_correct_answer() {
    over_a_bad_line(2, "kv", |_| {
        let address = SocketAddr::from((SHARED.cell(), 11211));
        wait::until_true("the cell listens", || TcpStream::connect(address).is_ok());
        let mut connection = Connection::establish(address);
        connection.set("count", b"0").expect("stored");
        for number in 1..=200u64 {
            let key = format!("key{}", number % 7);
            let stored = value(number, 1 + number as usize * 31 % 9_000);
            connection.set(&key, &stored).expect("stored");
            assert_eq!(connection.get(&key).expect("an answer").as_ref(), Some(&stored), "{key}");
        }
    });
}
