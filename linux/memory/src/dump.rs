//! The parts of a process's memory that its core file has.

use crate::fetch::fetch;
use crate::pages::zeros;
use crate::{Mapping, ProcessMemory};
use alloc::vec::Vec;
use isola_memory::frame::Frame;
use isola_user_mode::PAGE_SIZE;

/// The first bytes of an ELF file.
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
/// The path of the mapping whose contents no file has, so that debuggers need them.
const VDSO: &[u8] = b"[vdso]";

impl ProcessMemory {
    /// Returns the bytes of a mapping, from its start, that a core file has, as Linux chooses them without a change of
    /// `/proc/PID/coredump_filter`: all of memory that the process has written, all of shared memory without a name in a file
    /// system, and the first page of an ELF file.
    pub async fn dumped_len(&self, mapping: &Mapping) -> u64 {
        let len = mapping.end - mapping.start;
        if mapping.attributes.dont_dump {
            return 0;
        }
        if self.has_own_pages(mapping) {
            return len;
        }
        let Some(object) = &mapping.object else { return 0 };
        let path = object.source.path();
        let has_no_name = object.source.is_memory() && path.ends_with(b" (deleted)");
        if path == VDSO || (mapping.is_shared && has_no_name) {
            return len;
        }
        if mapping.is_shared || object.first != 0 || !mapping.protection.readable {
            return 0;
        }
        let mut magic = [0; ELF_MAGIC.len()];
        if let Ok(frame) = fetch(&object.source, 0).await {
            frame.read(0, &mut magic);
        }
        if magic == ELF_MAGIC { PAGE_SIZE } else { 0 }
    }

    fn has_own_pages(&self, mapping: &Mapping) -> bool {
        let state = self.state.lock();
        let mut has = state.pages.hidden_in(mapping.start, mapping.end).next().is_some();
        state
            .pages
            .space
            .for_each(mapping.start, mapping.end, &mut |_, mapped| has |= mapped.frame.owners() > 0);
        has
    }

    /// Returns the pages of a part of a mapping, in ascending order, without those of zeros that do not exist. Pages of a file
    /// that cannot be read are missing.
    pub async fn dumped_pages(&self, mapping: &Mapping, start: u64, end: u64) -> Vec<(u64, Frame)> {
        let mut pages = Vec::new();
        {
            let state = self.state.lock();
            state.pages.space.for_each(start, end, &mut |page, mapped| {
                if !mapped.frame.is(zeros()) {
                    pages.push((page, mapped.frame.clone()));
                }
            });
            pages.extend(state.pages.hidden_in(start, end).map(|(page, frame)| (page, frame.clone())));
        }
        pages.sort_unstable_by_key(|(page, _)| *page);
        let Some(object) = &mapping.object else { return pages };
        let own = pages.len();
        for page in (start..end).step_by(PAGE_SIZE as usize) {
            let Some(index) = mapping.index_of(page) else { continue };
            if pages[..own].binary_search_by_key(&page, |(page, _)| *page).is_ok() {
                continue;
            }
            // A page of shared memory that does not exist would be created.
            let frame = match object.source.frame(index) {
                None if !mapping.is_shared => fetch(&object.source, index).await.ok(),
                frame => frame,
            };
            pages.extend(frame.map(|frame| (page, frame)));
        }
        pages.sort_unstable_by_key(|(page, _)| *page);
        pages
    }
}
