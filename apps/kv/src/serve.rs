//! A connection's task, and the way of requests to the shards of other cores and back.
//!
//! ```text
//!   core of the connection                core of the shard
//!     session: work for shard s
//!       own shard: a call
//!       else: batch by shard ──message──>  execute each
//!     inbox of the connection <─message──  tickets and responses
//!       wakes the task
//! ```

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::{Context, Poll, Waker};
use isola::ebbs::{CellEbb, CoreIndex, Ebb, Representative, current_core};
use isola::events::{sleep, spawn_on, spawn_task};
use isola::iobuf::Chain;
use isola::net::{StreamError, TcpStream};
use isola::prelude::*;
use isola::sync::Once;
use isola_kv::{Response, Server, Session, Shard, ShardId, Ticket, UnixTime, Work};

static SERVER: CellEbb<Shared> = CellEbb::new();
static STORE: Ebb<Store> = Ebb::new();

/// Bytes handed to a connection at once.
const WRITE_PIECE: usize = 64 << 10;

/// What all cores know from the start.
#[derive(Default)]
struct Shared {
    server: Once<Arc<Server>>,
}

impl Representative for Shared {
    fn create() -> Self {
        Self::default()
    }
}

/// What a core owns: its shard, and the inboxes of its connections.
struct Store {
    shard: RefCell<Shard>,
    inboxes: RefCell<BTreeMap<u64, Rc<Inbox>>>,
    next_connection: Cell<u64>,
}

/// Responses of other cores for a connection of this one.
#[derive(Default)]
struct Inbox {
    responses: RefCell<Vec<(Ticket, Response)>>,
    waiting: Cell<Option<Waker>>,
}

impl Representative for Store {
    fn create() -> Self {
        let id = ShardId(current_core().0 as u16);
        let shard = RefCell::new(Shard::new(id, &server().config));
        spawn_task(reclaim()).detach();
        Self { shard, inboxes: RefCell::default(), next_connection: Cell::new(0) }
    }
}

/// The time of day.
pub fn unix_time() -> UnixTime {
    UnixTime((isola::unix_time().as_secs()).try_into().unwrap_or(u32::MAX))
}

/// Says what the server is, before the first connection.
pub fn prepare(server: Server) {
    SERVER.server.call_once(|| Arc::new(server));
}

fn server() -> &'static Arc<Server> {
    SERVER.server.get().expect("main prepares the server before it listens")
}

/// Takes expired items out, a few at a time, while there are any.
async fn reclaim() {
    loop {
        sleep(core::time::Duration::from_secs(1)).await;
        STORE.shard.borrow_mut().reclaim(unix_time(), 512);
    }
}

/// Serves a connection until either side ends it.
pub async fn serve(stream: TcpStream) {
    let number = STORE.next_connection.replace(STORE.next_connection.get() + 1);
    if STORE.inboxes.borrow().len() >= server().max_connections as usize {
        STORE.shard.borrow_mut().connection_rejected();
        return;
    }
    let inbox = Rc::new(Inbox::default());
    STORE.inboxes.borrow_mut().insert(number, inbox.clone());
    STORE.shard.borrow_mut().connection_opened();
    let session = Session::new(server().clone());
    let mut connection =
        Connection { stream, session, inbox, number, output: Chain::new(), input_ended: false };
    // How it ended concerns nobody: what the client sent before has been carried out.
    let _ = poll_fn(|context| connection.poll(context)).await;
    STORE.inboxes.borrow_mut().remove(&number);
    STORE.shard.borrow_mut().connection_closed();
}

struct Connection {
    stream: TcpStream,
    session: Session,
    inbox: Rc<Inbox>,
    number: u64,
    /// What was taken from the session and not handed over yet.
    output: Chain,
    input_ended: bool,
}

impl Connection {
    /// Goes on until nothing moves; completes when the connection is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let now = unix_time();
        for (ticket, response) in self.inbox.responses.take() {
            self.session.complete(ticket, response);
        }
        loop {
            self.run_work(now);
            // What has gone out makes room for more work.
            while self.poll_output(context)?.is_ready() && self.session.has_work() {
                self.run_work(now);
            }
            if self.session.is_finished() && self.output.is_empty() {
                self.stream.shutdown();
                return Poll::Ready(Ok(()));
            }
            if self.poll_input(context)?.is_pending() {
                if self.session.in_flight() > 0 {
                    self.inbox.waiting.set(Some(context.waker().clone()));
                }
                return Poll::Pending;
            }
        }
    }

    /// Carries out what the session asks for: here, or on the core that owns the shard.
    fn run_work(&mut self, now: UnixTime) {
        let mut elsewhere: Vec<(ShardId, Vec<Work>)> = Vec::new();
        while let Some(work) = self.session.serve(&mut STORE.shard.borrow_mut(), now) {
            match elsewhere.iter_mut().find(|(shard, _)| *shard == work.shard) {
                Some((_, batch)) => batch.push(work),
                None => elsewhere.push((work.shard, vec![work])),
            }
        }
        for (shard, batch) in elsewhere {
            let (number, home) = (self.number, current_core());
            spawn_on(CoreIndex(u32::from(shard.0)), move || execute_for(home, number, batch));
        }
    }

    /// Hands output to the stream. Ready where some went out: then there may be room for more work.
    fn poll_output(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, StreamError> {
        let mut moved = Poll::Pending;
        loop {
            if self.output.is_empty() {
                self.output = self.session.take_output(WRITE_PIECE);
            }
            if self.output.is_empty() {
                return Ok(moved);
            }
            let len = self.output.len();
            let done = self.stream.poll_write(context, &mut self.output);
            let sent = len - self.output.len();
            STORE.shard.borrow_mut().transferred(0, sent);
            if sent > 0 {
                moved = Poll::Ready(());
            }
            match done {
                Poll::Ready(result) => result?,
                Poll::Pending => return Ok(moved),
            }
        }
    }

    /// Takes input where the session wants some. Ready where something came.
    fn poll_input(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, StreamError> {
        if self.input_ended || !self.session.wants_input() {
            return Ok(Poll::Pending);
        }
        match self.stream.poll_read(context) {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(data) => {
                match data? {
                    Some(data) => {
                        STORE.shard.borrow_mut().transferred(data.len(), 0);
                        self.session.receive(data);
                    }
                    None => {
                        self.input_ended = true;
                        self.session.end_of_input();
                    }
                }
                Ok(Poll::Ready(()))
            }
        }
    }
}

/// Carries out a batch for a connection of core `home`, and sends the responses there.
fn execute_for(home: CoreIndex, connection: u64, batch: Vec<Work>) {
    let now = unix_time();
    let responses: Vec<_> = {
        let mut shard = STORE.shard.borrow_mut();
        batch.into_iter().map(|work| (work.ticket, shard.execute(now, work.request))).collect()
    };
    spawn_on(home, move || {
        let inbox = STORE.inboxes.borrow().get(&connection).cloned();
        // A connection that has ended meanwhile wants no responses.
        if let Some(inbox) = inbox {
            inbox.responses.borrow_mut().extend(responses);
            if let Some(waiting) = inbox.waiting.take() {
                waiting.wake();
            }
        }
    });
}
