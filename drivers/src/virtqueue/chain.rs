//! Chains of descriptors, which hold the segments of one buffer (virtio 1.2, 2.7.5).

use super::fault::Refusal;
use isola_machine::dma::device_piece;
use isola_machine::dma_ring::DmaRing;

pub use isola_machine::dma::Access;

/// The most descriptors of a chain, including its header's. In a shorter queue a chain has at most as many as the
/// queue.
pub const MAX_CHAIN: u16 = 32;

/// Descriptors, each written as two words.
pub(super) type Descriptors = DmaRing<[u64; 2]>;

/// Size of a descriptor, in bytes.
pub(super) const DESCRIPTOR_LEN: usize = 16;

/// Another descriptor follows.
const NEXT: u16 = 1;

/// The device writes the segment.
const WRITE: u16 = 2;

/// The segment is a table of descriptors.
const INDIRECT: u16 = 4;

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The offset in the region, in bytes.
    pub offset: usize,
    /// Its length in bytes.
    pub len: u32,
    /// The device's access to it.
    pub access: Access,
}

/// The most descriptors of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// With the descriptors that are free now.
    pub now: u16,
    /// With all descriptors free.
    pub ever: u16,
}

/// A chain that was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenChain {
    /// The index of its last descriptor.
    pub last: u16,
    /// The number of its descriptors.
    pub count: u16,
    /// The number of bytes that the device may write.
    pub writable: u32,
}

/// Writes a chain, descriptor by descriptor. It takes effect only when the caller removes the descriptors from the free
/// list: the next chain overwrites an abandoned one.
#[derive(Debug)]
pub(super) struct ChainWriter<'a> {
    descriptors: &'a mut Descriptors,
    /// The index of the chain's descriptor 0 among `descriptors`.
    base: usize,
    /// The successor of each descriptor.
    links: &'a [u16],
    limits: Limits,
    next: u16,
    /// The last descriptor, written as soon as the chain's end or the next segment is known.
    last: u16,
    address: u64,
    len: u32,
    flags: u16,
    count: u16,
    writable: u32,
    /// The number of descriptors without room.
    missing: usize,
    problem: Option<Refusal>,
}

impl<'a> ChainWriter<'a> {
    /// Returns a writer for a chain that begins at `head`.
    #[inline]
    pub(super) fn new(
        (descriptors, base): (&'a mut Descriptors, usize),
        head: u16,
        links: &'a [u16],
        limits: Limits,
    ) -> Self {
        Self {
            descriptors,
            base,
            links,
            limits,
            next: head,
            last: head,
            address: 0,
            len: 0,
            flags: 0,
            count: 0,
            writable: 0,
            missing: 0,
            problem: None,
        }
    }

    /// Adds a segment of a buffer, with a descriptor for each physically contiguous piece. Empty segments are left out.
    #[inline]
    pub(super) fn push_segment(&mut self, start: *const u8, len: usize, access: Access) {
        match device_piece(start, len, access) {
            _ if len == 0 => {}
            Some((address, piece)) if piece == len && len <= u32::MAX as usize => {
                self.push(address, len as u32, access);
            }
            first => self.push_pieces(first, start, len, access),
        }
    }

    #[cold]
    fn push_pieces(&mut self, first: Option<(u64, usize)>, start: *const u8, len: usize, access: Access) {
        let (mut start, mut len, mut next) = (start, len, first);
        loop {
            let Some((address, piece)) = next else { return self.give_up(Refusal::NotDeviceMemory) };
            let Ok(short) = u32::try_from(piece) else { return self.give_up(Refusal::TooLong) };
            self.push(address, short, access);
            start = start.wrapping_add(piece);
            len -= piece;
            if len == 0 {
                return;
            }
            next = device_piece(start, len, access);
        }
    }

    /// Adds a segment like [`Self::push_segment`], with descriptors of at most `most` bytes.
    pub(super) fn push_cut(&mut self, start: *const u8, len: usize, access: Access, most: usize) {
        let most = most.max(1);
        for offset in (0..len).step_by(most) {
            self.push_segment(start.wrapping_add(offset), most.min(len - offset), access);
        }
    }

    /// Rejects the buffer if it takes more than `most` descriptors so far.
    pub(super) fn limit(&mut self, most: u16) {
        if usize::from(self.count) + self.missing > usize::from(most) {
            self.problem = Some(Refusal::TooManySegments);
        }
    }

    /// Adds a segment at a device address.
    #[inline]
    pub(super) fn push(&mut self, address: u64, len: u32, access: Access) {
        if self.count == self.limits.now {
            self.missing += 1;
            return self.give_up(Refusal::Full);
        }
        let flags = match access {
            Access::DeviceReads if self.writable > 0 => return self.give_up(Refusal::OutOfOrder),
            Access::DeviceReads => 0,
            Access::DeviceWrites => {
                let Some(writable) = self.writable.checked_add(len) else {
                    return self.give_up(Refusal::TooLong);
                };
                self.writable = writable;
                WRITE
            }
        };
        if self.count > 0 {
            self.write_last(NEXT);
        }
        self.last = self.next;
        self.next = self.links.get(usize::from(self.last)).copied().unwrap_or(0);
        self.count += 1;
        (self.address, self.len, self.flags) = (address, len, flags);
    }

    #[inline]
    fn write_last(&mut self, further_flags: u16) {
        let place = self.base + usize::from(self.last);
        let flags = self.flags | further_flags;
        write_descriptor(self.descriptors, place, self.address, self.len, flags, self.next);
    }

    #[cold]
    fn give_up(&mut self, reason: Refusal) {
        self.problem.get_or_insert(reason);
    }

    /// Ends the chain at the last added segment.
    #[inline]
    pub(super) fn finish(mut self) -> Result<WrittenChain, Refusal> {
        match self.problem {
            Some(Refusal::Full) if usize::from(self.count) + self.missing > usize::from(self.limits.ever) => {
                return Err(Refusal::TooManySegments);
            }
            Some(problem) => return Err(problem),
            None => {}
        }
        if self.count == 0 {
            return Err(Refusal::Empty);
        }
        self.write_last(0);
        Ok(WrittenChain { last: self.last, count: self.count, writable: self.writable })
    }
}

/// Writes a descriptor that refers to an indirect table of `len` bytes.
pub(super) fn write_indirect(descriptors: &mut Descriptors, index: u16, address: u64, len: u32) {
    write_descriptor(descriptors, index.into(), address, len, INDIRECT, 0);
}

/// Writes the descriptor `index` of a short chain for a segment at a device address, with the index of the next one.
#[inline]
pub(super) fn write_link(
    descriptors: &mut Descriptors,
    index: u16,
    (address, len): (u64, u32),
    access: Access,
    next: Option<u16>,
) {
    let flags = match access {
        Access::DeviceReads => 0,
        Access::DeviceWrites => WRITE,
    };
    let flags = flags | if next.is_some() { NEXT } else { 0 };
    write_descriptor(descriptors, index.into(), address, len, flags, next.unwrap_or(0));
}

#[inline]
fn write_descriptor(
    descriptors: &mut Descriptors,
    place: usize,
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
) {
    descriptors.write(place, [address, u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48]);
}
