//! The state of the interactive screen, and the effects of keys. It has no terminal: `interactive` has.

use super::load::{Load, LoadDivision, load};
use super::pages::{Focus, Kind, Page, Sort, levels, page};
use super::plain;
use super::sample::{Sample, SampleSpec};
use crate::output::charset::Charset;
use crate::output::printable::printable_line;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The number of intervals in a history: more than a terminal has columns.
const HISTORY: usize = 256;

/// The rows that a page key moves by.
const PAGE: usize = 10;

/// The views, in the order of their keys.
pub(super) const VIEWS: [(LoadDivision, &str); 4] = [
    (LoadDivision::Cell, "cells"),
    (LoadDivision::Activity, "activities"),
    (LoadDivision::Resource, "resources"),
    (LoadDivision::Core, "cores"),
];

/// The effect of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Another drawing.
    Draw,
    /// Another drawing, and a sample for another view.
    Sample(SampleSpec),
    /// The end.
    End,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    /// The machine's name.
    pub machine: String,
    /// The length of an interval.
    pub interval: Duration,
    /// The characters to draw with.
    pub charset: Charset,
    /// Whether the keys are shown.
    pub is_help: bool,
    /// The reason why there are no new samples.
    pub error: Option<String>,
    focus: Focus,
    /// The views to return to, with the key of the selected row.
    back: Vec<(Focus, Option<String>)>,
    sorts: [Sort; VIEWS.len()],
    samples: Option<(Sample, Sample)>,
    load: Option<Load>,
    histories: BTreeMap<String, VecDeque<f64>>,
    /// The key of the selected row, and its index while there is no such row.
    selected: (Option<String>, usize),
}

impl Screen {
    /// Creates the state without samples.
    pub fn new(machine: &str, wanted: &SampleSpec, interval: Duration, charset: Charset) -> Self {
        let by_use = |column| Sort { column: Some(column), is_reversed: false };
        Self {
            machine: printable_line(machine).into_owned(),
            interval,
            charset,
            is_help: false,
            error: None,
            focus: Focus { by: wanted.by, cell: wanted.cell.clone(), ..Focus::default() },
            back: Vec::new(),
            sorts: [by_use(1), by_use(1), Sort::default(), Sort::default()],
            samples: None,
            load: None,
            histories: BTreeMap::new(),
            selected: (None, 0),
        }
    }

