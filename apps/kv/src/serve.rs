//! The clients of each core, and the work that is done for all of them.
//!
//! Items belong to no core ([`crate::shards`]), and a connection belongs to the core that currently serves it. A core
//! that is added therefore has no state to fetch, and a core that is removed leaves none behind.

use crate::client::Client;
use crate::holder::{ITEM_HOLDER, free_beyond_hard_budgets};
use crate::owner::{ItemOwner, move_charges};
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
use isola_events::activity::counted_by;
use isola_events::pressure::PressureHandler;
use isola_events::reclaim::is_memory_demanded;
use isola_events::{current_activity, now, on_memory_pressure, sleep, spawn, spawn_task, yield_now};
use isola_net::TcpConnection;
use isola_resources::MEMORY;
use spin::Once;

static SHARED: CellEbb<Shared> = CellEbb::new();
pub(crate) static CLIENTS: Ebb<CoreClients> = Ebb::new();

/// The memory that every connection may hold even while memory is short, in bytes.
const SMALLEST_SHARE: usize = 4 << 10;

/// The interval between searches for dead items, and the bounds of the number of items examined per shard.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(1);
const RECLAIM_MOST: usize = 512;
const RECLAIM_LEAST: usize = 8;

/// The state that all cores share from the start.
#[derive(Default)]
struct Shared {
    service: Once<Service>,
    /// Whether the task [`reclaim`] runs.
    reclaims: AtomicBool,
    /// Whether limits of shards were lowered to free memory.
    are_limits_lowered: AtomicBool,
}

/// The server and its memory.
pub(crate) struct Service {
    pub server: Arc<Server>,
    /// The function that returns the memory that the cell can currently use in all, in bytes.
    memory_total: fn() -> usize,
    /// The memory that the cell had, or was to get, when the server was created, in bytes.
    promised_bytes: usize,
}

impl Representative for Shared {
    fn create() -> Self {
        Self::default()
    }
}

/// Sets the server that the cores use. To be called before the first connection.
///
/// `memory_total` returns the memory that the cell can use in all, in bytes. It changes while the server runs, and the
/// limit of the items with it ([`ItemLimit`](crate::ItemLimit)). Registers the items as memory that the cell could do
/// without.
pub fn prepare(server: Server, memory_total: fn() -> usize) -> Arc<Server> {
    let server = Arc::new(Server { activity: counted_by(current_activity()), ..server });
    let promised_bytes = memory_total();
    SHARED.service.call_once(|| Service { server: server.clone(), memory_total, promised_bytes });
    ITEM_HOLDER.register();
    server
}

/// Records that limits of shards are lowered to free memory: when that is over, they follow the cell's memory again.
pub(crate) fn lower_limits() {
    SHARED.are_limits_lowered.store(true, Ordering::Relaxed);
}

pub(crate) fn service() -> &'static Service {
    SHARED.service.get().expect("main prepares the server before it listens")
}

/// Returns the time of day.
pub fn unix_time() -> UnixTime {
    let seconds = platform().clock().unix_ns(now()) / 1_000_000_000;
    UnixTime(seconds.try_into().unwrap_or(u32::MAX))
}

/// Returns the handler of a new connection. Closes the connection if the core has the maximum number of clients.
pub fn serve(connection: &TcpConnection) -> Client {
    let server = &service().server;
    let session = Session::for_owner(server.clone(), ItemOwner::current(server.activity));
    if CLIENTS.clients.borrow().len() >= server.max_connections as usize {
        CLIENTS.tally().rejected();
        connection.close();
        return Client::rejected(session);
    }
    CLIENTS.tally().accepted();
    let held = Arc::<HeldBytes>::default();
    Client::new(CLIENTS.add(connection, &held), held, session)
}

/// The approximate memory that a client holds, in bytes. Its handler updates it.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes(AtomicUsize);

impl HeldBytes {
    pub fn set(&self, bytes: usize) {
        if self.0.load(Ordering::Relaxed) != bytes {
            self.0.store(bytes, Ordering::Relaxed);
        }
    }
}

/// The entry of a client in the table of its core.
struct ClientEntry {
    connection: TcpConnection,
    held: Arc<HeldBytes>,
}

impl ClientEntry {
    /// Returns the approximate memory that only this client uses, in bytes. Unread frames take up more memory than
    /// their payload.
    fn held_bytes(&self) -> usize {
        let stream = self.connection.statistics().map_or(0, |stream| stream.unacked + 2 * stream.unread);
        self.held.0.load(Ordering::Relaxed) + stream
    }
}

/// The clients of a core.
pub(crate) struct CoreClients {
    service: &'static Service,
    /// The counts of this core.
    tally: &'static Tally,
    clients: RefCell<BTreeMap<u64, ClientEntry>>,
    next_client: Cell<u64>,
    /// The memory of the cell at the last adjustment of the shards' limits by this core.
    memory_bytes: Cell<usize>,
    /// The time at which a client was last served.
    served_at: Cell<UnixTime>,
    _pressure: PressureHandler,
}

