//! The binary protocol, command by command.

mod common;

use common::Engine;
use common::packet::{Answer, OPAQUE, Request, answers, count_extras, store_extras};

const NOT_FOUND: u16 = 1;
const EXISTS: u16 = 2;
const TOO_LARGE: u16 = 3;
const INVALID: u16 = 4;
const NOT_STORED: u16 = 5;
const NOT_A_NUMBER: u16 = 6;
const UNKNOWN: u16 = 0x81;

const NOOP: u8 = 0x0a;

fn execute(engine: &mut Engine, requests: &[Request<'_>]) -> Vec<Answer> {
    let bytes: Vec<u8> = requests.iter().flat_map(Request::bytes).collect();
    answers(&engine.execute(&bytes))
}

/// Returns the only answer to a request.
fn ask_one(engine: &mut Engine, request: Request<'_>) -> Answer {
    let mut all = execute(engine, std::slice::from_ref(&request));
    assert_eq!(all.len(), 1, "{all:?}");
    let answer = all.remove(0);
    assert_eq!((answer.opcode, answer.opaque), (request.opcode, OPAQUE));
    answer
}

fn set(engine: &mut Engine, key: &[u8], value: &[u8]) -> u64 {
    let answer = ask_one(engine, Request { opcode: 1, key, value, extras: &store_extras(7, 0), cas: 0 });
    assert_eq!((answer.status, answer.value.len()), (0, 0));
    answer.cas
}

/// Returns whether the request gets no answer.
fn is_silent(engine: &mut Engine, request: Request<'_>) -> bool {
    let answers = execute(engine, &[request, Request { opcode: NOOP, ..Default::default() }]);
    answers.last().map(|last| last.opcode) == Some(NOOP) && answers.len() == 1
}

#[test]
fn all_four_forms_of_get_return_the_item() {
    let mut engine = Engine::new(3);
    let cas = set(&mut engine, b"a", b"hello");
    for (opcode, key) in [(0x00, &b""[..]), (0x09, b""), (0x0c, b"a"), (0x0d, b"a")] {
        let answer = ask_one(&mut engine, Request { opcode, key: b"a", ..Default::default() });
        assert_eq!((answer.status, answer.cas, &answer.extras[..]), (0, cas, &[0, 0, 0, 7][..]));
        assert_eq!((&answer.key[..], &answer.value[..]), (key, &b"hello"[..]));
    }
    let miss = ask_one(&mut engine, Request { opcode: 0x00, key: b"nx", ..Default::default() });
    assert_eq!((miss.status, &miss.key[..], &miss.value[..]), (NOT_FOUND, &b""[..], &b"Not found"[..]));
    let miss = ask_one(&mut engine, Request { opcode: 0x0c, key: b"nx", ..Default::default() });
    assert_eq!((miss.status, &miss.key[..], &miss.value[..]), (NOT_FOUND, &b"nx"[..], &b""[..]));
    for opcode in [0x09, 0x0d] {
        assert!(is_silent(&mut engine, Request { opcode, key: b"nx", ..Default::default() }));
    }
}

#[test]
fn keys_may_contain_any_byte() {
    let mut engine = Engine::new(3);
    let key: Vec<u8> = (0..250).collect();
    set(&mut engine, &key, b"v");
    let answer = ask_one(&mut engine, Request { opcode: 0x0c, key: &key, ..Default::default() });
    assert_eq!((answer.key, &answer.value[..]), (key, &b"v"[..]));
}

#[test]
fn stores_check_their_conditions() {
    let mut engine = Engine::new(3);
    let extras = store_extras(0, 0);
    let store = |opcode, key, cas| Request { opcode, key, extras: &extras, value: b"v", cas };
    assert_eq!(ask_one(&mut engine, store(0x03, b"a", 0)).status, NOT_FOUND);
    assert_eq!(ask_one(&mut engine, store(0x02, b"a", 0)).status, 0);
    assert_eq!(ask_one(&mut engine, store(0x02, b"a", 0)).status, EXISTS);
    let cas = ask_one(&mut engine, store(0x03, b"a", 0)).cas;
    assert_eq!(ask_one(&mut engine, store(0x01, b"a", cas + 100)).status, EXISTS);
    assert_eq!(ask_one(&mut engine, store(0x01, b"a", cas)).status, 0);
    assert_eq!(ask_one(&mut engine, store(0x01, b"nx", cas)).status, NOT_FOUND);
    // Quiet commands answer only to unusual outcomes.
    for (opcode, key, is_answered) in [
        (0x11, b"b", false),
        (0x12, b"b", true),
        (0x12, b"c", false),
        (0x13, b"b", false),
        (0x13, b"d", true),
    ] {
        assert_eq!(is_silent(&mut engine, store(opcode, key, 0)), !is_answered, "{opcode:x}");
    }
}

#[test]
fn append_and_prepend_extend_the_value() {
    let mut engine = Engine::new(3);
    let extend = |opcode, value, cas| Request { opcode, key: b"a", extras: b"", value, cas };
    assert_eq!(ask_one(&mut engine, extend(0x0e, b"1", 0)).status, NOT_STORED);
    assert!(!is_silent(&mut engine, extend(0x19, b"1", 0)));
    set(&mut engine, b"a", b"-");
    let cas = ask_one(&mut engine, extend(0x0e, b">", 0)).cas;
    assert_eq!(ask_one(&mut engine, extend(0x0f, b"<", cas + 9)).status, EXISTS);
    assert_eq!(ask_one(&mut engine, extend(0x0f, b"<", cas)).status, 0);
    assert!(is_silent(&mut engine, extend(0x19, b"]", 0)) && is_silent(&mut engine, extend(0x1a, b"[", 0)));
    let answer = ask_one(&mut engine, Request { opcode: 0, key: b"a", ..Default::default() });
    assert_eq!((&answer.value[..], &answer.extras[..]), (&b"[<->]"[..], &[0, 0, 0, 7][..]));
}

#[test]
fn delete_checks_the_version() {
    let mut engine = Engine::new(2);
    let delete = |opcode, cas| Request { opcode, key: b"a", cas, ..Default::default() };
    assert_eq!(ask_one(&mut engine, delete(0x04, 0)).status, NOT_FOUND);
    let cas = set(&mut engine, b"a", b"v");
    assert_eq!(ask_one(&mut engine, delete(0x04, cas + 1)).status, EXISTS);
    assert_eq!(ask_one(&mut engine, delete(0x04, cas)).status, 0);
    set(&mut engine, b"a", b"v");
    assert!(is_silent(&mut engine, delete(0x14, 0)));
    assert!(!is_silent(&mut engine, delete(0x14, 0)));
}

#[test]
fn increment_and_decrement_return_the_new_number() {
    let mut engine = Engine::new(2);
    let number = |answer: Answer| (answer.status, u64::from_be_bytes(answer.value.try_into().unwrap()));
    let extras = count_extras(10, 5, 0);
    let count = |opcode, key, cas| Request { opcode, key, extras: &extras, value: b"", cas };
    assert_eq!(number(ask_one(&mut engine, count(0x05, b"n", 0))), (0, 5));
    assert_eq!(number(ask_one(&mut engine, count(0x05, b"n", 0))), (0, 15));
    assert_eq!(number(ask_one(&mut engine, count(0x06, b"n", 0))), (0, 5));
    assert_eq!(number(ask_one(&mut engine, count(0x06, b"n", 0))), (0, 0));
    let value = ask_one(&mut engine, Request { opcode: 0, key: b"n", ..Default::default() }).value;
    assert_eq!(value, b"0 ");
    assert!(is_silent(&mut engine, count(0x15, b"n", 0)) && is_silent(&mut engine, count(0x16, b"n", 0)));
    assert_eq!(ask_one(&mut engine, count(0x05, b"n", 999)).status, EXISTS);
    let extras = count_extras(1, 5, u32::MAX);
    let without_initial = Request { opcode: 0x05, key: b"m", extras: &extras, ..Default::default() };
    assert_eq!(ask_one(&mut engine, without_initial.clone()).status, NOT_FOUND);
    set(&mut engine, b"m", b"text");
    assert_eq!(ask_one(&mut engine, without_initial).status, NOT_A_NUMBER);
}

#[test]
fn touch_and_gat_change_the_expiration_time() {
    let mut engine = Engine::new(2);
    let soon = 10u32.to_be_bytes();
    let touch = |opcode, key| Request { opcode, key, extras: &soon, ..Default::default() };
    assert_eq!(ask_one(&mut engine, touch(0x1c, b"a")).status, NOT_FOUND);
    let cas = set(&mut engine, b"a", b"v");
    let answer = ask_one(&mut engine, touch(0x1c, b"a"));
    assert_eq!((answer.status, answer.cas, &answer.extras[..]), (0, cas, &[0, 0, 0, 7][..]));
    for (opcode, key) in [(0x1d, &b""[..]), (0x1e, b""), (0x23, b"a"), (0x24, b"a")] {
        engine.wait(9);
        let answer = ask_one(&mut engine, touch(opcode, b"a"));
        assert_eq!((answer.status, &answer.key[..], &answer.value[..]), (0, key, &b"v"[..]));
    }
    engine.wait(10);
    assert_eq!(ask_one(&mut engine, touch(0x1d, b"a")).status, NOT_FOUND);
    assert!(is_silent(&mut engine, touch(0x1e, b"a")) && is_silent(&mut engine, touch(0x24, b"a")));
}

#[test]
fn flush_takes_effect_at_once_or_after_its_delay() {
    let mut engine = Engine::new(3);
    let get = Request { opcode: 0, key: b"a", ..Default::default() };
    set(&mut engine, b"a", b"v");
    assert_eq!(ask_one(&mut engine, Request { opcode: 0x08, ..Default::default() }).status, 0);
    assert_eq!(ask_one(&mut engine, get.clone()).status, NOT_FOUND);
    set(&mut engine, b"a", b"v");
    assert!(is_silent(&mut engine, Request { opcode: 0x18, extras: &[0, 0, 0, 5], ..Default::default() }));
    assert_eq!(ask_one(&mut engine, get.clone()).status, 0);
    engine.wait(5);
    assert_eq!(ask_one(&mut engine, get).status, NOT_FOUND);
}

#[test]
fn version_noop_verbosity_and_stat_are_answered() {
    let mut engine = Engine::new(3);
    set(&mut engine, b"a", b"v");
    let version = ask_one(&mut engine, Request { opcode: 0x0b, ..Default::default() });
    assert!(version.value.starts_with(b"1.6."));
    assert_eq!(ask_one(&mut engine, Request { opcode: NOOP, cas: 9, ..Default::default() }).cas, 0);
    assert_eq!(
        ask_one(&mut engine, Request { opcode: 0x1b, extras: &[0; 4], ..Default::default() }).status,
        0
    );
    let stats = execute(&mut engine, &[Request { opcode: 0x10, ..Default::default() }]);
    assert!(stats.iter().any(|stat| stat.key == b"curr_items" && stat.value == b"1"));
    let last = stats.last().unwrap();
    assert!(last.key.is_empty() && last.value.is_empty());
    let settings = execute(&mut engine, &[Request { opcode: 0x10, key: b"settings", ..Default::default() }]);
    assert!(settings.iter().any(|stat| stat.key == b"num_threads" && stat.value == b"1"));
    assert_eq!(
        ask_one(&mut engine, Request { opcode: 0x10, key: b"nope", ..Default::default() }).status,
        NOT_FOUND
    );
    assert_eq!(ask_one(&mut engine, Request { opcode: 0x10, key: b"reset", ..Default::default() }).status, 0);
    let stats = execute(&mut engine, &[Request { opcode: 0x10, ..Default::default() }]);
    assert!(stats.iter().any(|stat| stat.key == b"cmd_set" && stat.value == b"0"));
}

#[test]
fn quit_is_answered_unless_it_is_quiet() {
    for (opcode, expected) in [(0x07, 1), (0x17, 0)] {
        let mut engine = Engine::new(1);
        let mut session = engine.session();
        let bytes =
            [Request { opcode, ..Default::default() }, Request { opcode: NOOP, ..Default::default() }];
        let answer = engine.exchange(&mut session, &bytes.map(|request| request.bytes()).concat());
        assert_eq!(answers(&answer).len(), expected);
        assert!(session.is_finished());
    }
}

#[test]
fn unknown_opcodes_get_an_error_and_are_skipped() {
    let mut engine = Engine::new(1);
    let unknown = Request { opcode: 0x55, key: b"abc", value: &[0x80; 5000], ..Default::default() };
    let answers = execute(&mut engine, &[unknown, Request { opcode: NOOP, ..Default::default() }]);
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [UNKNOWN, 0]);
}

