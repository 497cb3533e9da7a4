//! The account of a process: an activity of the resource grid, for as long as a thread works for it.

use crate::environment::Environment;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use isola_abi::id::ActivityId;

/// An activity that ends when the last owner of the account drops it. Each thread of a process is one.
pub struct Account {
    environment: Arc<dyn Environment>,
    /// `None` if the cell had no memory for another one: then the cycles are those of `parent`.
    activity: Option<ActivityId>,
    /// The activity of the group; `None` for that of the application.
    parent: Option<ActivityId>,
}

impl Account {
    /// Creates the account of a process below the activity of its group.
    pub fn new(
        environment: Arc<dyn Environment>,
        parent: Option<ActivityId>,
        pid: u32,
        name: &[u8],
    ) -> Arc<Self> {
        let activity = environment.activities().register(parent, &name_of(pid, name));
        Arc::new(Self { environment, activity, parent })
    }

    /// Returns the activity to which the cycles are charged; `None` for that of the application.
    pub fn activity(&self) -> Option<ActivityId> {
        self.activity.or(self.parent)
    }

    /// Returns the activity that the process has alone.
    pub fn own_activity(&self) -> Option<ActivityId> {
        self.activity
    }

    /// Gives the activity the name of the process's new program.
    pub fn rename(&self, pid: u32, name: &[u8]) {
        if let Some(activity) = self.activity {
            self.environment.activities().rename(activity, &name_of(pid, name));
        }
    }
}

/// Returns the name of a process's activity.
fn name_of(pid: u32, name: &[u8]) -> String {
    format!("{pid} {}", String::from_utf8_lossy(name))
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Some(activity) = self.activity {
            self.environment.activities().end(activity, self.parent);
        }
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({:?})", self.activity)
    }
}
