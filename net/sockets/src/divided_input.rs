//! Received frames by activity, on a core that divides its time among activities ([`isola_events::processor`]).
//!
//! Otherwise the event that takes frames from the device also processes them, for all activities. That order is the
//! device's: under overload, the activity that receives most would get most of the core. With a policy the device's
//! event only finds each frame's activity, and an event of that activity processes it. An activity that receives more
//! than its share of the core can process loses the excess here, and no other does. (Omni-kernel 2.2 and 4.2: a
//! substitute activity for packets before their demultiplexing.)
//!
//! Frames whose activity only the protocols can find, such as ARP, are processed at once for [`INFRASTRUCTURE`]. So are
//! a few frames while nothing else waits for the core. The stack then reports data of several activities at once: these
//! *notices* wait for their activities in the same way, ahead of later frames.

use crate::core_network::NETWORK;
use crate::drops::count_dropped;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::iter::from_fn;
use core::mem::take;
use isola_abi::id::ActivityId;
use isola_ebbs::{Ebb, Representative};
use isola_events::activity::INFRASTRUCTURE;
use isola_events::event::Event;
use isola_events::must_yield;
use isola_events::processor::has_competition;
use isola_net_stack::{ConnId, Counter, UdpId};
use isola_platform::network::ReceivedFrame;

static INPUT: Ebb<DividedInput> = Ebb::new();

/// The most frames of an activity that wait for its share of the core.
const MAX_WAITING: usize = 512;

/// The most frames that one event processes.
pub(crate) const BATCH: usize = 16;

/// The most empty queues whose memory is kept for the next activities with frames.
const MAX_SPARE: usize = 8;

/// The longest queue whose memory is kept, in frames.
const MAX_SPARE_LEN: usize = 2 * BATCH;

/// A notice of the stack that waits for its activity. There is at most one for a connection or socket. Its recipient may
/// have ended or moved to another core meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A connection has data, or its peer's stream has ended.
    Readable(ConnId),
    /// A socket has datagrams.
    Datagram(UdpId),
}

/// A core's received frames that wait for their activities.
#[derive(Default)]
struct DividedInput {
    waiting: RefCell<BTreeMap<ActivityId, Waiting>>,
    spare: RefCell<Vec<VecDeque<ReceivedFrame>>>,
}

/// The notices and frames of an activity, for which an event is queued. The frames were steered by the table's `version`;
/// all arrived when the cycle counter was `arrived_at` or later.
struct Waiting {
    notices: VecDeque<Notice>,
    frames: VecDeque<ReceivedFrame>,
    version: u32,
    arrived_at: u64,
}

impl Representative for DividedInput {
    fn create() -> Self {
        Self::default()
    }
}

/// Frames on their way from the device to this core's activities. They were steered by the table's `version`, and arrived
/// when the cycle counter was `arrived_at` or later.
pub(crate) struct Distribution {
    version: u32,
    arrived_at: u64,
    /// Whether frames wait for their activities' events.
    is_divided: bool,
    /// The frames that are processed at once.
    at_once: Vec<ReceivedFrame>,
}

impl Distribution {
    /// Begins a distribution.
    pub fn new(version: u32, arrived_at: u64) -> Self {
        Self { version, arrived_at, is_divided: has_competition() || has_waiting(), at_once: Vec::new() }
    }

    /// Adds a frame.
    pub fn push(&mut self, received: ReceivedFrame) {
        if self.is_divided {
            return self.divide(received);
        }
        self.at_once.push(received);
        // More frames than one event processes may hide others behind them in the device.
        if self.at_once.len() > BATCH {
            self.is_divided = true;
            take(&mut self.at_once).into_iter().for_each(|received| self.divide(received));
        }
    }

    fn divide(&mut self, received: ReceivedFrame) {
        match NETWORK.activity_of(&received.frame) {
            INFRASTRUCTURE => self.at_once.push(received),
            activity => INPUT.add(activity, received, self.version, self.arrived_at),
        }
    }

    /// Processes the frames that wait for no event.
    pub fn finish(self) {
        if !self.at_once.is_empty() {
            NETWORK.receive(self.at_once, self.version, self.arrived_at);
        }
    }
}

/// Returns whether frames or notices wait for their activities.
pub(crate) fn has_waiting() -> bool {
    !INPUT.waiting.borrow().is_empty()
}

/// Queues a notice for an event of `activity`.
pub(crate) fn add_notice(activity: ActivityId, notice: Notice) {
    INPUT.of(activity, NETWORK.latency.arrived_at(), |queue| queue.notices.push_back(notice));
}

impl DividedInput {
    /// Changes the queue of an activity. A new queue gets an event, and holds input that arrived when the cycle counter
    /// was `arrived_at` or later.
    fn of(&self, activity: ActivityId, arrived_at: u64, change: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.waiting.borrow_mut();
        change(waiting.entry(activity).or_insert_with(|| {
            queue_event(activity);
            let frames = self.spare.borrow_mut().pop().unwrap_or_default();
            Waiting { notices: VecDeque::new(), frames, version: 0, arrived_at }
        }));
    }

    /// Queues a frame behind those of the same activity.
    fn add(&self, activity: ActivityId, received: ReceivedFrame, version: u32, arrived_at: u64) {
        self.of(activity, arrived_at, |queue| {
            if queue.frames.len() >= MAX_WAITING {
                return count_dropped(Counter::DropActivityBusy, 1);
            }
            if queue.frames.is_empty() {
                // It holds for frames that join this one: they are checked once more.
                queue.version = version;
            }
            queue.frames.push_back(received);
        });
    }

    /// Handles an activity's notices, then processes a batch of its frames. While other events wait, it takes one notice
    /// or frame at a time, until it has to give way to one of them.
    fn process(&self, activity: ActivityId) {
        let Some(mut queue) = self.waiting.borrow_mut().remove(&activity) else { return };
        let mut left = BATCH;
        let mut goes_on =
            queue.notices.is_empty() || NETWORK.handle_notices(&mut queue.notices, queue.arrived_at);
        while goes_on && left > 0 && !queue.frames.is_empty() {
            let count = if has_competition() { 1 } else { left };
            let frames = from_fn(|| queue.frames.pop_front()).take(count);
            NETWORK.receive(frames, queue.version, queue.arrived_at);
            left -= count;
            goes_on = left > 0 && !queue.frames.is_empty() && !must_yield();
        }
        if !queue.notices.is_empty() || !queue.frames.is_empty() {
            self.put_back(activity, queue);
        } else if queue.frames.capacity() <= MAX_SPARE_LEN && self.spare.borrow().len() < MAX_SPARE {
            self.spare.borrow_mut().push(queue.frames);
        }
    }

    /// Returns the rest of a queue, ahead of what was added meanwhile.
    fn put_back(&self, activity: ActivityId, rest: Waiting) {
        self.of(activity, rest.arrived_at, |queue| {
            let Waiting { mut notices, frames, .. } = core::mem::replace(queue, rest);
            queue.notices.append(&mut notices);
            queue.frames.extend(frames);
        });
    }
}

fn queue_event(activity: ActivityId) {
    Event::new().charged_to(activity).spawn(move || INPUT.process(activity));
}
