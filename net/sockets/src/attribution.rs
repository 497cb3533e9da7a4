//! Charges the network's work to the activities that it is done for.
//!
//! An event of the network takes in frames of several connections, calls their handlers and sends for all of them: pieces
//! of work, each of which belongs to one activity. Whose a piece is, the stack knows only when it has looked the connection
//! up ([`Stack::owner`](isola_net_stack::Stack::owner)). So a piece is charged when it is over, from the reading of the cycle
//! counter at which the one before ended.
//!
//! ```text
//!   looks at the device │ receives for A │ receives for B │ A's handler │ B's handler │ sends for A │ sends for B │ notifies
//!   ────────────────────┼────────────────┼────────────────┼─────────────┼─────────────┼─────────────┼─────────────┼─────────
//!   infrastructure      │ A              │ B              │ A           │ B           │ A           │ B           │ infrastr.
//! ```
//!
//! An event that works for one activity alone is charged to it as a whole, and switches once. What an event does for several
//! together is charged to [`INFRASTRUCTURE`].

use core::cell::Cell;
use isola_abi::id::ActivityId;
use isola_ebbs::cycles;
use isola_events::activity::{INFRASTRUCTURE, charge_all_to, charge_piece, charge_until};
use isola_events::current_activity;
use isola_net_stack::Owner;

/// The pieces of the running event.
pub(crate) struct Attribution {
    /// The readings of the cycle counter at which the first piece and this one began. Equal up to the end of the first.
    first: Cell<u64>,
    piece: Cell<u64>,
    works_for: Cell<WorksFor>,
}

/// For how many activities the running event works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorksFor {
    /// None has been found out.
    None,
    /// One, to which the event is charged from its beginning on.
    One,
    Several,
}

impl Attribution {
    pub fn new() -> Self {
        Self { first: Cell::new(0), piece: Cell::new(0), works_for: Cell::new(WorksFor::None) }
    }

    /// Begins the first piece of an event, which is charged to [`INFRASTRUCTURE`] so far. Returns the reading of the cycle
    /// counter.
    #[inline]
    pub fn begin(&self) -> u64 {
        let now = cycles();
        self.first.set(now);
        self.piece.set(now);
        self.works_for.set(WorksFor::None);
        now
    }

    /// Ends a piece, and begins the next one.
    #[inline]
    pub fn next_piece(&self) {
        self.piece.set(cycles());
    }

    /// The same before the first and behind the last of several pieces that are alike: what lies between is common.
    #[inline]
    pub fn next_stage(&self) {
        // An event for one activity is not divided.
        if self.works_for.get() == WorksFor::Several {
            self.next_piece();
        }
    }

    /// Charges this piece to `owner`.
    #[inline]
    pub fn charge(&self, owner: Owner) {
        let activity = activity_of(owner);
        if activity != current_activity() {
            self.change(activity);
        }
    }

    /// Begins what is done for all activities together: where the event works for several, it is charged to none of them.
    #[inline]
    pub fn begin_common(&self) {
        if self.works_for.get() == WorksFor::Several && current_activity() != INFRASTRUCTURE {
            charge_piece(self.piece.get(), cycles(), INFRASTRUCTURE);
        }
    }

    /// A part of what calls it, as the call would be charged to the activity.
    #[inline(always)]
    fn change(&self, activity: ActivityId) {
        let (now, first, piece) = (cycles(), self.first.get(), self.piece.get());
        match self.works_for.get() {
            WorksFor::None if piece == first => {
                self.works_for.set(WorksFor::One);
                charge_all_to(activity);
                // In case that there will be others: this change was for all of them.
                return self.first.set(first + (cycles() - now));
            }
            // What came before the first piece was for that activity alone, as long as there was no other.
            WorksFor::One => charge_until(first, INFRASTRUCTURE),
            WorksFor::None | WorksFor::Several => {}
        }
        self.works_for.set(WorksFor::Several);
        charge_piece(piece, now, activity);
    }
}

/// The activity that an owner is the number of.
#[inline]
fn activity_of(owner: Owner) -> ActivityId {
    if owner == Owner::UNKNOWN { INFRASTRUCTURE } else { ActivityId(owner.0) }
}

/// The owner of an activity's connections.
pub(crate) fn owner_of(activity: ActivityId) -> Owner {
    Owner(activity.0)
}
