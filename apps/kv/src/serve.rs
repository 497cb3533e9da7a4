//! What a core owns, and the way of requests to the shards of other cores and back.
//!
//! ```text
//!   core of the connection                core of the shard
//!     session: work for shard s
//!       own shard: a call
//!       else: batch by shard ──message──>  execute each
//!     client <──────────────────message──  tickets and responses
//! ```

use crate::client::{Client, Served};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::cell::{Cell, RefCell, RefMut};
use core::time::Duration;
use isola::ebbs::{CellEbb, CoreIndex, Ebb, Representative, current_core};
use isola::events::{sleep, spawn, spawn_on, spawn_task};
use isola::memory::{MemoryPressure, PressureHandler, on_memory_pressure};
use isola::net::TcpConnection;
use isola::prelude::*;
use isola::sync::Once;
use isola_kv::{Server, Session, Shard, ShardId, UnixTime, Work};

static SERVER: CellEbb<Shared> = CellEbb::new();
pub static STORE: Ebb<Store> = Ebb::new();

/// What any connection may hold, in bytes.
const SMALLEST_SHARE: usize = 4 << 10;

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

/// What a core owns: its shard, and the clients of its connections.
pub struct Store {
    shard: RefCell<Shard>,
    clients: RefCell<BTreeMap<u64, Rc<Client>>>,
    next_client: Cell<u64>,
    /// The cell's memory that the shard's limit is right for.
    memory_bytes: Cell<usize>,
    _pressure: PressureHandler,
}

impl Store {
    /// The shard. Its items take the same part of the memory that there is as they were to take of what was promised: the
    /// machine may have less for the cell than that.
    pub fn shard(&self) -> RefMut<'_, Shard> {
        let mut shard = self.shard.borrow_mut();
        let memory_bytes = isola::memory_total();
        if self.memory_bytes.replace(memory_bytes) != memory_bytes {
            let limit_bytes = server().config.shard_limit_bytes() as u128;
            let part = limit_bytes * memory_bytes as u128 / promised_bytes().max(1) as u128;
            shard.set_limit_bytes((part.min(limit_bytes)) as usize);
        }
        shard
    }

    /// Counts bytes that came from clients and went to them.
    pub fn transferred(&self, received_bytes: usize, sent_bytes: usize) {
        self.shard.borrow_mut().transferred(received_bytes, sent_bytes);
    }

    /// Ends the connections of this core that hold more than their share, as memory is short.
    ///
    /// What clients send and do not finish, and what they ask for and do not read, is bounded by connection, but not
    /// in sum. Somebody has to go then, or the cell ends for want of memory, and that is whoever takes the most.
    fn relieve(&self) {
        let share = self.share();
        let greedy = |client: &&Rc<Client>| client.held_bytes() > share;
        let greedy: Vec<_> = self.clients.borrow().values().filter(greedy).cloned().collect();
        greedy.iter().for_each(|client| client.abort());
    }

    /// What a connection may hold while memory is short, in bytes: its part of a sixteenth of the cell's memory.
    fn share(&self) -> usize {
        let connections = self.clients.borrow().len().max(1) * isola::core_count();
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
                spawn(|| STORE.relieve());
            }
        });
        let memory_bytes = Cell::new(promised_bytes());
        Self { shard, clients: RefCell::default(), next_client: Cell::new(0), memory_bytes, _pressure }
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

/// Who serves a connection of this core; nobody where there are too many.
pub fn serve(connection: &TcpConnection) -> Served {
    let mut clients = STORE.clients.borrow_mut();
    if clients.len() >= server().max_connections as usize {
        STORE.shard.borrow_mut().connection_rejected();
        connection.close();
        return Served::nobody();
    }
    let number = STORE.next_client.replace(STORE.next_client.get() + 1);
    let client = Rc::new(Client::new(number, connection.clone(), Session::new(server().clone())));
    clients.insert(number, client.clone());
    STORE.shard.borrow_mut().connection_opened();
    Served::by(client)
}

/// Forgets a client whose connection is over.
pub fn forget(number: u64) {
    let client = STORE.clients.borrow_mut().remove(&number);
    if client.is_some() {
        STORE.shard.borrow_mut().connection_closed();
    }
}

/// Has work for the shards of other cores carried out there, a message a shard; each response comes back to the client.
pub fn send_work(client: u64, first: Work, more: impl FnMut() -> Option<Work>) {
    let mut batches: Vec<(ShardId, Vec<Work>)> = Vec::new();
    for work in core::iter::once(first).chain(core::iter::from_fn(more)) {
        match batches.iter_mut().find(|(shard, _)| *shard == work.shard) {
            Some((_, batch)) => batch.push(work),
            None => batches.push((work.shard, vec![work])),
        }
    }
    let home = current_core();
    for (shard, batch) in batches {
        spawn_on(CoreIndex(u32::from(shard.0)), move || execute_for(home, client, batch));
    }
}

/// Carries out a batch for a client of core `home`, and sends the responses there.
fn execute_for(home: CoreIndex, client: u64, batch: Vec<Work>) {
    let now = unix_time();
    let responses: Vec<_> = {
        let mut shard = STORE.shard();
        batch.into_iter().map(|work| (work.ticket, shard.execute(now, work.request))).collect()
    };
    spawn_on(home, move || {
        let client = STORE.clients.borrow().get(&client).cloned();
        // One that has gone meanwhile wants no responses.
        if let Some(client) = client {
            client.complete(responses);
        }
    });
}
