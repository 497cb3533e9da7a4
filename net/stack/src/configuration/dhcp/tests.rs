//! The client with a scripted server.

use super::*;
use crate::base::DNS_SERVERS;
use alloc::vec;
use isola_proves::proves;
use proptest::prelude::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A message of the client: kind (1 discover, 3 request), transaction, current address, server (none: broadcast).
#[derive(Debug, PartialEq)]
struct SentMessage {
    kind: u8,
    transaction: u32,
    current: Ipv4Addr,
    server: Option<Ipv4Addr>,
    requested: Option<Ipv4Addr>,
}

fn listen(message: &Message) -> SentMessage {
    let bytes = &message.bytes;
    assert!(bytes.len() >= 300);
    assert_eq!(bytes[28..34], MAC.0);
    assert_eq!(bytes[236..240], [99, 130, 83, 99]);
    let mut options = &bytes[240..];
    let (mut kind, mut requested) = (0, None);
    while options[0] != 255 {
        let (option, len) = (options[0], usize::from(options[1]));
        let value = &options[2..2 + len];
        match option {
            53 => kind = value[0],
            50 => requested = Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).unwrap())),
            _ => {}
        }
        options = &options[2 + len..];
    }
    SentMessage {
        kind,
        transaction: u32::from_be_bytes(bytes[4..8].try_into().unwrap()),
        current: <[u8; 4]>::try_from(&bytes[12..16]).unwrap().into(),
        server: message.server,
        requested,
    }
}

/// Returns a server's message of a kind (2 offer, 5 ack, 6 nak) with these further options.
fn reply(kind: u8, transaction: u32, options: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 236];
    bytes[..3].copy_from_slice(&[2, 1, 6]);
    bytes[4..8].copy_from_slice(&transaction.to_be_bytes());
    bytes[16..20].copy_from_slice(&ADDRESS.octets());
    bytes[28..34].copy_from_slice(&MAC.0);
    bytes.extend_from_slice(&[99, 130, 83, 99, 53, 1, kind, 54, 4]);
    bytes.extend_from_slice(&SERVER.octets());
    bytes.extend_from_slice(options);
    bytes.push(255);
    bytes
}

/// Returns the options of mask, router, two name servers, and a lease of 1,000 seconds.
fn fast() -> Vec<u8> {
    let mut options = vec![1, 4, 255, 255, 255, 0, 3, 4, 10, 0, 2, 2, 6, 8, 10, 0, 2, 3, 8, 8, 8, 8];
    options.extend_from_slice(&[51, 4]);
    options.extend_from_slice(&1000u32.to_be_bytes());
    options
}

fn client() -> Client {
    Client::new(MAC, 42, Instant::ZERO)
}

fn say(client: &mut Client, now: Instant) -> SentMessage {
    let (message, change) = client.poll(now);
    assert_eq!(change, None);
    listen(&message.expect("a message is due"))
}

/// Returns a client with a lease that began at time zero.
fn bound(options: &[u8]) -> Client {
    let mut client = client();
    let transaction = say(&mut client, Instant::ZERO).transaction;
    assert_eq!(client.receive(Instant::ZERO, &reply(2, transaction, options)), Ok(None));
    say(&mut client, Instant::ZERO);
    let change = client.receive(Instant::ZERO, &reply(5, transaction, options)).unwrap();
    assert!(matches!(change, Some(Change::Gained(_))));
    client
}

#[proves("RFC 2131 3.1", "DISCOVER, OFFER, REQUEST, ACK bring an address")]
#[test]
fn an_offer_is_requested_and_granted() {
    let mut client = client();
    let discover = say(&mut client, Instant::ZERO);
    assert_eq!((discover.kind, discover.current, discover.server), (1, Ipv4Addr::UNSPECIFIED, None));
    let transaction = discover.transaction;
    assert_eq!(client.receive(Instant::ZERO, &reply(2, transaction, &fast())), Ok(None));
    let request = say(&mut client, Instant::ZERO);
    assert_eq!((request.kind, request.requested, request.server), (3, Some(ADDRESS), None));
    let change = client.receive(Instant::ZERO, &reply(5, transaction, &fast())).unwrap();
    let Some(Change::Gained(config)) = change else { panic!("an address") };
    assert_eq!((config.address, config.prefix_len, config.gateway), (ADDRESS, 24, Some(SERVER)));
    let mut dns = [None; DNS_SERVERS];
    dns[0] = Some(Ipv4Addr::new(10, 0, 2, 3));
    dns[1] = Some(Ipv4Addr::new(8, 8, 8, 8));
    assert_eq!(config.dns, dns);
    assert_eq!(client.deadline(), Some(Instant::ZERO + seconds(500)));
}

#[proves("RFC 2131 4.1", "messages are sent again with pauses that double")]
#[test]
fn retransmissions_back_off_exponentially() {
    let mut client = client();
    let mut now = Instant::ZERO;
    for expected in [4u64, 8, 16, 32, 64, 64, 64] {
        say(&mut client, now);
        let next = client.deadline().unwrap();
        let pause = next.since(now).as_millis();
        assert!((expected * 1000 - 1000..=expected * 1000 + 1000).contains(&pause), "{pause}");
        assert_eq!(client.poll(now).0.map(|_| ()), None, "a message before its time");
        now = next;
    }
}

