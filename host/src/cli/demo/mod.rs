//! `isola demo`: shows a machine with several cells, in a minute.
//!
//! 1. boot a machine of four cores: one for the supervisor, three for cells
//! 2. run a key-value server and a service that counts primes, each in a cell of its own
//! 3. drive both with real traffic, and check every answer
//! 4. crash a third cell on purpose, while the first two are at work
//! 5. show the usage of each cell, and the duration of each step
//! 6. end the machine, unless the user wants to keep it
//!
//! Until then the machine belongs to the demo's process: however the demo ends, nothing remains.

mod clients;
mod tables;

use super::interrupt::{INTERRUPTED, Interrupts};
use super::up::PlatformArguments;
use super::{Context, Failure, show, up};
use crate::cellctl::{self, NewCell};
use crate::machine::LockedMachine;
use crate::machine::boot::Lifetime;
use crate::machine::cells::CleanupPolicy;
use crate::machine::network::NetworkRequest;
use crate::machine::options::{MachineOptions, Topology, Uplink};
use crate::names::MachineName;
use crate::output::human;
use crate::output::view::{CellView, EventView, MachineView};
use crate::publish::PublishSpec;
use clap::Args;
use clients::{KvLoad, KvReport, count_primes};
use isola_abi::grid::GridSetup;
use isola_abi::integrity::Requirement;
use isola_abi::management::{CellInfo, CellState, CorePlacement, RestartPolicy};
use isola_abi::size::ByteSize;
use serde::Serialize;
use std::net::SocketAddrV4;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The name of the demo's machine.
const MACHINE: &str = "demo";

/// The cell that crashes.
const VICTIM: &str = "victim";

/// The image of that cell, and its kind of crash.
const CRASH_IMAGE: &str = "faulty";
const CRASH_ARGUMENT: &str = "null";

/// How long a cell may take to stop.
const STOP_TIMEOUT_MS: u32 = 10_000;

/// How long the crash may take to be reported.
const CRASH_LIMIT: Duration = Duration::from_secs(20);

/// The numbers of primes below these bounds (OEIS A006880).
const PRIMES: [(u64, u64); 3] = [(1_000, 168), (100_000, 9_592), (1_000_000, 78_498)];

/// Boots a machine, runs two services and a crash on it, and shows the usage of each cell
#[derive(Debug, Args)]
#[command(after_help = "\
Boots a machine called `demo` with four cores. A key-value server (memcached's protocol) and a service that \
counts primes run in cells of it, and the demo checks the answers to real requests. Meanwhile a third cell crashes on \
purpose. With --keep, the machine stays up: try `isola --on demo ps`, and end it with \
`isola down demo`.")]
pub(super) struct Arguments {
    /// Leaves the machine up
    #[arg(long)]
    keep: bool,
    /// How long the services are under load before the crash, and again after it
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    #[command(flatten)]
    platform: PlatformArguments,
}

/// The JSON form of the answer.
#[derive(Serialize)]
struct DemoView {
    machine: MachineView,
    /// The state of each cell before its end.
    cells: Vec<CellView>,
    /// The requests to the key-value server.
    kv: KvReport,
    /// The number of them since the start of the crashing cell.
    kv_requests_during_crash: u64,
    /// The requests to the service that counts primes.
    primes: Vec<PrimesView>,
    /// The supervisor's journal.
    events: Vec<EventView>,
}

/// A request to the service that counts primes.
#[derive(Serialize)]
struct PrimesView {
    number: u64,
    count: u64,
    took_ns: u64,
}

struct Demo<'a> {
    context: &'a Context,
    interrupts: &'a Interrupts,
    /// Whether the cells are removed at the end.
    cleanup: CleanupPolicy,
    /// The number of the latest step.
    step: u32,
}

