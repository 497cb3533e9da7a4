//! `isola run`: creates a cell and starts it.

use super::attach::{AttachOutcome, ProgramStreams, relay};
use super::failure::{CRASHED, KILLED, REFUSED, USAGE};
use super::follow::Follower;
use super::hosted::{self, Hosted};
use super::interrupt::{INTERRUPTED, Interrupts};
use super::root::RootArguments;
use super::standalone::{Attachment, HostVolume, StandaloneRun};
use super::up::PlatformArguments;
use super::{Context, Failure, complete, show, standalone};
use crate::cellctl::sessions::{self, Session, SessionError};
use crate::cellctl::{self, CellError, NewCell};
use crate::client::ClientError;
use crate::grid_setup::{ActivityWeight, GridTable};
use crate::image::{CellImage, FindError, signing};
use crate::machine::LockedMachine;
use crate::machine::cells::CleanupPolicy;
use crate::machine::network::NetworkRequest;
use crate::machine::network_choice::NetworkChoice;
use crate::machine::options::{MachineModel, MachineOptions, Topology, Uplink};
use crate::manifest::{Manifest, ServiceKind, Wait, Watchdog};
use crate::output::error_line;
use crate::output::progress::Progress;
use crate::placement::{CoreIds, PlacementRequest};
use crate::publish::PublishSpec;
use crate::volume::VolumeSpec;
use crate::volume::store::VolumeStore;
use clap::Args;
use isola_abi::integrity::{ImageDigest, Requirement};
use isola_abi::management::{
    CellInfo, CellState, LendingSpec, ManagementError, PlacementPolicy, RestartPolicy, Text,
};
use isola_abi::session::SessionRequest;
use isola_abi::size::ByteSize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Exit code if isola could not run the cell.
const NOT_RUN: u8 = 125;

/// Exit code if the file is not a cell image.
const NO_CELL_IMAGE: u8 = 126;

/// Exit code if the image does not exist.
const NO_IMAGE: u8 = 127;

/// How long a new cell may take until its program can have its standard input.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause between two attempts.
const ATTACH_INTERVAL: Duration = Duration::from_millis(20);

/// How long a cell may take to stop after ^C.
const STOP_TIMEOUT_MS: u32 = 10_000;

/// The default amount of memory of a cell.
const DEFAULT_MEMORY: ByteSize = ByteSize(64 << 20);

/// Runs an image in a new cell
#[derive(Debug, Args)]
#[command(after_help = "\
IMAGE is a name, searched in ISOLA_IMAGES and beside isola itself, or a path (with a `/` in it). All \
arguments after it are for the application.

Without -d, the command prints the cell's output until the cell ends; ^C stops it, and a second ^C stops it by force. \
The exit code is the cell's, or 134 if it crashed, 137 if it was stopped by force, 125 if isola could \
not run it, 126 if the file is not a cell image, 127 if the image does not exist.

With --restart the machine itself restarts the cell, independently of any command: after 100 ms, then after \
twice as long each time, up to a minute; a run of 10 s resets the delay. `isola stop` ends the cell for good.

With --rootfs the image is `linux`, and all arguments are the Linux program with its own; those of an OCI image hold \
where the command line has no others. Changes of the root file system are in memory, and end with the cell.
With -i or -t, standard input and output are those of the program, if the image runs Linux programs; ^C is the program's \
with -t. The cell's own messages follow at its end, on the error output.

With --service block the image is `block`: each volume has the last part of its path as its name, and other cells mount it \
with -v NAME@CELL:PATH. Restart it by a policy: its clients wait up to a minute.
With --service files the image is `folders`: the directories in the root directory of its volumes are folders, which other \
cells mount in the same way; names after the options are those of the only ones, and of those to create.

With --service net the image is `net`: a switch between the cell's network device and the cells that run with \
--network dhcp@CELL, or ADDRESS/PREFIX@CELL, which take no device. They wait for the service cell at their start, and go on \
when it is restarted. With `nat NETWORK/BITS` after the options, the clients have addresses of that network by \
--network dhcp@CELL, and their packets leave with the address of the service cell; PORT:CELL:PORT after it publishes a port \
of a client at the service cell, whose -p publishes it on.

Ports are published on 127.0.0.1 unless an address is given, as in -p 0.0.0.0:80:80.

