//! Memory loans and their returns, for all fates of borrower and lender.

mod claims;

use super::*;
use crate::fake::every_chunk_has_one_owner;
use isola_abi::growth::{Answer, Refusal};
use isola_abi::id::{NodeId, PhysAddr, PhysRange};
use isola_abi::unplug::{CHUNK, Shortfall};

/// The behaviour of a cell on a reclaim request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manners {
    /// It offers what it does not use.
    Gives,
    /// It claims that all memory is in use.
    Keeps,
    /// It never answers.
    Silent,
    /// It offers memory that it does not have, and claims that there is more.
    Lies,
}

fn member(name: &str, mib: u64, priority: u8, low_mib: Option<u64>) -> CellSpec {
    let memory_low = low_mib.map(|mib| ByteSize(mib * MIB));
    CellSpec {
        memory: ByteSize(mib * MIB),
        memory_max: Some(ByteSize(60 * MIB)),
        lending: LendingSpec { priority, memory_low, ..LendingSpec::default() },
        network: NetworkSpec::None,
        ..spec(name)
    }
}

/// Returns a machine without free memory: `service` has 8 MiB and a high priority, `batch` 54 MiB, of which it keeps 16.
fn full_machine() -> Cells<FakeMachine> {
    let mut cells = machine(3);
    run(&mut cells, member("service", 8, 9, None));
    run(&mut cells, member("batch", 54, 1, Some(16)));
    assert_eq!(cells.machine().memory_free, ByteSize(0));
    cells
}

fn id(cells: &Cells<FakeMachine>, name: &str) -> CellId {
    cells.find(name).unwrap()
}

fn report_of(cells: &mut Cells<FakeMachine>, name: &str) -> Rc<Report> {
    let id = id(cells, name);
    cells.fake().reports[&id].clone()
}

/// Returns a cell's memory, in MiB.
fn mib(cells: &mut Cells<FakeMachine>, name: &str) -> u64 {
    info(cells, name).memory.0 / MIB
}

/// Returns the memory of both cells, in MiB.
fn both(cells: &mut Cells<FakeMachine>) -> (u64, u64) {
    (mib(cells, "service"), mib(cells, "batch"))
}

/// Sets the memory that a cell claims to use, in MiB.
fn uses(cells: &mut Cells<FakeMachine>, name: &str, used_mib: u64) {
    let (report, total) = (report_of(cells, name), mib(cells, name) * MIB);
    report.memory.total_bytes.store(total, Ordering::Relaxed);
    report.memory.used_bytes.store(used_mib * MIB, Ordering::Relaxed);
}

/// Makes a cell answer its reclaim request, if there is one.
fn answers(cells: &mut Cells<FakeMachine>, name: &str, manners: Manners) {
    let (id, report) = (id(cells, name), report_of(cells, name));
    let unplug_request = cells.fake().unplug_requests[&id].clone();
    let (number, len_bytes) = unplug_request.asked();
    if manners != Manners::Silent && number != unplug_request.settlement().number {
        let used = report.memory.used_bytes.load(Ordering::Relaxed).max(2 * MIB);
        let ranges = cells.fake().ranges_of(id);
        let has: u64 = ranges.iter().map(|range| range.len_bytes).sum();
        let spare = len_bytes.min(has.saturating_sub(used)) / CHUNK;
        let chunks = ranges.iter().flat_map(|range| (range.start.0..range.end().0).step_by(CHUNK as usize));
        let chunks = chunks.skip(1).map(|start| PhysRange::new(PhysAddr(start), CHUNK));
        let blocks: Vec<PhysRange> = chunks.take(spare.min(32) as usize).collect();
        let is_all = blocks.len() as u64 * CHUNK == len_bytes;
        let rest = if is_all { Shortfall::None } else { Shortfall::InUse };
        match manners {
            Manners::Keeps => report.offer.make(number, &[], 0, Shortfall::InUse),
            Manners::Lies => {
                let strange = PhysRange::new(PhysAddr(u64::MAX / 2 / CHUNK * CHUNK), u64::MAX);
                report.offer.make(number, &[strange, PhysRange::default()], u64::MAX, Shortfall::More);
            }
            _ => report.offer.make(number, &blocks, 0, rest),
        }
        cells.on_notification();
    }
    if manners != Manners::Silent {
        report.offer.acknowledge(unplug_request.settlement().number);
        cells.on_notification();
    }
}

