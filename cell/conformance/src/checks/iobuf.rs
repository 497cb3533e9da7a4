//! Buffers for zero-copy I/O.

use crate::{Outcome, cores};
use alloc::vec::Vec;
use isola_events::parallel;
use isola_iobuf::{Chain, IoBuf};

pub async fn a_chain_is_split_and_joined() -> Outcome {
    let bytes: Vec<u8> = (0..10_000_u32).map(|n| (n * 7 % 251) as u8).collect();
    let whole = IoBuf::copy_from_slice(&bytes);
    let mut chain = Chain::new();
    for start in (0..bytes.len()).step_by(613) {
        let end = (start + 613).min(bytes.len());
        whole.slice(start..end).into_iter().for_each(|part| chain.push_back(part));
    }
    ensure!(chain.len() == bytes.len(), "{} bytes", chain.len());
    let mut again = Chain::new();
    while !chain.is_empty() {
        let count = chain.len().min(1_000);
        let part = chain.split_to(count);
        ensure!(part.as_ref().is_some_and(|part| part.len() == count), "{part:?}");
        part.into_iter().for_each(|part| again.append(part));
    }
    ensure!(again.to_vec() == bytes, "the bytes have changed");
    let same = again.parts().next().map(|part| part.as_ptr()) == Some(whole.as_ptr());
    ensure!(same, "bytes were copied");
    Ok(())
}

pub async fn views_of_one_memory_are_read_on_all_cores() -> Outcome {
    let whole = IoBuf::copy_from_slice(&[7; 4_096]);
    let views = whole.clone();
    let sums = parallel(cores(), move |core| {
        let view = views.slice(core..4_096);
        async move { view.map(|view| view.iter().map(|byte| u64::from(*byte)).sum::<u64>()) }
    });
    for (core, sum) in sums.await.into_iter().enumerate() {
        ensure!(sum == Some(7 * (4_096 - core as u64)), "core {core}: {sum:?}");
    }
    // The last holder becomes the sole owner once the other cores have dropped their views.
    let mut view = whole;
    while let Err(shared) = view.try_into_mut() {
        view = shared;
        isola_events::yield_now().await;
    }
    Ok(())
}
