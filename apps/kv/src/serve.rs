//! What a core knows of the connections that it serves, and what is done for all of them.
//!
//! Items belong to no core ([`crate::shards`]), and a connection to the core that serves it now. So a core that comes has
//! nothing to fetch, and one that goes leaves nothing behind.

use crate::client::Client;
use crate::server::Server;
use crate::session::Session;
use crate::tally::Tally;
use crate::time::UnixTime;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use isola_abi::report::MemoryPressure;
use isola_ebbs::{CellEbb, Ebb, Representative, current_core, platform};
use isola_events::pressure::PressureHandler;
use isola_events::{now, on_memory_pressure, sleep, spawn, spawn_task, yield_now};
use isola_net::TcpConnection;
use spin::Once;

static SHARED: CellEbb<Shared> = CellEbb::new();
pub(crate) static SERVING: Ebb<Serving> = Ebb::new();

/// What any connection may hold, in bytes.
const SMALLEST_SHARE: usize = 4 << 10;

/// How often dead items are looked for, and among how many of a shard.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(1);
const RECLAIM_MOST: usize = 512;
const RECLAIM_LEAST: usize = 8;

/// What all cores know from the start.
#[derive(Default)]
struct Shared {
    service: Once<Service>,
    /// Whether dead items are looked for.
    reclaims: AtomicBool,
}

/// The server, and what it stands on.
struct Service {
    server: Arc<Server>,
    /// Memory that the cell can use in all now, in bytes.
    memory_total: fn() -> usize,
    /// Memory that it had, or was to get, when the server was made, in bytes.
    promised_bytes: usize,
}

impl Representative for Shared {
    fn create() -> Self {
        Self::default()
    }
}

/// Says what the server is, before the first connection. `memory_total` says how much memory the cell can use in all, in
/// bytes; items take as large a part of it as they were to take at first, as the machine may have less than was promised.
pub fn prepare(server: Server, memory_total: fn() -> usize) -> Arc<Server> {
    let (server, promised_bytes) = (Arc::new(server), memory_total());
    SHARED.service.call_once(|| Service { server: server.clone(), memory_total, promised_bytes });
    server
}

fn service() -> &'static Service {
    SHARED.service.get().expect("main prepares the server before it listens")
}

/// The time of day.
pub fn unix_time() -> UnixTime {
    let seconds = platform().clock().unix_ns(now()) / 1_000_000_000;
    UnixTime(seconds.try_into().unwrap_or(u32::MAX))
}

/// Who serves a connection of this core; nobody where there are too many.
pub fn serve(connection: &TcpConnection) -> Client {
    let server = &service().server;
    let session = Session::new(server.clone());
    if SERVING.clients.borrow().len() >= server.max_connections as usize {
        SERVING.tally().rejected();
        connection.close();
        return Client::nobody(session);
    }
    SERVING.tally().accepted();
    let held = Arc::<Held>::default();
    Client::new(SERVING.take_in(connection, &held), held, session)
}

/// Memory that a client holds, about, in bytes, as its handler says.
#[derive(Debug, Default)]
pub(crate) struct Held(AtomicUsize);

impl Held {
    pub fn set(&self, bytes: usize) {
        if self.0.load(Ordering::Relaxed) != bytes {
            self.0.store(bytes, Ordering::Relaxed);
        }
    }
}

/// What a core knows of a client.
struct Known {
    connection: TcpConnection,
    held: Arc<Held>,
}

impl Known {
    /// Memory that is the client's alone, about, in bytes. Frames that were not read take up more than they carry.
    fn held_bytes(&self) -> usize {
        let stream = self.connection.statistics().map_or(0, |stream| stream.unacked + 2 * stream.unread);
        self.held.0.load(Ordering::Relaxed) + stream
    }
}

/// The clients of a core.
pub(crate) struct Serving {
    service: &'static Service,
    /// What this core counts.
    tally: &'static Tally,
    clients: RefCell<BTreeMap<u64, Known>>,
    next_client: Cell<u64>,
    /// The cell's memory that the shards' limits are right for, as far as this core knows.
    memory_bytes: Cell<usize>,
    /// When a client was last served.
    served_at: Cell<UnixTime>,
    _pressure: PressureHandler,
}

impl Representative for Serving {
    fn create() -> Self {
        let _pressure = on_memory_pressure(|pressure| {
            if pressure > MemoryPressure::None {
                spawn(|| SERVING.relieve());
            }
        });
        let service = service();
        Self {
            service,
            tally: service.server.tallies.of(current_core().0 as usize),
            clients: RefCell::default(),
            next_client: Cell::new(0),
            memory_bytes: Cell::new(service.promised_bytes),
            served_at: Cell::new(UnixTime(0)),
            _pressure,
        }
    }
}

