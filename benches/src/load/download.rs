//! Downloads of a file over persistent connections to one or several web servers, each connection with one request at a
//! time. The client is one thread that polls all connections, the same for every system.

use super::ANSWER_LIMIT;
use crate::error::BenchError;
use crate::interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The most bytes of one read.
const PIECE_BYTES: usize = 256 << 10;

/// The longest head of a response, in bytes.
const MAX_HEAD: usize = 4096;

/// The interval at which the end and an interruption are checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// A client of several servers.
#[derive(Debug)]
pub struct Downloads {
    connections: Vec<Download>,
    request: Vec<u8>,
    servers: usize,
    file_len: usize,
    piece: Vec<u8>,
}

/// A connection, with one response on its way.
#[derive(Debug)]
struct Download {
    stream: TcpStream,
    address: SocketAddr,
    /// The index of its server.
    server: usize,
    /// The head of the response, while it is incomplete.
    head: Vec<u8>,
    /// The bytes of the response that are missing after the head.
    left: usize,
}

/// The bytes and responses of a period, by server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Downloaded {
    /// The bytes received, heads included.
    pub bytes: Vec<u64>,
    /// The complete responses.
    pub responses: Vec<u64>,
}

impl Downloads {
    /// Opens `count` connections to each of `servers`, and requests the file at `path` of that length on each.
    ///
    /// # Errors
    /// [`BenchError::Connection`].
    pub fn connect(
        servers: &[SocketAddr],
        count: usize,
        path: &str,
        file_len: usize,
    ) -> Result<Self, BenchError> {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: 10.0.0.2\r\nAccept: */*\r\n\r\n").into_bytes();
        let mut connections = Vec::new();
        for _ in 0..count {
            for (server, &address) in servers.iter().enumerate() {
                let open = || {
                    let mut stream = TcpStream::connect(address)?;
                    stream.set_nodelay(true)?;
                    stream.write_all(&request)?;
                    stream.set_nonblocking(true)?;
                    Ok(stream)
                };
                let stream = open().map_err(BenchError::connection(address))?;
                connections.push(Download { stream, address, server, head: Vec::new(), left: 0 });
            }
        }
        Ok(Self { connections, request, servers: servers.len(), file_len, piece: vec![0; PIECE_BYTES] })
    }

    /// Downloads for a time. Responses on their way continue with the next call.
    ///
    /// # Errors
    /// As [`Self::until`].
    pub fn for_a_time(&mut self, time: Duration) -> Result<Downloaded, BenchError> {
        let end = Instant::now() + time;
        self.until(|| Instant::now() >= end)
    }

    /// Downloads until `is_over`.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`], [`BenchError::Interrupted`].
    pub fn until(&mut self, mut is_over: impl FnMut() -> bool) -> Result<Downloaded, BenchError> {
        let mut done = Downloaded { bytes: vec![0; self.servers], responses: vec![0; self.servers] };
        let mut last = Instant::now();
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_INTERVAL.subsec_nanos().into() };
        while !is_over() {
            interrupt::check()?;
            let mut interests: Vec<PollFd<'_>> = self
                .connections
                .iter()
                .map(|connection| PollFd::new(&connection.stream, PollFlags::IN))
                .collect();
            match poll(&mut interests, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(BenchError::connection("the web server")(error.into())),
            }
            let ready: Vec<bool> = interests.iter().map(|interest| !interest.revents().is_empty()).collect();
            for (index, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
                let connection = &mut self.connections[index];
                let (bytes, responses) = connection.receive(&mut self.piece, &self.request, self.file_len)?;
                done.bytes[connection.server] += bytes;
                done.responses[connection.server] += responses;
                last = Instant::now();
            }
            if last.elapsed() > ANSWER_LIMIT {
                return Err(BenchError::connection("the web server")(ErrorKind::TimedOut.into()));
            }
        }
        Ok(done)
    }
}

impl Download {
    /// Reads once, and sends the next request after a complete response. Returns the numbers of bytes and of complete
    /// responses.
    fn receive(
        &mut self,
        piece: &mut [u8],
        request: &[u8],
        file_len: usize,
    ) -> Result<(u64, u64), BenchError> {
        let failed = BenchError::connection(self.address);
        let len = match self.stream.read(piece) {
            Ok(0) => return Err(failed(ErrorKind::UnexpectedEof.into())),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok((0, 0)),
            Err(error) => return Err(failed(error)),
        };
        let mut body = len;
        if self.left == 0 {
            let before = self.head.len();
            self.head.extend(&piece[..len.min(MAX_HEAD)]);
            let Some(end) = self.head.windows(4).position(|four| four == b"\r\n\r\n") else {
                return match self.head.len() {
                    ..MAX_HEAD => Ok((len as u64, 0)),
                    _ => Err(self.wrong()),
                };
            };
            if !is_right(&self.head[..end], file_len) {
                return Err(self.wrong());
            }
            self.head.clear();
            body = before + len - (end + 4);
            self.left = file_len;
        }
        // A server sends no more than the response to the one request.
        self.left = self.left.checked_sub(body).ok_or_else(|| self.wrong())?;
        if self.left > 0 {
            return Ok((len as u64, 0));
        }
        self.stream.write_all(request).map_err(failed)?;
        Ok((len as u64, 1))
    }

    fn wrong(&self) -> BenchError {
        BenchError::WrongAnswer {
            service: "the web server".into(),
            request: "GET".into(),
            answer: String::from_utf8_lossy(&self.head).into_owned(),
        }
    }
}

/// Returns whether a head is that of a response with a file of this length.
fn is_right(head: &[u8], file_len: usize) -> bool {
    let head = String::from_utf8_lossy(head);
    let length = head.lines().filter_map(|line| line.split_once(": ")).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    head.starts_with("HTTP/1.1 200 ") && length == Some(file_len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Starts a server of a file of `len` bytes, which sends the head and the file in small pieces.
    fn serve(len: usize, announced: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut request = [0; 1024];
                    while let Ok(1..) = stream.read(&mut request) {
                        let mut response =
                            format!("HTTP/1.1 200 OK\r\ncontent-length: {announced}\r\n\r\n").into_bytes();
                        response.extend(vec![b'x'; len]);
                        for piece in response.chunks(19) {
                            if stream.write_all(piece).is_err() {
                                return;
                            }
                        }
                    }
                });
            }
        });
        address
    }

    #[test]
    fn bytes_and_responses_are_counted_by_server() {
        let servers = [serve(100, 100), serve(100, 100)];
        let mut downloads = Downloads::connect(&servers, 2, "x", 100).unwrap();
        let done = downloads.for_a_time(Duration::from_millis(200)).unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n".len() as u64;
        for (bytes, responses) in done.bytes.iter().zip(&done.responses) {
            assert!(*responses > 2, "{done:?}");
            let least = responses * (100 + head);
            // Two responses are on their way.
            assert!((least..least + 2 * (100 + head)).contains(bytes), "{done:?}");
        }
    }

    #[test]
    fn another_length_is_a_wrong_answer() {
        let mut downloads = Downloads::connect(&[serve(100, 100)], 1, "x", 101).unwrap();
        let error = downloads.for_a_time(Duration::from_secs(10)).unwrap_err();
        assert!(matches!(error, BenchError::WrongAnswer { .. }), "{error}");
        let mut downloads = Downloads::connect(&[serve(100, 50)], 1, "x", 50).unwrap();
        assert!(downloads.for_a_time(Duration::from_secs(10)).is_err(), "more bytes than the head says");
    }
}
