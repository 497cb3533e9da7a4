//! Load on a key-value service over several connections, in two forms:
//!
//! - *closed loop*: each connection asks again as soon as it has its answer. It finds out how much the service can do;
//!   its latencies say little, as a slow service is asked less.
//! - *open loop*: requests are due at times that do not depend on the service (Poisson arrivals), and are made then,
//!   whether earlier ones are answered or not. Latency counts from when a request was due.
//!
//! The client is one thread that sleeps while there is nothing to do, the same for every system.

use super::connection::Connection;
use super::mix::Mix;
use super::profile::{Profile, Window, Windows};
use super::{ANSWER_LIMIT, Outcome, histogram};
use crate::error::BenchError;
use crate::interrupt;
use rustix::event::{PollFd, Timespec, poll};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Requests under way at once while the records are stored.
const STORE_BATCH: usize = 64;

/// How often an interruption is looked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The seed of the requests and their times.
const SEED: u64 = 0x10ad;

/// Makes load.
#[derive(Debug)]
pub struct Generator {
    mix: Mix,
    peer: SocketAddr,
    connections: Vec<Connection>,
    random: fastrand::Rng,
}

impl Generator {
    /// Connects to the service at `peer` so many times, and stores all records of `mix` there.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`], [`BenchError::Interrupted`].
    pub fn connect(peer: SocketAddr, connections: usize, mix: Mix) -> Result<Self, BenchError> {
        let connections = (0..connections).map(|_| Connection::open(peer)).collect::<Result<_, _>>()?;
        let mut this = Self { mix, peer, connections, random: fastrand::Rng::with_seed(SEED) };
        this.store()?;
        Ok(this)
    }

    /// Stores all records, over the first connection.
    fn store(&mut self) -> Result<(), BenchError> {
        let mut requests = self.mix.store_all().peekable();
        let mut last = Instant::now();
        while requests.peek().is_some()
            || self.connections.iter().any(|connection| connection.under_way() > 0)
        {
            let room = STORE_BATCH - self.connections[0].under_way();
            for request in requests.by_ref().take(room) {
                self.connections[0].ask(&self.mix, request, Instant::now())?;
            }
            self.turn(LOOK_INTERVAL, &mut last, |_, _, _| {})?;
        }
        Ok(())
    }

    /// Closed loop for so long, one request a connection under way; then all answers are waited for.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`], [`BenchError::Interrupted`].
    pub fn closed(&mut self, duration: Duration) -> Result<Outcome, BenchError> {
        self.closed_with(1, duration)
    }

    /// The same with `depth` requests a connection under way: those that follow answers which came together go together.
    ///
    /// # Errors
    /// As [`Self::closed`].
    pub fn closed_with(&mut self, depth: usize, duration: Duration) -> Result<Outcome, BenchError> {
        let start = Instant::now();
        let end = start + duration;
        let mut latency_ns = histogram();
        let mut last = start;
        // A connection stands here once for each request that it may make.
        let all: Vec<usize> = (0..self.connections.len()).flat_map(|index| vec![index; depth]).collect();
        let mut idle = all.clone();
        loop {
            if Instant::now() < end {
                for &index in &idle {
                    let request = self.mix.draw(&mut self.random);
                    self.connections[index].queue(&self.mix, request, Instant::now());
                }
                idle.dedup();
                for index in idle.drain(..) {
                    self.connections[index].send()?;
                }
            } else if idle.len() == all.len() {
                return Ok(Outcome { requests: latency_ns.len(), elapsed: last - start, latency_ns });
            }
            self.turn(LOOK_INTERVAL, &mut last, |_, index, latency| {
                latency_ns.saturating_record(latency.as_nanos() as u64);
                idle.push(index);
            })?;
        }
    }

    /// Open loop of so many requests a second for so long; then all answers are waited for.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`], [`BenchError::Interrupted`].
    pub fn open(&mut self, rate: f64, duration: Duration) -> Result<Outcome, BenchError> {
        self.due_at(|_| rate, |at| at >= duration, |_, _| {})
    }

