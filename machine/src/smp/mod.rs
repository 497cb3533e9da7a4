//! The machine's other cores: started, parked, given orders, and reclaimed.
//!
//! A parked core halts in the image's address space, on a stack and with tables of its own. Start and reclaim use the
//! same steps: INIT, which stops a processor even in a loop with interrupts off, and a startup interrupt, which leads
//! it through a trampoline below 1 MiB to its park loop (Intel SDM 3, 8.4.4). Tokens represent the rights to a core:
//!
//! ```text
//!   ParkedCore  -- order -->  AwayCore  -- reclaim -->  ParkedCore, or LostCore if it does not come back
//! ```

mod control_block;
mod park;

pub(crate) use control_block::{Entry, Order};

use crate::apic::local;
use crate::authority::Authority;
use crate::cpu;
use crate::memory::direct;
use crate::space::Share;
use alloc::sync::Arc;
use alloc::vec::Vec;
use control_block::{CoreControlBlock, ParkContext};
use core::arch::global_asm;
use core::fmt;
use core::mem::ManuallyDrop;
use isola_abi::descriptor::Core;
use isola_abi::id::PhysAddr;
use isola_abi::layout::IMAGE;

global_asm!(include_str!("start.s"), options(att_syntax));

/// The address of the trampoline: below 1 MiB, in memory that is used for nothing else.
pub(crate) const TRAMPOLINE: PhysAddr = PhysAddr(0x8000);

/// Time limit from the startup interrupt until the core is parked, in us. Generous, as an emulated core may have to
/// wait for a core of its host.
const START_LIMIT_US: u64 = 2_000_000;

/// Time after which the startup interrupt is sent a second time.
const SECOND_STARTUP_US: u64 = 1_000;

/// Time limit from a taken order until the core has left the image.
const LEAVE_US: u64 = 1_000;

/// Time between INIT and startup interrupt.
const INIT_US: u64 = 10;

/// A core that waits for an order.
#[derive(Debug)]
#[must_use = "a core that is dropped is lost"]
pub struct ParkedCore {
    core: Core,
    block: &'static CoreControlBlock,
    tsc_hz: u64,
}

/// A core in the address space of a cell.
#[derive(Debug)]
#[must_use = "a core that is dropped is lost"]
pub struct AwayCore {
    core: ParkedCore,
    /// Not dropped with the value: the core still uses the space then.
    share: ManuallyDrop<Share>,
}

/// A core that did not come back in time. It may still run, so no resource that it can reach may be used for anything
/// else.
#[derive(Debug)]
pub enum LostCore {
    /// It did not start at boot.
    NeverStarted(ParkedCore),
    /// It did not come back from a cell.
    Away(AwayCore),
}

/// The core has not returned from its last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreBusy;

impl fmt::Debug for CoreControlBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CoreControlBlock")
    }
}

impl fmt::Display for LostCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {} does not start any more: restart the machine to get it back", self.core().id)
    }
}

impl fmt::Display for CoreBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the core has not returned from the function that it was to call: wait for it")
    }
}

impl core::error::Error for CoreBusy {}

/// The data that all parked cores share.
#[derive(Clone, Debug)]
pub(crate) struct SharedParkContext {
    /// Root of the image's address space.
    pub(crate) root: PhysAddr,
    /// The interrupt table of parked cores.
    pub(crate) interrupt_table: u64,
    /// Rate of the cycle counter, in Hz.
    pub(crate) tsc_hz: u64,
}

#[derive(Debug)]
/// A core to start, with the top of its stack and the address of its page of descriptor tables.
pub(crate) struct Candidate {
    pub(crate) core: Core,
    pub(crate) stack_top: u64,
    pub(crate) core_page: u64,
}

/// Creates the control blocks of a machine with `count` cores; to be called before any other function of this module
/// that takes candidates.
pub(crate) fn create_control_blocks(count: usize) {
    CoreControlBlock::create_all(count);
}

/// Starts cores, all at once. Returns the parked ones, and the lost ones.
pub(crate) fn bring_up(
    candidates: &[Candidate],
    shared: &SharedParkContext,
) -> (Vec<ParkedCore>, Vec<LostCore>) {
    write_trampoline();
    let cores: Vec<ParkedCore> = candidates
        .iter()
        .filter_map(|candidate| register(candidate, shared))
        .inspect(|core| core.block.expect())
        .collect();
    start(&cores);
    let deadline = Deadline::after_us(START_LIMIT_US, shared.tsc_hz);
    let mut parked = Vec::new();
    let mut lost = Vec::new();
    for core in cores {
        if core.wait_until(&deadline) {
            parked.push(core);
        } else {
            lost.push(LostCore::NeverStarted(core));
        }
    }
    (parked, lost)
}

