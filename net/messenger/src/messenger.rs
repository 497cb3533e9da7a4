//! The messenger: an Ebb of the cell's first core, with the state of all other machines.
//!
//! The machines of an application form a star: the others join the first machine, which forwards messages between two
//! others. A connection runs on the core of its flow and passes received frames to the first core.

use crate::backlog::CELL_BACKLOG;
use crate::calls::Calls;
use crate::channel_service::{HOSTING, HostingUse};
use crate::connection::Connection;
use crate::error::{CallError, NoSuchActivity, ServeError};
use crate::frame::{Body, Frame, MAX_PAYLOAD, Message, ProtocolViolation, Refusal};
use crate::greetings::receive_in_time;
use crate::handlers::{Call, Handlers};
use crate::machines::Machines;
use crate::send_queue::SendQueue;
use crate::slots::Slots;
use crate::transport::TransportKind;
use crate::write_deadline::MACHINE_WRITE_LIMIT;
use crate::{GREETING, MAX_CALLS, SERVED_CALLS};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::Future;
use core::task::Waker;
use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_abi::query::ConnectedMachine;
use isola_activities::generation;
use isola_ebbs::{Ebb, EbbId, MachineId, Representative, current_core, platform};
use isola_events::pressure::{PressureHandler, on_memory_pressure};
use isola_events::{current_activity, elsewhere, spawn_task_for, timeout};
use isola_iobuf::Chain;
use isola_net::listen;
use isola_net::query::list_machines_by;
use isola_net::tcp::{PortInUse, PortListener};
use isola_platform::CoreIndex;

/// The core that runs the messenger.
pub(crate) const MESSENGER_CORE: CoreIndex = CoreIndex(0);

/// The maximum number of connections per core that wait to be accepted.
const BACKLOG: usize = 16;

pub(crate) static MESSENGER: Ebb<Messenger> = Ebb::new();

pub(crate) struct Messenger {
    pub machines: Machines,
    calls: Calls,
    handlers: Handlers,
    /// The limit on this machine's concurrent calls, by called machine.
    call_limits: RefCell<BTreeMap<MachineId, Rc<Slots>>>,
    /// The slots of received calls.
    received: Rc<Slots>,
    /// The activities for which calls are answered, by calling machine.
    callers: RefCell<BTreeMap<MachineId, (ActivityId, Generation)>>,
    /// The tasks that wait for the connection to the first machine to end.
    pub disconnect_waiters: RefCell<Vec<Waker>>,
    /// Ends connections when memory runs low.
    _pressure: PressureHandler,
}

impl Representative for Messenger {
    fn create() -> Self {
        list_machines_by(|| {
            let machine = |(machine, transport): (MachineId, TransportKind)| ConnectedMachine {
                number: machine.number(),
                over_channel: transport == TransportKind::Channel,
            };
            MESSENGER.machines.list().into_iter().map(machine).collect()
        });
        Self {
            machines: Machines::counting_from(platform().entropy() as u32),
            calls: Calls::default(),
            handlers: Handlers::default(),
            call_limits: RefCell::default(),
            received: Slots::new(SERVED_CALLS, None),
            callers: RefCell::default(),
            disconnect_waiters: RefCell::default(),
            _pressure: on_memory_pressure(|_| CELL_BACKLOG.shed()),
        }
    }
}

/// Makes this machine the first of an application, which others join at `port`, for as long as the returned value
/// lives. If it is a cell, other cells of the machine join by channels to its service `messenger`, as far as its manifest
/// accepts them; with or without a network.
///
/// Any program that reaches the port can join: publish it only to machines of the application.
///
/// # Errors
/// [`PortInUse`].
pub fn host(port: u16) -> Result<FirstMachineListener, PortInUse> {
    let serve = |stream| welcome(Connection::tcp(stream, MACHINE_WRITE_LIMIT));
    Ok(FirstMachineListener { _port: listen(port, BACKLOG, serve)?, _channels: HostingUse::begin() })
}

/// The listener of a first machine. Dropping it stops listening; connected machines stay.
#[derive(Debug)]
#[must_use = "dropping this stops listening"]
pub struct FirstMachineListener {
    _port: PortListener,
    _channels: HostingUse,
}

/// Returns the machines that are connected to this one, each with the transport of its frames: all that have joined, on the
/// first machine; the first one on others.
pub async fn connected_machines() -> Vec<(MachineId, TransportKind)> {
    on_messenger_core(|| async { MESSENGER.machines.list() }).await
}

