//! Plug and unplug of cores.

use super::*;
use crate::fake::{Action, obeys};
use isola_abi::core_slots::OrderKind;
use isola_abi::id::{NodeId, PhysAddr, PhysRange};
use isola_abi::management::{CORE_LIMIT_MS, Change, CoresResized, Mode, ReclaimShortfall};
use isola_abi::unplug::Shortfall;
use proptest::prelude::*;

#[test]
fn the_stacks_of_plugged_cores_reduce_the_limit_of_memory_requests() {
    let mut cells = machine(3);
    let report = run(&mut cells, CellSpec { memory_max: Some(ByteSize(10 * MIB)), ..spec("kv") });
    let id = cells.find("kv").unwrap();
    resize(&mut cells, "kv", Change::More(1)).unwrap();
    let told = |cells: &mut Cells<FakeMachine>| cells.fake().grown[&id].limit_bytes.load(Ordering::Relaxed);
    // The cell began with 4 MiB, and has 2 MiB of stacks.
    assert_eq!((info(&mut cells, "kv").memory, told(&mut cells)), (ByteSize(6 * MIB), 8 * MIB));
    let mut cells = crate::fake::go_wrong(cells, 3, 1, |_| {});
    for (request, answer) in [(4, true), (2, false)] {
        let number = report.memory_request.make(request * MIB, request * MIB, NodeId(0));
        cells.on_notification();
        while cells.work() == Scrub::Unfinished {}
        let given = cells.fake().grown[&id].answer_to(number) == Some(isola_abi::growth::Answer::Given);
        assert_eq!(given, answer, "the limit in the live words applies: {request} MiB");
    }
    cells.resize_memory("kv", Change::More(ByteSize(2 * MIB)), Mode::Apply).unwrap();
    assert_eq!((info(&mut cells, "kv").memory, told(&mut cells)), (ByteSize(12 * MIB), 10 * MIB));
}

type Answer = Result<CoresResized, ManagementError>;

/// Requests cores. Returns the answer, if there is one yet.
fn ask(
    cells: &mut Cells<FakeMachine>,
    name: &str,
    change: Change<u32>,
    ids: &[u32],
    mode: Mode,
) -> Option<Answer> {
    let ids: Vec<CoreId> = ids.iter().copied().map(CoreId).collect();
    let wanted = CoresWanted { change, ids: &ids, limit_ms: CORE_LIMIT_MS };
    match cells.resize_cores(name, &wanted, mode) {
        Ok(CoresResize::Done(resized)) => Some(Ok(resized)),
        Ok(CoresResize::Pending(_)) => cells.take_cores_resized().pop().map(|(_, answer)| answer),
        Err(error) => Some(Err(error)),
    }
}

pub(super) fn resize(cells: &mut Cells<FakeMachine>, name: &str, change: Change<u32>) -> Answer {
    ask(cells, name, change, &[], Mode::Apply).expect("the fake cell answers at once")
}

/// Returns the cells that own the cores, by their ids; 0 if a core has no cell.
fn owners(cells: &Cells<FakeMachine>) -> Vec<u32> {
    let owner = |owner: &CoreOwner| match owner {
        CoreOwner::Cell(id) => id.0,
        _ => 0,
    };
    cells.machine().cores.iter().skip(1).map(|core| owner(&core.owner)).collect()
}

fn cores_of(cells: &mut Cells<FakeMachine>, name: &str) -> usize {
    let id = cells.find(name).unwrap().0;
    owners(cells).iter().filter(|owner| **owner == id).count()
}

/// Lets enough time pass for the supervisor to give up a core that neither leaves nor yields.
fn give_up(cells: &mut Cells<FakeMachine>) {
    advance(cells, u64::from(CORE_LIMIT_MS) + 1);
    (0..505).for_each(|_| advance(cells, 3));
}

