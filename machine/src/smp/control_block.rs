//! The state that the boot core shares with each other core: one block per core.
//!
//! ```text
//!            expect            the core            order              the core
//!   Absent ---------> Starting ---------> Parked ---------> Ordered ---------> Away
//!                        ^                  ^                   the call returned |
//!                        |                  +------------------------------------+
//!                        +------------ expect: INIT, startup, from any state ----+
//! ```
//!
//! The boot core writes the fields of an order, then the state (release); the core reads the state (acquire), then the
//! fields. One side alone makes each transition, as named above; an INIT accompanies `expect`, after which the core's
//! own transitions start again from `Starting`.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use isola_abi::id::ApicId;

/// The state of a core. 0, which has no variant, is `Absent`: the core was never started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum State {
    /// The core was started. `start.s` contains this number.
    Starting = 1,
    /// Halted, waiting for an order.
    Parked = 2,
    /// The core has an order that it has not taken.
    Ordered = 3,
    /// The core executes its order.
    Away = 4,
}

/// An order to a core.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Call a function, and park again when it returns.
    Call {
        /// The function.
        function: fn(u64),
        /// Its argument.
        argument: u64,
    },
    /// Enter another address space.
    Enter(Entry),
}

/// The data for a core's entry to an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The space's root.
    pub(crate) root: u64,
    /// Top of the stack.
    pub(crate) stack_top: u64,
    /// Address of the function that is called there.
    pub(crate) entry: u64,
    /// Argument of that function.
    pub(crate) argument: u64,
    /// The core's page of descriptor tables, as mapped writable in the present space.
    pub(crate) core_page_here: u64,
    /// The same page, as mapped in the entered space.
    pub(crate) core_page: u64,
    /// The interrupt table, as mapped in the entered space.
    pub(crate) interrupt_table: u64,
}

/// The block of a core. `start.s` reads the first four fields.
#[repr(C, align(128))]
pub(super) struct CoreControlBlock {
    apic: AtomicU32,
    state: AtomicU32,
    stack_top: AtomicU64,
    root: AtomicU64,
    core_page: AtomicU64,
    interrupt_table: AtomicU64,
    order: [AtomicU64; 8],
}

const _: () = assert!(size_of::<CoreControlBlock>() == 128);
const _: () = assert!(core::mem::offset_of!(CoreControlBlock, state) == 4);
const _: () = assert!(core::mem::offset_of!(CoreControlBlock, stack_top) == 8);
const _: () = assert!(core::mem::offset_of!(CoreControlBlock, root) == 16);

/// The table of all blocks, by core id. `start.s` reads both fields.
#[repr(C)]
struct BlockTable {
    first: AtomicPtr<CoreControlBlock>,
    count: AtomicUsize,
}

const _: () = assert!(core::mem::offset_of!(BlockTable, count) == 8);

/// Empty until [`CoreControlBlock::create_all`], once an incarnation of the image.
#[unsafe(no_mangle)]
static isola_core_control_blocks: BlockTable =
    BlockTable { first: AtomicPtr::new(core::ptr::null_mut()), count: AtomicUsize::new(0) };

/// Address space, stack and tables of a parked core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParkContext {
    pub(super) stack_top: u64,
    pub(super) root: u64,
    pub(super) core_page: u64,
    pub(super) interrupt_table: u64,
}

impl CoreControlBlock {
    const fn new() -> Self {
        Self {
            apic: AtomicU32::new(0),
            state: AtomicU32::new(0),
            stack_top: AtomicU64::new(0),
            root: AtomicU64::new(0),
            core_page: AtomicU64::new(0),
            interrupt_table: AtomicU64::new(0),
            order: [const { AtomicU64::new(0) }; 8],
        }
    }

    /// Creates the blocks of `count` cores, for good, in the image's heap, which the early tables map. Replaces earlier
    /// ones.
    pub(super) fn create_all(count: usize) {
        let blocks: Vec<Self> = core::iter::repeat_with(Self::new).take(count).collect();
        let blocks = Box::leak(blocks.into_boxed_slice());
        isola_core_control_blocks.count.store(0, Ordering::SeqCst);
        isola_core_control_blocks.first.store(blocks.as_mut_ptr(), Ordering::SeqCst);
        isola_core_control_blocks.count.store(count, Ordering::SeqCst);
    }

