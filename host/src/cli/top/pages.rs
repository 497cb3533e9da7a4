//! The rows and columns of each view of the interactive screen.

use super::grid_load::{ActivityLoad, ResourceLoad};
use super::load::{CellLoad, CoreLoad, Load, LoadDivision};
use super::plain;
use crate::cli::grid::budget_text;
use crate::output::human;
use crate::output::printable::printable_line;
use crate::query::in_tree_order;
use isola_abi::size::ByteSize;
use std::cmp::Ordering;

/// The most levels that a name is indented by.
const MAX_INDENT: usize = 8;

/// A view, and the part of the load that it shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Focus {
    /// The view.
    pub by: LoadDivision,
    /// The only cell.
    pub cell: Option<String>,
    /// The activity at the top of the tree.
    pub activity: Option<u32>,
    /// The resource whose activities are shown.
    pub resource: Option<String>,
}

/// The order of rows: by a column, or as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sort {
    /// The index of the column.
    pub column: Option<usize>,
    /// Whether the order is reversed: numbers are in descending order otherwise, texts in ascending order.
    pub is_reversed: bool,
}

/// The content of a view.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows, sorted.
    pub rows: Vec<Row>,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// The heading.
    pub heading: &'static str,
    /// Its content.
    pub kind: Kind,
    /// Columns of the highest number are left out first if the terminal is too narrow.
    pub rank: u8,
}

/// The content of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name, cut if the terminal is too narrow.
    Name,
    /// A text or a number.
    Value,
    /// The use of the last intervals.
    History,
}

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Identifies the row in the next interval.
    pub key: String,
    /// A value per column.
    pub values: Vec<Value>,
    /// The view that Enter opens.
    pub opens: Option<Focus>,
    /// The number of an activity.
    id: Option<u32>,
    /// The number of the activity above it.
    parent: Option<u32>,
}

/// A value in a row.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// The text to show.
    pub text: String,
    /// The number to sort by, if it is one.
    number: Option<f64>,
}

impl Value {
    fn text(text: &str) -> Self {
        Self { text: printable_line(text).into_owned(), number: None }
    }

    fn number(number: f64, text: String) -> Self {
        Self { text, number: Some(number) }
    }

    fn count(number: f64) -> Self {
        Self::number(number, human::count(number as u64))
    }

    fn percent(percent: f64) -> Self {
        Self::number(percent, plain::percent(percent))
    }

    fn duration(ns: Option<u64>) -> Self {
        Self::number(ns.map_or(-1.0, |ns| ns as f64), human::maybe_duration_ns(ns))
    }

    /// Returns whether the value is a number.
    pub fn is_number(&self) -> bool {
        self.number.is_some()
    }

    /// Compares values for a sorted column: large numbers first, texts by the alphabet.
    fn order(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(own), Some(other)) => other.total_cmp(&own),
            _ => self.text.cmp(&other.text),
        }
    }
}

const fn column(heading: &'static str, rank: u8) -> Column {
    Column { heading, kind: Kind::Value, rank }
}

const fn name(heading: &'static str) -> Column {
    Column { heading, kind: Kind::Name, rank: 0 }
}

const HISTORY: Column = Column { heading: "HISTORY", kind: Kind::History, rank: 1 };

/// Returns the keys of a load's rows, and the level that each adds to its history.
pub(super) fn levels(load: &Load) -> Vec<(String, f64)> {
    match load {
        Load::Cells(cells) => cells.iter().map(|load| (cell_key(load), load.use_percent)).collect(),
        Load::Activities(all) => all.iter().map(|load| (activity_key(load), load.use_percent)).collect(),
        Load::Resources(all) => all.iter().map(|load| (resource_key(load), load.cost_per_second)).collect(),
        Load::Cores(cores) => cores.iter().map(|load| (core_key(load), load.use_percent)).collect(),
    }
}

/// Returns the content of a view.
pub(super) fn page(load: &Load, focus: &Focus, sort: Sort) -> Page {
    let mut page = match load {
        Load::Cells(cells) => cells_page(cells),
        Load::Activities(activities) => activities_page(activities, focus),
        Load::Resources(resources) => match &focus.resource {
            Some(resource) => clients_page(resources, resource),
            None => resources_page(resources),
        },
        Load::Cores(cores) => cores_page(cores),
    };
    if let Some(column) = sort.column.filter(|column| *column < page.columns.len()) {
        page.rows.sort_by(|one, other| {
            let order = one.values[column].order(&other.values[column]);
            if sort.is_reversed { order.reverse() } else { order }
        });
    }
    if let (Load::Activities(_), true) = (load, focus.cell.is_some()) {
        page.rows = tree(&page.rows, focus);
    }
    page
}

