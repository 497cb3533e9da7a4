//! The messenger: an Ebb of the cell's first core, which has all that is known of other machines.
//!
//! The machines of an application are a star: the first listens, the others join it, and it passes on what they have to
//! say to each other. Connections are on whichever core their flow belongs to; what they bring is taken on the first.

use crate::MAX_CALLS;
use crate::calls::Calls;
use crate::connection::Connection;
use crate::error::{CallError, JoinError, ServeError};
use crate::frame::{Body, Broken, Frame, MAX_PAYLOAD, Message, Refusal};
use crate::limit::Limit;
use crate::machines::Machines;
use crate::outgoing::Outgoing;
use crate::served::{Call, Served};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::Future;
use core::net::SocketAddr;
use core::time::Duration;
use isola_ebbs::{Ebb, EbbId, MachineId, Representative, current_core};
use isola_events::{elsewhere, spawn_task, timeout};
use isola_iobuf::Chain;
use isola_net::tcp::{Listening, PortInUse};
use isola_net::{TcpStream, connect, listen};
use isola_platform::CoreIndex;

/// The core that has the messenger.
const HOME: CoreIndex = CoreIndex(0);

/// How long a machine that joins may take to say who it is, or to be told.
const GREETING: Duration = Duration::from_secs(10);

/// Connections that wait on a core to be taken.
const BACKLOG: usize = 16;

static MESSENGER: Ebb<Messenger> = Ebb::new();

#[derive(Default)]
struct Messenger {
    machines: Machines,
    calls: Calls,
    served: Served,
    /// Calls of this machine under way, by the machine that is called.
    places: RefCell<BTreeMap<MachineId, Rc<Limit>>>,
}

impl Representative for Messenger {
    fn create() -> Self {
        Self::default()
    }
}

/// Makes this the first machine of an application, which others join at `port`, for as long as what is returned lives.
///
/// Whoever reaches the port may join: publish it to machines of the application alone.
///
/// # Errors
/// [`PortInUse`].
pub fn host(port: u16) -> Result<Listening, PortInUse> {
    listen(port, BACKLOG, welcome)
}

/// Joins the application whose first machine listens at `address`, and returns the number that this machine has from
/// now on. After the connection has ended, it can be joined again, and is told the same number if it is free.
///
/// # Errors
/// [`JoinError`].
pub async fn join(address: SocketAddr) -> Result<MachineId, JoinError> {
    elsewhere(HOME, move || join_here(address)).await
}

/// Has `handler` answer calls to `ebb`, until what is returned is dropped. For the cell's first core, which has the
/// messenger.
///
/// # Errors
/// [`ServeError`].
pub fn serve<F>(ebb: EbbId, handler: impl Fn(Call) -> F + 'static) -> Result<Serving, ServeError>
where
    F: Future<Output = Result<Chain, Refusal>> + 'static,
{
    if current_core() != HOME {
        return Err(ServeError::NotFirstCore);
    }
    if !MESSENGER.served.add(ebb, handler) {
        return Err(ServeError::Taken);
    }
    Ok(Serving { ebb, here: core::marker::PhantomData })
}

/// Calls are answered for as long as this lives.
#[derive(Debug)]
#[must_use = "calls are not answered any more once this is dropped"]
pub struct Serving {
    ebb: EbbId,
    /// Not `Send`: it is dropped on the core that serves.
    here: core::marker::PhantomData<Rc<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        MESSENGER.served.remove(self.ebb);
    }
}

/// Asks `machine`'s representative of `ebb`, from any core, and returns its answer. This machine is asked without a
/// message. At most [`MAX_CALLS`] calls to a machine are under way; further ones wait.
///
/// # Errors
/// [`CallError`].
pub async fn call(machine: MachineId, ebb: EbbId, request: Chain) -> Result<Chain, CallError> {
    if request.len() > MAX_PAYLOAD {
        return Err(CallError::TooLong);
    }
    if current_core() == HOME {
        return call_here(machine, ebb, request).await;
    }
    elsewhere(HOME, move || call_here(machine, ebb, request)).await
}

async fn call_here(machine: MachineId, ebb: EbbId, request: Chain) -> Result<Chain, CallError> {
    let here = MachineId::here();
    if machine == here {
        let answer = MESSENGER.served.answer(ebb, Call { from: here, request }).await;
        return answer.map_err(CallError::Refused);
    }
    let outgoing = MESSENGER.machines.way_to(machine).ok_or(CallError::NoSuchMachine)?;
    let places =
        MESSENGER.places.borrow_mut().entry(machine).or_insert_with(|| Limit::new(MAX_CALLS)).clone();
    let _place = places.take().await;
    let gone = |_| CallError::Refused(Refusal::Gone);
    outgoing.room().await.map_err(gone)?;
    let pending = MESSENGER.calls.begin(machine);
    let body = Body::Call { ebb, request };
    let message = Message { to: machine, from: here, call: pending.number(), body };
    outgoing.push(Frame::Message(message).encode()).map_err(gone)?;
    pending.await
}

