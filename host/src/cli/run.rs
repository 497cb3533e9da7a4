//! `isola run`: creates a cell and starts it.

use super::failure::{REFUSED, USAGE};
use super::follow::Follower;
use super::hosted::{self, Hosted};
use super::interrupt::{INTERRUPTED, Interrupts};
use super::standalone::{Alone, Attachment};
use super::up::PlatformArguments;
use super::{Context, Failure, complete, show, standalone};
use crate::cellctl::{self, CellError, NewCell};
use crate::client::ClientError;
use crate::image::{CellImage, FindError, signing};
use crate::machine::Held;
use crate::machine::cells::Afterwards;
use crate::machine::network::NetworkRequest;
use crate::machine::options::{MachineModel, MachineOptions, Topology, Uplink};
use crate::manifest::{Manifest, Wait, Watchdog};
use crate::output::error_line;
use crate::output::progress::Progress;
use crate::placement::{CoreIds, PlacementRequest};
use crate::publish::PublishSpec;
use clap::Args;
use isola_abi::integrity::{ImageDigest, Requirement};
use isola_abi::management::{
    CellInfo, CellState, LendingSpec, ManagementError, PlacementPolicy, RestartPolicy, Text,
};
use isola_abi::size::ByteSize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code where isola could not run the cell.
const NOT_RUN: u8 = 125;

/// Exit code where the image is no cell image.
const NO_CELL_IMAGE: u8 = 126;

/// Exit code where there is no such image.
const NO_IMAGE: u8 = 127;

/// Exit code where the cell crashed: what a shell gives a program that aborts.
pub(super) const CRASHED: u8 = 134;

/// Exit code where the cell was stopped by force: what a shell gives a program that is killed.
pub(super) const KILLED: u8 = 137;

/// How long a cell may take to stop after ^C.
const STOP_TIMEOUT_MS: u32 = 10_000;

/// Memory of a cell for which none is given.
const DEFAULT_MEMORY: ByteSize = ByteSize(64 << 20);

/// Runs an image in a cell of its own
#[derive(Debug, Args)]
#[command(after_help = "\
IMAGE is a name, looked for in ISOLA_IMAGES and beside isola itself, or a path (with a `/` in it). All that \
follows it is for the application.

Without -d, what the cell prints is printed until it ends; ^C stops it, and a second ^C stops it by force. The \
cell's exit code is returned, or 134 where it crashed, 137 where it was stopped by force, 125 where isola could \
not run it, 126 where the image is no cell image, 127 where there is no such image.

With --restart the machine itself starts the cell again, whether anybody looks or not: after 100 ms, then after \
twice as long each time, up to a minute; a cell that has run for 10 s begins anew. `isola stop` ends it for good.

Ports are published on 127.0.0.1 unless an address is given, as in -p 0.0.0.0:80:80.

Examples:
  isola run -d --name kv --cores 2 --memory 64M -p 11211:11211 kv
  isola run -d --memory 64M --memory-max 1G kv
  isola run -d --cores 4 --placement siblings --node 1 kv
  isola run --rm primes 7001
  isola run -d --restart on-failure:5 kv
  isola run -f isola.toml
  isola run --standalone ./target/release/kv
  isola run --hosted -p 11211:11211 kv")]
