//! The protocol from the viewpoint of its peers: valid and invalid bytes in, bytes out.

mod random;

use super::*;
use crate::fake::{FakeMachine, MIB, crashes, digest, image, machine, obeys, says, spec};
use alloc::vec;
use core::sync::atomic::Ordering;
use isola_abi::ledger::LEAST_SLOTS;
use isola_abi::management::{
    CellSpec, CellState, Change, Decision, ImageFault, MAX_DECISION_WORDS, MAX_IMAGE, MAX_NAME_LEN, Mode,
    NetworkSpec, RestartPolicy, max_cells,
};
use isola_abi::report::{CellPhase, CrashKind};
use isola_abi::size::ByteSize;

fn server(cores: u32) -> Server<FakeMachine> {
    Server::new(machine(cores))
}

fn responses(server: &mut Server<FakeMachine>) -> Vec<Response> {
    let bytes = server.take_unsent();
    let mut bytes = bytes.as_slice();
    let mut decoder = Decoder::new();
    core::iter::from_fn(|| decoder.next(&mut bytes)).map(Result::unwrap).collect()
}

fn send(server: &mut Server<FakeMachine>, sequence: u32, body: RequestBody) {
    let frame = encode(&Request { sequence, body }).unwrap();
    let mut bytes = frame.as_slice();
    feed(server, &mut bytes);
}

/// Makes a server accept all bytes, with the work that this needs in between.
fn feed(server: &mut Server<FakeMachine>, bytes: &mut &[u8]) {
    while !bytes.is_empty() {
        server.receive(bytes);
        if server.cells().is_measuring() {
            server.work();
        }
    }
}

pub(crate) fn ask(
    server: &mut Server<FakeMachine>,
    body: RequestBody,
) -> Result<ResponseBody, ManagementError> {
    send(server, 7, body);
    while server.unsent.is_empty() && server.is_waited_for() {
        server.work();
    }
    let mut responses = responses(server);
    assert_eq!(responses.len(), 1);
    assert_eq!(responses[0].sequence, 7);
    responses.remove(0).body
}

pub(crate) fn hello(server: &mut Server<FakeMachine>) {
    let version = isola_abi::VERSION;
    assert_eq!(ask(server, RequestBody::Hello { version }), Ok(ResponseBody::Hello { version }));
}

pub(crate) fn upload(server: &mut Server<FakeMachine>, image: &[u8]) {
    ask(server, RequestBody::ImageBegin { len_bytes: image.len() as u64 }).unwrap();
    for (number, chunk) in image.chunks(1000).enumerate() {
        ask(server, RequestBody::ImageChunk { offset: number as u64 * 1000, bytes: chunk.to_vec() }).unwrap();
    }
}

/// The request for the first page of cells.
pub(crate) const LIST: RequestBody = RequestBody::List { from: CellId(0) };

/// Returns all cells, from all pages.
pub(crate) fn list(server: &mut Server<FakeMachine>) -> Vec<CellInfo> {
    let (mut cells, mut from) = (vec![], Some(CellId(0)));
    while let Some(first) = from {
        let page = ask(server, RequestBody::List { from: first });
        let Ok(ResponseBody::Cells(CellPage { cells: more, next })) = page else { panic!("no list") };
        assert!(more.iter().all(|cell| cell.id >= first) && next.is_none_or(|next| next > first));
        cells.extend(more);
        from = next;
    }
    cells
}

fn run(server: &mut Server<FakeMachine>, spec: CellSpec) -> CellInfo {
    let name = spec.name.clone();
    upload(server, &image());
    ask(server, RequestBody::Create(spec.into())).unwrap();
    match ask(server, RequestBody::Start { name }) {
        Ok(ResponseBody::Cell(info)) => *info,
        other => panic!("{other:?}"),
    }
}

fn free(server: &mut Server<FakeMachine>) -> (u64, u64) {
    let machine = server.cells().machine();
    (machine.memory_free.0, machine.memory_total.0)
}

#[test]
fn a_cell_is_run_and_stopped_over_the_wire() {
    let mut server = server(1);
    hello(&mut server);
    let info = run(&mut server, spec("kv"));
    assert_eq!(info.state, CellState::Running);
    let stop = RequestBody::Stop { name: "kv".into(), timeout_ms: 0 };
    assert!(
        matches!(ask(&mut server, stop), Ok(ResponseBody::Cell(info)) if info.state == CellState::Killed)
    );
    assert_eq!(ask(&mut server, RequestBody::Destroy { name: "kv".into() }), Ok(ResponseBody::Done));
    assert_eq!(ask(&mut server, LIST), Ok(ResponseBody::Cells(CellPage::default())));
    let (free, total) = free(&mut server);
    assert_eq!(free, total);
}

