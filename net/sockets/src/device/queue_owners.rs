//! The cores that own the device's queues, and the device's table of flows.

use super::QUEUE;
use crate::interface;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use isola_ebbs::{CellEbb, Representative, current_core, platform};
use isola_events::{elsewhere, spawn_on};
use isola_net_stack::MAX_CORES;
use isola_platform::CoreIndex;
use isola_platform::network::{FlowSpreading, NetworkQueue};
use isola_resources::NETWORK_WRITE;
use spin::Mutex;

static QUEUE_OWNERS: CellEbb<QueueOwners> = CellEbb::new();

/// The cores that own queues. A core `i` that owns none sends through queue `i` modulo their number.
struct QueueOwners {
    /// The owners by queue; the first `count` are valid.
    cores: [AtomicU8; MAX_CORES as usize],
    count: AtomicUsize,
    /// Queues without an owner.
    vacant: Mutex<VecDeque<Box<dyn NetworkQueue + Send>>>,
    /// The interface by which the device distributes received frames over the queues, if it supports one.
    spreading: Mutex<Option<Box<dyn FlowSpreading + Send>>>,
}

impl Representative for QueueOwners {
    fn create() -> Self {
        Self {
            cores: [const { AtomicU8::new(0) }; MAX_CORES as usize],
            count: AtomicUsize::new(0),
            vacant: Mutex::default(),
            spreading: Mutex::default(),
        }
    }
}

impl QueueOwners {
    /// Returns the owners, by queue.
    fn cores(&self) -> impl ExactSizeIterator<Item = CoreIndex> {
        let cores = self.cores.iter().take(self.count.load(Ordering::Acquire));
        cores.map(|core| CoreIndex(core.load(Ordering::Relaxed).into()))
    }

    /// Makes a core the owner of the next queue. Called only while the network starts, or by the one task that moves
    /// flows.
    fn add(&self, core: CoreIndex) {
        let count = self.count.load(Ordering::Relaxed);
        if let Some(owner) = self.cores.get(count) {
            owner.store(core.0 as u8, Ordering::Relaxed);
            self.count.store(count + 1, Ordering::Release);
        }
    }
}

/// Assigns queues to the cores that the cell has, the first to the calling core; the others are for cores that join. A
/// core with a queue stays in use.
pub(crate) fn start(
    queues: Vec<Box<dyn NetworkQueue + Send>>,
    spreading: Option<Box<dyn FlowSpreading + Send>>,
) {
    NETWORK_WRITE.on_change(|| on_queue_cores(|| QUEUE.follow_policy()));
    *QUEUE_OWNERS.vacant.lock() = queues.into();
    *QUEUE_OWNERS.spreading.lock() = spreading;
    let cores = (0..platform().descriptor().cores.len() as u32).map(CoreIndex);
    let assigned: Vec<_> = cores.filter_map(|core| Some((core, assign_queue(core)?))).collect();
    // Before a core sends through any of them.
    spread();
    for (core, mut queue) in assigned {
        let serve = move || {
            queue.attach();
            QUEUE.serve(queue);
        };
        if core == current_core() { serve() } else { spawn_on(core, serve) }
    }
}

/// Assigns a queue to each of these cores without one, as long as there are any. On return these cores serve them.
pub(crate) async fn assign_queues(cores: impl Iterator<Item = CoreIndex>) {
    for core in cores {
        if QUEUE_OWNERS.cores().any(|owner| owner == core) {
            continue;
        }
        let Some(mut queue) = assign_queue(core) else { return };
        let serve = move || async move {
            queue.attach();
            // Before the core sends through it.
            spread();
            QUEUE.serve(queue);
        };
        elsewhere(core, serve).await;
    }
}

/// Removes a queue from the vacant ones and makes the core its owner.
fn assign_queue(core: CoreIndex) -> Option<Box<dyn NetworkQueue + Send>> {
    let queue = QUEUE_OWNERS.vacant.lock().pop_front()?;
    // Before the core serves the queue, so that the core learns of ports bound from now on.
    QUEUE_OWNERS.add(core);
    Some(queue)
}

/// Makes the device deliver frames to the queues of the cores that own their flows or, if such a core has no queue, of
/// cores that forward them. If the device rejects the table, it is not asked again: the cores steer received frames in
/// any case.
pub(crate) fn spread() {
    let owners: Vec<CoreIndex> = QUEUE_OWNERS.cores().collect();
    let Some(steering) = interface::steering().filter(|_| owners.len() > 1) else { return };
    let queue_of = |core: u16| {
        let own = owners.iter().position(|owner| owner.0 == u32::from(core));
        own.unwrap_or(usize::from(core) % owners.len()) as u16
    };
    let mut spreading = QUEUE_OWNERS.spreading.lock();
    let Some(device) = spreading.as_mut() else { return };
    if let Err(refused) = device.spread(steering.key(), &steering.owners().map(queue_of), owners.len() as u16)
    {
        *spreading = None;
        drop(spreading);
        platform().print(format!("{refused}\n").as_bytes());
    }
}

/// Returns the cores that own queues, by queue.
pub(super) fn owners() -> impl ExactSizeIterator<Item = CoreIndex> {
    QUEUE_OWNERS.cores()
}

/// Returns the core through whose queue the calling core sends, if it has no queue of its own.
pub(super) fn sending_core() -> Option<CoreIndex> {
    let owners = QUEUE_OWNERS.count.load(Ordering::Acquire);
    let queue = (current_core().0 as usize).checked_rem(owners)?;
    Some(CoreIndex(QUEUE_OWNERS.cores.get(queue)?.load(Ordering::Relaxed).into()))
}

/// Calls `act` on each core that serves a queue: at once on the calling core, in an event on others.
pub(super) fn on_queue_cores(act: impl Fn() + Clone + Send + 'static) {
    for owner in QUEUE_OWNERS.cores() {
        if owner == current_core() { act() } else { spawn_on(owner, act.clone()) }
    }
}
