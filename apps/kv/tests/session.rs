//! A connection: order, back-pressure and its end.

mod common;

use common::Engine;
use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, Request, Response, Session, SessionLimits, Ticket, Work};

fn receive(session: &mut Session, text: &str) {
    session.receive(Chain::from(IoBuf::copy_from_slice(text.as_bytes())));
}

fn all_work(session: &mut Session) -> Vec<Work> {
    std::iter::from_fn(|| session.next_work()).collect()
}

fn execute(engine: &mut Engine, work: Work) -> (Ticket, Response) {
    (work.ticket, engine.shards[usize::from(work.shard.0)].execute(engine.now, work.request))
}

fn output(session: &mut Session) -> String {
    String::from_utf8(session.take_output(usize::MAX).to_vec()).unwrap()
}

#[test]
fn answers_leave_in_order_whatever_order_shards_answer_in() {
    let mut engine = Engine::new(4);
    let mut session = engine.session();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for name in names {
        receive(&mut session, &format!("set {name} 0 0 1\r\n{name}\r\n"));
    }
    receive(&mut session, "bogus\r\nget h g f e d c b a x\r\n");
    let mut done: Vec<_> =
        all_work(&mut session).into_iter().map(|work| execute(&mut engine, work)).collect();
    let (first_ticket, first_response) = done.remove(0);
    for (ticket, response) in done.into_iter().rev() {
        session.complete(ticket, response);
        assert_eq!(session.output_len(), 0);
    }
    session.complete(first_ticket, first_response);
    let values: String = names.iter().rev().map(|name| format!("VALUE {name} 0 1\r\n{name}\r\n")).collect();
    assert_eq!(output(&mut session), "STORED\r\n".repeat(8) + "ERROR\r\n" + &values + "END\r\n");
}

#[test]
fn what_is_answered_at_once_waits_for_what_is_not() {
    let mut engine = Engine::new(4);
    let keys: Vec<String> = (0..32).map(|number| format!("k{number}")).collect();
    let mut session = engine.session();
    keys.iter().for_each(|key| receive(&mut session, &format!("set {key} 0 0 1\r\n1\r\nget {key}\r\n")));
    let mut away = Vec::new();
    while let Some(work) = session.serve(&mut engine.shards[2], engine.now) {
        assert_ne!(work.shard.0, 2);
        away.push(execute(&mut engine, work));
    }
    assert!(away.len() > 16, "{} of 64 requests are for other shards", away.len());
    assert!(session.output_len() < 16 * 30);
    away.into_iter().rev().for_each(|(ticket, response)| session.complete(ticket, response));
    let expected: String =
        keys.iter().map(|key| format!("STORED\r\nVALUE {key} 0 1\r\n1\r\nEND\r\n")).collect();
    assert_eq!(output(&mut session), expected);
    assert!(session.serve(&mut engine.shards[2], engine.now).is_none());
}

#[test]
fn what_concerns_all_shards_waits_for_the_last_of_them() {
    let mut engine = Engine::new(4);
    let mut session = engine.session();
    receive(&mut session, "flush_all\r\nversion\r\n");
    let work = all_work(&mut session);
    assert_eq!(work.iter().map(|work| work.shard.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(work.iter().all(|work| matches!(work.request, Request::All(_))));
    for (done, work) in work.into_iter().enumerate() {
        assert_eq!((session.output_len(), done < 4), (0, true));
        let (ticket, response) = execute(&mut engine, work);
        session.complete(ticket, response);
    }
    assert!(output(&mut session).starts_with("OK\r\nVERSION "));
}

#[test]
fn a_ticket_counts_once() {
    let mut engine = Engine::new(1);
    let mut session = engine.session();
    receive(&mut session, "get a\r\nget b\r\n");
    let mut work = all_work(&mut session);
    let (second, response) = execute(&mut engine, work.remove(1));
    session.complete(second, response);
    session.complete(second, Response::Done);
    let (first, response) = execute(&mut engine, work.remove(0));
    session.complete(first, response);
    session.complete(first, Response::Done);
    session.complete(second, Response::Done);
    assert_eq!((output(&mut session).as_str(), session.in_flight()), ("END\r\nEND\r\n", 0));
}

fn limited(max_in_flight: usize, max_output_bytes: usize) -> Engine {
    let limits = SessionLimits { max_in_flight, max_output_bytes };
    Engine::with_config(Config::new(64 << 20, 2).unwrap().with_session_limits(limits).unwrap())
}

#[test]
fn only_so_many_requests_are_under_way() {
    let mut engine = limited(3, 1 << 20);
    let mut session = engine.session();
    receive(&mut session, &"get a\r\n".repeat(5_000));
    let mut answered = 0;
    loop {
        let work = all_work(&mut session);
        assert_eq!(session.in_flight(), work.len());
        if work.is_empty() {
            break;
        }
        assert!(work.len() <= 3);
        assert!(work.len() < 3 || answered > 2_000 || !session.wants_input());
        for work in work {
            let (ticket, response) = execute(&mut engine, work);
            session.complete(ticket, response);
            answered += 1;
        }
    }
    assert_eq!(answered, 5_000);
    assert!(session.wants_input());
}

#[test]
fn a_client_that_does_not_read_is_not_served_further() {
    let mut engine = limited(16, 100_000);
    let value = "v".repeat(10_000);
    engine.say(&format!("set a 0 0 10000\r\n{value}\r\n"));
    let mut session = engine.session();
    let mut received = 0;
    while session.wants_input() {
        receive(&mut session, "get a\r\n");
        received += 1;
        engine.work(&mut session);
        assert!(received < 5_000, "the session never has enough");
    }
    // The limit, and the answers that were under way when it was reached.
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
fn large_answers_from_other_cores_are_not_asked_for_all_at_once() {
    let mut engine = limited(64, 256 << 10);
    let value = "v".repeat(1 << 20);
    engine.say(&format!("set a 0 0 1048576\r\n{value}\r\n"));
    let mut session = engine.session();
    receive(&mut session, "get a\r\n");
    engine.work(&mut session);
    session.take_output(usize::MAX);
    receive(&mut session, &"get a\r\n".repeat(64));
    assert_eq!(all_work(&mut session).len(), 1);
}

#[test]
fn errors_alone_fill_the_output_no_further_than_its_limit() {
    let mut engine = limited(16, 1_000);
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
    let work: Vec<Work> = all_work(&mut session);
    assert_eq!(work.len(), 2);
    assert!(!session.is_finished() && !session.wants_input());
    for work in work {
        let (ticket, response) = execute(&mut engine, work);
        session.complete(ticket, response);
    }
    assert!(!session.is_finished());
    assert_eq!(output(&mut session), "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    assert!(session.is_finished());
}

#[test]
fn nothing_behind_a_quit_is_looked_at() {
    let mut engine = Engine::new(1);
    let mut session = engine.session();
    receive(&mut session, "get a\r\nquit\r\nset a 0 0 1\r\n1\r\n");
    let work = all_work(&mut session);
    assert_eq!(work.len(), 1);
    receive(&mut session, "set a 0 0 1\r\n1\r\n");
    assert_eq!(session.held_bytes(), 0);
    for work in work {
        let (ticket, response) = execute(&mut engine, work);
        session.complete(ticket, response);
    }
    assert_eq!(output(&mut session), "END\r\n");
    assert!(session.is_finished());
}

#[test]
fn a_large_value_goes_through_without_a_copy() {
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
