//! A supervisor fails before any one of its writes to state that survives a restart, during any operation, and the next
//! one before any one of its first writes. The one after those finds each resource with one owner, and ends with the
//! expected state.

// Prints the writes at which a test fails.
extern crate std;

use super::*;
use crate::fake::{every_chunk_has_one_owner, go_wrong, machine_of_memory};
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::management::{CORE_LIMIT_MS, LendingSpec, RestartPolicy};
use isola_abi::unplug::Shortfall;

const CORES: u32 = 5;

/// The memory in MiB: enough for the cells, and little, as each machine scrubs all of it in steps of 4 KiB.
const MEMORY_MIB: u64 = 16;

const LEASE_MS: u32 = 100;

/// An operation, and a check of the final state that holds for every write at which the supervisor failed.
struct Case {
    what: &'static str,
    prepare: fn() -> Cells<FakeMachine>,
    act: fn(&mut Cells<FakeMachine>),
    judge: fn(&mut Cells<FakeMachine>),
}

/// Makes the supervisor fail before each write of the operation, and the next one before each of its first writes.
fn sweep(cases: &[Case]) {
    for Case { what, prepare, act, judge } in cases {
        let mut deaths = 0;
        'writes: for write in 0.. {
            for next in 0.. {
                let mut cells = prepare();
                cells.fake().death.is_at(write);
                act(&mut cells);
                if !cells.fake().death.has_come() {
                    break 'writes;
                }
                deaths += 1;
                cells.fake().death.comes_again_at(next);
                let mut cells = go_wrong(cells, CORES, 1, |_| {});
                settle(&mut cells);
                let has_come_again = cells.fake().death.has_come();
                if has_come_again {
                    cells = go_wrong(cells, CORES, 2, |_| {});
                    settle(&mut cells);
                } else {
                    cells.fake().death.is_called_off();
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

/// Completes all work in progress.
fn settle(cells: &mut Cells<FakeMachine>) {
    for _ in 0..40 {
        while cells.work() == Scrub::Unfinished {}
        hear(cells);
        cells.on_notification();
        advance(cells, 50);
    }
}

/// Makes all cores carry out their orders.
fn hear(cells: &mut Cells<FakeMachine>) {
    let mut fake = cells.fake();
    fake.cells_are_deaf = false;
    for (id, report) in &fake.reports {
        (0..8).for_each(|slot| obeys(report, &fake.slots[id], slot));
        report.offer.acknowledge(fake.unplug_requests[id].settlement().number);
    }
}

fn deafen(cells: &mut Cells<FakeMachine>) {
    cells.fake().cells_are_deaf = true;
}

/// Checks that each core belongs to the cell that holds it or is free, and that each chunk of memory has one owner.
fn has_one_owner_each(cells: &Cells<FakeMachine>) {
    let machine = cells.machine();
    for cell in cells.table.iter() {
        let owned = machine.cores.iter().filter(|core| core.owner == CoreOwner::Cell(cell.id)).count();
        let held = cells.core.cell(cell.id).map_or(0, OwnedCell::core_count);
        assert_eq!(owned, held, "{}", cell.spec.name);
    }
    let in_transfer = machine.cores.iter().find(|core| matches!(core.owner, CoreOwner::InTransfer(_)));
    assert_eq!(in_transfer, None);
    every_chunk_has_one_owner(cells);
}

/// Ends all cells, and checks that all resources are free and no deadline remains.
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

/// Sets the phase that a cell reports.
fn says_of(cells: &mut Cells<FakeMachine>, name: &str, phase: CellPhase) {
    let id = cells.find(name).unwrap();
    says(&cells.fake().reports[&id].clone(), phase);
    cells.on_notification();
}

/// Lets `ms` milliseconds pass.
fn pass(cells: &mut Cells<FakeMachine>, ms: u64) {
    while cells.work() == Scrub::Unfinished {}
    advance(cells, ms);
}

fn with_an_image() -> Cells<FakeMachine> {
    let mut cells = machine_of_memory(CORES, MEMORY_MIB);
    send(&mut cells, &image());
    cells
}

fn with_a_cell(restart: RestartPolicy) -> Cells<FakeMachine> {
    let mut cells = machine_of_memory(CORES, MEMORY_MIB);
    run(&mut cells, CellSpec { cores: 2, restart, memory_max: Some(ByteSize(12 * MIB)), ..spec("kv") });
    cells
}

#[test]
fn a_cell_starts_and_ends_correctly_for_every_write_at_which_the_supervisor_fails() {
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
fn resizes_are_correct_for_every_write_at_which_the_supervisor_fails() {
    let all_can_come = |cells: &mut Cells<FakeMachine>| {
        for count in [1, CORES, 1] {
            resize(cells, "kv", count);
            hear(cells);
            cells.on_notification();
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
                cells.on_notification();
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
            what: "a core that was ordered to stay yields",
            prepare: || {
                let mut cells = with_a_cell(RestartPolicy::No);
                deafen(&mut cells);
                cells.fake().cells_defy_force = true;
                resize(&mut cells, "kv", 1);
                (0..505).for_each(|_| advance(&mut cells, 11));
                cells.fake().cells_defy_force = false;
                cells
            },
            act: |cells| {
                let id = cells.find("kv").unwrap();
                let (report, slots) = cells.fake().report_and_slots(id);
                assert_eq!(slots.at(1).kind, OrderKind::Stay);
                let before = Order { kind: OrderKind::Yield, number: slots.at(1).number - 1 };
                report.cores[1].yielded.store(before.to_u32(), Ordering::Release);
                cells.on_notification();
            },
            judge: all_can_come,
        },
        Case {
            what: "a request is granted",
            prepare: || with_a_cell(RestartPolicy::No),
            act: |cells| {
                while cells.work() == Scrub::Unfinished {}
                let id = cells.find("kv").unwrap();
                cells.fake().reports[&id].memory_request.make(2 * MIB, 2 * MIB, isola_abi::id::NodeId(0));
                cells.on_notification();
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
                let fake = cells.fake();
                let (report, unplug_request, grown) =
                    (fake.reports[&id].clone(), fake.unplug_requests[&id].clone(), fake.grown[&id].clone());
                drop(fake);
                let blocks: Vec<_> = grown.iter().map(|(chunk, _)| chunk).take(3).collect();
                if unplug_request.asked().0 > 0 {
                    report.offer.make(unplug_request.asked().0, &blocks, 0, Shortfall::None);
                }
                cells.on_notification();
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
        lending: LendingSpec { priority, lends, borrow_above_us: 100, memory_low: None },
        network: NetworkSpec::None,
        restart: RestartPolicy::Always,
        ..spec(name)
    }
}

/// Returns a machine with `service`, of high priority with one core, and `batch`, which has all others and lends two.
fn lender_and_borrower() -> Cells<FakeMachine> {
    let mut cells = machine_of_memory(CORES, MEMORY_MIB);
    run(&mut cells, party("service", 1, 9, 0));
    run(&mut cells, party("batch", CORES - 1, 1, 2));
    cells
}

/// Returns a machine on which the service has borrowed a core of the batch cell.
fn with_a_loan() -> Cells<FakeMachine> {
    let mut cells = lender_and_borrower();
    cells.borrow("service", LEASE_MS).unwrap();
    assert_eq!(cores(&mut cells, "service"), 2);
    cells
}

/// Checks that each cell has its own cores, and no others.
fn all_is_back(cells: &mut Cells<FakeMachine>) {
    assert_eq!((cores(cells, "service"), cores(cells, "batch")), (1, CORES as usize - 1));
    assert_eq!(info(cells, "service").loans, []);
}

/// Makes all cores carry out their orders; an unrelated request notices that.
fn between(cells: &mut Cells<FakeMachine>) {
    hear(cells);
    for name in ["batch", "service"] {
        let _ = cells.inspect(name);
    }
}

#[test]
fn lent_cores_return_for_every_write_at_which_the_supervisor_fails() {
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
                cells.on_notification();
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
                cells.on_notification();
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
            what: "the return waits for another core of the lender",
            prepare: with_a_loan,
            act: |cells| {
                deafen(cells);
                let _ = cells.borrow("service", LEASE_MS);
                let _ = cells.give_back("service");
                hear(cells);
                cells.on_notification();
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
            what: "borrowed from the free cores",
            prepare: || {
                let mut cells = machine_of_memory(CORES, MEMORY_MIB);
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
