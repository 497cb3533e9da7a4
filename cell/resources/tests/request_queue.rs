//! Requests at a resource whose policy comes, changes and goes.

use isola_abi::id::ActivityId;
use isola_events::{exit, register_activity, run, spawn};
use isola_hosted::Settings;
use isola_resources::{
    Cost, Entitlement, FILES, NextRequest, PolicyKind, RPC, Rate, RequestQueue, Resource, ServiceTicket,
    Weight, merged,
};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Runs `test` as an event of a cell with one core.
fn in_cell(test: fn()) {
    let codes = isola_hosted::run(Settings::default(), Vec::new(), |_| {
        spawn(move || {
            test();
            exit(0);
        });
        run()
    });
    assert_eq!(codes, [0]);
}

fn activities() -> [ActivityId; 3] {
    ["one", "two", "three"].map(|name| register_activity(name).unwrap())
}

fn next<M>(queue: &mut RequestQueue<M>, now_ns: u64) -> Option<(ActivityId, M, ServiceTicket)> {
    match queue.take_next(now_ns) {
        NextRequest::Request(activity, message, ticket) => Some((activity, message, ticket)),
        NextRequest::NotBefore(_) | NextRequest::Empty => None,
    }
}

#[test]
fn without_a_policy_requests_leave_in_the_order_of_arrival_and_are_not_charged() {
    in_cell(|| {
        let [one, two, _] = activities();
        for resource in [None, Some(FILES)] {
            let mut queue = RequestQueue::new(resource);
            queue.follow(|| 0);
            assert!(!queue.has_policy() && !queue.must_order());
            assert!(!queue.serve_unqueued(one, 0).is_charged());
            for (number, activity) in [one, two, one].into_iter().enumerate() {
                queue.add(activity, number, Cost::Unknown, 0);
            }
            assert_eq!((queue.len_for(two), queue.must_order()), (3, true));
            let served: Vec<_> = std::iter::from_fn(|| next(&mut queue, 0)).collect();
            let uncharged = ServiceTicket::default();
            assert_eq!(served, [(one, 0, uncharged), (two, 1, uncharged), (one, 2, uncharged)]);
            queue.complete(uncharged, 5);
            assert!(queue.report(Resource::Files, 0).is_empty());
        }
    });
}

#[test]
fn all_costs_are_those_of_activities_and_no_request_is_lost_while_settings_change_at_random() {
    in_cell(|| {
        let activities = activities();
        for seed in 0..40 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut queue = RequestQueue::new(Some(FILES));
            let (mut added, mut served) = (BTreeMap::new(), BTreeMap::new());
            let mut in_service: Vec<(ServiceTicket, u64)> = Vec::new();
            let mut now_ns = 0;
            // The cost of all requests since the policy began, or since a limit of all activities came or went.
            let mut total = 0;
            for _ in 0..2000 {
                now_ns += random.u64(..1000);
                match random.u8(..12) {
                    0..5 => {
                        let activity = activities[random.usize(..3)];
                        let number: &mut u64 = added.entry(activity).or_default();
                        queue.add(activity, *number, Cost::Unknown, now_ns);
                        *number += 1;
                    }
                    5..8 => {
                        if let Some((activity, number, ticket)) = next(&mut queue, now_ns) {
                            let expected: &mut u64 = served.entry(activity).or_default();
                            assert_eq!(number, *expected, "activity {activity:?}");
                            *expected += 1;
                            in_service.push((ticket, random.u64(1..1_000_000)));
                        }
                    }
                    8..10 if !in_service.is_empty() => {
                        let (ticket, cost) = in_service.swap_remove(random.usize(..in_service.len()));
                        queue.complete(ticket, cost);
                        total += if ticket.is_charged() { cost } else { 0 };
                    }
                    10 => {
                        let weight = Weight::new(random.u32(1..1000)).unwrap();
                        let of = activities[random.usize(..3)];
                        FILES.set_entitlement(of, Entitlement::by_weight(weight)).unwrap();
                        FILES.set_batch(NonZeroU32::new(random.u32(1..5)).unwrap());
                    }
                    _ if random.u8(..20) == 0 => {
                        let policies = [None, Some(PolicyKind::Wfq), Some(PolicyKind::Priority)];
                        FILES.set_policy(policies[random.usize(..3)]);
                        FILES.set_limit(random.bool().then(|| Rate::per_second(Rate::MAX).unwrap()));
                        // Requests in service belong to the scheduler that chose them.
                        if queue.follow(|| now_ns) {
                            in_service.retain(|(ticket, _)| {
                                let before = cost(&queue);
                                queue.complete(*ticket, 7);
                                assert!(cost(&queue) <= before + 7);
                                false
                            });
                            total = cost(&queue);
                        }
                    }
                    _ => {}
                }
                queue.follow(|| now_ns);
                if in_service.is_empty() && queue.has_policy() {
                    assert_eq!(cost(&queue), total, "seed {seed}");
                }
            }
            FILES.set_limit(None);
            FILES.set_policy(None);
            queue.follow(|| now_ns);
            while let Some((activity, number, _)) = next(&mut queue, now_ns) {
                let expected = served.entry(activity).or_default();
                assert_eq!(number, *expected);
                *expected += 1;
            }
            assert_eq!(added, served, "seed {seed}");
        }
    });
}

