//! A supervisor that goes wrong before any one of its writes to what outlives it, whatever it is about; and the next one
//! before any one of its own. The one after those has everything once, and in the end all is as it should be.

// Says what was done where a test fails.
extern crate std;

use super::*;
use crate::fake::{every_chunk_has_one_owner, go_wrong};
use isola_abi::management::{CORE_LIMIT_MS, LendingSpec, RestartPolicy};
use isola_abi::places::{Order, OrderKind};
use isola_abi::unplug::Rest;

const CORES: u32 = 5;

const LEASE_MS: u32 = 100;

/// Something that a supervisor is about, and what holds in the end, at whichever write it went wrong.
struct Case {
    what: &'static str,
    prepare: fn() -> Cells<FakeMachine>,
    act: fn(&mut Cells<FakeMachine>),
    judge: fn(&mut Cells<FakeMachine>),
}

/// Goes wrong before each write of what is done, and before each one of the first ones of the next supervisor.
fn sweep(cases: &[Case]) {
    for Case { what, prepare, act, judge } in cases {
        let mut deaths = 0;
        'writes: for write in 0.. {
            for next in 0.. {
                let mut cells = prepare();
                cells.effects().death.is_at(write);
                act(&mut cells);
                if !cells.effects().death.has_come() {
                    break 'writes;
                }
                deaths += 1;
                cells.effects().death.comes_again_at(next);
                let mut cells = go_wrong(cells, CORES, 1, |_| {});
                settle(&mut cells);
                let has_come_again = cells.effects().death.has_come();
                if has_come_again {
                    cells = go_wrong(cells, CORES, 2, |_| {});
                    settle(&mut cells);
                } else {
                    cells.effects().death.is_called_off();
                }
                std::eprintln!("{what}: before write {write}, then {next}");
                has_one_owner_each(&cells);
                judge(&mut cells);
                end_all(&mut cells);
                if !has_come_again {
                    break;
                }
            }
        }
        assert!(deaths > 1, "{what}");
    }
}

/// Lets everything come to an end that is under way.
fn settle(cells: &mut Cells<FakeMachine>) {
    for _ in 0..40 {
        while cells.work() == Scrub::Unfinished {}
        hear(cells);
        cells.doorbell();
        advance(cells, 50);
    }
}

/// All cores do what they were told.
fn hear(cells: &mut Cells<FakeMachine>) {
    let effects = cells.effects();
    effects.cells_are_deaf = false;
    for (id, report) in &effects.reports {
        (0..8).for_each(|place| obeys(report, &effects.places[id], place));
        report.offer.acknowledge(effects.unplug_requests[id].settlement().number);
    }
}

fn deafen(cells: &mut Cells<FakeMachine>) {
    cells.effects().cells_are_deaf = true;
}

/// Each core is whose cell holds it or free, and each chunk of memory is somebody's.
fn has_one_owner_each(cells: &Cells<FakeMachine>) {
    let machine = cells.machine();
    for (id, cell) in &cells.cells {
        let owned = machine.cores.iter().filter(|core| core.owner == CoreOwner::Cell(*id)).count();
        assert_eq!(owned, cell.core_count(), "{}", cell.spec.name);
    }
    let on_its_way = machine.cores.iter().find(|core| matches!(core.owner, CoreOwner::OnItsWay(_)));
    assert_eq!(on_its_way, None);
    every_chunk_has_one_owner(cells);
}

/// Ends all cells: nothing is left, and nothing is due.
fn end_all(cells: &mut Cells<FakeMachine>) {
    for cell in list(cells, Detail::Brief) {
        let _ = cells.stop(&cell.spec.name, 0);
        cells.destroy(&cell.spec.name).unwrap();
    }
    cells.tick();
    let machine = cells.machine();
    assert!(machine.cores.iter().skip(1).all(|core| core.owner == CoreOwner::Free), "{:?}", machine.cores);
    assert_eq!((machine.devices_free, cells.next_deadline_ns()), (machine.devices_total, None));
    assert_eq!(machine.memory_free.0, machine.memory_total.0);
}

