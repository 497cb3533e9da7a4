//! Plug and unplug of memory by request.

use super::*;
use isola_abi::growth::{Answer, MAX_PLUGGED_BLOCKS, Refusal};
use isola_abi::id::{NodeId, PhysAddr, PhysRange};
use isola_abi::management::{Change, MemoryResized, Mode, ReclaimShortfall};
use isola_abi::unplug::Shortfall;
use isola_supervisor_core::inventory::Scrub;
use proptest::prelude::*;

type Resized = Result<MemoryResized, ManagementError>;

fn mib(mib: u64) -> ByteSize {
    ByteSize(mib * MIB)
}

/// Returns a machine with zero memory only, and the report of its cell "kv" of 4 MiB.
fn cell(cores: u32, spec: CellSpec) -> (Cells<FakeMachine>, Rc<Report>) {
    let mut cells = machine(cores);
    while cells.work() == Scrub::Unfinished {}
    let report = run(&mut cells, spec);
    says(&report, CellPhase::Running);
    uses(&report, 4 * MIB, 0);
    (cells, report)
}

fn uses(report: &Report, total: u64, used: u64) {
    report.memory.total_bytes.store(total, Ordering::Relaxed);
    report.memory.used_bytes.store(used, Ordering::Relaxed);
}

/// Requests a resize. Returns the answer, if there is one at once.
fn resize(cells: &mut Cells<FakeMachine>, change: Change<ByteSize>) -> Option<Resized> {
    match cells.resize_memory("kv", change, Mode::Apply) {
        Ok(Resize::Done(resized)) => Some(Ok(resized)),
        Ok(Resize::Pending(_)) => None,
        Err(error) => Some(Err(error)),
    }
}

/// Plugs `more` MiB into the cell.
fn grow(cells: &mut Cells<FakeMachine>, more: u64) -> MemoryResized {
    let resized = cells.resize_waiting("kv", Change::More(mib(more))).unwrap();
    let id = cells.find("kv").unwrap();
    uses(&cells.fake().reports[&id], resized.has.0, 0);
    resized
}

/// Returns the cell's added blocks.
fn chunks(cells: &mut Cells<FakeMachine>) -> Vec<PhysRange> {
    let id = cells.find("kv").unwrap();
    cells.fake().grown[&id].iter().map(|(memory, _)| memory).collect()
}

/// Returns the number of the last reclaim request, and its length in MiB.
fn asked(cells: &mut Cells<FakeMachine>) -> (u32, u64) {
    let id = cells.find("kv").unwrap();
    let (number, len_bytes) = cells.fake().unplug_requests[&id].asked();
    (number, len_bytes / MIB)
}

/// Makes the cell offer blocks for the last reclaim request, and notify the supervisor.
fn offer(cells: &mut Cells<FakeMachine>, report: &Report, blocks: &[PhysRange], rest: Shortfall) {
    let (number, _) = asked(cells);
    report.offer.make(number, blocks, 0, rest);
    cells.on_notification();
}

/// Makes the cell acknowledge the answer to its offer, and notify the supervisor. Returns the unplugged blocks.
fn acknowledge(cells: &mut Cells<FakeMachine>, report: &Report) -> u32 {
    let id = cells.find("kv").unwrap();
    let settlement = cells.fake().unplug_requests[&id].settlement();
    report.offer.acknowledge(settlement.number);
    cells.on_notification();
    settlement.taken
}

fn answer(cells: &mut Cells<FakeMachine>) -> Option<Resized> {
    let mut resized = cells.take_resized();
    assert!(resized.len() <= 1);
    resized.pop().map(|(_, answer)| answer)
}

fn part(of: PhysRange, from: u64, len: u64) -> PhysRange {
    PhysRange::new(PhysAddr(of.start.0 + from * MIB), len * MIB)
}