Examples:
  isola run -d --name kv --cores 2 --memory 64M -p 11211:11211 kv
  isola run -d --memory 64M --memory-max 1G kv
  isola run -d --cores 4 --placement siblings --node 1 kv
  isola run --rm primes 7001
  isola run -d --restart on-failure:5 kv
  isola run -d --cpu-limit 50% --net-rate 10M kv
  isola run -d -v site:/www:ro -p 8080:80 web
  isola run --rm --rootfs ./debian -- sh -c 'echo hello from $(uname -r)'
  isola run -d --rootfs oci:./redis:7 -v data:/data -p 6379:6379
  isola run -d --name store --service block -v data:/data --accept kv/data --restart always
  isola run -d --name kv -v data@store:/data kv
  isola run -d --name net --service net --accept '*' --restart always
  isola run -d --name web --network auto@net -p 8080:80 web
  isola run -d --name net --service net --accept '*' -p 8080 nat 10.77.0.0/16 8080:web:80
  isola run -d --name docs --service files -v data:/data --accept '*' --restart always web mail
  isola run -f isola.toml
  isola run --rm -it -v debian:/:ro linux -- bash
  isola run --standalone ./target/release/kv
  isola run --hosted -p 11211:11211 kv")]
pub(super) struct Arguments {
    // One list, so that arguments after the image are never parsed as options of isola.
    /// The image, and arguments for the application
    #[arg(value_names = ["IMAGE", "ARGUMENTS"], trailing_var_arg = true)]
    #[arg(add = complete::images(), required_unless_present_any = ["file", "rootfs", "service"])]
    command: Vec<String>,
    /// Reads settings from a manifest; options on the command line override it
    #[arg(short, long, value_name = "MANIFEST")]
    file: Option<PathBuf>,
    /// Returns as soon as the cell runs, and prints its name
    #[arg(short, long)]
    detach: bool,
    /// Passes standard input on to the program, whose output is binary then and not in the log
    #[arg(short, long, conflicts_with_all = ["detach", "standalone", "hosted", "restart"])]
    interactive: bool,
    /// Gives the program a terminal
    #[arg(short, long, conflicts_with_all = ["detach", "standalone", "hosted", "restart"])]
    tty: bool,
    /// The cell's name; generated by default
    #[arg(long)]
    name: Option<String>,
    /// The number of cores [default: 1, or all of --core-ids]
    #[arg(short, long)]
    cores: Option<u32>,
    /// The placement: compact, spread, or siblings (whole physical cores, shared with no other cell) [default: compact]
    #[arg(long, value_name = "POLICY", conflicts_with_all = ["standalone", "hosted"])]
    placement: Option<PlacementPolicy>,
    /// Only cores of this NUMA node
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["standalone", "hosted"])]
    node: Option<u32>,
    /// Only these cores, as in 2,5-7; if --cores is less, some of them
    #[arg(long, visible_alias = "cpuset-cpus", value_name = "CORES", conflicts_with_all = ["standalone", "hosted"])]
    core_ids: Option<CoreIds>,
    /// The priority, 0 to 255: it borrows cores and memory of cells of lower priority, see `isola borrow` [default: 0]
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["standalone", "hosted"])]
    priority: Option<u8>,
    /// The most cores that it lends to cells of higher priority [default: 0]
    #[arg(long, value_name = "CORES", conflicts_with_all = ["standalone", "hosted"])]
    lend: Option<u32>,
    /// Borrows a core by itself, for a second, when events wait longer than this: 100us, 2ms, off [default: off]
    #[arg(long, value_name = "TIME", conflicts_with_all = ["standalone", "hosted"])]
    borrow_above: Option<Wait>,
    /// The amount of memory [default: 64M]
    #[arg(short, long)]
    memory: Option<ByteSize>,
    /// The most memory, with growth on demand; standalone or hosted, it has all from the start [default: as --memory]
    #[arg(long, value_name = "MEMORY")]
    memory_max: Option<ByteSize>,
    /// The memory that it keeps: cells of higher priority borrow what else it has free [default: it lends none]
    #[arg(long, value_name = "MEMORY", conflicts_with_all = ["standalone", "hosted"])]
    memory_low: Option<ByteSize>,
    /// Gives it a copy of its code and constants, instead of one shared by all cells of the image
    #[arg(long, conflicts_with_all = ["standalone", "hosted"])]
    private_text: bool,
    /// Publishes a port: [IP:]HOST:CELL[/tcp|udp], or CELL for any free host port
    #[arg(short, long, value_name = "PORT")]
    publish: Vec<PublishSpec>,
    /// Mounts a volume: VOLUME:PATH or VOLUME:PATH:ro; VOLUME is a name (see `isola volume`), a file, as in ./data.img, or
    /// VOLUME@CELL, a volume that a service cell serves
    #[arg(short, long, value_name = "VOLUME")]
    volume: Vec<VolumeSpec>,
    /// Serves the cells that it accepts: `block` its volumes, `files` folders of its volumes, `net` its network device
    #[arg(long, value_name = "SERVICE", conflicts_with_all = ["standalone", "hosted", "rootfs"])]
    service: Option<ServiceKind>,
    /// Accepts channels of the cell with that name, or CELL/SERVICE: to one service, or volume, only; `*` stands for all
    /// cells [default: it accepts none]
    #[arg(long, value_name = "CELL", conflicts_with_all = ["standalone", "hosted"])]
    accept: Vec<String>,
    /// Keeps network traffic with the cell of that name in memory, if that cell agrees; `*` stands for all cells
    /// [default: all traffic takes the network device]
    #[arg(long = "loop", value_name = "CELL", conflicts_with_all = ["standalone", "hosted"])]
    loop_with: Vec<String>,
    /// The network: auto, dhcp, none, or ADDRESS/PREFIX[,GATEWAY]; with @CELL, as in dhcp@net, on the network device of that
    /// service cell [default: auto]
    #[arg(long)]
    network: Option<NetworkChoice>,
    /// The most of each core's time that it uses, as in 50%
    #[arg(long, value_name = "PERCENT", conflicts_with_all = ["standalone", "hosted"])]
    cpu_limit: Option<String>,
    /// The most bytes per second that each queue of its network device sends, as in 10M
    #[arg(long, value_name = "RATE", conflicts_with_all = ["standalone", "hosted"])]
    net_rate: Option<String>,
    /// The most bytes per second that each of its block devices transfers, as in 50M
    #[arg(long, value_name = "RATE", conflicts_with_all = ["standalone", "hosted"])]
    disk_rate: Option<String>,
    /// The weight of an activity at all its resources, as in web=300, with the policy wfq where no other is named
    #[arg(long, value_name = "ACTIVITY=WEIGHT", conflicts_with_all = ["standalone", "hosted"])]
    weight: Vec<ActivityWeight>,
    /// The time without progress after which it counts as crashed: 500ms, 5s, off [default: off]
    #[arg(long, value_name = "TIME")]
    watchdog: Option<Watchdog>,
    /// The restart policy: no, on-failure, on-failure:TIMES or always [default: no]
    #[arg(long, value_name = "POLICY", conflicts_with = "rm")]
    restart: Option<RestartPolicy>,
    /// The SHA-256 that the image must have, as `isola image digest` prints it
    #[arg(long, value_name = "DIGEST")]
    sha256: Option<ImageDigest>,
    /// The public key that must have signed the image: its digits, or its file
    #[arg(long, value_name = "KEY")]
    signed_by: Option<String>,
    /// Removes the cell after its end; with -d, the next `ps` or `run` removes it
    #[arg(long)]
    rm: bool,
    /// Boots the image on a virtual machine of its own, without a supervisor
    #[arg(long, conflicts_with = "restart")]
    standalone: bool,
    /// Runs the application as a process of this host, without a machine (built by `cargo hosted`)
    #[arg(long, conflicts_with_all = ["detach", "standalone", "watchdog", "restart"])]
    hosted: bool,
    /// With --standalone or --hosted, the network: user, user,host-access or tap:INTERFACE [default: user]
    #[arg(long, value_name = "NETWORK")]
    net: Option<Uplink>,
    #[command(flatten, next_help_heading = "Linux programs")]
    root: RootArguments,
    #[command(flatten, next_help_heading = "With --standalone")]
    platform: PlatformArguments,
}

