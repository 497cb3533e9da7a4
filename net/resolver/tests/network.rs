//! Lookups on a network: one cell resolves names, another answers from a script.

mod common;

use common::{A, AAAA, Reply, question_of, record, soa};
use isola_events::future::join;
use isola_events::{now, sleep, spawn_task};
use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_net::{TcpStream, UdpSocket, listen};
use isola_proves::proves;
use isola_resolver::{ConnectError, Kind, ResolveError, connect, lookup, resolve, set_servers};
use isola_test_cells::{CLIENT, SERVER, dial, read_exactly, run_server_and_client};
use std::future::{Future, pending};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

const PORT: u16 = 53;
const SERVICE: u16 = 7;

/// How often the address of moving.example was queried. Each answer has another address.
static NEXT_ADDRESS: AtomicU8 = AtomicU8::new(100);

/// How often the server has not answered.
static UNANSWERED: AtomicU8 = AtomicU8::new(0);

/// How often the server has failed.
static FAILED: AtomicU8 = AtomicU8::new(0);

/// How often late.example was queried, whose answers wait for `MAY_ANSWER`.
static LATE: AtomicU8 = AtomicU8::new(0);
static MAY_ANSWER: AtomicBool = AtomicBool::new(false);

/// Returns the scripted reply.
fn reply(query: &[u8]) -> Reply {
    let (name, kind) = question_of(query);
    let address = |owner: &str, last: u8| record(owner, A, 300, &[10, 9, 0, last]);
    match (name.as_str(), kind) {
        ("server.example", A) => Reply::of(vec![address(&name, 1)]),
        ("late.example", A) => Reply::of(vec![address(&name, LATE.fetch_add(1, Ordering::Relaxed))]),
        ("moving.example", A) => {
            Reply::of(vec![address(&name, NEXT_ADDRESS.fetch_add(1, Ordering::Relaxed))])
        }
        ("server.example", AAAA) => Reply { authority: vec![soa("example", 60, 60)], ..Reply::default() },
        ("four.example", A) => Reply::of(vec![address(&name, 4)]),
        ("broken.example", A) => {
            FAILED.fetch_add(1, Ordering::Relaxed);
            Reply { code: 2, ..Reply::default() }
        }
        // No machine has the first address.
        ("two.example", A) => Reply::of(vec![address(&name, 99), address(&name, 1)]),
        ("many.example", A) => Reply::of((0..30).map(|last| address(&name, last)).collect()),
        (_, A | AAAA) => Reply { code: 3, authority: vec![soa("example", 60, 60)], ..Reply::default() },
        _ => Reply { code: 4, ..Reply::default() },
    }
}

/// Answers over UDP. Long answers are truncated.
async fn by_udp() {
    let socket = UdpSocket::bind(PORT).unwrap();
    loop {
        let query = socket.receive().await;
        if question_of(&query.payload) == ("four.example".into(), AAAA) {
            UNANSWERED.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let mut reply = reply(&query.payload);
        while question_of(&query.payload).0 == "late.example" && !MAY_ANSWER.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(1)).await;
        }
        if reply.answers.len() > 20 {
            reply = Reply { truncated: true, ..Reply::default() };
        }
        // A forger is faster, and does not know the id.
        let mut forged = Reply::of(vec![record("server.example", A, 300, &[6, 6, 6, 6])]).to(&query.payload);
        forged[0] ^= 0xff;
        for message in [forged, reply.to(&query.payload)] {
            socket.send_to(query.remote, Chain::from(IoBuf::from(message))).unwrap();
        }
    }
}

/// Answers over TCP, in pieces.
async fn by_tcp(mut stream: TcpStream) {
    let mut received = Chain::new();
    let query = loop {
        received.append(stream.read().await.unwrap().expect("there is a question"));
        let message = received.to_vec();
        if let [high, low, query @ ..] = message.as_slice()
            && query.len() == usize::from(u16::from_be_bytes([*high, *low]))
        {
            break query.to_vec();
        }
    };
    let answer = reply(&query).to(&query);
    for piece in
        [&(answer.len() as u16).to_be_bytes()[..1], &[answer.len() as u8], &answer[..7], &answer[7..]]
    {
        stream.write(IoBuf::copy_from_slice(piece).into()).await.unwrap();
        isola_events::yield_now().await;
    }
    // The client has read all of it when it closes.
    while let Ok(Some(_)) = stream.read().await {}
}

async fn name(mut stream: TcpStream) {
    stream.write(IoBuf::from_static(b"hello").into()).await.unwrap();
    stream.shutdown();
    while let Ok(Some(_)) = stream.read().await {}
}