/// Makes the cells that run answer, and does all work, until nothing changes.
fn proceed(cells: &mut Cells<FakeMachine>, manners: Manners) {
    for _ in 0..4 {
        for name in cells.table.iter().map(|cell| cell.spec.name.clone()).collect::<Vec<_>>() {
            if !info(cells, &name).state.has_ended() {
                answers(cells, &name, manners);
            }
        }
        while cells.work() == Scrub::Unfinished {}
    }
    if !cells.fake().death.has_come() {
        every_chunk_has_one_owner(cells);
    }
}

/// Makes a cell request memory. Returns the request's number.
fn request(cells: &mut Cells<FakeMachine>, name: &str, least_mib: u64, largest_mib: u64) -> u32 {
    let report = report_of(cells, name);
    let number = report.memory_request.make(least_mib * MIB, largest_mib * MIB, NodeId(0));
    cells.on_notification();
    number
}

fn answer(cells: &mut Cells<FakeMachine>, name: &str, number: u32) -> Option<Answer> {
    let id = id(cells, name);
    cells.fake().grown[&id].answer_to(number)
}

const EXHAUSTED: Option<Answer> = Some(Answer::Refused(Refusal::Exhausted));

/// Makes the service borrow 16 MiB by its own request, all of which it uses.
fn grown() -> Cells<FakeMachine> {
    let mut cells = full_machine();
    let number = request(&mut cells, "service", 2, 16);
    assert_eq!(answer(&mut cells, "service", number), None, "the request waits for the lender");
    proceed(&mut cells, Manners::Gives);
    assert_eq!(answer(&mut cells, "service", number), Some(Answer::Given));
    assert_eq!(both(&mut cells), (24, 38));
    uses(&mut cells, "service", 24);
    cells
}

fn memory_events(cells: &Cells<FakeMachine>) -> Vec<JournalEvent> {
    let is_about_memory = |event: &JournalEvent| {
        matches!(
            event,
            JournalEvent::BorrowMemory { .. }
                | JournalEvent::ReturnMemory { .. }
                | JournalEvent::MemoryNotBorrowed { .. }
                | JournalEvent::GrowthRefused { .. }
        )
    };
    events(cells).into_iter().filter(is_about_memory).collect()
}

fn borrowed(mib: u64, from: Option<&str>, lease_ns: u64) -> JournalEvent {
    JournalEvent::BorrowMemory { memory: ByteSize(mib * MIB), from: from.map(Into::into), lease_ns }
}

fn returned(mib: u64, to: Option<&str>, why: ReturnReason) -> JournalEvent {
    JournalEvent::ReturnMemory { memory: ByteSize(mib * MIB), to: to.map(Into::into), why }
}

