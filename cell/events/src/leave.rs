//! A core that leaves hands on what it holds.

use crate::event::spawn_on;
use isola_ebbs::fold_this_core;
use isola_platform::CoreIndex;

/// Has every Ebb of this core hand what it holds to `core`, and starts from nothing: the youngest first, each after the
/// other, in one event there, which is charged to the activity of the running one. See
/// [`Representative::fold`](isola_ebbs::Representative::fold).
///
/// # Panics
/// Where the cell has no such core.
pub fn fold_into(core: CoreIndex) {
    let handovers = fold_this_core();
    if !handovers.is_empty() {
        spawn_on(core, move || handovers.into_iter().for_each(|take_over| take_over()));
    }
}
