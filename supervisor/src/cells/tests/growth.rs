//! Memory requests of running cells.

use super::*;
use isola_abi::growth::{Answer, LARGEST_BLOCK, MAX_PLUGGED_BLOCKS, Refusal};
use isola_abi::id::NodeId;
use isola_supervisor_core::inventory::Scrub;
use proptest::prelude::*;

/// Returns a machine whose memory is all known to be zero.
fn clean_machine(cores: u32) -> Cells<FakeMachine> {
    let mut cells = machine(cores);
    while cells.work() == Scrub::Unfinished {}
    cells
}

/// Returns the specification of a cell of 4 MiB that may have 20.
fn elastic(name: &str) -> CellSpec {
    CellSpec { memory_max: Some(ByteSize(20 * MIB)), ..spec(name) }
}

/// Makes a cell request `least` to `largest` MiB and notify the supervisor. Returns the request's number.
fn request(cells: &mut Cells<FakeMachine>, report: &Report, least: u64, largest: u64) -> u32 {
    let number =
        report.memory_request.make(least.saturating_mul(MIB), largest.saturating_mul(MIB), NodeId(0));
    cells.on_notification();
    number
}

/// Returns the answer to a cell's request.
fn answer(cells: &mut Cells<FakeMachine>, name: &str, number: u32) -> Option<Answer> {
    let id = cells.find(name).unwrap();
    cells.fake().grown[&id].answer_to(number)
}

fn ask(cells: &mut Cells<FakeMachine>, report: &Report, least: u64, largest: u64) -> Option<Answer> {
    let number = request(cells, report, least, largest);
    answer(cells, "kv", number)
}

/// Returns the lengths of a cell's added blocks, in MiB.
fn chunks(cells: &mut Cells<FakeMachine>, name: &str) -> Vec<u64> {
    let id = cells.find(name).unwrap();
    cells.fake().grown[&id].iter().map(|(memory, _)| memory.len_bytes / MIB).collect()
}

const LIMIT: Option<Answer> = Some(Answer::Refused(Refusal::Limit));
const EXHAUSTED: Option<Answer> = Some(Answer::Refused(Refusal::Exhausted));

#[test]
fn a_cell_gets_requested_memory_up_to_its_limit_and_its_end_frees_all_of_it() {
    let mut cells = clean_machine(1);
    let before = resources(&cells);
    let report = run(&mut cells, elastic("kv"));
    assert_eq!(ask(&mut cells, &report, 2, 8), Some(Answer::Given));
    assert_eq!(ask(&mut cells, &report, 3, 0), Some(Answer::Given), "4 is the smallest block for 3");
    let grown = info(&mut cells, "kv");
    assert_eq!((grown.memory, grown.memory_given), (ByteSize(16 * MIB), ByteSize(16 * MIB)));
    assert_eq!(cells.machine().memory_free.0, before.memory_free.0 - 16 * MIB - IMAGE);
    assert_eq!(ask(&mut cells, &report, 5, 5), LIMIT, "8 would be too much");
    assert_eq!(ask(&mut cells, &report, 1, 64), Some(Answer::Given), "as much as the limit allows");
    assert_eq!(ask(&mut cells, &report, 1, 1), LIMIT);
    assert_eq!(chunks(&mut cells, "kv"), [8, 4, 4]);
    let grow = |by, to| JournalEvent::Grow { by: ByteSize(by * MIB), to: ByteSize(to * MIB) };
    let refused = |mib| JournalEvent::GrowthRefused { wanted: ByteSize(mib * MIB), refusal: Refusal::Limit };
    assert_eq!(events(&cells)[3..], [grow(8, 12), grow(4, 16), refused(8), grow(4, 20), refused(2)]);
    cells.stop("kv", 0).unwrap();
    assert_eq!(resources(&cells), before);
    assert_eq!(info(&mut cells, "kv").memory_given, ByteSize(20 * MIB));
    // A recreated cell has its original size.
    cells.recreate_waiting("kv").unwrap();
    assert_eq!(info(&mut cells, "kv").memory, ByteSize(4 * MIB));
}

#[test]
fn a_request_of_a_cell_without_a_larger_limit_is_refused() {
    let mut cells = clean_machine(1);
    let report = run(&mut cells, spec("kv"));
    assert_eq!(ask(&mut cells, &report, 0, 0), LIMIT);
    assert_eq!(info(&mut cells, "kv").memory, ByteSize(4 * MIB));
}