/// Waits until no core is leaving the image any more, as orders, tables and stacks are about to be initialised again. A
/// core that does not leave within [`START_LIMIT_US`] is ignored.
pub(crate) fn wait_for_departures(tsc_hz: u64) {
    let deadline = Deadline::after_us(START_LIMIT_US, tsc_hz);
    while CoreControlBlock::all().iter().any(CoreControlBlock::is_ordered) && !deadline.has_come() {
        core::hint::spin_loop();
    }
    // A core that has taken its order leaves the image within some ten instructions.
    Deadline::after_us(LEAVE_US, tsc_hz).wait();
}

/// Returns the token of a core that has been in the address space of a cell since a previous incarnation of the image.
///
/// # Safety
/// The core must execute only code in that space, which must stay unchanged as long as `share` is held.
pub(crate) unsafe fn adopt(
    candidate: &Candidate,
    shared: &SharedParkContext,
    share: Share,
) -> Option<AwayCore> {
    let core = register(candidate, shared)?;
    Some(AwayCore { core, share: ManuallyDrop::new(share) })
}

/// Stores a core's identity and park context in its block.
fn register(candidate: &Candidate, shared: &SharedParkContext) -> Option<ParkedCore> {
    let block = CoreControlBlock::of(candidate.core.id.0)?;
    block.set_park_context(
        candidate.core.apic,
        ParkContext {
            stack_top: candidate.stack_top,
            root: shared.root.0,
            core_page: candidate.core_page,
            interrupt_table: shared.interrupt_table,
        },
    );
    Some(ParkedCore { core: candidate.core, block, tsc_hz: shared.tsc_hz })
}

/// Sends INIT and startup interrupts to cores whose slots expect them.
fn start<'a>(cores: impl IntoIterator<Item = &'a ParkedCore> + Clone) {
    let Some(first) = cores.clone().into_iter().next() else { return };
    let page = (TRAMPOLINE.0 >> 12) as u8;
    for core in cores.clone() {
        local::send_init(core.core.apic);
    }
    Deadline::after_us(INIT_US, first.tsc_hz).wait();
    for core in cores.clone() {
        local::send_startup(core.core.apic, page);
    }
    let second = Deadline::after_us(SECOND_STARTUP_US, first.tsc_hz);
    for core in cores {
        if !core.wait_until(&second) {
            local::send_startup(core.core.apic, page);
        }
    }
}

impl ParkedCore {
    /// Returns the core's description.
    pub fn core(&self) -> Core {
        self.core
    }

    /// Orders the core to call `function(argument)`, with interrupts off, and to park again.
    ///
    /// # Errors
    /// [`CoreBusy`] if an earlier call has not returned.
    pub fn call(&mut self, function: fn(u64), argument: u64) -> Result<(), CoreBusy> {
        if !self.block.is_parked() {
            return Err(CoreBusy);
        }
        self.order(Order::Call { function, argument });
        Ok(())
    }

    /// Returns whether the core has returned from its last call.
    pub fn is_idle(&self) -> bool {
        self.block.is_parked()
    }

    /// Sends the core into another address space.
    ///
    /// # Errors
    /// The core, if its last call has not returned.
    ///
    /// # Safety
    /// The space must map the parts that [`Entry`] names, and stay unchanged as long as `share` is held.
    pub(crate) unsafe fn enter(self, entry: Entry, share: Share) -> Result<AwayCore, Self> {
        if !self.block.is_parked() {
            return Err(self);
        }
        self.order(Order::Enter(entry));
        Ok(AwayCore { core: self, share: ManuallyDrop::new(share) })
    }

    fn order(&self, order: Order) {
        self.block.give(order);
        local::send(Authority::OWN, self.core.apic, crate::interrupts::WAKE_VECTOR);
    }

    fn wait_until(&self, deadline: &Deadline) -> bool {
        while !self.block.is_parked() {
            if deadline.has_come() {
                return self.block.is_parked();
            }
            core::hint::spin_loop();
        }
        true
    }
}

