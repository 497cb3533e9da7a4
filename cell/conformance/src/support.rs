//! Helpers for the checks.

use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::future::Future;
use isola_ebbs::{current_core, platform};
use isola_events::{parallel, yield_now};
use isola_platform::CoreIndex;

/// Returns the cell's initial number of cores.
pub fn cores() -> usize {
    platform().descriptor().cores.len()
}

/// Returns all cores but the calling one, or the calling one if it is the only core.
pub fn others() -> impl Iterator<Item = CoreIndex> {
    let (here, count) = (current_core().0, cores() as u32);
    (1..count.max(2)).map(move |distance| CoreIndex((here + distance) % count))
}

/// Returns the output of `work` on `core`. The future is created there.
pub async fn on_core<T, F>(core: CoreIndex, work: impl Fn() -> F + Send + Sync + 'static) -> Option<T>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let work = Arc::new(work);
    let results = parallel(core.0 as usize + 1, move |part| {
        let work = work.clone();
        async move { if part == core.0 as usize { Some(work().await) } else { None } }
    });
    results.await.pop().flatten()
}

/// Fragments the cell's memory: allocates it in small objects and frees every second one, so that half of the memory is
/// free, in small objects. Returns the objects in between; none if the cell uses its host's memory.
pub fn fragment_memory() -> Vec<Vec<u8>> {
    const OBJECT_LEN: usize = 64 << 10;
    /// Memory left for other allocations meanwhile.
    const LEFT: usize = 4 * OBJECT_LEN;
    let free = platform().memory_free();
    if free == usize::MAX {
        return Vec::new();
    }
    let mut held = Vec::with_capacity(free / OBJECT_LEN);
    let mut freed = Vec::with_capacity(free / OBJECT_LEN);
    while platform().memory_free() > LEFT {
        for objects in [&mut held, &mut freed] {
            let mut object: Vec<u8> = Vec::new();
            if object.try_reserve_exact(OBJECT_LEN).is_ok() {
                objects.push(object);
            }
        }
    }
    held
}

/// Completes when another event of this core has set `flag`.
pub(crate) async fn until_set(flag: &Rc<Cell<bool>>) {
    while !flag.get() {
        yield_now().await;
    }
}