fn state(cells: &mut Cells<FakeMachine>, name: &str) -> CellState {
    info(cells, name).state
}

fn cores(cells: &mut Cells<FakeMachine>, name: &str) -> usize {
    info(cells, name).core_count() as usize
}

fn resize(cells: &mut Cells<FakeMachine>, name: &str, count: u32) {
    let wanted = CoresWanted { change: Change::To(count), ids: &[], limit_ms: CORE_LIMIT_MS };
    let _ = cells.resize_cores(name, &wanted, Mode::Apply);
}

/// A cell says how far it is.
fn says_of(cells: &mut Cells<FakeMachine>, name: &str, phase: CellPhase) {
    let id = cells.find(name).unwrap();
    says(&cells.effects().reports[&id].clone(), phase);
    cells.doorbell();
}

/// Lets so much time pass.
fn pass(cells: &mut Cells<FakeMachine>, ms: u64) {
    while cells.work() == Scrub::Unfinished {}
    advance(cells, ms);
}

fn with_an_image() -> Cells<FakeMachine> {
    let mut cells = machine(CORES);
    send(&mut cells, &image());
    cells
}

fn with_a_cell(restart: RestartPolicy) -> Cells<FakeMachine> {
    let mut cells = machine(CORES);
    run(&mut cells, CellSpec { cores: 2, restart, memory_max: Some(ByteSize(12 * MIB)), ..spec("kv") });
    cells
}

#[test]
fn a_cell_begins_and_ends_whichever_write_is_the_last() {
    sweep(&[
        Case {
            what: "created and started",
            prepare: with_an_image,
            act: |cells| {
                let _ = cells.create_waiting(CellSpec { cores: 2, ..spec("kv") });
                let _ = cells.start("kv");
            },
            judge: |cells| {
                let _ = cells.recreate_waiting("kv");
            },
        },
        Case {
            what: "started again by its policy",
            prepare: || with_a_cell(RestartPolicy::Always),
            act: |cells| {
                says_of(cells, "kv", CellPhase::Exited);
                pass(cells, 200);
            },
            judge: |cells| {
                assert_eq!(state(cells, "kv"), CellState::Running);
                assert_eq!(cores(cells, "kv"), 2);
            },
        },
        Case {
            what: "stopped by force",
            prepare: || with_a_cell(RestartPolicy::Always),
            act: |cells| drop(cells.stop("kv", 0)),
            judge: |cells| {
                let state = state(cells, "kv");
                assert!([CellState::Running, CellState::Killed].contains(&state), "{state:?}");
            },
        },
        Case {
            what: "exited",
            prepare: || with_a_cell(RestartPolicy::No),
            act: |cells| says_of(cells, "kv", CellPhase::Exited),
            judge: |cells| assert_eq!(state(cells, "kv"), CellState::Exited),
        },
        Case {
            what: "destroyed",
            prepare: || {
                let mut cells = with_an_image();
                cells.create_waiting(spec("kv")).unwrap();
                cells
            },
            act: |cells| drop(cells.destroy("kv")),
            judge: |_| {},
        },
    ]);
}