pub(super) fn demo(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let interrupts = Interrupts::count()?;
    let name: MachineName = MACHINE.parse()?;
    let dir = context.root.machine(&name);
    let options = MachineOptions {
        cores: 4,
        topology: Topology::default(),
        memory: ByteSize(1 << 30),
        nics: 4,
        disks: 0,
        model: arguments.platform.machine,
        cpu: arguments.platform.cpu.clone(),
        uplink: Uplink::User,
    };
    let cleanup = if arguments.keep { CleanupPolicy::Keep } else { CleanupPolicy::Remove };
    let mut demo = Demo { context, interrupts: &interrupts, cleanup, step: 0 };
    demo.announce("booting a machine of four cores");
    let mut interrupted = || interrupts.check();
    let mut locked = up::bring_up(
        context,
        &dir,
        options,
        arguments.platform.accel,
        Lifetime::OfThisProcess,
        &mut interrupted,
    )?;
    let shown = demo.show(&locked, Duration::from_secs(arguments.seconds));
    let stays_up = arguments.keep && shown.is_ok();
    if stays_up {
        locked.record.owner = None;
        locked.record.save(&locked.dir)?;
    } else {
        locked.down()?;
    }
    let view = shown?;
    context.output.answer(&view, || tables::text(&view))?;
    context.output.note(if stays_up {
        "The machine stays up: see `isola --on demo ps`; end it with `isola down demo`."
    } else {
        "The machine is down again. Nothing remains."
    });
    Ok(ExitCode::SUCCESS)
}