pub(super) fn run(context: &Context, mut arguments: Arguments) -> Result<ExitCode, Failure> {
    let mut manifest = match &arguments.file {
        Some(path) => Manifest::read(path).map_err(|error| Failure::new(USAGE, error.to_string()))?,
        None => Manifest::default(),
    };
    if arguments.hosted && (arguments.root.rootfs.is_some() || manifest.rootfs.is_some()) {
        return Err(Failure::new(
            USAGE,
            "a root file system is for cells: leave out --hosted, as this host runs Linux programs by itself",
        ));
    }
    if let Some(service) = arguments.service.or(manifest.service) {
        arguments.command.insert(0, service.image().to_owned());
    }
    let program = arguments.root.prepare(&context.output, &arguments.command, &manifest);
    if let Some(program) = program.map_err(|failure| failure.or_code(NOT_RUN))? {
        arguments.command = program.command;
        arguments.volume = or_else(arguments.volume, std::mem::take(&mut manifest.volumes));
        if arguments.volume.iter().any(|volume| volume.path == "/") {
            return Err(Failure::new(
                USAGE,
                "a root file system and a volume at / exclude each other: leave one out",
            ));
        }
        arguments.volume.insert(0, program.root);
    }
    let named = arguments.command.first().or(manifest.image.as_ref());
    let named = named
        .ok_or_else(|| Failure::new(USAGE, "neither the manifest nor the command line names an image"))?;
    let demands = arguments.sha256.or(manifest.sha256).is_some()
        || arguments.signed_by.is_some()
        || manifest.signed_by.is_some();
    if demands && (arguments.hosted || arguments.standalone) {
        return Err(Failure::new(
            USAGE,
            "a supervisor checks digests and signatures of images, and these runs have none: leave \
                 sha256 and signed_by out, or run the image in a cell",
        ));
    }
    if manifest.grid != GridTable::default() && (arguments.hosted || arguments.standalone) {
        return Err(Failure::new(
            USAGE,
            "the manifest's table grid goes with cells: leave it out, or run the image in a cell",
        ));
    }
    if arguments.hosted {
        return run_hosted(context, arguments, manifest).map_err(|failure| failure.or_code(NOT_RUN));
    }
    let image = context.images.cell_image(named).map_err(|error| {
        let code = if matches!(error, FindError::Rejected { .. }) { NO_CELL_IMAGE } else { NO_IMAGE };
        Failure::new(code, error.to_string())
    })?;
    if arguments.standalone {
        return run_alone(context, arguments, manifest, image).map_err(|failure| failure.or_code(NOT_RUN));
    }
    let machine = arguments.platform.machine != MachineModel::Q35;
    let net = arguments.net.is_some();
    for (is_given, option, others) in
        [(machine, "--machine", "--standalone"), (net, "--net", "--standalone and --hosted")]
    {
        if is_given {
            let text = format!("{option} goes with {others}: other cells share a machine that is up");
            return Err(Failure::new(USAGE, text));
        }
    }
    if (arguments.interactive || arguments.tty) && !image.serves_sessions() {
        let text = format!("the image {named:?} reads no standard input: leave out -i and -t");
        return Err(Failure::new(NOT_RUN, text));
    }
    run_cell(context, arguments, manifest, image).map_err(|failure| failure.or_code(NOT_RUN))
}

