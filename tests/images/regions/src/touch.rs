//! How long it takes to touch every page of a large region, for `cargo xtask bench pager`.

use crate::PAGE;
use core::hint::black_box;
use core::time::Duration;
use isola::events::{now, sleep, yield_now};
use isola::prelude::*;
use isola::regions::{OnDemand, PageSize, Pager, Prefault, Region};

/// Touches a region of so many MiB that the pager of that name fills; then another, of memory that was used before and has
/// to be cleared; and one of memory that the cell has had the time to clear.
pub async fn thrice(pager: &str, mib: usize) -> ExitCode {
    let len = mib << 20;
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
    ExitCode::SUCCESS
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