#[test]
fn requests_with_invalid_lengths_end_the_connection() {
    let long = [b'k'; 251];
    let extras = store_extras(0, 0);
    let mut bad = vec![
        Request { opcode: 0x00, ..Default::default() }.bytes(),
        Request { opcode: 0x00, key: b"a", extras: b"1234", ..Default::default() }.bytes(),
        Request { opcode: 0x00, key: b"a", value: b"v", ..Default::default() }.bytes(),
        Request { opcode: 0x00, key: &long, ..Default::default() }.bytes(),
        Request { opcode: 0x01, key: b"a", value: b"v", ..Default::default() }.bytes(),
        Request { opcode: 0x01, extras: &extras, value: b"v", ..Default::default() }.bytes(),
        Request { opcode: 0x01, key: &long, extras: &extras, value: b"v", ..Default::default() }.bytes(),
        Request { opcode: 0x05, key: b"a", ..Default::default() }.bytes(),
        Request { opcode: 0x08, key: b"a", ..Default::default() }.bytes(),
        Request { opcode: 0x0a, value: b"v", ..Default::default() }.bytes(),
        Request { opcode: 0x0e, key: b"a", extras: &extras, ..Default::default() }.bytes(),
        Request { opcode: 0x10, extras: b"1234", ..Default::default() }.bytes(),
        Request { opcode: 0x1d, key: b"a", ..Default::default() }.bytes(),
    ];
    // A key that is longer than the body.
    let mut longer = Request { opcode: 0x00, key: b"abc", ..Default::default() }.bytes();
    longer[11] = 2;
    bad.push(longer);
    for bytes in bad {
        let mut engine = Engine::new(1);
        let mut session = engine.session();
        let answer = engine.exchange(&mut session, &bytes);
        let statuses: Vec<u16> = answers(&answer).iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [INVALID], "{bytes:x?}");
        assert!(session.is_finished());
    }
}