#[test]
fn the_answer_has_the_sum_of_the_migrated_bytes() {
    let (mut cells, report) = cell(1, spec("kv"));
    grow(&mut cells, 12);
    let got = chunks(&mut cells);
    assert_eq!(resize(&mut cells, Change::Less(mib(4))), None);
    let move_and_offer = |cells: &mut Cells<FakeMachine>, block, moved, rest| {
        let (number, _) = asked(cells);
        report.offer.make(number, &[block], moved, rest);
        cells.on_notification();
        acknowledge(cells, &report);
    };
    move_and_offer(&mut cells, part(got[0], 0, 2), 5, Shortfall::More);
    move_and_offer(&mut cells, part(got[0], 2, 2), 7, Shortfall::None);
    assert_eq!(answer(&mut cells).unwrap().unwrap().moved, ByteSize(12));
    assert_eq!(resize(&mut cells, Change::Less(mib(2))), None);
    move_and_offer(&mut cells, part(got[0], 4, 2), 0, Shortfall::None);
    assert_eq!(answer(&mut cells).unwrap().unwrap().moved, ByteSize(0));
}

#[test]
fn an_operator_plugs_memory_beyond_the_cells_limit_and_unplugs_it() {
    let (mut cells, report) = cell(1, spec("kv"));
    let before = cells.machine().memory_free;
    let resized = grow(&mut cells, 11);
    assert_eq!((resized.had, resized.wanted, resized.has), (mib(4), mib(16), mib(16)), "whole chunks");
    assert_eq!((resized.kept, resized.limit), (None, mib(16)));
    assert_eq!(cells.machine().memory_free.0, before.0 - 12 * MIB);
    assert_eq!(info(&mut cells, "kv").memory, mib(16));
    let got = chunks(&mut cells);
    assert_eq!(got.iter().map(|chunk| chunk.len_bytes).sum::<u64>(), 12 * MIB);
    assert_eq!(resize(&mut cells, Change::To(mib(4))), None);
    assert_eq!(asked(&mut cells).1, 12);
    offer(&mut cells, &report, &got, Shortfall::None);
    assert_eq!(answer(&mut cells), None, "no answer before the cell's acknowledgement");
    acknowledge(&mut cells, &report);
    let resized = answer(&mut cells).unwrap().unwrap();
    assert_eq!((resized.had, resized.has, resized.kept), (mib(16), mib(4), None));
    assert_eq!(cells.machine().memory_free, before);
    assert!(chunks(&mut cells).is_empty());
    let resizes =
        events(&cells).into_iter().filter(|event| matches!(event, JournalEvent::ResizeMemory { .. }));
    let entry = |from, to| JournalEvent::ResizeMemory { from: mib(from), to: mib(to), wanted: mib(to) };
    assert!(resizes.eq([entry(4, 16), entry(16, 4)]));
    // A second time.
    assert_eq!(grow(&mut cells, 2).has, mib(6));
}

#[test]
fn a_dry_run_reports_the_result_and_changes_nothing() {
    let (mut cells, _) = cell(1, spec("kv"));
    let (before, journal) = (resources(&cells), events(&cells));
    let mut dry = |change| cells.resize_memory("kv", change, Mode::DryRun);
    let done = |resized| matches!(resized, Ok(Resize::Done(MemoryResized { has, .. })) if has == mib(8));
    assert!(done(dry(Change::To(mib(8)))));
    assert!(
        matches!(dry(Change::Less(mib(2))), Ok(Resize::Done(MemoryResized { has, .. })) if has == mib(2))
    );
    assert!(matches!(dry(Change::To(mib(400))), Err(ManagementError::MemoryExhausted { .. })));
    assert_eq!((resources(&cells), events(&cells)), (before, journal));
    assert_eq!(asked(&mut cells).0, 0);
}

