//! A supervisor's core on a fake machine, and the memory of its policy.

use isola_abi::id::{CellId, NodeId, PhysAddr, PhysRange};
use isola_abi::integrity::ImageDigest;
use isola_abi::management::{CellSpec, CorePlacement, LendingSpec, NetworkSpec, RestartPolicy, Text};
use isola_abi::network_service::NetworkService;
use isola_abi::size::ByteSize;
use isola_supervisor_core::TrustedCore;
use isola_supervisor_core::hardware::{Pages, SharedPages};
use isola_supervisor_core::image::ImagePlan;
use isola_supervisor_core::inventory::{BlockRequest, CHUNK, Scrub};
use isola_supervisor_core::trusted_core::{BuildRefusal, BuildRequest, CoreChange, Recovery};
use isola_supervisor_fake::image::Builder;
use isola_supervisor_fake::{
    FakeMachine, FakeMemory, FakeShared, MEMORY, MIB, RestartedMachine, every_chunk_has_one_owner,
    every_core_has_one_owner, restart,
};

pub const CORES: u32 = 4;

/// The core, and the policy's own memory.
pub struct Bench {
    pub core: TrustedCore<FakeMachine>,
    pub plan: ImagePlan,
    /// The image; `None` if its memory is withheld after a restart.
    pub image: Option<FakeShared>,
    pub store: Vec<FakeMemory>,
    restarts: u32,
}

impl Bench {
    /// Returns a machine with an image in the store, and no dirty memory.
    pub fn new() -> Self {
        let (machine, inventory) = FakeMachine::new(CORES, 1);
        let mut core = TrustedCore::new(machine, inventory);
        let mut bytes = Builder::default().build();
        let plan = ImagePlan::check(&bytes).unwrap();
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        let mut memory = core.take_store_memory(bytes.len() as u64).unwrap();
        memory.write(0, &bytes);
        let mut bench = Self {
            core,
            plan: plan.sharing(&bytes),
            image: Some(memory.share()),
            store: Vec::new(),
            restarts: 0,
        };
        bench.scrub();
        bench
    }

    pub fn scrub(&mut self) {
        while self.core.scrub(CHUNK, None) == Scrub::Unfinished {}
    }

    pub fn build(&mut self, id: u32, spec: &CellSpec) -> Result<(), BuildRefusal> {
        let Self { core, plan, image, .. } = self;
        let Some(image) = image else { return Err(BuildRefusal::Memory) };
        let memory_bytes = spec.memory.0;
        let request = BuildRequest {
            id: CellId(id),
            spec,
            plan,
            memory_bytes,
            memory_max_bytes: memory_bytes,
            waiting: &[],
        };
        core.build(&request, |_, _| image.clone())
    }

    /// Builds and starts a cell.
    pub fn run(&mut self, id: u32, cores: u32) -> CellId {
        self.build(id, &spec(cores, 4)).unwrap();
        self.core.start(CellId(id), Vec::new()).unwrap();
        self.settle(CellId(id));
        CellId(id)
    }

    /// Acts on the acknowledgements of a cell's cores. Returns the changes.
    pub fn settle(&mut self, id: CellId) -> Vec<CoreChange> {
        std::iter::from_fn(|| self.core.next_core_event(id)).map(|event| event.change).collect()
    }

    /// Makes the supervisor fail. The next one adopts the cells in order under these ids, and dismantles those that it
    /// cannot adopt. If `ends` is set, it ends the first adopted cell at once.
    pub fn fail(self, ids: &[u32]) -> Self {
        self.fail_and(ids, false)
    }

    pub fn fail_and(mut self, ids: &[u32], ends: bool) -> Self {
        self.store.clear();
        self.restarts += 1;
        let (machine, ranges) = (self.core.into_hardware(), self.image.iter().map(SharedPages::range));
        let ranges: Vec<PhysRange> = ranges.collect();
        let numbers = (CORES, self.restarts);
        let RestartedMachine { inventory, recovered, shared } =
            restart(&machine, self.image.into_iter().collect(), &ranges, numbers, |_| {});
        let (mut core, Recovery { cells, .. }) = TrustedCore::recover(machine, inventory, recovered);
        for (cell, id) in cells.into_iter().zip(ids.iter().cycle()) {
            if let Err(cell) = core.adopt(cell, CellId(*id)) {
                core.give_up(cell);
            } else if ends {
                let _ = core.end(CellId(ids[0]), vec![3]);
                let _ = core.release(CellId(ids[0]));
            }
        }
        Self { core, image: shared.into_iter().next(), ..self }
    }

    pub fn check(&self) {
        let mut images: Vec<PhysRange> =
            self.store.iter().map(isola_supervisor_core::inventory::Chunk::range).collect();
        images.extend(self.image.iter().map(SharedPages::range));
        every_chunk_has_one_owner(&self.core, &images, &images, self.core.quarantined_bytes());
        every_core_has_one_owner(&self.core);
    }
}

pub fn spec(cores: u32, mib: u64) -> CellSpec {
    CellSpec {
        name: "cell".into(),
        image_name: "image".into(),
        image: ImageDigest([0; 32]),
        requirement: Box::default(),
        cores,
        placement: CorePlacement::default(),
        memory: ByteSize(mib * MIB),
        memory_max: None,
        arguments: Vec::new(),
        network: NetworkSpec::None,
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

pub const NOW: (u64, u64) = (0, 1_000_000);

pub fn block(mib: u64) -> BlockRequest {
    BlockRequest { least_bytes: mib * MIB, largest_bytes: mib * MIB, node: NodeId(0) }
}

/// Returns a page of a cell's memory, counted from its start, or a page that it may not have.
pub fn page_of(core: &TrustedCore<FakeMachine>, id: u32, page: u64) -> PhysRange {
    let ranges = core.hardware().state().ranges_of(CellId(id));
    let start = ranges.first().map_or(MEMORY.start.0, |range| range.start.0);
    PhysRange::new(PhysAddr(start + page * 4096), 4096)
}
