//! The settings of each resource.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use isola_abi::grid::{
    Entitlement, EntitlementError, GridChange, PolicyKind, Priority, Rate, Resource, Weight,
};
use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_abi::query::{GridEntitlement, GridSettings};
use isola_activities::{APPLICATION, INFRASTRUCTURE, generation, name_of};
use isola_ebbs::{CellEbb, Representative, platform};
use isola_platform::Instant;
use spin::Mutex;

static SETTINGS: CellEbb<AllSettings> = CellEbb::new();

/// The weight of [`INFRASTRUCTURE`] without an entitlement of its own.
const INFRASTRUCTURE_WEIGHT: u32 = 10 * Weight::DEFAULT.get();

/// The nanoseconds of a second.
const NS_PER_SECOND: u64 = 1_000_000_000;

/// The time of the cores.
pub const PROCESSOR: GridResource = GridResource(Resource::Processor);

/// The network device's queues for frames to send.
pub const NETWORK_WRITE: GridResource = GridResource(Resource::NetworkWrite);

/// The block devices' queues for requests.
pub const DISK: GridResource = GridResource(Resource::Disk);

/// The operations of the cell's file systems.
pub const FILES: GridResource = GridResource(Resource::Files);

/// Calls between machines.
pub const RPC: GridResource = GridResource(Resource::Rpc);

/// The cell's memory.
pub const MEMORY: GridResource = GridResource(Resource::Memory);

/// The handle of a resource of the calling core's cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridResource(Resource);

/// The settings of all resources, in the order of [`Resource::ALL`].
struct AllSettings([Shared; Resource::ALL.len()]);

/// The settings of a resource.
#[derive(Default)]
struct Shared {
    settings: Mutex<Settings>,
    /// The number of changes.
    version: AtomicU64,
    /// Called after each change.
    followers: Mutex<Vec<fn()>>,
}

#[derive(Default)]
struct Settings {
    /// `None`: no scheduler.
    policy: Option<PolicyKind>,
    /// `None`: 1.
    batch: Option<NonZeroU32>,
    limit: Option<Rate>,
    entitlements: Entitlements,
    /// The entitlements of activities by name, for those without one of their own.
    by_name: NamedEntitlements,
}

impl Settings {
    fn configuration(&self, policy: PolicyKind) -> Configuration {
        Configuration {
            policy,
            batch: self.batch.unwrap_or(NonZeroU32::MIN),
            limit: self.limit,
            entitlements: self.entitlements.clone(),
            by_name: self.by_name.clone(),
        }
    }
}

impl Representative for AllSettings {
    fn create() -> Self {
        Self(Resource::ALL.map(|_| Shared::default()))
    }
}

/// A copy of a resource's settings, for a scheduler.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The policy.
    pub policy: PolicyKind,
    /// The most requests of an activity that one decision dispatches.
    pub batch: NonZeroU32,
    /// The most that each scheduler serves.
    pub limit: Option<Rate>,
    entitlements: Entitlements,
    by_name: NamedEntitlements,
}

impl Configuration {
    /// Returns whether a request may have to wait although no other waits.
    pub fn has_limits(&self) -> bool {
        let own = self.entitlements.values().map(|(_, entitlement)| entitlement);
        let mut all = own.chain(self.by_name.values());
        self.limit.is_some()
            || (self.policy == PolicyKind::Reserve && all.any(|entitlement| entitlement.limit.is_some()))
    }

    /// Returns the entitlement of the activity that has this generation of its slot.
    pub(crate) fn entitlement(&self, activity: ActivityId, generation: Generation) -> Entitlement {
        entitlement_of(&self.entitlements, &self.by_name, activity, generation)
    }
}

fn entitlement_of(
    all: &Entitlements,
    by_name: &NamedEntitlements,
    activity: ActivityId,
    generation: Generation,
) -> Entitlement {
    match all.get(&activity) {
        Some((of, entitlement)) if *of == generation => return *entitlement,
        _ => {}
    }
    let named = if by_name.is_empty() { None } else { by_name.get(&name_of(activity)) };
    named.copied().unwrap_or_else(|| default_entitlement(activity))
}

/// The entitlements that were set, each for a generation of the activity. Those of ended ones go with the next change.
type Entitlements = BTreeMap<ActivityId, (Generation, Entitlement)>;

type NamedEntitlements = BTreeMap<String, Entitlement>;