#[test]
fn a_request_without_free_memory_borrows_and_the_unused_part_returns_after_a_lease() {
    let mut cells = grown();
    let loan = info(&mut cells, "service").memory_loans[0].clone();
    assert_eq!((loan.memory, loan.from.as_deref(), loan.renews), (ByteSize(16 * MIB), Some("batch"), true));
    assert_eq!(info(&mut cells, "batch").memory_lent, ByteSize(16 * MIB));
    let batch = id(&cells, "batch");
    let limit =
        |cells: &mut Cells<FakeMachine>| cells.fake().grown[&batch].limit_bytes.load(Ordering::Relaxed) / MIB;
    assert_eq!(limit(&mut cells), 38, "the lender cannot request the memory back");
    for _ in 0..5 {
        advance(&mut cells, 1_001);
        proceed(&mut cells, Manners::Gives);
        assert_eq!(both(&mut cells), (24, 38), "the borrower uses the memory");
    }
    uses(&mut cells, "service", 10);
    advance(&mut cells, 1_001);
    proceed(&mut cells, Manners::Gives);
    // Three eighths of what remains are free.
    assert_eq!(both(&mut cells), (16, 46));
    uses(&mut cells, "service", 2);
    advance(&mut cells, 1_001);
    proceed(&mut cells, Manners::Gives);
    assert_eq!(both(&mut cells), (8, 54));
    assert_eq!(limit(&mut cells), 60);
    let back = |mib| returned(mib, Some("batch"), ReturnReason::LeaseOver);
    assert_eq!(memory_events(&cells), [borrowed(16, Some("batch"), 1_000_000_000), back(8), back(8)]);
    assert_eq!(cells.next_deadline_ns(), None);
}

#[test]
fn a_lender_keeps_its_low_mark_and_lends_nothing_without_one_or_to_equals() {
    let mut cells = full_machine();
    for _ in 0..4 {
        request(&mut cells, "service", 2, 32);
        proceed(&mut cells, Manners::Gives);
        let total = mib(&mut cells, "service");
        uses(&mut cells, "service", total);
    }
    assert_eq!(both(&mut cells), (46, 16), "the rest is below the low mark");
    let number = request(&mut cells, "service", 2, 2);
    assert_eq!(answer(&mut cells, "service", number), EXHAUSTED, "at once");

    for (priority, low) in [(1, None), (9, Some(16)), (9, None)] {
        let mut cells = machine(3);
        run(&mut cells, member("service", 8, 9, None));
        run(&mut cells, member("batch", 54, priority, low));
        let number = request(&mut cells, "service", 2, 2);
        assert_eq!(answer(&mut cells, "service", number), EXHAUSTED);
        let refused = cells.borrow_memory("service", ByteSize(2 * MIB), LEASE_MS).unwrap_err().to_string();
        assert!(refused.contains("lend at most 0 B"), "{refused}");
    }
}

#[test]
fn a_lender_that_gives_nothing_delays_a_request_for_a_bounded_time_and_is_asked_rarely() {
    for manners in [Manners::Keeps, Manners::Silent, Manners::Lies] {
        let mut cells = full_machine();
        let batch = id(&cells, "batch");
        let asked = |cells: &mut Cells<FakeMachine>| cells.fake().unplug_requests[&batch].asked().0;
        let mut refused_after = Vec::new();
        let mut number = request(&mut cells, "service", 2, 2);
        let mut since = 0;
        for step in 0..3_000_u64 {
            if answer(&mut cells, "service", number) == EXHAUSTED {
                refused_after.push(step - since);
                (number, since) = (request(&mut cells, "service", 2, 2), step);
            }
            answers(&mut cells, "batch", manners);
            advance(&mut cells, 10);
        }
        assert!(refused_after.iter().all(|steps| *steps <= 201), "{manners:?}: {refused_after:?}");
        // At 0, 1, 3, 7 and 15 s, and somewhat later if each takes its time.
        let times = if manners == Manners::Lies { 5 * 3 } else { 5 };
        // A cell that does not acknowledge that its request was withdrawn is not asked again.
        let least = if manners == Manners::Silent { 1 } else { 4 };
        assert!((least..=times).contains(&asked(&mut cells)), "{manners:?}: {}", asked(&mut cells));
        assert_eq!(both(&mut cells), (8, 54));
        assert_eq!(info(&mut cells, "batch").state, CellState::Running);
    }
}

