//! Threads as cores.
//!
//! A core's interrupts are a set of vectors under a lock, and a condition variable that its halted thread waits
//! on. Its one-shot timer is the time-out of that wait: it needs no vector, as waking is all that it is for.

use isola_abi::descriptor::{Clock as ClockWords, Core, Descriptor, InterruptMode, NetworkAddress, Request};
use isola_abi::id::{ApicId, CellId, CoreId, MAX_CORES, NodeId};
use isola_abi::report::Report;
use isola_ebbs::{CoreBlock, EbbTable, current_core, cycles};
use isola_platform::network::NetworkPort;
use isola_platform::{Clock, CoreIndex, PendingVectors, Platform};
use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a hosted cell is given.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its name.
    pub name: String,
    /// How many cores; at most 64.
    pub cores: usize,
    /// Arguments for the application.
    pub arguments: Vec<String>,
    /// Its address in the network; without one it asks by DHCP.
    pub address: Option<NetworkAddress>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { name: "hosted".into(), cores: 1, arguments: Vec::new(), address: None }
    }
}

/// The platform of a hosted cell.
pub struct Hosted {
    descriptor: Descriptor,
    report: Box<Report>,
    clock: Clock,
    cores: Box<[HostedCore]>,
    network: Mutex<Vec<NetworkPort>>,
    request: AtomicU32,
}

thread_local! {
    /// The core that the thread is.
    static THIS_CORE: Cell<Option<&'static HostedCore>> = const { Cell::new(None) };
}

/// A core of a hosted cell, as a device sees it.
#[derive(Default)]
pub(crate) struct HostedCore {
    state: Mutex<CoreState>,
    changed: Condvar,
}

#[derive(Default)]
struct CoreState {
    vectors: PendingVectors,
    woken: bool,
    /// When the timer is due, in cycles.
    deadline: Option<u64>,
}

impl HostedCore {
    /// A core that panicked while it held its lock ends its test anyway; the state is plain data.
    fn lock(&self) -> MutexGuard<'_, CoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The core that the calling thread is; `None` for threads that are none.
    pub fn current() -> Option<&'static Self> {
        THIS_CORE.get()
    }

    /// Interrupts the core.
    pub fn interrupt(&self, vector: u8) {
        self.lock().vectors.insert(vector);
        self.changed.notify_one();
    }
}

