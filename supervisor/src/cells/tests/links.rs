//! Requests about links: names, and the acceptance of the peer's specification.

use super::*;
use alloc::string::String;
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::links::{LinkDemand, LinkRefusal, LinkState, MAX_LINKS, service_name};

/// Makes a cell send a request, and the supervisor handle it. Returns the answer.
fn asks(cells: &mut Cells<FakeMachine>, name: &str, demand: &LinkDemand) -> Result<usize, LinkRefusal> {
    let id = cells.find(name).unwrap();
    let number = cells.fake().reports[&id].link_request.put(demand);
    cells.on_notification();
    cells.fake().links[&id].answer(number).expect("the supervisor answers at once")
}

/// Returns a page of a cell's memory.
fn page(cells: &mut Cells<FakeMachine>, name: &str) -> PhysRange {
    let id = cells.find(name).unwrap();
    let first = cells.fake().ranges_of(id)[0];
    PhysRange::new(PhysAddr(first.start.0 + MIB), 4096)
}

fn open(cells: &mut Cells<FakeMachine>, name: &str, target: &str) -> Result<usize, LinkRefusal> {
    let memory = page(cells, name);
    let service = service_name("echo").unwrap();
    asks(cells, name, &LinkDemand::Open { target: target.into(), service, memory })
}

fn accepting(name: &str, accept: &[&str]) -> CellSpec {
    CellSpec {
        accept: accept.iter().map(|name| String::from(*name)).collect(),
        network: NetworkSpec::None,
        ..spec(name)
    }
}

#[test]
fn a_link_needs_a_running_peer_that_accepts_the_cell() {
    let mut cells = machine(4);
    run(&mut cells, accepting("kv", &["web", "other"]));
    run(&mut cells, accepting("all", &["*"]));
    run(&mut cells, accepting("web", &[]));
    run(&mut cells, accepting("stranger", &[]));
    assert_eq!(open(&mut cells, "stranger", "kv"), Err(LinkRefusal::NotAccepted));
    assert_eq!(open(&mut cells, "kv", "web"), Err(LinkRefusal::NotAccepted), "acceptance has a direction");
    assert_eq!(open(&mut cells, "web", "absent"), Err(LinkRefusal::NoSuchCell));
    assert_eq!(open(&mut cells, "web", "web"), Err(LinkRefusal::NotAccepted));
    assert_eq!(open(&mut cells, "all", "all"), Err(LinkRefusal::NoSuchCell), "a cell has no link to itself");
    assert_eq!(open(&mut cells, "web", "kv"), Ok(0));
    assert_eq!(open(&mut cells, "stranger", "all"), Ok(0));
    let memory = page(&mut cells, "kv");
    assert_eq!(asks(&mut cells, "kv", &LinkDemand::Accept { slot: 0, memory }), Ok(0));
    cells.stop("kv", 0).unwrap();
    let web = cells.find("web").unwrap();
    assert_eq!(cells.fake().links[&web].get(0).unwrap().state(), LinkState::Closed);
    assert_eq!(open(&mut cells, "web", "kv"), Err(LinkRefusal::NoSuchCell), "it has ended");
    assert_eq!(asks(&mut cells, "web", &LinkDemand::Close { slot: 0 }), Ok(0));
}

#[test]
fn wrong_requests_are_answered_and_change_nothing() {
    let mut cells = machine(4);
    run(&mut cells, accepting("kv", &["*"]));
    run(&mut cells, accepting("web", &[]));
    let memory = page(&mut cells, "kv");
    for slot in [0, MAX_LINKS - 1, MAX_LINKS, u32::MAX as usize] {
        for demand in [
            LinkDemand::Accept { slot, memory },
            LinkDemand::Share {
                slot,
                memory,
                access: isola_abi::links::LinkAccess::Read,
                survival: isola_abi::links::Survival::Permitted,
            },
            LinkDemand::Keep { slot, memory },
            LinkDemand::Unshare { slot },
            LinkDemand::Close { slot },
        ] {
            assert_eq!(asks(&mut cells, "kv", &demand), Err(LinkRefusal::WrongState), "{demand:?}");
        }
    }
    let foreign = page(&mut cells, "kv");
    let service = service_name("x").unwrap();
    let demand = LinkDemand::Open { target: "kv".into(), service, memory: foreign };
    assert_eq!(asks(&mut cells, "web", &demand), Err(LinkRefusal::BadMemory));
    assert_eq!(open(&mut cells, "web", "kv"), Ok(0));
    let wrong = LinkDemand::Accept { slot: 0, memory: page(&mut cells, "web") };
    assert_eq!(asks(&mut cells, "kv", &wrong), Err(LinkRefusal::BadMemory), "it is the peer's");
    assert_eq!(asks(&mut cells, "kv", &LinkDemand::Accept { slot: 0, memory }), Ok(0));
}