#[test]
fn an_unanswered_request_leads_to_a_new_discover() {
    let mut client = client();
    let transaction = say(&mut client, Instant::ZERO).transaction;
    client.receive(Instant::ZERO, &reply(2, transaction, &fast())).unwrap();
    let mut now = Instant::ZERO;
    for _ in 0..4 {
        assert_eq!(say(&mut client, now).kind, 3);
        now = client.deadline().unwrap();
    }
    let again = say(&mut client, now);
    assert_eq!(again.kind, 1);
    assert_ne!(again.transaction, transaction);
}

#[test]
fn a_nak_of_a_request_restarts_after_a_delay() {
    let mut client = client();
    let transaction = say(&mut client, Instant::ZERO).transaction;
    client.receive(Instant::ZERO, &reply(2, transaction, &fast())).unwrap();
    say(&mut client, Instant::ZERO);
    assert_eq!(client.receive(Instant::ZERO, &reply(6, transaction, &[])), Ok(None));
    assert_eq!(client.deadline(), Some(Instant::ZERO + seconds(1)));
    assert_eq!(say(&mut client, Instant::ZERO + seconds(1)).kind, 1);
}

#[proves("RFC 2131 4.4.5", "at T1 the server is asked by unicast")]
#[test]
fn a_lease_is_renewed_with_its_server_and_keeps_the_address() {
    let mut client = bound(&fast());
    let t1 = Instant::ZERO + seconds(500);
    let renewal = say(&mut client, t1);
    assert_eq!((renewal.kind, renewal.current, renewal.server), (3, ADDRESS, Some(SERVER)));
    assert_eq!(renewal.requested, None);
    assert_eq!(
        client.receive(t1, &reply(5, renewal.transaction, &fast())),
        Ok(None),
        "a change without a difference"
    );
    assert_eq!(client.deadline(), Some(t1 + seconds(500)));
}

#[test]
fn a_renewal_may_bring_another_router() {
    let mut client = bound(&fast());
    let t1 = Instant::ZERO + seconds(500);
    let transaction = say(&mut client, t1).transaction;
    let mut options = fast();
    options[11] = 9;
    let change = client.receive(t1, &reply(5, transaction, &options)).unwrap();
    let Some(Change::Gained(config)) = change else { panic!("a change") };
    assert_eq!(config.gateway, Some(Ipv4Addr::new(10, 0, 2, 9)));
}

#[proves("RFC 2131 4.4.5", "at T2 any server is asked by broadcast")]
#[test]
fn a_silent_server_leads_to_rebinding_and_then_to_the_loss_of_the_address() {
    let mut client = bound(&fast());
    let (mut unicast, mut broadcast) = (Vec::new(), Vec::new());
    loop {
        let now = client.deadline().unwrap();
        let (message, change) = client.poll(now);
        let said = listen(&message.unwrap());
        let at = now.as_nanos() / 1_000_000_000;
        if change == Some(Change::Lost) {
            assert_eq!((at, said.kind, said.current), (1000, 1, Ipv4Addr::UNSPECIFIED));
            break;
        }
        assert_eq!((said.kind, said.current), (3, ADDRESS));
        if said.server.is_some() { unicast.push(at) } else { broadcast.push(at) }
    }
    // T1 500, T2 875: half of the remaining time each, but at least a minute.
    assert_eq!(unicast, [500, 687, 781, 841]);
    assert_eq!(broadcast, [875, 937, 997]);
}

#[test]
fn a_nak_of_a_renewal_removes_the_address_at_once() {
    let mut client = bound(&fast());
    let t1 = Instant::ZERO + seconds(500);
    let transaction = say(&mut client, t1).transaction;
    assert_eq!(client.receive(t1, &reply(6, transaction, &[])), Ok(Some(Change::Lost)));
    assert_eq!(say(&mut client, t1).kind, 1);
}

#[proves("RFC 2131 3.1", "an address in use is declined, and the client waits ten seconds.")]
#[test]
fn an_address_in_use_is_declined() {
    let mut client = bound(&fast());
    let now = Instant::ZERO + seconds(1);
    assert_eq!(client.decline(now), Some(Change::Lost));
    let (message, _) = client.poll(now);
    let message = message.unwrap();
    let said = listen(&message);
    assert_eq!(
        (said.kind, said.requested, said.current, said.server),
        (4, Some(ADDRESS), Ipv4Addr::UNSPECIFIED, None)
    );
    assert!(
        message.bytes.windows(6).any(|option| option == [54, 4, 10, 0, 2, 2]),
        "the message has no server id"
    );
    assert_eq!(client.deadline(), Some(now + seconds(10)));
    assert_eq!(say(&mut client, now + seconds(10)).kind, 1);
    assert_eq!(client.decline(now), None, "a decline without a lease");
}

