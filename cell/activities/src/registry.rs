//! The registry: which activities exist, and where their usage is counted.
//!
//! Names and the tree change and are read under a lock. Events read only generations, accounts and counters, which need
//! none.

use crate::table::GrowingTable;
use crate::traffic::{TrafficCounters, combined};
use crate::{APPLICATION, Activity, ActivityError, INFRASTRUCTURE, Usage};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use isola_abi::id::ActivityId;
use isola_abi::ledger::{ACTIVITY_NAME_LEN, ActivityRecord, ActivityReport, Generation, SlotGeneration};
use isola_abi::query::ActivityTraffic;
use isola_ebbs::{CellEbb, Representative, platform};
use spin::Mutex;

static REGISTRY: CellEbb<Registry> = CellEbb::new();

/// The most ancestors of an activity.
pub const MAX_DEPTH: u32 = 8;

/// The maximum length of a private activity's name, in bytes of UTF-8.
pub const PRIVATE_NAME_LEN: usize = 64;

/// Free private entries beyond which new activities reuse one. An ended activity's id stays unused for at least as many
/// registrations.
const SPARE_ENTRIES: usize = 64;

pub(crate) struct Registry {
    /// Private activities: entry `n` has the id `ledger slots + n`.
    entries: GrowingTable<Entry>,
    /// The counters of private activities, by core slot. Only the core itself writes them.
    counters: Box<[GrowingTable<ActivityReport>]>,
    /// The traffic of all activities by id, by core slot.
    pub traffic: Box<[GrowingTable<TrafficCounters>]>,
    tree: Mutex<Tree>,
}

/// The part of a private activity that events read.
#[derive(Default)]
struct Entry {
    generation: SlotGeneration,
    /// The slot of the ledger that counts for it.
    slot: AtomicU32,
}

#[derive(Default)]
struct Tree {
    /// By ledger slot.
    ledger: Vec<Node>,
    /// By private entry.
    private: Vec<Node>,
    /// Free private entries, in the order of their release.
    free: VecDeque<u32>,
    /// The first ledger slot that no activity has had.
    fresh_slot: usize,
    /// Free ledger slots, in the order of their release: a freed slot stays free for as long as possible.
    free_slots: VecDeque<usize>,
    /// The traffic of activities without a parent that have ended.
    ended: ActivityTraffic,
}

#[derive(Default)]
struct Node {
    /// Of a private activity; the ledger has the names of others.
    name: String,
    parent: Option<ActivityId>,
    /// The number of ancestors.
    depth: u32,
    /// The number of children that have not ended.
    children: u32,
    /// Whether it was ended, and remains for its children.
    has_ended: bool,
    /// The usage of earlier activities of a private entry; their traffic only, of a slot of the ledger.
    before: Usage,
    /// The usage of ended children. Of an activity of the ledger, only their traffic is missing in its own counters.
    ended_children: Usage,
}

/// Where the usage of a private activity is counted on a core.
#[derive(Clone, Copy, Debug)]
pub struct Private {
    /// The number of the slot; `None` for an id that no activity has had.
    slot: Option<&'static AtomicU32>,
    /// The activity's own counters; `None` if the cell had no memory for them.
    pub counters: Option<&'static ActivityReport>,
}

impl Private {
    /// Returns the slot of the ledger that counts for it. A later activity with the same id may have another one, which a
    /// copy of this value knows.
    #[inline]
    pub fn slot(&self) -> ActivityId {
        self.slot.map_or(APPLICATION, |slot| ActivityId(slot.load(Ordering::Relaxed)))
    }
}

impl Representative for Registry {
    fn create() -> Self {
        let records = platform().ledger().records();
        for (record, name) in records.iter().zip(["application", "infrastructure"]) {
            if record.generation.claim() {
                assign(record, name);
            }
        }
        report_slots(records.len().min(2));
        let core_slots = platform().ledger().counters().len() / records.len().max(1);
        Self {
            entries: GrowingTable::new(),
            counters: (0..core_slots).map(|_| GrowingTable::new()).collect(),
            traffic: (0..core_slots).map(|_| GrowingTable::new()).collect(),
            tree: Mutex::new(Tree { fresh_slot: 2, ..Tree::default() }),
        }
    }
}

pub(crate) fn registry() -> &'static Registry {
    &REGISTRY
}

/// Ensures that the predefined activities have their names.
pub fn start() {
    registry();
}

/// Registers an activity without a parent. Control characters are removed from the name, and it is cut to
/// [`ACTIVITY_NAME_LEN`] bytes, or [`PRIVATE_NAME_LEN`] if the ledger has no free slot.
///
/// # Errors
/// [`ActivityError::NoMemory`].
pub fn register(name: &str) -> Result<ActivityId, ActivityError> {
    let registry = registry();
    let mut tree = registry.tree.lock();
    if let Some(activity) = tree.add_to_ledger(name) {
        tree.node(activity).before.traffic = registry.traffic_at(activity);
        return Ok(activity);
    }
    registry.add_private(&mut tree, name, None, APPLICATION)
}