impl AwayCore {
    /// Returns the core's description.
    pub fn core(&self) -> Core {
        self.core.core
    }

    /// Returns whether the core was sent into that space.
    pub(crate) fn is_in(&self, share: &Share) -> bool {
        Arc::ptr_eq(&self.share, share)
    }

    /// Returns the deadline in so many us.
    pub(crate) fn deadline_after_us(&self, us: u64) -> Deadline {
        Deadline::after_us(us, self.core.tsc_hz)
    }

    /// Interrupts the core; it takes the interrupt at its next interrupt window.
    pub fn interrupt(&self, vector: u8) {
        local::send(Authority::OWN, self.core.core.apic, vector);
    }

    /// Sends the core a non-maskable interrupt.
    pub fn interrupt_by_force(&self) {
        local::send_non_maskable(Authority::OWN, self.core.core.apic);
    }

    /// Reclaims the core, whatever it executes.
    ///
    /// # Errors
    /// [`LostCore`] if it does not come back.
    pub fn reclaim(self) -> Result<ParkedCore, LostCore> {
        self.core.block.expect();
        start(core::slice::from_ref(&self.core));
        self.wait()
    }

    /// Reclaims cores, all at once. Returns the parked ones, and the lost ones.
    pub fn reclaim_all(cores: Vec<Self>) -> (Vec<ParkedCore>, Vec<LostCore>) {
        cores.iter().for_each(|away| away.core.block.expect());
        start(cores.iter().map(|away| &away.core));
        let mut parked = Vec::new();
        let mut lost = Vec::new();
        for core in cores {
            match core.wait() {
                Ok(core) => parked.push(core),
                Err(core) => lost.push(core),
            }
        }
        (parked, lost)
    }

    fn wait(self) -> Result<ParkedCore, LostCore> {
        if !self.core.wait_until(&Deadline::after_us(START_LIMIT_US, self.core.tsc_hz)) {
            return Err(LostCore::Away(self));
        }
        let share = ManuallyDrop::into_inner(self.share);
        share.leave();
        Ok(self.core)
    }
}

impl LostCore {
    /// Returns the core's description.
    pub fn core(&self) -> Core {
        match self {
            Self::NeverStarted(core) => core.core,
            Self::Away(core) => core.core(),
        }
    }
}

/// A point in time, by the cycle counter.
pub(crate) struct Deadline {
    start: u64,
    cycles: u64,
}

impl Deadline {
    fn after_us(us: u64, tsc_hz: u64) -> Self {
        Self { start: cpu::cycles(), cycles: tsc_hz / 1_000_000 * us }
    }

    pub(crate) fn has_come(&self) -> bool {
        cpu::cycles().wrapping_sub(self.start) >= self.cycles
    }

    fn wait(&self) {
        while !self.has_come() {
            core::hint::spin_loop();
        }
    }
}

/// Writes the trampoline to the page that the startup interrupt names.
fn write_trampoline() {
    unsafe extern "C" {
        safe static isola_trampoline: u8;
        safe static isola_trampoline_root: u8;
        safe static isola_trampoline_entry: u8;
        safe static isola_trampoline_end: u8;
        safe static isola_early_tables: u8;
        safe static isola_processor_entry: u8;
    }
    let start = &raw const isola_trampoline;
    let offset = |symbol: *const u8| symbol.addr() - start.addr();
    let page = direct(TRAMPOLINE);
    // SAFETY: the page is RAM that no other code uses (`boot` excludes all memory below 1 MiB), and is in the direct
    // map; the symbols are within the trampoline, which is shorter than a page.
    unsafe {
        page.copy_from_nonoverlapping(start, offset(&raw const isola_trampoline_end));
        let root = (&raw const isola_early_tables).addr() as u64 - IMAGE;
        page.add(offset(&raw const isola_trampoline_root)).cast::<u64>().write_unaligned(root);
        let entry = (&raw const isola_processor_entry).addr() as u64;
        page.add(offset(&raw const isola_trampoline_entry)).cast::<u64>().write_unaligned(entry);
    }
}

/// Returns the address of the interrupt handler of parked cores.
pub(crate) fn parked_interrupt() -> u64 {
    unsafe extern "C" {
        safe static isola_parked_interrupt: u8;
    }
    (&raw const isola_parked_interrupt).addr() as u64
}