#[test]
fn requests_are_refused_before_the_versions_agree() {
    let mut server = server(1);
    let refused = Err(ManagementError::Version { supervisor: isola_abi::VERSION });
    assert_eq!(ask(&mut server, LIST), refused);
    assert_eq!(ask(&mut server, RequestBody::PowerOff), refused);
    assert!(!server.wants_power_off());
    assert_eq!(ask(&mut server, RequestBody::Hello { version: 99 }), refused);
    assert_eq!(ask(&mut server, RequestBody::Machine), refused);
    hello(&mut server);
    assert!(ask(&mut server, RequestBody::Machine).is_ok());
    assert_eq!(ask(&mut server, RequestBody::PowerOff), Ok(ResponseBody::Done));
    assert!(server.wants_power_off());
}

#[test]
fn invalid_frames_are_answered_and_have_no_effect() {
    let mut server = server(1);
    hello(&mut server);
    run(&mut server, spec("kv"));
    for frame in [&b"\0garbage\0"[..], &[0, 1, 1, 1, 0], &vec![5; MAX_FRAME + 10][..], b"\0"] {
        feed(&mut server, &mut &frame[..]);
    }
    let responses = responses(&mut server);
    assert_eq!(responses.len(), 3);
    for response in responses {
        assert_eq!(response, Response { sequence: 0, body: Err(ManagementError::Malformed) });
    }
    assert!(ask(&mut server, RequestBody::Inspect { name: "kv".into() }).is_ok());
}

#[test]
fn a_list_that_fits_in_a_frame_says_all_that_is_known() {
    let mut server = server(2);
    hello(&mut server);
    run(&mut server, CellSpec { arguments: vec!["--threads".into()], ..spec("kv") });
    let cells = list(&mut server);
    assert_eq!(cells[0].spec.arguments, ["--threads"]);
}

#[test]
fn a_pending_answer_does_not_delay_others() {
    let mut server = server(2);
    hello(&mut server);
    let id = run(&mut server, spec("kv")).id;
    send(&mut server, 1, RequestBody::Stop { name: "kv".into(), timeout_ms: 5000 });
    send(&mut server, 2, RequestBody::Stop { name: "kv".into(), timeout_ms: 9000 });
    send(&mut server, 3, LIST);
    let sequences = |responses: Vec<Response>| -> Vec<u32> {
        responses.iter().map(|response| response.sequence).collect()
    };
    assert_eq!(sequences(responses(&mut server)), [3]);
    says(&server.cells().fake().reports[&id].clone(), CellPhase::Exited);
    server.on_notification();
    assert_eq!(sequences(responses(&mut server)), [1, 2]);
    server.on_notification();
    assert!(server.take_unsent().is_empty());
}

#[test]
fn a_pending_stop_is_answered_when_the_cell_crashes() {
    let mut server = server(1);
    hello(&mut server);
    let id = run(&mut server, spec("kv")).id;
    send(&mut server, 1, RequestBody::Stop { name: "kv".into(), timeout_ms: 60_000 });
    crashes(&server.cells().fake().reports[&id].clone(), CrashKind::Panic, "oh");
    // Another request is the first to notice the crash; both are answered.
    send(&mut server, 2, RequestBody::Inspect { name: "kv".into() });
    let answers = responses(&mut server);
    assert_eq!(answers.iter().map(|answer| answer.sequence).collect::<Vec<_>>(), [2, 1]);
    for answer in answers {
        assert!(matches!(answer.body, Ok(ResponseBody::Cell(info)) if info.state == CellState::Crashed));
    }
}

