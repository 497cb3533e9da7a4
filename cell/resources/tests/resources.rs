//! Settings of resources, and activities as clients of a scheduler.

use isola_abi::grid::{EntitlementChange, GridChange, PolicyChange, RateChange};
use isola_abi::id::ActivityId;
use isola_abi::query::{GridEntitlement, GridSettings};
use isola_ebbs::platform;
use isola_events::{end_activity, exit, register_activity, register_activity_under, run, spawn};
use isola_hosted::Settings;
use isola_resources::{
    ActivityScheduler, Cost, Dispatch, Entitlement, EntitlementError, GridResource, INFRASTRUCTURE,
    NETWORK_WRITE, PROCESSOR, PolicyKind, Priority, Rate, Resource, ResourceError, Weight,
};
use std::cell::Cell;
use std::num::NonZeroU32;

/// Runs `test` as an event of a cell with one core.
fn in_cell(test: fn()) {
    isola_hosted::run(Settings::default(), Vec::new(), |_| {
        spawn(move || {
            test();
            exit(0);
        });
        run()
    });
}

fn by_weight(weight: u32) -> Entitlement {
    Entitlement::by_weight(Weight::new(weight).unwrap())
}

fn rate(units: u64) -> Rate {
    Rate::per_second(units).unwrap()
}

fn new_scheduler() -> ActivityScheduler<u32> {
    ActivityScheduler::new(NETWORK_WRITE.configuration().unwrap())
}

/// Dispatches this many requests, or as many as there are. Returns their messages.
fn served(scheduler: &mut ActivityScheduler<u32>, most: usize, now_ns: u64) -> Vec<u32> {
    let next = |_| match scheduler.dispatch(now_ns) {
        Dispatch::Request(request) => Some(request.message),
        Dispatch::NotBefore(_) | Dispatch::Empty => None,
    };
    (0..most).map_while(next).collect()
}

#[test]
fn a_resource_has_no_scheduler_until_it_has_a_policy() {
    in_cell(|| {
        assert!(Resource::ALL.iter().all(|resource| GridResource::of(*resource).configuration().is_none()));
        NETWORK_WRITE.set_limit(Some(rate(1_000)));
        NETWORK_WRITE.set_batch(NonZeroU32::new(4).unwrap());
        assert!(NETWORK_WRITE.configuration().is_none());
        NETWORK_WRITE.set_policy(Some(PolicyKind::Edf));
        let configuration = NETWORK_WRITE.configuration().unwrap();
        assert_eq!((configuration.policy, configuration.batch.get()), (PolicyKind::Edf, 4));
        assert_eq!(configuration.limit, Some(rate(1_000)));
        assert!(configuration.has_limits());
        assert!(PROCESSOR.configuration().is_none(), "each resource has its own policy");
        NETWORK_WRITE.set_policy(None);
        assert!(NETWORK_WRITE.configuration().is_none());
    });
}

#[test]
fn followers_learn_of_each_change() {
    thread_local!(static CHANGES: Cell<u32> = const { Cell::new(0) });
    in_cell(|| {
        NETWORK_WRITE.on_change(|| CHANGES.set(CHANGES.get() + 1));
        let version = NETWORK_WRITE.version();
        NETWORK_WRITE.set_policy(Some(PolicyKind::Wfq));
        NETWORK_WRITE.set_limit(None);
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        assert_eq!((CHANGES.get(), NETWORK_WRITE.version() - version), (2, 2));
        let refused = NETWORK_WRITE.set_entitlement(ActivityId(u32::MAX), Entitlement::default());
        assert_eq!(refused, Err(ResourceError::NoSuchActivity(ActivityId(u32::MAX))));
        assert_eq!(CHANGES.get(), 2, "nothing has changed");
    });
}

