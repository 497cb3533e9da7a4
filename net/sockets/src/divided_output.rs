//! Frames to send by activity, while [`NETWORK_WRITE`](isola_resources::NETWORK_WRITE) has a policy.
//!
//! A policy orders frames that wait: for room in the device's queue, or for a limit. While none waits and there is no
//! limit, frames go to the device at once. Frames in the device's queue leave in its order.

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
    /// Whether a frame may have to wait although the device has room.
    has_limits: bool,
    /// Rings when an activity at its limit may send again.
    alarm: Alarm,
}

/// What a device has accepted.
#[derive(Default)]
pub(crate) struct Sent {
    pub frames: u64,
    pub bytes: u64,
    /// Whether frames wait for room.
    pub is_full: bool,
}

impl Sent {
    /// Passes a frame to the device. Returns it if the device has no room.
    #[inline]
    fn send(&mut self, queue: &mut (dyn NetworkQueue + Send), frame: Frame) -> Result<(), Frame> {
        let bytes = frame.len() as u64;
        queue.send(frame).inspect_err(|_| self.is_full = true)?;
        self.frames += 1;
        self.bytes += bytes;
        Ok(())
    }
}

impl DividedOutput {
    /// Creates an empty output. `alarm` has to call [`Self::send`] in an event.
    pub fn new(configuration: Configuration, alarm: Alarm) -> Self {
        let has_limits = configuration.has_limits();
        Self { scheduler: ActivityScheduler::new(configuration), next: None, has_limits, alarm }
    }

    /// Replaces the configuration while frames wait.
    pub fn configure(&mut self, configuration: Configuration) {
        self.has_limits = configuration.has_limits();
        self.scheduler.configure(configuration, now().as_ns());
    }

    /// Returns the waiting frames in the order of their arrival.
    pub fn into_frames(self) -> impl Iterator<Item = Frame> {
        self.next.into_iter().chain(self.scheduler.into_requests())
    }

    /// Passes a frame to the device if none waits, or adds it behind those of the same activity.
    #[inline]
    pub fn push(
        &mut self,
        activity: ActivityId,
        frame: Frame,
        queue: &mut (dyn NetworkQueue + Send),
        sent: &mut Sent,
    ) {
        if self.must_order() {
            return self.add(activity, frame);
        }
        if let Err(frame) = sent.send(queue, frame) {
            self.add(activity, frame);
        }
    }

    /// Returns whether the policy decides which frame is next: others wait, or there are limits.
    pub fn must_order(&self) -> bool {
        self.has_limits || self.has_waiting()
    }

    /// Returns whether frames wait.
    pub fn has_waiting(&self) -> bool {
        self.next.is_some() || !self.scheduler.is_empty()
    }

    /// Adds a frame behind those of the same activity.
    pub fn add(&mut self, activity: ActivityId, frame: Frame) {
        if self.scheduler.statistics(activity).waiting >= MAX_WAITING {
            return count_dropped(Counter::DropDeviceFull, 1);
        }
        let bytes = Cost::Known(frame.len() as u64);
        self.scheduler.enqueue(activity, frame, bytes, now().as_ns());
    }

    /// Passes waiting frames to the device, as long as it has room and limits permit.
    pub fn send(&mut self, queue: &mut (dyn NetworkQueue + Send), sent: &mut Sent) {
        if !self.has_waiting() {
            return;
        }
        let now_ns = now().as_ns();
        while let Some(frame) = self.next.take().or_else(|| self.dispatch(now_ns)) {
            if let Err(frame) = sent.send(queue, frame) {
                self.next = Some(frame);
                return;
            }
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
