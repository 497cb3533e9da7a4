//! Placement of cells on cores, on machines with hardware threads and NUMA nodes.

use isola_abi::id::{CoreId, NodeId};
use isola_abi::management::{
    CellSpec, CorePlacement, ManagementError, PlacementPolicy, RequestBody, TakenCore, TakenCoreOwner,
};
use isola_tests::management::spec;
use isola_tests::qemu::MachineType;
use isola_tests::supervised::{MachineSetup, SupervisedMachine, probe};

/// Creates a cell, and returns the ids of its cores.
fn create(machine: &mut SupervisedMachine, name: &str, cores: u32, placement: CorePlacement) -> Vec<u32> {
    let spec = CellSpec { placement, ..spec(name, cores, 4, &["serve"]) };
    let cell = machine.client.create(probe(), spec);
    cell.cores.iter().map(|core| core.id.0).collect()
}

fn placed(policy: PlacementPolicy) -> CorePlacement {
    CorePlacement { policy, ..CorePlacement::default() }
}

#[test]
fn placement_selects_cores_by_policy_id_and_node() {
    let setup = MachineSetup { cores: 8, threads: 2, nodes: 2, ..MachineSetup::default() };
    let mut machine = SupervisedMachine::boot(setup);
    let sites: Vec<(u32, u32)> =
        machine.client.machine().cores.iter().map(|core| (core.node.0, core.site.physical.0)).collect();
    assert_eq!(sites, [(0, 0), (0, 0), (0, 1), (0, 1), (1, 2), (1, 2), (1, 3), (1, 3)]);
    let before = machine.resources();
    assert_eq!(create(&mut machine, "spread", 3, placed(PlacementPolicy::Spread)), [2, 4, 6]);
    let named = CorePlacement { ids: vec![CoreId(1), CoreId(4)], ..CorePlacement::default() };
    machine.client.upload(probe());
    let refused = machine
        .client
        .ask(RequestBody::Create(CellSpec { placement: named, ..spec("named", 2, 4, &["serve"]) }.into()));
    let taken = vec![TakenCore { id: CoreId(4), by: TakenCoreOwner::Cell("spread".into()) }];
    assert_eq!(refused, Err(ManagementError::CoresTaken { wanted: 2, taken }));
    machine.client.destroy("spread");
    assert_eq!(create(&mut machine, "whole", 2, placed(PlacementPolicy::Siblings)), [2, 3]);
    let on_second = CorePlacement { node: Some(NodeId(1)), ..CorePlacement::default() };
    assert_eq!(create(&mut machine, "second", 3, on_second), [4, 5, 6]);
    for name in ["whole", "second"] {
        machine.client.start(name);
        machine.client.stop(name, 0);
        machine.client.destroy(name);
    }
    assert_eq!(machine.resources(), before);
}

#[test]
fn an_image_has_one_copy_on_each_node_of_its_cells() {
    const CHUNK: u64 = 2 << 20;
    let setup = MachineSetup { cores: 4, nodes: 2, memory_mib: 256, ..MachineSetup::default() };
    let mut machine = SupervisedMachine::boot(setup);
    let before = machine.resources();
    let images = |machine: &mut SupervisedMachine| machine.client.machine().memory_images.0 / CHUNK;
    for (name, node, copies) in [("a", 0, 1), ("b", 1, 2), ("c", 1, 2)] {
        let placement = CorePlacement { node: Some(NodeId(node)), ..CorePlacement::default() };
        create(&mut machine, name, 1, placement);
        machine.client.start(name);
        assert_eq!(images(&mut machine), copies, "{name}");
    }
    for (name, copies) in [("b", 2), ("c", 1), ("a", 1)] {
        let stopped = machine.client.stop(name, 60_000);
        assert_eq!((stopped.exit_code, images(&mut machine)), (Some(0), copies), "{name}");
        machine.client.destroy(name);
    }
    assert_eq!(machine.resources(), before);
}

#[test]
fn placement_works_without_topology_information() {
    for (kind, cpu) in [(MachineType::Microvm, "qemu64"), (MachineType::Q35, "max,-x2apic")] {
        let mut machine = SupervisedMachine::boot(MachineSetup {
            kind,
            cores: 4,
            threads: 2,
            cpu,
            ..MachineSetup::default()
        });
        let cores = machine.client.machine().cores;
        assert!(cores.iter().all(|core| core.node == NodeId(0)), "{cores:?}");
        assert_eq!(create(&mut machine, "all", 3, CorePlacement::default()).len(), 3);
    }
}
