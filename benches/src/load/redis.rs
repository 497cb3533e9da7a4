//! Requests of redis: GET of stored values.

use super::{ANSWER_LIMIT, Outcome, histogram};
use crate::error::BenchError;
use crate::interrupt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The number of keys.
const RECORDS: usize = 1_000;

/// The length of each value in bytes.
const VALUE_BYTES: usize = 64;

/// The seed of the keys that are read.
const SEED: u64 = 0x6ed1;

/// A client with several connections.
#[derive(Debug)]
pub struct Client {
    streams: Vec<TcpStream>,
    random: fastrand::Rng,
}

impl Client {
    /// Opens `connections` connections to the server at `address`, and stores all values.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`].
    pub fn connect(address: SocketAddr, connections: usize) -> Result<Self, BenchError> {
        let dial = || {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_LIMIT))?;
            Ok(stream)
        };
        let streams: io::Result<Vec<_>> = (0..connections).map(|_| dial()).collect();
        let mut client = Self {
            streams: streams.map_err(BenchError::connection("redis"))?,
            random: fastrand::Rng::with_seed(SEED),
        };
        for record in 0..RECORDS {
            let (key, value) = (key(record), value(record));
            let request =
                format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}\r\n", key.len(), value.len());
            let answer = exchange(&mut client.streams[0], request.as_bytes(), b"+OK\r\n");
            check(answer, "SET", b"+OK\r\n")?;
        }
        Ok(client)
    }

    /// Reads values for `duration`: each connection sends `depth` requests in one piece; the next follow when all have
    /// been answered.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`], [`BenchError::Interrupted`].
    pub fn get(&mut self, depth: usize, duration: Duration) -> Result<Outcome, BenchError> {
        let (start, mut latency_ns) = (Instant::now(), histogram());
        while start.elapsed() < duration {
            interrupt::check()?;
            let before = Instant::now();
            let mut expected = Vec::with_capacity(self.streams.len());
            for stream in &mut self.streams {
                let (mut request, mut answer) = (Vec::new(), Vec::new());
                for _ in 0..depth {
                    let record = self.random.usize(..RECORDS);
                    let key = key(record);
                    // Writing to a vector cannot fail.
                    let _ = write!(request, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
                    let _ = write!(answer, "${VALUE_BYTES}\r\n{}\r\n", value(record));
                }
                stream.write_all(&request).map_err(BenchError::connection("redis"))?;
                expected.push(answer);
            }
            for (stream, expected) in self.streams.iter_mut().zip(&expected) {
                check(receive(stream, expected.len()), "GET", expected)?;
                latency_ns.saturating_record_n(before.elapsed().as_nanos() as u64, depth as u64);
            }
        }
        Ok(Outcome { requests: latency_ns.len(), elapsed: start.elapsed(), latency_ns })
    }
}

/// Returns the memory that redis reports as its own, in bytes: its resident set.
///
/// # Errors
/// [`BenchError::Connection`], [`BenchError::WrongAnswer`].
pub fn resident_bytes(stream: &mut TcpStream) -> Result<u64, BenchError> {
    let mut answer = Vec::new();
    let asked = stream.write_all(b"INFO memory\r\n").and_then(|()| {
        let mut piece = [0; 4096];
        // The answer is a string that ends with an empty line.
        while !answer.ends_with(b"\r\n\r\n") {
            match stream.read(&mut piece)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                len => answer.extend(&piece[..len]),
            }
        }
        Ok(())
    });
    asked.map_err(BenchError::connection("redis"))?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let value = text.lines().find_map(|line| line.strip_prefix("used_memory_rss:")?.trim().parse().ok());
    value.ok_or_else(|| BenchError::WrongAnswer {
        service: "redis".into(),
        request: "INFO".into(),
        answer: text,
    })
}

fn key(record: usize) -> String {
    format!("key:{record:012}")
}

fn value(record: usize) -> String {
    format!("{record:0VALUE_BYTES$}")
}

fn exchange(stream: &mut TcpStream, request: &[u8], expected: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(request)?;
    receive(stream, expected.len())
}

fn receive(stream: &mut TcpStream, len: usize) -> io::Result<Vec<u8>> {
    let mut answer = vec![0; len];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn check(answer: io::Result<Vec<u8>>, request: &str, expected: &[u8]) -> Result<(), BenchError> {
    let answer = answer.map_err(BenchError::connection("redis"))?;
    if answer == expected {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    Err(BenchError::WrongAnswer { service: "redis".into(), request: request.into(), answer })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::thread;

    /// Starts a server that answers each GET with what was stored, or always with `wrong`.
    fn serve(wrong: Option<&'static str>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut stored = BTreeMap::new();
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let mut stream = stream;
            while let Some(count) = lines.next() {
                let count: usize = count[1..].parse().unwrap();
                let words: Vec<String> = (0..count).map(|_| lines.nth(1).unwrap()).collect();
                let answer = match (&*words[0], wrong) {
                    ("SET", _) => {
                        stored.insert(words[1].clone(), words[2].clone());
                        "+OK\r\n".into()
                    }
                    (_, Some(wrong)) => format!("$64\r\n{wrong:>64}\r\n"),
                    _ => format!("$64\r\n{}\r\n", stored[&words[1]]),
                };
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        });
        address
    }

    #[test]
    fn requests_are_counted_and_answers_compared() {
        let mut client = Client::connect(serve(None), 1).unwrap();
        let outcome = client.get(4, Duration::from_millis(100)).unwrap();
        assert!(outcome.requests >= 4 && outcome.requests.is_multiple_of(4));
        let mut client = Client::connect(serve(Some("other")), 1).unwrap();
        let error = client.get(1, Duration::from_secs(10)).unwrap_err();
        assert!(matches!(error, BenchError::WrongAnswer { .. }), "{error}");
    }
}
