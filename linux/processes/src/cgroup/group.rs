//! A group of processes.

use super::bandwidth::{Bandwidth, Quota};
use super::memory::{GroupAccounts, GroupMemory};
use crate::Errno;
use crate::environment::{Environment, Share, SharedResource};
use crate::family::ProcessorTime;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::id::ActivityId;
use isola_linux_memory::MemoryCharge;
use spin::Mutex;

/// The most levels of groups below the root: activities nest no deeper with one level more for processes.
pub const MOST_DEPTH: usize = 6;

/// A resource that a group divides among the groups below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// The time of the cores.
    Cpu,
    /// Block devices.
    Io,
    /// Memory.
    Memory,
    /// The number of threads.
    Pids,
}

impl Controller {
    /// All of them, in the order of `cgroup.controllers`.
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Io, Self::Memory, Self::Pids];

    /// Returns the name in `cgroup.controllers`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Io => "io",
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }
}

/// A set of controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controllers(u8);

impl Controllers {
    /// All of them.
    pub const ALL: Self = Self(0b1111);

    /// Returns whether a controller is in the set.
    pub const fn contains(self, controller: Controller) -> bool {
        self.0 >> controller as u8 & 1 != 0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether all of the set are in the other one.
    pub const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns the set with a controller, or without it.
    #[must_use]
    pub const fn changed(self, controller: Controller, is_in: bool) -> Self {
        let bit = 1 << controller as u8;
        if is_in { Self(self.0 | bit) } else { Self(self.0 & !bit) }
    }
}

/// The settings of a group.
#[derive(Debug)]
pub(super) struct Settings {
    /// The controllers of the groups below (`cgroup.subtree_control`).
    pub subtree: Controllers,
    /// `cpu.weight`.
    pub processor: Share,
    /// `io.weight`, `io.max`.
    pub disk: Share,
    /// The text of `io.max`.
    pub disk_limit: String,
    /// `pids.max`.
    pub most_tasks: Option<u64>,
    /// `cgroup.freeze`.
    pub is_frozen: bool,
    /// `cgroup.max.depth` and `cgroup.max.descendants`.
    pub most_depth: Option<u64>,
    pub most_descendants: Option<u64>,
    /// Whether the group was removed, and only processes that have ended still name it.
    pub is_removed: bool,
}

/// A group of processes. The root has no name and no parent.
pub struct Group {
    environment: Arc<dyn Environment>,
    name: Vec<u8>,
    parent: Option<Arc<Group>>,
    children: Mutex<BTreeMap<Vec<u8>, Arc<Group>>>,
    activity: Option<ActivityId>,
    accounts: Arc<GroupAccounts>,
    /// `None` for the root, whose memory is the cell's.
    memory: Option<Arc<GroupMemory>>,
    pub(super) settings: Mutex<Settings>,
    pub(super) bandwidth: Bandwidth,
    /// The processor time of processes that have ended.
    ended_time: Mutex<ProcessorTime>,
    refused_tasks: AtomicU64,
    this: Weak<Group>,
}

impl Group {
    /// Creates the root. `memory` is the account of the cell's memory.
    pub fn root(environment: &Arc<dyn Environment>, memory: Arc<dyn MemoryCharge>) -> Arc<Self> {
        let accounts = GroupAccounts::new(memory);
        Self::new(environment.clone(), Vec::new(), None, None, accounts, None)
    }

    fn new(
        environment: Arc<dyn Environment>,
        name: Vec<u8>,
        parent: Option<Arc<Group>>,
        activity: Option<ActivityId>,
        accounts: Arc<GroupAccounts>,
        memory: Option<Arc<GroupMemory>>,
    ) -> Arc<Self> {
        let settings = Settings {
            subtree: Controllers::default(),
            processor: Share::default(),
            disk: Share::default(),
            disk_limit: String::new(),
            most_tasks: None,
            is_frozen: false,
            most_depth: None,
            most_descendants: None,
            is_removed: false,
        };
        Arc::new_cyclic(|this| Self {
            environment,
            name,
            parent,
            children: Mutex::default(),
            activity,
            accounts,
            memory,
            settings: Mutex::new(settings),
            bandwidth: Bandwidth::default(),
            ended_time: Mutex::default(),
            refused_tasks: AtomicU64::new(0),
            this: this.clone(),
        })
    }