    /// The same, where `each` is told when each request was due and when it was answered.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_each(
        &mut self,
        rate: f64,
        duration: Duration,
        mut each: impl FnMut(Instant, Instant),
    ) -> Result<Outcome, BenchError> {
        let begin = Instant::now();
        self.due_at(|_| rate, |at| at >= duration, |at, latency| each(begin + at - latency, begin + at))
    }

    /// Open loop of a load that rises and falls, until it `is_over`, which is told the windows so far; then all answers are
    /// waited for.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`], [`BenchError::Interrupted`].
    pub fn fluctuating(
        &mut self,
        profile: &Profile,
        window: Duration,
        mut is_over: impl FnMut(&[Window]) -> bool,
    ) -> Result<(Outcome, Windows), BenchError> {
        let windows = RefCell::new(Windows::of(window));
        let outcome = self.due_at(
            |at| profile.rate(at),
            |at| {
                windows.borrow_mut().advance(at);
                is_over(windows.borrow().closed())
            },
            |at, latency| windows.borrow_mut().answered(at, latency),
        )?;
        Ok((outcome, windows.into_inner()))
    }

    /// Open loop of a `rate` by the time, until it `is_over`. `answered` is told when each answer came and its latency; all
    /// times are since the beginning.
    fn due_at(
        &mut self,
        rate: impl Fn(Duration) -> f64,
        mut is_over: impl FnMut(Duration) -> bool,
        mut answered: impl FnMut(Duration, Duration),
    ) -> Result<Outcome, BenchError> {
        // The same requests at the same times for whoever is asked.
        self.random = fastrand::Rng::with_seed(SEED);
        let start = Instant::now();
        let mut latency_ns = histogram();
        let mut last = start;
        let mut due = gap(rate(Duration::ZERO), &mut self.random);
        let mut is_done = is_over(due);
        loop {
            while !is_done && start + due <= Instant::now() {
                let index = self.random.usize(..self.connections.len());
                let request = self.mix.draw(&mut self.random);
                self.connections[index].ask(&self.mix, request, start + due)?;
                due += gap(rate(due), &mut self.random);
                is_done = is_over(due);
            }
            if is_done && self.connections.iter().all(|connection| connection.under_way() == 0) {
                return Ok(Outcome { requests: latency_ns.len(), elapsed: last - start, latency_ns });
            }
            let limit =
                if is_done { LOOK_INTERVAL } else { (start + due).saturating_duration_since(Instant::now()) };
            self.turn(limit, &mut last, |now, _, latency| {
                latency_ns.saturating_record(latency.as_nanos() as u64);
                answered(now.saturating_duration_since(start), latency);
            })?;
        }
    }

    /// Waits until something moves, or `limit` has passed, and moves it. `answered` is told when each answer
    /// came, its connection and its latency; `last` is when the latest came.
    fn turn(
        &mut self,
        limit: Duration,
        last: &mut Instant,
        mut answered: impl FnMut(Instant, usize, Duration),
    ) -> Result<(), BenchError> {
        interrupt::check()?;
        let limit = limit.min(LOOK_INTERVAL);
        let mut interests: Vec<PollFd<'_>> = self.connections.iter().map(Connection::interest).collect();
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        match poll(&mut interests, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(BenchError::connection(self.peer)(error.into())),
        }
        let ready: Vec<bool> = interests.iter().map(|interest| !interest.revents().is_empty()).collect();
        for (index, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
            let connection = &mut self.connections[index];
            connection.send()?;
            connection.receive(&self.mix, |due| {
                *last = Instant::now();
                answered(*last, index, last.saturating_duration_since(due));
            })?;
        }
        let waiting = self.connections.iter().any(|connection| connection.under_way() > 0);
        if waiting && last.elapsed() > ANSWER_LIMIT {
            return Err(BenchError::connection(self.peer)(std::io::ErrorKind::TimedOut.into()));
        }
        Ok(())
    }
}

