//! The meta commands: the effect and the answer of each flag, and the errors of invalid flags.

mod common;

use common::Engine;

/// Runs a conversation with a server of three shards, and compares each answer. Returns the server.
#[track_caller]
fn converse(conversation: &[(&str, &str)]) -> Engine {
    let mut engine = Engine::new(3);
    continue_with(&mut engine, conversation);
    engine
}

#[track_caller]
fn continue_with(engine: &mut Engine, conversation: &[(&str, &str)]) {
    for (command, expected) in conversation {
        let answer = engine.execute_text(&format!("{command}\r\n"));
        let shown: String = command.chars().take(100).collect();
        assert_eq!(answer, format!("{expected}\r\n").replace("\r\n\r\n", "\r\n"), "{shown:?}");
    }
}

#[test]
fn a_value_is_stored_and_read_with_the_fields_that_flags_request() {
    let mut engine = converse(&[
        ("mn", "MN"),
        ("mg a", "EN"),
        ("ms a 3 F7 T100\r\nabc", "HD"),
        ("mg a", "HD"),
        ("mg a v", "VA 3\r\nabc"),
        ("mg a s v f t h", "VA 3 s3 f7 t100 h1\r\nabc"),
        ("get a", "VALUE a 7 3\r\nabc\r\nEND"),
        ("mg a k Oopaque s", "HD ka Oopaque s3"),
        ("mg none k Oopaque s v", "EN knone Oopaque"),
        ("ms b 0\r\n", "HD"),
        ("mg b v t", "VA 0 t-1\r\n\r\n"),
    ]);
    engine.wait(30);
    continue_with(&mut engine, &[("mg a l t", "HD l30 t70"), ("mg a l", "HD l0"), ("mg b l u", "HD l30")]);
    engine.wait(70);
    continue_with(&mut engine, &[("mg a v", "EN"), ("mg b l", "HD l100")]);
}

#[test]
fn large_values_are_returned_completely() {
    let value = "v".repeat(100_000);
    let mut engine = converse(&[(&format!("ms big 100000\r\n{value}"), "HD")]);
    assert_eq!(engine.execute_text("mg big v s\r\n"), format!("VA 100000 s100000\r\n{value}\r\n"));
}

#[test]
fn the_longest_line_of_an_answer_fits() {
    let (key, opaque) = ("k".repeat(250), "o".repeat(32));
    let mut engine = converse(&[(&format!("ms {key} 1 F4294967295 T2147483647\r\n1"), "HD")]);
    let line = engine.execute_text(&format!("mg {key} v s t c f l h k O{opaque}\r\n"));
    assert!(
        line.starts_with("VA 1 s1 t")
            && line.ends_with(&format!(" f4294967295 l0 h0 k{key} O{opaque}\r\n1\r\n"))
    );
    assert!(engine.execute_text(&format!("me {key}\r\n")).starts_with(&format!("ME {key} exp=")));
}

#[test]
fn a_read_with_the_flag_u_does_not_count_as_a_read() {
    converse(&[
        ("ms a 1\r\n1", "HD"),
        ("mg a h u", "HD h0"),
        ("mg a h", "HD h0"),
        ("mg a h u", "HD h1"),
        ("ms a 1\r\n2", "HD"),
        ("mg a h", "HD h0"),
    ]);
}

#[test]
fn a_read_can_set_the_time_to_live_and_returns_the_old_or_the_new_one() {
    let mut engine = converse(&[
        ("ms a 1 T10\r\n1", "HD"),
        ("mg a t T300", "HD t10"),
        ("mg a T200 t", "HD t200"),
        ("mg a T-1", "HD"),
        ("mg a", "EN"),
        ("mg a T100", "EN"),
    ]);
    let stats = engine.execute_text("stats\r\n");
    assert!(stats.contains("STAT cmd_touch 4\r\n") && stats.contains("STAT touch_hits 3\r\n"), "{stats}");
}

#[test]
fn each_mode_of_a_store_equals_its_text_command() {
    converse(&[
        ("ms a 1 MR\r\n1", "NS"),
        ("ms a 1 MA\r\n1", "NS"),
        ("ms a 1 MP\r\n1", "NS"),
        ("ms a 1 ME\r\n1", "HD"),
        ("ms a 1 ME\r\n2", "NS"),
        ("ms a 1 MA\r\n2", "HD"),
        ("ms a 1 MP\r\n0", "HD"),
        ("mg a v", "VA 3\r\n012"),
        ("ms a 1 MR\r\n7", "HD"),
        ("ms a 1 MS\r\n8", "HD"),
        ("mg a v", "VA 1\r\n8"),
        ("ms a 1 MX\r\n9", "CLIENT_ERROR invalid mode for ms M token"),
        ("ms a 1 Me\r\n9", "CLIENT_ERROR invalid mode for ms M token"),
        ("mg a v", "VA 1\r\n8"),
    ]);
}

