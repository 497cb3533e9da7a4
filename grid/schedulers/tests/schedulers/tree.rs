//! Groups of clients, changes while requests wait, and clients that try to get more than their share.

use crate::simulation::{Arrival, Costs, Job, assert_close, backlog, serve, shares};
use isola_schedulers::{
    Cost, Dispatch, Entitlement, EntitlementError, MAX_DEPTH, PolicyKind, Rate, Scheduler, TreeError, Weight,
};

fn weight(weight: u32) -> Entitlement {
    Entitlement::by_weight(Weight::new(weight).unwrap())
}

fn limit(units_per_second: u64) -> Entitlement {
    Entitlement { limit: Some(Rate::per_second(units_per_second).unwrap()), ..Entitlement::default() }
}

#[test]
fn a_group_of_many_clients_gets_the_share_of_one() {
    let mut scheduler = Scheduler::new(PolicyKind::Wfq);
    let root = scheduler.root();
    let crowd = scheduler.add_group(root, weight(100), PolicyKind::Wfq).unwrap();
    let mut clients = vec![scheduler.add_client(root, weight(100)).unwrap()];
    clients.extend((0..1_000).map(|_| scheduler.add_client(crowd, weight(10_000)).unwrap()));
    let mut arrivals = backlog(0, 10_000, || 500);
    arrivals.extend((1..=1_000).flat_map(|client| backlog(client, 10, || 500)));
    let services = serve(&mut scheduler, &clients, arrivals, Costs::Known, 4_000_000);
    let shares = shares(&services, 1_001);
    assert_close(&shares[..1], &[0.5], 0.001);
    assert_close(&shares[1..], &[0.000_5; 1_000], 0.000_13);
}

#[test]
fn each_group_has_its_own_policy() {
    let mut scheduler = Scheduler::new(PolicyKind::Wfq);
    let root = scheduler.root();
    let first = scheduler.add_group(root, weight(300), PolicyKind::Fifo).unwrap();
    let second = scheduler.add_group(root, weight(100), PolicyKind::Wfq).unwrap();
    let mut add = |group, of| scheduler.add_client(group, weight(of)).unwrap();
    let clients = [add(first, 1), add(first, 10_000), add(second, 100), add(second, 300)];
    let mut arrivals = Vec::new();
    for at_ns in 0..20_000 {
        arrivals.extend((0..4).map(|client| Arrival { at_ns, job: Job { client, cost: 100 } }));
    }
    let services = serve(&mut scheduler, &clients, arrivals, Costs::Known, 2_000_000);
    assert_close(&shares(&services, 4), &[0.375, 0.375, 0.0625, 0.1875], 0.003);
}

#[test]
fn a_limit_holds_for_a_group_and_its_other_members_use_what_one_leaves() {
    let mut scheduler = Scheduler::new(PolicyKind::Reserve);
    let root = scheduler.root();
    let group = scheduler.add_group(root, limit(200_000_000), PolicyKind::Reserve).unwrap();
    let clients = [
        scheduler.add_client(group, limit(50_000_000)).unwrap(),
        scheduler.add_client(group, weight(100)).unwrap(),
        scheduler.add_client(root, weight(100)).unwrap(),
    ];
    let arrivals = (0..3).flat_map(|client| backlog(client, 50_000, || 1_000)).collect();
    let services = serve(&mut scheduler, &clients, arrivals, Costs::Known, 50_000_000);
    assert_eq!(services.len(), 50_000, "the resource was idle");
    assert_close(&shares(&services, 3), &[0.05, 0.15, 0.8], 0.003);
}

