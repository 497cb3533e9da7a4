//! The line discipline: between the bytes of a terminal's user and those that programs read and write.
//!
//! ```text
//!   master writes -> receive -> input queue -> take -> slave reads
//!                       | echo
//!   master reads <- output queue <------------ send <- slave writes
//! ```
//!
//! A model of Linux's `n_tty`: a test passes random bytes through it and through a pseudo-terminal of the host.

use super::settings::TerminalSettings;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;

/// The most bytes that wait to be read, as in Linux. A line can have one byte less.
pub const MOST_INPUT: usize = 4096;
/// The most bytes of programs that wait for the reader of the master.
pub const MOST_OUTPUT: usize = 16 << 10;
/// The most bytes of echo beyond [`MOST_OUTPUT`], and while output is stopped. Further echo is dropped.
const MOST_ECHO: usize = 4096;
/// The most bytes that one byte of a program becomes: the spaces of a tabulator.
const EXPANSION: usize = 8;
/// The bytes of output that a signal character does not flush: those that Linux's master has already received.
const UNFLUSHED: usize = 4096;

/// A byte that waits to be read.
#[derive(Clone, Copy)]
struct InputByte {
    byte: u8,
    /// It ends a line. A byte of 0 that does is the mark of an end of the file, and is not read.
    ends_line: bool,
}

/// A part of the echo. Processed when it is queued as output, with the settings of that moment.
#[derive(Clone, Copy)]
enum Echo {
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

    // Input.

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

