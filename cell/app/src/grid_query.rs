//! Answers to the host tool's queries about the resource grid.

use alloc::string::ToString;
use isola_abi::grid::Resource;
use isola_abi::query::{AnswerRecord, Query};
use isola_ebbs::current_core;
use isola_events::{present_cores, processor, spawn_on};
use isola_net::query::Answer;
use isola_net::write_report;
use isola_resources::GridResource;

/// Makes the requested change, if there is one, and reports settings and activities of all cores.
pub(crate) fn answer(answer: Answer, query: Query) {
    let change = match query {
        Query::ChangeGrid(change) => Some(change),
        Query::Grid => None,
        // The network answers these.
        Query::Counters | Query::Connections { .. } | Query::Capture(_) | Query::EndCapture => return,
    };
    if let Some(Err(error)) = change.as_ref().map(GridResource::apply) {
        return answer.begin(0, [AnswerRecord::Refused(error.to_string())]);
    }
    let cores = present_cores();
    let settings = Resource::ALL.map(|resource| GridResource::of(resource).summary());
    answer.begin(cores.len(), settings.map(AnswerRecord::GridSettings));
    for core in cores {
        spawn_on(core, move || {
            let clients = processor::report().into_iter().chain(write_report());
            let records = clients.map(|client| AnswerRecord::GridClient(client.into()));
            let done =
                AnswerRecord::Done { core: current_core().0, connections: 0, half_open: 0, time_wait: 0 };
            answer.end_core(records, &done);
        });
    }
}
