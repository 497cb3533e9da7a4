//! Queries to cells, and their answers.

use super::*;
use isola_abi::management::ManagementError;
use isola_abi::query::{AnswerPiece, Line, MAX_QUERY, QueryState};

fn piece(cells: &mut Cells<FakeMachine>, number: u32, from: u64) -> Result<AnswerPiece, ManagementError> {
    cells.answers("kv", Line::Facts, number, from, 4096)
}

#[test]
fn a_query_reaches_a_running_cell_and_its_answer_is_forwarded_unchanged() {
    let mut cells = machine(1);
    let report = run(&mut cells, spec("kv"));
    let id = cells.find("kv").unwrap();
    let number = cells.ask("kv", Line::Facts, b"how many?").unwrap();
    assert_eq!(cells.fake().queries[&id].get(Line::Facts), Some((number, b"how many?".to_vec())));
    assert_eq!(piece(&mut cells, number, 0).unwrap().state, QueryState::Open);
    let ring = report.answers.on(Line::Facts);
    ring.begin(number);
    ring.push(b"seven").unwrap();
    let answer = piece(&mut cells, number, 0).unwrap();
    assert_eq!(answer.bytes, b"\x05\0\0\0\0\0\0\0seven\0\0\0");
    let again = cells.ask("kv", Line::Facts, b"and now?").unwrap();
    assert_eq!(piece(&mut cells, number, 0).unwrap().state, QueryState::Replaced);
    assert_eq!(piece(&mut cells, again, 0).unwrap().state, QueryState::Open);
}

#[test]
fn only_running_cells_get_queries_and_queries_have_a_limit() {
    let mut cells = machine(1);
    assert!(matches!(cells.ask("kv", Line::Facts, b""), Err(ManagementError::NoSuchCell(_))));
    assert!(matches!(piece(&mut cells, 1, 0), Err(ManagementError::NoSuchCell(_))));
    let mut cells = machine(1);
    let report = run(&mut cells, spec("kv"));
    let long = [0; MAX_QUERY + 1];
    assert!(matches!(cells.ask("kv", Line::Frames, &long), Err(ManagementError::OutOfLimits(_))));
    says(&report, CellPhase::Exited);
    assert!(matches!(cells.ask("kv", Line::Facts, b""), Err(ManagementError::WrongState { .. })));
    assert!(matches!(piece(&mut cells, 1, 0), Err(ManagementError::WrongState { .. })));
}
