//! The client with a scripted server.

use super::*;
use isola_proves::proves;
use proptest::prelude::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const IP: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x99);
const DNS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x53);

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn option(number: u8, value: &[u8]) -> Vec<u8> {
    [&[0, number, 0, value.len() as u8][..], value].concat()
}

/// Returns the contents of a client's message: kind, transaction, server, address.
fn listen(bytes: &[u8]) -> (u8, u32, Option<Vec<u8>>, Option<Ipv6Addr>) {
    let transaction = u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]]);
    let (mut server, mut address, mut rest, mut identified) = (None, None, &bytes[4..], false);
    while let [a, b, c, d, ..] = *rest {
        let len = usize::from(u16::from_be_bytes([c, d]));
        let value = &rest[4..4 + len];
        match u16::from_be_bytes([a, b]) {
            1 => identified = value == [0, 3, 0, 1, 2, 0, 0, 0, 0, 1],
            2 => server = Some(value.to_vec()),
            3 if len > 12 => address = Some(Ipv6Addr::from(<[u8; 16]>::try_from(&value[16..32]).unwrap())),
            _ => {}
        }
        rest = &rest[4 + len..];
    }
    assert!(identified);
    (bytes[0], transaction, server, address)
}

/// Returns a server's message: kind (2 advertise, 7 reply), and the options after the identifiers.
fn reply(kind: u8, transaction: u32, server: u8, options: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = (u32::from(kind) << 24 | transaction).to_be_bytes().to_vec();
    bytes.extend(option(1, &[0, 3, 0, 1, 2, 0, 0, 0, 0, 1]));
    bytes.extend(option(2, &[0, 9, server]));
    bytes.extend(options.concat());
    bytes
}

/// Returns the option of an address, preferred for four fifths of `valid` seconds, with T1 `renew` and T2 `rebind`
/// seconds.
fn leased(renew: u32, rebind: u32, valid: u32) -> Vec<u8> {
    let mut value = [1u32.to_be_bytes(), renew.to_be_bytes(), rebind.to_be_bytes()].concat();
    let lifetimes = [(valid * 4 / 5).to_be_bytes(), valid.to_be_bytes()].concat();
    value.extend(option(5, &[&IP.octets()[..], &lifetimes].concat()));
    option(3, &value)
}

fn status(code: u8) -> Vec<u8> {
    option(13, &[0, code])
}

fn say(client: &mut Client, now: Instant) -> (u8, u32, Option<Vec<u8>>, Option<Ipv6Addr>) {
    listen(&client.poll(now).0.expect("a message is due"))
}

/// Returns a client whose lease began at time zero.
fn bound(renew: u32, rebind: u32) -> Client {
    let mut client = Client::new(MAC, 7);
    client.offer(at(0), Dhcp6Offer::Addresses);
    let (_, transaction, ..) = say(&mut client, at(0));
    let eager = [leased(renew, rebind, 1000), option(7, &[255])];
    assert_eq!(client.receive(at(0), &reply(2, transaction, 1, &eager)), Ok(None));
    let (kind, transaction, server, ip) = say(&mut client, at(0));
    assert_eq!((kind, server, ip), (3, Some(vec![0, 9, 1]), Some(IP)));
    let granted = [leased(renew, rebind, 1000), option(23, &DNS.octets())];
    let change = client.receive(at(0), &reply(7, transaction, 1, &granted)).unwrap();
    let dns = [Some(DNS), None, None];
    assert_eq!(change, Some(Change::Gained { ip: IP, preferred: 800, valid: 1000, dns }));
    client
}

use alloc::vec;

#[proves(
    "RFC 8415 18.2.1",
    "offers are collected for the first pause, and the one with the highest preference is taken."
)]
#[proves("RFC 8415 18.2.9", "an offer with preference 255 is taken at once.")]
#[test]
fn the_best_offer_is_accepted() {
    let mut client = Client::new(MAC, 7);
    client.offer(at(0), Dhcp6Offer::Addresses);
    let (kind, transaction, server, ip) = say(&mut client, at(0));
    assert_eq!((kind, server, ip), (1, None, None));
    for (number, preference) in [(1, 5), (2, 9), (3, 7)] {
        let offer = [leased(0, 0, 1000), option(7, &[preference])];
        assert_eq!(client.receive(at(0), &reply(2, transaction, number, &offer)), Ok(None));
        assert_eq!(client.poll(at(0)).0, None);
    }
    let due = client.deadline().unwrap();
    assert!(due >= at(1));
    assert_eq!(say(&mut client, due).2, Some(vec![0, 9, 2]));
    bound(0, 0);
}

