//! Traces of what a cell's cores do.
//!
//! | file | contents |
//! |---|---|
//! | this | the summary of a trace |
//! | [`file`](mod@file) | a trace file for Perfetto (ui.perfetto.dev) |
//! | [`packets`] | the part of Perfetto's file format that it uses |
//!
//! All data comes from the cell and is untrusted.

pub mod file;
pub mod packets;

use isola_abi::query::{PeriodKind, TraceRecord};
use std::collections::BTreeMap;

/// The sums of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceSummary {
    /// Cycles and events by activity, in the order of their names. An event that worked for several activities counts
    /// for the last of them, its cycles for each.
    pub activities: BTreeMap<String, ActivitySum>,
    /// Cycles without work.
    pub idle_cycles: u64,
    /// Cycles of interrupts and alarms.
    pub interrupt_cycles: u64,
    /// The number of events.
    pub events: u64,
    /// The number of periods that the cell had no room for.
    pub lost: u64,
    /// The traced cores.
    pub cores: Vec<u32>,
    /// The cores that had no memory for their periods.
    pub without_memory: Vec<u32>,
    names: BTreeMap<u32, String>,
    /// By core, the start of the last part that belongs to no event yet.
    parts: BTreeMap<u32, u64>,
}

/// The use of an activity during a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivitySum {
    /// Cycles of its events.
    pub cycles: u64,
    /// The number of its events.
    pub events: u64,
}

impl TraceSummary {
    /// Adds a record.
    pub fn add(&mut self, record: &TraceRecord) {
        let batch = match record {
            TraceRecord::Begin(begin) => {
                self.cores = cores_of(begin.cores);
                return;
            }
            TraceRecord::NoMemory { core } => return self.without_memory.push(*core),
            TraceRecord::Alive => return,
            TraceRecord::Periods(batch) => batch,
        };
        self.names.extend(batch.activities.iter().map(|named| (named.activity, named.name.clone())));
        for period in batch.periods() {
            match period.kind {
                PeriodKind::Event { activity, .. } => {
                    // The last part of a divided event ends with it.
                    let last = self.parts.remove(&batch.core);
                    let is_divided = last.is_some_and(|part| part >= period.start);
                    let sum = self.activity(activity);
                    sum.events += 1;
                    sum.cycles = sum.cycles.wrapping_add(if is_divided { 0 } else { period.cycles });
                    self.events += 1;
                }
                PeriodKind::Part { activity } => {
                    self.parts.insert(batch.core, period.start);
                    let sum = self.activity(activity);
                    sum.cycles = sum.cycles.wrapping_add(period.cycles);
                }
                PeriodKind::Idle => self.idle_cycles = self.idle_cycles.wrapping_add(period.cycles),
                PeriodKind::Interrupts { .. } => {
                    self.interrupt_cycles = self.interrupt_cycles.wrapping_add(period.cycles);
                }
                PeriodKind::Lost { periods } => {
                    self.parts.remove(&batch.core);
                    self.lost = self.lost.saturating_add(periods);
                }
            }
        }
    }

    fn activity(&mut self, activity: u32) -> &mut ActivitySum {
        let name = self.names.get(&activity).cloned().unwrap_or_else(|| format!("activity {activity}"));
        self.activities.entry(name).or_default()
    }
}

/// Returns the cores of a set of bits.
fn cores_of(bits: u64) -> Vec<u32> {
    (0..u64::BITS).filter(|core| bits >> core & 1 == 1).collect()
}