fn run_cell(
    context: &Context,
    arguments: Arguments,
    manifest: Manifest,
    image: CellImage,
) -> Result<ExitCode, Failure> {
    let streams = ProgramStreams { input: arguments.interactive, terminal: arguments.tty };
    if let Some(mistake) = streams.mistake() {
        return Err(Failure::new(USAGE, mistake));
    }
    let interrupts = Interrupts::count()?;
    let given =
        PlacementRequest { policy: arguments.placement, node: arguments.node, core_ids: arguments.core_ids };
    let request = given.or(manifest.placement());
    let signed_by = arguments.signed_by.or(manifest.signed_by);
    let requirement = requirement(arguments.sha256.or(manifest.sha256), signed_by, &image)?;
    let grid = manifest.grid.setup(
        arguments.cpu_limit.as_deref(),
        arguments.net_rate.as_deref(),
        arguments.disk_rate.as_deref(),
        &arguments.weight,
    );
    let grid = grid.map_err(|message| Failure::new(USAGE, message))?;
    let new = NewCell {
        grid,
        image,
        requirement,
        name: arguments.name.or(manifest.name),
        cores: arguments.cores.or(manifest.cores).unwrap_or_else(|| request.cores()),
        placement: request.placement(),
        memory: arguments.memory.or(manifest.memory).unwrap_or(DEFAULT_MEMORY),
        memory_max: arguments.memory_max.or(manifest.memory_max),
        arguments: streams
            .image_arguments()
            .chain(or_else(application_arguments(arguments.command), manifest.arguments))
            .collect(),
        network: arguments.network.or(manifest.network).unwrap_or_default(),
        serves_network: arguments.service.or(manifest.service) == Some(ServiceKind::Net),
        restart: arguments.restart.or(manifest.restart).unwrap_or_default(),
        watchdog_ms: arguments.watchdog.or(manifest.watchdog).unwrap_or_default().ms,
        lending: LendingSpec {
            priority: arguments.priority.or(manifest.priority).unwrap_or_default(),
            lends: arguments.lend.or(manifest.lend).unwrap_or_default(),
            borrow_above_us: arguments.borrow_above.or(manifest.borrow_above).unwrap_or_default().us,
            memory_low: arguments.memory_low.or(manifest.memory_low),
        },
        text: if arguments.private_text { Text::Private } else { manifest.text.unwrap_or_default() },
        publish: or_else(arguments.publish, manifest.publish),
        volumes: or_else(arguments.volume, manifest.volumes),
        accept: or_else(arguments.accept, manifest.channels.accept),
        loop_with: or_else(arguments.loop_with, manifest.channels.loop_with),
        cleanup: if arguments.rm { CleanupPolicy::Remove } else { CleanupPolicy::Keep },
    };
    let dir = context.dir();
    let locked = LockedMachine::take_supervised(&context.root, &dir)?;
    let mut client = locked.client()?;
    let progress = Progress::bytes(&context.output, "sending the image", new.image.bytes.len() as u64);
    let started = cellctl::run(&context.root, &locked, &mut client, new, &mut |sent| {
        progress.at(sent);
        interrupts.check()
    });
    drop(progress);
    let cell = started.map_err(|error| match error {
        CellError::Client(ClientError::Interrupted) => {
            Failure::new(INTERRUPTED, "interrupted: no cell was created")
        }
        CellError::Client(ClientError::Refused(
            ManagementError::ImageRejected(_) | ManagementError::ImageNotTrusted(_),
        )) => Failure::new(NO_CELL_IMAGE, error.to_string()),
        error => error.into(),
    })?;
    if arguments.detach {
        context.output.answer(&show::cell(&dir, &cell), || cell.spec.name.clone())?;
        return Ok(ExitCode::SUCCESS);
    }
    // Releases the machine for other commands while this one follows the output.
    drop((client, locked));
    let name = &cell.spec.name;
    if streams.is_any() {
        return run_attached(context, name, streams, arguments.rm, &interrupts);
    }
    follow_until_end(context, Follower::new(dir, name), name, arguments.rm, &interrupts)
}

