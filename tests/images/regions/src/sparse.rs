//! Regions with scattered pages, in a cell that is asked for memory.

use crate::PAGE;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use isola::events::{parallel, sleep, yield_now};
use isola::prelude::*;
use isola::regions::{OnDemand, PageSize, Region};

/// One of this number of pages is kept.
const OF: usize = 8;

/// The pages of each core that are in constant use.
const HOT: usize = 16;

/// The bytes that stay in use beside the kept pages, at most.
const SLACK: usize = 2 << 20;

/// The number of cores that have filled their part.
static FILLED: AtomicUsize = AtomicUsize::new(0);

/// Allocates `mib` MiB page by page, frees most of it, and checks that the other pages keep their contents while the
/// cell shrinks to `until_mib`. Some pages are written meanwhile. Every second core never halts.
pub async fn keep(mib: usize, until_mib: usize) -> ExitCode {
    let cores = isola::core_count();
    let pages = (mib << 20) / PAGE / OF / cores;
    // Page tables and free objects of the heap may stay in use.
    let free_then = isola::memory_free().saturating_sub(cores * pages * PAGE + SLACK);
    let checked = parallel(cores, move |core| async move {
        let mut kept = fill(core, pages);
        FILLED.fetch_add(1, Ordering::Relaxed);
        if core == 0 {
            while FILLED.load(Ordering::Relaxed) < cores || isola::memory_free() < free_then {
                sleep(Duration::from_micros(200)).await;
            }
            // All cores have dropped their other pages, which are free after a grace period. An idle core updates the
            // free memory in the report.
            sleep(Duration::from_micros(200)).await;
            println!("sparse: filled");
        }
        let mut rounds = 0;
        while isola::memory_total() > until_mib << 20 {
            rounds += 1;
            for page in 0..HOT {
                let count = words(&mut kept, page).next().expect("a page has words");
                assert_eq!(u64::from_le_bytes(*count), mark(core, page, 0).wrapping_add(rounds - 1));
                *count = mark(core, page, 0).wrapping_add(rounds).to_le_bytes();
            }
            if core % 2 == 0 {
                sleep(Duration::from_micros(200)).await;
            } else {
                yield_now().await;
            }
        }
        for page in 0..pages {
            let first = if page < HOT { rounds } else { 0 };
            for (index, word) in words(&mut kept, page).enumerate() {
                let expected = mark(core, page, index).wrapping_add(if index == 0 { first } else { 0 });
                assert_eq!(u64::from_le_bytes(*word), expected, "core {core}, page {page}, word {index}");
            }
        }
        pages
    })
    .await;
    println!("sparse: {} pages are right", checked.into_iter().sum::<usize>());
    ExitCode::SUCCESS
}

/// Returns a region between whose pages other pages were allocated, which are free again.
fn fill(core: usize, pages: usize) -> Region {
    let region = |name, pages: usize| Region::new(name, pages * PAGE, OnDemand::new(PageSize::FourKib));
    let mut kept = region("kept", pages).expect("a region");
    let mut dropped = region("dropped", pages * (OF - 1)).expect("a region");
    for page in 0..pages {
        for (index, word) in words(&mut kept, page).enumerate() {
            *word = mark(core, page, index).to_le_bytes();
        }
        dropped[page * (OF - 1) * PAGE..][..(OF - 1) * PAGE].fill(1);
    }
    kept
}

fn words(region: &mut Region, page: usize) -> impl Iterator<Item = &mut [u8; 8]> {
    region[page * PAGE..][..PAGE].as_chunks_mut().0.iter_mut()
}

/// Returns the contents of a word.
fn mark(core: usize, page: usize, index: usize) -> u64 {
    (core as u64) << 56 | (page as u64) << 40 | (index as u64) << 24
}
