//! The activities to which the pages of a region are charged.
//!
//! Pages are charged in steps of [`STEP`], as the heap charges batches of objects: the activity whose page completes a step
//! is charged for all of it. A page fault thus costs a comparison more, and only every sixteenth fault looks for the
//! activity. The pages that a region's creation fills are charged exactly.
//!
//! A region keeps the sums, so that its drop gives back what each activity was charged, whichever activity drops it. A
//! page fault cannot allocate: the number of activities of a region is fixed, and the steps of further ones are charged
//! to the first.

use super::address_window::{Account, AddressWindow};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The most activities of a region that are charged for its pages.
const MAX_ACCOUNTS: usize = 4;

/// The bytes of pages that are charged together.
const STEP: usize = 64 << 10;

/// The charges of a region.
pub(super) struct Charges {
    /// The filled bytes that were charged.
    charged: AtomicUsize,
    accounts: [Charge; MAX_ACCOUNTS],
}

/// The charge of one activity.
struct Charge {
    /// One more than the account's number; 0 while the entry is unused.
    owner: AtomicU32,
    len_bytes: AtomicUsize,
}

impl Charges {
    pub const fn new() -> Self {
        Self { charged: AtomicUsize::new(0), accounts: [const { Charge::unused() }; MAX_ACCOUNTS] }
    }

    /// Charges the step that is complete with `filled` bytes of pages, if one is.
    #[inline(always)]
    pub fn follow(&self, filled: usize, window: &dyn AddressWindow) {
        if filled.wrapping_sub(self.charged.load(Ordering::Relaxed)) >= STEP {
            self.charge(filled, window);
        }
    }

    /// Charges all `filled` bytes of pages that were not charged yet to the activity that runs. Several cores may do so at
    /// once.
    #[cold]
    #[inline(never)]
    pub fn charge(&self, filled: usize, window: &dyn AddressWindow) {
        let before = self.charged.fetch_max(filled, Ordering::Relaxed);
        let len_bytes = filled.saturating_sub(before);
        if len_bytes > 0
            && let Some(account) = window.account()
        {
            let charge = self.entry_of(account);
            charge.len_bytes.fetch_add(len_bytes, Ordering::Relaxed);
            charge.account().into_iter().for_each(|account| window.charge(account, len_bytes));
        }
    }

    /// Returns the entry of an account, or the first if all have others.
    fn entry_of(&self, Account(account): Account) -> &Charge {
        let owner = account.wrapping_add(1);
        let is_its = |charge: &&Charge| {
            let before = charge.owner.compare_exchange(0, owner, Ordering::Relaxed, Ordering::Relaxed);
            before.is_ok() || before == Err(owner)
        };
        let [first, ..] = &self.accounts;
        self.accounts.iter().find(is_its).unwrap_or(first)
    }

    /// Gives all charges back, when the region is dropped.
    pub fn give_back(&self, window: &dyn AddressWindow) {
        for charge in &self.accounts {
            let len_bytes = charge.len_bytes.swap(0, Ordering::Relaxed);
            if len_bytes > 0 {
                charge.account().into_iter().for_each(|account| window.discharge(account, len_bytes));
            }
        }
    }
}

impl Charge {
    const fn unused() -> Self {
        Self { owner: AtomicU32::new(0), len_bytes: AtomicUsize::new(0) }
    }

    fn account(&self) -> Option<Account> {
        self.owner.load(Ordering::Relaxed).checked_sub(1).map(Account)
    }
}