pub(super) struct Arguments {
    // One list, so that what follows the image is never taken for options of isola.
    /// The image, and arguments for the application
    #[arg(value_names = ["IMAGE", "ARGUMENTS"], trailing_var_arg = true)]
    #[arg(add = complete::images(), required_unless_present = "file")]
    command: Vec<String>,
    /// Reads the rest from a manifest; what is given here as well goes first
    #[arg(short, long, value_name = "MANIFEST")]
    file: Option<PathBuf>,
    /// Returns as soon as the cell runs, and prints its name
    #[arg(short, long)]
    detach: bool,
    /// The cell's name; made up where none is given
    #[arg(long)]
    name: Option<String>,
    /// How many cores [default: 1, or all of --core-ids]
    #[arg(short, long)]
    cores: Option<u32>,
    /// How they lie: compact, spread, or siblings (whole physical cores, shared with no other cell) [default: compact]
    #[arg(long, value_name = "POLICY", conflicts_with_all = ["standalone", "hosted"])]
    placement: Option<PlacementPolicy>,
    /// Only cores of this NUMA node
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["standalone", "hosted"])]
    node: Option<u32>,
    /// Only these cores, as in 2,5-7; where --cores is less, some of them
    #[arg(long, visible_alias = "cpuset-cpus", value_name = "CORES", conflicts_with_all = ["standalone", "hosted"])]
    core_ids: Option<CoreIds>,
    /// How important it is, 0 to 255: it borrows cores from cells of lower priority, see `isola borrow` [default: 0]
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["standalone", "hosted"])]
    priority: Option<u8>,
    /// How many of its cores it lends to cells of higher priority, at most [default: 0]
    #[arg(long, value_name = "CORES", conflicts_with_all = ["standalone", "hosted"])]
    lend: Option<u32>,
    /// It borrows a core by itself, for a second, when events wait longer for its cores: 100us, 2ms, off [default: off]
    #[arg(long, value_name = "TIME", conflicts_with_all = ["standalone", "hosted"])]
    borrow_above: Option<Wait>,
    /// How much memory [default: 64M]
    #[arg(short, long)]
    memory: Option<ByteSize>,
    /// How much memory it may have when it asks for more while it runs; at once, alone or hosted [default: as --memory]
    #[arg(long, value_name = "MEMORY")]
    memory_max: Option<ByteSize>,
    /// Gives it a copy of its code and constants; otherwise all cells of an image read one [default: shared]
    #[arg(long, conflicts_with_all = ["standalone", "hosted"])]
    private_text: bool,
    /// Publishes a port: [IP:]HOST:CELL[/tcp|udp], or CELL for whichever host port is free
    #[arg(short, long, value_name = "PORT")]
    publish: Vec<PublishSpec>,
    /// auto, dhcp, none, or ADDRESS/PREFIX[,GATEWAY] [default: auto]
    #[arg(long)]
    network: Option<NetworkRequest>,
    /// When a cell that stands still has crashed: 500ms, 5s, off [default: off]
    #[arg(long, value_name = "TIME")]
    watchdog: Option<Watchdog>,
    /// Whether it is started again when it has ended: no, on-failure, on-failure:TIMES or always [default: no]
    #[arg(long, value_name = "POLICY", conflicts_with = "rm")]
    restart: Option<RestartPolicy>,
    /// The SHA-256 that the image must have, as `isola image digest` prints it
    #[arg(long, value_name = "DIGEST")]
    sha256: Option<ImageDigest>,
    /// The public key that the image must be signed by: its digits, or its file
    #[arg(long, value_name = "KEY")]
    signed_by: Option<String>,
    /// Removes the cell when it has ended; with -d, the first `ps` or `run` that sees it does
    #[arg(long)]
    rm: bool,
    /// Boots the image alone on a virtual machine, without a supervisor
    #[arg(long, conflicts_with = "restart")]
    standalone: bool,
    /// Runs the application as a process of this host, without a machine (built by `cargo hosted`)
    #[arg(long, conflicts_with_all = ["detach", "standalone", "watchdog", "restart"])]
    hosted: bool,
    /// With --standalone or --hosted, the network: user, user,host-access or tap:INTERFACE [default: user]
    #[arg(long, value_name = "NETWORK")]
    net: Option<Uplink>,
    #[command(flatten, next_help_heading = "With --standalone")]
    platform: PlatformArguments,
}