#[test]
fn a_throttled_group_is_woken_by_a_member_that_may_be_served() {
    let mut scheduler = Scheduler::new(PolicyKind::Wfq);
    let root = scheduler.root();
    let outer = scheduler.add_group(root, weight(100), PolicyKind::Wfq).unwrap();
    let inner = scheduler.add_group(outer, weight(100), PolicyKind::Reserve).unwrap();
    let limited = scheduler.add_client(inner, limit(1_000)).unwrap();
    let free = scheduler.add_client(inner, weight(100)).unwrap();
    scheduler.enqueue(limited, "first", Cost::Known(5_000), 0).unwrap();
    scheduler.enqueue(limited, "second", Cost::Known(1), 0).unwrap();
    assert!(matches!(scheduler.dispatch(0), Dispatch::Request(_)));
    let Dispatch::NotBefore(until) = scheduler.dispatch(10) else { panic!("the limit does not hold") };
    assert!((4_990_000_000..=5_000_000_001).contains(&until), "{until}");
    scheduler.enqueue(free, "free", Cost::Known(1), 20).unwrap();
    let Dispatch::Request(request) = scheduler.dispatch(20) else { panic!("the group is still throttled") };
    assert_eq!(request.message, "free");
    assert_eq!(scheduler.dispatch(30), Dispatch::NotBefore(until));
    // A higher limit counts at once.
    scheduler.set_client(limited, weight(100), 40).unwrap();
    let Dispatch::Request(request) = scheduler.dispatch(40) else {
        panic!("the new entitlement is not used")
    };
    assert_eq!(request.message, "second");
    assert_eq!(scheduler.dispatch(50), Dispatch::Empty);
}

#[test]
fn a_client_that_pauses_saves_nothing_up() {
    for policy in [PolicyKind::Wfq, PolicyKind::Reserve] {
        let mut scheduler = Scheduler::new(policy);
        let root = scheduler.root();
        let clients = [(); 2].map(|()| scheduler.add_client(root, weight(100)).unwrap());
        let mut arrivals = backlog(0, 200_000, || 100);
        // Bursts of 1 ms of work, every 10 ms.
        for burst in 0..10 {
            let job = Job { client: 1, cost: 100 };
            arrivals.extend((0..10_000).map(|_| Arrival { at_ns: burst * 10_000_000, job }));
        }
        let services = serve(&mut scheduler, &clients, arrivals, Costs::Known, 20_000_000);
        for burst in [0, 10_000_000] {
            let interval = burst..burst + 1_900_000;
            let during: Vec<_> =
                services.iter().filter(|service| interval.contains(&service.began_ns)).copied().collect();
            assert_close(&shares(&during, 2), &[0.5, 0.5], 0.001);
        }
    }
}

#[test]
fn clients_of_short_life_do_not_evade_their_costs() {
    let mut scheduler = Scheduler::new(PolicyKind::Wfq);
    let root = scheduler.root();
    let churn = scheduler.add_group(root, weight(100), PolicyKind::Wfq).unwrap();
    let steady = scheduler.add_client(root, weight(100)).unwrap();
    let (mut now, mut served) = (0, [0_u64; 2]);
    let mut fresh = scheduler.add_client(churn, weight(10_000)).unwrap();
    scheduler.enqueue(fresh, 1, Cost::Unknown, now).unwrap();
    for _ in 0..10_000 {
        scheduler.enqueue(steady, 0, Cost::Unknown, now).unwrap();
        let Dispatch::Request(request) = scheduler.dispatch(now) else { panic!("nothing is served") };
        now += 1_000;
        served[request.message] += 1_000;
        if request.message == 1 {
            // The client ends before its cost is known, and another takes its place.
            scheduler.remove_client(fresh).unwrap();
            fresh = scheduler.add_client(churn, weight(10_000)).unwrap();
            scheduler.enqueue(fresh, 1, Cost::Unknown, now).unwrap();
        }
        scheduler.complete(request.ticket, 1_000);
    }
    let part = served[1] as f64 / now as f64;
    assert_close(&[part], &[0.5], 0.001);
}

