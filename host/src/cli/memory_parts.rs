//! The account of a cell's memory by use, as `isola inspect` shows it.

use super::Failure;
use crate::client::Client;
use crate::output::printable::printable_line;
use crate::output::table;
use crate::output::view::{MemoryPartView, kind_name};
use crate::query::{QueryError, facts};
use isola_abi::query::{MemoryKind, MemoryPart, Query};
use isola_abi::size::ByteSize;
use serde_json::Value;

/// The use of the memory that the cell does not manage itself.
const BESIDE_THE_POOL: &str = "image, stacks, page tables and report";

/// Asks a running cell for its memory by use, and adds it to the JSON form of the cell and to its text. `total_bytes` is all of
/// the cell's memory; `None` in a process, which has no memory of its own.
pub(super) fn add_memory_parts(
    client: &mut Client,
    name: &str,
    total_bytes: Option<u64>,
    view: &mut Value,
    text: &mut String,
) -> Result<(), Failure> {
    let Some(total_bytes) = total_bytes else { return Ok(()) };
    let answer = match facts(client, name, &Query::MemoryParts) {
        Err(QueryError::Refused(_)) => return Ok(()),
        answer => answer?,
    };
    if answer.memory_parts.is_empty() {
        return Ok(());
    }
    let parts = all_parts(answer.memory_parts, total_bytes);
    if let Value::Object(view) = view {
        let views: Vec<MemoryPartView> = parts.iter().map(Into::into).collect();
        view.insert("memory_parts".to_owned(), serde_json::to_value(views)?);
    }
    text.push('\n');
    text.push_str(&parts_text(&parts));
    Ok(())
}

/// Returns all parts, the largest first: those that the cell manages, and the rest.
fn all_parts(mut parts: Vec<MemoryPart>, total_bytes: u64) -> Vec<MemoryPart> {
    let managed = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
    let rest = total_bytes.saturating_sub(managed);
    parts.push(MemoryPart { name: BESIDE_THE_POOL.to_owned(), bytes: rest, kind: MemoryKind::Used });
    parts.sort_by_key(|part| (part.kind == MemoryKind::Free, std::cmp::Reverse(part.bytes)));
    parts
}

/// Formats parts as a table, with the sum of each kind.
fn parts_text(parts: &[MemoryPart]) -> String {
    let row = |name: &str, kind: &str, bytes: u64| {
        vec![printable_line(name).into_owned(), kind.to_owned(), ByteSize(bytes).to_string()]
    };
    let sum = |kind: Option<MemoryKind>| {
        let chosen = parts.iter().filter(|part| kind.is_none_or(|kind| part.kind == kind));
        chosen.fold(0_u64, |sum, part| sum.saturating_add(part.bytes))
    };
    let mut rows: Vec<_> =
        parts.iter().map(|part| row(&part.name, kind_name(part.kind), part.bytes)).collect();
    for kind in [MemoryKind::Used, MemoryKind::Cached] {
        rows.push(row("sum", kind_name(kind), sum(Some(kind))));
    }
    rows.push(row("all", "", sum(None)));
    let mut text = table(&["MEMORY", "KIND", "SIZE"], rows);
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_all_of_the_cell_s_memory() {
        let parts = vec![
            MemoryPart::free("free", 60 << 20),
            MemoryPart::used("pages of programs", 1 << 20),
            MemoryPart::cached("pages of files", 2 << 20),
        ];
        let parts = all_parts(parts, 64 << 20);
        assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), 64 << 20);
        let text = parts_text(&parts);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("pages of files") && lines[1].contains("cached"), "{text}");
        assert!(lines[4].starts_with("free"), "{text}");
        assert!(lines[5].contains("used") && lines[5].ends_with("2 MiB"), "{text}");
        assert!(lines[6].contains("cached") && lines[6].ends_with("2 MiB"), "{text}");
        assert!(lines[7].starts_with("all") && lines[7].ends_with("64 MiB"), "{text}");
    }

    #[test]
    fn sums_that_a_cell_makes_up_do_not_overflow() {
        let parts = vec![MemoryPart::used("a", usize::MAX), MemoryPart::used("b", usize::MAX)];
        let parts = all_parts(parts, 1);
        assert_eq!(parts.last().map(|part| part.bytes), Some(0));
        assert!(parts_text(&parts).contains("all"));
    }
}