/// Connects standard input and output to the program of a cell, until it ends; returns its exit code.
fn run_attached(
    context: &Context,
    name: &str,
    streams: ProgramStreams,
    remove: bool,
    interrupts: &Interrupts,
) -> Result<ExitCode, Failure> {
    let opened = open_attached(context, name, streams, interrupts);
    let failure = match opened {
        Ok(Some(session)) => match relay(session, streams, interrupts) {
            // The cell ends, or has crashed: its state says what happened.
            Ok(AttachOutcome::Ended(_) | AttachOutcome::Lost(_) | AttachOutcome::Interrupted) => None,
            Ok(AttachOutcome::Failed(text, _)) => Some(Failure::new(NOT_RUN, text)),
            // The reader of the output is gone.
            Err(error) => Some(error.into()),
        },
        // The cell has ended already, or the user has interrupted.
        Ok(None) => None,
        Err(failure) => Some(failure),
    };
    if failure.is_some() {
        cellctl::stop(&context.root, &context.dir(), name, STOP_TIMEOUT_MS, &mut || interrupts.check())?;
    }
    let follower = Follower::new(context.dir(), name).on_error_output();
    let code = follow_until_end(context, follower, name, remove, interrupts)?;
    failure.map_or(Ok(code), Err)
}

/// Opens the session of a cell's program, as soon as the cell can serve it. Returns nothing if the cell has ended before, or
/// at a signal.
fn open_attached(
    context: &Context,
    name: &str,
    streams: ProgramStreams,
    interrupts: &Interrupts,
) -> Result<Option<Session>, Failure> {
    let end = Instant::now() + ATTACH_TIMEOUT;
    loop {
        let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
        let request = SessionRequest::Attach { size: streams.size() };
        match sessions::open(&context.root, &locked, &mut locked.client()?, name, request) {
            Ok(session) => return Ok(Some(session)),
            Err(SessionError::NotRunning { .. }) => return Ok(None),
            Err(SessionError::Refused { .. } | SessionError::NoAddress(_) | SessionError::NoAnswer(_))
                if Instant::now() < end => {}
            Err(error) => return Err(error.into()),
        }
        drop(locked);
        if interrupts.check().is_break() {
            return Ok(None);
        }
        sleep(ATTACH_INTERVAL);
    }
}

