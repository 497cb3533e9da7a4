//! The heap, through an application's interface.

use crate::{Outcome, cores, fragment_memory};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use isola_ebbs::platform;
use isola_events::{parallel, yield_now};

/// Object sizes: the smallest, around the bounds of size classes and pages, and larger ones.
const SIZES: [usize; 14] = [1, 8, 16, 17, 64, 100, 128, 129, 1_000, 4_095, 4_096, 4_097, 33_000, 300_000];

/// Returns a byte of an object's pattern, which differs between objects.
fn mark(seed: usize, index: usize) -> u8 {
    (seed.wrapping_mul(31) ^ index.wrapping_mul(7)) as u8
}

fn make(seed: usize, len: usize) -> Box<[u8]> {
    (0..len).map(|index| mark(seed, index)).collect()
}

fn is_whole(seed: usize, object: &[u8]) -> bool {
    object.iter().enumerate().all(|(index, byte)| *byte == mark(seed, index))
}

pub async fn objects_of_all_sizes_are_disjoint_and_aligned() -> Outcome {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let broken = parallel(cores(), |core| async move {
        let objects: Vec<_> = (0..56).map(|turn| make(core + turn, SIZES[turn % SIZES.len()])).collect();
        let pages: Vec<_> = (0..4).map(|turn| Box::new(Page([turn; 4096]))).collect();
        let whole = objects.iter().enumerate().all(|(turn, object)| is_whole(core + turn, object));
        let aligned = pages.iter().all(|page| (&raw const **page).addr().is_multiple_of(4096));
        let kept = pages.iter().zip(0..).all(|(page, turn)| page.0.iter().all(|byte| *byte == turn));
        !(whole && aligned && kept)
    });
    let broken = broken.await;
    ensure!(!broken.contains(&true), "by core: {broken:?}");
    Ok(())
}

pub async fn objects_are_freed_by_other_cores() -> Outcome {
    for round in 0..4 {
        let made = parallel(cores(), move |core| async move {
            (0..48).map(|turn| make(round + core + turn, SIZES[(core + turn) % 12])).collect::<Vec<_>>()
        });
        let mut made = made.await;
        made.rotate_left(1);
        let (made, count) = (alloc::sync::Arc::new(Shelves::of(made)), cores());
        let whole = parallel(cores(), move |core| {
            let made = made.clone();
            async move {
                let (objects, maker) = (made.take(core), (core + 1) % count);
                objects.iter().enumerate().all(|(turn, object)| is_whole(round + maker + turn, object))
            }
        });
        let whole = whole.await;
        ensure!(!whole.contains(&false), "round {round}, by core: {whole:?}");
    }
    Ok(())
}

pub async fn freed_memory_is_allocated_again() -> Outcome {
    // In total, the turns allocate more than the memory of a small cell.
    for turn in 0..32_usize {
        let block = vec![turn as u8; 256 << 10];
        ensure!(block.iter().all(|byte| *byte == turn as u8), "turn {turn}");
        let objects: Vec<_> = (0..64).map(|index| make(index, 1 + turn * 32)).collect();
        ensure!(objects.iter().enumerate().all(|(index, object)| is_whole(index, object)), "turn {turn}");
    }
    Ok(())
}

pub async fn large_objects_are_allocated_from_fragmented_memory() -> Outcome {
    let held = fragment_memory();
    let len = (platform().memory_free() / 2).min(2 << 20);
    let mut large: Vec<u8> = Vec::new();
    ensure!(large.try_reserve_exact(len).is_ok(), "{len} bytes between {} objects", held.len());
    large.extend((0..len).map(|index| mark(len, index)));
    let wall = vec![1_u8; 100_000];
    ensure!(large.try_reserve_exact(len / 4).is_ok(), "{} bytes more", len / 4);
    large.extend((len..len + len / 4).map(|index| mark(len, index)));
    // Objects of classes with spans longer than any free run.
    let objects: Vec<_> = (0..40).map(|turn| make(turn, 20_000 + turn * 300)).collect();
    ensure!((0..).zip(&objects).all(|(turn, object)| is_whole(turn, object)), "objects of classes");
    let large = Arc::new(large);
    let shared = large.clone();
    let whole = parallel(cores(), move |_| {
        let large = shared.clone();
        async move { is_whole(len, &large) }
    });
    let whole = whole.await;
    ensure!(!whole.contains(&false), "by core: {whole:?}");
    drop((held, wall));
    ensure!(is_whole(len, &large), "the objects between the holes were freed");
    Ok(())
}

pub async fn fragmented_memory_is_not_used_up() -> Outcome {
    let held = fragment_memory();
    let len = (platform().memory_free() / 2).min(1 << 20);
    // With its host's memory there is no fragmentation, and more memory than the turns could use up.
    let turns = if held.is_empty() { 20 } else { 1000 };
    for turn in 0..turns {
        let mut large: Vec<u8> = Vec::new();
        let wanted: usize = len - turn * 997 % (len / 2);
        ensure!(large.try_reserve_exact(wanted).is_ok(), "turn {turn}: {wanted} bytes");
        large.resize(wanted, turn as u8);
        ensure!(large.last() == Some(&(turn as u8)), "turn {turn}");
        if turn % 10 == 0 {
            yield_now().await;
        }
    }
    drop(held);
    Ok(())
}

type Objects = Vec<Box<[u8]>>;

/// The objects that each core takes.
struct Shelves(Vec<spin::Mutex<Objects>>);

impl Shelves {
    fn of(all: Vec<Objects>) -> Self {
        Self(all.into_iter().map(spin::Mutex::new).collect())
    }

    fn take(&self, core: usize) -> Objects {
        core::mem::take(&mut self.0[core].lock())
    }
}
