//! A chaos test: random faults of cells and supervisor, and random resizes of cores and memory, beside a service under
//! constant load. In all combinations, the service gives no wrong or late answer, its 99th percentile stays near that at
//! rest, and no segment of it is lost (retransmissions would hide that).
//!
//! A model of cells and supervisor restarts predicts the state after each step: the owners of cores, memory and
//! devices, the ends of cells, and that no id is assigned twice. For a race the model accepts each possible outcome and
//! no other.

mod model;

use isola_abi::descriptor::NetworkAddress;
use isola_abi::management::{
    CellInfo, CellSpec, CellState, Change, Fault, ManagementError, Mode, NetworkSpec, RequestBody,
    ResponseBody,
};
use isola_abi::size::ByteSize;
use isola_tests::kv::Connection;
use isola_tests::loss::{LossMeter, Losses};
use isola_tests::management::{Answer, spec};
use isola_tests::namespace::{self, PREFIX_LEN, SHARED};
use isola_tests::steady::{Latencies, SteadyLoad};
use isola_tests::supervised::{MachineSetup, SupervisedMachine, image, probe};
use model::{ExpectedCell, Model};
use std::collections::VecDeque;
use std::env::var;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The duration in seconds; [`SECONDS_VARIABLE`] overrides it.
const SECONDS: u64 = 12;
const SECONDS_VARIABLE: &str = "ISOLA_CHAOS_SECONDS";

/// The environment variable with the seed of all random choices. Without it the seed is random and printed.
const SEED_VARIABLE: &str = "ISOLA_SEED";

/// The supervisor stops for good at the next fault after five restarts in a minute. The test injects at most this many
/// faults in a somewhat longer period.
const FAULTS: usize = 5;
const FAULTS_PERIOD: Duration = Duration::from_secs(70);

/// The shortest time between a restart of the supervisor and the next fault.
const LIFE: Duration = Duration::from_secs(2);

/// The service, and the most cores that it gets.
const SERVICE: &str = "cache";
const MOST_CORES: u32 = 3;

/// Its port, and the number of its clients.
const PORT: u16 = 11211;
const CLIENTS: u32 = 4;

/// The names of the other cells.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Faults of the image `cell-probe`.
const FAULT_ARGUMENTS: [&str; 5] = ["panic", "null", "descriptor", "no-instruction", "overflow"];

/// The longest time for a core to leave its cell. A busy host may not schedule it sooner.
const LIMIT_MS: u32 = 60_000;

/// The time for which the service is measured without faults and resizes.
const AT_REST: Duration = Duration::from_secs(2);

struct Chaos {
    machine: SupervisedMachine,
    model: Model,
    random: fastrand::Rng,
    /// The times of the last injected faults.
    faults: VecDeque<Instant>,
}

fn resize_cores(count: u32) -> RequestBody {
    let (name, change, cores) = (SERVICE.to_owned(), Change::To(count), Vec::new());
    RequestBody::ResizeCores { name, change, cores, limit_ms: LIMIT_MS, mode: Mode::Apply }
}

/// Returns the expected state of a cell that was just created.
fn created(info: &CellInfo) -> ExpectedCell {
    ExpectedCell {
        id: info.id,
        state: CellState::Created,
        exit_code: None,
        cores: info.spec.cores,
        memory: info.memory.0,
        has_device: info.spec.network != NetworkSpec::None,
    }
}

impl Chaos {
    /// Boots a machine with the service in a cell.
    fn begin(seed: u64) -> Self {
        let setup = MachineSetup {
            cores: 6,
            memory_mib: 256,
            network_devices: 3,
            command_line: "isola.test-faults=1",
            tap: Some(SHARED),
            ..MachineSetup::default()
        };
        let mut machine = SupervisedMachine::boot(setup);
        let model = Model::new(machine.resources());
        let mut chaos =
            Self { machine, model, random: fastrand::Rng::with_seed(seed), faults: VecDeque::new() };
        let address = NetworkAddress { ip: SHARED.cell(), prefix_len: PREFIX_LEN, gateway: None };
        let service = CellSpec { network: NetworkSpec::Static(address), ..spec(SERVICE, 1, 48, &[]) };
        let info = chaos.machine.client.create(&image("kv"), service);
        chaos.model.create(SERVICE, created(&info));
        chaos.start(SERVICE);
        chaos.machine.client.wait_for(SERVICE, |info| info.address.is_some());
        chaos
    }

