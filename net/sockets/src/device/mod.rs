//! The device's queues: distributes received frames to the cores of their flows, and passes frames to the device.
//!
//! One core serves a queue. Its interrupt masks itself and queues an event; the event processes frames in batches and
//! queues itself again while there are more; when there are none, it unmasks the interrupt. So a busy queue is polled
//! between the core's other events, and an idle one costs nothing. At a high interrupt rate the interrupt stays masked,
//! and the event queues itself again whether it finds frames or not ([`isola_events::polling`]). An overloaded core
//! reads its device less and less often, and the device drops frames without room; frames for another core that is
//! overloaded are dropped here.

mod queue_owners;
mod receive;
mod send;

pub(crate) use queue_owners::{assign_queues, spread, start};
pub(crate) use receive::{forward_if_moved, forward_reassembled};
pub(crate) use send::{send_for, transmit};

use crate::core_network::NETWORK;
use crate::divided_output::DividedOutput;
use crate::interface;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_abi::report::NetworkReport;
use isola_ebbs::{Ebb, Representative, current_core, platform};
use isola_events::activity::INFRASTRUCTURE;
use isola_events::interrupt::{Interrupt, InterruptError, on_interrupt};
use isola_events::polling::{AdaptivePolling, PollingThresholds};
use isola_events::reclaim::{VacateHandler, on_vacate};
use isola_events::{Alarm, on_vcore_moved, spawn_on};
use isola_net_stack::Steering;
use isola_platform::CoreIndex;
use isola_platform::network::{Frame, NetworkQueue};
use isola_resources::{ClientStatistics, NETWORK_WRITE};
use queue_owners::{on_queue_cores, owners};

static QUEUE: Ebb<CoreQueue> = Ebb::new();

/// The state of a core's queue, if the core serves one.
struct CoreQueue {
    /// The frame counters.
    report: &'static NetworkReport,
    served: RefCell<Option<ServedQueue>>,
    /// The steering table. Set when the core begins to serve its queue.
    steering: Cell<Option<&'static Arc<Steering>>>,
    /// Frames without room in the device's queue.
    waiting: RefCell<VecDeque<Frame>>,
    /// Frames by activity, while there is a policy for them.
    divided: RefCell<Option<DividedOutput>>,
    /// Whether there is.
    has_policy: Cell<bool>,
    /// Whether the next poll divides received frames among their activities: more arrive than a batch, or earlier ones
    /// wait, which no later frame may overtake, even if the policy has ended.
    divides_input: Cell<bool>,
    /// UDP ports whose datagrams all go to one core.
    datagram_cores: RefCell<BTreeMap<u16, CoreIndex>>,
    /// Whether the datagrams of any port go to another core.
    datagrams_elsewhere: Cell<bool>,
    poll_queued: Cell<bool>,
    /// The cycle counter at a time after which all frames in the queue arrived.
    empty_at: Cell<u64>,
}

/// A queue and the state of its service.
struct ServedQueue {
    queue: Box<dyn NetworkQueue + Send>,
    polling: AdaptivePolling,
    /// `None` if the queue has none, or its vector was taken.
    _interrupt: Option<Interrupt>,
    _vacate: VacateHandler,
}

impl Representative for CoreQueue {
    fn create() -> Self {
        Self {
            report: &platform().report().network,
            served: RefCell::default(),
            steering: Cell::default(),
            waiting: RefCell::default(),
            divided: RefCell::default(),
            has_policy: Cell::default(),
            divides_input: Cell::default(),
            datagram_cores: RefCell::default(),
            datagrams_elsewhere: Cell::default(),
            poll_queued: Cell::default(),
            empty_at: Cell::default(),
        }
    }
}

/// Steers the datagrams for a UDP port to the core that has bound it, or by flow if it is not bound. Called after each
/// change of that binding.
///
/// Messages of two cores about a port may arrive out of order. So each queue's core reads the current binding.
pub(crate) fn steer_datagrams(port: u16) {
    on_queue_cores(move || QUEUE.steer_datagrams(port));
}

