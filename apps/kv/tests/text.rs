//! The text protocol, command by command, as its clients see it.

mod common;

use common::Engine;
use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Key, Operation, Request, Response};

/// Asks each question of one server, over one connection, and compares its answer.
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
fn set_and_get() {
    converse(&[
        ("get a\r\n", "END\r\n"),
        ("set a 5 0 3\r\nabc\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 5 3\r\nabc\r\nEND\r\n"),
        ("set a 4294967295 0 0\r\n\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 4294967295 0\r\n\r\nEND\r\n"),
    ]);
}

#[test]
fn values_may_hold_line_ends() {
    converse(&[
        ("set a 0 0 8\r\na\r\nEND\r\n\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 0 8\r\na\r\nEND\r\n\r\nEND\r\n"),
    ]);
}

#[test]
fn get_of_many_keys_answers_in_their_order() {
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
fn a_read_may_be_longer_than_any_other_line() {
    let mut engine = Engine::new(2);
    engine.say("set a 0 0 1\r\n1\r\n");
    let keys = format!("{} a", "k".repeat(249));
    let line = format!("get{}\r\n", format!(" {keys}").repeat(2_000));
    assert_eq!(engine.say(&line), "VALUE a 0 1\r\n1\r\n".repeat(2_000) + "END\r\n");
    let touching = format!("gat 0{} \r\nversion\r\n", format!(" {keys}").repeat(200));
    let answer = engine.say(&touching);
    assert!(answer.starts_with(&("VALUE a 0 1\r\n1\r\n".repeat(200) + "END\r\nVERSION ")), "{answer}");
    let bad = format!("get{} {}\r\nversion\r\n", format!(" {keys}").repeat(20), "k".repeat(251));
    assert!(engine.say(&bad).contains(&format!("{BAD_FORMAT}VERSION ")));
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
fn add_and_replace_depend_on_what_is_there() {
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

/// The version in an answer to `gets` of one item.
fn version(answer: &str) -> u64 {
    answer.lines().next().unwrap().split(' ').nth(4).unwrap().parse().unwrap()
}

#[test]
fn cas_stores_over_the_known_version_only() {
    let mut engine = Engine::new(2);
    assert_eq!(engine.say("cas a 0 0 1 1\r\n1\r\n"), "NOT_FOUND\r\n");
    engine.say("set a 0 0 1\r\n1\r\n");
    let first = version(&engine.say("gets a\r\n"));
    assert_eq!(engine.say(&format!("cas a 0 0 1 {first}\r\n2\r\n")), "STORED\r\n");
    assert_eq!(engine.say(&format!("cas a 0 0 1 {first}\r\n3\r\n")), "EXISTS\r\n");
    assert_eq!(engine.say("cas a 0 0 1 0\r\n3\r\n"), "EXISTS\r\n");
    let second = version(&engine.say("gets a\r\n"));
    assert_ne!(first, second);
    assert_eq!(engine.say("gets a\r\n"), format!("VALUE a 0 1 {second}\r\n2\r\nEND\r\n"));
    for bad in ["x", "-1", "99999999999999999999"] {
        assert_eq!(engine.say(&format!("cas a 0 0 1 {bad}\r\n")), BAD_FORMAT);
    }
}

#[test]
fn delete() {
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
fn incr_and_decr() {
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
fn a_value_being_read_does_not_change_under_the_reader() {
    let mut engine = Engine::new(1);
    let large = "v".repeat(5_000);
    engine.say(&format!("set n 0 0 2\r\n10\r\nset large 0 0 5000\r\n{large}\r\n"));
    let key = Key::new(IoBuf::from_static(b"n"), &engine.server.hasher).unwrap();
    let read = Request::Item { key, operation: Operation::Get };
    let Response::Hit(hit) = engine.shard(0).execute(engine.now, read) else { panic!("it is there") };
    let mut reader = engine.session();
    reader.receive(Chain::from(IoBuf::from_static(b"get large\r\n")));
    engine.work(&mut reader);
    assert_eq!(engine.say("incr n 5\r\ndelete n\r\n"), "15\r\nDELETED\r\n");
    assert_eq!(engine.say("append large 0 0 1\r\nx\r\nset large 0 0 1\r\nx\r\n"), "STORED\r\nSTORED\r\n");
    assert_eq!(hit.body.value().to_vec(), b"10");
    let answer = reader.take_output(usize::MAX).to_vec();
    assert_eq!(String::from_utf8(answer).unwrap(), format!("VALUE large 0 5000\r\n{large}\r\nEND\r\n"));
}

#[test]
fn items_end_when_they_should() {
    let mut engine = Engine::new(2);
    engine.say("set past 0 -1 1\r\n1\r\nset soon 0 10 1\r\n1\r\nset never 0 0 1\r\n1\r\n");
    engine.say(&format!("set moment 0 {} 1\r\n1\r\n", engine.now.0 + 20));
    assert_eq!(engine.say("get past\r\n"), "END\r\n");
    engine.wait(9);
    assert_eq!(engine.say("get soon\r\n"), "VALUE soon 0 1\r\n1\r\nEND\r\n");
    engine.wait(1);
    assert_eq!(engine.say("get soon\r\n"), "END\r\n");
    assert_eq!(engine.say("incr soon 1\r\n"), "NOT_FOUND\r\n");
    engine.wait(10);
    assert_eq!(engine.say("get moment never\r\n"), "VALUE never 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn touch_and_gat_change_the_end() {
    let mut engine = Engine::new(2);
    assert_eq!(engine.say("touch a 10\r\n"), "NOT_FOUND\r\n");
    engine.say("set a 3 0 1\r\n1\r\n");
    assert_eq!(engine.say("touch a 10\r\n"), "TOUCHED\r\n");
    engine.wait(9);
    assert_eq!(engine.say("gat 10 a b\r\n"), "VALUE a 3 1\r\n1\r\nEND\r\n");
    engine.wait(9);
    let answer = engine.say("gats -1 a\r\n");
    assert_eq!(answer, format!("VALUE a 3 1 {}\r\n1\r\nEND\r\n", version(&answer)));
    assert_eq!(engine.say("get a\r\n"), "END\r\n");
    for (question, answer) in [
        ("touch a\r\n", "ERROR\r\n"),
        ("touch a x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("gat\r\n", "ERROR\r\n"),
        ("gat 1\r\n", "END\r\n"),
        ("gat x a\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
    ] {
        assert_eq!(engine.say(question), answer, "to {question:?}");
    }
}

#[test]
fn flush_all_takes_what_was_stored_before() {
    let mut engine = Engine::new(4);
    let all: String = (0..50).map(|n| format!("set k{n} 0 0 1 noreply\r\nx\r\n")).collect();
    let keys: String = (0..50).map(|n| format!(" k{n}")).collect();
    assert_eq!(engine.say(&all), "");
    assert_eq!(engine.say("flush_all\r\nset k7 0 0 1\r\ny\r\n"), "OK\r\nSTORED\r\n");
    assert_eq!(engine.say(&format!("get{keys}\r\n")), "VALUE k7 0 1\r\ny\r\nEND\r\n");
    assert_eq!(engine.say("flush_all x\r\n"), "CLIENT_ERROR invalid exptime argument\r\n");
    assert_eq!(engine.say("flush_all 1 2 3\r\n"), "ERROR\r\n");
}

#[test]
fn flush_all_with_a_delay_comes_when_it_is_due() {
    let mut engine = Engine::new(2);
    engine.say("set a 0 0 1\r\n1\r\n");
    assert_eq!(engine.say("flush_all 10\r\n"), "OK\r\n");
    engine.wait(5);
    assert_eq!(engine.say("set b 0 0 1\r\n1\r\nget a\r\n"), "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    engine.wait(5);
    assert_eq!(engine.say("get a b\r\n"), "END\r\n");
    assert_eq!(engine.say("set a 0 0 1\r\n2\r\nget a\r\n"), "STORED\r\nVALUE a 0 1\r\n2\r\nEND\r\n");
}

#[test]
fn noreply_silences_success_and_error() {
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
fn malformed_lines_are_told_and_survived() {
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
fn keys_of_up_to_250_bytes_of_any_kind() {
    let key = "\u{1}é\t".repeat(62) + "kk";
    assert_eq!(key.len(), 250);
    converse(&[
        (&format!("set {key} 0 0 1\r\n1\r\n"), "STORED\r\n"),
        (&format!("get {key}\r\n"), &format!("VALUE {key} 0 1\r\n1\r\nEND\r\n")),
    ]);
}

#[test]
fn a_value_of_1_mib_is_kept_and_a_larger_one_turned_down() {
    let mut engine = Engine::new(2);
    let value = "v".repeat(1 << 20);
    assert_eq!(engine.say(&format!("set a 0 0 {}\r\n{value}\r\n", value.len())), "STORED\r\n");
    assert_eq!(engine.say("get a\r\n"), format!("VALUE a 0 1048576\r\n{value}\r\nEND\r\n"));
    const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
    assert_eq!(engine.say("append a 0 0 1\r\n.\r\n"), TOO_LARGE);
    let answer = engine.say(&format!("add a 0 0 {}\r\n{value}!\r\ntouch a 0\r\n", value.len() + 1));
    assert_eq!(answer, format!("{TOO_LARGE}TOUCHED\r\n"));
    // Nobody is to read what a client believes to be overwritten.
    let answer = engine.say(&format!("set a 0 0 {}\r\n{value}!\r\nget a\r\n", value.len() + 1));
    assert_eq!(answer, format!("{TOO_LARGE}END\r\n"));
}

#[test]
fn a_cas_too_large_leaves_what_is_there() {
    let mut engine = Engine::new(1);
    let answer = engine.say("set a 0 0 1\r\n1\r\ngets a\r\n");
    let cas = answer.split_whitespace().nth(5).expect("a version").to_owned();
    let value = "v".repeat((1 << 20) + 1);
    let there = "VALUE a 0 1\r\n1\r\nEND\r\n";
    let answer = engine.say(&format!("cas a 0 0 {} {cas}\r\n{value}\r\nget a\r\n", value.len()));
    assert_eq!(answer, format!("SERVER_ERROR object too large for cache\r\n{there}"));

    let mut engine = Engine::with_config(isola_kv::Config::new(128 << 10, 1).unwrap());
    let answer = engine.say("set a 0 0 1\r\n1\r\ngets a\r\n");
    let cas = answer.split_whitespace().nth(5).expect("a version").to_owned();
    let value = &value[..200 << 10];
    let answer = engine.say(&format!("cas a 0 0 {} {cas}\r\n{value}\r\nget a\r\n", value.len()));
    assert_eq!(answer, format!("SERVER_ERROR out of memory storing object\r\n{there}"));
}

#[test]
fn a_value_larger_than_a_shard_is_turned_down() {
    let mut engine = Engine::with_config(isola_kv::Config::new(128 << 10, 1).unwrap());
    let value = "v".repeat(200 << 10);
    engine.say("set a 0 0 1\r\n1\r\nset b 0 0 1\r\n1\r\n");
    let answer = engine.say(&format!("set a 0 0 {}\r\n{value}\r\nget a b\r\n", value.len()));
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

/// The values of an answer to `stats`, by name.
fn stat(answer: &str, name: &str) -> String {
    let prefix = format!("STAT {name} ");
    let line = answer.lines().find(|line| line.starts_with(&prefix));
    line.unwrap_or_else(|| panic!("no {name} in {answer}"))[prefix.len()..].to_owned()
}

#[test]
fn stats_sum_up_all_shards() {
    let mut engine = Engine::new(4);
    // A connection that came to one core, moved to another, and back, beside one that has ended elsewhere.
    let tallies = &engine.server.tallies;
    tallies.of(2).accepted();
    tallies.of(0).accepted();
    tallies.of(1).ended();
    tallies.of(1).rejected();
    tallies.of(1).received(60);
    tallies.of(2).received(40);
    tallies.of(63).sent(200);
    for n in 0..100 {
        engine.say(&format!("set k{n} 0 0 1\r\n1\r\nget k{n} miss{n}\r\n"));
    }
    engine.say("delete k1\r\ndelete k1\r\nincr k2 1\r\nincr zz 1\r\ndecr zz 1\r\ntouch k3 0\r\ngat 0 zz\r\n");
    engine.say("cas k4 0 0 1 1000000\r\n1\r\ncas zz 0 0 1 1\r\n1\r\n");
    engine.wait(50);
    let answer = engine.say("stats\r\n");
    assert!(answer.ends_with("END\r\n"));
    for (name, value) in [
        ("pid", "7"),
        ("uptime", "50"),
        ("time", "1800000050"),
        ("curr_items", "99"),
        ("total_items", "100"),
        ("cmd_get", "201"),
        ("get_hits", "100"),
        ("get_misses", "101"),
        ("cmd_set", "102"),
        ("cmd_touch", "2"),
        ("touch_hits", "1"),
        ("touch_misses", "1"),
        ("delete_hits", "1"),
        ("delete_misses", "1"),
        ("incr_hits", "1"),
        ("incr_misses", "1"),
        ("decr_misses", "1"),
        ("cas_badval", "1"),
        ("cas_misses", "1"),
        ("limit_maxbytes", "67108864"),
        ("threads", "2"),
        ("curr_connections", "1"),
        ("total_connections", "2"),
        ("rejected_connections", "1"),
        ("bytes_read", "100"),
        ("bytes_written", "200"),
    ] {
        assert_eq!(stat(&answer, name), value, "{name}");
    }
    let [bytes, hash_bytes]: [usize; 2] =
        ["bytes", "hash_bytes"].map(|name| stat(&answer, name).parse().unwrap());
    assert_eq!(bytes + hash_bytes, engine.bytes());
    assert_eq!(engine.say("flush_all\r\n"), "OK\r\n");
    assert_eq!(stat(&engine.say("stats\r\n"), "cmd_flush"), "1");
    assert_eq!(engine.say("stats reset\r\n"), "RESET\r\n");
    let answer = engine.say("stats\r\n");
    for (name, value) in [
        ("cmd_get", "0"),
        ("bytes_read", "0"),
        ("total_connections", "0"),
        ("curr_items", "99"),
        ("curr_connections", "1"),
    ] {
        assert_eq!(stat(&answer, name), value, "{name}");
    }
    engine.server.tallies.of(5).received(7);
    assert_eq!(stat(&engine.say("stats\r\n"), "bytes_read"), "7");
}

#[test]
fn no_two_items_have_the_same_version_whichever_shards_they_are_in() {
    let mut engine = Engine::new(5);
    let mut versions = std::collections::BTreeSet::new();
    for round in 0..3 {
        for number in 0..40 {
            engine.say(&format!("set k{number} 0 0 1\r\n{round}\r\nincr k{number} 1\r\n"));
            let answer = engine.say(&format!("gets k{number}\r\n"));
            let version: u64 = answer.lines().next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
            assert!(version > 0 && versions.insert(version), "{version} is there twice");
        }
        assert_eq!(engine.say("flush_all\r\nget k1 k2 k3\r\n"), "OK\r\nEND\r\n");
    }
}

#[test]
fn stats_has_the_names_that_memcached_has_and_begins_at_zero() {
    let mut engine = Engine::new(4);
    let answer = engine.say("stats\r\n");
    let names: std::collections::BTreeSet<&str> =
        answer.lines().filter_map(|line| line.strip_prefix("STAT ")?.split(' ').next()).collect();
    assert_eq!((names.len(), answer.lines().count()), (83, 84), "{names:?}");
    let zero = [
        "curr_items",
        "bytes",
        "cmd_get",
        "evictions",
        "listen_disabled_num",
        "lrutail_reflocked",
        "slabs_moved",
    ];
    assert!(zero.iter().all(|name| stat(&answer, name) == "0"), "{answer}");
    assert_eq!(stat(&answer, "accepting_conns"), "1");
    let settings = engine.say("stats settings\r\n");
    for (name, value) in
        [("maxconns", "100"), ("shutdown_command", "no"), ("domain_socket", "NULL"), ("evictions", "on")]
    {
        assert_eq!(stat(&settings, name), value, "{name}");
    }
}

#[test]
fn prefixes_are_counted_over_all_shards_while_that_is_on() {
    let mut engine = Engine::new(4);
    assert_eq!(engine.say("set p:0 0 0 1\r\n1\r\nstats detail dump\r\n"), "STORED\r\nEND\r\n");
    assert_eq!(engine.say("stats detail on\r\n"), "OK\r\n");
    for number in 0..20 {
        engine.say(&format!("set p:{number} 0 0 1\r\n1\r\nget p:{number} q:{number}\r\nmg p:{number}\r\n"));
        engine.say(&format!("ms p:{number} 1\r\n2\r\nmd q:{number}\r\ndelete q:{number}\r\nget r\r\n"));
    }
    let counts = "PREFIX p get 40 hit 40 set 40 del 0\r\nPREFIX q get 20 hit 0 set 0 del 40\r\nEND\r\n";
    assert_eq!(engine.say("stats detail dump\r\n"), counts);
    assert_eq!(engine.say("stats detail off\r\nget p:1 p:2\r\n").lines().count(), 6);
    assert_eq!(engine.say("stats detail dump\r\n"), counts);
    assert_eq!(engine.say("stats reset\r\nstats detail dump\r\n"), "RESET\r\nEND\r\n");
    for line in ["stats detail", "stats detail x"] {
        let usage = "CLIENT_ERROR usage: stats detail on|off|dump\r\n";
        assert_eq!(engine.say(&format!("{line}\r\n")), usage);
    }
}

#[test]
fn what_is_dead_is_a_miss_in_counts_by_prefix() {
    let mut engine = Engine::new(1);
    engine.say("stats detail on\r\nset p:1 0 1 1\r\n1\r\n");
    engine.wait(1);
    assert_eq!(engine.say("get p:1\r\n"), "END\r\n");
    assert_eq!(engine.say("stats detail dump\r\n"), "PREFIX p get 1 hit 0 set 1 del 0\r\nEND\r\n");
}

#[test]
fn items_are_listed_by_name_up_to_a_limit() {
    let mut engine = Engine::new(3);
    assert_eq!(engine.say("stats cachedump 1 10\r\n"), "END\r\n");
    engine.say("set a 0 0 3\r\nabc\r\n");
    assert_eq!(engine.say("stats cachedump 1 10\r\n"), "ITEM a [3 b; 0 s]\r\nEND\r\n");
    engine.say("set a 0 9 0\r\n\r\n");
    let end = engine.now.0 + 9;
    assert_eq!(engine.say("stats cachedump 1 0\r\n"), format!("ITEM a [0 b; {end} s]\r\nEND\r\n"));
    engine.wait(9);
    assert_eq!(engine.say("stats cachedump 1 0\r\n"), "END\r\n");
    (0..1_000).for_each(|number| drop(engine.say(&format!("set k{number} 0 0 1\r\n1\r\n"))));
    let count = |engine: &mut Engine, words: &str| {
        engine.say(&format!("stats cachedump {words}\r\n")).lines().count() - 1
    };
    assert_eq!(
        (count(&mut engine, "1 7"), count(&mut engine, "1 0"), count(&mut engine, "1 4294967295")),
        (7, 200, 200)
    );
    assert_eq!(count(&mut engine, "2 7"), 0);
    for (words, error) in [
        ("", "line"),
        (" 1", "line"),
        (" x 1", "line format"),
        (" 1 x", "line format"),
        (" 1 -1", "line format"),
    ] {
        assert_eq!(
            engine.say(&format!("stats cachedump{words}\r\n")),
            format!("CLIENT_ERROR bad command {error}\r\n")
        );
    }
}

#[test]
fn a_request_of_http_ends_the_connection_before_its_lines_are_looked_at() {
    for line in ["GET / HTTP/1.0", "POST /a HTTP/1.1", "DELETE HTTP/1.1", "x HTTP/2 "] {
        let mut engine = Engine::new(1);
        let mut session = engine.session();
        let page = format!("mn\r\n{line}\r\nHost: a\r\n\r\nset a 0 0 1\r\n1\r\n");
        assert_eq!(engine.exchange(&mut session, page.as_bytes()), b"MN\r\n", "{line}");
        assert!(session.is_finished(), "{line}");
        assert_eq!(engine.say("get a\r\n"), "END\r\n");
    }
    assert_eq!(
        Engine::new(1).say("get HTTP/1.1\r\nset a HTTP/1.1\r\nHTTP\r\nmn\r\n"),
        "END\r\nERROR\r\nERROR\r\nMN\r\n"
    );
}

#[test]
fn slabs_there_are_none_to_move() {
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
        assert_eq!(engine.say(&format!("{line}\r\n")), answer, "{line}");
    }
}

#[test]
fn stats_lists_by_name() {
    let mut engine = Engine::new(2);
    assert_eq!(engine.say("stats items\r\n"), "END\r\n");
    engine.say("set a 0 0 1\r\n1\r\n");
    engine.wait(3);
    engine.say("set b 0 0 1\r\n1\r\n");
    let items = engine.say("stats items\r\n");
    assert_eq!((stat(&items, "items:1:number").as_str(), stat(&items, "items:1:age").as_str()), ("2", "3"));
    assert_eq!(stat(&engine.say("stats slabs\r\n"), "active_slabs"), "1");
    let settings = engine.say("stats settings\r\n");
    assert_eq!(stat(&settings, "maxbytes"), "67108864");
    assert_eq!(stat(&settings, "item_size_max"), "1048576");
    assert_eq!(engine.say("stats sizes\r\n"), "STAT sizes_status disabled\r\nEND\r\n");
    assert!(engine.say("version\r\n").starts_with("VERSION 1.6."));
}