    /// Creates a group below this one.
    ///
    /// # Errors
    /// [`Errno::EEXIST`], [`Errno::EAGAIN`] below [`MOST_DEPTH`] levels or a limit that was set, [`Errno::EINVAL`] for a
    /// name with a line break, [`Errno::ENODEV`] if this one was removed, [`Errno::ENOMEM`].
    pub fn add(&self, name: &[u8]) -> Result<Arc<Self>, Errno> {
        if name.contains(&b'\n') {
            return Err(Errno::EINVAL);
        }
        let this = self.this.upgrade().ok_or(Errno::ENODEV)?;
        self.check_new_group()?;
        if self.children.lock().contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let memory = self.accounts.add(self.memory.clone()).ok_or(Errno::ENOMEM)?;
        let shown = alloc::format!("cgroup {}", String::from_utf8_lossy(name));
        let activity = self.environment.activities().register(self.activity, &shown).ok_or(Errno::ENOMEM)?;
        let group = Self::new(
            self.environment.clone(),
            name.to_vec(),
            Some(this),
            Some(activity),
            self.accounts.clone(),
            Some(memory),
        );
        let mut children = self.children.lock();
        // Another thread may have created it meanwhile, or removed this group.
        match children.contains_key(name) || self.settings.lock().is_removed {
            true => {
                drop(children);
                Err(Errno::EEXIST)
            }
            false => {
                children.insert(name.to_vec(), group.clone());
                Ok(group)
            }
        }
    }

    fn check_new_group(&self) -> Result<(), Errno> {
        if self.settings.lock().is_removed {
            return Err(Errno::ENODEV);
        }
        if self.depth() >= MOST_DEPTH {
            return Err(Errno::EAGAIN);
        }
        let own_depth = self.depth() as u64;
        let mut above = Some(self);
        while let Some(group) = above {
            let (most_depth, most_descendants) = {
                let settings = group.settings.lock();
                (settings.most_depth, settings.most_descendants)
            };
            let depth = own_depth + 1 - group.depth() as u64;
            if most_depth.is_some_and(|most| depth > most)
                || most_descendants.is_some_and(|most| group.descendants() >= most)
            {
                return Err(Errno::EAGAIN);
            }
            above = group.parent.as_deref();
        }
        Ok(())
    }

    /// Removes a group below this one. `is_populated` returns whether a group has processes.
    ///
    /// # Errors
    /// [`Errno::ENOENT`], [`Errno::EBUSY`] if it has processes or groups.
    pub fn remove(&self, name: &[u8], is_populated: impl FnOnce(&Arc<Self>) -> bool) -> Result<(), Errno> {
        let group = self.child(name).ok_or(Errno::ENOENT)?;
        // From here on no process can enter.
        group.settings.lock().is_removed = true;
        if !group.children.lock().is_empty() || is_populated(&group) {
            group.settings.lock().is_removed = false;
            return Err(Errno::EBUSY);
        }
        let removed = self.children.lock().remove(name);
        drop((removed, group));
        Ok(())
    }

    /// Returns a group below this one.
    pub fn child(&self, name: &[u8]) -> Option<Arc<Self>> {
        self.children.lock().get(name).cloned()
    }

    /// Returns the names of the groups below this one.
    pub fn child_names(&self) -> Vec<Vec<u8>> {
        self.children.lock().keys().cloned().collect()
    }

    /// Returns the number of groups below this one, at all levels.
    pub fn descendants(&self) -> u64 {
        let children: Vec<_> = self.children.lock().values().cloned().collect();
        children.iter().map(|child| 1 + child.descendants()).sum()
    }

    /// Returns the number of groups above.
    pub fn depth(&self) -> usize {
        self.parent.as_ref().map_or(0, |parent| parent.depth() + 1)
    }

    /// Returns whether it is the root.
    pub fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// Returns this group and those above it, without the root.
    pub fn with_ancestors(&self) -> impl Iterator<Item = Arc<Group>> {
        let this = self.this.upgrade().filter(|group| !group.is_root());
        core::iter::successors(this, |group| group.parent.clone().filter(|parent| !parent.is_root()))
    }

    /// Returns whether it is the other group, or below it.
    pub fn is_within(&self, other: &Arc<Self>) -> bool {
        other.is_root() || self.with_ancestors().any(|group| Arc::ptr_eq(&group, other))
    }

    /// Returns the path from the root, as `/proc/PID/cgroup` shows it.
    pub fn path(&self) -> String {
        let mut names: Vec<_> = self.with_ancestors().collect();
        names.reverse();
        let path = names
            .iter()
            .fold(String::new(), |path, group| path + "/" + &String::from_utf8_lossy(&group.name));
        match (path.is_empty(), self.settings.lock().is_removed) {
            (true, _) => "/".into(),
            (false, false) => path,
            (false, true) => path + " (deleted)",
        }
    }

