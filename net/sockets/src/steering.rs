//! Assignment of flows to cores, and their migration under load (docs/decisions/0028-flow-steering.md).
//!
//! Flows fall into 128 buckets ([`isola_net_stack::Steering`]), each of which one core owns. A bucket moves from one
//! core to another in three steps, each in a separate event:
//!
//! ```text
//!   the new owner       queues frames for the bucket, and reports how many connections it has room for
//!   the old owner       asks the handlers, extracts the flows, sends them, changes the table
//!   the new owner       inserts the flows, then processes the queued frames
//! ```
//!
//! The old owner forwards frames that were in transit to it when the table changed: each batch carries the version of
//! the table by which it was steered, so that this check is rare. No data is lost and no connection is reset, except
//! handshakes for which the new owner's table has no room.
//!
//! **Which connections move.** The application's state has to move too: a handler that [can
//! move](crate::ConnectionHandler::moving), and to whose connection no other handle exists on its core. Streams cannot,
//! as their tasks stay on their core. Such a connection is *left behind*: its frames are forwarded to its core until it
//! ends. State without an application always moves: half-open handshakes, and connections that are not accepted yet or
//! that close by themselves.

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
    Buckets, ConnId, Counter, FailReason, Flow, MovedBuckets, datagram_port, fast_path_flow_of, flow_of,
};
use isola_platform::CoreIndex;
use isola_platform::network::ReceivedFrame;

static MOVES: CellEbb<BucketMoves> = CellEbb::new();

/// The most frames that are queued for flows that are moving to a core. Further ones are dropped, and TCP retransmits
/// their data.
const MAX_QUEUED: usize = 1024;

/// The state of bucket moves.
struct BucketMoves {
    in_progress: AtomicBool,
    /// Whether a task rebalances flows after changes of the cell's cores.
    is_following: AtomicBool,
}

impl Representative for BucketMoves {
    fn create() -> Self {
        Self { in_progress: AtomicBool::new(false), is_following: AtomicBool::new(false) }
    }
}

/// The result of a rebalancing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebalanceOutcome {
    /// The number of buckets that have a new owner.
    pub buckets: usize,
    /// The number of connections of these buckets that were left behind, because their applications stay.
    pub staying: usize,
}

/// The reason for which flows cannot be rebalanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebalanceError {
    /// The network was not started.
    NoNetwork,
    /// None of the cores belongs to the cell.
    NoSuchCores,
    /// Another rebalancing is in progress.
    InProgress,
}

impl fmt::Display for RebalanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoNetwork => "the network was not started: start it first",
            Self::NoSuchCores => "none of the cores is the cell's: name one that is",
            Self::InProgress => "flows are being moved already: wait until that is done",
        })
    }
}

impl core::error::Error for RebalanceError {}

/// Distributes the flows evenly over `cores` with the fewest moves: other cores lose all flows, a new core gets its
/// share. Unused cores among `cores` are woken. The rebalancing completes even if the caller drops the future.
///
/// A core without flows accepts and opens no connections; datagrams still go to the core that bound their port, and the
/// first core still represents the interface.
///
/// # Errors
/// [`RebalanceError`].
pub async fn rebalance(cores: &[CoreIndex]) -> Result<RebalanceOutcome, RebalanceError> {
    let steering = interface::steering().ok_or(RebalanceError::NoNetwork)?;
    let cores = cores.iter().filter_map(|core| u16::try_from(core.0).ok());
    let cores: Vec<u16> = cores.filter(|core| *core < steering.cores()).collect();
    if cores.is_empty() {
        return Err(RebalanceError::NoSuchCores);
    }
    if MOVES.in_progress.swap(true, Ordering::AcqRel) {
        return Err(RebalanceError::InProgress);
    }
    // In a separate task: an interrupted move would lose extracted flows.
    let done = spawn_task(async move {
        device::assign_queues(cores.iter().map(|core| CoreIndex((*core).into()))).await;
        let mut transfers: BTreeMap<(u16, u16), Buckets> = BTreeMap::new();
        for step in steering.plan(&cores) {
            let transferred = transfers.entry((step.from, step.to)).or_default();
            *transferred = transferred.and(Buckets::from_iter([step.bucket]));
        }
        let mut result = RebalanceOutcome::default();
        for ((from, to), buckets) in transfers {
            result.buckets += buckets.iter().count();
            result.staying += move_buckets(buckets, CoreIndex(from.into()), CoreIndex(to.into())).await;
        }
        device::spread();
        MOVES.in_progress.store(false, Ordering::Release);
        result
    });
    Ok(done.await)
}

/// Rebalances the flows over the cell's present cores after a change, one change after the other. Runs on the first
/// core.
pub(crate) fn rebalance_over_present_cores() {
    if MOVES.is_following.swap(true, Ordering::AcqRel) {
        return;
    }
    spawn_task(async {
        loop {
            let cores = present_cores();
            let outcome = rebalance(&cores.collect::<Vec<_>>()).await;
            match outcome {
                // An application is rebalancing: check again when that is done.
                Err(RebalanceError::InProgress) => sleep(Duration::from_millis(1)).await,
                _ if present_cores() == cores => break,
                _ => {}
            }
        }
        MOVES.is_following.store(false, Ordering::Release);
    })
    .detach();
}

/// Returns the number of buckets that each core owns; empty before the network was started.
pub fn buckets_per_core() -> Vec<usize> {
    let Some(steering) = interface::steering() else { return Vec::new() };
    let owners = steering.owners();
    (0..steering.cores()).map(|core| owners.iter().filter(|owner| **owner == core).count()).collect()
}

