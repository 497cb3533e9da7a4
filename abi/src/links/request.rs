//! Requests of a cell about its links.

use super::{
    LinkAccess, MAX_SERVICE_LEN, NEIGHBOUR_SERVICE, RangeWords, SURVIVES, ServiceName, Survival, access_of,
    bytes_of, flags_of, store_bytes,
};
use crate::id::PhysRange;
use crate::management::MAX_NAME_LEN;
use alloc::string::String;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A cell's request about a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkDemand {
    /// Open a link for frames to the neighbour with this hardware address, with this half: a cell of this machine whose
    /// specification and that of the asking cell agree to it.
    OpenNeighbour {
        /// The neighbour's hardware address.
        mac: [u8; 6],
        /// This cell's half.
        memory: PhysRange,
    },
    /// Open a link to a service of the cell named `target`, with this half.
    Open {
        /// The peer's name.
        target: String,
        /// The service, which the supervisor does not interpret.
        service: ServiceName,
        /// This cell's half.
        memory: PhysRange,
    },
    /// Accept an invitation, with this half.
    Accept {
        /// The slot.
        slot: usize,
        /// This cell's half.
        memory: PhysRange,
    },
    /// Share further memory with the peer.
    Share {
        /// The slot.
        slot: usize,
        /// The memory.
        memory: PhysRange,
        /// What the peer may do with it.
        access: LinkAccess,
        /// Whether the peer may keep its contents at the end of this cell.
        survival: Survival,
    },
    /// Keep the contents of the memory that the peer shares, when the peer ends, in memory of this cell.
    Keep {
        /// The slot.
        slot: usize,
        /// Memory of the same length, which this cell gives to no peer.
        memory: PhysRange,
    },
    /// Revoke the shared memory.
    Unshare {
        /// The slot.
        slot: usize,
    },
    /// Close the link, or refuse the invitation, and free the slot.
    Close {
        /// The slot.
        slot: usize,
    },
}

/// A cell's current request, in its report. The cell writes all fields.
#[repr(C)]
#[derive(Debug, Default)]
pub struct LinkRequest {
    /// The request's number, incremented with each request; stored last (release).
    number: AtomicU32,
    kind: AtomicU32,
    slot: AtomicU32,
    /// [`WRITABLE`](super::WRITABLE), [`SURVIVES`].
    flags: AtomicU32,
    memory: RangeWords,
    service: [AtomicU64; MAX_SERVICE_LEN / 8],
    target: [AtomicU64; NAME_WORDS],
}

/// The kind of [`LinkDemand::OpenNeighbour`].
const NEIGHBOUR_KIND: u32 = 16;

/// The words of a cell's name.
const NAME_WORDS: usize = (MAX_NAME_LEN + 1).div_ceil(8);

impl LinkRequest {
    /// Returns the number of the latest request; 0: there was none.
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// Writes a request, after the previous one was answered. Returns its number. For the cell.
    pub fn put(&self, demand: &LinkDemand) -> u32 {
        let mut name = [0; 8 * NAME_WORDS];
        let (kind, slot, memory, flags) = match demand {
            LinkDemand::Open { target, service, memory } => {
                name.iter_mut().zip(target.bytes().take(MAX_NAME_LEN)).for_each(|(to, from)| *to = from);
                store_bytes(&self.service, service);
                (1, 0, *memory, 0)
            }
            LinkDemand::OpenNeighbour { mac, memory } => {
                let mut bytes = [0; MAX_SERVICE_LEN];
                bytes.iter_mut().zip(mac).for_each(|(to, from)| *to = *from);
                store_bytes(&self.service, &bytes);
                (NEIGHBOUR_KIND, 0, *memory, 0)
            }
            LinkDemand::Accept { slot, memory } => (2, *slot, *memory, 0),
            LinkDemand::Share { slot, memory, access, survival } => {
                let survives = if *survival == Survival::Permitted { SURVIVES } else { 0 };
                (3, *slot, *memory, flags_of(*access) | survives)
            }
            LinkDemand::Keep { slot, memory } => (6, *slot, *memory, 0),
            LinkDemand::Unshare { slot } => (4, *slot, PhysRange::default(), 0),
            LinkDemand::Close { slot } => (5, *slot, PhysRange::default(), 0),
        };
        store_bytes(&self.target, &name);
        self.kind.store(kind, Ordering::Relaxed);
        self.slot.store(slot as u32, Ordering::Relaxed);
        self.flags.store(flags, Ordering::Relaxed);
        self.memory.set(memory);
        // 0 means that there was no request.
        let number = self.number.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.number.store(number, Ordering::Release);
        number
    }