#[test]
fn work_of_a_substitute_counts_for_its_owner_and_displaces_no_other() {
    let mut scheduler = Scheduler::new(PolicyKind::Wfq);
    let root = scheduler.root();
    let clients = [(); 3].map(|()| scheduler.add_client(root, weight(100)).unwrap());
    let [substitute, owner, other] = clients;
    let mut now = 0;
    while now < 10_000_000 {
        for client in clients {
            if scheduler.statistics(client).unwrap().waiting == 0 {
                scheduler.enqueue(client, client, Cost::Known(1_000), now).unwrap();
            }
        }
        let Dispatch::Request(request) = scheduler.dispatch(now) else { panic!("nothing is served") };
        now += 1_000;
        if request.message == substitute {
            scheduler.transfer(substitute, owner, 1_000);
        }
    }
    let cost = |client| scheduler.statistics(client).unwrap().cost as f64 / now as f64;
    assert_eq!(cost(substitute), 0.0);
    assert_close(&[cost(owner), cost(other)], &[0.5, 0.5], 0.001);
}

#[test]
fn costs_are_estimated_while_many_requests_are_in_service() {
    let mut scheduler = Scheduler::new(PolicyKind::Wfq);
    let root = scheduler.root();
    let clients = [(); 2].map(|()| scheduler.add_client(root, weight(100)).unwrap());
    let mut in_service = std::collections::VecDeque::new();
    let mut difference = 0_i64;
    for round in 0..5_000 {
        for (number, client) in clients.into_iter().enumerate() {
            scheduler.enqueue(client, number, Cost::Unknown, round).unwrap();
        }
        let Dispatch::Request(request) = scheduler.dispatch(round) else { panic!("nothing is served") };
        let cost = [1_000, 100][request.message];
        difference += [1, -1][request.message] * cost;
        in_service.push_back((request.ticket, cost));
        if in_service.len() > 64 {
            let (ticket, cost) = in_service.pop_front().unwrap();
            scheduler.complete(ticket, cost as u64);
        }
        // After the first costs are known.
        assert!(round < 1_000 || difference.abs() <= 2_000, "{difference} in round {round}");
    }
}

#[test]
fn rates_that_are_set_while_requests_wait_count_from_then_on() {
    let rate = |units| Some(Rate::per_second(units).unwrap());
    let reserved = Entitlement { reservation: rate(100_000_000), ..weight(1) };
    for late_policy in [false, true] {
        let start = if late_policy { PolicyKind::Fifo } else { PolicyKind::Reserve };
        let mut scheduler = Scheduler::new(start);
        let root = scheduler.root();
        let first = if late_policy { reserved } else { weight(1) };
        let clients = [first, weight(10_000)].map(|of| scheduler.add_client(root, of).unwrap());
        for number in 0..20_000 {
            scheduler.enqueue(clients[number % 2], number % 2, Cost::Known(1_000), 0).unwrap();
        }
        // The requests have waited for a second: no reservation for that time is due.
        let mut now = 1_000_000_000;
        if late_policy {
            scheduler.set_policy(root, PolicyKind::Reserve, now).unwrap();
        } else {
            assert!(matches!(scheduler.dispatch(now), Dispatch::Request(_)));
            scheduler.set_client(clients[0], reserved, now).unwrap();
        }
        let mut served = [0; 2];
        for _ in 0..5_000 {
            let Dispatch::Request(request) = scheduler.dispatch(now) else { panic!("nothing is served") };
            served[request.message] += 1;
            now += 1_000;
        }
        assert!((498..=502).contains(&served[0]), "{served:?}");
    }
}

#[test]
fn a_raised_limit_forgets_the_debt_of_the_lower_one() {
    let mut scheduler = Scheduler::new(PolicyKind::Reserve);
    let client = scheduler.add_client(scheduler.root(), limit(1_000)).unwrap();
    for _ in 0..3 {
        scheduler.enqueue(client, (), Cost::Known(5_000), 0).unwrap();
    }
    assert!(matches!(scheduler.dispatch(0), Dispatch::Request(_)));
    assert_eq!(scheduler.dispatch(10), Dispatch::NotBefore(5_000_000_000));
    scheduler.set_client(client, limit(1_000_000), 10).unwrap();
    assert!(matches!(scheduler.dispatch(10), Dispatch::Request(_)));
    let Dispatch::NotBefore(until) = scheduler.dispatch(20) else { panic!("the new limit does not hold") };
    assert!((4_000_000..=5_000_100).contains(&until), "{until}");
}

