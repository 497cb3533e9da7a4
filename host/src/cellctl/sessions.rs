//! Opens sessions with running cells, see [`isola_abi::session`].
//!
//! On QEMU's user-mode network a port of this host forwards to the cell for as long as the connection is made. It is in the
//! cell's record meanwhile, as published ports are.

use super::ports::{publish_ports, withdraw_ports};
use super::{CellError, look_up};
use crate::client::Client;
use crate::machine::LockedMachine;
use crate::machine::network::address;
use crate::machine::state::StateRoot;
use crate::output::view::is_running;
use crate::publish::{DEFAULT_HOST_IP, PublishSpec};
use crate::query::{self, QueryError};
use isola_abi::hosted::Transport;
use isola_abi::management::{CellInfo, CellState};
use isola_abi::query::Query;
use isola_abi::session::{
    CellMessage, GREETING, HostMessage, MessageError, MessageReader, SessionKey, SessionRequest, encode,
};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// How long a cell may take to greet.
const GREETING_LIMIT: Duration = Duration::from_secs(15);

/// The reasons why a cell has no session.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The machine or the supervisor does not allow it.
    #[error(transparent)]
    Cell(#[from] CellError),
    /// The cell does not run.
    #[error("{name:?} is {state}: commands and copies need a cell that runs")]
    NotRunning {
        /// The cell.
        name: String,
        /// Its state.
        state: CellState,
    },
    /// The cell has no address.
    #[error(
        "cell {0:?} has no network address: standard input, commands and copies reach a cell over its network"
    )]
    NoAddress(String),
    /// The cell does not answer.
    #[error("cell {0:?} does not answer: see `isola logs`")]
    NoAnswer(String),
    /// The cell refuses.
    #[error("cell {name:?} refuses: {reason}")]
    Refused {
        /// The cell.
        name: String,
        /// Why.
        reason: String,
    },
    /// The query failed.
    #[error(transparent)]
    Query(QueryError),
    /// The connection failed.
    #[error("no connection to cell {name:?}: {error}")]
    Connection {
        /// The cell.
        name: String,
        /// The host's error.
        error: io::Error,
    },
}

/// A session's connection.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    reader: MessageReader,
}

/// How long after its start a cell may not serve sessions yet.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Returns whether the error may be over in a moment, because the cell has just started.
pub fn may_be_starting(
    error: &SessionError,
    locked: &LockedMachine,
    client: &mut Client,
    name: &str,
) -> bool {
    let may_end = matches!(
        error,
        SessionError::Refused { .. } | SessionError::NoAddress(_) | SessionError::NoAnswer(_)
    );
    let started = look_up(locked, client, name).ok().and_then(|cell| cell.started_unix_ns);
    let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    may_end && started.is_some_and(|started| now_ns.saturating_sub(started.into()) < START_LIMIT.as_nanos())
}

/// Opens a session with a cell. If the cell does not greet in time, this function connects once more: the cell has not
/// received the request then, and one lost packet on a slow machine may be the cause.
///
/// # Errors
/// [`SessionError`].
pub fn open(
    root: &StateRoot,
    locked: &LockedMachine,
    client: &mut Client,
    name: &str,
    request: SessionRequest,
) -> Result<Session, SessionError> {
    match open_once(root, locked, client, name, request.clone()) {
        Err(SessionError::Connection { error, .. }) if error.kind() == io::ErrorKind::TimedOut => {
            open_once(root, locked, client, name, request)
        }
        opened => opened,
    }
}

fn open_once(
    root: &StateRoot,
    locked: &LockedMachine,
    client: &mut Client,
    name: &str,
    request: SessionRequest,
) -> Result<Session, SessionError> {
    let cell = look_up(locked, client, name)?;
    if !is_running(&cell) {
        return Err(SessionError::NotRunning { name: name.to_owned(), state: cell.state });
    }
    let ip = address(&cell).ok_or_else(|| SessionError::NoAddress(name.to_owned()))?;
    let failed = |error| SessionError::Connection { name: name.to_owned(), error };
    let key = new_key().map_err(failed)?;
    let answer = query::facts(client, name, &Query::OpenSession(key)).map_err(|error| match error {
        QueryError::Refused(reason) => SessionError::Refused { name: name.to_owned(), reason },
        error => SessionError::Query(error),
    })?;
    let port = answer.session_port.ok_or_else(|| SessionError::NoAnswer(name.to_owned()))?;
    let stream = if locked.record.options.uplink.is_user() {
        connect_forwarded(root, locked, &cell, port)?.map_err(failed)?
    } else {
        connect(SocketAddrV4::new(ip, port), GREETING_LIMIT).map_err(failed)?
    };
    let mut session = Session { stream, reader: MessageReader::default() };
    session.send(&HostMessage::Open(key, request)).map_err(failed)?;
    Ok(session)
}