#[test]
fn impossible_sizes_are_refused_and_change_nothing() {
    let (mut cells, report) = cell(1, spec("kv"));
    uses(&report, 4 * MIB, 2 * MIB);
    let before = resources(&cells);
    let mut refused = |change| resize(&mut cells, change).unwrap().unwrap_err();
    assert_eq!(
        refused(Change::To(mib(2))),
        ManagementError::MemoryInUse { wanted: mib(2), least: mib(4) },
        "a sixteenth must remain free"
    );
    assert!(matches!(refused(Change::Less(mib(4))), ManagementError::OutOfLimits(_)));
    assert!(matches!(refused(Change::Less(mib(5))), ManagementError::OutOfLimits(_)));
    assert!(matches!(refused(Change::More(ByteSize(u64::MAX))), ManagementError::OutOfLimits(_)));
    assert!(matches!(
        refused(Change::More(ByteSize(u64::MAX - 8 * MIB))),
        ManagementError::MemoryExhausted { .. }
    ));
    assert!(matches!(refused(Change::To(mib(100))), ManagementError::MemoryExhausted { .. }));
    cells.fake().spaces_are_full = true;
    assert!(matches!(
        resize(&mut cells, Change::More(mib(2))).unwrap(),
        Err(ManagementError::MemoryScattered { .. })
    ));
    assert_eq!(resources(&cells), before);
    cells.stop("kv", 0).unwrap();
    assert!(matches!(
        resize(&mut cells, Change::More(mib(2))),
        Some(Err(ManagementError::WrongState { .. }))
    ));
}

#[test]
fn memory_of_which_a_block_cannot_be_plugged_is_not_reported_as_given() {
    let (mut cells, report) = cell(1, spec("kv"));
    uses(&report, 4 * MIB, 2 * MIB);
    let (before, journal) = (resources(&cells), events(&cells));
    cells.fake().blocks_left = Some(0);
    // 2 and 4 MiB: two blocks.
    let grow_by = |cells: &mut _| resize(cells, Change::More(mib(6))).unwrap().unwrap_err();
    assert_eq!(grow_by(&mut cells), ManagementError::MemoryScattered { pieces: 2, places: 0 });
    assert_eq!((resources(&cells), events(&cells)), (before, journal), "nothing was plugged");
    cells.fake().blocks_left = Some(1);
    assert_eq!(grow_by(&mut cells), ManagementError::MemoryScattered { pieces: 2, places: 1 });
    let has = cells.inspect("kv").unwrap().memory;
    assert!(has > mib(4) && has < mib(10), "{has}");
    let last = events(&cells).pop().unwrap();
    assert_eq!(last, JournalEvent::ResizeMemory { from: mib(4), to: has, wanted: mib(10) });
}

#[test]
fn a_partial_unplug_reports_its_reason() {
    let (mut cells, report) = cell(1, spec("kv"));
    grow(&mut cells, 16);
    let got = chunks(&mut cells);
    for (rest, kept) in [
        (Shortfall::Scattered, ReclaimShortfall::Scattered),
        (Shortfall::InUse, ReclaimShortfall::InUse),
        (Shortfall::More, ReclaimShortfall::InUse),
    ] {
        assert_eq!(resize(&mut cells, Change::To(mib(4))), None);
        let block: &[PhysRange] = if rest == Shortfall::Scattered { &[part(got[0], 2, 2)] } else { &[] };
        offer(&mut cells, &report, block, rest);
        acknowledge(&mut cells, &report);
        let resized = answer(&mut cells).unwrap().unwrap();
        assert_eq!((resized.has, resized.kept), (mib(18), Some(kept)));
    }
    cells.fake().holes_are_full = true;
    assert_eq!(resize(&mut cells, Change::To(mib(4))), None);
    offer(&mut cells, &report, &[part(got[0], 4, 2)], Shortfall::None);
    acknowledge(&mut cells, &report);
    assert_eq!(answer(&mut cells).unwrap().unwrap().kept, Some(ReclaimShortfall::TooManyPlaces));
}