#[test]
fn activities_are_served_by_their_entitlements_and_infrastructure_before_most() {
    in_cell(|| {
        let [one, two] = ["one", "two"].map(|name| register_activity(name).unwrap());
        NETWORK_WRITE.set_entitlement(one, by_weight(300)).unwrap();
        NETWORK_WRITE.set_policy(Some(PolicyKind::Wfq));
        let mut scheduler = new_scheduler();
        for activity in [one, two, INFRASTRUCTURE] {
            (0..100).for_each(|_| scheduler.enqueue(activity, activity.0, Cost::Known(100), 0));
        }
        let first = served(&mut scheduler, 70, 0);
        let count = |activity: ActivityId| first.iter().filter(|of| **of == activity.0).count();
        // Weights of 300, 100 and 1,000: within one request each.
        assert!((14..=16).contains(&count(one)) && (4..=6).contains(&count(two)), "{first:?}");
        let statistics = scheduler.statistics(one);
        assert_eq!(statistics.cost, 100 * statistics.dispatched);
        assert_eq!(scheduler.statistics(ActivityId(30)), Default::default());
        NETWORK_WRITE.set_policy(Some(PolicyKind::Priority));
        scheduler.configure(NETWORK_WRITE.configuration().unwrap(), 0);
        assert!(served(&mut scheduler, 40, 0).iter().all(|of| *of == INFRASTRUCTURE.0));
    });
}

#[test]
fn a_limit_comes_and_goes_while_requests_wait() {
    in_cell(|| {
        let one = register_activity("one").unwrap();
        NETWORK_WRITE.set_policy(Some(PolicyKind::Wfq));
        let mut scheduler = new_scheduler();
        (0..40).for_each(|number| scheduler.enqueue(one, number, Cost::Known(1_000), 0));
        assert_eq!(served(&mut scheduler, 10, 0), (0..10).collect::<Vec<_>>());
        // A millisecond per request.
        NETWORK_WRITE.set_limit(Some(rate(1_000_000)));
        scheduler.configure(NETWORK_WRITE.configuration().unwrap(), 1);
        let burst = served(&mut scheduler, 40, 2);
        assert!(burst.len() <= 2, "{burst:?}");
        let Dispatch::NotBefore(ns) = scheduler.dispatch(3) else { panic!("the limit does not hold") };
        assert!((500_000..2_000_100).contains(&ns), "{ns}");
        NETWORK_WRITE.set_limit(Some(rate(2_000_000)));
        scheduler.configure(NETWORK_WRITE.configuration().unwrap(), 4);
        let later = served(&mut scheduler, 40, 5_000_000);
        assert!((1..=3).contains(&later.len()), "{later:?}");
        NETWORK_WRITE.set_limit(None);
        scheduler.configure(NETWORK_WRITE.configuration().unwrap(), 5_000_001);
        let rest = served(&mut scheduler, 40, 5_000_002);
        let all: Vec<_> = burst.into_iter().chain(later).chain(rest).collect();
        assert_eq!(all, (10..40).collect::<Vec<_>>(), "none is lost or overtakes another");
        assert!(scheduler.is_empty());
    });
}

