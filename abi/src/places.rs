//! The places that a cell has for cores, and the orders by which cores come and go while it runs (RainForest 5.3).
//!
//! A place is a stack, a page of descriptor tables and a record in the report. A cell has as many as it can ever have
//! cores; at each, there is a core or there is none.
//!
//! ```text
//!   supervisor                                    core at the place
//!   order: a core, then Stay ------------------>  enters, takes over what runs at the place
//!   reads `Report::cores[place].order` <--------  echoes the order
//!   order: Leave; interrupts the core --------->  finishes its event, hands on what it carries, echoes the order,
//!   rings for nothing any more,  <--------------  rings, and halts for good
//!   takes the core back, order: Vacant
//!
//!   order: Yield; interrupts the core, whatever  suspends what it is in the middle of, says so
//!   it does (NMI) ----------------------------->  (`Report::cores[place].yielded`), rings, and halts for good
//!   takes the core back; nobody may be sent
//!   to the place yet                             another core of the cell goes on with what was suspended, and hands
//!   order: Vacant  <---------------------------   on what the core carried: echoes the order as one to leave
//! ```
//!
//! The words are in the descriptor's live words, which the cell cannot write. An order is stored (release) after the
//! core that it is about; each has a number of its own, so that the echo of an old one is none of a new one.

use crate::descriptor::Core;
use crate::id::{ApicId, CoreId, MAX_CORES, NodeId};
use crate::topology::{CacheId, CoreSite, PackageId, PhysicalCoreId};
use core::sync::atomic::{AtomicU32, Ordering};

/// The places of a cell.
#[repr(C)]
#[derive(Debug)]
pub struct Places {
    places: [PlaceWords; MAX_CORES],
    /// How often the cores of the cell were made to rotate to what was suspended.
    rotations: AtomicU32,
}

#[repr(C)]
#[derive(Debug)]
struct PlaceWords {
    /// An [`Order`], as a number; stored last (release).
    order: AtomicU32,
    id: AtomicU32,
    apic: AtomicU32,
    node: AtomicU32,
    package: AtomicU32,
    cache: AtomicU32,
    physical: AtomicU32,
}

/// The APIC id of none.
const NO_CORE: u32 = u32::MAX;

/// What the core at a place is to do, and which order of that place it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// What.
    pub kind: OrderKind,
    /// Counted up with each order of the place, modulo 2^30.
    pub number: u32,
}

/// What the core at a place is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OrderKind {
    /// There is no core.
    Vacant = 0,
    /// To run the cell.
    Stay = 1,
    /// To hand on what it carries, and halt.
    Leave = 2,
    /// To suspend whatever it is in the middle of, and halt.
    Yield = 3,
}

impl Order {
    /// The word by which it is given, and echoed.
    pub const fn to_u32(self) -> u32 {
        self.number << 2 | self.kind as u32
    }

    /// The order of that word.
    pub const fn from_u32(word: u32) -> Self {
        let kind = match word & 3 {
            0 => OrderKind::Vacant,
            1 => OrderKind::Stay,
            2 => OrderKind::Leave,
            _ => OrderKind::Yield,
        };
        Self { kind, number: word >> 2 }
    }

    /// The echo of an order to leave or to yield, once nothing is left to be done at the place.
    pub const fn left(self) -> Self {
        Self { kind: OrderKind::Leave, ..self }
    }
}

impl Default for Places {
    fn default() -> Self {
        let vacant = || PlaceWords {
            order: AtomicU32::new(0),
            id: AtomicU32::new(0),
            apic: AtomicU32::new(0),
            node: AtomicU32::new(0),
            package: AtomicU32::new(0),
            cache: AtomicU32::new(0),
            physical: AtomicU32::new(0),
        };
        Self { places: core::array::from_fn(|_| vacant()), rotations: AtomicU32::new(0) }
    }
}

impl Places {
    /// Gives a core to a place, which has none. For the supervisor; a place that is none changes nothing.
    pub fn give(&self, place: usize, core: Core) {
        let Some(words) = self.places.get(place) else { return };
        words.id.store(core.id.0, Ordering::Relaxed);
        words.apic.store(core.apic.0, Ordering::Relaxed);
        words.node.store(core.node.0, Ordering::Relaxed);
        words.package.store(core.site.package.0, Ordering::Relaxed);
        words.cache.store(core.site.cache.0, Ordering::Relaxed);
        words.physical.store(core.site.physical.0, Ordering::Relaxed);
        self.order(place, OrderKind::Stay);
    }

