//! Requests of `ioctl` to terminals.

use super::{TERMIOS_LEN, TERMIOS2_LEN, TerminalEnd, TerminalFile, TerminalSettings};
use crate::Errno;
use crate::events::Events;
use crate::inode::CallerIds;
use crate::open_file::OpenFile;
use alloc::sync::Arc;
use isola_linux_abi::numbers as linux;
use isola_linux_abi::requests as request;
use isola_linux_memory::UserBuffer;

/// The outcome of a request.
pub enum TerminalAnswer {
    /// The result of the call.
    Value(u64),
    /// A file to install in the table of descriptors, with the flags of `open`.
    File(Arc<OpenFile>, u32),
}

/// Returns whether a background process must not make this request (SIGTTOU).
pub fn changes_terminal(request: u32) -> bool {
    matches!(
        request,
        request::TCSETS
            | request::TCSETSW
            | request::TCSETSF
            | request::TCSETS2
            | request::TCSETSW2
            | request::TCSETSF2
            | request::TCFLSH
            | request::TCXONC
            | request::TCSBRK
            | request::TCSBRKP
            | request::TIOCSPGRP
    )
}

fn word(buffer: &mut UserBuffer) -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    if buffer.read(&mut bytes) < bytes.len() { Err(Errno::EFAULT) } else { Ok(u32::from_ne_bytes(bytes)) }
}

fn answer(buffer: &mut UserBuffer, bytes: &[u8]) -> Result<TerminalAnswer, Errno> {
    if buffer.write(bytes) < bytes.len() { Err(Errno::EFAULT) } else { Ok(TerminalAnswer::Value(0)) }
}

