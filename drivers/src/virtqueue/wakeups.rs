//! Notifications in both directions, and the proof that no wake-up is lost (virtio 1.2, 2.7.7 and 2.7.10).
//!
//! Each side first publishes its progress, then reads whether the other side wants a notification. A side that wants
//! one first writes its request, then reads the other's progress. With a full barrier between the two steps on both
//! sides, at least one of them sees the other's write:
//!
//! ```text
//!   driver, publish             device, going to sleep       |  device, returning          driver, arm
//!     avail.idx = n               avail_event = m            |    used.idx = n               used_event = m
//!     -- full barrier --          -- full barrier --         |    -- full barrier --         -- full barrier --
//!     reads avail_event           reads avail.idx            |    reads used_event           reads used.idx
//! ```
//!
//! Therefore [`VirtQueue::arm`] returns whether buffers had been returned: an interrupt may not come for them, and the
//! caller polls again. Without `VIRTIO_F_EVENT_IDX`, flags replace the event indices.

use super::{VirtQueue, rings};
use isola_machine::dma::full_barrier;

/// The mechanism by which driver and device suppress notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suppression {
    /// By a flag for each side: all or none.
    Flags,
    /// By an event index for each side (`VIRTIO_F_EVENT_IDX`).
    EventIndex,
}

/// The condition for the device's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeWhen {
    /// When a buffer is returned.
    Returned,
    /// When about three quarters of the lent buffers have been returned, for a sender that waits for room. Without
    /// event indices, as [`Self::Returned`].
    MostReturned,
}

/// Whether returned buffers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Pending {
    /// Some do: an interrupt may not come for them.
    Yes,
    /// None do: an interrupt will come for the next.
    No,
}

impl<B> VirtQueue<B> {
    /// The second half of publishing: returns whether the device wants a notification of the buffers published since
    /// `before`.
    pub(super) fn device_wants_notice(&self, before: u16) -> bool {
        full_barrier();
        match self.suppression {
            Suppression::Flags => self.rings.used_flags() & rings::USED_NO_NOTIFY == 0,
            Suppression::EventIndex => passes(self.rings.available_event(), before, self.published as u16),
        }
    }

    /// Enables an interrupt. With event indices it is for one: no other comes until the queue is armed again.
    ///
    /// Returns [`Pending::Yes`] if the condition already holds, and an interrupt may not come for it: the caller takes
    /// the returned buffers and arms again. A broken queue also returns this, and [`Self::take_returned`] returns the
    /// fault.
    pub fn arm(&mut self, when: WakeWhen) -> Pending {
        self.arm_around(when, || ())
    }

    /// Arms. `meanwhile` is as in [`Self::publish_around`].
    #[inline]
    pub(super) fn arm_around(&mut self, when: WakeWhen, meanwhile: impl FnOnce()) -> Pending {
        let distance = self.ask_for_interrupt(when);
        meanwhile();
        self.returned_beyond(distance)
    }

    /// The first half of arming: requests the interrupt. Returns the number of returned buffers that do not yet cause
    /// it.
    pub(super) fn ask_for_interrupt(&mut self, when: WakeWhen) -> u16 {
        let distance = match (self.suppression, when) {
            (Suppression::EventIndex, WakeWhen::MostReturned) => {
                ((self.published - self.taken) * 3 / 4) as u16
            }
            _ => 0,
        };
        match self.suppression {
            Suppression::Flags => self.rings.set_available_flags(0),
            Suppression::EventIndex => self.rings.set_used_event((self.taken as u16).wrapping_add(distance)),
        }
        distance
    }

    /// The second half: returns whether more than `distance` buffers have been returned.
    pub(super) fn returned_beyond(&self, distance: u16) -> Pending {
        full_barrier();
        if self.fault.is_some() {
            return Pending::Yes;
        }
        let returned = self.rings.used_index().wrapping_sub(self.taken as u16);
        if returned > distance { Pending::Yes } else { Pending::No }
    }

    /// Disables interrupts. One may still come: the device may already have decided to send it.
    #[inline]
    pub fn disarm(&mut self) {
        match self.suppression {
            Suppression::Flags => self.rings.set_available_flags(rings::AVAILABLE_NO_INTERRUPT),
            // The index before the next entry comes last, after all others.
            Suppression::EventIndex => self.rings.set_used_event((self.taken as u16).wrapping_sub(1)),
        }
    }
}

/// Returns whether the index that advanced from `before` to `now` has passed `event` (virtio 1.2, 2.7.7.2).
#[inline]
fn passes(event: u16, before: u16, now: u16) -> bool {
    now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
}