#[test]
fn the_next_lender_is_asked_if_the_first_has_too_little() {
    let mut cells = machine(4);
    run(&mut cells, member("service", 8, 9, None));
    run(&mut cells, member("first", 20, 0, Some(16)));
    run(&mut cells, member("second", 34, 1, Some(8)));
    cells.borrow_memory("service", ByteSize(12 * MIB), LEASE_MS).unwrap();
    assert!(cells.borrow_memory("service", ByteSize(2 * MIB), LEASE_MS).is_err(), "memory is on its way");
    proceed(&mut cells, Manners::Gives);
    let loans = info(&mut cells, "service").memory_loans;
    let loans = loans.iter().map(|loan| (loan.from.as_deref().unwrap(), loan.memory.0 / MIB, loan.renews));
    assert!(loans.eq([("first", 4, false), ("second", 8, false)]));
    advance(&mut cells, u64::from(LEASE_MS));
    proceed(&mut cells, Manners::Gives);
    advance(&mut cells, 1_001);
    proceed(&mut cells, Manners::Gives);
    assert_eq!(["service", "first", "second"].map(|name| mib(&mut cells, name)), [8, 20, 34]);
}

#[test]
fn memory_in_transfer_is_reserved_for_the_borrower_and_then_for_the_lender() {
    let mut cells = full_machine();
    let lacks_memory = |cells: &mut Cells<FakeMachine>| {
        assert_eq!(cells.machine().memory_free, ByteSize(0));
        let other = member("other", 2, 0, None);
        assert!(matches!(cells.create(other), Err(ManagementError::MemoryExhausted { .. })));
    };
    request(&mut cells, "service", 2, 16);
    answers(&mut cells, "batch", Manners::Gives);
    assert_eq!((both(&mut cells), cells.machine().memory_dirty.0 / MIB), ((8, 38), 16));
    lacks_memory(&mut cells);
    proceed(&mut cells, Manners::Gives);
    assert_eq!(both(&mut cells), (24, 38));
    cells.give_memory_back("service", ByteSize(5 * MIB)).unwrap();
    answers(&mut cells, "service", Manners::Gives);
    assert_eq!(both(&mut cells), (18, 38));
    lacks_memory(&mut cells);
    proceed(&mut cells, Manners::Gives);
    assert_eq!(both(&mut cells), (18, 44));
    assert_eq!(memory_events(&cells).pop(), Some(returned(6, Some("batch"), ReturnReason::GivenBack)));
}

#[test]
fn free_memory_is_borrowed_first_and_is_free_again_after_the_lease() {
    let mut cells = machine(3);
    run(&mut cells, member("service", 8, 9, None));
    run(&mut cells, member("batch", 44, 1, Some(16)));
    let info_of = cells.borrow_memory("service", ByteSize(14 * MIB), LEASE_MS).unwrap();
    assert_eq!((info_of.memory.0 / MIB, info_of.from.as_deref()), (14, Some("batch")));
    proceed(&mut cells, Manners::Gives);
    assert_eq!(both(&mut cells), (22, 40));
    let lease_ns = u64::from(LEASE_MS) * 1_000_000;
    let expected = |event: &JournalEvent| matches!(event, JournalEvent::BorrowMemory { lease_ns: ns, .. } if ns.abs_diff(lease_ns) < 10_000);
    assert!(memory_events(&cells).iter().all(expected));
    for _ in 0..3 {
        advance(&mut cells, 1_001);
        proceed(&mut cells, Manners::Gives);
    }
    assert_eq!((both(&mut cells), cells.machine().memory_free.0 / MIB), ((8, 44), 10));
}

#[test]
fn an_operator_s_lease_ends_though_the_borrower_uses_the_memory() {
    let mut cells = full_machine();
    cells.borrow_memory("service", ByteSize(16 * MIB), LEASE_MS).unwrap();
    proceed(&mut cells, Manners::Gives);
    uses(&mut cells, "service", 20);
    advance(&mut cells, LEASE_MS.into());
    proceed(&mut cells, Manners::Gives);
    assert_eq!(both(&mut cells), (20, 42), "memory in use is not taken");
    assert_eq!(info(&mut cells, "service").memory_loans[0].left_ns, 0);
    uses(&mut cells, "service", 6);
    for _ in 0..3 {
        advance(&mut cells, 1_001);
        proceed(&mut cells, Manners::Gives);
    }
    assert_eq!(both(&mut cells), (8, 54), "the cell was asked again");
}

