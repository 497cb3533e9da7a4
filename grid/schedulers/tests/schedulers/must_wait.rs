//! A request in service learns whether the next one of its client would have to wait: compared with what happens then.

use isola_schedulers::{ClientId, Cost, Dispatch, Entitlement, PolicyKind, Priority, Rate, Scheduler, Weight};
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
    let rate = || proptest::option::of((1_000_000_u64..2_000_000_000).prop_map(|rate| Rate::per_second(rate).unwrap()));
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
        let answer = scheduler.must_wait(ticket, *cost, now_ns);
        assert_eq!(scheduler.must_wait(ticket, *cost, now_ns), answer, "asking changes nothing");
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
    #![proptest_config(ProptestConfig::with_cases(2_000))]

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

#[test]
fn a_light_client_s_request_comes_before_a_heavy_one_s_next() {
    let mut scheduler = Scheduler::new(PolicyKind::Wfq);
    let by_weight = |weight| Entitlement::by_weight(Weight::new(weight).unwrap());
    let root = scheduler.root();
    let light = scheduler.add_client(root, by_weight(100)).unwrap();
    let heavy = scheduler.add_client(root, by_weight(300)).unwrap();
    let ticket = scheduler.serve_unqueued(heavy, 0).unwrap();
    assert!(!scheduler.must_wait(ticket, 5_000, 0), "no other waits");
    scheduler.enqueue(light, 1, Cost::Unknown, 0).unwrap();
    assert!(scheduler.must_wait(ticket, 5_000, 0));
    // The light client has used 4,000 at a third of the weight: the heavy one may use 12,000.
    scheduler.complete(ticket, 5_000);
    let Dispatch::Request(request) = scheduler.dispatch(0) else { panic!("a request waits") };
    scheduler.enqueue(heavy, 2, Cost::Unknown, 0).unwrap();
    scheduler.enqueue(light, 3, Cost::Unknown, 0).unwrap();
    scheduler.complete(request.ticket, 4_000);
    let Dispatch::Request(request) = scheduler.dispatch(0) else { panic!("two requests wait") };
    assert_eq!(request.ticket.client(), heavy);
    assert!(!scheduler.must_wait(request.ticket, 6_900, 0), "5,000 + 6,900 are less than 3 x 4,000");
    assert!(scheduler.must_wait(request.ticket, 7_100, 0));
}
