//! Pages that go elsewhere, so that granules of memory become free: against page tables and cores that are simulated.
#![allow(
    unsafe_code,
    reason = "memory that is used behind an allocator's back is a promise that no type can check"
)]

#[path = "../common/mod.rs"]
mod common;
mod machine;

use common::Random;
use isola_abi::id::NodeId;
use isola_memory::pages::{Contents, PAGE_SIZE};
use isola_memory::regions::{Compaction, Progress};
use machine::{CORES, GRANULE, Machine, State, at, write};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// Goes on until it is over, with passes in between, and what `meanwhile` does. How many pages have moved.
fn compact_while(machine: &Machine, granules: usize, meanwhile: impl Fn()) -> usize {
    let mut compaction = Compaction::new();
    compaction.start(granules);
    while compaction.step(&machine.pages, machine) == Progress::GoesOn {
        (0..CORES).for_each(|core| machine.pass(core));
        machine.collect();
        meanwhile();
    }
    machine.check();
    compaction.moved_bytes() / PAGE_SIZE
}

/// A machine whose memory is filled with pages of regions, of which every `kept`th stays.
fn sparse(granules: usize, kept: usize) -> Machine {
    let machine = Machine::new(granules);
    let places = (0..).take_while(|place| machine.map(*place, State::Present)).count();
    (0..places).filter(|place| place % kept != 0).for_each(|place| machine.unmap(place));
    (0..CORES).for_each(|core| machine.pass(core));
    machine.collect();
    machine
}

#[test]
fn granules_that_are_in_use_here_and_there_become_free() {
    let machine = sparse(16, 8);
    assert_eq!(machine.pages.withdraw(8 * GRANULE).len_bytes(), 0, "nothing is free as a whole");
    let moved = compact_while(&machine, 8, || ());
    assert!(moved >= 8 * GRANULE / PAGE_SIZE / 8, "{moved} pages");
    assert_eq!(machine.pages.withdraw(8 * GRANULE).len_bytes(), 8 * GRANULE);
    machine.check_values();
}

#[test]
fn a_single_granule_becomes_free_and_no_page_is_lost_by_it() {
    let machine = sparse(8, 8);
    let used = machine.pages.statistics().used_bytes;
    assert_eq!(machine.pages.withdraw(GRANULE).len_bytes(), 0, "nothing is free as a whole");
    assert!(compact_while(&machine, 1, || ()) > 0);
    assert_eq!(machine.pages.statistics().used_bytes, used, "a page for each that has moved");
    assert_eq!(machine.pages.withdraw(GRANULE).len_bytes(), GRANULE);
    machine.check_values();
}

#[test]
fn a_page_that_is_pinned_and_a_run_stay_and_so_does_what_is_around_them() {
    let machine = sparse(4, 64);
    machine.entries.borrow_mut().values_mut().for_each(|entry| entry.state = State::Pinned);
    assert_eq!(compact_while(&machine, 2, || ()), 0);
    let mut moves = 0;
    for entry in machine.entries.borrow_mut().values_mut() {
        // One is pinned in each granule.
        moves += 1;
        entry.state = if moves % 8 == 0 { State::Pinned } else { State::Present };
    }
    assert_eq!(compact_while(&machine, 2, || ()), 0, "for nothing");
    machine.entries.borrow_mut().values_mut().for_each(|entry| entry.state = State::Present);
    (0..512).for_each(|_| machine.run(2));
    assert!(compact_while(&machine, 1, || ()) <= 8);
    machine.check();
}

#[test]
fn what_is_touched_all_the_time_stays_and_has_an_end() {
    let machine = sparse(8, 16);
    let before: Vec<_> = machine.entries.borrow().values().map(|entry| entry.frame).collect();
    let mut compaction = Compaction::new();
    compaction.start(4);
    let mut steps = 0;
    while compaction.step(&machine.pages, &machine) == Progress::GoesOn {
        (0..CORES).for_each(|core| machine.pass(core));
        machine.places().for_each(|(place, _)| machine.touch(place % CORES, place));
        steps += 1;
        assert!(steps < 1000);
    }
    assert_eq!(compaction.moved_bytes(), 0);
    assert!(machine.entries.borrow().values().map(|entry| entry.frame).eq(before));
    machine.check();
    // What was held can be had again.
    let free = machine.pages.statistics().total_bytes - machine.pages.statistics().used_bytes;
    let all = std::iter::from_fn(|| machine.pages.allocate(1, 1)).count();
    assert_eq!(all * PAGE_SIZE, free);
}

#[test]
fn others_become_free_instead_of_those_of_which_some_is_touched_all_the_time() {
    let machine = sparse(16, 8);
    // One page of each of some granules, of which less is in use than of the others.
    let mut hot = BTreeMap::new();
    for (place, frame) in machine.places() {
        let granule = frame.addr().get() / GRANULE;
        if hot.len() < 6
            && granule.is_multiple_of(2)
            && *hot.entry(granule).or_insert(place) != place
            && place % 16 == 0
        {
            machine.unmap(place);
        }
    }
    compact_while(&machine, 8, || hot.values().for_each(|place| machine.touch(place % CORES, *place)));
    assert_eq!(machine.pages.withdraw(8 * GRANULE).len_bytes(), 8 * GRANULE);
}

