//! Management operations at random, right ones and wrong ones, on a machine with real cells, beside a simple model of who has
//! what ([`model`]). After each of them the machine and each of its cells say what the model says: every core, all memory and
//! every network device have exactly one owner. And every cell that runs answers.
//!
//! Another sequence each time: the test prints its seed, and `ISOLA_SEED=NUMBER` repeats it; `ISOLA_RANDOM_STEPS` makes longer
//! ones. Thousands of steps with hostile cells are taken on the host, against a machine of ordinary memory
//! (`supervisor/src/server/tests/random.rs`).

mod model;

use isola_abi::descriptor::NetworkAddress;
use isola_abi::id::CoreId;
use isola_abi::management::{
    CellInfo, CellSpec, CellState, Change, CoresResized, JournalEvent, LendingSpec, ManagementError, Mode,
    NetworkSpec, RequestBody, ResponseBody, Text,
};
use isola_abi::size::ByteSize;
use isola_tests::management::{Answer, cell, digest, spec};
use isola_tests::supervised::{Setup, Supervised, loadable};
use isola_tests::{images, wait};
use model::{Loan, Model, Owner, Run};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Operations, unless `ISOLA_RANDOM_STEPS` says otherwise.
const STEPS: u32 = 300;

/// The operations follow from the number in this variable; without it, from a number that is random.
const SEED_VARIABLE: &str = "ISOLA_SEED";

/// Operations from one conversation with all cells to the next.
const TALK_EVERY: u32 = 25;

/// The cells that there may be, and one that there never is.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "nobody"];

/// Where the cells are, which all serve at the same port.
const ADDRESSES: [Ipv4Addr; 5] = [
    Ipv4Addr::new(10, 0, 2, 21),
    Ipv4Addr::new(10, 0, 2, 22),
    Ipv4Addr::new(10, 0, 2, 23),
    Ipv4Addr::new(10, 0, 2, 24),
    Ipv4Addr::new(10, 0, 2, 25),
];
const PORT: u16 = 7;

/// How long a core may take to come free, in ms: longer than a cell takes to begin on a busy host.
const CORE_LIMIT_MS: u32 = 60_000;

/// No lease ends while the test runs.
const LEASE_MS: u32 = isola_abi::management::MAX_LEASE_MS;

const MIB: u64 = 1 << 20;

/// Numbers from a seed (xorshift64*).
struct Dice(u64);

impl Dice {
    /// A number below that one.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % limit
    }
}

/// The machine, and what it should be.
struct Test {
    machine: Supervised,
    image: Vec<u8>,
    dice: Dice,
    model: Model,
    /// The journal is read up to here.
    seen: u64,
}

/// What an environment variable says, or something else.
fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn every_core_all_memory_and_every_device_have_one_owner_whatever_is_asked() {
    let seed = number(SEED_VARIABLE, fastrand::u64(..1 << 32));
    let steps = number("ISOLA_RANDOM_STEPS", STEPS.into());
    eprintln!("to repeat it: {SEED_VARIABLE}={seed} ISOLA_RANDOM_STEPS={steps}");
    let setup = Setup {
        cores: 6,
        memory_mib: 512,
        network_devices: 4,
        addresses: (&ADDRESSES, PORT),
        ..Setup::default()
    };
    let mut machine = Supervised::boot(setup);
    let image = loadable(std::fs::read(images::path("echo")).expect("the image can be read"));
    machine.client.upload(&image);
    let before = machine.resources();
    let model = Model::new(&before, &image);
    let mut test = Test { machine, image, dice: Dice(seed.wrapping_mul(2) + 1), model, seen: 0 };
    for step in 0..steps {
        let what = test.step();
        test.settle(&format!("step {step}: {what}"));
        if step % u64::from(TALK_EVERY) == 0 {
            test.talk();
        }
    }
    test.talk();
    for name in test.model.names() {
        // One that was not started cannot be stopped, and need not.
        let _ = test.ask(RequestBody::Stop { name: name.into(), timeout_ms: 0 });
        test.model.end(name);
        test.machine.client.destroy(name);
        test.model.forget(name);
        test.settle(&format!("{name} goes"));
    }
    let after = test.machine.resources();
    assert_eq!((after.cores, after.memory_free), (before.cores, before.memory_free));
    assert_eq!((after.devices_free, after.memory_quarantined), (before.devices_free, ByteSize(0)));
}

