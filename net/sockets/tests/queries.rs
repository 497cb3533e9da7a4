//! A cell's answers to queries, during other work.

use isola_abi::query::{
    AnswerRecord, CaptureSpec, Direction, FrameFilter, FrameHead, Line, PeriodKind, ProfileRecord,
    ProfileSpec, Query, QueryState, Records, TraceRecord, TraceSpec,
};
use isola_ebbs::platform;
use isola_hosted::{Loss, link};
use isola_iobuf::{Chain, IoBuf};
use isola_net::port::{NetworkPort, ReceivedFrame};
use isola_net::{CellNetwork, Filter, NETWORK_MANAGER, NetworkManager, TcpStream, filter, listen, query};
use isola_test_cells::{TestCell, dial, read_exactly, run_cells, run_server_and_client};
use std::future::pending;
use std::time::Duration;

const PORT: u16 = 7;

async fn echo() {
    let _listening = listen(PORT, 16, |mut stream: TcpStream| async move {
        while let Ok(Some(data)) = stream.read().await {
            if stream.write(data).await.is_err() {
                break;
            }
        }
    })
    .unwrap();
    pending::<()>().await;
}

/// Sends a query to the calling cell, as its supervisor would. Returns the number of the query.
fn ask(line: Line, question: &Query) -> u32 {
    let number = platform().queries().put(line, &question.encode()).unwrap();
    query::answer_new(|_, query| panic!("a query of another kind: {query:?}"));
    number
}

/// Returns the calling cell's new records, and the number of records without room; `None` if the cell answers another
/// query.
fn read(line: Line, number: u32, records: &mut Records) -> Option<(Vec<Vec<u8>>, u64)> {
    let current = platform().queries().number(line);
    let mut read = Vec::new();
    loop {
        let piece = platform().report().answers.on(line).piece(number, current, records.end(), 4096);
        if piece.state != QueryState::Answered {
            return None;
        }
        records.add(&piece).unwrap();
        while let Some(record) = records.next_record().unwrap() {
            read.push(record.to_vec());
        }
        if piece.bytes.is_empty() {
            return Some((read, piece.lost));
        }
    }
}

/// Returns the complete answer to a query for facts.
async fn facts(question: &Query) -> Vec<AnswerRecord> {
    let number = ask(Line::Facts, question);
    let (mut records, mut facts) = (Records::default(), Vec::new());
    loop {
        let (read, _) = read(Line::Facts, number, &mut records).expect("no other query");
        facts.extend(read.iter().map(|record| AnswerRecord::decode(record).unwrap()));
        let done = facts.iter().filter(|fact| matches!(fact, AnswerRecord::Done { .. })).count();
        if matches!(facts.first(), Some(AnswerRecord::Begin { cores }) if done == *cores as usize) {
            return facts;
        }
        isola_events::sleep(Duration::from_millis(1)).await;
    }
}

async fn exchange(stream: &mut TcpStream, len: usize) {
    stream.write(IoBuf::from(vec![1; len]).into()).await.unwrap();
    assert_eq!(read_exactly(stream, len).await.len(), len);
}

fn capture(port: Option<u16>, snap_len: u32) -> Query {
    Query::Capture(CaptureSpec { filter: FrameFilter { port, host: None }, snap_len })
}