impl Representative for CoreClients {
    fn create() -> Self {
        let _pressure = on_memory_pressure(|pressure| {
            if pressure > MemoryPressure::None {
                spawn(|| CLIENTS.abort_greedy());
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

impl CoreClients {
    /// Returns the counts of this core.
    pub fn tally(&self) -> &'static Tally {
        self.tally
    }

    /// Does the work that is due while clients are served, and returns the time of day.
    #[inline]
    pub fn begin(&self) -> UnixTime {
        let now = unix_time();
        if self.served_at.replace(now) != now {
            self.do_periodic_work();
        }
        now
    }

    /// Does the work that is due once per second in which clients are served.
    #[cold]
    fn do_periodic_work(&self) {
        if !SHARED.reclaims.load(Ordering::Relaxed) && !SHARED.reclaims.swap(true, Ordering::AcqRel) {
            spawn_task(reclaim()).detach();
        }
        let memory_bytes = (self.service.memory_total)();
        let are_restored = SHARED.are_limits_lowered.load(Ordering::Relaxed)
            && !is_memory_demanded()
            && SHARED.are_limits_lowered.swap(false, Ordering::Relaxed);
        if are_restored || self.memory_bytes.get() != memory_bytes {
            self.fit(memory_bytes);
        }
        // Without settings there are no budgets.
        if MEMORY.version() > 0 {
            self.follow_budgets();
        }
    }

    /// Adjusts the limits of the shards to `memory_bytes`.
    fn fit(&self, memory_bytes: usize) {
        let Service { server, promised_bytes, .. } = self.service;
        let limit_bytes =
            server.item_limit.bytes(server.config.memory_limit_bytes(), memory_bytes, *promised_bytes);
        let of_each = limit_bytes / usize::from(server.config.shard_count());
        for id in server.shards.ids() {
            // If a shard is locked, the first client of the next second tries again.
            let Some(mut shard) = server.shards.lock(id) else { return };
            shard.set_limit_bytes(of_each);
        }
        self.memory_bytes.set(memory_bytes);
    }

    /// Lets each owner of items keep its soft budget of memory, divided among the shards, and evicts items beyond its hard
    /// one. The memory scheduler looks at the memory that the heap counts, which is less if the memory of received frames
    /// was allocated for another activity.
    fn follow_budgets(&self) {
        let server = &self.service.server;
        let shards = usize::from(server.config.shard_count());
        let kept = |owner: ItemOwner| {
            let activity = owner.activity(server.activity);
            let soft = activity.and_then(|activity| MEMORY.entitlement(activity).memory.soft);
            usize::try_from(soft.unwrap_or(0)).unwrap_or(usize::MAX) / shards
        };
        for id in server.shards.ids() {
            if let Some(mut shard) = server.shards.lock(id) {
                shard.set_kept_bytes(kept);
            }
        }
        free_beyond_hard_budgets();
    }

    /// Adds a client to this core, and returns its number.
    pub fn add(&self, connection: &TcpConnection, held: &Arc<HeldBytes>) -> u64 {
        let number = self.next_client.replace(self.next_client.get() + 1);
        let entry = ClientEntry { connection: connection.clone(), held: held.clone() };
        self.clients.borrow_mut().insert(number, entry);
        number
    }

    /// Removes a client from this core. Returns `None` if it was not there.
    pub fn remove(&self, number: u64) -> Option<()> {
        let entry = self.clients.borrow_mut().remove(&number);
        entry.map(|_| ())
    }

    /// Removes a client whose connection is over.
    pub fn end(&self, number: u64) {
        if self.remove(number).is_some() {
            self.tally().ended();
        }
    }

    /// Aborts the connections of this core that hold more than their share, because memory is short.
    ///
    /// The memory of unfinished requests and unread answers is bounded per connection, but not in sum. Without this the
    /// cell would end for lack of memory, so the connections that hold the most are aborted.
    fn abort_greedy(&self) {
        let share = share();
        let greedy: Vec<_> = {
            let clients = self.clients.borrow();
            let greedy = clients.iter().filter(|(_, entry)| entry.held_bytes() > share);
            greedy.map(|(number, entry)| (*number, entry.connection.clone())).collect()
        };
        for (number, connection) in greedy {
            connection.abort();
            self.end(number);
        }
    }
}

/// Returns the memory that a connection may hold while memory is short, in bytes: its share of a sixteenth of the
/// cell's memory, at least [`SMALLEST_SHARE`].
fn share() -> usize {
    let Service { server, memory_total, .. } = service();
    let connections = server.tallies.connections().max(1) as usize;
    (memory_total() / 16 / connections).max(SMALLEST_SHARE)
}

/// Removes dead items, a few at a time, while clients send requests or dead items are found. An unused server therefore
/// sleeps.
///
/// While clients send requests and no dead item is found, the task examines fewer and fewer items of each shard, down
/// to [`RECLAIM_LEAST`]: examining all live items would cost a server with few requests more than the requests do.
async fn reclaim() {
    let server = &service().server;
    let mut of_each_shard = RECLAIM_MOST;
    loop {
        let received_before = server.tallies.received_bytes();
        sleep(RECLAIM_INTERVAL).await;
        let is_used = server.tallies.received_bytes() != received_before;
        if !is_used {
            of_each_shard = RECLAIM_MOST;
        }
        let (mut found, mut looked_at) = (0, 0);
        for id in server.shards.ids() {
            if let Some(mut shard) = server.shards.lock(id) {
                found += shard.reclaim(unix_time(), of_each_shard);
                let freed = shard.take_freed();
                drop(shard);
                move_charges(&freed, server.activity);
            }
            looked_at += of_each_shard;
            if looked_at >= RECLAIM_MOST {
                looked_at = 0;
                yield_now().await;
            }
        }
        match found {
            // Nor has a request arrived during the search.
            0 if server.tallies.received_bytes() == received_before => {
                SHARED.reclaims.store(false, Ordering::SeqCst);
                // The sender of a request that has arrived since may have seen that the task runs.
                if server.tallies.received_bytes() == received_before
                    || SHARED.reclaims.swap(true, Ordering::AcqRel)
                {
                    return;
                }
            }
            0 => of_each_shard = (of_each_shard / 4).max(RECLAIM_LEAST),
            _ => of_each_shard = RECLAIM_MOST,
        }
    }
}
