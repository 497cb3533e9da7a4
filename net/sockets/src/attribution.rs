//! Charges the network's work to the activities that cause it.
//!
//! A network event processes frames of several connections, calls their handlers and sends for all of them: pieces of
//! work, each of which belongs to one activity. The stack knows the activity of a piece only after it has looked up the
//! connection ([`Stack::owner`](isola_net_stack::Stack::owner)). A piece is therefore charged when it ends, from the
//! cycle counter value at which the previous piece ended.
//!
//! ```text
//!   reads device   │ receives A │ receives B │ A's handler │ B's handler │ sends A │ sends B │ notifies
//!   ───────────────┼────────────┼────────────┼─────────────┼─────────────┼─────────┼─────────┼───────────────
//!   infrastructure │ A          │ B          │ A           │ B           │ A       │ B       │ infrastructure
//! ```
//!
//! An event that works for a single activity is charged to it entirely, and switches once. Common work for several
//! activities is charged to [`INFRASTRUCTURE`].

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::id::ActivityId;
use isola_activities::{TrafficCounters, traffic};
use isola_ebbs::{current_core, cycles};
use isola_events::activity::{INFRASTRUCTURE, charge_all_to, charge_piece, charge_until};
use isola_events::current_activity;
use isola_net_stack::Owner;

/// The pieces of the running event.
pub(crate) struct Attribution {
    /// The cycle counter at the beginning of the first piece, and of the current one. They are equal until the first
    /// piece ends.
    first: Cell<u64>,
    piece: Cell<u64>,
    works_for: Cell<WorksFor>,
    received: FrameBytes,
    sent: FrameBytes,
}

/// The activities for which the running event works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorksFor {
    /// None is known yet.
    None,
    /// One, to which the event is charged from its beginning on.
    One,
    Several,
}

impl Attribution {
    pub fn new() -> Self {
        Self {
            first: Cell::new(0),
            piece: Cell::new(0),
            works_for: Cell::new(WorksFor::None),
            received: FrameBytes::new(|counters| &counters.received_bytes),
            sent: FrameBytes::new(|counters| &counters.sent_bytes),
        }
    }

    /// Begins the first piece of an event, which is charged to [`INFRASTRUCTURE`] until an activity is known. Returns
    /// the cycle counter.
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

    /// Ends a stage of similar pieces, or begins one: the work between two stages is common.
    #[inline]
    pub fn next_stage(&self) {
        // An event for one activity is not divided.
        if self.works_for.get() == WorksFor::Several {
            self.next_piece();
        }
    }

    /// Counts the bytes of a received frame of `owner`.
    #[inline]
    pub fn count_received(&self, owner: Owner, bytes: u64) {
        self.received.add(owner, bytes);
    }

    /// Counts the bytes of a frame that `owner` sends.
    #[inline]
    pub fn count_sent(&self, owner: Owner, bytes: u64) {
        self.sent.add(owner, bytes);
    }

    /// Charges this piece to `owner`.
    #[inline]
    pub fn charge(&self, owner: Owner) {
        let activity = activity_of(owner);
        if activity != current_activity() {
            self.change(activity);
        }
    }

    /// Begins common work of all activities: if the event works for several, the work is charged to none of them.
    #[inline]
    pub fn begin_common(&self) {
        if self.works_for.get() == WorksFor::Several && current_activity() != INFRASTRUCTURE {
            charge_piece(self.piece.get(), cycles(), INFRASTRUCTURE);
        }
    }

    /// Inlined into its caller, because a call would be charged to the activity.
    #[inline(always)]
    fn change(&self, activity: ActivityId) {
        let (now, first, piece) = (cycles(), self.first.get(), self.piece.get());
        match self.works_for.get() {
            WorksFor::None if piece == first => {
                self.works_for.set(WorksFor::One);
                charge_all_to(activity);
                // If other activities follow, the time of this switch is common work.
                return self.first.set(first + (cycles() - now));
            }
            // The work before the first piece counted as that activity's until a second activity appeared.
            WorksFor::One => charge_until(first, INFRASTRUCTURE),
            WorksFor::None | WorksFor::Several => {}
        }
        self.works_for.set(WorksFor::Several);
        charge_piece(piece, now, activity);
    }
}

/// The bytes of frames in a direction, counted for the activities of their owners on this core. The counter of the last
/// owner is kept: most frames have the same owner as the one before.
struct FrameBytes {
    /// The counters of owners whose frames came or went last, by the lowest bits of their numbers: frames of several owners
    /// alternate.
    recent: [Cell<(Owner, &'static AtomicU64)>; RECENT],
    counter_of: fn(&'static TrafficCounters) -> &'static AtomicU64,
}

/// The owners whose counters are found at once.
const RECENT: usize = 8;

/// Counts the frames of activities for whose counters the cell has no memory.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);

impl FrameBytes {
    fn new(counter_of: fn(&'static TrafficCounters) -> &'static AtomicU64) -> Self {
        let unknown = (Owner::UNKNOWN, Self::find(Owner::UNKNOWN, counter_of));
        Self { recent: core::array::from_fn(|_| Cell::new(unknown)), counter_of }
    }

    #[inline]
    fn add(&self, owner: Owner, bytes: u64) {
        let entry = &self.recent[owner.0 as usize % RECENT];
        let (known, mut counter) = entry.get();
        if known != owner {
            counter = Self::find(owner, self.counter_of);
            entry.set((owner, counter));
        }
        // Only this core writes it.
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn find(
        owner: Owner,
        counter_of: fn(&'static TrafficCounters) -> &'static AtomicU64,
    ) -> &'static AtomicU64 {
        let core = current_core().0 as usize;
        let counters = traffic(activity_of(owner), core).or_else(|| traffic(INFRASTRUCTURE, core));
        counters.map_or(&UNCOUNTED, counter_of)
    }
}

/// Returns the activity of an owner number.
#[inline]
pub(crate) fn activity_of(owner: Owner) -> ActivityId {
    if owner == Owner::UNKNOWN { INFRASTRUCTURE } else { ActivityId(owner.0) }
}

/// Returns the owner number of an activity's connections.
pub(crate) fn owner_of(activity: ActivityId) -> Owner {
    Owner(activity.0)
}
