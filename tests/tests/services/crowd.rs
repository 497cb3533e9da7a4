//! Thousands of connections, concurrent and in sequence.

use isola_tests::kv::{Connection, value};
use isola_tests::namespace::{self, NOBODY, QUEUES, SHARED};
use isola_tests::service::{CELL, Service};
use isola_tests::wait;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getpeername, socket_with};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::thread;

/// Concurrent connections: the number of threads, and the connections of each.
const THREADS: usize = 4;
const CONNECTIONS_EACH: usize = 640;

/// Connections in sequence, and how many of them are open at a time.
const CHURNED: usize = 9_600;
const BATCH: usize = 24;

/// Connections that are never established.
const HALF_OPEN: usize = 4000;

/// Raises this process's limit of open files to its maximum.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Waits until the server has `count` connections, including `connection`.
fn wait_for_connections(connection: &mut Connection, count: u64) {
    wait::until_true(&format!("the server has {count} connections"), || {
        connection.stat("curr_connections").unwrap() == count
    });
}

/// Opens thousands of connections at once, and uses them.
fn open_thousands(service: &Service, observer: &mut Connection) {
    let open = || -> Vec<Connection> { (0..CONNECTIONS_EACH).map(|_| service.open()).collect() };
    let mut connections: Vec<Connection> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(open)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    wait_for_connections(observer, connections.len() as u64 + 1);
    ask_around(&mut connections);
}

/// Sets a value on each connection, and reads that of another connection. All requests are sent before any answer is
/// read.
fn ask_around(connections: &mut [Connection]) {
    let count = connections.len();
    for (number, connection) in connections.iter_mut().enumerate() {
        connection.send(format!("set crowd{number} 0 0 64\r\n").as_bytes()).unwrap();
        connection.send(&[&value(number as u64, 64)[..], b"\r\n"].concat()).unwrap();
    }
    for connection in connections.iter_mut() {
        assert_eq!(connection.line().unwrap(), "STORED");
    }
    for (number, connection) in connections.iter_mut().enumerate() {
        connection.send(format!("get crowd{}\r\n", (number + 1) % count).as_bytes()).unwrap();
    }
    for (number, connection) in connections.iter_mut().enumerate() {
        let neighbour = (number + 1) % count;
        let got = connection.value(&format!("crowd{neighbour}")).unwrap();
        assert_eq!(got, Some(value(neighbour as u64, 64)), "of connection {number}");
    }
}

#[test]
fn thousands_of_concurrent_connections_are_all_answered() {
    raise_file_limit();
    namespace::run(|| {
        let service = Service::on_tap("3", "128M");
        let mut observer = service.connect();
        // Later rounds reuse the memory of the first.
        service.leaves_nothing(|| {
            open_thousands(&service, &mut observer);
            wait_for_connections(&mut observer, 1);
        });
        service.end();
    });
}

/// The side that closes a connection first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClosingSide {
    Server,
    Client,
}

/// Opens and closes [`CHURNED`] connections in batches.
fn churn(service: &Service, first: ClosingSide) {
    for batch in 0..CHURNED / BATCH {
        let mut connections: Vec<Connection> = (0..BATCH).map(|_| service.open()).collect();
        for connection in &mut connections {
            let question = if first == ClosingSide::Server { "version\r\nquit\r\n" } else { "version\r\n" };
            connection.send(question.as_bytes()).unwrap();
        }
        for (number, mut connection) in connections.into_iter().enumerate() {
            assert!(connection.line().unwrap().starts_with("VERSION "), "in batch {batch}");
            match first {
                ClosingSide::Server => assert_eq!(connection.rest().unwrap(), b""),
                // By a reset, or in order.
                ClosingSide::Client if number % 2 == 0 => connection.reset(),
                ClosingSide::Client => drop(connection),
            }
        }
    }
}

