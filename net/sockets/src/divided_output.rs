//! Frames to send by activity, while [`NETWORK_WRITE`](isola_resources::NETWORK_WRITE) has a policy.
//!
//! A policy orders frames that wait: for room in the device's queue, or for a limit. Frames in the device's queue leave
//! in its order.

use crate::drops::count_dropped;
use alloc::vec::Vec;
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_events::{Alarm, now};
use isola_net_stack::Counter;
use isola_platform::Instant;
use isola_platform::network::{Frame, NetworkQueue};
use isola_resources::{
    ActivityScheduler, ClientStatistics, Configuration, Cost, Dispatch, Dispatched, Resource,
};

/// The most frames of an activity that wait. Further ones are dropped, and TCP retransmits their data.
const MAX_WAITING: usize = 1024;

/// The frames of a device's queue that wait.
pub(crate) struct DividedOutput {
    scheduler: ActivityScheduler<Frame>,
    /// A frame that was dispatched, but found no room in the device.
    next: Option<Frame>,
    /// Rings when an activity at its limit may send again.
    alarm: Alarm,
}

/// What a device has accepted.
pub(crate) struct Sent {
    pub frames: u64,
    pub bytes: u64,
    /// Whether frames wait for room.
    pub is_full: bool,
}

impl DividedOutput {
    /// Creates an empty output. `alarm` has to call [`Self::send`] in an event.
    pub fn new(configuration: Configuration, alarm: Alarm) -> Self {
        Self { scheduler: ActivityScheduler::new(configuration), next: None, alarm }
    }

    /// Replaces the configuration while frames wait.
    pub fn configure(&mut self, configuration: Configuration) {
        self.scheduler.configure(configuration, now().as_ns());
    }

    /// Returns the waiting frames in the order of their arrival.
    pub fn into_frames(self) -> impl Iterator<Item = Frame> {
        self.next.into_iter().chain(self.scheduler.into_requests())
    }

    /// Adds a frame behind those of the same activity.
    pub fn add(&mut self, activity: ActivityId, frame: Frame) {
        if self.scheduler.statistics(activity).waiting >= MAX_WAITING {
            return count_dropped(Counter::DropDeviceFull, 1);
        }
        let bytes = Cost::Known(frame.len() as u64);
        self.scheduler.enqueue(activity, frame, bytes, now().as_ns());
    }

    /// Passes frames to the device, as long as it has room and limits permit.
    pub fn send(&mut self, queue: &mut (dyn NetworkQueue + Send)) -> Sent {
        let mut sent = Sent { frames: 0, bytes: 0, is_full: false };
        let now_ns = now().as_ns();
        loop {
            let Some(frame) = self.next.take().or_else(|| self.dispatch(now_ns)) else { return sent };
            let bytes = frame.len() as u64;
            if let Err(frame) = queue.send(frame) {
                self.next = Some(frame);
                sent.is_full = true;
                return sent;
            }
            sent.frames += 1;
            sent.bytes += bytes;
        }
    }

    fn dispatch(&mut self, now_ns: u64) -> Option<Frame> {
        match self.scheduler.dispatch(now_ns) {
            Dispatch::Request(Dispatched { message: frame, .. }) => Some(frame),
            Dispatch::NotBefore(ns) => {
                self.alarm.set(Some(Instant::from_ns(ns)));
                None
            }
            Dispatch::Empty => {
                self.scheduler.idle();
                None
            }
        }
    }

    /// Returns the service of each activity.
    pub fn report(&self, core: u32) -> Vec<GridClient> {
        self.scheduler.report(Resource::NetworkWrite, core)
    }

    /// Returns the service of an activity.
    pub fn statistics(&self, activity: ActivityId) -> ClientStatistics {
        self.scheduler.statistics(activity)
    }
}
