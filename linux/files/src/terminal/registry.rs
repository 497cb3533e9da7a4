//! All terminals, and the controlling terminals of sessions.

use super::{Terminal, TerminalEnd, TerminalFile};
use crate::Errno;
use crate::credentials::Ownership;
use crate::devices::DeviceTable;
use crate::inode::CallerIds;
use crate::metadata::{DeviceNumber, new_device};
use crate::object::FileObject;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;
use spin::{Mutex, Once};

/// The most terminals of a cell (`/proc/sys/kernel/pty/max`). Each has queues of at most 24 KiB.
pub const MOST_TERMINALS: usize = 1024;

/// The processes, as terminals need them. Called without a lock of a terminal.
pub trait TerminalProcesses: Send + Sync {
    /// Returns session and process group of a process.
    fn session_and_group(&self, process: u32) -> Option<(u32, u32)>;

    /// Returns the session of a process group.
    fn session_of_group(&self, group: u32) -> Option<u32>;

    /// Sends a signal of the kernel to the processes of a group.
    fn signal_group(&self, group: u32, signal: u32);

    /// Sends a signal of the kernel to a process.
    fn signal_process(&self, process: u32, signal: u32);
}

/// The terminals of a cell.
pub struct Terminals {
    /// By their numbers. A number is in use until all files of both ends are closed.
    table: Mutex<BTreeMap<u32, Weak<Terminal>>>,
    /// The foreground process groups of sessions whose terminal has hung up, by session.
    left: Mutex<BTreeMap<u32, u32>>,
    pub(super) processes: Once<Arc<dyn TerminalProcesses>>,
    /// The device of `/dev/pts`.
    pub(super) file_system: DeviceNumber,
}

impl Terminals {
    /// Creates a cell's terminals: none yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            left: Mutex::default(),
            processes: Once::new(),
            file_system: new_device(),
        })
    }

    /// Sets the processes that get signals of terminals. Only the first call counts.
    pub fn set_processes(&self, processes: Arc<dyn TerminalProcesses>) {
        self.processes.call_once(|| processes);
    }

    /// Registers `/dev/tty` and `/dev/ptmx`.
    pub fn register(self: &Arc<Self>, devices: &DeviceTable) {
        let terminals = self.clone();
        devices.register(DeviceNumber::new(5, 0), move |_: u32, caller: CallerIds| {
            let terminal = terminals.of_process(caller.process).ok_or(Errno::ENXIO)?;
            let object: Arc<dyn FileObject> = Arc::new(terminal.open_slave()?);
            Ok(object)
        });
        let terminals = self.clone();
        devices.register(DeviceNumber::new(5, 2), move |_: u32, _: CallerIds| {
            let object: Arc<dyn FileObject> = Arc::new(terminals.create(Ownership::of_terminal(0, 0))?);
            Ok(object)
        });
    }

    /// Creates a terminal, and opens its master. The slave is locked until the master unlocks it (`TIOCSPTLCK`).
    ///
    /// # Errors
    /// [`Errno::ENOSPC`] if there are [`MOST_TERMINALS`].
    pub fn create(self: &Arc<Self>, owner: Ownership) -> Result<TerminalFile, Errno> {
        let mut table = self.table.lock();
        if table.len() >= MOST_TERMINALS {
            table.retain(|_, terminal| terminal.strong_count() > 0);
        }
        let is_free = |number: &u32| table.get(number).is_none_or(|terminal| terminal.strong_count() == 0);
        let number = (0..MOST_TERMINALS as u32).find(is_free).ok_or(Errno::ENOSPC)?;
        let terminal = Terminal::new(number, Arc::downgrade(self), owner);
        table.insert(number, Arc::downgrade(&terminal));
        Ok(TerminalFile { terminal, end: TerminalEnd::Master, hang_ups: 0 })
    }

    /// Creates a terminal of this size for a program that the kernel starts, and opens both ends.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_open(
        self: &Arc<Self>,
        owner: Ownership,
        size: [u16; 4],
    ) -> Result<(TerminalFile, TerminalFile), Errno> {
        let master = self.create(owner)?;
        let mut state = master.terminal.state.lock();
        state.is_locked = false;
        state.size = size;
        drop(state);
        let slave = master.terminal.open_slave()?;
        Ok((master, slave))
    }

    /// Returns the terminals with an open master.
    pub fn all(&self) -> Vec<Arc<Terminal>> {
        let all: Vec<_> = self.table.lock().values().filter_map(Weak::upgrade).collect();
        all.into_iter().filter(|terminal| terminal.state.lock().has_master).collect()
    }

    /// Returns a terminal with an open master by its number.
    pub fn get(&self, number: u32) -> Option<Arc<Terminal>> {
        let terminal = self.table.lock().get(&number)?.upgrade();
        terminal.filter(|terminal| terminal.state.lock().has_master)
    }

    /// Returns the controlling terminal of a session.
    pub fn of_session(&self, session: u32) -> Option<Arc<Terminal>> {
        if session == 0 || self.table.lock().is_empty() {
            return None;
        }
        self.all().into_iter().find(|terminal| terminal.session().0 == session)
    }

    fn of_process(&self, process: u32) -> Option<Arc<Terminal>> {
        let (session, _) = self.processes.get()?.session_and_group(process)?;
        self.of_session(session)
    }

    /// Opens the slave of a terminal for a process. It becomes the controlling terminal of a session without one, unless
    /// the flags have `O_NOCTTY`.
    pub(super) fn open(
        &self,
        terminal: &Arc<Terminal>,
        flags: u32,
        caller: CallerIds,
    ) -> Result<TerminalFile, Errno> {
        let file = terminal.open_slave()?;
        if flags & linux::O_NOCTTY == 0
            && let Some(processes) = self.processes.get()
            && let Some((session, group)) = processes.session_and_group(caller.process)
            && session == caller.process
            && terminal.session().0 == 0
            && self.of_session(session).is_none()
        {
            terminal.give_to(session, group);
        }
        Ok(file)
    }

    /// Notes that a session has lost its terminal by a hang-up: the leader gets SIGHUP, and the foreground process group
    /// when the leader has ended.
    pub(super) fn lost(&self, session: u32, foreground: u32) {
        if session == 0 {
            return;
        }
        self.left.lock().insert(session, foreground);
        if let Some(processes) = self.processes.get() {
            processes.signal_process(session, linux::SIGHUP);
            processes.signal_process(session, linux::SIGCONT);
        }
    }

    /// Notes that the leader of a session ends: its terminal hangs up, and the foreground process group gets SIGHUP.
    pub fn leader_ends(&self, session: u32) {
        let left = self.left.lock().remove(&session);
        let group = match self.of_session(session) {
            Some(terminal) => terminal.hang_up().1,
            None => left.unwrap_or(0),
        };
        self.signal_hang_up(group);
    }

    /// Takes the terminal from a session, as its leader asked for that (`TIOCNOTTY`).
    pub(super) fn give_up(&self, terminal: &Terminal) {
        let mut state = terminal.state.lock();
        let group = state.foreground;
        (state.session, state.foreground) = (0, 0);
        drop(state);
        self.signal_hang_up(group);
    }

    fn signal_hang_up(&self, group: u32) {
        if group != 0
            && let Some(processes) = self.processes.get()
        {
            processes.signal_group(group, linux::SIGHUP);
            processes.signal_group(group, linux::SIGCONT);
        }
    }
}

impl Ownership {
    /// Returns the owner of a new slave, with the permissions that Linux gives it.
    pub fn of_terminal(user: u32, group: u32) -> Self {
        Self { user, group, permissions: 0o620 }
    }
}
