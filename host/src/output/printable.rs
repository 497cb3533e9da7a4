//! Untrusted text on a terminal: no control character of a cell reaches one.
//!
//! Names, messages and console output come from cells and from the network. [`printable`] replaces control characters
//! by escapes (`\x1b`, `\u{202e}`). It applies only to output on a terminal: pipes, files and JSON get the exact bytes.
//! [`Console`] does the same for a stream of bytes, which may end inside a character.

use std::borrow::Cow;
use std::fmt::Write;

/// The control characters that separate lines and columns; they remain.
const LAYOUT: [char; 2] = ['\n', '\t'];

/// Replaces characters that control a terminal by escapes. Keeps line breaks and tabs.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, &LAYOUT)
}

/// Does the same as [`printable`] for a name or a table cell: replaces line breaks and tabs as well.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    escaped(text, &[])
}

fn escaped<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let acts = |character: char| is_control(character) && !kept.contains(&character);
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            character if !acts(character) => safe.push(character),
            '\0'..='\u{ff}' => {
                let _ = write!(safe, "\\x{:02x}", u32::from(character));
            }
            _ => safe.extend(character.escape_unicode()),
        }
    }
    Cow::Owned(safe)
}

/// Returns whether the character controls a terminal: C0 and C1 controls, DEL, and the marks that reorder text.
fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The filter between a cell's console and a terminal.
#[derive(Debug, Default)]
pub struct Console {
    /// An incomplete character or line end at the end of the bytes so far.
    rest: Vec<u8>,
}

impl Console {
    /// Returns the next bytes in printable form. Bytes that are not UTF-8 become escapes; a line may end with CR LF.
    pub fn next(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.len() - self.unfinished();
        let mut safe = String::new();
        for chunk in self.rest[..whole].utf8_chunks() {
            safe.push_str(&printable(&chunk.valid().replace("\r\n", "\n")));
            for byte in chunk.invalid() {
                let _ = write!(safe, "\\x{byte:02x}");
            }
        }
        self.rest.drain(..whole);
        safe
    }

    /// Returns the number of bytes at the end that may continue in the next bytes.
    fn unfinished(&self) -> usize {
        if self.rest.ends_with(b"\r") {
            return 1;
        }
        let last = match std::str::from_utf8(&self.rest) {
            Ok(_) => return 0,
            // Only the last chunk can be incomplete; earlier errors are final.
            Err(_) => self.rest.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid()),
        };
        match std::str::from_utf8(last) {
            Err(error) if error.error_len().is_none() && self.rest.ends_with(last) => last.len(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_of_a_text_are_escaped() {
        let hostile = "\x1b]0;title\x07\x1b[2Ja\r\u{9b}31mb\u{202e}c\u{7f}";
        assert_eq!(printable(hostile), r"\x1b]0;title\x07\x1b[2Ja\x0d\x9b31mb\u{202e}c\x7f");
        assert_eq!(printable("lines\n\tof words, λ and 語\n"), "lines\n\tof words, λ and 語\n");
        assert_eq!(printable_line("a\nb\tc"), r"a\x0ab\x09c");
    }

    #[test]
    fn a_console_keeps_lines_and_characters_however_the_stream_is_split() {
        let mut console = Console::default();
        let bytes = "one\r\ntwo λ\x1b[2J\rthree".as_bytes();
        let text: String = bytes.iter().map(|byte| console.next(&[*byte])).collect();
        assert_eq!(text, "one\ntwo λ\\x1b[2J\\x0dthree");
        assert_eq!(Console::default().next(b"a\xff\xceb\xe2\x82"), r"a\xff\xceb");
    }

    proptest! {
        #[test]
        fn no_control_character_of_a_cell_remains(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..10)
        ) {
            let mut console = Console::default();
            for piece in &pieces {
                let text = console.next(piece);
                prop_assert!(!text.contains(|c| is_control(c) && !LAYOUT.contains(&c)), "{text:?}");
                prop_assert!(console.rest.len() <= 3);
            }
        }
    }
}
