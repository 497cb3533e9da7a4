//! The machine's other cores: starting them, parking them, giving them something to do, and getting them back
//! from whatever they do.
//!
//! A core that is parked halts in the image's address space, on a stack and with tables of its own. It is
//! started, and got back, the same way: INIT, which stops a processor even where it spins with interrupts off,
//! and a startup interrupt, which leads it by a trampoline below 1 MiB back to where it parks
//! (Intel SDM 3, 8.4.4). Tokens say who may do what with a core:
//!
//! ```text
//!   ParkedCore  -- order -->  AwayCore  -- reclaim -->  ParkedCore, or LostCore if it doesn't come
//! ```

mod park;
mod slot;

pub(crate) use slot::{Entry, Order};

use crate::apic::local;
use crate::authority::Authority;
use crate::cpu;
use crate::memory::direct;
use crate::space::Share;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::arch::global_asm;
use core::fmt;
use core::mem::ManuallyDrop;
use isola_abi::descriptor::Core;
use isola_abi::id::PhysAddr;
use isola_abi::layout::IMAGE;
use slot::{Home, Slot};

global_asm!(include_str!("start.s"), options(att_syntax));

/// Where the trampoline stands. Below 1 MiB, in memory that is used for nothing else.
pub(crate) const TRAMPOLINE: PhysAddr = PhysAddr(0x8000);

/// How long a core may take from the startup interrupt until it is parked, in us. Generous, as emulated cores
/// may have to wait for a host's.
const START_LIMIT_US: u64 = 2_000_000;

/// After how long the startup interrupt is sent a second time.
const SECOND_STARTUP_US: u64 = 1_000;

/// How long a core may take that has taken an order until it is gone.
const DOOR_US: u64 = 1_000;

/// Time between INIT and startup interrupt.
const INIT_US: u64 = 10;

/// A core that waits for an order.
#[derive(Debug)]
#[must_use = "a core that is dropped is lost"]
pub struct ParkedCore {
    core: Core,
    slot: &'static Slot,
    tsc_hz: u64,
}

/// A core that is in an address space of its own.
#[derive(Debug)]
#[must_use = "a core that is dropped is lost"]
pub struct AwayCore {
    core: ParkedCore,
    /// Kept also where the value is dropped: the core still uses it then.
    share: ManuallyDrop<Share>,
}

/// A core that did not come back in time. It may still run, and so nothing that it could reach may be used
/// for anything else.
#[derive(Debug)]
pub enum LostCore {
    /// It did not come at boot.
    Unborn(ParkedCore),
    /// It did not come back.
    Away(AwayCore),
}

/// The core has not returned from the function that it was to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreBusy;

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
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

/// What the cores of a machine live in.
#[derive(Clone, Debug)]
pub(crate) struct Homes {
    /// Root of the image's address space.
    pub(crate) root: PhysAddr,
    /// The interrupt table of parked cores.
    pub(crate) interrupt_table: u64,
    /// Rate of the cycle counter.
    pub(crate) tsc_hz: u64,
}

#[derive(Debug)]
/// A core to start: who it is, where its stack begins, and the address of its page of descriptor tables.
pub(crate) struct Candidate {
    pub(crate) core: Core,
    pub(crate) stack_top: u64,
    pub(crate) core_page: u64,
}

/// Starts cores, all at once. Returns those that came, and those that did not.
pub(crate) fn bring_up(candidates: &[Candidate], homes: &Homes) -> (Vec<ParkedCore>, Vec<LostCore>) {
    write_trampoline();
    let cores: Vec<ParkedCore> = candidates
        .iter()
        .filter_map(|candidate| settle(candidate, homes))
        .inspect(|core| core.slot.expect())
        .collect();
    start(&cores);
    let deadline = Deadline::after_us(START_LIMIT_US, homes.tsc_hz);
    let mut parked = Vec::new();
    let mut lost = Vec::new();
    for core in cores {
        if core.wait_until(&deadline) {
            parked.push(core);
        } else {
            lost.push(LostCore::Unborn(core));
        }
    }
    (parked, lost)
}

/// Waits until no core is on its way from the image to somewhere else any more: what it goes by, orders, tables and stacks,
/// is about to be made anew. One that does not go within [`START_LIMIT_US`] is not waited for.
pub(crate) fn see_off(tsc_hz: u64) {
    let deadline = Deadline::after_us(START_LIMIT_US, tsc_hz);
    while Slot::all().any(Slot::is_ordered) && !deadline.has_come() {
        core::hint::spin_loop();
    }
    // What has taken its order is some ten instructions from the door.
    Deadline::after_us(DOOR_US, tsc_hz).wait();
}

/// A core that has been in an address space of its own since a previous incarnation of the image.
///
/// # Safety
/// The core must run nothing but what is in that space, which stays as it is for as long as `share` is held.
pub(crate) unsafe fn adopt(candidate: &Candidate, homes: &Homes, share: Share) -> Option<AwayCore> {
    let core = settle(candidate, homes)?;
    Some(AwayCore { core, share: ManuallyDrop::new(share) })
}