#[proves("RFC 8415 15", "pauses double, a tenth more or less, up to their longest.")]
#[test]
fn retransmissions_back_off_exponentially() {
    let mut client = Client::new(MAC, 7);
    client.offer(at(0), Dhcp6Offer::Addresses);
    let (mut now, mut before) = (at(0), 0);
    for round in 0..16 {
        assert_eq!(say(&mut client, now).0, 1);
        let next = client.deadline().unwrap();
        let pause = next.since(now).as_millis();
        let expected = if round == 0 { 1000 } else { (before * 2).min(3_600_000) };
        assert!((expected * 9 / 10 - 1..=expected * 11 / 10 + 1).contains(&pause), "{round}: {pause}");
        (now, before) = (next, pause);
    }
}

#[proves(
    "RFC 8415 21.9",
    "the elapsed time is counted from the first message of the exchange, which says zero."
)]
#[test]
fn elapsed_time_counts_from_the_first_message() {
    let mut client = Client::new(MAC, 7);
    client.offer(at(0), Dhcp6Offer::Addresses);
    // The first message waits for the interface's address.
    let first = client.poll(at(3)).0.expect("a message is due");
    let next = client.deadline().unwrap();
    let second = client.poll(next).0.expect("a message is due");
    let elapsed = |message: &[u8]| {
        let place = message.windows(4).position(|head| head == [0, 8, 0, 2]).expect("an elapsed-time option");
        u16::from_be_bytes([message[place + 4], message[place + 5]])
    };
    assert_eq!(elapsed(&first), 0);
    assert_eq!(u64::from(elapsed(&second)), next.since(at(3)).as_millis() / 10);
}

#[proves("RFC 8415 18.2.4", "a lease is renewed with its server at T1.")]
#[proves("RFC 8415 18.2.5", "with any server at T2, and is over at the end of its valid lifetime.")]
#[test]
fn a_lease_is_renewed_rebound_and_lost() {
    let mut client = bound(300, 700);
    assert_eq!(client.deadline(), Some(at(300)));
    let (kind, transaction, server, ip) = say(&mut client, at(300));
    assert_eq!((kind, server, ip), (5, Some(vec![0, 9, 1]), Some(IP)));
    let other = reply(7, transaction, 2, &[leased(300, 700, 1000)]);
    assert_eq!(client.receive(at(300), &other), Err(NotForUs), "a reply of another server");
    client.receive(at(300), &reply(7, transaction, 1, &[leased(300, 700, 1000)])).unwrap();
    assert_eq!(client.deadline(), Some(at(600)));
    let mut kinds = Vec::new();
    loop {
        let now = client.deadline().unwrap();
        let (message, change) = client.poll(now);
        if change.is_some() {
            assert_eq!((change, now), (Some(Change::Lost(IP)), at(1300)));
            assert_eq!(listen(&message.unwrap()).0, 1);
            break;
        }
        kinds.push((listen(&message.unwrap()).0, now >= at(1000)));
    }
    assert!(
        kinds.len() > 4 && kinds.iter().all(|&(kind, late)| kind == if late { 6 } else { 5 }),
        "{kinds:?}"
    );
}

#[proves("RFC 8415 18.2.10.1", "after NoBinding the address is requested again.")]
#[proves("RFC 8415 18.2.10.1", "an address with a valid lifetime of zero is given up at once.")]
#[test]
fn a_server_can_revoke_a_lease() {
    let mut client = bound(300, 700);
    let (_, transaction, ..) = say(&mut client, at(300));
    let forgot = reply(7, transaction, 1, &[status(3)]);
    assert_eq!(client.receive(at(300), &forgot), Ok(Some(Change::Lost(IP))));
    assert_eq!(say(&mut client, at(300)).0, 3);
    let mut client = bound(300, 700);
    let (_, transaction, ..) = say(&mut client, at(300));
    let ended = reply(7, transaction, 1, &[leased(0, 0, 0)]);
    assert_eq!(client.receive(at(300), &ended), Ok(Some(Change::Lost(IP))));
    assert_eq!(say(&mut client, at(300)).0, 1);
}

