//! Misbehaving clients: other clients are served meanwhile, and the server's memory stays bounded.

use isola_tests::kv::{Connection, value};
use isola_tests::namespace;
use isola_tests::service::Service;
use isola_tests::wait;
use std::io::Write;
use std::thread;

const MIB: usize = 1 << 20;

/// Checks that a well-behaved client is served beside misbehaving ones.
fn is_served(connection: &mut Connection, what: &str) {
    for number in 0..20 {
        let (key, value) = (format!("well-behaved-{number}"), value(number, 500));
        connection.set(&key, &value).unwrap_or_else(|error| panic!("beside {what}: {error}"));
        assert_eq!(connection.get(&key).unwrap(), Some(value), "beside {what}");
    }
}

/// Waits until `connection` is the server's only one.
fn wait_until_alone(connection: &mut Connection) {
    wait::until_true("the other connections are closed", || {
        connection.stat("curr_connections").unwrap() == 1
    });
}

#[test]
fn a_pipeline_of_thousands_of_requests_is_answered_in_order() {
    namespace::run(|| {
        let service = Service::on_tap("3", "64M");
        let mut connection = service.connect();
        let (mut requests, mut expected) = (String::new(), String::new());
        for number in 0..8000 {
            let key = number % 50;
            requests += &format!("set k{key} 0 0 5\r\n{number:05}\r\nget k{key}\r\n");
            expected += &format!("STORED\r\nVALUE k{key} 0 5\r\n{number:05}\r\nEND\r\n");
        }
        requests += "quit\r\n";
        let mut writer = connection.stream().try_clone().unwrap();
        let answers = thread::scope(|scope| {
            // The requests do not fit in the socket's buffer, so a thread writes them while this one reads.
            scope.spawn(|| writer.write_all(requests.as_bytes()).unwrap());
            connection.rest().unwrap()
        });
        assert!(answers == expected.as_bytes(), "{} bytes instead of {}", answers.len(), expected.len());
        service.end();
    });
}

/// The value changes before each request, so each pending answer retains a version that no other reference keeps.
#[test]
fn slow_readers_delay_no_other_client_and_retain_little_memory() {
    const READERS: usize = 8;
    const VERSIONS: u64 = 48;
    namespace::run(|| {
        let service = Service::on_tap("2", "128M");
        let mut good = service.connect();
        let before = service.used_bytes();
        let mut slow: Vec<Connection> = (0..READERS).map(|_| service.connect()).collect();
        for version in 0..VERSIONS {
            good.set("large", &value(version, MIB)).unwrap();
            for connection in &mut slow {
                connection.send(b"get large\r\n").unwrap();
            }
        }
        is_served(&mut good, "slow readers");
        // The limit bounds each client's pending answers and its send buffer; without a limit, all versions would stay
        // in memory.
        let more = service.used_bytes().saturating_sub(before) as usize;
        assert!(more < 3 * READERS * MIB, "{more} bytes more are in use for {READERS} slow readers");
        // Two clients read after all. The server handles late requests with the last version.
        for mut connection in slow.drain(..2) {
            let mut versions = 0..VERSIONS;
            for number in 0..VERSIONS {
                let got = connection.value("large").unwrap().unwrap();
                let is_this = |version: &u64| got == value(*version, MIB);
                let version = versions.clone().find(is_this);
                versions.start = version.unwrap_or_else(|| panic!("answer {number} is wrong or too old"));
            }
            assert_eq!(versions.start, VERSIONS - 1);
        }
        slow.pop().unwrap().reset();
        drop(slow);
        wait_until_alone(&mut good);
        is_served(&mut good, "slow readers that left");
        service.end();
    });
}

/// All clients together would need more than the cell's memory, although each respects its own limit.
#[test]
fn the_connections_with_the_most_memory_are_closed_before_memory_runs_out() {
    namespace::run(|| {
        let service = Service::on_tap("2", "64M");
        let mut good = service.connect();
        good.set("large", &value(1, MIB)).unwrap();
        // Values that are never completed.
        let unfinished = [b"set half 0 0 1048576\r\n", &value(2, MIB - 1000)[..]].concat();
        let mut bad: Vec<Connection> = Vec::new();
        for _ in 0..100 {
            let mut connection = Connection::open(service.address).unwrap();
            // The server may close the connection during the send.
            let _ = connection.send(&unfinished);
            bad.push(connection);
        }
        is_served(&mut good, "incomplete values");
        assert!(good.stat("curr_connections").unwrap() < 101, "no connection was closed");
        bad.clear();
        wait_until_alone(&mut good);
        // Answers that the client never reads.
        for _ in 0..150 {
            let mut connection = Connection::open(service.address).unwrap();
            let _ = connection.send(&b"get large\r\n".repeat(2000));
            bad.push(connection);
        }
        is_served(&mut good, "unread answers");
        drop(bad);
        wait_until_alone(&mut good);
        service.end();
    });
}