/// Says who a core is and where it lives.
fn settle(candidate: &Candidate, homes: &Homes) -> Option<ParkedCore> {
    let slot = Slot::of(candidate.core.id.0)?;
    slot.set_home(
        candidate.core.apic,
        Home {
            stack_top: candidate.stack_top,
            root: homes.root.0,
            core_page: candidate.core_page,
            interrupt_table: homes.interrupt_table,
        },
    );
    Some(ParkedCore { core: candidate.core, slot, tsc_hz: homes.tsc_hz })
}

/// Sends INIT and startup interrupts to cores, each with its slot set to expect it.
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
    /// Which core it is.
    pub fn core(&self) -> Core {
        self.core
    }

    /// Has the core call `function(argument)` and park again. Interrupts are off there.
    ///
    /// # Errors
    /// [`CoreBusy`] where an earlier call has not returned.
    pub fn call(&mut self, function: fn(u64), argument: u64) -> Result<(), CoreBusy> {
        if !self.slot.is_parked() {
            return Err(CoreBusy);
        }
        self.order(Order::Call { function, argument });
        Ok(())
    }

    /// Whether the core has returned from what it was to call.
    pub fn is_idle(&self) -> bool {
        self.slot.is_parked()
    }

    /// Sends the core into another address space.
    ///
    /// # Errors
    /// The core, where a call of it has not returned.
    ///
    /// # Safety
    /// The space must have what [`Entry`] says, and stay as it is for as long as `share` is held.
    pub(crate) unsafe fn enter(self, entry: Entry, share: Share) -> Result<AwayCore, Self> {
        if !self.slot.is_parked() {
            return Err(self);
        }
        self.order(Order::Enter(entry));
        Ok(AwayCore { core: self, share: ManuallyDrop::new(share) })
    }

    fn order(&self, order: Order) {
        self.slot.give(order);
        local::send(Authority::OWN, self.core.apic, crate::interrupts::WAKE_VECTOR);
    }

    fn wait_until(&self, deadline: &Deadline) -> bool {
        while !self.slot.is_parked() {
            if deadline.has_come() {
                return self.slot.is_parked();
            }
            core::hint::spin_loop();
        }
        true
    }
}

impl AwayCore {
    /// Which core it is.
    pub fn core(&self) -> Core {
        self.core.core
    }

    /// Whether it was sent into that space.
    pub(crate) fn is_in(&self, share: &Share) -> bool {
        Arc::ptr_eq(&self.share, share)
    }

    /// The moment in so many us.
    pub(crate) fn deadline_after_us(&self, us: u64) -> Deadline {
        Deadline::after_us(us, self.core.tsc_hz)
    }

    /// Interrupts the core when it lets interrupts in.
    pub fn interrupt(&self, vector: u8) {
        local::send(Authority::OWN, self.core.core.apic, vector);
    }

    /// Interrupts the core whether it likes it or not.
    pub fn interrupt_by_force(&self) {
        local::send_non_maskable(Authority::OWN, self.core.core.apic);
    }

    /// Gets the core back from whatever it does.
    ///
    /// # Errors
    /// [`LostCore`] where it doesn't come.
    pub fn reclaim(self) -> Result<ParkedCore, LostCore> {
        self.core.slot.expect();
        start(core::slice::from_ref(&self.core));
        self.wait()
    }

    /// Gets cores back, all at once. Returns those that came, and those that did not.
    pub fn reclaim_all(cores: Vec<Self>) -> (Vec<ParkedCore>, Vec<LostCore>) {
        cores.iter().for_each(|away| away.core.slot.expect());
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
    /// Which core it is.
    pub fn core(&self) -> Core {
        match self {
            Self::Unborn(core) => core.core,
            Self::Away(core) => core.core(),
        }
    }
}

/// A moment, by the cycle counter.
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

/// Puts the trampoline where the startup interrupt leads.
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
    // SAFETY: the page is RAM that nothing else uses (`boot` leaves all memory below 1 MiB out), and is in the
    // direct map; the symbols are within the trampoline, which is shorter than a page.
    unsafe {
        page.copy_from_nonoverlapping(start, offset(&raw const isola_trampoline_end));
        let root = (&raw const isola_early_tables).addr() as u64 - IMAGE;
        page.add(offset(&raw const isola_trampoline_root)).cast::<u64>().write_unaligned(root);
        let entry = (&raw const isola_processor_entry).addr() as u64;
        page.add(offset(&raw const isola_trampoline_entry)).cast::<u64>().write_unaligned(entry);
    }
}

/// The address of the code that all interrupts of parked cores lead to.
pub(crate) fn parked_interrupt() -> u64 {
    unsafe extern "C" {
        safe static isola_parked_interrupt: u8;
    }
    (&raw const isola_parked_interrupt).addr() as u64
}