pub(super) fn run(context: &Context, arguments: Arguments) -> Result<ExitCode, Failure> {
    let manifest = match &arguments.file {
        Some(path) => Manifest::read(path).map_err(|error| Failure::new(USAGE, error.to_string()))?,
        None => Manifest::default(),
    };
    let named = arguments.command.first().or(manifest.image.as_ref());
    let named = named.ok_or_else(|| Failure::new(USAGE, "the manifest names no image, and none is given"))?;
    let demands = arguments.sha256.or(manifest.sha256).is_some()
        || arguments.signed_by.is_some()
        || manifest.signed_by.is_some();
    if demands && (arguments.hosted || arguments.standalone) {
        return Err(Failure::new(
            USAGE,
            "what is demanded of an image is checked by a machine's supervisor, and there is none: leave \
             sha256 and signed_by out, or run the image in a cell",
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
    run_cell(context, arguments, manifest, image).map_err(|failure| failure.or_code(NOT_RUN))
}

fn run_cell(
    context: &Context,
    arguments: Arguments,
    manifest: Manifest,
    image: CellImage,
) -> Result<ExitCode, Failure> {
    let interrupts = Interrupts::count()?;
    let given =
        PlacementRequest { policy: arguments.placement, node: arguments.node, core_ids: arguments.core_ids };
    let request = given.or(manifest.placement());
    let signed_by = arguments.signed_by.or(manifest.signed_by);
    let requirement = requirement(arguments.sha256.or(manifest.sha256), signed_by, &image)?;
    let new = NewCell {
        image,
        requirement,
        name: arguments.name.or(manifest.name),
        cores: arguments.cores.or(manifest.cores).unwrap_or_else(|| request.cores()),
        placement: request.placement(),
        memory: arguments.memory.or(manifest.memory).unwrap_or(DEFAULT_MEMORY),
        memory_max: arguments.memory_max.or(manifest.memory_max),
        arguments: or_else(application_arguments(arguments.command), manifest.arguments),
        network: arguments.network.or(manifest.network).unwrap_or_default(),
        restart: arguments.restart.or(manifest.restart).unwrap_or_default(),
        watchdog_ms: arguments.watchdog.or(manifest.watchdog).unwrap_or_default().ms,
        lending: LendingSpec {
            priority: arguments.priority.or(manifest.priority).unwrap_or_default(),
            lends: arguments.lend.or(manifest.lend).unwrap_or_default(),
            borrow_above_us: arguments.borrow_above.or(manifest.borrow_above).unwrap_or_default().us,
        },
        text: if arguments.private_text { Text::Private } else { manifest.text.unwrap_or_default() },
        publish: or_else(arguments.publish, manifest.publish),
        afterwards: if arguments.rm { Afterwards::Remove } else { Afterwards::Keep },
    };
    let dir = context.dir();
    let held = Held::take_supervised(&context.root, &dir)?;
    let mut client = held.client()?;
    let progress = Progress::bytes(&context.output, "sending the image", new.image.bytes.len() as u64);
    let started = cellctl::run(&context.root, &held, &mut client, new, &mut |sent| {
        progress.at(sent);
        interrupts.check()
    });
    drop(progress);
    let cell = started.map_err(|error| match error {
        CellError::Client(ClientError::Interrupted) => {
            Failure::new(INTERRUPTED, "interrupted: no cell was made")
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
    // Others get their turn at the machine while this command reads along.
    drop((client, held));
    attend(context, &cell.spec.name, arguments.rm, &interrupts)
}

/// What an image must be, with the signature that it has.
fn requirement(
    sha256: Option<ImageDigest>,
    signed_by: Option<String>,
    image: &CellImage,
) -> Result<Requirement, Failure> {
    let Some(key) = signed_by else { return Ok(Requirement { sha256, ..Requirement::default() }) };
    let signed_by = Some(signing::public_key(&key)?);
    Ok(Requirement { sha256, signed_by, signature: signing::read_signature(&image.path)? })
}

/// Stays with a cell until it has ended; returns its exit code.
fn attend(context: &Context, name: &str, remove: bool, interrupts: &Interrupts) -> Result<ExitCode, Failure> {
    let dir = context.dir();
    let mut follower = Follower::new(dir.clone(), name);
    let cell = match follower.until_end(context, &mut || interrupts.check())? {
        Some(cell) => cell,
        None => {
            stop(context, name, interrupts)?;
            follower.turn(context)?
        }
    };
    if let Some(crash) = &cell.crash {
        // That the cell crashed is the outcome, not a remark: it is told even where remarks are not wanted.
        let text = show::crash_text(name, &show::crash(&dir, &cell, crash));
        error_line(text.trim_end());
    }
    if remove {
        let held = Held::take_supervised(&context.root, &dir)?;
        cellctl::remove(&held, &mut held.client()?, &cell)?;
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
        // As with a process, only the low byte is seen outside, and what is not zero must not look like it.
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
        network: arguments.network.or(manifest.network).unwrap_or_default(),
        publish: or_else(arguments.publish, manifest.publish),
        arguments: or_else(application_arguments(arguments.command), manifest.arguments),
    };
    hosted::run(context, hosted)
}

/// The memory of a cell that no supervisor looks after: at once the most that it may have. The host gives it memory when
/// it is touched anyway.
fn whole_memory(arguments: &Arguments, manifest: &Manifest) -> Option<ByteSize> {
    let most = arguments.memory_max.or(manifest.memory_max);
    most.max(arguments.memory.or(manifest.memory))
}

fn run_alone(
    context: &Context,
    arguments: Arguments,
    manifest: Manifest,
    image: CellImage,
) -> Result<ExitCode, Failure> {
    let memory = whole_memory(&arguments, &manifest).unwrap_or(DEFAULT_MEMORY);
    let network = arguments.network.or(manifest.network).unwrap_or_default();
    let (nics, address) = match network {
        NetworkRequest::None => (0, None),
        NetworkRequest::Auto | NetworkRequest::Dhcp => (1, None),
        NetworkRequest::Fixed(address) => (1, Some(address)),
    };
    let alone = Alone {
        image,
        name: arguments.name.or(manifest.name),
        options: MachineOptions {
            cores: arguments.cores.or(manifest.cores).unwrap_or(1),
            topology: Topology::default(),
            memory,
            nics,
            model: arguments.platform.machine,
            cpu: arguments.platform.cpu,
            uplink: arguments.net.unwrap_or(Uplink::User),
        },
        choice: arguments.platform.accel,
        address,
        arguments: or_else(application_arguments(arguments.command), manifest.arguments),
        publish: or_else(arguments.publish, manifest.publish),
        attachment: if arguments.detach { Attachment::Detached } else { Attachment::Attached },
    };
    standalone::run(context, alone)
}

/// What follows the image.
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
    fn an_exit_code_is_the_cell_s_and_never_hides_a_failure() {
        let ended = |state, code| exit_code(&CellInfo { state, exit_code: code, ..cell("kv") });
        assert_eq!(ended(CellState::Exited, Some(0)), 0);
        assert_eq!(ended(CellState::Exited, Some(3)), 3);
        assert_eq!(ended(CellState::Exited, Some(-1)), 255);
        assert_eq!(ended(CellState::Exited, Some(256)), 1);
        assert_eq!(ended(CellState::Crashed, None), CRASHED);
        assert_eq!(ended(CellState::Killed, None), KILLED);
    }
}
