//! `isola run --standalone`: a cell image on a virtual machine of its own, without a supervisor.
//!
//! The image has all cores and memory of the machine, one network device, and an address by DHCP. Its output goes to
//! the serial line. Its record is a machine record of the kind `standalone`, under the image's own name, which `ps`,
//! `logs`, `stop` and `rm` accept.

use super::failure::REFUSED;
use super::follow::{INTERVAL, start_of_last};
use super::interrupt::{INTERRUPTED, Interrupts};
use super::{Context, Failure};
use crate::cellctl::CellError;
use crate::image::CellImage;
use crate::machine::boot::{BootError, Lifetime, NewMachine, ProcessMode};
use crate::machine::network::NetworkRequest;
use crate::machine::options::MachineOptions;
use crate::machine::qemu::{Boot, DHCP_START, Qemu};
use crate::machine::record::{MachineKind, MachineRecord};
use crate::machine::state::MachineDir;
use crate::machine::{LockedMachine, MachineError, accel};
use crate::names::{self, MachineName};
use crate::output::human;
use crate::output::printable::Console;
use crate::output::view::PortView;
use crate::publish::{Publication, PublishSpec};
use crate::switch::fabric::Address;
use isola_abi::descriptor::NetworkAddress;
use isola_abi::volume::VolumeAccess;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;

/// Name of the file with the published ports in the machine's folder.
const PORTS_FILE: &str = "ports.json";

/// Name of the copy of the image in the machine's folder.
const IMAGE_FILE: &str = "image.elf";

/// A standalone image to run.
pub(super) struct StandaloneRun {
    pub(super) image: CellImage,
    pub(super) name: Option<String>,
    pub(super) options: MachineOptions,
    pub(super) choice: crate::machine::options::AcceleratorChoice,
    pub(super) address: Option<NetworkAddress>,
    pub(super) arguments: Vec<String>,
    pub(super) publish: Vec<PublishSpec>,
    pub(super) volumes: Vec<HostVolume>,
    pub(super) attachment: Attachment,
}

/// A volume of an image that runs without a supervisor.
pub(super) struct HostVolume {
    /// Its file on this host.
    pub(super) file: PathBuf,
    /// The path at which it is mounted.
    pub(super) path: String,
    /// What the image may do with it.
    pub(super) access: VolumeAccess,
}

/// Whether the command waits for the end of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    /// It prints the output, and ^C ends the image.
    Attached,
    /// It returns at once.
    Detached,
}

/// The JSON form of a standalone image.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StandaloneView {
    /// Always null: it is not on a machine with a supervisor.
    machine: Option<String>,
    /// The name.
    pub(super) name: String,
    /// `running` or `exited`.
    pub(super) state: &'static str,
    /// The name of the image.
    pub(super) image: String,
    /// The number of cores.
    pub(super) cores: u32,
    /// The amount of memory.
    memory_bytes: u64,
    /// The published ports.
    ports: Vec<PortView>,
    /// The time since its start.
    pub(super) uptime_ms: Option<u64>,
}

