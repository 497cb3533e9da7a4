//! `mmap`, `munmap` and `brk`.

use crate::SharedMemory;
use crate::mappings::MAX_MAPPINGS;
use crate::process_memory::State;
use crate::{
    Attributes, Errno, FaultError, MIN_ADDRESS, Mapping, MappingObject, PageSource, ProcessMemory,
    Protection, STACK_GUARD_GAP,
};
use alloc::borrow::Cow;
use alloc::sync::Arc;
use isola_events::yield_now;
use isola_linux_abi::numbers::{
    MAP_32BIT, MAP_ANONYMOUS, MAP_DENYWRITE, MAP_EXECUTABLE, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_GROWSDOWN,
    MAP_HUGETLB, MAP_LOCKED, MAP_NONBLOCK, MAP_NORESERVE, MAP_POPULATE, MAP_PRIVATE, MAP_SHARED,
    MAP_SHARED_VALIDATE, MAP_STACK, MAP_SYNC, MAP_TYPE, MAP_UNINITIALIZED,
};
use isola_user_mode::{Access, FlushGeneration, PAGE_SIZE, USER_END};

/// The flags of `mmap` beside the type. `MAP_SYNC` is refused later.
const KNOWN_FLAGS: u32 = MAP_TYPE
    | MAP_FIXED
    | MAP_ANONYMOUS
    | MAP_32BIT
    | MAP_ABOVE4G
    | MAP_GROWSDOWN
    | MAP_DENYWRITE
    | MAP_EXECUTABLE
    | MAP_LOCKED
    | MAP_NORESERVE
    | MAP_POPULATE
    | MAP_NONBLOCK
    | MAP_STACK
    | MAP_HUGETLB
    | MAP_SYNC
    | MAP_FIXED_NOREPLACE
    | MAP_UNINITIALIZED
    | HUGE_PAGE_SIZES;

/// `MAP_ABOVE4G`: mappings are placed there as long as there is room.
const MAP_ABOVE4G: u32 = 0x80;

/// The bits with the size of huge pages.
const HUGE_PAGE_SIZES: u32 = 0x3f << 26;

/// The addresses of `MAP_32BIT`, as in Linux.
const LOW_ADDRESSES: (u64, u64) = (0x4000_0000, 0x8000_0000);

/// The pages that a call makes accessible before it lets other events run.
pub(crate) const PAGES_AT_ONCE: u64 = 256;

/// The arguments of `mmap`.
#[derive(Clone, Default)]
pub struct MapRequest {
    /// The address, or a hint.
    pub address: u64,
    /// The number of bytes.
    pub len: u64,
    /// `PROT_` bits.
    pub protection: u32,
    /// `MAP_` bits. Bits that Linux does not define are [`Errno::EINVAL`].
    pub flags: u32,
    /// The offset in the object, in bytes.
    pub offset: u64,
    /// The object. `None` for anonymous memory only, which gets a [`SharedMemory`] if it is shared: the caller returns [`Errno::EBADF`] for a bad descriptor, and
    /// [`Errno::ENODEV`] for an object that cannot be mapped.
    pub object: Option<MapObject>,
    /// The name in `/proc/PID/maps` of memory without an object.
    pub name: &'static str,
}

/// The object of a mapping to be made.
#[derive(Clone)]
pub struct MapObject {
    /// The contents.
    pub source: Arc<dyn PageSource>,
    /// The accesses that the descriptor permits; `executable` unless the file system is mounted with `noexec`.
    pub permitted: Protection,
    /// The name of the file, for `/proc/PID/maps`; that of the contents without one.
    pub path: Option<Arc<[u8]>>,
}

/// A new mapping.
struct Mapped {
    address: u64,
    len: u64,
    populates: bool,
    flush: Option<FlushGeneration>,
}

impl ProcessMemory {
    /// Maps memory (`mmap`). Returns its address. `MAP_HUGETLB` is [`Errno::ENOMEM`], as without reserved huge pages.
    ///
    /// # Errors
    /// Those of `mmap`(2), in Linux's order.
    pub async fn map(&self, request: MapRequest) -> Result<u64, Errno> {
        let Mapped { address, len, populates, flush } = self.begin_map(request)?;
        self.settle(flush).await;
        if populates {
            // As in Linux, a page that cannot be had is not an error of the call.
            let _populated = self.populate(address, address + len).await;
        }
        Ok(address)
    }