#[test]
fn a_lender_gets_its_memory_back_by_request_from_the_free_memory_or_at_the_borrower_s_end() {
    let mut cells = grown();
    uses(&mut cells, "service", 2);
    let loan = cells.borrow_memory("batch", ByteSize(6 * MIB), LEASE_MS).unwrap();
    assert_eq!((loan.memory.0 / MIB, loan.from.as_deref()), (6, Some("batch")));
    proceed(&mut cells, Manners::Gives);
    assert_eq!(both(&mut cells), (18, 44));
    assert_eq!(memory_events(&cells).pop(), Some(returned(6, Some("batch"), ReturnReason::Recalled)));
    stop(&mut cells, "service");
    proceed(&mut cells, Manners::Gives);
    assert_eq!((mib(&mut cells, "batch"), cells.machine().memory_free.0 / MIB), (54, 8));
    assert_eq!(memory_events(&cells).pop(), Some(returned(10, Some("batch"), ReturnReason::Lost)));

    let mut cells = machine(4);
    run(&mut cells, member("service", 8, 9, None));
    run(&mut cells, member("batch", 34, 1, Some(16)));
    run(&mut cells, member("other", 20, 1, None));
    request(&mut cells, "service", 2, 16);
    proceed(&mut cells, Manners::Gives);
    uses(&mut cells, "service", 24);
    cells.stop("other", 0).unwrap();
    advance(&mut cells, 1_001);
    proceed(&mut cells, Manners::Keeps);
    assert_eq!((both(&mut cells), cells.machine().memory_free.0 / MIB), ((24, 34), 4));
    assert_eq!(info(&mut cells, "service").memory_loans, [], "the borrower owns its memory");
}

#[test]
fn the_memory_of_a_lender_that_ends_is_free_after_the_lease() {
    let mut cells = grown();
    cells.stop("batch", 0).unwrap();
    assert_eq!(info(&mut cells, "service").memory_loans[0].from, None);
    uses(&mut cells, "service", 2);
    advance(&mut cells, 1_001);
    proceed(&mut cells, Manners::Gives);
    assert_eq!((mib(&mut cells, "service"), cells.machine().memory_free.0 / MIB), (8, 54));
    assert_eq!(memory_events(&cells).pop(), Some(returned(16, None, ReturnReason::LeaseOver)));
}

#[test]
fn a_lender_that_restarts_by_policy_needs_its_memory_at_once() {
    let mut cells = machine(3);
    run(&mut cells, member("service", 8, 9, None));
    let report =
        run(&mut cells, CellSpec { restart: RestartPolicy::Always, ..member("batch", 54, 1, Some(16)) });
    request(&mut cells, "service", 2, 16);
    proceed(&mut cells, Manners::Gives);
    uses(&mut cells, "service", 8);
    says(&report, CellPhase::Exited);
    cells.on_notification();
    for _ in 0..3 {
        advance(&mut cells, 50);
        proceed(&mut cells, Manners::Gives);
    }
    (0..3).for_each(|_| advance(&mut cells, 300));
    assert_eq!((info(&mut cells, "batch").state, both(&mut cells)), (CellState::Running, (8, 54)));
}

#[test]
fn a_transfer_whose_borrower_or_lender_ends_leaves_no_memory_reserved() {
    for (stopped, gives_first) in [("service", false), ("service", true), ("batch", false), ("batch", true)] {
        let mut cells = full_machine();
        request(&mut cells, "service", 2, 16);
        if gives_first {
            answers(&mut cells, "batch", Manners::Gives);
        }
        cells.stop(stopped, 0).unwrap();
        proceed(&mut cells, Manners::Gives);
        let has = mib(&mut cells, if stopped == "service" { "batch" } else { "service" });
        match stopped {
            "service" => assert_eq!(has, 54),
            // The request is granted all the same.
            _ => assert!((10..=24).contains(&has), "{has}"),
        }
        assert_eq!(cells.machine().memory_free.0 / MIB, 62 - has, "{stopped}, {gives_first}");
    }
}