#[test]
fn a_cell_is_asked_again_while_it_has_more_and_once_its_cores_returned_cached_memory() {
    let (mut cells, report) = cell(1, spec("kv"));
    grow(&mut cells, 16);
    let got = chunks(&mut cells);
    assert_eq!(resize(&mut cells, Change::To(mib(12))), None);
    offer(&mut cells, &report, &[part(got[0], 0, 2)], Shortfall::More);
    let first = asked(&mut cells);
    cells.on_notification();
    assert_eq!(asked(&mut cells), first, "not before the acknowledgement");
    assert_eq!(acknowledge(&mut cells, &report), 1);
    assert_eq!(asked(&mut cells), (first.0 + 1, 6));
    offer(&mut cells, &report, &[], Shortfall::Soon);
    acknowledge(&mut cells, &report);
    assert_eq!(asked(&mut cells), (first.0 + 1, 6), "a moment later");
    assert!(cells.next_deadline_ns().is_some());
    advance(&mut cells, 1);
    assert_eq!(asked(&mut cells), (first.0 + 2, 6));
    offer(&mut cells, &report, &[part(got[0], 2, 6)], Shortfall::None);
    acknowledge(&mut cells, &report);
    assert_eq!(answer(&mut cells).unwrap().unwrap().has, mib(12));
    assert_eq!(cells.next_deadline_ns(), None);
    // A cell that always answers "soon" is not asked forever.
    assert_eq!(resize(&mut cells, Change::To(mib(4))), None);
    let mut times = 0;
    while answer(&mut cells).is_none() {
        offer(&mut cells, &report, &[], Shortfall::Soon);
        acknowledge(&mut cells, &report);
        advance(&mut cells, 1);
        times += 1;
    }
    assert!(times < 10);
}

#[test]
fn a_cell_that_will_have_more_soon_gets_the_time_for_another_request() {
    let (mut cells, report) = cell(1, spec("kv"));
    grow(&mut cells, 16);
    let got = chunks(&mut cells);
    assert_eq!(resize(&mut cells, Change::To(mib(12))), None);
    for _ in 0..3 {
        advance(&mut cells, 4_000);
        offer(&mut cells, &report, &[], Shortfall::Soon);
        acknowledge(&mut cells, &report);
        advance(&mut cells, 1);
    }
    offer(&mut cells, &report, &[part(got[0], 0, 8)], Shortfall::None);
    acknowledge(&mut cells, &report);
    assert_eq!(answer(&mut cells).unwrap().unwrap().has, mib(12));
    // All requests of a resize together end all the same.
    assert_eq!(resize(&mut cells, Change::To(mib(4))), None);
    let begun = cells.fake().now.get();
    while answer(&mut cells).is_none() {
        advance(&mut cells, 4_500);
        offer(&mut cells, &report, &[], Shortfall::Soon);
        acknowledge(&mut cells, &report);
        advance(&mut cells, 1);
    }
    assert!(cells.fake().now.get() - begun <= 23_000_000_000);
}

#[test]
fn an_unplug_without_acknowledgement_is_answered_at_the_deadline() {
    let (mut cells, report) = cell(1, spec("kv"));
    grow(&mut cells, 2);
    let got = chunks(&mut cells);
    assert_eq!(resize(&mut cells, Change::To(mib(4))), None);
    offer(&mut cells, &report, &got, Shortfall::None);
    advance(&mut cells, 4_900);
    assert_eq!(answer(&mut cells), None);
    advance(&mut cells, 200);
    let resized = answer(&mut cells).unwrap().unwrap();
    assert_eq!((resized.has, resized.kept), (mib(4), None));
    assert_eq!(cells.next_deadline_ns(), None);
    let busy = Some(Err(ManagementError::BeingResized("kv".into())));
    assert_eq!(resize(&mut cells, Change::More(mib(2))), busy);
}

#[test]
fn a_cell_that_does_not_answer_keeps_its_memory() {
    let (mut cells, report) = cell(1, spec("kv"));
    assert_eq!(resize(&mut cells, Change::To(mib(2))), None);
    let busy = Some(Err(ManagementError::BeingResized("kv".into())));
    assert_eq!(resize(&mut cells, Change::To(mib(2))), busy);
    advance(&mut cells, 4_900);
    assert_eq!(answer(&mut cells), None);
    advance(&mut cells, 200);
    let resized = answer(&mut cells).unwrap().unwrap();
    assert_eq!((resized.has, resized.kept), (mib(4), Some(ReclaimShortfall::NotInTime)));
    assert_eq!(cells.next_deadline_ns(), None);
    // A late offer is not accepted, and the cell gets no memory before it has acknowledged that.
    let memory = cells.machine().memory_free;
    offer(&mut cells, &report, &[PhysRange::new(PhysAddr(18 * MIB), 2 * MIB)], Shortfall::None);
    assert_eq!((cells.machine().memory_free, answer(&mut cells)), (memory, None));
    assert_eq!(resize(&mut cells, Change::More(mib(2))), busy);
    assert_eq!(acknowledge(&mut cells, &report), 0);
    assert_eq!(grow(&mut cells, 2).has, mib(6));
}

