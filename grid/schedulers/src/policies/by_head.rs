//! Policies that compare nothing but the members' next requests.

use super::Members;
use crate::order::Order;
use crate::policy::{Choice, Entity, Head, InService, Phase, Policy, WaitFor};
use isola_abi::grid::Entitlement;

/// The key by which a policy orders the next requests of its members.
pub trait HeadKey: Copy + Ord {
    /// Returns the key of a request of a member with that entitlement.
    fn of(entitlement: &Entitlement, head: Head) -> Self;
}

/// Serves the member whose next request has the smallest key. Costs do not matter.
#[derive(Debug)]
pub struct ByHead<K> {
    members: Members<Member<K>>,
    order: Order<K>,
}

#[derive(Debug)]
struct Member<K> {
    entitlement: Entitlement,
    /// The next request and its key, of an active member.
    waiting: Option<(Head, K)>,
}

impl<K: HeadKey> Default for ByHead<K> {
    fn default() -> Self {
        Self { members: Members::default(), order: Order::default() }
    }
}

impl<K: HeadKey> ByHead<K> {
    /// Replaces a member's next request.
    fn set_head(&mut self, entity: Entity, head: Option<Head>) {
        let Some(member) = self.members.get_mut(entity) else { return };
        if let Some((_, key)) = member.waiting.take() {
            self.order.remove(key, entity);
        }
        if let Some(head) = head {
            let key = K::of(&member.entitlement, head);
            member.waiting = Some((head, key));
            self.order.insert(key, entity);
        }
    }
}

impl<K: HeadKey> Policy for ByHead<K> {
    fn set(&mut self, entity: Entity, entitlement: &Entitlement) {
        let member = self.members.get_or_add(entity, || Member { entitlement: *entitlement, waiting: None });
        member.entitlement = *entitlement;
        let head = member.waiting.map(|(head, _)| head);
        self.set_head(entity, head);
    }

    fn activate(&mut self, entity: Entity, head: Head, _now_ns: u64) {
        self.set_head(entity, Some(head));
    }

    fn deactivate(&mut self, entity: Entity) {
        self.set_head(entity, None);
    }

    fn remove(&mut self, entity: Entity) {
        self.members.remove(entity);
    }

    fn choose(&mut self, _now_ns: u64) -> Choice {
        self.order.first().map_or(Choice::Empty, |(_, entity)| Choice::Entity(entity, Phase::Share))
    }

    fn must_wait(
        &mut self,
        entity: Entity,
        service: InService,
        _phase: Phase,
        head: Head,
        wait_for: WaitFor,
        _now_ns: u64,
    ) -> bool {
        let Some(member) = self.members.get_mut(entity) else { return false };
        let own = match (service, wait_for, member.waiting) {
            // The request in service, which is still the head; a member that comes before it preempts it.
            (InService::Uncharged { .. }, WaitFor::Urgent, Some((_, key))) => key,
            // A group whose other members wait: it keeps its head.
            (InService::Charged { .. }, _, Some((_, key))) => key,
            _ => K::of(&member.entitlement, head),
        };
        self.order.first_other(entity).is_some_and(|other| other < (own, entity))
    }

    fn dispatched(&mut self, entity: Entity, _cost: u64, _phase: Phase, next: Option<Head>, _now_ns: u64) {
        self.set_head(entity, next);
    }

    fn correct(&mut self, _entity: Entity, _charged: u64, _actual: u64, _phase: Phase) {}

    fn charge(&mut self, _entity: Entity, _cost: u64) {}
}
