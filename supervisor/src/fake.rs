//! Cells on the fake machine.

use crate::cells::{Boot, Cells, Checkpoint, SupervisorState};
use alloc::vec::Vec;
use core::cell::RefMut;
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::integrity::ImageDigest;
use isola_abi::management::{CellSpec, CorePlacement, LendingSpec, NetworkSpec, RestartPolicy, Text};
use isola_abi::network_service::NetworkService;
use isola_abi::size::ByteSize;
use isola_supervisor_core::hardware::SharedPages;
use isola_supervisor_fake::image::Builder;
pub(crate) use isola_supervisor_fake::report::{crashes, obeys, says, signs};
pub(crate) use isola_supervisor_fake::{Action, FakeMachine, MIB};
use isola_supervisor_fake::{FakeState, RestartedMachine, restart};
use sha2::{Digest, Sha256};

impl Cells<FakeMachine> {
    /// Returns the state of the machine.
    pub(crate) fn fake(&mut self) -> RefMut<'_, FakeState> {
        self.core().hardware().state()
    }

    /// Lets time pass.
    pub(crate) fn pass_ns(&mut self, ns: u64) {
        let fake = self.fake();
        fake.now.set(fake.now.get() + ns);
    }
}

/// Returns a machine with `cores` cores besides the supervisor's, 64 MiB of dirty memory, two network devices and
/// two block devices.
pub(crate) fn machine(cores: u32) -> Cells<FakeMachine> {
    machine_of_nodes(cores, 1)
}

/// Returns such a machine, with cores and memory divided among `nodes` nodes.
pub(crate) fn machine_of_nodes(cores: u32, nodes: u32) -> Cells<FakeMachine> {
    let (machine, inventory) = FakeMachine::new(cores, nodes);
    Cells::new(machine, inventory, boot(0))
}

/// Returns a machine with `cores` cores besides the supervisor's and `mib` MiB of memory.
pub(crate) fn machine_of_memory(cores: u32, mib: u64) -> Cells<FakeMachine> {
    let all = PhysRange::new(PhysAddr(16 * MIB), mib * MIB);
    let (machine, inventory) = FakeMachine::with_memory(cores, 1, all);
    Cells::new(machine, inventory, boot(0))
}

fn boot(restarts: u32) -> Boot {
    Boot { unix_ns: 1_000_000, ready_ns: 500, tsc_hz: 1_000_000_000, memory_supervisor: 16 * MIB, restarts }
}

/// Makes the supervisor of a machine with `cores` cores besides its own fail, and starts the next one. `twist` may
/// change the saved states meanwhile.
pub(crate) fn go_wrong(
    cells: Cells<FakeMachine>,
    cores: u32,
    number: u32,
    twist: impl Fn(&mut Vec<u8>),
) -> Cells<FakeMachine> {
    let (machine, store) = cells.into_parts();
    let checkpoint = Checkpoint::decode(&machine.state().checkpoint);
    let named: Vec<PhysRange> = checkpoint.images.iter().map(|image| image.memory).collect();
    let restarted = restart(&machine, store, &named, (cores, number), twist);
    let RestartedMachine { inventory, recovered, shared } = restarted;
    let image_in = |range| checkpoint.images.iter().find(|image| image.memory == range).copied();
    let (images, texts): (Vec<_>, Vec<_>) =
        shared.into_iter().partition(|memory| image_in(memory.range()).is_some());
    let images = images.into_iter().filter_map(|memory| Some((image_in(memory.range())?, memory))).collect();
    let journal = machine.state().journal.clone();
    let state = SupervisorState { checkpoint: checkpoint.clone(), journal, images, texts };
    Cells::recover(machine, inventory, boot(number), recovered, state)
}

/// Checks that every chunk has exactly one owner, and the reported memory out of use.
pub(crate) fn every_chunk_has_one_owner(cells: &Cells<FakeMachine>) {
    let (core, store) = cells.owners();
    let records = store.records().into_iter().zip(store.list());
    let used = records.filter(|(_, info)| info.cells > 0).map(|(record, _)| record.memory);
    let used: Vec<PhysRange> = used.collect();
    let reported_bytes = cells.machine().memory_quarantined.0;
    isola_supervisor_fake::every_chunk_has_one_owner(core, &store.ranges(), &used, reported_bytes);
    isola_supervisor_fake::every_core_has_one_owner(core);
}

/// Returns a valid image.
pub(crate) fn image() -> Vec<u8> {
    Builder::default().build()
}

/// Returns an image's digest.
pub(crate) fn digest(image: &[u8]) -> ImageDigest {
    ImageDigest(Sha256::digest(image).into())
}

/// Returns the specification of a cell with one core, 4 MiB and a network device.
pub(crate) fn spec(name: &str) -> CellSpec {
    CellSpec {
        name: name.into(),
        image_name: "image".into(),
        image: digest(&image()),
        requirement: alloc::boxed::Box::default(),
        cores: 1,
        placement: CorePlacement::default(),
        memory: ByteSize(4 * MIB),
        memory_max: None,
        arguments: Vec::new(),
        network: NetworkSpec::Dhcp,
        restart: RestartPolicy::No,
        watchdog_ms: 0,
        lending: LendingSpec::default(),
        text: Text::Shared,
        grid: isola_abi::grid::GridSetup::default(),
        volumes: Vec::new(),
        accept: Vec::new(),
        loop_with: Vec::new(),
        served_volumes: Vec::new(),
        network_service: NetworkService::None,
    }
}
