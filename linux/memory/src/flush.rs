//! Waits for flushes.

use alloc::sync::Arc;
use isola_events::yield_now;
use isola_user_mode::{AddressSpace, FlushGeneration};

/// Waits until a flush is over.
pub(crate) async fn flushed(space: &Arc<dyn AddressSpace>, generation: FlushGeneration) {
    while !space.is_flushed(generation) {
        yield_now().await;
    }
}
