//! The line discipline: between the bytes of a terminal's user and those that programs read and write.
//!
//! ```text
//!   master writes -> receive -> input queue -> take -> slave reads
//!                       | echo
//!   master reads <- output queue <------------ send <- slave writes
//! ```
//!
//! This file has the input, `editing` the changes of a line before it ends, `output` the output and the echo.
//!
//! A model of Linux's `n_tty`: a test passes random bytes through it and through a pseudo-terminal of the host.

mod editing;
mod output;

pub use self::output::MOST_OUTPUT;

use self::output::Echo;
use super::settings::TerminalSettings;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;

/// The most bytes that wait to be read, as in Linux. A line can have one byte less.
pub const MOST_INPUT: usize = 4096;
/// The bytes of output that a signal character does not flush: those that Linux's master has already received.
const UNFLUSHED: usize = 4096;

/// A byte that waits to be read.
#[derive(Clone, Copy)]
struct InputByte {
    byte: u8,
    /// It ends a line. A byte of 0 that does is the mark of an end of the file, and is not read.
    ends_line: bool,
}

/// The line discipline of a terminal with its queues.
#[derive(Default)]
pub struct LineDiscipline {
    settings: TerminalSettings,
    input: VecDeque<InputByte>,
    /// The number of bytes at the front of `input` that belong to complete lines.
    complete: usize,
    output: VecDeque<u8>,
    /// Echo during a stop of the output.
    held: VecDeque<Echo>,
    is_stopped: bool,
    /// The cursor's column, and that at the begin of the line of input.
    column: usize,
    line_column: usize,
    /// A sequence of erased characters is shown (`ECHOPRT`).
    is_erasing: bool,
    /// The next byte has no special meaning.
    is_literal: bool,
    /// The signals that bytes have caused, to be sent to the foreground process group.
    pub signals: Vec<u32>,
    /// The changes that packet mode reports (`TIOCPKT_*`).
    pub packet_status: u8,
}

fn is_control(byte: u8) -> bool {
    byte < b' ' || byte == 127
}

impl LineDiscipline {
    /// Returns the settings.
    pub fn settings(&self) -> &TerminalSettings {
        &self.settings
    }

    /// Changes the settings. Input that was received is read according to the new ones.
    pub fn set_settings(&mut self, settings: TerminalSettings) {
        let former = core::mem::replace(&mut self.settings, settings);
        let flow = |settings: &TerminalSettings| {
            settings.has_input(linux::IXON) && settings.is(linux::VSTOP, 19) && settings.is(linux::VSTART, 17)
        };
        if flow(&former) != flow(&settings) {
            let now = if flow(&settings) { linux::TIOCPKT_DOSTOP } else { linux::TIOCPKT_NOSTOP };
            self.packet_status &= !((linux::TIOCPKT_DOSTOP | linux::TIOCPKT_NOSTOP) as u8);
            self.packet_status |= now as u8;
        }
        if former.has_input(linux::IXON) && !settings.has_input(linux::IXON) {
            self.start();
        }
        if (former.local ^ settings.local) & (linux::ICANON | linux::EXTPROC) != 0 {
            self.input.iter_mut().for_each(|input| input.ends_line = false);
            self.complete = 0;
            if settings.is_canonical()
                && let Some(last) = self.input.back_mut()
            {
                last.ends_line = true;
                self.complete = self.input.len();
            }
            (self.is_erasing, self.is_literal) = (false, false);
        }
    }

    /// Returns the number of bytes that [`Self::receive`] accepts now, at least.
    pub fn room(&self) -> usize {
        let left = MOST_INPUT.saturating_sub(self.input.len());
        let left = if self.settings.has_input(linux::PARMRK) { left.div_ceil(3) } else { left };
        match left.saturating_sub(1) {
            // The end of a long line must be accepted; other bytes replace the line's last one.
            0 if self.settings.is_canonical() && self.complete == 0 => 1,
            room => room,
        }
    }

