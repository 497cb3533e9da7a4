//! The neighbour cache without a stack.

use super::*;
use core::net::{Ipv4Addr, Ipv6Addr};
use isola_proves::proves;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
const PEER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9));
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 8]);

fn cache(neighbours: usize) -> (NeighbourCache, Counters) {
    (NeighbourCache::new(&Limits { neighbours, ..Limits::default() }), Counters::new())
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn known(answer: Answer) -> (MacAddr, Option<ResolutionRequest>) {
    let Answer::Known(known, ask) = answer else { panic!("a known neighbour: {answer:?}") };
    (known.mac, ask)
}

#[proves("RFC 1122 2.3.2.1", "requests for one address are at least a second apart.")]
#[proves("RFC 4861 7.2.2", "three requests without an answer end a search.")]
#[test]
fn a_search_sends_three_requests_and_ends() {
    for ip in [PEER, PEER6] {
        let (mut cache, mut counters) = cache(8);
        assert_eq!(
            cache.look_up(at(0), ip, &mut counters),
            Answer::Sought(Some(ResolutionRequest { ip, to: None }))
        );
        cache.wait_connection(ip, 7);
        let mut asked = 1;
        while let Some(at) = cache.deadline() {
            let (asks, lost) = cache.on_timer(at);
            asked += asks.len();
            if let Some((_, waiting)) = lost.first() {
                assert_eq!(waiting.connections, [7]);
                assert_eq!(at, Instant::ZERO + Duration::from_secs(3));
            }
        }
        assert_eq!(asked, 3);
    }
}

#[proves("RFC 4861 7.3.2", "a neighbour is reachable, stale, delayed, probed three times and then deleted.")]
#[test]
fn a_stale_neighbour_is_verified_on_use_and_removed_without_an_answer() {
    for (ip, fresh) in [(PEER, 60), (PEER6, 30)] {
        let (mut cache, mut counters) = cache(8);
        cache.learn(at(0), (ip, MAC), Evidence::Confirmed, MakeEntry::Always, &mut counters);
        assert_eq!(known(cache.look_up(at(fresh - 1), ip, &mut counters)), (MAC, None));
        let late = fresh + 100;
        for wait in 0..5 {
            assert_eq!(known(cache.look_up(at(late + wait), ip, &mut counters)), (MAC, None));
        }
        let ask = Some(ResolutionRequest { ip, to: Some(MAC) });
        for probe in 5..8 {
            assert_eq!(known(cache.look_up(at(late + probe), ip, &mut counters)), (MAC, ask));
            assert_eq!(known(cache.look_up(at(late + probe), ip, &mut counters)), (MAC, None));
        }
        assert_eq!(cache.look_up(at(late + 8), ip, &mut counters), Answer::Silent);
        assert_eq!(
            cache.look_up(at(late + 8), ip, &mut counters),
            Answer::Sought(Some(ResolutionRequest { ip, to: None }))
        );
        assert!(cache.deadline().is_some());
    }
}

#[proves("RFC 4861 7.3.1", "forward progress of a transport confirms a neighbour without a probe.")]
#[test]
fn progress_of_a_transport_replaces_a_request() {
    let (mut cache, mut counters) = cache(8);
    cache.learn(at(0), (PEER6, MAC), Evidence::Claimed, MakeEntry::Always, &mut counters);
    assert_eq!(known(cache.look_up(at(1), PEER6, &mut counters)), (MAC, None));
    cache.confirm(at(5), PEER6);
    assert_eq!(known(cache.look_up(at(34), PEER6, &mut counters)), (MAC, None));
    assert_eq!(known(cache.look_up(at(36), PEER6, &mut counters)), (MAC, None), "delayed");
    assert!(known(cache.look_up(at(42), PEER6, &mut counters)).1.is_some());
}

#[proves(
    "RFC 4861 7.2.5",
    "an advertisement without the override flag does not replace an address, but makes it stale."
)]
#[proves("RFC 4861 7.2.5", "an advertisement of an address without an entry is ignored.")]
#[test]
fn advertisements_change_entries_by_their_flags() {
    use MakeEntry::IfPresent;
    use Strength::{Adds, Replaces};
    let (mut cache, mut counters) = cache(8);
    let advert = |mac, evidence, strength| Advert { mac, evidence, strength };
    let confirmed = advert(Some(MAC), Evidence::Confirmed, Replaces);
    assert!(matches!(
        cache.advertised(at(0), PEER6, confirmed, IfPresent, &mut counters),
        LearnOutcome::Nothing
    ));
    assert!(cache.entries.is_empty());
    cache.look_up(at(0), PEER6, &mut counters);
    cache.advertised(at(0), PEER6, advert(None, Evidence::Confirmed, Replaces), IfPresent, &mut counters);
    assert_eq!(
        cache.look_up(at(0), PEER6, &mut counters),
        Answer::Sought(None),
        "an advertisement without an address"
    );
    cache.advertised(at(0), PEER6, advert(Some(MAC), Evidence::Confirmed, Adds), IfPresent, &mut counters);
    assert_eq!(known(cache.look_up(at(1), PEER6, &mut counters)), (MAC, None));
    let epoch = cache.epoch;
    cache.advertised(at(1), PEER6, advert(Some(OTHER), Evidence::Confirmed, Adds), IfPresent, &mut counters);
    assert_ne!(cache.epoch, epoch, "cached results stay valid");
    assert_eq!(known(cache.look_up(at(1), PEER6, &mut counters)), (MAC, None));
    assert!(known(cache.look_up(at(7), PEER6, &mut counters)).1.is_some(), "no request after doubt");
    cache.advertised(at(7), PEER6, advert(None, Evidence::Confirmed, Adds), IfPresent, &mut counters);
    assert!(known(cache.look_up(at(20), PEER6, &mut counters)).1.is_none(), "confirmed without an address");
    cache.advertised(
        at(20),
        PEER6,
        advert(Some(OTHER), Evidence::Claimed, Replaces),
        IfPresent,
        &mut counters,
    );
    assert_eq!(known(cache.look_up(at(20), PEER6, &mut counters)), (OTHER, None));
    assert!(known(cache.look_up(at(26), PEER6, &mut counters)).1.is_some(), "replaced, but unproven");
}