#[test]
fn a_request_that_a_supervisor_left_is_answered_by_the_next() {
    let mut cells = machine(4);
    run(&mut cells, accepting("kv", &["*"]));
    run(&mut cells, accepting("web", &[]));
    cells.on_notification();
    let (memory, id) = (page(&mut cells, "web"), cells.find("web").unwrap());
    let service = service_name("echo").unwrap();
    let report = cells.fake().reports[&id].clone();
    let number = report.link_request.put(&LinkDemand::Open { target: "kv".into(), service, memory });
    let mut cells = crate::fake::go_wrong(cells, 4, 1, |_| {});
    assert_eq!(cells.fake().links[&id].answer(number), Some(Ok(0)));
}

fn looping(name: &str, with: &[&str]) -> CellSpec {
    CellSpec { loop_with: with.iter().map(|name| String::from(*name)).collect(), ..spec(name) }
}

/// Returns the hardware address of a cell that may have neighbours.
fn own_mac(cells: &mut Cells<FakeMachine>, name: &str) -> Option<[u8; 6]> {
    let id = cells.find(name).unwrap();
    cells.fake().links[&id].own_mac()
}

fn open_neighbour(
    cells: &mut Cells<FakeMachine>,
    name: &str,
    mac: Option<[u8; 6]>,
) -> Result<usize, LinkRefusal> {
    let memory = page(cells, name);
    asks(cells, name, &LinkDemand::OpenNeighbour { mac: mac.unwrap_or_default(), memory })
}

#[test]
fn neighbours_need_the_agreement_of_both_and_learn_each_others_hardware_address() {
    let mut cells = machine(4);
    run(&mut cells, looping("kv", &["web"]));
    run(&mut cells, looping("web", &["*"]));
    run(&mut cells, accepting("alone", &["*"]));
    let [kv, web] = ["kv", "web"].map(|name| own_mac(&mut cells, name));
    assert!(kv.is_some() && web.is_some() && kv != web);
    assert_eq!(own_mac(&mut cells, "alone"), None, "off by default");
    assert_eq!(open_neighbour(&mut cells, "web", Some([2, 9, 9, 9, 9, 9])), Err(LinkRefusal::NoSuchCell));
    assert_eq!(open_neighbour(&mut cells, "web", web), Err(LinkRefusal::NoSuchCell), "itself");
    assert_eq!(open_neighbour(&mut cells, "alone", kv), Err(LinkRefusal::NotAccepted));
    assert_eq!(open_neighbour(&mut cells, "web", kv), Ok(0));
    assert_eq!(open_neighbour(&mut cells, "web", kv), Err(LinkRefusal::WrongState), "one link a pair");
    assert_eq!(open_neighbour(&mut cells, "kv", web), Err(LinkRefusal::WrongState));
    let [kv_id, web_id] = ["kv", "web"].map(|name| cells.find(name).unwrap());
    let peer = |cells: &mut Cells<FakeMachine>, id| cells.fake().links[&id].get(0).unwrap().peer_mac();
    assert_eq!((peer(&mut cells, web_id), peer(&mut cells, kv_id)), (kv, web));
    let memory = page(&mut cells, "kv");
    assert_eq!(asks(&mut cells, "kv", &LinkDemand::Accept { slot: 0, memory }), Ok(0));
    // The end of one, and its next life.
    let before = cells.fake().links[&web_id].neighbour_changes();
    cells.stop("kv", 0).unwrap();
    assert_eq!(cells.fake().links[&web_id].get(0).unwrap().state(), LinkState::Closed);
    assert_eq!(cells.fake().links[&web_id].neighbour_changes(), before.wrapping_add(1));
    assert_eq!(open_neighbour(&mut cells, "web", kv), Err(LinkRefusal::NoSuchCell));
    run(&mut cells, looping("stranger", &["kv"]));
    assert_eq!(cells.fake().links[&web_id].neighbour_changes(), before.wrapping_add(2));
    let stranger = own_mac(&mut cells, "stranger");
    assert_eq!(open_neighbour(&mut cells, "web", stranger), Err(LinkRefusal::NotAccepted), "one side only");
}

#[test]
fn a_service_name_does_not_make_a_cell_a_neighbour() {
    let mut cells = machine(4);
    run(&mut cells, CellSpec { accept: alloc::vec!["*".into()], ..looping("kv", &[]) });
    run(&mut cells, looping("web", &["*"]));
    let memory = page(&mut cells, "web");
    let service = isola_abi::links::NEIGHBOUR_SERVICE;
    let demand = LinkDemand::Open { target: "kv".into(), service, memory };
    assert_eq!(asks(&mut cells, "web", &demand), Err(LinkRefusal::Malformed));
    assert_eq!(open(&mut cells, "web", "kv"), Ok(0));
    let kv = cells.find("kv").unwrap();
    assert_eq!(cells.fake().links[&kv].get(0).unwrap().peer_mac(), None);
}
