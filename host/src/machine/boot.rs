//! Starts a machine, step by step.
//!
//! 1. remove the files of a dead machine of the same name, and take the lock
//! 2. create the folder with a record that names this process as the owner: from here on `isola down` finds the machine
//! 3. start the switch if the machine needs one, then QEMU, which detaches itself once its sockets exist
//! 4. send `Hello` to the supervisor until it answers
//! 5. save in the record that the machine is up and has no owner any more

use super::lock::MachineLock;
use super::options::{Accelerator, MachineOptions};
use super::process::Process;
use super::qemu::{self, Boot, Qemu};
use super::record::{FORMAT, MachineKind, MachineRecord};
use super::state::{MachineDir, StateError, StateRoot};
use super::switch::{self, StartingSwitch, SwitchError};
use super::{LockedMachine, MachineError, clean_up, logs_tail};
use crate::client::{Client, ClientError};
use crate::switch::fabric::Address;
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// How long QEMU may take to create its sockets.
const LAUNCH_LIMIT: Duration = Duration::from_secs(20);

/// How long a supervisor may take to its first answer.
pub const READY_LIMIT: Duration = Duration::from_secs(30);

/// The reasons why a machine did not start. Nothing remains of it.
#[derive(Debug, Error)]
pub enum BootError {
    /// The machine is not available.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// QEMU did not start.
    #[error("QEMU did not start: {message}")]
    Launch {
        /// QEMU's error message.
        message: String,
    },
    /// The network switch did not start, or QEMU did not connect to it.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The supervisor did not answer.
    #[error("the supervisor did not come up: {reason}; the end of the machine's log:\n{tail}")]
    Supervisor {
        /// The cause.
        reason: String,
        /// The end of the machine's logs.
        tail: String,
    },
    /// The user interrupted the command.
    #[error("interrupted: the machine is down again")]
    Interrupted,
}

impl From<StateError> for BootError {
    fn from(error: StateError) -> Self {
        Self::Machine(error.into())
    }
}

/// The lifetime of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until a command ends it.
    Own,
    /// At most the lifetime of the process that starts it.
    OfThisProcess,
}

/// The relation of QEMU to the command that starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessMode {
    /// A daemon.
    Detached,
    /// A child process, whose exit status the command can read.
    Child,
}

/// A machine to start.
#[derive(Debug)]
pub struct NewMachine<'a> {
    /// The machine's options.
    pub options: MachineOptions,
    /// The accelerator that executes it.
    pub accelerator: Accelerator,
    /// The QEMU program.
    pub qemu: &'a Qemu,
    /// The kind of software on the machine.
    pub kind: MachineKind,
    /// The lifetime of the machine.
    pub lifetime: Lifetime,
    /// The relation of QEMU to this process.
    pub process_mode: ProcessMode,
}