#[test]
fn cores_and_memory_come_and_go_whichever_write_is_the_last() {
    let all_can_come = |cells: &mut Cells<FakeMachine>| {
        for count in [1, CORES, 1] {
            resize(cells, "kv", count);
            hear(cells);
            cells.doorbell();
            assert_eq!(cores(cells, "kv"), count as usize);
        }
    };
    sweep(&[
        Case {
            what: "cores come",
            prepare: || with_a_cell(RestartPolicy::No),
            act: |cells| resize(cells, "kv", 4),
            judge: all_can_come,
        },
        Case {
            what: "cores leave",
            prepare: || {
                let mut cells = with_a_cell(RestartPolicy::No);
                resize(&mut cells, "kv", 4);
                cells
            },
            act: |cells| {
                deafen(cells);
                resize(cells, "kv", 2);
                hear(cells);
                cells.doorbell();
            },
            judge: all_can_come,
        },
        Case {
            what: "cores are taken by force",
            prepare: || with_a_cell(RestartPolicy::No),
            act: |cells| {
                deafen(cells);
                resize(cells, "kv", 1);
                pass(cells, u64::from(CORE_LIMIT_MS) + 1);
                pass(cells, 11);
            },
            judge: all_can_come,
        },
        Case {
            what: "a core that was told to stay yields",
            prepare: || {
                let mut cells = with_a_cell(RestartPolicy::No);
                deafen(&mut cells);
                cells.effects().cells_defy_force = true;
                resize(&mut cells, "kv", 1);
                (0..505).for_each(|_| advance(&mut cells, 11));
                cells.effects().cells_defy_force = false;
                cells
            },
            act: |cells| {
                let id = cells.find("kv").unwrap();
                let effects = cells.effects();
                let (report, places) = (effects.reports[&id].clone(), effects.places[&id].clone());
                assert_eq!(places.at(1).kind, OrderKind::Stay);
                let before = Order { kind: OrderKind::Yield, number: places.at(1).number - 1 };
                report.cores[1].yielded.store(before.to_u32(), Ordering::Release);
                cells.doorbell();
            },
            judge: all_can_come,
        },
        Case {
            what: "a request is granted",
            prepare: || with_a_cell(RestartPolicy::No),
            act: |cells| {
                while cells.work() == Scrub::Unfinished {}
                let id = cells.find("kv").unwrap();
                cells.effects().reports[&id].memory_request.make(2 * MIB, 2 * MIB, isola_abi::id::NodeId(0));
                cells.doorbell();
            },
            judge: |cells| assert!(info(cells, "kv").memory.0 >= 6 * MIB),
        },
        Case {
            what: "memory comes and goes",
            prepare: || with_a_cell(RestartPolicy::No),
            act: |cells| {
                let to = |mib: u64| Change::To(ByteSize(mib * MIB));
                let _ = cells.resize_waiting("kv", to(8));
                let _ = cells.resize_memory("kv", to(4), Mode::Apply);
                let id = cells.find("kv").unwrap();
                let effects = cells.effects();
                let (report, unplug_request, grown) = (
                    effects.reports[&id].clone(),
                    effects.unplug_requests[&id].clone(),
                    effects.grown[&id].clone(),
                );
                let blocks: Vec<_> = grown.iter().map(|(chunk, _)| chunk).take(3).collect();
                if unplug_request.asked().0 > 0 {
                    report.offer.make(unplug_request.asked().0, &blocks, 0, Rest::None);
                }
                cells.doorbell();
            },
            judge: |cells| {
                let memory = info(cells, "kv").memory.0;
                assert!((4 * MIB..=8 * MIB).contains(&memory), "{memory}");
                let to = Change::To(ByteSize(10 * MIB));
                cells.resize_waiting("kv", to).unwrap();
            },
        },
    ]);
}

fn party(name: &str, cores: u32, priority: u8, lends: u32) -> CellSpec {
    CellSpec {
        cores,
        lending: LendingSpec { priority, lends, borrow_above_us: 100 },
        network: NetworkSpec::None,
        restart: RestartPolicy::Always,
        ..spec(name)
    }
}

/// `service`, important, of a core, and `batch`, which lends two of all the others.
fn lender_and_borrower() -> Cells<FakeMachine> {
    let mut cells = machine(CORES);
    run(&mut cells, party("service", 1, 9, 0));
    run(&mut cells, party("batch", CORES - 1, 1, 2));
    cells
}

