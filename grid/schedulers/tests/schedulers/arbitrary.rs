//! Arbitrary calls: no request is lost, repeated or reordered within its client, and none waits for ever.

use isola_schedulers::{
    ClientId, Cost, Dispatch, Entitlement, GroupId, PolicyKind, Priority, Rate, Scheduler, Ticket, Weight,
};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::num::NonZeroU32;

/// A call. Numbers select among the existing groups, clients and tickets.
#[derive(Clone, Debug)]
enum Call {
    AddClient(usize, Entitlement),
    AddGroup(usize, Entitlement, PolicyKind),
    RemoveClient(usize),
    RemoveGroup(usize),
    SetClient(usize, Entitlement),
    SetGroup(usize, Entitlement),
    SetPolicy(usize, PolicyKind),
    SetBatch(u32),
    Enqueue(usize, Option<u64>),
    Dispatch,
    Complete(usize, u64),
    Transfer(usize, usize, u64),
    ServeUnqueued(usize),
    Idle,
    Wait(u64),
}

fn entitlement() -> impl Strategy<Value = Entitlement> {
    let rate = || {
        proptest::option::of((1_000_u64..2_000_000_000).prop_map(|units| Rate::per_second(units).unwrap()))
    };
    (1..=10_000_u32, any::<u8>(), 0..10_000_u64, rate(), rate()).prop_map(
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

fn policy() -> impl Strategy<Value = PolicyKind> {
    proptest::sample::select(PolicyKind::ALL.to_vec())
}

fn call() -> impl Strategy<Value = Call> {
    let index = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 20));
    prop_oneof![
        2 => (index(), entitlement()).prop_map(|(of, entitlement)| Call::AddClient(of, entitlement)),
        1 => (index(), entitlement(), policy()).prop_map(|(of, e, policy)| Call::AddGroup(of, e, policy)),
        1 => index().prop_map(Call::RemoveClient),
        1 => index().prop_map(Call::RemoveGroup),
        1 => (index(), entitlement()).prop_map(|(of, entitlement)| Call::SetClient(of, entitlement)),
        1 => (index(), entitlement()).prop_map(|(of, entitlement)| Call::SetGroup(of, entitlement)),
        1 => (index(), policy()).prop_map(|(of, policy)| Call::SetPolicy(of, policy)),
        1 => (1..10_u32).prop_map(Call::SetBatch),
        12 => (index(), proptest::option::of(0..5_000_u64)).prop_map(|(of, cost)| Call::Enqueue(of, cost)),
        8 => Just(Call::Dispatch),
        4 => (index(), 0..5_000_u64).prop_map(|(of, cost)| Call::Complete(of, cost)),
        1 => (index(), index(), 0..5_000_u64).prop_map(|(from, to, cost)| Call::Transfer(from, to, cost)),
        2 => index().prop_map(Call::ServeUnqueued),
        2 => Just(Call::Idle),
        3 => (0..100_000_u64).prop_map(Call::Wait),
    ]
}

/// A scheduler, beside a model of its queues.
struct Modelled {
    scheduler: Scheduler<u64>,
    groups: Vec<GroupId>,
    clients: Vec<(ClientId, VecDeque<u64>)>,
    tickets: Vec<Ticket>,
    now_ns: u64,
    next: u64,
}

impl Modelled {
    fn waiting(&self) -> usize {
        self.clients.iter().map(|(_, queue)| queue.len()).sum()
    }

    fn client(&self, index: usize) -> Option<usize> {
        (!self.clients.is_empty()).then(|| index % self.clients.len())
    }

