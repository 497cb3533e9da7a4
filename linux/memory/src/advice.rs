//! `madvise`.

use crate::process_memory::State;
use crate::{Attributes, Errno, FaultError, Mapping, ProcessMemory};
use alloc::vec::Vec;
use isola_linux_abi::numbers::{
    MADV_COLD, MADV_DODUMP, MADV_DOFORK, MADV_DONTDUMP, MADV_DONTFORK, MADV_DONTNEED, MADV_DONTNEED_LOCKED,
    MADV_FREE, MADV_HUGEPAGE, MADV_HWPOISON, MADV_KEEPONFORK, MADV_NOHUGEPAGE, MADV_NORMAL, MADV_PAGEOUT,
    MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_RANDOM, MADV_REMOVE, MADV_SEQUENTIAL, MADV_SOFT_OFFLINE,
    MADV_WILLNEED, MADV_WIPEONFORK,
};
use isola_user_mode::{Access, FlushGeneration, PAGE_SIZE};

/// The most pages that `MADV_WILLNEED` reads into memory: the call waits for them.
const MAX_READ_AHEAD: u64 = 256;

/// The effect of an advice.
#[derive(Clone, Copy)]
enum Effect {
    /// Changes attributes.
    Set(fn(&mut Attributes)),
    /// Drops pages: the contents are zeros or those of the object afterwards.
    Drop { locked_too: bool, anonymous_only: bool },
    /// Removes pages from the object.
    Punch,
    /// Reads the pages of the object into memory.
    ReadAhead,
    /// Has no effect but for its errors.
    Nothing,
    /// Makes the pages accessible.
    Populate(Access),
    /// Needs privileges that no process has.
    Forbidden,
}

impl Effect {
    /// Returns the effect of a `MADV_` number.
    fn of(advice: u32) -> Option<Self> {
        Some(match advice {
            MADV_NORMAL => Self::Set(|attributes| attributes.sequential = None),
            MADV_RANDOM => Self::Set(|attributes| attributes.sequential = Some(false)),
            MADV_SEQUENTIAL => Self::Set(|attributes| attributes.sequential = Some(true)),
            MADV_DONTFORK => Self::Set(|attributes| attributes.dont_fork = true),
            MADV_DOFORK => Self::Set(|attributes| attributes.dont_fork = false),
            MADV_DONTDUMP => Self::Set(|attributes| attributes.dont_dump = true),
            MADV_DODUMP => Self::Set(|attributes| attributes.dont_dump = false),
            MADV_WIPEONFORK => Self::Set(|attributes| attributes.wipe_on_fork = true),
            MADV_KEEPONFORK => Self::Set(|attributes| attributes.wipe_on_fork = false),
            MADV_HUGEPAGE => Self::Set(|attributes| attributes.huge_pages = Some(true)),
            MADV_NOHUGEPAGE => Self::Set(|attributes| attributes.huge_pages = Some(false)),
            MADV_DONTNEED => Self::Drop { locked_too: false, anonymous_only: false },
            MADV_DONTNEED_LOCKED => Self::Drop { locked_too: true, anonymous_only: false },
            // The kernel may drop the pages at any time until they are written: at once.
            MADV_FREE => Self::Drop { locked_too: false, anonymous_only: true },
            MADV_REMOVE => Self::Punch,
            MADV_WILLNEED => Self::ReadAhead,
            MADV_COLD | MADV_PAGEOUT => Self::Nothing,
            MADV_POPULATE_READ => Self::Populate(Access::Read),
            MADV_POPULATE_WRITE => Self::Populate(Access::Write),
            MADV_HWPOISON | MADV_SOFT_OFFLINE => Self::Forbidden,
            _ => return None,
        })
    }
}

