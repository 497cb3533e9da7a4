//! Clients of the key-value server that send requests at a steady rate, check every answer, and record response times.
//! A response time begins when the request was due, so a late answer does not slow the load down.

use crate::clients::{ClientThreads, Progress};
use crate::kv::{Connection, value};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The number of keys of each client.
const KEYS: u64 = 50;

/// The longest wait for an answer; after it the request counts as lost. Generous, because emulated machines on a busy
/// host are slow.
pub const LIMIT: Duration = Duration::from_secs(20);

/// The allowed ratio of the 99th percentiles under disturbance and at rest, in one run on one host; and the response
/// time that is always allowed. The emulator's processors wait for each other and for the host; precise limits are in
/// `benches/`, which counts instructions.
const SLOWER: u32 = 10;
const ALWAYS_GRANTED: Duration = Duration::from_millis(200);

/// Clients at a steady rate, each on its own thread.
#[derive(Debug)]
pub struct SteadyLoad {
    clients: ClientThreads,
    /// The response times since the last [`SteadyLoad::take`].
    latencies: Arc<Mutex<Vec<Duration>>>,
}

/// The response times of some requests.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// In ascending order.
    sorted: Vec<Duration>,
}

impl Latencies {
    /// Adds the response times of `others`.
    pub fn add(&mut self, others: Self) {
        self.sorted.extend(others.sorted);
        self.sorted.sort();
    }

    /// Returns the number of response times.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Checks the 99th percentile against that of the load `at_rest`; `beside` names the disturbance.
    ///
    /// # Panics
    /// If it is much larger, or if there are no response times.
    #[track_caller]
    pub fn assert_near(&self, at_rest: &Self, beside: &str) {
        for (what, latencies) in [("at rest", at_rest), (beside, self)] {
            let [p50, p99, p999] = [500, 990, 999].map(|permille| latencies.permille(permille).as_micros());
            eprintln!("{what}: {} requests, p50 {p50} us, p99 {p99} us, p99.9 {p999} us", latencies.count());
        }
        let (rest, now) = (at_rest.permille(990), self.permille(990));
        assert!(now <= (rest * SLOWER).max(ALWAYS_GRANTED), "p99: {now:?} {beside}, {rest:?} at rest");
    }

    /// Returns the quantile of `permille` thousandths: 990 is the 99th percentile.
    ///
    /// # Panics
    /// If there are no response times.
    pub fn permille(&self, permille: usize) -> Duration {
        self.sorted[(self.sorted.len() * permille / 1_000).min(self.sorted.len() - 1)]
    }
}

impl SteadyLoad {
    /// Starts the clients; each sends one request in `period`. Each has received an answer when this function returns.
    pub fn start(address: SocketAddr, count: u32, period: Duration) -> Self {
        let mut clients = ClientThreads::default();
        let latencies = Arc::<Mutex<Vec<Duration>>>::default();
        let establish = |_| {
            let mut connection = Connection::establish(address);
            connection.stream().set_read_timeout(Some(LIMIT)).expect("a limit");
            connection
        };
        let connections: Vec<_> = (0..count).map(establish).collect();
        let begin = Instant::now();
        for (client, mut connection) in (0..).zip(connections) {
            let latencies = Arc::clone(&latencies);
            // Spreads the clients over the period.
            let first = begin + period * client / count;
            clients.start(move |progress| {
                let record = |took| latencies.lock().unwrap_or_else(PoisonError::into_inner).push(took);
                drive(&mut connection, client.into(), first, period, progress, record)
            });
        }
        Self { clients, latencies }
    }

    /// Returns the number of correct answers so far.
    pub fn answered(&self) -> u64 {
        self.clients.answered()
    }

    /// Returns the response times since the last call.
    ///
    /// # Panics
    /// If a client received a wrong answer or none.
    pub fn take(&self) -> Latencies {
        self.clients.check();
        let mut all = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sorted = std::mem::take(&mut *all);
        sorted.sort();
        Latencies { sorted }
    }

    /// Ends the clients; returns the number of correct answers.
    ///
    /// # Panics
    /// If a client received a wrong answer or none.
    pub fn end(self) -> u64 {
        self.clients.end()
    }
}

fn drive(
    connection: &mut Connection,
    client: u64,
    first: Instant,
    period: Duration,
    progress: &Progress,
    record: impl Fn(Duration),
) -> io::Result<()> {
    let mut due = first;
    for turn in 0.. {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if progress.is_stopped() {
            break;
        }
        // Reads the value of this key's last round, writes a new one, and reads that.
        let (round, key) = (turn / 3, turn / 3 % KEYS);
        let name = format!("steady{client}-{key}");
        let written = |round: u64| value(client << 32 | round, 1 + (round as usize * 37 % 1024));
        match turn % 3 {
            0 => expect(connection, &name, round.checked_sub(KEYS).map(written))?,
            1 => connection.set(&name, &written(round))?,
            _ => expect(connection, &name, Some(written(round)))?,
        }
        record(due.elapsed());
        progress.count_answer();
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