#[test]
fn an_answer_to_a_former_peer_is_not_sent_to_the_next_one() {
    let mut server = server(3);
    hello(&mut server);
    let id = run(&mut server, CellSpec { cores: 2, ..spec("kv") }).id;
    let less = || RequestBody::ResizeCores {
        name: "kv".into(),
        change: Change::Less(1),
        cores: Vec::new(),
        limit_ms: 10,
        mode: Mode::Apply,
    };
    let more = RequestBody::ResizeCores {
        name: "kv".into(),
        change: Change::More(1),
        cores: Vec::new(),
        limit_ms: 10,
        mode: Mode::Apply,
    };
    server.cells().fake().cells_are_deaf = true;
    send(&mut server, 1, less());
    hello(&mut server);
    // The next request notices that the core has left; that request is answered when its own core has arrived.
    let (report, slots) = server.cells().fake().report_and_slots(id);
    obeys(&report, &slots, 1);
    send(&mut server, 1, more);
    assert_eq!(responses(&mut server), []);
    let (report, slots) = server.cells().fake().report_and_slots(id);
    obeys(&report, &slots, 1);
    server.on_notification();
    let answers = responses(&mut server);
    assert!(
        matches!(
            answers.as_slice(),
            [Response { sequence: 1, body: Ok(ResponseBody::CoresResized(resized)) }] if resized.before == 1 && resized.after == 2
        ),
        "{answers:?}"
    );
}

#[test]
fn a_cell_is_recreated_over_the_wire() {
    let mut server = server(1);
    hello(&mut server);
    let id = run(&mut server, spec("kv")).id;
    let recreate = || RequestBody::Recreate { name: "kv".into() };
    upload(&mut server, &image());
    let running = ManagementError::WrongState { name: "kv".into(), state: CellState::Running };
    assert_eq!(ask(&mut server, recreate()), Err(running));
    ask(&mut server, RequestBody::Stop { name: "kv".into(), timeout_ms: 0 }).unwrap();
    // The cell is created again from its earlier image, any number of times.
    assert!(
        matches!(ask(&mut server, recreate()), Ok(ResponseBody::Cell(info)) if info.id == id && info.state == CellState::Created)
    );
    assert!(ask(&mut server, RequestBody::Start { name: "kv".into() }).is_ok());
    ask(&mut server, RequestBody::Stop { name: "kv".into(), timeout_ms: 0 }).unwrap();
    assert!(ask(&mut server, recreate()).is_ok());
    ask(&mut server, RequestBody::Destroy { name: "kv".into() }).unwrap();
    let (free, total) = free(&mut server);
    assert_eq!(free, total);
}

#[test]
fn pending_answers_are_bounded_and_dropped_with_their_peer() {
    let mut server = server(2);
    hello(&mut server);
    run(&mut server, spec("kv"));
    for sequence in 0..MAX_DUE as u32 + 3 {
        send(&mut server, sequence, RequestBody::Stop { name: "kv".into(), timeout_ms: 5000 });
    }
    assert_eq!(responses(&mut server).len(), 3);
    hello(&mut server);
    server.cells().fake().now.set(10_000_000_000);
    server.tick();
    server.cells().fake().now.set(20_000_000_000);
    server.tick();
    assert!(server.take_unsent().is_empty());
    assert!(matches!(
        ask(&mut server, RequestBody::Inspect { name: "kv".into() }),
        Ok(ResponseBody::Cell(info)) if info.state == CellState::Killed
    ));
}

#[test]
fn uploads_are_bounded_and_in_order() {
    use ManagementError::*;
    let mut server = server(1);
    hello(&mut server);
    let begin = |len_bytes| RequestBody::ImageBegin { len_bytes };
    let chunk = |offset, len| RequestBody::ImageChunk { offset, bytes: vec![1; len] };
    assert_eq!(ask(&mut server, chunk(0, 1)), Err(NoImage));
    assert_eq!(ask(&mut server, begin(0)), Err(ImageRejected(ImageFault::NotElf)));
    assert_eq!(ask(&mut server, begin(MAX_IMAGE + 1)), Err(ImageRejected(ImageFault::TooLarge)));
    assert_eq!(ask(&mut server, begin(u64::MAX)), Err(ImageRejected(ImageFault::TooLarge)));
    assert_eq!(free(&mut server).0, free(&mut server).1);
    assert_eq!(ask(&mut server, begin(10)), Ok(ResponseBody::Done));
    for (offset, len) in [(1, 1), (0, 11), (u64::MAX, 1), (0, MAX_PART_BYTES + 1)] {
        assert!(matches!(ask(&mut server, chunk(offset, len)), Err(OutOfLimits(_))), "{offset} {len}");
    }
    assert_eq!(ask(&mut server, chunk(0, 4)), Ok(ResponseBody::Done));
    assert_eq!(ask(&mut server, RequestBody::Create(spec("kv").into())), Err(NoImage));
    assert!(matches!(ask(&mut server, chunk(0, 4)), Err(OutOfLimits(_))));
    assert_eq!(ask(&mut server, chunk(4, 6)), Ok(ResponseBody::Done));
    assert_eq!(ask(&mut server, chunk(10, 0)), Err(NoImage), "the upload is complete");
    let rejected = Err(ImageRejected(ImageFault::NotElf));
    let noise = CellSpec { image: digest(&[1; 10]), ..spec("kv") };
    assert_eq!(ask(&mut server, RequestBody::Create(noise.into())), rejected);
}

