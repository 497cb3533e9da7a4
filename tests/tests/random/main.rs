//! Random management operations, valid and invalid, on a machine with real cells. After each operation the test
//! compares the state of the machine and of each cell with a simple model ([`model`]): every core, all memory and every
//! network device have exactly one owner. At intervals it checks that every running cell answers.
//!
//! Each run takes a different sequence. The test prints its seed; `ISOLA_SEED=NUMBER` repeats it, and
//! `ISOLA_RANDOM_STEPS` sets the number of operations. A test on the host (`supervisor/src/server/tests/random.rs`)
//! runs thousands of operations with hostile cells, against a simulated machine.

mod model;

use isola_abi::descriptor::NetworkAddress;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{
    CellInfo, CellSpec, CellState, Change, CoresResized, JournalEvent, LendingSpec, ManagementError, Mode,
    NetworkSpec, RequestBody, ResponseBody, Text,
};
use isola_abi::size::ByteSize;
use isola_tests::management::{Answer, cell, digest, spec};
use isola_tests::supervised::{MachineSetup, SupervisedMachine, loadable};
use isola_tests::{images, wait};
use model::{Loan, Model, Owner, RunState};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The number of operations, unless `ISOLA_RANDOM_STEPS` is set.
const STEPS: u32 = 300;

/// The environment variable with the seed. Without it the seed is random.
const SEED_VARIABLE: &str = "ISOLA_SEED";

/// The number of operations between two checks that all cells answer.
const TALK_EVERY: u32 = 25;

/// The names of cells, and a name that no cell has.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "nobody"];

/// The addresses of the first five, and the port on which all serve.
const ADDRESSES: [Ipv4Addr; 5] = [
    Ipv4Addr::new(10, 0, 2, 21),
    Ipv4Addr::new(10, 0, 2, 22),
    Ipv4Addr::new(10, 0, 2, 23),
    Ipv4Addr::new(10, 0, 2, 24),
    Ipv4Addr::new(10, 0, 2, 25),
];
const PORT: u16 = 7;

/// The longest time for a core to leave its cell, in ms: longer than a cell takes to start on a busy host.
const CORE_LIMIT_MS: u32 = 60_000;

/// Leases do not expire during the test.
const LEASE_MS: u32 = isola_abi::management::MAX_LEASE_MS;

const MIB: u64 = 1 << 20;

/// A random number generator (xorshift64*).
struct Random(u64);

impl Random {
    /// Returns a number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % limit
    }
}

/// The machine and its model.
struct Test {
    machine: SupervisedMachine,
    image: Vec<u8>,
    random: Random,
    model: Model,
    /// The number of the next journal entry to read.
    seen: u64,
}

/// Returns the number in an environment variable, or `otherwise` if it is unset.
fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn every_core_all_memory_and_every_device_have_one_owner_after_any_operation() {
    let seed = number(SEED_VARIABLE, fastrand::u64(..1 << 32));
    let steps = number("ISOLA_RANDOM_STEPS", STEPS.into());
    eprintln!("to repeat it: {SEED_VARIABLE}={seed} ISOLA_RANDOM_STEPS={steps}");
    let setup = MachineSetup {
        cores: 6,
        memory_mib: 512,
        network_devices: 4,
        addresses: (&ADDRESSES, PORT),
        ..MachineSetup::default()
    };
    let mut machine = SupervisedMachine::boot(setup);
    let image = loadable(std::fs::read(images::path("echo")).expect("the image can be read"));
    machine.client.upload(&image);
    let before = machine.resources();
    let model = Model::new(&before, &image);
    let mut test = Test { machine, image, random: Random(seed.wrapping_mul(2) + 1), model, seen: 0 };
    for step in 0..steps {
        let what = test.step();
        test.settle(&format!("step {step}: {what}"));
        if step % u64::from(TALK_EVERY) == 0 {
            test.talk();
        }
    }
    test.talk();
    for name in test.model.names() {
        // A cell that was never started cannot be stopped: this request may fail.
        let _ = test.ask(RequestBody::Stop { name: name.into(), timeout_ms: 0 });
        test.model.end(name);
        test.machine.client.destroy(name);
        test.model.forget(name);
        test.settle(&format!("destroy {name}"));
    }
    let after = test.machine.resources();
    assert_eq!((after.cores, after.memory_free), (before.cores, before.memory_free));
    assert_eq!((after.devices_free, after.memory_quarantined), (before.devices_free, ByteSize(0)));
}

