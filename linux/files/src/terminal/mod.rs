//! Terminals: pseudo-terminals with their line discipline, `/dev/pts`, `/dev/ptmx`, `/dev/tty`.
//!
//! A terminal has two ends, [`TerminalFile`]s: the master, for the terminal's user or a program that stands for one, and
//! the slave, which programs have as standard input and output. A terminal lives as long as an end of it is open, and
//! *hangs up* when its master is closed or its session ends: files of the slave that are open then return the end of the
//! file, and EIO for writes.
//!
//! | module | contents |
//! |---|---|
//! | this | a terminal, and its ends as files |
//! | `line` | the line discipline |
//! | `settings` | `struct termios` |
//! | `requests` | requests of `ioctl` |
//! | `registry` | all terminals, and the terminals of sessions |
//! | `devpts` | the file system with the slaves |
//!
//! A terminal's lock is not held while processes get signals. Checks of the caller's process group (SIGTTIN, SIGTTOU) are
//! the caller's, in `isola-linux-processes`.

mod devpts;
mod line;
mod registry;
mod requests;
mod settings;

pub use devpts::DevPts;
pub use line::{LineDiscipline, MOST_INPUT, MOST_OUTPUT};
pub use registry::{MOST_TERMINALS, TerminalProcesses, Terminals};
pub use requests::{TerminalAnswer, changes_terminal};
pub use settings::{TERMIOS_LEN, TERMIOS2_LEN, TerminalSettings};

use crate::Errno;
use crate::credentials::Ownership;
use crate::events::{Events, Pollee};
use crate::metadata::{DeviceNumber, InodeKind, Metadata};
use crate::object::FileObject;
use crate::open_file::OpenFile;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;
use isola_linux_memory::UserBuffer;
use spin::Mutex;

/// The major number of slaves.
const SLAVE_MAJOR: u32 = 136;
/// The bytes that a read or write of a terminal copies at once.
const PIECE: usize = 256;

/// A pseudo-terminal.
pub struct Terminal {
    number: u32,
    terminals: Weak<Terminals>,
    state: Mutex<TerminalState>,
    /// The observers of the slave and of the master.
    slave: Pollee,
    master: Pollee,
}

struct TerminalState {
    line: LineDiscipline,
    /// Rows, columns, and the size in pixels: `struct winsize`.
    size: [u16; 4],
    /// The session whose controlling terminal it is; 0 for none.
    session: u32,
    /// The foreground process group; 0 for none.
    foreground: u32,
    /// The open files of the slave that have not hung up.
    slaves: u32,
    was_opened: bool,
    /// The number of hang-ups.
    hang_ups: u64,
    has_master: bool,
    is_locked: bool,
    is_exclusive: bool,
    /// Reads of the master begin with a byte that says what happened (`TIOCPKT`).
    is_packet: bool,
    owner: Ownership,
}

/// An end of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminalEnd {
    /// The side of the terminal's user.
    Master,
    /// The side of programs.
    Slave,
}

/// An open end of a terminal.
pub struct TerminalFile {
    terminal: Arc<Terminal>,
    end: TerminalEnd,
    /// The number of hang-ups when it was opened.
    hang_ups: u64,
}

/// How a read without lines waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    /// The bytes that end the read (`VMIN`).
    pub least: usize,
    /// The time limit in nanoseconds, between bytes if `least` is not 0 (`VTIME`).
    pub limit_ns: Option<u64>,
}

impl Terminal {
    fn new(number: u32, terminals: Weak<Terminals>, owner: Ownership) -> Arc<Self> {
        let state = TerminalState {
            line: LineDiscipline::default(),
            size: [0; 4],
            session: 0,
            foreground: 0,
            slaves: 0,
            was_opened: false,
            hang_ups: 0,
            has_master: true,
            is_locked: true,
            is_exclusive: false,
            is_packet: false,
            owner,
        };
        Arc::new(Self {
            number,
            terminals,
            state: Mutex::new(state),
            slave: Pollee::new(),
            master: Pollee::new(),
        })
    }

