//! The model: an account of ownership, updated with each request and response, and compared with the state of machine
//! and cells.

use isola_abi::id::CoreId;
use isola_abi::management::{
    CellInfo, CellSpec, CellState, Change, CoreOwner, LendingSpec, MachineInfo, MemoryResized, NetworkSpec,
    Text,
};
use isola_abi::size::ByteSize;
use std::collections::{BTreeMap, BTreeSet};

/// The unit of memory allocation to cells, in bytes.
const CHUNK: u64 = 2 << 20;

/// The state of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    Created,
    Running,
    Ended,
}

/// The owner of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Free,
    Of(&'static str),
}

/// A borrowed core.
#[derive(Clone, Copy, Debug)]
pub struct Loan {
    pub core: CoreId,
    /// `None` if the core was free, or if the lender has ended.
    pub lender: Option<&'static str>,
    pub borrower: &'static str,
}

/// A cell.
#[derive(Clone, Debug)]
struct Cell {
    run: RunState,
    memory: u64,
    /// Cores and memory in bytes at its creation.
    first: (u32, u64),
    has_network: bool,
    lending: LendingSpec,
    /// Whether cores were added since the last comparison: their stacks may have added memory.
    got_cores: bool,
}

/// The model.
#[derive(Debug)]
pub struct Model {
    cells: BTreeMap<&'static str, Cell>,
    cores: BTreeMap<CoreId, Owner>,
    loans: Vec<Loan>,
    memory_free: u64,
    devices_free: u32,
    /// The memory of the one image while it is stored.
    image: u64,
    is_unsettled: bool,
}

impl Model {
    /// Creates the model of a machine without cells. All cells will run the image `image`.
    pub fn new(machine: &MachineInfo, image: &[u8]) -> Self {
        let free = machine.cores.iter().filter(|core| core.owner == CoreOwner::Free);
        Self {
            cells: BTreeMap::new(),
            cores: free.map(|core| (core.id, Owner::Free)).collect(),
            loans: Vec::new(),
            memory_free: machine.memory_free.0,
            devices_free: machine.devices_free,
            image: (image.len() as u64).next_multiple_of(CHUNK),
            is_unsettled: false,
        }
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.cells.keys().copied().collect()
    }

    pub fn is(&self, name: &str, run: RunState) -> bool {
        self.cells.get(name).is_some_and(|cell| cell.run == run)
    }

    pub fn has_network(&self, name: &str) -> bool {
        self.cells.get(name).is_some_and(|cell| cell.has_network)
    }

    fn owned(&self, owner: Owner) -> BTreeSet<CoreId> {
        self.cores.iter().filter(|(_, has)| **has == owner).map(|(core, _)| *core).collect()
    }

    pub fn cores_of(&self, name: &'static str) -> usize {
        self.owned(Owner::Of(name)).len()
    }

    pub fn free_cores(&self) -> usize {
        self.owned(Owner::Free).len()
    }

    fn has_room(&self, (cores, memory): (u32, u64), has_network: bool) -> bool {
        cores as usize <= self.free_cores()
            && memory <= self.memory_free
            && (!has_network || self.devices_free > 0)
    }

    pub fn can_create(&self, name: &str, spec: &CellSpec) -> bool {
        let room = self.has_room((spec.cores, spec.memory.0), spec.network != NetworkSpec::None);
        !self.cells.contains_key(name) && spec.cores > 0 && spec.memory.0 > 0 && room
    }

    pub fn can_recreate(&self, name: &str) -> bool {
        let ended = self.cells.get(name).filter(|cell| cell.run == RunState::Ended);
        ended.is_some_and(|cell| self.has_room(cell.first, cell.has_network))
    }

    /// Records that a cell was created, or created again.
    pub fn create(&mut self, name: &'static str, info: &CellInfo) {
        for core in &info.cores {
            self.give(core.id, Owner::Free, Owner::Of(name));
        }
        let has_network = info.spec.network != NetworkSpec::None;
        let first = (info.spec.cores, info.memory.0);
        let (memory, lending) = (info.memory.0, info.spec.lending);
        let cell = Cell { run: RunState::Created, memory, first, has_network, lending, got_cores: false };
        assert_eq!(self.cores_of(name), info.spec.cores as usize);
        self.cells.insert(name, cell);
    }

    pub fn start(&mut self, name: &str) {
        if let Some(cell) = self.cells.get_mut(name).filter(|cell| cell.run == RunState::Created) {
            cell.run = RunState::Running;
        }
    }

    /// Records that a cell has ended, and frees its resources.
    pub fn end(&mut self, name: &'static str) {
        if let Some(cell) = self.cells.get_mut(name) {
            (cell.run, cell.memory) = (RunState::Ended, 0);
        }
        for core in self.owned(Owner::Of(name)) {
            self.cores.insert(core, Owner::Free);
        }
        self.loans.iter_mut().filter(|loan| loan.lender == Some(name)).for_each(|loan| loan.lender = None);
    }

