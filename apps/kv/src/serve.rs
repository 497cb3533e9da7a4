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
use core::cell::{Cell, OnceCell, RefCell, RefMut};
use core::future::poll_fn;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use isola::ebbs::{CellEbb, CoreIndex, Ebb, Representative, current_core};
use isola::events::{sleep, spawn_on, spawn_task};
use isola::iobuf::Chain;
use isola::memory::{MemoryPressure, PressureHandler, on_memory_pressure};
use isola::net::{StreamError, TcpStream};
use isola::prelude::*;
use isola::sync::Once;
use isola_kv::{Response, Server, Session, Shard, ShardId, Ticket, UnixTime, Work};

static SERVER: CellEbb<Shared> = CellEbb::new();
static STORE: Ebb<Store> = Ebb::new();

/// What any connection may hold, in bytes.
const SMALLEST_SHARE: usize = 4 << 10;

/// Bytes handed to a connection at once.
const WRITE_PIECE: usize = 64 << 10;

/// What all cores know from the start.
#[derive(Default)]
struct Shared {
    server: Once<Arc<Server>>,
    /// Memory that the cell had, or was to get, when the server was made, in bytes.
    promised_bytes: Once<usize>,
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
    /// The cell's memory that the shard's limit is right for.
    memory_bytes: Cell<usize>,
    _pressure: PressureHandler,
}

/// What others tell a connection of this core.
#[derive(Default)]
struct Inbox {
    /// Responses of other cores.
    responses: RefCell<Vec<(Ticket, Response)>>,
    /// Whether it is to look at what it holds.
    measure: Cell<bool>,
    /// Wakes the connection's task, which has one waker for life.
    waker: OnceCell<Waker>,
}

impl Inbox {
    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }
}

impl Store {
    /// The shard. Its items take the same part of the memory that there is as they were to take of what was promised: the
    /// machine may have less for the cell than that.
    fn shard(&self) -> RefMut<'_, Shard> {
        let mut shard = self.shard.borrow_mut();
        let memory_bytes = isola::memory_total();
        if self.memory_bytes.replace(memory_bytes) != memory_bytes {
            let limit_bytes = server().config.shard_limit_bytes() as u128;
            let part = limit_bytes * memory_bytes as u128 / promised_bytes().max(1) as u128;
            shard.set_limit_bytes((part.min(limit_bytes)) as usize);
        }
        shard
    }

    /// Has all connections of this core look at what they hold, as memory is short: those with more than their share end.
    ///
    /// What clients send and do not finish, and what they ask for and do not read, is bounded by connection, but not
    /// in sum. Somebody has to go then, or the cell ends for want of memory, and that is whoever takes the most.
    fn relieve(&self) {
        for inbox in self.inboxes.borrow().values() {
            inbox.measure.set(true);
            inbox.wake();
        }
    }

    /// What a connection may hold while memory is short, in bytes: its part of a sixteenth of the cell's memory.
    fn share(&self) -> usize {
        let connections = self.inboxes.borrow().len().max(1) * isola::core_count();
        (isola::memory_total() / 16 / connections).max(SMALLEST_SHARE)
    }
}

impl Representative for Store {
    fn create() -> Self {
        let id = ShardId(current_core().0 as u16);
        let shard = RefCell::new(Shard::new(id, &server().config));
        spawn_task(reclaim()).detach();
        let _pressure = on_memory_pressure(|pressure| {
            if pressure > MemoryPressure::None {
                STORE.relieve();
            }
        });
        let memory_bytes = Cell::new(promised_bytes());
        Self { shard, inboxes: RefCell::default(), next_connection: Cell::new(0), memory_bytes, _pressure }
    }
}

/// The time of day.
pub fn unix_time() -> UnixTime {
    UnixTime((isola::unix_time().as_secs()).try_into().unwrap_or(u32::MAX))
}

/// Says what the server is, before the first connection.
pub fn prepare(server: Server) {
    SERVER.promised_bytes.call_once(isola::memory_total);
    SERVER.server.call_once(|| Arc::new(server));
}

fn server() -> &'static Arc<Server> {
    SERVER.server.get().expect("main prepares the server before it listens")
}

/// Memory that the cell had, or was to get, when the server was made, in bytes.
fn promised_bytes() -> usize {
    SERVER.promised_bytes.get().copied().unwrap_or_default()
}

/// Takes expired items out, a few at a time, while there are any.
async fn reclaim() {
    loop {
        sleep(Duration::from_secs(1)).await;
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
        self.inbox.waker.get_or_init(|| context.waker().clone());
        if self.inbox.measure.take() && self.held_bytes() > STORE.share() {
            return Poll::Ready(Err(StreamError::Closed));
        }
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
                return Poll::Pending;
            }
        }
    }

    /// Memory that is the connection's alone, about, in bytes. Frames that were not read take up more than they carry.
    fn held_bytes(&self) -> usize {
        let stream = self.stream.statistics().map_or(0, |stream| stream.unacked + 2 * stream.unread);
        self.session.held_bytes() + self.output.len() + stream
    }

    /// Carries out what the session asks for: here, or on the core that owns the shard.
    fn run_work(&mut self, now: UnixTime) {
        let mut elsewhere: Vec<(ShardId, Vec<Work>)> = Vec::new();
        while let Some(work) = self.session.serve(&mut STORE.shard(), now) {
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
        let mut shard = STORE.shard();
        batch.into_iter().map(|work| (work.ticket, shard.execute(now, work.request))).collect()
    };
    spawn_on(home, move || {
        let inbox = STORE.inboxes.borrow().get(&connection).cloned();
        // A connection that has ended meanwhile wants no responses.
        if let Some(inbox) = inbox {
            inbox.responses.borrow_mut().extend(responses);
            inbox.wake();
        }
    });
}