#[proves("RFC 2132 9.11", "T1 is taken from the server")]
#[proves("RFC 2132 9.12", "T2 is taken from the server")]
#[test]
fn valid_renewal_times_of_the_server_are_used() {
    // The seconds of the first request to the server, and of the first broadcast.
    let times = |t1: u32, t2: u32| {
        let mut options = fast();
        for (option, value) in [(58, t1), (59, t2)] {
            options.extend_from_slice(&[option, 4]);
            options.extend_from_slice(&value.to_be_bytes());
        }
        let mut client = bound(&options);
        let mut renewed = None;
        loop {
            let now = client.deadline().unwrap();
            let at = now.as_nanos() / 1_000_000_000;
            match say(&mut client, now).server {
                Some(_) => renewed = renewed.or(Some(at)),
                None => break (renewed.unwrap(), at),
            }
        }
    };
    assert_eq!(times(300, 700), (300, 700));
    assert_eq!(times(100, 990), (100, 990));
    assert_eq!(times(800, 700), (500, 700), "T1 beyond T2");
    assert_eq!(times(0, 0), (500, 875));
    assert_eq!(times(2000, 3000), (500, 875), "both beyond the lease");
}

#[proves("RFC 2131 3.3", "a lease of 0xffffffff seconds has no end")]
#[test]
fn an_infinite_lease_is_not_renewed_and_a_short_one_counts_as_a_minute() {
    let lease = |seconds: u32| {
        let mut options = fast();
        options.extend_from_slice(&[51, 4]);
        options.extend_from_slice(&seconds.to_be_bytes());
        bound(&options).deadline()
    };
    assert_eq!(lease(u32::MAX), None);
    assert_eq!(lease(1), Some(Instant::ZERO + seconds(30)));
}

#[proves("RFC 2131 4.4.1", "messages with another transaction id are dropped")]
#[test]
fn unexpected_messages_are_rejected() {
    let mut client = client();
    let transaction = say(&mut client, Instant::ZERO).transaction;
    let mut other_mac = reply(2, transaction, &fast());
    other_mac[33] = 9;
    let mut request = reply(2, transaction, &fast());
    request[0] = 1;
    let mut bad_mask = fast();
    bad_mask[3] = 0;
    for bytes in [
        reply(2, transaction ^ 1, &fast()),
        reply(5, transaction, &fast()),
        reply(6, transaction, &[]),
        reply(2, transaction, &[]),
        reply(2, transaction, &bad_mask),
        other_mac,
        request,
        Vec::new(),
    ] {
        assert_eq!(client.receive(Instant::ZERO, &bytes), Err(NotForUs));
    }
    client.receive(Instant::ZERO, &reply(2, transaction, &fast())).unwrap();
    let mut other_server = reply(5, transaction, &fast());
    other_server[248] = 77;
    assert_eq!(client.receive(Instant::ZERO, &other_server), Err(NotForUs));
}

proptest! {
    /// Changes and truncates a valid acknowledgement: a rejected one changes nothing, and an accepted one yields a
    /// possible host address and a deadline within the lease's limits.
    #[test]
    fn a_changed_acknowledgement_is_accepted_or_changes_nothing(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        more in proptest::collection::vec(any::<u8>(), 0..40),
        cut in 0..30_usize,
    ) {
        let mut client = client();
        let transaction = say(&mut client, Instant::ZERO).transaction;
        client.receive(Instant::ZERO, &reply(2, transaction, &fast())).unwrap();
        say(&mut client, Instant::ZERO);
        let before = client.deadline();
        let mut bytes = reply(5, transaction, &[fast(), more].concat());
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes.truncate(bytes.len() - cut);
        match client.receive(Instant::ZERO, &bytes) {
            Ok(Some(Change::Gained(config))) => {
                let ip = config.address;
                prop_assert!(!ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(), "{ip}");
                prop_assert!(config.prefix_len <= 32);
                let longest = Instant::ZERO + seconds(u32::MAX.into());
                prop_assert!(client.deadline().is_none_or(|at| at >= Instant::ZERO + seconds(30) && at <= longest));
            }
            Ok(_) => {}
            Err(NotForUs) => prop_assert_eq!(client.deadline(), before),
        }
    }
}

#[test]
fn the_first_router_of_several_is_the_gateway() {
    let mut options = vec![1, 4, 255, 255, 255, 0, 3, 8, 10, 0, 2, 2, 10, 0, 2, 9, 51, 4];
    options.extend_from_slice(&1000u32.to_be_bytes());
    let mut client = client();
    let transaction = say(&mut client, Instant::ZERO).transaction;
    assert_eq!(client.receive(Instant::ZERO, &reply(2, transaction, &options)), Ok(None));
    say(&mut client, Instant::ZERO);
    let change = client.receive(Instant::ZERO, &reply(5, transaction, &options)).unwrap();
    let Some(Change::Gained(config)) = change else { panic!("an address") };
    assert_eq!(config.gateway, Some(SERVER));
}