    /// Returns all blocks.
    pub(super) fn all() -> &'static [Self] {
        let count = isola_core_control_blocks.count.load(Ordering::Acquire);
        let first = isola_core_control_blocks.first.load(Ordering::Acquire);
        if count == 0 {
            return &[];
        }
        // SAFETY: `create_all` stored the address of so many blocks, which are never freed, before the count.
        unsafe { core::slice::from_raw_parts(first, count) }
    }

    /// Returns the block of a core; `None` if the id is too large.
    pub(super) fn of(core: u32) -> Option<&'static Self> {
        Self::all().get(core as usize)
    }

    /// Sets the core's APIC id, and its park context.
    pub(super) fn set_park_context(&self, apic: ApicId, park_context: ParkContext) {
        self.apic.store(apic.0, Ordering::Relaxed);
        self.stack_top.store(park_context.stack_top, Ordering::Relaxed);
        self.root.store(park_context.root, Ordering::Relaxed);
        self.core_page.store(park_context.core_page, Ordering::Relaxed);
        self.interrupt_table.store(park_context.interrupt_table, Ordering::Relaxed);
    }

    /// Returns the core's park context.
    pub(super) fn park_context(&self) -> ParkContext {
        ParkContext {
            stack_top: self.stack_top.load(Ordering::Relaxed),
            root: self.root.load(Ordering::Relaxed),
            core_page: self.core_page.load(Ordering::Relaxed),
            interrupt_table: self.interrupt_table.load(Ordering::Relaxed),
        }
    }

    /// Allows the core to start.
    pub(super) fn expect(&self) {
        self.state.store(State::Starting as u32, Ordering::SeqCst);
    }

    /// Returns whether the core waits for an order.
    pub(super) fn is_parked(&self) -> bool {
        self.state.load(Ordering::Acquire) == State::Parked as u32
    }

    /// Returns whether the core has an order that it has not taken.
    pub(super) fn is_ordered(&self) -> bool {
        self.state.load(Ordering::Acquire) == State::Ordered as u32
    }

    /// Marks the core as waiting for an order. Called by the core.
    pub(super) fn park(&self) {
        self.state.store(State::Parked as u32, Ordering::Release);
    }

    /// Gives a parked core an order, which it takes at its next interrupt.
    pub(super) fn give(&self, order: Order) {
        let words = match order {
            Order::Call { function, argument } => [0, function as usize as u64, argument, 0, 0, 0, 0, 0],
            Order::Enter(entry) => [
                1,
                entry.root,
                entry.stack_top,
                entry.entry,
                entry.argument,
                entry.core_page_here,
                entry.core_page,
                entry.interrupt_table,
            ],
        };
        for (place, word) in self.order.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.state.store(State::Ordered as u32, Ordering::Release);
    }

    /// Takes an order, if there is one. Called by the core.
    pub(super) fn take(&self) -> Option<Order> {
        if self.state.load(Ordering::Acquire) != State::Ordered as u32 {
            return None;
        }
        let words: [u64; 8] = core::array::from_fn(|index| self.order[index].load(Ordering::Relaxed));
        let word = |index: usize| words[index];
        self.state.store(State::Away as u32, Ordering::Release);
        if word(0) == 0 {
            // SAFETY: `give` stored a function there before it stored the state that was read (acquire).
            let function = unsafe { core::mem::transmute::<usize, fn(u64)>(word(1) as usize) };
            return Some(Order::Call { function, argument: word(2) });
        }
        Some(Order::Enter(Entry {
            root: word(1),
            stack_top: word(2),
            entry: word(3),
            argument: word(4),
            core_page_here: word(5),
            core_page: word(6),
            interrupt_table: word(7),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> CoreControlBlock {
        CoreControlBlock::new()
    }

    #[test]
    fn an_order_arrives_as_it_was_given_and_once() {
        let block = block();
        block.park();
        assert!(block.take().is_none());
        let entry = Entry {
            root: 1,
            stack_top: 2,
            entry: 3,
            argument: 4,
            core_page_here: 5,
            core_page: 6,
            interrupt_table: 7,
        };
        block.give(Order::Enter(entry));
        assert!(!block.is_parked() && block.is_ordered());
        assert!(matches!(block.take(), Some(Order::Enter(found)) if found == entry));
        assert!(block.take().is_none() && !block.is_ordered());
    }

    #[test]
    fn a_call_reaches_its_function() {
        static CALLED: AtomicU64 = AtomicU64::new(0);
        let block = block();
        block.give(Order::Call {
            function: |argument| CALLED.store(argument, Ordering::Relaxed),
            argument: 77,
        });
        match block.take() {
            Some(Order::Call { function, argument }) => function(argument),
            other => panic!("{other:?}"),
        }
        assert_eq!(CALLED.load(Ordering::Relaxed), 77);
    }

    #[test]
    fn each_core_of_the_machine_has_a_block() {
        CoreControlBlock::create_all(256);
        CoreControlBlock::of(255).unwrap().expect();
        assert!(!CoreControlBlock::of(255).unwrap().is_parked());
        assert!(CoreControlBlock::of(256).is_none() && CoreControlBlock::all().len() == 256);
        CoreControlBlock::create_all(3);
        assert!(
            CoreControlBlock::of(3).is_none()
                && CoreControlBlock::all().iter().all(|block| !block.is_ordered())
        );
    }
}