#[test]
fn a_wrong_magic_ends_the_connection() {
    let mut engine = Engine::new(1);
    let mut session = engine.session();
    let mut bytes = Request { opcode: NOOP, ..Default::default() }.bytes();
    bytes.extend(b"get a or something of 24 bytes\r\n");
    assert_eq!(answers(&engine.exchange(&mut session, &bytes)).len(), 1);
    assert!(session.is_finished());
}

#[test]
fn a_value_that_is_too_large_is_rejected_and_skipped() {
    let mut engine = Engine::new(2);
    set(&mut engine, b"a", b"v");
    let extras = store_extras(0, 0);
    let value = vec![0x80; (1 << 20) + 1];
    let large = Request { opcode: 0x01, key: b"a", extras: &extras, value: &value, cas: 0 };
    let get = Request { opcode: 0x00, key: b"a", ..Default::default() };
    let answers = execute(&mut engine, &[large, get]);
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [TOO_LARGE, NOT_FOUND]);
    set(&mut engine, b"a", &value[1..]);
    let get = Request { opcode: 0x00, key: b"a", ..Default::default() };
    assert_eq!(ask_one(&mut engine, get).value, value[1..]);
    // The server accepts the length of four gigabytes but does not allocate it.
    let mut huge = Request { opcode: 0x01, key: b"a", extras: &extras, ..Default::default() }.bytes();
    huge[8..12].fill(0xff);
    let mut session = engine.session();
    assert_eq!(common::packet::answers(&engine.exchange(&mut session, &huge))[0].status, TOO_LARGE);
    assert!(session.wants_input());
    assert_eq!(engine.exchange(&mut session, &[0; 100_000]), b"");
    assert_eq!(session.held_bytes(), 0);
}

#[test]
fn prefixes_are_counted_as_in_the_text_protocol() {
    let mut engine = Engine::new(3);
    let stat = |engine: &mut Engine, key: &'static [u8]| {
        execute(engine, &[Request { opcode: 0x10, key, ..Default::default() }])
    };
    let on = stat(&mut engine, b"detail on");
    assert_eq!((on.len(), on[0].status), (1, 0));
    execute(
        &mut engine,
        &[Request { key: b"p:1", ..Default::default() }, Request { key: b"p\r\n:1", ..Default::default() }],
    );
    assert_eq!(stat(&mut engine, b"detail off").len(), 1);
    let dump = stat(&mut engine, b"detail dump");
    assert_eq!((dump.len(), &dump[0].key[..]), (2, &b"detailed"[..]));
    assert_eq!(String::from_utf8_lossy(&dump[0].value), "PREFIX p get 1 hit 0 set 0 del 0\r\n");
    assert!(dump[1].key.is_empty() && dump[1].value.is_empty());
    assert_eq!(stat(&mut engine, b"detail x")[0].status, 1);
}
