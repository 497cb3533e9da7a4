//! The policies, one per file.

mod by_head;
mod edf;
mod fifo;
mod priority;
mod reserve;
mod wfq;

pub use edf::Edf;
pub use fifo::Fifo;
pub use priority::Priority;
pub use reserve::Reserve;
pub use wfq::Wfq;

use crate::policy::Entity;
use alloc::vec::Vec;

/// The state of each member of a group, by the member's number.
#[derive(Debug)]
struct Members<S>(Vec<Option<S>>);

impl<S> Default for Members<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S> Members<S> {
    /// Returns a member's state, which `create` makes for a new member.
    fn get_or_add(&mut self, entity: Entity, create: impl FnOnce() -> S) -> &mut S {
        let index = entity.0 as usize;
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index].get_or_insert_with(create)
    }

    /// Returns the state of a member that was added.
    #[inline]
    fn get_mut(&mut self, entity: Entity) -> Option<&mut S> {
        self.0.get_mut(entity.0 as usize)?.as_mut()
    }

    fn remove(&mut self, entity: Entity) {
        if let Some(state) = self.0.get_mut(entity.0 as usize) {
            *state = None;
        }
    }
}
