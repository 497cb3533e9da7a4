//! Each policy alone, under simulated load, against its published bounds.

use crate::simulation::{Arrival, Costs, Job, Service, assert_close, backlog, serve, shares, totals};
use fastrand::Rng;
use isola_schedulers::{ClientId, Entitlement, PolicyKind, Priority, Rate, Scheduler, Weight};
use std::num::NonZeroU32;

fn weight(weight: u32) -> Entitlement {
    Entitlement::by_weight(Weight::new(weight).unwrap())
}

fn rate(part_of_capacity: f64) -> Option<Rate> {
    Some(Rate::per_second((part_of_capacity * 1e9) as u64).unwrap())
}

/// Returns a scheduler with a client for each entitlement.
fn flat(policy: PolicyKind, entitlements: &[Entitlement]) -> (Scheduler<Arrival>, Vec<ClientId>) {
    let mut scheduler = Scheduler::new(policy);
    let root = scheduler.root();
    let clients =
        entitlements.iter().map(|&entitlement| scheduler.add_client(root, entitlement).unwrap()).collect();
    (scheduler, clients)
}

/// Verifies the bound between two clients that wait throughout: in each interval, their services by weight differ at
/// most by the sum of their largest requests by weight.
fn assert_fair(services: &[Service], weights: &[u32], largest: &[u64]) {
    for f in 0..weights.len() {
        for m in 0..f {
            let by_weight = |client: usize, cost: u64| cost as f64 / f64::from(weights[client]);
            let (mut difference, mut least, mut most) = (0.0, 0.0_f64, 0.0_f64);
            for service in services {
                let Job { client, cost } = service.job;
                difference += match client {
                    _ if client == f => by_weight(f, cost),
                    _ if client == m => -by_weight(m, cost),
                    _ => 0.0,
                };
                (least, most) = (least.min(difference), most.max(difference));
            }
            let bound = by_weight(f, largest[f]) + by_weight(m, largest[m]);
            assert!(most - least <= bound + 1e-3, "clients {f} and {m}: {} > {bound}", most - least);
        }
    }
}

/// Goyal 1996, theorem 1.
#[test]
fn wfq_services_of_waiting_clients_differ_by_at_most_a_request_each() {
    for seed in 0..40 {
        let mut random = Rng::with_seed(seed);
        let clients = random.usize(2..7);
        let weights: Vec<u32> = (0..clients).map(|_| random.u32(1..=1000)).collect();
        let largest: Vec<u64> = (0..clients).map(|_| random.u64(1..=100_000)).collect();
        let entitlements: Vec<_> = weights.iter().map(|&of| weight(of)).collect();
        for costs in [Costs::Known, Costs::Unknown] {
            let (mut scheduler, ids) = flat(PolicyKind::Wfq, &entitlements);
            let mut arrivals = Vec::new();
            for (client, &most) in largest.iter().enumerate() {
                arrivals.extend(backlog(client, 2_000, || random.u64(1..=most)));
            }
            let services = serve(&mut scheduler, &ids, arrivals, costs, u64::MAX);
            // As long as all of them wait.
            let mut left = vec![2_000; clients];
            let end = services.iter().position(|service| {
                left[service.job.client] -= 1;
                left[service.job.client] == 0
            });
            assert_fair(&services[..end.unwrap()], &weights, &largest);
        }
    }
}

