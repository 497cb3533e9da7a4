//! The machine below the cell.

use crate::{Outcome, cores, on_core, others};
use core::time::Duration;
use isola_ebbs::{current_core, platform};
use isola_events::{now, yield_now};
use isola_platform::CoreIndex;

pub async fn time_advances_and_is_the_same_on_all_cores() -> Outcome {
    let mut last = now();
    for core in others().chain([current_core()]) {
        let there = on_core(core, || async { now() }).await;
        let here = now();
        ensure!(there.is_some_and(|there| last <= there && there <= here), "{last:?}, {there:?}, {here:?}");
        last = here;
    }
    let start = now();
    while now() == start {
        yield_now().await;
    }
    let year_2020 = Duration::from_secs(1_577_836_800);
    let unix = Duration::from_nanos(platform().clock().unix_ns(now()));
    ensure!(unix > year_2020, "the time of day is {unix:?} after 1970");
    Ok(())
}

pub async fn random_words_differ() -> Outcome {
    let words: [u64; 8] = core::array::from_fn(|_| platform().entropy());
    for (index, word) in words.iter().enumerate() {
        ensure!(!words[..index].contains(word), "{words:x?}");
    }
    Ok(())
}

pub async fn the_cell_has_the_resources_of_its_descriptor() -> Outcome {
    let descriptor = platform().descriptor();
    ensure!((1..=64).contains(&cores()), "{} cores", cores());
    ensure!(current_core() == CoreIndex(0), "the first core begins, not {:?}", current_core());
    ensure!(descriptor.version == isola_abi::VERSION, "version {}", descriptor.version);
    for core in others() {
        let there = on_core(core, || async { current_core() }).await;
        ensure!(there == Some(core), "{there:?} says that it is {core:?}");
    }
    Ok(())
}