#[test]
fn versions_are_compared_and_returned() {
    let mut engine = Engine::new(1);
    continue_with(
        &mut engine,
        &[
            ("ms a 1 c C5\r\n1", "NF c0"),
            ("ms a 1 c\r\n1", "HD c1"),
            ("mg a c", "HD c1"),
            ("ms a 1 C7 c k Ox\r\n2", "EX c0 ka Ox"),
            ("ms a 1 C1 c\r\n2", "HD c2"),
            ("ms a 1 MA C1 c\r\n2", "EX c0"),
            ("ms a 1 MA C2 c\r\n3", "HD c3"),
            ("ms a 1 MR C2\r\n2", "EX"),
            ("md a C1", "EX"),
            ("mg a v", "VA 2\r\n23"),
            ("ma a C1", "EX"),
            ("ma a C3 v c", "VA 2 c4\r\n24"),
            ("ms b 1 ME C9 c\r\n1", "HD c5"),
            ("md a C4 k", "HD ka"),
            ("md a", "NF"),
            ("md a k Oq q", "NF ka Oq"),
        ],
    );
}

#[test]
fn base64_keys_are_decoded_and_returned_as_sent() {
    let mut engine =
        converse(
            &[
                ("ms Zm9v 2 b k\r\nhi", "HD kZm9v b"),
                ("mg Zm9v v", "EN"),
                ("mg foo v k", "VA 2 kfoo\r\nhi"),
                ("mg Zm9v v k b", "VA 2 kZm9v b\r\nhi"),
                ("ms AAEKDSA= 1 b\r\n1", "HD"),
                ("mg AAEKDSA= b k v", "VA 1 kAAEKDSA= b\r\n1"),
                ("ma AAEKDSA= b v", "VA 1\r\n2"),
                ("md AAEKDSA= b", "HD"),
                ("mg AAEKDSA= b q", ""),
                ("me Zm9vYmFy b", "EN"),
            ]
            .map(|(command, expected)| {
                if expected.is_empty() { ("mg none q\r\nmn", "MN") } else { (command, expected) }
            }),
        );
    // A key that would break a line is in no list.
    continue_with(
        &mut engine,
        &[("ms DQpFTkQNCg== 1 b\r\n1", "HD"), ("md foo", "HD"), ("stats cachedump 1 0", "END")],
    );
}

#[test]
fn a_key_that_is_not_base64_is_rejected_and_its_value_is_not_parsed_as_commands() {
    let error = "CLIENT_ERROR error decoding key";
    let long = "AAAA".repeat(63);
    for key in ["=", "A", "AA", "AAA", "AA=A", "Zm9v=", "Zm9v!", "Zm9-", "Zh==", "Zm9v====", &long] {
        let mut engine = converse(&[(&format!("mg {key} b"), error), (&format!("md {key} b"), error)]);
        let answer = engine.execute_text(&format!("ms {key} 9 b\r\nversion\r\n\r\nmn\r\n"));
        assert_eq!(answer, format!("{error}\r\nMN\r\n"), "{key}");
    }
    // 62 groups of four letters fit in the length of a key, and decode to 186 bytes.
    let longest = "AAAA".repeat(62);
    converse(&[(&format!("ms {longest} 1 b\r\n1"), "HD"), (&format!("mg {longest} b v"), "VA 1\r\n1")]);
}

#[test]
fn the_first_reader_of_a_missing_item_wins_the_right_to_store_it() {
    let mut engine = Engine::new(1);
    continue_with(
        &mut engine,
        &[
            ("mg a N30 v t s c", "VA 0 t30 s0 c1 W\r\n\r\n"),
            ("mg a N30 v t", "VA 0 t30 Z\r\n\r\n"),
            ("mg a N30 q", "HD Z"),
            ("ms a 2 C99\r\nno", "EX"),
            ("ms a 2 C1 T90\r\nhi", "HD"),
            ("mg a N30 v t", "VA 2 t90\r\nhi"),
            ("mg b N30 q", "HD W"),
            ("mg c N0 t", "HD t-1 W"),
        ],
    );
    engine.wait(31);
    continue_with(&mut engine, &[("mg b", "EN"), ("mg b N30", "HD W"), ("mg c", "HD Z")]);
}

