//! Notifications: who wants to be told of what, and why no wake-up is lost (virtio 1.2, 2.7.7 and 2.7.10).
//!
//! Each side writes what it has done, and then looks whether the other side wants to be told; each side that
//! wants to be told writes so, and then looks whether something has been done. With a full barrier between the
//! two steps on both sides, at least one of them sees the other's write:
//!
//! ```text
//!   driver, publish             device, going to sleep       |  device, returning          driver, arm
//!     avail.idx = n               avail_event = m            |    used.idx = n               used_event = m
//!     -- full barrier --          -- full barrier --         |    -- full barrier --         -- full barrier --
//!     reads avail_event           reads avail.idx            |    reads used_event           reads used.idx
//! ```
//!
//! That is why [`VirtQueue::arm`] tells whether something had been returned: then no interrupt may come, and the
//! caller looks again. Where `VIRTIO_F_EVENT_IDX` is not negotiated, flags take the place of event indices.

use super::{VirtQueue, rings};
use isola_machine::dma::full_barrier;

/// How the driver and the device tell each other what they want to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suppression {
    /// By a flag each: all or nothing.
    Flags,
    /// By the index of the next interesting entry each (`VIRTIO_F_EVENT_IDX`).
    EventIndex,
}

/// When the device shall interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeWhen {
    /// As soon as a buffer is returned.
    Returned,
    /// When about three quarters of what is lent now have been returned: for who waits for room. Without event
    /// indices, as [`Self::Returned`].
    MostReturned,
}

/// Whether buffers wait to be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Pending {
    /// Some do: no interrupt may come for them.
    Yes,
    /// None do: an interrupt will come when one does.
    No,
}

impl<B> VirtQueue<B> {
    /// The second half of publishing: whether the device wants to be told of what was shown since `before`.
    pub(super) fn device_wants_notice(&self, before: u16) -> bool {
        full_barrier();
        match self.suppression {
            Suppression::Flags => self.rings.used_flags() & rings::USED_NO_NOTIFY == 0,
            Suppression::EventIndex => passes(self.rings.available_event(), before, self.published as u16),
        }
    }

    /// Asks for an interrupt. With event indices it is for one: after it, none comes until the queue is armed
    /// again.
    ///
    /// Where [`Pending::Yes`] comes back, what was asked for has happened already, and no interrupt may come
    /// for it: the caller takes what is there and arms again. A broken queue says so too, and taking tells why.
    pub fn arm(&mut self, when: WakeWhen) -> Pending {
        self.arm_around(when, || ())
    }

    /// Arms; `meanwhile` as for publishing.
    #[inline]
    pub(super) fn arm_around(&mut self, when: WakeWhen, meanwhile: impl FnOnce()) -> Pending {
        let distance = self.ask_for_interrupt(when);
        meanwhile();
        self.returned_beyond(distance)
    }

    /// The first half of arming: says after how many more returned buffers the interrupt shall come, less one.
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

    /// The second half: whether more than so many buffers have been returned.
    pub(super) fn returned_beyond(&self, distance: u16) -> Pending {
        full_barrier();
        if self.fault.is_some() {
            return Pending::Yes;
        }
        let returned = self.rings.used_index().wrapping_sub(self.taken as u16);
        if returned > distance { Pending::Yes } else { Pending::No }
    }

    /// Asks for no interrupts. One or the other can come all the same: the device may be about to send it.
    #[inline]
    pub fn disarm(&mut self) {
        match self.suppression {
            Suppression::Flags => self.rings.set_available_flags(rings::AVAILABLE_NO_INTERRUPT),
            // The entry before the next is the one that comes last, after all others.
            Suppression::EventIndex => self.rings.set_used_event((self.taken as u16).wrapping_sub(1)),
        }
    }
}

/// Whether the index that went from `before` to `now` has passed `event` (virtio 1.2, 2.7.7.2).
#[inline]
fn passes(event: u16, before: u16, now: u16) -> bool {
    now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
}
