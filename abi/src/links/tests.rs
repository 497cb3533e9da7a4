use super::*;
use crate::id::{ApicId, CellId};

fn range(page: u64, pages: u64) -> PhysRange {
    PhysRange::new(PhysAddr(page * PAGE_SIZE), pages * PAGE_SIZE)
}

#[test]
fn answers_belong_to_their_request() {
    let table = LinkTable::<[Link; LEAST_LINKS]>::default();
    let table: &LinkTable = &table;
    table.set_answer(7, Ok(62));
    assert_eq!((table.answer(7), table.answer(6)), (Some(Ok(62)), None));
    for number in 1..=9 {
        let refusal = LinkRefusal::from_u32(number);
        assert_eq!(refusal as u32, number);
        table.set_answer(8, Err(refusal));
        assert_eq!(table.answer(8), Some(Err(refusal)));
    }
}

#[test]
fn the_number_of_slots_follows_from_memory() {
    const MIB: u64 = 1 << 20;
    for (memory, slots) in [(0, 31), (2, 31), (7, 31), (8, 63), (28, 223), (64, 511), (1 << 20, 511)] {
        assert_eq!(link_slots(memory * MIB), slots, "{memory} MiB");
        assert_eq!(table_bytes(slots), (slots as u64 + 1) / 32 * PAGE_SIZE);
        assert!(table_bytes(slots) <= PAGE_SIZE.max(memory * MIB / 1024));
    }
    for (slots, to_peer) in [(31, 8), (63, 8), (95, 11), (511, 63)] {
        assert_eq!(links_to_peer(slots), to_peer);
    }
    let table = LinkTable::<[Link; 63]>::default();
    let table: &LinkTable = &table;
    assert_eq!((table.iter().count(), table.get(63).is_none()), (63, true));
}

#[test]
fn a_table_names_hardware_addresses_and_counts_neighbours() {
    let table = LinkTable::<[Link; 63]>::default();
    let table: &LinkTable = &table;
    assert_eq!((table.own_mac(), table.neighbour_changes()), (None, 0));
    for mac in [[0; 6], [0xff; 6], [2, 1, 0, 0xa, 0xb, 0xc]] {
        table.set_own_mac(Some(mac));
        assert_eq!(table.own_mac(), Some(mac));
    }
    table.note_neighbour_change();
    assert_eq!(table.neighbour_changes(), 1);
    let link = table.get(1).unwrap();
    link.set_peer_mac(Some([1; 6]));
    link.begin((CellId(1), 0), ApicId(0), 0, &NEIGHBOUR_SERVICE);
    assert_eq!(link.peer_mac(), None, "the address of an earlier link");
}

#[test]
fn service_names_are_bounded() {
    assert!(service_name(&"s".repeat(MAX_SERVICE_LEN)).is_some());
    assert_eq!(service_name(&"s".repeat(MAX_SERVICE_LEN + 1)), None);
    assert_eq!(service_name("a\0b"), None);
}

#[test]
fn a_table_knows_its_lent_memory_and_the_room_of_its_area() {
    let table = LinkTable::<[Link; LEAST_LINKS]>::default();
    let table: &LinkTable = &table;
    let link = table.get(5).unwrap();
    link.begin((CellId(9), 3), ApicId(2), 4, &service_name("disk").unwrap());
    link.set_lent(LinkPart::Shared, range(8, 2));
    link.set_window(LinkPart::Ring, Some(LinkWindow { page: 1, pages: 4, access: LinkAccess::Read }));
    assert!(!table.lends(range(8, 2)), "a free slot lends nothing");
    assert_eq!(table.find_room(3, 100), Some(1));
    link.set_state(LinkState::Open);
    assert!(table.lends(range(9, 5)) && !table.lends(range(10, 1)) && !table.lends(range(0, 8)));
    link.set_kept(range(20, 1));
    assert!(table.lends(range(20, 2)), "memory for a copy is in use");
    link.set_window(LinkPart::Shared, Some(LinkWindow { page: 5, pages: 1, access: LinkAccess::Read }));
    link.set_survival(Survival::Permitted);
    assert_eq!(link.survival(), Survival::Revoked, "nothing is shared");
    link.set_shared(true);
    assert_eq!(
        (link.survival(), link.window(LinkPart::Shared).unwrap().access),
        (Survival::Permitted, LinkAccess::Read)
    );
    link.set_survival(Survival::Revoked);
    assert_eq!(link.survival(), Survival::Revoked);
    link.set_window(LinkPart::Shared, None);
    assert_eq!((link.peer(), link.peer_apic(), link.request()), ((CellId(9), 3), ApicId(2), 4));
    let other = table.get(0).unwrap();
    other.set_state(LinkState::Closed);
    other
        .set_window(LinkPart::Shared, Some(LinkWindow { page: 8, pages: 90, access: LinkAccess::ReadWrite }));
    assert_eq!(table.find_room(3, 100), Some(5));
    assert_eq!(table.find_room(4, 102), Some(98));
    assert_eq!(table.find_room(4, 101), None);
}