/// Goyal 1996, delay guarantee.
#[test]
fn wfq_serves_a_client_within_its_share_no_later_than_one_request_of_each_other_client() {
    let weights = [100, 300, 50];
    let largest = [2_000, 70_000, 30_000];
    let (mut scheduler, ids) = flat(PolicyKind::Wfq, &weights.map(weight));
    let mut random = Rng::with_seed(7);
    let mut arrivals = backlog(1, 3_000, || random.u64(1..=largest[1]));
    arrivals.extend(backlog(2, 1_500, || random.u64(1..=largest[2])));
    // At most the share of client 0, with pauses and bursts.
    let mut at_ns = 0;
    for _ in 0..4_000 {
        at_ns += random.u64(0..18_000);
        arrivals.push(Arrival { at_ns, job: Job { client: 0, cost: random.u64(1..=largest[0]) } });
    }
    let services = serve(&mut scheduler, &ids, arrivals, Costs::Known, 40_000_000);
    let share = 100.0 / 450.0;
    let mut expected = 0.0_f64;
    for service in services.iter().filter(|service| service.job.client == 0) {
        // The expected arrival time: that of the request, or the end of the one before at the client's rate.
        expected = expected.max(service.arrived_ns as f64);
        let latest = expected + (largest[1] + largest[2] + service.job.cost) as f64;
        assert!(service.ended_ns as f64 <= latest + 1.0, "{service:?}: {latest}");
        expected += service.job.cost as f64 / share;
    }
}

/// Requests of a light client that arrive together wait for one request of each busy client, not for one each.
#[test]
fn wfq_serves_a_burst_of_a_light_client_together() {
    let (mut scheduler, ids) = flat(PolicyKind::Wfq, &[weight(500), weight(330), weight(170)]);
    let mut arrivals = backlog(1, 4_000, || 1_000);
    arrivals.extend(backlog(2, 4_000, || 1_000));
    let bursts = 100;
    for burst in 1..=bursts {
        // A sixteenth of the capacity, of which the client is entitled to half.
        arrivals
            .extend((0..4).map(|_| Arrival { at_ns: burst * 64_000, job: Job { client: 0, cost: 1_000 } }));
    }
    let services = serve(&mut scheduler, &ids, arrivals, Costs::Unknown, u64::MAX);
    let light: Vec<usize> =
        services.iter().enumerate().filter(|(_, one)| one.job.client == 0).map(|(index, _)| index).collect();
    // The first bursts come before the average costs are known.
    let together = light.chunks(4).skip(10).filter(|burst| burst[3] - burst[0] == 3).count();
    assert_eq!(together as u64, bursts - 10, "each burst is served without others in between");
}

/// An attack: a client that sleeps to save up service, and then requests much.
#[test]
fn wfq_gives_a_client_that_sleeps_no_more_than_its_share_and_the_credit() {
    for cost in [100, 1_000, 50_000] {
        let (mut scheduler, ids) = flat(PolicyKind::Wfq, &[weight(100), weight(100)]);
        let mut arrivals = backlog(1, 20_000, || 1_000);
        let (period_ns, waves) = (1_000_000, 15);
        for wave in 1..=waves {
            let job = Job { client: 0, cost };
            arrivals.extend((0..300_000 / cost).map(|_| Arrival { at_ns: wave * period_ns, job }));
        }
        let services = serve(&mut scheduler, &ids, arrivals, Costs::Unknown, waves * period_ns);
        for wave in 1..waves {
            let is_of_wave = |one: &&Service| one.job.client == 0 && one.arrived_ns == wave * period_ns;
            let end_ns = services.iter().filter(is_of_wave).map(|one| one.ended_ns).max().unwrap();
            let within =
                |one: &&Service| (wave * period_ns..=end_ns).contains(&(one.ended_ns - one.job.cost));
            let [asleep, busy] = totals(services.iter().filter(within), 2)[..] else { panic!("two clients") };
            // Requests above the average of all count as average ones.
            let bound = 4 * cost.min(15_000) + 2 * cost + 2_000;
            assert!(asleep <= busy + bound, "{cost}: {asleep} beside {busy} in wave {wave}: more by {bound}");
        }
    }
}

