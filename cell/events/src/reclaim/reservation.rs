//! Reservations: requests for memory that wait until the cell has some to give.
//!
//! A request waits in the resource's scheduler, which orders activities by its policy, with bytes as the cost. One whose
//! activity would exceed its hard budget waits apart, so that it delays no other. A request is granted while the pressure
//! level *low* does not begin with it. Requests are looked at when one is made, when a reservation ends, and every
//! millisecond while some wait, as nothing announces free memory.

use super::grants::{Grants, Request, Supply};
use super::single_task::{MayEnd, MustSpawn, SingleTask};
use super::{demand, total_bytes, used_bytes};
use crate::activity::current_activity;
use crate::task::spawn_task_for;
use crate::timer::{now, sleep};
use core::fmt;
use core::future::poll_fn;
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_activities::INFRASTRUCTURE;
use isola_ebbs::{CellEbb, Representative, platform};
use isola_resources::{ActivityScheduler, Configuration, Cost, Dispatch, MEMORY, PolicyKind};

static RESERVATIONS: CellEbb<Reservations> = CellEbb::new();

/// The interval at which waiting requests are looked at.
const INTERVAL: Duration = Duration::from_millis(1);

/// A request that can never be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveError {
    /// It is more than the cell's memory less a sixteenth.
    MoreThanCell,
    /// It is more than the hard budget of the activity.
    MoreThanBudget,
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MoreThanCell => "the cell has less memory in all: give it more, or ask for less",
            Self::MoreThanBudget => {
                "the activity's hard budget is less: raise it (`isola grid set CELL memory`), or ask for less"
            }
        })
    }
}

impl core::error::Error for ReserveError {}

/// Memory that is kept free for its owner, and counts as its activity's, until this is dropped. The owner drops it when
/// it has allocated the memory.
#[derive(Debug)]
#[must_use = "the memory is no longer reserved when this is dropped"]
pub struct Reservation {
    activity: ActivityId,
    len_bytes: u64,
}

impl Reservation {
    /// Returns its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes as usize
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        RESERVATIONS.grants.release(self.activity, self.len_bytes);
        RESERVATIONS.look();
    }
}

struct Reservations {
    grants: Grants<CellMemory>,
    /// The task that looks at waiting requests.
    watch: SingleTask,
}

impl Representative for Reservations {
    fn create() -> Self {
        let (version, scheduler) = (MEMORY.version(), ActivityScheduler::new(configuration()));
        Self { grants: Grants::new(CellMemory { scheduler, version }), watch: SingleTask::default() }
    }
}

/// The cell's memory, and the scheduler of the requests that wait for it.
struct CellMemory {
    scheduler: ActivityScheduler<Request>,
    /// The version of the resource's settings that it follows.
    version: u64,
}

impl CellMemory {
    fn follow_settings(&mut self) {
        let version = MEMORY.version();
        if self.version != version {
            self.version = version;
            self.scheduler.configure(configuration(), now().as_ns());
        }
    }
}

impl Supply for CellMemory {
    fn reservable_bytes(&self) -> u64 {
        (platform().memory_free() as u64).saturating_sub(total_bytes() / 16)
    }

    fn budget_bytes(&self, activity: ActivityId) -> u64 {
        match MEMORY.entitlement(activity).memory.hard {
            Some(hard) => hard.saturating_sub(used_bytes(activity)),
            None => u64::MAX,
        }
    }

    fn enqueue(&mut self, request: Request) {
        self.follow_settings();
        let cost = Cost::Known(request.len_bytes);
        self.scheduler.enqueue(request.activity, request, cost, now().as_ns());
    }

    fn dispatch(&mut self) -> Option<Request> {
        self.follow_settings();
        match self.scheduler.dispatch(now().as_ns()) {
            Dispatch::Request(dispatched) => Some(dispatched.message),
            _ => None,
        }
    }

    fn waiting(&self) -> usize {
        self.scheduler.len()
    }
}

/// Returns the resource's configuration; without a policy, that of the order of arrival.
fn configuration() -> Configuration {
    MEMORY.configuration_or(PolicyKind::Fifo)
}

/// Waits until `len_bytes` bytes are free, and reserves them for the current activity.
///
/// # Errors
/// [`ReserveError`], at once.
pub async fn reserve(len_bytes: usize) -> Result<Reservation, ReserveError> {
    let (activity, len_bytes) = (current_activity(), len_bytes as u64);
    let total = total_bytes();
    // A process without a pool has the host's memory, and reports none.
    if total > 0 && len_bytes > total - total / 16 {
        return Err(ReserveError::MoreThanCell);
    }
    if MEMORY.entitlement(activity).memory.hard.is_some_and(|hard| len_bytes > hard) {
        return Err(ReserveError::MoreThanBudget);
    }
    let reservations: &'static Reservations = &RESERVATIONS;
    let mut pending = reservations.grants.add(activity, len_bytes);
    reservations.look();
    poll_fn(|context| pending.poll(context)).await;
    Ok(Reservation { activity, len_bytes })
}

/// Returns the number of an activity's requests that wait.
pub fn waiting_requests_of(activity: ActivityId) -> usize {
    let in_order = |memory: &CellMemory| memory.scheduler.statistics(activity).waiting;
    RESERVATIONS.grants.waiting_of(activity, in_order)
}

impl Reservations {
    /// Grants requests, and watches those that still wait.
    fn look(&self) {
        if self.grants.look() && self.watch.call() == MustSpawn::Yes {
            spawn_task_for(INFRASTRUCTURE, watch()).detach();
        }
    }
}

/// Looks at the waiting requests until none waits.
async fn watch() {
    loop {
        RESERVATIONS.watch.begin();
        while RESERVATIONS.grants.waiting() > 0 {
            // Others are to make room.
            demand();
            sleep(INTERVAL).await;
            // This task watches those that still wait.
            let _ = RESERVATIONS.grants.look();
        }
        if RESERVATIONS.watch.end() == MayEnd::Yes {
            return;
        }
    }
}