fn default_entitlement(activity: ActivityId) -> Entitlement {
    if activity != INFRASTRUCTURE {
        return Entitlement::default();
    }
    let weight = Weight::new(INFRASTRUCTURE_WEIGHT).unwrap_or_default();
    Entitlement { weight, priority: Priority(u8::MAX), ..Entitlement::default() }
}

/// An entitlement that cannot be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResourceError {
    /// No activity has this slot.
    NoSuchActivity(ActivityId),
    /// No activity has this name.
    NoActivityNamed(String),
    /// The entitlement is contradictory.
    Entitlement(EntitlementError),
}

impl fmt::Display for ResourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchActivity(ActivityId(activity)) => write!(f, "the cell has no activity {activity}"),
            Self::NoActivityNamed(name) => {
                write!(f, "the cell has no activity {name:?}: `isola inspect` lists them")
            }
            Self::Entitlement(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ResourceError {}

impl From<EntitlementError> for ResourceError {
    fn from(error: EntitlementError) -> Self {
        Self::Entitlement(error)
    }
}

impl GridResource {
    /// Returns the handle of a resource.
    pub const fn of(resource: Resource) -> Self {
        Self(resource)
    }

    /// Sets the policy by which each scheduler of the resource orders the activities' requests; `None` for no scheduler.
    pub fn set_policy(self, policy: Option<PolicyKind>) {
        self.change(|settings| settings.policy = policy);
    }

    /// Sets the most requests of an activity that one decision dispatches: 1 at first. Larger batches cost less per
    /// request, and make shares coarser (omni-kernel 4.5).
    pub fn set_batch(self, requests: NonZeroU32) {
        self.change(|settings| settings.batch = Some(requests));
    }

    /// Sets the most that each scheduler serves, for all activities together, while there is a policy.
    pub fn set_limit(self, limit: Option<Rate>) {
        self.change(|settings| settings.limit = limit);
    }

    /// Sets the entitlement of an activity. It ends with the activity.
    ///
    /// # Errors
    /// [`ResourceError::NoSuchActivity`] if the activity was not registered or has ended,
    /// [`ResourceError::Entitlement`].
    pub fn set_entitlement(
        self,
        activity: ActivityId,
        entitlement: Entitlement,
    ) -> Result<(), ResourceError> {
        entitlement.check()?;
        let generation = generation(activity);
        if !generation.is_in_use() {
            return Err(ResourceError::NoSuchActivity(activity));
        }
        self.change(|settings| _ = settings.entitlements.insert(activity, (generation, entitlement)));
        Ok(())
    }

    /// Makes a change with which the cell starts: all of it or, with an error, nothing. The entitlement holds for each
    /// activity with that name, whenever that is registered.
    ///
    /// # Errors
    /// [`ResourceError::Entitlement`].
    pub fn set_up(change: &GridChange) -> Result<(), ResourceError> {
        change.check()?;
        let resource = Self(change.resource);
        let settings = GridChange { activity: None, ..change.clone() };
        let named = match &change.activity {
            Some((name, entitlement)) => {
                let is_infrastructure = *name == name_of(INFRASTRUCTURE);
                let before =
                    default_entitlement(if is_infrastructure { INFRASTRUCTURE } else { APPLICATION });
                Some((name.clone(), entitlement.of(before, resource.capacity())?))
            }
            None => None,
        };
        Self::apply(&settings)?;
        resource.change(|settings| settings.by_name.extend(named));
        Ok(())
    }

    /// Makes a change of the host tool: all of it or, with an error, nothing.
    ///
    /// # Errors
    /// [`ResourceError::NoActivityNamed`], [`ResourceError::Entitlement`].
    pub fn apply(change: &GridChange) -> Result<(), ResourceError> {
        change.check()?;
        let resource = Self(change.resource);
        let mut entitlements = Vec::new();
        if let Some((name, entitlement_change)) = &change.activity {
            for activity in isola_activities::named(name) {
                let entitlement =
                    entitlement_change.of(resource.entitlement(activity), resource.capacity())?;
                entitlements.push((activity, (generation(activity), entitlement)));
            }
            if entitlements.is_empty() {
                return Err(ResourceError::NoActivityNamed(name.clone()));
            }
        }
        let limit = change.limit.map(|limit| limit.rate(resource.capacity())).transpose()?;
        if change.dry_run {
            return Ok(());
        }
        resource.change(|settings| {
            if let Some(policy) = change.policy {
                settings.policy = policy.policy();
            }
            settings.batch = change.batch.or(settings.batch);
            settings.limit = limit.unwrap_or(settings.limit);
            settings.entitlements.extend(entitlements);
        });
        Ok(())
    }

    /// Returns the resource's settings, without those of activities.
    pub fn summary(self) -> GridSettings {
        let settings = self.shared().settings.lock();
        GridSettings {
            resource: self.0,
            policy: settings.policy,
            batch: settings.batch.unwrap_or(NonZeroU32::MIN),
            limit: settings.limit,
            capacity: self.capacity(),
            entitlements: self.set_entitlements(&settings).len() as u32,
        }
    }

    /// Returns the entitlements that were set, by name. Those of several activities of one name that are the same are
    /// one.
    pub fn entitlements(self) -> BTreeSet<GridEntitlement> {
        self.set_entitlements(&self.shared().settings.lock())
    }

    fn set_entitlements(self, settings: &Settings) -> BTreeSet<GridEntitlement> {
        let own = settings.entitlements.iter().filter(|(activity, (of, _))| generation(**activity) == *of);
        let own = own.map(|(activity, (_, entitlement))| (name_of(*activity), *entitlement));
        let named = settings.by_name.iter().map(|(name, entitlement)| (name.clone(), *entitlement));
        let all = own.chain(named);
        // One by one: to collect them would sort them, by code of 5 KB.
        let mut set = BTreeSet::new();
        set.extend(all.map(|(name, entitlement)| GridEntitlement { resource: self.0, name, entitlement }));
        set
    }

    /// Returns the rate of which rates can be given as parts, if there is one: the cycles of a core, and the time of a
    /// volume or of one call at a time.
    pub fn capacity(self) -> Option<Rate> {
        let clock = platform().clock();
        let origin = Instant::default();
        let per_second = || clock.cycles(origin + Duration::from_secs(1)) - clock.cycles(origin);
        match self.0 {
            Resource::Processor => Rate::per_second(per_second()).ok(),
            Resource::Files | Resource::Rpc => Rate::per_second(NS_PER_SECOND).ok(),
            Resource::NetworkWrite | Resource::Disk | Resource::Memory => None,
        }
    }

    /// Returns the entitlement of an activity.
    pub fn entitlement(self, activity: ActivityId) -> Entitlement {
        let settings = self.shared().settings.lock();
        entitlement_of(&settings.entitlements, &settings.by_name, activity, generation(activity))
    }

    /// Returns whether any activity has a hard budget.
    pub fn has_hard_budgets(self) -> bool {
        let settings = self.shared().settings.lock();
        let own = settings.entitlements.values().map(|(_, entitlement)| entitlement);
        own.chain(settings.by_name.values()).any(|entitlement| entitlement.memory.hard.is_some())
    }

    /// Returns the number of changes so far. To be read before [`Self::configuration`].
    pub fn version(self) -> u64 {
        self.shared().version.load(Ordering::Acquire)
    }

    /// Returns the configuration for the resource's schedulers; `None` without a policy.
    pub fn configuration(self) -> Option<Configuration> {
        let settings = self.shared().settings.lock();
        Some(settings.configuration(settings.policy?))
    }

    /// Returns the configuration for a scheduler that the resource always has: without a policy, with this one.
    pub fn configuration_or(self, policy: PolicyKind) -> Configuration {
        let settings = self.shared().settings.lock();
        settings.configuration(settings.policy.unwrap_or(policy))
    }

    /// Calls `follow` after each change, on the core that makes it.
    pub fn on_change(self, follow: fn()) {
        self.shared().followers.lock().push(follow);
    }

    fn change(self, apply: impl FnOnce(&mut Settings)) {
        let shared = self.shared();
        {
            let mut settings = shared.settings.lock();
            settings.entitlements.retain(|activity, (of, _)| generation(*activity) == *of);
            apply(&mut settings);
            shared.version.fetch_add(1, Ordering::Release);
        }
        let followers = shared.followers.lock().clone();
        followers.into_iter().for_each(|follow| follow());
    }

    fn shared(self) -> &'static Shared {
        let all: &'static AllSettings = &SETTINGS;
        &all.0[self.0 as usize]
    }
}
