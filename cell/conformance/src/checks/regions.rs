//! Regions, through an application's interface.

use crate::{Outcome, cores};
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_events::{parallel, yield_now};
use isola_memory::regions::{
    Colored, Contents, FillError, Filler, FrameChoice, OnDemand, PageSize, Pager, Prefault, Region,
    RegionError, Stack,
};

const PAGE: usize = PageSize::FourKib.bytes();
const MIB: usize = 1 << 20;

fn make(
    name: &'static str,
    len: usize,
    pager: impl Pager + 'static,
) -> Result<Region, crate::BrokenGuarantee> {
    Region::new(name, len, pager).map_err(|error| crate::BrokenGuarantee(alloc::format!("{name}: {error}")))
}

pub async fn pages_are_filled_at_first_access() -> Outcome {
    let mut region = make("on demand", 2 * MIB + 5, OnDemand::new(PageSize::FourKib))?;
    ensure!(region.len() == 2 * MIB + PAGE && region.filled_bytes() == 0, "{region:?}");
    let touched: Vec<usize> = (0..region.len() / PAGE).step_by(9).collect();
    for page in &touched {
        ensure!(region[page * PAGE + 17] == 0, "page {page} is not zero");
        region[page * PAGE + 17] = *page as u8 | 1;
    }
    ensure!(region.filled_bytes() == touched.len() * PAGE, "{region:?}");
    ensure!(region.faults() == touched.len(), "{} faults", region.faults());
    for page in &touched {
        ensure!(region[page * PAGE + 17] == *page as u8 | 1, "page {page} has forgotten");
    }
    Ok(())
}

pub async fn pages_are_filled_in_groups_and_in_other_sizes() -> Outcome {
    let groups = make("groups", MIB, OnDemand::new(PageSize::FourKib).around(16))?;
    ensure!(groups.iter().all(|byte| *byte == 0), "a page is not zero");
    ensure!((groups.filled_bytes(), groups.faults()) == (MIB, MIB / PAGE / 16), "{} faults", groups.faults());
    let mut large = make("large", 3 * MIB, OnDemand::new(PageSize::TwoMib))?;
    ensure!(large.len() == 4 * MIB, "{large:?}");
    large[3 * MIB] = 1;
    ensure!((large.filled_bytes(), large.faults()) == (2 * MIB, 1), "{large:?}");
    let mut colored = make("coloured", MIB / 4, Colored::new(16, 0b110))?;
    colored.fill(3);
    ensure!(colored.faults() == MIB / 4 / PAGE, "{} faults", colored.faults());
    Ok(())
}

pub async fn prefaulted_pages_never_fault() -> Outcome {
    let mut region = make("prefault", MIB, Prefault { page: PageSize::FourKib })?;
    ensure!(region.filled_bytes() == MIB, "{region:?}");
    region.fill(5);
    ensure!(region.iter().all(|byte| *byte == 5) && region.faults() == 0, "{} faults", region.faults());
    let stack = Stack::new("a stack", 5 * PAGE + 1)
        .map_err(|error| crate::BrokenGuarantee(alloc::format!("{error}")))?;
    let bytes = stack.top().addr().get() - stack.bottom().addr().get();
    ensure!(bytes == 6 * PAGE && stack.len_bytes() == bytes, "{stack:?}");
    Ok(())
}

/// An application's own pager: each page begins with its number.
struct Numbered;

impl Pager for Numbered {
    fn fault(&self, offset: usize, filler: &Filler<'_>) -> Result<(), FillError> {
        let page = offset / PAGE;
        let mut write = |bytes: &mut [u8]| bytes[..8].copy_from_slice(&page.to_le_bytes());
        filler.fill(page * PAGE, PageSize::FourKib, FrameChoice::Any, Contents::Written(&mut write)).map(drop)
    }
}

pub async fn an_application_s_own_pager_fills_each_page_once() -> Outcome {
    let pages = 200;
    let region = Arc::new(make("numbered", pages * PAGE, Numbered)?);
    let shared = region.clone();
    let right = parallel(cores(), move |_| {
        let region = shared.clone();
        async move { (0..pages).filter(|page| region[page * PAGE..][..8] == page.to_le_bytes()).count() }
    });
    let right = right.await;
    ensure!(right.iter().all(|count| *count == pages), "pages that were right, by core: {right:?}");
    ensure!(region.filled_bytes() == pages * PAGE, "{region:?}");
    Ok(())
}

pub async fn regions_of_all_cores_are_disjoint_and_their_addresses_reused() -> Outcome {
    let sums = parallel(cores(), |core| async move {
        let mut sum = 0;
        for round in 1..5_usize {
            // Touches every eighth page only: 2 MiB per core do not fit in a small cell with many cores.
            let mut region = Region::new("own", 2 * MIB, OnDemand::new(PageSize::FourKib))?;
            region.chunks_mut(8 * PAGE).for_each(|pages| pages[round] = core as u8 + 1);
            sum += region
                .chunks(8 * PAGE)
                .map(|pages| usize::from(pages[round]) + usize::from(pages[0]))
                .sum::<usize>();
            drop(region);
            yield_now().await;
        }
        Ok::<_, RegionError>(sum)
    });
    for (core, sum) in sums.await.into_iter().enumerate() {
        ensure!(sum == Ok(4 * 2 * MIB / PAGE / 8 * (core + 1)), "core {core}: {sum:?}");
    }
    Ok(())
}

pub async fn impossible_regions_are_refused() -> Outcome {
    let none = Region::new("empty", 0, OnDemand::new(PageSize::FourKib));
    ensure!(matches!(none, Err(RegionError::Length(0))), "{none:?}");
    let endless = Region::new("endless", usize::MAX, OnDemand::new(PageSize::FourKib));
    ensure!(matches!(endless, Err(RegionError::Length(usize::MAX))), "{endless:?}");
    Ok(())
}
