//! The HTTP server for metrics.
//!
//! Each connection has a thread, one request and one response. Clients are not trusted: the number of connections is
//! bounded, a request and the transfer of a response each have a time limit, however few bytes arrive at a time, and
//! the head of a request has a maximum length.

use super::reading_thread::ReadingThread;
use super::request::{MAX_HEAD_BYTES, Refusal, parse, response};
use super::series::TextFormat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// The interval of checks for the server's end.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The pause after a connection could not be accepted, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the server reads the rest of a request after its response, so that the client receives the response before
/// the connection's reset.
const LINGER: Duration = Duration::from_millis(200);

/// The limits of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long the head of a request may take.
    pub request: Duration,
    /// How long a reading of the machine may take. Prometheus by default waits for 10 s.
    pub reading: Duration,
    /// How long the transfer of a response may take.
    pub response: Duration,
    /// The maximum number of connections.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(5),
            reading: Duration::from_secs(9),
            response: Duration::from_secs(10),
            connections: 64,
        }
    }
}

/// Serves metrics until `is_over` returns true.
///
/// # Errors
/// The errors of the listener, except those of single connections.
pub fn serve(
    listener: &TcpListener,
    reading: ReadingThread,
    limits: Limits,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    // Each connection's thread has a reference.
    let reading = Arc::new(reading);
    while !is_over() {
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&GLANCE)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match listener.accept() {
            Ok((stream, _)) if Arc::strong_count(&reading) > limits.connections => refuse(&stream),
            Ok((stream, _)) => {
                let reading = Arc::clone(&reading);
                let thread = thread::Builder::new().stack_size(256 << 10);
                // Without a thread, the connection is closed.
                let _ = thread.spawn(move || handle(&stream, &reading, limits));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => sleep(PAUSE),
        }
    }
    Ok(())
}

/// Refuses a connection for which there is no thread. The response fits into the empty send buffer.
fn refuse(stream: &TcpStream) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = (&mut &*stream).write(&Refusal::Busy.response());
    }
}

/// Serves a connection. Its errors end only the connection.
fn handle(stream: &TcpStream, reading: &ReadingThread, limits: Limits) {
    let response = match receive(stream, Instant::now() + limits.request) {
        Ok(Ok(format)) => metrics(reading, format, limits.reading),
        Ok(Err(refusal)) => refusal.response(),
        Err(_) => return,
    };
    if send(stream, &response, Instant::now() + limits.response).is_ok() {
        let _ = stream.shutdown(Shutdown::Write);
        let end = Instant::now() + LINGER;
        while matches!(read_before(stream, &mut [0; 1024], end), Ok(1..)) {}
    }
}

/// Returns the response with the metrics, or with the reason why there are none.
fn metrics(reading: &ReadingThread, format: TextFormat, limit: Duration) -> Vec<u8> {
    let refusal = match reading.next(limit) {
        Some(Ok(metrics)) => match metrics.text(format) {
            Ok(text) => return response(format, &text),
            Err(error) => error.to_string(),
        },
        Some(Err(reason)) => reason,
        None => format!("the machine could not be read within {} s", limit.as_secs()),
    };
    Refusal::Unavailable(refusal).response()
}

/// Receives the head of a request.
fn receive(stream: &TcpStream, end: Instant) -> io::Result<Result<TextFormat, Refusal>> {
    let mut head = [0; MAX_HEAD_BYTES];
    let mut len = 0;
    loop {
        match read_before(stream, &mut head[len..], end) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => len += count,
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(Err(Refusal::Slow)),
            Err(error) => return Err(error),
        }
        if let Some(request) = parse(&head[..len]) {
            return Ok(request);
        }
    }
}