#[test]
fn counters_and_connections_of_all_cores_are_reported() {
    run_server_and_client(3, Loss::Never, echo, || async {
        let mut streams = Vec::new();
        for _ in 0..20 {
            let mut stream = dial(PORT).await;
            exchange(&mut stream, 100).await;
            streams.push(stream);
        }
        let answer = facts(&Query::Counters).await;
        let Some(AnswerRecord::Names(names)) =
            answer.iter().find(|fact| matches!(fact, AnswerRecord::Names(_)))
        else {
            panic!("{answer:?}")
        };
        let connected = names.iter().position(|counter| counter.name == "tcp_connected").unwrap();
        let counts = answer.iter().filter_map(|fact| match fact {
            AnswerRecord::Counters(counts) => Some(counts[connected]),
            _ => None,
        });
        assert_eq!(counts.sum::<u64>(), 20);
        for (filter, most, expected) in [
            (FrameFilter { port: Some(PORT), host: None }, 100, 20),
            (FrameFilter { port: Some(PORT), host: None }, 1, 20),
            (FrameFilter { port: Some(PORT + 1), host: None }, 100, 0),
            (FrameFilter { port: None, host: Some([10, 9, 9, 9].into()) }, 100, 0),
        ] {
            let answer = facts(&Query::Connections { filter, most }).await;
            let all: u32 = answer
                .iter()
                .map(|fact| if let AnswerRecord::Done { connections, .. } = fact { *connections } else { 0 })
                .sum();
            assert_eq!(all, expected);
            let connections: Vec<_> = answer
                .iter()
                .filter_map(|fact| match fact {
                    AnswerRecord::Connection(connection) => Some(connection),
                    _ => None,
                })
                .collect();
            assert!(connections.len() <= all.min(3 * most) as usize);
            for connection in connections {
                assert_eq!((connection.remote.port(), &*connection.state), (PORT, "ESTABLISHED"));
                assert_eq!((connection.bytes_in, connection.bytes_out), (100, 100));
            }
        }
    });
}

#[test]
fn frames_of_both_directions_are_captured_until_the_capture_ends() {
    run_server_and_client(1, Loss::Never, echo, || async {
        let mut stream = dial(PORT).await;
        for _ in 0..3 {
            let (number, mut records) = (ask(Line::Frames, &capture(Some(PORT), 60)), Records::default());
            // Events install the taps.
            isola_events::sleep(Duration::from_millis(1)).await;
            exchange(&mut stream, 1000).await;
            let (frames, lost) = read(Line::Frames, number, &mut records).unwrap();
            assert_eq!(lost, 0);
            let heads: Vec<_> = frames.iter().map(|record| FrameHead::decode(record).unwrap()).collect();
            for direction in [Direction::In, Direction::Out] {
                let long =
                    heads.iter().find(|(head, _)| head.direction == direction && head.len_bytes > 1000);
                assert_eq!(long.unwrap().1.len(), 60, "{direction:?}");
            }
            assert!(heads.is_sorted_by_key(|(head, _)| head.unix_ns));
            let end = ask(Line::Frames, &Query::EndCapture);
            isola_events::sleep(Duration::from_millis(1)).await;
            exchange(&mut stream, 1000).await;
            assert_eq!(read(Line::Frames, number, &mut records), None);
            assert_eq!(read(Line::Frames, end, &mut records), Some((Vec::new(), 0)));
        }
        let number = ask(Line::Frames, &capture(Some(PORT + 1), 60));
        isola_events::sleep(Duration::from_millis(1)).await;
        exchange(&mut stream, 1000).await;
        assert_eq!(
            read(Line::Frames, number, &mut Records::default()),
            Some((Vec::new(), 0)),
            "a frame of another port was captured"
        );
    });
}

#[test]
fn a_trace_a_profile_and_a_capture_replace_each_other() {
    run_server_and_client(2, Loss::Never, echo, || async {
        let mut stream = dial(PORT).await;
        for _ in 0..2 {
            let trace = ask(Line::Frames, &Query::Trace(TraceSpec { cores: u64::MAX }));
            exchange(&mut stream, 1000).await;
            // Periods are written after 100 ms.
            isola_events::sleep(Duration::from_millis(250)).await;
            let (periods, _) = read(Line::Frames, trace, &mut Records::default()).unwrap();
            let periods: Vec<_> = periods.iter().map(|record| TraceRecord::decode(record).unwrap()).collect();
            assert!(matches!(periods[0], TraceRecord::Begin(_)), "{periods:?}");
            let is_event = |kind| matches!(kind, PeriodKind::Event { .. });
            assert!(periods.iter().any(|record| match record {
                TraceRecord::Periods(batch) => batch.periods().any(|period| is_event(period.kind)),
                _ => false,
            }));
            let profile = ask(Line::Frames, &Query::Profile(ProfileSpec { cores: u64::MAX }));
            isola_events::sleep(Duration::from_millis(1)).await;
            assert_eq!(read(Line::Frames, trace, &mut Records::default()), None);
            let (samples, _) = read(Line::Frames, profile, &mut Records::default()).unwrap();
            // A Linux process has no supervisor that interrupts it.
            assert_eq!(samples, [ProfileRecord::Unsupported.encode()]);
            let frames = ask(Line::Frames, &capture(Some(PORT), 60));
            isola_events::sleep(Duration::from_millis(1)).await;
            exchange(&mut stream, 1000).await;
            isola_events::sleep(Duration::from_millis(250)).await;
            let (frames, _) = read(Line::Frames, frames, &mut Records::default()).unwrap();
            assert!(!frames.is_empty() && frames.iter().all(|record| FrameHead::decode(record).is_ok()));
        }
        ask(Line::Frames, &Query::EndCapture);
    });
}

