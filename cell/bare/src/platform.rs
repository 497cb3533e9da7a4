//! The bare platform: the machine as the cores of a cell see it. Each method is in the module of its subject, or here
//! if it is a few lines.

use crate::links;
use crate::sampler::BareSampler;
use crate::state::{self, AUTHORITY, Bare};
use crate::{block, console, cores, hot_plug, idle, network, pending, pool, regions, supervisor};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::core_slots::{CoreSlots, Order};
use isola_abi::descriptor::{Descriptor, DeviceKind, REQUEST_VECTOR, Request};
use isola_abi::id::ActivityId;
use isola_abi::ledger::Ledger;
use isola_abi::query::Queries;
use isola_abi::report::Report;
use isola_ebbs::{current_core, cycles};
use isola_machine::apic::local;
use isola_machine::cell::suspended;
use isola_machine::device::DeviceRegisters;
use isola_machine::user::table_bytes;
use isola_machine::{cell, cpu, interrupts, power};
use isola_memory::regions::Account;
use isola_platform::block::VolumePort;
use isola_platform::network::NetworkPort;
use isola_platform::{
    Clock, CoreIndex, CoreSet, LinkPort, MemoryDemand, PendingVectors, Platform, PlatformMemory,
    ResumeOutcome, Sampler,
};

/// The vector of the core's timer. It has no handler: it ends a halt, and the loop checks its alarms.
const TIMER_VECTOR: u8 = 0xf1;

/// Initialises the platform from the descriptor, on the first core.
pub(crate) fn start(descriptor: Descriptor, devices: Vec<(DeviceKind, DeviceRegisters)>) {
    state::start(descriptor, devices);
    cores::start();
    interrupts::set_interrupt_handler(AUTHORITY, interrupted);
}

/// Handles an interrupt: a core takes it in its next pass.
#[inline]
fn interrupted(vector: u8) {
    if vector == REQUEST_VECTOR {
        hot_plug::note_request();
    }
    cores::note_interrupt(vector);
}

impl Platform for Bare {
    fn descriptor(&self) -> &Descriptor {
        &self.state().descriptor
    }

    fn report(&self) -> &Report {
        cell::report()
    }

    fn ledger(&self) -> Ledger<'_> {
        cell::ledger()
    }

    fn clock(&self) -> &Clock {
        &self.state().clock
    }

    fn take_interrupts(&self) -> PendingVectors {
        let pending = pending::of(current_core());
        if !pending.has_any() {
            interrupts::window();
        }
        regions::pass();
        hot_plug::pass();
        pending.take()
    }

    #[inline]
    fn has_interrupts(&self) -> bool {
        let pending = pending::of(current_core());
        // The window loses all caller-saved registers, as a call does, so the stub saves none within an event either.
        // The handler only notes the interrupt.
        if !pending.has_any() {
            interrupts::window();
        }
        pending.has_any()
    }

    fn enter_idle(&self) {
        pool::relieve();
        pool::publish();
        regions::before_halt();
    }

    fn halt(&self) {
        idle::halt(self.descriptor().halt_mode);
    }

    fn exit_idle(&self) {
        regions::after_halt();
    }

    fn sleep(&self) -> PendingVectors {
        self.enter_idle();
        idle::halt_joined(self.descriptor().halt_mode);
        self.exit_idle();
        hot_plug::pass();
        pending::of(current_core()).take()
    }

    fn core_slots(&self) -> &CoreSlots {
        cell::core_slots()
    }

    fn run_vcores(&self, cores: CoreSet) {
        cores::run_vcores(cores);
    }

    fn leave(&self, order: Order) {
        let (slot, echo) = (current_core().0 as usize, order.left());
        // Does not return if another core is finishing this slot's suspended context: that core reports the order and
        // resumes its own context.
        suspended::end(AUTHORITY, slot, echo);
        if let Some(core) = cell::report().cores.get(slot) {
            core.order.store(echo.to_u32(), Ordering::Release);
        }
        supervisor::notify();
        power::stop()
    }

    fn resume_suspended(&self) -> ResumeOutcome {
        if !suspended::resume_suspended(AUTHORITY, current_core().0 as usize) {
            return ResumeOutcome::NoneResumed;
        }
        // A context that ended here has reported that.
        supervisor::notify();
        if suspended::is_unfinished() { ResumeOutcome::MoreLeft } else { ResumeOutcome::AllEnded }
    }

    fn arm_timer(&self, deadline: Option<u64>) {
        let Some(deadline) = deadline else { return local::disarm_timer(AUTHORITY) };
        let delay = u128::from(deadline.saturating_sub(cycles()));
        let ticks = (delay * u128::from(self.state().timer_ticks_per_cycle)) >> 32;
        local::arm_timer(AUTHORITY, TIMER_VECTOR, u64::try_from(ticks).unwrap_or(u64::MAX).max(1));
    }

    fn wake(&self, core: CoreIndex) {
        cores::wake(core);
    }

    fn interrupt(&self, core: CoreIndex, vector: u8) {
        cores::interrupt(core, vector);
    }

    fn print(&self, text: &[u8]) {
        console::print(text);
    }

    fn notify_supervisor(&self) {
        supervisor::notify();
    }

    fn request(&self) -> Request {
        cell::request()
    }

    fn queries(&self) -> &Queries {
        cell::queries()
    }

    fn sampler(&self) -> Option<&'static dyn Sampler> {
        // Without a supervisor, no core is interrupted for samples.
        self.descriptor().supervisor.is_some().then_some(&BareSampler as &dyn Sampler)
    }

    fn links(&self) -> Option<&'static dyn LinkPort> {
        links::port().filter(|_| self.descriptor().supervisor.is_some())
    }

    fn open_network(&self) -> Vec<NetworkPort> {
        network::open(self.descriptor(), state::take_devices(DeviceKind::Network))
    }

    fn open_volumes(&self) -> Vec<VolumePort> {
        block::open(self.descriptor(), state::take_devices(DeviceKind::Block))
    }

    fn memory_free(&self) -> usize {
        pool::free_bytes()
    }

    fn memory_by_use(&self) -> Option<PlatformMemory> {
        Some(PlatformMemory {
            receive_buffers: network::receive_buffer_bytes(),
            program_tables: table_bytes(),
            ..pool::by_use()
        })
    }

    fn release_unused(&self) {
        pool::release_unused();
    }

    fn memory_demand(&self) -> MemoryDemand {
        hot_plug::demand()
    }

    fn end_memory_demand(&self, demand: &MemoryDemand) {
        hot_plug::end_demand(demand);
    }

    fn watch_memory(&self, limits: &'static [AtomicU64]) {
        pool::watch_memory(limits);
    }

    fn move_memory_charge(&self, from: ActivityId, to: ActivityId, len_bytes: usize) {
        pool::discharge(Account(from.0), len_bytes);
        pool::charge(Account(to.0), len_bytes);
    }

    fn empty_cache(&self) {
        pool::empty_cache();
    }

    fn entropy(&self) -> u64 {
        // Without RDRAND, the cycle counter is the only source: it distinguishes two runs, and an attacker who knows
        // the time can guess it. `isola::entropy` and docs/isolation.md say so.
        cpu::random().unwrap_or_else(|| cycles().wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}