/// The service has a core of the batch cell.
fn with_a_loan() -> Cells<FakeMachine> {
    let mut cells = lender_and_borrower();
    cells.borrow("service", LEASE_MS).unwrap();
    assert_eq!(cores(&mut cells, "service"), 2);
    cells
}

/// Each has what is its own.
fn all_is_back(cells: &mut Cells<FakeMachine>) {
    assert_eq!((cores(cells, "service"), cores(cells, "batch")), (1, CORES as usize - 1));
    assert_eq!(info(cells, "service").loans, []);
}

/// All cores do what they were told, and that is heard of in a request about something else.
fn between(cells: &mut Cells<FakeMachine>) {
    hear(cells);
    for name in ["batch", "service"] {
        let _ = cells.inspect(name);
    }
}

#[test]
fn what_is_lent_goes_back_whichever_write_is_the_last() {
    sweep(&[
        Case {
            what: "borrowed",
            prepare: lender_and_borrower,
            act: |cells| drop(cells.borrow("service", LEASE_MS)),
            judge: all_is_back,
        },
        Case {
            what: "borrowed step by step",
            prepare: lender_and_borrower,
            act: |cells| {
                deafen(cells);
                let _ = cells.borrow("service", LEASE_MS);
                between(cells);
                cells.doorbell();
            },
            judge: all_is_back,
        },
        Case {
            what: "borrowed by force",
            prepare: lender_and_borrower,
            act: |cells| {
                deafen(cells);
                let _ = cells.borrow("service", LEASE_MS);
                pass(cells, u64::from(CORE_LIMIT_MS) + 1);
                pass(cells, 11);
            },
            judge: all_is_back,
        },
        Case {
            what: "given back",
            prepare: with_a_loan,
            act: |cells| {
                deafen(cells);
                let _ = cells.give_back("service");
                between(cells);
                cells.doorbell();
            },
            judge: all_is_back,
        },
        Case {
            what: "the lease is over",
            prepare: with_a_loan,
            act: |cells| pass(cells, u64::from(LEASE_MS)),
            judge: all_is_back,
        },
        Case {
            what: "recalled",
            prepare: with_a_loan,
            act: |cells| drop(cells.borrow("batch", LEASE_MS)),
            judge: all_is_back,
        },
        Case {
            what: "it waits for another core of its lender",
            prepare: with_a_loan,
            act: |cells| {
                deafen(cells);
                let _ = cells.borrow("service", LEASE_MS);
                let _ = cells.give_back("service");
                hear(cells);
                cells.doorbell();
                cells.tick();
            },
            judge: all_is_back,
        },
        Case {
            what: "the borrower ends",
            prepare: with_a_loan,
            act: |cells| {
                says_of(cells, "service", CellPhase::Exited);
                pass(cells, 200);
            },
            judge: all_is_back,
        },
        Case {
            what: "the lender ends",
            prepare: with_a_loan,
            act: |cells| {
                says_of(cells, "batch", CellPhase::Exited);
                pass(cells, 200);
            },
            judge: all_is_back,
        },
        Case {
            what: "the borrower ends before the core is there",
            prepare: lender_and_borrower,
            act: |cells| {
                deafen(cells);
                let _ = cells.borrow("service", LEASE_MS);
                between(cells);
                says_of(cells, "service", CellPhase::Exited);
                pass(cells, 200);
            },
            judge: all_is_back,
        },
        Case {
            what: "a core that nobody had",
            prepare: || {
                let mut cells = machine(CORES);
                run(&mut cells, party("service", 1, 9, 0));
                run(&mut cells, party("batch", CORES - 2, 1, 0));
                cells
            },
            act: |cells| {
                let _ = cells.borrow("service", LEASE_MS);
                let _ = cells.give_back("service");
            },
            judge: |cells| {
                assert_eq!((cores(cells, "service"), cores(cells, "batch")), (1, CORES as usize - 2))
            },
        },
    ]);
}
