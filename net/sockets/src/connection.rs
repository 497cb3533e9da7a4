//! A core's record of a connection, and its recipient: a waiting task, or a handler.

use crate::activity_rules::OwnActivity;
use crate::core_network::NETWORK;
use crate::handler::{ConnectionHandler, TcpConnection};
use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::Cell;
use core::task::Waker;
use isola_abi::id::ActivityId;
use isola_events::activity::charge_to;
use isola_events::{current_activity, spawn};
use isola_iobuf::Chain;
use isola_net_stack::{ConnId, FailReason, StreamEnd};

/// A function that gets received data in the event in which it arrived.
pub(crate) type EarlyReader = Box<dyn FnMut(&TcpConnection, Chain) -> EarlyRead>;

/// The outcome of an early read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyRead {
    /// The task that waits to read continues to wait.
    Complete,
    /// The task is woken.
    WakeReader,
}

/// A connection of this core.
pub(crate) struct Connection {
    pub id: ConnId,
    pub connected: Cell<bool>,
    /// Whether there may be something to read: data, or the end of the peer's stream.
    pub unread: Cell<bool>,
    /// Whether a notice of that waits for an event of the activity.
    pub notice_waits: Cell<bool>,
    /// Set once the id is invalid: `Some(None)` after an orderly close.
    pub ended: Cell<Option<Option<FailReason>>>,
    pub reader: Cell<Option<Waker>>,
    pub writer: Cell<Option<Waker>>,
    /// The function that gets received data before the waiting reader is woken. Taken out during a call.
    early_reader: Cell<Option<EarlyReader>>,
    has_early_reader: Cell<bool>,
    /// The handler, which is called instead of waking tasks. Taken out during a call.
    handler: Cell<Option<Box<dyn ConnectionHandler>>>,
    /// The activity of the handler's work; `None` without a handler.
    activity: Cell<Option<ActivityId>>,
    /// The connection's own activity, if it has one.
    pub own_activity: Cell<Option<OwnActivity>>,
    /// Whether the handler accepts no data at present.
    pub paused: Cell<bool>,
    /// Whether the handler was informed of the end of the peer's stream.
    end_reported: Cell<bool>,
}

impl Connection {
    pub fn new(id: ConnId) -> Self {
        Self {
            id,
            connected: Cell::new(false),
            // Data may have arrived before the record existed.
            unread: Cell::new(true),
            notice_waits: Cell::new(false),
            ended: Cell::new(None),
            reader: Cell::new(None),
            writer: Cell::new(None),
            early_reader: Cell::new(None),
            has_early_reader: Cell::new(false),
            handler: Cell::new(None),
            activity: Cell::new(None),
            own_activity: Cell::new(None),
            paused: Cell::new(false),
            end_reported: Cell::new(false),
        }
    }

    /// Creates the record of a connection that another core had.
    pub fn from_moved(id: ConnId, moved: MovedConnection) -> Self {
        let MovedConnection { handler, activity, own_activity, connected, unread, paused, end_reported } =
            moved;
        let connection = Self {
            own_activity: Cell::new(own_activity),
            connected: Cell::new(connected),
            unread: Cell::new(unread),
            paused: Cell::new(paused),
            end_reported: Cell::new(end_reported),
            ..Self::new(id)
        };
        connection.serve_by(handler, activity);
        connection
    }

    /// Informs the handler that it continues on this core. Data that was not delivered on the previous core is
    /// delivered here.
    pub fn arrived(self: &Rc<Self>) {
        if let Some(activity) = self.activity.get() {
            self.call(activity, |handler, connection| handler.arrived(connection));
        }
        if self.unread.get() && !self.paused.get() {
            self.resume_later();
        }
    }

    /// Extracts the application's state for the move to another core, if the handler can move, and if only the caller
    /// and one other reference hold this record.
    pub fn extract(self: &Rc<Self>) -> Option<MovedConnection> {
        let activity = self.activity.get()?;
        let mut handler = self.handler.take()?;
        let Some(moving) = handler.moving() else {
            self.handler.set(Some(handler));
            return None;
        };
        drop(handler);
        if Rc::strong_count(self) > 2 {
            self.handler.set(Some(moving));
            self.arrived();
            return None;
        }
        self.release();
        Some(MovedConnection {
            handler: moving,
            activity,
            own_activity: self.own_activity.take(),
            connected: self.connected.get(),
            unread: self.unread.get(),
            paused: self.paused.get(),
            end_reported: self.end_reported.get(),
        })
    }

