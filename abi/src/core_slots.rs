//! The core slots of a cell, and the orders for core hot-plug and hot-unplug (RainForest 5.3).
//!
//! A core slot consists of a stack, a page of descriptor tables and a record in the report. A cell has as many slots as
//! it can ever have cores; each slot is occupied or vacant.
//!
//! ```text
//!   supervisor                                    core at the slot
//!   order: the core, then Stay ---------------->  enters, takes over the slot's vcore,
//!                                <--------------  echoes the order in `Report::cores[slot].order`
//!   order: Leave; sends REQUEST_VECTOR -------->  finishes its event, passes on its vcores, echoes the
//!                                <--------------  order, notifies, and halts for good
//!   takes the core back; order: Vacant
//!
//!   order: Yield; sends an NMI ---------------->  suspends its context, publishes the order in
//!                                <--------------  `Report::cores[slot].yielded`, notifies, and halts for good
//!   takes the core back; the slot accepts no
//!   core yet                                      another core of the cell resumes the context, passes on
//!                                <--------------  its vcores, and echoes the order as a Leave
//!   order: Vacant
//! ```
//!
//! The orders are in the descriptor's live words, which the cell cannot write. The supervisor stores an order (release)
//! after the core's data. The orders of a slot are numbered, so the echo of an earlier order differs from that of the
//! present one.

use crate::id::{ApicId, CoreId, MAX_CORES, NodeId};
use crate::topology::{CacheId, Core, CoreSite, PackageId, PhysicalCoreId};
use core::sync::atomic::{AtomicU32, Ordering};

/// The core slots of a cell.
#[repr(C)]
#[derive(Debug)]
pub struct CoreSlots {
    slots: [CoreSlotWords; MAX_CORES],
    /// The number of rotations that the supervisor has requested of the cell's cores, modulo 2^32.
    rotations: AtomicU32,
}

#[repr(C)]
#[derive(Debug)]
struct CoreSlotWords {
    /// An [`Order`], encoded; stored last (release).
    order: AtomicU32,
    id: AtomicU32,
    apic: AtomicU32,
    node: AtomicU32,
    package: AtomicU32,
    cache: AtomicU32,
    physical: AtomicU32,
}

/// The APIC id of an empty slot.
const NO_CORE: u32 = u32::MAX;

/// The order for the core at a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The action.
    pub kind: OrderKind,
    /// The order's number, incremented with each order of the slot, modulo 2^30.
    pub number: u32,
}

/// The action that an order demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OrderKind {
    /// The slot has no core.
    Vacant = 0,
    /// The core enters and runs the cell.
    Stay = 1,
    /// The core passes on its vcores and halts.
    Leave = 2,
    /// The core suspends its context at once and halts.
    Yield = 3,
}

impl Order {
    /// Returns the word that encodes the order, for the order itself and its echo.
    pub const fn to_u32(self) -> u32 {
        self.number << 2 | self.kind as u32
    }

    /// Decodes an order.
    pub const fn from_u32(word: u32) -> Self {
        let kind = match word & 3 {
            0 => OrderKind::Vacant,
            1 => OrderKind::Stay,
            2 => OrderKind::Leave,
            _ => OrderKind::Yield,
        };
        Self { kind, number: word >> 2 }
    }

    /// Returns the echo of an order to leave or to yield, for a slot at which no work is left.
    pub const fn left(self) -> Self {
        Self { kind: OrderKind::Leave, ..self }
    }
}

impl Default for CoreSlots {
    fn default() -> Self {
        let vacant = || CoreSlotWords {
            order: AtomicU32::new(0),
            id: AtomicU32::new(0),
            apic: AtomicU32::new(0),
            node: AtomicU32::new(0),
            package: AtomicU32::new(0),
            cache: AtomicU32::new(0),
            physical: AtomicU32::new(0),
        };
        Self { slots: core::array::from_fn(|_| vacant()), rotations: AtomicU32::new(0) }
    }
}

