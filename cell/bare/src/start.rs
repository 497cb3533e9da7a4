//! From a core's entry to its event loop.
//!
//! A cell's initial cores enter at the same time. The first core initialises the cell; the others halt until it needs
//! them. Further cores enter while the cell runs, at core slots that are new or vacant. A core that enters before the
//! cell is initialised halts as well, and the first core wakes it afterwards.

use crate::state::{AUTHORITY, BARE, descriptor, end_machine_if_alone};
use crate::{console, cores, crash, hot_plug, platform, pool, regions, supervisor};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_abi::id::MAX_CORES;
use isola_abi::report::CellPhase;
use isola_ebbs::{CellTable, CoreBlock};
use isola_machine::cell::{self, Cell};
use isola_machine::{cpu, interrupts, power};
use isola_platform::CoreIndex;

static BLOCKS: CoreBlocks = CoreBlocks([const { UnsafeCell::new(None) }; MAX_CORES]);
static CELL_EBBS: CellTable = CellTable::new();

/// Whether the first core has completed the initialisation.
static READY: AtomicBool = AtomicBool::new(false);

/// The cores' blocks. Each is written and entered once, by its own core.
struct CoreBlocks([UnsafeCell<Option<CoreBlock>>; MAX_CORES]);

// SAFETY: each element is used by the core of its index alone, see `enter_block`.
unsafe impl Sync for CoreBlocks {}

unsafe extern "Rust" {
    /// The application's first step, which `cell_image!` defines.
    fn isola_application_begin();
}

/// Prepares a standalone image for boot code, which allocates memory. Runs first, called from the loader's entry.
#[inline(never)]
pub fn before_boot() {
    enter_block(CoreIndex(0));
    pool::start_alone();
}

/// Entry point of a core of the cell: on its own stack, interrupts off, tables loaded, its local APIC enabled.
pub fn enter_core(core_index: u64) -> ! {
    let core = CoreIndex(core_index as u32);
    enter_block(core);
    serve(core)
}

/// Runs a core that has its block. Not inlined: see [`CoreBlock::enter`].
#[inline(never)]
fn serve(core: CoreIndex) -> ! {
    if core == CoreIndex(0) {
        init_cell();
        READY.store(true, Ordering::SeqCst);
        cores::wake_ordered();
    } else {
        while !READY.load(Ordering::SeqCst) {
            interrupts::halt();
        }
        cell::enter_slot(AUTHORITY, core.0 as usize);
    }
    finish(core, isola_events::run())
}

/// Makes the slot's block the core's current one. Later calls set the same block, for the same core or for the next
/// core at the slot, which requests the vcore's identity before it does anything else.
fn enter_block(core: CoreIndex) {
    let block = BLOCKS.0[core.0 as usize].get();
    // SAFETY: one core at a time is at a slot, and the supervisor reclaims it before it sends the next, so no other
    // core writes the element. The core that runs the vcore may use an existing block meanwhile; the block's parts
    // allow for that. `set_gs_base` sets the base of this core's segment, which nothing else in an image changes, to
    // the block that all code of this core expects there.
    unsafe {
        match &*block {
            None => {
                let block = (*block).insert(CoreBlock::new(core, &CELL_EBBS, &BARE));
                block.enter(|base| cpu::set_gs_base(base as u64));
            }
            Some(block) => block.enter_again(),
        }
    }
}

/// Initialises the cell, on the first core, once, before any event runs.
fn init_cell() {
    pool::start();
    crash::start();
    // From here on the supervisor can stop this core by NMI, and the core then reports its instruction.
    cell::enter_slot(AUTHORITY, 0);
    let Cell { descriptor, pool, region_area, devices, .. } =
        Cell::open().unwrap_or_else(|error| panic!("{error}"));
    pool::add_pool(pool, &descriptor.cores);
    regions::start(region_area);
    console::start(descriptor.supervisor.is_none());
    platform::start(descriptor, devices);
    hot_plug::start(self::descriptor());
    supervisor::report_phase(CellPhase::Running);
    // SAFETY: `cell_image!` defines it with this signature.
    unsafe { isola_application_begin() };
}

/// Ends a core whose loop has returned: the first core reports the exit, and all wait to be reclaimed.
fn finish(core: CoreIndex, code: i32) -> ! {
    if core == CoreIndex(0) {
        cell::report().exit_code.store(code, Ordering::Relaxed);
        supervisor::report_phase(CellPhase::Exited);
        end_machine_if_alone(code);
    }
    power::stop()
}
