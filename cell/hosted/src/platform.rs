//! The hosted platform: the machine as the cores of a cell see it.

use crate::core::HostedCore;
use crate::disk::{self, DiskAccess};
use crate::heap;
use crate::settings::Settings;
use isola_abi::core_slots::{CoreSlots, Order, OrderKind};
use isola_abi::descriptor::{Clock as ClockWords, Core, Descriptor, HaltMode, InterruptMode, Request};
use isola_abi::id::{ActivityId, ApicId, CellId, CoreId, MAX_CORES, NodeId, PhysRange};
use isola_abi::ledger::{ActivityRecord, ActivityReport, Ledger, slots};
use isola_abi::query::{Line, Queries};
use isola_abi::report::{CoreReport, Report};
use isola_abi::topology::CoreSite;
use isola_abi::volume::{VolumeAccess, VolumeMount};
use isola_ebbs::{current_core, cycles};
use isola_memory::regions::Account;
use isola_platform::block::VolumePort;
use isola_platform::network::NetworkPort;
use isola_platform::{Clock, CoreIndex, CoreSet, LinkPort, PendingVectors, Platform, ResumeOutcome};
use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The platform of a hosted cell.
pub struct Hosted {
    descriptor: Descriptor,
    report: Box<Report>,
    activities: Box<[ActivityRecord]>,
    /// For each core slot, as many entries as there are activities.
    used: Box<[ActivityReport]>,
    clock: Clock,
    cores: Box<[&'static HostedCore]>,
    network: Mutex<Vec<NetworkPort>>,
    links: Option<&'static dyn LinkPort>,
    /// The volumes that are not open yet.
    volumes: Mutex<Vec<(PathBuf, VolumeMount)>>,
    request: AtomicU32,
    queries: Queries,
    core_slots: CoreSlots,
    /// Whether the cell has ended. `plugged` wakes the threads that wait to be plugged.
    ended: Mutex<bool>,
    plugged: Condvar,
    memory: MemorySource,
}

/// The source of a cell's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemorySource {
    /// The host, without a limit of its own.
    Host,
    /// The process's pool: see [`crate::heap`].
    Pool,
}

/// Returns the memory of the host, in bytes.
fn host_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

impl Hosted {
    pub(crate) fn new(settings: Settings, memory: MemorySource, network: Vec<NetworkPort>) -> Self {
        assert!((1..=MAX_CORES).contains(&settings.cores), "a cell has 1 to {MAX_CORES} cores");
        let core_slot_count = settings.core_slot_count.clamp(settings.cores, MAX_CORES);
        let clock = calibrate();
        let core = |index: usize| {
            let id = CoreId(index as u32);
            Core { id, apic: ApicId(id.0), node: NodeId(0), site: CoreSite::alone(id) }
        };
        let memory_bytes = if memory == MemorySource::Pool { heap::total_bytes() } else { 0 };
        let descriptor = Descriptor {
            version: isola_abi::VERSION,
            cell: CellId(0),
            name: settings.name,
            arguments: settings.arguments,
            cores: (0..settings.cores).map(core).collect(),
            core_slot_count: core_slot_count as u32,
            core_request_ns: 0,
            pool: Vec::new(),
            memory_bytes: memory_bytes as u64,
            memory_max_bytes: memory_bytes as u64,
            region_tables: PhysRange::default(),
            image: Vec::new(),
            devices: Vec::new(),
            volumes: settings.volumes.iter().map(|(_, mount)| mount.clone()).collect(),
            served_volumes: Vec::new(),
            network_service: settings.network_service,
            clock,
            address: settings.address,
            supervisor: None,
            halt_mode: HaltMode::Hlt,
            grid: isola_abi::grid::GridSetup::default(),
            interrupt_mode: InterruptMode::X2Apic,
        };
        // SAFETY: a report consists of atomic integers and arrays of them, for which zero is a value.
        let report = unsafe { Box::<Report<[CoreReport; MAX_CORES]>>::new_zeroed().assume_init() };
        let slots = slots(
            if memory == MemorySource::Pool { memory_bytes as u64 } else { host_memory() },
            core_slot_count,
        );
        let activities = (0..slots).map(|_| ActivityRecord::default()).collect();
        let used = (0..slots * core_slot_count).map(|_| ActivityReport::default()).collect();
        let core_slots = CoreSlots::default();
        descriptor.cores.iter().enumerate().for_each(|(slot, core)| core_slots.give(slot, *core));
        let core = |_| HostedCore::take().expect("Linux gives three file descriptors a core: see ulimit -n");
        let cores = (0..core_slot_count).map(core).collect();
        let clock = Clock::new(&clock);
        let (network, request) = (Mutex::new(network), AtomicU32::new(0));
        let volumes = Mutex::new(settings.volumes);
        match memory {
            MemorySource::Pool => heap::publish(&report.memory),
            MemorySource::Host => report.memory.total_bytes.store(host_memory(), Ordering::Relaxed),
        }
        let (queries, ended, plugged) = (Queries::default(), Mutex::new(false), Condvar::new());
        Self {
            descriptor,
            report,
            activities,
            used,
            clock,
            cores,
            network,
            links: settings.links,
            volumes,
            request,
            queries,
            core_slots,
            ended,
            plugged,
            memory,
        }
    }