/// Time to the next request: exponentially distributed.
fn gap(rate: f64, random: &mut fastrand::Rng) -> Duration {
    Duration::from_secs_f64(-(1.0 - random.f64()).ln() / rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};
    use std::thread;

    type Store = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

    /// A key-value service on a thread a connection, which does as much as the mix needs.
    fn service() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let store = Store::default();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let store = store.clone();
                thread::spawn(move || serve(&stream.unwrap(), &store));
            }
        });
        address
    }

    fn serve(stream: &TcpStream, store: &Store) {
        let mut input = BufReader::new(stream);
        let mut line = String::new();
        while input.read_line(&mut line).is_ok_and(|len| len > 0) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let mut answer = Vec::new();
            if words[0] == "set" {
                let mut value = vec![0; words[4].parse::<usize>().unwrap() + 2];
                input.read_exact(&mut value).unwrap();
                value.truncate(value.len() - 2);
                store.lock().unwrap().insert(words[1].into(), value);
                answer.extend(b"STORED\r\n");
            } else if let Some(value) = store.lock().unwrap().get(words[1]) {
                write!(answer, "VALUE {} 0 {}\r\n", words[1], value.len()).unwrap();
                answer.extend(value);
                answer.extend(b"\r\nEND\r\n");
            }
            let mut stream = stream;
            if stream.write_all(&answer).is_err() {
                return;
            }
            line.clear();
        }
    }

    #[test]
    fn batches_keep_so_many_requests_under_way_and_answer_all() {
        let mut generator = Generator::connect(service(), 2, Mix::etc()).unwrap();
        let outcome = generator.closed_with(4, Duration::from_millis(100)).unwrap();
        assert!(
            outcome.requests >= 8,
            "each of two connections asks four times at once: {}",
            outcome.requests
        );
        assert!(generator.connections.iter().all(|connection| connection.under_way() == 0));
        assert_eq!(generator.closed_with(4, Duration::ZERO).unwrap().requests, 0);
    }

    #[test]
    fn each_request_is_told_with_its_times() {
        let mut generator = Generator::connect(service(), 2, Mix::etc()).unwrap();
        let (begin, mut requests) = (Instant::now(), Vec::new());
        let outcome = generator
            .open_each(2_000.0, Duration::from_millis(100), |due, answered| requests.push((due, answered)))
            .unwrap();
        assert_eq!(requests.len() as u64, outcome.requests);
        assert!(requests.iter().all(|(due, answered)| begin <= *due && due < answered), "{requests:?}");
    }

    #[test]
    fn both_forms_have_every_request_answered() {
        let mut generator = Generator::connect(service(), 4, Mix::etc()).unwrap();
        let closed = generator.closed(Duration::from_millis(100)).unwrap();
        assert!(closed.requests >= 4 && closed.requests == closed.latency_ns.len());
        assert!(closed.rate() > 0.0 && closed.latency_us(0.5) > 0.0);
        let open = generator.open(500.0, Duration::from_millis(200)).unwrap();
        // Arrivals are drawn from the seed: as many in each run.
        let again = generator.open(500.0, Duration::from_millis(200)).unwrap();
        assert!(
            open.requests > 50 && open.requests == again.requests,
            "{} {}",
            open.requests,
            again.requests
        );
    }

    #[test]
    fn a_load_that_rises_and_falls_goes_on_until_it_is_over_and_every_request_is_answered() {
        let mut generator = Generator::connect(service(), 4, Mix::etc()).unwrap();
        let profile = Profile { least: 500.0, most: 2_000.0, period: Duration::from_millis(100) };
        let mut asked = 0;
        let (outcome, windows) = generator
            .fluctuating(&profile, Duration::from_millis(20), |_| {
                asked += 1;
                asked > 200
            })
            .unwrap();
        assert_eq!(outcome.requests, 200);
        // Windows go by when requests were due, whenever the answers come.
        assert!(windows.closed().len() >= 4, "{}", windows.closed().len());
    }

    #[test]
    fn a_service_that_closes_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || listener.incoming().for_each(drop));
        let error = Generator::connect(address, 1, Mix::etc()).unwrap_err();
        assert!(matches!(error, BenchError::Connection { .. }), "{error}");
    }

    #[test]
    fn requests_come_at_the_rate_that_was_asked_for() {
        let mut random = fastrand::Rng::with_seed(1);
        let time: Duration = (0..10_000).map(|_| gap(1_000.0, &mut random)).sum();
        assert!((9.5..10.5).contains(&time.as_secs_f64()), "{time:?}");
    }
}
