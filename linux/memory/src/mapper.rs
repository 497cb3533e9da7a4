//! Pages that go away because their object shrinks.

use crate::page_source::Mapper;
use crate::{BoxFuture, ProcessMemory};
use alloc::boxed::Box;
use alloc::sync::Weak;
use alloc::vec::Vec;
use isola_user_mode::PAGE_SIZE;

impl ProcessMemory {
    /// Returns the process as an object sees it.
    pub(crate) fn mapper(&self) -> Weak<dyn Mapper> {
        self.this.clone()
    }
}

impl Mapper for ProcessMemory {
    fn forget_pages(
        &self,
        identity: (u64, u64),
        first: u64,
        count: u64,
        keep_copies: bool,
    ) -> BoxFuture<'_, ()> {
        let flush = {
            let mut state = self.state.lock();
            let affected: Vec<_> =
                state.mappings.iter().filter(|mapping| has(mapping, identity)).cloned().collect();
            for mapping in affected {
                let Some(object) = &mapping.object else { continue };
                let end_index = first.saturating_add(count).min(object.first + mapping.pages());
                let first_index = first.max(object.first);
                if first_index >= end_index {
                    continue;
                }
                let address = |index: u64| mapping.start + (index - object.first) * PAGE_SIZE;
                let (start, end) = (address(first_index), address(end_index));
                if mapping.is_shared || !keep_copies {
                    state.remove_pages(&mapping, start, end);
                } else {
                    state.pages.remove_foreign(start, end, mapping.kind());
                }
            }
            state.pages.flush()
        };
        Box::pin(self.settle(flush))
    }

    fn may_write(&self, identity: (u64, u64)) -> bool {
        let writes = |mapping: &crate::Mapping| mapping.is_shared && mapping.maximum.writable;
        self.state.lock().mappings.iter().any(|mapping| writes(mapping) && has(mapping, identity))
    }
}

fn has(mapping: &crate::Mapping, identity: (u64, u64)) -> bool {
    mapping.object.as_ref().is_some_and(|object| object.source.identity() == identity)
}