    /// Sets the handler, which receives all further calls, for `activity`.
    pub fn serve_by(&self, handler: Box<dyn ConnectionHandler>, activity: ActivityId) {
        self.handler.set(Some(handler));
        self.activity.set(Some(activity));
    }

    pub fn connected(self: &Rc<Self>) {
        self.connected.set(true);
        match self.activity.get() {
            Some(activity) => self.call(activity, |handler, connection| handler.connected(connection)),
            None => wake(&self.writer),
        }
    }

    /// Records that data arrived, or the end of the peer's stream.
    #[inline]
    pub fn readable(self: Rc<Self>) {
        self.unread.set(true);
        match self.activity.get() {
            Some(activity) => Self::deliver(&TcpConnection::new(self), activity),
            None if self.has_early_reader.get() => self.read_early(),
            None => wake(&self.reader),
        }
    }

    /// Records that data arrived, or the end of the peer's stream, without a notice to the recipient. Returns whether none
    /// waits yet.
    pub fn note_unread(&self) -> bool {
        self.unread.set(true);
        !self.notice_waits.replace(true)
    }

    /// Sets the function that gets received data while a task waits to read, or none.
    pub fn set_early_reader(&self, early_reader: Option<EarlyReader>) {
        self.has_early_reader.set(early_reader.is_some());
        self.early_reader.set(early_reader);
    }

    /// Passes received data to the early reader if a task waits to read, which is woken if that is asked for, or at the
    /// end of the peer's stream. A task that does something else reads the data later.
    fn read_early(self: Rc<Self>) {
        let Some(reader) = self.reader.take() else { return };
        self.reader.set(Some(reader));
        let Some(mut early_reader) = self.early_reader.take() else { return };
        let (data, at_end) = self.take();
        let wakes_reader = !data.is_empty()
            && early_reader(&TcpConnection::new(self.clone()), data) == EarlyRead::WakeReader;
        if self.has_early_reader.get() {
            self.early_reader.set(Some(early_reader));
        }
        if wakes_reader || at_end == StreamEnd::Yes {
            wake(&self.reader);
        }
    }

    /// Records that there is room to send again.
    pub fn writable(self: &Rc<Self>) {
        match self.activity.get() {
            Some(activity) => self.call(activity, |handler, connection| handler.send_space(connection)),
            None => wake(&self.writer),
        }
    }

    /// Delivers, in a separate event, the data that arrived while the handler was paused.
    pub fn resume_later(self: &Rc<Self>) {
        self.call_later(Self::resume);
    }

    /// Makes a call in a separate event, unless the connection has ended by then. The event holds a weak reference, as
    /// a strong one would prevent the connection's move to another core.
    pub fn call_later(self: &Rc<Self>, call: fn(&Rc<Self>)) {
        let connection = Rc::downgrade(self);
        spawn(move || connection.upgrade().iter().for_each(call));
    }

    /// Makes the call that the handler requested.
    pub fn called_again(self: &Rc<Self>) {
        if let Some(activity) = self.activity.get() {
            self.call(activity, |handler, connection| handler.called_again(connection));
        }
    }

    pub fn ended(self: &Rc<Self>, reason: Option<FailReason>) {
        self.ended.set(Some(reason));
        NETWORK.remove_connection(self.id);
        match self.activity.get() {
            Some(activity) => {
                self.call(activity, |handler, _| handler.ended(reason));
                self.release();
            }
            None => {
                wake(&self.reader);
                wake(&self.writer);
            }
        }
    }

