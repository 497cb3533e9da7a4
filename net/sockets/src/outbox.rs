//! Frames to the device, and those that wait for room there.

use alloc::collections::VecDeque;
use isola_platform::network::{Frame, NetworkQueue};

/// The most frames that wait for room in the device's queue. Further ones are dropped, and TCP retransmits their data.
const MAX_WAITING: usize = 1024;

/// Frames to the device.
pub(crate) struct Outbox<'a> {
    pub queue: Option<&'a mut (dyn NetworkQueue + Send + 'static)>,
    pub waiting: &'a mut VecDeque<Frame>,
    pub sent: u64,
    pub sent_bytes: u64,
    pub dropped: usize,
}

impl Outbox<'_> {
    /// Passes waiting frames to the device, as long as it has room.
    #[inline]
    pub fn push_waiting(&mut self) {
        while let Some(frame) = self.waiting.pop_front() {
            if let Err(frame) = self.send(frame) {
                self.waiting.push_front(frame);
                break;
            }
        }
    }

    /// Passes a frame to the device, or queues it behind waiting ones.
    #[inline]
    pub fn push(&mut self, frame: Frame) {
        if !self.waiting.is_empty() {
            self.enqueue(frame);
        } else if let Err(frame) = self.send(frame) {
            self.enqueue(frame);
        }
    }

    #[cold]
    #[inline(never)]
    fn enqueue(&mut self, frame: Frame) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(frame);
        } else {
            self.dropped += 1;
        }
    }

    #[inline]
    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let Some(queue) = &mut self.queue else { return Err(frame) };
        let len = frame.len() as u64;
        queue.send(frame)?;
        (self.sent, self.sent_bytes) = (self.sent + 1, self.sent_bytes + len);
        Ok(())
    }
}