#[test]
fn thousands_of_connections_in_sequence_leak_no_memory() {
    raise_file_limit();
    namespace::run(|| {
        let service = Service::on(SHARED, &["--machine", "microvm"], &["--cores", "2"]);
        let mut observer = service.connect();
        service.leaves_nothing(|| {
            churn(&service, ClosingSide::Client);
            wait_for_connections(&mut observer, 1);
        });
        // The side that closes first keeps the connection in TIME-WAIT; the server bounds the number of these.
        churn(&service, ClosingSide::Server);
        wait_for_connections(&mut observer, 1);
        assert!(observer.stat("total_connections").unwrap() >= 4 * CHURNED as u64);
        service.end();
    });
}

#[test]
fn a_published_port_passes_a_hundred_connections() {
    let service = Service::published(&[], &["--cores", "2"]);
    // In sequence: QEMU's user-mode network loses some of a burst.
    let mut connections: Vec<Connection> = (0..100).map(|_| service.connect()).collect();
    ask_around(&mut connections);
    drop(connections);
    wait_for_connections(&mut service.connect(), 1);
    service.end();
}

#[test]
fn each_core_serves_its_own_queue_of_a_device() {
    raise_file_limit();
    namespace::run(|| {
        let service = Service::on(QUEUES, &[], &["--cores", "2", "--memory", "64M"]);
        let mut observer = service.connect();
        open_thousands(&service, &mut observer);
        let cell = service.cell();
        let interrupts = |core: usize| cell["cores"][core]["interrupts"].as_u64().unwrap();
        assert!(interrupts(0) > 100 && interrupts(1) > 100, "{cell:#}");
        drop(observer);
        service.end();
    });
}

#[test]
fn a_plugged_core_serves_its_queue_of_a_device() {
    namespace::run(|| {
        let service = Service::on(QUEUES, &[], &["--cores", "1", "--memory", "64M"]);
        let mut old: Vec<Connection> = (0..20).map(|_| service.connect()).collect();
        service.isola.run(&["resize", CELL, "--cores", "2"]).ok();
        let interrupts = || service.cell()["cores"][1]["interrupts"].as_u64().unwrap();
        wait::until_true("the new core serves", || {
            ask_around(&mut old);
            let mut new: Vec<Connection> = (0..20).map(|_| service.connect()).collect();
            ask_around(&mut new);
            interrupts() > 100
        });
        service.isola.run(&["resize", CELL, "--cores", "1"]).ok();
        ask_around(&mut old);
        drop(old);
        service.end();
    });
}

/// A SYN flood: clients never establish their connections, because the server's answers are lost.
#[test]
fn half_open_connections_do_not_block_others() {
    raise_file_limit();
    namespace::run(|| {
        let service = Service::on_tap("2", "64M");
        let mut observer = service.connect();
        let received = || service.cell()["traffic"]["received_frames"].as_u64().expect("a counter");
        let (before, frames) = (service.used_bytes(), received());
        let SocketAddr::V4(server) = service.address else { panic!("cells have IPv4 addresses") };
        let half_open: Vec<OwnedFd> = (0..HALF_OPEN)
            .map(|_| {
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
                bind(&socket, &SocketAddrV4::new(NOBODY, 0)).unwrap();
                assert_eq!(connect(&socket, &server), Err(Errno::INPROGRESS));
                socket
            })
            .collect();
        // All SYNs have passed the queues and reached the cell.
        wait::until_true("the cell has received the SYNs", || received() >= frames + HALF_OPEN as u64);
        // Other connections, old and new, are served meanwhile.
        let mut connections: Vec<Connection> =
            (0..50).map(|_| Connection::open(service.address).unwrap()).collect();
        ask_around(&mut connections);
        assert_eq!(observer.stat("curr_connections").unwrap(), 51);
        let more = service.used_bytes().saturating_sub(before);
        assert!(more < 4 << 20, "{more} bytes more are in use");
        let completed = half_open.iter().filter(|socket| getpeername(socket).is_ok()).count();
        assert_eq!(completed, 0, "half-open connections were established");
        drop(half_open);
        drop(connections);
        wait_for_connections(&mut observer, 1);
        service.end();
    });
}