    /// Takes all received data, and whether the peer's stream has ended. Inlined, because a call would copy the data
    /// once more.
    #[inline(always)]
    pub fn take(&self) -> (Chain, StreamEnd) {
        let (mut data, mut end) = (Chain::new(), StreamEnd::Yes);
        // Assigned here: as the result of `with` it would be copied out of two options.
        NETWORK.with(|stack| {
            if let Some(read) = stack.read_all(self.id) {
                (data, end) = read;
            }
        });
        // All data was taken: until the next notice, only the end of the peer's stream can remain.
        self.unread.set(end == StreamEnd::Yes);
        (data, end)
    }

    /// Appends up to `most` bytes of received data. Returns their number, and whether the peer's stream has ended with
    /// them.
    pub fn take_some(&self, most: usize, into: &mut Chain) -> (usize, StreamEnd) {
        let (mut taken, mut end) = (0, StreamEnd::Yes);
        NETWORK.with(|stack| {
            while taken < most
                && let Some(piece) = stack.read_up_to(self.id, most - taken)
            {
                taken += piece.len();
                into.push_back(piece);
            }
            end = if stack.is_at_end(self.id) { StreamEnd::Yes } else { StreamEnd::No };
        });
        // Without a full measure there is no more data until the next notice.
        self.unread.set(taken == most || end == StreamEnd::Yes);
        (taken, end)
    }

    /// Delivers received data to the handler, unless it is paused.
    #[inline]
    fn deliver(served: &TcpConnection, activity: ActivityId) {
        let this = served.record();
        // Taking data may have opened the window, and more may have arrived.
        while this.unread.get() && !this.paused.get() {
            let (data, at_end) = this.take();
            if !data.is_empty() {
                this.call_as(activity, |handler| handler.received(served, data));
            }
            if at_end == StreamEnd::Yes {
                this.unread.set(false);
                // A connection that has ended reports that separately.
                if this.ended.get().is_none() && !this.end_reported.replace(true) {
                    this.call_as(activity, |handler| handler.peer_closed(served));
                }
            }
        }
    }

    /// Delivers data that arrived while the handler was paused, or before there was one.
    pub fn resume(self: &Rc<Self>) {
        let Some(activity) = self.activity.get() else { return };
        Self::deliver(&TcpConnection::new(self.clone()), activity);
        if let Some(reason) = self.ended.get() {
            self.call(activity, |handler, _| handler.ended(reason));
            self.release();
        }
    }

    /// Calls the handler like [`Self::call_as`], with the connection as an argument.
    fn call(
        self: &Rc<Self>,
        activity: ActivityId,
        call: impl FnOnce(&mut dyn ConnectionHandler, &TcpConnection),
    ) {
        self.call_as(activity, |handler| call(handler, &TcpConnection::new(self.clone())));
    }

    /// Calls the handler, unless it is gone: the application may have released the connection. Inlined, because a call
    /// would copy the data once more.
    #[inline(always)]
    fn call_as(&self, activity: ActivityId, call: impl FnOnce(&mut dyn ConnectionHandler)) {
        let Some(mut handler) = self.handler.take() else { return };
        if current_activity() != activity {
            charge_to(activity);
        }
        call(&mut *handler);
        if !self.is_released() {
            self.handler.set(Some(handler));
        }
    }

    /// Returns whether no handler serves the connection: it never had one, or the application has released it.
    pub fn is_released(&self) -> bool {
        self.activity.get().is_none()
    }

    /// Releases the connection: the handler is not called any more.
    pub fn release(&self) {
        self.activity.set(None);
        drop(self.handler.take());
    }
}

/// The application's state of a connection that moves between two cores.
pub(crate) struct MovedConnection {
    handler: Box<dyn ConnectionHandler + Send>,
    activity: ActivityId,
    own_activity: Option<OwnActivity>,
    connected: bool,
    unread: bool,
    paused: bool,
    end_reported: bool,
}

impl MovedConnection {
    /// Informs the handler that the connection has ended during the move.
    pub fn end(mut self, reason: FailReason) {
        charge_to(self.activity);
        self.handler.ended(Some(reason));
    }
}

/// Wakes the waiting task, if there is one. The stack then sends after that task has run.
fn wake(waiting: &Cell<Option<Waker>>) {
    if let Some(waiting) = waiting.take() {
        waiting.wake();
        NETWORK.note_woken_task();
    }
}