    /// As [`Self::map`] for a private mapping of anonymous memory, without the wait for the flush that it returns. `None` for a
    /// mapping that is to be populated.
    pub fn map_at_once(&self, request: MapRequest) -> Option<Result<(u64, Option<FlushGeneration>), Errno>> {
        let is_plain = request.object.is_none()
            && request.flags & (MAP_TYPE | MAP_ANONYMOUS) == MAP_PRIVATE | MAP_ANONYMOUS
            && request.flags & (MAP_POPULATE | MAP_LOCKED) == 0
            && !self.state.lock().locks_future;
        is_plain.then(|| self.begin_map(request).map(|mapped| (mapped.address, mapped.flush)))
    }

    fn begin_map(&self, mut request: MapRequest) -> Result<Mapped, Errno> {
        if request.object.is_none()
            && request.flags & MAP_ANONYMOUS != 0
            && request.flags & MAP_TYPE == MAP_SHARED
            && request.len <= USER_END
        {
            let charge = Arc::clone(&self.state.lock().pages.charge);
            let len = request.len.next_multiple_of(PAGE_SIZE);
            let source = SharedMemory::new(b"/dev/zero (deleted)", len, charge);
            request.object = Some(MapObject { source, permitted: Protection::ALL, path: None });
            request.offset %= PAGE_SIZE;
        }
        // Before a page of the object can be mapped.
        if let Some(object) = &request.object {
            object.source.attach(self.mapper());
        }
        let mut state = self.state.lock();
        let (address, len, populates) = state.map(&request)?;
        Ok(Mapped { address, len, populates, flush: state.pages.flush() })
    }

    /// Removes the mappings of a range (`munmap`), and waits until no thread can access its pages.
    ///
    /// # Errors
    /// Those of `munmap`(2).
    pub async fn unmap(&self, address: u64, len: u64) -> Result<(), Errno> {
        let flush = self.begin_unmap(address, len)?;
        self.settle(flush).await;
        Ok(())
    }

    /// As [`Self::unmap`], without the wait: the caller [settles](Self::settle) what it returns before a thread continues.
    ///
    /// # Errors
    /// Those of `munmap`(2).
    pub fn begin_unmap(&self, address: u64, len: u64) -> Result<Option<FlushGeneration>, Errno> {
        let mut state = self.state.lock();
        let end = aligned_range(address, len).ok_or(Errno::EINVAL)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        state.mappings.check_split(address, end)?;
        state.unmap(address, end);
        Ok(state.pages.flush())
    }

    /// Sets the start of the heap, which is then empty: the end of the program's data, at which the layout's offset is
    /// added.
    pub fn set_break_start(&self, address: u64) {
        let mut state = self.state.lock();
        let start = address.saturating_add(state.layout.break_offset).min(USER_END);
        (state.break_start, state.break_end) = (start, start);
    }

    /// Changes the end of the heap (`brk`). Returns the end, which is the old one if the change is not possible.
    pub async fn set_break(&self, end: u64) -> u64 {
        let (end, populate, flush) = {
            let mut state = self.state.lock();
            let populate = state.set_break(end);
            (state.break_end, populate, state.pages.flush())
        };
        self.settle(flush).await;
        if let Some((start, end)) = populate {
            let _populated = self.populate(start, end).await;
        }
        end
    }

    /// As [`Self::set_break`] without a wait: `None` if it is needed, as pages are removed or populated.
    pub fn set_break_at_once(&self, end: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let removes = end >= state.break_start && end < state.break_end;
        (!removes && !state.locks_future).then(|| {
            let _no_range = state.set_break(end);
            state.break_end
        })
    }

    /// Makes all pages of a range accessible, for writes where the mapping permits them and is private.
    pub(crate) async fn populate(&self, start: u64, end: u64) -> Result<(), FaultError> {
        self.populate_for(start, end, None).await
    }

    /// Makes all pages of a range accessible for this access. Memory of zeros that is only read needs no pages.
    pub(crate) async fn populate_for(
        &self,
        start: u64,
        end: u64,
        access: Option<Access>,
    ) -> Result<(), FaultError> {
        let mut page = start;
        let mut count = 0_u64;
        while page < end {
            let (access, next) = {
                let state = self.state.lock();
                let mapping = state.mappings.find(page).ok_or(FaultError::NotMapped)?;
                let writes = mapping.protection.writable && !mapping.is_shared;
                let access = access.unwrap_or(if writes { Access::Write } else { Access::Read });
                if !mapping.protection.permits(access) {
                    return Err(FaultError::NotPermitted);
                }
                let is_zeros = access == Access::Read && mapping.object.is_none();
                (access, if is_zeros { mapping.end } else { page + PAGE_SIZE })
            };
            if next == page + PAGE_SIZE {
                self.fault(page, access).await?;
            }
            page = next;
            count += 1;
            if count.is_multiple_of(PAGES_AT_ONCE) {
                yield_now().await;
            }
        }
        Ok(())
    }
}

