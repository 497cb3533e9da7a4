//! Sessions: the order of answers, back-pressure, and the end of a connection.

mod common;

use common::Engine;
use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, ServeOutcome, Session, SessionLimits, ShardId};

fn receive(session: &mut Session, text: &str) {
    session.receive(Chain::from(IoBuf::copy_from_slice(text.as_bytes())));
}

fn output(session: &mut Session) -> String {
    String::from_utf8(session.take_output(usize::MAX).to_vec()).unwrap()
}

/// Returns a key that belongs to the given one of four shards.
fn key_of(engine: &Engine, shard: u16) -> String {
    let key = |number: &u32| {
        let text = format!("k{number}");
        let key = isola_kv::Key::new(IoBuf::copy_from_slice(text.as_bytes()), &engine.server.hasher).unwrap();
        (key.shard(4) == ShardId(shard)).then_some(text)
    };
    (0..).find_map(|number| key(&number)).unwrap()
}

#[test]
fn a_locked_shard_delays_the_following_requests_and_loses_none() {
    let mut engine = Engine::new(4);
    let (free, taken) = (key_of(&engine, 0), key_of(&engine, 3));
    for request in ["get", "gets", "set", "incr"] {
        let mut session = engine.session();
        let line = match request {
            "set" => format!("set {taken} 0 0 1\r\n1\r\n"),
            "incr" => format!("incr {taken} 1\r\n"),
            read => format!("{read} {taken}\r\n"),
        };
        receive(&mut session, &format!("get {free}\r\n{line}get {free}\r\n"));
        let lock = engine.shard(3);
        for _ in 0..3 {
            assert_eq!(session.serve(engine.now), ServeOutcome::Busy);
            assert!(session.has_work());
        }
        assert_eq!(output(&mut session), "END\r\n");
        drop(lock);
        engine.work(&mut session);
        let expected = match request {
            "set" => "STORED\r\nEND\r\n",
            "incr" => "2\r\nEND\r\n",
            _ => "END\r\nEND\r\n",
        };
        assert_eq!(output(&mut session), expected, "{request}");
        assert!(!session.has_work());
    }
}

#[test]
fn a_request_to_all_shards_continues_at_the_locked_shard_and_visits_each_once() {
    let mut engine = Engine::new(4);
    engine.execute_text("set a 0 0 1\r\n1\r\n");
    let mut session = engine.session();
    receive(&mut session, "flush_all\r\nversion\r\nstats\r\nget a\r\n");
    for taken in 0..4 {
        let lock = engine.shard(taken);
        assert_eq!(session.serve(engine.now), ServeOutcome::Busy);
        assert_eq!(session.output_len(), 0);
        drop(lock);
    }
    engine.work(&mut session);
    let answer = output(&mut session);
    assert!(answer.starts_with("OK\r\nVERSION ") && answer.ends_with("END\r\nEND\r\n"), "{answer}");
    assert!(answer.contains("STAT cmd_flush 1\r\n") && answer.contains("STAT total_items 1\r\n"), "{answer}");
}

#[test]
fn a_request_that_waits_at_the_end_of_input_is_answered_before_the_session_finishes() {
    let engine = Engine::new(4);
    let taken = key_of(&engine, 3);
    let mut session = engine.session();
    receive(&mut session, &format!("set {taken} 0 0 1\r\n1\r\n"));
    let lock = engine.shard(3);
    assert_eq!(session.serve(engine.now), ServeOutcome::Busy);
    session.end_of_input();
    assert_eq!(session.serve(engine.now), ServeOutcome::Busy);
    assert!(!session.is_finished());
    drop(lock);
    assert_eq!(session.serve(engine.now), ServeOutcome::All);
    assert_eq!(output(&mut session), "STORED\r\n");
    assert!(session.is_finished());
}

#[test]
fn each_answered_request_counts_once() {
    let mut engine = Engine::new(4);
    let mut session = engine.session();
    let requests =
        ["get a\r\n", "set a 0 0 1\r\n1\r\n", "get a\r\n", "version\r\n", "flush_all\r\n", "bogus\r\n"];
    for (before, request) in requests.iter().enumerate() {
        assert_eq!(session.served(), before as u64);
        engine.exchange(&mut session, request.as_bytes());
    }
    assert_eq!(session.served(), requests.len() as u64);
}