#[test]
fn requests_are_refused_without_free_memory_and_granted_once_there_is_some() {
    let mut cells = clean_machine(2);
    let report = run(&mut cells, elastic("kv"));
    run(&mut cells, CellSpec { memory: ByteSize(58 * MIB), ..spec("large") });
    assert_eq!(ask(&mut cells, &report, 4, 4), EXHAUSTED);
    assert_eq!(ask(&mut cells, &report, 4, 4), EXHAUSTED);
    let told = |event: &&JournalEvent| matches!(event, JournalEvent::GrowthRefused { .. });
    assert_eq!(events(&cells).iter().filter(told).count(), 1, "repeated refusals are entered once");
    cells.stop("large", 0).unwrap();
    let number = request(&mut cells, &report, 8, 8);
    // The memory of the other cell must be scrubbed first.
    assert_eq!(answer(&mut cells, "kv", number), None);
    while cells.work() == Scrub::Unfinished {}
    assert_eq!(answer(&mut cells, "kv", number), Some(Answer::Given));
}

#[test]
fn a_cell_that_waits_for_memory_is_not_considered_hung() {
    let mut cells = machine(2);
    let report = run(&mut cells, CellSpec { watchdog_ms: 200, ..elastic("kv") });
    says(&report, CellPhase::Running);
    signs(&report, 0, CorePhase::Running, 7);
    let number = request(&mut cells, &report, 8, 8);
    (0..1000).for_each(|_| advance(&mut cells, 1));
    assert_eq!(answer(&mut cells, "kv", number), None);
    assert_eq!(info(&mut cells, "kv").state, CellState::Running);
    while answer(&mut cells, "kv", number).is_none() {
        assert_eq!(cells.work(), Scrub::Unfinished);
    }
    (0..150).for_each(|_| advance(&mut cells, 1));
    assert_eq!(
        info(&mut cells, "kv").state,
        CellState::Running,
        "the watchdog's time begins with the answer"
    );
    (0..200).for_each(|_| advance(&mut cells, 1));
    assert_eq!(info(&mut cells, "kv").state, CellState::Crashed);
}

#[test]
fn requests_that_are_answered_at_once_do_not_hide_a_hang() {
    let mut cells = clean_machine(2);
    let report = run(&mut cells, CellSpec { watchdog_ms: 200, ..elastic("kv") });
    says(&report, CellPhase::Running);
    signs(&report, 0, CorePhase::Running, 7);
    assert_eq!(ask(&mut cells, &report, 64, 64), LIMIT);
    for _ in 0..8 {
        request(&mut cells, &report, 64, 64);
        (0..50).for_each(|_| advance(&mut cells, 1));
    }
    assert_eq!(info(&mut cells, "kv").state, CellState::Crashed);
}

#[test]
fn an_open_request_is_refused_when_the_memory_is_reserved_by_another() {
    let mut cells = machine(2);
    let report = run(&mut cells, elastic("kv"));
    let number = request(&mut cells, &report, 16, 16);
    assert_eq!(answer(&mut cells, "kv", number), None);
    // A request for all remaining memory reserves it at once.
    let rest = cells.machine().memory_free.0;
    let spec = CellSpec { memory: ByteSize(rest), network: NetworkSpec::None, ..spec("large") };
    assert!(matches!(cells.create(spec), Ok(Created::Pending(_))));
    assert_eq!(cells.machine().memory_free.0, 0);
    cells.on_notification();
    assert_eq!(answer(&mut cells, "kv", number), EXHAUSTED);
    cells.work_while_waited_for();
    assert_eq!(info(&mut cells, "large").memory.0, rest);
}

#[test]
fn a_new_request_replaces_an_open_one() {
    let mut cells = machine(1);
    let report = run(&mut cells, elastic("kv"));
    let large = request(&mut cells, &report, 16, 16);
    assert_eq!(answer(&mut cells, "kv", large), None, "the memory must be scrubbed first");
    let small = request(&mut cells, &report, 2, 2);
    // As soon as one chunk is zero, long before eight contiguous ones are.
    let dirty = cells.machine().memory_dirty.0;
    while answer(&mut cells, "kv", small).is_none() {
        assert_eq!(cells.work(), Scrub::Unfinished);
    }
    assert!(dirty - cells.machine().memory_dirty.0 < 8 * MIB);
    assert_eq!(answer(&mut cells, "kv", small), Some(Answer::Given));
    assert_eq!(chunks(&mut cells, "kv"), [2]);
    assert_eq!(answer(&mut cells, "kv", large), None, "the replaced request has no answer");
}

