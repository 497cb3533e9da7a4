//! From a core's entry to its event loop.
//!
//! The cores that a cell begins with enter at the same time. The first makes the cell; the others halt until it needs
//! them. Further ones come while it runs, to places that no core has been at, or that one has left. One that comes before
//! the cell is made halts as well, and is called when it is.

use crate::AUTHORITY;
use crate::platform;
use crate::{console, crash, grow, heap, window as regions};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_abi::id::MAX_CORES;
use isola_abi::report::CellPhase;
use isola_ebbs::{CellTable, CoreBlock};
use isola_machine::cell::{self, Cell};
use isola_machine::{cpu, interrupts, power};
use isola_platform::{CoreIndex, Platform};

static BLOCKS: Blocks = Blocks([const { UnsafeCell::new(None) }; MAX_CORES]);
static CELL_EBBS: CellTable = CellTable::new();

/// Whether the first core has made what all cores need.
static READY: AtomicBool = AtomicBool::new(false);

/// Where the cores' blocks are: each is written and entered once, by its own core.
struct Blocks([UnsafeCell<Option<CoreBlock>>; MAX_CORES]);

// SAFETY: each place is used by the core of its index alone, see `enter_block`.
unsafe impl Sync for Blocks {}

unsafe extern "Rust" {
    /// The application's first step, which `cell_image!` defines.
    fn isola_application_begin();
}

/// What an image that boots alone does before anything else, under the loader's entry: boot code takes memory.
#[inline(never)]
pub fn before_boot() {
    enter_block(CoreIndex(0));
    heap::start();
}

/// Where a core of the cell begins: on its own stack, interrupts off, tables loaded, its local APIC enabled.
pub fn enter_core(core_index: u64) -> ! {
    let core = CoreIndex(core_index as u32);
    enter_block(core);
    serve(core)
}

/// What a core does from when it has its block. Not inlined: see [`CoreBlock::enter`].
#[inline(never)]
fn serve(core: CoreIndex) -> ! {
    if core == CoreIndex(0) {
        make_cell();
        READY.store(true, Ordering::SeqCst);
        platform::call_who_is_wanted();
    } else {
        while !READY.load(Ordering::SeqCst) {
            interrupts::halt();
        }
        cell::enter_place(AUTHORITY, core.0 as usize);
    }
    finish(core, isola_events::run())
}

/// Makes the core's block known to the core. A second time, the same one: to the core itself, or to the next at its place,
/// which asks for its identity before it does anything else.
fn enter_block(core: CoreIndex) {
    let block = BLOCKS.0[core.0 as usize].get();
    // SAFETY: one core at a time is at a place, and the supervisor has taken one back before it sends the next, so that
    // nobody else writes the place. A block that is there may be used by whoever runs the core; its parts allow for that.
    // `set_gs_base` sets the base of this core's segment, which nothing else in an image changes, to the block that all
    // code of this core expects there.
    unsafe {
        match &*block {
            None => {
                let block = (*block).insert(CoreBlock::new(core, &CELL_EBBS, &platform::BARE));
                block.enter(|base| cpu::set_gs_base(base as u64));
            }
            Some(block) => block.enter_again(),
        }
    }
}

/// What the first core does, once, before any event runs.
fn make_cell() {
    heap::start();
    crash::start();
    // From here on it can be interrupted by force, and says where it stands.
    cell::enter_place(AUTHORITY, 0);
    let Cell { descriptor, pool, window, devices, .. } =
        Cell::open().unwrap_or_else(|error| panic!("{error}"));
    heap::add_pool(pool, &descriptor.cores);
    regions::start(window);
    console::start(descriptor.supervisor.is_none());
    platform::start(descriptor, devices);
    grow::start(platform::BARE.descriptor());
    platform::say(CellPhase::Running);
    // SAFETY: `cell_image!` defines it with this signature.
    unsafe { isola_application_begin() };
}

/// What a core does when its loop has ended: the first tells, and all wait to be reclaimed.
fn finish(core: CoreIndex, code: i32) -> ! {
    if core == CoreIndex(0) {
        cell::report().exit_code.store(code, Ordering::Relaxed);
        platform::say(CellPhase::Exited);
        platform::end_machine_if_alone(code);
    }
    power::stop()
}