    /// Returns the source of the cell's memory.
    pub(crate) fn memory(&self) -> MemorySource {
        self.memory
    }

    pub(crate) fn cores(&self) -> &[&'static HostedCore] {
        &self.cores
    }

    /// Sends the cell a request, as a supervisor would.
    pub fn send_request(&self, request: Request) {
        self.request.store(request as u32, Ordering::Release);
        self.interrupt(CoreIndex(0), isola_abi::descriptor::REQUEST_VECTOR);
    }

    /// Sends the cell a query, as a supervisor would. Returns its number; `None` if it is too long.
    pub fn query(&self, line: Line, query: &[u8]) -> Option<u32> {
        let number = self.queries.put(line, query)?;
        self.interrupt(CoreIndex(0), isola_abi::descriptor::REQUEST_VECTOR);
        Some(number)
    }

    /// Returns the vcore that the calling thread runs.
    pub(crate) fn this_core(&self) -> &'static HostedCore {
        self.core(current_core())
    }

    pub(crate) fn core(&self, core: CoreIndex) -> &'static HostedCore {
        self.cores[core.0 as usize]
    }

    /// Plugs a thread as a core at that slot, as a supervisor would. Does nothing if the slot is occupied.
    pub fn plug_core(&self, slot: CoreIndex) {
        let ended = self.ended();
        if self.core_slots.at(slot.0 as usize).kind == OrderKind::Vacant {
            let id = CoreId(slot.0);
            let core = Core { id, apic: ApicId(id.0), node: NodeId(0), site: CoreSite::alone(id) };
            self.core_slots.give(slot.0 as usize, core);
        }
        drop(ended);
        self.plugged.notify_all();
    }

    /// Unplugs the thread at that slot, as a supervisor would, and returns when it no longer runs any vcore. Does
    /// nothing for the first slot. Not to be called on a core of the cell.
    pub fn unplug_core(&self, slot: CoreIndex) {
        let index = slot.0 as usize;
        if slot.0 == 0 || self.core_slots.at(index).kind != OrderKind::Stay {
            return;
        }
        let order = self.core_slots.order(index, OrderKind::Leave);
        self.interrupt(slot, isola_abi::descriptor::REQUEST_VECTOR);
        let echo = &self.report.cores[index].order;
        while echo.load(Ordering::Acquire) != order.to_u32() && !*self.ended() {
            thread::sleep(Duration::from_micros(50));
        }
        self.core_slots.order(index, OrderKind::Vacant);
    }

    /// Waits until a core is plugged into that slot. Returns [`PlugOutcome::CellEnded`] once the cell has ended.
    /// Allocates nothing.
    pub(crate) fn wait_for_core(&self, slot: CoreIndex) -> PlugOutcome {
        let echo = &self.report.cores[slot.0 as usize].order;
        let is_away = |ended: &mut bool| {
            let order = self.core_slots.at(slot.0 as usize);
            let is_vacant = order.kind == OrderKind::Vacant || echo.load(Ordering::Relaxed) == order.to_u32();
            !*ended && is_vacant
        };
        let ended = self.plugged.wait_while(self.ended(), is_away).unwrap_or_else(PoisonError::into_inner);
        if *ended { PlugOutcome::CellEnded } else { PlugOutcome::Plugged }
    }

    /// Marks the cell as ended: no core is plugged any more.
    pub(crate) fn end(&self) {
        *self.ended() = true;
        self.plugged.notify_all();
    }

    /// Ignores poisoning: this is a plain flag, valid even if a thread panicked with the lock held.
    fn ended(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// The cell of which the thread is a core.
    static CELL: Cell<Option<&'static Hosted>> = const { Cell::new(None) };
}

impl HostedCore {
    /// Returns the vcore that the calling thread runs; `None` on a thread that is not a core.
    pub fn current() -> Option<&'static Self> {
        CELL.get().map(Hosted::this_core)
    }

    /// Makes the calling thread a core of that cell.
    pub(crate) fn enter(cell: &'static Hosted) {
        CELL.set(Some(cell));
    }
}

/// Whether a core was plugged into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlugOutcome {
    Plugged,
    CellEnded,
}

/// Measures the cycle counter against the process's clock. With 5 ms the error is below a thousandth.
fn calibrate() -> ClockWords {
    let (start, start_cycles) = both_clocks();
    thread::sleep(Duration::from_millis(5));
    let (end, end_cycles) = both_clocks();
    let elapsed = end.duration_since(start);
    let tsc_hz = u128::from(end_cycles - start_cycles) * 1_000_000_000 / elapsed.as_nanos().max(1);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ClockWords {
        tsc_hz: tsc_hz as u64,
        apic_timer_hz: 0,
        tsc_at_epoch: end_cycles,
        unix_ns_at_epoch: unix.as_nanos() as u64,
    }
}

