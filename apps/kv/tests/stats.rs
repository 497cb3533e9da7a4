//! The answers of `stats`: counts over all shards, settings, and lists.

mod common;

use common::Engine;

/// Returns the value with that name in an answer to `stats`.
fn stat(answer: &str, name: &str) -> String {
    let prefix = format!("STAT {name} ");
    let line = answer.lines().find(|line| line.starts_with(&prefix));
    line.unwrap_or_else(|| panic!("no {name} in {answer}"))[prefix.len()..].to_owned()
}

#[test]
fn stats_reports_the_sum_over_all_shards() {
    let mut engine = Engine::new(4);
    // A connection that was accepted on one core and ended on another, beside an open one.
    let tallies = &engine.server.tallies;
    tallies.of(2).accepted();
    tallies.of(0).accepted();
    tallies.of(1).ended();
    tallies.of(1).rejected();
    tallies.of(1).received(60);
    tallies.of(2).received(40);
    tallies.of(63).sent(200);
    for n in 0..100 {
        engine.execute_text(&format!("set k{n} 0 0 1\r\n1\r\nget k{n} miss{n}\r\n"));
    }
    engine.execute_text(
        "delete k1\r\ndelete k1\r\nincr k2 1\r\nincr zz 1\r\ndecr zz 1\r\ntouch k3 0\r\ngat 0 zz\r\n",
    );
    engine.execute_text("touch zz 0\r\ngat 0 k5\r\n");
    engine.execute_text("cas k4 0 0 1 1000000\r\n1\r\ncas zz 0 0 1 1\r\n1\r\n");
    engine.wait(50);
    let answer = engine.execute_text("stats\r\n");
    assert!(answer.ends_with("END\r\n"));
    for (name, value) in [
        ("pid", "7"),
        ("uptime", "50"),
        ("time", "1800000050"),
        ("curr_items", "99"),
        ("total_items", "100"),
        ("cmd_get", "202"),
        ("get_hits", "101"),
        ("get_misses", "101"),
        ("cmd_set", "102"),
        ("cmd_touch", "4"),
        ("touch_hits", "2"),
        ("touch_misses", "2"),
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
    assert_eq!(engine.execute_text("flush_all\r\n"), "OK\r\n");
    assert_eq!(stat(&engine.execute_text("stats\r\n"), "cmd_flush"), "1");
    assert_eq!(engine.execute_text("stats reset\r\n"), "RESET\r\n");
    let answer = engine.execute_text("stats\r\n");
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
    assert_eq!(stat(&engine.execute_text("stats\r\n"), "bytes_read"), "7");
}

#[test]
fn stats_has_the_names_of_memcached_and_begins_at_zero() {
    let mut engine = Engine::new(4);
    let answer = engine.execute_text("stats\r\n");
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
    let settings = engine.execute_text("stats settings\r\n");
    assert_eq!(settings.lines().count(), 28, "{settings}");
    for (name, value) in
        [("maxconns", "100"), ("shutdown_command", "no"), ("domain_socket", "NULL"), ("evictions", "on")]
    {
        assert_eq!(stat(&settings, name), value, "{name}");
    }
}

#[test]
fn each_core_has_its_own_tally() {
    let engine = Engine::new(1);
    // Cores add to a tally without synchronisation: two cores that shared one would lose counts.
    let tallies: std::collections::BTreeSet<*const _> =
        (0..64).map(|core| std::ptr::from_ref(engine.server.tallies.of(core))).collect();
    assert_eq!(tallies.len(), 64);
}

#[test]
fn prefixes_are_counted_over_all_shards_while_detail_is_on() {
    let mut engine = Engine::new(4);
    assert_eq!(engine.execute_text("set p:0 0 0 1\r\n1\r\nstats detail dump\r\n"), "STORED\r\nEND\r\n");
    assert_eq!(engine.execute_text("stats detail on\r\n"), "OK\r\n");
    for number in 0..20 {
        engine.execute_text(&format!(
            "set p:{number} 0 0 1\r\n1\r\nget p:{number} q:{number}\r\nmg p:{number}\r\n"
        ));
        engine.execute_text(&format!(
            "ms p:{number} 1\r\n2\r\nmd q:{number}\r\ndelete q:{number}\r\nget r\r\n"
        ));
    }
    let counts = "PREFIX p get 40 hit 40 set 40 del 0\r\nPREFIX q get 20 hit 0 set 0 del 40\r\nEND\r\n";
    assert_eq!(engine.execute_text("stats detail dump\r\n"), counts);
    assert_eq!(engine.execute_text("stats detail off\r\nget p:1 p:2\r\n").lines().count(), 6);
    assert_eq!(engine.execute_text("stats detail dump\r\n"), counts);
    assert_eq!(engine.execute_text("stats reset\r\nstats detail dump\r\n"), "RESET\r\nEND\r\n");
    for line in ["stats detail", "stats detail x"] {
        let usage = "CLIENT_ERROR usage: stats detail on|off|dump\r\n";
        assert_eq!(engine.execute_text(&format!("{line}\r\n")), usage);
    }
}

#[test]
fn the_counts_by_prefix_report_a_dead_item_as_a_miss() {
    let mut engine = Engine::new(1);
    engine.execute_text("stats detail on\r\nset p:1 0 1 1\r\n1\r\n");
    engine.wait(1);
    assert_eq!(engine.execute_text("get p:1\r\n"), "END\r\n");
    assert_eq!(engine.execute_text("stats detail dump\r\n"), "PREFIX p get 1 hit 0 set 1 del 0\r\nEND\r\n");
}

#[test]
fn cachedump_lists_items_up_to_a_limit() {
    let mut engine = Engine::new(3);
    assert_eq!(engine.execute_text("stats cachedump 1 10\r\n"), "END\r\n");
    engine.execute_text("set a 0 0 3\r\nabc\r\n");
    assert_eq!(engine.execute_text("stats cachedump 1 10\r\n"), "ITEM a [3 b; 0 s]\r\nEND\r\n");
    engine.execute_text("set a 0 9 0\r\n\r\n");
    let end = engine.now.0 + 9;
    assert_eq!(engine.execute_text("stats cachedump 1 0\r\n"), format!("ITEM a [0 b; {end} s]\r\nEND\r\n"));
    engine.wait(9);
    assert_eq!(engine.execute_text("stats cachedump 1 0\r\n"), "END\r\n");
    (0..1_000).for_each(|number| drop(engine.execute_text(&format!("set k{number} 0 0 1\r\n1\r\n"))));
    let count = |engine: &mut Engine, words: &str| {
        engine.execute_text(&format!("stats cachedump {words}\r\n")).lines().count() - 1
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
            engine.execute_text(&format!("stats cachedump{words}\r\n")),
            format!("CLIENT_ERROR bad command {error}\r\n")
        );
    }
}