fn cell_key(load: &CellLoad) -> String {
    format!("cell/{}", load.name)
}

fn activity_key(load: &ActivityLoad) -> String {
    match load.activity {
        Some(activity) => format!("activity/{}/{activity}", load.cell),
        None => format!("activity/{}/{}", load.cell, load.name),
    }
}

fn resource_key(load: &ResourceLoad) -> String {
    format!("resource/{}/{:?}/{:?}/{:?}", load.cell, load.resource, load.core, load.activity)
}

fn core_key(load: &CoreLoad) -> String {
    format!("core/{}", load.core)
}

fn row(key: String, values: Vec<Value>, opens: Option<Focus>) -> Row {
    Row { key, values, opens, id: None, parent: None }
}

fn activities_of(cell: &str) -> Focus {
    Focus { by: LoadDivision::Activity, cell: Some(cell.to_owned()), ..Focus::default() }
}

fn cells_page(loads: &[CellLoad]) -> Page {
    let size = |bytes| ByteSize(bytes).to_string();
    let rows = loads.iter().map(|load| {
        let values = vec![
            Value::text(&load.name),
            Value::percent(load.use_percent),
            Value::text(""),
            Value::count(load.cores as f64),
            Value::count(load.requests_per_second),
            Value::duration(load.p50_ns),
            Value::duration(load.p99_ns),
            Value::duration(load.wait_p99_ns),
            Value::number(
                load.used_bytes as f64,
                format!("{}/{}", size(load.used_bytes), size(load.memory_bytes)),
            ),
        ];
        row(cell_key(load), values, Some(activities_of(&load.name)))
    });
    let columns = vec![
        name("CELL"),
        column("USE", 0),
        HISTORY,
        column("CORES", 3),
        column("REQUESTS/S", 2),
        column("P50", 6),
        column("P99", 4),
        column("WAIT P99", 5),
        column("MEMORY", 7),
    ];
    Page { columns, rows: rows.collect() }
}

fn activities_page(loads: &[ActivityLoad], focus: &Focus) -> Page {
    // The numbers of activities are those of their cell: without a chosen cell there is no tree.
    let shown = loads.iter().filter(|load| focus.cell.is_some() || load.level == 0);
    let rows = shown.map(|load| {
        let values = vec![
            Value::text(&load.name),
            Value::percent(load.use_percent),
            Value::text(""),
            Value::percent(load.share_percent),
            Value::count(load.events_per_second),
            Value::number(
                load.memory_bytes.map_or(f64::MIN, |bytes| bytes as f64),
                plain::memory(load.memory_bytes),
            ),
            budget(load.soft_bytes),
            budget(load.hard_bytes),
            Value::number(load.reclaimed_bytes_per_second.unwrap_or(f64::MIN), plain::reclaimed(load)),
            Value::text(&load.cell),
        ];
        let below = load.activity.filter(|id| loads.iter().any(|other| other.parent == Some(*id)));
        let opens = match (&focus.cell, below) {
            (None, _) => Some(activities_of(&load.cell)),
            (Some(_), Some(id)) if focus.activity != Some(id) => {
                Some(Focus { activity: Some(id), ..focus.clone() })
            }
            _ => None,
        };
        Row { id: load.activity, parent: load.parent, ..row(activity_key(load), values, opens) }
    });
    let mut columns = vec![
        name("ACTIVITY"),
        column("USE", 0),
        HISTORY,
        column("SHARE", 4),
        column("EVENTS/S", 2),
        column("MEMORY", 5),
        column("SOFT", 7),
        column("HARD", 6),
        column("RECLAIMED/S", 8),
        column("CELL", 0),
    ];
    let mut rows: Vec<Row> = rows.collect();
    if focus.cell.is_some() {
        columns.pop();
        rows.iter_mut().for_each(|row| drop(row.values.pop()));
    }
    Page { columns, rows }
}

/// Returns a budget; none is the smallest.
fn budget(bytes: Option<u64>) -> Value {
    Value::number(bytes.map_or(f64::MIN, |bytes| bytes as f64), budget_text(bytes))
}

