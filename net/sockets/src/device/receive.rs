//! Takes received frames from the device's queue and distributes them to the cores of their flows.

use super::{CoreQueue, QUEUE, ServedQueue};
use crate::core_network::NETWORK;
use crate::divided_input::{self, Distribution};
use crate::drops::count_dropped;
use crate::interface;
use crate::steering::tcp_flow_of;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_ebbs::current_core;
use isola_events::activity::INFRASTRUCTURE;
use isola_events::event::{Event, Placement, StaticEvent};
use isola_events::last_arrival_check;
use isola_events::polling::PollingMode;
use isola_events::processor::{has_competition, has_policy};
use isola_iobuf::IoBuf;
use isola_net_stack::{Counter, Steering, datagram_port};
use isola_platform::CoreIndex;
use isola_platform::network::{FramesPending, ReceivedChecksum, ReceivedFrame};

/// Polls the core's queue.
static POLL: StaticEvent = StaticEvent::new(INFRASTRUCTURE, || QUEUE.poll());

/// The most frames that one event takes from the device.
const BATCH: usize = 64;

/// Forwards a reassembled packet to the core of its flow.
pub(crate) fn forward_reassembled(frame: IoBuf) {
    let version = interface::steering().map_or(0, |steering| steering.version());
    let core = QUEUE.core_of(&frame);
    let received = ReceivedFrame { frame, rest: None, checksum: ReceivedChecksum::Unchecked };
    forward(core, vec![received], version, NETWORK.latency.arrived_at());
}

/// Forwards a frame to the core that owns its TCP flow. Returns it if that is the calling core.
pub(crate) fn forward_if_moved(received: ReceivedFrame) -> Option<ReceivedFrame> {
    let Some((steering, flow)) = interface::steering().zip(tcp_flow_of(&received.frame)) else {
        return Some(received);
    };
    let version = steering.version();
    let core = CoreIndex(steering.core_of(&flow).into());
    if core == current_core() {
        return Some(received);
    }
    forward(core, vec![received], version, NETWORK.latency.arrived_at());
    None
}

/// Forwards frames to another core. They were steered by the table's `version` and arrived when the cycle counter was
/// `arrived_at` or later.
fn forward(core: CoreIndex, batch: Vec<ReceivedFrame>, version: u32, arrived_at: u64) {
    let event = Event::new().at(Placement::Core(core)).charged_to(INFRASTRUCTURE);
    let count = batch.len();
    if event.try_spawn(move || receive_forwarded(batch, version, arrived_at)).is_err() {
        count_dropped(Counter::DropCoreBusy, count);
    }
}

/// Processes frames from another core, or distributes them to their activities.
fn receive_forwarded(batch: Vec<ReceivedFrame>, version: u32, arrived_at: u64) {
    if !has_policy() {
        return NETWORK.receive(batch, version, arrived_at);
    }
    let mut here = Distribution::new(version, arrived_at);
    batch.into_iter().for_each(|received| here.push(received));
    here.finish();
}

/// Forwards a batch to each of several cores.
#[cold]
#[inline(never)]
fn forward_all(batches: Vec<(CoreIndex, Vec<ReceivedFrame>)>, version: u32, arrived_at: u64) {
    batches.into_iter().for_each(|(core, batch)| forward(core, batch, version, arrived_at));
}

impl CoreQueue {
    pub(super) fn interrupted(&self) {
        if let Some(served) = self.served.borrow_mut().as_mut() {
            served.queue.disable_interrupts();
            served.polling.interrupted();
        }
        // The interrupt has been unmasked since the queue was empty: only frames that arrived after the core last
        // checked cause one.
        if !self.poll_queued.replace(true) {
            self.empty_at.set(self.empty_at.get().max(last_arrival_check()));
            POLL.spawn();
        }
    }

    pub(super) fn queue_poll(&self) {
        if !self.poll_queued.replace(true) {
            POLL.spawn();
        }
    }

