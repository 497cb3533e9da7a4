//! Waits for flushes, and the frames of processes that end before one is over.

use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_events::yield_now;
use isola_memory::frame::Frame;
use isola_user_mode::{AddressSpace, FlushGeneration};
use spin::Mutex;

/// The frames of ended processes.
static ORPHANS: Mutex<Vec<Orphans>> = Mutex::new(Vec::new());

/// The frames of an ended process that are freed after a flush.
type Orphans = (Arc<dyn AddressSpace>, FlushGeneration, Vec<Frame>);

/// Waits until a flush is over.
pub(crate) async fn flushed(space: &Arc<dyn AddressSpace>, generation: FlushGeneration) {
    while !space.is_flushed(generation) {
        yield_now().await;
    }
}

/// Keeps the frames of a process that ends until their flushes are over. A later call frees them.
pub(crate) fn adopt(space: &Arc<dyn AddressSpace>, buried: Vec<(FlushGeneration, Vec<Frame>)>) {
    let mut orphans = ORPHANS.lock();
    let over: Vec<_> =
        orphans.extract_if(.., |(space, generation, _)| space.is_flushed(*generation)).collect();
    let buried = buried.into_iter().filter(|(generation, _)| !space.is_flushed(*generation));
    orphans.extend(buried.map(|(generation, frames)| (Arc::clone(space), generation, frames)));
    drop(orphans);
    drop(over);
}