/// Returns the requirements for an image, with the signature beside it.
fn requirement(
    sha256: Option<ImageDigest>,
    signed_by: Option<String>,
    image: &CellImage,
) -> Result<Requirement, Failure> {
    let Some(key) = signed_by else { return Ok(Requirement { sha256, ..Requirement::default() }) };
    let signed_by = Some(signing::public_key(&key)?);
    Ok(Requirement { sha256, signed_by, signature: signing::read_signature(&image.path)? })
}

/// Follows a cell until it has ended; returns its exit code.
fn follow_until_end(
    context: &Context,
    mut follower: Follower,
    name: &str,
    remove: bool,
    interrupts: &Interrupts,
) -> Result<ExitCode, Failure> {
    let dir = context.dir();
    let cell = match follower.until_end(context, &mut || interrupts.check())? {
        Some(cell) => cell,
        None => {
            stop(context, name, interrupts)?;
            follower.turn(context)?
        }
    };
    if let Some(crash) = &cell.crash {
        // A crash is the outcome of the command, not a note: --quiet does not suppress it.
        let text = show::crash_text(name, &show::crash(&dir, &cell, crash));
        error_line(text.trim_end());
    }
    if remove {
        let locked = LockedMachine::take_supervised(&context.root, &dir)?;
        cellctl::remove(&locked, &mut locked.client()?, &cell)?;
    }
    Ok(ExitCode::from(exit_code(&cell)))
}

/// Stops a cell after ^C; by force after another ^C.
fn stop(context: &Context, name: &str, interrupts: &Interrupts) -> Result<(), Failure> {
    context.output.note("stopping the cell; ^C again stops it by force");
    let before = interrupts.so_far();
    let progress = Progress::waiting(&context.output, "waiting for the cell to stop");
    let stopped = cellctl::stop(&context.root, &context.dir(), name, STOP_TIMEOUT_MS, &mut || {
        progress.tick();
        if interrupts.so_far() > before {
            std::ops::ControlFlow::Break(())
        } else {
            std::ops::ControlFlow::Continue(())
        }
    });
    match stopped {
        Err(CellError::Client(ClientError::Interrupted)) => {
            let mut patient = || std::ops::ControlFlow::Continue(());
            cellctl::stop(&context.root, &context.dir(), name, 0, &mut patient)?;
            Ok(())
        }
        other => Ok(other.map(drop)?),
    }
}

fn exit_code(cell: &CellInfo) -> u8 {
    match (cell.state, cell.exit_code) {
        (CellState::Crashed, _) => CRASHED,
        (CellState::Killed, _) => KILLED,
        // Only the low byte is visible, as with a process; a code other than zero must not become zero.
        (_, Some(code)) => match code as u8 {
            0 if code != 0 => REFUSED,
            low => low,
        },
        (_, None) => 0,
    }
}