/// A device that merges buffers of 30 bytes: the ports of a frame are not in its first buffer.
struct ShortBuffers;

impl Filter for ShortBuffers {
    fn received(&mut self, received: ReceivedFrame) -> Option<ReceivedFrame> {
        const LEN: usize = 30;
        let ReceivedFrame { frame, rest: None, checksum } = received else { return Some(received) };
        let (first, rest) = (frame.slice(0..LEN)?, frame.slice(LEN..frame.len())?);
        Some(ReceivedFrame { frame: first, rest: Some(Box::new(Chain::from(rest))), checksum })
    }
}

impl NetworkManager for ShortBuffers {
    fn open(&self) -> Option<NetworkPort> {
        Some(filter(CellNetwork.open()?, |_| Self))
    }
}

#[test]
fn a_filtered_capture_finds_the_ports_of_a_frame_behind_its_first_buffer() {
    let (server_port, client_port) = link(Loss::Never);
    let server = TestCell::new(1, 1, server_port, echo).until_others_end();
    let client = TestCell::new(2, 1, client_port, || async {
        let mut stream = dial(PORT).await;
        for (port, expected) in [(PORT, 1), (PORT + 1, 0)] {
            let (number, mut records) = (ask(Line::Frames, &capture(Some(port), 60)), Records::default());
            // Events install the taps.
            isola_events::sleep(Duration::from_millis(1)).await;
            exchange(&mut stream, 1000).await;
            let (frames, _) = read(Line::Frames, number, &mut records).unwrap();
            let is_long = |record: &&Vec<u8>| {
                let (head, bytes) = FrameHead::decode(record).unwrap();
                head.direction == Direction::In && head.len_bytes > 1000 && bytes.len() == 60
            };
            assert_eq!(frames.iter().filter(is_long).count(), expected, "port {port}");
        }
    });
    run_cells([server, client.with_components(|| NETWORK_MANAGER.replace(|| Box::new(ShortBuffers)))]);
}

#[test]
fn an_unread_capture_disturbs_no_connection_and_counts_missing_frames() {
    run_server_and_client(2, Loss::Never, echo, || async {
        let mut stream = dial(PORT).await;
        let (number, mut records) = (ask(Line::Frames, &capture(None, u32::MAX)), Records::default());
        isola_events::sleep(Duration::from_millis(1)).await;
        for _ in 0..8 {
            exchange(&mut stream, 50_000).await;
        }
        let (frames, lost) = read(Line::Frames, number, &mut records).unwrap();
        assert!(!frames.is_empty() && lost > 0, "{} frames, {lost} left out", frames.len());
        let whole = |record: &Vec<u8>| {
            let (head, bytes) = FrameHead::decode(record).unwrap();
            bytes.len() == head.len_bytes as usize
        };
        assert!(frames.iter().all(whole));
        exchange(&mut stream, 100).await;
        let (frames, now_lost) = read(Line::Frames, number, &mut records).unwrap();
        assert!(!frames.is_empty(), "no frame was captured although there is room again");
        assert_eq!(now_lost, lost);
    });
}
