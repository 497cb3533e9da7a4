//! Drawing with characters: sparklines, bars and cut texts, in Unicode or in ASCII.

use std::env;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The characters that a terminal can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charset {
    /// Those of Unicode: blocks, lines, arrows.
    #[default]
    Unicode,
    /// Those of ASCII only.
    Ascii,
}

/// The levels of a sparkline, from nothing to all.
const SPARKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// The same in ASCII.
const ASCII_SPARKS: [&str; 9] = [" ", ".", ".", ":", "-", "=", "+", "*", "#"];

impl Charset {
    /// Returns the character set of the user's locale.
    pub fn of_locale() -> Self {
        Self::of_variables(|name| env::var(name).ok())
    }

    /// Returns the character set that the variables of the locale select (POSIX 8.2): UTF-8 or not.
    fn of_variables(value: impl Fn(&str) -> Option<String>) -> Self {
        let values = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(value);
        let locale = values.into_iter().find(|value| !value.is_empty()).unwrap_or_default().to_lowercase();
        if locale.contains("utf-8") || locale.contains("utf8") { Self::Unicode } else { Self::Ascii }
    }

    /// Returns one of two texts.
    pub fn choose<'t>(self, unicode: &'t str, ascii: &'t str) -> &'t str {
        match self {
            Self::Unicode => unicode,
            Self::Ascii => ascii,
        }
    }

    /// Returns a sparkline, a character per part: 0 is nothing, 1 all. A part above 0 is never shown as nothing.
    pub fn sparkline(self, parts: impl IntoIterator<Item = f64>) -> String {
        let levels = match self {
            Self::Unicode => SPARKS,
            Self::Ascii => ASCII_SPARKS,
        };
        let last = levels.len() - 1;
        parts
            .into_iter()
            .map(|part| levels[((part * last as f64).ceil().max(0.0) as usize).min(last)])
            .collect()
    }

    /// Returns a bar of `width` columns, of which `part` is full: 0 to 1.
    pub fn bar(self, part: f64, width: usize) -> String {
        let full = ((part * width as f64).round().max(0.0) as usize).min(width);
        self.choose("█", "#").repeat(full) + &self.choose("░", ".").repeat(width - full)
    }

    /// Returns a text of at most `width` columns: a longer one ends with an ellipsis.
    pub fn cut(self, text: &str, width: usize) -> String {
        if text.width() <= width {
            return text.to_owned();
        }
        let mut cut = String::new();
        let mut columns = 0;
        for character in text.chars() {
            columns += character.width().unwrap_or(0);
            if columns + 1 > width {
                break;
            }
            cut.push(character);
        }
        if width > 0 {
            cut.push_str(self.choose("…", "~"));
        }
        cut
    }

    /// Returns a text of exactly `width` columns: cut, or padded at its end.
    pub fn fit(self, text: &str, width: usize) -> String {
        let mut text = self.cut(text, width);
        text.extend(std::iter::repeat_n(' ', width.saturating_sub(text.width())));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let charset = |variables: &[(&str, &str)]| {
            Charset::of_variables(|name| {
                variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.to_string())
            })
        };
        assert_eq!(charset(&[("LANG", "en_GB.UTF-8")]), Charset::Unicode);
        assert_eq!(charset(&[("LANG", "en_GB.UTF-8"), ("LC_ALL", "C")]), Charset::Ascii);
        assert_eq!(charset(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8")]), Charset::Unicode);
        assert_eq!(charset(&[]), Charset::Ascii);
    }

    #[test]
    fn a_little_is_distinguished_from_nothing() {
        assert_eq!(Charset::Unicode.sparkline([0.0, 0.001, 0.5, 1.0, 7.0, -1.0]), " ▁▄██ ");
        assert_eq!(Charset::Ascii.sparkline([0.0, 0.001, 0.5, 1.0, f64::NAN]), " .-# ");
        assert_eq!(Charset::Unicode.bar(0.5, 4), "██░░");
        assert_eq!(Charset::Ascii.bar(9.0, 3), "###");
    }

    #[test]
    fn texts_are_cut_by_their_width_on_a_terminal() {
        assert_eq!(Charset::Unicode.cut("abcdef", 4), "abc…");
        assert_eq!(Charset::Unicode.cut("語語語", 4), "語…");
        assert_eq!(Charset::Ascii.fit("abcdef", 3), "ab~");
        assert_eq!(Charset::Ascii.fit("ab", 4), "ab  ");
        assert_eq!(Charset::Ascii.cut("abc", 0), "");
    }
}
