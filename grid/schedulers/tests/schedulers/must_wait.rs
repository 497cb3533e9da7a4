//! A request in service learns whether the next one of its client would have to wait: compared with what happens then.

use isola_schedulers::{
    ClientId, Cost, Dispatch, Entitlement, PolicyKind, Priority, Rate, Scheduler, Weight,
};
use proptest::prelude::*;

/// What happens while a request is in service.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// A request of this client arrives.
    Arrival(usize),
    /// Time passes, in nanoseconds.
    Time(u64),
    /// The first client did work for the second.
    Transfer(usize, usize, u64),
}

const CLIENTS: usize = 6;

fn meanwhile() -> impl Strategy<Value = Meanwhile> {
    prop_oneof![
        4 => (0..CLIENTS).prop_map(Meanwhile::Arrival),
        4 => (0..100_000_u64).prop_map(Meanwhile::Time),
        1 => (0..CLIENTS, 0..CLIENTS, 0..5_000_u64).prop_map(|(from, to, cost)| Meanwhile::Transfer(from, to, cost)),
    ]
}

fn entitlement() -> impl Strategy<Value = Entitlement> {
    let rate = || {
        proptest::option::of((1_000_000_u64..2_000_000_000).prop_map(|rate| Rate::per_second(rate).unwrap()))
    };
    (1..=10_000_u32, 0..3_u8, 0..200_000_u64, rate(), rate()).prop_map(
        |(weight, priority, deadline_ns, reservation, limit)| Entitlement {
            weight: Weight::new(weight).unwrap(),
            priority: Priority(priority),
            deadline_ns,
            reservation: reservation.filter(|&rate| limit.is_none_or(|limit| rate <= limit)),
            limit,
            ..Entitlement::default()
        },
    )
}

/// A scheduler with clients in the root and in two groups.
fn scheduler(
    policies: [PolicyKind; 3],
    groups: [Entitlement; 2],
    clients: &[(usize, Entitlement)],
) -> (Scheduler<u32>, Vec<ClientId>) {
    let mut scheduler = Scheduler::new(policies[0]);
    let root = scheduler.root();
    let first = scheduler.add_group(root, groups[0], policies[1]).unwrap();
    // The second group is below the first.
    let second = scheduler.add_group(first, groups[1], policies[2]).unwrap();
    let add = |&(group, entitlement): &(usize, Entitlement)| {
        scheduler.add_client([root, first, second][group], entitlement).unwrap()
    };
    let clients = clients.iter().map(add).collect();
    (scheduler, clients)
}

/// Serves requests, and compares each answer with the next decision. Returns the number of each answer.
fn compare(
    scheduler: &mut Scheduler<u32>,
    clients: &[ClientId],
    rounds: &[(Vec<Meanwhile>, u64)],
    may_be_throttled: bool,
) -> [u32; 2] {
    let (mut now_ns, mut number, mut answers) = (0, 0, [0; 2]);
    let mut serving = None;
    for (events, cost) in rounds {
        let ticket = match serving.take() {
            Some(ticket) => ticket,
            None => match scheduler.dispatch(now_ns) {
                Dispatch::Request(request) => request.ticket,
                Dispatch::NotBefore(ns) => {
                    now_ns = ns;
                    continue;
                }
                Dispatch::Empty => scheduler.serve_unqueued(clients[0], now_ns).unwrap(),
            },
        };
        for event in events {
            match *event {
                Meanwhile::Arrival(client) => {
                    number += 1;
                    scheduler.enqueue(clients[client], number, Cost::Unknown, now_ns).unwrap();
                }
                Meanwhile::Time(ns) => now_ns += ns,
                Meanwhile::Transfer(from, to, cost) => scheduler.transfer(clients[from], clients[to], cost),
            }
        }
        let answer = scheduler.must_wait(ticket, *cost, 0, now_ns);
        let is_urgent = scheduler.must_wait(ticket, *cost, u64::MAX, now_ns);
        assert!(answer || !is_urgent, "what is urgent comes first");
        assert_eq!(scheduler.must_wait(ticket, *cost, 0, now_ns), answer, "asking changes nothing");
        answers[usize::from(answer)] += 1;
        scheduler.complete(ticket, *cost);
        number += 1;
        scheduler.enqueue(ticket.client(), number, Cost::Unknown, now_ns).unwrap();
        let waits = match scheduler.dispatch(now_ns) {
            Dispatch::Request(request) => {
                let waits = request.message != number;
                serving = Some(request.ticket);
                waits
            }
            Dispatch::NotBefore(ns) => {
                now_ns = ns;
                true
            }
            Dispatch::Empty => unreachable!("a request was just queued"),
        };
        assert!(answer || !waits, "the next request waits, which was not announced");
        assert!(waits || !answer || may_be_throttled, "the next request was to wait, but does not");
    }
    answers
}