#[test]
fn a_half_closed_connection_gets_all_its_answers() {
    namespace::run(|| {
        let service = Service::on_tap("2", "64M");
        let mut good = service.connect();
        let large = value(1, MIB);
        good.set("large", &large).unwrap();
        let ask = |request: &[u8]| {
            let mut connection = Connection::open(service.address).unwrap();
            connection.send(&request.repeat(20)).unwrap();
            connection.end_sending().unwrap();
            connection.rest().unwrap()
        };
        let text = ask(b"get large\r\n");
        let answer = [format!("VALUE large 0 {MIB}\r\n").as_bytes(), &large, b"\r\nEND\r\n"].concat();
        assert!(text == answer.repeat(20), "{} bytes instead of {}", text.len(), answer.len() * 20);
        let binary = ask(&packet(0, b"large", b""));
        let len = (4 + MIB as u32).to_be_bytes();
        let head = [&[0x81, 0, 0, 0, 4, 0, 0, 0][..], &len, &[0; 4]].concat();
        let answers: Vec<&[u8]> = binary.chunks(HEADER + 4 + MIB).collect();
        assert_eq!(answers.len(), 20);
        for answer in answers {
            assert!(answer.starts_with(&head) && answer[HEADER + 4..] == large, "{:?}", &answer[..HEADER]);
        }
        wait_until_alone(&mut good);
        service.end();
    });
}

#[test]
fn resets_within_requests_leak_no_memory() {
    namespace::run(|| {
        let service = Service::on_tap("2", "64M");
        let mut good = service.connect();
        good.set("large", &value(1, MIB)).unwrap();
        service.leaves_nothing(|| {
            for number in 0..300 {
                let mut bad = Connection::open(service.address).unwrap();
                match number % 4 {
                    // Within a value, a line, and an answer; and before any request.
                    0 => bad.send(&[b"set half 0 0 1000000\r\n", &value(2, 300_000)[..]].concat()).unwrap(),
                    1 => bad.send(b"get lar").unwrap(),
                    2 => {
                        bad.send(&b"get large\r\n".repeat(20)).unwrap();
                        assert_eq!(bad.line().unwrap(), format!("VALUE large 0 {MIB}"));
                    }
                    _ => {}
                }
                bad.reset();
            }
            wait_until_alone(&mut good);
            is_served(&mut good, "resets");
            assert_eq!(good.get("half").unwrap(), None);
        });
        service.end();
    });
}

/// The length of the header of a request or an answer of the binary protocol.
const HEADER: usize = 24;

/// Returns a request of the binary protocol.
fn packet(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80, opcode];
    packet.extend((key.len() as u16).to_be_bytes());
    packet.extend([0; 4]);
    packet.extend((key.len() as u32 + value.len() as u32).to_be_bytes());
    packet.extend([0; 12]);
    [&packet, key, value].concat()
}

#[test]
fn garbage_is_rejected_and_affects_no_other_client() {
    namespace::run(|| {
        let service = Service::on_tap("2", "64M");
        let mut good = service.connect();
        good.set("kept", b"kept").unwrap();
        for number in 0..200 {
            let mut bad = Connection::open(service.address).unwrap();
            let mut garbage = value(number, 1 + number as usize * 97 % 5000);
            match number % 3 {
                0 => {}
                1 => garbage.insert(0, 0x80),
                _ => garbage.splice(..0, *b"get ").for_each(drop),
            }
            // The server may close the connection during the send.
            let _ = bad.send(&garbage);
            if bad.end_sending().is_ok() {
                let _ = bad.rest();
            }
        }
        is_served(&mut good, "garbage");

        let mut text = service.connect();
        for (request, answer) in [
            (format!("get {}", "k".repeat(251)), "CLIENT_ERROR"),
            (format!("set {} 0 0 1\r\nx", "k".repeat(251)), "CLIENT_ERROR"),
            ("set key zero 0 1\r\nx".to_owned(), "CLIENT_ERROR"),
            ("incr kept 1".to_owned(), "CLIENT_ERROR"),
            ("no such thing".to_owned(), "ERROR"),
        ] {
            let mut connection = service.connect();
            let got = connection.ask(&request).unwrap();
            assert!(got.starts_with(answer), "{request:.40}: {got}");
        }
        // The server discards a value of 2 MiB; the connection stays usable.
        let large = value(1, 2 * MIB);
        text.send(&[format!("set large 0 0 {}\r\n", large.len()).as_bytes(), &large, b"\r\n"].concat())
            .unwrap();
        assert_eq!(text.line().unwrap(), "SERVER_ERROR object too large for cache");
        assert_eq!(text.get("kept").unwrap().as_deref(), Some(&b"kept"[..]));
        for request in [packet(0x7f, b"", b""), packet(0, &[b'k'; 251], b""), packet(0, b"", b"value")] {
            let mut binary = Connection::open(service.address).unwrap();
            binary.send(&request).unwrap();
            binary.end_sending().unwrap();
            let answer = binary.rest().unwrap();
            assert!(answer[0] == 0x81 && answer[6..8] != [0, 0], "{request:?}: {answer:?}");
        }
        drop(text);
        wait_until_alone(&mut good);
        assert_eq!(good.get("kept").unwrap().as_deref(), Some(&b"kept"[..]));
        service.end();
    });
}
