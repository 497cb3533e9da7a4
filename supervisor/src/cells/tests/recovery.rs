//! A supervisor fails, and the next one recovers the owner of every resource.

use super::images::other_image;
use super::*;
use crate::fake::{every_chunk_has_one_owner, go_wrong, obeys};
use alloc::collections::BTreeSet;
use alloc::vec;
use isola_abi::core_slots::OrderKind;
use isola_abi::id::NodeId;
use isola_abi::management::{CORE_LIMIT_MS, Change, Mode, RestartCause, RestartPolicy, Restarts, Text};
use isola_abi::unplug::Shortfall;
use proptest::prelude::*;

const CORES: u32 = 4;

#[derive(Clone, Debug)]
enum Step {
    Create {
        name: u8,
        cores: u32,
        mib: u64,
        most_mib: u64,
        network: bool,
    },
    Recreate(u8),
    Start(u8),
    Say(u8, CellPhase),
    Request(u8, u64),
    /// Requests a number of cores. The cell's cores carry out their orders at once, or only at `Obey` if they are
    /// `deaf`.
    Cores {
        name: u8,
        count: u32,
        deaf: bool,
    },
    Obey(u8),
    /// The deadlines of cores that should leave pass: the cores yield, or defy that as well.
    Expire {
        defiant: bool,
    },
    Memory(u8, u64),
    Stop(u8),
    Destroy(u8),
    Lose(u32),
    /// A cell of another image requests all memory.
    Rotation,
    GoWrong,
    /// The supervisor fails in the middle of the end of a cell.
    GoWrongAtEnd(u8),
}

fn any_step() -> impl Strategy<Value = Step> {
    let phases = [CellPhase::Running, CellPhase::Exited, CellPhase::Crashed];
    let create =
        (0u8..4, 1u32..4, 1u64..12, 0u64..12, any::<bool>()).prop_map(|(name, cores, mib, more, network)| {
            Step::Create { name, cores, mib, most_mib: mib + more, network }
        });
    prop_oneof![
        6 => create,
        2 => (0u8..4).prop_map(Step::Recreate),
        6 => (0u8..4).prop_map(Step::Start),
        4 => (0u8..4, 0usize..3).prop_map(move |(name, phase)| Step::Say(name, phases[phase])),
        4 => (0u8..4, 0u64..9).prop_map(|(name, mib)| Step::Request(name, mib)),
        6 => (0u8..4, 1u32..5, any::<bool>()).prop_map(|(name, count, deaf)| Step::Cores { name, count, deaf }),
        2 => (0u8..4).prop_map(Step::Obey),
        2 => any::<bool>().prop_map(|defiant| Step::Expire { defiant }),
        3 => (0u8..4, 1u64..14).prop_map(|(name, mib)| Step::Memory(name, mib)),
        2 => (0u8..4).prop_map(Step::Stop),
        2 => (0u8..4).prop_map(Step::Destroy),
        1 => Just(Step::Rotation),
        1 => (1..=CORES).prop_map(Step::Lose),
        4 => Just(Step::GoWrong),
        2 => (0u8..4).prop_map(Step::GoWrongAtEnd),
    ]
}

fn name(number: u8) -> String {
    alloc::format!("cell-{number}")
}

/// Returns the state that the next supervisor must recover: cells that have not ended, and the free resources.
fn known(cells: &mut Cells<FakeMachine>) -> (MachineInfo, Vec<CellInfo>) {
    cells.on_notification();
    let live = list(cells, Detail::Full).into_iter().filter(|cell| !cell.state.has_ended());
    // A stop request is lost, and must be repeated.
    let live = live.map(|cell| match cell.state {
        CellState::Stopping => CellInfo { state: CellState::Running, ..cell },
        _ => cell,
    });
    let live = live.collect();
    (MachineInfo { restarts: 0, ..resources(cells) }, live)
}

/// Returns the state of ended cells that the next supervisor must recover.
fn ended(cells: &mut Cells<FakeMachine>) -> Vec<(CellId, CellSpec, CellState, Option<i32>, Restarts)> {
    let ended = list(cells, Detail::Full).into_iter().filter(|cell| cell.state.has_ended());
    ended.map(|cell| (cell.id, cell.spec, cell.state, cell.exit_code, cell.restarts)).collect()
}