    /// A character of line editing, or one that ends a line. Returns whether it was one.
    fn receive_editing(&mut self, byte: u8) -> bool {
        let settings = self.settings;
        let extended = settings.has_local(linux::IEXTEN);
        let echoes = settings.has_local(linux::ECHO);
        if settings.is(linux::VERASE, byte)
            || settings.is(linux::VKILL, byte)
            || extended && settings.is(linux::VWERASE, byte)
        {
            self.erase(byte);
        } else if extended && settings.is(linux::VLNEXT, byte) {
            self.is_literal = true;
            if echoes {
                self.finish_erasing();
                if settings.has_local(linux::ECHOCTL) {
                    self.echo_raw(b'^');
                    self.echo_raw(8);
                }
            }
        } else if extended && echoes && settings.is(linux::VREPRINT, byte) {
            self.finish_erasing();
            self.echo(byte);
            self.echo_raw(b'\n');
            let line: Vec<u8> = self.input.range(self.complete..).map(|input| input.byte).collect();
            line.into_iter().for_each(|byte| self.echo(byte));
        } else if byte == b'\n' {
            if echoes || settings.has_local(linux::ECHONL) {
                self.echo_raw(b'\n');
            }
            self.put(byte, true);
        } else if settings.is(linux::VEOF, byte) {
            self.put(0, true);
        } else if settings.is(linux::VEOL, byte) || extended && settings.is(linux::VEOL2, byte) {
            if echoes {
                if self.line_is_empty() {
                    self.queue(Echo::LineBegin);
                }
                self.echo(byte);
            }
            if settings.has_input(linux::PARMRK) && byte == 0xff {
                self.put(byte, false);
            }
            self.put(byte, true);
        } else {
            return false;
        }
        true
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

    /// Erases a character, a word or the line, and shows that.
    fn erase(&mut self, byte: u8) {
        let settings = self.settings;
        if self.line_is_empty() {
            return;
        }
        let echoes = settings.has_local(linux::ECHO);
        let (is_character, is_word) = (settings.is(linux::VERASE, byte), settings.is(linux::VWERASE, byte));
        if !is_character && !is_word {
            let shows_each =
                [linux::ECHOK, linux::ECHOKE, linux::ECHOE].iter().all(|flag| settings.has_local(*flag));
            if !echoes || !shows_each {
                self.input.truncate(self.complete);
                if echoes {
                    self.finish_erasing();
                    self.echo(settings.character(linux::VKILL));
                    if settings.has_local(linux::ECHOK) {
                        self.echo_raw(b'\n');
                    }
                }
                return;
            }
        }
        let mut has_word = false;
        while !self.line_is_empty() {
            let mut head = self.input.len();
            let mut first;
            loop {
                head -= 1;
                first = self.input[head].byte;
                if !self.is_continuation(first) || head == self.complete {
                    break;
                }
            }
            // A character without its first byte stays.
            if self.is_continuation(first) {
                break;
            }
            if is_word && !is_character {
                if first.is_ascii_alphanumeric() || first == b'_' || is_latin_letter(first) {
                    has_word = true;
                } else if has_word {
                    break;
                }
            }
            let removed: Vec<u8> = self.input.drain(head..).map(|input| input.byte).collect();
            if echoes {
                self.echo_erased(&removed, is_character);
            }
            if is_character {
                break;
            }
        }
        if self.line_is_empty() && echoes {
            self.finish_erasing();
        }
    }

    /// Shows that a character, the last of the line, was erased.
    fn echo_erased(&mut self, removed: &[u8], is_character: bool) {
        let settings = self.settings;
        let Some(&first) = removed.first() else { return };
        let shows_control = settings.has_local(linux::ECHOCTL);
        if settings.has_local(linux::ECHOPRT) {
            if !self.is_erasing {
                self.echo_raw(b'\\');
                self.is_erasing = true;
            }
            self.echo(first);
            for byte in &removed[1..] {
                self.echo_raw(*byte);
                self.queue(Echo::Back);
            }
        } else if is_character && !settings.has_local(linux::ECHOE) {
            self.echo(settings.character(linux::VERASE));
        } else if first == b'\t' {
            // The tabulator's width follows from the columns of the characters before it.
            let (mut columns, mut is_after_tabulator) = (0, false);
            for input in self.input.range(self.complete..).rev() {
                if input.byte == b'\t' {
                    is_after_tabulator = true;
                    break;
                } else if is_control(input.byte) {
                    columns += if shows_control { 2 } else { 0 };
                } else if !self.is_continuation(input.byte) {
                    columns += 1;
                }
            }
            self.queue(Echo::Tabulator { columns, is_after_tabulator });
        } else {
            let count = if !is_control(first) {
                1
            } else if shows_control {
                2
            } else {
                0
            };
            for _ in 0..count {
                [8, b' ', 8].into_iter().for_each(|byte| self.echo_raw(byte));
            }
        }
    }

    fn finish_erasing(&mut self) {
        if core::mem::take(&mut self.is_erasing) {
            self.echo_raw(b'/');
        }
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

    // Output.

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
    fn echo(&mut self, byte: u8) {
        let is_shown = self.settings.has_local(linux::ECHOCTL) && is_control(byte) && byte != b'\t';
        self.queue(if is_shown { Echo::Control(byte) } else { Echo::Byte(byte) });
    }

    /// Echoes a byte as a program's output.
    fn echo_raw(&mut self, byte: u8) {
        self.queue(Echo::Byte(byte));
    }

    /// Queues echo, unless output is stopped.
    fn queue(&mut self, echo: Echo) {
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

/// Returns the lower-case letter, with the letters of ISO 8859-1 as in Linux.
fn to_lower_case(byte: u8) -> u8 {
    let is_upper = byte.is_ascii_uppercase() || (0xc0..=0xde).contains(&byte) && byte != 0xd7;
    if is_upper { byte + 32 } else { byte }
}

/// Returns the upper-case letter, with the letters of ISO 8859-1 as in Linux.
fn to_upper_case(byte: u8) -> u8 {
    let is_lower = byte.is_ascii_lowercase() || byte >= 0xdf && byte != 0xf7;
    if is_lower { byte - 32 } else { byte }
}

/// Returns whether a byte above ASCII is a letter for Linux's `isalnum`, which knows ISO 8859-1.
fn is_latin_letter(byte: u8) -> bool {
    byte >= 0xc0 && byte != 0xd7 && byte != 0xf7
}