    /// Returns its number, as in `/dev/pts/0`.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the number of its device.
    pub fn device(&self) -> DeviceNumber {
        DeviceNumber::new(SLAVE_MAJOR, self.number)
    }

    /// Returns the session whose controlling terminal it is, and the foreground process group; 0 for none.
    pub fn session(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.session, state.foreground)
    }

    /// Makes it the controlling terminal of a session without one, whose leader's group gets the foreground.
    pub fn give_to(&self, session: u32, group: u32) {
        let mut state = self.state.lock();
        (state.session, state.foreground) = (session, group);
    }

    /// Opens the slave.
    ///
    /// # Errors
    /// [`Errno::EIO`] if the master is closed or has locked it, [`Errno::EBUSY`] after `TIOCEXCL`.
    pub fn open_slave(self: &Arc<Self>) -> Result<TerminalFile, Errno> {
        let mut state = self.state.lock();
        if !state.has_master || state.is_locked {
            return Err(Errno::EIO);
        }
        if state.is_exclusive && state.slaves > 0 {
            return Err(Errno::EBUSY);
        }
        state.slaves += 1;
        state.was_opened = true;
        let hang_ups = state.hang_ups;
        Ok(TerminalFile { terminal: self.clone(), end: TerminalEnd::Slave, hang_ups })
    }

    /// Opens the slave for the holder of the master, whether it is locked or not (`TIOCGPTPEER`).
    fn open_peer(self: &Arc<Self>) -> Result<TerminalFile, Errno> {
        let mut state = self.state.lock();
        let was_locked = core::mem::replace(&mut state.is_locked, false);
        drop(state);
        let opened = self.open_slave();
        self.state.lock().is_locked |= was_locked;
        opened
    }

    /// Sets the size. The foreground process group gets SIGWINCH if it changes.
    pub fn set_size(&self, size: [u16; 4]) {
        let foreground = {
            let mut state = self.state.lock();
            if core::mem::replace(&mut state.size, size) == size {
                return;
            }
            state.foreground
        };
        self.signal(foreground, linux::SIGWINCH);
    }

    /// Returns the metadata of the slave in `/dev/pts`.
    fn metadata(&self) -> Metadata {
        let owner = self.state.lock().owner;
        let device = self.terminals.upgrade().map(|terminals| terminals.file_system).unwrap_or_default();
        Metadata {
            device,
            inode: u64::from(self.number) + devpts::FIRST_INODE,
            user: owner.user,
            group: owner.group,
            special: self.device(),
            block_len: 1024,
            ..Metadata::anonymous(InodeKind::CharacterDevice, 0, owner.permissions)
        }
    }

    fn signal(&self, group: u32, signal: u32) {
        if group != 0
            && let Some(terminals) = self.terminals.upgrade()
            && let Some(processes) = terminals.processes.get()
        {
            processes.signal_group(group, signal);
        }
    }

    /// Passes on what the line discipline has caused.
    fn settle(&self, mut state: spin::MutexGuard<'_, TerminalState>, slave: Events, master: Events) {
        let signals = core::mem::take(&mut state.line.signals);
        let foreground = state.foreground;
        drop(state);
        signals.into_iter().for_each(|signal| self.signal(foreground, signal));
        if !slave.is_empty() {
            self.slave.notify(slave);
        }
        if !master.is_empty() {
            self.master.notify(master);
        }
    }

    /// Hangs up: as the master is closed, or the leader of the session has ended.
    fn hang_up(&self) -> (u32, u32) {
        let mut state = self.state.lock();
        state.hang_ups += 1;
        state.slaves = 0;
        let former = (state.session, state.foreground);
        (state.session, state.foreground) = (0, 0);
        state.line.flush_input();
        drop(state);
        self.slave.notify(Events::IN | Events::OUT | Events::ERR | Events::HUP);
        self.master.notify(Events::IN | Events::HUP);
        former
    }

    fn close_master(&self) {
        self.state.lock().has_master = false;
        let (session, foreground) = self.hang_up();
        let Some(terminals) = self.terminals.upgrade() else { return };
        terminals.lost(session, foreground);
    }
}