#[test]
fn cores_are_plugged_and_unplugged_and_all_are_back_at_the_end() {
    let mut cells = machine(4);
    let before = resources(&cells);
    run(&mut cells, spec("kv"));
    let more = resize(&mut cells, "kv", Change::More(2)).unwrap();
    assert_eq!((more.before, more.after, more.cores.len()), (1, 3, 2));
    assert_eq!((cores_of(&mut cells, "kv"), info(&mut cells, "kv").cores.len()), (3, 3));
    let fewer = resize(&mut cells, "kv", Change::To(2)).unwrap();
    assert_eq!((fewer.before, fewer.after, fewer.cores.len()), (3, 2, 1));
    assert_eq!((cores_of(&mut cells, "kv"), info(&mut cells, "kv").core_count()), (2, 2));
    // The plugged core gets the vacant core slot.
    assert_eq!(resize(&mut cells, "kv", Change::More(1)).unwrap().after, 3);
    assert_eq!(info(&mut cells, "kv").cores.len(), 3);
    let moves = events(&cells).into_iter().filter_map(|event| match event {
        JournalEvent::CoreCame { cores, .. } => Some(("came", cores)),
        JournalEvent::CoreLeft { cores, .. } => Some(("left", cores)),
        _ => None,
    });
    assert_eq!(moves.map(|(way, _)| way).collect::<Vec<_>>(), ["came", "came", "left", "came"]);
    cells.stop("kv", 0).unwrap();
    assert_eq!(resources(&cells), before);
}

#[test]
fn a_dry_run_names_the_cores_and_moves_none() {
    let mut cells = machine(4);
    run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    let before = (owners(&cells), events(&cells).len());
    let more = ask(&mut cells, "kv", Change::More(1), &[], Mode::DryRun).unwrap().unwrap();
    assert_eq!((more.before, more.after, more.cores), (2, 3, alloc::vec![CoreId(3)]));
    let fewer = ask(&mut cells, "kv", Change::To(1), &[], Mode::DryRun).unwrap().unwrap();
    assert_eq!((fewer.before, fewer.after, fewer.cores), (2, 1, alloc::vec![CoreId(2)]));
    assert_eq!((owners(&cells), events(&cells).len()), before);
}

#[test]
fn impossible_numbers_of_cores_are_refused_and_change_nothing() {
    let mut cells = machine(3);
    let created = create(&mut cells, spec("new")).unwrap();
    assert!(matches!(
        ask(&mut cells, "new", Change::More(1), &[], Mode::Apply),
        Some(Err(ManagementError::WrongState { .. }))
    ));
    cells.destroy("new").unwrap();
    run(&mut cells, CellSpec { cores: 2, network: NetworkSpec::None, ..spec("kv") });
    let before = (owners(&cells), cells.machine().memory_free, events(&cells).len());
    let refused = |cells: &mut Cells<FakeMachine>, change, ids: &[u32]| {
        ask(cells, "kv", change, ids, Mode::Apply).unwrap().unwrap_err()
    };
    assert!(matches!(refused(&mut cells, Change::More(2), &[]), ManagementError::OutOfLimits(_)));
    assert!(matches!(refused(&mut cells, Change::To(0), &[]), ManagementError::OutOfLimits(_)));
    assert!(matches!(refused(&mut cells, Change::Less(3), &[]), ManagementError::OutOfLimits(_)));
    assert!(
        matches!(refused(&mut cells, Change::Less(1), &[1]), ManagementError::OutOfLimits(_)),
        "the first core stays"
    );
    assert!(
        matches!(refused(&mut cells, Change::Less(1), &[3]), ManagementError::OutOfLimits(_)),
        "not a core of the cell"
    );
    run(&mut cells, spec("other"));
    assert!(matches!(refused(&mut cells, Change::More(1), &[]), ManagementError::CoresExhausted { .. }));
    cells.stop("other", 0).unwrap();
    cells.destroy("other").unwrap();
    assert_eq!((owners(&cells), cells.machine().memory_free), (before.0, before.1));
    assert_ne!(cells.find("kv").unwrap(), created);
}

#[test]
fn no_core_is_plugged_without_memory_for_its_stacks() {
    let mut cells = machine(3);
    run(&mut cells, spec("kv"));
    let free = cells.machine().memory_free;
    run(&mut cells, CellSpec { memory: free, network: NetworkSpec::None, ..spec("large") });
    let before = owners(&cells);
    let answer = ask(&mut cells, "kv", Change::More(1), &[], Mode::Apply);
    assert!(matches!(answer, Some(Err(ManagementError::MemoryExhausted { .. }))), "{answer:?}");
    assert_eq!(owners(&cells), before);
}

