//! The life cycle of cells, on a machine that fails on demand.

use super::*;
use crate::fake::{Action, FakeMachine, MIB, crashes, digest, image, machine, obeys, says, signs, spec};
use alloc::rc::Rc;
use core::sync::atomic::Ordering;
use isola_abi::frame::MAX_PART_BYTES;
use isola_abi::id::CoreId;
use isola_abi::integrity::ImageDigest;
use isola_abi::management::{
    CellInfo, CellSpec, CellState, Change, CoreOwner, ImageFault, MachineInfo, MemoryResized, Mode,
    NetworkSpec,
};
use isola_abi::report::{CellPhase, CorePhase, CrashKind, Report};
use isola_abi::size::ByteSize;
use isola_supervisor_core::hardware::BuildError;

/// The memory of a used image, in bytes.
const IMAGE: u64 = 2 * MIB;

/// Uploads an image.
fn send(cells: &mut Cells<FakeMachine>, bytes: &[u8]) -> ImageDigest {
    cells.begin_image(bytes.len() as u64).unwrap();
    for (number, chunk) in bytes.chunks(MAX_PART_BYTES).enumerate() {
        cells.append_image((number * MAX_PART_BYTES) as u64, chunk).unwrap();
        while cells.measure() {}
    }
    digest(bytes)
}

fn create(cells: &mut Cells<FakeMachine>, spec: CellSpec) -> Result<CellId, ManagementError> {
    if cells.images().iter().all(|kept| kept.digest != spec.image) {
        send(cells, &image());
    }
    cells.create_waiting(spec)
}

impl<H: Hardware> Cells<H> {
    /// Returns the parts that survive a failure of the supervisor: the machine, and the memory of the image store.
    pub(crate) fn into_parts(self) -> (H, Vec<isola_supervisor_core::hardware::SharedOf<H>>) {
        let Self { core, images, .. } = self;
        (core.into_hardware(), images.into_memory())
    }

    /// Returns the core and the image store, for a check of all owners.
    pub(crate) fn owners(&self) -> (&TrustedCore<H>, &Images<H>) {
        (&self.core, &self.images)
    }
}

impl Cells<FakeMachine> {
    /// Creates a cell, and does the work for which the request waits.
    fn create_waiting(&mut self, spec: CellSpec) -> Result<CellId, ManagementError> {
        let created = self.create(spec)?;
        self.wait_for(created)
    }

    fn recreate_waiting(&mut self, name: &str) -> Result<CellId, ManagementError> {
        let created = self.recreate(name)?;
        self.wait_for(created)
    }

    fn wait_for(&mut self, created: Created) -> Result<CellId, ManagementError> {
        let ticket = match created {
            Created::Done(id) => return Ok(id),
            Created::Pending(ticket) => ticket,
        };
        loop {
            assert_eq!(self.work(), Scrub::Unfinished, "the request waits for work");
            let answer = self.take_created().into_iter().find(|(of, _)| *of == ticket);
            if let Some((_, result)) = answer {
                return result;
            }
        }
    }

    fn resize_waiting(
        &mut self,
        name: &str,
        change: Change<ByteSize>,
    ) -> Result<MemoryResized, ManagementError> {
        match self.resize_memory(name, change, Mode::Apply)? {
            Resize::Done(resized) => Ok(resized),
            Resize::Pending(ticket) => loop {
                assert_eq!(self.work(), Scrub::Unfinished, "the request waits for work");
                if let Some((_, result)) = self.take_resized().into_iter().find(|(of, _)| *of == ticket) {
                    return result;
                }
            },
        }
    }

    fn work_while_waited_for(&mut self) {
        while self.is_waited_for() {
            self.work();
        }
    }
}

/// Creates and starts a cell. Returns its report.
fn run(cells: &mut Cells<FakeMachine>, spec: CellSpec) -> Rc<Report> {
    let name = spec.name.clone();
    let id = create(cells, spec).unwrap();
    cells.start(&name).unwrap();
    cells.fake().reports[&id].clone()
}

fn info(cells: &mut Cells<FakeMachine>, name: &str) -> CellInfo {
    *cells.inspect(name).unwrap()
}