/// Returns the sum of the activities' costs.
fn cost(queue: &RequestQueue<u64>) -> u64 {
    queue.report(Resource::Files, 0).iter().map(|client| client.cost).sum()
}

#[test]
fn a_request_of_an_earlier_policy_costs_nothing_in_a_later_one() {
    in_cell(|| {
        let [one, ..] = activities();
        RPC.set_policy(Some(PolicyKind::Wfq));
        let mut queue = RequestQueue::new(Some(RPC));
        queue.follow(|| 0);
        queue.add(one, (), Cost::Unknown, 0);
        let (_, (), ticket) = next(&mut queue, 0).unwrap();
        let free = queue.serve_unqueued(one, 0);
        for policy in [None, Some(PolicyKind::Fifo)] {
            RPC.set_policy(policy);
            queue.follow(|| 1);
        }
        queue.add(one, (), Cost::Known(3), 1);
        let (.., current) = next(&mut queue, 1).unwrap();
        queue.complete(ticket, 1_000);
        queue.complete(free, 1_000);
        assert_eq!(queue.statistics(one).cost, 3);
        queue.complete(current, 4);
        assert_eq!(queue.statistics(one).cost, 4);
        // A limit of all activities has another scheduler.
        RPC.set_limit(Rate::per_second(1_000).ok());
        queue.follow(|| 2);
        queue.complete(current, 1_000);
        assert_eq!(queue.statistics(one).cost, 0);
        queue.add(one, (), Cost::Known(3), 2);
        assert_eq!(queue.take_all().len(), 1);
        assert!(queue.is_empty() && queue.has_policy());
    });
}

#[test]
fn reports_of_several_schedulers_are_added_by_activity() {
    in_cell(|| {
        let [one, two, _] = activities();
        RPC.set_policy(Some(PolicyKind::Wfq));
        let queues = [[one, two], [one, one]].map(|activities| {
            let mut queue = RequestQueue::new(Some(RPC));
            queue.follow(|| 0);
            for activity in activities {
                queue.add(activity, (), Cost::Known(10), 0);
            }
            assert!(next(&mut queue, 5).is_some());
            queue
        });
        let report = merged(queues.iter().flat_map(|queue| queue.report(Resource::Rpc, 0)));
        let summed: Vec<_> = report
            .iter()
            .map(|client| (client.activity, client.cost, client.waiting, client.waited_ns))
            .collect();
        assert_eq!(summed, [(one.0, 20, 1, 10), (two.0, 0, 1, 0)]);
    });
}
