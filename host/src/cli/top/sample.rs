//! Samples: the running cells, and their answers to the queries that a view needs.

use super::load::LoadDivision;
use crate::cellctl::look_up;
use crate::cli::failure::REFUSED;
use crate::cli::{Failure, show};
use crate::client::{Client, ClientError};
use crate::machine::LockedMachine;
use crate::machine::state::{MachineDir, StateRoot};
use crate::output::view::is_running;
use crate::query::{Extent, QueryAnswer, facts_of_many, unless_refused};
use isola_abi::id::CellId;
use isola_abi::management::{CellInfo, CoreOwner};
use isola_abi::query::Query;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long cells may take to answer a query. Other commands wait meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The time after which a cell that did not answer is queried again.
const SILENCE: Duration = Duration::from_secs(10);

/// The maximum number of activities of an answer.
const MAX_ACTIVITIES: u32 = 200;

/// What a sample must contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SampleSpec {
    /// The view that it is for.
    pub by: LoadDivision,
    /// The only cell to query; all if `None`.
    pub cell: Option<String>,
}

/// A sample of the running cells.
#[derive(Debug)]
pub(super) struct Sample {
    /// The time at which the supervisor had answered.
    pub at: Instant,
    /// The cycles per second.
    pub tsc_hz: u64,
    /// The cells.
    pub cells: BTreeMap<CellId, CellSample>,
}

/// A sample of a cell.
#[derive(Debug)]
pub(super) struct CellSample {
    /// The cell's report.
    pub info: CellInfo,
    /// The answer to the query of the view by activity.
    pub activities: Option<QueryAnswer>,
    /// The answer to the query of the view by resource.
    pub grid: Option<QueryAnswer>,
    /// Whether the cell was queried, now or shortly before, and did not answer completely.
    pub is_silent: bool,
}

/// The source of samples.
pub(super) struct Source {
    root: StateRoot,
    dir: MachineDir,
    /// The last time at which each cell did not answer.
    silent: BTreeMap<CellId, Instant>,
}

impl Source {
    /// Creates a source for a machine.
    pub fn new(root: StateRoot, dir: MachineDir) -> Self {
        Self { root, dir, silent: BTreeMap::new() }
    }

    /// Verifies that a cell runs.
    pub fn verify(&self, name: &str) -> Result<(), Failure> {
        let locked = LockedMachine::take_supervised(&self.root, &self.dir)?;
        let cell = look_up(&locked, &mut locked.client()?, name)?;
        if is_running(&cell) {
            return Ok(());
        }
        let state = show::state(&cell);
        Err(Failure::new(REFUSED, format!("{name:?} is {state}: only a running cell has a load")))
    }

    /// Takes a sample.
    pub fn sample(&mut self, wanted: &SampleSpec) -> Result<Sample, Failure> {
        let locked = LockedMachine::take_supervised(&self.root, &self.dir)?;
        let mut client = locked.client()?;
        let machine = client.machine()?;
        let mut cells = BTreeMap::new();
        for listed in client.list()?.iter().filter(|cell| is_running(cell)) {
            // The list omits details if there are too many. A cell that has ended meanwhile is not shown.
            let inspected = client.inspect(&listed.spec.name).and_then(|mut cell| {
                client.add_activities(&mut cell)?;
                Ok(cell)
            });
            let Some(mut info) = unless_refused(inspected)? else { continue };
            // The report also lists cores that have left the cell: drop them.
            let has =
                |id| machine.cores.iter().any(|core| core.id == id && core.owner == CoreOwner::Cell(info.id));
            info.cores.retain(|core| has(core.id));
            cells.insert(info.id, CellSample { info, activities: None, grid: None, is_silent: false });
        }
        let query = match wanted.by {
            LoadDivision::Activity => Some(Query::Activities { most: MAX_ACTIVITIES }),
            LoadDivision::Resource => Some(Query::Grid),
            LoadDivision::Cell | LoadDivision::Core => None,
        };
        if let Some(query) = query {
            self.ask(&mut client, &mut cells, wanted, &query)?;
        }
        Ok(Sample { at: Instant::now(), tsc_hz: machine.tsc_hz, cells })
    }

    /// Adds the answers to a query. A cell that did not answer is not queried again for a while, since each query of
    /// it costs the whole timeout.
    fn ask(
        &mut self,
        client: &mut Client,
        cells: &mut BTreeMap<CellId, CellSample>,
        wanted: &SampleSpec,
        query: &Query,
    ) -> Result<(), ClientError> {
        self.silent.retain(|id, since| cells.contains_key(id) && since.elapsed() < SILENCE);
        let is_wanted =
            |cell: &CellSample| wanted.cell.as_ref().is_none_or(|name| *name == cell.info.spec.name);
        let mut asked = Vec::new();
        for cell in cells.values_mut().filter(|cell| is_wanted(cell)) {
            cell.is_silent = self.silent.contains_key(&cell.info.id);
            if !cell.is_silent {
                asked.push(cell);
            }
        }
        let names: Vec<String> = asked.iter().map(|cell| cell.info.spec.name.clone()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let answers = facts_of_many(client, &names, query, ANSWER_TIMEOUT)?;
        for (cell, answer) in asked.into_iter().zip(answers) {
            // Parts of an answer would look like a load that has ended.
            let answer = answer.filter(|answer| answer.extent == Extent::Whole);
            cell.is_silent = answer.is_none();
            if cell.is_silent {
                self.silent.insert(cell.info.id, Instant::now());
            }
            match query {
                Query::Grid => cell.grid = answer,
                _ => cell.activities = answer,
            }
        }
        Ok(())
    }
}
