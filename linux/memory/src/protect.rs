//! `mprotect`.

use crate::map::aligned_range;
use crate::process_memory::{State, mark_dirty};
use crate::{Errno, ProcessMemory, Protection};
use isola_linux_abi::numbers::{PROT_EXEC, PROT_GROWSDOWN, PROT_GROWSUP, PROT_READ, PROT_SEM, PROT_WRITE};
use isola_user_mode::FlushGeneration;

impl ProcessMemory {
    /// Changes the permitted accesses of a range (`mprotect`), and waits until no thread has the former ones.
    ///
    /// # Errors
    /// Those of `mprotect`(2). With [`Errno::ENOMEM`] for an address that is not mapped, the mappings before it have
    /// changed.
    pub async fn protect(&self, address: u64, len: u64, protection: u32) -> Result<(), Errno> {
        let (result, flush) = self.begin_protect(address, len, protection);
        self.settle(flush).await;
        result
    }

    /// As [`Self::protect`], without the wait: the caller [settles](Self::settle) the flush before a thread continues, also
    /// after an error.
    pub fn begin_protect(
        &self,
        address: u64,
        len: u64,
        protection: u32,
    ) -> (Result<(), Errno>, Option<FlushGeneration>) {
        let mut state = self.state.lock();
        let result = state.protect_range(address, len, protection);
        (result, state.pages.flush())
    }
}

impl State {
    fn protect_range(&mut self, address: u64, len: u64, bits: u32) -> Result<(), Errno> {
        let grows = bits & (PROT_GROWSDOWN | PROT_GROWSUP);
        let bits = bits & !(PROT_GROWSDOWN | PROT_GROWSUP);
        if grows == PROT_GROWSDOWN | PROT_GROWSUP || !address.is_multiple_of(isola_user_mode::PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        if len == 0 {
            return Ok(());
        }
        let end = aligned_range(address, len).ok_or(Errno::ENOMEM)?;
        if bits & !(PROT_READ | PROT_WRITE | PROT_EXEC | PROT_SEM) != 0 || grows & PROT_GROWSUP != 0 {
            return Err(Errno::EINVAL);
        }
        let mut start = address;
        if grows & PROT_GROWSDOWN != 0 {
            let first = self.mappings.overlapping(start, end).next().ok_or(Errno::ENOMEM)?;
            if !first.attributes.grows_down {
                return Err(Errno::EINVAL);
            }
            start = first.start;
        }
        self.mappings.check_split(start, end)?;
        let protection = Protection::from_bits(bits);
        // The mappings up to the first hole, or to the first that may not have these accesses.
        let (mut next, mut result) = (start, Ok(()));
        let mut data_pages = 0;
        for mapping in self.mappings.overlapping(start, end) {
            if mapping.start > next {
                break;
            }
            let mapping_end = mapping.end.min(end);
            let becomes_data = !mapping.is_shared
                && !mapping.attributes.grows_down
                && protection.writable
                && !mapping.protection.writable;
            data_pages += if becomes_data { (mapping_end - next) / isola_user_mode::PAGE_SIZE } else { 0 };
            if !protection.is_within(mapping.maximum) {
                result = Err(Errno::EACCES);
                break;
            }
            if data_pages > 0 && !self.may_grow_data(data_pages) {
                result = Err(Errno::ENOMEM);
                break;
            }
            next = mapping_end;
        }
        if result.is_ok() && next < end {
            result = Err(Errno::ENOMEM);
        }
        if start < next {
            self.protect_mappings(start, next, protection);
        }
        result
    }

    fn may_grow_data(&self, pages: u64) -> bool {
        self.mappings.data_pages() + pages <= self.limits.data / isola_user_mode::PAGE_SIZE
    }

    /// Changes the accesses of a range that is mapped. The caller flushes.
    fn protect_mappings(&mut self, start: u64, end: u64, protection: Protection) {
        let old: alloc::vec::Vec<_> = self.mappings.overlapping(start, end).cloned().collect();
        for mapping in old {
            let (start, end) = (mapping.start.max(start), mapping.end.min(end));
            let kind = mapping.kind();
            if protection.is_none() {
                self.note_peak();
                let see = |page, mapped: &_| mark_dirty(&mapping, kind, page, mapped);
                self.pages.remove_access(start, end, kind, see);
            } else if protection != mapping.protection {
                self.pages.protect(start, end, |page, mapped| {
                    if !protection.writable {
                        mark_dirty(&mapping, kind, page, mapped);
                    }
                    // A page that may be written for the first time causes a fault then.
                    protection.rights(mapped.rights.writable)
                });
            }
        }
        self.mappings.change(start, end, |mapping| {
            mapping.protection = protection;
            mapping.was_writable |= protection.writable;
        });
    }
}