/// Returns the end of a range of pages; `None` if the start is not that of a page, or the range is not within a program's
/// addresses. The length is rounded up.
pub(crate) fn aligned_range(start: u64, len: u64) -> Option<u64> {
    let len = len.checked_next_multiple_of(PAGE_SIZE)?;
    let end = start.checked_add(len)?;
    (start.is_multiple_of(PAGE_SIZE) && end <= USER_END).then_some(end)
}

impl State {
    /// Returns the address, the length, and whether to populate the mapping. The caller flushes.
    fn map(&mut self, request: &MapRequest) -> Result<(u64, u64, bool), Errno> {
        let flags = request.flags;
        let has = |flag| flags & flag != 0;
        let kind = flags & MAP_TYPE;
        if !request.offset.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        if flags & !KNOWN_FLAGS != 0 {
            return Err(if kind == MAP_SHARED_VALIDATE { Errno::EOPNOTSUPP } else { Errno::EINVAL });
        }
        if request.len == 0 {
            return Err(Errno::EINVAL);
        }
        let len = request.len.checked_next_multiple_of(PAGE_SIZE).ok_or(Errno::ENOMEM)?;
        let first = if request.object.is_some() { request.offset / PAGE_SIZE } else { 0 };
        // The offset behind the last byte is to be a number of bytes, too.
        if request.object.is_some() && request.offset.checked_add(len).is_none() {
            return Err(Errno::EOVERFLOW);
        }
        if self.mappings.len() > MAX_MAPPINGS {
            return Err(Errno::ENOMEM);
        }
        if has(MAP_HUGETLB) {
            return Err(Errno::ENOMEM);
        }
        let address = self.place(request, len)?;
        let locked = has(MAP_LOCKED) || self.locks_future;
        if locked {
            self.check_locked(len / PAGE_SIZE)?;
        }
        let populates = has(MAP_LOCKED) || (self.locks_future && self.populates_future);
        let protection = Protection::from_bits(request.protection);
        let (is_shared, mut maximum) = check_type(request, kind, protection)?;
        if let Some(object) = request.object.as_ref().filter(|_| is_shared)
            && !object.source.permits_shared_writes()
        {
            if protection.writable {
                return Err(Errno::EPERM);
            }
            maximum.writable = false;
        }
        let mapping = Mapping {
            start: address,
            end: address + len,
            protection,
            was_writable: protection.writable,
            maximum,
            is_shared,
            object: request.object.as_ref().map(|object| MappingObject {
                source: Arc::clone(&object.source),
                first,
                path: object.path.clone(),
            }),
            attributes: Attributes {
                grows_down: has(MAP_GROWSDOWN),
                no_reserve: has(MAP_NORESERVE),
                locked,
                ..Attributes::default()
            },
            name: Cow::Borrowed(if request.object.is_some() { "" } else { request.name }),
        };
        let replaced: u64 = self
            .mappings
            .overlapping(mapping.start, mapping.end)
            .map(|old| (old.end.min(mapping.end) - old.start.max(mapping.start)) / PAGE_SIZE)
            .sum();
        if !self.may_grow((len / PAGE_SIZE).saturating_sub(replaced), mapping.is_data()) {
            return Err(Errno::ENOMEM);
        }
        self.mappings.check_split(mapping.start, mapping.end)?;
        self.unmap(mapping.start, mapping.end);
        self.insert(mapping);
        Ok((address, len, (has(MAP_POPULATE) && !has(MAP_NONBLOCK)) || populates))
    }

    /// Chooses the address of a new mapping.
    fn place(&self, request: &MapRequest, len: u64) -> Result<u64, Errno> {
        let is_new = request.flags & MAP_FIXED_NOREPLACE != 0;
        if request.flags & MAP_FIXED != 0 || is_new {
            let address = request.address;
            if len > USER_END || address > USER_END - len {
                return Err(Errno::ENOMEM);
            }
            if !address.is_multiple_of(PAGE_SIZE) {
                return Err(Errno::EINVAL);
            }
            // The first pages are never mapped: a program without privileges cannot, in Linux.
            if address < MIN_ADDRESS {
                return Err(Errno::EPERM);
            }
            if is_new && !self.mappings.is_free(address, address + len) {
                return Err(Errno::EEXIST);
            }
            return Ok(address);
        }
        let low = request.flags & MAP_32BIT != 0;
        self.find_room(request.address, len, low).ok_or(Errno::ENOMEM)
    }