#[test]
fn only_whole_chunks_of_the_cells_own_memory_are_unplugged() {
    let (mut cells, report) = cell(2, spec("kv"));
    run(&mut cells, spec("other"));
    grow(&mut cells, 16);
    let got = chunks(&mut cells);
    let all = PhysRange::new(PhysAddr(0), u64::MAX);
    let others: Vec<PhysRange> =
        (16..80).step_by(2).map(|at| PhysRange::new(PhysAddr(at * MIB), 2 * MIB)).collect();
    assert_eq!(resize(&mut cells, Change::Less(mib(16))), None);
    let free = cells.machine().memory_free;
    let hostile = [
        all,
        PhysRange::new(PhysAddr(u64::MAX - MIB), 2 * MIB),
        PhysRange::new(PhysAddr(got[0].start.0 + 4096), 2 * MIB),
        PhysRange::new(got[0].start, 2 * MIB + 4096),
        part(got[0], 0, 0),
        part(got[0], 0, 2),
        part(got[0], 0, 2),
    ];
    offer(&mut cells, &report, &hostile, Shortfall::More);
    assert_eq!(acknowledge(&mut cells, &report), 1 << 5, "once");
    assert_eq!(cells.machine().memory_free.0, free.0 + 2 * MIB);
    // Of all the machine's memory, only the cell's own is unplugged.
    offer(&mut cells, &report, &others, Shortfall::None);
    let took = cells.machine().memory_free.0 - free.0;
    assert!((2 * MIB..=16 * MIB).contains(&took));
    assert_eq!(info(&mut cells, "kv").memory.0, 20 * MIB - took);
    assert_eq!(info(&mut cells, "other").memory, mib(4));
}

#[test]
fn a_cell_whose_core_does_not_acknowledge_a_shootdown_is_ended() {
    let (mut cells, report) = cell(1, spec("kv"));
    grow(&mut cells, 8);
    let got = chunks(&mut cells);
    assert_eq!(resize(&mut cells, Change::Less(mib(8))), None);
    cells.fake().stuck_core = Some(0);
    let (number, _) = asked(&mut cells);
    report.offer.make(number, &got, 0, Shortfall::None);
    cells.on_notification();
    assert!(answer(&mut cells).is_some());
    assert_eq!(info(&mut cells, "kv").state, CellState::Crashed);
    let machine = cells.machine();
    assert_eq!(machine.memory_free, machine.memory_total);
}

#[test]
fn a_pending_unplug_is_answered_when_the_cell_ends() {
    let (mut cells, report) = cell(1, spec("kv"));
    assert_eq!(resize(&mut cells, Change::To(mib(2))), None);
    says(&report, CellPhase::Exited);
    cells.on_notification();
    assert!(matches!(
        answer(&mut cells),
        Some(Err(ManagementError::WrongState { state: CellState::Exited, .. }))
    ));
    assert_eq!(cells.next_deadline_ns(), None);
}

#[test]
fn an_unplug_lowers_the_limit_of_the_cells_requests() {
    let may = CellSpec { memory_max: Some(mib(20)), ..spec("kv") };
    let (mut cells, report) = cell(1, may);
    grow(&mut cells, 8);
    let got = chunks(&mut cells);
    let id = cells.find("kv").unwrap();
    let limit =
        |cells: &mut Cells<FakeMachine>| cells.fake().grown[&id].limit_bytes.load(Ordering::Relaxed) / MIB;
    assert_eq!(limit(&mut cells), 20);
    assert_eq!(resize(&mut cells, Change::Less(mib(2))), None);
    offer(&mut cells, &report, &[part(got[0], 2, 2)], Shortfall::None);
    let ask = |cells: &mut Cells<FakeMachine>| {
        let number = report.memory_request.make(2 * MIB, 2 * MIB, NodeId(0));
        cells.on_notification();
        cells.fake().grown[&id].answer_to(number)
    };
    assert_eq!(ask(&mut cells), None, "no grant before the acknowledgement of the offer");
    acknowledge(&mut cells, &report);
    assert_eq!(answer(&mut cells).unwrap().unwrap().limit, mib(10));
    assert_eq!(limit(&mut cells), 10);
    assert_eq!(info(&mut cells, "kv").spec.memory_max, Some(mib(10)), "the information has the lower limit");
    assert_eq!(ask(&mut cells), Some(Answer::Refused(Refusal::Limit)));
    assert_eq!(grow(&mut cells, 2).limit, mib(20));
    assert_eq!(ask(&mut cells), Some(Answer::Given));
}