    /// Receives a byte of the terminal's user. There must be [room](Self::room).
    pub fn receive(&mut self, byte: u8) {
        while self.input.len() >= MOST_INPUT && self.input.len() > self.complete {
            self.input.pop_back();
        }
        if core::mem::take(&mut self.is_literal) {
            self.receive_ordinary(self.stripped(byte));
            return;
        }
        let byte = self.stripped(byte);
        if self.settings.has_local(linux::EXTPROC) {
            self.put(byte, false);
        } else if self.is_special(byte) {
            self.receive_special(byte);
        } else {
            self.receive_ordinary(byte);
        }
    }

    fn stripped(&self, byte: u8) -> u8 {
        let byte = if self.settings.has_input(linux::ISTRIP) { byte & 0x7f } else { byte };
        let lowers = self.settings.has_input(linux::IUCLC) && self.settings.has_local(linux::IEXTEN);
        if lowers { to_lower_case(byte) } else { byte }
    }

    /// Returns whether a byte has a special meaning with the present settings.
    fn is_special(&self, byte: u8) -> bool {
        let settings = &self.settings;
        let is_any = |indices: &[u32]| indices.iter().any(|index| settings.is(*index, byte));
        let extended = settings.has_local(linux::IEXTEN);
        (byte == b'\r' && settings.has_input(linux::IGNCR | linux::ICRNL))
            || (byte == b'\n' && (settings.has_input(linux::INLCR) || settings.is_canonical()))
            || (settings.is_canonical()
                && (is_any(&[linux::VERASE, linux::VKILL, linux::VEOF, linux::VEOL])
                    || extended && is_any(&[linux::VWERASE, linux::VLNEXT, linux::VEOL2])
                    || extended && settings.has_local(linux::ECHO) && is_any(&[linux::VREPRINT])))
            || (settings.has_input(linux::IXON) && is_any(&[linux::VSTART, linux::VSTOP]))
            || (settings.has_local(linux::ISIG) && is_any(&[linux::VINTR, linux::VQUIT, linux::VSUSP]))
    }

    fn receive_ordinary(&mut self, byte: u8) {
        self.restart_by_any();
        self.echo_received(byte);
        self.put_doubled(byte);
    }

    /// Lets stopped output continue at any byte, if `IXANY` says so.
    fn restart_by_any(&mut self) {
        let settings = &self.settings;
        if self.is_stopped && settings.has_input(linux::IXON) && settings.has_input(linux::IXANY) {
            self.start();
        }
    }

    /// Echoes a byte that becomes a part of the input.
    fn echo_received(&mut self, byte: u8) {
        if self.settings.has_local(linux::ECHO) {
            self.finish_erasing();
            if self.line_is_empty() {
                self.queue(Echo::LineBegin);
            }
            self.echo(byte);
        }
    }

    fn receive_special(&mut self, mut byte: u8) {
        let settings = self.settings;
        if settings.has_input(linux::IXON) {
            if settings.is(linux::VSTART, byte) {
                return self.start();
            }
            if settings.is(linux::VSTOP, byte) {
                return self.stop();
            }
        }
        if settings.has_local(linux::ISIG) {
            for (index, signal) in [
                (linux::VINTR, linux::SIGINT),
                (linux::VQUIT, linux::SIGQUIT),
                (linux::VSUSP, linux::SIGTSTP),
            ] {
                if settings.is(index, byte) {
                    return self.receive_signal(byte, signal);
                }
            }
        }
        self.restart_by_any();
        if byte == b'\r' {
            if settings.has_input(linux::IGNCR) {
                return;
            }
            if settings.has_input(linux::ICRNL) {
                byte = b'\n';
            }
        } else if byte == b'\n' && settings.has_input(linux::INLCR) {
            byte = b'\r';
        }
        if settings.is_canonical() && self.receive_editing(byte) {
            return;
        }
        if settings.has_local(linux::ECHO) && byte == b'\n' {
            self.finish_erasing();
            self.echo_raw(b'\n');
        } else {
            self.echo_received(byte);
        }
        self.put_doubled(byte);
    }

