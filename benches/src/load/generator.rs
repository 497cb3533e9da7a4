//! Load on a key-value service over several connections, in two forms:
//!
//! - *closed loop*: each connection sends its next request after the answer to the one before. This measures the
//!   service's capacity; its latencies mean little, because a slow service gets fewer requests.
//! - *open loop*: requests are due at times that do not depend on the service (Poisson arrivals), and are sent then
//!   even if earlier ones are pending. Latency counts from the time at which a request was due.
//!
//! The client is one thread that sleeps while it waits, the same for every system.

use super::connection::Connection;
use super::mix::Mix;
use super::profile::{LoadWindow, LoadWindows, Profile};
use super::{ANSWER_LIMIT, Outcome, histogram};
use crate::error::BenchError;
use crate::interrupt;
use rustix::event::{PollFd, Timespec, poll};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The number of pending requests while the records are stored.
const STORE_BATCH: usize = 64;

/// The interval of checks for an interruption.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The seed of the requests and their times.
const SEED: u64 = 0x10ad;

/// A load generator.
#[derive(Debug)]
pub struct Generator {
    mix: Mix,
    peer: SocketAddr,
    connections: Vec<Connection>,
    random: fastrand::Rng,
}

impl Generator {
    /// Opens `connections` connections to the service at `peer`, and stores all records of `mix` there.
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
            || self.connections.iter().any(|connection| connection.in_flight() > 0)
        {
            let room = STORE_BATCH - self.connections[0].in_flight();
            for request in requests.by_ref().take(room) {
                self.connections[0].ask(&self.mix, request, Instant::now())?;
            }
            self.turn(LOOK_INTERVAL, &mut last, |_, _, _| {})?;
        }
        Ok(())
    }

    /// Applies a closed loop for `duration`, with one pending request on each connection; then waits for all answers.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`], [`BenchError::Interrupted`].
    pub fn closed(&mut self, duration: Duration) -> Result<Outcome, BenchError> {
        self.closed_with(1, duration)
    }

    /// As [`Self::closed`], with `depth` pending requests on each connection. Requests that follow simultaneous answers
    /// are sent together.
    ///
    /// # Errors
    /// As [`Self::closed`].
    pub fn closed_with(&mut self, depth: usize, duration: Duration) -> Result<Outcome, BenchError> {
        let start = Instant::now();
        let end = start + duration;
        let mut latency_ns = histogram();
        let mut last = start;
        // A connection occurs once for each request that it may send.
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

    /// Applies an open loop of `rate` requests/s for `duration`; then waits for all answers.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`], [`BenchError::Interrupted`].
    pub fn open(&mut self, rate: f64, duration: Duration) -> Result<Outcome, BenchError> {
        self.due_at(|_| rate, |at| at >= duration, |_, _| {})
    }

    /// As [`Self::open`]; calls `each` with the due time and the answer time of each request.
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

    /// Applies an open loop with a varying load until `is_over`, which gets the windows so far; then waits for all
    /// answers.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`], [`BenchError::Interrupted`].
    pub fn fluctuating(
        &mut self,
        profile: &Profile,
        window: Duration,
        mut is_over: impl FnMut(&[LoadWindow]) -> bool,
    ) -> Result<(Outcome, LoadWindows), BenchError> {
        let windows = RefCell::new(LoadWindows::of(window));
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

    /// Applies an open loop whose `rate` depends on the time, until `is_over`. Calls `answered` with the time and the
    /// latency of each answer; all times are since the start.
    fn due_at(
        &mut self,
        rate: impl Fn(Duration) -> f64,
        mut is_over: impl FnMut(Duration) -> bool,
        mut answered: impl FnMut(Duration, Duration),
    ) -> Result<Outcome, BenchError> {
        // Each service gets the same requests at the same times.
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
            if is_done && self.connections.iter().all(|connection| connection.in_flight() == 0) {
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

    /// Waits for events, at most `limit`, then sends and receives. Calls `answered` with the time, the connection and
    /// the latency of each answer; `last` is the time of the latest answer.
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
        let waiting = self.connections.iter().any(|connection| connection.in_flight() > 0);
        if waiting && last.elapsed() > ANSWER_LIMIT {
            return Err(BenchError::connection(self.peer)(std::io::ErrorKind::TimedOut.into()));
        }
        Ok(())
    }
}

/// Returns the time to the next request, exponentially distributed.
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

    /// A key-value service with a thread for each connection, which supports the mix's requests.
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
    fn a_closed_loop_keeps_the_depth_and_waits_for_all_answers() {
        let mut generator = Generator::connect(service(), 2, Mix::etc()).unwrap();
        let outcome = generator.closed_with(4, Duration::from_millis(100)).unwrap();
        assert!(
            outcome.requests >= 8,
            "each of two connections has four pending requests: {}",
            outcome.requests
        );
        assert!(generator.connections.iter().all(|connection| connection.in_flight() == 0));
        assert_eq!(generator.closed_with(4, Duration::ZERO).unwrap().requests, 0);
    }

    #[test]
    fn open_each_reports_the_times_of_each_request() {
        let mut generator = Generator::connect(service(), 2, Mix::etc()).unwrap();
        let (begin, mut requests) = (Instant::now(), Vec::new());
        let outcome = generator
            .open_each(2_000.0, Duration::from_millis(100), |due, answered| requests.push((due, answered)))
            .unwrap();
        assert_eq!(requests.len() as u64, outcome.requests);
        assert!(requests.iter().all(|(due, answered)| begin <= *due && due < answered), "{requests:?}");
    }

    #[test]
    fn closed_and_open_loops_wait_for_all_answers() {
        let mut generator = Generator::connect(service(), 4, Mix::etc()).unwrap();
        let closed = generator.closed(Duration::from_millis(100)).unwrap();
        assert!(closed.requests >= 4 && closed.requests == closed.latency_ns.len());
        assert!(closed.rate() > 0.0 && closed.latency_us(0.5) > 0.0);
        let open = generator.open(500.0, Duration::from_millis(200)).unwrap();
        // The seed determines the arrivals: each run has the same number.
        let again = generator.open(500.0, Duration::from_millis(200)).unwrap();
        assert!(
            open.requests > 50 && open.requests == again.requests,
            "{} {}",
            open.requests,
            again.requests
        );
    }

    #[test]
    fn a_varying_load_lasts_until_it_is_over_and_waits_for_all_answers() {
        let mut generator = Generator::connect(service(), 4, Mix::etc()).unwrap();
        let profile = Profile { least: 500.0, most: 2_000.0, period: Duration::from_millis(100) };
        let mut polled = 0;
        let (outcome, windows) = generator
            .fluctuating(&profile, Duration::from_millis(20), |_| {
                polled += 1;
                polled > 200
            })
            .unwrap();
        assert_eq!(outcome.requests, 200);
        // LoadWindows follow the due times of requests, independent of the answers.
        assert!(windows.closed().len() >= 4, "{}", windows.closed().len());
    }

    #[test]
    fn a_closed_connection_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || listener.incoming().for_each(drop));
        let error = Generator::connect(address, 1, Mix::etc()).unwrap_err();
        assert!(matches!(error, BenchError::Connection { .. }), "{error}");
    }

    #[test]
    fn requests_arrive_at_the_given_rate() {
        let mut random = fastrand::Rng::with_seed(1);
        let time: Duration = (0..10_000).map(|_| gap(1_000.0, &mut random)).sum();
        assert!((9.5..10.5).contains(&time.as_secs_f64()), "{time:?}");
    }
}
