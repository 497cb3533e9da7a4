//! Passes frames to the device's queue.

use super::queue_owners::sending_core;
use super::{CoreQueue, QUEUE, ServedQueue};
use crate::attribution::activity_of;
use crate::core_network::NETWORK;
use crate::divided_output::{DividedOutput, Sent};
use crate::drops::count_dropped;
use crate::outbox::Outbox;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_events::activity::INFRASTRUCTURE;
use isola_events::event::{Event, Placement};
use isola_iobuf::IoBufMut;
use isola_net_stack::{Counter, Instant, Owner, Stack};
use isola_platform::network::Frame;

/// Sends the frames that a core's stack has ready.
pub(crate) fn transmit(stack: &mut Stack, now: Instant) {
    let queues = &*QUEUE;
    if queues.served.borrow().is_some() {
        return queues.send_from(stack, now);
    }
    let Some(owner) = sending_core() else { return };
    let mut frames = Vec::new();
    while let Some(frame) = stack.poll_transmit(now) {
        let owner = stack.owner();
        NETWORK.attribution.count_sent(owner, frame.len() as u64);
        NETWORK.attribution.charge(owner);
        frames.push((owner, frame));
        NETWORK.attribution.next_piece();
    }
    if !frames.is_empty() {
        let event = Event::new().at(Placement::Core(owner)).charged_to(INFRASTRUCTURE);
        let count = frames.len();
        if event.try_spawn(move || QUEUE.send(frames)).is_err() {
            count_dropped(Counter::DropCoreBusy, count);
        }
    }
}

/// Sends frames of `owner` that no stack made, through the calling core's queue.
pub(crate) fn send_for(owner: Owner, frames: Vec<Frame>) {
    for frame in &frames {
        NETWORK.attribution.count_sent(owner, frame.len() as u64);
    }
    QUEUE.send(frames.into_iter().map(|frame| (owner, frame)).collect());
}

impl CoreQueue {
    /// Passes another core's frames to the device, behind those that wait.
    fn send(&self, frames: Vec<(Owner, Frame)>) {
        self.reclaim(&mut |head| NETWORK.recycle(head));
        let attribution = &NETWORK.attribution;
        attribution.begin();
        if self.has_policy.get() {
            return self.send_divided(|push| {
                for (owner, frame) in frames {
                    attribution.charge(owner);
                    push(owner, frame);
                    attribution.next_piece();
                }
            });
        }
        self.send_all(|outbox| {
            for (owner, frame) in frames {
                attribution.charge(owner);
                outbox.push(frame);
                attribution.next_piece();
            }
        });
    }

    /// Passes the stack's frames to the device, behind those that wait.
    #[inline]
    fn send_from(&self, stack: &mut Stack, now: Instant) {
        let attribution = &NETWORK.attribution;
        attribution.begin_common();
        self.reclaim(&mut |head| stack.recycle(head));
        let has_policy = self.has_policy.get();
        if has_policy && self.divided.borrow().as_ref().is_some_and(DividedOutput::must_order) {
            return self.send_ordered(stack, now);
        }
        self.send_all(|outbox| {
            attribution.next_stage();
            let mut len = 0;
            while stack.transmit_next(now, |frame| {
                len = frame.len();
                outbox.push(frame);
            }) {
                let owner = stack.owner();
                attribution.count_sent(owner, len as u64);
                attribution.charge(owner);
                if !stack.may_transmit() || (has_policy && !outbox.waiting.is_empty()) {
                    break;
                }
                attribution.next_piece();
            }
            attribution.next_stage();
            attribution.begin_common();
        });
        if has_policy {
            self.order_last(stack, now);
        }
    }

    /// Passes the stack's frames to the device in the order of the policy.
    #[cold]
    #[inline(never)]
    fn send_ordered(&self, stack: &mut Stack, now: Instant) {
        let attribution = &NETWORK.attribution;
        self.send_divided(|push| {
            attribution.next_stage();
            while let Some(frame) = stack.poll_transmit(now) {
                let owner = stack.owner();
                attribution.count_sent(owner, frame.len() as u64);
                attribution.charge(owner);
                push(owner, frame);
                attribution.next_piece();
            }
            attribution.begin_common();
        });
    }

    /// Lets the policy order the stack's frames from now on, if the device had no room for its last one.
    fn order_last(&self, stack: &mut Stack, now: Instant) {
        let Some(last) = self.waiting.borrow_mut().pop_back() else { return };
        if let Some(divided) = self.divided.borrow_mut().as_mut() {
            divided.add(activity_of(stack.owner()), last);
        }
        self.send_ordered(stack, now);
    }

    pub(super) fn send_waiting(&self) {
        let divides = self.has_policy.get();
        let has_waiting = || self.divided.borrow().as_ref().is_some_and(DividedOutput::has_waiting);
        if (divides && has_waiting()) || !self.waiting.borrow().is_empty() {
            self.send(Vec::new());
        }
    }

    /// Passes waiting frames and those that `supply` pushes to the device, in the order of the policy.
    #[cold]
    #[inline(never)]
    fn send_divided(&self, supply: impl FnOnce(&mut dyn FnMut(Owner, Frame))) {
        let (mut divided, mut served) = (self.divided.borrow_mut(), self.served.borrow_mut());
        let (Some(divided), Some(ServedQueue { queue, .. })) = (divided.as_mut(), served.as_mut()) else {
            return;
        };
        let mut sent = Sent::default();
        supply(&mut |owner, frame| divided.push(activity_of(owner), frame, &mut **queue, &mut sent));
        divided.send(&mut **queue, &mut sent);
        self.report.sent_frames.fetch_add(sent.frames, Ordering::Relaxed);
        self.report.sent_bytes.fetch_add(sent.bytes, Ordering::Relaxed);
        queue.flush();
        if sent.is_full {
            // The device empties its queue meanwhile: there may be room in the next pass.
            self.queue_poll();
        }
    }

    /// Takes back frames that the device has sent.
    fn reclaim(&self, recycle: &mut dyn FnMut(IoBufMut)) {
        if let Some(served) = self.served.borrow_mut().as_mut() {
            served.queue.reclaim(recycle);
        }
    }

    /// Passes waiting frames to the device, then those that `push` supplies. Frames without room wait.
    #[inline]
    fn send_all(&self, push: impl FnOnce(&mut Outbox<'_>)) {
        let mut served = self.served.borrow_mut();
        let mut waiting = self.waiting.borrow_mut();
        // A core may have frames to send before it serves a queue.
        let queue = served.as_mut().map(|served| &mut *served.queue);
        let mut outbox = Outbox { queue, waiting: &mut waiting, sent: 0, sent_bytes: 0, dropped: 0 };
        outbox.push_waiting();
        push(&mut outbox);
        let Outbox { queue, sent, sent_bytes, dropped, .. } = outbox;
        self.report.sent_frames.fetch_add(sent, Ordering::Relaxed);
        self.report.sent_bytes.fetch_add(sent_bytes, Ordering::Relaxed);
        if dropped > 0 {
            count_dropped(Counter::DropDeviceFull, dropped);
        }
        let Some(queue) = queue else { return };
        queue.flush();
        if !waiting.is_empty() {
            // The device empties its queue meanwhile: there may be room in the next pass.
            self.queue_poll();
        }
    }
}
