//! Shared memory whose contents survive the cell that shares it.

use crate::bench::{Bench, page_of};
use crate::links::{linked, state};
use isola_abi::id::{CellId, PhysRange};
use isola_abi::links::{LinkAccess, LinkRefusal, LinkState, MAX_KEPT_BYTES, Survival};

/// Shares a page of cell 1 that may survive it with cell 2, which keeps it. Returns the page, and that of cell 2.
fn kept(bench: &mut Bench) -> (PhysRange, PhysRange) {
    let (one, other) = (CellId(1), CellId(2));
    let (shared, copy) = (page_of(&bench.core, 1, 700), page_of(&bench.core, 2, 700));
    bench.core.share_over_link(one, 0, shared, LinkAccess::Read, Survival::Permitted).unwrap();
    assert_eq!(bench.core.keep_over_link(other, 0, copy), Ok(0));
    (shared, copy)
}

#[test]
fn contents_survive_the_end_of_their_owner_in_memory_of_the_reader() {
    let (mut bench, one, other) = linked();
    let (shared, copy) = kept(&mut bench);
    [one, other].into_iter().for_each(|id| bench.core.save(id, Vec::new()));
    bench.core.end(one, Vec::new()).unwrap();
    assert_eq!(bench.core.hardware().state().copies, [(vec![shared], copy)]);
    let mapped = |bench: &Bench| bench.core.hardware().state().mapped_by(CellId(2));
    assert_eq!((mapped(&bench), state(&bench, other, 0)), (vec![copy.start], LinkState::Closed));
    bench.core.release(one).unwrap();
    assert_eq!(bench.core.quarantined_bytes(), 0, "the owner's memory is free");
    let mut bench = bench.fail(&[2]);
    assert_eq!(mapped(&bench), [copy.start], "it survives a restart of the supervisor as well");
    assert_eq!(bench.core.close_link(other, 0), Ok(0));
    assert_eq!(mapped(&bench), []);
    bench.check();
}

#[test]
fn contents_survive_by_the_consent_of_both_and_only_the_end_of_a_cell() {
    let (mut bench, one, other) = linked();
    let (shared, copy) = (page_of(&bench.core, 1, 700), page_of(&bench.core, 2, 700));
    let share = |bench: &mut Bench, memory, access, survival| {
        bench.core.share_over_link(CellId(1), 0, memory, access, survival)
    };
    let refused = Err(LinkRefusal::NotSurviving);
    assert_eq!(bench.core.keep_over_link(other, 0, copy), refused, "nothing is shared");
    share(&mut bench, shared, LinkAccess::Read, Survival::Revoked).unwrap();
    assert_eq!(bench.core.keep_over_link(other, 0, copy), refused, "the owner does not permit it");
    bench.core.unshare_over_link(one, 0).unwrap();
    assert_eq!(share(&mut bench, shared, LinkAccess::ReadWrite, Survival::Permitted), refused);
    let long = PhysRange::new(shared.start, MAX_KEPT_BYTES + 4096);
    assert_eq!(share(&mut bench, long, LinkAccess::Read, Survival::Permitted), refused);
    share(&mut bench, shared, LinkAccess::Read, Survival::Permitted).unwrap();
    let lent = page_of(&bench.core, 2, 600);
    for memory in [shared, lent, PhysRange::new(copy.start, 8192), PhysRange::default()] {
        assert_eq!(bench.core.keep_over_link(other, 0, memory), Err(LinkRefusal::BadMemory), "{memory:?}");
    }
    assert_eq!(bench.core.keep_over_link(other, 0, copy), Ok(0));
    assert_eq!(bench.core.keep_over_link(other, 0, copy), Err(LinkRefusal::BadMemory), "it is in use");
    let links = bench.core.hardware().state().links[&other].clone();
    assert!(links.lends(copy), "it is not unplugged");
    bench.core.unshare_over_link(one, 0).unwrap();
    assert!(!links.lends(copy), "what the owner revokes is not kept");
    kept(&mut bench);
    bench.core.close_link(one, 0).unwrap();
    let state = bench.core.hardware().state();
    assert_eq!((state.mapped_by(other), state.copies.len()), (vec![], 0), "the owner runs on");
}

#[test]
fn a_copy_that_a_core_does_not_take_over_or_a_failed_supervisor_did_not_complete_is_lost() {
    let (mut bench, one, other) = linked();
    let (shared, _) = kept(&mut bench);
    bench.core.hardware().state().stuck_core = Some(0);
    bench.core.end(one, Vec::new()).unwrap();
    assert!(bench.core.hardware().state().mapped_by(other).contains(&shared.start), "it is exposed");
    bench.core.release(one).unwrap();
    assert!(bench.core.quarantined_bytes() > 0);

    let (mut bench, one, other) = linked();
    kept(&mut bench);
    [one, other].into_iter().for_each(|id| bench.core.save(id, Vec::new()));
    // The state before the copy is in the page tables.
    bench.core.hardware().state().links[&other].get(0).unwrap().set_state(LinkState::Closed);
    let mut bench = bench.fail(&[1, 2]);
    assert_eq!(bench.core.hardware().state().mapped_by(other), []);
    for id in [one, other] {
        assert_eq!(bench.core.close_link(id, 0), Ok(0));
    }
    bench.check();
}