    fn make(&mut self, call: Call) {
        let group = |index: usize| self.groups[index % self.groups.len()];
        match call {
            Call::AddClient(of, entitlement) => {
                let client = self.scheduler.add_client(group(of), entitlement).unwrap();
                self.clients.push((client, VecDeque::new()));
            }
            Call::AddGroup(of, entitlement, policy) => {
                let group = group(of);
                self.groups.extend(self.scheduler.add_group(group, entitlement, policy));
            }
            Call::RemoveClient(of) => {
                let Some(index) = self.client(of) else { return };
                let (client, queue) = self.clients.swap_remove(index);
                let returned = self.scheduler.remove_client(client).unwrap();
                assert_eq!(returned.into_iter().map(|(number, _)| number).collect::<VecDeque<_>>(), queue);
            }
            Call::RemoveGroup(of) => {
                let group = group(of);
                if self.scheduler.remove_group(group).is_ok() {
                    self.groups.retain(|other| *other != group);
                }
            }
            Call::SetClient(of, entitlement) => {
                let Some(index) = self.client(of) else { return };
                self.scheduler.set_client(self.clients[index].0, entitlement, self.now_ns).unwrap();
            }
            Call::SetGroup(of, entitlement) => {
                let group = group(of);
                let is_root = group == self.scheduler.root();
                assert_eq!(self.scheduler.set_group(group, entitlement, self.now_ns).is_err(), is_root);
            }
            Call::SetPolicy(of, policy) => {
                let group = group(of);
                self.scheduler.set_policy(group, policy, self.now_ns).unwrap();
            }
            Call::SetBatch(requests) => self.scheduler.set_batch(NonZeroU32::new(requests).unwrap()),
            Call::Enqueue(of, cost) => {
                let Some(index) = self.client(of) else { return };
                let (client, queue) = &mut self.clients[index];
                let cost = cost.map_or(Cost::Unknown, Cost::Known);
                self.scheduler.enqueue(*client, self.next, cost, self.now_ns).unwrap();
                queue.push_back(self.next);
                self.next += 1;
            }
            Call::Dispatch => {
                self.dispatch();
            }
            Call::Complete(of, cost) => {
                if !self.tickets.is_empty() {
                    let ticket = self.tickets.swap_remove(of % self.tickets.len());
                    self.scheduler.complete(ticket, cost);
                }
            }
            Call::Transfer(from, to, cost) => {
                let (Some(from), Some(to)) = (self.client(from), self.client(to)) else { return };
                self.scheduler.transfer(self.clients[from].0, self.clients[to].0, cost);
            }
            Call::ServeUnqueued(of) => {
                let Some(index) = self.client(of) else { return };
                let ticket = self.scheduler.serve_unqueued(self.clients[index].0, self.now_ns);
                assert_eq!(ticket.is_some(), self.waiting() == 0);
                self.tickets.extend(ticket);
            }
            Call::Idle => self.scheduler.idle(),
            Call::Wait(ns) => self.now_ns += ns,
        }
        assert_eq!(self.scheduler.len(), self.waiting());
    }

    /// Returns the time until which nothing may be served, if there is one.
    fn dispatch(&mut self) -> Option<u64> {
        match self.scheduler.dispatch(self.now_ns) {
            Dispatch::Request(request) => {
                let client = request.ticket.client();
                let (_, queue) = self.clients.iter_mut().find(|(id, _)| *id == client).unwrap();
                assert_eq!(queue.pop_front(), Some(request.message), "out of order");
                self.tickets.push(request.ticket);
                None
            }
            Dispatch::NotBefore(ns) => {
                assert!(self.waiting() > 0 && ns > self.now_ns && ns < u64::MAX, "{ns}");
                Some(ns)
            }
            Dispatch::Empty => {
                assert_eq!(self.waiting(), 0, "requests wait");
                None
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn requests_are_neither_lost_nor_repeated_nor_reordered(
        root in policy(),
        calls in prop::collection::vec(call(), 1..300),
    ) {
        let scheduler = Scheduler::new(root);
        let groups = vec![scheduler.root()];
        let mut modelled =
            Modelled { scheduler, groups, clients: vec![], tickets: vec![], now_ns: 0, next: 0 };
        for call in calls {
            modelled.make(call);
        }
        while modelled.waiting() > 0 {
            let before = modelled.waiting();
            match modelled.dispatch() {
                Some(ns) => modelled.now_ns = ns,
                None => prop_assert_eq!(modelled.waiting(), before - 1),
            }
        }
        prop_assert_eq!(modelled.scheduler.dispatch(modelled.now_ns), Dispatch::Empty);
    }
}
