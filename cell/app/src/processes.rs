//! The processes of a cell that runs Linux programs, as the host tool asks for them.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use isola_abi::query::AnswerRecord;
pub use isola_abi::query::ProcessUsage;
use isola_events::spawn_task;
use isola_net::query::Answer;
use spin::Once;

/// The most processes in an answer: its ring must have room for them.
pub const MAX_PROCESSES: usize = 100;

/// Returns the number of processes, and so many of them.
type ProcessService = fn(usize) -> Pin<Box<dyn Future<Output = (usize, Vec<ProcessUsage>)>>>;

static SERVICE: Once<ProcessService> = Once::new();

/// Makes `service` answer the host tool's queries for processes: it gets the most processes of an answer, at most
/// [`MAX_PROCESSES`], and returns the number of all, and those of the answer. It runs on the first core. Only the first
/// call counts.
pub fn serve_processes(service: ProcessService) {
    SERVICE.call_once(|| service);
}

/// Answers a query for processes.
pub(crate) fn answer(answer: Answer, most: u32) {
    let Some(service) = SERVICE.get() else {
        return answer.begin(0, [AnswerRecord::Refused("its application has no processes".into())]);
    };
    spawn_task(async move {
        let (count, processes) = service(MAX_PROCESSES.min(most as usize)).await;
        answer.begin(1, [AnswerRecord::Processes { count: count as u64 }]);
        let records = processes.into_iter().map(|process| AnswerRecord::Process(Box::new(process)));
        let done = AnswerRecord::Done { core: 0, connections: 0, half_open: 0, time_wait: 0 };
        answer.end_core(records, &done);
    })
    .detach();
}