#[test]
fn items_slabs_settings_and_sizes_have_lists() {
    let mut engine = Engine::new(2);
    assert_eq!(engine.execute_text("stats items\r\n"), "END\r\n");
    assert_eq!(
        engine.execute_text("stats slabs\r\n"),
        "STAT active_slabs 0\r\nSTAT total_malloced 0\r\nEND\r\n"
    );
    engine.execute_text("set a 0 0 1\r\n1\r\n");
    let slabs = engine.execute_text("stats slabs\r\n");
    for (name, value) in [("active_slabs", "1"), ("1:used_chunks", "1"), ("1:free_chunks", "0")] {
        assert_eq!(stat(&slabs, name), value, "{name}");
    }
    engine.wait(3);
    engine.execute_text("set b 0 0 1\r\n1\r\n");
    let items = engine.execute_text("stats items\r\n");
    assert_eq!((stat(&items, "items:1:number").as_str(), stat(&items, "items:1:age").as_str()), ("2", "3"));
    assert_eq!(stat(&engine.execute_text("stats slabs\r\n"), "active_slabs"), "1");
    let settings = engine.execute_text("stats settings\r\n");
    assert_eq!(stat(&settings, "maxbytes"), "67108864");
    assert_eq!(stat(&settings, "item_size_max"), "1048576");
    assert_eq!(engine.execute_text("stats sizes\r\n"), "STAT sizes_status disabled\r\nEND\r\n");
    assert!(engine.execute_text("version\r\n").starts_with("VERSION 1.6."));
}