    pub fn forget(&mut self, name: &str) {
        self.cells.remove(name);
    }

    /// Moves a core from one owner to the other.
    pub fn give(&mut self, core: CoreId, from: Owner, to: Owner) {
        assert_eq!(self.cores.insert(core, to), Some(from), "core {core} moves to {to:?}");
        if let Owner::Of(name) = to
            && let Some(cell) = self.cells.get_mut(name)
        {
            cell.got_cores = true;
        }
    }

    pub fn can_resize_cores(&self, name: &'static str, change: Change<u32>) -> bool {
        let now = self.cores_of(name);
        let after = change.of(now as u64).map(|after| after as usize);
        let most = self.cores.len();
        self.is(name, RunState::Running)
            && after.is_some_and(|after| (1..=most).contains(&after) && after <= now + self.free_cores())
    }

    /// Returns the state of a cell; `None` if there is no such cell.
    pub fn run(&self, name: &str) -> Option<RunState> {
        self.cells.get(name).map(|cell| cell.run)
    }

    /// Returns whether the change leads to a number of cores that no cell can have on this machine.
    pub fn cores_change_is_out_of_limits(&self, name: &'static str, change: Change<u32>) -> bool {
        let after = change.of(self.cores_of(name) as u64);
        after.is_none_or(|after| !(1..=self.cores.len() as u64).contains(&after))
    }

    /// Returns the memory of a cell after a change; `None` if there is no such cell or the result is negative.
    pub fn memory_after(&self, name: &str, change: Change<ByteSize>) -> Option<u64> {
        change.of(self.cells.get(name)?.memory)
    }

    /// Returns whether a change reduces the memory of a running cell.
    pub fn takes_memory(&self, name: &str, change: Change<ByteSize>) -> bool {
        let now = self.cells.get(name).filter(|cell| cell.run == RunState::Running).map(|cell| cell.memory);
        now.zip(self.memory_after(name, change)).is_some_and(|(now, after)| after < now)
    }

    pub fn can_resize_memory(&self, name: &str, change: Change<ByteSize>) -> bool {
        let Some(cell) = self.cells.get(name).filter(|cell| cell.run == RunState::Running) else {
            return false;
        };
        let wanted = change.of(cell.memory).filter(|wanted| *wanted > 0);
        let wanted = wanted.map(|wanted| wanted.next_multiple_of(CHUNK));
        wanted.is_some_and(|wanted| wanted <= cell.memory + self.memory_free)
    }

    pub fn resize_memory(&mut self, name: &str, resized: &MemoryResized) {
        let cell = self.cells.get_mut(name).expect("the model has the cell");
        let (had, has, wanted) = (resized.had.0, resized.has.0, resized.wanted.0);
        assert!(had == cell.memory && had.min(wanted) <= has && has <= had.max(wanted), "{resized:?}");
        assert!(has == wanted || resized.kept.is_some(), "{resized:?}");
        cell.memory = has;
    }

    pub fn can_borrow(&self, name: &'static str) -> bool {
        let Some(cell) = self.cells.get(name).filter(|cell| cell.run == RunState::Running) else {
            return false;
        };
        let lent = |name: &str| self.loans.iter().filter(|loan| loan.lender == Some(name)).count();
        let borrowed = |name: &str| self.loans.iter().filter(|loan| loan.borrower == name).count();
        let mut lends = self.cells.iter().filter(|(lender, other)| {
            other.run == RunState::Running
                && other.lending.priority < cell.lending.priority
                && lent(lender) < other.lending.lends as usize
                && self.cores_of(lender) > borrowed(lender) + 1
        });
        self.cores_of(name) < self.cores.len()
            && (lent(name) > 0 || self.free_cores() > 0 || lends.next().is_some())
    }

    pub fn has_borrowed(&self, name: &str) -> bool {
        self.is(name, RunState::Running) && self.loans.iter().any(|loan| loan.borrower == name)
    }

    /// Records a loan.
    pub fn lend(&mut self, loan: Loan) {
        let from = loan.lender.map_or(Owner::Free, Owner::Of);
        self.give(loan.core, from, Owner::Of(loan.borrower));
        self.loans.push(loan);
    }

    /// Ends a loan, and returns the core to its lender, if it has one.
    pub fn give_back(&mut self, core: CoreId, to: Option<&'static str>) {
        let index = self.loans.iter().position(|loan| loan.core == core).expect("the core is on loan");
        let Loan { lender, borrower, .. } = self.loans.remove(index);
        assert_eq!(to, lender, "core {core} returns");
        let now = self.cores[&core];
        match to {
            Some(to) => self.give(core, now, Owner::Of(to)),
            None if now == Owner::Of(borrower) => self.give(core, now, Owner::Free),
            None => {}
        }
    }

    /// Records that a core missed its time limit: its cell may still release it.
    pub fn unsettle(&mut self) {
        self.is_unsettled = true;
    }

    pub fn is_unsettled(&self) -> bool {
        self.is_unsettled
    }

