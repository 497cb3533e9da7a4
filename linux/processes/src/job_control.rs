//! Job control: what terminals need to know of processes, and the rights of background processes at their terminal.

use crate::Errno;
use crate::process::Process;
use crate::signals::{Signal, SignalInfo};
use crate::system::System;
use crate::thread::Thread;
use alloc::sync::{Arc, Weak};
use isola_linux_abi::numbers::TOSTOP;
use isola_linux_files::{TerminalEnd, TerminalFile, TerminalProcesses};

/// The processes of a system, as its terminals see them.
pub(crate) struct JobControl(pub Weak<System>);

impl TerminalProcesses for JobControl {
    fn session_and_group(&self, process: u32) -> Option<(u32, u32)> {
        let system = self.0.upgrade()?;
        let family = system.family.lock();
        Some((family.session(process).ok()?, family.group(process).ok()?))
    }

    fn session_of_group(&self, group: u32) -> Option<u32> {
        let system = self.0.upgrade()?;
        let family = system.family.lock();
        let member = family.processes().map(|(pid, _)| pid).find(|pid| family.group(*pid) == Ok(group))?;
        family.session(member).ok()
    }

    fn signal_group(&self, group: u32, signal: u32) {
        if let (Some(system), Some(signal)) = (self.0.upgrade(), Signal::from_number(signal.into()).ok()) {
            system.signal_group(group, signal);
        }
    }

    fn signal_process(&self, process: u32, signal: u32) {
        if let (Some(system), Some(signal)) = (self.0.upgrade(), Signal::from_number(signal.into()).ok()) {
            let process = system.family.lock().process(process);
            if let Some(process) = process {
                system.send_own(&process, signal);
            }
        }
    }
}

impl System {
    /// Sends a signal of the kernel.
    fn send_own(&self, process: &Arc<Process>, signal: Signal) {
        // A standard signal never meets a full queue.
        let _ = self.send(process, SignalInfo::kernel(signal));
    }

    /// Sends a signal of the kernel to the processes of a group.
    pub fn signal_group(&self, group: u32, signal: Signal) {
        let members = self.family.lock().in_group(group);
        members.iter().for_each(|process| self.send_own(process, signal));
    }

    /// Ends a stopped group that no process can continue any more, unless it handles SIGHUP.
    pub(crate) fn hang_up_group(&self, group: u32) {
        self.signal_group(group, Signal::SIGHUP);
        self.signal_group(group, Signal::SIGCONT);
    }

    /// Notes that a process ends: if it leads a session, the session's terminal hangs up.
    pub(crate) fn leader_ends(&self, pid: u32) {
        let leads = self.family.lock().session(pid) == Ok(pid);
        if leads {
            self.terminals.leader_ends(pid);
        }
    }
}

/// Checks that a thread may read from a terminal: not in the background.
///
/// # Errors
/// [`Errno::ERESTARTSYS`] after SIGTTIN was sent; [`Errno::EIO`] if it would not stop the process.
pub(crate) fn check_read(thread: &Thread, terminal: &TerminalFile) -> Result<(), Errno> {
    match terminal.end() {
        TerminalEnd::Master => Ok(()),
        TerminalEnd::Slave => check(thread, terminal, Signal::SIGTTIN, Err(Errno::EIO)),
    }
}

/// Checks that a thread may write to a terminal: with `TOSTOP`, not in the background.
///
/// # Errors
/// As [`check_change`].
pub(crate) fn check_write(thread: &Thread, terminal: &TerminalFile) -> Result<(), Errno> {
    match terminal.end() {
        TerminalEnd::Slave if terminal.has_local(TOSTOP) => check_change(thread, terminal),
        TerminalEnd::Slave | TerminalEnd::Master => Ok(()),
    }
}

/// Checks that a thread may change a terminal: not in the background, unless it ignores or blocks SIGTTOU.
///
/// # Errors
/// [`Errno::ERESTARTSYS`] after SIGTTOU was sent; [`Errno::EIO`] if no other process could continue the process after a stop.
pub(crate) fn check_change(thread: &Thread, terminal: &TerminalFile) -> Result<(), Errno> {
    check(thread, terminal, Signal::SIGTTOU, Ok(()))
}

/// Sends a signal to the group of a background thread. `without_effect` is the result if it ignores or blocks the signal.
fn check(
    thread: &Thread,
    terminal: &TerminalFile,
    signal: Signal,
    without_effect: Result<(), Errno>,
) -> Result<(), Errno> {
    let (session, foreground) = terminal.terminal().session();
    if session == 0 || foreground == 0 {
        return Ok(());
    }
    let family = thread.system.family.lock();
    let group = family.group(thread.process.pid)?;
    if family.session(thread.process.pid)? != session || group == foreground {
        return Ok(());
    }
    let is_orphaned = family.is_orphaned(group);
    drop(family);
    let is_void = thread.process.signals.lock().actions.ignores(signal)
        || thread.state.signals.lock().blocked.contains(signal);
    if is_void {
        return without_effect;
    }
    if is_orphaned {
        return Err(Errno::EIO);
    }
    thread.system.signal_group(group, signal);
    Err(Errno::ERESTARTSYS)
}