impl NewMachine<'_> {
    /// Starts the machine in `dir`. If it has a supervisor, waits until that answers.
    ///
    /// Calls `waiting` repeatedly, and ends the machine if it breaks.
    ///
    /// # Errors
    /// [`BootError`].
    pub fn start(
        self,
        root: &StateRoot,
        dir: &MachineDir,
        boot: Boot<'_>,
        waiting: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<LockedMachine, BootError> {
        make_room(root, dir)?;
        let lock = MachineLock::take(dir).map_err(MachineError::from)?;
        // Another command may have started it meanwhile.
        if dir.has_record() {
            return Err(MachineError::Exists { name: dir.name.to_string() }.into());
        }
        let record = MachineRecord {
            format: FORMAT,
            kind: self.kind.clone(),
            options: self.options.clone(),
            accelerator: self.accelerator,
            owner: Process::this(),
            qemu: None,
            started_unix_ms: unix_ms(),
            ready_us: None,
        };
        record.create(dir)?;
        let mut locked = LockedMachine { dir: dir.clone(), record, child: None, _lock: lock };
        match self.bring_up(&mut locked, boot, waiting) {
            Ok(()) => Ok(locked),
            Err(error) => {
                locked.remove()?;
                Err(error)
            }
        }
    }

    fn bring_up(
        &self,
        locked: &mut LockedMachine,
        boot: Boot<'_>,
        waiting: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), BootError> {
        let begun = Instant::now();
        let switch = self.switch(&locked.dir, boot)?;
        let (qemu, child) = self.launch(&locked.dir, boot, waiting)?;
        locked.record.qemu = Some(qemu);
        locked.child = child;
        locked.record.save(&locked.dir)?;
        if matches!(boot, Boot::Supervisor { .. }) {
            wait_for_supervisor(locked, waiting)?;
            locked.record.ready_us = u64::try_from(begun.elapsed().as_micros()).ok();
        }
        if let Some(switch) = switch {
            wait_for_network(locked, switch, boot, waiting)?;
        }
        if self.lifetime == Lifetime::Own {
            locked.record.owner = None;
        }
        Ok(locked.record.save(&locked.dir)?)
    }

    /// Starts the machine's switch if it needs one. QEMU connects to it at its start.
    fn switch(&self, dir: &MachineDir, boot: Boot<'_>) -> Result<Option<StartingSwitch>, BootError> {
        if !switch::is_needed(&self.options) {
            return Ok(None);
        }
        let address = match boot {
            Boot::Supervisor { .. } => Address::None,
            Boot::Standalone { address, .. } => address,
        };
        Ok(Some(StartingSwitch::begin(dir, &self.options, address)?))
    }

    /// Starts QEMU with its system call filter, or without one if this host does not support it.
    fn launch(
        &self,
        dir: &MachineDir,
        boot: Boot<'_>,
        waiting: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(Process, Option<Child>), BootError> {
        match self.launch_with(&qemu::SANDBOX, dir, boot, waiting) {
            Err(BootError::Launch { message }) if qemu::lacks_sandbox(&message) => {
                (dir.notice)("QEMU runs without a system call filter: it, or this kernel, has no seccomp");
                self.launch_with(&[], dir, boot, waiting)
            }
            outcome => outcome,
        }
    }

    /// Starts QEMU, and waits until its sockets exist. It has then detached itself, or written its process id.
    fn launch_with(
        &self,
        sandbox: &[&str],
        dir: &MachineDir,
        boot: Boot<'_>,
        waiting: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(Process, Option<Child>), BootError> {
        let log = dir.qemu_log();
        let file = File::create(&log).map_err(|error| StateError::Unusable { path: log.clone(), error })?;
        // QEMU inherits it, as it is not closed when a program is executed.
        let folder = open(dir.path(), OFlags::DIRECTORY | OFlags::PATH, Mode::empty())
            .map_err(|error| StateError::Unusable { path: dir.path().into(), error: error.into() })?;
        let mut launcher = Command::new(&self.qemu.program)
            .args(qemu::arguments(&self.options, self.accelerator, boot, dir, folder.as_fd()))
            .args(sandbox)
            .args((self.process_mode == ProcessMode::Detached).then_some("-daemonize"))
            .current_dir(dir.path())
            // ^C at the terminal must reach the command only, which then ends QEMU in order.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .map_err(|error| BootError::Launch { message: error.to_string() })?;
        let end = Instant::now() + LAUNCH_LIMIT;
        let failed = |message: &str| {
            let log = MachineDir::tail(&log, 5);
            Err(BootError::Launch { message: if log.is_empty() { message.to_owned() } else { log } })
        };
        loop {
            match launcher.try_wait() {
                Ok(Some(status)) if status.success() && self.process_mode == ProcessMode::Detached => {
                    let process = Process::from_pid_file(&dir.pid_file());
                    return process.map_or_else(|| failed("it ended at once"), |process| Ok((process, None)));
                }
                Ok(Some(status)) => return failed(&format!("it ended with {status}")),
                Ok(None) if self.process_mode == ProcessMode::Child && dir.pid_file().exists() => {
                    let process = Process::of(launcher.id());
                    let child = |process| Ok((process, Some(launcher)));
                    return process.map_or_else(|| failed("it ended at once"), child);
                }
                Ok(None) if Instant::now() < end && waiting().is_continue() => {
                    sleep(Duration::from_millis(2))
                }
                Ok(None) => {
                    // The caller's clean-up finds and ends a QEMU that has detached itself meanwhile.
                    let _ = launcher.kill().and_then(|()| launcher.wait());
                    if Instant::now() < end {
                        return Err(BootError::Interrupted);
                    }
                    return failed("it took too long");
                }
                Err(error) => return failed(&error.to_string()),
            }
        }
    }
}

/// Breaks if the user has interrupted the command, which it records, or if QEMU has ended.
fn poll_while_running(
    locked: &LockedMachine,
    waiting: &mut dyn FnMut() -> ControlFlow<()>,
    interrupted: &mut bool,
) -> ControlFlow<()> {
    *interrupted = waiting().is_break();
    if *interrupted || !locked.is_running() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Sends `Hello` to the supervisor until it answers, for as long as QEMU runs.
fn wait_for_supervisor(
    locked: &LockedMachine,
    waiting: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(), BootError> {
    let mut interrupted = false;
    let mut poll = || poll_while_running(locked, waiting, &mut interrupted);
    let error = match Client::connect_within(locked.dir.path(), READY_LIMIT, &mut poll) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if interrupted {
        return Err(BootError::Interrupted);
    }
    let reason = match error {
        ClientError::Refused(refusal) => refusal.to_string(),
        _ if !locked.is_running() => "the machine ended".to_owned(),
        error => error.to_string(),
    };
    Err(BootError::Supervisor { reason, tail: logs_tail(&locked.dir) })
}

/// Waits until the network devices are connected to the switch, for as long as QEMU runs. A machine that boots an image alone
/// may have ended before.
fn wait_for_network(
    locked: &LockedMachine,
    switch: StartingSwitch,
    boot: Boot<'_>,
    waiting: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(), BootError> {
    let mut interrupted = false;
    let mut poll = || poll_while_running(locked, waiting, &mut interrupted);
    match (switch.detach(&mut poll)?, boot) {
        (ControlFlow::Break(()), _) if interrupted => Err(BootError::Interrupted),
        (ControlFlow::Break(()), Boot::Supervisor { .. }) => {
            Err(BootError::Supervisor { reason: "the machine ended".into(), tail: logs_tail(&locked.dir) })
        }
        _ => Ok(()),
    }
}

/// Removes the files of an ended machine of the same name, and fails if a machine of that name runs.
fn make_room(root: &StateRoot, dir: &MachineDir) -> Result<(), MachineError> {
    clean_up(root, dir)?;
    if dir.has_record() { Err(MachineError::Exists { name: dir.name.to_string() }) } else { Ok(()) }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}
