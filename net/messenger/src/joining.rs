//! Joining an application, and joining again after the connection has ended.

use crate::GREETING;
use crate::backlog::CELL_BACKLOG;
use crate::channel_service::channel_to;
use crate::connection::Connection;
use crate::error::JoinError;
use crate::frame::{Frame, ProtocolViolation};
use crate::messenger::{MESSENGER, MESSENGER_CORE};
use crate::transport::RINGS;
use crate::write_deadline::FIRST_MACHINE_WRITE_LIMIT;
use alloc::string::String;
use core::fmt;
use core::future::{Future, poll_fn};
use core::net::SocketAddr;
use core::num::NonZeroU64;
use core::str::FromStr;
use core::task::Poll;
use core::time::Duration;
use isola_abi::management::MAX_NAME_LEN;
use isola_channels::open_with;
use isola_ebbs::{MachineId, platform};
use isola_events::{elsewhere, sleep, spawn_task, timeout};
use isola_net::connect;

/// The first pause of [`rejoin`].
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// Its longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The time limit for the first machine to answer by a channel, before its address is joined by TCP.
const CHANNEL_LIMIT: Duration = Duration::from_secs(2);

/// The first machine of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstMachine {
    /// It listens at this address. If it is a cell of this machine that accepts channels of this cell, the address only
    /// serves to find it.
    Address(SocketAddr),
    /// It is the cell of this machine with that name, and is joined by a channel. No network is necessary.
    Cell(String),
}

impl From<SocketAddr> for FirstMachine {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

/// The text is neither an address with a port nor the name of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAFirstMachine;

impl fmt::Display for NotAFirstMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("name a first machine by ADDRESS:PORT, or by the name of a cell of this machine")
    }
}

impl core::error::Error for NotAFirstMachine {}

impl FromStr for FirstMachine {
    type Err = NotAFirstMachine;

    fn from_str(text: &str) -> Result<Self, NotAFirstMachine> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        if is_cell_name(text) { Ok(Self::Cell(text.into())) } else { Err(NotAFirstMachine) }
    }
}

/// Joins an application by its first machine. Returns this machine's number from now on. After the connection has ended the
/// machine can join again; it gets the same number if that is free.
///
/// # Errors
/// [`JoinError`].
pub async fn join(first: impl Into<FirstMachine>) -> Result<MachineId, JoinError> {
    let first = first.into();
    elsewhere(MESSENGER_CORE, move || async move { join_here(&first).await }).await
}

/// Calls [`join`] again until it succeeds, with increasing pauses, for a machine that was joined and has
/// [disconnected](disconnected()). A restarted first machine accepts earlier machines under their old numbers.
pub async fn rejoin(first: impl Into<FirstMachine>) -> MachineId {
    let first = first.into();
    let again = move || async move {
        let mut pause = SHORTEST_PAUSE;
        loop {
            if let Ok(number) = join_here(&first).await {
                return number;
            }
            // Random, so that not all machines join at the same time.
            sleep(pause / 2 + pause.mul_f32((platform().entropy() % 1024) as f32 / 2048.0)).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    };
    elsewhere(MESSENGER_CORE, again).await
}

/// Completes when this machine is not, or no longer, joined to an application.
pub async fn disconnected() {
    let is_disconnected = || async {
        poll_fn(|context| {
            if MESSENGER.machines.is_connected(MachineId::FIRST) {
                MESSENGER.disconnect_waiters.borrow_mut().push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    };
    elsewhere(MESSENGER_CORE, is_disconnected).await;
}

/// A connection to a first machine that has assigned the number.
type Welcomed = (Connection, MachineId);

async fn join_here(first: &FirstMachine) -> Result<MachineId, JoinError> {
    let (connection, you) = match first {
        FirstMachine::Address(address) => join_address(*address).await?,
        FirstMachine::Cell(name) => join_cell(name, None).await?,
    };
    you.become_here().map_err(JoinError::Numbered)?;
    let send_queue = CELL_BACKLOG.open();
    MESSENGER.machines.add(MachineId::FIRST, send_queue.clone(), connection.kind());
    spawn_task(async move {
        connection.run(&send_queue, |frames| MESSENGER.process(MachineId::FIRST, frames)).await;
        MESSENGER.disconnect(&send_queue);
    })
    .detach();
    Ok(you)
}

/// Joins by a channel if the first machine is a cell of this machine that accepts it; otherwise by TCP.
async fn join_address(address: SocketAddr) -> Result<Welcomed, JoinError> {
    let stream = connect(address).await.map_err(JoinError::Connect)?;
    let mut connection = Connection::tcp(stream, FIRST_MACHINE_WRITE_LIMIT);
    if platform().links().is_some() {
        let location = in_time(connection.locate()).await?;
        let Frame::Location { incarnation, cell } = location else { return Err(JoinError::NotTheProtocol) };
        // The name is that of another cell if the first machine is on another machine.
        if is_cell_name(&cell)
            && let Ok(Ok(welcomed)) = timeout(CHANNEL_LIMIT, join_cell(&cell, Some(incarnation))).await
        {
            return Ok(welcomed);
        }
    }
    greet(connection, None).await
}

/// Joins by a channel to a cell, which must be that incarnation of a first machine if there is one.
async fn join_cell(name: &str, first: Option<NonZeroU64>) -> Result<Welcomed, JoinError> {
    let channel = open_with(&channel_to(name), RINGS).await.map_err(JoinError::Channel)?;
    greet(Connection::channel(channel, FIRST_MACHINE_WRITE_LIMIT), first).await
}

async fn greet(connection: Connection, first: Option<NonZeroU64>) -> Result<Welcomed, JoinError> {
    let before = Some(MachineId::here()).filter(|here| *here != MachineId::FIRST);
    let mut connection = connection;
    let greeting = async {
        connection.send(Frame::Hello { before, first }).await?;
        connection.receive_greeting().await
    };
    match in_time(greeting).await? {
        Frame::Welcome { you } => Ok((connection, you)),
        _ => Err(JoinError::NotTheProtocol),
    }
}

/// Returns the result of a step of the greeting.
async fn in_time<T>(step: impl Future<Output = Result<T, ProtocolViolation>>) -> Result<T, JoinError> {
    let outcome = timeout(GREETING, step).await.map_err(|_| JoinError::NotAnswered)?;
    outcome.map_err(|ProtocolViolation| JoinError::NotTheProtocol)
}

/// Returns whether a text can be the name of a cell, and is no more than that in the name of a channel.
fn is_cell_name(text: &str) -> bool {
    let is_usual = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    (1..=MAX_NAME_LEN).contains(&text.len()) && text.chars().all(is_usual)
}