#[test]
fn wfq_divides_by_weight_also_where_costs_differ() {
    let (mut scheduler, ids) = flat(PolicyKind::Wfq, &[weight(500), weight(330), weight(170)]);
    let mut random = Rng::with_seed(1);
    let mut arrivals = backlog(0, 100_000, || 100);
    arrivals.extend(backlog(1, 10_000, || random.u64(1..10_000)));
    arrivals.extend(backlog(2, 100, || 100_000));
    let services = serve(&mut scheduler, &ids, arrivals, Costs::Unknown, 10_000_000);
    assert_close(&shares(&services, 3), &[0.5, 0.33, 0.17], 0.01);
}

#[test]
fn a_batch_makes_shares_coarser_only() {
    let (mut scheduler, ids) = flat(PolicyKind::Wfq, &[weight(500), weight(330), weight(170)]);
    scheduler.set_batch(NonZeroU32::new(8).unwrap());
    let arrivals = (0..3).flat_map(|client| backlog(client, 10_000, || 1_000)).collect();
    let services = serve(&mut scheduler, &ids, arrivals, Costs::Known, 10_000_000);
    assert_fair(&services, &[500, 330, 170], &[8_000; 3]);
    let changes = services.windows(2).filter(|pair| pair[0].job.client != pair[1].job.client).count();
    assert!(changes <= services.len() / 8, "{changes} changes of client in {} services", services.len());
}

#[test]
fn a_single_waiting_client_gets_everything() {
    for policy in PolicyKind::ALL {
        let (mut scheduler, ids) = flat(policy, &[weight(1), weight(10_000)]);
        let services = serve(&mut scheduler, &ids, backlog(0, 100, || 1_000), Costs::Unknown, u64::MAX);
        assert_eq!(services.last().unwrap().ended_ns, 100_000, "{policy} left the resource idle");
    }
}

#[test]
fn fifo_serves_in_the_order_of_arrival() {
    let (mut scheduler, ids) = flat(PolicyKind::Fifo, &[weight(1), weight(10_000), weight(5)]);
    let mut random = Rng::with_seed(3);
    let job = |random: &mut Rng| Job { client: random.usize(0..3), cost: random.u64(1..100) };
    let arrivals = (0..5_000).map(|at_ns| Arrival { at_ns: at_ns * 10, job: job(&mut random) }).collect();
    let services = serve(&mut scheduler, &ids, arrivals, Costs::Known, u64::MAX);
    assert_eq!(services.len(), 5_000);
    assert!(services.is_sorted_by_key(|service| service.arrived_ns));
}

#[test]
fn a_lower_priority_is_served_only_while_no_higher_one_waits() {
    let priority = |priority| Entitlement { priority: Priority(priority), ..Entitlement::default() };
    let (mut scheduler, ids) = flat(PolicyKind::Priority, &[priority(7), priority(0), priority(255)]);
    let mut random = Rng::with_seed(4);
    let arrivals: Vec<Arrival> = (0..3_000)
        .map(|_| Arrival {
            at_ns: random.u64(0..200_000),
            job: Job { client: random.usize(0..3), cost: random.u64(1..100) },
        })
        .collect();
    let services = serve(&mut scheduler, &ids, arrivals, Costs::Known, u64::MAX);
    let rank = [1, 2, 0];
    for (index, service) in services.iter().enumerate() {
        let overtaken = services[index..].iter().find(|later| {
            rank[later.job.client] < rank[service.job.client] && later.arrived_ns <= service.began_ns
        });
        assert!(overtaken.is_none(), "{service:?} before {overtaken:?}");
    }
}