/// Runs `body` on every core of a cell of its own, and returns what each returned, core 0 first. The cell's memory
/// is never given back: its cores' representatives may be referred to for good.
///
/// # Panics
/// Where `body` does on a core, or the settings ask for no core or more than 64.
pub fn run<T: Send>(
    settings: Settings,
    network: Vec<NetworkPort>,
    body: impl Fn(&'static Hosted) -> T + Sync,
) -> Vec<T> {
    let platform: &'static Hosted = Box::leak(Box::new(Hosted::new(settings, network)));
    let representatives: &'static EbbTable = Box::leak(Box::new(EbbTable::new()));
    let body = &body;
    thread::scope(|scope| {
        let cores: Vec<_> = (0..platform.cores.len() as u32)
            .map(|index| {
                scope.spawn(move || {
                    let block =
                        Box::leak(Box::new(CoreBlock::new(CoreIndex(index), representatives, platform)));
                    // SAFETY: the thread is new, so that it has no block; the block is its own, and its index is
                    // given out once in this cell. `set_gs_base` sets the segment's base for this thread,
                    // which nothing else on x86-64 Linux uses.
                    unsafe { block.enter(set_gs_base) };
                    THIS_CORE.set(platform.cores.get(index as usize));
                    body(platform)
                })
            })
            .collect();
        cores.into_iter().map(|core| core.join().expect("no core of a hosted cell panics")).collect()
    })
}

fn set_gs_base(base: *const CoreBlock) {
    const ARCH_SET_GS: libc::c_int = 0x1001;
    // SAFETY: the call changes the calling thread's GS base and nothing else.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    assert_eq!(result, 0, "Linux lets a thread set its GS base");
}

impl Hosted {
    fn new(settings: Settings, network: Vec<NetworkPort>) -> Self {
        assert!((1..=MAX_CORES).contains(&settings.cores), "a cell has 1 to {MAX_CORES} cores");
        let clock = calibrate();
        let core = |id: usize| Core { id: CoreId(id as u32), apic: ApicId(id as u32), node: NodeId(0) };
        let descriptor = Descriptor {
            version: isola_abi::VERSION,
            cell: CellId(0),
            name: settings.name,
            arguments: settings.arguments,
            cores: (0..settings.cores).map(core).collect(),
            pool: Vec::new(),
            image: Vec::new(),
            devices: Vec::new(),
            clock,
            address: settings.address,
            supervisor: None,
            interrupt_mode: InterruptMode::X2Apic,
        };
        // SAFETY: a report is atomic integers and arrays of them, for which zero is a value.
        let report = unsafe { Box::<Report>::new_zeroed().assume_init() };
        let cores = (0..settings.cores).map(|_| HostedCore::default()).collect();
        let clock = Clock::new(&clock);
        Self { descriptor, report, clock, cores, network: Mutex::new(network), request: AtomicU32::new(0) }
    }

    /// Interrupts a core, as a device would.
    ///
    /// # Panics
    /// Where the cell has no such core.
    pub fn interrupt(&self, core: CoreIndex, vector: u8) {
        self.cores[core.0 as usize].interrupt(vector);
    }

    /// Asks the cell for something, as a supervisor would.
    pub fn ask(&self, request: Request) {
        self.request.store(request as u32, Ordering::Release);
        self.interrupt(CoreIndex(0), isola_abi::descriptor::REQUEST_VECTOR);
    }

    fn this_core(&self) -> &HostedCore {
        &self.cores[current_core().0 as usize]
    }
}

/// Measures the cycle counter against the process's clock. 5 ms give it to better than a thousandth.
fn calibrate() -> ClockWords {
    let (start, start_cycles) = (std::time::Instant::now(), cycles());
    thread::sleep(Duration::from_millis(5));
    let (elapsed, end_cycles) = (start.elapsed(), cycles());
    let tsc_hz = u128::from(end_cycles - start_cycles) * 1_000_000_000 / elapsed.as_nanos().max(1);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ClockWords {
        tsc_hz: tsc_hz as u64,
        apic_timer_hz: 0,
        tsc_at_epoch: end_cycles,
        unix_ns_at_epoch: unix.as_nanos() as u64,
    }
}

impl Platform for Hosted {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn report(&self) -> &Report {
        &self.report
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn take_interrupts(&self) -> PendingVectors {
        std::mem::take(&mut self.this_core().lock().vectors)
    }

    fn halt(&self) {
        let core = self.this_core();
        let mut state = core.lock();
        while state.vectors.is_empty() && !std::mem::take(&mut state.woken) {
            let wait = state.deadline.map(|deadline| {
                let now = self.clock.instant(cycles());
                self.clock.instant(deadline).since(now)
            });
            match wait {
                Some(Duration::ZERO) => {
                    state.deadline = None;
                    return;
                }
                Some(wait) => {
                    let waited = core.changed.wait_timeout(state, wait);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => state = core.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn arm_timer(&self, deadline: Option<u64>) {
        self.this_core().lock().deadline = deadline;
    }

    fn wake(&self, core: CoreIndex) {
        let core = &self.cores[core.0 as usize];
        core.lock().woken = true;
        core.changed.notify_one();
    }

    fn print(&self, text: &[u8]) {
        use std::io::Write;
        // Whoever closed the process's output does not want to read it.
        let _ = std::io::stdout().write_all(text);
    }

    fn ring_supervisor(&self) {}

    fn request(&self) -> Request {
        Request::from_u32(self.request.load(Ordering::Acquire))
    }

    fn open_network(&self) -> Vec<NetworkPort> {
        std::mem::take(&mut self.network.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The process takes what it needs from its host.
    fn memory_free(&self) -> usize {
        usize::MAX
    }

    fn entropy(&self) -> u64 {
        // The standard library's hash keys come from the kernel's random source.
        RandomState::new().hash_one(cycles())
    }
}
