//! The processes that map an object.

use crate::Mapper;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use spin::Mutex;

/// The processes that map an object whose pages can go away, or that can be sealed.
#[derive(Default)]
pub struct Mappers(Mutex<Vec<Weak<dyn Mapper>>>);

impl Mappers {
    /// Adds a process.
    pub fn attach(&self, mapper: Weak<dyn Mapper>) {
        let mut mappers = self.0.lock();
        mappers.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&mapper));
        mappers.push(mapper);
    }

    /// Returns whether no process has mapped the object.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    fn all(&self) -> Vec<Arc<dyn Mapper>> {
        let mut mappers = self.0.lock();
        mappers.retain(|mapper| mapper.strong_count() > 0);
        mappers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Unmaps removed pages from all processes, as [`Mapper::forget_pages`].
    pub async fn forget(&self, identity: (u64, u64), first: u64, count: u64, keep_copies: bool) {
        for mapper in self.all() {
            mapper.forget_pages(identity, first, count, keep_copies).await;
        }
    }

    /// Returns whether a mapping of the object permits writes to it, now or after `mprotect`.
    pub fn may_write(&self, identity: (u64, u64)) -> bool {
        self.all().iter().any(|mapper| mapper.may_write(identity))
    }
}
