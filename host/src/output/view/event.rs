//! The JSON form of the journal.

use super::crash_kind;
use crate::output::human::{self, duration_ns, rfc3339};
use isola_abi::id::CoreId;
use isola_abi::management::{Decision, JournalEntry, JournalEvent};
use serde::Serialize;

/// An entry of the journal: output of `events`, one per line.
#[derive(Clone, Debug, Serialize)]
pub struct EventView {
    /// The machine.
    pub machine: String,
    /// The entry's number.
    pub number: u64,
    /// The time of the entry.
    pub time: String,
    /// `boot`, `create`, `recreate`, `start`, `grow`, `not-grown`, `resize`, `core-came`, `core-left`, `core-taken`,
    /// `borrow`, `return`, `not-borrowed`, `exit`, `crash`, `kill`, `restart-due`,
    /// `restart-refused`, `restarts-used-up`, `restart-cancelled`, `destroy`, `core-lost`,
    /// `device-lost`, `restart`, `stray-interrupts`, `refused` or `decision`.
    pub event: &'static str,
    /// The cell of the entry.
    pub cell: Option<String>,
    /// The duration.
    pub duration_ns: u64,
    /// Further details.
    pub detail: Option<String>,
    /// The author, content and reason of a `decision`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionView>,
}

/// A decision that was made outside of the supervisor.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionView {
    /// The program that made it.
    pub by: String,
    /// The action.
    pub what: String,
    /// The reason.
    pub why: String,
}

fn cores_now(core: CoreId, cores: u32) -> String {
    format!("core {core}, {cores} now")
}

impl EventView {
    /// Creates the JSON form of a journal entry.
    pub fn new(machine: &str, entry: &JournalEntry) -> Self {
        let (event, detail) = match &entry.event {
            JournalEvent::Boot => ("boot", None),
            JournalEvent::Create => ("create", None),
            JournalEvent::Recreate => ("recreate", None),
            JournalEvent::Start => ("start", None),
            JournalEvent::Grow { by, to } => ("grow", Some(format!("{by} more, {to} now"))),
            JournalEvent::ResizeMemory { from, to, wanted } if to == wanted => {
                ("resize", Some(format!("memory from {from} to {to}")))
            }
            JournalEvent::ResizeMemory { from, to, wanted } => {
                ("resize", Some(format!("memory from {from} to {to}, {wanted} wanted")))
            }
            JournalEvent::GrowthRefused { wanted, refusal } => {
                ("not-grown", Some(format!("{wanted} wanted: {refusal}")))
            }
            JournalEvent::CoreCame { core, cores } => ("core-came", Some(cores_now(*core, *cores))),
            JournalEvent::CoreLeft { core, cores } => ("core-left", Some(cores_now(*core, *cores))),
            JournalEvent::CoreTaken { core, cores } => ("core-taken", Some(cores_now(*core, *cores))),
            JournalEvent::Borrow { core, from, lease_ns } => {
                let from = from.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
                ("borrow", Some(format!("core {core}{from}, for {}", duration_ns(*lease_ns))))
            }
            JournalEvent::Return { core, to, why } => {
                let to = to.as_ref().map(|name| format!(" to {name}")).unwrap_or_default();
                ("return", Some(format!("core {core}{to}: {why}")))
            }
            JournalEvent::NotBorrowed { core } => {
                let core = core.map_or_else(|| "a core".to_owned(), |core| format!("core {core}"));
                ("not-borrowed", Some(format!("{core} was not released in time, or another cell got it")))
            }
            JournalEvent::BorrowMemory { memory, from, lease_ns } => {
                let from = from.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
                ("borrow", Some(format!("{memory}{from}, for {}", duration_ns(*lease_ns))))
            }
            JournalEvent::ReturnMemory { memory, to, why } => {
                let to = to.as_ref().map(|name| format!(" to {name}")).unwrap_or_default();
                ("return", Some(format!("{memory}{to}: {why}")))
            }
            JournalEvent::MemoryNotBorrowed { memory } => {
                let why = "no cell of lower priority had it free, or it did not fit";
                ("not-borrowed", Some(format!("{memory} more: {why}")))
            }
            JournalEvent::Exit(code) => ("exit", Some(format!("code {code}"))),
            JournalEvent::Crash(kind) => ("crash", Some(crash_kind(*kind).to_owned())),
            JournalEvent::Kill => ("kill", None),
            JournalEvent::RestartDue { ends_in_row, after_ns } => {
                let after = human::duration_ns(*after_ns);
                ("restart-due", Some(format!("in {after}, after {ends_in_row} ends in a row")))
            }
            JournalEvent::RestartRefused { error, after_ns } => {
                let next = match after_ns {
                    Some(after) => format!("next try in {}", human::duration_ns(*after)),
                    None => "there is no further try".to_owned(),
                };
                ("restart-refused", Some(format!("{error}; {next}")))
            }
            JournalEvent::RestartsUsedUp { ends_in_row } => {
                ("restarts-used-up", Some(format!("{ends_in_row} ends in a row")))
            }
            JournalEvent::RestartCancelled => ("restart-cancelled", None),
            JournalEvent::Destroy => ("destroy", None),
            JournalEvent::CoreLost(core) => ("core-lost", Some(format!("core {core}"))),
            JournalEvent::DeviceLost => ("device-lost", None),
            JournalEvent::Restart { cause, number, found, gone } => {
                let gone = if *gone == 0 { String::new() } else { format!(", {gone} gone") };
                ("restart", Some(format!("number {number}, {}: {found} cells found{gone}", cause.name())))
            }
            JournalEvent::StrayInterrupts { count } => {
                ("stray-interrupts", Some(format!("{count} since the supervisor started")))
            }
            JournalEvent::Refused(error) => ("refused", Some(error.to_string())),
            JournalEvent::Decision(Decision { by, what, why }) => {
                ("decision", Some(format!("{by}: {what}, as {why}")))
            }
        };
        Self {
            machine: machine.to_owned(),
            number: entry.number,
            time: rfc3339(entry.unix_ns),
            event,
            cell: entry.cell.clone(),
            duration_ns: entry.duration_ns,
            detail,
            decision: match &entry.event {
                JournalEvent::Decision(Decision { by, what, why }) => {
                    Some(DecisionView { by: by.clone(), what: what.clone(), why: why.clone() })
                }
                _ => None,
            },
        }
    }
}