impl Test {
    /// Performs a random operation, and enters its expected result in the model. Returns a description.
    fn step(&mut self) -> String {
        let name = NAMES[self.random.below(NAMES.len() as u64) as usize];
        match self.random.below(26) {
            0..4 => self.create(name),
            4..9 => self.start(name),
            9..14 => self.resize_cores(name),
            14..18 => self.resize_memory(name),
            18..21 => self.borrow(name),
            21 => self.give_back(name),
            22..24 => self.stop(name),
            24 => self.recreate(name),
            _ => self.destroy(name),
        }
    }

    /// Checks the error of an operation that requires one of the states `needed`: no such cell, wrong state, or an
    /// error of the operation itself, for which `is_reason` holds.
    #[track_caller]
    fn check_refusal(&self, name: &str, needed: &[RunState], error: &ManagementError, is_reason: bool) {
        let is_right = match self.model.run(name) {
            None => *error == ManagementError::NoSuchCell(name.into()),
            Some(run) if !needed.contains(&run) => {
                matches!(error, ManagementError::WrongState { name: of, .. } if of == name)
            }
            Some(_) => is_reason,
        };
        assert!(is_right, "{name}, needed {needed:?}: {error:?} {:?}", self.model);
    }

    fn ask(&mut self, body: RequestBody) -> Answer {
        self.machine.client.ask(body)
    }

    /// Repeats a request while a resize is in progress, or while its result differs from the model's prediction `can`
    /// and the machine may still be settling.
    fn ask_until(&mut self, can: bool, body: &RequestBody) -> Answer {
        wait::until("no resize is in progress", || match self.ask(body.clone()) {
            Err(ManagementError::BeingResized(_)) => None,
            Err(ManagementError::OutOfLimits(_)) if can && !self.model.is_unsettled() => None,
            answer => Some(answer),
        })
    }

    fn create(&mut self, name: &'static str) -> String {
        let cores = self.random.below(4) as u32;
        let mib = [0, 16, 16, 24, 24, 4096][self.random.below(6) as usize];
        let address = NAMES.iter().position(|other| *other == name).and_then(|index| ADDRESSES.get(index));
        let network = match (address, self.random.below(5)) {
            (Some(&ip), 1..) => NetworkSpec::Static(NetworkAddress { ip, prefix_len: 24, gateway: None }),
            _ => NetworkSpec::None,
        };
        let lending = LendingSpec {
            priority: self.random.below(3) as u8,
            lends: self.random.below(3) as u32,
            borrow_above_us: 0,
            memory_low: None,
        };
        // The last name is no cell's: it becomes an invalid one.
        let called = if address.is_some() { name } else { "not a name" };
        // One cell has a private copy of its image.
        let text = if name == "e" { Text::Private } else { Text::Shared };
        let image = digest(&self.image);
        let spec = CellSpec { network, lending, text, image, ..spec(called, cores, mib, &[]) };
        let can = address.is_some() && self.model.can_create(name, &spec);
        let mut answer = self.ask(RequestBody::Create(spec.clone().into()));
        if answer == Err(ManagementError::NoImage) {
            // The supervisor has evicted the image.
            self.machine.client.upload(&self.image);
            answer = self.ask(RequestBody::Create(spec.clone().into()));
        }
        assert_eq!(answer.is_ok(), can, "{spec:?}: {answer:?} {:?}", self.model);
        match &answer {
            Ok(_) => {}
            Err(ManagementError::BadName(bad)) => assert!(address.is_none() && bad == called),
            Err(ManagementError::NameTaken(taken)) => {
                assert!(taken == name && self.model.run(name).is_some())
            }
            Err(ManagementError::OutOfLimits(_)) => assert!(cores == 0 || mib == 0, "{spec:?}: {answer:?}"),
            Err(ManagementError::CoresExhausted { wanted, free }) => {
                assert!(*wanted == cores && *free as usize == self.model.free_cores() && free < wanted);
            }
            Err(ManagementError::MemoryExhausted { .. }) => assert!(mib == 4096, "{spec:?}: {answer:?}"),
            Err(ManagementError::DevicesExhausted) => assert!(spec.network != NetworkSpec::None),
            Err(other) => panic!("{spec:?}: {other:?}"),
        }
        if answer.is_ok() {
            self.model.create(name, &cell(answer));
        }
        format!("create {name} of {cores} cores and {mib} MiB: {can}")
    }

    fn recreate(&mut self, name: &'static str) -> String {
        let can = self.model.can_recreate(name);
        let mut answer = self.ask(RequestBody::Recreate { name: name.into() });
        if answer == Err(ManagementError::NoImage) {
            self.machine.client.upload(&self.image);
            answer = self.ask(RequestBody::Recreate { name: name.into() });
        }
        assert_eq!(answer.is_ok(), can, "recreate {name}: {answer:?} {:?}", self.model);
        if answer.is_ok() {
            self.model.create(name, &cell(answer));
        }
        format!("recreate {name}: {can}")
    }