pub(super) fn run(context: &Context, image_run: StandaloneRun) -> Result<ExitCode, Failure> {
    if !image_run.publish.is_empty() && !image_run.options.uplink.is_user() {
        return Err(CellError::NotOnTap.into());
    }
    let qemu = Qemu::from_environment()?;
    let taken = |name: &str| context.root.machines().iter().any(|dir| dir.name.as_str() == name);
    let name = image_run.name.unwrap_or_else(|| names::generate(taken));
    let name: MachineName =
        name.parse().map_err(|error| Failure::new(super::failure::USAGE, format!("{error}")))?;
    let dir = context.root.machine(&name);
    let guest = image_run.address.map_or(DHCP_START.parse()?, |address| address.ip);
    let mut publish = Vec::new();
    for spec in &image_run.publish {
        let cell = SocketAddrV4::new(guest, spec.cell_port);
        publish.push(Publication { protocol: spec.protocol, host: spec.free_host_port()?, cell });
    }
    let command_line = command_line(&name, image_run.address, &image_run.volumes, &image_run.arguments)?;
    let interrupts = Interrupts::count()?;
    let supervisor = context.images.find(crate::image::SUPERVISOR).ok();
    let (accelerator, _) = accel::choose(image_run.choice, &qemu, &context.root, supervisor.as_deref());
    let attached = image_run.attachment == Attachment::Attached;
    let machine = NewMachine {
        options: image_run.options,
        accelerator,
        qemu: &qemu,
        kind: MachineKind::Standalone { image: image_run.image.name },
        lifetime: if attached { Lifetime::OfThisProcess } else { Lifetime::Own },
        process_mode: if attached { ProcessMode::Child } else { ProcessMode::Detached },
    };
    let path = image_run.image.path.canonicalize()?;
    let own = image_run.address.map_or(Address::Dhcp, |address| Address::Fixed(address.ip));
    let files: Vec<_> = image_run.volumes.into_iter().map(|volume| (volume.file, volume.access)).collect();
    let boot = Boot::Standalone {
        image: &path,
        command_line: &command_line,
        address: own,
        publish: &publish,
        volumes: &files,
    };
    let locked = machine.start(&context.root, &dir, boot, &mut || interrupts.check());
    let locked = locked.map_err(|error| match error {
        BootError::Interrupted => Failure::new(INTERRUPTED, error.to_string()),
        error => error.into(),
    })?;
    fs::copy(&path, dir.path().join(IMAGE_FILE))?;
    fs::write(dir.path().join(PORTS_FILE), serde_json::to_vec(&publish)?)?;
    if attached {
        return follow_until_end(context, locked, &interrupts);
    }
    context.output.answer(&view(&locked), || name.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the command line of a standalone image: options for the machine, then `--`, then the application's
/// arguments.
fn command_line(
    name: &MachineName,
    address: Option<NetworkAddress>,
    volumes: &[HostVolume],
    arguments: &[String],
) -> Result<String, Failure> {
    if let Some(bad) = arguments.iter().find(|word| word.is_empty() || word.contains(char::is_whitespace)) {
        let text =
            format!("a standalone image's arguments are separated by spaces: {bad:?} cannot be passed");
        return Err(Failure::new(super::failure::USAGE, text));
    }
    if let Some(bad) = volumes.iter().find(|volume| volume.path.contains(char::is_whitespace)) {
        let text =
            format!("a standalone image's words are separated by spaces: {:?} cannot be passed", bad.path);
        return Err(Failure::new(super::failure::USAGE, text));
    }
    let volume = |volume: &HostVolume| match volume.access {
        VolumeAccess::ReadWrite => format!(" volume={}", volume.path),
        VolumeAccess::ReadOnly => format!(" volume={}:ro", volume.path),
    };
    let volumes: String = volumes.iter().map(volume).collect();
    let address =
        address.map(|address| format!(" ip={}", NetworkRequest::Fixed(address))).unwrap_or_default();
    let arguments: String = arguments.iter().map(|word| format!(" {word}")).collect();
    Ok(format!("name={name}{address}{volumes} --{arguments}"))
}

/// Waits until an image has ended; returns its exit code.
fn follow_until_end(
    context: &Context,
    mut locked: LockedMachine,
    interrupts: &Interrupts,
) -> Result<ExitCode, Failure> {
    let end = follow(context, &locked, interrupts, 0);
    locked.end_qemu();
    let status = locked.child.take().map(|mut child| child.wait()).transpose()?;
    locked.down()?;
    Ok(match (end?, status.and_then(|status| status.code())) {
        (FollowEnd::Interrupted, _) => ExitCode::from(INTERRUPTED),
        (FollowEnd::Ended, Some(code)) => ExitCode::from(exit_code(code)),
        (FollowEnd::Ended, None) => ExitCode::from(REFUSED),
    })
}

/// Converts QEMU's exit code to the image's: QEMU's debug exit device encodes a code as `2 * code + 1`.
fn exit_code(qemu: i32) -> u8 {
    match qemu {
        0 => 0,
        odd if odd % 2 == 1 => (odd / 2) as u8,
        _ => REFUSED,
    }
}

/// The reason why a command stopped following the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowEnd {
    /// The image has ended.
    Ended,
    /// The user interrupted the command.
    Interrupted,
}

fn is_standalone(record: &MachineRecord) -> bool {
    matches!(record.kind, MachineKind::Standalone { .. })
}

/// Returns whether the machine is known to be a standalone image.
pub(super) fn is_alone(dir: &MachineDir) -> bool {
    MachineRecord::load(dir).is_ok_and(|record| record.is_some_and(|record| is_standalone(&record)))
}

/// Returns the standalone image of this name.
pub(super) fn find(context: &Context, name: &str) -> Result<Option<LockedMachine>, Failure> {
    let Ok(name) = name.parse::<MachineName>() else { return Ok(None) };
    let dir = context.root.machine(&name);
    if !is_alone(&dir) {
        return Ok(None);
    }
    match LockedMachine::take(&context.root, &dir) {
        Ok(locked) => Ok(Some(locked).filter(|locked| is_standalone(&locked.record))),
        Err(MachineError::NotUp { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the JSON form of a standalone image.
pub(super) fn view(locked: &LockedMachine) -> StandaloneView {
    let running = locked.is_running();
    let started = locked.record.started_unix_ms * 1_000_000;
    StandaloneView {
        machine: None,
        name: locked.dir.name.to_string(),
        state: if running { "running" } else { "exited" },
        image: match &locked.record.kind {
            MachineKind::Standalone { image } => image.clone(),
            MachineKind::Supervised => crate::image::SUPERVISOR.to_owned(),
        },
        cores: locked.record.options.cores,
        memory_bytes: locked.record.options.memory.0,
        ports: if running { ports(locked).iter().map(PortView::new).collect() } else { Vec::new() },
        uptime_ms: running.then(|| human::since(started).as_millis() as u64),
    }
}

/// Returns the published ports of a standalone image.
pub(super) fn ports(locked: &LockedMachine) -> Vec<Publication> {
    let file = fs::read(locked.dir.path().join(PORTS_FILE)).unwrap_or_default();
    serde_json::from_slice(&file).unwrap_or_default()
}

/// Prints the output; with `follow_on`, until the image ends.
pub(super) fn logs(
    context: &Context,
    locked: &LockedMachine,
    follow_on: bool,
    tail: Option<usize>,
) -> Result<ExitCode, Failure> {
    let mut first = match tail {
        Some(lines) => {
            start_of_last(lines, &std::fs::read(locked.dir.serial_log()).unwrap_or_default()) as u64
        }
        None => 0,
    };
    if follow_on {
        let interrupts = Interrupts::count()?;
        follow(context, locked, &interrupts, first)?;
    } else {
        print_new(context, &locked.dir, &mut first, &mut Console::default())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the output from a position on.
fn follow(
    context: &Context,
    locked: &LockedMachine,
    interrupts: &Interrupts,
    mut read: u64,
) -> Result<FollowEnd, Failure> {
    let mut console = Console::default();
    loop {
        // Reads the state before the file: if the image has ended, the file then contains all of its output.
        let running = locked.is_running();
        print_new(context, &locked.dir, &mut read, &mut console)?;
        if !running {
            return Ok(FollowEnd::Ended);
        }
        if interrupts.so_far() > 0 {
            return Ok(FollowEnd::Interrupted);
        }
        sleep(INTERVAL);
    }
}

fn print_new(
    context: &Context,
    dir: &MachineDir,
    read: &mut u64,
    console: &mut Console,
) -> Result<(), Failure> {
    // QEMU creates the file.
    let Ok(mut file) = File::open(dir.serial_log()) else { return Ok(()) };
    file.seek(SeekFrom::Start(*read))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    *read += bytes.len() as u64;
    context.output.console(console, &bytes)?;
    Ok(())
}
