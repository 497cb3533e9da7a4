//! Tests of compaction, on simulated page tables and cores.
#![allow(
    unsafe_code,
    reason = "the simulated cores access memory that the allocator owns, which no type can check"
)]

#[path = "../common/mod.rs"]
mod common;
mod machine;

use common::Random;
use isola_abi::id::NodeId;
use isola_memory::pages::{KnownContents, PAGE_SIZE};
use isola_memory::regions::{Compaction, CompactionProgress};
use machine::{CHUNK, CORES, Machine, State, at, write};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// Runs a compaction to its end, with passes of all cores and `meanwhile` after each step. Returns the number of
/// migrated pages.
fn compact_while(machine: &Machine, chunks: usize, meanwhile: impl Fn()) -> usize {
    let mut compaction = Compaction::new();
    compaction.start(chunks);
    while compaction.step(&machine.pages, machine) == CompactionProgress::InProgress {
        (0..CORES).for_each(|core| machine.pass(core));
        machine.collect();
        meanwhile();
    }
    machine.check();
    compaction.moved_bytes() / PAGE_SIZE
}

/// Returns a machine whose memory was filled with pages of regions, of which every `kept`th remains.
fn sparse(chunks: usize, kept: usize) -> Machine {
    let machine = Machine::new(chunks);
    let page_numbers = (0..).take_while(|page_number| machine.map(*page_number, State::Present)).count();
    (0..page_numbers)
        .filter(|page_number| page_number % kept != 0)
        .for_each(|page_number| machine.unmap(page_number));
    (0..CORES).for_each(|core| machine.pass(core));
    machine.collect();
    machine
}

#[test]
fn sparsely_used_chunks_become_free() {
    let machine = sparse(16, 8);
    assert_eq!(machine.pages.withdraw(8 * CHUNK).len_bytes(), 0, "no whole chunk is free");
    let moved = compact_while(&machine, 8, || ());
    assert!(moved >= 8 * CHUNK / PAGE_SIZE / 8, "{moved} pages");
    assert_eq!(machine.pages.withdraw(8 * CHUNK).len_bytes(), 8 * CHUNK);
    machine.check_values();
}

#[test]
fn freeing_one_chunk_keeps_the_number_of_used_pages() {
    let machine = sparse(8, 8);
    let used = machine.pages.statistics().used_bytes;
    assert_eq!(machine.pages.withdraw(CHUNK).len_bytes(), 0, "no whole chunk is free");
    assert!(compact_while(&machine, 1, || ()) > 0);
    assert_eq!(machine.pages.statistics().used_bytes, used, "one page for each migrated page");
    assert_eq!(machine.pages.withdraw(CHUNK).len_bytes(), CHUNK);
    machine.check_values();
}

#[test]
fn chunks_with_pinned_pages_or_runs_are_not_compacted() {
    let machine = sparse(4, 64);
    machine.entries.borrow_mut().values_mut().for_each(|entry| entry.state = State::Pinned);
    assert_eq!(compact_while(&machine, 2, || ()), 0);
    let mut moves = 0;
    for entry in machine.entries.borrow_mut().values_mut() {
        // One page of each chunk is pinned.
        moves += 1;
        entry.state = if moves % 8 == 0 { State::Pinned } else { State::Present };
    }
    assert_eq!(compact_while(&machine, 2, || ()), 0, "no page migrates if no chunk can become free");
    machine.entries.borrow_mut().values_mut().for_each(|entry| entry.state = State::Present);
    (0..512).for_each(|_| machine.run(2));
    assert!(compact_while(&machine, 1, || ()) <= 8);
    machine.check();
}

#[test]
fn compaction_ends_if_all_pages_are_touched_all_the_time() {
    let machine = sparse(8, 16);
    let before: Vec<_> = machine.entries.borrow().values().map(|entry| entry.frame).collect();
    let mut compaction = Compaction::new();
    compaction.start(4);
    let mut steps = 0;
    while compaction.step(&machine.pages, &machine) == CompactionProgress::InProgress {
        (0..CORES).for_each(|core| machine.pass(core));
        machine.page_numbers().for_each(|(page_number, _)| machine.touch(page_number % CORES, page_number));
        steps += 1;
        assert!(steps < 1000);
    }
    assert_eq!(compaction.moved_bytes(), 0);
    assert!(machine.entries.borrow().values().map(|entry| entry.frame).eq(before));
    machine.check();
    // The held pages are available again.
    let free = machine.pages.statistics().total_bytes - machine.pages.statistics().used_bytes;
    let all = std::iter::from_fn(|| machine.pages.allocate(1, 1)).count();
    assert_eq!(all * PAGE_SIZE, free);
}

