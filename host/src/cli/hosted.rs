//! `isola run --hosted`: an application as a process of this host, without a machine.
//!
//! The process is a child of the command, in a process group of its own: ^C reaches the command only, which stops the
//! cell with SIGTERM, and with SIGKILL at a second ^C. The process never outlives the command.

use super::failure::USAGE;
use super::interrupt::Interrupts;
use super::standalone::HostVolume;
use super::{Context, Failure};
use crate::hosted_cells::{self, MAX_NAME_BYTES};
use crate::machine::network::NetworkRequest;
use crate::machine::options::Uplink;
use crate::publish::PublishSpec;
use isola_abi::hosted::{Forward, HostedNetwork, HostedSpec, HostedVolume, VARIABLE};
use isola_abi::id::MAX_CORES;
use isola_abi::size::ByteSize;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread::sleep;
use std::time::Duration;

/// The polling interval for the process and ^C.
const INTERVAL: Duration = Duration::from_millis(10);

/// The default amount of memory of a hosted cell.
const DEFAULT_MEMORY: ByteSize = ByteSize(256 << 20);

/// An application to run as a process.
pub(super) struct Hosted {
    pub(super) program: PathBuf,
    pub(super) name: Option<String>,
    pub(super) cores: u32,
    pub(super) memory: Option<ByteSize>,
    pub(super) uplink: Uplink,
    pub(super) network: NetworkRequest,
    pub(super) publish: Vec<PublishSpec>,
    pub(super) volumes: Vec<HostVolume>,
    pub(super) arguments: Vec<String>,
}

pub(super) fn run(context: &Context, hosted: Hosted) -> Result<ExitCode, Failure> {
    let spec = spec(context, &hosted)?;
    let interrupts = Interrupts::count()?;
    let mut command = Command::new(&hosted.program);
    command.args(&hosted.arguments).env(VARIABLE, spec.to_string()).process_group(0);
    let _control = spec.control.as_ref().map(|path| Control { path: path.into() });
    let child = command.spawn().map_err(|error| {
        Failure::new(
            super::failure::REFUSED,
            format!("{} cannot be started: {error}", hosted.program.display()),
        )
    })?;
    wait_for_exit(child, &interrupts)
}

/// Returns the specification that the process gets.
fn spec(context: &Context, hosted: &Hosted) -> Result<HostedSpec, Failure> {
    let usage = |text: String| Failure::new(USAGE, text);
    if !(1..=MAX_CORES as u32).contains(&hosted.cores) {
        return Err(usage(format!("a cell has 1 to {MAX_CORES} cores, not {}", hosted.cores)));
    }
    if let Some(name) =
        hosted.name.as_ref().filter(|name| name.is_empty() || name.contains(char::is_whitespace))
    {
        return Err(usage(format!("{name:?} is no name for a cell: use letters, digits and hyphens")));
    }
    let network = match (&hosted.uplink, hosted.network) {
        (_, NetworkRequest::None) => HostedNetwork::None,
        // The gateway is a process of the user, so it reaches the host's services in any case.
        (Uplink::User | Uplink::UserWithHost, NetworkRequest::Auto) => HostedNetwork::User,
        (Uplink::User | Uplink::UserWithHost, _) => {
            return Err(usage(
                "a hosted cell on the user-mode network has a fixed address: leave --network out, or use --net tap:INTERFACE"
                    .into(),
            ));
        }
        (Uplink::Tap { queues: Some(_), .. }, _) => {
            return Err(usage(
                "a hosted cell has a queue a core where the interface has several: leave queues= out".into(),
            ));
        }
        (Uplink::Tap { interface, queues: None }, request) => {
            let address = if let NetworkRequest::Fixed(address) = request { Some(address) } else { None };
            HostedNetwork::Tap { interface: interface.clone(), address }
        }
    };
    if !hosted.publish.is_empty() && network != HostedNetwork::User {
        return Err(usage(
            "-p goes with the user-mode network: on a TAP interface the cell is reached at its own address"
                .into(),
        ));
    }
    let forwards =
        hosted.publish.iter().map(|request| forward(context, request)).collect::<Result<_, Failure>>()?;
    Ok(HostedSpec {
        name: hosted.name.clone(),
        cores: hosted.cores,
        memory: hosted.memory.unwrap_or(DEFAULT_MEMORY),
        network,
        forwards,
        volumes: hosted.volumes.iter().map(volume).collect::<Result<_, Failure>>()?,
        control: control(context, hosted),
        parent: Some(std::process::id()),
    })
}

/// Returns a volume in the form of the specification.
fn volume(volume: &HostVolume) -> Result<HostedVolume, Failure> {
    let HostVolume { file, path, access } = volume;
    let file = file.to_str().ok_or_else(|| {
        Failure::new(USAGE, format!("the path {} of a volume is not UTF-8: rename it", file.display()))
    })?;
    Ok(HostedVolume { file: file.to_owned(), path: path.clone(), access: *access })
}

/// A control socket, whose file is removed when this is dropped.
struct Control {
    path: PathBuf,
}

impl Drop for Control {
    fn drop(&mut self) {
        // If the process was not started, there is no file.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the path of the socket at which the process listens for queries; prints a note and returns `None` if there
/// can be no socket, as the process can run without one.
fn control(context: &Context, hosted: &Hosted) -> Option<String> {
    let program = || hosted.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = hosted.name.clone().unwrap_or_else(program);
    let why = match (hosted_cells::socket(&context.root, &name), hosted_cells::find(&context.root, &name)) {
        (None, _) => format!("a name of 1 to {MAX_NAME_BYTES} bytes without '/' is needed, not {name:?}"),
        (_, Ok(Some(_))) => format!("another hosted cell is called {name:?}"),
        (_, Err(error)) => format!("another hosted cell called {name:?} does not answer ({error})"),
        (Some(path), Ok(None)) => match path.to_str() {
            Some(path) => return Some(path.to_owned()),
            None => format!("the path {} is not UTF-8", path.display()),
        },
    };
    context.output.note(&format!("note: this cell cannot be inspected: {why}; give it another --name"));
    None
}

fn forward(context: &Context, request: &PublishSpec) -> Result<Forward, Failure> {
    let host = request.free_host_port()?;
    if request.host_port == 0 {
        context.output.note(&format!(
            "port {} of the cell is published on {host}/{}",
            request.cell_port, request.protocol
        ));
    }
    Ok(Forward { transport: request.protocol, host, cell_port: request.cell_port })
}

/// Waits until the process has ended; returns its exit code.
fn wait_for_exit(mut child: Child, interrupts: &Interrupts) -> Result<ExitCode, Failure> {
    let mut sent = 0;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(ExitCode::from(exit_code(status)));
        }
        let wanted = interrupts.so_far();
        if wanted > sent {
            let signal = if sent == 0 { Signal::TERM } else { Signal::KILL };
            sent = wanted;
            // If the process has ended meanwhile, the next iteration detects it.
            let pid = Pid::from_child(&child);
            let _ = kill_process(pid, signal);
        }
        sleep(INTERVAL);
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) if signal == Signal::KILL.as_raw() => super::failure::KILLED,
        (None, _) => super::failure::CRASHED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_distinguish_crashes_and_kills() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(Signal::KILL.as_raw())), 137);
        assert_eq!(exit_code(ExitStatus::from_raw(Signal::ABORT.as_raw())), 134);
        assert_eq!(exit_code(ExitStatus::from_raw(Signal::SEGV.as_raw())), 134);
    }
}
