//! Sessions of the host tool with programs in the cell, see [`isola_abi::session`]: the query that opens one.

use alloc::string::String;
use isola_abi::query::AnswerRecord;
pub use isola_abi::session::SessionKey;
use isola_net::query::Answer;
use spin::Once;

/// Returns the port at which the session with this key is awaited, or why there is none.
type SessionService = fn(SessionKey) -> Result<u16, String>;

static SERVICE: Once<SessionService> = Once::new();

/// Makes `service` answer the host tool's queries for sessions: it returns the TCP port at which it awaits the session, or
/// the reason why there is none. It runs on the first core. Only the first call counts.
pub fn serve_sessions(service: SessionService) {
    SERVICE.call_once(|| service);
}

/// Answers a query for a session.
pub(crate) fn answer(answer: Answer, key: SessionKey) {
    let opened = match SERVICE.get() {
        Some(service) => service(key),
        None => Err("its application reads no standard input and executes no commands".into()),
    };
    // The answer is complete with its last record, so that the host tool does not miss the first.
    answer.begin(1, [opened.map_or_else(AnswerRecord::Refused, AnswerRecord::SessionPort)]);
    answer.end_core([], &AnswerRecord::Done { core: 0, connections: 0, half_open: 0, time_wait: 0 });
}