    fn start(&mut self, name: &str) {
        self.machine.client.start(name);
        self.expect(name, CellState::Running, None);
    }

    fn expect(&mut self, name: &str, state: CellState, exit_code: Option<i32>) {
        let cell = self.model.cells.get_mut(name).expect("the model has the cell");
        (cell.state, cell.exit_code) = (state, exit_code);
    }

    /// Returns a random cell that satisfies a predicate, but not the service.
    fn any(&mut self, is_so: impl Fn(&ExpectedCell) -> bool) -> Option<String> {
        let fitting = self.model.cells.iter().filter(|(name, cell)| name.as_str() != SERVICE && is_so(cell));
        let names: Vec<String> = fitting.map(|(name, _)| name.clone()).collect();
        self.random.choice(names)
    }

    fn step(&mut self) {
        match self.random.u32(..100) {
            0..25 => self.create(),
            25..33 => self.recreate_any(),
            33..45 => self.start_any(),
            45..60 => self.end_any(),
            60..70 => self.destroy_any(),
            70..82 => self.move_cores(),
            82..90 => self.move_memory(),
            _ => self.inject_fault(),
        }
    }

    fn create(&mut self) {
        let unused = NAMES.into_iter().filter(|name| !self.model.cells.contains_key(*name));
        let Some(name) = self.random.choice(unused.collect::<Vec<_>>()) else { return };
        let (cores, mib) = (self.random.u32(1..=3), 2 * self.random.u64(2..=6));
        let what = if self.random.u32(..3) > 0 {
            "serve"
        } else {
            FAULT_ARGUMENTS[self.random.usize(..FAULT_ARGUMENTS.len())]
        };
        let network = if self.random.bool() { NetworkSpec::Dhcp } else { NetworkSpec::None };
        let client = &mut self.machine.client;
        client.upload(probe());
        let answer =
            client.ask(RequestBody::Create(CellSpec { network, ..spec(name, cores, mib, &[what]) }.into()));
        if let Some(cell) = self.given(&answer, cores, network != NetworkSpec::None) {
            self.model.create(name, cell);
        }
    }

    /// Creates an ended cell again, from its stored image.
    fn recreate_any(&mut self) {
        let Some(name) = self.any(|cell| cell.state.has_ended()) else { return };
        let ExpectedCell { cores, has_device, .. } = self.model.cells[&name];
        let answer = self.machine.client.ask(RequestBody::Recreate { name: name.clone() });
        if let Some(cell) = self.given(&answer, cores, has_device) {
            self.model.recreate(&name, cell);
        }
    }

    /// Returns the expected state of a created cell. A rejected request returns `None`, if the model confirms the
    /// reason.
    fn given(&self, answer: &Answer, cores: u32, has_device: bool) -> Option<ExpectedCell> {
        match answer {
            Ok(ResponseBody::Cell(info)) => return Some(created(info)),
            Err(ManagementError::CoresExhausted { .. }) => assert!(self.model.free_cores() < cores),
            Err(ManagementError::DevicesExhausted) => assert!(has_device && self.model.free_devices() == 0),
            other => panic!("{cores} cores: {other:?}"),
        }
        None
    }

    fn start_any(&mut self) {
        let Some(name) = self.any(|cell| cell.state == CellState::Created) else { return };
        self.start(&name);
        self.see_crash(&name);
    }

    /// Waits for the crash of a cell whose argument is a fault.
    fn see_crash(&mut self, name: &str) {
        if self.goes_wrong(name) {
            let info = self.machine.client.wait_for_end(name);
            assert!(info.crash.is_some(), "{info:?}");
            self.expect(name, CellState::Crashed, None);
        }
    }

