//! Measures the time to touch every page of a large region, for `cargo xtask bench pager`.

use crate::PAGE;
use core::hint::black_box;
use core::time::Duration;
use isola::events::{now, sleep, yield_now};
use isola::prelude::*;
use isola::regions::{OnDemand, PageSize, Pager, Prefault, Region};

/// The bytes that are free beside a region when it is touched.
const SLACK: usize = 32 << 20;

/// Touches a region of `mib` MiB that the pager with that name fills; then another, of memory that was used before and
/// must be zeroed; and one of memory that the cell has had time to zero. All other memory is allocated meanwhile, so
/// that the regions get the same memory each time.
pub async fn touch_three_times(pager: &str, mib: usize) -> ExitCode {
    let len = mib << 20;
    let others = allocate_rest(len + SLACK);
    for turn in ["first", "again", "cleared"] {
        if turn == "cleared" {
            sleep(Duration::from_millis(mib as u64)).await;
        }
        match pager {
            "on-demand" => touch(turn, len, OnDemand::new(PageSize::FourKib)).await,
            "around" => touch(turn, len, OnDemand::new(PageSize::FourKib).around(16)).await,
            "large" => touch(turn, len, OnDemand::new(PageSize::TwoMib)).await,
            "prefault" => touch(turn, len, Prefault { page: PageSize::FourKib }).await,
            other => {
                println!("no pager is called {other:?}");
                return ExitCode::USAGE;
            }
        }
    }
    drop(others);
    ExitCode::SUCCESS
}

/// Allocates memory until no more than `left` bytes are free. The memory is not touched.
fn allocate_rest(left: usize) -> Vec<Vec<u8>> {
    const PIECE: usize = PageSize::TwoMib.bytes();
    core::iter::from_fn(|| {
        let mut piece = Vec::new();
        (isola::memory_free() > left + PIECE && piece.try_reserve_exact(PIECE).is_ok()).then_some(piece)
    })
    .collect()
}

async fn touch(turn: &'static str, len: usize, pager: impl Pager + 'static) {
    let start = now();
    let mut region = Region::new("touched", len, pager).unwrap_or_else(|error| panic!("{error}"));
    region.chunks_mut(PAGE).for_each(|page| page[0] = 1);
    black_box(&mut region);
    let took = now().since(start);
    println!("touched {turn}: {}", took.as_nanos());
    drop(region);
    yield_now().await;
}