/// Orders activities as a tree, of which only the part at the chosen activity remains.
fn tree(rows: &[Row], focus: &Focus) -> Vec<Row> {
    let mut shown = Vec::new();
    let mut top: Option<usize> = None;
    for (level, row) in in_tree_order(rows, |row| row.id, |row| row.parent) {
        // A later row of the same or a higher level is outside the chosen part.
        match (focus.activity, top) {
            (Some(_), Some(top)) if level <= top => break,
            (Some(id), None) if row.id != Some(id) => continue,
            _ => {}
        }
        let depth = level - *top.get_or_insert(if focus.activity.is_some() { level } else { 0 });
        let mut row = row.clone();
        if let Some(value) = row.values.first_mut() {
            value.text.insert_str(0, &"  ".repeat(depth.min(MAX_INDENT)));
        }
        shown.push(row);
    }
    shown
}

fn resources_page(loads: &[ResourceLoad]) -> Page {
    let rows = loads.iter().filter(|load| load.core.is_none()).map(|load| {
        let values = vec![
            Value::text(load.resource.as_deref().unwrap_or("(no answer)")),
            Value::text(load.policy.as_deref().unwrap_or("-")),
            Value::text(""),
            Value::count(load.waiting as f64),
            Value::duration(load.mean_wait_ns),
            Value::duration(load.resource.is_some().then_some(load.longest_wait_ns)),
            Value::count(load.served_per_second),
            Value::number(load.cost_per_second, plain::cost(load)),
            Value::text(&load.cell),
        ];
        let opens = load.resource.as_ref().map(|resource| Focus {
            by: LoadDivision::Resource,
            cell: Some(load.cell.clone()),
            resource: Some(resource.clone()),
            activity: None,
        });
        row(resource_key(load), values, opens)
    });
    let columns = vec![
        name("RESOURCE"),
        column("POLICY", 0),
        HISTORY,
        column("WAITING", 2),
        column("MEAN WAIT", 4),
        column("LONGEST", 5),
        column("SERVED/S", 6),
        column("COST/S", 7),
        column("CELL", 0),
    ];
    Page { columns, rows: rows.collect() }
}

fn clients_page(loads: &[ResourceLoad], resource: &str) -> Page {
    let shown = loads.iter().filter(|load| load.core.is_some() && load.resource.as_deref() == Some(resource));
    let rows = shown.map(|load| {
        let values = vec![
            Value::text(load.name.as_deref().unwrap_or_default()),
            Value::percent(load.share_percent),
            Value::text(""),
            Value::count(f64::from(load.core.unwrap_or_default())),
            Value::count(f64::from(load.weight.unwrap_or_default())),
            Value::count(load.waiting as f64),
            Value::duration(load.mean_wait_ns),
            Value::duration(Some(load.longest_wait_ns)),
            Value::count(load.served_per_second),
            Value::number(load.cost_per_second, plain::cost(load)),
        ];
        row(resource_key(load), values, None)
    });
    let columns = vec![
        name("ACTIVITY"),
        column("SHARE", 0),
        HISTORY,
        column("CORE", 4),
        column("WEIGHT", 2),
        column("WAITING", 1),
        column("MEAN WAIT", 5),
        column("LONGEST", 6),
        column("SERVED/S", 7),
        column("COST/S", 8),
    ];
    Page { columns, rows: rows.collect() }
}

fn cores_page(loads: &[CoreLoad]) -> Page {
    let rows = loads.iter().map(|load| {
        let values = vec![
            Value::number(-f64::from(load.core), load.core.to_string()),
            Value::text(&load.cell),
            Value::percent(load.use_percent),
            Value::text(""),
            Value::percent(load.event_percent),
            Value::percent(load.interrupt_percent),
            Value::percent(load.loop_percent),
            Value::count(load.interrupts_per_second),
            Value::duration(load.wait_p99_ns),
            Value::count(load.long_events as f64),
            Value::text(load.phase),
        ];
        row(core_key(load), values, Some(activities_of(&load.cell)))
    });
    let columns = vec![
        column("CORE", 0),
        name("CELL"),
        column("USE", 0),
        HISTORY,
        column("EVENTS", 4),
        column("INTERRUPTS", 7),
        column("LOOP", 2),
        column("INTERRUPTS/S", 8),
        column("WAIT P99", 1),
        column("TOO LONG", 9),
        column("PHASE", 6),
    ];
    Page { columns, rows: rows.collect() }
}
