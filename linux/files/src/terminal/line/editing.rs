//! The editing of a line of input: characters that erase, quote, show or end it.

use super::output::Echo;
use super::{LineDiscipline, is_control};
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;

impl LineDiscipline {
    /// A character of line editing, or one that ends a line. Returns whether it was one.
    pub(super) fn receive_editing(&mut self, byte: u8) -> bool {
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

    pub(super) fn finish_erasing(&mut self) {
        if core::mem::take(&mut self.is_erasing) {
            self.echo_raw(b'/');
        }
    }
}

/// Returns whether a byte above ASCII is a letter for Linux's `isalnum`, which knows ISO 8859-1.
fn is_latin_letter(byte: u8) -> bool {
    byte >= 0xc0 && byte != 0xd7 && byte != 0xf7
}