    /// Takes the next sample, and adds the load since the one before to the histories.
    pub fn update(&mut self, sample: Sample) {
        self.error = None;
        let Some((_, before)) = self.samples.take() else {
            // Without an interval there is no load yet, but there are names.
            let first = Sample { cells: BTreeMap::new(), ..sample };
            self.samples = Some((first, sample));
            return self.show();
        };
        self.samples = Some((before, sample));
        self.show();
        let Some(load) = &self.load else { return };
        let levels: BTreeMap<String, f64> = levels(load).into_iter().collect();
        let of_view = |key: &String| {
            levels.keys().next().is_some_and(|other| other.split('/').next() == key.split('/').next())
        };
        self.histories.retain(|key, _| levels.contains_key(key) || !of_view(key));
        for (key, level) in levels {
            let history = self.histories.entry(key).or_default();
            history.push_back(level);
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
    }

    /// Computes the load of the present view from the samples.
    fn show(&mut self) {
        let samples = self.samples.as_ref();
        let cell = self.focus.cell.as_deref();
        self.load = samples.map(|(before, now)| load(self.focus.by, now, before, cell));
        self.follow();
    }

    /// Keeps the index of the selected row in step with its key.
    fn follow(&mut self) {
        let rows = self.page().rows;
        let found = self.selected.0.as_ref().and_then(|key| rows.iter().position(|row| row.key == *key));
        let index = found.unwrap_or(self.selected.1).min(rows.len().saturating_sub(1));
        self.selected = (rows.get(index).map(|row| row.key.clone()), index);
    }

    /// Returns the present view.
    pub fn focus(&self) -> &Focus {
        &self.focus
    }

    /// Returns the content of the present view.
    pub fn page(&self) -> Page {
        self.load.as_ref().map(|load| page(load, &self.focus, self.sort())).unwrap_or_default()
    }

    /// Returns the order of the rows.
    pub fn sort(&self) -> Sort {
        self.sorts[self.view()]
    }

    /// Returns the index of the selected row.
    pub fn selected(&self) -> usize {
        self.selected.1
    }

    /// Returns the index of the present view.
    pub fn view(&self) -> usize {
        VIEWS.iter().position(|(by, _)| *by == self.focus.by).unwrap_or_default()
    }

    /// Returns the history of a row as a sparkline of at most `width` intervals.
    pub fn sparkline(&self, key: &str, width: usize) -> String {
        let Some(history) = self.histories.get(key) else { return String::new() };
        // A cost has no natural maximum.
        let most = match self.focus.by {
            LoadDivision::Resource => history.iter().copied().fold(1.0, f64::max),
            LoadDivision::Cell | LoadDivision::Activity | LoadDivision::Core => 100.0,
        };
        let levels = history.iter().skip(history.len().saturating_sub(width));
        self.charset.sparkline(levels.map(|level| level / most))
    }

    /// Returns the number of running cells.
    pub fn cell_count(&self) -> usize {
        self.samples.as_ref().map_or(0, |(_, now)| now.cells.len())
    }

    /// Returns the sentence that explains missing or doubtful rows; empty if there are none.
    pub fn remark(&self) -> String {
        if let Some(error) = &self.error {
            return printable_line(error).into_owned();
        }
        let Some((_, now)) = &self.samples else { return String::new() };
        let is_shown = |name: &str| self.focus.cell.as_ref().is_none_or(|cell| cell == name);
        let mut shown = now.cells.values().filter(|cell| is_shown(&cell.info.spec.name)).peekable();
        if shown.peek().is_none() {
            return match &self.focus.cell {
                Some(cell) => format!("{} does not run", printable_line(cell)),
                None => "no cell runs: isola run -d kv starts one".to_owned(),
            };
        }
        let silent: Vec<_> = shown
            .filter(|cell| cell.is_silent)
            .map(|cell| printable_line(&cell.info.spec.name).into_owned())
            .collect();
        let silent: Vec<&str> = silent.iter().map(String::as_str).collect();
        match (&silent[..], self.focus.by) {
            ([], LoadDivision::Resource) if self.focus.resource.is_some() && self.page().rows.is_empty() => {
                "no activities have competed for this resource".to_owned()
            }
            ([], _) => String::new(),
            (silent, LoadDivision::Activity) => {
                format!("{}: figures from the report", plain::silence(silent))
            }
            (silent, _) => plain::silence(silent),
        }
    }

    /// Returns the effect of a key.
    pub fn key(&mut self, key: KeyEvent) -> Step {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'q') if is_control => return Step::End,
            KeyCode::Char('q') => return Step::End,
            KeyCode::Char('?' | 'h') => self.is_help = !self.is_help,
            _ if self.is_help => self.is_help = false,
            KeyCode::Up | KeyCode::Char('k') => self.select(|index| index.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|index| index + 1),
            KeyCode::PageUp => self.select(|index| index.saturating_sub(PAGE)),
            KeyCode::PageDown => self.select(|index| index + PAGE),
            KeyCode::Home => self.select(|_| 0),
            KeyCode::End => self.select(|_| usize::MAX),
            KeyCode::Left | KeyCode::Char('<') => self.sort_by(-1),
            KeyCode::Right | KeyCode::Char('>') => self.sort_by(1),
            KeyCode::Char('r') => {
                let view = self.view();
                self.sorts[view].is_reversed ^= true;
                self.follow();
            }
            KeyCode::Tab => return self.switch((self.view() + 1) % VIEWS.len()),
            KeyCode::BackTab => return self.switch((self.view() + VIEWS.len() - 1) % VIEWS.len()),
            KeyCode::Char(digit @ '1'..='4') => return self.switch(digit as usize - '1' as usize),
            KeyCode::Enter => {
                let mut rows = self.page().rows;
                if self.selected.1 < rows.len()
                    && let Some(focus) = rows.swap_remove(self.selected.1).opens
                {
                    return self.open(focus);
                }
            }
            KeyCode::Esc | KeyCode::Backspace => {
                if let Some((focus, selected)) = self.back.pop() {
                    self.selected = (selected, 0);
                    return self.change(focus);
                }
            }
            _ => {}
        }
        Step::Draw
    }

    fn select(&mut self, to: impl Fn(usize) -> usize) {
        let rows = self.page().rows;
        let index = to(self.selected.1).min(rows.len().saturating_sub(1));
        self.selected = (rows.get(index).map(|row| row.key.clone()), index);
    }

    /// Sorts by the next or the previous column that has values.
    fn sort_by(&mut self, step: isize) {
        let columns = self.page().columns;
        let sortable: Vec<usize> =
            (0..columns.len()).filter(|index| columns[*index].kind != Kind::History).collect();
        let view = self.view();
        let at =
            self.sorts[view].column.and_then(|column| sortable.iter().position(|other| *other == column));
        let next = match at {
            Some(at) => (at as isize + step).rem_euclid(sortable.len().max(1) as isize) as usize,
            None if step < 0 => sortable.len().saturating_sub(1),
            None => 0,
        };
        self.sorts[view] = Sort { column: sortable.get(next).copied(), is_reversed: false };
        self.follow();
    }

    /// Switches to a view. The view by activity is that of the selected cell.
    fn switch(&mut self, view: usize) -> Step {
        let (by, _) = VIEWS[view];
        let mut cell = self.focus.cell.clone();
        if by == LoadDivision::Activity && cell.is_none() {
            let mut rows = self.page().rows;
            if self.selected.1 < rows.len() {
                cell = rows.swap_remove(self.selected.1).opens.and_then(|focus| focus.cell);
            }
        }
        self.open(Focus { by, cell, ..Focus::default() })
    }

    fn open(&mut self, focus: Focus) -> Step {
        if focus == self.focus {
            return Step::Draw;
        }
        let selected = self.selected.0.take();
        // A view opened again replaces the way to it, so that Esc soon reaches the first.
        match self.back.iter().position(|(earlier, _)| *earlier == focus) {
            Some(index) => self.back.truncate(index),
            None => self.back.push((self.focus.clone(), selected)),
        }
        self.selected.1 = 0;
        self.change(focus)
    }

    fn change(&mut self, focus: Focus) -> Step {
        self.focus = focus;
        self.show();
        Step::Sample(SampleSpec { by: self.focus.by, cell: self.focus.cell.clone() })
    }
}