impl ProcessMemory {
    /// Follows an advice about a range (`madvise`). `MADV_DONTNEED` and `MADV_FREE` drop pages, `MADV_WILLNEED` waits for
    /// pages of the object, 256 at most. Advice on the merging of pages is [`Errno::EINVAL`], as without KSM, and
    /// `MADV_COLLAPSE`, as without huge pages.
    ///
    /// # Errors
    /// Those of `madvise`(2). With [`Errno::ENOMEM`] for an address that is not mapped, the mapped parts follow the advice.
    pub async fn advise(&self, address: u64, len: u64, advice: u32) -> Result<(), Errno> {
        let effect = Effect::of(advice).ok_or(Errno::EINVAL)?;
        let rounded = len.checked_next_multiple_of(PAGE_SIZE).ok_or(Errno::EINVAL)?;
        let end = address.checked_add(rounded).ok_or(Errno::EINVAL)?;
        if !address.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        if end == address {
            return Ok(());
        }
        match effect {
            Effect::Forbidden => return Err(Errno::EPERM),
            Effect::Populate(access) => {
                let populated = self.populate_for(address, end, Some(access)).await;
                return populated.map_err(|error| match error {
                    FaultError::NotMapped | FaultError::OutOfMemory => Errno::ENOMEM,
                    FaultError::NotPermitted => Errno::EINVAL,
                    FaultError::NoContents => Errno::EFAULT,
                });
            }
            _ => (),
        }
        let (mappings, is_whole) = self.mappings_in(address, end);
        for mapping in mappings {
            self.apply(&mapping, effect).await?;
        }
        if is_whole { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// As [`Self::advise`] with `MADV_DONTNEED` for a range that is mapped and has no locked mapping, without the wait: the
    /// caller [settles](Self::settle) what it returns before a thread continues. `None` for other calls.
    pub fn drop_at_once(&self, address: u64, len: u64, advice: u32) -> Option<Option<FlushGeneration>> {
        let end = address.checked_add(len.checked_next_multiple_of(PAGE_SIZE)?)?;
        if advice != MADV_DONTNEED || !address.is_multiple_of(PAGE_SIZE) {
            return None;
        }
        let mut state = self.state.lock();
        let is_locked = |mapping: &Mapping| mapping.attributes.locked;
        if !state.mappings.covers(address, end) || state.mappings.overlapping(address, end).any(is_locked) {
            return None;
        }
        state.drop_pages(address, end);
        Some(state.pages.flush())
    }

    /// Returns the parts of mappings within a range, and whether they are all of it.
    pub(crate) fn mappings_in(&self, start: u64, end: u64) -> (Vec<Mapping>, bool) {
        let state = self.state.lock();
        let part = |mapping: &Mapping| {
            let mut part = mapping.clone();
            if part.start < start {
                part = part.split_off(start);
            }
            if part.end > end {
                part.split_off(end);
            }
            part
        };
        let parts = state.mappings.overlapping(start, end).map(part).collect();
        (parts, state.mappings.covers(start, end))
    }

    /// Applies an advice to a part of a mapping.
    async fn apply(&self, part: &Mapping, effect: Effect) -> Result<(), Errno> {
        let flush = {
            let mut state = self.state.lock();
            match effect {
                Effect::Set(set) => state.set_attributes(part, set)?,
                Effect::Drop { locked_too, anonymous_only } => {
                    let is_locked = part.attributes.locked && !locked_too;
                    if is_locked || (anonymous_only && (part.object.is_some() || part.is_shared)) {
                        return Err(Errno::EINVAL);
                    }
                    state.drop_pages(part.start, part.end);
                }
                Effect::Nothing if part.attributes.locked => return Err(Errno::EINVAL),
                _ => (),
            }
            state.pages.flush()
        };
        self.settle(flush).await;
        match (effect, &part.object) {
            (Effect::Punch, None) => Err(Errno::EINVAL),
            (Effect::Punch, Some(_)) if part.attributes.locked => Err(Errno::EINVAL),
            (Effect::Punch, Some(_)) if !part.is_shared || !part.maximum.writable => Err(Errno::EACCES),
            (Effect::Punch, Some(object)) => object.source.punch(object.first, part.pages()).await,
            (Effect::ReadAhead, Some(object)) => {
                for index in object.first..object.first + part.pages().min(MAX_READ_AHEAD) {
                    if object.source.frame(index).is_none()
                        && !object.source.is_memory()
                        && crate::fetch::fetch(&object.source, index).await.is_err()
                    {
                        break;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl State {
    fn set_attributes(&mut self, part: &Mapping, set: fn(&mut Attributes)) -> Result<(), Errno> {
        let mut attributes = part.attributes;
        set(&mut attributes);
        if attributes.wipe_on_fork && (part.object.is_some() || part.is_shared) {
            return Err(Errno::EINVAL);
        }
        if attributes == part.attributes {
            return Ok(());
        }
        self.mappings.check_split(part.start, part.end)?;
        self.mappings.change(part.start, part.end, |mapping| set(&mut mapping.attributes));
        Ok(())
    }

    /// Drops the pages of a range, whatever is mapped there now.
    fn drop_pages(&mut self, start: u64, end: u64) {
        let mappings = self.mappings.overlapping_shared(start, end).to_vec();
        for mapping in mappings {
            self.remove_pages(&mapping, mapping.start.max(start), mapping.end.min(end));
        }
    }
}
