//! A service that wakes its cores: a request by UDP counts primes, with a task on each core.

use isola_tests::isola::Isola;
use isola_tests::service::published;
use isola_tests::wait::TIMEOUT;
use serde_json::Value;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Numbers, and the count of primes below each (OEIS A006880 for powers of ten).
const COUNTS: [(u64, u64); 8] =
    [(0, 0), (2, 0), (3, 1), (100, 25), (1_000, 168), (65_537, 6_542), (100_000, 9_592), (1_000_000, 78_498)];

/// A client with a socket of its own.
struct Client(UdpSocket);

impl Client {
    fn new(cell: &Value) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(published(cell)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        Self(socket)
    }

    /// Returns the answer that begins with `words`. Ignores other answers, and repeats the request, because datagrams
    /// may be lost.
    fn ask(&self, question: &[u8], words: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            // The send fails if the port was not published at the last one (ICMP port unreachable).
            let _ = self.0.send(question);
            while let Some(answer) = self.receive() {
                if answer.starts_with(words) {
                    return answer;
                }
            }
        }
        panic!("no answer to {:?}", String::from_utf8_lossy(question));
    }

    fn receive(&self) -> Option<String> {
        let mut buffer = [0; 2048];
        let len = self.0.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
    }

    fn count(&self, number: u64) -> u64 {
        let answer = self.ask(number.to_string().as_bytes(), &format!("{number} "));
        answer.trim().rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count")
    }
}

/// Returns the cycles that each core of the cell has spent in events.
fn event_cycles(isola: &Isola) -> Vec<u64> {
    let cell = isola.cell("primes");
    let cores = cell["cores"].as_array().unwrap();
    cores.iter().map(|core| core["event_cycles"].as_u64().unwrap()).collect()
}

#[test]
fn a_count_wakes_all_cores_and_is_correct_beside_other_requests() {
    let isola = Isola::up(&[]);
    let before = isola.inventory();
    let run =
        ["run", "-d", "--name", "primes", "--cores", "3", "--memory", "32M", "-p", "7000/udp", "primes"];
    let cell = isola.json(&run);
    let client = Client::new(&cell);
    client.ask(b"hello", "error: ");
    assert_eq!(event_cycles(&isola)[1..], [0, 0], "no core runs before there is work for it");
    for (number, count) in COUNTS {
        assert_eq!(client.count(number), count, "primes below {number}");
    }
    let cycles = event_cycles(&isola);
    assert!(cycles.iter().all(|&cycles| cycles > 0), "all cores have counted: {cycles:?}");

    // Many clients send requests and garbage at the same time.
    let clients: Vec<Client> = (0..32).map(|_| Client::new(&cell)).collect();
    for (number, client) in clients.iter().enumerate() {
        let garbage: Vec<u8> = (0..number as u32 * 40).map(|byte| (byte * 31) as u8).collect();
        for datagram in [COUNTS[number % 8].0.to_string().as_bytes(), &garbage, b"-1", b"99999999999999"] {
            client.0.send(datagram).unwrap();
        }
    }
    // A datagram longer than a frame arrives in fragments.
    client.0.send(&[b'1'; 5000]).unwrap();
    for (number, client) in clients.iter().enumerate() {
        let (number, count) = COUNTS[number % 8];
        assert_eq!(client.count(number), count, "primes below {number}");
    }
    client.ask(b"99999999999999", "error: the largest number is ");

    let halted: Vec<Value> = isola_tests::wait::until("the cores halt again", || {
        let cell = isola.cell("primes");
        let phases: Vec<Value> = cell["cores"].as_array()?.iter().map(|core| core["phase"].clone()).collect();
        phases[1..].iter().all(|phase| phase == "halted").then_some(phases)
    });
    assert_eq!(halted.len(), 3);
    let stopped = isola.json(&["stop", "primes"]);
    assert_eq!((&stopped[0]["state"], &stopped[0]["exit_code"]), (&"exited".into(), &0.into()));
    isola.run(&["rm", "primes"]).ok();
    isola.wait_for_inventory(&before);
}