impl TerminalFile {
    /// Executes a request. `is_privileged` says whether the caller may take a terminal from another session.
    ///
    /// # Errors
    /// Those of ioctl_tty(2); [`Errno::ENOTTY`] for a request that terminals do not have.
    pub fn request(
        &self,
        caller: CallerIds,
        is_privileged: bool,
        number: u32,
        argument: u64,
        buffer: &mut UserBuffer,
    ) -> Result<TerminalAnswer, Errno> {
        let terminal = &self.terminal;
        if self.has_hung_up(&terminal.state.lock()) {
            return Err(if number == request::TIOCSPGRP { Errno::ENOTTY } else { Errno::EIO });
        }
        let done = Ok(TerminalAnswer::Value(0));
        match number {
            request::TCGETS | request::TCGETS2 => {
                let bytes = terminal.state.lock().line.settings().to_bytes();
                answer(buffer, if number == request::TCGETS { &bytes[..TERMIOS_LEN] } else { &bytes })
            }
            request::TCSETS
            | request::TCSETSW
            | request::TCSETSF
            | request::TCSETS2
            | request::TCSETSW2
            | request::TCSETSF2 => {
                let mut bytes = [0; TERMIOS2_LEN];
                let count = buffer.read(&mut bytes);
                let mut state = terminal.state.lock();
                let settings = TerminalSettings::of_bytes(&bytes[..count], state.line.settings());
                let settings = settings.ok_or(Errno::EFAULT)?;
                if matches!(number, request::TCSETSF | request::TCSETSF2) {
                    state.line.flush_input();
                }
                state.line.set_settings(settings);
                // Input may be readable now, and output may continue.
                terminal.settle(state, Events::IN | Events::OUT, Events::IN | Events::OUT);
                done
            }
            request::TIOCGWINSZ => {
                let size = terminal.state.lock().size;
                let mut bytes = [0; 8];
                for (index, word) in size.into_iter().enumerate() {
                    bytes[index * 2..][..2].copy_from_slice(&word.to_ne_bytes());
                }
                answer(buffer, &bytes)
            }
            request::TIOCSWINSZ => {
                let mut bytes = [0; 8];
                if buffer.read(&mut bytes) < bytes.len() {
                    return Err(Errno::EFAULT);
                }
                terminal.set_size(core::array::from_fn(|index| {
                    u16::from_ne_bytes([bytes[index * 2], bytes[index * 2 + 1]])
                }));
                done
            }
            request::TIOCINQ => {
                let state = terminal.state.lock();
                let count = match self.end {
                    TerminalEnd::Slave => state.line.readable(),
                    TerminalEnd::Master => state.line.output_len(),
                };
                drop(state);
                answer(buffer, &(count as u32).to_ne_bytes())
            }
            request::TIOCOUTQ => {
                // As on Linux: output is with the master at once.
                answer(buffer, &0_u32.to_ne_bytes())
            }
            request::TCFLSH => self.flush(argument),
            request::TCXONC => {
                let mut state = terminal.state.lock();
                let letter = match argument as u32 {
                    linux::TCOOFF => return Ok(self.stop(state)),
                    linux::TCOON => {
                        state.line.start();
                        None
                    }
                    linux::TCIOFF => Some(linux::VSTOP),
                    linux::TCION => Some(linux::VSTART),
                    _ => return Err(Errno::EINVAL),
                };
                if let Some(index) = letter {
                    let byte = state.line.settings().character(index);
                    if byte != 0 && state.line.accepts_output() {
                        state.line.send(byte);
                    }
                }
                terminal.settle(state, Events::OUT, Events::IN);
                done
            }
            // Output is with the master at once, and a line without wires has no breaks.
            request::TCSBRK | request::TCSBRKP | request::TIOCSBRK | request::TIOCCBRK => done,
            request::TIOCEXCL => self.set(|state| state.is_exclusive = true),
            request::TIOCNXCL => self.set(|state| state.is_exclusive = false),
            request::TIOCGEXCL => {
                let value = u32::from(terminal.state.lock().is_exclusive);
                answer(buffer, &value.to_ne_bytes())
            }
            request::TIOCSCTTY => self.take_control(caller, is_privileged, argument),
            request::TIOCNOTTY => {
                let (session, _) = self.ids(caller)?;
                if terminal.session().0 != session {
                    return Err(Errno::ENOTTY);
                }
                // Another process than the leader would lose the terminal alone; the session keeps it here.
                if session == caller.process
                    && let Some(terminals) = terminal.terminals.upgrade()
                {
                    terminals.give_up(terminal);
                }
                done
            }
            request::TIOCGPGRP | request::TIOCGSID => {
                let (session, foreground) = terminal.session();
                let is_own = session != 0 && self.ids(caller)?.0 == session;
                if session == 0 && number == request::TIOCGSID || self.end == TerminalEnd::Slave && !is_own {
                    return Err(Errno::ENOTTY);
                }
                let value = if number == request::TIOCGPGRP { foreground } else { session };
                answer(buffer, &value.to_ne_bytes())
            }
            request::TIOCSPGRP => self.set_foreground(caller, word(buffer)?),
            _ if self.end == TerminalEnd::Master => self.master_request(number, argument, buffer),
            _ => Err(Errno::ENOTTY),
        }
    }

