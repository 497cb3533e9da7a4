//! Links between two cells: what they lend, and what a restart finds.

use crate::bench::{Bench, page_of};
use isola_abi::id::{CellId, PhysAddr, PhysRange};
use isola_abi::links::{LinkAccess, LinkPart, LinkRefusal, LinkState, Survival, links_to_peer};
use isola_supervisor_fake::{MEMORY, MIB};

pub fn state(bench: &Bench, id: CellId, slot: usize) -> LinkState {
    bench.core.hardware().state().links[&id].get(slot).unwrap().state()
}

/// Returns a machine with two cells, 1 and 2, that have an open link at slot 0.
pub fn linked() -> (Bench, CellId, CellId) {
    let mut bench = Bench::new();
    let (one, other) = (bench.run(1, 1), bench.run(2, 1));
    let memory = page_of(&bench.core, 1, 600);
    assert_eq!(
        bench.core.open_link(7, (one, memory), other, b"echo\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        Ok(0)
    );
    assert_eq!((state(&bench, one, 0), state(&bench, other, 0)), (LinkState::Waiting, LinkState::Invited));
    let memory = page_of(&bench.core, 2, 600);
    assert_eq!(bench.core.accept_link(other, 0, memory), Ok(0));
    assert_eq!((state(&bench, one, 0), state(&bench, other, 0)), (LinkState::Open, LinkState::Open));
    (bench, one, other)
}

#[test]
fn each_cell_of_a_link_maps_the_memory_that_the_other_gave_and_loses_it_at_the_end() {
    let (mut bench, one, other) = linked();
    let mapped = |bench: &Bench, id| bench.core.hardware().state().mapped_by(id);
    let (first, second) = (page_of(&bench.core, 1, 600).start, page_of(&bench.core, 2, 600).start);
    assert_eq!((mapped(&bench, one), mapped(&bench, other)), (vec![second], vec![first]));
    let shared = page_of(&bench.core, 1, 700);
    bench.core.share_over_link(one, 0, shared, LinkAccess::ReadWrite, Survival::Revoked).unwrap();
    assert_eq!(mapped(&bench, other), [first, shared.start]);
    bench.core.unshare_over_link(one, 0).unwrap();
    assert_eq!(mapped(&bench, other), [first]);
    bench.core.end(one, Vec::new()).unwrap();
    assert_eq!(mapped(&bench, other), []);
    assert_eq!(state(&bench, other, 0), LinkState::Closed);
    bench.core.release(one).unwrap();
    assert_eq!(bench.core.quarantined_bytes(), 0);
    assert_eq!(bench.core.accept_link(other, 0, second_page()), Err(LinkRefusal::WrongState));
    assert_eq!(bench.core.close_link(other, 0), Ok(0));
    assert_eq!(bench.core.close_link(other, 0), Err(LinkRefusal::WrongState));
    bench.check();
}

fn second_page() -> PhysRange {
    PhysRange::new(PhysAddr(MEMORY.start.0 + 4096), 4096)
}

#[test]
fn a_cell_flushes_its_tlbs_once_for_all_links_of_a_peer_that_ends() {
    let (mut bench, one, other) = linked();
    for page in 601..604 {
        let (own, theirs) = (page_of(&bench.core, 1, page), page_of(&bench.core, 2, page));
        let slot = bench.core.open_link(8, (one, own), other, &[0; 24]).unwrap();
        bench.core.accept_link(other, slot, theirs).unwrap();
    }
    let before = bench.core.hardware().state().flushes;
    bench.core.end(one, Vec::new()).unwrap();
    let state = bench.core.hardware().state();
    assert_eq!((state.mapped_by(other), state.flushes), (vec![], before + 1));
}

#[test]
fn a_cell_lends_only_its_own_memory_and_has_a_bounded_number_of_links() {
    let (mut bench, one, other) = linked();
    let foreign = page_of(&bench.core, 2, 600);
    assert_eq!(bench.core.open_link(1, (one, foreign), other, &[0; 24]), Err(LinkRefusal::BadMemory));
    assert_eq!(
        bench.core.share_over_link(one, 0, foreign, LinkAccess::Read, Survival::Revoked),
        Err(LinkRefusal::BadMemory)
    );
    let own = page_of(&bench.core, 1, 601);
    assert_eq!(bench.core.open_link(1, (one, own), one, &[0; 24]), Err(LinkRefusal::NoSuchCell));
    assert_eq!(bench.core.open_link(1, (one, own), CellId(9), &[0; 24]), Err(LinkRefusal::NoSuchCell));
    let slots = bench.core.hardware().state().links[&one].iter().count();
    for _ in 1..links_to_peer(slots) {
        bench.core.open_link(1, (one, own), other, &[0; 24]).unwrap();
    }
    assert_eq!(bench.core.open_link(1, (one, own), other, &[0; 24]), Err(LinkRefusal::NoSlot));
    assert_eq!(bench.core.close_link(other, 3), Ok(3), "it refuses the invitation");
    assert_eq!(state(&bench, one, 3), LinkState::Closed);
    bench.check();
}

#[test]
fn memory_that_a_lost_core_of_a_peer_may_access_is_never_free() {
    let (mut bench, one, other) = linked();
    let lost = bench.core.cell(other).unwrap().first_core().unwrap();
    bench.core.hardware().state().lost.insert(lost);
    bench.core.end(other, Vec::new()).unwrap();
    bench.core.release(other).unwrap();
    assert_eq!(bench.core.quarantined_bytes(), 4 * MIB);
    let exposed = page_of(&bench.core, 1, 600);
    bench.core.close_link(one, 0).unwrap();
    let again = bench.run(3, 1);
    assert_eq!(bench.core.open_link(1, (one, exposed), again, &[0; 24]), Err(LinkRefusal::BadMemory));
    bench.core.end(one, Vec::new()).unwrap();
    bench.core.release(one).unwrap();
    assert_eq!(bench.core.quarantined_bytes(), 8 * MIB, "the owner's memory stays out of use");
    bench.check();
}

#[test]
fn memory_that_a_core_does_not_give_back_is_reported_until_it_does() {
    let (mut bench, one, other) = linked();
    let shared = page_of(&bench.core, 1, 700);
    bench.core.share_over_link(one, 0, shared, LinkAccess::ReadWrite, Survival::Revoked).unwrap();
    bench.core.hardware().state().stuck_core = Some(0);
    assert_eq!(bench.core.unshare_over_link(one, 0), Err(LinkRefusal::Exposed));
    assert_eq!(bench.core.close_link(other, 0), Err(LinkRefusal::Exposed), "its window stays reserved");
    assert_eq!([one, other].map(|id| state(&bench, id, 0)), [LinkState::Closed; 2]);
    bench.core.hardware().state().stuck_core = None;
    for id in [one, other] {
        assert_eq!(bench.core.close_link(id, 0), Ok(0));
        assert!(bench.core.hardware().state().mapped_by(id).is_empty());
    }
    bench.check();
}

#[test]
fn a_cell_without_memory_for_tables_gets_no_link() {
    let mut bench = Bench::new();
    let (one, other) = (bench.run(1, 1), bench.run(2, 1));
    let memory = page_of(&bench.core, 1, 600);
    let two = PhysRange::new(memory.start, 8192);
    bench.core.open_link(7, (one, two), other, &[0; 24]).unwrap();
    bench.core.hardware().state().spaces_are_full = true;
    let own = page_of(&bench.core, 2, 600);
    assert_eq!(bench.core.accept_link(other, 0, own), Err(LinkRefusal::NoTables));
    assert_eq!((state(&bench, one, 0), state(&bench, other, 0)), (LinkState::Closed, LinkState::Free));
    assert!(bench.core.hardware().state().mapped_by(other).is_empty());
}

#[test]
fn open_links_survive_a_restart_and_incomplete_ones_do_not() {
    let (mut bench, one, other) = linked();
    let shared = page_of(&bench.core, 1, 700);
    bench.core.share_over_link(one, 0, shared, LinkAccess::ReadWrite, Survival::Revoked).unwrap();
    let more = page_of(&bench.core, 1, 601);
    bench.core.open_link(8, (one, more), other, &[0; 24]).unwrap();
    [one, other].into_iter().for_each(|id| bench.core.save(id, Vec::new()));
    let mapped = |bench: &Bench, id| bench.core.hardware().state().mapped_by(id);
    let before = [mapped(&bench, one), mapped(&bench, other)];
    let mut bench = bench.fail(&[1, 2]);
    assert_eq!([mapped(&bench, one), mapped(&bench, other)], before);
    for (slot, expected) in [(0, LinkState::Open), (1, LinkState::Closed)] {
        assert_eq!([one, other].map(|id| state(&bench, id, slot)), [expected; 2], "slot {slot}");
    }
    bench.core.unshare_over_link(one, 0).unwrap();
    assert_eq!(mapped(&bench, other), before[1][..1]);
    bench.core.end(one, Vec::new()).unwrap();
    bench.core.release(one).unwrap();
    assert_eq!((state(&bench, other, 0), bench.core.quarantined_bytes()), (LinkState::Closed, 0));
    assert!(mapped(&bench, other).is_empty());
    bench.check();
}

/// Each of these is the state after a failure in the middle of a change.
#[test]
fn a_restarted_supervisor_closes_links_that_were_in_the_middle_of_a_change() {
    type Change = fn(&Bench, &isola_abi::links::Link, &isola_abi::links::Link);
    let changes: [Change; 6] = [
        |_, link, _| link.set_state(LinkState::Closed),
        |_, link, _| link.set_shared(true),
        |bench, link, _| link.set_lent(LinkPart::Ring, page_of(&bench.core, 1, 601)),
        |bench, link, _| link.set_lent(LinkPart::Ring, page_of(&bench.core, 2, 600)),
        |bench, link, _| link.set_lent(LinkPart::Shared, page_of(&bench.core, 1, 601)),
        // A link without a ring, although the peer maps all that is lent.
        |_, link, peers| {
            link.set_lent(LinkPart::Ring, PhysRange::new(PhysAddr(0), 0));
            peers.set_window(LinkPart::Ring, None);
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let (mut bench, one, other) = linked();
        [one, other].into_iter().for_each(|id| bench.core.save(id, Vec::new()));
        let links = [one, other].map(|id| bench.core.hardware().state().links[&id].clone());
        change(&bench, links[0].get(0).unwrap(), links[1].get(0).unwrap());
        let mut bench = bench.fail(&[1, 2]);
        for id in [one, other] {
            let links = bench.core.hardware().state().links[&id].clone();
            let link = links.get(0).unwrap();
            assert_eq!((link.state(), link.is_shared()), (LinkState::Closed, false), "change {number}");
            assert_eq!(bench.core.close_link(id, 0), Ok(0));
        }
        bench.check();
    }
}

#[test]
fn memory_of_a_cell_that_ends_before_its_peer_is_adopted_is_not_free() {
    let (mut bench, one, other) = linked();
    [one, other].into_iter().for_each(|id| bench.core.save(id, Vec::new()));
    let bench = bench.fail_and(&[1, 2], true);
    assert_eq!(state(&bench, other, 0), LinkState::Closed);
    assert_eq!(bench.core.quarantined_bytes(), 4 * MIB);
    bench.check();
}

#[test]
fn a_recovered_cell_whose_peer_is_dismantled_loses_the_link() {
    for ids in [[9, 2], [1, 9]] {
        let (mut bench, one, other) = linked();
        [one, other].into_iter().for_each(|id| bench.core.save(id, Vec::new()));
        let mut bench = bench.fail(&ids);
        let left = if ids[0] == 9 { other } else { one };
        assert!(bench.core.cell(CellId(9)).is_none(), "its peer knows it by another id");
        assert_eq!(state(&bench, left, 0), LinkState::Closed);
        assert!(bench.core.hardware().state().mapped_by(left).is_empty());
        // The first was dismantled while the other, not adopted yet, could still read its memory.
        assert_eq!(bench.core.quarantined_bytes() > 0, ids[0] == 9);
        let gone = if left == one { other } else { one };
        bench.scrub();
        assert_eq!(bench.run(gone.0, 1), gone, "its id is free");
        bench.check();
    }
}