fn run_hosted(context: &Context, arguments: Arguments, manifest: Manifest) -> Result<ExitCode, Failure> {
    let named = arguments.command.first().or(manifest.image.as_ref()).map_or("", String::as_str);
    let program = context.images.hosted(named).map_err(|error| {
        let code = if matches!(error, FindError::NotHosted(_)) { NO_CELL_IMAGE } else { NO_IMAGE };
        Failure::new(code, error.to_string())
    })?;
    let memory = whole_memory(&arguments, &manifest);
    let hosted = Hosted {
        program,
        name: arguments.name.or(manifest.name),
        cores: arguments.cores.or(manifest.cores).unwrap_or(1),
        memory,
        uplink: arguments.net.unwrap_or(Uplink::User),
        network: own_network(arguments.network.or(manifest.network))?,
        publish: or_else(arguments.publish, manifest.publish),
        volumes: host_volumes(&or_else(arguments.volume, manifest.volumes))?,
        arguments: or_else(application_arguments(arguments.command), manifest.arguments),
    };
    hosted::run(context, hosted)
}

/// Returns the memory of a cell without a supervisor: the most that it may have, from the start, as the host allocates
/// memory only when it is touched.
fn whole_memory(arguments: &Arguments, manifest: &Manifest) -> Option<ByteSize> {
    let most = arguments.memory_max.or(manifest.memory_max);
    most.max(arguments.memory.or(manifest.memory))
}

/// Returns the network of a run without a supervisor.
fn own_network(choice: Option<NetworkChoice>) -> Result<NetworkRequest, Failure> {
    choice.unwrap_or_default().of_machine().map_err(|error| Failure::new(USAGE, error.to_string()))
}

fn run_alone(
    context: &Context,
    arguments: Arguments,
    manifest: Manifest,
    image: CellImage,
) -> Result<ExitCode, Failure> {
    let memory = whole_memory(&arguments, &manifest).unwrap_or(DEFAULT_MEMORY);
    let (nics, address) = match own_network(arguments.network.or(manifest.network))? {
        NetworkRequest::None => (0, None),
        NetworkRequest::Auto | NetworkRequest::Dhcp => (1, None),
        NetworkRequest::Fixed(address) => (1, Some(address)),
    };
    let volumes = host_volumes(&or_else(arguments.volume, manifest.volumes))?;
    let image_run = StandaloneRun {
        image,
        name: arguments.name.or(manifest.name),
        options: MachineOptions {
            cores: arguments.cores.or(manifest.cores).unwrap_or(1),
            topology: Topology::default(),
            memory,
            nics,
            disks: volumes.len() as u32,
            model: arguments.platform.machine,
            cpu: arguments.platform.cpu,
            uplink: arguments.net.unwrap_or(Uplink::User),
        },
        choice: arguments.platform.accel,
        address,
        arguments: or_else(application_arguments(arguments.command), manifest.arguments),
        publish: or_else(arguments.publish, manifest.publish),
        volumes,
        attachment: if arguments.detach { Attachment::Detached } else { Attachment::Attached },
    };
    standalone::run(context, image_run)
}

/// Returns the files of the volumes of an image that runs without a supervisor.
fn host_volumes(volumes: &[VolumeSpec]) -> Result<Vec<HostVolume>, Failure> {
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    let store = VolumeStore::from_environment()?;
    let resolve = |volume: &VolumeSpec| {
        Ok(HostVolume {
            file: store.resolve(&volume.source)?,
            path: volume.path.clone(),
            access: volume.access,
        })
    };
    volumes.iter().map(resolve).collect()
}

/// Returns the arguments after the image.
fn application_arguments(mut command: Vec<String>) -> Vec<String> {
    command.drain(..command.len().min(1));
    command
}

fn or_else<T>(given: Vec<T>, written: Vec<T>) -> Vec<T> {
    if given.is_empty() { written } else { given }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::cell;

    #[test]
    fn the_exit_code_is_the_cell_s_and_never_hides_a_failure() {
        let ended = |state, code| exit_code(&CellInfo { state, exit_code: code, ..cell("kv") });
        assert_eq!(ended(CellState::Exited, Some(0)), 0);
        assert_eq!(ended(CellState::Exited, Some(3)), 3);
        assert_eq!(ended(CellState::Exited, Some(-1)), 255);
        assert_eq!(ended(CellState::Exited, Some(256)), 1);
        assert_eq!(ended(CellState::Crashed, None), CRASHED);
        assert_eq!(ended(CellState::Killed, None), KILLED);
    }
}