#[test]
fn memory_for_which_no_cell_has_room_is_free() {
    let mut cells = full_machine();
    let number = request(&mut cells, "service", 2, 16);
    cells.fake().spaces_are_full = true;
    answers(&mut cells, "batch", Manners::Gives);
    proceed(&mut cells, Manners::Gives);
    assert_eq!(answer(&mut cells, "service", number), Some(Answer::Refused(Refusal::Limit)));
    assert_eq!((both(&mut cells), cells.machine().memory_free.0 / MIB), ((8, 38), 16));
    assert_eq!(memory_events(&cells).pop(), Some(returned(16, None, ReturnReason::Lost)));
    assert!(!cells.loans.memory.is_party(id(&cells, "batch")));
}

#[test]
fn parties_are_not_resized() {
    let mut cells = grown();
    for name in ["service", "batch"] {
        let refused = cells.resize_memory(name, Change::More(ByteSize(2 * MIB)), Mode::DryRun).unwrap_err();
        assert!(refused.to_string().contains("on loan"), "{refused}");
    }
    assert!(cells.give_memory_back("batch", ByteSize(2 * MIB)).is_err());
    for memory in [0, u64::MAX] {
        assert!(cells.borrow_memory("service", ByteSize(memory), LEASE_MS).is_err());
    }
    assert!(cells.borrow_memory("service", ByteSize(2 * MIB), 0).is_err());
}

#[test]
fn loans_survive_a_restart_of_the_supervisor() {
    let cells = grown();
    let mut cells = go_wrong(cells, 3, 1, |_| {});
    assert_eq!(both(&mut cells), (24, 38));
    let loan = info(&mut cells, "service").memory_loans[0].clone();
    assert_eq!((loan.memory.0 / MIB, loan.from.as_deref(), loan.renews), (16, Some("batch"), true));
    advance(&mut cells, 1_001);
    proceed(&mut cells, Manners::Gives);
    assert_eq!(both(&mut cells), (24, 38), "the borrower still uses it");
    uses(&mut cells, "service", 2);
    advance(&mut cells, 1_001);
    proceed(&mut cells, Manners::Gives);
    assert_eq!(both(&mut cells), (8, 54));
}

/// Lets all leases end while the cells use nothing, and checks that each lender has its memory and no loan is left.
fn all_is_back(cells: &mut Cells<FakeMachine>, members: &[(&str, u64)]) {
    for round in 0..8 {
        for (name, _) in members {
            if !info(cells, name).state.has_ended() {
                uses(cells, name, 2);
            }
        }
        advance(cells, if round < 4 { 70_000 } else { 1_001 });
        proceed(cells, Manners::Gives);
    }
    for (name, least) in members {
        let cell = info(cells, name);
        if !cell.state.has_ended() {
            assert_eq!((cell.memory_loans, cell.memory_lent), (Vec::new(), ByteSize(0)), "{name}");
            assert!(cell.memory.0 >= least * MIB, "{name} has {}", cell.memory);
        }
    }
    assert_eq!(cells.next_deadline_ns(), None);
}

