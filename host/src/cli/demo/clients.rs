//! The demo's clients: a load for the key-value server, and requests for the service that counts primes.

use serde::Serialize;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};
use thiserror::Error;

/// The time after which a request counts as missed.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// How long a service may take until it accepts its first connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// How long a count may take; an emulated core is slow.
const COUNT_LIMIT: Duration = Duration::from_secs(30);

/// The number of keys that the load uses in turn.
const KEYS: u64 = 64;

/// The reasons why a client failed.
#[derive(Debug, Error)]
pub(super) enum ClientError {
    /// The connection broke, or an answer took too long.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The answer is wrong.
    #[error("the answer to {question:?} is {answer:?}")]
    Answer {
        /// The request.
        question: String,
        /// The answer.
        answer: String,
    },
}

/// The result of a load.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct KvReport {
    /// The number of requests, half of them `set` and half `get`; all had correct answers.
    pub(super) requests: u64,
    /// The time from the first to the last request.
    pub(super) duration_ns: u64,
    /// The sum of the times of all requests.
    pub(super) total_ns: u64,
    /// The longest time of a request.
    pub(super) slowest_ns: u64,
}

/// A client that sends sets and gets one after the other, in a thread of its own.
#[derive(Debug)]
pub(super) struct KvLoad {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<KvReport, ClientError>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    requests: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl KvLoad {
    /// Starts the load on the server at `port`.
    pub(super) fn start(port: SocketAddrV4) -> Self {
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let result = drive(port, &theirs);
            if let Err(error) = &result {
                *theirs.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
            result
        });
        Self { shared, thread }
    }

    /// Returns the number of answered requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Returns the error, if there was one.
    pub(super) fn failure(&self) -> Option<String> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the load, and returns its result.
    pub(super) fn stop(self) -> Result<KvReport, ClientError> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the client panicked").into()))
    }
}

fn drive(port: SocketAddrV4, shared: &Shared) -> Result<KvReport, ClientError> {
    let mut server = KvClient::connect(port)?;
    let begun = Instant::now();
    let mut report = KvReport::default();
    let mut turn = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let key = format!("key-{}", turn % KEYS);
        // From 1 to 1024 bytes, a size of values in real caches.
        let value = vec![b'a' + (turn % 26) as u8; 1 + (turn * 37 % 1024) as usize];
        for request in [Request::Set, Request::Get] {
            let sent = Instant::now();
            match request {
                Request::Set => server.set(&key, &value)?,
                Request::Get => server.get(&key, &value)?,
            }
            let took = sent.elapsed().as_nanos() as u64;
            report.requests += 1;
            report.total_ns += took;
            report.slowest_ns = report.slowest_ns.max(took);
            shared.requests.store(report.requests, Ordering::Relaxed);
        }
        turn += 1;
    }
    report.duration_ns = begun.elapsed().as_nanos() as u64;
    Ok(report)
}

#[derive(Clone, Copy)]
enum Request {
    Set,
    Get,
}

/// A connection for memcached's text protocol.
struct KvClient {
    stream: BufReader<TcpStream>,
}

impl KvClient {
    /// Connects, and repeats that until the server accepts connections. QEMU accepts them earlier, and then closes
    /// them.
    fn connect(port: SocketAddrV4) -> Result<Self, ClientError> {
        let end = Instant::now() + CONNECT_LIMIT;
        loop {
            match Self::try_connect(port) {
                Err(_) if Instant::now() < end => sleep(Duration::from_millis(50)),
                other => return other,
            }
        }
    }

    fn try_connect(port: SocketAddrV4) -> Result<Self, ClientError> {
        let stream = TcpStream::connect(port)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REQUEST_LIMIT))?;
        stream.set_write_timeout(Some(REQUEST_LIMIT))?;
        let mut client = Self { stream: BufReader::new(stream) };
        let version = client.ask("version\r\n")?;
        if version.starts_with("VERSION ") { Ok(client) } else { Err(wrong("version", &version)) }
    }

    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), ClientError> {
        let mut question = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
        question.extend_from_slice(value);
        question.extend_from_slice(b"\r\n");
        self.stream.get_mut().write_all(&question)?;
        let answer = self.line()?;
        if answer == "STORED" { Ok(()) } else { Err(wrong(&format!("set {key}"), &answer)) }
    }

    fn get(&mut self, key: &str, value: &[u8]) -> Result<(), ClientError> {
        let question = format!("get {key}\r\n");
        let answer = self.ask(&question)?;
        if answer != format!("VALUE {key} 0 {}", value.len()) {
            return Err(wrong(&question, &answer));
        }
        let mut got = vec![0; value.len() + 2];
        self.stream.read_exact(&mut got)?;
        let end = self.line()?;
        if got.strip_suffix(b"\r\n") != Some(value) || end != "END" {
            return Err(wrong(&question, "another value"));
        }
        Ok(())
    }

    fn ask(&mut self, question: &str) -> Result<String, ClientError> {
        self.stream.get_mut().write_all(question.as_bytes())?;
        self.line()
    }

    fn line(&mut self) -> Result<String, ClientError> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(
                io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection").into()
            );
        }
        Ok(line.trim_end().to_owned())
    }
}

