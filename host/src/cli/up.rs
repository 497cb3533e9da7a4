//! `isola up`: starts a machine.

use super::interrupt::{INTERRUPTED, Interrupts};
use super::{Context, Failure, complete, show};
use crate::image::SUPERVISOR;
use crate::machine::LockedMachine;
use crate::machine::accel;
use crate::machine::boot::{BootError, Lifetime, NewMachine, ProcessMode};
use crate::machine::options::{
    AcceleratorChoice, MAX_DEVICES, MachineModel, MachineOptions, Topology, Uplink,
};
use crate::machine::qemu::{Boot, Qemu};
use crate::machine::record::MachineKind;
use crate::machine::state::MachineDir;
use crate::names::MachineName;
use crate::output::human;
use crate::output::progress::Progress;
use clap::Args;
use isola_abi::size::ByteSize;
use std::ops::ControlFlow;
use std::process::ExitCode;

/// The block devices of a machine if none are asked for.
const DEFAULT_DISKS: u32 = 4;

/// Starts a machine with a supervisor, ready for cells
#[derive(Debug, Args)]
#[command(after_help = "\
The machine is a QEMU process that runs until `isola down`. It needs no privileges: with the network `user`, \
cells share a network of their own (10.0.2.0/24), reach the outside through QEMU, and are reachable by published \
ports. They cannot reach the services of this host, except with `user,host-access`: its 127.0.0.1 is then their 10.0.2.2. \
With `tap:INTERFACE` they are on the network of a TAP interface, which a privileged user must have created.

Examples:
  isola up                                a machine called `default`
  isola up test --cores 2 --machine microvm
  isola up --net user,host-access         cells may connect to 10.0.2.2:PORT, this host's 127.0.0.1:PORT
  isola up numa --cores 8 --threads 2 --nodes 2
  isola --on test run -d kv               a cell on the machine `test`")]
pub(super) struct Arguments {
    /// The machine's name
    #[arg(add = complete::machines())]
    name: Option<MachineName>,
    #[command(flatten)]
    options: OptionArguments,
}

/// The options of a machine.
#[derive(Debug, Args)]
pub(super) struct OptionArguments {
    /// Cores; the supervisor takes one
    #[arg(short, long, default_value_t = 4)]
    pub(super) cores: u32,
    /// Cores per physical core (siblings)
    #[arg(long, default_value_t = 1)]
    pub(super) threads: u32,
    /// NUMA nodes that share cores and memory equally
    #[arg(long, default_value_t = 1)]
    pub(super) nodes: u32,
    /// Memory
    #[arg(short, long, default_value = "1G")]
    pub(super) memory: ByteSize,
    /// Network devices: the number of cells that can have one
    #[arg(long, default_value_t = 8)]
    pub(super) nics: u32,
    /// Block devices: the number of volumes that its cells can have at one time [default: 4, or what --nics leaves]
    #[arg(long)]
    pub(super) disks: Option<u32>,
    /// The uplink of the network: user, user,host-access, tap:INTERFACE or tap:INTERFACE,queues=N
    #[arg(long, default_value = "user", value_name = "NETWORK")]
    pub(super) net: Uplink,
    #[command(flatten)]
    pub(super) platform: PlatformArguments,
}

/// The platform of a machine.
#[derive(Debug, Args)]
pub(super) struct PlatformArguments {
    /// The QEMU machine type
    #[arg(long, value_enum, default_value_t = MachineModel::Q35)]
    pub(super) machine: MachineModel,
    /// The accelerator: KVM if it works, or QEMU's emulator
    #[arg(long, value_enum, default_value_t = AcceleratorChoice::Auto)]
    pub(super) accel: AcceleratorChoice,
    /// The processor model, as QEMU names it
    #[arg(long, default_value = "max", value_name = "MODEL")]
    pub(super) cpu: String,
}

impl OptionArguments {
    /// Returns the options of a machine, validated.
    pub(super) fn options(&self) -> Result<MachineOptions, Failure> {
        let options = MachineOptions {
            cores: self.cores,
            topology: Topology { threads: self.threads, nodes: self.nodes },
            memory: self.memory,
            nics: self.nics,
            disks: self.disks.unwrap_or_else(|| DEFAULT_DISKS.min(MAX_DEVICES.saturating_sub(self.nics))),
            model: self.platform.machine,
            cpu: self.platform.cpu.clone(),
            uplink: self.net.clone(),
        };
        options.validate().map_err(|error| Failure::new(super::failure::USAGE, error.to_string()))?;
        Ok(options)
    }
}

pub(super) fn up(context: &Context, arguments: Arguments) -> Result<ExitCode, Failure> {
    let name = arguments.name.as_ref().unwrap_or(&context.machine);
    let options = arguments.options.options()?;
    let interrupts = Interrupts::count()?;
    let dir = context.root.machine(name);
    let locked =
        bring_up(context, &dir, options, arguments.options.platform.accel, Lifetime::Own, &mut || {
            interrupts.check()
        })?;
    let info = locked.client()?.machine()?;
    let view = show::machine(&locked, Some(&info));
    context.output.answer(&view, || {
        if context.output.verbosity == crate::output::Verbosity::Quiet {
            return name.to_string();
        }
        format!(
            "machine {name} is up: {} cores and {} for cells; ready after {} (its supervisor after {}), under {}",
            info.cores.len().saturating_sub(1),
            info.memory_free,
            human::maybe_duration_ns(locked.record.ready_us.map(|us| us * 1000)),
            human::duration_ns(info.boot_ns),
            locked.record.accelerator,
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a machine with a supervisor, with a progress display.
pub(super) fn bring_up(
    context: &Context,
    dir: &MachineDir,
    options: MachineOptions,
    choice: AcceleratorChoice,
    lifetime: Lifetime,
    interrupted: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<LockedMachine, Failure> {
    let qemu = Qemu::from_environment()?;
    let supervisor = context.images.find(SUPERVISOR)?;
    let supervisor = supervisor.canonicalize()?;
    let progress = Progress::waiting(&context.output, "starting the machine");
    let (accelerator, _) = accel::choose(choice, &qemu, &context.root, Some(&supervisor));
    let machine = NewMachine {
        options,
        accelerator,
        qemu: &qemu,
        kind: MachineKind::Supervised,
        lifetime,
        process_mode: ProcessMode::Detached,
    };
    let mut waiting = || {
        progress.tick();
        interrupted()
    };
    let boot = Boot::Supervisor { image: &supervisor };
    machine.start(&context.root, dir, boot, &mut waiting).map_err(|error| match error {
        BootError::Interrupted => Failure::new(INTERRUPTED, error.to_string()),
        error => error.into(),
    })
}
