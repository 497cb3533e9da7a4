//! The devices of each core as followers of their resources' settings.

use crate::device::{BlockDevice, WeakDevice};
use alloc::vec::Vec;
use core::cell::RefCell;
use isola_ebbs::{CellEbb, Ebb, Representative};
use isola_events::{present_cores, spawn_on};
use isola_resources::GridResource;
use spin::Mutex;

static DEVICES: Ebb<CoreDevices> = Ebb::new();
static FOLLOWED: CellEbb<FollowedResources> = CellEbb::new();

/// The devices that a core serves.
#[derive(Default)]
struct CoreDevices(RefCell<Vec<WeakDevice>>);

impl Representative for CoreDevices {
    fn create() -> Self {
        Self::default()
    }
}

/// The resources of which changes wake the devices: all requests may wait for a limit.
#[derive(Default)]
struct FollowedResources(Mutex<Vec<GridResource>>);

impl Representative for FollowedResources {
    fn create() -> Self {
        Self::default()
    }
}

fn wake_all() {
    present_cores().into_iter().for_each(|core| spawn_on(core, wake_here));
}

fn wake_here() {
    DEVICES.0.borrow().iter().for_each(WeakDevice::wake);
}

/// Adds a device of the calling core.
pub(crate) fn add(device: &BlockDevice, resource: GridResource) {
    let mut devices = DEVICES.0.borrow_mut();
    devices.retain(WeakDevice::is_alive);
    devices.push(device.downgrade());
    let mut followed = FOLLOWED.0.lock();
    if !followed.contains(&resource) {
        followed.push(resource);
        resource.on_change(wake_all);
    }
}