/// Moves buckets from one core to another; returns the number of connections that stay.
async fn move_buckets(buckets: Buckets, from: CoreIndex, to: CoreIndex) -> usize {
    let room = elsewhere(to, move || async move { NETWORK.expect(buckets) }).await;
    let staying = elsewhere(from, move || async move { NETWORK.send_flows(buckets, to, room) }).await;
    elsewhere(to, move || async move {
        while NETWORK.arriving.is_expected(buckets) {
            yield_now().await;
        }
    })
    .await;
    staying
}

/// The flows that are moving to a core.
#[derive(Default)]
pub(crate) struct ArrivingFlows {
    expected: Cell<Buckets>,
    /// Frames that arrived before their connections.
    queued: RefCell<Vec<ReceivedFrame>>,
    /// The cycle counter when the first of them arrived.
    queued_since: Cell<u64>,
}

impl ArrivingFlows {
    /// Returns whether no flow is moving here, so that frames need no check.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.expected.get().is_empty()
    }

    fn is_expected(&self, buckets: Buckets) -> bool {
        self.expected.get().without(buckets) != self.expected.get()
    }
}

/// Flows that move between two cores.
struct MovedFlows {
    buckets: Buckets,
    flows: MovedBuckets,
    /// The application's state, by the ids of the connections on the old core.
    records: Vec<(ConnId, MovedConnection)>,
}

impl CoreNetwork {
    /// Queues frames for these buckets from now on. Returns the number of connections for which there is room.
    fn expect(&self, buckets: Buckets) -> usize {
        self.arriving.expected.set(self.arriving.expected.get().and(buckets));
        let room = self.with(|stack| {
            stack.expect(buckets);
            stack.room()
        });
        room.unwrap_or(0)
    }

    /// Ends the expectation of these buckets without flows, and processes the queued frames.
    fn expect_no_longer(&self, buckets: Buckets) {
        self.arriving.expected.set(self.arriving.expected.get().without(buckets));
        let queued = self.arriving.queued.take();
        self.with(|stack| stack.expect_no_longer(buckets));
        self.latency.begin(self.arriving.queued_since.get());
        self.process_all(queued);
        self.deliver_and_send();
        self.latency.end();
    }

    /// Sends the flows of these buckets to a core, with at most `room` connections of applications. Returns the number
    /// of these that stay.
    fn send_flows(&self, buckets: Buckets, to: CoreIndex, room: usize) -> usize {
        let Some(steering) = interface::steering() else { return 0 };
        let (mut records, mut staying) = (Vec::new(), Vec::new());
        for id in self.inspect(|stack| stack.connections_of(buckets)).unwrap_or_default() {
            let record = if records.len() < room { self.extract_record(id) } else { None };
            match record {
                Some(record) => records.push((id, record)),
                None => staying.push(id),
            }
        }
        let Some(flows) = self.with(|stack| stack.extract(stack_now(), buckets, &staying)) else {
            // A core without a stack has no flows.
            spawn_on(to, move || NETWORK.expect_no_longer(buckets));
            return 0;
        };
        let moved = MovedFlows { buckets, flows, records };
        spawn_on(to, move || NETWORK.insert_flows(moved));
        steering.give(buckets.iter(), to.0 as u16);
        staying.len()
    }

    /// Removes the application's state of a connection from this core, if it can move.
    fn extract_record(&self, id: ConnId) -> Option<MovedConnection> {
        let record = self.connections.borrow().get(id.index())?.clone()?;
        if record.id != id {
            return None;
        }
        // The table has the other reference.
        let moved = record.extract()?;
        self.remove_connection(id);
        Some(moved)
    }

    /// Continues flows that another core had.
    fn insert_flows(&self, moved: MovedFlows) {
        let MovedFlows { buckets, flows, records: moved } = moved;
        // One by one: to collect them would sort them, by code of 5 KB.
        let mut records: BTreeMap<ConnId, MovedConnection> = BTreeMap::new();
        records.extend(moved);
        let now = stack_now();
        let ids = self.stack.borrow_mut().as_mut().map(|stack| stack.insert(now, flows)).unwrap_or_default();
        let here = ids.into_iter().filter_map(|(before, id)| {
            let moved = records.remove(&before)?;
            Some(self.put_connection(Connection::from_moved(id, moved)))
        });
        here.for_each(|connection| connection.arrived());
        self.arriving.expected.set(self.arriving.expected.get().without(buckets));
        // Frames for other buckets that are still moving are queued again.
        let queued = self.arriving.queued.take();
        self.latency.begin(self.arriving.queued_since.get());
        self.process_all(queued);
        // Connections for which there was no room.
        records.into_values().for_each(|record| record.end(FailReason::Reset));
        self.deliver_and_send();
        self.latency.end();
    }

    /// Queues a frame whose flow is moving to this core; returns any other frame.
    pub(crate) fn queue_if_moving(&self, received: ReceivedFrame) -> Option<ReceivedFrame> {
        let expected = self.arriving.expected.get();
        let steering = interface::steering()?;
        if !tcp_flow_of(&received.frame).is_some_and(|flow| expected.contains(steering.bucket_of(&flow))) {
            return Some(received);
        }
        let mut queued = self.arriving.queued.borrow_mut();
        if queued.is_empty() {
            self.arriving.queued_since.set(self.latency.arrived_at());
        }
        if queued.len() < MAX_QUEUED {
            queued.push(received);
        } else {
            count_dropped(Counter::DropCoreBusy, 1);
        }
        None
    }
}

/// Returns the TCP flow of a frame, or the flow that an ICMP error quotes.
pub(crate) fn tcp_flow_of(frame: &[u8]) -> Option<Flow> {
    fast_path_flow_of(frame).or_else(|| flow_of(frame).filter(|_| datagram_port(frame).is_none()))
}