#[test]
fn the_first_reader_of_an_item_that_expires_soon_wins_once() {
    converse(&[
        ("ms a 1 T100\r\n1", "HD"),
        ("mg a R99", "HD"),
        ("mg a R100", "HD"),
        ("mg a R101 t", "HD t100 W"),
        ("mg a R101", "HD Z"),
        ("mg a", "HD Z"),
        ("ms a 1 T100\r\n2", "HD"),
        ("mg a R-1", "HD"),
        ("mg a R0", "HD"),
        ("mg a R101 v", "VA 1 W\r\n2"),
        ("ms b 1\r\n1", "HD"),
        ("mg b R2000000", "HD"),
    ]);
}

#[test]
fn an_invalidated_item_is_served_as_stale_until_it_is_stored() {
    let mut engine = Engine::new(1);
    continue_with(
        &mut engine,
        &[
            ("md a I", "NF"),
            ("ms a 3 T100\r\nold", "HD"),
            ("md a I C9", "EX"),
            ("mg a v", "VA 3\r\nold"),
            ("md a I T30 C1 Ox", "HD Ox"),
            ("get a", "VALUE a 0 3\r\nold\r\nEND"),
            ("mg a v t c", "VA 3 t30 c2 X W\r\nold"),
            ("mg a v", "VA 3 Z X\r\nold"),
            ("md a I", "HD"),
            ("mg a", "HD X W"),
            // An older version is stored and marked as stale; the deadline and the promise do not change.
            ("ms a 1 C0 I\r\nx", "EX"),
            ("ms a 1 C4 I\r\nx", "EX"),
            ("ms a 1 C1\r\nx", "EX"),
            ("ms a 1 C1 I T500 c\r\nx", "HD c4"),
            ("mg a v t", "VA 1 t30 Z X\r\nx"),
            ("ms a 1 C4 I T500\r\ny", "HD"),
            ("mg a v t", "VA 1 t500\r\ny"),
            ("ms a 1 MR C1 I\r\nz", "HD"),
            ("mg a v", "VA 1 X W\r\nz"),
            ("ms a 1 MA C1 I\r\nz", "EX"),
            ("md a I q", "MN"),
        ]
        .map(|(command, expected)| {
            if command.ends_with(" q") { ("md a I q\r\nmn", expected) } else { (command, expected) }
        }),
    );
}

#[test]
fn arithmetic_changes_creates_and_returns_numbers() {
    converse(&[
        ("ma n", "NF"),
        ("ma n q k Ox", "NF kn Ox"),
        ("ma n N0 J13 v t", "VA 2 t-1\r\n13"),
        ("ma n N0 J13 v", "VA 2\r\n14"),
        ("ma n D30 v", "VA 2\r\n44"),
        ("ma n D4 MD v", "VA 2\r\n40"),
        ("ma n D4 M- v", "VA 2\r\n36"),
        ("ma n M+ v", "VA 2\r\n37"),
        ("ma n MI v T90 t", "VA 2 t90\r\n38"),
        ("ma n v t T60 k Ox", "VA 2 t90 kn Ox\r\n39"),
        ("mg n t", "HD t60"),
        ("ma n MD D9000 v", "VA 1\r\n0"),
        ("ma n D18446744073709551615 v", "VA 20\r\n18446744073709551615"),
        ("ma n v", "VA 1\r\n0"),
        ("ma n", "HD"),
        ("ma n T-1", "HD"),
        ("mg n", "EN"),
        ("ma m N50 J7 D9 t", "HD t50"),
        ("mg m v", "VA 1\r\n7"),
        ("ms x 1\r\nx", "HD"),
        ("ma x", "CLIENT_ERROR cannot increment or decrement non-numeric value"),
        ("ma x q", "CLIENT_ERROR cannot increment or decrement non-numeric value"),
        ("ma x MX", "CLIENT_ERROR invalid mode for ma M token"),
    ]);
}

#[test]
fn a_quiet_command_gets_only_unexpected_answers() {
    converse(&[
        ("ms a 1 q\r\n1\r\nmg none v q\r\nma a q\r\nma new N0 q v\r\nmd new q\r\nmd a I q\r\nmn", "MN"),
        ("mg a v q\r\nmn", "VA 1 X W\r\n2\r\nMN"),
        ("mg a q\r\nmn", "HD Z X\r\nMN"),
        ("ms a 1 q ME\r\n1\r\nmn", "NS\r\nMN"),
        ("ms a 1 q C99\r\n1\r\nmn", "EX\r\nMN"),
        ("ms none 1 q C99\r\n1\r\nmn", "NF\r\nMN"),
        ("md none q\r\nmn", "NF\r\nMN"),
        ("ms a 1 q\r\n123\r\nmn", "CLIENT_ERROR bad data chunk\r\nERROR\r\nMN"),
    ]);
}

