//! The split virtqueue: lends buffers to a device, and takes them back (virtio 1.2, 2.6 and 2.7).
//!
//! ```text
//!            lend                    publish                  (the device)               take_returned
//!   caller ---------> descriptors, ----------> available ring ------------> used ring ----------------> caller
//!                     buffer stored            index moves                  index moves   checked
//! ```
//!
//! A buffer belongs to the queue from [`VirtQueue::lend`] until [`VirtQueue::take_returned`] returns it. The next
//! [`VirtQueue::publish`] makes lent buffers available to the device, and notifies it if it requested that: lend
//! several, publish once.
//!
//! # Order of the indices
//! ```text
//!   taken  <=  returned  <=  published  <=  staged          staged - taken <= length of the queue
//!   (own)      (used.idx)    (avail.idx)    (own)
//! ```
//!
//! The queue counts in 64 bits. The rings contain the low 16 bits: as the queue is shorter than 2^16, these identify
//! the device's progress.
//!
//! `wakeups.rs` describes notifications in both directions, and proves that no wake-up is lost.
//!
//! # Cost
//! Lending and taking back allocate nothing. A descriptor is written with two stores; free descriptors are a private
//! linked list, so that a chain is taken and returned as a whole.

mod chain;
mod fault;
mod free;
mod pair;
mod request;
mod rings;
mod short;
mod tables;
#[cfg(test)]
mod tests;
mod wakeups;

pub use chain::{Access, MAX_CHAIN, Part};
pub use fault::{Fault, Refusal, RejectedBuffer};
pub(crate) use request::{Answer, OWN_DESCRIPTORS, PART_LEN, RequestParts};
pub use rings::MAX_QUEUE_SIZE;
pub use wakeups::{Pending, Suppression, WakeWhen};

use crate::device::Liveness;
use crate::transport::{Notify, QueueAddresses};
use alloc::boxed::Box;
use alloc::vec::Vec;
use chain::{ChainWriter, Limits, WrittenChain, write_indirect};
use free::FreeList;
use isola_machine::dma::{DmaBuffer, DmaRegion, read_barrier, write_barrier};
use rings::Rings;
use short::ShortChain;
use tables::Tables;

/// Length of the header that a queue can put in front of a buffer, in bytes.
pub const HEADER_LEN: usize = 12;

/// Distance between the headers of two descriptors, in bytes.
const HEADER_STRIDE: usize = 16;

/// Whether a chain can be in an indirect table (`VIRTIO_F_INDIRECT_DESC`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indirection {
    /// Each segment takes a descriptor of the ring.
    Never,
    /// Long chains take one descriptor of the ring, and a table.
    LongChains,
}

/// Whether the queue has memory for a header in front of each buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// None.
    None,
    /// [`HEADER_LEN`] bytes a chain, for [`VirtQueue::lend_with_header`].
    Room,
    /// Header, range and status of a request for each chain, for [block devices](crate::block).
    Requests,
}

/// The configuration of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// The suppression of notifications.
    pub suppression: Suppression,
    /// Whether chains may be indirect.
    pub indirection: Indirection,
    /// Whether buffers have headers.
    pub headers: Headers,
}

/// A buffer that the device has returned.
#[derive(Debug)]
pub struct ReturnedBuffer<B> {
    /// The buffer.
    pub buffer: B,
    /// The written bytes that the device reports, at most the buffer's writable bytes.
    pub written: u32,
}

/// The chain of a lent buffer.
#[derive(Clone, Copy, Debug)]
struct LentChain {
    /// The chain's last descriptor, and the number of its descriptors.
    last: u16,
    count: u16,
    /// The table that contains the chain, if it is indirect.
    table: Option<u16>,
    /// The number of bytes that the device may write.
    writable: u32,
    /// The number of chains staged before it.
    position: u64,
}

impl LentChain {
    /// The entry of a descriptor that begins no chain. Its position is never published.
    const NONE: Self = Self { last: 0, count: 0, table: None, writable: 0, position: u64::MAX };
}

/// A split virtqueue that lends buffers of type `B`.
#[derive(Debug)]
pub struct VirtQueue<B> {
    rings: Rings,
    headers: Option<DmaRegion>,
    /// Header, range and status of each request, by its first descriptor.
    requests: Option<DmaRegion>,
    tables: Tables,
    /// The lent buffers, by the first descriptor of their chains.
    buffers: Vec<Option<B>>,
    /// The chains, by their first descriptor.
    lent: Vec<LentChain>,
    free: FreeList,
    /// The number of chains that were put into the available ring.
    staged: u64,
    /// The number of these that were made available to the device.
    published: u64,
    /// The number that the device had returned, as last read and checked.
    returned: u64,
    /// The number that were taken back.
    taken: u64,
    suppression: Suppression,
    fault: Option<Fault>,
    notifier: Option<Box<dyn Notify>>,
    liveness: Liveness,
}