    /// Returns the request; `None` if it is unintelligible. Each word is read once; the contents are not validated
    /// otherwise.
    pub fn get(&self) -> Option<LinkDemand> {
        let slot = self.slot.load(Ordering::Relaxed) as usize;
        let memory = self.memory.get();
        Some(match self.kind.load(Ordering::Relaxed) {
            1 => {
                let name: [u8; 8 * NAME_WORDS] = bytes_of(&self.target);
                let name = name.split(|byte| *byte == 0).next()?;
                let target = core::str::from_utf8(name).ok()?.into();
                let service = bytes_of(&self.service);
                if service == NEIGHBOUR_SERVICE {
                    return None;
                }
                LinkDemand::Open { target, service, memory }
            }
            NEIGHBOUR_KIND => {
                let [a, b, c, d, e, f, ..] = bytes_of::<MAX_SERVICE_LEN>(&self.service);
                LinkDemand::OpenNeighbour { mac: [a, b, c, d, e, f], memory }
            }
            2 => LinkDemand::Accept { slot, memory },
            3 => {
                let flags = self.flags.load(Ordering::Relaxed);
                let survival = if flags & SURVIVES == 0 { Survival::Revoked } else { Survival::Permitted };
                LinkDemand::Share { slot, memory, access: access_of(flags), survival }
            }
            4 => LinkDemand::Unshare { slot },
            5 => LinkDemand::Close { slot },
            6 => LinkDemand::Keep { slot, memory },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PhysAddr;
    use crate::layout::PAGE_SIZE;
    use crate::links::service_name;

    fn range(page: u64, pages: u64) -> PhysRange {
        PhysRange::new(PhysAddr(page * PAGE_SIZE), pages * PAGE_SIZE)
    }

    #[test]
    fn requests_round_trip_and_have_new_numbers() {
        let request = LinkRequest::default();
        assert_eq!((request.number(), request.get()), (0, None));
        let service = service_name("echo").unwrap();
        let longest = "n".repeat(MAX_NAME_LEN);
        let share = |access, survival| LinkDemand::Share { slot: 3, memory: range(9, 1), access, survival };
        let demands = [
            LinkDemand::Open { target: longest, service, memory: range(5, 4) },
            LinkDemand::OpenNeighbour { mac: [2, 0xff, 0, 7, 8, 9], memory: range(5, 33) },
            LinkDemand::Accept { slot: 3, memory: range(9, 1) },
            share(LinkAccess::ReadWrite, Survival::Revoked),
            share(LinkAccess::Read, Survival::Permitted),
            share(LinkAccess::Read, Survival::Revoked),
            LinkDemand::Keep { slot: 4, memory: range(7, 2) },
            LinkDemand::Unshare { slot: 62 },
            LinkDemand::Close { slot: 0 },
        ];
        for (number, demand) in (1..).zip(demands) {
            assert_eq!(request.put(&demand), number);
            assert_eq!((request.number(), request.get()), (number, Some(demand)));
        }
        request.kind.store(77, Ordering::Relaxed);
        assert_eq!(request.get(), None);
        request.put(&LinkDemand::Open { target: "kv".into(), service, memory: range(1, 1) });
        request.target[0].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(request.get(), None, "no UTF-8");
        request.put(&LinkDemand::Open {
            target: "kv".into(),
            service: NEIGHBOUR_SERVICE,
            memory: range(1, 1),
        });
        assert_eq!(request.get(), None, "frames of neighbours have no name");
    }
}