    fn goes_wrong(&mut self, name: &str) -> bool {
        self.machine.client.inspect(name).spec.arguments[0] != "serve"
    }

    fn end_any(&mut self) {
        let Some(name) = self.any(|cell| cell.state == CellState::Running) else { return };
        let (timeout_ms, state, code) = match self.random.bool() {
            true => (LIMIT_MS, CellState::Exited, Some(0)),
            false => (0, CellState::Killed, None),
        };
        assert_eq!(self.machine.client.stop(&name, timeout_ms).state, state);
        self.expect(&name, state, code);
    }

    fn destroy_any(&mut self) {
        let Some(name) = self.any(|cell| cell.state != CellState::Running) else { return };
        self.machine.client.destroy(&name);
        self.model.cells.remove(&name);
    }

    fn move_cores(&mut self) {
        let had = self.model.cells[SERVICE].cores;
        let count = self.random.u32(1..=MOST_CORES);
        match self.machine.client.ask(resize_cores(count)) {
            Ok(ResponseBody::CoresResized(resized)) => {
                assert_eq!((resized.before, resized.after), (had, count))
            }
            Err(ManagementError::CoresExhausted { .. }) => {
                return assert!(count - had > self.model.free_cores());
            }
            other => panic!("{other:?}"),
        }
        self.note_service();
        assert_eq!(self.model.cells[SERVICE].cores, count);
    }

    fn move_memory(&mut self) {
        let (had, wanted) = (self.model.cells[SERVICE].memory, self.random.u64(16..=32) << 21);
        let change = Change::To(ByteSize(wanted));
        let body = RequestBody::ResizeMemory { name: SERVICE.into(), memory: change, mode: Mode::Apply };
        match self.machine.client.ask(body) {
            // The service decides how much memory it returns.
            Ok(ResponseBody::MemoryResized(resized)) => {
                let has = resized.has.0;
                assert_eq!(resized.had.0, had);
                assert!(has == wanted || has > wanted && has <= had, "{resized:?}");
                self.model.cells.get_mut(SERVICE).expect("the model has the service").memory = has;
            }
            other => panic!("{change:?}: {other:?}"),
        }
    }

    /// Updates the model from the service's actual cores and memory; each new core's stacks add a chunk.
    fn note_service(&mut self) {
        let info = self.machine.client.inspect(SERVICE);
        let cell = self.model.cells.get_mut(SERVICE).expect("the model has the service");
        let more = info.memory.0.checked_sub(cell.memory);
        assert!(more.is_some_and(|more| more <= 2 << 21), "each core's stacks take a chunk: {info:?}");
        (cell.cores, cell.memory) = (info.core_count(), info.memory.0);
    }

    /// Injects a supervisor fault, alone or during another operation.
    fn inject_fault(&mut self) {
        while self.faults.front().is_some_and(|at| at.elapsed() > FAULTS_PERIOD) {
            self.faults.pop_front();
        }
        let is_young = self.faults.back().is_some_and(|at| at.elapsed() < LIFE);
        if is_young || self.faults.len() == FAULTS {
            return;
        }
        self.faults.push_back(Instant::now());
        match self.random.u32(..4) {
            0 => self.go_wrong_moving_cores(),
            1 => self.go_wrong_ending(),
            2 => self.go_wrong_starting(),
            _ => {
                let faults = [Fault::Panic, Fault::PageFault, Fault::StackOverflow];
                let fault = faults[self.random.usize(..faults.len())];
                self.go_wrong(fault);
                self.model.begin_anew();
            }
        }
    }

    /// Injects a supervisor fault, and waits for the restart.
    fn go_wrong(&mut self, fault: Fault) {
        self.machine.client.send(RequestBody::GoWrong(fault));
        self.wait_for_the_next();
    }

    fn wait_for_the_next(&mut self) {
        let response = self
            .machine
            .client
            .wait(0, Duration::from_secs(60))
            .expect("the restarted supervisor says hello");
        assert_eq!(response.body, Err(ManagementError::Restarted));
        self.machine.client.hello();
    }

