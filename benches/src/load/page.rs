//! Requests for a page, over persistent connections or over a new connection each.

use super::{Outcome, histogram};
use crate::error::BenchError;
use crate::interrupt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A request that leaves the connection open.
const STAYING: &[u8] = b"GET / HTTP/1.1\r\nHost: 10.0.0.2\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n";

/// A request that closes the connection.
const CLOSING: &[u8] =
    b"GET / HTTP/1.1\r\nHost: 10.0.0.2\r\nUser-Agent: bench\r\nAccept: */*\r\nConnection: close\r\n\r\n";

/// The length of the longest response, in bytes.
const MAX_RESPONSE: usize = 16 << 10;

/// The longest wait for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// A client of a web server with one known page.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    page: &'static [u8],
}

impl Client {
    /// Creates a client of the server at `address`.
    pub fn new(address: SocketAddr, page: &'static [u8]) -> Self {
        Self { address, page }
    }

    /// Opens `count` connections.
    ///
    /// # Errors
    /// [`BenchError::Connection`].
    pub fn connect(&self, count: usize) -> Result<Vec<TcpStream>, BenchError> {
        let all: io::Result<_> = (0..count).map(|_| self.dial()).collect();
        all.map_err(BenchError::connection("the web server"))
    }

    fn dial(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        Ok(stream)
    }

    /// Requests the page for `duration` on all connections at once; the next requests follow when all have been
    /// answered.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`], [`BenchError::Interrupted`].
    pub fn staying(&self, streams: &mut [TcpStream], duration: Duration) -> Result<Outcome, BenchError> {
        self.repeat(duration, |latency| {
            let before = Instant::now();
            streams.iter_mut().try_for_each(|stream| stream.write_all(STAYING))?;
            for stream in &mut *streams {
                let response = self.read(stream)?;
                latency(before.elapsed());
                if !self.is_right(&response) {
                    return Ok(Some(response));
                }
            }
            Ok(None)
        })
    }

    /// Requests the page for `duration`, each time on a new connection, which both sides close.
    ///
    /// # Errors
    /// As [`Self::staying`].
    pub fn connecting(&self, duration: Duration) -> Result<Outcome, BenchError> {
        self.repeat(duration, |latency| {
            let before = Instant::now();
            let mut stream = self.dial()?;
            stream.write_all(CLOSING)?;
            let response = self.read(&mut stream)?;
            // Waits for the server's end of the stream before it sends its own.
            while stream.read(&mut [0; 64])? > 0 {}
            let _ = stream.shutdown(Shutdown::Write);
            latency(before.elapsed());
            Ok((!self.is_right(&response)).then_some(response))
        })
    }

    /// Repeats a turn, which may return a wrong response.
    fn repeat(
        &self,
        duration: Duration,
        mut turn: impl FnMut(&mut dyn FnMut(Duration)) -> io::Result<Option<Vec<u8>>>,
    ) -> Result<Outcome, BenchError> {
        let (start, mut latency_ns) = (Instant::now(), histogram());
        while start.elapsed() < duration {
            interrupt::check()?;
            let done = turn(&mut |latency| latency_ns.saturating_record(latency.as_nanos() as u64));
            if let Some(wrong) = done.map_err(BenchError::connection("the web server"))? {
                return Err(BenchError::WrongAnswer {
                    service: "the web server".into(),
                    request: "GET /".into(),
                    answer: String::from_utf8_lossy(&wrong).into_owned(),
                });
            }
        }
        Ok(Outcome { requests: latency_ns.len(), elapsed: start.elapsed(), latency_ns })
    }

    /// Reads a response, with head and page.
    fn read(&self, stream: &mut TcpStream) -> io::Result<Vec<u8>> {
        let mut response = Vec::with_capacity(1024);
        let mut piece = [0; 4096];
        loop {
            if let Some(end) = end_of_head(&response)
                && (response.len() >= end + self.page.len() || !response.starts_with(b"HTTP/1.1 200"))
            {
                return Ok(response);
            }
            match stream.read(&mut piece)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                len => response.extend(&piece[..len]),
            }
            if response.len() > MAX_RESPONSE {
                return Err(ErrorKind::InvalidData.into());
            }
        }
    }

    fn is_right(&self, response: &[u8]) -> bool {
        response.starts_with(b"HTTP/1.1 200")
            && end_of_head(response).is_some_and(|end| response[end..] == *self.page)
    }
}

/// Returns the offset of a response's body.
fn end_of_head(response: &[u8]) -> Option<usize> {
    Some(response.windows(4).position(|four| four == b"\r\n\r\n")? + 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Starts a server that always sends `response`, and closes the connection after [`CLOSING`].
    fn serve(response: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut request = [0; 1024];
                    while let Ok(len @ 1..) = stream.read(&mut request) {
                        if stream.write_all(response).is_err() || request[..len] == *CLOSING {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    #[test]
    fn pages_are_counted_over_persistent_and_over_new_connections() {
        let address = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage");
        let client = Client::new(address, b"page");
        let mut streams = client.connect(3).unwrap();
        let outcome = client.staying(&mut streams, Duration::from_millis(300)).unwrap();
        assert!(outcome.requests >= 3 && outcome.requests.is_multiple_of(3));
        assert!(client.connecting(Duration::from_millis(300)).unwrap().requests > 0);
    }

    #[test]
    fn another_page_is_a_wrong_answer() {
        for response in [&b"HTTP/1.1 200 OK\r\n\r\nother"[..], b"HTTP/1.1 404 Not Found\r\n\r\n"] {
            let client = Client::new(serve(response), b"page.");
            let mut streams = client.connect(1).unwrap();
            // The first wrong answer ends the load.
            let error = client.staying(&mut streams, Duration::from_secs(10)).unwrap_err();
            assert!(matches!(error, BenchError::WrongAnswer { .. }), "{error}");
        }
    }
}
