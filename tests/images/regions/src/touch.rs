//! How long it takes to touch every page of a large region, for `cargo xtask bench pager`.

use crate::PAGE;
use core::hint::black_box;
use isola::events::{now, yield_now};
use isola::prelude::*;
use isola::regions::{OnDemand, PageSize, Pager, Prefault, Region};

/// Touches a region of so many MiB with one pager after the other.
pub async fn all(mib: usize) -> ExitCode {
    let len = mib << 20;
    touch("on-demand", len, OnDemand::new(PageSize::FourKib)).await;
    touch("around", len, OnDemand::new(PageSize::FourKib).around(16)).await;
    touch("large", len, OnDemand::new(PageSize::TwoMib)).await;
    touch("prefault", len, Prefault { page: PageSize::FourKib }).await;
    ExitCode::SUCCESS
}

async fn touch(name: &'static str, len: usize, pager: impl Pager + 'static) {
    let start = now();
    let mut region = Region::new(name, len, pager).unwrap_or_else(|error| panic!("{name}: {error}"));
    region.chunks_mut(PAGE).for_each(|page| page[0] = 1);
    black_box(&mut region);
    let took = now().since(start);
    println!("touched {name}: {}", took.as_nanos());
    drop(region);
    yield_now().await;
}
