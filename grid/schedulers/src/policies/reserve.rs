//! Reservation, limit and share (mClock: Gulati, Merchant and Varman 2010).
//!
//! Each member has three tags. The reservation tag is the time at which its next request is due so that the member gets
//! its reservation; the limit tag is the time before which it would exceed its limit; the share tag orders members by
//! weight. The policy serves, in this order:
//!
//! 1. the member with the smallest reservation tag that has passed;
//! 2. of the members whose limit tags have passed, the one with the smallest share tag;
//! 3. none, until the next tag passes.
//!
//! Service by share does not use up a reservation: it leaves the reservation tag as it is. Service by reservation does
//! count for the share and the limit. Reservation tags follow the arrivals: a member that pauses saves nothing up. The
//! reservations are met if their sum is within the resource's capacity, which the policy does not know.
//!
//! In an interval of length T, a member with a limit gets at most the limit times T plus 1 ms, and one request.
//!
//! Unlike in the paper, share tags are those of start-time fair queueing ([`super::wfq`]) instead of real time shifted
//! at each activation, so members without reservation and limit are served as `wfq` serves them, but without its credit:
//! a reservation is the means here.

use super::Members;
use crate::order::Order;
use crate::policy::{Choice, Entity, Head, InService, Phase, Policy, WaitFor};
use crate::tag::{Scale, Tag};
use isola_abi::grid::Entitlement;

/// A late dispatch is made up for within this time, so that delays of timers do not lower the rate of a limited member.
const LATENESS_NS: u64 = 1_000_000;

/// Grants each member its reservation, at most its limit, and a share of the rest by weight.
#[derive(Debug, Default)]
pub struct Reserve {
    members: Members<Member>,
    /// The active members with a reservation, by reservation tag.
    reserved: Order<Tag>,
    /// The active members whose limit permits service, by share tag.
    permitted: Order<Tag>,
    /// The other active members, by limit tag.
    limited: Order<Tag>,
    virtual_time: Tag,
    /// The largest share tag so far.
    latest: Tag,
    /// The latest time that a caller passed.
    now: Tag,
}

#[derive(Debug)]
struct Member {
    reservation: Option<Scale>,
    limit: Option<Scale>,
    weight: Scale,
    reservation_tag: Tag,
    limit_tag: Tag,
    share_tag: Tag,
    /// As in [`super::wfq`].
    had_share: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Inactive,
    Permitted,
    Limited,
}

/// Returns the earliest limit tag at a time: earlier unused service is lost.
fn earliest_limit(now_ns: u64) -> Tag {
    Tag::at_ns(now_ns.saturating_sub(LATENESS_NS))
}

impl Reserve {
    /// Removes an active member from all orders.
    fn dequeue(&mut self, entity: Entity) {
        let Some(member) = self.members.get_mut(entity) else { return };
        if member.reservation.is_some() {
            self.reserved.remove(member.reservation_tag, entity);
        }
        match member.state {
            State::Inactive => {}
            State::Permitted => self.permitted.remove(member.share_tag, entity),
            State::Limited => self.limited.remove(member.limit_tag, entity),
        }
        member.state = State::Inactive;
    }

    /// Adds an inactive member to its orders. Whether its limit has passed is found in the next choice.
    fn queue(&mut self, entity: Entity) {
        let Some(member) = self.members.get_mut(entity) else { return };
        if member.reservation.is_some() {
            self.reserved.insert(member.reservation_tag, entity);
        }
        if member.limit.is_some() {
            member.state = State::Limited;
            self.limited.insert(member.limit_tag, entity);
        } else {
            member.state = State::Permitted;
            self.permitted.insert(member.share_tag, entity);
        }
    }

    /// Permits the members whose limit tags have passed. Returns the tag of the time.
    fn permit_until(&mut self, now_ns: u64) -> Tag {
        let now = Tag::at_ns(now_ns);
        self.now = self.now.max(now);
        while let Some((tag, entity)) = self.limited.first()
            && tag <= now
        {
            self.limited.remove(tag, entity);
            if let Some(member) = self.members.get_mut(entity) {
                member.state = State::Permitted;
                self.permitted.insert(member.share_tag, entity);
            }
        }
        now
    }

    /// Applies `change` to a member, and restores its place in the orders.
    fn change(&mut self, entity: Entity, change: impl FnOnce(&mut Member)) {
        let was_active = self.members.get_mut(entity).is_some_and(|member| member.state != State::Inactive);
        if was_active {
            self.dequeue(entity);
        }
        if let Some(member) = self.members.get_mut(entity) {
            change(member);
        }
        if was_active {
            self.queue(entity);
        }
    }
}

impl Policy for Reserve {
    fn set(&mut self, entity: Entity, entitlement: &Entitlement) {
        let (virtual_time, now) = (self.virtual_time, self.now);
        let (reservation, limit) =
            (entitlement.reservation.map(Scale::of_rate), entitlement.limit.map(Scale::of_rate));
        let weight = Scale::of_weight(entitlement.weight);
        self.members.get_or_add(entity, || Member {
            reservation: None,
            limit: None,
            weight,
            reservation_tag: Tag::default(),
            limit_tag: Tag::default(),
            share_tag: virtual_time,
            had_share: false,
            state: State::Inactive,
        });
        self.change(entity, |member| {
            // A new rate counts from now on: neither earlier time nor debts of the old rate remain.
            if member.reservation != reservation {
                member.reservation_tag = now;
            }
            if member.limit != limit {
                member.limit_tag = now;
            }
            (member.reservation, member.limit, member.weight) = (reservation, limit, weight);
            // Share that an earlier limit withheld is not made up for.
            member.share_tag = member.share_tag.max(virtual_time);
        });
    }