impl CoreSlots {
    /// Assigns a core to a vacant slot, with the order to stay. For the supervisor. Does nothing if there is no such
    /// slot.
    pub fn give(&self, slot: usize, core: Core) {
        let Some(words) = self.slots.get(slot) else { return };
        words.id.store(core.id.0, Ordering::Relaxed);
        words.apic.store(core.apic.0, Ordering::Relaxed);
        words.node.store(core.node.0, Ordering::Relaxed);
        words.package.store(core.site.package.0, Ordering::Relaxed);
        words.cache.store(core.site.cache.0, Ordering::Relaxed);
        words.physical.store(core.site.physical.0, Ordering::Relaxed);
        self.order(slot, OrderKind::Stay);
    }

    /// Gives the core at a slot the next order, and returns the order. For the supervisor.
    pub fn order(&self, slot: usize, kind: OrderKind) -> Order {
        let last = self.at(slot);
        let next = Order { kind, number: last.number.wrapping_add(1) & (u32::MAX >> 2) };
        if let Some(words) = self.slots.get(slot) {
            words.order.store(next.to_u32(), Ordering::Release);
        }
        next
    }

    /// Returns the latest order of a slot.
    pub fn at(&self, slot: usize) -> Order {
        self.slots
            .get(slot)
            .map_or(Order::from_u32(0), |words| Order::from_u32(words.order.load(Ordering::Acquire)))
    }

    /// Returns the core at a slot, or the last core that was there; `None` if the slot never had a core.
    pub fn last(&self, slot: usize) -> Option<CoreId> {
        let words = self.slots.get(slot).filter(|_| self.at(slot).number > 0)?;
        Some(CoreId(words.id.load(Ordering::Relaxed)))
    }

    /// Removes the core from a slot without making the slot vacant: a suspended context of the slot has yet to finish.
    /// For the supervisor.
    pub fn take(&self, slot: usize) {
        if let Some(words) = self.slots.get(slot) {
            words.apic.store(NO_CORE, Ordering::Relaxed);
        }
    }

    /// Requests a rotation: at their next NMI, the cell's cores switch between their own and suspended contexts. For
    /// the supervisor.
    pub fn rotate(&self) {
        self.rotations.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of requested rotations, modulo 2^32.
    pub fn rotations(&self) -> u32 {
        self.rotations.load(Ordering::Acquire)
    }

    /// Returns the core at a slot, if there is one.
    pub fn core(&self, slot: usize) -> Option<Core> {
        let words = self.slots.get(slot).filter(|_| self.at(slot).kind != OrderKind::Vacant)?;
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
    fn orders_round_trip_through_their_encoding() {
        for kind in [OrderKind::Vacant, OrderKind::Stay, OrderKind::Leave, OrderKind::Yield] {
            let order = Order { kind, number: u32::MAX >> 2 };
            assert_eq!(Order::from_u32(order.to_u32()), order);
        }
    }

    #[test]
    fn a_slot_has_its_core_until_it_is_vacant_and_each_order_differs() {
        let slots = CoreSlots::default();
        assert_eq!(slots.core(3), None);
        slots.give(3, CORE);
        let stay = slots.at(3);
        assert_eq!((stay.kind, slots.core(3)), (OrderKind::Stay, Some(CORE)));
        let leave = slots.order(3, OrderKind::Leave);
        assert_eq!((leave, slots.core(3)), (slots.at(3), Some(CORE)));
        slots.order(3, OrderKind::Vacant);
        assert_eq!((slots.core(3), slots.last(3), slots.last(2)), (None, Some(CORE.id), None));
        slots.give(3, CORE);
        assert_ne!(slots.at(3), stay);
    }

    #[test]
    fn a_slot_whose_core_was_taken_is_empty_but_not_vacant() {
        let slots = CoreSlots::default();
        slots.give(3, CORE);
        let order = slots.order(3, OrderKind::Yield);
        slots.take(3);
        assert_eq!((slots.core(3), slots.at(3)), (None, order));
        assert_eq!(order.left(), Order { kind: OrderKind::Leave, number: order.number });
        slots.order(3, OrderKind::Vacant);
        slots.give(3, CORE);
        assert_eq!(slots.core(3), Some(CORE));
    }

    #[test]
    fn a_nonexistent_slot_has_no_core() {
        let slots = CoreSlots::default();
        slots.give(MAX_CORES, CORE);
        assert_eq!((slots.core(MAX_CORES), slots.at(usize::MAX).kind), (None, OrderKind::Vacant));
    }
}
