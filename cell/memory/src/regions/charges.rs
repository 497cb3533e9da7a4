//! The activities to which the pages of a region are charged.
//!
//! A page is charged to the activity that runs when the page is filled. A region keeps the sums, so that its drop gives
//! back what each activity was charged, whichever activity drops it. A page fault cannot allocate: the number of
//! activities of a region is fixed, and the pages of further ones are charged to the first.
//!
//! The ledger is told in steps of [`STEP`]. A region's creation and its drop are exact, so the ledger lacks less than a
//! step of each region and activity.

use super::address_window::AddressWindow;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The most activities of a region that are charged for its pages.
const MAX_ACCOUNTS: usize = 4;

/// The bytes after which page faults tell the ledger.
const STEP: usize = 32 << 10;

/// The account of an activity in the platform's ledger: its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account(pub u32);

/// The charges of a region.
pub(super) struct Charges([Charge; MAX_ACCOUNTS]);

/// The charge of one activity.
struct Charge {
    /// One more than the account's number; 0 while the entry is unused.
    owner: AtomicU32,
    filled: AtomicUsize,
    /// The part of `filled` that the ledger has.
    told: AtomicUsize,
}

impl Charges {
    pub const fn new() -> Self {
        const UNUSED: Charge =
            Charge { owner: AtomicU32::new(0), filled: AtomicUsize::new(0), told: AtomicUsize::new(0) };
        Self([UNUSED; MAX_ACCOUNTS])
    }

    /// Charges a filled page to the activity that runs.
    #[inline]
    pub fn add(&self, len: usize, window: &dyn AddressWindow) {
        let Some(Account(account)) = window.account() else { return };
        let [first, ..] = &self.0;
        let charge = match first.owner.load(Ordering::Relaxed) == account.wrapping_add(1) {
            true => first,
            false => self.find(account),
        };
        let filled = charge.filled.fetch_add(len, Ordering::Relaxed) + len;
        if filled - charge.told.load(Ordering::Relaxed).min(filled) >= STEP {
            charge.tell(window);
        }
    }

    /// Returns the entry of an account, or the first if all have others.
    #[cold]
    #[inline(never)]
    fn find(&self, account: u32) -> &Charge {
        let owner = account.wrapping_add(1);
        let is_its = |charge: &&Charge| {
            let claimed = charge
                .owner
                .compare_exchange(0, owner, Ordering::Relaxed, Ordering::Relaxed)
                .unwrap_or_else(|of| of);
            claimed == 0 || claimed == owner
        };
        let [first, ..] = &self.0;
        self.0.iter().find(is_its).unwrap_or(first)
    }

    /// Makes the ledger exact.
    pub fn settle(&self, window: &dyn AddressWindow) {
        self.0.iter().for_each(|charge| charge.tell(window));
    }

    /// Gives all charges back, when the region is dropped.
    pub fn give_back(&self, window: &dyn AddressWindow) {
        for charge in &self.0 {
            let told = charge.told.swap(0, Ordering::Relaxed);
            if let Some(account) = charge.account()
                && told > 0
            {
                window.discharge(account, told);
            }
        }
    }
}

impl Charge {
    fn account(&self) -> Option<Account> {
        self.owner.load(Ordering::Relaxed).checked_sub(1).map(Account)
    }

    /// Tells the ledger of the pages that it does not have. Several cores may do so at once.
    #[cold]
    #[inline(never)]
    fn tell(&self, window: &dyn AddressWindow) {
        let filled = self.filled.load(Ordering::Relaxed);
        let before = self.told.fetch_max(filled, Ordering::Relaxed);
        if let Some(account) = self.account()
            && filled > before
        {
            window.charge(account, filled - before);
        }
    }
}
