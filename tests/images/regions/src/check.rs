//! The checks of regions that must pass.

use crate::{Numbered, PAGE};
use core::hint::black_box;
use core::time::Duration;
use isola::alloc::sync::Arc;
use isola::events::{parallel, sleep, yield_now};
use isola::prelude::*;
use isola::regions::{Colored, OnDemand, PageSize, Pager, Prefault, Region, Stack};

const MIB: usize = 1 << 20;

/// Runs all checks; a failed one panics.
pub async fn all() -> ExitCode {
    let free = isola::memory_free();
    on_demand();
    prefault();
    large_pages();
    colours();
    own_pager();
    registers();
    stacks();
    settle(free).await;
    println!("one core: ok");
    same_page().await;
    own_pages().await;
    settle(free).await;
    println!("all cores: ok");
    check_reuse().await;
    settle(free).await;
    println!("reuse: ok");
    ExitCode::SUCCESS
}

fn region(name: &'static str, len: usize, pager: impl Pager + 'static) -> Region {
    Region::new(name, len, pager).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Waits until all memory of dropped regions is free again: after one or two passes of each core's loop, for which a busy
/// host may need a while.
async fn settle(free: usize) {
    // Internal tables keep a little memory, and so does each core for the next fault.
    let slack = 512 << 10;
    for _ in 0..10_000 {
        if isola::memory_free() + slack >= free {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
    panic!("{free} bytes were free, and now {} are", isola::memory_free());
}

fn on_demand() {
    let mut region = region("on demand", 3 * MIB + 5, OnDemand::new(PageSize::FourKib));
    assert_eq!((region.len(), region.filled_bytes()), (3 * MIB + PAGE, 0));
    for page in (0..region.len() / PAGE).step_by(7) {
        assert_eq!(region[page * PAGE + 17], 0);
        region[page * PAGE + 17] = page as u8 | 1;
    }
    let touched = (region.len() / PAGE).div_ceil(7);
    assert_eq!((region.filled_bytes(), region.faults()), (touched * PAGE, touched));
    for page in (0..region.len() / PAGE).step_by(7) {
        assert_eq!(region[page * PAGE + 17], page as u8 | 1);
    }
    let around = self::region("around", 2 * MIB, OnDemand::new(PageSize::FourKib).around(16));
    assert_eq!(around.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 0);
    assert_eq!((around.filled_bytes(), around.faults()), (2 * MIB, 2 * MIB / PAGE / 16));
}

fn prefault() {
    let mut region = region("prefault", MIB, Prefault { page: PageSize::FourKib });
    region.fill(5);
    assert!(region.iter().all(|byte| *byte == 5));
    assert_eq!((region.filled_bytes(), region.faults()), (MIB, 0));
}

fn large_pages() {
    let mut region = region("large", 5 * MIB, OnDemand::new(PageSize::TwoMib));
    assert_eq!(region.len(), 6 * MIB);
    region[5 * MIB] = 1;
    assert_eq!((region.filled_bytes(), region.faults()), (2 * MIB, 1));
    assert_eq!(region.iter().filter(|byte| **byte != 0).count(), 1);
    assert_eq!(region.faults(), 3);
    let huge = Region::new("huge", MIB, OnDemand::new(PageSize::OneGib));
    match huge {
        // Only a machine with enough memory fills the page; with less, the first access fails.
        Ok(mut huge) if isola::memory_free() > 2560 * MIB => {
            huge[777 * MIB] = 9;
            assert_eq!((huge[777 * MIB], huge[776 * MIB], huge.filled_bytes()), (9, 0, 1024 * MIB));
            println!("1 GiB page: ok");
        }
        Ok(huge) => assert_eq!(huge.filled_bytes(), 0),
        Err(error) => println!("1 GiB page: {error}"),
    }
}

fn colours() {
    let mut region = region("coloured", MIB, Colored::new(16, 0b11));
    region.fill(3);
    assert!(region.iter().all(|byte| *byte == 3));
    assert_eq!(region.faults(), MIB / PAGE);
}

fn own_pager() {
    let region = region("numbered", 16 * MIB, Numbered);
    for page in [0, 1, 77, 4095] {
        let begin: [u8; 8] = region[page * PAGE..][..8].try_into().unwrap();
        assert_eq!(usize::from_le_bytes(begin), page);
        assert!(region[page * PAGE + 8..][..PAGE - 8].iter().all(|byte| *byte == 0));
    }
    assert_eq!(region.filled_bytes(), 4 * PAGE);
}

/// A fault preserves all registers: sums in floating-point registers continue across faults.
fn registers() {
    let region = region("registers", 2 * MIB, Numbered);
    let mut sums = [0.5_f64; 12];
    let mut count = 0_u64;
    for page in (0..2 * MIB).step_by(PAGE) {
        let byte = black_box(region[page]);
        for (index, sum) in sums.iter_mut().enumerate() {
            *sum += f64::from(byte) * index as f64;
        }
        count = count.wrapping_mul(31).wrapping_add(byte.into());
    }
    let mut expected = [0.5_f64; 12];
    let mut expected_count = 0_u64;
    for page in 0..2 * MIB / PAGE {
        let byte = black_box(page as u8);
        for (index, sum) in expected.iter_mut().enumerate() {
            *sum += f64::from(byte) * index as f64;
        }
        expected_count = expected_count.wrapping_mul(31).wrapping_add(byte.into());
    }
    assert_eq!((sums, count), (expected, expected_count));
}

fn stacks() {
    let stacks: Vec<Stack> = (0..200).map(|_| Stack::new("a stack", 16 << 10).expect("a stack")).collect();
    for pair in stacks.windows(2) {
        assert!(pair[0].top() <= pair[1].bottom() || pair[1].top() <= pair[0].bottom());
    }
    assert!(stacks.iter().all(|stack| stack.len_bytes() == 16 << 10 && stack.top().addr().get() % PAGE == 0));
}

/// All cores touch the same pages at the same time; each is filled once.
async fn same_page() {
    let pages = 512;
    let shared = Arc::new(region("shared", pages * PAGE, Numbered));
    let seen = parallel(isola::core_count(), {
        let shared = shared.clone();
        move |_| {
            let shared = shared.clone();
            async move { (0..pages).filter(|page| shared[page * PAGE] == *page as u8).count() }
        }
    })
    .await;
    assert!(seen.iter().all(|seen| *seen == pages), "{seen:?}");
    assert_eq!(shared.filled_bytes(), pages * PAGE);
}

/// Each core has its own region, next to the others', and drops it there.
async fn own_pages() {
    let sums = parallel(isola::core_count(), |core| async move {
        let mut sum = 0;
        for round in 1..20_usize {
            let mut region = region("own", 4 * MIB, OnDemand::new(PageSize::FourKib));
            region.chunks_mut(PAGE).for_each(|page| page[round] = core as u8 + 1);
            sum += region.iter().map(|byte| usize::from(*byte)).sum::<usize>();
            drop(region);
            yield_now().await;
        }
        sum
    })
    .await;
    for (core, sum) in sums.into_iter().enumerate() {
        assert_eq!(sum, 19 * 4 * MIB / PAGE * (core + 1));
    }
}

/// Addresses, tables and memory are reused: the total is many times the cell's memory.
async fn check_reuse() {
    for round in 0..300_usize {
        let len = (round % 9 + 1) * MIB / 2;
        let mut region = region("again", len, OnDemand::new(PageSize::FourKib).around(8));
        assert!(region.iter().step_by(512).all(|byte| *byte == 0), "round {round}: not zero");
        region.fill(round as u8 | 1);
        if round % 3 == 0 {
            yield_now().await;
        }
    }
}
