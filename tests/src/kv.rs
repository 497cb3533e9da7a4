//! A plain client of the key-value server, in memcached's text protocol, and a load of several clients that check every
//! answer.

use crate::clients::{ClientThreads, Progress};
use crate::wait::{self, TIMEOUT};
use rustix::net::sockopt::set_socket_linger;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// The time that a new connection gets for its first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// A connection to the server.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// As the system call.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Connects, and waits until the server answers. QEMU accepts connections on a published port before the server
    /// does, and closes some of a burst. Its backlog is 1: the host's kernel holds others of a burst back for a minute, so
    /// one that gets no answer is given up for another.
    pub fn establish(address: SocketAddr) -> Self {
        wait::until("the server answers", || {
            let mut connection = Self::open(address).ok()?;
            connection.stream().set_read_timeout(Some(FIRST_ANSWER)).ok()?;
            let version = connection.ask("version").ok()?;
            connection.stream().set_read_timeout(Some(TIMEOUT)).ok()?;
            version.starts_with("VERSION ").then_some(connection)
        })
    }

    /// Returns the stream below.
    pub fn stream(&mut self) -> &mut TcpStream {
        self.stream.get_mut()
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// As the system call.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads the next line, and returns it without its end.
    ///
    /// # Errors
    /// As the system call; or if the server has closed the connection.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Shuts down the sending side; the receiving side stays open.
    ///
    /// # Errors
    /// As the system call.
    pub fn end_sending(&self) -> io::Result<()> {
        self.stream.get_ref().shutdown(Shutdown::Write)
    }

    /// Resets the connection and discards data in transit.
    pub fn reset(self) {
        set_socket_linger(self.stream.get_ref(), Some(Duration::ZERO)).expect("a socket with SO_LINGER");
    }

    /// Reads until the server closes the connection.
    ///
    /// # Errors
    /// As the system call.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends a line and returns the answer, a line as well.
    ///
    /// # Errors
    /// As [`Self::line`].
    pub fn ask(&mut self, question: &str) -> io::Result<String> {
        self.send(format!("{question}\r\n").as_bytes())?;
        self.line()
    }

    /// Stores a value.
    ///
    /// # Errors
    /// As [`Self::line`]; or if the server does not store the value.
    pub fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        let head = format!("set {key} 0 0 {}\r\n", value.len());
        self.send(&[head.as_bytes(), value, b"\r\n"].concat())?;
        match self.line()?.as_str() {
            "STORED" => Ok(()),
            other => Err(io::Error::other(format!("set {key}: {other:?}"))),
        }
    }

    /// Returns the value of a key, if it has one.
    ///
    /// # Errors
    /// As [`Self::line`]; or if the answer is malformed.
    pub fn get(&mut self, key: &str) -> io::Result<Option<Vec<u8>>> {
        self.send(format!("get {key}\r\n").as_bytes())?;
        self.value(key)
    }

    /// Reads the answer to a `get` that was sent before.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn value(&mut self, key: &str) -> io::Result<Option<Vec<u8>>> {
        let head = self.line()?;
        if head == "END" {
            return Ok(None);
        }
        let wrong = |what: &str| io::Error::other(format!("get {key}: {what:?}"));
        let len = head.strip_prefix(&format!("VALUE {key} 0 ")).and_then(|len| len.parse::<usize>().ok());
        let mut value = vec![0; len.ok_or_else(|| wrong(&head))? + 2];
        self.stream.read_exact(&mut value)?;
        let end = self.line()?;
        if !value.ends_with(b"\r\n") || end != "END" {
            return Err(wrong(&end));
        }
        value.truncate(value.len() - 2);
        Ok(Some(value))
    }

    /// Returns the server's statistics.
    ///
    /// # Errors
    /// As [`Self::line`].
    pub fn stats(&mut self) -> io::Result<BTreeMap<String, String>> {
        let mut stats = BTreeMap::new();
        let mut line = self.ask("stats")?;
        while line != "END" {
            let mut words = line.strip_prefix("STAT ").unwrap_or_default().splitn(2, ' ').map(str::to_owned);
            stats.extend(words.next().zip(words.next()));
            line = self.line()?;
        }
        Ok(stats)
    }

    /// Returns one of the server's statistics.
    ///
    /// # Errors
    /// As [`Self::line`]; or if there is no such statistic, or it is no number.
    pub fn stat(&mut self, name: &str) -> io::Result<u64> {
        let figure = self.stats()?.get(name).and_then(|value| value.parse().ok());
        figure.ok_or_else(|| io::Error::other(format!("no statistic with the name {name}")))
    }
}

/// Returns pseudo-random bytes, which differ for each `seed`.
pub fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    // Marsaglia's xorshift, seeded so that small numbers differ in many bits.
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for piece in value.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        piece.copy_from_slice(&state.to_le_bytes()[..piece.len()]);
    }
    value
}

/// Clients that set and get values, each on its own thread, and check every answer.
#[derive(Debug)]
pub struct Load {
    clients: ClientThreads,
}

impl Load {
    /// Starts the clients one after the other. Each has received an answer when this function returns.
    pub fn start(address: SocketAddr, count: u64) -> Self {
        let mut clients = ClientThreads::default();
        for client in 0..count {
            let mut connection = Connection::establish(address);
            clients.start(move |progress| drive(&mut connection, client, progress));
        }
        Self { clients }
    }

    /// Returns the number of correct answers so far.
    pub fn answered(&self) -> u64 {
        self.clients.answered()
    }

    /// Waits for this number of further answers.
    ///
    /// # Panics
    /// If a client has ended, or if no further answers arrive.
    pub fn wait_for(&self, more: u64) {
        let target = self.answered() + more;
        wait::until_true("requests are answered", || {
            self.clients.check();
            self.answered() >= target
        });
    }

    /// Ends the clients; returns the number of correct answers.
    ///
    /// # Panics
    /// If a client received a wrong answer or none.
    pub fn end(self) -> u64 {
        self.clients.end()
    }
}

fn drive(connection: &mut Connection, client: u64, progress: &Progress) -> io::Result<()> {
    for turn in 0.. {
        if progress.is_stopped() {
            break;
        }
        let key = format!("client{client}-{}", turn % 50);
        // From 1 to 1,024 bytes, as in real caches.
        let value = value(client << 32 | turn, 1 + (turn as usize * 37 % 1024));
        connection.set(&key, &value)?;
        progress.count_answer();
        if connection.get(&key)?.as_ref() != Some(&value) {
            return Err(io::Error::other(format!("{key} has another value in turn {turn}")));
        }
        progress.count_answer();
    }
    Ok(())
}
