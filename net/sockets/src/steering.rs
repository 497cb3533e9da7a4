//! Which core serves which flows, and how that changes while they are used (docs/decisions/0028-flow-steering.md).
//!
//! Flows fall into 128 buckets ([`isola_net_stack::Steering`]); a core owns some of them. A bucket goes from one core to
//! another in three steps, each in an event of its own:
//!
//! ```text
//!   the new owner       holds back what comes for the bucket, and says how many connections it has room for
//!   the old owner       asks the applications, takes the flows out, sends them off, changes the table
//!   the new owner       puts the flows in, then what it has held back
//! ```
//!
//! Frames that were on their way to the old owner when the table changed are passed on by it: each batch carries the version
//! of the table by which it was steered, so that this is looked at only then. Nothing is lost, and nobody is reset: but for
//! handshakes that the new owner's table has no place for.
//!
//! **What goes along.** The application's side has to: a handler that [says so](crate::ConnectionHandler::moving), and that
//! nobody else on its core holds by name. Streams cannot, as their tasks stay on their core. Such a connection is *left behind*: its
//! frames go on to the core that has it, until it ends. What has no application, half-open handshakes, connections that
//! nobody has taken yet or that end by themselves, goes in any case.

use crate::connection::{Connection, MovedConnection};
use crate::core_network::{CoreNetwork, NETWORK, stack_now};
use crate::drops::count_dropped;
use crate::{device, interface};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use isola_ebbs::{CellEbb, Representative};
use isola_events::{elsewhere, present_cores, sleep, spawn_on, spawn_task, yield_now};
use isola_net_stack::{
    Buckets, ConnId, Counter, FailReason, Flow, Moved, datagram_port, fast_path_flow_of, flow_of,
};
use isola_platform::CoreIndex;
use isola_platform::network::ReceivedFrame;

static MOVES: CellEbb<Moves> = CellEbb::new();

/// Frames that are held back at most for flows that are on their way to a core. Further ones are dropped, and TCP sends them
/// again.
const MAX_HELD: usize = 1024;

/// Whether buckets move now.
struct Moves {
    under_way: AtomicBool,
    /// Whether a task sees to it that they follow the cores that are there.
    is_following: AtomicBool,
}

impl Representative for Moves {
    fn create() -> Self {
        Self { under_way: AtomicBool::new(false), is_following: AtomicBool::new(false) }
    }
}

/// What has changed hands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebalanced {
    /// Buckets of flows that have another owner now.
    pub buckets: usize,
    /// Connections of these whose applications stay where they are, and which are therefore left behind.
    pub staying: usize,
}

/// Why flows cannot be spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebalanceError {
    /// The network was not started.
    NoNetwork,
    /// None of the cores is the cell's.
    NoSuchCores,
    /// They are being spread already.
    UnderWay,
}

impl fmt::Display for RebalanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoNetwork => "the network was not started: start it first",
            Self::NoSuchCores => "none of the cores is the cell's: name one that is",
            Self::UnderWay => "flows are being moved already: wait until that is done",
        })
    }
}

impl core::error::Error for RebalanceError {}

/// Spreads the flows evenly over `cores`, with as few of them moving as can be: a core that is not among them gives all it
/// has away, one that has come gets its share. Cores that nobody has needed yet are woken. It is done also where nobody waits
/// for it any more.
///
/// A core without flows listens to no connection and begins none; datagrams still come to the core that bound their port, and
/// the first core goes on speaking for the interface.
///
/// # Errors
/// [`RebalanceError`].
pub async fn rebalance(cores: &[CoreIndex]) -> Result<Rebalanced, RebalanceError> {
    let steering = interface::steering().ok_or(RebalanceError::NoNetwork)?;
    let cores = cores.iter().filter_map(|core| u16::try_from(core.0).ok());
    let cores: Vec<u16> = cores.filter(|core| *core < steering.cores()).collect();
    if cores.is_empty() {
        return Err(RebalanceError::NoSuchCores);
    }
    if MOVES.under_way.swap(true, Ordering::AcqRel) {
        return Err(RebalanceError::UnderWay);
    }
    // By a task of its own: half a move would lose what was taken out.
    let done = spawn_task(async move {
        device::deal_out(cores.iter().map(|core| CoreIndex((*core).into()))).await;
        let mut ways: BTreeMap<(u16, u16), Buckets> = BTreeMap::new();
        for step in steering.plan(&cores) {
            let way = ways.entry((step.from, step.to)).or_default();
            *way = way.and(Buckets::from_iter([step.bucket]));
        }
        let mut result = Rebalanced::default();
        for ((from, to), buckets) in ways {
            result.buckets += buckets.iter().count();
            result.staying += carry(buckets, CoreIndex(from.into()), CoreIndex(to.into())).await;
        }
        device::spread();
        MOVES.under_way.store(false, Ordering::Release);
        result
    });
    Ok(done.await)
}

/// Spreads the flows over the cores that are there, now that others are, one change after the other. On the first core.
pub(crate) fn follow_cores() {
    if MOVES.is_following.swap(true, Ordering::AcqRel) {
        return;
    }
    spawn_task(async {
        loop {
            let cores = present_cores();
            let outcome = rebalance(&cores.collect::<Vec<_>>()).await;
            match outcome {
                // An application is at it: what is there is looked at when it is done.
                Err(RebalanceError::UnderWay) => sleep(Duration::from_millis(1)).await,
                _ if present_cores() == cores => break,
                _ => {}
            }
        }
        MOVES.is_following.store(false, Ordering::Release);
    })
    .detach();
}