#[test]
fn a_refused_cell_gets_freed_memory_and_its_next_refusal_is_entered_again() {
    let mut cells = clean_machine(2);
    let report = run(&mut cells, elastic("kv"));
    let taken: Vec<_> = core::iter::from_fn(|| cells.core.take_store_memory(2 * MIB)).collect();
    assert_eq!(cells.machine().memory_free, ByteSize(0));
    assert_eq!(ask(&mut cells, &report, 2, 2), EXHAUSTED);
    taken.into_iter().for_each(|memory| cells.core.put_store_memory(memory));
    while cells.work() == Scrub::Unfinished {}
    assert_eq!(ask(&mut cells, &report, 2, 2), Some(Answer::Given));
    let taken: Vec<_> = core::iter::from_fn(|| cells.core.take_store_memory(2 * MIB)).collect();
    assert_eq!(cells.machine().memory_free, ByteSize(0));
    assert_eq!(ask(&mut cells, &report, 2, 2), EXHAUSTED);
    let told = |event: &&JournalEvent| matches!(event, JournalEvent::GrowthRefused { .. });
    assert_eq!(events(&cells).iter().filter(told).count(), 2);
    taken.into_iter().for_each(|memory| cells.core.put_store_memory(memory));
}

#[test]
fn an_open_request_ends_with_its_cell() {
    let mut cells = machine(1);
    let before = resources(&cells);
    let report = run(&mut cells, elastic("kv"));
    request(&mut cells, &report, 8, 8);
    cells.stop("kv", 0).unwrap();
    while cells.work() == Scrub::Unfinished {}
    assert_eq!(resources(&cells), before);
    cells.recreate_waiting("kv").unwrap();
    cells.start("kv").unwrap();
    cells.on_notification();
    assert_eq!(info(&mut cells, "kv").memory, ByteSize(4 * MIB));
}

#[test]
fn memory_stays_free_if_a_cell_cannot_have_another_block() {
    let mut cells = clean_machine(1);
    let report = run(&mut cells, elastic("kv"));
    let free = cells.machine().memory_free;
    cells.fake().spaces_are_full = true;
    assert_eq!(ask(&mut cells, &report, 2, 2), LIMIT);
    assert_eq!(cells.machine().memory_free, free);
    cells.fake().spaces_are_full = false;
    assert_eq!(ask(&mut cells, &report, 2, 2), Some(Answer::Given), "the cell can have another block now");
}

#[test]
fn a_flood_of_requests_fills_neither_the_machine_nor_the_journal() {
    let mut cells = clean_machine(1);
    let report = run(&mut cells, CellSpec { memory_max: Some(ByteSize(1 << 40)), ..spec("kv") });
    for _ in 0..2000 {
        ask(&mut cells, &report, 1, 1);
        assert_eq!(ask(&mut cells, &report, u64::MAX, u64::MAX), EXHAUSTED);
        assert_eq!(ask(&mut cells, &report, LARGEST_BLOCK / MIB + 1, 0), EXHAUSTED);
    }
    assert!(chunks(&mut cells, "kv").len() <= MAX_PLUGGED_BLOCKS);
    assert!(events(&cells).len() < 3 * MAX_PLUGGED_BLOCKS);
}

proptest! {
    /// For all requests, no cell has more memory than its limit, all its memory was granted, and all memory comes back.
    #[test]
    fn no_request_gets_more_than_the_limit(
        requests in proptest::collection::vec(
            (any::<bool>(), prop_oneof![0..64 * MIB, any::<u64>()], any::<u64>(), any::<u32>(), any::<u32>(), any::<bool>()),
            1..60,
        ),
        most in 4..40u64,
    ) {
        let mut cells = machine(2);
        let before = resources(&cells);
        let spec = |name| CellSpec { memory_max: Some(ByteSize(most * MIB)), ..spec(name) };
        let reports = ["a", "b"].map(|name| run(&mut cells, spec(name)));
        for (second, least, largest, node, number, scrubs) in requests {
            let request = &reports[usize::from(second)].memory_request;
            request.least_bytes.store(least, Ordering::Relaxed);
            request.largest_bytes.store(largest, Ordering::Relaxed);
            request.node.store(node, Ordering::Relaxed);
            request.number.store(number, Ordering::Relaxed);
            cells.on_notification();
            if scrubs {
                cells.work();
            }
            let mut held = 0;
            for name in ["a", "b"] {
                let grown: u64 = chunks(&mut cells, name).iter().sum();
                let memory = info(&mut cells, name).memory.0;
                prop_assert_eq!(memory, (4 + grown) * MIB);
                prop_assert!(memory <= most * MIB);
                held += memory;
            }
            prop_assert_eq!(cells.machine().memory_free.0 + held + IMAGE, before.memory_total.0);
        }
        for name in ["a", "b"] {
            cells.stop(name, 0).unwrap();
        }
        prop_assert_eq!(resources(&cells), before);
    }
}