fn new_key() -> io::Result<SessionKey> {
    let mut key = SessionKey([0; 16]);
    File::open("/dev/urandom")?.read_exact(&mut key.0)?;
    Ok(key)
}

/// Connects by a port of this host, which forwards only meanwhile.
fn connect_forwarded(
    root: &StateRoot,
    locked: &LockedMachine,
    cell: &CellInfo,
    port: u16,
) -> Result<io::Result<TcpStream>, CellError> {
    let spec =
        PublishSpec { host_ip: DEFAULT_HOST_IP, host_port: 0, cell_port: port, protocol: Transport::Tcp };
    let published = publish_ports(root, locked, cell, &[spec])?;
    let connected = match published.first() {
        Some(publication) => connect(publication.host, GREETING_LIMIT),
        None => Err(io::ErrorKind::AddrNotAvailable.into()),
    };
    withdraw_ports(locked, cell, &published)?;
    Ok(connected)
}

/// Connects, and waits for the cell's greeting: a port that forwards accepts a connection before the cell does.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if connection or greeting take longer than `limit`; those of the host.
fn connect(address: SocketAddrV4, limit: Duration) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::V4(address), limit)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).map_err(|error| match error.kind() {
        // Linux reports an expired time limit of a read as EAGAIN.
        io::ErrorKind::WouldBlock => {
            let text = format!("it sent no greeting within {} s; is it very busy?", limit.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, text)
        }
        _ => error,
    })?;
    if greeting != *GREETING {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the cell's port serves no sessions"));
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}

impl Session {
    /// Sends a message, when the cell has room for it.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn send(&mut self, message: &HostMessage) -> io::Result<()> {
        send(&mut self.stream, message)
    }

    /// Returns another handle of the connection, for a thread that sends.
    ///
    /// # Errors
    /// Those of the host.
    pub fn sender(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    /// Sets how long [`Self::receive`] waits.
    ///
    /// # Errors
    /// Those of the host.
    pub fn set_wait(&self, limit: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(limit))
    }

    /// Receives the next message; `None` if none came in time.
    ///
    /// # Errors
    /// Those of the connection; [`io::ErrorKind::UnexpectedEof`] if the cell has closed it.
    pub fn receive(&mut self) -> io::Result<Option<CellMessage>> {
        let malformed = |error: MessageError| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut bytes = [0; 32 * 1024];
        loop {
            if let Some(message) = self.reader.take().map_err(malformed)? {
                return Ok(Some(message));
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.reader.push(&bytes[..count]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sends a message on a connection.
///
/// # Errors
/// Those of the connection.
pub fn send(stream: &mut TcpStream, message: &HostMessage) -> io::Result<()> {
    let bytes = encode(message).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    stream.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    /// Returns a listener that answers nothing by itself, and its address.
    fn listener() -> (TcpListener, SocketAddrV4) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
    }

    #[test]
    fn a_cell_that_does_not_greet_in_time_is_an_error_of_its_own() {
        let (_silent, address) = listener();
        let error = connect(address, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("no greeting"), "{error}");
    }

    #[test]
    fn a_peer_with_another_greeting_or_none_at_its_end_is_refused() {
        for (greeting, kind) in [
            (vec![0; GREETING.len()], io::ErrorKind::InvalidData),
            (GREETING[1..].to_vec(), io::ErrorKind::UnexpectedEof),
        ] {
            let (listener, address) = listener();
            let peer = std::thread::spawn(move || listener.accept().unwrap().0.write_all(&greeting).unwrap());
            assert_eq!(connect(address, GREETING_LIMIT).unwrap_err().kind(), kind);
            peer.join().unwrap();
        }
    }
}
