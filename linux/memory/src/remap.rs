//! `mremap`.

use crate::map::aligned_range;
use crate::process_memory::State;
use crate::{Errno, Mapping, ProcessMemory};
use alloc::borrow::Cow;
use isola_linux_abi::numbers::{MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE};
use isola_user_mode::{PAGE_SIZE, USER_END};

/// The arguments of `mremap`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RemapRequest {
    /// The address of the mapping.
    pub address: u64,
    /// Its number of bytes. 0 creates a second mapping of the same shared memory.
    pub len: u64,
    /// The new number of bytes.
    pub new_len: u64,
    /// `MREMAP_` bits.
    pub flags: u32,
    /// The new address, with `MREMAP_FIXED`.
    pub new_address: u64,
}

impl ProcessMemory {
    /// Grows, shrinks or moves a mapping (`mremap`). Returns its address. Pages move without copies.
    ///
    /// # Errors
    /// Those of `mremap`(2).
    pub async fn remap(&self, request: RemapRequest) -> Result<u64, Errno> {
        let (result, flush) = {
            let mut state = self.state.lock();
            let result = state.remap(request);
            (result, state.pages.flush())
        };
        self.settle(flush).await;
        let (address, grown) = result?;
        if let Some((start, end)) = grown {
            // As in Linux, a page that cannot be had is not an error of the call.
            let _populated = self.populate(start, end).await;
        }
        Ok(address)
    }
}

impl State {
    /// Returns the new address, and the addresses to populate of a locked mapping. The caller flushes.
    fn remap(&mut self, request: RemapRequest) -> Result<(u64, Option<(u64, u64)>), Errno> {
        let RemapRequest { address, flags, .. } = request;
        let has = |flag| flags & flag != 0;
        let known = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
        let contradicts = flags & !known != 0
            || (has(MREMAP_FIXED) && !has(MREMAP_MAYMOVE))
            || (has(MREMAP_DONTUNMAP) && (!has(MREMAP_MAYMOVE) || request.len != request.new_len));
        if contradicts || !address.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        let round = |len: u64| len.checked_next_multiple_of(PAGE_SIZE).ok_or(Errno::EINVAL);
        let (mut len, new_len) = (round(request.len)?, round(request.new_len)?);
        if new_len == 0 {
            return Err(Errno::EINVAL);
        }
        self.mappings.find(address).ok_or(Errno::EFAULT)?;
        let end = address.checked_add(len).filter(|end| *end <= USER_END).ok_or(Errno::EINVAL)?;
        if has(MREMAP_FIXED) {
            let new_end = aligned_range(request.new_address, new_len).ok_or(Errno::EINVAL)?;
            if request.new_address < end && address < new_end {
                return Err(Errno::EINVAL);
            }
            if request.new_address < crate::MIN_ADDRESS {
                return Err(Errno::EPERM);
            }
            self.mappings.check_split(request.new_address, new_end)?;
        }
        let moves = has(MREMAP_FIXED) || has(MREMAP_DONTUNMAP);
        if len > new_len {
            self.mappings.check_split(address + new_len, end)?;
            self.unmap(address + new_len, end);
            len = new_len;
        }
        if len == new_len && !moves {
            return Ok((address, None));
        }
        let mapping = self.check_growth(address, len, new_len, has(MREMAP_DONTUNMAP))?;
        let grown = |start: u64| mapping.attributes.locked.then_some((start + len, start + new_len));
        if !moves
            && address + len == mapping.end
            && self.mappings.is_free(mapping.end, address + new_len)
            && address + new_len <= USER_END
        {
            self.extend(&mapping, address + new_len);
            return Ok((address, grown(address)));
        }
        if !has(MREMAP_MAYMOVE) {
            return Err(Errno::ENOMEM);
        }
        let new_address = if has(MREMAP_FIXED) {
            request.new_address
        } else {
            self.find_room(0, new_len, false).ok_or(Errno::ENOMEM)?
        };
        self.mappings.check_split(address, address + len)?;
        self.unmap(new_address, new_address + new_len);
        self.relocate(&mapping, (address, len), (new_address, new_len), has(MREMAP_DONTUNMAP));
        Ok((new_address, grown(new_address)))
    }

    /// Checks that a mapping can have the new length. Returns it.
    fn check_growth(&self, address: u64, len: u64, new_len: u64, keeps_old: bool) -> Result<Mapping, Errno> {
        let mapping = self.mappings.find(address).ok_or(Errno::EFAULT)?;
        if len == 0 && !mapping.is_shared {
            return Err(Errno::EINVAL);
        }
        if len > mapping.end - address {
            return Err(Errno::EFAULT);
        }
        let overflows = mapping.index_of(address).is_some_and(|index| {
            index.checked_add(new_len / PAGE_SIZE).is_none_or(|end| end > u64::MAX / PAGE_SIZE)
        });
        if overflows {
            return Err(Errno::EINVAL);
        }
        let pages = (if keeps_old { new_len } else { new_len - len }) / PAGE_SIZE;
        if mapping.attributes.locked {
            self.check_locked(pages)?;
        }
        if !self.may_grow(pages, mapping.is_data()) {
            return Err(Errno::ENOMEM);
        }
        Ok(mapping.clone())
    }

    /// Extends a mapping upwards.
    fn extend(&mut self, mapping: &Mapping, end: u64) {
        let mut added = mapping.clone();
        (added.start, added.end) = (mapping.end, end);
        if let (Some(object), Some(old)) = (&mut added.object, &mapping.object) {
            object.first = old.first + mapping.pages();
        }
        self.insert(added);
    }

    /// Moves a part of a mapping with its pages to free addresses.
    fn relocate(&mut self, mapping: &Mapping, old: (u64, u64), new: (u64, u64), keeps_old: bool) {
        let (address, len) = old;
        let (new_address, new_len) = new;
        let kind = mapping.kind();
        let mut moved = mapping.clone();
        (moved.start, moved.end) = (new_address, new_address + new_len);
        if let (Some(object), Some(index)) = (&mut moved.object, mapping.index_of(address)) {
            object.first = index;
        }
        moved.name = Cow::Borrowed("");
        for (page, frame, rights) in self.pages.lift(address, address + len) {
            self.pages.lower(page - address + new_address, frame, rights, kind);
        }
        if keeps_old {
            self.mappings.change(address, address + len, |mapping| mapping.attributes.locked = false);
        } else {
            self.mappings.take(address, address + len);
        }
        self.insert(moved);
    }
}
