//! Clients of the key-value server that ask at a steady rate, whatever comes of it, check every answer, and note how long it
//! took: from when the request was due.

use crate::kv::{Connection, value};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Keys of each client.
const KEYS: u64 = 50;

/// An answer that takes longer than this is lost. Emulated machines on a busy host are slow, but not that slow.
pub const LIMIT: Duration = Duration::from_secs(20);

/// How much longer the slowest of 100 requests may take beside something than at rest, in the same run and on the same host,
/// and how long it may take on any. Processors of the emulator wait for each other, and for the host: instructions are what
/// benches/ counts.
const SLOWER: u32 = 10;
const ALWAYS_GRANTED: Duration = Duration::from_millis(200);

/// Clients at a steady rate, each in a thread of its own.
#[derive(Debug)]
pub struct SteadyLoad {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<io::Result<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
    /// How long requests took since they were last taken.
    latencies: Mutex<Vec<Duration>>,
}

/// How long some requests took.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// From the shortest to the longest.
    sorted: Vec<Duration>,
}

impl Latencies {
    /// Adds others.
    pub fn add(&mut self, others: Self) {
        self.sorted.extend(others.sorted);
        self.sorted.sort();
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Checks that the slowest of 100 of these took little longer than those `at_rest`, beside what is called so.
    ///
    /// # Panics
    /// Where they took longer, or there are none.
    #[track_caller]
    pub fn assert_near(&self, at_rest: &Self, beside: &str) {
        for (what, latencies) in [("at rest", at_rest), (beside, self)] {
            let [p50, p99, p999] = [500, 990, 999].map(|permille| latencies.permille(permille).as_micros());
            eprintln!("{what}: {} requests, p50 {p50} us, p99 {p99} us, p99.9 {p999} us", latencies.count());
        }
        let (rest, now) = (at_rest.permille(990), self.permille(990));
        assert!(now <= (rest * SLOWER).max(ALWAYS_GRANTED), "p99: {now:?} {beside}, {rest:?} at rest");
    }

    /// What so many of 1,000 took no longer than.
    ///
    /// # Panics
    /// Where there are none.
    pub fn permille(&self, permille: usize) -> Duration {
        self.sorted[(self.sorted.len() * permille / 1_000).min(self.sorted.len() - 1)]
    }
}

impl SteadyLoad {
    /// Starts so many clients, of which each asks once in `period`; each has been answered once when this returns.
    pub fn start(address: SocketAddr, clients: u32, period: Duration) -> Self {
        let shared = Arc::<Shared>::default();
        let establish = |_| {
            let mut connection = Connection::establish(address);
            connection.stream().set_read_timeout(Some(LIMIT)).expect("a limit");
            connection
        };
        let connections: Vec<_> = (0..clients).map(establish).collect();
        let begin = Instant::now();
        let clients = (0..).zip(connections).map(|(client, mut connection)| {
            let shared = Arc::clone(&shared);
            // In turn, and not all at once.
            let first = begin + period * client / clients;
            thread::spawn(move || drive(&mut connection, client.into(), first, period, &shared))
        });
        Self { clients: clients.collect(), shared }
    }

    /// How many requests were answered so far, and rightly.
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// How long the requests took that were answered since this was last asked.
    ///
    /// # Panics
    /// Where a request was answered wrongly or not at all.
    pub fn take(&self) -> Latencies {
        let failed = self.clients.iter().any(JoinHandle::is_finished);
        assert!(!failed, "a client was answered wrongly or not");
        let mut all = self.shared.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sorted = std::mem::take(&mut *all);
        sorted.sort();
        Latencies { sorted }
    }

    /// Ends the clients; returns how many requests were answered.
    ///
    /// # Panics
    /// Where a request was answered wrongly or not at all.
    pub fn end(self) -> u64 {
        self.shared.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().expect("a client does not panic").expect("every request is answered rightly");
        }
        self.shared.answered.load(Ordering::Relaxed)
    }
}

fn drive(
    connection: &mut Connection,
    client: u64,
    first: Instant,
    period: Duration,
    shared: &Shared,
) -> io::Result<()> {
    let mut due = first;
    for turn in 0.. {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        // What was written when it was last this key's turn, then a new value, and then that.
        let (round, key) = (turn / 3, turn / 3 % KEYS);
        let name = format!("steady{client}-{key}");
        let written = |round: u64| value(client << 32 | round, 1 + (round as usize * 37 % 1024));
        match turn % 3 {
            0 => expect(connection, &name, round.checked_sub(KEYS).map(written))?,
            1 => connection.set(&name, &written(round))?,
            _ => expect(connection, &name, Some(written(round)))?,
        }
        let took = due.elapsed();
        shared.latencies.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        shared.answered.fetch_add(1, Ordering::Relaxed);
        due += period;
    }
    Ok(())
}

fn expect(connection: &mut Connection, key: &str, expected: Option<Vec<u8>>) -> io::Result<()> {
    if connection.get(key)? == expected {
        Ok(())
    } else {
        Err(io::Error::other(format!("{key} has another value")))
    }
}