fn limited(max_output_bytes: usize) -> Engine {
    let limits = SessionLimits { max_output_bytes };
    Engine::with_config(Config::new(64 << 20, 2).unwrap().with_session_limits(limits).unwrap())
}

#[test]
fn a_client_that_does_not_read_is_not_served_further() {
    let mut engine = limited(100_000);
    let value = "v".repeat(10_000);
    engine.execute_text(&format!("set a 0 0 10000\r\n{value}\r\n"));
    let mut session = engine.session();
    let mut received = 0;
    while session.wants_input() {
        receive(&mut session, "get a\r\n");
        received += 1;
        engine.work(&mut session);
        assert!(received < 5_000, "the session always wants more input");
    }
    // The limit, and the answer that reached it.
    assert!(session.output_len() <= 100_000 + 10_100, "{}", session.output_len());
    let mut read = 0;
    while session.output_len() > 0 {
        read += session.take_output(1_500).len();
        engine.work(&mut session);
    }
    assert_eq!(read, received * (10_000 + "VALUE a 0 10000\r\n\r\nEND\r\n".len()));
    assert!(session.wants_input());
}

#[test]
fn errors_fill_the_output_only_up_to_its_limit() {
    let mut engine = limited(1_000);
    let mut session = engine.session();
    receive(&mut session, &"\r\n".repeat(10_000));
    engine.work(&mut session);
    assert!(session.output_len() <= 1_007);
    assert!(!session.wants_input());
}

#[test]
fn a_half_closed_connection_gets_its_answers_and_then_ends() {
    let mut engine = Engine::new(2);
    let mut session = engine.session();
    receive(&mut session, "set a 0 0 1\r\n1\r\nget a\r\nget unfinis");
    session.end_of_input();
    engine.work(&mut session);
    assert!(!session.is_finished() && !session.wants_input());
    assert_eq!(output(&mut session), "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    assert!(session.is_finished());
}

#[test]
fn requests_after_quit_are_ignored() {
    let mut engine = Engine::new(1);
    let mut session = engine.session();
    receive(&mut session, "get a\r\nquit\r\nset a 0 0 1\r\n1\r\n");
    engine.work(&mut session);
    receive(&mut session, "set a 0 0 1\r\n1\r\n");
    engine.work(&mut session);
    assert_eq!(output(&mut session), "END\r\n");
    assert_eq!(session.held_bytes(), 0);
    assert!(session.is_finished());
    assert_eq!(engine.execute_text("get a\r\n"), "END\r\n");
}

#[test]
fn a_large_value_is_stored_and_sent_without_a_copy() {
    let mut engine = Engine::new(1);
    let mut session = engine.session();
    receive(&mut session, "set a 0 0 73000\r\n");
    let frames: Vec<IoBuf> = (0..50).map(|_| IoBuf::from(vec![b'v'; 1460])).collect();
    let addresses: Vec<_> = frames.iter().map(|frame| frame.as_ptr()).collect();
    frames.into_iter().for_each(|frame| session.receive(Chain::from(frame)));
    receive(&mut session, "\r\nget a\r\n");
    engine.work(&mut session);
    let output = session.take_output(usize::MAX);
    let sent: Vec<_> = output.parts().map(|part| part.as_ptr()).filter(|at| addresses.contains(at)).collect();
    assert_eq!(sent, addresses);
}

#[test]
fn a_slow_sender_of_a_large_value_holds_little_memory() {
    let mut engine = Engine::new(1);
    let mut session = engine.session();
    receive(&mut session, "set a 0 0 50000\r\n");
    engine.work(&mut session);
    for sent in 0..50_000usize {
        let mut frame = IoBuf::from(vec![b'v'; 2048]);
        frame.truncate(1);
        session.receive(Chain::from(frame));
        engine.work(&mut session);
        assert!(session.held_bytes() <= 2 * sent + (33 << 10), "{} after {sent}", session.held_bytes());
    }
    assert_eq!(engine.exchange(&mut session, b"\r\n"), b"STORED\r\n");
}
