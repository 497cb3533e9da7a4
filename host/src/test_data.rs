//! Data for tests.

use crate::machine::options::{MachineModel, MachineOptions, Topology, Uplink};
use isola_abi::id::CellId;
use isola_abi::integrity::ImageDigest;
use isola_abi::management::{
    CellInfo, CellSpec, CellState, CorePlacement, Durations, MemoryUsage, NetworkSpec, NetworkUsage,
    RestartPolicy, Restarts,
};
use isola_abi::network_service::NetworkService;
use isola_abi::report::CellPhase;
use isola_abi::size::ByteSize;

/// A cell that was created and never started.
pub(crate) fn cell(name: &str) -> CellInfo {
    CellInfo {
        id: CellId(1),
        spec: CellSpec {
            name: name.into(),
            image_name: "kv".into(),
            image: ImageDigest([0x0a; 32]),
            requirement: Box::default(),
            cores: 1,
            placement: CorePlacement::default(),
            memory: ByteSize(64 << 20),
            memory_max: None,
            arguments: vec![],
            network: NetworkSpec::None,
            restart: RestartPolicy::No,
            watchdog_ms: 0,
            lending: Default::default(),
            text: Default::default(),
            grid: Default::default(),
            volumes: Vec::new(),
            accept: Vec::new(),
            loop_with: Vec::new(),
            served_volumes: Vec::new(),
            network_service: NetworkService::None,
        },
        state: CellState::Created,
        phase: CellPhase::Silent,
        exit_code: None,
        cores: vec![],
        memory_given: ByteSize(64 << 20),
        memory: ByteSize(64 << 20),
        image: ByteSize(1 << 20),
        text: ByteSize(3 << 20),
        memory_usage: MemoryUsage::default(),
        device: None,
        address: None,
        network: NetworkUsage::default(),
        service: Default::default(),
        activities: Default::default(),
        loans: vec![],
        memory_loans: vec![],
        memory_lent: ByteSize(0),
        crash: None,
        restarts: Restarts::default(),
        created_unix_ns: 0,
        started_unix_ns: None,
        durations: Durations::default(),
    }
}

/// The options of a machine with four cores and the default network.
pub(crate) fn machine_options() -> MachineOptions {
    MachineOptions {
        cores: 4,
        topology: Topology::default(),
        memory: ByteSize(1 << 30),
        nics: 8,
        disks: 4,
        model: MachineModel::Q35,
        cpu: "max".into(),
        uplink: Uplink::User,
    }
}
