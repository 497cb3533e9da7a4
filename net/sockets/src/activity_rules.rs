//! Rules that attribute accepted connections to activities, by port and peer. Without a rule, a connection is of the
//! activity that listens.
//!
//! A rule counts from its connection's acceptance on; the handshake is work of the listening activity. Rules change
//! while the cell serves, and existing connections keep their activities.

use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_abi::grid::ActivityRule;
use isola_abi::id::ActivityId;
use isola_activities::{ActivityError, end, named, parent_of, register, register_under};
use isola_ebbs::{CellEbb, Representative};
use spin::Mutex;

static RULES: CellEbb<Rules> = CellEbb::new();

/// The most rules of a cell: each accepted connection is compared with them in turn.
pub const MAX_ACTIVITY_RULES: usize = 64;

#[derive(Default)]
struct Rules {
    has_any: AtomicBool,
    rules: Mutex<Arc<Vec<(ActivityRule, ActivityId)>>>,
}

impl Representative for Rules {
    fn create() -> Self {
        Self::default()
    }
}

/// The reason why a rule cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityRuleError {
    /// The cell has [`MAX_ACTIVITY_RULES`] rules.
    TooMany,
    /// The rule's activity cannot be registered.
    Activity(ActivityError),
}

impl fmt::Display for ActivityRuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => write!(f, "a cell has at most {MAX_ACTIVITY_RULES} rules: remove some first"),
            Self::Activity(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ActivityRuleError {}

/// Adds a rule behind the others: the first rule that matches a connection counts. Registers the rule's activity if the
/// cell has none of that name.
///
/// # Errors
/// [`ActivityRuleError`].
pub fn add_activity_rule(rule: ActivityRule) -> Result<(), ActivityRuleError> {
    let mut rules = RULES.rules.lock();
    if rules.len() >= MAX_ACTIVITY_RULES {
        return Err(ActivityRuleError::TooMany);
    }
    let existing = named(&rule.activity).into_iter().find(|activity| parent_of(*activity).is_none());
    let activity = match existing {
        Some(activity) => activity,
        None => register(&rule.activity).map_err(ActivityRuleError::Activity)?,
    };
    let mut longer = rules.to_vec();
    longer.push((rule, activity));
    *rules = Arc::new(longer);
    RULES.has_any.store(true, Ordering::Release);
    Ok(())
}

/// Removes all rules. Their activities remain.
pub fn clear_activity_rules() {
    *RULES.rules.lock() = Arc::default();
    RULES.has_any.store(false, Ordering::Release);
}

/// Returns all rules, in their order.
pub fn activity_rules() -> Vec<ActivityRule> {
    RULES.rules.lock().iter().map(|(rule, _)| rule.clone()).collect()
}

/// Returns whether there are rules.
#[inline]
pub(crate) fn has_any() -> bool {
    RULES.has_any.load(Ordering::Acquire)
}

/// The activity of an accepted connection.
pub(crate) struct Attributed {
    pub activity: ActivityId,
    /// Set if the activity is the connection's own.
    pub own: Option<OwnActivity>,
}

/// Returns the activity of an accepted connection, if a rule matches it. A rule whose connections have activities of
/// their own attributes a connection to the rule's activity if memory is short.
pub(crate) fn attribute(local: SocketAddr, remote: SocketAddr) -> Option<Attributed> {
    let rules = RULES.rules.lock().clone();
    let (rule, activity) = rules.iter().find(|(rule, _)| rule.matches(local, remote))?;
    let own = rule.each_connection.then(|| register_under(*activity, &remote.to_string()).ok()).flatten();
    Some(Attributed { activity: own.unwrap_or(*activity), own: own.map(OwnActivity) })
}

/// An activity of a single connection, which ends with the connection's record.
#[derive(Debug)]
pub(crate) struct OwnActivity(ActivityId);

impl Drop for OwnActivity {
    fn drop(&mut self) {
        end(self.0);
    }
}