/// Liu and Layland 1973.
#[test]
fn edf_ends_feasible_requests_within_one_request_of_their_deadlines() {
    // Period, which is the deadline as well, and cost: 95 % of the capacity.
    let tasks = [(10_000_u64, 2_500_u64), (35_000, 10_500), (100_000, 40_000)];
    let entitlements = tasks.map(|(period, _)| Entitlement { deadline_ns: period, ..Entitlement::default() });
    let mut arrivals = Vec::new();
    for (client, &(period, cost)) in tasks.iter().enumerate() {
        let times = (0..10_000_000 / period).map(|number| number * period + 17 * client as u64);
        arrivals.extend(times.map(|at_ns| Arrival { at_ns, job: Job { client, cost } }));
    }
    let latest = |policy| {
        let (mut scheduler, ids) = flat(policy, &entitlements);
        let services = serve(&mut scheduler, &ids, arrivals.clone(), Costs::Known, u64::MAX);
        let late = |service: &Service| {
            service.ended_ns.saturating_sub(service.arrived_ns + tasks[service.job.client].0)
        };
        services.iter().map(late).max().unwrap()
    };
    assert!(latest(PolicyKind::Edf) <= 40_000, "{}", latest(PolicyKind::Edf));
    assert!(latest(PolicyKind::Edf) < latest(PolicyKind::Fifo));
}

/// Gulati 2010.
#[test]
fn reservations_come_first_limits_hold_and_weights_divide_the_rest() {
    let entitlements = [
        Entitlement { reservation: rate(0.3), ..weight(100) },
        weight(300),
        Entitlement { limit: rate(0.1), ..weight(1_000) },
    ];
    let (mut scheduler, ids) = flat(PolicyKind::Reserve, &entitlements);
    let mut random = Rng::with_seed(5);
    let arrivals = (0..3).flat_map(|client| backlog(client, 30_000, || random.u64(1..10_000))).collect();
    let services = serve(&mut scheduler, &ids, arrivals, Costs::Known, 100_000_000);
    // By weight alone, client 0 would get 0.225.
    assert_close(&shares(&services, 3), &[0.3, 0.6, 0.1], 0.003);
}

/// Gulati 2010.
#[test]
fn a_reservation_above_the_share_by_weight_is_met_in_each_millisecond() {
    let entitlements = [Entitlement { reservation: rate(0.5), ..weight(1) }, weight(10_000), weight(10_000)];
    let (mut scheduler, ids) = flat(PolicyKind::Reserve, &entitlements);
    let arrivals = (0..3).flat_map(|client| backlog(client, 30_000, || 5_000)).collect();
    let services = serve(&mut scheduler, &ids, arrivals, Costs::Unknown, 100_000_000);
    for part in services.chunks(200) {
        assert_close(&shares(part, 3), &[0.5, 0.25, 0.25], 0.016);
    }
}

#[test]
fn a_limited_client_gets_its_limit_and_no_more_even_alone() {
    let limit = Entitlement { limit: rate(0.2), ..weight(100) };
    for costs in [Costs::Known, Costs::Unknown] {
        let (mut scheduler, ids) = flat(PolicyKind::Reserve, &[limit]);
        let services = serve(&mut scheduler, &ids, backlog(0, 30_000, || 7_000), costs, 500_000_000);
        let total = totals(&services, 1)[0] as f64 / 500_000_000.0;
        assert_close(&[total], &[0.2], 0.001);
        // In any interval: the limit, 1 ms of it, and one request.
        for (index, first) in services.iter().enumerate().step_by(37) {
            let mut served = 0;
            for last in services[index..].iter().take(500) {
                served += last.job.cost;
                let most = (last.ended_ns - first.began_ns) as f64 * 0.2 + 200_000.0 + 7_000.0;
                assert!(served as f64 <= most, "{served} > {most}");
            }
        }
    }
}

#[test]
fn a_client_without_limit_waits_for_no_limited_one() {
    let entitlements = [Entitlement { limit: rate(0.01), ..weight(10_000) }, weight(1)];
    let (mut scheduler, ids) = flat(PolicyKind::Reserve, &entitlements);
    let mut arrivals = backlog(0, 10_000, || 1_000);
    arrivals.extend(backlog(1, 10_000, || 1_000));
    let services = serve(&mut scheduler, &ids, arrivals, Costs::Known, 9_000_000);
    assert_eq!(services.len(), 9_000, "the resource was idle");
    assert_close(&shares(&services, 2), &[0.01, 0.99], 0.002);
}
