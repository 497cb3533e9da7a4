//! Many connections: at once, and one after the other.

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

/// Connections at once, by each of so many threads.
const THREADS: usize = 4;
const CONNECTIONS_EACH: usize = 640;

/// Connections one after the other, so many of them open at a time.
const CHURNED: usize = 9_600;
const BATCH: usize = 24;

/// Connections that are never completed.
const HALF_OPEN: usize = 4000;

/// Lets this process have as many files and sockets as it may.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Waits until the server has so many connections, the one that asks among them.
fn wait_for_connections(connection: &mut Connection, count: u64) {
    wait::until_true(&format!("{count} connections are left"), || {
        connection.stat("curr_connections").unwrap() == count
    });
}

/// Opens thousands of connections at once, and uses them.
fn open_thousands(service: &Service, observer: &mut Connection) {
    let open = || -> Vec<Connection> {
        (0..CONNECTIONS_EACH).map(|_| Connection::open(service.address).unwrap()).collect()
    };
    let mut connections: Vec<Connection> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(open)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    wait_for_connections(observer, connections.len() as u64 + 1);
    ask_around(&mut connections);
}

/// Has each connection set a value, and get what another one has set. All ask before any answer is read.
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
fn thousands_of_connections_at_once_are_all_answered() {
    raise_file_limit();
    namespace::run(|| {
        let service = Service::on_tap("3", "128M");
        let mut observer = service.connect();
        // Later crowds use the memory of the first again.
        service.leaves_nothing(|| {
            open_thousands(&service, &mut observer);
            wait_for_connections(&mut observer, 1);
        });
        service.end();
    });
}

/// The side that ends a connection first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Server,
    Client,
}

/// Opens [`CHURNED`] connections one batch after the other, and sees each end.
fn churn(service: &Service, first: First) {
    for batch in 0..CHURNED / BATCH {
        let mut connections: Vec<Connection> =
            (0..BATCH).map(|_| Connection::open(service.address).unwrap()).collect();
        for connection in &mut connections {
            let question = if first == First::Server { "version\r\nquit\r\n" } else { "version\r\n" };
            connection.send(question.as_bytes()).unwrap();
        }
        for (number, mut connection) in connections.into_iter().enumerate() {
            assert!(connection.line().unwrap().starts_with("VERSION "), "in batch {batch}");
            match first {
                First::Server => assert_eq!(connection.rest().unwrap(), b""),
                // By a reset, or in good order.
                First::Client if number % 2 == 0 => connection.reset(),
                First::Client => drop(connection),
            }
        }
    }
}

#[test]
fn connections_come_and_go_by_the_thousand_and_leave_nothing() {
    raise_file_limit();
    namespace::run(|| {
        let service = Service::on(SHARED, &["--machine", "microvm"], &["--cores", "2"]);
        let mut observer = service.connect();
        service.leaves_nothing(|| {
            churn(&service, First::Client);
            wait_for_connections(&mut observer, 1);
        });
        // A server that ends a connection first keeps it in TIME-WAIT, but not more than so many.
        churn(&service, First::Server);
        wait_for_connections(&mut observer, 1);
        assert!(observer.stat("total_connections").unwrap() >= 4 * CHURNED as u64);
        service.end();
    });
}

#[test]
fn a_crowd_comes_through_a_published_port() {
    let service = Service::published(&[], &["--cores", "2"]);
    // One after the other: QEMU's user-mode network loses those that come at once.
    let mut connections: Vec<Connection> = (0..100).map(|_| service.connect()).collect();
    ask_around(&mut connections);
    drop(connections);
    wait_for_connections(&mut service.connect(), 1);
    service.end();
}

#[test]
fn a_device_with_queues_serves_each_core_its_own() {
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
fn a_core_that_comes_serves_on_a_device_with_queues() {
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

/// Connections that their clients never complete, as in a SYN flood: the server's answers find nobody.
#[test]
fn connections_that_are_never_completed_keep_nobody_out() {
    raise_file_limit();
    namespace::run(|| {
        let service = Service::on_tap("2", "64M");
        let mut observer = service.connect();
        let received = || service.cell()["traffic"]["received_frames"].as_u64().expect("it is told");
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
        // The cell has seen them, and not only the queues on the way to it.
        wait::until_true("the cell has seen them", || received() >= frames + HALF_OPEN as u64);
        // Those that complete theirs are served, new ones as well as old ones.
        let mut connections: Vec<Connection> =
            (0..50).map(|_| Connection::open(service.address).unwrap()).collect();
        ask_around(&mut connections);
        assert_eq!(observer.stat("curr_connections").unwrap(), 51);
        let more = service.used_bytes().saturating_sub(before);
        assert!(more < 4 << 20, "{more} bytes more are in use");
        let completed = half_open.iter().filter(|socket| getpeername(socket).is_ok()).count();
        assert_eq!(completed, 0, "connections were completed that were not to be");
        drop(half_open);
        drop(connections);
        wait_for_connections(&mut observer, 1);
        service.end();
    });
}