fn apply(cells: &mut Cells<FakeMachine>, step: &Step) {
    let report = |cells: &mut Cells<FakeMachine>, number: u8| {
        let id = cells.find(&name(number)).ok()?;
        cells.fake().reports.get(&id).cloned()
    };
    match *step {
        Step::Create { name: number, cores, mib, most_mib, network } => {
            let spec = CellSpec {
                cores,
                memory: ByteSize(mib * MIB),
                memory_max: Some(ByteSize(most_mib * MIB)),
                network: if network { NetworkSpec::Dhcp } else { NetworkSpec::None },
                // One cell shares no text, and one is of another image.
                text: if number == 3 { Text::Private } else { Text::Shared },
                image: if number == 2 { send(cells, &other_image(7, 1)) } else { digest(&image()) },
                ..spec(&name(number))
            };
            let _ = create(cells, spec);
        }
        Step::Recreate(number) => drop(cells.recreate_waiting(&name(number))),
        Step::Start(number) => drop(cells.start(&name(number))),
        Step::Say(number, phase) => {
            if let Some(report) = report(cells, number) {
                says(&report, phase);
                cells.on_notification();
            }
        }
        Step::Request(number, mib) => {
            if let Some(report) = report(cells, number) {
                report.memory_request.make(mib * MIB, mib * MIB, NodeId(0));
                cells.on_notification();
                while cells.work() == Scrub::Unfinished {}
            }
        }
        Step::Cores { name: number, count, deaf } => {
            cells.fake().cells_are_deaf = deaf;
            let wanted = CoresWanted { change: Change::To(count), ids: &[], limit_ms: CORE_LIMIT_MS };
            let _ = cells.resize_cores(&name(number), &wanted, Mode::Apply);
            cells.fake().cells_are_deaf = false;
        }
        Step::Expire { defiant } => {
            (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (true, defiant);
            advance(cells, u64::from(CORE_LIMIT_MS) + 1);
            (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (false, false);
        }
        Step::Obey(number) => {
            if let Some(report) = report(cells, number)
                && let Ok(id) = cells.find(&name(number))
            {
                let slots = cells.fake().slots[&id].clone();
                (0..CORES as usize).for_each(|slot| obeys(&report, &slots, slot));
                cells.on_notification();
            }
        }
        Step::Memory(number, mib) => {
            let to = Change::To(ByteSize(mib * MIB));
            let asked = cells.resize_memory(&name(number), to, Mode::Apply);
            if let (Ok(Resize::Pending(_)), Some(report), Ok(id)) =
                (asked, report(cells, number), cells.find(&name(number)))
            {
                let unplug_request = cells.fake().unplug_requests[&id].clone();
                let grown = cells.fake().grown[&id].clone();
                let blocks: Vec<_> = grown.iter().map(|(chunk, _)| chunk).take(3).collect();
                report.offer.make(unplug_request.asked().0, &blocks, 0, Shortfall::None);
                cells.on_notification();
                report.offer.acknowledge(unplug_request.settlement().number);
                cells.on_notification();
            }
        }
        Step::Stop(number) => drop(cells.stop(&name(number), 0)),
        Step::Destroy(number) => drop(cells.destroy(&name(number))),
        Step::Lose(core) => drop(cells.fake().lost.insert(CoreId(core))),
        Step::Rotation => {
            let image = send(cells, &other_image(9, 1));
            let (network, free) = (NetworkSpec::None, cells.machine().memory_free);
            let memory = ByteSize(free.0.saturating_sub(2 * MIB));
            if cells.create_waiting(CellSpec { image, network, memory, ..spec("rotate") }).is_ok() {
                cells.destroy("rotate").unwrap();
            }
        }
        Step::GoWrong | Step::GoWrongAtEnd(_) => {}
    }
}

#[test]
fn the_text_that_a_cell_maps_survives_the_loss_of_the_checkpoint() {
    for text in [Text::Shared, Text::Private] {
        let mut cells = machine(CORES);
        let report = run(&mut cells, CellSpec { text, ..spec("kv") });
        cells.fake().checkpoint_is_full = true;
        run(&mut cells, CellSpec { network: NetworkSpec::None, text, ..spec("other") });
        let mut cells = go_wrong(cells, CORES, 1, |_| {});
        let total = cells.machine().memory_total.0;
        assert_eq!(cells.images(), [], "the digest of the image is lost");
        let images = if text == Text::Shared { IMAGE } else { 0 };
        assert_eq!(cells.machine().memory_images, ByteSize(images));
        assert_eq!(cells.machine().memory_free, ByteSize(total - 8 * MIB - images));
        // Other cells need a new upload; the text that the recovered cells map remains until the last of them ends.
        run(&mut cells, CellSpec { network: NetworkSpec::None, text, ..spec("new") });
        assert_eq!(cells.machine().memory_images, ByteSize(images + IMAGE));
        says(&report, CellPhase::Exited);
        cells.on_notification();
        let mut cells = go_wrong(cells, CORES, 2, |_| {});
        assert_eq!(cells.machine().memory_free, ByteSize(total - 8 * MIB - 2 * images));
        cells.stop("other", 0).unwrap();
        assert_eq!(cells.machine().memory_free, ByteSize(total - 4 * MIB - images));
        cells.stop("new", 0).unwrap();
        assert_eq!(cells.machine().memory_free, ByteSize(total));
    }
}

#[test]
fn the_image_of_a_quarantined_cell_is_not_free_after_a_supervisor_restart() {
    let mut cells = machine(CORES);
    drop(run(&mut cells, spec("kv")));
    cells.fake().lost.insert(CoreId(1));
    cells.stop("kv", 0).unwrap();
    for number in 1..3 {
        assert_eq!(cells.machine().memory_quarantined, ByteSize(4 * MIB + IMAGE));
        cells = go_wrong(cells, CORES, number, |_| {});
    }
    let info = cells.machine();
    assert_eq!(info.memory_free.0 + info.memory_quarantined.0, info.memory_total.0);
}

#[test]
fn the_memory_and_image_of_an_ending_cell_are_withheld_until_its_core_is_back() {
    let mut cells = machine(CORES);
    let kv = run(&mut cells, spec("kv"));
    says(&kv, CellPhase::Running);
    let id = cells.find("kv").unwrap();
    (cells.fake().ending, cells.fake().lost) = (BTreeSet::from([id]), BTreeSet::from([CoreId(1)]));
    let total = cells.machine().memory_total.0;
    // Repeated restarts find the same state.
    for number in 1..4 {
        cells = go_wrong(cells, CORES, number, |_| {});
        every_chunk_has_one_owner(&cells);
        let info = cells.machine();
        assert_eq!((info.memory_quarantined, info.memory_images), (ByteSize(4 * MIB + IMAGE), ByteSize(0)));
        assert_eq!((cells.images(), info.memory_free), (Vec::new(), ByteSize(total - 4 * MIB - IMAGE)));
    }
    cells.fake().lost.clear();
    let cells = go_wrong(cells, CORES, 4, |_| {});
    assert_eq!(cells.machine().memory_free, ByteSize(total));
}

#[test]
fn the_image_of_an_ending_cell_stays_for_other_cells_and_then_out_of_use() {
    let mut cells = machine(CORES);
    run(&mut cells, spec("kv"));
    run(&mut cells, spec("other"));
    let id = cells.find("kv").unwrap();
    (cells.fake().ending, cells.fake().lost) = (BTreeSet::from([id]), BTreeSet::from([CoreId(1)]));
    let mut cells = go_wrong(cells, CORES, 1, |_| {});
    every_chunk_has_one_owner(&cells);
    assert_eq!((cells.images()[0].cells, cells.machine().memory_quarantined), (1, ByteSize(4 * MIB)));
    cells.stop("other", 0).unwrap();
    for number in 2..4 {
        every_chunk_has_one_owner(&cells);
        assert_eq!(cells.machine().memory_quarantined, ByteSize(4 * MIB + IMAGE));
        cells = go_wrong(cells, CORES, number, |_| {});
    }
}

#[test]
fn text_that_only_quarantined_cells_map_is_out_of_use() {
    let mut cells = machine(CORES);
    run(&mut cells, spec("kv"));
    let other = run(&mut cells, spec("other"));
    cells.fake().lost.insert(CoreId(1));
    cells.stop("kv", 0).unwrap();
    cells.fake().checkpoint_is_full = true;
    send(&mut cells, &other_image(1, 1));
    let mut cells = go_wrong(cells, CORES, 1, |_| {});
    assert_eq!((cells.images(), cells.machine().memory_quarantined), (Vec::new(), ByteSize(4 * MIB)));
    every_chunk_has_one_owner(&cells);
    says(&other, CellPhase::Exited);
    cells.on_notification();
    assert_eq!(cells.machine().memory_quarantined, ByteSize(4 * MIB + IMAGE));
    every_chunk_has_one_owner(&cells);
    let info = cells.machine();
    assert_eq!(info.memory_free.0 + info.memory_quarantined.0, info.memory_total.0);
}

#[test]
fn a_recovered_cell_has_all_its_resources_and_ends_normally() {
    let mut cells = machine(CORES);
    let empty = resources(&cells);
    let spec = CellSpec { memory_max: Some(ByteSize(16 * MIB)), ..spec("kv") };
    let report = run(&mut cells, CellSpec { cores: 2, ..spec });
    says(&report, CellPhase::Running);
    report.memory_request.make(2 * MIB, 2 * MIB, NodeId(0));
    cells.on_notification();
    while cells.work() == Scrub::Unfinished {}
    create(&mut cells, super::spec("waiting")).unwrap();
    let before = known(&mut cells);
    let mut cells = go_wrong(cells, CORES, 1, |_| {});
    assert_eq!(known(&mut cells), before);
    let restart = JournalEvent::Restart { cause: RestartCause::Panic, number: 1, found: 2, gone: 0 };
    assert_eq!(events(&cells).last(), Some(&restart));

    // The cell continued meanwhile: its report is read, and its request is granted.
    report.memory_request.make(4 * MIB, 4 * MIB, NodeId(0));
    while cells.work() == Scrub::Unfinished {}
    cells.on_notification();
    assert_eq!(info(&mut cells, "kv").memory, ByteSize(10 * MIB));
    cells.start("waiting").unwrap();
    cells.stop("waiting", 0).unwrap();
    says(&report, CellPhase::Exited);
    cells.on_notification();
    assert_eq!(info(&mut cells, "kv").state, CellState::Exited);
    cells.destroy("kv").unwrap();
    cells.destroy("waiting").unwrap();
    assert_eq!(MachineInfo { restarts: 0, ..resources(&cells) }, empty);
}

/// Returns a cell of three cores, the last of which was ordered to leave and had not when the supervisor failed.
fn with_a_core_on_its_way_out() -> (Cells<FakeMachine>, CellId, Rc<Report>) {
    let mut cells = machine(CORES);
    let report = run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    let id = cells.find("kv").unwrap();
    ask_for(&mut cells, Change::More(1));
    cells.fake().cells_are_deaf = true;
    ask_for(&mut cells, Change::Less(1));
    assert_eq!(cells.fake().slots[&id].at(2).kind, OrderKind::Leave);
    (go_wrong(cells, CORES, 1, |_| {}), id, report)
}

fn ask_for(cells: &mut Cells<FakeMachine>, change: Change<u32>) {
    let wanted = CoresWanted { change, ids: &[], limit_ms: CORE_LIMIT_MS };
    cells.resize_cores("kv", &wanted, Mode::Apply).unwrap();
}

#[test]
fn an_unplug_that_a_failed_supervisor_has_begun_completes() {
    let (mut cells, id, report) = with_a_core_on_its_way_out();
    assert_eq!(info(&mut cells, "kv").core_count(), 3);
    let slots = cells.fake().slots[&id].clone();
    obeys(&report, &slots, 2);
    cells.on_notification();
    assert_eq!(info(&mut cells, "kv").core_count(), 2);
    assert_eq!((slots.core(2), cells.machine().cores[3].owner), (None, CoreOwner::Free));
}

#[test]
fn a_core_that_defies_an_unplug_begun_by_a_failed_supervisor_stays() {
    let (mut cells, id, report) = with_a_core_on_its_way_out();
    let slots = cells.fake().slots[&id].clone();
    let leave = slots.at(2);
    (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (true, true);
    (0..505).for_each(|_| advance(&mut cells, 11));
    assert_eq!((slots.at(2).kind, info(&mut cells, "kv").core_count()), (OrderKind::Stay, 3));
    // Another restarted supervisor accepts the acknowledgement as well.
    let mut cells = go_wrong(cells, CORES, 2, |_| {});
    report.cores[2].order.store(leave.to_u32(), Ordering::Release);
    cells.on_notification();
    assert_eq!((slots.core(2), info(&mut cells, "kv").core_count()), (None, 2));
    cells.fake().cells_are_deaf = false;
    ask_for(&mut cells, Change::More(1));
    ask_for(&mut cells, Change::Less(2));
    assert_eq!(info(&mut cells, "kv").core_count(), 1);
}

/// Lets a second pass, so that due restarts are attempted.
fn wait_a_second(cells: &mut Cells<FakeMachine>) {
    while cells.work() == Scrub::Unfinished {}
    advance(cells, 1000);
}

#[test]
fn restart_policies_apply_across_supervisor_restarts() {
    let mut cells = machine(CORES);
    let always = |name| CellSpec { restart: RestartPolicy::Always, ..spec(name) };
    let waits = run(&mut cells, always("waits"));
    let runs = run(&mut cells, always("runs"));
    crashes(&waits, CrashKind::Panic, "oh");
    cells.on_notification();
    let waiting = info(&mut cells, "waits");
    let mut cells = go_wrong(cells, CORES, 1, |_| {});
    let found = info(&mut cells, "waits");
    assert_eq!((found.id, &found.crash, found.restarts), (waiting.id, &waiting.crash, waiting.restarts));
    says(&runs, CellPhase::Exited);
    cells.on_notification();
    wait_a_second(&mut cells);
    for name in ["waits", "runs"] {
        let found = info(&mut cells, name);
        assert_eq!((found.state, found.restarts.count), (CellState::Running, 1), "{name}");
    }
    assert_eq!(cells.images().len(), 1);
}

#[test]
fn an_image_that_was_overwritten_is_not_used() {
    let mut cells = machine(CORES);
    let report = run(&mut cells, CellSpec { restart: RestartPolicy::Always, ..spec("kv") });
    cells.fake().soils_images = true;
    let mut cells = go_wrong(cells, CORES, 1, |_| {});
    let empty = cells.machine().memory_total;
    says(&report, CellPhase::Exited);
    cells.on_notification();
    wait_a_second(&mut cells);
    let refused = JournalEvent::RestartRefused { error: ManagementError::NoImage, after_ns: None };
    assert_eq!(events(&cells).last(), Some(&refused));
    assert_eq!((info(&mut cells, "kv").state, cells.machine().memory_free), (CellState::Exited, empty));
    // A new upload of the image is used.
    send(&mut cells, &image());
    cells.recreate_waiting("kv").unwrap();
}

#[test]
fn cell_ids_and_journal_numbers_are_not_reused() {
    let mut cells = machine(CORES);
    let first = create(&mut cells, spec("a")).unwrap();
    let mut cells = go_wrong(cells, CORES, 1, |_| {});
    let second = create(&mut cells, spec("b")).unwrap();
    assert!(second > first);
    cells.destroy("b").unwrap();
    let mut cells = go_wrong(cells, CORES, 2, |_| {});
    assert!(create(&mut cells, spec("c")).unwrap() > second);
    let journal = cells.journal();
    let numbers: Vec<u64> = journal.since(journal.begin()).map(|entry| entry.number).collect();
    assert!(numbers.iter().all(|number| *number >= 2 << 16));
}

#[test]
fn cells_with_invalid_saved_state_are_dismantled() {
    let mut cells = machine(CORES);
    let empty = resources(&cells);
    drop(run(&mut cells, spec("kv")));
    create(&mut cells, spec("waiting")).unwrap();
    let cells = go_wrong(cells, CORES, 1, |saved_state| saved_state.truncate(5));
    assert_eq!(MachineInfo { restarts: 0, ..resources(&cells) }, empty);
    let restart = JournalEvent::Restart { cause: RestartCause::Panic, number: 1, found: 0, gone: 2 };
    assert_eq!(events(&cells).last(), Some(&restart));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After any sequence of steps, the next supervisor has the same inventory as the failed one.
    #[test]
    fn the_inventory_is_recovered_unchanged(steps in proptest::collection::vec(any_step(), 1..40)) {
        let (mut cells, mut number) = (machine(CORES), 0);
        for step in &steps {
            apply(&mut cells, step);
            every_chunk_has_one_owner(&cells);
            let (Step::GoWrong | Step::GoWrongAtEnd(_)) = step else { continue };
            number += 1;
            let (machine, mut live) = known(&mut cells);
            let before = ended(&mut cells);
            if let Step::GoWrongAtEnd(number) = step
                && let Some(place) = live.iter().position(|cell| {
                    cell.spec.name == name(*number) && cell.state == CellState::Running
                })
            {
                cells.fake().ending.insert(live.remove(place).id);
            }
            let all_go_on = cells.fake().ending.is_empty();
            // Pending requests are dropped.
            let memory = &cells.core.inventory().memory;
            let free = machine.memory_free.0 + memory.free() - memory.available();
            cells = go_wrong(cells, CORES, number, |_| {});
            every_chunk_has_one_owner(&cells);
            let (machine_after, live_after) = known(&mut cells);
            prop_assert_eq!(&live_after, &live);
            prop_assert_eq!(ended(&mut cells), before);
            if !all_go_on {
                continue;
            }
            prop_assert_eq!((machine_after.memory_total, machine_after.memory_free.0), (machine.memory_total, free));
            prop_assert_eq!(machine_after.memory_quarantined, machine.memory_quarantined);
            prop_assert_eq!(machine_after.devices_free, machine.devices_free);
            for (after, before) in machine_after.cores.iter().zip(&machine.cores) {
                // Only a free core can turn out to be lost.
                let is_lost = after.owner == CoreOwner::Failed && before.owner == CoreOwner::Free;
                prop_assert!(after == before || is_lost, "{:?} was {:?}", after, before);
            }
        }
        cells.fake().lost.clear();
        for cell in list(&mut cells, Detail::Brief) {
            let _ = cells.stop(&cell.spec.name, 0);
            cells.destroy(&cell.spec.name).unwrap();
        }
        let info = cells.machine();
        prop_assert!(info.cores.iter().all(|core| !matches!(core.owner, CoreOwner::Cell(_))));
        prop_assert_eq!(info.memory_free.0 + info.memory_quarantined.0, info.memory_total.0);
        every_chunk_has_one_owner(&cells);
    }

    /// With any bit flipped in saved states, the supervisor does not panic, and no resource is lost.
    #[test]
    fn corrupt_saved_states_are_safe(at in 0usize..200, flip in 1u8..) {
        let mut cells = machine(CORES);
        for number in 0..2 {
            drop(run(&mut cells, spec(&name(number))));
        }
        let mut cells = go_wrong(cells, CORES, 1, |saved_state| {
            let at = at % saved_state.len();
            saved_state[at] ^= flip;
        });
        for cell in list(&mut cells, Detail::Full) {
            cells.stop(&cell.spec.name, 0).unwrap();
            cells.destroy(&cell.spec.name).unwrap();
        }
        let info = cells.machine();
        prop_assert_eq!((info.memory_free, info.devices_free), (info.memory_total, 2));
        prop_assert!(info.cores.iter().skip(1).all(|core| core.owner == CoreOwner::Free));
    }
}

#[test]
fn the_journal_keeps_the_entries_of_previous_incarnations() {
    let journal = |cells: &Cells<FakeMachine>| cells.journal().since(0).cloned().collect::<Vec<_>>();
    let mut cells = machine(CORES);
    run(&mut cells, spec("kv"));
    let mut before = journal(&cells);
    assert!(before.len() > 2, "{before:?}");
    for number in 1..4 {
        let mut cells_after = go_wrong(cells, CORES, number, |_| {});
        let after = journal(&cells_after);
        assert_eq!(after[..before.len()], before);
        let [restart] = &after[before.len()..] else { panic!("{after:?}") };
        let cause = RestartCause::Panic;
        assert_eq!(restart.event, JournalEvent::Restart { cause, number, found: 1, gone: 0 });
        assert!(restart.number > before.last().unwrap().number && restart.unix_ns >= before[0].unix_ns);
        before = after;
        // Only a partly written entry is missing.
        let torn = postcard::to_allocvec(&before.remove(before.len() - 2)).unwrap();
        let mut fake = cells_after.fake();
        let saved = fake.journal.iter_mut().find(|entry| **entry == torn);
        saved.expect("the entry is saved").truncate(4);
        drop(fake);
        cells = cells_after;
    }
    // Entries that the failed supervisor could not save are missing.
    cells.fake().death.is_at(0);
    let _ = cells.stop("kv", 0);
    let after = journal(&go_wrong(cells, CORES, 4, |_| {}));
    assert!(after.iter().all(|entry| entry.event != JournalEvent::Kill), "{after:?}");
}