    /// Requests of masters alone.
    fn master_request(
        &self,
        number: u32,
        argument: u64,
        buffer: &mut UserBuffer,
    ) -> Result<TerminalAnswer, Errno> {
        let terminal = &self.terminal;
        let flag = |is_set: bool, buffer: &mut UserBuffer| answer(buffer, &u32::from(is_set).to_ne_bytes());
        match number {
            request::TIOCGPTN => answer(buffer, &terminal.number.to_ne_bytes()),
            request::TIOCSPTLCK => {
                let is_locked = word(buffer)? != 0;
                self.set(|state| state.is_locked = is_locked)
            }
            request::TIOCGPTLCK => {
                let is_locked = terminal.state.lock().is_locked;
                flag(is_locked, buffer)
            }
            request::TIOCPKT => {
                let is_packet = word(buffer)? != 0;
                self.set(|state| {
                    state.is_packet = is_packet;
                    state.line.packet_status = 0;
                })
            }
            request::TIOCGPKT => {
                let is_packet = terminal.state.lock().is_packet;
                flag(is_packet, buffer)
            }
            request::TIOCGPTPEER => {
                let flags = argument as u32;
                let slave = terminal.open_peer()?;
                Ok(TerminalAnswer::File(slave.into_open_file(flags & !linux::O_CLOEXEC), flags))
            }
            request::TIOCSIG => {
                let signal = argument as u32;
                if !matches!(signal, linux::SIGINT | linux::SIGQUIT | linux::SIGTSTP) {
                    return Err(Errno::EINVAL);
                }
                let foreground = terminal.session().1;
                terminal.signal(foreground, signal);
                Ok(TerminalAnswer::Value(0))
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn set(&self, change: impl FnOnce(&mut super::TerminalState)) -> Result<TerminalAnswer, Errno> {
        change(&mut self.terminal.state.lock());
        Ok(TerminalAnswer::Value(0))
    }

    fn stop(&self, mut state: spin::MutexGuard<'_, super::TerminalState>) -> TerminalAnswer {
        state.line.stop();
        self.terminal.settle(state, Events::NONE, Events::IN | Events::PRI);
        TerminalAnswer::Value(0)
    }

    /// `TCFLSH`: of the master, its input is the slave's output.
    fn flush(&self, argument: u64) -> Result<TerminalAnswer, Errno> {
        let (input, output) = match argument as u32 {
            linux::TCIFLUSH => (true, false),
            linux::TCOFLUSH => (false, true),
            linux::TCIOFLUSH => (true, true),
            _ => return Err(Errno::EINVAL),
        };
        let is_slave = self.end == TerminalEnd::Slave;
        let mut state = self.terminal.state.lock();
        if if is_slave { input } else { output } {
            state.line.flush_input();
            state.line.packet_status |= linux::TIOCPKT_FLUSHREAD as u8;
        }
        if if is_slave { output } else { input } {
            state.line.flush_output();
            state.line.packet_status |= linux::TIOCPKT_FLUSHWRITE as u8;
        }
        self.terminal.settle(state, Events::OUT, Events::OUT | Events::PRI);
        Ok(TerminalAnswer::Value(0))
    }

    fn processes(&self) -> Result<Arc<super::Terminals>, Errno> {
        self.terminal.terminals.upgrade().ok_or(Errno::EIO)
    }

    /// Returns session and group of the caller.
    fn ids(&self, caller: CallerIds) -> Result<(u32, u32), Errno> {
        let terminals = self.processes()?;
        let processes = terminals.processes.get().ok_or(Errno::ENOTTY)?;
        processes.session_and_group(caller.process).ok_or(Errno::ESRCH)
    }

    /// `TIOCSCTTY`.
    fn take_control(
        &self,
        caller: CallerIds,
        is_privileged: bool,
        argument: u64,
    ) -> Result<TerminalAnswer, Errno> {
        let (session, group) = self.ids(caller)?;
        let (former, _) = self.terminal.session();
        if session == caller.process && former == session {
            return Ok(TerminalAnswer::Value(0));
        }
        let is_taken = self.end == TerminalEnd::Master || self.processes()?.of_session(session).is_some();
        if session != caller.process || is_taken || former != 0 && !(argument == 1 && is_privileged) {
            return Err(Errno::EPERM);
        }
        self.terminal.give_to(session, group);
        Ok(TerminalAnswer::Value(0))
    }

    /// `TIOCSPGRP`.
    fn set_foreground(&self, caller: CallerIds, group: u32) -> Result<TerminalAnswer, Errno> {
        let (session, _) = self.ids(caller)?;
        if self.terminal.session().0 != session {
            return Err(Errno::ENOTTY);
        }
        if group as i32 <= 0 {
            return Err(Errno::EINVAL);
        }
        let terminals = self.processes()?;
        let of_group = terminals.processes.get().and_then(|processes| processes.session_of_group(group));
        if of_group.ok_or(Errno::ESRCH)? != session {
            return Err(Errno::EPERM);
        }
        self.terminal.state.lock().foreground = group;
        Ok(TerminalAnswer::Value(0))
    }
}