impl<B> VirtQueue<B> {
    /// Creates a queue of `size` descriptors: a power of two from 2 to [`MAX_QUEUE_SIZE`]; other values are clamped and
    /// rounded down. `memory` allocates its memory, with lengths in bytes.
    ///
    /// [`Self::addresses`] are the addresses for the device; [`Self::connect`] sets the notifier.
    pub(crate) fn new(
        size: u16,
        options: QueueOptions,
        liveness: Liveness,
        memory: &mut dyn FnMut(usize) -> DmaRegion,
    ) -> Self {
        let rings = Rings::new(size, memory);
        let size = rings.size();
        Self {
            headers: match options.headers {
                Headers::None | Headers::Requests => None,
                Headers::Room => Some(memory(usize::from(size) * HEADER_STRIDE)),
            },
            requests: match options.headers {
                Headers::None | Headers::Room => None,
                Headers::Requests => Some(memory(usize::from(size) * request::REQUEST_STRIDE)),
            },
            tables: match options.indirection {
                Indirection::Never => Tables::none(),
                Indirection::LongChains => Tables::new(size, memory),
            },
            buffers: (0..size).map(|_| None).collect(),
            lent: (0..size).map(|_| LentChain::NONE).collect(),
            free: FreeList::new(size),
            rings,
            staged: 0,
            published: 0,
            taken: 0,
            returned: 0,
            suppression: options.suppression,
            fault: None,
            notifier: None,
            liveness,
        }
    }

    /// Returns the device addresses of the rings.
    pub(crate) fn addresses(&self) -> QueueAddresses {
        self.rings.addresses()
    }

    /// Sets the notifier of the device.
    pub(crate) fn connect(&mut self, notifier: Box<dyn Notify>) {
        self.notifier = Some(notifier);
    }

    /// Takes the notifier away: the device is not to be notified.
    pub(crate) fn disconnect(&mut self) {
        self.notifier = None;
    }

    /// Takes the queue to its first state, disarmed, after the device has reset it. Passes all buffers that were not taken
    /// to `keep`. The addresses are the same, and a fault stays.
    pub(crate) fn begin_again(&mut self, keep: &mut dyn FnMut(B)) {
        self.buffers.iter_mut().filter_map(Option::take).for_each(keep);
        self.lent.fill(LentChain::NONE);
        self.free = FreeList::new(self.size());
        self.tables.give_all_back();
        self.rings.clear();
        (self.staged, self.published, self.returned, self.taken) = (0, 0, 0, 0);
        self.disarm();
        write_barrier();
    }

    /// Returns the lent buffers.
    pub(crate) fn lent_buffers(&self) -> impl Iterator<Item = &B> {
        self.buffers.iter().flatten()
    }

    /// Returns the number of descriptors.
    pub fn size(&self) -> u16 {
        self.rings.size()
    }

    /// Returns the number of free descriptors. A buffer takes one for each segment, and one for a header.
    pub fn room(&self) -> u16 {
        self.free.count()
    }

    /// Returns the number of lent buffers, published or not.
    pub fn outstanding(&self) -> u16 {
        (self.staged - self.taken) as u16
    }

    /// Returns the suppression of notifications.
    #[inline]
    pub fn suppression(&self) -> Suppression {
        self.suppression
    }

    /// Returns the number of staged chains that were not published.
    #[inline]
    pub fn unpublished(&self) -> u16 {
        (self.staged - self.published) as u16
    }

    /// Returns the device's protocol violation, if there was one: the queue rejects all work until the device is reset.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Marks the queue as broken, for rules of the queue's user. Returns the first fault.
    pub(crate) fn break_off(&mut self, fault: Fault) -> Fault {
        *self.fault.get_or_insert(fault)
    }

    /// Lends a buffer, staged for the next [`Self::publish`].
    ///
    /// # Errors
    /// Returns the buffer with the reason.
    #[inline(always)]
    pub fn lend(&mut self, buffer: B, access: Access) -> Result<(), RejectedBuffer<B>>
    where
        B: DmaBuffer,
    {
        match self.lend_pair(buffer, access) {
            Ok(()) => Ok(()),
            Err(buffer) => self.lend_longer(buffer, access),
        }
    }

    /// Lends like [`Self::lend`] a buffer of more than two pieces, or any buffer if fewer than two descriptors are
    /// free.
    #[inline(never)]
    fn lend_longer(&mut self, buffer: B, access: Access) -> Result<(), RejectedBuffer<B>>
    where
        B: DmaBuffer,
    {
        let buffer = match ShortChain::of(&buffer, access) {
            Some(short) => match self.add_short(buffer, short, access) {
                Ok(()) => return Ok(()),
                Err(buffer) => buffer,
            },
            None => buffer,
        };
        self.add(buffer, |buffer, chain| {
            buffer.for_each_segment(|start, len| chain.push_segment(start, len, access));
        })
    }