/// Answers calls to `ebb` with `handler` until the returned value is dropped. Must be called on the cell's first core,
/// which runs the messenger.
///
/// # Errors
/// [`ServeError`].
pub fn serve<F>(ebb: EbbId, handler: impl Fn(Call) -> F + 'static) -> Result<HandlerRegistration, ServeError>
where
    F: Future<Output = Result<Chain, Refusal>> + 'static,
{
    if current_core() != MESSENGER_CORE {
        return Err(ServeError::NotFirstCore);
    }
    if !MESSENGER.handlers.add(ebb, handler) {
        return Err(ServeError::Taken);
    }
    Ok(HandlerRegistration { ebb, released: None, here: core::marker::PhantomData })
}

/// Returns whether this machine answers calls to `ebb`. For the first core.
pub(crate) fn is_served(ebb: EbbId) -> bool {
    MESSENGER.handlers.contains(ebb)
}

/// The registration of a handler; dropping it ends the service.
#[derive(Debug)]
#[must_use = "dropping this ends the service"]
pub struct HandlerRegistration {
    ebb: EbbId,
    /// A function to call on drop.
    released: Option<fn(EbbId)>,
    /// Not `Send`: it must be dropped on the core that serves.
    here: core::marker::PhantomData<Rc<()>>,
}

impl HandlerRegistration {
    /// Sets a function to call when the service ends.
    pub(crate) fn on_release(self, released: fn(EbbId)) -> Self {
        let mut serving = self;
        serving.released = Some(released);
        serving
    }
}

impl Drop for HandlerRegistration {
    fn drop(&mut self) {
        MESSENGER.handlers.remove(self.ebb);
        if let Some(released) = self.released {
            released(self.ebb);
        }
    }
}

/// Calls the representative of `ebb` on `machine`, from any core, and returns its answer. A call to this machine itself
/// sends no message. At most [`MAX_CALLS`] calls to a machine run concurrently; further ones wait, in the order of the
/// policy of `rpc` if there is one.
///
/// # Errors
/// [`CallError`].
pub async fn call(machine: MachineId, ebb: EbbId, request: Chain) -> Result<Chain, CallError> {
    if request.len() > MAX_PAYLOAD {
        return Err(CallError::TooLong);
    }
    if current_core() == MESSENGER_CORE {
        return call_here(machine, ebb, request).await;
    }
    elsewhere(MESSENGER_CORE, move || call_here(machine, ebb, request)).await
}

async fn call_here(machine: MachineId, ebb: EbbId, request: Chain) -> Result<Chain, CallError> {
    let here = MachineId::here();
    if machine == here {
        let answer = MESSENGER.handlers.answer(ebb, Call { from: here, request }).await;
        return answer.map_err(CallError::Refused);
    }
    let send_queue = MESSENGER.machines.queue_to(machine).ok_or(CallError::NoSuchMachine)?;
    let call_limit = MESSENGER
        .call_limits
        .borrow_mut()
        .entry(machine)
        .or_insert_with(|| Slots::new(MAX_CALLS, Some(MAX_CALLS)))
        .clone();
    let _slot = call_limit.take().await;
    let gone = |_| CallError::Refused(Refusal::Disconnected);
    send_queue.room().await.map_err(gone)?;
    let pending = MESSENGER.calls.begin(machine);
    let body = Body::Call { ebb, request };
    let message = Message { to: machine, from: here, call: pending.number(), body };
    send_queue.push(Frame::Message(message).encode()).map_err(gone)?;
    pending.await
}

/// Answers the calls of a machine for an activity from now on. Without this, or once the activity has ended, that is the
/// activity of the connection from which they come: of the joining machine, or of the first one.
///
/// # Errors
/// [`NoSuchActivity`] if the activity was not registered or has ended.
pub async fn charge_calls_of(machine: MachineId, activity: ActivityId) -> Result<(), NoSuchActivity> {
    let generation = generation(activity);
    if !generation.is_in_use() {
        return Err(NoSuchActivity);
    }
    on_messenger_core(move || async move {
        MESSENGER.callers.borrow_mut().insert(machine, (activity, generation));
    })
    .await;
    Ok(())
}

/// Serves a joining machine, on the core of its connection.
pub(crate) async fn welcome(connection: Connection) {
    let mut connection = connection;
    let Some(Ok(before)) = receive_in_time(receive_hello(&mut connection)).await else { return };
    let send_queue = CELL_BACKLOG.open();
    let (admitted, kind) = (send_queue.clone(), connection.kind());
    let admit = move || async move { MESSENGER.admit(before, admitted, kind) };
    let Some(you) = on_messenger_core(admit).await else {
        return;
    };
    let welcomed = timeout(GREETING, connection.send(Frame::Welcome { you })).await;
    if matches!(welcomed, Ok(Ok(()))) {
        let deliver = |frames| on_messenger_core(move || MESSENGER.process(you, frames));
        connection.run(&send_queue, deliver).await;
    }
    on_messenger_core(move || async move { MESSENGER.remove_machine(you) }).await;
}

/// Receives the hello of a machine that joins, which may ask before where this one is. Returns its previous number.
async fn receive_hello(connection: &mut Connection) -> Result<Option<MachineId>, ProtocolViolation> {
    let incarnation = HOSTING.incarnation;
    let mut greeting = connection.receive_greeting().await?;
    if greeting == Frame::Locate {
        let cell = HOSTING.cell_name().into();
        connection.send(Frame::Location { incarnation, cell }).await?;
        greeting = connection.receive_greeting().await?;
    }
    match greeting {
        Frame::Hello { before, first } if first.is_none_or(|first| first == incarnation) => Ok(before),
        _ => Err(ProtocolViolation),
    }
}

/// Runs the future that `make` creates on the messenger's core; returns its result.
async fn on_messenger_core<T: Send + 'static, F: Future<Output = T> + 'static>(
    make: impl FnOnce() -> F + Send + 'static,
) -> T {
    if current_core() == MESSENGER_CORE { make().await } else { elsewhere(MESSENGER_CORE, make).await }
}

impl Messenger {
    fn admit(
        &self,
        before: Option<MachineId>,
        send_queue: Arc<SendQueue>,
        kind: TransportKind,
    ) -> Option<MachineId> {
        // A machine that admits another is the first machine, permanently.
        MachineId::FIRST.become_here().ok()?;
        let you = self.machines.number(before)?;
        self.machines.add(you, send_queue, kind);
        Some(you)
    }

    /// Removes the ended connection to the first machine, fails all calls, and wakes the tasks that wait for its end.
    pub fn disconnect(&self, send_queue: &Arc<SendQueue>) {
        if self.machines.remove_if(MachineId::FIRST, send_queue) {
            self.calls.fail(|_| true);
            self.disconnect_waiters.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Returns whether a machine is this one or connected to it.
    pub fn is_present(&self, machine: MachineId) -> bool {
        machine == MachineId::here() || self.machines.is_connected(machine)
    }

    fn remove_machine(&self, machine: MachineId) {
        self.machines.remove(machine);
        self.calls.fail(|to| to == machine);
        self.call_limits.borrow_mut().remove(&machine);
    }

    /// Processes frames of a neighbour. A message to a machine whose queue is full waits for room, and with it all
    /// later messages of the neighbour.
    pub async fn process(
        &'static self,
        neighbour: MachineId,
        frames: Vec<Frame>,
    ) -> Result<(), ProtocolViolation> {
        let here = MachineId::here();
        for frame in frames {
            let Frame::Message(message) = frame else { return Err(ProtocolViolation) };
            // Only the first machine may send messages of others, and receive messages for others.
            let is_first = here == MachineId::FIRST;
            if message.from == here
                || (is_first && message.from != neighbour)
                || (!is_first && message.to != here)
            {
                return Err(ProtocolViolation);
            }
            if message.to != here {
                self.machines.forward(message).await;
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

    /// Returns the activity for which a machine's calls are answered: by default that of the connection from which they
    /// come, whose event runs.
    fn caller_activity(&self, machine: MachineId) -> ActivityId {
        match self.callers.borrow().get(&machine) {
            Some((activity, of)) if generation(*activity) == *of => *activity,
            _ => current_activity(),
        }
    }

    fn begin_answer(&'static self, from: MachineId, call: u64, ebb: EbbId, request: Chain) {
        if !self.handlers.begin(from) {
            return self.machines.refuse(MachineId::here(), from, call, Refusal::TooMany);
        }
        spawn_task_for(self.caller_activity(from), async move {
            let slot = self.received.take().await;
            let answer = self.handlers.answer(ebb, Call { from, request }).await;
            drop(slot);
            let body = answer.map_or_else(Body::Refusal, Body::Answer);
            // While the caller does not take earlier answers this one waits, and still counts as one of the caller's
            // calls.
            if let Some(send_queue) = self.machines.queue_to(from)
                && send_queue.room().await.is_ok()
            {
                self.machines.send(Message { to: from, from: MachineId::here(), call, body });
            }
            self.handlers.end(from);
        })
        .detach();
    }
}
