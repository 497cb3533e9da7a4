//! Requests with a header in front of their data and a status behind it, as storage devices take them (virtio 1.2,
//! 5.2.6).
//!
//! ```text
//!   header    16 bytes   device reads     the queue's memory
//!   range     16 bytes   device reads     the queue's memory, if the request has one
//!   data      segments   reads or writes  the caller's memory
//!   status     1 byte    device writes    the queue's memory
//! ```
//!
//! Each part has descriptors of its own, as some devices require.

use super::chain::write_link;
use super::fault::{Fault, Refusal, RejectedBuffer};
use super::pair::{Piece, whole};
use super::{Access, LentChain, VirtQueue};

/// Length of the header, and of the range, in bytes.
pub(crate) const PART_LEN: usize = 16;

/// The descriptors of a request besides its data's: header and status. A request with a range has no data.
pub(crate) const OWN_DESCRIPTORS: u16 = 2;

/// Distance between the memory of two requests, in bytes: a cache line, so that no two share one.
pub(super) const REQUEST_STRIDE: usize = 64;

const RANGE: usize = PART_LEN;
const STATUS: usize = 2 * PART_LEN;

/// The status before the device writes one; no device type defines it.
const NO_STATUS: u8 = 0xff;

/// The parts of a request other than its data, and the limits of that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestParts {
    pub header: [u8; PART_LEN],
    pub range: Option<[u8; PART_LEN]>,
    /// The device's access to the data.
    pub access: Access,
    /// The most bytes of a descriptor; longer segments of the data take several.
    pub segment_len: u32,
    /// The most descriptors of the data.
    pub segments: u16,
}

/// The device's answer to a request, to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The status, [`NO_STATUS`] if the device has not written it.
    pub status: u8,
    /// The written bytes that the device reports, data and status together, at most as many as it may write.
    pub written: u32,
}

/// A function that calls its argument with the address and length of each segment of a request's data.
type VisitData<'a, B> = &'a dyn Fn(&B, &mut dyn FnMut(*const u8, usize));

impl<B> VirtQueue<B> {
    /// Lends a request, staged for the next [`Self::publish`]. `visit` visits the segments of its data, of which `only` is the
    /// only one.
    ///
    /// # Errors
    /// Returns the request with the reason, [`Refusal::NoHeaders`] if the queue was created without memory for requests.
    pub(crate) fn lend_request(
        &mut self,
        parts: &RequestParts,
        request: B,
        only: Option<(*const u8, usize)>,
        visit: VisitData<'_, B>,
    ) -> Result<(), RejectedBuffer<B>> {
        let has_room = self.free.count() > 0;
        let Some(memory) = self.requests.as_mut().filter(|_| has_room) else {
            let reason = if has_room { Refusal::NoHeaders } else { Refusal::Full };
            return Err(RejectedBuffer { buffer: request, reason });
        };
        // The memory belongs to the chain's first descriptor, and is free when that is.
        let at = usize::from(self.free.first()) * REQUEST_STRIDE;
        let own = [(at, Some(parts.header)), (at + RANGE, parts.range)];
        for (offset, part) in own {
            let words = part.iter().flat_map(|part| part.as_chunks::<8>().0);
            for (offset, word) in (offset..).step_by(8).zip(words) {
                memory.write_u64(offset, u64::from_le_bytes(*word));
            }
        }
        memory.write_u8(at + STATUS, NO_STATUS);
        // The region is contiguous for devices.
        let header = memory.device_address(at);
        let (range, status) = (header + RANGE as u64, header + STATUS as u64);
        let only = only.and_then(|piece| whole(piece, parts.access));
        let only = only.filter(|&(_, len)| len > 0 && len <= parts.segment_len && parts.range.is_none());
        let request = match only {
            Some(data) => match self.add_request([header, status], data, parts.access, request) {
                Ok(()) => return Ok(()),
                Err(request) => request,
            },
            None => request,
        };
        let most = 1 + parts.segments;
        self.add(request, |request, chain| {
            chain.push(header, PART_LEN as u32, Access::DeviceReads);
            if parts.range.is_some() {
                chain.push(range, PART_LEN as u32, Access::DeviceReads);
            }
            visit(request, &mut |start, len| {
                chain.push_cut(start, len, parts.access, parts.segment_len as usize);
            });
            chain.limit(most);
            chain.push(status, 1, Access::DeviceWrites);
        })
    }

    /// Lends a request with one piece of data, which takes three descriptors. Returns it while fewer are free, or the queue is
    /// broken.
    fn add_request(
        &mut self,
        [header, status]: [u64; 2],
        data: Piece,
        access: Access,
        request: B,
    ) -> Result<(), B> {
        let writable = match access {
            Access::DeviceWrites => data.1.checked_add(1),
            Access::DeviceReads => Some(1),
        };
        let Some(writable) = writable.filter(|_| self.free.count() >= 3 && self.fault.is_none()) else {
            return Err(request);
        };
        let head = self.free.first();
        let after = |index: u16| self.free.links().get(usize::from(index)).copied().unwrap_or(0);
        let second = after(head);
        let last = after(second);
        let descriptors = self.rings.descriptors();
        write_link(descriptors, head, (header, PART_LEN as u32), Access::DeviceReads, Some(second));
        write_link(descriptors, second, data, access, Some(last));
        write_link(descriptors, last, (status, 1), Access::DeviceWrites, None);
        self.keep(head, request);
        self.stage(head, LentChain { last, count: 3, table: None, position: self.staged, writable });
        Ok(())
    }

    /// Takes the next request that the device has returned, if `check` accepts the answer. Otherwise the request stays
    /// with the queue, which is broken then.
    ///
    /// # Errors
    /// The device's protocol violation, now or earlier.
    pub(crate) fn take_request(
        &mut self,
        check: impl FnOnce(&B, Answer) -> Result<(), Fault>,
    ) -> Result<Option<(B, Answer)>, Fault> {
        let Some((head, written)) = self.next_returned()? else { return Ok(None) };
        // Read once: the device may write it again.
        let status =
            self.requests.as_ref().map_or(NO_STATUS, |memory| memory.read_u8(head * REQUEST_STRIDE + STATUS));
        let answer = Answer { status, written };
        let Some(slot) = self.buffers.get_mut(head) else { return Ok(None) };
        match slot.as_ref().map_or(Ok(()), |request| check(request, answer)) {
            Ok(()) => Ok(slot.take().map(|request| (request, answer))),
            Err(fault) => Err(self.break_off(fault)),
        }
    }

    /// Returns the request that the queue holds in a slot, from 0 to [`Self::size`] less one.
    pub(crate) fn lent_in(&mut self, slot: u16) -> Option<&mut B> {
        self.buffers.get_mut(usize::from(slot))?.as_mut()
    }
}
