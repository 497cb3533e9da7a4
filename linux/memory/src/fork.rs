//! Copies of a process's memory for a child.

use crate::mappings::Mappings;
use crate::pages::Pages;
use crate::process_memory::State;
use crate::{Errno, Mapping, PageSource, ProcessMemory};
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_user_mode::{AddressSpace, FrameGroup, GROUP_PAGES, PAGE_SIZE, PageRights};

/// The length of a group of pages.
const GROUP_LEN: u64 = GROUP_PAGES as u64 * PAGE_SIZE;

impl ProcessMemory {
    /// Creates a copy of the memory in an address space without pages (`fork`). Both share the private pages until one of
    /// them writes; pages that a call of the parent writes to meanwhile are copied at once. The child does not have pages that a page fault brings again: those of objects, and zeros.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`] if no memory is left for the child's page tables.
    pub async fn fork(&self, space: Arc<dyn AddressSpace>) -> Result<Arc<Self>, Errno> {
        let ((child, result), flush) = {
            let mut state = self.state.lock();
            let forked = state.fork(Arc::clone(&space));
            (forked, state.pages.flush())
        };
        // After an error, its drop unmaps the pages.
        let child = Self::with_state(space, child);
        // Also after an error: the parent's pages have lost rights.
        self.settle(flush).await;
        result?;
        child.attach_all();
        Ok(child)
    }

    /// Announces the process to the objects of all its mappings.
    fn attach_all(&self) {
        let mut sources = Vec::<Arc<dyn PageSource>>::new();
        let state = self.state.lock();
        for object in state.mappings.iter().filter_map(|mapping| mapping.object.as_ref()) {
            // The segments of a program follow each other.
            if sources.last().is_none_or(|last| !Arc::ptr_eq(last, &object.source)) {
                sources.push(Arc::clone(&object.source));
            }
        }
        drop(state);
        for source in sources {
            source.attach(self.mapper());
        }
    }
}

impl State {
    /// Returns the child's memory: a part of it if there is an error.
    fn fork(&mut self, space: Arc<dyn AddressSpace>) -> (Self, Result<(), Errno>) {
        let mut child = Self {
            mappings: Mappings::default(),
            pages: Pages::new(space, Arc::clone(&self.pages.charge)),
            layout: self.layout,
            limits: self.limits,
            break_start: self.break_start,
            break_end: self.break_end,
            // Locks are not inherited.
            locks_future: false,
            populates_future: false,
            peak_pages: 0,
            peak_resident: 0,
            forks: 0,
        };
        // After a fork that shares all pages, those that the program may write again are the ones that it has written since.
        let mut copies = if self.forks.is_multiple_of(FORKS_PER_SHARING) { 0 } else { MOST_COPIES };
        self.forks = self.forks.wrapping_add(1);
        let State { mappings, pages, .. } = self;
        child.mappings.reserve(mappings.len());
        for mapping in mappings.shared().iter().filter(|mapping| !mapping.attributes.dont_fork) {
            // Private mappings that are the same in both are one record. A shared object counts the mappings of each process.
            let copy = match mapping.is_shared || mapping.attributes.locked {
                false => Arc::clone(mapping),
                true => {
                    let mut copy = Mapping::clone(mapping);
                    copy.attributes.locked = false;
                    Arc::new(copy)
                }
            };
            child.mappings.push(copy);
            if !mapping.is_shared
                && mapping.was_writable
                && !mapping.attributes.wipe_on_fork
                && let Err(errno) = share_pages(pages, &mut child.pages, mapping, &mut copies)
            {
                return (child, Err(errno));
            }
        }
        child.peak_pages = child.mappings.pages();
        (child, Ok(()))
    }
}

/// The most pages that a fork copies at once as the process has written them since an earlier one: it will probably write them
/// again, and so will the child, which would cost a page fault each.
const MOST_COPIES: u32 = 16;

/// One of so many forks copies none: then the pages that the process no longer writes become shared.
const FORKS_PER_SHARING: u32 = 8;

/// Maps the own pages of a private mapping in the child, without the right to write in both. Up to `copies` pages that the
/// process may write are copied instead.
fn share_pages(
    parent: &mut Pages,
    child: &mut Pages,
    mapping: &Mapping,
    copies: &mut u32,
) -> Result<(), Errno> {
    let (start, end) = (mapping.start, mapping.end);
    let mut result = Ok(());
    let mut groups = Vec::<(u64, FrameGroup)>::new();
    let rights = mapping.protection.rights(false);
    parent.protect(start, end, |page, mapped| {
        if mapped.frame.owners() == 0 || result.is_err() {
            return mapped.rights;
        }
        let is_copied = mapped.rights.writable && *copies > 0;
        *copies -= u32::from(is_copied);
        mapped.frame.add_owner();
        if is_copied || mapped.frame.is_pinned() {
            // The parent will write to the frame again, or a call of it will, or has begun to.
            mapped.frame.remove_owner();
            let copy = child.copy(&mapped.frame);
            if copy.is_ok() || mapped.frame.is_pinned() {
                let rights = mapping.protection.rights(true);
                let copied = copy.and_then(|copy| child.map_own(page, &copy, rights));
                result = copied.map_err(|_| Errno::ENOMEM);
                return mapped.rights;
            }
            mapped.frame.add_owner();
        }
        let group = page / GROUP_LEN * GROUP_LEN;
        if groups.last().is_none_or(|(last, _)| *last != group) {
            groups.push((group, FrameGroup::default()));
        }
        if let Some((_, frames)) = groups.last_mut() {
            frames[((page - group) / PAGE_SIZE) as usize] = Some(mapped.frame.clone());
        }
        PageRights { writable: false, ..mapped.rights }
    });
    for (group, mut frames) in groups {
        // After an error, too: the child is an owner of all of them.
        result = child.map_own_group(group, &mut frames, rights).map_err(|_| Errno::ENOMEM).and(result);
    }
    result?;
    for (page, frame) in parent.hidden_in(start, end) {
        frame.add_owner();
        child.hide(page, frame.clone());
    }
    Ok(())
}