#[test]
fn hot_chunks_are_replaced_by_others() {
    let machine = sparse(16, 8);
    // One page of some chunks is hot; these have fewer used pages than the others.
    let mut hot = BTreeMap::new();
    for (page_number, frame) in machine.page_numbers() {
        let chunk = frame.addr().get() / CHUNK;
        if hot.len() < 6
            && chunk.is_multiple_of(2)
            && *hot.entry(chunk).or_insert(page_number) != page_number
            && page_number % 16 == 0
        {
            machine.unmap(page_number);
        }
    }
    compact_while(&machine, 8, || {
        hot.values().for_each(|page_number| machine.touch(page_number % CORES, *page_number))
    });
    assert_eq!(machine.pages.withdraw(8 * CHUNK).len_bytes(), 8 * CHUNK);
}

#[test]
fn a_page_touched_once_migrates_in_a_later_round() {
    let machine = sparse(4, 16);
    let is_over = Cell::new(false);
    compact_while(&machine, 2, || {
        if !is_over.get() && machine.is_any_migrating() {
            machine.page_numbers().for_each(|(page_number, _)| machine.touch(0, page_number));
            is_over.set(true);
        }
    });
    assert!(is_over.get());
    // All chunks but that with the records, and one for the migrated pages.
    assert_eq!(machine.pages.withdraw(2 * CHUNK).len_bytes(), 2 * CHUNK);
}

/// Checks that compaction frees 12 of 16 chunks while `meanwhile` runs in each pass from the first migration on.
fn is_not_disturbed_by(meanwhile: impl Fn(&Machine)) {
    let machine = sparse(16, 8);
    // The emptiest chunks contain the pages that were freed last, which are allocated first.
    let first = machine.arena.start.addr().get() / CHUNK;
    let emptier = machine.page_numbers().filter(|(_, frame)| frame.addr().get() / CHUNK >= first + 4);
    emptier.step_by(2).for_each(|(page_number, _)| machine.unmap(page_number));
    (0..CORES).for_each(|core| machine.pass(core));
    machine.collect();
    let used = machine.entries.borrow().len();
    let has_begun = Cell::new(false);
    let moved = compact_while(&machine, 12, || {
        if has_begun.get() || machine.is_any_migrating() {
            has_begun.set(true);
            meanwhile(&machine);
        }
    });
    assert_eq!(machine.pages.withdraw(12 * CHUNK).len_bytes(), 12 * CHUNK);
    assert!(moved <= used * 12 / 18, "{moved} of {used} pages: some pages migrated twice");
}

#[test]
fn concurrent_allocations_do_not_use_the_chunks_to_free() {
    is_not_disturbed_by(|machine| (0..8).for_each(|_| machine.run(1)));
}

#[test]
fn concurrent_frees_do_not_provide_targets_in_the_chunks_to_free() {
    is_not_disturbed_by(|machine| {
        let count = machine.page_numbers().count();
        let some = machine.page_numbers().skip(machine.generation.get() as usize % 7).step_by(count / 16);
        some.for_each(|(page_number, _)| machine.unmap(page_number));
    });
}

#[test]
fn no_page_migrates_before_every_core_has_flushed_its_tlb() {
    let machine = sparse(8, 16);
    machine.page_numbers().for_each(|(page_number, _)| machine.touch(1, page_number));
    let mut compaction = Compaction::new();
    compaction.start(2);
    for _ in 0..100 {
        assert_eq!(compaction.step(&machine.pages, &machine), CompactionProgress::InProgress);
        (0..CORES).filter(|core| *core != 1).for_each(|core| machine.pass(core));
        // Core 1 has all translations in its TLB, and writes through them.
        machine.page_numbers().for_each(|(page_number, _)| machine.touch(1, page_number));
    }
    assert_eq!(compaction.moved_bytes(), 0);
    compaction.end(&machine.pages);
    machine.check();
}

#[test]
fn a_step_copies_at_most_16_pages() {
    let machine = sparse(64, 4);
    let mut compaction = Compaction::new();
    compaction.start(16);
    let mut last = 0;
    while compaction.step(&machine.pages, &machine) == CompactionProgress::InProgress {
        let moved = compaction.moved_bytes() / PAGE_SIZE;
        assert!(moved - last <= 16, "{} pages in a step", moved - last);
        last = moved;
        (0..CORES).for_each(|core| machine.pass(core));
    }
    assert!(last > 512);
}