    /// Lends a readable buffer behind a header in the queue's own memory, otherwise like [`Self::lend`].
    ///
    /// # Errors
    /// Returns the buffer with the reason, [`Refusal::NoHeaders`] if the queue was created without headers.
    pub fn lend_with_header(&mut self, header: [u8; HEADER_LEN], buffer: B) -> Result<(), RejectedBuffer<B>>
    where
        B: DmaBuffer,
    {
        // The header's memory belongs to the chain's first descriptor, and is free when that is.
        let offset = usize::from(self.free.first()) * HEADER_STRIDE;
        let Some(headers) = self.headers.as_mut().filter(|_| self.free.count() > 0) else {
            let reason = if self.headers.is_some() { Refusal::Full } else { Refusal::NoHeaders };
            return Err(RejectedBuffer { buffer, reason });
        };
        let [a, b, c, d, e, f, g, h, rest @ ..] = header;
        headers.write_u64(offset, u64::from_le_bytes([a, b, c, d, e, f, g, h]));
        headers.write_u32(offset + 8, u32::from_le_bytes(rest));
        let header_address = headers.device_address(offset);
        self.add(buffer, |buffer, chain| {
            chain.push(header_address, HEADER_LEN as u32, Access::DeviceReads);
            buffer.for_each_segment(|start, len| chain.push_segment(start, len, Access::DeviceReads));
        })
    }