#[test]
fn an_incomplete_upload_is_dropped_with_its_peer_and_by_the_next_upload() {
    let mut server = server(1);
    hello(&mut server);
    let total = free(&mut server).1;
    for _ in 0..3 {
        ask(&mut server, RequestBody::ImageBegin { len_bytes: 3 * MIB }).unwrap();
        assert_eq!(free(&mut server).0, total - 4 * MIB);
    }
    // An upload that does not fit beside the one in progress changes nothing.
    let refused = ask(&mut server, RequestBody::ImageBegin { len_bytes: MAX_IMAGE });
    assert!(matches!(refused, Err(ManagementError::MemoryExhausted { .. })));
    assert!(ask(&mut server, RequestBody::ImageChunk { offset: 0, bytes: vec![0; 5] }).is_ok());
    hello(&mut server);
    assert_eq!(free(&mut server).0, total);
    let chunk = RequestBody::ImageChunk { offset: 5, bytes: vec![0; 5] };
    assert_eq!(ask(&mut server, chunk), Err(ManagementError::NoImage));
}

#[test]
fn logs_are_read_piece_by_piece() {
    let mut server = server(1);
    hello(&mut server);
    let id = run(&mut server, spec("kv")).id;
    let report = server.cells().fake().reports[&id].clone();
    for (index, byte) in b"hello".iter().enumerate() {
        report.console.bytes[index].store(*byte, Ordering::Relaxed);
    }
    report.console.written.store(5, Ordering::Release);
    let logs = |from, max_bytes| RequestBody::Logs { name: "kv".into(), from, max_bytes };
    let Ok(ResponseBody::Logs(piece)) = ask(&mut server, logs(1, 3)) else { panic!("no logs") };
    assert_eq!((piece.from, &*piece.bytes, piece.end), (1, &b"ell"[..], 5));
    let Ok(ResponseBody::Logs(rest)) = ask(&mut server, logs(4, u32::MAX)) else { panic!("no logs") };
    assert_eq!(rest.bytes, b"o");
    let missing = RequestBody::Logs { name: "x".into(), from: 0, max_bytes: 1 };
    assert_eq!(ask(&mut server, missing), Err(ManagementError::NoSuchCell("x".into())));
}

#[test]
fn names_in_answers_are_short() {
    let mut server = server(1);
    hello(&mut server);
    let name = "ä".repeat(30_000);
    for body in [
        RequestBody::Start { name: name.clone() },
        RequestBody::Inspect { name: name.clone() },
        RequestBody::Create(spec(&name).into()),
    ] {
        send(&mut server, 1, body);
        assert!(server.take_unsent().len() < 200);
    }
}

#[test]
fn the_journal_is_read_in_pieces_that_fit() {
    let mut server = server(1);
    hello(&mut server);
    for number in 0..3000 {
        send(&mut server, 1, RequestBody::Start { name: alloc::format!("{number:063}") });
        server.take_unsent();
    }
    let mut next = 0;
    let mut seen = 0;
    loop {
        let body = RequestBody::Events { from: next, max_entries: u32::MAX };
        let Ok(ResponseBody::Events(entries)) = ask(&mut server, body) else { panic!("no events") };
        let Some(last) = entries.last() else { break };
        assert!(entries[0].number >= next);
        seen += entries.len();
        next = last.number + 1;
    }
    assert_eq!((seen, next), (crate::journal::CAPACITY, 3001));
    let Ok(ResponseBody::Events(two)) = ask(&mut server, RequestBody::Events { from: 0, max_entries: 2 })
    else {
        panic!("no events")
    };
    assert_eq!(two.len(), 2);
}