    fn activate(&mut self, entity: Entity, _head: Head, now_ns: u64) {
        self.now = self.now.max(Tag::at_ns(now_ns));
        let Some(member) = self.members.get_mut(entity) else { return };
        member.reservation_tag = member.reservation_tag.max(Tag::at_ns(now_ns));
        member.limit_tag = member.limit_tag.max(earliest_limit(now_ns));
        member.had_share = member.share_tag <= self.virtual_time;
        member.share_tag = member.share_tag.max(self.virtual_time);
        self.queue(entity);
    }

    fn deactivate(&mut self, entity: Entity) {
        self.dequeue(entity);
    }

    fn remove(&mut self, entity: Entity) {
        self.members.remove(entity);
    }

    fn choose(&mut self, now_ns: u64) -> Choice {
        let now = self.permit_until(now_ns);
        let due = self.reserved.first();
        if let Some((tag, entity)) = due
            && tag <= now
        {
            return Choice::Entity(entity, Phase::Reservation);
        }
        if let Some((_, entity)) = self.permitted.first() {
            return Choice::Entity(entity, Phase::Share);
        }
        let next = [due, self.limited.first()].into_iter().flatten().map(|(tag, _)| tag).min();
        next.map_or(Choice::Empty, |tag| Choice::NotBefore(tag.to_ns()))
    }

    fn must_wait(
        &mut self,
        entity: Entity,
        service: InService,
        phase: Phase,
        head: Head,
        wait_for: WaitFor,
        now_ns: u64,
    ) -> bool {
        let (now, virtual_time) = (self.permit_until(now_ns), self.virtual_time);
        let Some(member) = self.members.get_mut(entity) else { return false };
        let (mut reservation, mut limit, mut share) =
            (member.reservation_tag, member.limit_tag, member.share_tag);
        let reserved = member.reservation.filter(|_| phase == Phase::Reservation);
        match service {
            InService::Uncharged { cost, dispatched_ns } => {
                reservation = reserved.map_or(reservation, |scale| reservation.after(cost, scale));
                reservation = reservation.max(Tag::at_ns(head.arrived_ns));
                let earliest = limit.max(earliest_limit(dispatched_ns));
                limit = member.limit.map_or(limit, |scale| earliest.after(cost, scale));
                share = share.after(cost, member.weight);
            }
            InService::Charged { charged, cost } => {
                let corrected = |tag: Tag, scale| tag.corrected(charged, cost, scale);
                reservation = reserved.map_or(reservation, |scale| corrected(reservation, scale));
                limit = member.limit.map_or(limit, |scale| corrected(limit, scale));
                share = corrected(share, member.weight);
                if member.state == State::Inactive {
                    reservation = reservation.max(now);
                    limit = limit.max(earliest_limit(now_ns));
                    share = share.max(virtual_time);
                }
            }
        }
        let other_due = self.reserved.first_other(entity).filter(|(tag, _)| *tag <= now);
        if member.reservation.is_some() && reservation <= now {
            return wait_for == WaitFor::All && other_due.is_some_and(|other| other < (reservation, entity));
        }
        if other_due.is_some() || (member.limit.is_some() && limit > now) {
            return true;
        }
        let first = self.permitted.first_other(entity).filter(|other| *other < (share, entity));
        let Some((_, first)) = first else { return false };
        wait_for == WaitFor::All || self.members.get_mut(first).is_some_and(|member| member.had_share)
    }

    fn dispatched(&mut self, entity: Entity, cost: u64, phase: Phase, next: Option<Head>, now_ns: u64) {
        self.dequeue(entity);
        let Some(member) = self.members.get_mut(entity) else { return };
        match (phase, member.reservation) {
            (Phase::Reservation, Some(scale)) => {
                member.reservation_tag = member.reservation_tag.after(cost, scale);
            }
            (Phase::Reservation, None) => {}
            (Phase::Share, _) => self.virtual_time = self.virtual_time.max(member.share_tag),
        }
        if let Some(scale) = member.limit {
            member.limit_tag = member.limit_tag.max(earliest_limit(now_ns)).after(cost, scale);
        }
        member.share_tag = member.share_tag.after(cost, member.weight);
        member.had_share = false;
        self.latest = self.latest.max(member.share_tag);
        if let Some(head) = next {
            member.reservation_tag = member.reservation_tag.max(Tag::at_ns(head.arrived_ns));
            self.queue(entity);
        }
    }

    fn correct(&mut self, entity: Entity, charged: u64, actual: u64, phase: Phase) {
        self.change(entity, |member| {
            if let (Phase::Reservation, Some(scale)) = (phase, member.reservation) {
                member.reservation_tag = member.reservation_tag.corrected(charged, actual, scale);
            }
            if let Some(scale) = member.limit {
                member.limit_tag = member.limit_tag.corrected(charged, actual, scale);
            }
            member.share_tag = member.share_tag.corrected(charged, actual, member.weight);
        });
        let share_tag = self.members.get_mut(entity).map_or(self.latest, |member| member.share_tag);
        self.latest = self.latest.max(share_tag);
    }

    fn charge(&mut self, entity: Entity, cost: u64) {
        let (virtual_time, earliest) = (self.virtual_time, earliest_limit(self.now.to_ns()));
        if let Some(member) = self.members.get_mut(entity).filter(|member| member.state == State::Inactive) {
            member.share_tag = member.share_tag.max(virtual_time);
            member.limit_tag = member.limit_tag.max(earliest);
        }
        self.correct(entity, 0, cost, Phase::Share);
    }

    fn idle(&mut self) {
        self.virtual_time = self.latest;
    }
}
