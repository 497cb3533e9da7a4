//! The text protocol, command by command.

mod common;

use common::Engine;
use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Key, Operation, Request, Response};

/// Sends each request over one connection to one server, and compares the answer.
#[track_caller]
fn converse(lines: &[(&str, &str)]) {
    let mut engine = Engine::new(3);
    let mut session = engine.session();
    for (question, expected) in lines {
        let answer = String::from_utf8(engine.exchange(&mut session, question.as_bytes())).unwrap();
        assert_eq!(&answer, expected, "to {question:?}");
    }
}

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";

#[test]
fn set_stores_the_item_that_get_reads() {
    converse(&[
        ("get a\r\n", "END\r\n"),
        ("set a 5 0 3\r\nabc\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 5 3\r\nabc\r\nEND\r\n"),
        ("set a 4294967295 0 0\r\n\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 4294967295 0\r\n\r\nEND\r\n"),
    ]);
}

#[test]
fn values_may_contain_line_ends() {
    converse(&[
        ("set a 0 0 8\r\na\r\nEND\r\n\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 0 8\r\na\r\nEND\r\n\r\nEND\r\n"),
    ]);
}

#[test]
fn get_answers_many_keys_in_their_order() {
    converse(&[
        ("set a 0 0 1\r\n1\r\nset b 0 0 1\r\n2\r\nset c 0 0 1\r\n3\r\n", "STORED\r\nSTORED\r\nSTORED\r\n"),
        (
            "get c  x a b a \r\n",
            "VALUE c 0 1\r\n3\r\nVALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nVALUE a 0 1\r\n1\r\nEND\r\n",
        ),
        ("get x y\r\n", "END\r\n"),
    ]);
}

#[test]
fn a_read_may_exceed_the_longest_line_of_other_commands() {
    let mut engine = Engine::new(2);
    engine.execute_text("set a 0 0 1\r\n1\r\n");
    let keys = format!("{} a", "k".repeat(249));
    let line = format!("get{}\r\n", format!(" {keys}").repeat(2_000));
    assert_eq!(engine.execute_text(&line), "VALUE a 0 1\r\n1\r\n".repeat(2_000) + "END\r\n");
    let touching = format!("gat 0{} \r\nversion\r\n", format!(" {keys}").repeat(200));
    let answer = engine.execute_text(&touching);
    assert!(answer.starts_with(&("VALUE a 0 1\r\n1\r\n".repeat(200) + "END\r\nVERSION ")), "{answer}");
    let bad = format!("get{} {}\r\nversion\r\n", format!(" {keys}").repeat(20), "k".repeat(251));
    assert!(engine.execute_text(&bad).contains(&format!("{BAD_FORMAT}VERSION ")));
}

#[test]
fn a_long_line_of_another_command_ends_the_connection() {
    let mut engine = Engine::new(1);
    let mut session = engine.session();
    let line = format!("set {}", "k".repeat(3_000));
    assert_eq!(engine.exchange(&mut session, line.as_bytes()), b"CLIENT_ERROR line too long\r\n");
    assert!(session.is_finished());
}

#[test]
fn add_and_replace_depend_on_the_existing_item() {
    converse(&[
        ("replace a 0 0 1\r\n1\r\n", "NOT_STORED\r\n"),
        ("add a 0 0 1\r\n1\r\n", "STORED\r\n"),
        ("add a 0 0 1\r\n2\r\n", "NOT_STORED\r\n"),
        ("replace a 0 0 1\r\n3\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 0 1\r\n3\r\nEND\r\n"),
    ]);
}

#[test]
fn append_and_prepend_keep_flags() {
    converse(&[
        ("append a 0 0 1\r\n1\r\n", "NOT_STORED\r\n"),
        ("prepend a 0 0 1\r\n1\r\n", "NOT_STORED\r\n"),
        ("set a 9 0 1\r\n-\r\n", "STORED\r\n"),
        ("append a 1 1 2\r\n>>\r\n", "STORED\r\n"),
        ("prepend a 1 1 2\r\n<<\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 9 5\r\n<<->>\r\nEND\r\n"),
    ]);
}

