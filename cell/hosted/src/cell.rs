//! A cell in this process: from its settings to what its cores returned.

use crate::core::HostedCore;
use crate::heap;
use crate::platform::{Comes, Hosted, Memory};
use crate::window;
use isola_abi::descriptor::NetworkAddress;
use isola_ebbs::{CellTable, CoreBlock};
use isola_platform::network::NetworkPort;
use isola_platform::{CoreIndex, CoreSet, Platform};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::thread;

/// What a hosted cell is given.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its name.
    pub name: String,
    /// How many cores; at most 64.
    pub cores: usize,
    /// How many it can have, when more are [given](Hosted::give_core) while it runs; at least `cores`, and at most 64.
    pub core_places: usize,
    /// Whether a core stays on one processor.
    pub pinning: Pinning,
    /// Arguments for the application.
    pub arguments: Vec<String>,
    /// Its address in the network; without one it asks by DHCP.
    pub address: Option<NetworkAddress>,
}

/// Whether a core stays on one processor of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// Linux moves cores as it likes: for tests, of which several run beside each other.
    Free,
    /// Each core has a processor, where the process may use as many processors as the cell has cores; otherwise
    /// as [`Self::Free`].
    WherePossible,
}

impl Default for Settings {
    fn default() -> Self {
        let (name, arguments) = ("hosted".into(), Vec::new());
        Self { name, cores: 1, core_places: 1, pinning: Pinning::Free, arguments, address: None }
    }
}

/// Runs `body` on every core of a cell of its own, those that are given to it while it runs included, and returns what each
/// returned, core 0 first. The cell's memory
/// is never given back: its cores' representatives may be referred to for good.
///
/// # Panics
/// Where `body` does on a core, the settings ask for no core or more than 64, or Linux gives no more file
/// descriptors or threads.
pub fn run<T: Send>(
    settings: Settings,
    network: Vec<NetworkPort>,
    body: impl Fn(&'static Hosted) -> T + Sync,
) -> Vec<T> {
    let processors = match settings.pinning {
        Pinning::Free => Vec::new(),
        Pinning::WherePossible => enough_processors(settings.cores),
    };
    start(Box::leak(Box::new(Hosted::new(settings, Memory::Host, network))), &processors, body)
}

/// As [`run`], for a platform that was made before, and on these processors: none, or one a core.
pub(crate) fn start<T: Send>(
    platform: &'static Hosted,
    processors: &[usize],
    body: impl Fn(&'static Hosted) -> T + Sync,
) -> Vec<T> {
    window::start();
    let ebbs: &'static CellTable = Box::leak(Box::new(CellTable::new()));
    let body = &body;
    let results = thread::scope(|scope| {
        let cores: Vec<_> = (0_u32..)
            .zip(platform.cores())
            .map(|(index, _)| {
                let processor = processors.get(index as usize).copied();
                scope.spawn(move || {
                    window::enter_core();
                    let is_first = (index as usize) < platform.descriptor().cores.len();
                    if !is_first && platform.wait_for_core(CoreIndex(index)) == Comes::Never {
                        return None;
                    }
                    let block = Box::leak(Box::new(CoreBlock::new(CoreIndex(index), ebbs, platform)));
                    // SAFETY: the thread is new, so that it has no block; the block is its own, and its index is
                    // given out once in this cell. `set_gs_base` sets the segment's base for this thread,
                    // which nothing else on x86-64 Linux uses.
                    unsafe { block.enter(set_gs_base) };
                    let result = serve(|| {
                        HostedCore::enter(platform);
                        if platform.memory() == Memory::Pool {
                            heap::enter_core(index as usize, platform.report(), platform.ledger());
                        }
                        processor.into_iter().for_each(pin);
                        body(platform)
                    });
                    platform.end();
                    Some(result)
                })
            })
            .collect();
        let result = |core: thread::ScopedJoinHandle<'_, Option<T>>| {
            core.join().expect("no core of a hosted cell panics")
        };
        cores.into_iter().filter_map(result).collect()
    });
    for (index, core) in (0_u32..).zip(platform.cores()) {
        core.carry(CoreIndex(index), CoreSet::default(), |core| platform.core(core));
    }
    platform.cores().iter().for_each(|core| core.give_back());
    results
}

/// What a core does from when it has its block. Not inlined: see [`CoreBlock::enter`].
#[inline(never)]
fn serve<T>(body: impl FnOnce() -> T) -> T {
    body()
}

fn set_gs_base(base: *const CoreBlock) {
    const ARCH_SET_GS: libc::c_int = 0x1001;
    // SAFETY: the call changes the calling thread's GS base and nothing else.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    assert_eq!(result, 0, "Linux lets a thread set its GS base");
}

/// A processor for each of so many cores; none, where this process may not use so many.
pub(crate) fn enough_processors(cores: usize) -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let processors: Vec<usize> =
        (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).take(cores).collect();
    if processors.len() == cores { processors } else { Vec::new() }
}

/// Keeps the calling thread on a processor.
fn pin(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    // Where it may no longer be used, the thread goes on wherever Linux lets it.
    let _ = sched_setaffinity(None, &set);
}
