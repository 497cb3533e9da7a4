//! The processes of a cell with Linux programs, as `isola inspect` shows them.

use super::Failure;
use crate::client::Client;
use crate::output::view::ProcessView;
use crate::output::{human, table};

use crate::query::{QueryAnswer, QueryError, facts, in_tree_order};
use isola_abi::query::{ProcessUsage, Query};
use isola_abi::size::ByteSize;
use serde_json::Value;

/// The most processes that are shown.
const MOST: u32 = 100;

/// Asks a running cell for its processes, and adds them to the JSON form of the cell and to its text. A cell without
/// processes refuses.
pub(super) fn add_processes(
    client: &mut Client,
    name: &str,
    view: &mut Value,
    text: &mut String,
) -> Result<(), Failure> {
    let answer = match facts(client, name, &Query::Processes { most: MOST }) {
        Err(QueryError::Refused(_)) => return Ok(()),
        answer => answer?,
    };
    let Some(count) = answer.process_count else { return Ok(()) };
    if let Value::Object(view) = view {
        let processes: Vec<ProcessView> = answer.processes.iter().map(Into::into).collect();
        view.insert("processes".to_owned(), serde_json::to_value(processes)?);
        view.insert("process_count".to_owned(), count.into());
    }
    text.push('\n');
    text.push_str(&processes_text(&answer));
    Ok(())
}

/// Formats processes as a table, each below its parent.
fn processes_text(answer: &QueryAnswer) -> String {
    let ordered =
        in_tree_order(&answer.processes, |process| Some(process.pid), |process| Some(process.parent));
    let rows = ordered.into_iter().map(|(level, process)| row(level, process));
    let mut text =
        table(&["PID", "PARENT", "USER", "STATE", "THREADS", "MEMORY", "TIME", "CYCLES", "COMMAND"], rows);
    text.push('\n');
    let left_out = answer.process_count.unwrap_or_default().saturating_sub(answer.processes.len() as u64);
    if left_out > 0 {
        text.push_str(&format!("{left_out} processes that used less time are not shown\n"));
    }
    text
}

fn row(level: usize, process: &ProcessUsage) -> Vec<String> {
    // Deep trees are shown with the same indentation from some level on.
    let indentation = "  ".repeat(level.min(8));
    vec![
        process.pid.to_string(),
        if process.parent == 0 { "-".to_owned() } else { process.parent.to_string() },
        process.user_name.clone().unwrap_or_else(|| process.user.to_string()),
        process.state.to_string(),
        process.threads.to_string(),
        ByteSize(process.resident_bytes).to_string(),
        human::duration_ns(process.user_ns.saturating_add(process.system_ns)),
        human::count(process.cycles),
        format!("{indentation}{}", process.command),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::query::ProcessState;

    fn process(pid: u32, parent: u32, command: &str) -> ProcessUsage {
        ProcessUsage {
            pid,
            parent,
            user: 33,
            user_name: (pid == 7).then(|| "www".to_owned()),
            state: ProcessState::Sleeping,
            threads: 2,
            resident_bytes: 3 << 20,
            user_ns: 1_000_000,
            system_ns: 500_000,
            cycles: 3_000_000,
            command: command.to_owned(),
        }
    }

    #[test]
    fn processes_are_below_their_parents() {
        let answer = QueryAnswer {
            processes: vec![process(1, 0, "init"), process(5, 1, "sh -c x"), process(7, 5, "nginx")],
            process_count: Some(8),
            ..QueryAnswer::default()
        };
        let text = processes_text(&answer);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("PID") && lines[0].ends_with("COMMAND"), "{text}");
        assert!(
            lines[1].contains("33") && lines[1].contains("1.50 ms") && lines[1].ends_with(" init"),
            "{text}"
        );
        assert!(lines[2].ends_with("   sh -c x") || lines[2].ends_with("  sh -c x"), "{text}");
        assert!(
            lines[3].contains("www") && lines[3].contains("3 MiB") && lines[3].ends_with("    nginx"),
            "{text}"
        );
        assert_eq!(lines[4], "5 processes that used less time are not shown");
    }
}
