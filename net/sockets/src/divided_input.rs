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
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::RefCell;
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

/// A core's received frames that wait for their activities.
#[derive(Default)]
struct DividedInput {
    waiting: RefCell<BTreeMap<ActivityId, Waiting>>,
}

/// The frames of an activity. They were steered by the table's `version`, and arrived when the cycle counter was
/// `arrived_at` or later.
struct Waiting {
    frames: Vec<ReceivedFrame>,
    version: u32,
    arrived_at: u64,
}

impl Representative for DividedInput {
    fn create() -> Self {
        Self::default()
    }
}

/// Processes frames of this core, or queues them for their activities. They were steered by the table's `version`, and
/// arrived when the cycle counter was `arrived_at` or later.
pub(crate) fn distribute(frames: Vec<ReceivedFrame>, version: u32, arrived_at: u64) {
    // More frames than one event processes may hide others behind them in the device.
    if frames.len() <= BATCH && !has_competition() && INPUT.waiting.borrow().is_empty() {
        if !frames.is_empty() {
            NETWORK.receive(frames, version, arrived_at);
        }
        return;
    }
    let mut batches: Vec<(ActivityId, Vec<ReceivedFrame>)> = Vec::new();
    for received in frames {
        let activity = NETWORK.activity_of(&received.frame);
        match batches.iter_mut().find(|(of, _)| *of == activity) {
            Some((_, batch)) => batch.push(received),
            None => batches.push((activity, Vec::from([received]))),
        }
    }
    for (activity, batch) in batches {
        if activity == INFRASTRUCTURE {
            NETWORK.receive(batch, version, arrived_at);
        } else {
            INPUT.add(activity, batch, version, arrived_at);
        }
    }
}

/// Returns whether frames wait for their activities.
pub(crate) fn has_waiting() -> bool {
    !INPUT.waiting.borrow().is_empty()
}

impl DividedInput {
    /// Queues frames behind those of the same activity.
    fn add(&self, activity: ActivityId, mut batch: Vec<ReceivedFrame>, version: u32, arrived_at: u64) {
        let mut waiting = self.waiting.borrow_mut();
        let queue = waiting.entry(activity).or_insert_with(|| {
            queue_event(activity);
            // The oldest frame's version and time hold for those that join it: they are checked once more.
            Waiting { frames: Vec::new(), version, arrived_at }
        });
        let room = MAX_WAITING.saturating_sub(queue.frames.len()).min(batch.len());
        let excess = batch.split_off(room);
        queue.frames.append(&mut batch);
        if !excess.is_empty() {
            count_dropped(Counter::DropActivityBusy, excess.len());
        }
    }

    /// Processes a batch of an activity's frames. While other events wait, it processes one frame at a time, until it has
    /// to give way to one of them.
    fn process(&self, activity: ActivityId) {
        let Some(Waiting { frames, version, arrived_at }) = self.waiting.borrow_mut().remove(&activity)
        else {
            return;
        };
        let (mut frames, mut left) = (frames.into_iter(), BATCH);
        loop {
            let count = if has_competition() { 1 } else { left };
            NETWORK.receive(frames.by_ref().take(count), version, arrived_at);
            left -= count;
            if left == 0 || frames.len() == 0 || must_yield() {
                break;
            }
        }
        if frames.len() > 0 {
            let rest = Waiting { frames: frames.collect(), version, arrived_at };
            self.waiting.borrow_mut().insert(activity, rest);
            queue_event(activity);
        }
    }
}

fn queue_event(activity: ActivityId) {
    Event::new().charged_to(activity).spawn(move || INPUT.process(activity));
}
