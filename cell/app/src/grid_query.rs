//! Answers to the host tool's queries about the resource grid and the activities.

use crate::memory_account;
use crate::processes;
use crate::session;
use crate::storage::disk_report;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_abi::grid::{Resource, RuleChange};
use isola_abi::id::ActivityId;
use isola_abi::query::{ActivityMemory, ActivityUsage, AnswerRecord, MemoryUse, Query};
use isola_activities::{Activity, name_of};
use isola_ebbs::{current_core, platform};
use isola_events::reclaim::{lost_bytes, used_bytes, waiting_requests_of};
use isola_events::{present_cores, processor, spawn_on};
use isola_messenger::rpc_report;
use isola_net::query::Answer;
use isola_net::{activity_rules, add_activity_rule, clear_activity_rules, write_report};
use isola_resources::{GridResource, MEMORY};
use isola_volumes::files_report;

/// The most activities whose memory an answer has, and the most entitlements of each resource: the answer's ring must
/// have room for them.
const MAX_MEMORY_USES: usize = 128;
const MAX_ENTITLEMENTS: usize = 32;

/// Answers a query about the grid. A requested change is made first.
pub(crate) fn answer(answer: Answer, query: Query) {
    let changed = match query {
        Query::ChangeGrid(change) => GridResource::apply(&change).map_err(|error| error.to_string()),
        Query::ChangeRules(RuleChange::Add(rule)) => {
            add_activity_rule(rule).map_err(|error| error.to_string())
        }
        Query::ChangeRules(RuleChange::Clear) => {
            clear_activity_rules();
            Ok(())
        }
        Query::Grid => Ok(()),
        Query::Activities { most } => return answer_activities(answer, most as usize),
        Query::Processes { most } => return processes::answer(answer, most),
        Query::MemoryParts => return memory_account::answer(answer),
        Query::OpenSession(key) => return session::answer(answer, key),
        // The network answers these, or they come on another line.
        Query::Counters
        | Query::Connections { .. }
        | Query::Capture(_)
        | Query::EndCapture
        | Query::Trace(_)
        | Query::Profile(_) => return,
    };
    match changed {
        Ok(()) => answer_grid(answer),
        Err(reason) => answer.begin(0, [AnswerRecord::Refused(reason)]),
    }
}

/// Reports the settings, the rules, and the clients of all cores.
fn answer_grid(answer: Answer) {
    let cores = present_cores();
    let settings = Resource::ALL.map(|resource| GridResource::of(resource).summary());
    let rules = activity_rules().into_iter().map(|rule| AnswerRecord::ActivityRule(Box::new(rule)));
    let settings = settings.map(AnswerRecord::GridSettings).into_iter();
    answer.begin(cores.len(), settings.chain(rules).chain(entitlements()).chain(memory_uses()));
    for core in cores {
        spawn_on(core, move || {
            let clients = processor::report().into_iter().chain(write_report()).chain(disk_report());
            let clients = clients.chain(files_report()).chain(rpc_report());
            let records = clients.map(|client| AnswerRecord::GridClient(client.into()));
            let done =
                AnswerRecord::Done { core: current_core().0, connections: 0, half_open: 0, time_wait: 0 };
            answer.end_core(records, &done);
        });
    }
}

/// Returns the memory of the activities without a parent that have some, or a budget: those that have most.
fn memory_uses() -> impl Iterator<Item = AnswerRecord> {
    let all = isola_activities::list().into_iter().filter(|activity| activity.parent.is_none());
    let usage = |id: ActivityId| MemoryUse {
        activity: id.0,
        name: name_of(id),
        entitlement: MEMORY.entitlement(id),
        memory: memory_of(id),
        waiting: waiting_requests_of(id) as u64,
    };
    let uses = all.map(|activity| usage(activity.id));
    let mut shown: Vec<MemoryUse> =
        uses.filter(|usage| usage.memory.charged_bytes > 0 || !usage.entitlement.memory.is_empty()).collect();
    shown.sort_unstable_by_key(|usage| (core::cmp::Reverse(usage.memory.charged_bytes), usage.activity));
    shown.truncate(MAX_MEMORY_USES);
    shown.into_iter().map(|usage| AnswerRecord::MemoryUse(Box::new(usage)))
}

/// Returns the memory of an activity without a parent.
fn memory_of(id: ActivityId) -> ActivityMemory {
    ActivityMemory {
        charged_bytes: used_bytes(id),
        budget: MEMORY.entitlement(id).memory,
        reclaimed_bytes: lost_bytes(id),
    }
}

/// Returns the entitlements that were set, of all resources.
fn entitlements() -> impl Iterator<Item = AnswerRecord> {
    let of = |resource| GridResource::of(resource).entitlements().into_iter().take(MAX_ENTITLEMENTS);
    let all = Resource::ALL.into_iter().flat_map(of);
    all.map(|entitlement| AnswerRecord::GridEntitlement(Box::new(entitlement)))
}

/// Reports the `most` activities that have used most, and those above them.
fn answer_activities(answer: Answer, most: usize) {
    let all = isola_activities::list();
    let cycles = platform().ledger().counters().iter().map(|used| used.cycles.load(Ordering::Relaxed));
    let total =
        AnswerRecord::Activities { count: all.len() as u64, cycles: cycles.fold(0, u64::wrapping_add) };
    answer.begin(1, [total]);
    let records = shown(all, most).into_iter().map(|Activity { id, parent, usage }| {
        AnswerRecord::Activity(Box::new(ActivityUsage {
            activity: id.0,
            parent: parent.map(|parent| parent.0),
            name: name_of(id),
            cycles: usage.cycles,
            events: usage.events,
            traffic: usage.traffic,
            memory: parent.is_none().then(|| memory_of(id)),
        }))
    });
    let done = AnswerRecord::Done { core: current_core().0, connections: 0, half_open: 0, time_wait: 0 };
    answer.end_core(records, &done);
}

/// Returns the `most` activities that have used most cycles. An activity that uses more than others has an ancestor that
/// does so, too, which comes first.
fn shown(all: Vec<Activity>, most: usize) -> Vec<Activity> {
    let mut by_use: Vec<usize> = (0..all.len()).collect();
    // A parent, which is earlier in the list, precedes a child that has used as much.
    by_use.sort_unstable_by_key(|index| (core::cmp::Reverse(all[*index].usage.cycles), *index));
    let mut is_shown = alloc::vec![false; all.len()];
    by_use.into_iter().take(most).for_each(|index| is_shown[index] = true);
    all.into_iter().zip(is_shown).filter_map(|(activity, is_shown)| is_shown.then_some(activity)).collect()
}