impl TerminalState {
    /// Returns whether no file of the slave is open, but some were.
    fn slave_is_closed(&self) -> bool {
        self.was_opened && self.slaves == 0
    }
}

impl TerminalFile {
    /// Returns the terminal.
    pub fn terminal(&self) -> &Arc<Terminal> {
        &self.terminal
    }

    /// Returns which end it is.
    pub fn end(&self) -> TerminalEnd {
        self.end
    }

    /// Opens it as a file with the flags of `open`.
    pub fn into_open_file(self, flags: u32) -> Arc<OpenFile> {
        OpenFile::of_object(Arc::new(self), flags)
    }

    fn has_hung_up(&self, state: &TerminalState) -> bool {
        self.end == TerminalEnd::Slave && self.hang_ups != state.hang_ups
    }

    /// Returns whether a flag of the line discipline is set (`c_lflag`).
    pub fn has_local(&self, flag: u32) -> bool {
        self.terminal.state.lock().line.settings().has_local(flag)
    }

    /// Returns how a read waits; `None` if it returns with the first bytes.
    pub fn read_plan(&self) -> Option<ReadPlan> {
        let state = self.terminal.state.lock();
        let settings = state.line.settings();
        if self.end == TerminalEnd::Master || settings.is_canonical() {
            return None;
        }
        let least = settings.character(linux::VMIN).into();
        let tenths = u64::from(settings.character(linux::VTIME));
        let plan = ReadPlan { least, limit_ns: (tenths > 0).then_some(tenths * 100_000_000) };
        (plan != ReadPlan { least: 1, limit_ns: None }).then_some(plan)
    }

    /// Waits until a read attempt returns something, whatever `VMIN` says.
    pub async fn input_arrived(&self) {
        let ready = || {
            let state = self.terminal.state.lock();
            let has_input = state.line.has_input() || self.has_hung_up(&state);
            if has_input { Events::IN } else { Events::NONE }
        };
        self.terminal.slave.wait(Events::IN, ready).await;
    }

    fn read_slave(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        let mut state = self.terminal.state.lock();
        if self.has_hung_up(&state) {
            return Ok(0);
        }
        let Some(bytes) = state.line.take(buffer.len()) else {
            let settings = state.line.settings();
            let returns_nothing = !settings.is_canonical()
                && settings.character(linux::VMIN) == 0
                && settings.character(linux::VTIME) == 0;
            return if returns_nothing { Ok(0) } else { Err(Errno::EAGAIN) };
        };
        self.terminal.settle(state, Events::NONE, Events::OUT);
        Ok(buffer.write(&bytes))
    }

    fn read_master(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        let mut state = self.terminal.state.lock();
        let mut count = 0;
        if state.is_packet {
            let status = core::mem::take(&mut state.line.packet_status);
            if status != 0 {
                return Ok(buffer.write(&[status]));
            }
            if state.line.output_len() > 0 {
                count = buffer.write(&[linux::TIOCPKT_DATA as u8]);
            }
        }
        if state.line.output_len() == 0 {
            return if state.slave_is_closed() { Err(Errno::EIO) } else { Err(Errno::EAGAIN) };
        }
        let bytes = state.line.take_output(buffer.len());
        self.terminal.settle(state, Events::OUT, Events::NONE);
        Ok(count + buffer.write(&bytes))
    }