async fn join_here(address: SocketAddr) -> Result<MachineId, JoinError> {
    let before = Some(MachineId::here()).filter(|here| *here != MachineId::FIRST);
    let stream = connect(address).await.map_err(JoinError::Connect)?;
    let greeting = async {
        let mut connection = Connection::new(stream);
        connection.send(Frame::Hello { before }).await?;
        match connection.receive_greeting().await? {
            Frame::Welcome { you } => Ok((connection, you)),
            _ => Err(Broken),
        }
    };
    let greeted = timeout(GREETING, greeting).await.map_err(|_| JoinError::NotAnswered)?;
    let (connection, you) = greeted.map_err(|Broken| JoinError::NotTheProtocol)?;
    you.become_here().map_err(JoinError::Numbered)?;
    let outgoing = Arc::new(Outgoing::default());
    MESSENGER.machines.add(MachineId::FIRST, outgoing.clone());
    spawn_task(async move {
        connection.run(&outgoing, |frames| async { MESSENGER.take(MachineId::FIRST, frames) }).await;
        MESSENGER.machines.remove(MachineId::FIRST);
        MESSENGER.calls.lose(|_| true);
    })
    .detach();
    Ok(you)
}

/// Serves a machine that joins: on the core of its connection.
async fn welcome(stream: TcpStream) {
    let mut connection = Connection::new(stream);
    let Ok(Ok(Frame::Hello { before })) = timeout(GREETING, connection.receive_greeting()).await else {
        return;
    };
    let outgoing = Arc::new(Outgoing::default());
    let its = outgoing.clone();
    let Some(you) = at_home(move || MESSENGER.admit(before, its)).await else { return };
    let welcomed = timeout(GREETING, connection.send(Frame::Welcome { you })).await;
    if matches!(welcomed, Ok(Ok(()))) {
        let deliver = |frames| at_home(move || MESSENGER.take(you, frames));
        connection.run(&outgoing, deliver).await;
    }
    at_home(move || MESSENGER.leave(you)).await;
}

/// What `work` gives on the core that has the messenger.
async fn at_home<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if current_core() == HOME {
        return work();
    }
    elsewhere(HOME, move || async { work() }).await
}

impl Messenger {
    fn admit(&self, before: Option<MachineId>, outgoing: Arc<Outgoing>) -> Option<MachineId> {
        // Only the first machine has others join it, from here on for good.
        MachineId::FIRST.become_here().ok()?;
        let you = self.machines.number(before)?;
        self.machines.add(you, outgoing);
        Some(you)
    }

    fn leave(&self, machine: MachineId) {
        self.machines.remove(machine);
        self.calls.lose(|to| to == machine);
        self.places.borrow_mut().remove(&machine);
    }

    /// Takes frames of a neighbour.
    fn take(&'static self, neighbour: MachineId, frames: Vec<Frame>) -> Result<(), Broken> {
        let here = MachineId::here();
        for frame in frames {
            let Frame::Message(message) = frame else { return Err(Broken) };
            // Who speaks for another, or is spoken to for one, is the first machine.
            let is_first = here == MachineId::FIRST;
            if message.from == here
                || (is_first && message.from != neighbour)
                || (!is_first && message.to != here)
            {
                return Err(Broken);
            }
            if message.to != here {
                self.machines.pass_on(message);
                continue;
            }
            let Message { from, call, body, .. } = message;
            match body {
                Body::Call { ebb, request } => self.begin_answer(from, call, ebb, request),
                Body::Answer(answer) => self.calls.complete(from, call, Ok(answer)),
                Body::Refusal(refusal) => self.calls.complete(from, call, Err(refusal)),
            }
        }
        Ok(())
    }

    fn begin_answer(&'static self, from: MachineId, call: u64, ebb: EbbId, request: Chain) {
        if !self.served.begin(from) {
            return self.machines.refuse(MachineId::here(), from, call, Refusal::TooMany);
        }
        spawn_task(async move {
            let answer = self.served.answer(ebb, Call { from, request }).await;
            let body = answer.map_or_else(Body::Refusal, Body::Answer);
            // What its machine does not fetch is kept back, and with it the caller's place here.
            if let Some(outgoing) = self.machines.way_to(from)
                && outgoing.room().await.is_ok()
            {
                self.machines.send(Message { to: from, from: MachineId::here(), call, body });
            }
            self.served.end(from);
        })
        .detach();
    }
}