impl Demo<'_> {
    fn announce(&mut self, what: &str) {
        self.step += 1;
        self.context.output.note(&format!("{}. {what}", self.step));
    }

    fn remark(&self, what: &str) {
        self.context.output.note(&format!("   {what}"));
    }

    fn check(&self) -> Result<(), Failure> {
        match self.interrupts.check() {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => {
                Err(Failure::new(INTERRUPTED, "interrupted: the machine is down again"))
            }
        }
    }

    fn show(&mut self, locked: &LockedMachine, duration: Duration) -> Result<DemoView, Failure> {
        let info = locked.client()?.machine()?;
        self.remark(&format!(
            "ready after {}, {} of them the supervisor's, under {}",
            human::maybe_duration_ns(locked.record.ready_us.map(|us| us * 1000)),
            human::duration_ns(info.boot_ns),
            locked.record.accelerator
        ));

        self.announce("running a key-value server and a service that counts primes, in cells");
        let kv = self.run(locked, "kv", 1, "11211/tcp")?;
        let primes = self.run(locked, "primes", 1, "7000/udp")?;

        self.announce("driving both with real traffic");
        let load = KvLoad::start(kv);
        let mut counted = self.primes(primes)?;
        self.pass(duration, &load)?;
        let before = load.requests();
        self.remark(&format!(
            "key-value server: {} requests, each with the right answer",
            human::count(before)
        ));

        self.announce("crashing a third cell on purpose, while the others are at work");
        let begun = load.requests();
        let victim = self.crash(locked)?;
        if let Some(crash) = &victim.crash {
            self.context.output.note(show::crash_text(VICTIM, crash).trim_end());
        }
        counted.extend(self.primes(primes)?);
        self.pass(duration, &load)?;
        let during = load.requests() - begun;
        let report = load.stop()?;
        self.remark(&format!(
            "key-value server: {} requests meanwhile, none missed; slowest {}",
            human::count(during),
            human::duration_ns(report.slowest_ns)
        ));

        self.announce("reading the usage of each cell");
        let mut client = locked.client()?;
        let mut cells = vec![victim];
        for name in ["kv", "primes"] {
            cells.push(show::cell(&locked.dir, &client.inspect(name)?));
        }
        drop(client);
        if self.cleanup == CleanupPolicy::Remove {
            self.end(locked)?;
        }
        let events = locked.client()?.events(0)?;
        Ok(DemoView {
            machine: show::machine(locked, Some(&info)),
            cells,
            kv: report,
            kv_requests_during_crash: during,
            primes: counted,
            events: events.iter().map(|entry| EventView::new(locked.dir.name.as_str(), entry)).collect(),
        })
    }

    /// Runs an image in a cell with `cores` cores; returns the address of its published port on the host.
    fn run(
        &self,
        locked: &LockedMachine,
        name: &str,
        cores: u32,
        port: &str,
    ) -> Result<SocketAddrV4, Failure> {
        let cell = self.create(locked, name, name, cores, &[], vec![port.parse()?])?;
        let ports = show::ports(&locked.dir, &cell);
        let port = ports.first().ok_or_else(|| Failure::new(1, format!("cell {name:?} has no port")))?;
        self.remark(&format!(
            "{name}: {cores} core, {}, created in {}, started in {}; {} leads to it",
            cell.memory,
            human::maybe_duration_ns(cell.durations.create_ns),
            human::maybe_duration_ns(cell.durations.start_ns),
            port.host,
        ));
        Ok(port.host)
    }

    fn create(
        &self,
        locked: &LockedMachine,
        name: &str,
        image: &str,
        cores: u32,
        arguments: &[&str],
        publish: Vec<PublishSpec>,
    ) -> Result<CellInfo, Failure> {
        let new = NewCell {
            image: self.context.images.cell_image(image)?,
            name: Some(name.to_owned()),
            cores,
            placement: CorePlacement::default(),
            memory: ByteSize(64 << 20),
            memory_max: None,
            arguments: arguments.iter().map(ToString::to_string).collect(),
            network: if publish.is_empty() { NetworkRequest::None } else { NetworkRequest::Auto }.into(),
            serves_network: false,
            requirement: Requirement::default(),
            restart: RestartPolicy::No,
            watchdog_ms: 0,
            lending: Default::default(),
            text: Default::default(),
            grid: GridSetup::default(),
            publish,
            volumes: Vec::new(),
            accept: Vec::new(),
            loop_with: Vec::new(),
            cleanup: CleanupPolicy::Keep,
        };
        let mut client = locked.client()?;
        let root = &self.context.root;
        Ok(cellctl::run(root, locked, &mut client, new, &mut |_| self.interrupts.check())?)
    }

    /// Requests numbers of primes, and checks the answers.
    fn primes(&self, port: SocketAddrV4) -> Result<Vec<PrimesView>, Failure> {
        let ask = |(number, right): (u64, u64)| {
            self.check()?;
            let begun = Instant::now();
            let count = count_primes(port, number)?;
            if count != right {
                let text = format!("primes counted {count} below {number}: there are {right}");
                return Err(Failure::new(1, text));
            }
            let took_ns = begun.elapsed().as_nanos() as u64;
            self.remark(&format!(
                "primes below {}: {}, counted in {}",
                human::count(number),
                human::count(count),
                human::duration_ns(took_ns)
            ));
            Ok(PrimesView { number, count, took_ns })
        };
        PRIMES.into_iter().map(ask).collect()
    }

    /// Waits while the load continues, and checks it.
    fn pass(&self, duration: Duration, load: &KvLoad) -> Result<(), Failure> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            self.check()?;
            if let Some(error) = load.failure() {
                return Err(Failure::new(1, format!("the key-value server missed a request: {error}")));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Runs a cell that crashes, waits for the crash, and removes the cell.
    fn crash(&self, locked: &LockedMachine) -> Result<CellView, Failure> {
        self.create(locked, VICTIM, CRASH_IMAGE, 1, &[CRASH_ARGUMENT], Vec::new())?;
        let end = Instant::now() + CRASH_LIMIT;
        let mut client = locked.client()?;
        loop {
            self.check()?;
            let cell = client.inspect(VICTIM)?;
            if cell.state == CellState::Crashed {
                let view = show::cell(&locked.dir, &cell);
                cellctl::remove(locked, &mut client, &cell)?;
                return Ok(view);
            }
            if cellctl::has_ended(&cell) || Instant::now() >= end {
                let text = format!("the cell that should crash is {} instead", show::state(&cell));
                return Err(Failure::new(1, text));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Stops and removes the cells.
    fn end(&self, locked: &LockedMachine) -> Result<(), Failure> {
        let mut client = locked.client()?;
        for name in ["kv", "primes"] {
            client.stop(name, STOP_TIMEOUT_MS, crate::client::ANSWER_TIMEOUT)?;
            let cell = client.inspect(name)?;
            cellctl::remove(locked, &mut client, &cell)?;
        }
        Ok(())
    }
}