    /// Compares machine and cells with the model. Adds the memory of new cores' stacks to the model.
    pub fn compare(&mut self, machine: &MachineInfo, infos: &[CellInfo]) -> Result<(), String> {
        let is_of = |loan: &&Loan| self.cores[&loan.core] == Owner::Of(loan.borrower);
        if let Some(loan) = self.loans.iter().find(|loan| !is_of(loan)) {
            return Err(format!("{loan:?}: the core is not the borrower's"));
        }
        let names: Vec<&str> = infos.iter().map(|info| info.spec.name.as_str()).collect();
        if names.iter().copied().collect::<BTreeSet<_>>() != self.cells.keys().copied().collect() {
            return Err(format!("the cells are {names:?}, expected {:?}", self.names()));
        }
        for core in machine.cores.iter().skip(1) {
            let owner = match core.owner {
                CoreOwner::Cell(id) => {
                    let name = infos.iter().find(|info| info.id == id).map(|info| info.spec.name.as_str());
                    self.cells.keys().find(|other| Some(**other) == name).map(|name| Owner::Of(name))
                }
                CoreOwner::Free => Some(Owner::Free),
                CoreOwner::Supervisor | CoreOwner::Failed | CoreOwner::InTransfer(_) => None,
            };
            if owner == Some(Owner::Free) && self.is_unsettled {
                self.cores.insert(core.id, Owner::Free);
            }
            if owner != self.cores.get(&core.id).copied() {
                return Err(format!(
                    "core {} is {:?}, expected {:?}",
                    core.id,
                    core.owner,
                    self.cores.get(&core.id)
                ));
            }
        }
        infos.iter().try_for_each(|info| self.compare_cell(info))?;
        self.compare_rest(machine)
    }

    fn compare_cell(&mut self, info: &CellInfo) -> Result<(), String> {
        let name = info.spec.name.as_str();
        let (&name, _) = self.cells.get_key_value(name).expect("the model has the cell");
        let (owned, has_ended) = (self.owned(Owner::Of(name)), info.state.has_ended());
        let loans = self.loans.iter().filter(|loan| loan.borrower == name).map(|loan| loan.core);
        let loans: BTreeSet<CoreId> = loans.collect();
        let cell = self.cells.get_mut(name).expect("the model has the cell");
        let run = match info.state {
            CellState::Created => RunState::Created,
            CellState::Running => RunState::Running,
            _ if has_ended => RunState::Ended,
            _ => return Err(format!("{name} is {}", info.state)),
        };
        if run != cell.run {
            return Err(format!("{name} is {run:?}, expected {:?}", cell.run));
        }
        let held = info.cores.iter().filter(|core| core.is_present && !has_ended).map(|core| core.id);
        let held: BTreeSet<CoreId> = held.collect();
        if held != owned {
            return Err(format!("{name} has the cores {held:?}, expected {owned:?}"));
        }
        let borrowed: BTreeSet<CoreId> = info.loans.iter().map(|loan| loan.core).collect();
        if borrowed != loans {
            return Err(format!("{name} has borrowed {borrowed:?}, expected {loans:?}"));
        }
        let more = info.memory.0.saturating_sub(cell.memory);
        let for_stacks = more <= CHUNK * owned.len() as u64 && more.is_multiple_of(CHUNK);
        if cell.got_cores && for_stacks {
            cell.memory += more;
        }
        if info.memory.0 != cell.memory {
            return Err(format!("{name} has {}, expected {}", info.memory, ByteSize(cell.memory)));
        }
        cell.got_cores = false;
        // The text of a cell with a shared image is counted apart from its memory; a cell with a private copy shares
        // none.
        let is_shared = info.spec.text == Text::Shared;
        if (info.text.0 > 0) != is_shared {
            return Err(format!("{name} shares {} of its image", info.text));
        }
        Ok(())
    }

    /// Compares the free resources with the model.
    fn compare_rest(&mut self, machine: &MachineInfo) -> Result<(), String> {
        let live = || self.cells.values().filter(|cell| cell.run != RunState::Ended);
        // All live cells share one copy of the image. Without live cells the image counts as free memory, or was
        // evicted.
        let image = if live().next().is_some() { self.image } else { 0 };
        if machine.memory_images.0 != self.image && (image > 0 || machine.memory_images.0 > 0) {
            return Err(format!("images take {}, expected {}", machine.memory_images, ByteSize(self.image)));
        }
        let memory: u64 = live().map(|cell| cell.memory).sum();
        let devices = live().filter(|cell| cell.has_network).count() as u32;
        if machine.memory_free.0 + memory + image != machine.memory_total.0 {
            return Err(format!("cells have {}, of {machine:?}", ByteSize(memory)));
        }
        if machine.devices_free + devices != machine.devices_total {
            return Err(format!("cells have {devices} devices, of {machine:?}"));
        }
        (self.memory_free, self.devices_free) = (machine.memory_free.0, machine.devices_free);
        Ok(())
    }
}
