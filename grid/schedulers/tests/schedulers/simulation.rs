//! A resource that serves one request at a time, in simulated time: a cost of one takes a nanosecond.

use isola_schedulers::{ClientId, Cost, Dispatch, Scheduler};

/// A request: the number of its client in the simulation, and its cost.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub client: usize,
    pub cost: u64,
}

/// A request that will arrive.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub at_ns: u64,
    pub job: Job,
}

/// A request that was served.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    pub job: Job,
    pub arrived_ns: u64,
    pub began_ns: u64,
    pub ended_ns: u64,
}

/// Whether the scheduler knows costs in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Costs {
    Known,
    Unknown,
}

/// Serves the arrivals until `end_ns`, or until none is left. Returns the services in order.
pub fn serve(
    scheduler: &mut Scheduler<Arrival>,
    clients: &[ClientId],
    mut arrivals: Vec<Arrival>,
    costs: Costs,
    end_ns: u64,
) -> Vec<Service> {
    arrivals.sort_by_key(|arrival| arrival.at_ns);
    let mut arrivals = arrivals.into_iter().peekable();
    let (mut now, mut services) = (0, Vec::new());
    while now < end_ns {
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.at_ns <= now) {
            let cost = match costs {
                Costs::Known => Cost::Known(arrival.job.cost),
                Costs::Unknown => Cost::Unknown,
            };
            scheduler.enqueue(clients[arrival.job.client], arrival, cost, arrival.at_ns).unwrap();
        }
        let next_arrival = arrivals.peek().map(|arrival| arrival.at_ns);
        match scheduler.dispatch(now) {
            Dispatch::Request(dispatched) => {
                let Arrival { at_ns, job } = dispatched.message;
                let began_ns = now;
                now += job.cost;
                scheduler.complete(dispatched.ticket, job.cost);
                services.push(Service { job, arrived_ns: at_ns, began_ns, ended_ns: now });
            }
            Dispatch::NotBefore(ns) => {
                assert!(ns > now, "the scheduler names a time that has passed");
                now = next_arrival.map_or(ns, |at| at.min(ns));
            }
            Dispatch::Empty => match next_arrival {
                Some(at) => now = at,
                None => break,
            },
        }
    }
    services
}

/// Returns `count` requests of a client that arrive at once, with costs from `cost`.
pub fn backlog(client: usize, count: usize, mut cost: impl FnMut() -> u64) -> Vec<Arrival> {
    (0..count).map(|_| Arrival { at_ns: 0, job: Job { client, cost: cost() } }).collect()
}

/// Returns the service of each of `clients` clients in a part of the services.
pub fn totals<'a>(services: impl IntoIterator<Item = &'a Service>, clients: usize) -> Vec<u64> {
    let mut totals = vec![0; clients];
    for service in services {
        totals[service.job.client] += service.job.cost;
    }
    totals
}

/// Returns each client's part of the service.
pub fn shares(services: &[Service], clients: usize) -> Vec<f64> {
    let totals = totals(services, clients);
    let all: u64 = totals.iter().sum();
    totals.iter().map(|&total| total as f64 / all as f64).collect()
}

/// Fails unless each value is within `tolerance` of the expected one.
pub fn assert_close(values: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(values.len(), expected.len());
    let close = |(value, expected): (&f64, &f64)| (value - expected).abs() <= tolerance;
    assert!(values.iter().zip(expected).all(close), "{values:?} instead of {expected:?}");
}