/// Reads the process's clock and the cycle counter at the same moment: of several readings it takes the shortest, as
/// Linux may have preempted the thread between two clocks.
fn both_clocks() -> (Instant, u64) {
    let reading = |_| {
        let before = cycles();
        let now = Instant::now();
        (cycles().wrapping_sub(before), now, before)
    };
    let shortest = (0..16).map(reading).min_by_key(|(took, ..)| *took);
    shortest.map_or_else(|| (Instant::now(), cycles()), |(_, now, before)| (now, before))
}

impl Platform for Hosted {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn report(&self) -> &Report {
        &self.report
    }

    fn ledger(&self) -> Ledger<'_> {
        Ledger::new(&self.activities, &self.used)
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn take_interrupts(&self) -> PendingVectors {
        self.this_core().take_interrupts()
    }

    fn has_interrupts(&self) -> bool {
        self.this_core().has_interrupts()
    }

    fn enter_idle(&self) {
        if self.memory == MemorySource::Pool {
            heap::publish(&self.report.memory);
            heap::relieve();
        }
    }

    fn halt(&self) {
        self.this_core().halt(current_core(), |core| self.core(core));
    }

    fn exit_idle(&self) {}

    fn core_slots(&self) -> &CoreSlots {
        &self.core_slots
    }

    fn run_vcores(&self, cores: CoreSet) {
        self.this_core().run_vcores(current_core(), cores, |core| self.core(core));
    }

    fn leave(&self, order: Order) {
        let slot = current_core();
        self.report.cores[slot.0 as usize].order.store(order.left().to_u32(), Ordering::Release);
        self.notify_supervisor();
        self.wait_for_core(slot);
    }

    fn resume_suspended(&self) -> ResumeOutcome {
        // Threads are never suspended by force.
        ResumeOutcome::NoneResumed
    }

    fn arm_timer(&self, deadline: Option<u64>) {
        let delay = deadline.map(|deadline| {
            let now = self.clock.instant(cycles());
            self.clock.instant(deadline).since(now)
        });
        self.this_core().arm_timer(delay);
    }

    fn wake(&self, core: CoreIndex) {
        self.cores[core.0 as usize].wake();
    }

    fn interrupt(&self, core: CoreIndex, vector: u8) {
        self.cores[core.0 as usize].interrupt(vector);
    }

    fn print(&self, text: &[u8]) {
        use std::io::Write;
        // An error means that the process's output is closed, and is ignored.
        let mut output = std::io::stdout().lock();
        let _ = output.write_all(text).and_then(|()| output.flush());
    }

    fn notify_supervisor(&self) {}

    fn request(&self) -> Request {
        Request::from_u32(self.request.load(Ordering::Acquire))
    }

    fn queries(&self) -> &Queries {
        &self.queries
    }

    fn links(&self) -> Option<&'static dyn LinkPort> {
        self.links
    }

    fn open_network(&self) -> Vec<NetworkPort> {
        std::mem::take(&mut self.network.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn open_volumes(&self) -> Vec<VolumePort> {
        let volumes = std::mem::take(&mut *self.volumes.lock().unwrap_or_else(PoisonError::into_inner));
        let open = |(file, mount): (PathBuf, VolumeMount)| {
            let access = match mount.access {
                VolumeAccess::ReadWrite => DiskAccess::ReadWrite,
                VolumeAccess::ReadOnly => DiskAccess::ReadOnly,
            };
            match disk::open(&file, access) {
                Ok(port) => Some(VolumePort { mount, port }),
                Err(error) => {
                    let in_use = error.kind() == ErrorKind::WouldBlock;
                    let reason = if in_use { "another cell uses it".into() } else { error.to_string() };
                    self.print(format!("volume {} at {}: {reason}\n", file.display(), mount.path).as_bytes());
                    None
                }
            }
        };
        volumes.into_iter().filter_map(open).collect()
    }

    fn memory_free(&self) -> usize {
        match self.memory {
            // The host's free memory takes a system call to read, and is shared with other processes.
            MemorySource::Host => usize::MAX,
            MemorySource::Pool => heap::free_bytes(),
        }
    }

    fn watch_memory(&self, limits: &'static [AtomicU64]) {
        // Of several cells in a process, none has the pool.
        if self.memory == MemorySource::Pool {
            heap::watch(limits);
        }
    }

    fn move_memory_charge(&self, from: ActivityId, to: ActivityId, len_bytes: usize) {
        if self.memory == MemorySource::Pool {
            heap::discharge(Account(from.0), len_bytes);
            heap::charge(Account(to.0), len_bytes);
        }
    }

    fn empty_cache(&self) {
        if self.memory == MemorySource::Pool {
            heap::empty_cache();
        }
    }

    fn entropy(&self) -> u64 {
        // The standard library's hash keys come from the kernel's random source.
        RandomState::new().hash_one(cycles())
    }
}
