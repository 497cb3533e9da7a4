//! A cell in this process: from its settings to the results of its cores.

use crate::core::HostedCore;
use crate::heap;
use crate::platform::{Hosted, MemorySource, PlugOutcome};
use crate::region_area;
use crate::settings::{Pinning, Settings};
use isola_ebbs::{CellTable, CoreBlock};
use isola_platform::network::NetworkPort;
use isola_platform::{CoreIndex, CoreSet, Platform};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::thread;

/// Runs `body` on every core of a new cell, including cores that are plugged while it runs. Returns the results, core 0
/// first. The cell's memory is never freed, as references to its cores' representatives may live on.
///
/// # Panics
/// If `body` panics on a core, if the settings ask for no core or more than 64, or if Linux provides no more file
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
    start(Box::leak(Box::new(Hosted::new(settings, MemorySource::Host, network))), &processors, body)
}

/// Does the same as [`run`] for an existing platform, on `processors`: one per core, or none for no pinning.
pub(crate) fn start<T: Send>(
    platform: &'static Hosted,
    processors: &[usize],
    body: impl Fn(&'static Hosted) -> T + Sync,
) -> Vec<T> {
    region_area::start();
    let ebbs: &'static CellTable = Box::leak(Box::new(CellTable::new()));
    let body = &body;
    let results = thread::scope(|scope| {
        let cores: Vec<_> = (0_u32..)
            .zip(platform.cores())
            .map(|(index, _)| {
                let processor = processors.get(index as usize).copied();
                scope.spawn(move || {
                    region_area::enter_core();
                    let is_first = (index as usize) < platform.descriptor().cores.len();
                    if !is_first && platform.wait_for_core(CoreIndex(index)) == PlugOutcome::CellEnded {
                        return None;
                    }
                    let block = Box::leak(Box::new(CoreBlock::new(CoreIndex(index), ebbs, platform)));
                    // SAFETY: the thread is new, so it has no block; the block is its own, and its index is used once
                    // in this cell. `set_gs_base` sets the segment's base for this thread, which nothing else on x86-64
                    // Linux uses.
                    unsafe { block.enter(set_gs_base) };
                    let result = serve(|| {
                        HostedCore::enter(platform);
                        if platform.memory() == MemorySource::Pool {
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
        core.run_vcores(CoreIndex(index), CoreSet::default(), |core| platform.core(core));
    }
    platform.cores().iter().for_each(|core| core.give_back());
    results
}

/// Runs a core that has its block. Not inlined: see [`CoreBlock::enter`].
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

/// Returns a processor for each core; none if this process may not use as many.
pub(crate) fn enough_processors(cores: usize) -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let processors: Vec<usize> =
        (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).take(cores).collect();
    if processors.len() == cores { processors } else { Vec::new() }
}

/// Pins the calling thread to a processor.
fn pin(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    // If the processor may no longer be used, the thread stays unpinned.
    let _ = sched_setaffinity(None, &set);
}