    /// Finds free addresses: at the hint if it is free, otherwise as high as possible.
    pub fn find_room(&self, hint: u64, len: u64, low: bool) -> Option<u64> {
        let (bottom, top) = if low { LOW_ADDRESSES } else { (MIN_ADDRESS, self.layout.mapping_top) };
        let hint = (hint / PAGE_SIZE * PAGE_SIZE).max(if hint == 0 { 0 } else { MIN_ADDRESS });
        let limit = if low { top } else { USER_END };
        if hint >= bottom && hint <= limit.checked_sub(len)? && self.is_roomy(hint, hint + len) {
            return Some(hint);
        }
        let found = self.find_room_below(bottom, top, len);
        // Also above, if nothing is left below.
        if low { found } else { found.or_else(|| self.find_room_below(top, USER_END, len)) }
    }

    /// Finds the highest free addresses within a range.
    fn find_room_below(&self, bottom: u64, top: u64, len: u64) -> Option<u64> {
        let mut end = top;
        for mapping in self.mappings.overlapping(bottom, top).rev() {
            // A stack that begins above must be able to grow.
            let guarded = self.guard_of(self.mappings.after(end));
            if end.min(guarded).saturating_sub(mapping.end) >= len {
                return Some(end.min(guarded) - len);
            }
            end = end.min(mapping.start);
        }
        let end = end.min(self.guard_of(self.mappings.after(end)));
        (end >= bottom && end - bottom >= len).then(|| end - len)
    }

    /// Returns the lowest address that a stack needs to be free below it.
    fn guard_of(&self, above: Option<&Mapping>) -> u64 {
        above
            .filter(|mapping| mapping.attributes.grows_down)
            .map_or(u64::MAX, |stack| stack.start.saturating_sub(STACK_GUARD_GAP))
    }

    /// Returns whether a range is free, and not in the gap below a stack.
    fn is_roomy(&self, start: u64, end: u64) -> bool {
        self.mappings.is_free(start, end) && end <= self.guard_of(self.mappings.after(end))
    }

    /// Changes the end of the heap if possible. Returns a range to populate.
    fn set_break(&mut self, end: u64) -> Option<(u64, u64)> {
        if end < self.break_start || end > USER_END {
            return None;
        }
        let old_page = self.break_end.next_multiple_of(PAGE_SIZE);
        let new_page = end.next_multiple_of(PAGE_SIZE);
        if new_page <= old_page {
            if new_page < old_page && self.mappings.check_split(new_page, old_page).is_err() {
                return None;
            }
            self.unmap(new_page, old_page);
            self.break_end = end;
            return None;
        }
        let pages = (new_page - old_page) / PAGE_SIZE;
        let within_limit = end - self.break_start <= self.limits.data && self.may_grow(pages, true);
        let locked = self.locks_future;
        let room = new_page <= USER_END
            && self.is_roomy(old_page, new_page)
            && self.mappings.check_split(old_page, new_page).is_ok();
        if !within_limit || !room || (locked && self.check_locked(pages).is_err()) {
            return None;
        }
        self.insert(Mapping {
            start: old_page,
            end: new_page,
            protection: Protection { readable: true, writable: true, executable: false },
            was_writable: true,
            maximum: Protection::ALL,
            is_shared: false,
            object: None,
            attributes: Attributes { locked, ..Attributes::default() },
            name: Cow::Borrowed("[heap]"),
        });
        self.break_end = end;
        (locked && self.populates_future).then_some((old_page, new_page))
    }
}

/// Checks the type of a mapping against its object. Returns whether it is shared, and the accesses that it may get.
fn check_type(request: &MapRequest, kind: u32, protection: Protection) -> Result<(bool, Protection), Errno> {
    let grows_down = request.flags & MAP_GROWSDOWN != 0;
    if request.flags & MAP_ANONYMOUS != 0 {
        return match kind {
            MAP_SHARED if grows_down || request.object.is_none() => Err(Errno::EINVAL),
            MAP_SHARED => Ok((true, Protection::ALL)),
            MAP_PRIVATE => Ok((false, Protection::ALL)),
            _ => Err(Errno::EINVAL),
        };
    }
    let Some(object) = &request.object else {
        return Err(Errno::EBADF);
    };
    let permitted = object.permitted;
    let is_shared = match kind {
        MAP_SHARED | MAP_SHARED_VALIDATE => {
            if kind == MAP_SHARED_VALIDATE && request.flags & MAP_SYNC != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            if protection.writable && !permitted.writable {
                return Err(Errno::EACCES);
            }
            true
        }
        MAP_PRIVATE => false,
        _ => return Err(Errno::EINVAL),
    };
    if !permitted.readable {
        return Err(Errno::EACCES);
    }
    if protection.executable && !permitted.executable {
        return Err(Errno::EPERM);
    }
    if grows_down {
        return Err(Errno::EINVAL);
    }
    let maximum = Protection { writable: permitted.writable || !is_shared, ..permitted };
    Ok((is_shared, maximum))
}