#[proves("RFC 8415 18.2.8", "an address in use is declined, and another one solicited.")]
#[test]
fn an_address_in_use_is_declined() {
    let mut client = bound(300, 700);
    client.decline(at(1), IP);
    let (kind, _, server, ip) = say(&mut client, at(1));
    assert_eq!((kind, server, ip), (9, Some(vec![0, 9, 1]), Some(IP)));
    let next = client.deadline().unwrap();
    assert_eq!(say(&mut client, next).0, 1);
}

#[proves("RFC 8415 18.2.6", "settings that routers advertise are requested, and refreshed in time.")]
#[test]
fn only_settings_are_requested_if_addresses_are_not_advertised() {
    let mut client = Client::new(MAC, 7);
    client.offer(at(0), Dhcp6Offer::Nothing);
    assert_eq!(client.deadline(), None);
    client.offer(at(0), Dhcp6Offer::Settings);
    let (kind, transaction, ..) = say(&mut client, at(0));
    assert_eq!(kind, 11);
    let answer = reply(7, transaction, 1, &[option(23, &DNS.octets())]);
    assert_eq!(client.receive(at(0), &answer), Ok(Some(Change::Settings([Some(DNS), None, None]))));
    assert_eq!(client.deadline(), Some(at(86_400)));
    assert_eq!(say(&mut client, at(86_400)).0, 11);
}

#[proves("RFC 8415 14.2", "without T1 and T2, half and four fifths of the preferred lifetime are taken.")]
#[test]
fn default_renewal_times_follow_from_the_lifetime() {
    /// The kind of a Rebind message.
    const REBIND: u8 = 6;
    let times = |t1, t2| {
        let mut client = bound(t1, t2);
        let first = client.deadline().unwrap();
        let mut now = first;
        while say(&mut client, now).0 != REBIND {
            now = client.deadline().unwrap();
        }
        (first, now)
    };
    assert_eq!(times(300, 700), (at(300), at(700)));
    assert_eq!(times(0, 0), (at(400), at(640)));
}

#[test]
fn unexpected_messages_are_rejected() {
    let mut client = Client::new(MAC, 7);
    client.offer(at(0), Dhcp6Offer::Addresses);
    let (_, transaction, ..) = say(&mut client, at(0));
    let good = reply(2, transaction, 1, &[leased(0, 0, 1000)]);
    let mut other_client = good.clone();
    other_client[17] ^= 1;
    for bytes in [
        reply(2, transaction ^ 1, 1, &[leased(0, 0, 1000)]),
        reply(7, transaction, 1, &[leased(0, 0, 1000)]),
        reply(2, transaction, 1, &[]),
        reply(2, transaction, 1, &[leased(0, 0, 1000), status(2)]),
        reply(2, transaction, 1, &[leased(700, 300, 1000)]),
        good[..good.len() - 1].to_vec(),
        other_client,
        Vec::new(),
    ] {
        assert_eq!(client.receive(at(0), &bytes), Err(NotForUs));
    }
    assert_eq!(client.receive(at(0), &good), Ok(None));
}

proptest! {
    /// Arbitrary options after a valid lease: the reply is accepted, or changes nothing.
    #[test]
    fn any_options_after_a_lease_are_accepted_or_change_nothing(
        options in proptest::collection::vec(any::<u8>(), 0..200),
        with_lease in any::<bool>(),
    ) {
        let mut client = bound(300, 700);
        let (_, transaction, ..) = say(&mut client, at(300));
        let before = client.deadline();
        let lease = if with_lease { vec![leased(300, 700, 1000), options] } else { vec![options] };
        match client.receive(at(300), &reply(7, transaction, 1, &lease)) {
            Ok(Some(Change::Gained { ip, preferred, valid, .. })) => {
                prop_assert!(preferred <= valid && !ip.is_multicast() && !ip.is_unspecified());
            }
            Ok(_) => prop_assert!(client.deadline() >= Some(at(300))),
            Err(NotForUs) => prop_assert_eq!(client.deadline(), before),
        }
    }
}

#[test]
fn transactions_of_clients_with_different_seeds_differ() {
    let transaction = |seed| {
        let mut client = Client::new(MAC, seed);
        client.offer(at(0), Dhcp6Offer::Addresses);
        say(&mut client, at(0)).1
    };
    assert_ne!(transaction(7), transaction(8));
}
