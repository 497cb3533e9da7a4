//! A plain client of the key-value server, in memcached's text protocol, and a load of several that check every answer.

use crate::wait::{self, PATIENCE};
use rustix::net::sockopt::set_socket_linger;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Whatever the host says.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Connects, once the server answers. A published port accepts connections before the server does, and where
    /// many come at once, and closes them then.
    pub fn establish(address: SocketAddr) -> Self {
        wait::until("the server answers", || {
            let mut connection = Self::open(address).ok()?;
            let version = connection.ask("version").ok()?;
            version.starts_with("VERSION ").then_some(connection)
        })
    }

    /// The stream below.
    pub fn stream(&mut self) -> &mut TcpStream {
        self.stream.get_mut()
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// Whatever the host says.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// Whatever the host says, or that the server has closed the connection.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Says that nothing more will be sent, and goes on reading.
    ///
    /// # Errors
    /// Whatever the host says.
    pub fn end_sending(&self) -> io::Result<()> {
        self.stream.get_ref().shutdown(Shutdown::Write)
    }

    /// Ends the connection by a reset, with whatever is under way.
    pub fn reset(self) {
        set_socket_linger(self.stream.get_ref(), Some(Duration::ZERO))
            .expect("a socket can be told to linger");
    }

    /// All that comes until the server closes the connection.
    ///
    /// # Errors
    /// Whatever the host says.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The answer of one line to a question of one line.
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
    /// As [`Self::line`], or that it is not stored.
    pub fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        let head = format!("set {key} 0 0 {}\r\n", value.len());
        self.send(&[head.as_bytes(), value, b"\r\n"].concat())?;
        match self.line()?.as_str() {
            "STORED" => Ok(()),
            other => Err(io::Error::other(format!("set {key}: {other:?}"))),
        }
    }

    /// The value of a key, where it has one.
    ///
    /// # Errors
    /// As [`Self::line`], or that the answer is none.
    pub fn get(&mut self, key: &str) -> io::Result<Option<Vec<u8>>> {
        self.send(format!("get {key}\r\n").as_bytes())?;
        self.value(key)
    }

    /// The answer to a `get` that was sent.
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

    /// The server's own figures.
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

    /// One of the server's own figures.
    ///
    /// # Errors
    /// As [`Self::line`], or that there is no such figure.
    pub fn stat(&mut self, name: &str) -> io::Result<u64> {
        let figure = self.stats()?.get(name).and_then(|value| value.parse().ok());
        figure.ok_or_else(|| io::Error::other(format!("no figure is called {name}")))
    }
}

/// A value that is like no other, of `len` bytes.
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

/// Clients that set and get, each in a thread of its own, and check every answer.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<io::Result<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
}

impl Load {
    /// Starts so many clients, one after the other; each has been answered once when this returns.
    pub fn start(address: SocketAddr, clients: u64) -> Self {
        let shared = Arc::<Shared>::default();
        let clients = (0..clients)
            .map(|client| {
                let (mut connection, shared) = (Connection::establish(address), Arc::clone(&shared));
                thread::spawn(move || drive(&mut connection, client, &shared))
            })
            .collect();
        Self { shared, clients }
    }

    /// How many requests were answered so far, and rightly.
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Waits until so many more requests were answered.
    ///
    /// # Panics
    /// Where a client has ended, or there are no more answers.
    pub fn wait_for(&self, more: u64) {
        let target = self.answered() + more;
        wait::until_true("requests are answered", || {
            assert!(
                !self.clients.iter().any(JoinHandle::is_finished),
                "a client was answered wrongly or not"
            );
            self.answered() >= target
        });
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

fn drive(connection: &mut Connection, client: u64, shared: &Shared) -> io::Result<()> {
    for turn in 0.. {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("client{client}-{}", turn % 50);
        // From 1 to 1024 bytes, as values of real caches are.
        let value = value(client << 32 | turn, 1 + (turn as usize * 37 % 1024));
        connection.set(&key, &value)?;
        shared.answered.fetch_add(1, Ordering::Relaxed);
        if connection.get(&key)?.as_ref() != Some(&value) {
            return Err(io::Error::other(format!("{key} has another value in turn {turn}")));
        }
        shared.answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