/// Returns all cells, after a check of their reports.
fn list(cells: &mut Cells<FakeMachine>, detail: Detail) -> Vec<CellInfo> {
    cells.on_notification();
    cells.list(detail).collect()
}

fn advance(cells: &mut Cells<FakeMachine>, ms: u64) {
    cells.pass_ns(ms * 1_000_000);
    cells.tick();
    cells.work_while_waited_for();
}

/// Returns the part of the machine's information that must be unchanged once all resources are back.
fn resources(cells: &Cells<FakeMachine>) -> MachineInfo {
    MachineInfo { uptime_ns: 0, memory_dirty: ByteSize(0), memory_images: ByteSize(0), ..cells.machine() }
}

fn events(cells: &Cells<FakeMachine>) -> Vec<JournalEvent> {
    cells.journal().since(0).map(|entry| entry.event.clone()).collect()
}

mod deaths;
mod disks;
mod ends;
mod growth;
mod images;
mod lending;
mod links;
mod many;
mod memory;
mod moves;
mod pending;
mod queries;
mod records;
mod recovery;
mod refusals;
mod restarts;
mod sampling;
mod watch;

#[test]
fn a_cell_is_created_runs_exits_and_is_destroyed() {
    let mut cells = machine(2);
    let before = resources(&cells);
    let report = run(&mut cells, spec("kv"));
    let running = info(&mut cells, "kv");
    assert_eq!(
        (running.state, running.phase, running.memory),
        (CellState::Running, CellPhase::Silent, ByteSize(4 * MIB))
    );
    assert_eq!(resources(&cells).cores[1].owner, CoreOwner::Cell(running.id));
    assert_eq!(resources(&cells).memory_free.0, before.memory_free.0 - 4 * MIB - IMAGE);
    assert_eq!(resources(&cells).devices_free, 1);

    says(&report, CellPhase::Running);
    cells.on_notification();
    assert!(info(&mut cells, "kv").durations.first_sign_ns.is_some());
    report.exit_code.store(3, Ordering::Relaxed);
    says(&report, CellPhase::Exited);
    cells.on_notification();
    let exited = info(&mut cells, "kv");
    assert_eq!((exited.state, exited.exit_code, exited.crash), (CellState::Exited, Some(3), None));
    assert!(exited.durations.reclaim_ns.is_some());
    assert_eq!(exited.memory, ByteSize(0));
    assert_eq!(resources(&cells), before, "all resources are back before the record is removed");
    cells.destroy("kv").unwrap();
    assert_eq!(resources(&cells), before);
    let expected = [
        JournalEvent::Boot,
        JournalEvent::Create,
        JournalEvent::Start,
        JournalEvent::Exit(3),
        JournalEvent::Destroy,
    ];
    assert_eq!(events(&cells), expected);
}

#[test]
fn the_end_reclaims_the_cores_and_then_resets_the_device() {
    let mut cells = machine(2);
    let report = run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    says(&report, CellPhase::Exited);
    cells.on_notification();
    let actions = cells.fake().actions.split_off(3);
    assert_eq!(actions, [Action::Reclaim(alloc::vec![CoreId(1), CoreId(2)]), Action::Reset]);
}

#[test]
fn hundreds_of_cells_leak_no_resources() {
    let mut cells = machine(1);
    let before = resources(&cells);
    for number in 0..300 {
        let report = run(&mut cells, spec("kv"));
        match number % 3 {
            0 => says(&report, CellPhase::Exited),
            1 => crashes(&report, CrashKind::Panic, "oh"),
            _ => drop(cells.stop("kv", 0)),
        }
        cells.on_notification();
        assert_eq!(resources(&cells), before, "cell {number} has ended");
        cells.destroy("kv").unwrap();
        assert_eq!(resources(&cells), before, "cell {number}");
    }
    assert!(create(&mut cells, spec("kv")).unwrap().0 > 300, "ids are not reused");
}

#[test]
fn a_cell_that_was_never_started_can_be_destroyed() {
    let mut cells = machine(2);
    let before = resources(&cells);
    create(&mut cells, spec("kv")).unwrap();
    cells.destroy("kv").unwrap();
    assert_eq!(resources(&cells), before);
}