/// How many buckets of flows each core owns: none, before the network was started.
pub fn shares() -> Vec<usize> {
    let Some(steering) = interface::steering() else { return Vec::new() };
    let owners = steering.owners();
    (0..steering.cores()).map(|core| owners.iter().filter(|owner| **owner == core).count()).collect()
}

/// Moves buckets from one core to another; returns how many connections stay behind.
async fn carry(buckets: Buckets, from: CoreIndex, to: CoreIndex) -> usize {
    let room = elsewhere(to, move || async move { NETWORK.expect(buckets) }).await;
    let staying = elsewhere(from, move || async move { NETWORK.hand_over(buckets, to, room) }).await;
    elsewhere(to, move || async move {
        while NETWORK.arriving.is_expected(buckets) {
            yield_now().await;
        }
    })
    .await;
    staying
}

/// What is on its way to a core.
#[derive(Default)]
pub(crate) struct Arriving {
    expected: Cell<Buckets>,
    /// What came before the connections that it is for.
    held: RefCell<Vec<ReceivedFrame>>,
    /// When the first of it came, in cycles.
    held_since: Cell<u64>,
}

impl Arriving {
    /// Whether nothing is: then nothing has to be looked at.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.expected.get().is_empty()
    }

    fn is_expected(&self, buckets: Buckets) -> bool {
        self.expected.get().without(buckets) != self.expected.get()
    }
}

/// Flows between two cores.
struct MovedFlows {
    buckets: Buckets,
    flows: Moved,
    /// The applications' side, by the names that the connections had.
    records: Vec<(ConnId, MovedConnection)>,
}

impl CoreNetwork {
    /// Holds back what comes for these buckets from now on. Returns how many connections there is room for.
    fn expect(&self, buckets: Buckets) -> usize {
        self.arriving.expected.set(self.arriving.expected.get().and(buckets));
        let room = self.with(|stack| {
            stack.expect(buckets);
            stack.room()
        });
        room.unwrap_or(0)
    }

    /// Nothing comes for these buckets after all.
    fn expect_no_longer(&self, buckets: Buckets) {
        self.arriving.expected.set(self.arriving.expected.get().without(buckets));
        let held = self.arriving.held.take();
        self.with(|stack| stack.expect_no_longer(buckets));
        self.latency.begin(self.arriving.held_since.get());
        self.absorb_all(held);
        self.answer();
        self.latency.end();
    }

    /// Sends the flows of these buckets to a core, at most `room` connections that an application knows of. Returns how many
    /// of those stay.
    fn hand_over(&self, buckets: Buckets, to: CoreIndex, room: usize) -> usize {
        let Some(steering) = interface::steering() else { return 0 };
        let (mut records, mut staying) = (Vec::new(), Vec::new());
        for id in self.look(|stack| stack.connections_of(buckets)).unwrap_or_default() {
            let record = if records.len() < room { self.take_along(id) } else { None };
            match record {
                Some(record) => records.push((id, record)),
                None => staying.push(id),
            }
        }
        let Some(flows) = self.with(|stack| stack.extract(stack_now(), buckets, &staying)) else {
            // A core without a stack has nothing to give.
            spawn_on(to, move || NETWORK.expect_no_longer(buckets));
            return 0;
        };
        let moved = MovedFlows { buckets, flows, records };
        spawn_on(to, move || NETWORK.take_over(moved));
        steering.give(buckets.iter(), to.0 as u16);
        staying.len()
    }

    /// The application's side of a connection, taken off this core, where it can go.
    fn take_along(&self, id: ConnId) -> Option<MovedConnection> {
        let record = self.connections.borrow().get(id.index())?.clone()?;
        if record.id != id {
            return None;
        }
        // The table has the other one.
        let moved = record.take_along()?;
        self.remove_connection(id);
        Some(moved)
    }

    /// Goes on with flows that another core had.
    fn take_over(&self, moved: MovedFlows) {
        let MovedFlows { buckets, flows, records } = moved;
        let mut records: BTreeMap<ConnId, MovedConnection> = records.into_iter().collect();
        let now = stack_now();
        let names =
            self.stack.borrow_mut().as_mut().map(|stack| stack.insert(now, flows)).unwrap_or_default();
        let here = names.into_iter().filter_map(|(before, name)| {
            let moved = records.remove(&before)?;
            Some(self.put_connection(Connection::moved_here(name, moved)))
        });
        here.for_each(|connection| connection.arrived());
        self.arriving.expected.set(self.arriving.expected.get().without(buckets));
        // Those that come for other buckets that are on their way are held back again.
        let held = self.arriving.held.take();
        self.latency.begin(self.arriving.held_since.get());
        self.absorb_all(held);
        // For whose connections there was no place.
        records.into_values().for_each(|record| record.end(FailReason::Reset));
        self.answer();
        self.latency.end();
    }

    /// Holds a frame back, where its flow is on its way to this core; gives it back where it is not.
    pub(crate) fn hold_back(&self, received: ReceivedFrame) -> Option<ReceivedFrame> {
        let expected = self.arriving.expected.get();
        let steering = interface::steering()?;
        if !tcp_flow_of(&received.frame).is_some_and(|flow| expected.contains(steering.bucket_of(&flow))) {
            return Some(received);
        }
        let mut held = self.arriving.held.borrow_mut();
        if held.is_empty() {
            self.arriving.held_since.set(self.latency.came_at());
        }
        if held.len() < MAX_HELD {
            held.push(received);
        } else {
            count_dropped(Counter::DropCoreBusy, 1);
        }
        None
    }
}

/// The flow of TCP that a frame belongs to, or is about.
pub(crate) fn tcp_flow_of(frame: &[u8]) -> Option<Flow> {
    fast_path_flow_of(frame).or_else(|| flow_of(frame).filter(|_| datagram_port(frame).is_none()))
}
