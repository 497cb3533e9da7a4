//! The model: the expected state of each cell, and of the machine's resources.

use isola_abi::id::CellId;
use isola_abi::management::{CellState, CoreOwner, MachineInfo};
use isola_tests::management::Client;
use isola_tests::supervised::free_cores;
use std::collections::BTreeMap;

/// The unit of memory allocation to cells, in bytes.
const CHUNK: u64 = 2 << 20;

/// The expected state of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedCell {
    pub id: CellId,
    pub state: CellState,
    pub exit_code: Option<i32>,
    /// Valid until the cell has ended; likewise `memory`, in bytes.
    pub cores: u32,
    pub memory: u64,
    pub has_device: bool,
}

/// The expected state of the machine.
#[derive(Debug)]
pub struct Model {
    pub cells: BTreeMap<String, ExpectedCell>,
    /// The number of supervisor restarts.
    pub restarts: u32,
    /// The machine without cells.
    empty: MachineInfo,
    newest: CellId,
}

impl ExpectedCell {
    fn holds(&self) -> bool {
        !self.state.has_ended()
    }
}

impl Model {
    pub fn new(empty: MachineInfo) -> Self {
        Self { cells: BTreeMap::new(), restarts: 0, empty, newest: CellId(0) }
    }

    /// Records that an ended cell was created again.
    pub fn recreate(&mut self, name: &str, cell: ExpectedCell) {
        let before = self.cells.insert(name.to_owned(), cell);
        let after = &self.cells[name];
        assert!(before.is_some_and(|before| before.id == after.id && !before.holds()), "{after:?}");
    }

    /// Records a new cell.
    pub fn create(&mut self, name: &str, cell: ExpectedCell) {
        assert!(cell.id > self.newest, "{name} has an id that was assigned before: {cell:?}");
        self.newest = cell.id;
        self.cells.insert(name.to_owned(), cell);
    }

    /// Records a restart of the supervisor.
    pub fn begin_anew(&mut self) {
        self.restarts += 1;
    }

    /// Returns the machine without cells.
    pub fn empty(&self) -> &MachineInfo {
        &self.empty
    }

    pub fn free_cores(&self) -> u32 {
        free_cores(&self.empty) as u32 - self.live_cells().map(|cell| cell.cores).sum::<u32>()
    }

    pub fn free_devices(&self) -> u32 {
        self.empty.devices_free - self.live_cells().filter(|cell| cell.has_device).count() as u32
    }

    fn live_cells(&self) -> impl Iterator<Item = &ExpectedCell> {
        self.cells.values().filter(|cell| cell.holds())
    }

    /// Compares the machine with the model.
    pub fn check(&self, client: &mut Client) {
        for (name, expected) in &self.cells {
            let info = client.inspect(name);
            let (cores, memory) = match expected.holds() {
                true => (expected.cores, expected.memory),
                false => (0, 0),
            };
            let found = (info.id, info.state, info.exit_code, info.core_count(), info.memory.0);
            let wanted = (expected.id, expected.state, expected.exit_code, cores, memory);
            assert_eq!(found, wanted, "{name}");
        }
        let machine = client.machine();
        assert_eq!(machine.restarts, self.restarts);
        for (name, expected) in self.cells.iter() {
            let owned =
                machine.cores.iter().filter(|core| core.owner == CoreOwner::Cell(expected.id)).count();
            let cores = if expected.holds() { expected.cores as usize } else { 0 };
            assert_eq!(owned, cores, "cores of {name}: {:?}", machine.cores);
        }
        assert_eq!(free_cores(&machine), self.free_cores() as usize, "{:?}", machine.cores);
        assert_eq!(machine.devices_free, self.free_devices());
        // Used images occupy the rest of the memory.
        let in_use: u64 = self.live_cells().map(|cell| cell.memory).sum();
        let rest = (machine.memory_total.0 - in_use).checked_sub(machine.memory_free.0);
        let is_images = |rest: u64| rest <= machine.memory_images.0 && rest.is_multiple_of(CHUNK);
        assert!(
            rest.is_some_and(is_images),
            "{in_use} bytes belong to cells, {rest:?} to images: {machine:?}"
        );
        assert_eq!(machine.memory_quarantined.0, 0);
        assert_eq!(machine.memory_total, self.empty.memory_total);
    }
}