impl Serving {
    /// What this core counts.
    pub fn tally(&self) -> &'static Tally {
        self.tally
    }

    /// Does what is due while clients are served, and returns the time of day.
    #[inline]
    pub fn begin(&self) -> UnixTime {
        let now = unix_time();
        if self.served_at.replace(now) != now {
            self.look_around();
        }
        now
    }

    /// Does what is due once in a second in which clients are served.
    #[cold]
    fn look_around(&self) {
        if !SHARED.reclaims.load(Ordering::Relaxed) && !SHARED.reclaims.swap(true, Ordering::AcqRel) {
            spawn_task(reclaim()).detach();
        }
        let memory_bytes = (self.service.memory_total)();
        if self.memory_bytes.get() != memory_bytes {
            self.fit(memory_bytes);
        }
    }

    /// Has items take the same part of the cell's memory as they were to take of what was promised.
    fn fit(&self, memory_bytes: usize) {
        let Service { server, promised_bytes, .. } = self.service;
        let limit_bytes = server.config.shard_limit_bytes();
        let part = limit_bytes as u128 * memory_bytes as u128 / (*promised_bytes).max(1) as u128;
        for id in server.shards.ids() {
            // Where one is taken, the next second's first client tries again.
            let Some(mut shard) = server.shards.lock(id) else { return };
            shard.set_limit_bytes(limit_bytes.min(part as usize));
        }
        self.memory_bytes.set(memory_bytes);
    }

    /// Serves a client here from now on; returns its number.
    pub fn take_in(&self, connection: &TcpConnection, held: &Arc<Held>) -> u64 {
        let number = self.next_client.replace(self.next_client.get() + 1);
        let known = Known { connection: connection.clone(), held: held.clone() };
        self.clients.borrow_mut().insert(number, known);
        number
    }

    /// Serves a client no longer; `None` where it was not served.
    pub fn let_go(&self, number: u64) -> Option<()> {
        let known = self.clients.borrow_mut().remove(&number);
        known.map(|_| ())
    }

    /// Forgets a client whose connection is over.
    pub fn forget(&self, number: u64) {
        if self.let_go(number).is_some() {
            self.tally().ended();
        }
    }

    /// Ends the connections of this core that hold more than their share, as memory is short.
    ///
    /// What clients send and do not finish, and what they ask for and do not read, is bounded by connection, but not
    /// in sum. Somebody has to go then, or the cell ends for want of memory, and that is whoever takes the most.
    fn relieve(&self) {
        let share = share();
        let greedy: Vec<_> = {
            let clients = self.clients.borrow();
            let greedy = clients.iter().filter(|(_, known)| known.held_bytes() > share);
            greedy.map(|(number, known)| (*number, known.connection.clone())).collect()
        };
        for (number, connection) in greedy {
            connection.abort();
            self.forget(number);
        }
    }
}

/// What a connection may hold while memory is short, in bytes: its part of a sixteenth of the cell's memory.
fn share() -> usize {
    let Service { server, memory_total, .. } = service();
    let connections = server.tallies.connections().max(1) as usize;
    (memory_total() / 16 / connections).max(SMALLEST_SHARE)
}

/// Takes dead items out, a few at a time, while clients ask or there are any to find: a service that nobody uses sleeps.
/// While clients ask and nothing is found it looks at ever fewer of each shard, down to [`RECLAIM_LEAST`]: to look at all
/// that lives would cost a service with little to do more than its requests.
async fn reclaim() {
    let server = &service().server;
    let mut of_each_shard = RECLAIM_MOST;
    loop {
        let asked = server.tallies.received_bytes();
        sleep(RECLAIM_INTERVAL).await;
        let is_used = server.tallies.received_bytes() != asked;
        if !is_used {
            of_each_shard = RECLAIM_MOST;
        }
        let (mut found, mut looked_at) = (0, 0);
        for id in server.shards.ids() {
            if let Some(mut shard) = server.shards.lock(id) {
                found += shard.reclaim(unix_time(), of_each_shard);
            }
            looked_at += of_each_shard;
            if looked_at >= RECLAIM_MOST {
                looked_at = 0;
                yield_now().await;
            }
        }
        match found {
            // Nor has anybody asked while it looked.
            0 if server.tallies.received_bytes() == asked => {
                SHARED.reclaims.store(false, Ordering::SeqCst);
                // Who has asked since may have seen that somebody looks.
                if server.tallies.received_bytes() == asked || SHARED.reclaims.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
            0 => of_each_shard = (of_each_shard / 4).max(RECLAIM_LEAST),
            _ => of_each_shard = RECLAIM_MOST,
        }
    }
}