#[test]
fn what_is_touched_once_moves_when_it_is_touched_no_more() {
    let machine = sparse(4, 16);
    let is_over = Cell::new(false);
    compact_while(&machine, 2, || {
        if !is_over.get() && machine.is_any_migrating() {
            machine.places().for_each(|(place, _)| machine.touch(0, place));
            is_over.set(true);
        }
    });
    assert!(is_over.get());
    // All but the one with the records, and one in which what has moved is.
    assert_eq!(machine.pages.withdraw(2 * GRANULE).len_bytes(), 2 * GRANULE);
}

/// Has 12 of 16 granules become free, and from when pages are migrating, others do something in each pass.
fn is_not_disturbed_by(meanwhile: impl Fn(&Machine)) {
    let machine = sparse(16, 8);
    // Those of which the least is in use have what was freed last, which is handed out first.
    let first = machine.arena.start.addr().get() / GRANULE;
    let emptier = machine.places().filter(|(_, frame)| frame.addr().get() / GRANULE >= first + 4);
    emptier.step_by(2).for_each(|(place, _)| machine.unmap(place));
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
    assert_eq!(machine.pages.withdraw(12 * GRANULE).len_bytes(), 12 * GRANULE);
    assert!(moved <= used * 12 / 18, "{moved} of {used} pages: some have moved twice");
}

#[test]
fn what_others_take_meanwhile_is_in_no_granule_that_is_to_become_free() {
    is_not_disturbed_by(|machine| (0..8).for_each(|_| machine.run(1)));
}

#[test]
fn what_others_give_back_meanwhile_is_no_place_for_what_moves() {
    is_not_disturbed_by(|machine| {
        let count = machine.places().count();
        let some = machine.places().skip(machine.generation.get() as usize % 7).step_by(count / 16);
        some.for_each(|(place, _)| machine.unmap(place));
    });
}

#[test]
fn nothing_moves_before_every_core_has_forgotten_where_it_was() {
    let machine = sparse(8, 16);
    machine.places().for_each(|(place, _)| machine.touch(1, place));
    let mut compaction = Compaction::new();
    compaction.start(2);
    for _ in 0..100 {
        assert_eq!(compaction.step(&machine.pages, &machine), Progress::GoesOn);
        (0..CORES).filter(|core| *core != 1).for_each(|core| machine.pass(core));
        // It remembers them all, and writes to them where they were.
        machine.places().for_each(|(place, _)| machine.touch(1, place));
    }
    assert_eq!(compaction.moved_bytes(), 0);
    compaction.end(&machine.pages);
    machine.check();
}

#[test]
fn a_step_is_short() {
    let machine = sparse(64, 4);
    let mut compaction = Compaction::new();
    compaction.start(16);
    let mut last = 0;
    while compaction.step(&machine.pages, &machine) == Progress::GoesOn {
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
    /// A core, and which of the pages that there are.
    Touch(usize, usize),
    /// All of them.
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
    const PLACES: usize = 1500;
    let step = prop_oneof![
        4 => (0..PLACES).prop_map(Step::Map),
        1 => (0..PLACES).prop_map(Step::MapPinned),
        4 => (0..PLACES).prop_map(Step::Unmap),
        4 => (0..CORES, 0..PLACES).prop_map(|(core, place)| Step::Touch(core, place)),
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

    /// Whatever comes in between, in whatever order: bytes stay what they were, and no page has two owners.
    #[test]
    fn bytes_stay_what_they_were_whatever_comes_in_between(steps in steps(), seed in 1..u64::MAX) {
        let machine = Machine::new(4);
        // Places of all granules, so that there is something to move.
        let mut random = Random(seed);
        let kept = 3 + random.below(30);
        let places = (0..).take_while(|place| machine.map(*place, State::Present)).count();
        (0..places).filter(|_| random.below(kept) != 0).for_each(|place| machine.unmap(place));
        (0..CORES).for_each(|core| machine.pass(core));
        machine.collect();
        let mut compaction = Compaction::new();
        compaction.start(2);
        for step in steps {
            match step {
                Step::Map(place) => drop(machine.map(place, State::Present)),
                Step::MapPinned(place) => drop(machine.map(place, State::Pinned)),
                Step::Unmap(place) => machine.unmap(place),
                Step::Touch(core, nth) => {
                    let count = machine.entries.borrow().len().max(1);
                    let place = machine.places().nth(nth % count);
                    place.into_iter().for_each(|(place, _)| machine.touch(core, place));
                }
                Step::Rush(core) => machine.places().for_each(|(place, _)| machine.touch(core, place)),
                Step::Pass(core) => {
                    machine.pass(core);
                    machine.collect();
                }
                Step::Run(pages) => machine.run(pages),
                Step::FreeRun(index) => machine.free_run(index),
                Step::Start(granules) => if compaction.is_over() {
                    compaction.start(granules);
                },
                Step::Move => drop(compaction.step(&machine.pages, &machine)),
                Step::End => compaction.end(&machine.pages),
                Step::WithdrawAndReturn => {
                    let withdrawn = machine.pages.withdraw(4 * GRANULE);
                    for (start, len) in withdrawn.blocks() {
                        let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(*start)).unwrap();
                        // Nothing that is in use has left.
                        (0..len / PAGE_SIZE).for_each(|page| write(at(start, page), 0));
                        // SAFETY: it has just left.
                        let back = unsafe {
                            machine.pages.bring_back(NodeId(0), start, *len, Contents::Unknown)
                        };
                        prop_assert!(back.is_ok());
                    }
                    // SAFETY: nobody else uses the allocator.
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
        prop_assert_eq!(all * PAGE_SIZE, figures.total_bytes - figures.used_bytes, "what was held can be had again");
    }
}