    fn write_slave(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        let mut state = self.terminal.state.lock();
        if self.has_hung_up(&state) {
            return Err(Errno::EIO);
        }
        let mut count = 0;
        let mut byte = [0];
        while !buffer.is_empty() && state.line.accepts_output() {
            buffer.read(&mut byte);
            state.line.send(byte[0]);
            count += 1;
        }
        if count == 0 && !buffer.is_empty() {
            return Err(Errno::EAGAIN);
        }
        self.terminal.settle(state, Events::NONE, Events::IN);
        Ok(count)
    }

    fn write_master(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        let mut state = self.terminal.state.lock();
        let mut count = 0;
        let mut byte = [0];
        while !buffer.is_empty() && count < PIECE && state.line.room() > 0 {
            buffer.read(&mut byte);
            state.line.receive(byte[0]);
            count += 1;
        }
        if count == 0 && !buffer.is_empty() {
            return Err(Errno::EAGAIN);
        }
        self.terminal.settle(state, Events::IN | Events::OUT, Events::IN | Events::OUT);
        Ok(count)
    }
}

impl FileObject for TerminalFile {
    fn read(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        if buffer.is_empty() {
            return Ok(0);
        }
        match self.end {
            TerminalEnd::Master => self.read_master(buffer),
            TerminalEnd::Slave => self.read_slave(buffer),
        }
    }

    fn write(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        match self.end {
            TerminalEnd::Master => self.write_master(buffer),
            TerminalEnd::Slave => self.write_slave(buffer),
        }
    }

    fn ready(&self) -> Events {
        let state = self.terminal.state.lock();
        let when = |is_true: bool, events: Events| if is_true { events } else { Events::NONE };
        match self.end {
            TerminalEnd::Slave if self.has_hung_up(&state) => {
                Events::IN | Events::OUT | Events::ERR | Events::HUP
            }
            TerminalEnd::Slave => {
                when(state.line.is_readable(), Events::IN) | when(state.line.accepts_output(), Events::OUT)
            }
            TerminalEnd::Master => {
                let has_status = state.is_packet && state.line.packet_status != 0;
                when(state.line.output_len() > 0 || has_status, Events::IN)
                    | when(has_status, Events::PRI)
                    | when(state.line.room() > 0, Events::OUT)
                    | when(state.slave_is_closed(), Events::HUP)
            }
        }
    }

    fn pollee(&self) -> Option<&Pollee> {
        Some(match self.end {
            TerminalEnd::Master => &self.terminal.master,
            TerminalEnd::Slave => &self.terminal.slave,
        })
    }

    fn is_terminal(&self) -> bool {
        true
    }

    fn metadata(&self) -> Metadata {
        match self.end {
            TerminalEnd::Slave => self.terminal.metadata(),
            TerminalEnd::Master => {
                let special = DeviceNumber::new(5, 2);
                Metadata { special, ..Metadata::anonymous(InodeKind::CharacterDevice, 2, 0o666) }
            }
        }
    }

    fn description(&self) -> Vec<u8> {
        match self.end {
            TerminalEnd::Master => b"/dev/ptmx".to_vec(),
            TerminalEnd::Slave => alloc::format!("/dev/pts/{}", self.terminal.number).into_bytes(),
        }
    }

    fn reopen(&self, _flags: u32) -> Option<Result<Arc<dyn FileObject>, Errno>> {
        if self.end == TerminalEnd::Master {
            return None;
        }
        Some(self.terminal.open_slave().map(|file| {
            let object: Arc<dyn FileObject> = Arc::new(file);
            object
        }))
    }
}

impl Drop for TerminalFile {
    fn drop(&mut self) {
        match self.end {
            TerminalEnd::Master => self.terminal.close_master(),
            TerminalEnd::Slave => {
                let mut state = self.terminal.state.lock();
                if self.hang_ups != state.hang_ups {
                    return;
                }
                state.slaves -= 1;
                let is_last = state.slaves == 0;
                if is_last {
                    state.is_exclusive = false;
                }
                drop(state);
                if is_last {
                    self.terminal.master.notify(Events::IN | Events::HUP);
                }
            }
        }
    }
}