/// Returns the version in an answer to `gets` of one item.
fn version(answer: &str) -> u64 {
    answer.lines().next().unwrap().split(' ').nth(4).unwrap().parse().unwrap()
}

#[test]
fn cas_replaces_only_the_expected_version() {
    let mut engine = Engine::new(2);
    assert_eq!(engine.execute_text("cas a 0 0 1 1\r\n1\r\n"), "NOT_FOUND\r\n");
    engine.execute_text("set a 0 0 1\r\n1\r\n");
    let first = version(&engine.execute_text("gets a\r\n"));
    assert_eq!(engine.execute_text(&format!("cas a 0 0 1 {first}\r\n2\r\n")), "STORED\r\n");
    assert_eq!(engine.execute_text(&format!("cas a 0 0 1 {first}\r\n3\r\n")), "EXISTS\r\n");
    assert_eq!(engine.execute_text("cas a 0 0 1 0\r\n3\r\n"), "EXISTS\r\n");
    let second = version(&engine.execute_text("gets a\r\n"));
    assert_ne!(first, second);
    assert_eq!(engine.execute_text("gets a\r\n"), format!("VALUE a 0 1 {second}\r\n2\r\nEND\r\n"));
    for bad in ["x", "-1", "99999999999999999999"] {
        assert_eq!(engine.execute_text(&format!("cas a 0 0 1 {bad}\r\n")), BAD_FORMAT);
    }
}

#[test]
fn delete_removes_an_item_and_checks_its_arguments() {
    converse(&[
        ("delete a\r\n", "NOT_FOUND\r\n"),
        ("set a 0 0 1\r\n1\r\n", "STORED\r\n"),
        ("delete a 0\r\n", "DELETED\r\n"),
        ("get a\r\n", "END\r\n"),
        ("delete a 1\r\n", "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"),
        ("delete a b c d\r\n", "ERROR\r\n"),
    ]);
}