    fn start(&mut self, name: &'static str) -> String {
        let can = self.model.is(name, RunState::Created);
        let answer = self.ask(RequestBody::Start { name: name.into() });
        assert_eq!(answer.is_ok(), can, "start {name}: {answer:?} {:?}", self.model);
        if let Err(error) = &answer {
            self.check_refusal(name, &[RunState::Created], error, false);
        }
        self.model.start(name);
        format!("start {name}: {can}")
    }

    fn stop(&mut self, name: &'static str) -> String {
        let can = self.model.is(name, RunState::Running);
        let timeout_ms = if self.random.below(2) == 0 { 0 } else { 60_000 };
        let answer = self.ask(RequestBody::Stop { name: name.into(), timeout_ms });
        assert_eq!(answer.is_ok(), can, "stop {name}: {answer:?} {:?}", self.model);
        if let Err(error) = &answer {
            self.check_refusal(name, &[RunState::Running], error, false);
        }
        if answer.is_ok() {
            let state = if timeout_ms == 0 { CellState::Killed } else { CellState::Exited };
            assert_eq!(cell(answer).state, state, "{name}");
            self.model.end(name);
        }
        format!("stop {name} within {timeout_ms} ms: {can}")
    }

    fn destroy(&mut self, name: &'static str) -> String {
        let can = self.model.is(name, RunState::Created) || self.model.is(name, RunState::Ended);
        let answer = self.ask(RequestBody::Destroy { name: name.into() });
        assert_eq!(answer.is_ok(), can, "destroy {name}: {answer:?} {:?}", self.model);
        if let Err(error) = &answer {
            self.check_refusal(name, &[RunState::Created, RunState::Ended], error, false);
        }
        if can {
            self.model.end(name);
            self.model.forget(name);
        }
        format!("destroy {name}: {can}")
    }

    fn resize_cores(&mut self, name: &'static str) -> String {
        let count = self.random.below(4) as u32;
        let change = match self.random.below(3) {
            0 => Change::To(count),
            1 => Change::More(count),
            _ => Change::Less(count),
        };
        let mode = if self.random.below(6) == 0 { Mode::DryRun } else { Mode::Apply };
        let can = self.model.can_resize_cores(name, change);
        let body = RequestBody::ResizeCores {
            name: name.into(),
            change,
            cores: Vec::new(),
            limit_ms: CORE_LIMIT_MS,
            mode,
        };
        match self.ask_until(can, &body) {
            Ok(ResponseBody::CoresResized(resized)) if can => {
                if mode == Mode::Apply {
                    self.cores_moved(name, &resized);
                }
            }
            Err(error) if !can => {
                let is_reason = match &error {
                    ManagementError::OutOfLimits(_) => self.model.cores_change_is_out_of_limits(name, change),
                    ManagementError::CoresExhausted { free, .. } => *free as usize == self.model.free_cores(),
                    _ => false,
                };
                self.check_refusal(name, &[RunState::Running], &error, is_reason);
            }
            other => panic!("cores of {name} {change}: {other:?} {:?}", self.model),
        }
        format!("cores of {name} {change}, {mode:?}: {can}")
    }

    fn cores_moved(&mut self, name: &'static str, resized: &CoresResized) {
        for &core in &resized.cores {
            match resized.before < resized.after {
                true => self.model.give(core, Owner::Free, Owner::Of(name)),
                false => self.model.give(core, Owner::Of(name), Owner::Free),
            }
        }
        assert_eq!(self.model.cores_of(name), resized.after as usize, "{resized:?}");
    }

    fn resize_memory(&mut self, name: &'static str) -> String {
        let mib = [0, 2, 6, 16, 4096][self.random.below(5) as usize];
        let (size, kind) = (ByteSize(mib * MIB), self.random.below(3));
        let change = [Change::To(size), Change::More(size), Change::Less(size)][kind as usize];
        let body = RequestBody::ResizeMemory { name: name.into(), memory: change, mode: Mode::Apply };
        match self.ask_until(false, &body) {
            Ok(ResponseBody::MemoryResized(resized)) => self.model.resize_memory(name, &resized),
            // The cell decides how much memory it can return.
            Err(ManagementError::MemoryInUse { .. }) => {
                assert!(
                    self.model.takes_memory(name, change),
                    "memory of {name} {change}: the request takes no memory"
                );
            }
            Err(error) => {
                assert!(!self.model.can_resize_memory(name, change), "memory of {name} {change}: {error}");
                let is_reason = match &error {
                    ManagementError::OutOfLimits(_) => {
                        self.model.memory_after(name, change).is_none_or(|after| after == 0)
                    }
                    ManagementError::MemoryExhausted { .. } => !self.model.takes_memory(name, change),
                    _ => false,
                };
                self.check_refusal(name, &[RunState::Running], &error, is_reason);
            }
            Ok(other) => panic!("{other:?}"),
        }
        format!("memory of {name} {change}")
    }