    /// Returns the activity of the group; `None` for the root, whose processes are below the application's.
    pub fn activity(&self) -> Option<ActivityId> {
        self.activity
    }

    /// Returns the account for frames of its processes.
    pub fn charge(&self) -> Arc<dyn MemoryCharge> {
        self.accounts.charge(self.memory.clone())
    }

    /// Returns the memory of the group; `None` for the root.
    pub fn memory(&self) -> Option<&Arc<GroupMemory>> {
        self.memory.as_ref()
    }

    /// Returns the controllers that the group has: those that the parent gives to its groups.
    pub fn controllers(&self) -> Controllers {
        match &self.parent {
            Some(parent) => parent.settings.lock().subtree,
            None => Controllers::ALL,
        }
    }

    /// Verifies that a process may become a member.
    ///
    /// # Errors
    /// [`Errno::EBUSY`] if the group divides resources among groups below it, [`Errno::ENODEV`] if it was removed.
    pub fn check_new_process(&self) -> Result<(), Errno> {
        let settings = self.settings.lock();
        match () {
            () if settings.is_removed => Err(Errno::ENODEV),
            () if !self.is_root() && !settings.subtree.is_empty() => Err(Errno::EBUSY),
            () => Ok(()),
        }
    }

    /// Changes the controllers of the groups below. `has_processes` says whether the group itself has some.
    ///
    /// # Errors
    /// [`Errno::ENOENT`] if the group does not have the controller, [`Errno::EBUSY`] if a group below uses it, or the group
    /// has processes.
    pub fn set_subtree(&self, subtree: Controllers, has_processes: bool) -> Result<(), Errno> {
        if !subtree.is_within(self.controllers()) {
            return Err(Errno::ENOENT);
        }
        if !self.is_root() && has_processes && !subtree.is_empty() {
            return Err(Errno::EBUSY);
        }
        let children: Vec<_> = self.children.lock().values().cloned().collect();
        if children.iter().any(|child| !child.settings.lock().subtree.is_within(subtree)) {
            return Err(Errno::EBUSY);
        }
        self.settings.lock().subtree = subtree;
        Ok(())
    }

    /// Sets the share of a resource.
    pub fn set_share(&self, resource: SharedResource, share: Share) {
        {
            let mut settings = self.settings.lock();
            match resource {
                SharedResource::Processor => settings.processor = share,
                SharedResource::Disk => settings.disk = share,
            }
        }
        if let Some(activity) = self.activity {
            self.environment.activities().set_share(activity, resource, share);
        }
    }

    /// Sets the limit of processor time; `None` for none.
    pub fn set_quota(&self, quota: Option<Quota>) {
        self.bandwidth.set(quota);
    }

    /// Counts time that a thread of the group or one below has used, and answers whether it may continue.
    pub fn bandwidth(&self, now_ns: u64, used_ns: u64) -> super::bandwidth::Grant {
        self.bandwidth.ask(now_ns, used_ns)
    }

    /// Returns whether this group or one above limits the processor time.
    pub fn limits_processor(&self) -> bool {
        self.with_ancestors().any(|group| group.bandwidth.quota().is_some())
    }

    /// Returns the limit of threads.
    pub fn most_tasks(&self) -> Option<u64> {
        self.settings.lock().most_tasks
    }

    /// Counts a thread that the limit did not permit.
    pub fn count_refused_task(&self) {
        self.refused_tasks.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of threads that the limit did not permit.
    pub fn refused_tasks(&self) -> u64 {
        self.refused_tasks.load(Ordering::Relaxed)
    }

    /// Returns whether this group or one above is frozen.
    pub fn is_frozen(&self) -> bool {
        self.with_ancestors().any(|group| group.settings.lock().is_frozen)
    }

    /// Adds the time of a process that has ended to that of the group and those above.
    pub fn add_ended_time(&self, time: ProcessorTime) {
        let mut group = Some(self);
        while let Some(this) = group {
            let mut ended = this.ended_time.lock();
            *ended = ended.plus(time);
            group = this.parent.as_deref();
        }
    }

    /// Returns the time of processes that have ended.
    pub fn ended_time(&self) -> ProcessorTime {
        *self.ended_time.lock()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(activity) = self.activity {
            let parent = self.parent.as_ref().and_then(|parent| parent.activity);
            self.environment.activities().end(activity, parent);
        }
        if let Some(memory) = &self.memory {
            self.accounts.remove(memory);
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({})", self.path())
    }
}