#[test]
fn incr_and_decr_count_and_check_their_arguments() {
    converse(&[
        ("incr n 1\r\n", "NOT_FOUND\r\n"),
        ("set n 7 0 2\r\n99\r\n", "STORED\r\n"),
        ("incr n 1\r\n", "100\r\n"),
        ("decr n 99\r\n", "1\r\n"),
        ("get n\r\n", "VALUE n 7 3\r\n1  \r\nEND\r\n"),
        ("decr n 5\r\n", "0\r\n"),
        ("incr n 18446744073709551615\r\n", "18446744073709551615\r\n"),
        ("incr n 2\r\n", "1\r\n"),
        ("incr n -1\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("set n 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("incr n 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
    ]);
}

#[test]
fn a_value_does_not_change_while_it_is_read() {
    let mut engine = Engine::new(1);
    let large = "v".repeat(5_000);
    engine.execute_text(&format!("set n 0 0 2\r\n10\r\nset large 0 0 5000\r\n{large}\r\n"));
    let key = Key::new(IoBuf::from_static(b"n"), &engine.server.hasher).unwrap();
    let read = Request::Item { key, operation: Operation::Get };
    let Response::Hit(hit) = engine.shard(0).execute(engine.now, read) else { panic!("the item is missing") };
    let mut reader = engine.session();
    reader.receive(Chain::from(IoBuf::from_static(b"get large\r\n")));
    engine.work(&mut reader);
    assert_eq!(engine.execute_text("incr n 5\r\ndelete n\r\n"), "15\r\nDELETED\r\n");
    assert_eq!(
        engine.execute_text("append large 0 0 1\r\nx\r\nset large 0 0 1\r\nx\r\n"),
        "STORED\r\nSTORED\r\n"
    );
    assert_eq!(hit.body.value().to_vec(), b"10");
    let answer = reader.take_output(usize::MAX).to_vec();
    assert_eq!(String::from_utf8(answer).unwrap(), format!("VALUE large 0 5000\r\n{large}\r\nEND\r\n"));
}

#[test]
fn items_expire_at_their_deadline() {
    let mut engine = Engine::new(2);
    engine.execute_text("set past 0 -1 1\r\n1\r\nset soon 0 10 1\r\n1\r\nset never 0 0 1\r\n1\r\n");
    engine.execute_text(&format!("set moment 0 {} 1\r\n1\r\n", engine.now.0 + 20));
    assert_eq!(engine.execute_text("get past\r\n"), "END\r\n");
    engine.wait(9);
    assert_eq!(engine.execute_text("get soon\r\n"), "VALUE soon 0 1\r\n1\r\nEND\r\n");
    engine.wait(1);
    assert_eq!(engine.execute_text("get soon\r\n"), "END\r\n");
    assert_eq!(engine.execute_text("incr soon 1\r\n"), "NOT_FOUND\r\n");
    engine.wait(10);
    assert_eq!(engine.execute_text("get moment never\r\n"), "VALUE never 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn touch_and_gat_change_the_expiration_time() {
    let mut engine = Engine::new(2);
    assert_eq!(engine.execute_text("touch a 10\r\n"), "NOT_FOUND\r\n");
    engine.execute_text("set a 3 0 1\r\n1\r\n");
    assert_eq!(engine.execute_text("touch a 10\r\n"), "TOUCHED\r\n");
    engine.wait(9);
    assert_eq!(engine.execute_text("gat 10 a b\r\n"), "VALUE a 3 1\r\n1\r\nEND\r\n");
    engine.wait(9);
    let answer = engine.execute_text("gats -1 a\r\n");
    assert_eq!(answer, format!("VALUE a 3 1 {}\r\n1\r\nEND\r\n", version(&answer)));
    assert_eq!(engine.execute_text("get a\r\n"), "END\r\n");
    for (question, answer) in [
        ("touch a\r\n", "ERROR\r\n"),
        ("touch a x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("gat\r\n", "ERROR\r\n"),
        ("gat 1\r\n", "END\r\n"),
        ("gat x a\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
    ] {
        assert_eq!(engine.execute_text(question), answer, "to {question:?}");
    }
}

#[test]
fn flush_all_invalidates_all_earlier_items() {
    let mut engine = Engine::new(4);
    let all: String = (0..50).map(|n| format!("set k{n} 0 0 1 noreply\r\nx\r\n")).collect();
    let keys: String = (0..50).map(|n| format!(" k{n}")).collect();
    assert_eq!(engine.execute_text(&all), "");
    assert_eq!(engine.execute_text("flush_all\r\nset k7 0 0 1\r\ny\r\n"), "OK\r\nSTORED\r\n");
    assert_eq!(engine.execute_text(&format!("get{keys}\r\n")), "VALUE k7 0 1\r\ny\r\nEND\r\n");
    assert_eq!(engine.execute_text("flush_all x\r\n"), "CLIENT_ERROR invalid exptime argument\r\n");
    assert_eq!(engine.execute_text("flush_all 1 2 3\r\n"), "ERROR\r\n");
}

#[test]
fn flush_all_with_a_delay_takes_effect_when_it_is_due() {
    let mut engine = Engine::new(2);
    engine.execute_text("set a 0 0 1\r\n1\r\n");
    assert_eq!(engine.execute_text("flush_all 10\r\n"), "OK\r\n");
    engine.wait(5);
    assert_eq!(engine.execute_text("set b 0 0 1\r\n1\r\nget a\r\n"), "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    engine.wait(5);
    assert_eq!(engine.execute_text("get a b\r\n"), "END\r\n");
    assert_eq!(engine.execute_text("set a 0 0 1\r\n2\r\nget a\r\n"), "STORED\r\nVALUE a 0 1\r\n2\r\nEND\r\n");
}

#[test]
fn noreply_suppresses_success_and_error() {
    converse(&[
        ("set a 0 0 1 noreply\r\n1\r\nadd a 0 0 1 noreply\r\n2\r\nreplace zz 0 0 1 noreply\r\n1\r\n", ""),
        ("append a 0 0 1 noreply\r\n2\r\nincr a 1 noreply\r\ndecr zz 1 noreply\r\ntouch a 0 noreply\r\n", ""),
        ("cas zz 0 0 1 1 noreply\r\n1\r\ndelete zz noreply\r\ndelete zz 0 noreply\r\n", ""),
        ("set a 0 0 -1 noreply\r\nincr a x noreply\r\ntouch a x noreply\r\ndelete a 1 noreply\r\n", ""),
        ("verbosity 1 noreply\r\nflush_all 10 noreply\r\n", ""),
        ("get a\r\n", "VALUE a 0 2\r\n13\r\nEND\r\n"),
        ("flush_all noreply\r\nget a\r\n", "END\r\n"),
    ]);
}

#[test]
fn malformed_lines_get_errors_and_do_not_end_the_connection() {
    let long = "k".repeat(251);
    converse(&[
        ("\r\n", "ERROR\r\n"),
        ("bogus\r\n", "ERROR\r\n"),
        ("GET a\r\n", "ERROR\r\n"),
        ("get\r\n", "ERROR\r\n"),
        ("set a 0 0\r\n", "ERROR\r\n"),
        ("set a 0 0 1 2 3\r\n", "ERROR\r\n"),
        ("set a 0 0 -1\r\n", BAD_FORMAT),
        ("set a 0 0 2147483646\r\n", BAD_FORMAT),
        ("set a 4294967296 0 1\r\n", BAD_FORMAT),
        ("set a 0 x 1\r\n", BAD_FORMAT),
        (&format!("set {long} 0 0 1\r\n"), BAD_FORMAT),
        (&format!("get a {long} b\r\n"), BAD_FORMAT),
        (&format!("delete {long}\r\n"), BAD_FORMAT),
        (&format!("incr {long} 1\r\n"), BAD_FORMAT),
        (&format!("touch {long} 1\r\n"), BAD_FORMAT),
        ("verbosity\r\n", "ERROR\r\n"),
        ("verbosity x\r\n", BAD_FORMAT),
        ("stats nonsense\r\n", "ERROR\r\n"),
        ("set a 0 0 3\r\nabcde", "CLIENT_ERROR bad data chunk\r\n"),
        ("shutdown\r\n", "ERROR: shutdown not enabled\r\n"),
        ("verbosity 1\r\n", "OK\r\n"),
        ("get a\r\n", "END\r\n"),
    ]);
}

#[test]
fn lines_may_end_without_a_carriage_return() {
    converse(&[(
        "set a 0 0 1\n1\r\nget a\nget a b\n",
        "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\nVALUE a 0 1\r\n1\r\nEND\r\n",
    )]);
}

#[test]
fn keys_may_have_up_to_250_bytes() {
    let key = "\u{1}é\t".repeat(62) + "kk";
    assert_eq!(key.len(), 250);
    converse(&[
        (&format!("set {key} 0 0 1\r\n1\r\n"), "STORED\r\n"),
        (&format!("get {key}\r\n"), &format!("VALUE {key} 0 1\r\n1\r\nEND\r\n")),
    ]);
}

#[test]
fn a_value_of_1_mib_is_stored_and_a_larger_one_rejected() {
    let mut engine = Engine::new(2);
    let value = "v".repeat(1 << 20);
    assert_eq!(engine.execute_text(&format!("set a 0 0 {}\r\n{value}\r\n", value.len())), "STORED\r\n");
    assert_eq!(engine.execute_text("get a\r\n"), format!("VALUE a 0 1048576\r\n{value}\r\nEND\r\n"));
    const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
    assert_eq!(engine.execute_text("append a 0 0 1\r\n.\r\n"), TOO_LARGE);
    let answer = engine.execute_text(&format!("add a 0 0 {}\r\n{value}!\r\ntouch a 0\r\n", value.len() + 1));
    assert_eq!(answer, format!("{TOO_LARGE}TOUCHED\r\n"));
    // No client may read a value that another client believes to be overwritten.
    let answer = engine.execute_text(&format!("set a 0 0 {}\r\n{value}!\r\nget a\r\n", value.len() + 1));
    assert_eq!(answer, format!("{TOO_LARGE}END\r\n"));
}

#[test]
fn a_cas_that_is_too_large_does_not_change_the_item() {
    let mut engine = Engine::new(1);
    let answer = engine.execute_text("set a 0 0 1\r\n1\r\ngets a\r\n");
    let cas = answer.split_whitespace().nth(5).expect("the answer has a version").to_owned();
    let value = "v".repeat((1 << 20) + 1);
    let there = "VALUE a 0 1\r\n1\r\nEND\r\n";
    let answer = engine.execute_text(&format!("cas a 0 0 {} {cas}\r\n{value}\r\nget a\r\n", value.len()));
    assert_eq!(answer, format!("SERVER_ERROR object too large for cache\r\n{there}"));

    let mut engine = Engine::with_config(isola_kv::Config::new(128 << 10, 1).unwrap());
    let answer = engine.execute_text("set a 0 0 1\r\n1\r\ngets a\r\n");
    let cas = answer.split_whitespace().nth(5).expect("the answer has a version").to_owned();
    let value = &value[..200 << 10];
    let answer = engine.execute_text(&format!("cas a 0 0 {} {cas}\r\n{value}\r\nget a\r\n", value.len()));
    assert_eq!(answer, format!("SERVER_ERROR out of memory storing object\r\n{there}"));
}

#[test]
fn a_value_larger_than_a_shard_is_rejected() {
    let mut engine = Engine::with_config(isola_kv::Config::new(128 << 10, 1).unwrap());
    let value = "v".repeat(200 << 10);
    engine.execute_text("set a 0 0 1\r\n1\r\nset b 0 0 1\r\n1\r\n");
    let answer = engine.execute_text(&format!("set a 0 0 {}\r\n{value}\r\nget a b\r\n", value.len()));
    assert_eq!(answer, "SERVER_ERROR out of memory storing object\r\nVALUE b 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn quit_ends_the_connection_after_the_answers() {
    let mut engine = Engine::new(1);
    let mut session = engine.session();
    let answer = engine.exchange(&mut session, b"set a 0 0 1\r\n1\r\nquit\r\nget a\r\n");
    assert_eq!(answer, b"STORED\r\n");
    assert!(session.is_finished() && !session.wants_input());
}

#[test]
fn items_in_different_shards_have_different_versions() {
    let mut engine = Engine::new(5);
    let mut versions = std::collections::BTreeSet::new();
    for round in 0..3 {
        for number in 0..40 {
            engine.execute_text(&format!("set k{number} 0 0 1\r\n{round}\r\nincr k{number} 1\r\n"));
            let answer = engine.execute_text(&format!("gets k{number}\r\n"));
            let version: u64 = answer.lines().next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
            assert!(version > 0 && versions.insert(version), "{version} is there twice");
        }
        assert_eq!(engine.execute_text("flush_all\r\nget k1 k2 k3\r\n"), "OK\r\nEND\r\n");
    }
}

#[test]
fn an_http_request_ends_the_connection_before_its_lines_are_parsed() {
    for line in ["GET / HTTP/1.0", "POST /a HTTP/1.1", "DELETE HTTP/1.1", "x HTTP/2 "] {
        let mut engine = Engine::new(1);
        let mut session = engine.session();
        let page = format!("mn\r\n{line}\r\nHost: a\r\n\r\nset a 0 0 1\r\n1\r\n");
        assert_eq!(engine.exchange(&mut session, page.as_bytes()), b"MN\r\n", "{line}");
        assert!(session.is_finished(), "{line}");
        assert_eq!(engine.execute_text("get a\r\n"), "END\r\n");
    }
    assert_eq!(
        Engine::new(1).execute_text("get HTTP/1.1\r\nset a HTTP/1.1\r\nHTTP\r\nmn\r\n"),
        "END\r\nERROR\r\nERROR\r\nMN\r\n"
    );
}

#[test]
fn slabs_commands_are_rejected_because_there_are_no_slabs() {
    let mut engine = Engine::new(1);
    let (format, disabled) =
        ("CLIENT_ERROR bad command line format\r\n", "CLIENT_ERROR slab reassignment disabled\r\n");
    for (line, answer) in [
        ("slabs automove 1", disabled),
        ("slabs automove x", format),
        ("slabs reassign 1 2", disabled),
        ("slabs reassign 1 x", format),
        ("slabs reassign 1", "ERROR\r\n"),
        ("slabs", "ERROR\r\n"),
    ] {
        assert_eq!(engine.execute_text(&format!("{line}\r\n")), answer, "{line}");
    }
}
