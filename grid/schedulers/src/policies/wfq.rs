//! Start-time fair queueing (Goyal, Vin and Cheng 1996).
//!
//! Each request has a *start tag*, the later of the virtual time at its arrival and the finish tag of the member's
//! request before; its *finish tag* is the start tag plus its cost divided by the member's weight. The policy serves
//! the smallest start tag, and the virtual time is the start tag of the last request served.
//!
//! A cost is needed only after the service, so the policy suits processor time. For two members that both wait
//! throughout an interval, the difference of their services, each divided by the member's weight, is at most the sum of
//! their largest requests divided by their weights, whatever the capacity and the other members do (theorem 1 there). A
//! member that pauses saves up no more than [`CREDIT`] requests: its next start tag is not before the virtual time less
//! their cost. So requests of a light member that arrive together are served together, instead of one for each request
//! of every busy member; that makes the bound of the difference greater by these requests. Requests longer than the
//! average of all members count as an average one: the delay of the others does not grow with the requests of the one
//! that paused.
//!
//! When nothing is left to serve, the virtual time becomes the largest finish tag, as in the paper, if the caller knows
//! that no request is in service and reports it. Otherwise the policy treats idle times as if they did not exist.

use super::Members;
use crate::order::Order;
use crate::policy::{Choice, Entity, Head, InService, Phase, Policy, WaitFor};
use crate::tag::{Scale, Tag};
use isola_abi::grid::Entitlement;

/// The number of requests for which a member that pauses saves up unused service.
pub const CREDIT: u64 = 4;

/// Divides the service in proportion to the weights of the active members.
#[derive(Debug, Default)]
pub struct Wfq {
    members: Members<Member>,
    /// The active members by start tag.
    order: Order<Tag>,
    virtual_time: Tag,
    /// The largest finish tag so far.
    latest: Tag,
    /// The virtual time at the end of the last busy period: nothing is saved up from before.
    began: Tag,
    /// The average cost of a request.
    average: Average,
}

#[derive(Debug)]
struct Member {
    scale: Scale,
    /// The start tag of the next request. Of an inactive member: the finish tag of its last request.
    start: Tag,
    active: bool,
    /// Whether it has become active since it was last served, with a start tag not after the virtual time: it has used
    /// less than its share.
    had_share: bool,
    /// The average cost of its requests.
    average: Average,
}

/// A moving average of costs.
#[derive(Clone, Copy, Debug, Default)]
struct Average(u64);

impl Average {
    #[inline]
    fn add(&mut self, cost: u64) {
        self.0 = self.0 - self.0 / 8 + cost / 8;
    }
}

impl Member {
    /// Returns the start tag after a pause.
    #[inline]
    fn start_after_pause(&self, start: Tag, virtual_time: Tag, began: Tag, average: Average) -> Tag {
        let saved = self.average.0.min(average.0).saturating_mul(CREDIT);
        start.max(began).max(virtual_time.before(saved, self.scale))
    }
}

impl Policy for Wfq {
    fn set(&mut self, entity: Entity, entitlement: &Entitlement) {
        let scale = Scale::of_weight(entitlement.weight);
        let start = self.virtual_time;
        let average = Average::default();
        let add = || Member { scale, start, active: false, had_share: false, average };
        self.members.get_or_add(entity, add).scale = scale;
    }

    #[inline]
    fn activate(&mut self, entity: Entity, _head: Head, _now_ns: u64) {
        let Some(member) = self.members.get_mut(entity) else { return };
        member.had_share = member.start <= self.virtual_time;
        member.start = member.start_after_pause(member.start, self.virtual_time, self.began, self.average);
        member.active = true;
        self.order.insert(member.start, entity);
    }

    fn deactivate(&mut self, entity: Entity) {
        let Some(member) = self.members.get_mut(entity) else { return };
        member.active = false;
        self.order.remove(member.start, entity);
    }

    fn remove(&mut self, entity: Entity) {
        self.members.remove(entity);
    }

    #[inline]
    fn choose(&mut self, _now_ns: u64) -> Choice {
        self.order.first().map_or(Choice::Empty, |(_, entity)| Choice::Entity(entity, Phase::Share))
    }

    fn must_wait(
        &mut self,
        entity: Entity,
        service: InService,
        _phase: Phase,
        _head: Head,
        wait_for: WaitFor,
        _now_ns: u64,
    ) -> bool {
        let (virtual_time, began, average) = (self.virtual_time, self.began, self.average);
        let Some(member) = self.members.get_mut(entity) else { return false };
        let start = match service {
            InService::Uncharged { cost, .. } => member.start.after(cost, member.scale),
            InService::Charged { charged, cost } => member.start.corrected(charged, cost, member.scale),
        };
        let own = match member.active {
            true => start,
            false => member.start_after_pause(start, virtual_time, began, average),
        };
        let Some(first) = self.order.first_other(entity).filter(|other| *other < (own, entity)) else {
            return false;
        };
        wait_for == WaitFor::All || self.members.get_mut(first.1).is_some_and(|member| member.had_share)
    }

    #[inline]
    fn dispatched(&mut self, entity: Entity, cost: u64, _phase: Phase, next: Option<Head>, _now_ns: u64) {
        let Some(member) = self.members.get_mut(entity) else { return };
        self.virtual_time = self.virtual_time.max(member.start);
        self.order.remove(member.start, entity);
        member.start = member.start.after(cost, member.scale);
        self.latest = self.latest.max(member.start);
        member.active = next.is_some();
        member.had_share = false;
        member.average.add(cost);
        self.average.add(cost);
        if member.active {
            self.order.insert(member.start, entity);
        }
    }

    fn correct(&mut self, entity: Entity, charged: u64, actual: u64, _phase: Phase) {
        let Some(member) = self.members.get_mut(entity) else { return };
        let start = member.start.corrected(charged, actual, member.scale);
        if member.active {
            self.order.remove(member.start, entity);
            self.order.insert(start, entity);
        }
        member.start = start;
        self.latest = self.latest.max(start);
    }

    fn charge(&mut self, entity: Entity, cost: u64) {
        let Some(member) = self.members.get_mut(entity) else { return };
        if !member.active {
            member.start =
                member.start_after_pause(member.start, self.virtual_time, self.began, self.average);
        }
        self.correct(entity, 0, cost, Phase::Share);
    }

    fn idle(&mut self) {
        self.virtual_time = self.latest;
        self.began = self.latest;
    }
}
