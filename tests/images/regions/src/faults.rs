//! Failures that end the cell.

use crate::PAGE;
use core::hint::black_box;
use isola::prelude::*;
use isola::regions::{Contents, FillError, Filler, FrameChoice, OnDemand, PageSize, Pager, Prefault, Region};

/// Causes the failure with that name.
pub fn cause(fault: &str) {
    match fault {
        "guard" => touch("guarded", GuardPager(3), 3),
        "lazy" => touch("lazy", WrongPagePager, 1),
        "refused" => touch("refused", BeyondRegionPager, 1),
        "nested" => nested(),
        "exhaust" => exhaust(),
        "gone" => gone(),
        other => println!("no fault is called {other:?}"),
    }
}

/// Touches page `page` of a region.
fn touch(name: &'static str, pager: impl Pager + 'static, page: usize) {
    let region = Region::new(name, 16 * PAGE, pager).expect("a region");
    black_box(region[page * PAGE + 8]);
}

fn fill(offset: usize, filler: &Filler<'_>) -> Result<(), FillError> {
    filler.fill(offset, PageSize::FourKib, FrameChoice::Any, Contents::Zero).map(drop)
}

/// A pager with a guard at that page.
struct GuardPager(usize);

impl Pager for GuardPager {
    fn fault(&self, offset: usize, filler: &Filler<'_>) -> Result<(), FillError> {
        if offset / PAGE == self.0 { Err(FillError::Guard) } else { fill(offset - offset % PAGE, filler) }
    }
}

/// A pager that fills another page than the one that was touched.
struct WrongPagePager;

impl Pager for WrongPagePager {
    fn fault(&self, _: usize, filler: &Filler<'_>) -> Result<(), FillError> {
        fill(7 * PAGE, filler)
    }
}

/// A pager that fills a page after its region.
struct BeyondRegionPager;

impl Pager for BeyondRegionPager {
    fn fault(&self, _: usize, filler: &Filler<'_>) -> Result<(), FillError> {
        fill(filler.len_bytes(), filler)
    }
}

/// A pager that touches another region during a fault.
struct TouchingPager(Region);

impl Pager for TouchingPager {
    fn fault(&self, offset: usize, filler: &Filler<'_>) -> Result<(), FillError> {
        black_box(self.0[offset]);
        fill(offset - offset % PAGE, filler)
    }
}

fn nested() {
    let other = Region::new("touched", 16 * PAGE, OnDemand::new(PageSize::FourKib)).expect("a region");
    touch("touching", TouchingPager(other), 2);
}

/// Touches more pages than the cell has memory.
fn exhaust() {
    let all = Region::new("everything", 2 * isola::memory_total(), Prefault { page: PageSize::FourKib });
    println!("at once: {}", all.expect_err("there is not so much"));
    let mut region =
        Region::new("too much", isola::memory_total(), OnDemand::new(PageSize::FourKib)).expect("addresses");
    region.chunks_mut(PAGE).for_each(|page| page[0] = 1);
}

/// Reads at an address of a dropped region.
fn gone() {
    let region = Region::new("gone", 16 * PAGE, OnDemand::new(PageSize::FourKib)).expect("a region");
    black_box(region[0]);
    let address = region.as_ptr();
    drop(region);
    isola_fault_injection::inject(isola_fault_injection::InjectedFault::ReadAt(address.addr()));
}
