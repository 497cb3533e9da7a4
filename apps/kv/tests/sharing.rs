//! Concurrent operations on the same items. Each thread represents a core with its own sessions.

mod common;

use common::{Engine, START};
use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, KeyHasher, ServeOutcome, Server, Session};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

const THREADS: usize = 4;

/// Returns the answer of `session` to `input`.
fn exchange(session: &mut Session, input: &str) -> Vec<u8> {
    session.receive(Chain::from(IoBuf::copy_from_slice(input.as_bytes())));
    let mut answer = Chain::new();
    loop {
        // A locked shard becomes free later.
        if session.serve(START) == ServeOutcome::Busy {
            thread::yield_now();
        }
        answer.append(session.take_output(usize::MAX));
        if !session.has_work() {
            return answer.to_vec();
        }
    }
}

fn execute(session: &mut Session, input: &str) -> String {
    String::from_utf8(exchange(session, input)).unwrap()
}

/// Runs `work` in each thread, with a session of its own and the thread's number.
fn at_once(server: &Arc<Server>, work: impl Fn(&mut Session, usize) + Sync) {
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (server, work) = (server.clone(), &work);
            scope.spawn(move || work(&mut Session::new(server), number));
        }
    });
}

fn server(memory_bytes: usize, shards: u16) -> Arc<Server> {
    let config = Config::new(memory_bytes, shards).unwrap();
    Arc::new(Server::new(config, KeyHasher::new(9), START))
}

fn stat(session: &mut Session, name: &str) -> u64 {
    let answer = execute(session, "stats\r\n");
    let line = answer.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.unwrap().parse().unwrap()
}

#[test]
fn counts_conditions_and_statistics_are_exact_under_concurrent_access() {
    const ROUNDS: usize = 1_500;
    // With one shard, all threads compete for the same lock.
    for shards in [1, 7] {
        let server = server(8 << 20, shards);
        let mut session = Session::new(server.clone());
        execute(&mut session, "set sum 0 0 1\r\n0\r\nset guarded 0 0 1\r\n0\r\n");
        let (added, swapped) = (AtomicUsize::new(0), AtomicUsize::new(0));
        at_once(&server, |session, number| {
            for round in 0..ROUNDS {
                let key = format!("own{number}-{}", round % 10);
                let value = format!("{number}/{round}");
                let set = format!("set {key} 0 0 {}\r\n{value}\r\nincr sum 1\r\nget {key}\r\n", value.len());
                let answer = execute(session, &set);
                let got = format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
                assert!(answer.starts_with("STORED\r\n") && answer.ends_with(&got), "{answer:?}");
                let answer = execute(session, &format!("add once{round} 0 0 1\r\n{number}\r\n"));
                added.fetch_add(usize::from(answer == "STORED\r\n"), Ordering::Relaxed);
                let answer = execute(session, "gets guarded\r\n");
                let words: Vec<&str> = answer.split_ascii_whitespace().collect();
                let [_, _, _, _, cas, count, _] = words[..] else { panic!("{answer:?}") };
                let count = (count.parse::<usize>().unwrap() + 1).to_string();
                let answer =
                    execute(session, &format!("cas guarded 0 0 {} {cas}\r\n{count}\r\n", count.len()));
                swapped.fetch_add(usize::from(answer == "STORED\r\n"), Ordering::Relaxed);
            }
        });
        let (total, swapped) = (THREADS * ROUNDS, swapped.into_inner());
        let count = swapped.to_string();
        assert_eq!(execute(&mut session, "get sum\r\n"), format!("VALUE sum 0 4\r\n{total}\r\nEND\r\n"));
        let expected = format!("VALUE guarded 0 {}\r\n{count}\r\nEND\r\n", count.len());
        assert_eq!(execute(&mut session, "get guarded\r\n"), expected);
        assert_eq!(added.into_inner(), ROUNDS, "each key is added once");
        assert_eq!(stat(&mut session, "incr_hits"), total as u64);
        assert_eq!(stat(&mut session, "cas_hits"), swapped as u64);
        assert_eq!(stat(&mut session, "curr_items"), (2 + 10 * THREADS + ROUNDS) as u64);
    }
}

/// Returns a value whose every byte identifies its writer and round.
fn pattern(number: usize, round: usize, len: usize) -> String {
    let letter = char::from(b'a' + (number * 7 + round) as u8 % 26);
    letter.to_string().repeat(len)
}