    fn go_wrong_moving_cores(&mut self) {
        let count = self.random.u32(1..=MOST_CORES);
        self.machine.client.send(resize_cores(count));
        self.go_wrong(Fault::Panic);
        self.model.begin_anew();
        // The core transfer may be complete, partial, or not begun. A new request completes it.
        let before = self.model.cells[SERVICE].cores;
        match self.machine.client.ask(resize_cores(before)) {
            Ok(ResponseBody::CoresResized(resized)) => assert_eq!(resized.after, before),
            other => panic!("{other:?}"),
        }
        self.note_service();
        assert_eq!(self.model.cells[SERVICE].cores, before);
    }

    /// Injects a fault during the end of a cell; the cell has ended after the restart.
    fn go_wrong_ending(&mut self) {
        // The fault occurs after the cores' removal and before the device's reset, so the cell needs a device.
        let Some(name) = self.any(|cell| cell.state == CellState::Running && cell.has_device) else {
            self.go_wrong(Fault::Panic);
            return self.model.begin_anew();
        };
        let answer = self.machine.client.ask(RequestBody::GoWrong(Fault::PanicAtEnd));
        assert_eq!(answer, Ok(ResponseBody::Done));
        self.machine.client.send(RequestBody::Stop { name: name.clone(), timeout_ms: 0 });
        self.wait_for_the_next();
        self.model.begin_anew();
        self.expect(&name, CellState::Killed, None);
    }

    /// Injects a fault right after the start of a cell, which may be about to crash as well.
    fn go_wrong_starting(&mut self) {
        let name = self.any(|cell| cell.state == CellState::Created);
        if let Some(name) = &name {
            self.machine.client.send(RequestBody::Start { name: name.clone() });
            self.expect(name, CellState::Running, None);
        }
        self.go_wrong(Fault::PageFault);
        self.model.begin_anew();
        let Some(name) = name else { return };
        // The cell may have crashed before or after the restart.
        self.see_crash(&name);
    }
}

#[test]
fn random_faults_and_resizes_lose_no_request_and_no_resource() {
    let seconds = var(SECONDS_VARIABLE).map_or(SECONDS, |seconds| seconds.parse().expect("a number"));
    let seed = var(SEED_VARIABLE).map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    eprintln!("{SEED_VARIABLE}={seed}");
    namespace::run(|| play(seed, seconds));
}

fn play(seed: u64, seconds: u64) {
    let mut chaos = Chaos::begin(seed);
    let address = SocketAddr::from((SHARED.cell(), PORT));
    // Before the server listens, lost segments are no error.
    drop(Connection::establish(address));
    let losses = LossMeter::start();
    let load = SteadyLoad::start(address, CLIENTS, Duration::from_millis(25));
    sleep(AT_REST);
    let (at_rest, mut beside) = (load.take(), Latencies::default());
    let (begin, mut steps) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(seconds) || chaos.model.restarts == 0 {
        chaos.step();
        chaos.model.check(&mut chaos.machine.client);
        beside.add(load.take());
        steps += 1;
    }
    let connections = chaos.machine.client.connections(SERVICE);
    assert_eq!(connections.len(), CLIENTS as usize);
    assert_eq!(losses.losses(&connections), Losses { to_cell: 0, from_cell: 0 });
    let answered = load.end();
    eprintln!(
        "{steps} steps, {} restarts, {answered} requests in {:.1?}",
        chaos.model.restarts,
        begin.elapsed()
    );
    assert!(answered > 0);
    beside.assert_near(&at_rest, "during faults and resizes");
    assert_eq!(chaos.machine.client.stop(SERVICE, LIMIT_MS).state, CellState::Exited);
    while let Some((name, cell)) = chaos.model.cells.pop_first() {
        if cell.state == CellState::Running && name != SERVICE {
            chaos.machine.client.stop(&name, 0);
        }
        chaos.machine.client.destroy(&name);
    }
    assert_eq!(&chaos.machine.resources(), chaos.model.empty());
    assert!(chaos.machine.power_off().switched_off);
}