/// Registers an activity below another. Control characters are removed from the name, and it is cut to
/// [`PRIVATE_NAME_LEN`] bytes.
///
/// # Errors
/// [`ActivityError`].
pub fn register_under(parent: ActivityId, name: &str) -> Result<ActivityId, ActivityError> {
    let registry = registry();
    let mut tree = registry.tree.lock();
    if !generation(parent).is_in_use() {
        return Err(ActivityError::NoSuchParent(parent));
    }
    let node = tree.node(parent);
    if node.has_ended {
        return Err(ActivityError::NoSuchParent(parent));
    }
    if node.depth >= MAX_DEPTH {
        return Err(ActivityError::TooDeep);
    }
    let entry = private_index(parent).and_then(|index| registry.entries.get(index));
    let slot = entry.map_or(parent, Entry::slot);
    registry.add_private(&mut tree, name, Some(parent), slot)
}

/// Ends an activity. Returns whether it existed; the predefined ones cannot end.
///
/// An activity with children remains until the last of them has ended, but gets no more. Otherwise its id is free for
/// another. To be called when no event, task or connection works for the activity any more: later use is charged to the
/// next activity of that id.
pub fn end(activity: ActivityId) -> bool {
    let registry = registry();
    let mut tree = registry.tree.lock();
    if activity == APPLICATION || activity == INFRASTRUCTURE || !generation(activity).is_in_use() {
        return false;
    }
    if core::mem::replace(&mut tree.node(activity).has_ended, true) {
        return false;
    }
    let mut ending = Some(activity);
    while let Some(activity) = ending {
        let node = tree.node(activity);
        if !node.has_ended || node.children > 0 {
            break;
        }
        let Node { parent, before, ended_children, .. } = core::mem::take(node);
        if let Some(index) = private_index(activity) {
            let mut usage = registry.counted(index).since(before);
            usage.add(ended_children);
            match parent {
                Some(parent) => tree.node(parent).ended_children.add(usage),
                None => tree.add_ended(usage.traffic),
            }
            if let Some(entry) = registry.entries.get(index) {
                entry.generation.free();
            }
            tree.free.push_back(index);
        } else if let Some(record) = platform().ledger().record(activity) {
            let own = combined(registry.traffic_at(activity), before.traffic, u64::wrapping_sub);
            tree.add_ended(combined(own, ended_children.traffic, u64::wrapping_add));
            record.generation.free();
            tree.free_slots.push_back(activity.index());
        }
        if let Some(parent) = parent {
            tree.node(parent).children -= 1;
        }
        ending = parent;
    }
    true
}

/// Gives an activity another name, which is cut as at its registration: for a process that executes another program. An
/// activity that does not exist is ignored.
pub fn rename(activity: ActivityId, name: &str) {
    let mut tree = registry().tree.lock();
    if !generation(activity).is_in_use() {
        return;
    }
    match platform().ledger().record(activity) {
        Some(record) => write_name(record, name),
        None => tree.node(activity).name = shortened(name, PRIVATE_NAME_LEN),
    }
}

/// Returns the usage of an activity, its descendants' included; the default if it does not exist.
pub fn usage_of(activity: ActivityId) -> Usage {
    list().into_iter().find(|listed| listed.id == activity).map(|listed| listed.usage).unwrap_or_default()
}

/// Returns the traffic of the activities without a parent that have ended, and of those that were below them. With that
/// of the others, it is all traffic that was counted.
pub fn traffic_of_ended() -> ActivityTraffic {
    registry().tree.lock().ended
}

/// Returns the generation of an activity's slot or entry: another activity of that id has another.
#[inline]
pub fn generation(activity: ActivityId) -> Generation {
    if let Some(record) = platform().ledger().record(activity) {
        return record.generation.get();
    }
    let entry = private_index(activity).and_then(|index| registry().entries.get(index));
    entry.map(|entry| entry.generation.get()).unwrap_or_default()
}

/// Returns the parent of an activity.
pub fn parent_of(activity: ActivityId) -> Option<ActivityId> {
    registry().tree.lock().find(activity)?.parent
}

/// Returns the name of an activity.
pub fn name_of(activity: ActivityId) -> String {
    match platform().ledger().record(activity) {
        Some(record) => name_in(record),
        None => registry().tree.lock().find(activity).map(|node| node.name.clone()).unwrap_or_default(),
    }
}

