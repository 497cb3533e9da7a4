//! Joining an application, and joining again after the connection has ended.

use crate::GREETING;
use crate::backlog::CELL_BACKLOG;
use crate::connection::Connection;
use crate::error::JoinError;
use crate::frame::{Frame, ProtocolViolation};
use crate::messenger::{MESSENGER, MESSENGER_CORE};
use crate::write_deadline::FIRST_MACHINE_WRITE_LIMIT;
use core::future::poll_fn;
use core::net::SocketAddr;
use core::task::Poll;
use core::time::Duration;
use isola_ebbs::{MachineId, platform};
use isola_events::{elsewhere, sleep, spawn_task, timeout};
use isola_net::connect;

/// The first pause of [`rejoin`].
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// Its longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Joins the application whose first machine listens at `address`. Returns this machine's number from now on. After the
/// connection has ended the machine can join again; it gets the same number if that is free.
///
/// # Errors
/// [`JoinError`].
pub async fn join(address: SocketAddr) -> Result<MachineId, JoinError> {
    elsewhere(MESSENGER_CORE, move || join_here(address)).await
}

/// Calls [`join`] again until it succeeds, with increasing pauses, for a machine that was joined and has
/// [disconnected](disconnected()). A restarted first machine accepts earlier machines under their old numbers.
pub async fn rejoin(address: SocketAddr) -> MachineId {
    let again = move || async move {
        let mut pause = SHORTEST_PAUSE;
        loop {
            if let Ok(number) = join_here(address).await {
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

async fn join_here(address: SocketAddr) -> Result<MachineId, JoinError> {
    let before = Some(MachineId::here()).filter(|here| *here != MachineId::FIRST);
    let stream = connect(address).await.map_err(JoinError::Connect)?;
    let greeting = async {
        let mut connection = Connection::new(stream, FIRST_MACHINE_WRITE_LIMIT);
        connection.send(Frame::Hello { before }).await?;
        match connection.receive_greeting().await? {
            Frame::Welcome { you } => Ok((connection, you)),
            _ => Err(ProtocolViolation),
        }
    };
    let receive_in_time = timeout(GREETING, greeting).await.map_err(|_| JoinError::NotAnswered)?;
    let (connection, you) = receive_in_time.map_err(|ProtocolViolation| JoinError::NotTheProtocol)?;
    you.become_here().map_err(JoinError::Numbered)?;
    let send_queue = CELL_BACKLOG.open();
    MESSENGER.machines.add(MachineId::FIRST, send_queue.clone());
    spawn_task(async move {
        connection.run(&send_queue, |frames| MESSENGER.process(MachineId::FIRST, frames)).await;
        MESSENGER.disconnect(&send_queue);
    })
    .detach();
    Ok(you)
}