impl Test {
    /// Asks for something, and enters in the model what it should come to. Returns what it was.
    fn step(&mut self) -> String {
        let name = NAMES[self.dice.below(NAMES.len() as u64) as usize];
        match self.dice.below(26) {
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

    /// Whether an operation on a cell that has to be in state `needed` was refused for its reason: there is no such cell, it is
    /// in another state, or `is_reason` of the operation itself.
    #[track_caller]
    fn see_refusal(&self, name: &str, needed: &[Run], error: &ManagementError, is_reason: bool) {
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

    /// Asks for what can be done, as long as something is still on its way.
    fn ask_until(&mut self, can: bool, body: &RequestBody) -> Answer {
        wait::until("what can be done is done", || match self.ask(body.clone()) {
            Err(ManagementError::BeingResized(_)) => None,
            Err(ManagementError::OutOfLimits(_)) if can && !self.model.is_unsettled() => None,
            answer => Some(answer),
        })
    }

    fn create(&mut self, name: &'static str) -> String {
        let cores = self.dice.below(4) as u32;
        let mib = [0, 16, 16, 24, 24, 4096][self.dice.below(6) as usize];
        let address = NAMES.iter().position(|other| *other == name).and_then(|index| ADDRESSES.get(index));
        let network = match (address, self.dice.below(5)) {
            (Some(&ip), 1..) => NetworkSpec::Static(NetworkAddress { ip, prefix_len: 24, gateway: None }),
            _ => NetworkSpec::None,
        };
        let lending = LendingSpec {
            priority: self.dice.below(3) as u8,
            lends: self.dice.below(3) as u32,
            borrow_above_us: 0,
        };
        // Nobody is called so.
        let called = if address.is_some() { name } else { "not a name" };
        // One of them has nothing of others.
        let text = if name == "e" { Text::Private } else { Text::Shared };
        let image = digest(&self.image);
        let spec = CellSpec { network, lending, text, image, ..spec(called, cores, mib, &[]) };
        let can = address.is_some() && self.model.can_create(name, &spec);
        let mut answer = self.ask(RequestBody::Create(spec.clone()));
        if answer == Err(ManagementError::NoImage) {
            // It has given way.
            self.machine.client.upload(&self.image);
            answer = self.ask(RequestBody::Create(spec.clone()));
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
        let can = self.model.is(name, Run::Created);
        let answer = self.ask(RequestBody::Start { name: name.into() });
        assert_eq!(answer.is_ok(), can, "start {name}: {answer:?} {:?}", self.model);
        if let Err(error) = &answer {
            self.see_refusal(name, &[Run::Created], error, false);
        }
        self.model.start(name);
        format!("start {name}: {can}")
    }

    fn stop(&mut self, name: &'static str) -> String {
        let can = self.model.is(name, Run::Running);
        let timeout_ms = if self.dice.below(2) == 0 { 0 } else { 60_000 };
        let answer = self.ask(RequestBody::Stop { name: name.into(), timeout_ms });
        assert_eq!(answer.is_ok(), can, "stop {name}: {answer:?} {:?}", self.model);
        if let Err(error) = &answer {
            self.see_refusal(name, &[Run::Running], error, false);
        }
        if answer.is_ok() {
            let state = if timeout_ms == 0 { CellState::Killed } else { CellState::Exited };
            assert_eq!(cell(answer).state, state, "{name}");
            self.model.end(name);
        }
        format!("stop {name} within {timeout_ms} ms: {can}")
    }

    fn destroy(&mut self, name: &'static str) -> String {
        let can = self.model.is(name, Run::Created) || self.model.is(name, Run::Ended);
        let answer = self.ask(RequestBody::Destroy { name: name.into() });
        assert_eq!(answer.is_ok(), can, "destroy {name}: {answer:?} {:?}", self.model);
        if let Err(error) = &answer {
            self.see_refusal(name, &[Run::Created, Run::Ended], error, false);
        }
        if can {
            self.model.end(name);
            self.model.forget(name);
        }
        format!("destroy {name}: {can}")
    }

    fn resize_cores(&mut self, name: &'static str) -> String {
        let count = self.dice.below(4) as u32;
        let change = match self.dice.below(3) {
            0 => Change::To(count),
            1 => Change::More(count),
            _ => Change::Less(count),
        };
        let mode = if self.dice.below(6) == 0 { Mode::DryRun } else { Mode::Apply };
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
                self.see_refusal(name, &[Run::Running], &error, is_reason);
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
        let mib = [0, 2, 6, 16, 4096][self.dice.below(5) as usize];
        let (size, kind) = (ByteSize(mib * MIB), self.dice.below(3));
        let change = [Change::To(size), Change::More(size), Change::Less(size)][kind as usize];
        let body = RequestBody::ResizeMemory { name: name.into(), memory: change, mode: Mode::Apply };
        match self.ask_until(false, &body) {
            Ok(ResponseBody::MemoryResized(resized)) => self.model.resize_memory(name, &resized),
            // How little a cell can do with is its own affair.
            Err(ManagementError::MemoryInUse { .. }) => {
                assert!(
                    self.model.takes_memory(name, change),
                    "memory of {name} {change}: it gives nothing back"
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
                self.see_refusal(name, &[Run::Running], &error, is_reason);
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
                self.see_refusal(name, &[Run::Running], &error, is_reason);
            }
            // A lender that has not let go of a core in time is still asked whether it has.
            Err(ManagementError::OutOfLimits(_)) if self.model.is_unsettled() => {}
            other => panic!("{name} borrows: {other:?} {:?}", self.model),
        }
        format!("{name} borrows: {can}")
    }

    fn give_back(&mut self, name: &'static str) -> String {
        let can = self.model.has_borrowed(name);
        match self.ask_until(can, &RequestBody::GiveBack { name: name.into() }) {
            Ok(ResponseBody::Loan(loan)) if can => self.wait_for_loan(loan.core),
            // A cell without a loan is refused for that, in any state.
            Err(ManagementError::OutOfLimits(_)) if !can => assert!(self.model.run(name).is_some()),
            Err(error) if !can => self.see_refusal(name, &[Run::Running], &error, false),
            other => panic!("{name} gives back: {other:?} {:?}", self.model),
        }
        format!("{name} gives back: {can}")
    }

    /// Waits until the journal says what became of a core on its way.
    fn wait_for_loan(&mut self, core: CoreId) {
        wait::until_true("a core arrives, or does not", || self.read_journal().contains(&core));
    }

    /// Enters what the journal says of loans in the model. Returns the cores that it was about.
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

    /// Waits until the machine and its cells are as the model says: what a loan moves may be on its way.
    fn settle(&mut self, what: &str) {
        let deadline = Instant::now() + wait::PATIENCE;
        loop {
            self.read_journal();
            let (machine, cells) = (self.machine.client.machine(), self.list());
            let Err(differs) = self.model.compare(&machine, &cells) else { return };
            assert!(Instant::now() < deadline, "{what}: {differs}");
            sleep(Duration::from_millis(2));
        }
    }

    fn list(&mut self) -> Vec<CellInfo> {
        match self.ask(RequestBody::List) {
            Ok(ResponseBody::Cells(cells)) => cells,
            other => panic!("{other:?}"),
        }
    }

    /// Has every cell that runs, and has a network, echo something.
    fn talk(&mut self) {
        for (index, name) in NAMES.iter().enumerate() {
            if !self.model.is(name, Run::Running) || !self.model.has_network(name) {
                continue;
            }
            let address = self.machine.reached()[index];
            let said = format!("{name}, are you there?");
            // One that has just been started does not listen yet, and QEMU refuses in its name.
            wait::until(&format!("{name} answers"), || {
                let mut stream = TcpStream::connect(address).ok()?;
                stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
                stream.write_all(said.as_bytes()).ok()?;
                let mut answer = vec![0; said.len()];
                stream.read_exact(&mut answer).ok()?;
                assert_eq!(answer, said.as_bytes());
                Some(())
            });
        }
    }
}