#[proves("RFC 6583 7.1", "entries in use survive a flood of claims and searches.")]
#[test]
fn a_flood_of_claims_and_searches_stays_within_bounds() {
    let (mut cache, mut counters) = cache(16);
    cache.learn(at(0), (PEER6, MAC), Evidence::Confirmed, MakeEntry::Always, &mut counters);
    cache.look_up(at(0), PEER6, &mut counters);
    let wanted = IpAddr::from([12, 0, 0, 1]);
    cache.look_up(at(0), wanted, &mut counters);
    cache.wait_connection(wanted, 7);
    for i in 0..1000u32 {
        let (a, b) =
            (Ipv4Addr::from_bits(0x0a00_0000 + i).into(), Ipv4Addr::from_bits(0x0b00_0000 + i).into());
        let now = Instant::from_nanos(u64::from(i));
        cache.learn(now, (a, MAC), Evidence::Claimed, MakeEntry::Always, &mut counters);
        cache.look_up(now, b, &mut counters);
    }
    assert!(cache.entries.len() <= 16 + SOUGHT, "{}", cache.entries.len());
    assert_eq!(cache.sought.len(), SOUGHT);
    assert!(counters.get(Counter::DropNeighbourCache) >= 900);
    assert_eq!(known(cache.look_up(at(1), PEER6, &mut counters)), (MAC, None));
    assert_eq!(cache.look_up(at(1), wanted, &mut counters), Answer::Sought(None));
}

#[test]
fn impossible_neighbours_are_not_learned() {
    let (mut cache, mut counters) = cache(8);
    let multicast = IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    let broadcast = Ipv4Addr::BROADCAST.into();
    for pair in [(PEER, MacAddr::BROADCAST), (broadcast, MAC), (PEER, MacAddr([0; 6])), (multicast, MAC)] {
        cache.learn(at(0), pair, Evidence::Confirmed, MakeEntry::Always, &mut counters);
    }
    assert!(cache.entries.is_empty());
}

#[test]
fn one_family_is_cleared_without_the_other() {
    let (mut cache, mut counters) = cache(8);
    cache.learn(at(0), (PEER, MAC), Evidence::Confirmed, MakeEntry::Always, &mut counters);
    cache.look_up(at(0), PEER6, &mut counters);
    cache.wait_connection(PEER6, 3);
    assert_eq!(cache.clear(Family::V4, &mut counters), []);
    assert_eq!(cache.look_up(at(0), PEER6, &mut counters), Answer::Sought(None));
    assert_eq!(cache.clear(Family::V6, &mut counters), [3]);
    assert!(cache.entries.is_empty() && cache.sought.is_empty());
}

#[proves("RFC 4861 6.3.4", "a router sets the time for which a neighbour counts as reachable.")]
#[test]
fn a_router_sets_the_time_for_which_an_ipv6_neighbour_is_reachable() {
    let (mut cache, mut counters) = cache(8);
    cache.set_reachable_v6(Duration::from_secs(100));
    cache.learn(at(0), (PEER6, MAC), Evidence::Confirmed, MakeEntry::Always, &mut counters);
    for second in [50, 60, 99] {
        assert_eq!(known(cache.look_up(at(second), PEER6, &mut counters)), (MAC, None));
    }
}