fn send(stream: &TcpStream, mut bytes: &[u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        match (&mut &*stream).write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads some bytes. Fails with [`ErrorKind::TimedOut`] at `end`.
fn read_before(stream: &TcpStream, buffer: &mut [u8], end: Instant) -> io::Result<usize> {
    loop {
        stream.set_read_timeout(Some(left(end)?))?;
        match (&mut &*stream).read(buffer) {
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            other => return other,
        }
    }
}

/// Returns the time until `end`; fails with [`ErrorKind::TimedOut`] if it has passed.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::metrics::catalogue::MACHINE_MEMORY;
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, Ordering};

    const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n";

    /// Runs a test with a server, which it ends.
    fn with_server(
        limits: Limits,
        read: impl FnMut() -> Result<Metrics, String> + Send + 'static,
        test: impl FnOnce(SocketAddr),
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                serve(&listener, ReadingThread::start(read), limits, || over.load(Ordering::Relaxed))
            });
            let end = EndOnDrop(&over);
            test(address);
            drop(end);
            server.join().unwrap().unwrap();
        });
    }

    /// Ends the server, also if the test fails.
    struct EndOnDrop<'a>(&'a AtomicBool);

    impl Drop for EndOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn reading() -> Result<Metrics, String> {
        let mut metrics = Metrics::default();
        metrics.number(&MACHINE_MEMORY, &[], 7.0);
        Ok(metrics)
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Returns the response to a request.
    fn exchange(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = connect(address);
        let _ = stream.write_all(request);
        all(&mut stream)
    }

    /// Returns the bytes until the end of the connection, which may be a reset after a refusal.
    fn all(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn metrics_are_served_and_other_requests_refused() {
        with_server(Limits::default(), reading, |address| {
            let metrics = exchange(address, GET);
            assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
            assert!(metrics.contains("\nisola_machine_memory_bytes 7"), "{metrics}");
            for (request, status) in [
                (&b"GET /other HTTP/1.1\r\n\r\n"[..], "404"),
                (b"DELETE /metrics HTTP/1.1\r\n\r\n", "405"),
                (b"\xff\xfe\x00\x01\r\n\r\n", "400"),
                (&[b'a'; 3 * MAX_HEAD_BYTES], "431"),
            ] {
                let response = exchange(address, request);
                assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
            }
            assert!(exchange(address, GET).contains("isola_machine_memory_bytes"));
        });
    }

    #[test]
    fn a_client_that_sends_slowly_is_cut_off_and_delays_no_other() {
        let limits = Limits { request: Duration::from_millis(300), ..Limits::default() };
        with_server(limits, reading, |address| {
            let mut slow = connect(address);
            let begun = Instant::now();
            // Each byte arrives in time; the request as a whole does not.
            let mut sent = 0;
            while sent < GET.len() && slow.write_all(&GET[sent..sent + 1]).is_ok() {
                sent += 1;
                assert!(exchange(address, GET).contains("isola_machine_memory_bytes"));
                sleep(Duration::from_millis(30));
                if begun.elapsed() > Duration::from_millis(600) {
                    break;
                }
            }
            let mut response = String::new();
            // The connection may be reset after the response, because of the bytes that arrived later.
            let _ = slow.read_to_string(&mut response);
            assert!(sent < GET.len() && (response.is_empty() || response.contains(" 408 ")), "{response}");
            assert!(begun.elapsed() < Duration::from_secs(30));
        });
    }

    #[test]
    fn a_client_that_does_not_read_is_cut_off() {
        let limits = Limits { response: Duration::from_millis(300), connections: 1, ..Limits::default() };
        let large = || {
            let mut metrics = reading()?;
            for number in 0..100_000 {
                let name = format!("{number:060}");
                metrics.count(&crate::metrics::catalogue::ACTIVITY_EVENTS, &["kv", &name], 1);
            }
            Ok(metrics)
        };
        with_server(limits, large, |address| {
            let mut deaf = connect(address);
            deaf.write_all(GET).unwrap();
            // The server has one connection, which is free again only after the first one is cut off.
            let end = Instant::now() + Duration::from_secs(60);
            while !exchange(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 ") {
                assert!(Instant::now() < end);
                sleep(Duration::from_millis(20));
            }
            let mut rest = Vec::new();
            let _ = deaf.read_to_end(&mut rest);
            assert!(rest.len() < 9_000_000, "{}", rest.len());
        });
    }

    #[test]
    fn connections_beyond_the_maximum_are_refused_until_others_end() {
        let limits = Limits { connections: 3, ..Limits::default() };
        with_server(limits, reading, |address| {
            let held: Vec<TcpStream> = (0..3).map(|_| connect(address)).collect();
            // Connections are accepted in their order.
            let mut refused = connect(address);
            assert!(all(&mut refused).starts_with("HTTP/1.1 503 "));
            drop(held);
            let end = Instant::now() + Duration::from_secs(60);
            while !exchange(address, GET).starts_with("HTTP/1.1 200 ") {
                assert!(Instant::now() < end);
                sleep(Duration::from_millis(20));
            }
        });
    }

    #[test]
    fn a_machine_that_cannot_be_read_is_a_503_with_the_reason() {
        with_server(
            Limits::default(),
            || Err("no machine".to_owned()),
            |address| {
                let response = exchange(address, GET);
                assert!(
                    response.starts_with("HTTP/1.1 503 ") && response.ends_with("no machine\n"),
                    "{response}"
                );
            },
        );
        let limits = Limits { reading: Duration::from_millis(50), ..Limits::default() };
        let stuck = || {
            sleep(Duration::from_secs(60));
            reading()
        };
        with_server(limits, stuck, |address| {
            let response = exchange(address, GET);
            assert!(
                response.starts_with("HTTP/1.1 503 ") && response.contains("could not be read"),
                "{response}"
            );
        });
    }
}