/// Runs `change` on each queue of the device, in an event on the core that serves it.
pub(crate) fn on_queues(change: impl Fn(&mut Box<dyn NetworkQueue + Send>) + Clone + Send + 'static) {
    for owner in owners() {
        let change = change.clone();
        spawn_on(owner, move || {
            QUEUE.served.borrow_mut().iter_mut().for_each(|served| change(&mut served.queue));
        });
    }
}

/// Polls the calling core's queue, behind its other events.
pub(crate) fn poll() {
    QUEUE.queue_poll();
}

/// Returns the frames of an activity that the calling core's queue has sent since there is a policy for
/// [`NETWORK_WRITE`], with their cost in bytes. The default if the core serves no queue.
pub fn write_statistics(activity: ActivityId) -> ClientStatistics {
    QUEUE.divided.borrow().as_ref().map(|divided| divided.statistics(activity)).unwrap_or_default()
}

/// Returns the same for all activities.
pub fn write_report() -> Vec<GridClient> {
    let divided = QUEUE.divided.borrow();
    divided.as_ref().map(|divided| divided.report(current_core().0)).unwrap_or_default()
}

/// Sets the rates above which the queues of the cell's network device are polled, and below which they interrupt again.
pub fn set_polling(thresholds: PollingThresholds) {
    on_queue_cores(move || {
        if let Some(served) = QUEUE.served.borrow_mut().as_mut() {
            served.polling = AdaptivePolling::new(thresholds);
        }
    });
}

impl CoreQueue {
    /// Records the core that has bound a port.
    fn steer_datagrams(&self, port: u16) {
        let mut cores = self.datagram_cores.borrow_mut();
        match interface::core_of_udp_port(port) {
            Some(core) => cores.insert(port, core),
            None => cores.remove(&port),
        };
        self.datagrams_elsewhere.set(cores.values().any(|core| *core != current_core()));
    }

    /// Serves a queue that is attached to this core.
    fn serve(&self, queue: Box<dyn NetworkQueue + Send>) {
        let interrupt = queue.vector().map(|vector| on_interrupt(vector, || QUEUE.interrupted()));
        let print = |error: &InterruptError| platform().print(format!("network: {error}\n").as_bytes());
        let interrupt = interrupt.and_then(|interrupt| interrupt.inspect_err(print).ok());
        let polling = AdaptivePolling::new(PollingThresholds::default());
        let vacate = on_vacate(|memory| {
            if let Some(served) = QUEUE.served.borrow_mut().as_mut() {
                served.queue.vacate(memory);
            }
            NETWORK.free_recycled();
            QUEUE.queue_poll();
        });
        self.steering.set(interface::steering());
        self.served.replace(Some(ServedQueue { queue, polling, _interrupt: interrupt, _vacate: vacate }));
        self.follow_policy();
        interface::bound_udp_ports().into_iter().for_each(|port| self.steer_datagrams(port));
        on_vcore_moved(|| {
            if let Some(served) = QUEUE.served.borrow_mut().as_mut() {
                served.queue.redirect();
            }
            // Interrupts may have gone to the core that ran this vcore before.
            QUEUE.queue_poll();
        });
        // Frames that arrived before the queue was served caused no interrupt.
        self.queue_poll();
    }

    /// Follows the settings of [`NETWORK_WRITE`].
    fn follow_policy(&self) {
        let mut divided = self.divided.borrow_mut();
        match (divided.as_mut(), NETWORK_WRITE.configuration()) {
            (None, None) => {}
            (Some(divided), Some(configuration)) => divided.configure(configuration),
            (None, Some(configuration)) => {
                let mut new = DividedOutput::new(configuration, Alarm::new(|| QUEUE.queue_poll()));
                // Whose they are is no longer known.
                self.waiting.take().into_iter().for_each(|frame| new.add(INFRASTRUCTURE, frame));
                *divided = Some(new);
            }
            (Some(_), None) => {
                self.waiting
                    .borrow_mut()
                    .extend(divided.take().into_iter().flat_map(DividedOutput::into_frames));
            }
        }
        self.has_policy.set(divided.is_some());
        // Frames that waited for a policy or a limit need a new decision.
        self.queue_poll();
    }
}
