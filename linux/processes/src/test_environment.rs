//! A cell for unit tests, in which no time passes and no task runs.

use crate::environment::{
    Activities, CoreTime, Environment, Share, SharedResource, TaskMaker, TaskPlacement,
};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_abi::id::ActivityId;
use isola_abi::query::ActivityTraffic;
use isola_linux_memory::BoxFuture;

struct TestEnvironment;

/// Returns the cell.
pub(crate) fn environment() -> Arc<dyn Environment> {
    Arc::new(TestEnvironment)
}

impl Environment for TestEnvironment {
    fn monotonic_ns(&self) -> u64 {
        0
    }

    fn unix_ns(&self) -> u64 {
        0
    }

    fn cycles(&self) -> (u64, u64) {
        (0, 1_000_000_000)
    }

    fn sleep_until(&self, _: u64) -> BoxFuture<'static, ()> {
        Box::pin(core::future::pending())
    }

    fn spawn(&self, _: TaskMaker, _: TaskPlacement) {}

    fn random(&self) -> u64 {
        0
    }

    fn core_count(&self) -> usize {
        1
    }

    fn current_core(&self) -> usize {
        0
    }

    fn halted_cores(&self) -> u64 {
        0
    }

    fn has_competition(&self) -> bool {
        false
    }

    fn core_times(&self) -> Vec<CoreTime> {
        Vec::new()
    }

    fn activities(&self) -> &dyn Activities {
        self
    }

    fn memory(&self) -> (u64, u64) {
        (0, 0)
    }

    fn host_name(&self) -> String {
        String::new()
    }

    fn report(&self, _: &str) {}
}

impl Activities for TestEnvironment {
    fn register(&self, _: Option<ActivityId>, _: &str) -> Option<ActivityId> {
        None
    }

    fn rename(&self, _: ActivityId, _: &str) {}

    fn end(&self, _: ActivityId, _: Option<ActivityId>) {}

    fn charge_to(&self, _: Option<ActivityId>) {}

    fn cycles(&self, _: ActivityId) -> u64 {
        0
    }

    fn traffic(&self, _: Option<ActivityId>) -> ActivityTraffic {
        ActivityTraffic::default()
    }

    fn set_share(&self, _: ActivityId, _: SharedResource, _: Share) {}
}