#[derive(Clone, Debug)]
enum Step {
    Map(usize),
    MapPinned(usize),
    Unmap(usize),
    /// A core, and the index of a mapped page.
    Touch(usize, usize),
    /// Touches all mapped pages.
    Rush(usize),
    Pass(usize),
    Run(usize),
    FreeRun(usize),
    Start(usize),
    Move,
    End,
    WithdrawAndReturn,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    const PAGE_NUMBERS: usize = 1500;
    let step = prop_oneof![
        4 => (0..PAGE_NUMBERS).prop_map(Step::Map),
        1 => (0..PAGE_NUMBERS).prop_map(Step::MapPinned),
        4 => (0..PAGE_NUMBERS).prop_map(Step::Unmap),
        4 => (0..CORES, 0..PAGE_NUMBERS).prop_map(|(core, page_number)| Step::Touch(core, page_number)),
        1 => (0..CORES).prop_map(Step::Rush),
        12 => (0..CORES).prop_map(Step::Pass),
        1 => (1..40_usize).prop_map(Step::Run),
        1 => (0..100_usize).prop_map(Step::FreeRun),
        2 => (1..4_usize).prop_map(Step::Start),
        12 => Just(Step::Move),
        1 => Just(Step::End),
        1 => Just(Step::WithdrawAndReturn),
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// In any order of concurrent operations, bytes do not change and no page has two owners.
    #[test]
    fn contents_survive_any_interleaving(steps in steps(), seed in 1..u64::MAX) {
        let machine = Machine::new(4);
        // Pages in all chunks, so that there are pages to migrate.
        let mut random = Random(seed);
        let kept = 3 + random.below(30);
        let page_numbers = (0..).take_while(|page_number| machine.map(*page_number, State::Present)).count();
        (0..page_numbers).filter(|_| random.below(kept) != 0).for_each(|page_number| machine.unmap(page_number));
        (0..CORES).for_each(|core| machine.pass(core));
        machine.collect();
        let mut compaction = Compaction::new();
        compaction.start(2);
        for step in steps {
            match step {
                Step::Map(page_number) => drop(machine.map(page_number, State::Present)),
                Step::MapPinned(page_number) => drop(machine.map(page_number, State::Pinned)),
                Step::Unmap(page_number) => machine.unmap(page_number),
                Step::Touch(core, nth) => {
                    let count = machine.entries.borrow().len().max(1);
                    let page_number = machine.page_numbers().nth(nth % count);
                    page_number.into_iter().for_each(|(page_number, _)| machine.touch(core, page_number));
                }
                Step::Rush(core) => machine.page_numbers().for_each(|(page_number, _)| machine.touch(core, page_number)),
                Step::Pass(core) => {
                    machine.pass(core);
                    machine.collect();
                }
                Step::Run(pages) => machine.run(pages),
                Step::FreeRun(index) => machine.free_run(index),
                Step::Start(chunks) => if compaction.is_over() {
                    compaction.start(chunks);
                },
                Step::Move => drop(compaction.step(&machine.pages, &machine)),
                Step::End => compaction.end(&machine.pages),
                Step::WithdrawAndReturn => {
                    let withdrawn = machine.pages.withdraw(4 * CHUNK);
                    for (start, len) in withdrawn.blocks() {
                        let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(*start)).unwrap();
                        // No used page was withdrawn.
                        (0..len / PAGE_SIZE).for_each(|page| write(at(start, page), 0));
                        // SAFETY: just withdrawn.
                        let back = unsafe {
                            machine.pages.plug(NodeId(0), start, *len, KnownContents::Unknown)
                        };
                        prop_assert!(back.is_ok());
                    }
                    // SAFETY: no other thread uses the allocator.
                    unsafe { machine.pages.reuse(withdrawn.slots()) };
                }
            }
            machine.check_values();
        }
        compaction.end(&machine.pages);
        (0..CORES).for_each(|core| machine.pass(core));
        machine.collect();
        machine.check();
        let figures = machine.pages.statistics();
        let all = std::iter::from_fn(|| machine.pages.allocate(1, 1)).count();
        prop_assert_eq!(all * PAGE_SIZE, figures.total_bytes - figures.used_bytes, "held pages are available again");
    }
}