    /// Gives the core at a place the next order, and returns it. For the supervisor.
    pub fn order(&self, place: usize, kind: OrderKind) -> Order {
        let last = self.at(place);
        let next = Order { kind, number: last.number.wrapping_add(1) & (u32::MAX >> 2) };
        if let Some(words) = self.places.get(place) {
            words.order.store(next.to_u32(), Ordering::Release);
        }
        next
    }

    /// The last order of a place.
    pub fn at(&self, place: usize) -> Order {
        self.places
            .get(place)
            .map_or(Order::from_u32(0), |words| Order::from_u32(words.order.load(Ordering::Acquire)))
    }

    /// The core that is at a place, or was there last; `None` where none ever was.
    pub fn last(&self, place: usize) -> Option<CoreId> {
        let words = self.places.get(place).filter(|_| self.at(place).number > 0)?;
        Some(CoreId(words.id.load(Ordering::Relaxed)))
    }

    /// Takes the core from a place where something is still to be finished. For the supervisor.
    pub fn take(&self, place: usize) {
        if let Some(words) = self.places.get(place) {
            words.apic.store(NO_CORE, Ordering::Relaxed);
        }
    }

    /// Counts that the cell's cores are made to rotate to what was suspended. For the supervisor.
    pub fn rotate(&self) {
        self.rotations.fetch_add(1, Ordering::Release);
    }

    /// How often they were, modulo 2^32.
    pub fn rotations(&self) -> u32 {
        self.rotations.load(Ordering::Acquire)
    }

    /// The core at a place, where there is one.
    pub fn core(&self, place: usize) -> Option<Core> {
        let words = self.places.get(place).filter(|_| self.at(place).kind != OrderKind::Vacant)?;
        if words.apic.load(Ordering::Relaxed) == NO_CORE {
            return None;
        }
        Some(Core {
            id: CoreId(words.id.load(Ordering::Relaxed)),
            apic: ApicId(words.apic.load(Ordering::Relaxed)),
            node: NodeId(words.node.load(Ordering::Relaxed)),
            site: CoreSite {
                package: PackageId(words.package.load(Ordering::Relaxed)),
                cache: CacheId(words.cache.load(Ordering::Relaxed)),
                physical: PhysicalCoreId(words.physical.load(Ordering::Relaxed)),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORE: Core = Core {
        id: CoreId(5),
        apic: ApicId(9),
        node: NodeId(1),
        site: CoreSite { package: PackageId(1), cache: CacheId(2), physical: PhysicalCoreId(3) },
    };

    #[test]
    fn orders_read_back_as_given() {
        for kind in [OrderKind::Vacant, OrderKind::Stay, OrderKind::Leave, OrderKind::Yield] {
            let order = Order { kind, number: u32::MAX >> 2 };
            assert_eq!(Order::from_u32(order.to_u32()), order);
        }
    }

    #[test]
    fn a_core_is_at_its_place_until_the_place_is_vacant_and_no_two_orders_are_alike() {
        let places = Places::default();
        assert_eq!(places.core(3), None);
        places.give(3, CORE);
        let stay = places.at(3);
        assert_eq!((stay.kind, places.core(3)), (OrderKind::Stay, Some(CORE)));
        let leave = places.order(3, OrderKind::Leave);
        assert_eq!((leave, places.core(3)), (places.at(3), Some(CORE)));
        places.order(3, OrderKind::Vacant);
        assert_eq!((places.core(3), places.last(3), places.last(2)), (None, Some(CORE.id), None));
        places.give(3, CORE);
        assert_ne!(places.at(3), stay);
    }

    #[test]
    fn a_place_whose_core_was_taken_has_none_and_is_not_vacant() {
        let places = Places::default();
        places.give(3, CORE);
        let order = places.order(3, OrderKind::Yield);
        places.take(3);
        assert_eq!((places.core(3), places.at(3)), (None, order));
        assert_eq!(order.left(), Order { kind: OrderKind::Leave, number: order.number });
        places.order(3, OrderKind::Vacant);
        places.give(3, CORE);
        assert_eq!(places.core(3), Some(CORE));
    }

    #[test]
    fn what_is_no_place_has_no_core() {
        let places = Places::default();
        places.give(MAX_CORES, CORE);
        assert_eq!((places.core(MAX_CORES), places.at(usize::MAX).kind), (None, OrderKind::Vacant));
    }
}