fn wrong(question: &str, answer: &str) -> ClientError {
    ClientError::Answer { question: question.trim_end().to_owned(), answer: answer.to_owned() }
}

/// Queries the service at `port` for the number of primes below `number`.
///
/// Repeats a datagram until an answer arrives, as it can be lost.
pub(super) fn count_primes(port: SocketAddrV4, number: u64) -> Result<u64, ClientError> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(port)?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let question = number.to_string();
    let end = Instant::now() + COUNT_LIMIT;
    let mut buffer = [0; 256];
    loop {
        socket.send(question.as_bytes())?;
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let answer = String::from_utf8_lossy(&buffer[..length]).trim().to_owned();
                let count = answer.strip_prefix(&question).and_then(|rest| rest.trim().parse().ok());
                return count.ok_or_else(|| wrong(&question, &answer));
            }
            Err(error) if Instant::now() >= end => return Err(error.into()),
            // Refused: the service does not listen at the port yet.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                sleep(Duration::from_millis(50))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener};

    fn v4(address: SocketAddr) -> SocketAddrV4 {
        match address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(_) => panic!("{address}"),
        }
    }

    /// A server that keeps one value, and loses it after `forget_after` gets.
    fn serve(listener: TcpListener, forget_after: usize) {
        let (stream, _) = listener.accept().unwrap();
        let mut stream = BufReader::new(stream);
        let (mut value, mut key, mut gets) = (Vec::new(), String::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let answer = match words[0] {
                "version" => b"VERSION 1\r\n".to_vec(),
                "set" => {
                    value = vec![0; words[4].parse::<usize>().unwrap() + 2];
                    key = words[1].to_owned();
                    stream.read_exact(&mut value).unwrap();
                    b"STORED\r\n".to_vec()
                }
                _ if gets >= forget_after => b"END\r\n".to_vec(),
                _ => {
                    gets += 1;
                    let head = format!("VALUE {key} 0 {}\r\n", value.len() - 2).into_bytes();
                    [&head[..], &value, b"END\r\n"].concat()
                }
            };
            stream.get_mut().write_all(&answer).unwrap();
        }
    }

    fn load(forget_after: usize) -> KvLoad {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = v4(listener.local_addr().unwrap());
        thread::spawn(move || serve(listener, forget_after));
        KvLoad::start(port)
    }

    #[test]
    fn a_load_counts_correct_answers() {
        let load = load(usize::MAX);
        while load.requests() < 200 {
            assert_eq!(load.failure(), None);
            thread::yield_now();
        }
        let report = load.stop().unwrap();
        assert!(
            report.requests >= 200 && report.slowest_ns * report.requests >= report.total_ns,
            "{report:?}"
        );
    }

    #[test]
    fn a_missed_request_is_reported_at_once() {
        let load = load(3);
        while load.failure().is_none() {
            thread::yield_now();
        }
        assert_eq!(load.requests(), 7);
        let error = load.stop().unwrap_err().to_string();
        assert_eq!(error, "the answer to \"get key-3\" is \"END\"");
    }

    #[test]
    fn a_lost_datagram_is_sent_again() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = v4(server.local_addr().unwrap());
        let served = thread::spawn(move || {
            let mut buffer = [0; 64];
            server.recv_from(&mut buffer).unwrap();
            let (length, client) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"10");
            server.send_to(b"10 4\n", client).unwrap();
            let (_, client) = server.recv_from(&mut buffer).unwrap();
            server.send_to(b"error: no\n", client).unwrap();
        });
        assert_eq!(count_primes(port, 10).unwrap(), 4);
        assert!(matches!(count_primes(port, 10), Err(ClientError::Answer { .. })));
        served.join().unwrap();
    }
}
