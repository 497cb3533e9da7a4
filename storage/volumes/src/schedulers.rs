//! The volumes of each core as schedulers of the resource `files`.

use crate::jobs::{Jobs, WeakJobs};
use crate::open_files::Mounted;
use alloc::vec::Vec;
use core::cell::RefCell;
use isola_abi::query::GridClient;
use isola_ebbs::{CellEbb, Ebb, Representative, current_core};
use isola_events::{present_cores, spawn_on};
use isola_resources::{FILES, merged};

static VOLUMES: Ebb<CoreVolumes> = Ebb::new();
static FOLLOWER: CellEbb<Follower> = CellEbb::new();

/// The volumes that a core serves.
#[derive(Default)]
struct CoreVolumes(RefCell<Vec<WeakJobs<Mounted>>>);

impl Representative for CoreVolumes {
    fn create() -> Self {
        Self::default()
    }
}

/// Makes the volumes follow changes of the settings while no operation comes or ends: all may wait for a limit.
struct Follower;

impl Representative for Follower {
    fn create() -> Self {
        FILES.on_change(|| present_cores().into_iter().for_each(|core| spawn_on(core, follow_here)));
        Self
    }
}

fn follow_here() {
    VOLUMES.0.borrow().iter().for_each(WeakJobs::follow);
}

/// Adds a volume of the calling core.
pub(crate) fn add(jobs: &Jobs<Mounted>) {
    let _follower: &Follower = &FOLLOWER;
    let mut volumes = VOLUMES.0.borrow_mut();
    volumes.retain(WeakJobs::is_alive);
    volumes.push(jobs.downgrade());
}

/// Returns the service that each activity has received at the calling core's volumes since `files` has a policy.
pub fn files_report() -> Vec<GridClient> {
    let volumes = VOLUMES.0.borrow();
    merged(volumes.iter().flat_map(|volume| volume.report(current_core().0)))
}
