//! Received frames by activity, on a core that divides its time among activities ([`isola_events::processor`]).
//!
//! Otherwise the event that takes frames from the device also processes them, for all activities. That order is the
//! device's: under overload, the activity that receives most would get most of the core. With a policy the device's
//! event only finds each frame's activity, and an event of that activity processes it. An activity that receives more
//! than its share of the core can process loses the excess here, and no other does. (Omni-kernel 2.2 and 4.2: a
//! substitute activity for packets before their demultiplexing.)
//!
//! Frames whose activity only the protocols can find, such as ARP, are processed at once for [`INFRASTRUCTURE`]. So are
//! a few frames while nothing else waits for the core.

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
use isola_net_stack::Counter;
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

/// A core's received frames that wait for their activities.
#[derive(Default)]
struct DividedInput {
    waiting: RefCell<BTreeMap<ActivityId, Waiting>>,
    spare: RefCell<Vec<VecDeque<ReceivedFrame>>>,
}

/// The frames of an activity. They were steered by the table's `version`, and arrived when the cycle counter was
/// `arrived_at` or later.
struct Waiting {
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

/// Returns whether frames wait for their activities.
pub(crate) fn has_waiting() -> bool {
    !INPUT.waiting.borrow().is_empty()
}

impl DividedInput {
    /// Queues a frame behind those of the same activity.
    fn add(&self, activity: ActivityId, received: ReceivedFrame, version: u32, arrived_at: u64) {
        let mut waiting = self.waiting.borrow_mut();
        let queue = waiting.entry(activity).or_insert_with(|| {
            queue_event(activity);
            let frames = self.spare.borrow_mut().pop().unwrap_or_default();
            // The oldest frame's version and time hold for those that join it: they are checked once more.
            Waiting { frames, version, arrived_at }
        });
        if queue.frames.len() >= MAX_WAITING {
            return count_dropped(Counter::DropActivityBusy, 1);
        }
        queue.frames.push_back(received);
    }

    /// Processes a batch of an activity's frames. While other events wait, it processes one frame at a time, until it has
    /// to give way to one of them.
    fn process(&self, activity: ActivityId) {
        let Some(mut queue) = self.waiting.borrow_mut().remove(&activity) else { return };
        let mut left = BATCH;
        loop {
            let count = if has_competition() { 1 } else { left };
            let frames = from_fn(|| queue.frames.pop_front()).take(count);
            NETWORK.receive(frames, queue.version, queue.arrived_at);
            left -= count;
            if left == 0 || queue.frames.is_empty() || must_yield() {
                break;
            }
        }
        if !queue.frames.is_empty() {
            self.waiting.borrow_mut().insert(activity, queue);
            queue_event(activity);
        } else if queue.frames.capacity() <= MAX_SPARE_LEN && self.spare.borrow().len() < MAX_SPARE {
            self.spare.borrow_mut().push(queue.frames);
        }
    }
}

fn queue_event(activity: ActivityId) {
    Event::new().charged_to(activity).spawn(move || INPUT.process(activity));
}