#[test]
fn a_core_that_does_not_leave_in_time_stays_and_can_be_unplugged_later() {
    let mut cells = machine(3);
    let report = run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    let id = cells.find("kv").unwrap();
    (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (true, true);
    assert_eq!(ask(&mut cells, "kv", Change::Less(1), &[], Mode::Apply), None);
    let busy = ask(&mut cells, "kv", Change::Less(1), &[], Mode::Apply);
    assert!(matches!(busy, Some(Err(ManagementError::OutOfLimits(_)))), "one request at a time: {busy:?}");
    give_up(&mut cells);
    let forced = cells.fake().actions.iter().filter(|action| matches!(action, Action::Force(_))).count();
    assert_eq!(forced, 501, "the NMI is repeated, as there are moments without a yield");
    let (_, answer) = cells.take_cores_resized().pop().unwrap();
    assert!(matches!(answer, Err(ManagementError::CoreBusy { core: CoreId(2), cores: 2, .. })), "{answer:?}");
    assert_eq!(cells.fake().slots[&id].at(1).kind, OrderKind::Stay);
    assert_eq!(cores_of(&mut cells, "kv"), 2);
    let slots = cells.fake().slots[&id].clone();
    obeys(&report, &slots, 1);
    cells.on_notification();
    assert_eq!(cores_of(&mut cells, "kv"), 2);
    cells.fake().cells_are_deaf = false;
    assert_eq!(resize(&mut cells, "kv", Change::Less(1)).unwrap().after, 1);
}

#[test]
fn a_core_that_defies_an_nmi_gets_the_next_one_after_two_milliseconds() {
    let mut cells = machine(3);
    run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (true, true);
    ask(&mut cells, "kv", Change::Less(1), &[], Mode::Apply);
    advance(&mut cells, u64::from(CORE_LIMIT_MS) + 1);
    let forced = |cells: &mut Cells<FakeMachine>| {
        cells.fake().actions.iter().filter(|action| matches!(action, Action::Force(_))).count()
    };
    let first = forced(&mut cells);
    advance(&mut cells, 1);
    assert_eq!(forced(&mut cells), first);
    advance(&mut cells, 1);
    assert_eq!(forced(&mut cells), first + 1);
}

#[test]
fn a_core_that_leaves_after_the_deadline_is_reclaimed() {
    let mut cells = machine(3);
    let report = run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    let id = cells.find("kv").unwrap();
    (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (true, true);
    ask(&mut cells, "kv", Change::Less(1), &[], Mode::Apply);
    advance(&mut cells, u64::from(CORE_LIMIT_MS) + 1);
    let leave = cells.fake().slots[&id].at(1).left();
    give_up(&mut cells);
    assert!(cells.take_cores_resized().pop().unwrap().1.is_err());
    report.cores[1].order.store(leave.to_u32(), Ordering::Release);
    cells.on_notification();
    assert_eq!(cores_of(&mut cells, "kv"), 1, "the core halts for good, and is of no use to the cell");
}

#[test]
fn a_core_that_does_not_leave_is_forced_and_its_slot_stays_occupied_until_its_context_ends() {
    let mut cells = machine(2);
    let report = run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    let id = cells.find("kv").unwrap();
    cells.fake().cells_are_deaf = true;
    ask(&mut cells, "kv", Change::Less(1), &[], Mode::Apply);
    advance(&mut cells, u64::from(CORE_LIMIT_MS) + 1);
    let (_, answer) = cells.take_cores_resized().pop().expect("the fake core yields at once");
    assert_eq!(answer.map(|resized| (resized.before, resized.after)), Ok((2, 1)));
    assert_eq!(owners(&cells), [id.0, 0]);
    assert!(matches!(events(&cells).last(), Some(JournalEvent::CoreTaken { core: CoreId(2), cores: 1 })));
    let slots = cells.fake().slots[&id].clone();
    assert_eq!((slots.at(1).kind, slots.core(1)), (OrderKind::Yield, None));

    cells.fake().cells_are_deaf = false;
    let refused = ask(&mut cells, "kv", Change::More(1), &[], Mode::Apply);
    assert!(matches!(refused, Some(Err(ManagementError::OutOfLimits(_)))), "{refused:?}");
    assert_eq!(owners(&cells), [id.0, 0]);
    obeys(&report, &slots, 1);
    cells.on_notification();
    assert_eq!(slots.at(1).kind, OrderKind::Vacant);
    assert_eq!(resize(&mut cells, "kv", Change::More(1)).unwrap().after, 2);
}

#[test]
fn a_context_that_was_suspended_while_it_left_has_ended_when_it_acknowledges_that_order() {
    let mut cells = machine(2);
    let report = run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    let id = cells.find("kv").unwrap();
    cells.fake().cells_are_deaf = true;
    ask(&mut cells, "kv", Change::Less(1), &[], Mode::Apply);
    let slots = cells.fake().slots[&id].clone();
    let leave = slots.at(1);
    advance(&mut cells, u64::from(CORE_LIMIT_MS) + 1);
    assert_eq!((leave.kind, slots.at(1).kind), (OrderKind::Leave, OrderKind::Yield));
    report.cores[1].order.store(leave.to_u32(), Ordering::Release);
    cells.on_notification();
    assert_eq!(slots.at(1).kind, OrderKind::Vacant);
    cells.fake().cells_are_deaf = false;
    assert_eq!(resize(&mut cells, "kv", Change::More(1)).unwrap().after, 2);
}

#[test]
fn the_other_cores_rotate_until_the_suspended_context_ends() {
    let mut cells = machine(3);
    let report = run(&mut cells, CellSpec { cores: 3, ..spec("kv") });
    let id = cells.find("kv").unwrap();
    cells.fake().cells_are_deaf = true;
    ask(&mut cells, "kv", Change::Less(1), &[3], Mode::Apply);
    advance(&mut cells, u64::from(CORE_LIMIT_MS) + 1);
    let rotations = |cells: &mut Cells<FakeMachine>| {
        let rotated = |action: &&Action| **action == Action::Rotation(alloc::vec![CoreId(1), CoreId(2)]);
        cells.fake().actions.iter().filter(rotated).count()
    };
    (0..5).for_each(|_| advance(&mut cells, 11));
    assert_eq!((rotations(&mut cells), cells.fake().slots[&id].rotations()), (5, 5));
    let slots = cells.fake().slots[&id].clone();
    obeys(&report, &slots, 2);
    cells.on_notification();
    (0..5).for_each(|_| advance(&mut cells, 11));
    assert_eq!(rotations(&mut cells), 5);
}

#[test]
fn a_core_that_yields_after_an_order_to_stay_is_reclaimed_and_its_context_leaves() {
    let mut cells = machine(2);
    let report = run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    let id = cells.find("kv").unwrap();
    (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (true, true);
    ask(&mut cells, "kv", Change::Less(1), &[], Mode::Apply);
    advance(&mut cells, u64::from(CORE_LIMIT_MS) + 1);
    let order = cells.fake().slots[&id].at(1);
    give_up(&mut cells);
    assert!(cells.take_cores_resized().pop().unwrap().1.is_err());
    report.cores[1].yielded.store(order.to_u32(), Ordering::Release);
    cells.on_notification();
    assert_eq!(owners(&cells), [id.0, 0]);
    let slots = cells.fake().slots[&id].clone();
    assert_eq!(slots.at(1).kind, OrderKind::Yield);
    assert_ne!(slots.at(1), order, "an acknowledgement of the old order does not count for the new one");
    obeys(&report, &slots, 1);
    cells.on_notification();
    assert_eq!(slots.at(1).kind, OrderKind::Vacant);
}

#[test]
fn a_resize_is_answered_when_its_cell_ends_and_every_core_is_back() {
    let mut cells = machine(3);
    let report = run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    cells.fake().cells_are_deaf = true;
    ask(&mut cells, "kv", Change::Less(1), &[], Mode::Apply);
    says(&report, CellPhase::Exited);
    cells.on_notification();
    assert!(cells.take_cores_resized().pop().unwrap().1.is_err());
    assert_eq!(owners(&cells), [0, 0, 0]);
}

#[test]
fn a_core_that_does_not_park_is_lost_and_the_cells_memory_goes_to_quarantine() {
    let mut cells = machine(3);
    run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    cells.fake().lost.insert(CoreId(2));
    ask(&mut cells, "kv", Change::Less(1), &[], Mode::Apply);
    assert_eq!(cells.machine().cores[2].owner, CoreOwner::Failed);
    cells.stop("kv", 0).unwrap();
    assert_eq!(cells.machine().memory_quarantined, ByteSize(4 * MIB + IMAGE));
}

#[test]
fn a_cell_that_has_lost_a_core_continues_and_keeps_its_memory() {
    let mut cells = machine(3);
    let report = run(&mut cells, CellSpec { cores: 3, memory: ByteSize(8 * MIB), ..spec("kv") });
    let less = |cells: &mut Cells<FakeMachine>| {
        cells.resize_memory("kv", Change::Less(ByteSize(2 * MIB)), Mode::Apply)
    };
    let Ok(Resize::Pending(ticket)) = less(&mut cells) else { panic!("it is asked") };
    cells.fake().lost.insert(CoreId(2));
    ask(&mut cells, "kv", Change::Less(1), &[2], Mode::Apply);
    let id = cells.find("kv").unwrap();
    let (number, _) = cells.fake().unplug_requests[&id].asked();
    let free = cells.machine().memory_free;
    report.offer.make(number, &[PhysRange::new(PhysAddr(20 * MIB), 2 * MIB)], 0, Shortfall::None);
    cells.on_notification();
    let answers = cells.take_resized();
    assert!(
        matches!(&answers[..], [(of, Ok(resized))] if *of == ticket && resized.kept == Some(ReclaimShortfall::CoreAtLarge)),
        "{answers:?}"
    );
    report.offer.acknowledge(number);
    assert_eq!(less(&mut cells), Err(ManagementError::CoreAtLarge("kv".into())));
    assert_eq!(cells.machine().memory_free, free, "the lost core may still write there");
    assert_eq!(info(&mut cells, "kv").state, CellState::Running);
}

/// Makes the cell's cores carry out their last orders, and ends the suspended contexts.
fn finish_all(cells: &mut Cells<FakeMachine>, name: &str) {
    let id = cells.find(name).unwrap();
    let (report, slots) = cells.fake().report_and_slots(id);
    (0..6).for_each(|slot| obeys(&report, &slots, slot));
    cells.on_notification();
}

proptest! {
    #[test]
    fn every_core_has_exactly_one_owner_for_all_requests(
        steps in proptest::collection::vec((0usize..4, 0u32..9, 0u32..6, 0u32..4), 1..40)
    ) {
        const NAMES: [&str; 4] = ["a", "b", "c", "d"];
        let mut cells = machine(6);
        let before = resources(&cells);
        let mut counts = [0; 4];
        for (which, what, amount, temper) in steps {
            let name = NAMES[which];
            let (deaf, defiant) = (temper > 0, temper > 2);
            (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (deaf, defiant);
            let free = 6 - counts.iter().sum::<usize>();
            match what {
                0 if counts[which] == 0 => {
                    let spec = CellSpec { cores: amount, network: NetworkSpec::None, ..spec(name) };
                    let fits = amount > 0 && amount as usize <= free;
                    let made = create(&mut cells, spec).and_then(|_| cells.start(name));
                    prop_assert_eq!(made.is_ok(), fits);
                    counts[which] = if fits { amount as usize } else { 0 };
                }
                1 if counts[which] > 0 => {
                    cells.stop(name, 0).unwrap();
                    cells.destroy(name).unwrap();
                    counts[which] = 0;
                }
                _ if counts[which] > 0 => {
                    let change = match what % 3 {
                        0 => Change::To(amount),
                        1 => Change::More(amount),
                        _ => Change::Less(amount),
                    };
                    let was = counts[which];
                    let wanted = change.of(was as u64).filter(|count| (1..=6).contains(count)).map(|count| count as usize);
                    let can = wanted.filter(|wanted| *wanted <= was + free);
                    let mut answer = ask(&mut cells, name, change, &[], Mode::Apply);
                    if answer.is_none() {
                        // Cells that ignore orders keep their cores; plugged cores count as arrived.
                        give_up(&mut cells);
                        answer = cells.take_cores_resized().pop().map(|(_, answer)| answer);
                    }
                    match (can, answer.unwrap()) {
                        (Some(wanted), Ok(resized)) => {
                            prop_assert_eq!((resized.before as usize, resized.after as usize), (was, wanted));
                            counts[which] = wanted;
                            finish_all(&mut cells, name);
                        }
                        (Some(wanted), Err(ManagementError::CoreBusy { .. })) => {
                            prop_assert!(defiant && wanted < was);
                            // The core carries out the order to stay.
                            finish_all(&mut cells, name);
                        }
                        (Some(_), Err(error)) => prop_assert!(false, "{error}"),
                        (None, answer) => prop_assert!(answer.is_err()),
                    }
                }
                _ => {}
            }
            for (name, count) in NAMES.into_iter().zip(counts) {
                match cells.find(name) {
                    Ok(_) => prop_assert_eq!(cores_of(&mut cells, name), count),
                    Err(_) => prop_assert_eq!(count, 0),
                }
            }
            prop_assert_eq!(owners(&cells).iter().filter(|owner| **owner == 0).count(), 6 - counts.iter().sum::<usize>());
        }
        for (name, count) in NAMES.into_iter().zip(counts) {
            if count > 0 {
                cells.stop(name, 0).unwrap();
                cells.destroy(name).unwrap();
            }
        }
        prop_assert_eq!(resources(&cells), before);
    }
}
