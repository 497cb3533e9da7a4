//! Reservations: requests for memory that wait until the cell has some to give.
//!
//! A request waits in the resource's scheduler, which orders activities by its policy, with bytes as the cost. One whose
//! activity would exceed its hard budget waits apart, so that it delays no other. A request is granted while the pressure
//! level *low* does not begin with it. Requests are looked at when one is made, when a reservation ends, and every
//! millisecond while some wait, as nothing announces free memory.

use super::{demand, total_bytes, used_bytes};
use crate::activity::current_activity;
use crate::task::spawn_task_for;
use crate::timer::{now, sleep};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_activities::INFRASTRUCTURE;
use isola_ebbs::{CellEbb, Representative, platform};
use isola_resources::{ActivityScheduler, Configuration, Cost, Dispatch, MEMORY, PolicyKind};
use spin::Mutex;

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
        RESERVATIONS.state.lock().release(self.activity, self.len_bytes);
        RESERVATIONS.look();
    }
}

/// A waiting request. Its future owns the other end.
struct Request {
    len_bytes: u64,
    state: Arc<RequestState>,
}

#[derive(Default)]
struct RequestState {
    is_granted: AtomicBool,
    is_abandoned: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

struct Reservations {
    state: Mutex<State>,
    /// Whether the task exists that looks at waiting requests.
    is_watched: AtomicBool,
}

struct State {
    reserved_bytes: u64,
    reserved: BTreeMap<ActivityId, u64>,
    /// The requests that wait for the cell's memory.
    scheduler: ActivityScheduler<(ActivityId, Request)>,
    version: u64,
    /// Those that wait for memory of their own activity, in the order of their arrival.
    over_budget: Vec<(ActivityId, Request)>,
    /// The one that is next, and did not fit yet.
    next: Option<(ActivityId, Request)>,
}

impl Representative for Reservations {
    fn create() -> Self {
        let scheduler = ActivityScheduler::new(configuration());
        let state = State {
            reserved_bytes: 0,
            reserved: BTreeMap::new(),
            scheduler,
            version: MEMORY.version(),
            over_budget: Vec::new(),
            next: None,
        };
        Self { state: Mutex::new(state), is_watched: AtomicBool::new(false) }
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
    let state = Arc::<RequestState>::default();
    let mut pending = PendingRequest { activity, len_bytes, state: Some(state.clone()) };
    RESERVATIONS.state.lock().over_budget.push((activity, Request { len_bytes, state: state.clone() }));
    RESERVATIONS.look();
    poll_fn(|context| {
        *state.waker.lock() = Some(context.waker().clone());
        // Checked after the waker is registered, so that no later grant goes unnoticed.
        if state.is_granted.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    pending.state = None;
    Ok(Reservation { activity, len_bytes })
}

/// Returns the number of an activity's requests that wait.
pub fn waiting_requests_of(activity: ActivityId) -> usize {
    let state = RESERVATIONS.state.lock();
    let apart = state.over_budget.iter().chain(&state.next).filter(|(of, _)| *of == activity);
    apart.count() + state.scheduler.statistics(activity).waiting
}

/// Returns the number of requests that wait.
fn waiting_requests() -> usize {
    let state = RESERVATIONS.state.lock();
    state.scheduler.len() + state.over_budget.len() + usize::from(state.next.is_some())
}

/// Gives a grant back if the future is dropped before it has returned it.
struct PendingRequest {
    activity: ActivityId,
    len_bytes: u64,
    state: Option<Arc<RequestState>>,
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        let mut all = RESERVATIONS.state.lock();
        // Under the lock under which requests are granted.
        state.is_abandoned.store(true, Ordering::Relaxed);
        if state.is_granted.load(Ordering::Relaxed) {
            all.release(self.activity, self.len_bytes);
        }
    }
}

impl Reservations {
    /// Grants requests, and watches those that still wait.
    fn look(&self) {
        let (granted, waits) = {
            let mut state = self.state.lock();
            let granted = state.grant();
            (granted, state.next.is_some() || !state.over_budget.is_empty() || !state.scheduler.is_empty())
        };
        granted.into_iter().for_each(Waker::wake);
        if waits && !self.is_watched.swap(true, Ordering::AcqRel) {
            spawn_task_for(INFRASTRUCTURE, watch()).detach();
        }
    }
}

/// Looks at the waiting requests until none waits.
async fn watch() {
    while waiting_requests() > 0 {
        // Others are to make room.
        demand();
        sleep(INTERVAL).await;
        RESERVATIONS.look();
    }
    RESERVATIONS.is_watched.store(false, Ordering::Release);
    RESERVATIONS.look();
}

impl State {
    fn release(&mut self, activity: ActivityId, len_bytes: u64) {
        self.reserved_bytes = self.reserved_bytes.saturating_sub(len_bytes);
        if let Some(reserved) = self.reserved.get_mut(&activity) {
            *reserved = reserved.saturating_sub(len_bytes);
            if *reserved == 0 {
                self.reserved.remove(&activity);
            }
        }
    }

    /// Returns whether the activity is within its hard budget with so much more.
    fn is_within_budget(&self, activity: ActivityId, len_bytes: u64) -> bool {
        let Some(hard) = MEMORY.entitlement(activity).memory.hard else { return true };
        let reserved = self.reserved.get(&activity).copied().unwrap_or(0);
        used_bytes(activity).saturating_add(reserved).saturating_add(len_bytes) <= hard
    }

    /// Grants the requests that fit, in the order of the scheduler. Returns their wakers.
    fn grant(&mut self) -> Vec<Waker> {
        let now_ns = now().as_ns();
        let version = MEMORY.version();
        if self.version != version {
            self.version = version;
            self.scheduler.configure(configuration(), now_ns);
        }
        for (activity, request) in core::mem::take(&mut self.over_budget) {
            if request.state.is_abandoned.load(Ordering::Relaxed) {
                continue;
            }
            match self.is_within_budget(activity, request.len_bytes) {
                true => {
                    let cost = Cost::Known(request.len_bytes);
                    self.scheduler.enqueue(activity, (activity, request), cost, now_ns);
                }
                false => self.over_budget.push((activity, request)),
            }
        }
        let mut granted = Vec::new();
        loop {
            let next = self.next.take().or_else(|| match self.scheduler.dispatch(now_ns) {
                Dispatch::Request(dispatched) => Some(dispatched.message),
                _ => None,
            });
            let Some((activity, request)) = next else { return granted };
            if request.state.is_abandoned.load(Ordering::Relaxed) {
                continue;
            }
            if !self.is_within_budget(activity, request.len_bytes) {
                self.over_budget.push((activity, request));
                continue;
            }
            let wanted = self.reserved_bytes.saturating_add(request.len_bytes);
            if wanted.saturating_add(total_bytes() / 16) > platform().memory_free() as u64 {
                self.next = Some((activity, request));
                return granted;
            }
            self.reserved_bytes = wanted;
            *self.reserved.entry(activity).or_default() += request.len_bytes;
            request.state.is_granted.store(true, Ordering::Release);
            granted.extend(request.state.waker.lock().take());
        }
    }
}