#[test]
fn inspecting_an_item_does_not_count_as_a_read() {
    let mut engine = Engine::new(1);
    continue_with(&mut engine, &[("me a", "EN"), ("me a k", "EN"), ("ms a 3 T100\r\nabc", "HD")]);
    engine.wait(5);
    assert_eq!(engine.execute_text("me a\r\n"), "ME a exp=95 la=5 cas=1 fetch=no cls=1 size=128\r\n");
    continue_with(&mut engine, &[("mg a h l", "HD h0 l5")]);
    assert_eq!(
        engine.execute_text("me YQ== b\r\n"),
        "ME YQ== exp=95 la=0 cas=1 fetch=yes cls=1 size=128\r\n"
    );
    let stats = engine.execute_text("stats\r\n");
    assert!(stats.contains("STAT cmd_meta 4\r\n") && stats.contains("STAT cmd_get 1\r\n"), "{stats}");
}

#[test]
fn malformed_commands_are_rejected() {
    let long = "k".repeat(251);
    let format = "CLIENT_ERROR bad command line format";
    let mut engine = converse(&[
        ("mg", "ERROR"),
        ("ms", "ERROR"),
        ("ms a", format),
        ("ms a x", format),
        ("ms a -1", format),
        ("ms a 2147483647", format),
        ("md", "ERROR"),
        ("ma", "ERROR"),
        ("me", format),
        ("mx a", "ERROR"),
        ("m", "ERROR"),
        ("mgx a", "ERROR"),
        (&format!("mg {long}"), format),
        (&format!("md {long} q"), format),
        (&format!("me {long}"), format),
        ("mg a S", "CLIENT_ERROR invalid flag"),
        ("mg a v v", "CLIENT_ERROR duplicate flag"),
        ("mg a T", "CLIENT_ERROR bad token in command line format"),
        ("ma a Dx", "CLIENT_ERROR invalid numeric delta value"),
        ("ma a J-1", "CLIENT_ERROR invalid numeric initial value"),
        ("ma a MID", "CLIENT_ERROR incorrect length for M token"),
        (&format!("mg a O{}", "o".repeat(33)), "CLIENT_ERROR opaque token too long"),
        ("mg a b N1 T1 R1 l O P L k s t c f v h u q F1", "CLIENT_ERROR options flags are too long"),
    ]);
    // If the length of the value is known, the server skips the value, because it could contain commands.
    for flags in ["Tx", "C-1", "Fx", "v v", "M", "S5", "MZ", &format!("O{}", "o".repeat(33))] {
        let answer = engine.execute_text(&format!("ms a 9 {flags}\r\nversion\r\n\r\nmn\r\n"));
        assert!(answer.starts_with("CLIENT_ERROR ") && answer.ends_with("\r\nMN\r\n"), "{flags}: {answer}");
        assert!(!answer.contains("VERSION"), "{flags}: {answer}");
    }
    let answer = engine.execute_text(&format!("ms {long} 9\r\nversion\r\n\r\nmn\r\n"));
    assert_eq!(answer, format!("{format}\r\nMN\r\n"));
}

#[test]
fn a_store_that_is_too_large_is_rejected_and_removes_the_old_item() {
    let value = "v".repeat(1_048_577);
    let mut engine = converse(&[("ms a 1\r\n1", "HD"), ("ms b 1\r\n1", "HD")]);
    let answer =
        engine.execute_text(&format!("ms a 1048577 q\r\n{value}\r\nms b 1048577 C1\r\n{value}\r\nmn\r\n"));
    assert_eq!(answer, "SERVER_ERROR object too large for cache\r\n".repeat(2) + "MN\r\n");
    continue_with(&mut engine, &[("mg a", "EN"), ("mg b", "HD")]);
}

#[test]
fn a_shard_without_room_creates_no_item_for_a_reader() {
    let config = isola_kv::Config::new(isola_kv::SMALLEST_SHARD_BYTES, 1).unwrap();
    let mut engine = Engine::with_config(config);
    continue_with(
        &mut engine,
        &[("mg a N30", "EN"), ("ma a N30", "SERVER_ERROR out of memory storing object"), ("mg a", "EN")],
    );
}
