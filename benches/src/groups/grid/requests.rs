//! The instructions of a request with start-time fair queueing at every resource, beside the same image without a policy.
//! They are counted as by the gate, on machines whose clocks advance with their instructions.

use crate::error::BenchError;
use crate::gate::Gate;
use crate::record::Record;

/// Takes the counts, which are the same in every run, in the first one.
pub fn run(record: &mut Record) -> Result<(), BenchError> {
    if record.series("grid-kv-wfq").is_some() {
        return Ok(());
    }
    let counts = Gate::open()?.round_trips()?;
    for (figure, path) in [("grid-kv-wfq", "kv-request"), ("grid-echo-wfq", "echo-round-trip")] {
        let count = |name: &str| counts.get(name).copied().unwrap_or_default();
        record.isola(figure, count(&format!("{path}-wfq")));
        record.peer(figure, count(path));
    }
    Ok(())
}