#[test]
fn waiting_requests_are_returned_in_the_order_of_arrival() {
    in_cell(|| {
        let activities = ["one", "two", "three"].map(|name| register_activity(name).unwrap());
        NETWORK_WRITE.set_policy(Some(PolicyKind::Fifo));
        let mut scheduler = new_scheduler();
        for number in 0..30 {
            scheduler.enqueue(activities[number as usize * 2 % 3], number, Cost::Unknown, 0);
        }
        assert_eq!(scheduler.len(), 30);
        assert_eq!(scheduler.into_requests().collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
    });
}

#[test]
fn the_next_activity_of_a_slot_has_its_own_entitlement_and_keeps_waiting_requests() {
    in_cell(|| {
        let slots = platform().ledger().records().len();
        let all: Vec<_> = (2..slots).map(|_| register_activity("tenant").unwrap()).collect();
        let (other, first) = (all[1], all[0]);
        let important = Entitlement { priority: Priority(9), ..Entitlement::default() };
        NETWORK_WRITE.set_entitlement(first, important).unwrap();
        NETWORK_WRITE.set_policy(Some(PolicyKind::Priority));
        let mut scheduler = new_scheduler();
        scheduler.enqueue(other, 1, Cost::Known(1), 0);
        scheduler.enqueue(first, 2, Cost::Known(1), 0);
        scheduler.enqueue(first, 3, Cost::Known(1), 0);
        assert_eq!(served(&mut scheduler, 1, 0), [2]);
        assert!(end_activity(first));
        assert_eq!(
            NETWORK_WRITE.set_entitlement(first, important),
            Err(ResourceError::NoSuchActivity(first))
        );
        assert_eq!(register_activity("successor"), Ok(first));
        scheduler.enqueue(first, 4, Cost::Known(1), 0);
        assert_eq!(served(&mut scheduler, 3, 0), [1, 3, 4], "the successor has no priority");
    });
}

#[test]
fn an_activity_shares_what_it_gets_with_its_children() {
    in_cell(|| {
        let [web, other] = ["web", "other"].map(|name| register_activity(name).unwrap());
        let connections = ["one", "two"].map(|name| register_activity_under(web, name).unwrap());
        let query = register_activity_under(connections[0], "query").unwrap();
        NETWORK_WRITE.set_policy(Some(PolicyKind::Wfq));
        let mut scheduler = new_scheduler();
        // `web` has requests of its own before its children have any.
        let all = [web, other, connections[0], connections[1], query];
        for activity in all {
            (0..200).for_each(|_| scheduler.enqueue(activity, activity.0, Cost::Known(100), 0));
        }
        let first = served(&mut scheduler, 240, 0);
        let count = |activity: ActivityId| first.iter().filter(|of| **of == activity.0).count();
        // Half for `other`. The other half for `web`: a third each for itself and its connections, the first of which
        // shares with the query.
        for (activity, expected) in all.into_iter().zip([40, 120, 20, 40, 20_usize]) {
            assert!(count(activity).abs_diff(expected) <= 2, "{activity:?}: {}", count(activity));
        }
        let report = scheduler.report(Resource::NetworkWrite, 0);
        let parent = |activity: ActivityId| {
            report.iter().find(|client| client.activity == activity.0).unwrap().parent.map(ActivityId)
        };
        assert_eq!(all.map(parent), [None, None, Some(web), Some(web), Some(connections[0])]);
        // The weight of an activity with children is that of all of them.
        NETWORK_WRITE.set_entitlement(web, by_weight(300)).unwrap();
        scheduler.configure(NETWORK_WRITE.configuration().unwrap(), 0);
        let next = served(&mut scheduler, 160, 0);
        assert!(next.iter().filter(|of| **of == other.0).count().abs_diff(40) <= 2, "{next:?}");
        let rest = served(&mut scheduler, 1_000, 0);
        assert_eq!(first.len() + next.len() + rest.len(), 1_000, "none is lost");
    });
}

#[test]
fn waiting_requests_stay_in_order_when_an_activity_gets_children_and_when_all_end() {
    in_cell(|| {
        NETWORK_WRITE.set_policy(Some(PolicyKind::Fifo));
        let mut scheduler = new_scheduler();
        let slots = platform().ledger().records().len();
        let all: Vec<_> = (2..slots).map(|_| register_activity("tenant").unwrap()).collect();
        let first = all[0];
        (0..4).for_each(|number| scheduler.enqueue(first, number, Cost::Known(1), 0));
        let child = register_activity_under(first, "child").unwrap();
        (10..14).for_each(|number| scheduler.enqueue(child, number, Cost::Known(1), 0));
        (4..8).for_each(|number| scheduler.enqueue(first, number, Cost::Known(1), 0));
        let begun = served(&mut scheduler, 3, 0);
        assert!(end_activity(first) && end_activity(child));
        assert_eq!(register_activity("successor"), Ok(first));
        scheduler.enqueue(first, 20, Cost::Known(1), 0);
        let rest = served(&mut scheduler, 100, 0);
        let order = |of: &dyn Fn(u32) -> bool| -> Vec<u32> {
            begun.iter().chain(&rest).copied().filter(|number| of(*number)).collect()
        };
        assert_eq!(order(&|number| number < 8), (0..8).collect::<Vec<_>>());
        assert_eq!(order(&|number| (10..14).contains(&number)), (10..14).collect::<Vec<_>>());
        assert_eq!(rest.last(), Some(&20));
        assert!(scheduler.is_empty());
    });
}

#[test]
fn a_limit_comes_and_goes_while_children_wait() {
    in_cell(|| {
        let web = register_activity("web").unwrap();
        let child = register_activity_under(web, "child").unwrap();
        NETWORK_WRITE.set_policy(Some(PolicyKind::Wfq));
        let mut scheduler = new_scheduler();
        for number in 0..20 {
            scheduler.enqueue(if number % 2 == 0 { child } else { web }, number, Cost::Known(1_000), 0);
        }
        NETWORK_WRITE.set_limit(Some(rate(1_000_000)));
        scheduler.configure(NETWORK_WRITE.configuration().unwrap(), 1);
        let begun = served(&mut scheduler, 20, 2);
        assert!(begun.len() <= 2, "{begun:?}");
        NETWORK_WRITE.set_limit(None);
        NETWORK_WRITE.set_policy(Some(PolicyKind::Edf));
        scheduler.configure(NETWORK_WRITE.configuration().unwrap(), 3);
        let rest = served(&mut scheduler, 20, 4);
        let mut all: Vec<_> = begun.into_iter().chain(rest).collect();
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
    });
}

#[test]
fn a_change_is_made_as_a_whole_or_not_at_all() {
    in_cell(|| {
        let [first, second] = ["web", "web"].map(|name| register_activity(name).unwrap());
        let weight =
            |weight| EntitlementChange { weight: Weight::new(weight).ok(), ..EntitlementChange::default() };
        let change = GridChange {
            resource: Resource::NetworkWrite,
            dry_run: false,
            policy: Some(PolicyChange::Policy(PolicyKind::Wfq)),
            batch: NonZeroU32::new(8),
            limit: Some(RateChange::Rate(rate(1_000))),
            activity: Some(("web".into(), weight(300))),
        };
        let before = NETWORK_WRITE.summary();
        GridResource::apply(&GridChange { dry_run: true, ..change.clone() }).unwrap();
        assert_eq!(NETWORK_WRITE.summary(), before);
        GridResource::apply(&change).unwrap();
        let expected = GridSettings {
            resource: Resource::NetworkWrite,
            policy: Some(PolicyKind::Wfq),
            batch: NonZeroU32::new(8).unwrap(),
            limit: Some(rate(1_000)),
            capacity: None,
            entitlements: 1,
        };
        assert_eq!(NETWORK_WRITE.summary(), expected);
        let set = GridEntitlement {
            resource: Resource::NetworkWrite,
            name: "web".into(),
            entitlement: by_weight(300),
        };
        assert_eq!(
            NETWORK_WRITE.entitlements().into_iter().collect::<Vec<_>>(),
            [set],
            "that of both activities, once"
        );
        // All activities of that name.
        assert_eq!([first, second].map(|activity| NETWORK_WRITE.entitlement(activity)), [by_weight(300); 2]);
        let unknown = GridChange {
            policy: Some(PolicyChange::Direct),
            activity: Some(("nothing".into(), weight(1))),
            ..change.clone()
        };
        assert_eq!(GridResource::apply(&unknown), Err(ResourceError::NoActivityNamed("nothing".into())));
        let reservation = Some(RateChange::Rate(rate(20)));
        let limit = Some(RateChange::Rate(rate(10)));
        let contradiction = EntitlementChange { reservation, limit, ..EntitlementChange::default() };
        let contradictory = GridChange { activity: Some(("web".into(), contradiction)), ..unknown };
        assert!(matches!(GridResource::apply(&contradictory), Err(ResourceError::Entitlement(_))));
        assert_eq!(NETWORK_WRITE.summary(), expected);
        let part = GridChange { limit: Some(RateChange::Part(500)), activity: None, ..change.clone() };
        let refused = GridResource::apply(&part);
        assert_eq!(refused, Err(ResourceError::Entitlement(EntitlementError::UnknownCapacity)));
        let half = GridChange { resource: Resource::Processor, ..part };
        GridResource::apply(&half).unwrap();
        let GridSettings { limit, capacity, .. } = PROCESSOR.summary();
        assert_eq!(limit.unwrap().units(), capacity.unwrap().units() / 2);
        let end = GridChange {
            resource: Resource::NetworkWrite,
            dry_run: false,
            policy: Some(PolicyChange::Direct),
            batch: None,
            limit: Some(RateChange::None),
            activity: None,
        };
        GridResource::apply(&end).unwrap();
        assert_eq!(NETWORK_WRITE.summary(), GridSettings { policy: None, limit: None, ..expected });
    });
}

#[test]
fn contradictory_entitlements_change_nothing() {
    in_cell(|| {
        let entitlement =
            Entitlement { reservation: Some(rate(20)), limit: Some(rate(10)), ..Entitlement::default() };
        let refused = NETWORK_WRITE.set_entitlement(INFRASTRUCTURE, entitlement).unwrap_err();
        assert!(matches!(refused, ResourceError::Entitlement(_)));
        assert!(refused.to_string().contains("limit"), "{refused}");
        NETWORK_WRITE.set_policy(Some(PolicyKind::Reserve));
        assert!(!NETWORK_WRITE.configuration().unwrap().has_limits());
        let limited = Entitlement { limit: Some(rate(10)), ..Entitlement::default() };
        NETWORK_WRITE.set_entitlement(INFRASTRUCTURE, limited).unwrap();
        assert!(NETWORK_WRITE.configuration().unwrap().has_limits());
        NETWORK_WRITE.set_policy(Some(PolicyKind::Wfq));
        assert!(!NETWORK_WRITE.configuration().unwrap().has_limits(), "this policy has no limits");
    });
}

/// From each policy to each other, with and without limits, while activities come, end and get children.
#[test]
fn no_change_of_a_policy_loses_a_request_or_reorders_those_of_an_activity() {
    in_cell(|| {
        let mut random = fastrand::Rng::with_seed(5);
        let settings: Vec<_> = PolicyKind::ALL
            .into_iter()
            .flat_map(|policy| [None, Some(rate(1_000_000))].map(|limit| (policy, limit)))
            .collect();
        let mut now_ns = 0;
        for (from, to) in settings.iter().flat_map(|from| settings.iter().map(move |to| (*from, *to))) {
            let set = |(policy, limit)| {
                NETWORK_WRITE.set_policy(Some(policy));
                NETWORK_WRITE.set_limit(limit);
                NETWORK_WRITE.configuration().unwrap()
            };
            let mut scheduler = ActivityScheduler::<(u32, u32)>::new(set(from));
            // The activities with the number of requests that each has made; the numbers of those that were served.
            let mut live: Vec<(ActivityId, u32, u32)> = Vec::new();
            let mut served: Vec<Vec<u32>> = Vec::new();
            let mut made = 0;
            for step in 0..120 {
                match random.u32(..12) {
                    0 | 1 if live.len() < 8 => {
                        let parent =
                            random.choice(&live).filter(|_| random.bool()).map(|(activity, ..)| *activity);
                        let activity = match parent {
                            Some(parent) => register_activity_under(parent, "child").unwrap(),
                            None => register_activity("tenant").unwrap(),
                        };
                        NETWORK_WRITE.set_entitlement(activity, by_weight(random.u32(1..1000))).unwrap();
                        live.push((activity, served.len() as u32, 0));
                        served.push(Vec::new());
                    }
                    2 if live.len() > 2 => {
                        let (ended, ..) = live.swap_remove(random.usize(..live.len()));
                        assert!(end_activity(ended));
                    }
                    3 | 4 => {
                        now_ns += random.u64(..3_000_000);
                        for _ in 0..random.u32(..4) {
                            let Dispatch::Request(request) = scheduler.dispatch(now_ns) else { break };
                            served[request.message.0 as usize].push(request.message.1);
                        }
                    }
                    5 if step % 2 == 0 => scheduler.configure(set(from), now_ns),
                    5 => scheduler.configure(set(to), now_ns),
                    _ => {
                        let count = live.len();
                        let Some((activity, label, next)) = live.get_mut(random.usize(..count.max(1))) else {
                            continue;
                        };
                        let cost =
                            if random.bool() { Cost::Known(random.u64(1..2_000)) } else { Cost::Unknown };
                        scheduler.enqueue(*activity, (*label, *next), cost, now_ns);
                        *next += 1;
                        made += 1;
                    }
                }
            }
            scheduler.configure(set(to), now_ns);
            while !scheduler.is_empty() {
                match scheduler.dispatch(now_ns) {
                    Dispatch::Request(request) => served[request.message.0 as usize].push(request.message.1),
                    Dispatch::NotBefore(ns) => now_ns = ns,
                    Dispatch::Empty => panic!("{} requests wait and none is served", scheduler.len()),
                }
            }
            let in_order = |of: &Vec<u32>| of.iter().copied().eq(0..of.len() as u32);
            assert!(served.iter().all(in_order), "{from:?} to {to:?}: {served:?}");
            assert_eq!(served.iter().map(Vec::len).sum::<usize>(), made, "{from:?} to {to:?}");
            live.iter().rev().for_each(|(activity, ..)| _ = end_activity(*activity));
        }
    });
}