#[test]
fn lent_memory_returns_for_every_write_at_which_the_supervisor_fails() {
    let acts: [fn(&mut Cells<FakeMachine>); 4] = [
        |cells| {
            request(cells, "service", 2, 16);
            proceed(cells, Manners::Gives);
        },
        |cells| {
            let _ = cells.borrow_memory("service", ByteSize(10 * MIB), LEASE_MS);
            proceed(cells, Manners::Gives);
            let _ = cells.give_memory_back("service", ByteSize(4 * MIB));
            proceed(cells, Manners::Gives);
        },
        |cells| {
            request(cells, "service", 2, 16);
            proceed(cells, Manners::Gives);
            says(&report_of(cells, "service"), CellPhase::Exited);
            cells.on_notification();
            proceed(cells, Manners::Gives);
        },
        |cells| {
            request(cells, "service", 2, 16);
            answers(cells, "batch", Manners::Gives);
            says(&report_of(cells, "batch"), CellPhase::Exited);
            cells.on_notification();
            proceed(cells, Manners::Gives);
        },
    ];
    for act in acts {
        let mut deaths = 0;
        for write in 0.. {
            let mut cells = full_machine();
            cells.fake().death.is_at(write);
            act(&mut cells);
            let has_come = cells.fake().death.has_come();
            cells.fake().death.is_called_off();
            if !has_come {
                break;
            }
            deaths += 1;
            let mut cells = go_wrong(cells, 3, 1, |_| {});
            every_chunk_has_one_owner(&cells);
            let service = info(&mut cells, "service");
            let loans: u64 = service.memory_loans.iter().map(|loan| loan.memory.0).sum();
            let is_running = !service.state.has_ended() && !info(&mut cells, "batch").state.has_ended();
            assert!(!is_running || loans + 8 * MIB == service.memory.0, "before write {write}");
            all_is_back(&mut cells, &[("service", 8), ("batch", 54)]);
        }
        assert!(deaths > 5, "{deaths}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// For all requests, manners, ends and failures: every chunk has one owner, no lender is below its low mark, and in
    /// the end all memory is back.
    #[test]
    fn memory_has_one_owner_and_all_lent_memory_returns(
        steps in proptest::collection::vec((0_u8..10, 0_usize..4, 1_u64..20, 0_u32..40), 1..40),
    ) {
        let mut cells = machine(6);
        let members = [("high", 6, 9, None), ("middle", 16, 5, Some(8)), ("low", 30, 1, Some(10)), ("least", 10, 0, Some(2))];
        for (name, mib, priority, low) in members {
            run(&mut cells, member(name, mib, priority, low));
        }
        let manners = [Manners::Gives, Manners::Keeps, Manners::Silent, Manners::Lies];
        let mut number = 0;
        for (step, cell, mib, write) in steps {
            let name = members[cell].0;
            if info(&mut cells, name).state.has_ended() {
                continue;
            }
            cells.fake().death.is_at(write);
            match step {
                0 | 1 => _ = request(&mut cells, name, 2, mib),
                2 => _ = cells.borrow_memory(name, ByteSize(mib * MIB), mib as u32 * 100),
                3 => _ = cells.give_memory_back(name, ByteSize(mib * MIB)),
                4 => proceed(&mut cells, Manners::Gives),
                5 => answers(&mut cells, name, manners[mib as usize % 4]),
                6 => advance(&mut cells, mib * 200),
                7 => uses(&mut cells, name, mib),
                8 if mib == 1 => {
                    says(&report_of(&mut cells, name), CellPhase::Exited);
                    cells.on_notification();
                }
                _ => _ = cells.work(),
            }
            if cells.fake().death.has_come() || step == 9 {
                number += 1;
                cells = go_wrong(cells, 6, number, |_| {});
            }
            cells.fake().death.is_called_off();
            every_chunk_has_one_owner(&cells);
            for (name, _, _, low) in members {
                let cell = info(&mut cells, name);
                let low = low.map_or(0, |low| low * MIB);
                prop_assert!(cell.state.has_ended() || cell.memory.0 >= low, "{} has {}", name, cell.memory);
                prop_assert!(cell.memory.0 <= 60 * MIB);
                let loans: u64 = cell.memory_loans.iter().map(|loan| loan.memory.0).sum();
                prop_assert!(loans <= cell.memory.0);
            }
        }
        all_is_back(&mut cells, &members.map(|(name, mib, ..)| (name, mib)));
    }
}