/// Returns all activities with that name.
pub fn named(name: &str) -> Vec<ActivityId> {
    all().into_iter().filter(|activity| name_of(*activity) == name).collect()
}

/// Returns all activities and their usage; parents before their children.
pub fn list() -> Vec<Activity> {
    let registry = registry();
    let tree = registry.tree.lock();
    let mut activities: Vec<(u32, Activity)> = Vec::new();
    for id in all() {
        let node = tree.find(id);
        let usage = match (platform().ledger().record(id), private_index(id), node) {
            (Some(record), ..) => {
                let mut usage = usage_in_ledger(id, record);
                let (before, ended) = node.map(|node| (node.before, node.ended_children)).unwrap_or_default();
                let own = combined(registry.traffic_at(id), before.traffic, u64::wrapping_sub);
                usage.traffic = combined(own, ended.traffic, u64::wrapping_add);
                usage
            }
            (None, Some(index), Some(node)) => {
                let mut usage = registry.counted(index).since(node.before);
                usage.add(node.ended_children);
                usage
            }
            _ => continue,
        };
        let depth = node.map_or(0, |node| node.depth);
        activities.push((depth, Activity { id, parent: node.and_then(|node| node.parent), usage }));
    }
    activities.sort_unstable_by_key(|(depth, activity)| (*depth, activity.id));
    let mut activities: Vec<Activity> = activities.into_iter().map(|(_, activity)| activity).collect();
    let mut index_of: BTreeMap<ActivityId, usize> = BTreeMap::new();
    index_of.extend(activities.iter().enumerate().map(|(index, activity)| (activity.id, index)));
    for index in (0..activities.len()).rev() {
        let Activity { parent, usage, .. } = activities[index];
        let Some(parent) = parent else { continue };
        let Some(&above) = index_of.get(&parent) else { continue };
        let above = &mut activities[above].usage;
        match private_index(parent) {
            Some(_) => above.add(usage),
            // The ledger has the usage of its activities' descendants already, apart from traffic.
            None => above.traffic = combined(above.traffic, usage.traffic, u64::wrapping_add),
        }
    }
    activities
}

/// Returns where the usage of a private activity on a core slot is counted, or `None` for an activity of the ledger. An
/// id that no activity has is treated as a private activity of [`APPLICATION`].
#[cold]
#[inline(never)]
pub fn private(activity: ActivityId, core: usize) -> Option<Private> {
    let index = private_index(activity)?;
    let registry = registry();
    let Some(entry) = registry.entries.get(index) else {
        return Some(Private { slot: None, counters: None });
    };
    let slot = Some(&entry.slot);
    let counters = registry.counters.get(core).and_then(|counters| counters.get_or_add(index).ok());
    Some(Private { slot, counters })
}

/// Returns the activity of the ledger that counts for an activity: itself, or an ancestor.
pub fn counted_by(activity: ActivityId) -> ActivityId {
    match private_index(activity) {
        Some(index) => registry().entries.get(index).map_or(APPLICATION, Entry::slot),
        None => activity,
    }
}

/// Returns the counters of an activity on a core slot; `None` if it has used nothing there.
pub fn counters(activity: ActivityId, core: usize) -> Option<&'static ActivityReport> {
    match private_index(activity) {
        Some(index) => registry().counters.get(core)?.get(index),
        None => platform().ledger().core(core).get(activity.index()),
    }
}

impl Registry {
    fn add_private(
        &self,
        tree: &mut Tree,
        name: &str,
        parent: Option<ActivityId>,
        slot: ActivityId,
    ) -> Result<ActivityId, ActivityError> {
        let index = match tree.free.pop_front() {
            Some(index) if tree.free.len() >= SPARE_ENTRIES => index,
            spare => {
                spare.into_iter().for_each(|index| tree.free.push_front(index));
                tree.private.len() as u32
            }
        };
        let activity = id_of(index).ok_or(ActivityError::NoMemory)?;
        let entry = self.entries.get_or_add(index)?;
        entry.slot.store(slot.0, Ordering::Relaxed);
        let depth = parent.map_or(0, |parent| tree.node(parent).depth + 1);
        *tree.node(activity) = Node {
            name: shortened(name, PRIVATE_NAME_LEN),
            parent,
            depth,
            before: self.counted(index),
            ..Node::default()
        };
        if let Some(parent) = parent {
            tree.node(parent).children += 1;
        }
        entry.generation.claim();
        entry.generation.give_out();
        Ok(activity)
    }

    /// Returns the usage of a private entry by all activities that have had it.
    fn counted(&self, index: u32) -> Usage {
        let mut sum = Usage::default();
        for counters in self.counters.iter().filter_map(|counters| counters.get(index)) {
            sum.add(Usage {
                cycles: counters.cycles.load(Ordering::Relaxed),
                events: counters.events.load(Ordering::Relaxed),
                ..Usage::default()
            });
        }
        sum.traffic = id_of(index).map(|activity| self.traffic_at(activity)).unwrap_or_default();
        sum
    }