#[test]
fn a_reader_never_sees_parts_of_two_values() {
    const ROUNDS: usize = 1_500;
    const KEYS: usize = 3;
    // The shorter values are copied into the answer; the longer ones are sent from the item's own memory.
    for len in [400, 3_000, 20_000] {
        let server = server(16 << 20, 2);
        at_once(&server, |session, number| {
            let mut late = Session::new(server.clone());
            for round in 0..ROUNDS / (1 + len / 3_000) {
                let key = (number + round) % KEYS;
                let value = pattern(number, round, len);
                assert_eq!(execute(session, &format!("set k{key} 0 0 {len}\r\n{value}\r\n")), "STORED\r\n");
                // The test checks this answer after other threads have changed the item.
                late.receive(Chain::from(IoBuf::copy_from_slice(format!("get k{key}\r\n").as_bytes())));
                while late.serve(START) == ServeOutcome::Busy {
                    thread::yield_now();
                }
                execute(session, &format!("append k{key} 0 0 1\r\n!\r\ndelete k{}\r\n", (key + 1) % KEYS));
                let answer = late.take_output(usize::MAX).to_vec();
                let lines: Vec<&[u8]> = answer.split(|byte| *byte == b'\n').collect();
                if lines[0].starts_with(b"VALUE") {
                    let value = lines[1].trim_ascii_end();
                    let end = value.iter().position(|byte| *byte == b'!').unwrap_or(value.len());
                    assert!(value[..end].iter().all(|byte| *byte == value[0]), "the answer mixes two values");
                    assert!(value[end..].iter().all(|byte| *byte == b'!') && end == len);
                }
            }
        });
    }
}

#[test]
fn a_flush_removes_earlier_items_for_all_sessions_and_keeps_later_ones() {
    let server = server(8 << 20, 5);
    let flushed = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (server, flushed, done) = (&server, &flushed, &done);
        for number in 1..THREADS {
            scope.spawn(move || {
                let mut session = Session::new(server.clone());
                let mut round = 0;
                while !done.load(Ordering::Acquire) {
                    let key = format!("k{number}-{}", round % 20);
                    let before = flushed.load(Ordering::Acquire);
                    execute(&mut session, &format!("set {key} 0 0 1\r\n1\r\n"));
                    let is_there = execute(&mut session, &format!("get {key}\r\n")).starts_with("VALUE");
                    let after = flushed.load(Ordering::Acquire);
                    // One flush may have begun before its start was recorded.
                    assert!(is_there || after > before || after % 2 == 1, "round {round}");
                    round += 1;
                }
            });
        }
        let mut session = Session::new(server.clone());
        for round in 0..200 {
            execute(&mut session, &format!("set mine{round} 0 0 1\r\n1\r\n"));
            flushed.fetch_add(1, Ordering::AcqRel);
            assert_eq!(execute(&mut session, "flush_all\r\n"), "OK\r\n");
            flushed.fetch_add(1, Ordering::AcqRel);
            assert_eq!(execute(&mut session, &format!("get mine{round}\r\n")), "END\r\n");
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!(stat(&mut Session::new(server.clone()), "cmd_flush"), 200);
}

#[test]
fn the_memory_limit_holds_under_concurrent_stores_and_reclaims() {
    const LIMIT: usize = 600_000;
    let server = server(LIMIT, 3);
    at_once(&server, |session, number| {
        for round in 0..2_000 {
            let len = round * 37 % 3_000;
            let value = pattern(number, round, len);
            let exptime = if round % 3 == 0 { -1 } else { 0 };
            let key = round * 31 % 700;
            let answer = execute(session, &format!("set k{key} 0 {exptime} {len}\r\n{value}\r\n"));
            assert_eq!(answer, "STORED\r\n");
            for id in server.shards.ids() {
                if let Some(mut shard) = server.shards.lock(id) {
                    shard.reclaim(START, 5);
                    assert!(shard.bytes() <= LIMIT / 3);
                }
            }
        }
    });
    let mut session = Session::new(server.clone());
    assert_eq!(stat(&mut session, "total_items"), 2_000 * THREADS as u64);
    assert!(stat(&mut session, "evictions") > 0 && stat(&mut session, "reclaimed") > 0);
}

#[test]
fn a_session_that_migrates_in_the_middle_of_a_request_continues_there() {
    let mut session = Engine::new(4).session();
    // Each byte arrives on another thread: half a value, half a line, and an answer that is not taken yet.
    let input =
        "set a 0 0 10\r\n0123456789\r\nget a\r\nincr n 1\r\nset n 0 0 1\r\n5\r\nincr n 1\r\nget a n\r\n";
    for byte in input.bytes() {
        session = thread::spawn(move || {
            session.receive(Chain::from(IoBuf::copy_from_slice(&[byte])));
            while session.serve(START) == ServeOutcome::Busy {}
            session
        })
        .join()
        .unwrap();
    }
    let answer = String::from_utf8(session.take_output(usize::MAX).to_vec()).unwrap();
    let value = "VALUE a 0 10\r\n0123456789\r\n";
    let expected =
        format!("STORED\r\n{value}END\r\nNOT_FOUND\r\nSTORED\r\n6\r\n{value}VALUE n 0 1\r\n6\r\nEND\r\n");
    assert_eq!(answer, expected);
}
