//! What a core knows of one of its connections, and who is told of it: the task that waits for it, or its handler.

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
use isola_net_stack::{ConnId, EndCame, FailReason};

/// A connection of this core.
pub(crate) struct Connection {
    pub id: ConnId,
    pub connected: Cell<bool>,
    /// Whether there may be something to read: data, or the peer's end.
    pub unread: Cell<bool>,
    /// Set once the id is void: `Some(None)` after a close in good order.
    pub ended: Cell<Option<Option<FailReason>>>,
    pub reader: Cell<Option<Waker>>,
    pub writer: Cell<Option<Waker>>,
    /// Who is called in the place of tasks that are woken. Taken out while it is.
    handler: Cell<Option<Box<dyn ConnectionHandler>>>,
    /// Whom the handler's work is charged to; `None` where there is no handler.
    activity: Cell<Option<ActivityId>>,
    /// Whether the handler wants no data for now.
    pub paused: Cell<bool>,
    /// Whether the handler was told of the peer's end.
    end_told: Cell<bool>,
}

impl Connection {
    pub fn new(id: ConnId) -> Self {
        Self {
            id,
            connected: Cell::new(false),
            // Data may have come before somebody asked to be told.
            unread: Cell::new(true),
            ended: Cell::new(None),
            reader: Cell::new(None),
            writer: Cell::new(None),
            handler: Cell::new(None),
            activity: Cell::new(None),
            paused: Cell::new(false),
            end_told: Cell::new(false),
        }
    }

    /// What another core had.
    pub fn moved_here(id: ConnId, moved: MovedConnection) -> Self {
        let MovedConnection { handler, activity, connected, unread, paused, end_told } = moved;
        let connection = Self {
            connected: Cell::new(connected),
            unread: Cell::new(unread),
            paused: Cell::new(paused),
            end_told: Cell::new(end_told),
            ..Self::new(id)
        };
        connection.serve_by(handler, activity);
        connection
    }

    /// Tells the handler that it goes on here. What it was to be handed where it was it is handed here.
    pub fn arrived(self: &Rc<Self>) {
        if let Some(activity) = self.activity.get() {
            self.call(activity, |handler, connection| handler.arrived(connection));
        }
        if self.unread.get() && !self.paused.get() {
            self.resume_later();
        }
    }

    /// What goes along to another core, where the handler can and nobody but the caller, and one more, has this record.
    pub fn take_along(self: &Rc<Self>) -> Option<MovedConnection> {
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
            connected: self.connected.get(),
            unread: self.unread.get(),
            paused: self.paused.get(),
            end_told: self.end_told.get(),
        })
    }

    /// Has `handler` told of everything from now on, for `activity`.
    pub fn serve_by(&self, handler: Box<dyn ConnectionHandler>, activity: ActivityId) {
        self.handler.set(Some(handler));
        self.activity.set(Some(activity));
    }

    pub fn connected(&self) {
        self.connected.set(true);
        wake(&self.writer);
    }

    /// Data came, or the peer's end.
    #[inline]
    pub fn readable(self: Rc<Self>) {
        self.unread.set(true);
        match self.activity.get() {
            Some(activity) => Self::hand_over(&TcpConnection::new(self), activity),
            None => wake(&self.reader),
        }
    }

    /// There is room to send again.
    pub fn writable(self: &Rc<Self>) {
        match self.activity.get() {
            Some(activity) => self.call(activity, |handler, connection| handler.send_space(connection)),
            None => wake(&self.writer),
        }
    }

    /// Has what came while the handler wanted nothing handed over in an event of its own.
    pub fn resume_later(self: &Rc<Self>) {
        self.call_later(Self::resume);
    }

    /// Calls that in an event of its own, unless the connection has gone by then: known by name meanwhile, it would have to
    /// stay on its core.
    pub fn call_later(self: &Rc<Self>, call: fn(&Rc<Self>)) {
        let connection = Rc::downgrade(self);
        spawn(move || connection.upgrade().iter().for_each(call));
    }

    /// The handler asked to be called.
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

    /// Takes all that has come, and whether the peer's end is there. Inlined, as a call would copy the data once more.
    #[inline(always)]
    pub fn take(&self) -> (Chain, EndCame) {
        let (mut data, mut end) = (Chain::new(), EndCame::Yes);
        // Assigned here: as the result of `with` it would be copied out of two options.
        NETWORK.with(|stack| {
            if let Some(read) = stack.read_all(self.id) {
                (data, end) = read;
            }
        });
        // All of it is taken: until something is told again, only the peer's end can still be there.
        self.unread.set(end == EndCame::Yes);
        (data, end)
    }

    /// Hands the handler what has come, unless it wants nothing now.
    #[inline]
    fn hand_over(served: &TcpConnection, activity: ActivityId) {
        let this = served.record();
        // What it was given may have opened the window, and more may be there already.
        while this.unread.get() && !this.paused.get() {
            let (data, at_end) = this.take();
            if !data.is_empty() {
                this.call_as(activity, |handler| handler.received(served, data));
            }
            if at_end == EndCame::Yes {
                this.unread.set(false);
                // A connection that has ended says so by itself.
                if this.ended.get().is_none() && !this.end_told.replace(true) {
                    this.call_as(activity, |handler| handler.peer_closed(served));
                }
            }
        }
    }

    /// Hands over what came while the handler wanted nothing, or before there was one.
    pub fn resume(self: &Rc<Self>) {
        let Some(activity) = self.activity.get() else { return };
        Self::hand_over(&TcpConnection::new(self.clone()), activity);
        if let Some(reason) = self.ended.get() {
            self.call(activity, |handler, _| handler.ended(reason));
            self.release();
        }
    }

    /// As [`Self::call_as`], with the connection as the handler knows it.
    fn call(
        self: &Rc<Self>,
        activity: ActivityId,
        tell: impl FnOnce(&mut dyn ConnectionHandler, &TcpConnection),
    ) {
        self.call_as(activity, |handler| tell(handler, &TcpConnection::new(self.clone())));
    }

    /// Calls the handler, unless it is gone: the application may have let go of the connection. Inlined, as a call would copy
    /// the data once more.
    #[inline(always)]
    fn call_as(&self, activity: ActivityId, tell: impl FnOnce(&mut dyn ConnectionHandler)) {
        let Some(mut handler) = self.handler.take() else { return };
        if current_activity() != activity {
            charge_to(activity);
        }
        tell(&mut *handler);
        if !self.is_released() {
            self.handler.set(Some(handler));
        }
    }

    /// Whether no handler serves the connection: it never had one, or the application has let go of it.
    pub fn is_released(&self) -> bool {
        self.activity.get().is_none()
    }

    /// The application lets go: the handler is told nothing more.
    pub fn release(&self) {
        self.activity.set(None);
        drop(self.handler.take());
    }
}

/// The application's side of a connection, between two cores.
pub(crate) struct MovedConnection {
    handler: Box<dyn ConnectionHandler + Send>,
    activity: ActivityId,
    connected: bool,
    unread: bool,
    paused: bool,
    end_told: bool,
}

impl MovedConnection {
    /// Tells the handler that the connection has ended on its way.
    pub fn end(mut self, reason: FailReason) {
        charge_to(self.activity);
        self.handler.ended(Some(reason));
    }
}

/// Wakes a task, where one waits: what it sends is worth waiting for.
fn wake(waiting: &Cell<Option<Waker>>) {
    if let Some(waiting) = waiting.take() {
        waiting.wake();
        NETWORK.expect_calls();
    }
}