    /// Writes a chain and stores its buffer.
    #[inline(never)]
    fn add(&mut self, buffer: B, visit: impl Fn(&B, &mut ChainWriter<'_>)) -> Result<(), RejectedBuffer<B>> {
        if let Some(fault) = self.fault {
            return Err(RejectedBuffer { buffer, reason: Refusal::Broken(fault) });
        }
        let head = self.free.first();
        let (written, table) = match self.write_chain(&buffer, visit) {
            Ok(written) => written,
            Err(reason) => return Err(RejectedBuffer { buffer, reason }),
        };
        if table.is_some() {
            self.tables.take();
        }
        let (last, count) = if table.is_some() { (head, 1) } else { (written.last, written.count) };
        self.keep(head, buffer);
        self.stage(head, LentChain { last, count, table, position: self.staged, writable: written.writable });
        Ok(())
    }

    /// Stores the buffer of a chain that begins with the free descriptor `head`.
    fn keep(&mut self, head: u16, buffer: B) {
        if let Some(slot) = self.buffers.get_mut(usize::from(head)) {
            *slot = Some(buffer);
        }
    }

    /// Stages a written chain that begins with the free descriptor `head` and whose buffer is stored.
    #[inline(always)]
    fn stage(&mut self, head: u16, chain: LentChain) {
        if let Some(slot) = self.lent.get_mut(usize::from(head)) {
            *slot = chain;
        }
        self.free.take(chain.last, chain.count);
        self.rings.set_available(self.staged, head);
        self.staged += 1;
    }

    /// Writes a chain into free descriptors: into the ring if it is short, otherwise into a table if the device
    /// supports tables and one is free.
    #[inline]
    fn write_chain(
        &mut self,
        buffer: &B,
        visit: impl Fn(&B, &mut ChainWriter<'_>),
    ) -> Result<(WrittenChain, Option<u16>), Refusal> {
        if self.free.count() == 0 {
            return Err(Refusal::Full);
        }
        let head = self.free.first();
        let table = self.tables.first();
        let longest = if table.is_some() { tables::DIRECT_MAX } else { MAX_CHAIN };
        let ever = if self.tables.is_empty() { MAX_CHAIN.min(self.size()) } else { MAX_CHAIN };
        let limits = Limits { now: longest.min(self.free.count()), ever };
        let mut chain = ChainWriter::new((self.rings.descriptors(), 0), head, self.free.links(), limits);
        visit(buffer, &mut chain);
        match (chain.finish(), table) {
            (Err(Refusal::Full), Some(table)) => {
                let written = self.tables.write(table, |chain| visit(buffer, chain))?;
                write_indirect(self.rings.descriptors(), head, written.address, written.len);
                Ok((written.chain, Some(table)))
            }
            (result, _) => result.map(|written| (written, None)),
        }
    }

    /// Makes the staged buffers available to the device, and notifies it if it requested that.
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.staged != self.published {
            self.publish_staged();
        }
    }

    #[inline(never)]
    fn publish_staged(&mut self) {
        self.publish_around(|| ());
    }

    /// Publishes. A test passes a device's steps as `meanwhile`, for the critical moment.
    #[inline(always)]
    fn publish_around(&mut self, meanwhile: impl FnOnce()) {
        if self.staged == self.published || self.fault.is_some() {
            return;
        }
        let before = self.published as u16;
        self.show();
        meanwhile();
        if self.device_wants_notice(before)
            && let Some(notifier) = &self.notifier
        {
            notifier.notify();
        }
    }

    /// The first half of publishing: updates the index.
    fn show(&mut self) {
        write_barrier();
        self.published = self.staged;
        self.rings.set_available_index(self.published as u16);
    }

    /// Returns whether returned buffers wait for [`Self::take_returned`].
    #[inline]
    pub fn has_returned(&self) -> bool {
        self.fault.is_none() && (self.returned != self.taken || self.newly_returned() > 0)
    }

    /// Returns whether buffers that had been returned at the last read of the ring wait for [`Self::take_returned`].
    #[inline]
    pub fn has_noticed(&self) -> bool {
        self.returned != self.taken
    }

    /// Returns the number of buffers that the device reports as returned since the last count.
    #[inline]
    fn newly_returned(&self) -> u16 {
        self.rings.used_index().wrapping_sub(self.returned as u16)
    }

    /// Takes the next buffer that the device has returned.
    ///
    /// # Errors
    /// The device's protocol violation, now or earlier.
    #[inline]
    pub fn take_returned(&mut self) -> Result<Option<ReturnedBuffer<B>>, Fault> {
        let Some((head, written)) = self.next_returned()? else { return Ok(None) };
        let buffer = self.buffers.get_mut(head).and_then(Option::take);
        Ok(buffer.map(|buffer| ReturnedBuffer { buffer, written }))
    }

    /// Calls `take` with the next returned buffer, so that it can take parts, and drops the buffer in place. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// The device's protocol violation, now or earlier.
    #[inline(always)]
    pub fn drop_returned(&mut self, take: impl FnOnce(&mut B)) -> Result<bool, Fault> {
        let Some((head, _)) = self.next_returned()? else { return Ok(false) };
        if let Some(slot) = self.buffers.get_mut(head) {
            if let Some(buffer) = slot {
                take(buffer);
            }
            *slot = None;
        }
        Ok(true)
    }

    /// Frees the descriptors of the next returned chain. Returns its first descriptor, and the written bytes that the
    /// device reports.
    #[inline(always)]
    fn next_returned(&mut self) -> Result<Option<(usize, u32)>, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.returned == self.taken {
            let count = self.newly_returned();
            if count == 0 {
                return Ok(None);
            }
            if u64::from(count) > self.published - self.returned {
                return Err(self.break_off(Fault::IndexJump { count }));
            }
            read_barrier();
            self.returned += u64::from(count);
        }
        let (id, written) = self.rings.used_entry(self.taken);
        // Ids are indices of descriptors, of which there are fewer than 2^16.
        let head = id as usize;
        let Some(slot) = self.lent.get_mut(head) else {
            return Err(self.break_off(Fault::UnknownBuffer { id }));
        };
        let LentChain { last, count, table, writable, position } = *slot;
        if position >= self.published {
            return Err(self.break_off(Fault::NotLent { id }));
        }
        if written > writable {
            return Err(self.break_off(Fault::TooLong { written, writable }));
        }
        slot.position = LentChain::NONE.position;
        self.free.give_back(head as u16, last, count);
        if let Some(table) = table {
            self.tables.give_back(table);
        }
        self.taken += 1;
        Ok(Some((head, written)))
    }
}

impl VirtQueue<DmaRegion> {
    /// Lends parts of a region: first the readable parts, then the writable ones.
    ///
    /// # Errors
    /// Returns the region with the reason; [`Refusal::OutOfOrder`] or [`Refusal::OutsideRegion`] for invalid parts.
    pub fn lend_parts(&mut self, region: DmaRegion, parts: &[Part]) -> Result<(), RejectedBuffer<DmaRegion>> {
        if !parts
            .iter()
            .all(|part| part.offset.checked_add(part.len as usize).is_some_and(|end| end <= region.len()))
        {
            return Err(RejectedBuffer { buffer: region, reason: Refusal::OutsideRegion });
        }
        self.add(region, |region, chain| {
            for part in parts {
                chain.push(region.device_address(part.offset), part.len, part.access);
            }
        })
    }
}

impl<B> Drop for VirtQueue<B> {
    fn drop(&mut self) {
        if self.liveness.is_running() {
            // The device may still use all of it: leaked memory stays valid.
            core::mem::forget(core::mem::take(&mut self.buffers));
            self.rings.leak();
            self.tables.leak();
            core::mem::forget(self.headers.take());
            core::mem::forget(self.requests.take());
        }
    }
}