fn rounds() -> impl Strategy<Value = Vec<(Vec<Meanwhile>, u64)>> {
    let cost = prop_oneof![1 => Just(0), 8 => 1..5_000_u64, 1 => 0..10_000_000_u64];
    prop::collection::vec((prop::collection::vec(meanwhile(), 0..4), cost), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_request_must_wait_if_and_only_if_the_next_of_its_client_would(
        policies in prop::array::uniform3(proptest::sample::select(PolicyKind::ALL.to_vec())),
        groups in prop::array::uniform2(entitlement()),
        clients in prop::collection::vec((0..3_usize, entitlement()), CLIENTS),
        rounds in rounds(),
    ) {
        let (mut scheduler, ids) = scheduler(policies, groups, &clients);
        // A group whose members are all at their limits is found when its turn comes.
        let may_be_throttled = policies[1..].contains(&PolicyKind::Reserve);
        compare(&mut scheduler, &ids, &rounds, may_be_throttled);
    }
}

/// The cost after which clients that always wait alternate.
const GRANULARITY: u64 = 1_000;

fn by_weight(weight: u32) -> Entitlement {
    Entitlement::by_weight(Weight::new(weight).unwrap())
}

fn two_clients(policy: PolicyKind, entitlements: [Entitlement; 2]) -> (Scheduler<u32>, [ClientId; 2]) {
    let mut scheduler = Scheduler::new(policy);
    let root = scheduler.root();
    let clients = entitlements.map(|entitlement| scheduler.add_client(root, entitlement).unwrap());
    (scheduler, clients)
}

#[test]
fn a_light_client_s_request_is_urgent_and_a_heavy_one_s_waits_for_its_share() {
    for policy in [PolicyKind::Wfq, PolicyKind::Reserve] {
        let (mut scheduler, [light, heavy]) = two_clients(policy, [by_weight(100), by_weight(300)]);
        let ticket = scheduler.serve_unqueued(heavy, 0).unwrap();
        assert!(!scheduler.must_wait(ticket, 5_000, GRANULARITY, 0), "no other waits");
        scheduler.enqueue(light, 1, Cost::Unknown, 0).unwrap();
        assert!(scheduler.must_wait(ticket, 5_000, GRANULARITY, 0));
        assert!(scheduler.must_wait(ticket, 10, GRANULARITY, 0), "it has used nothing");
        // The light client uses 4,000 at a third of the weight: the heavy one may use 12,000.
        scheduler.complete(ticket, 5_000);
        let Dispatch::Request(request) = scheduler.dispatch(0) else { panic!("a request waits") };
        scheduler.enqueue(heavy, 2, Cost::Unknown, 0).unwrap();
        scheduler.enqueue(light, 3, Cost::Unknown, 0).unwrap();
        scheduler.complete(request.ticket, 4_000);
        let Dispatch::Request(request) = scheduler.dispatch(0) else { panic!("two requests wait") };
        assert_eq!(request.ticket.client(), heavy);
        assert!(!scheduler.must_wait(request.ticket, 6_900, GRANULARITY, 0), "5,000 + 6,900 < 3 x 4,000");
        assert!(scheduler.must_wait(request.ticket, 7_100, GRANULARITY, 0));
        assert!(!scheduler.must_wait(request.ticket, 7_100, 8_000, 0), "it waits all the time");
    }
}

#[test]
fn a_client_that_comes_back_after_more_than_its_share_is_not_urgent() {
    for policy in [PolicyKind::Wfq, PolicyKind::Reserve] {
        let (mut scheduler, [own, greedy]) = two_clients(policy, [by_weight(100); 2]);
        let ticket = scheduler.serve_unqueued(greedy, 0).unwrap();
        scheduler.enqueue(own, 1, Cost::Unknown, 0).unwrap();
        scheduler.complete(ticket, 5_000);
        let Dispatch::Request(request) = scheduler.dispatch(0) else { panic!("a request waits") };
        scheduler.enqueue(greedy, 2, Cost::Unknown, 0).unwrap();
        assert!(!scheduler.must_wait(request.ticket, 4_900, 0, 0), "it has used less");
        assert!(scheduler.must_wait(request.ticket, 5_100, 0, 0));
        assert!(!scheduler.must_wait(request.ticket, 5_100, u64::MAX, 0), "it can wait");
    }
}

#[test]
fn a_higher_priority_and_an_earlier_deadline_are_urgent_and_equal_ones_are_not() {
    let priority = |priority| Entitlement { priority: Priority(priority), ..Entitlement::default() };
    let deadline = |deadline_ns| Entitlement { deadline_ns, ..Entitlement::default() };
    for (policy, own, other, expected) in [
        (PolicyKind::Priority, priority(5), priority(6), [true, true]),
        (PolicyKind::Priority, priority(5), priority(5), [false, true]),
        (PolicyKind::Priority, priority(6), priority(5), [false, false]),
        (PolicyKind::Edf, deadline(500), deadline(400), [true, true]),
        (PolicyKind::Edf, deadline(500), deadline(550), [false, true]),
        (PolicyKind::Edf, deadline(500), deadline(5_000), [false, false]),
        (PolicyKind::Fifo, deadline(500), deadline(400), [false, true]),
    ] {
        let (mut scheduler, [own, other]) = two_clients(policy, [own, other]);
        let ticket = scheduler.serve_unqueued(own, 0).unwrap();
        scheduler.enqueue(other, 1, Cost::Unknown, 10).unwrap();
        let found = [10, GRANULARITY].map(|cost| scheduler.must_wait(ticket, cost, GRANULARITY, 200));
        assert_eq!(found, expected, "{policy:?}");
    }
}

#[test]
fn an_earlier_request_of_the_same_client_is_not_urgent() {
    let (mut scheduler, [own, _]) = two_clients(PolicyKind::Wfq, [by_weight(100); 2]);
    let ticket = scheduler.serve_unqueued(own, 0).unwrap();
    scheduler.enqueue(own, 1, Cost::Unknown, 0).unwrap();
    assert!(!scheduler.must_wait(ticket, 10, GRANULARITY, 0));
    assert!(scheduler.must_wait(ticket, GRANULARITY, GRANULARITY, 0));
}

#[test]
fn a_request_below_a_reservation_is_urgent_and_a_limit_holds_at_once() {
    let rate = Rate::per_second(1_000_000_000).unwrap();
    let reserved = Entitlement { reservation: Some(rate), ..by_weight(1) };
    let (mut scheduler, [own, other]) = two_clients(PolicyKind::Reserve, [by_weight(10_000), reserved]);
    let ticket = scheduler.serve_unqueued(own, 0).unwrap();
    scheduler.enqueue(other, 1, Cost::Unknown, 0).unwrap();
    assert!(scheduler.must_wait(ticket, 10, GRANULARITY, 0));
    let limited = Entitlement { limit: Some(rate), ..by_weight(1) };
    let (mut scheduler, [own, _]) = two_clients(PolicyKind::Reserve, [limited, by_weight(1)]);
    let now_ns = 10_000_000;
    let ticket = scheduler.serve_unqueued(own, now_ns).unwrap();
    // Within 1 ms, an early cost is made up for.
    assert!(!scheduler.must_wait(ticket, 900_000, u64::MAX, now_ns));
    assert!(scheduler.must_wait(ticket, 1_100_000, u64::MAX, now_ns));
}