    fn borrow(&mut self, name: &'static str) -> String {
        let can = self.model.can_borrow(name);
        match self.ask_until(can, &RequestBody::Borrow { name: name.into(), lease_ms: LEASE_MS }) {
            Ok(ResponseBody::Loan(loan)) if can => self.wait_for_loan(loan.core),
            Err(error) if !can => {
                let is_reason = matches!(error, ManagementError::OutOfLimits(_));
                self.check_refusal(name, &[RunState::Running], &error, is_reason);
            }
            // A lender that missed the time limit may still have an order to release a core.
            Err(ManagementError::OutOfLimits(_)) if self.model.is_unsettled() => {}
            other => panic!("{name} borrows: {other:?} {:?}", self.model),
        }
        format!("{name} borrows: {can}")
    }

    fn give_back(&mut self, name: &'static str) -> String {
        let can = self.model.has_borrowed(name);
        match self.ask_until(can, &RequestBody::GiveBack { name: name.into() }) {
            Ok(ResponseBody::Loan(loan)) if can => self.wait_for_loan(loan.core),
            // The supervisor checks for a loan before it checks the state.
            Err(ManagementError::OutOfLimits(_)) if !can => assert!(self.model.run(name).is_some()),
            Err(error) if !can => self.check_refusal(name, &[RunState::Running], &error, false),
            other => panic!("{name} gives back: {other:?} {:?}", self.model),
        }
        format!("{name} gives back: {can}")
    }

    /// Waits until the journal records the result of a core transfer.
    fn wait_for_loan(&mut self, core: CoreId) {
        wait::until_true("a core transfer succeeds or fails", || self.read_journal().contains(&core));
    }

    /// Enters new journal entries about loans in the model. Returns their cores.
    fn read_journal(&mut self) -> Vec<CoreId> {
        let mut about = Vec::new();
        for entry in self.machine.client.events(self.seen) {
            self.seen = entry.number + 1;
            let of = |name: &Option<String>| {
                name.as_ref().and_then(|name| NAMES.into_iter().find(|other| other == name))
            };
            match entry.event {
                JournalEvent::Borrow { core, from, .. } => {
                    let borrower = of(&entry.cell).expect("a cell borrows");
                    self.model.lend(Loan { core, lender: of(&from), borrower });
                    about.push(core);
                }
                JournalEvent::Return { core, to, .. } => {
                    self.model.give_back(core, of(&to));
                    about.push(core);
                }
                JournalEvent::NotBorrowed { core: Some(core) } => {
                    self.model.unsettle();
                    about.push(core);
                }
                JournalEvent::CoreLost(_) | JournalEvent::DeviceLost | JournalEvent::Crash(_) => {
                    panic!("{entry:?}")
                }
                _ => {}
            }
        }
        about
    }

    /// Waits until the machine and its cells equal the model: core transfers of loans may be in progress.
    fn settle(&mut self, what: &str) {
        let deadline = Instant::now() + wait::TIMEOUT;
        loop {
            self.read_journal();
            let (machine, cells) = (self.machine.client.machine(), self.list());
            let Err(differs) = self.model.compare(&machine, &cells) else { return };
            assert!(Instant::now() < deadline, "{what}: {differs}");
            sleep(Duration::from_millis(2));
        }
    }

    fn list(&mut self) -> Vec<CellInfo> {
        match self.ask(RequestBody::List { from: CellId(0) }) {
            Ok(ResponseBody::Cells(page)) => page.cells,
            other => panic!("{other:?}"),
        }
    }

    /// Checks that every running cell with a network echoes.
    fn talk(&mut self) {
        for (index, name) in NAMES.iter().enumerate() {
            if !self.model.is(name, RunState::Running) || !self.model.has_network(name) {
                continue;
            }
            let address = self.machine.reached()[index];
            let question = format!("{name}, are you there?");
            // A cell that was just started may not listen yet; QEMU then closes the connection.
            wait::until(&format!("{name} answers"), || {
                let mut stream = TcpStream::connect(address).ok()?;
                stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
                stream.write_all(question.as_bytes()).ok()?;
                let mut answer = vec![0; question.len()];
                stream.read_exact(&mut answer).ok()?;
                assert_eq!(answer, question.as_bytes());
                Some(())
            });
        }
    }
}