#[test]
fn names_of_removed_members_are_errors_and_requests_come_back() {
    let mut scheduler = Scheduler::new(PolicyKind::Wfq);
    let root = scheduler.root();
    let group = scheduler.add_group(root, weight(1), PolicyKind::Fifo).unwrap();
    let client = scheduler.add_client(group, weight(1)).unwrap();
    for number in 0..3 {
        scheduler.enqueue(client, number, Cost::Known(1), 0).unwrap();
    }
    assert_eq!(scheduler.remove_group(group), Err(TreeError::HasMembers));
    assert_eq!(
        scheduler.remove_client(client),
        Some([0, 1, 2].map(|number| (number, Cost::Known(1))).into())
    );
    assert!(scheduler.is_empty());
    assert_eq!(scheduler.remove_client(client), None);
    // Another client takes its place in memory.
    let other = scheduler.add_client(group, weight(1)).unwrap();
    assert_eq!(scheduler.enqueue(client, 7, Cost::Known(1), 0).unwrap_err().0, 7);
    assert_eq!(scheduler.set_client(client, weight(1), 0), Err(TreeError::Missing));
    assert_eq!(scheduler.statistics(client), None);
    assert_eq!(scheduler.remove_client(other), Some(vec![]));
    assert_eq!(scheduler.remove_group(group), Ok(()));
    assert_eq!(scheduler.add_client(group, weight(1)), Err(TreeError::Missing));
    assert_eq!(scheduler.remove_group(root), Err(TreeError::Root));
    assert_eq!(scheduler.set_group(root, weight(1), 0), Err(TreeError::Root));
}

#[test]
fn contradictory_entitlements_and_deep_trees_are_refused() {
    let mut scheduler = Scheduler::<()>::new(PolicyKind::Reserve);
    let rate = |units| Some(Rate::per_second(units).unwrap());
    let contradictory = Entitlement { reservation: rate(2), limit: rate(1), ..Entitlement::default() };
    let root = scheduler.root();
    assert!(matches!(
        scheduler.add_client(root, contradictory),
        Err(TreeError::Entitlement(EntitlementError::ReservationAboveLimit { .. }))
    ));
    let mut group = root;
    for _ in 0..MAX_DEPTH {
        group = scheduler.add_group(group, weight(1), PolicyKind::Reserve).unwrap();
    }
    assert_eq!(scheduler.add_group(group, weight(1), PolicyKind::Wfq), Err(TreeError::TooDeep));
    let client = scheduler.add_client(group, weight(1)).unwrap();
    scheduler.enqueue(client, (), Cost::Unknown, 0).unwrap();
    assert!(matches!(scheduler.dispatch(0), Dispatch::Request(_)));
}

#[test]
fn statistics_count_waiting_times_and_actual_costs() {
    let mut scheduler = Scheduler::new(PolicyKind::Fifo);
    let client = scheduler.add_client(scheduler.root(), weight(1)).unwrap();
    scheduler.enqueue(client, (), Cost::Unknown, 100).unwrap();
    scheduler.enqueue(client, (), Cost::Known(5), 100).unwrap();
    for (now, cost) in [(150, 40), (300, 7)] {
        let Dispatch::Request(request) = scheduler.dispatch(now) else { panic!("nothing is served") };
        scheduler.complete(request.ticket, cost);
    }
    let statistics = scheduler.statistics(client).unwrap();
    assert_eq!((statistics.waiting, statistics.dispatched, statistics.cost), (0, 2, 47));
    assert_eq!((statistics.waited_ns, statistics.longest_wait_ns), (250, 200));
}