#[test]
fn the_last_chunk_goes_to_one_cell_and_after_its_return_to_another() {
    let may = |name| CellSpec { memory_max: Some(mib(60)), ..spec(name) };
    let (mut cells, first) = cell(2, may("kv"));
    let second = run(&mut cells, may("other"));
    while cells.work() == Scrub::Unfinished {}
    let free = cells.machine().memory_free.0 / MIB;
    grow(&mut cells, free - 2);
    let got = chunks(&mut cells);
    // Both cells make a request before the supervisor checks.
    let requests = [&first, &second].map(|report| report.memory_request.make(2 * MIB, 2 * MIB, NodeId(0)));
    cells.on_notification();
    let ids = ["kv", "other"].map(|name| cells.find(name).unwrap());
    let answers: Vec<Option<Answer>> =
        ids.iter().zip(requests).map(|(id, number)| cells.fake().grown[id].answer_to(number)).collect();
    assert_eq!(answers, [Some(Answer::Given), Some(Answer::Refused(Refusal::Exhausted))]);
    // The second cell gets the memory that the first returns, once it is scrubbed.
    assert_eq!(resize(&mut cells, Change::Less(mib(2))), None);
    offer(&mut cells, &first, &[part(got[0], 0, 2)], Shortfall::None);
    let number = second.memory_request.make(2 * MIB, 2 * MIB, NodeId(0));
    cells.on_notification();
    assert_eq!(cells.fake().grown[&ids[1]].answer_to(number), None, "later");
    while cells.work() == Scrub::Unfinished {}
    assert_eq!(cells.fake().grown[&ids[1]].answer_to(number), Some(Answer::Given));
}

#[test]
fn unplugged_blocks_do_not_count_towards_the_limit_of_blocks() {
    let (mut cells, report) = cell(1, spec("kv"));
    for _ in 0..3 * MAX_PLUGGED_BLOCKS {
        assert_eq!(grow(&mut cells, 2).has, mib(6));
        let got = chunks(&mut cells);
        assert_eq!(resize(&mut cells, Change::Less(mib(2))), None);
        offer(&mut cells, &report, &got, Shortfall::None);
        acknowledge(&mut cells, &report);
        assert_eq!(answer(&mut cells).unwrap().unwrap().has, mib(4));
    }
}