fn with_server<C: Future<Output = ()> + 'static>(client: fn() -> C) {
    let server = || async {
        let _by_tcp = listen(PORT, 8, by_tcp).unwrap();
        let _service = listen(SERVICE, 8, name).unwrap();
        spawn_task(by_udp()).detach();
        pending::<()>().await;
    };
    run_server_and_client(1, Loss::Never, server, move || async move {
        // The DNS server runs once the service listens.
        dial(SERVICE).await;
        set_servers(&[(SERVER, PORT).into()]);
        client().await;
    });
}

#[test]
fn names_are_queried_once_and_then_cached() {
    with_server(|| async {
        let expected = Ok(vec![IpAddr::from(SERVER)]);
        assert_eq!(resolve("Server.Example").await, expected);
        assert_eq!(lookup("server.example", Kind::Ipv6).await, Err(ResolveError::NoAddresses));
        assert_eq!(lookup("none.example", Kind::Ipv4).await, Err(ResolveError::NoName));
        // Concurrent lookups share one query, and a later one finds the answer in the cache.
        let moving = || lookup("moving.example", Kind::Ipv4);
        let (one, other) = join(moving(), lookup("MOVING.example.", Kind::Ipv4)).await;
        assert!(one.is_ok());
        assert_eq!((&other, &moving().await), (&one, &one));
        // Other servers may give other answers.
        set_servers(&[(SERVER, PORT).into(), (CLIENT, 1).into()]);
        let now = moving().await;
        assert!(now.is_ok() && now != one, "{now:?}");
        // An answer of the previous servers that arrives later is not cached.
        let late = || lookup("late.example", Kind::Ipv4);
        let before = spawn_task(late());
        while LATE.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        set_servers(&[(SERVER, PORT).into()]);
        let other = spawn_task(lookup("other.example", Kind::Ipv4));
        sleep(Duration::from_millis(1)).await;
        MAY_ANSWER.store(true, Ordering::Relaxed);
        assert_eq!(other.await, Err(ResolveError::NoName));
        let before = before.await;
        assert!(before.is_ok() && before != late().await);
        // An answer that does not fit arrives over TCP.
        assert_eq!(lookup("many.example", Kind::Ipv4).await.unwrap().len(), 30);
        // A connection to a host by name.
        let mut stream = connect("server.example", SERVICE).await.unwrap();
        assert_eq!(read_exactly(&mut stream, 5).await, b"hello");
        // RFC 8305 5: an address that does not answer delays the next one only briefly.
        let mut stream = connect("two.example", SERVICE).await.unwrap();
        assert_eq!(stream.peer().unwrap().ip(), IpAddr::from(SERVER));
        assert_eq!(read_exactly(&mut stream, 5).await, b"hello");
        let refused = connect("server.example", 4).await.unwrap_err();
        assert!(matches!(refused, ConnectError::Stream(_)), "{refused}");
        assert_eq!(
            connect("none.example", SERVICE).await.unwrap_err(),
            ConnectError::Resolve(ResolveError::NoName)
        );
        // Addresses, special names and invalid names cause no query.
        set_servers(&[]);
        assert_eq!(resolve("server.example").await, Err(ResolveError::NoServers));
        assert_eq!(resolve("192.0.2.7").await, Ok(vec![IpAddr::from([192, 0, 2, 7])]));
        assert_eq!(resolve("localhost").await.unwrap()[1], IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(resolve("x.invalid").await, Err(ResolveError::NoName));
        assert_eq!(resolve("a..b").await, Err(ResolveError::Name("a..b".into())));
    });
}

#[test]
fn a_failed_lookup_fails_for_all_its_waiters() {
    with_server(|| async {
        let broken = || lookup("broken.example", Kind::Ipv4);
        let failed = Err(ResolveError::Failed);
        let all = join(join(broken(), broken()), join(broken(), broken())).await;
        assert_eq!(all, ((failed.clone(), failed.clone()), (failed.clone(), failed)));
        // One query per round.
        assert_eq!(FAILED.load(Ordering::Relaxed), 2);
    });
}

#[proves(
    "RFC 8305 3",
    "the wait for missing IPv6 addresses is short, and does not last until their query is repeated"
)]
#[test]
fn a_server_that_ignores_ipv6_queries_does_not_delay_ipv4() {
    with_server(|| async {
        let begin = now();
        assert_eq!(resolve("four.example").await, Ok(vec![IpAddr::from([10, 9, 0, 4])]));
        let waited_ns = now().as_ns() - begin.as_ns();
        assert!(waited_ns >= 50_000_000, "resolve waits for IPv6: {waited_ns} ns");
        assert_eq!(resolve("four.example").await, Ok(vec![IpAddr::from([10, 9, 0, 4])]));
        // The query for IPv6 is repeated after two seconds.
        assert_eq!(UNANSWERED.load(Ordering::Relaxed), 1, "IPv4 waited until the IPv6 query was repeated");
    });
}