#[test]
fn refused_changes_are_in_the_journal_and_refused_queries_are_not() {
    let mut server = server(1);
    hello(&mut server);
    ask(&mut server, RequestBody::Inspect { name: "x".into() }).unwrap_err();
    let error = ask(&mut server, RequestBody::Destroy { name: "x".into() }).unwrap_err();
    let entries: Vec<JournalEntry> = server.cells().journal().since(1).cloned().collect();
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].cell.as_deref(), &entries[0].event), (Some("x"), &JournalEvent::Refused(error)));
}

#[test]
fn decisions_of_others_are_entered_and_bounded() {
    let mut server = server(1);
    hello(&mut server);
    let decision = |by: usize, what: usize, why: usize| Decision {
        by: "b".repeat(by),
        what: "w".repeat(what),
        why: "y".repeat(why),
    };
    let note = |cell: Option<usize>, decision| RequestBody::Note {
        cell: cell.map(|len| "c".repeat(len)),
        duration_ns: 77,
        decision,
    };
    let most = decision(MAX_NAME_LEN, MAX_DECISION_WORDS, MAX_DECISION_WORDS);
    assert_eq!(ask(&mut server, note(Some(MAX_NAME_LEN), most.clone())), Ok(ResponseBody::Done));
    for bad in [
        note(None, decision(0, 1, 1)),
        note(None, decision(MAX_NAME_LEN + 1, 1, 1)),
        note(None, decision(1, MAX_DECISION_WORDS + 1, 1)),
        note(None, decision(1, 1, MAX_DECISION_WORDS + 1)),
        note(Some(MAX_NAME_LEN + 1), decision(1, 1, 1)),
    ] {
        assert!(ask(&mut server, bad).is_err());
    }
    let entries: Vec<JournalEntry> = server.cells().journal().since(1).cloned().collect();
    let refused = entries.iter().skip(1).filter(|entry| matches!(entry.event, JournalEvent::Refused(_)));
    assert_eq!((entries.len(), refused.count()), (6, 5), "the refusal is entered, without the decision");
    assert_eq!((entries[0].duration_ns, &entries[0].event), (77, &JournalEvent::Decision(most)));
}

#[test]
fn all_cells_of_the_largest_machine_fit_in_a_frame() {
    let mut server = server(31);
    hello(&mut server);
    for number in 0..31 {
        let spec = CellSpec {
            arguments: vec!["x".repeat(4000)],
            network: NetworkSpec::None,
            memory: ByteSize(2 * MIB),
            ..spec(&alloc::format!("{number:063}"))
        };
        let id = run(&mut server, spec).id;
        let report = server.cells().fake().reports[&id].clone();
        let ledger = server.cells().fake().ledgers[&id].clone();
        (0..LEAST_SLOTS).for_each(|slot| ledger.register(&report, slot, "a name of full length..."));
        crashes(&report, CrashKind::Panic, &"no".repeat(300));
    }
    server.on_notification();
    // The remaining cells have ended, too.
    for number in 31..max_cells(32) {
        let name = alloc::format!("{number:063}");
        let memory = ByteSize(12 * MIB);
        let spec = CellSpec { cores: 31, memory, network: NetworkSpec::None, ..spec(&name) };
        let id = run(&mut server, spec).id;
        crashes(&server.cells().fake().reports[&id].clone(), CrashKind::Panic, &"\u{fffd}".repeat(170));
        server.on_notification();
    }
    let cells = list(&mut server);
    assert_eq!(cells.len(), max_cells(32));
    let name = cells[3].spec.name.clone();
    let Ok(ResponseBody::Cell(one)) = ask(&mut server, RequestBody::Inspect { name }) else { panic!("none") };
    assert_eq!((one.activities.activities.len(), one.spec.arguments[0].len()), (LEAST_SLOTS, 4000));
}

#[test]
fn requests_of_a_peer_that_does_not_read_are_not_accepted() {
    let mut server = server(1);
    hello(&mut server);
    run(&mut server, spec("kv"));
    let frame =
        encode(&Request { sequence: 1, body: RequestBody::Events { from: 0, max_entries: 9 } }).unwrap();
    let flood = frame.repeat(30_000);
    let mut bytes = flood.as_slice();
    server.receive(&mut bytes);
    assert!(!bytes.is_empty());
    let mut answered = responses(&mut server).len();
    while !bytes.is_empty() {
        server.receive(&mut bytes);
        assert!(server.unsent.len() < MAX_UNSENT + MAX_FRAME);
        answered += responses(&mut server).len();
    }
    assert_eq!(answered, 30_000);
}