    /// Returns the traffic of an id by all activities that have had it.
    fn traffic_at(&self, activity: ActivityId) -> ActivityTraffic {
        let of_cores = self.traffic.iter().filter_map(|of_core| of_core.get(activity.0));
        of_cores.fold(ActivityTraffic::default(), |sum, counters| {
            combined(sum, counters.read(), u64::wrapping_add)
        })
    }
}

impl Entry {
    fn slot(&self) -> ActivityId {
        ActivityId(self.slot.load(Ordering::Relaxed))
    }
}

impl Tree {
    fn add_ended(&mut self, traffic: ActivityTraffic) {
        self.ended = combined(self.ended, traffic, u64::wrapping_add);
    }

    /// Registers an activity in the ledger, if it has a free slot.
    fn add_to_ledger(&mut self, name: &str) -> Option<ActivityId> {
        let records = platform().ledger().records();
        let slot = match self.fresh_slot {
            slot if slot < records.len() => {
                self.fresh_slot += 1;
                slot
            }
            _ => self.free_slots.pop_front()?,
        };
        records[slot].generation.claim();
        let (before, used) = (&records[slot].before, platform().ledger().sum(slot));
        before.cycles.store(used.cycles.into_inner(), Ordering::Relaxed);
        before.events.store(used.events.into_inner(), Ordering::Relaxed);
        before.memory_bytes.store(used.memory_bytes.into_inner(), Ordering::Relaxed);
        assign(&records[slot], name);
        report_slots(slot + 1);
        let activity = ActivityId(slot as u32);
        *self.node(activity) = Node::default();
        Some(activity)
    }

    fn find(&self, activity: ActivityId) -> Option<&Node> {
        match private_index(activity) {
            Some(index) => self.private.get(index as usize),
            None => self.ledger.get(activity.index()),
        }
    }

    /// Returns the node of an activity, and adds nodes up to its own if necessary.
    fn node(&mut self, activity: ActivityId) -> &mut Node {
        let (nodes, index) = match private_index(activity) {
            Some(index) => (&mut self.private, index as usize),
            None => (&mut self.ledger, activity.index()),
        };
        if index >= nodes.len() {
            nodes.resize_with(index + 1, Node::default);
        }
        &mut nodes[index]
    }
}

/// Returns the entry of a private activity's id; `None` for ids of the ledger.
#[inline]
fn private_index(activity: ActivityId) -> Option<u32> {
    activity.0.checked_sub(platform().ledger().records().len() as u32)
}

fn id_of(index: u32) -> Option<ActivityId> {
    index.checked_add(platform().ledger().records().len() as u32).map(ActivityId)
}

/// Returns the ids of all activities, in ascending order.
fn all() -> Vec<ActivityId> {
    let records = platform().ledger().records();
    let in_ledger = (0..records.len() as u32).map(ActivityId);
    let entries = &registry().entries;
    let private = (0..).map_while(|index| entries.get(index).and_then(|_| id_of(index)));
    in_ledger.chain(private).filter(|activity| generation(*activity).is_in_use()).collect()
}

/// Gives a claimed slot to the activity of that name.
fn assign(record: &ActivityRecord, name: &str) {
    write_name(record, name);
    record.generation.give_out();
}

fn write_name(record: &ActivityRecord, name: &str) {
    let name = shortened(name, ACTIVITY_NAME_LEN);
    let bytes = name.bytes().chain(core::iter::repeat(0));
    record.name.iter().zip(bytes).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
}

/// Reports that the first `count` slots of the ledger have been used.
fn report_slots(count: usize) {
    platform().report().activity_count.fetch_max(count as u32, Ordering::Release);
}

fn shortened(name: &str, len: usize) -> String {
    let name: String = name.chars().filter(|letter| !letter.is_control()).collect();
    name[..name.floor_char_boundary(len)].to_string()
}

fn name_in(record: &ActivityRecord) -> String {
    let bytes = record.name.iter().map(|byte| byte.load(Ordering::Relaxed)).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// Returns the usage of an activity of the ledger since it has its slot.
fn usage_in_ledger(activity: ActivityId, record: &ActivityRecord) -> Usage {
    let used = platform().ledger().sum(activity.index());
    let before = Usage {
        cycles: record.before.cycles.load(Ordering::Relaxed),
        events: record.before.events.load(Ordering::Relaxed),
        ..Usage::default()
    };
    let used =
        Usage { cycles: used.cycles.into_inner(), events: used.events.into_inner(), ..Usage::default() };
    used.since(before)
}
