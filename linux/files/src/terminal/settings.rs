//! The settings of a terminal: `struct termios` and `struct termios2`.

use isola_linux_abi::numbers as linux;

/// The number of special characters in the kernel's structures.
pub const CHARACTERS: usize = 19;
/// The length of `struct termios`.
pub const TERMIOS_LEN: usize = 36;
/// The length of `struct termios2`, which has the speeds as numbers.
pub const TERMIOS2_LEN: usize = 44;

/// The settings of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSettings {
    /// Flags of input (`c_iflag`).
    pub input: u32,
    /// Flags of output (`c_oflag`).
    pub output: u32,
    /// Flags of the line (`c_cflag`), without effect.
    pub control: u32,
    /// Flags of the line discipline (`c_lflag`).
    pub local: u32,
    /// The number of the line discipline, recorded only.
    pub discipline: u8,
    /// The special characters, by their indices `V*`; 0 disables one.
    pub characters: [u8; CHARACTERS],
    /// The speeds of input and output, recorded only.
    pub speeds: [u32; 2],
}

impl Default for TerminalSettings {
    /// The settings of a new pseudo-terminal on Linux.
    fn default() -> Self {
        let mut characters = [0; CHARACTERS];
        for (index, character) in [
            (linux::VINTR, 3),
            (linux::VQUIT, 28),
            (linux::VERASE, 127),
            (linux::VKILL, 21),
            (linux::VEOF, 4),
            (linux::VMIN, 1),
            (linux::VSTART, 17),
            (linux::VSTOP, 19),
            (linux::VSUSP, 26),
            (linux::VREPRINT, 18),
            (linux::VDISCARD, 15),
            (linux::VWERASE, 23),
            (linux::VLNEXT, 22),
        ] {
            characters[index as usize] = character;
        }
        Self {
            input: linux::ICRNL | linux::IXON,
            output: linux::OPOST | linux::ONLCR,
            control: linux::B38400 | linux::CS8 | linux::CREAD,
            local: linux::ISIG
                | linux::ICANON
                | linux::ECHO
                | linux::ECHOE
                | linux::ECHOK
                | linux::ECHOCTL
                | linux::ECHOKE
                | linux::IEXTEN,
            discipline: 0,
            characters,
            speeds: [38_400; 2],
        }
    }
}

impl TerminalSettings {
    /// Returns `struct termios2`; its first [`TERMIOS_LEN`] bytes are `struct termios`.
    pub fn to_bytes(&self) -> [u8; TERMIOS2_LEN] {
        let mut bytes = [0; TERMIOS2_LEN];
        for (index, word) in [self.input, self.output, self.control, self.local].into_iter().enumerate() {
            bytes[index * 4..][..4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16] = self.discipline;
        bytes[17..TERMIOS_LEN].copy_from_slice(&self.characters);
        for (index, speed) in self.speeds.into_iter().enumerate() {
            bytes[TERMIOS_LEN + index * 4..][..4].copy_from_slice(&speed.to_ne_bytes());
        }
        bytes
    }

    /// Returns the settings of `struct termios` or `struct termios2`; `None` if the bytes are too few. The former leaves
    /// the speeds as they were.
    pub fn of_bytes(bytes: &[u8], former: &Self) -> Option<Self> {
        let word = |at: usize| {
            bytes.get(at..at + 4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
        };
        let characters = bytes.get(17..TERMIOS_LEN)?.try_into().ok()?;
        Some(Self {
            input: word(0)?,
            output: word(4)?,
            control: word(8)?,
            local: word(12)?,
            discipline: *bytes.get(16)?,
            characters,
            speeds: [word(36).unwrap_or(former.speeds[0]), word(40).unwrap_or(former.speeds[1])],
        })
    }

    /// Returns a special character; 0 if it is disabled.
    pub fn character(&self, index: u32) -> u8 {
        self.characters[index as usize]
    }

    /// Returns whether a byte is this special character.
    pub fn is(&self, index: u32, byte: u8) -> bool {
        byte != 0 && self.character(index) == byte
    }

    /// Returns whether a flag of input is set.
    pub fn has_input(&self, flag: u32) -> bool {
        self.input & flag != 0
    }

    /// Returns whether a flag of output is set.
    pub fn has_output(&self, flag: u32) -> bool {
        self.output & flag != 0
    }

    /// Returns whether a flag of the line discipline is set.
    pub fn has_local(&self, flag: u32) -> bool {
        self.local & flag != 0
    }

    /// Returns whether input is read by lines.
    pub fn is_canonical(&self) -> bool {
        self.has_local(linux::ICANON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_their_structures() {
        let settings = TerminalSettings { speeds: [300, 600], input: 7, ..TerminalSettings::default() };
        let bytes = settings.to_bytes();
        let other = TerminalSettings::default();
        assert_eq!(TerminalSettings::of_bytes(&bytes, &other), Some(settings));
        let short = TerminalSettings::of_bytes(&bytes[..TERMIOS_LEN], &other).unwrap();
        assert_eq!(short, TerminalSettings { speeds: [38_400; 2], ..settings });
        assert_eq!(TerminalSettings::of_bytes(&bytes[..35], &other), None);
    }
}
