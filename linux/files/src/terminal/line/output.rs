//! The output of a terminal: bytes of programs, and the echo of input.

use super::{LineDiscipline, is_control};
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;

/// The most bytes of programs that wait for the reader of the master.
pub const MOST_OUTPUT: usize = 16 << 10;
/// The most bytes of echo beyond [`MOST_OUTPUT`], and while output is stopped. Further echo is dropped.
const MOST_ECHO: usize = 4096;
/// The most bytes that one byte of a program becomes: the spaces of a tabulator.
const EXPANSION: usize = 8;

/// A part of the echo. Processed when it is queued as output, with the settings of that moment.
#[derive(Clone, Copy)]
pub(super) enum Echo {
    /// A byte, as a program's output.
    Byte(u8),
    /// A control character, shown as `^` and a letter.
    Control(u8),
    /// The line of input begins at the present column.
    LineBegin,
    /// Back by a column, without output.
    Back,
    /// Back to the begin of a tabulator, behind so many columns of the line or of another tabulator.
    Tabulator { columns: usize, is_after_tabulator: bool },
}

impl LineDiscipline {
    /// Returns whether a program's byte has room.
    pub fn accepts_output(&self) -> bool {
        !self.is_stopped && self.output.len() + EXPANSION <= MOST_OUTPUT
    }

    /// Queues a program's byte. It must be [accepted](Self::accepts_output).
    pub fn send(&mut self, byte: u8) {
        self.process(byte, false);
    }

    /// Returns the number of bytes that wait for the reader of the master.
    pub fn output_len(&self) -> usize {
        self.output.len()
    }

    /// Takes output, for the reader of the master.
    pub fn take_output(&mut self, most: usize) -> Vec<u8> {
        self.output.drain(..most.min(self.output.len())).collect()
    }

    /// Discards output.
    pub fn flush_output(&mut self) {
        self.output.clear();
        self.held.clear();
    }

    /// Stops output, as the character STOP.
    pub fn stop(&mut self) {
        if !self.is_stopped {
            self.is_stopped = true;
            self.packet_status &= !(linux::TIOCPKT_START as u8);
            self.packet_status |= linux::TIOCPKT_STOP as u8;
        }
    }

    /// Lets output continue, as the character START.
    pub fn start(&mut self) {
        if core::mem::take(&mut self.is_stopped) {
            self.packet_status &= !(linux::TIOCPKT_STOP as u8);
            self.packet_status |= linux::TIOCPKT_START as u8;
            let held = core::mem::take(&mut self.held);
            held.into_iter().for_each(|echo| self.show(echo));
        }
    }

    /// Queues a byte, processed as the settings say (`OPOST`).
    fn process(&mut self, byte: u8, is_echo: bool) {
        let settings = self.settings;
        let put = |this: &mut Self, byte: u8| {
            if is_echo { this.put_echo(byte) } else { this.output.push_back(byte) }
        };
        if !settings.has_output(linux::OPOST) {
            return put(self, byte);
        }
        match byte {
            b'\n' => {
                if settings.has_output(linux::ONLRET) {
                    self.column = 0;
                }
                if settings.has_output(linux::ONLCR) {
                    (self.column, self.line_column) = (0, 0);
                    put(self, b'\r');
                } else {
                    self.line_column = self.column;
                }
                put(self, b'\n');
            }
            b'\r' => {
                if settings.has_output(linux::ONOCR) && self.column == 0 {
                    return;
                }
                if settings.has_output(linux::OCRNL) {
                    if settings.has_output(linux::ONLRET) {
                        (self.column, self.line_column) = (0, 0);
                    }
                    return put(self, b'\n');
                }
                (self.column, self.line_column) = (0, 0);
                put(self, byte);
            }
            b'\t' => {
                let spaces = 8 - (self.column & 7);
                self.column += spaces;
                if settings.output & linux::TABDLY == linux::XTABS {
                    (0..spaces).for_each(|_| put(self, b' '));
                } else {
                    put(self, byte);
                }
            }
            8 => {
                self.column = self.column.saturating_sub(1);
                put(self, byte);
            }
            _ => {
                let mut byte = byte;
                if !is_control(byte) {
                    if settings.has_output(linux::OLCUC) {
                        byte = to_upper_case(byte);
                    }
                    if !self.is_continuation(byte) {
                        self.column += 1;
                    }
                }
                put(self, byte);
            }
        }
    }

    /// Echoes a byte of the input; control characters as `^` and a letter.
    pub(super) fn echo(&mut self, byte: u8) {
        let is_shown = self.settings.has_local(linux::ECHOCTL) && is_control(byte) && byte != b'\t';
        self.queue(if is_shown { Echo::Control(byte) } else { Echo::Byte(byte) });
    }

    /// Echoes a byte as a program's output.
    pub(super) fn echo_raw(&mut self, byte: u8) {
        self.queue(Echo::Byte(byte));
    }

    /// Queues echo, unless output is stopped.
    pub(super) fn queue(&mut self, echo: Echo) {
        if !self.is_stopped {
            return self.show(echo);
        }
        if self.held.len() < MOST_ECHO {
            self.held.push_back(echo);
        }
    }

    fn show(&mut self, echo: Echo) {
        match echo {
            Echo::Byte(0xff) => {
                self.column += 1;
                self.put_echo(0xff);
            }
            Echo::Byte(byte) => self.process(byte, true),
            Echo::Control(byte) => {
                self.put_echo(b'^');
                self.put_echo(byte ^ 0x40);
                self.column += 2;
            }
            Echo::LineBegin => self.line_column = self.column,
            Echo::Back => self.column = self.column.saturating_sub(1),
            Echo::Tabulator { columns, is_after_tabulator } => {
                let before = if is_after_tabulator { columns } else { columns + self.line_column };
                for _ in 0..8 - (before & 7) {
                    self.put_echo(8);
                    self.column = self.column.saturating_sub(1);
                }
            }
        }
    }

    fn put_echo(&mut self, byte: u8) {
        if self.output.len() < MOST_OUTPUT + MOST_ECHO {
            self.output.push_back(byte);
        }
    }
}

/// Returns the upper-case letter, with the letters of ISO 8859-1 as in Linux.
fn to_upper_case(byte: u8) -> u8 {
    let is_lower = byte.is_ascii_lowercase() || byte >= 0xdf && byte != 0xf7;
    if is_lower { byte - 32 } else { byte }
}