    /// Processes a batch of frames, forwards those of other cores, and responds.
    fn poll(&self) {
        self.poll_queued.set(false);
        let has_policy = has_policy();
        if self.divides_input.get() || (has_policy && has_competition()) {
            return self.poll_for_activities();
        }
        let most = if has_policy { divided_input::BATCH } else { BATCH };
        let here = current_core();
        let mut elsewhere: Vec<(CoreIndex, Vec<ReceivedFrame>)> = Vec::new();
        // The version is read before the table: a concurrent change may be visible in the table before its version.
        let steering = self.steering.get();
        let version = steering.map_or(0, |steering| steering.version());
        let arrived_at = self.empty_at.get();
        NETWORK.latency.begin(arrived_at);
        let (mut taken, mut bytes) = (0, 0);
        let is_sole = |steering: &Arc<Steering>| steering.is_sole(here.0 as u16);
        let alone = !self.datagrams_elsewhere.get() && steering.is_some_and(is_sole);
        let mut served = self.served.borrow_mut();
        // The first frame's piece begins here: the work before is common to all frames.
        let batch = NETWORK.begin_batch();
        if let Some(ServedQueue { queue, .. }) = served.as_mut() {
            while let Some(received) = queue.receive() {
                taken += 1;
                bytes += received.len() as u64;
                let core = if alone { here } else { self.core_of(&received.frame) };
                if core == here {
                    NETWORK.process(&batch, received);
                } else {
                    match elsewhere.iter_mut().find(|(of, _)| *of == core) {
                        Some((_, batch)) => batch.push(received),
                        None => elsewhere.push((core, vec![received])),
                    }
                }
                if taken == most || !queue.may_have_received() {
                    break;
                }
                if core == here {
                    NETWORK.attribution.next_piece();
                }
            }
            NETWORK.attribution.next_piece();
        }
        drop(served);
        self.count_received(taken, bytes);
        // Behind these may be frames of an activity that would have to wait for others.
        self.divides_input.set(has_policy && taken == most);
        if taken < most {
            // The poll took all frames that the device had returned when the queue read the ring, which was later.
            self.empty_at.set(batch.started_at());
        }
        if !elsewhere.is_empty() {
            forward_all(elsewhere, version, arrived_at);
        }
        if taken > 0 {
            NETWORK.deliver_and_send();
        }
        NETWORK.latency.end();
        self.send_waiting();
        self.unmask_or_poll(taken, most);
    }

    /// Takes a batch of frames, and distributes them to their activities and to other cores.
    #[cold]
    #[inline(never)]
    fn poll_for_activities(&self) {
        let started_at = NETWORK.attribution.begin();
        // The version is read before the table, as in [`Self::poll`].
        let version = self.steering.get().map_or(0, |steering| steering.version());
        let arrived_at = self.empty_at.get();
        let mut elsewhere: BTreeMap<CoreIndex, Vec<ReceivedFrame>> = BTreeMap::new();
        let mut here = Distribution::new(version, arrived_at);
        let (mut taken, mut bytes) = (0, 0);
        while taken < divided_input::BATCH
            && let Some(received) =
                self.served.borrow_mut().as_mut().and_then(|served| served.queue.receive())
        {
            taken += 1;
            bytes += received.len() as u64;
            let core = self.core_of(&received.frame);
            if core == current_core() {
                here.push(received);
            } else {
                elsewhere.entry(core).or_default().push(received);
            }
        }
        self.count_received(taken, bytes);
        if taken < divided_input::BATCH {
            self.empty_at.set(started_at);
        }
        if !elsewhere.is_empty() {
            forward_all(elsewhere.into_iter().collect(), version, arrived_at);
        }
        here.finish();
        self.divides_input.set(divided_input::has_waiting());
        self.send_waiting();
        self.unmask_or_poll(taken, divided_input::BATCH);
    }

    fn count_received(&self, frames: usize, bytes: u64) {
        self.report.received_frames.fetch_add(frames as u64, Ordering::Relaxed);
        self.report.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Unmasks the interrupt, or polls again behind the core's other events if there may be more frames than the `most`
    /// of a batch, or they arrive so often that polling is cheaper.
    fn unmask_or_poll(&self, taken: usize, most: usize) {
        let mut served = self.served.borrow_mut();
        let Some(ServedQueue { queue, polling, .. }) = served.as_mut() else { return };
        let more = polling.polled(taken) == PollingMode::Polling
            || taken == most
            || queue.enable_interrupts() == FramesPending::Yes;
        if more {
            queue.disable_interrupts();
            self.queue_poll();
        }
    }

    fn core_of(&self, frame: &[u8]) -> CoreIndex {
        let Some(steering) = interface::steering() else { return CoreIndex(0) };
        if let Some(core) = steering.core_of_fast(frame) {
            return CoreIndex(core.into());
        }
        let bound = datagram_port(frame).and_then(|port| self.datagram_cores.borrow().get(&port).copied());
        bound.unwrap_or_else(|| CoreIndex(steering.core_of_frame(frame).into()))
    }
}