#[test]
fn memory_that_needs_exactly_the_blocks_that_a_cell_can_still_have_is_plugged() {
    let (mut cells, _report) = cell(1, spec("kv"));
    let id = cells.find("kv").unwrap();
    for number in 0..MAX_PLUGGED_BLOCKS as u64 - 2 {
        let block = PhysRange { start: PhysAddr((1 << 40) + number * 2 * MIB), len_bytes: 2 * MIB };
        assert!(cells.fake().grown[&id].push(block, NodeId(0)));
    }
    // 2 and 4 MiB: two blocks.
    assert_eq!(grow(&mut cells, 6).has, mib(10));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Resize(u8, u64),
    Offer(u64, u64, u8),
    Acknowledge,
    Request(u64),
    Scrub,
    Time(u64),
    End,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..3, 0u64..40).prop_map(|(kind, mib)| Step::Resize(kind, mib)),
        6 => (0u64..32, 0u64..6, 0u8..5).prop_map(|(from, len, rest)| Step::Offer(from, len, rest)),
        4 => Just(Step::Acknowledge),
        2 => (1u64..16).prop_map(Step::Request),
        2 => Just(Step::Scrub),
        1 => (1u64..3000).prop_map(Step::Time),
        1 => Just(Step::End),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For all sequences of plugs, offers and losses, each chunk of the machine is free or belongs to one cell; once
    /// all cells have ended, all chunks are free.
    #[test]
    fn every_chunk_has_one_owner(steps in proptest::collection::vec((any::<bool>(), any_step()), 1..60)) {
        let may = |name: &str| CellSpec { memory_max: Some(mib(24)), ..spec(name) };
        let mut cells = machine(2);
        let before = resources(&cells);
        let names = ["kv", "other"];
        names.iter().for_each(|name| says(&run(&mut cells, may(name)), CellPhase::Running));
        for (second, step) in steps {
            let name = names[usize::from(second)];
            let id = cells.find(name).unwrap();
            let report = cells.fake().reports[&id].clone();
            match step {
                Step::Resize(kind, size) => {
                    let change = [Change::To(mib(size)), Change::More(mib(size)), Change::Less(mib(size))];
                    let _ = cells.resize_memory(name, change[usize::from(kind)], Mode::Apply);
                }
                Step::Offer(from, len, rest) => {
                    let (number, _) = cells.fake().unplug_requests[&id].asked();
                    let at = |index: u64| PhysRange::new(PhysAddr((16 + 2 * (from + index * 7) % 64) * MIB), len * MIB);
                    report.offer.make(number, &[at(0), at(1), at(2)], 0, Shortfall::from_u32(rest.into()));
                    cells.on_notification();
                }
                Step::Acknowledge => {
                    let settlement = cells.fake().unplug_requests[&id].settlement();
                    report.offer.acknowledge(settlement.number);
                    cells.on_notification();
                }
                Step::Request(size) => {
                    report.memory_request.make(size * MIB, size * MIB, NodeId(0));
                    cells.on_notification();
                }
                Step::Scrub => drop(cells.work()),
                Step::Time(ms) => advance(&mut cells, ms),
                Step::End if info(&mut cells, name).state == CellState::Running => {
                    cells.stop(name, 0).unwrap();
                    cells.recreate_waiting(name).ok().map(|_| cells.start(name).unwrap());
                }
                Step::End => {}
            }
            let held: u64 = names.iter().map(|name| info(&mut cells, name).memory.0).sum();
            // The memory of an image that a cell uses belongs to the supervisor.
            let machine = cells.machine();
            let images = if held > 0 { machine.memory_images.0 } else { 0 };
            let memory = &cells.core.inventory().memory;
            let reserved = memory.free() - memory.available();
            prop_assert_eq!(machine.memory_free.0 + held + images + reserved, before.memory_total.0);
            prop_assert_eq!(cells.core.inventory().memory.fragment_bytes(), 0);
        }
        for name in names {
            let _ = cells.stop(name, 0);
            cells.destroy(name).unwrap();
        }
        prop_assert_eq!(cells.machine().memory_free, before.memory_total);
        prop_assert_eq!(cells.next_deadline_ns(), None);
    }
}

#[test]
fn a_slow_acknowledgement_is_awaited_until_a_notification_or_the_deadline() {
    let (mut cells, report) = cell(1, spec("kv"));
    grow(&mut cells, 16);
    assert_eq!(resize(&mut cells, Change::To(mib(12))), None);
    let patience_ends = cells.next_deadline_ns();
    offer(&mut cells, &report, &[], Shortfall::Soon);
    let first = asked(&mut cells);
    advance(&mut cells, 1);
    assert!(cells.next_deadline_ns() >= patience_ends, "the supervisor does not poll the cell");
    acknowledge(&mut cells, &report);
    assert_eq!(asked(&mut cells).0, first.0 + 1, "after the cell's notification");
    offer(&mut cells, &report, &[], Shortfall::Soon);
    advance(&mut cells, 5_001);
    assert_eq!(answer(&mut cells).unwrap().unwrap().kept, Some(ReclaimShortfall::NotInTime));
    assert_eq!(cells.next_deadline_ns(), None);
}
