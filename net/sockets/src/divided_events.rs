//! The stack's events by activity, on a core that divides its time among activities ([`isola_events::processor`]).
//!
//! Frames of several activities can be processed before the events that result are handled, and a request costs more to
//! handle than to receive. So with a policy, several events are divided among their activities: an event of the loop
//! handles those of each ([`divided_input`](crate::divided_input)), in the order of the policy. Events of one activity are
//! handled at once, until other work of the core comes first. If other activities wait for the core, and something has
//! arrived while a frame was processed, which may be for one of these, what the stack reports about the frame waits, too.
//!
//! Only notices of data and of datagrams wait. They can be repeated, and their data stays in the stack. All others are
//! handled at once: they are rare, and the ids of a connection that the stack has ended can soon be those of another one.

use crate::attribution::activity_of;
use crate::core_network::CoreNetwork;
use crate::divided_input::{Notice, add_notice};
use alloc::collections::VecDeque;
use isola_events::processor::has_competition;
use isola_events::{has_arrivals, must_yield};
use isola_net_stack::{self as stack, Owner};

/// The notices of one activity that are handled between two checks for other work.
const PER_CHECK: usize = 4;

/// Returns whether something has arrived, on a core for which other events wait.
pub(crate) fn something_arrives() -> bool {
    has_competition() && has_arrivals()
}

impl CoreNetwork {
    /// Handles these events and all further ones of the stack, or divides them among their activities.
    #[cold]
    #[inline(never)]
    pub fn divide_events(&self, first: (stack::Event, Owner)) {
        let mut next = Some(first);
        let mut notices: VecDeque<(Notice, Owner)> = VecDeque::new();
        while next.is_some() {
            while let Some((event, owner)) = next {
                match self.notice_of(event) {
                    Some(is_new) => notices.extend(is_new.map(|notice| (notice, owner))),
                    None => {
                        self.attribution.charge(owner);
                        self.handle(event);
                        self.attribution.next_piece();
                    }
                }
                next = self.next_event();
            }
            self.divide_notices(&mut notices);
            // The handlers may have caused others.
            next = self.next_event();
        }
        self.attribution.next_stage();
    }

    /// Handles notices if all are of one activity, until other work of the core comes first. The others wait for events
    /// of their activities.
    fn divide_notices(&self, notices: &mut VecDeque<(Notice, Owner)>) {
        let Some((_, owner)) = notices.front().copied() else { return };
        let mut handled = 0;
        if notices.iter().all(|(_, other)| *other == owner) {
            while !something_arrives()
                && let Some((notice, _)) = notices.pop_front()
            {
                self.attribution.charge(owner);
                self.handle_notice(notice);
                self.attribution.next_piece();
                handled += 1;
                if handled % PER_CHECK == 0 && must_yield() {
                    break;
                }
            }
        }
        for (notice, owner) in notices.drain(..) {
            add_notice(activity_of(owner), notice);
        }
    }

    /// Handles notices of the running event's activity until other work of the core comes first, and responds. Returns
    /// whether the event may continue. They arrived when the cycle counter was `arrived_at` or later.
    pub fn handle_notices(&self, notices: &mut VecDeque<Notice>, arrived_at: u64) -> bool {
        self.latency.begin(arrived_at);
        self.attribution.begin();
        let mut goes_on = true;
        self.send_after(|| {
            while goes_on && let Some(notice) = notices.pop_front() {
                self.handle_notice(notice);
                // Frames of others that are sent behind it count for these, and the work until here does not.
                self.attribution.next_piece();
                goes_on = !must_yield();
            }
        });
        self.latency.end();
        goes_on
    }

    /// Returns the notice of an event that may wait, `Some(None)` if such a notice waits already or its recipient has
    /// ended, and `None` for other events.
    fn notice_of(&self, event: stack::Event) -> Option<Option<Notice>> {
        use stack::Event;
        match event {
            Event::Readable(id) | Event::PeerClosed(id) => {
                let is_new = self.connection(id).is_some_and(|found| found.note_unread());
                Some(is_new.then_some(Notice::Readable(id)))
            }
            Event::Datagram(id) => {
                let is_new = self.socket(id).is_some_and(|found| !found.notice_waits.replace(true));
                Some(is_new.then_some(Notice::Datagram(id)))
            }
            _ => None,
        }
    }

    fn handle_notice(&self, notice: Notice) {
        match notice {
            Notice::Readable(id) => {
                if let Some(found) = self.connection(id) {
                    found.notice_waits.set(false);
                    found.readable();
                }
            }
            Notice::Datagram(id) => {
                if let Some(found) = self.socket(id) {
                    found.notice_waits.set(false);
                    found.readable(id);
                }
            }
        }
    }
}