/// Serves the waiting requests, which cost 100 each, and returns the clients in the order of service.
fn order(scheduler: &mut Scheduler<&'static str>) -> Vec<&'static str> {
    let mut served = Vec::new();
    while let Dispatch::Request(request) = scheduler.dispatch(0) {
        scheduler.complete(request.ticket, 100);
        served.push(request.message);
    }
    served
}

#[test]
fn a_request_that_did_not_wait_counts_like_one_that_did() {
    for policy in [PolicyKind::Wfq, PolicyKind::Reserve] {
        let mut scheduler = Scheduler::new(policy);
        let [one, two] = [0, 1].map(|_| scheduler.add_client(scheduler.root(), weight(100)).unwrap());
        let ticket = scheduler.serve_unqueued(one, 0).unwrap();
        (0..5).for_each(|_| scheduler.enqueue(one, "one", Cost::Unknown, 0).unwrap());
        (0..5).for_each(|_| scheduler.enqueue(two, "two", Cost::Unknown, 0).unwrap());
        // As long as three requests of the other client.
        scheduler.complete(ticket, 300);
        let served = order(&mut scheduler);
        assert_eq!(served[..4], ["two", "two", "two", "one"], "{policy}");
        assert_eq!(scheduler.statistics(one).unwrap().dispatched, 6);
        assert_eq!(scheduler.statistics(one).unwrap().cost, 800);
        scheduler.enqueue(two, "two", Cost::Unknown, 0).unwrap();
        assert_eq!(scheduler.serve_unqueued(one, 0), None, "a request waits");
        assert!(scheduler.remove_client(two).is_some() && scheduler.serve_unqueued(two, 0).is_none());
    }
}

#[test]
fn debts_end_with_the_busy_period() {
    for policy in [PolicyKind::Wfq, PolicyKind::Reserve] {
        let mut scheduler = Scheduler::new(policy);
        let group = scheduler.add_group(scheduler.root(), weight(100), policy).unwrap();
        let [one, two] = [0, 1].map(|_| scheduler.add_client(group, weight(100)).unwrap());
        let busy = |scheduler: &mut Scheduler<_>| {
            (0..3).for_each(|_| scheduler.enqueue(one, "one", Cost::Unknown, 0).unwrap());
            (0..3).for_each(|_| scheduler.enqueue(two, "two", Cost::Unknown, 0).unwrap());
        };
        // A large debt.
        scheduler.transfer(two, one, 1_000);
        busy(&mut scheduler);
        // Requests wait: no busy period ends.
        scheduler.idle();
        assert_eq!(order(&mut scheduler), ["two", "two", "two", "one", "one", "one"], "{policy}");
        scheduler.transfer(two, one, 1_000);
        scheduler.idle();
        busy(&mut scheduler);
        assert_eq!(order(&mut scheduler), ["one", "two", "one", "two", "one", "two"], "{policy}");
    }
}

#[test]
fn work_for_an_inactive_client_is_charged_from_now_on() {
    for policy in [PolicyKind::Wfq, PolicyKind::Reserve] {
        let mut scheduler = Scheduler::new(policy);
        let [one, two] = [0, 1].map(|_| scheduler.add_client(scheduler.root(), weight(100)).unwrap());
        // The virtual time passes while the first client does nothing.
        (0..10).for_each(|_| scheduler.enqueue(two, "two", Cost::Unknown, 0).unwrap());
        order(&mut scheduler);
        scheduler.transfer(two, one, 250);
        scheduler.enqueue(one, "one", Cost::Unknown, 0).unwrap();
        (0..4).for_each(|_| scheduler.enqueue(two, "two", Cost::Unknown, 0).unwrap());
        assert_eq!(order(&mut scheduler), ["two", "two", "one", "two", "two"], "{policy}");
    }
}

#[test]
fn waiting_requests_are_returned_in_the_order_of_arrival() {
    let mut scheduler = Scheduler::new(PolicyKind::Edf);
    let clients = [0, 1, 2].map(|_| scheduler.add_client(scheduler.root(), weight(100)).unwrap());
    for number in 0..9 {
        scheduler.enqueue(clients[number * 2 % 3], number, Cost::Known(1), 0).unwrap();
    }
    assert!(matches!(scheduler.dispatch(0), Dispatch::Request(_)));
    let expected: Vec<_> = (1..9).map(|number| (clients[number * 2 % 3], number, Cost::Known(1))).collect();
    assert_eq!(scheduler.into_requests().collect::<Vec<_>>(), expected);
}