    /// A character that sends a signal, flushes the queues, and is echoed.
    fn receive_signal(&mut self, byte: u8, signal: u32) {
        self.signals.push(signal);
        if !self.settings.has_local(linux::NOFLSH) {
            self.held.clear();
            self.output.truncate(UNFLUSHED);
            self.flush_input();
            self.packet_status |= (linux::TIOCPKT_FLUSHREAD | linux::TIOCPKT_FLUSHWRITE) as u8;
        }
        if self.settings.has_input(linux::IXON) {
            self.start();
        }
        if self.settings.has_local(linux::ECHO) {
            self.echo(byte);
        }
    }

    fn line_is_empty(&self) -> bool {
        self.complete == self.input.len()
    }

    fn put_doubled(&mut self, byte: u8) {
        if self.settings.has_input(linux::PARMRK) && byte == 0xff {
            self.put(byte, false);
        }
        self.put(byte, false);
    }

    fn put(&mut self, byte: u8, ends_line: bool) {
        self.input.push_back(InputByte { byte, ends_line });
        if ends_line {
            self.complete = self.input.len();
        }
    }

    fn is_continuation(&self, byte: u8) -> bool {
        self.settings.has_input(linux::IUTF8) && byte & 0xc0 == 0x80
    }

    /// Discards the input that was not read.
    pub fn flush_input(&mut self) {
        self.input.clear();
        self.complete = 0;
        (self.is_erasing, self.is_literal) = (false, false);
    }

    /// Returns the number of bytes that a read would return at once (`FIONREAD`).
    pub fn readable(&self) -> usize {
        if self.reads_lines() {
            // Marks of the end are no bytes.
            self.input.range(..self.complete).filter(|input| !(input.ends_line && input.byte == 0)).count()
        } else {
            self.input.len()
        }
    }

    fn reads_lines(&self) -> bool {
        self.settings.is_canonical() && !self.settings.has_local(linux::EXTPROC)
    }

    /// Returns whether a read returns at once.
    pub fn has_input(&self) -> bool {
        if self.reads_lines() { self.complete > 0 } else { !self.input.is_empty() }
    }

    /// Returns whether `poll` reports input: without lines and a time limit, `VMIN` bytes.
    pub fn is_readable(&self) -> bool {
        let (most, time) = (self.settings.character(linux::VMIN), self.settings.character(linux::VTIME));
        if self.reads_lines() || time != 0 || most == 0 {
            return self.has_input();
        }
        self.input.len() >= most.into()
    }

    /// Takes input for a read of at most `most` bytes: at most one line. `None` if there is none yet.
    pub fn take(&mut self, most: usize) -> Option<Vec<u8>> {
        if !self.has_input() {
            return None;
        }
        if !self.reads_lines() {
            return Some(self.input.drain(..most.min(self.input.len())).map(|input| input.byte).collect());
        }
        let mut taken = Vec::new();
        while taken.len() < most && self.complete > 0 {
            let Some(InputByte { byte, ends_line }) = self.input.pop_front() else { break };
            self.complete -= 1;
            if ends_line && byte == 0 {
                return Some(taken);
            }
            taken.push(byte);
            if ends_line {
                return Some(taken);
            }
        }
        // An end of the file directly behind a read that its buffer has ended is not a read of its own.
        let is_mark = |input: &InputByte| input.ends_line && input.byte == 0;
        if most > 0 && self.complete > 0 && self.input.front().is_some_and(is_mark) {
            self.input.pop_front();
            self.complete -= 1;
        }
        Some(taken)
    }
}

/// Returns the lower-case letter, with the letters of ISO 8859-1 as in Linux.
fn to_lower_case(byte: u8) -> u8 {
    let is_upper = byte.is_ascii_uppercase() || (0xc0..=0xde).contains(&byte) && byte != 0xd7;
    if is_upper { byte + 32 } else { byte }
}
