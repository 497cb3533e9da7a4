//! The arguments of `ioctl`.

use isola_linux_abi::requests;

/// What the argument of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlArgument {
    /// A number, or nothing.
    Value,
    /// The address of this many bytes that the call reads.
    Reads(usize),
    /// The address of this many bytes that the call writes.
    Writes(usize),
    /// The address of this many bytes that the call reads and writes.
    Both(usize),
}

/// Returns what the argument of a request is: by a list for old requests, by the request's own bits for others.
pub fn control_argument(request: u32) -> ControlArgument {
    use ControlArgument::{Both, Reads, Value, Writes};
    match request {
        TCGETS => Writes(36),
        TCSETS | TCSETSW | TCSETSF => Reads(36),
        TIOCGWINSZ => Writes(8),
        TIOCSWINSZ => Reads(8),
        requests::TCGETS2 => Writes(44),
        requests::TCSETS2 | requests::TCSETSW2 | requests::TCSETSF2 => Reads(44),
        requests::TIOCPKT => Reads(4),
        TIOCGPGRP | TIOCGSID | TIOCOUTQ | requests::FIONREAD => Writes(4),
        TIOCSPGRP | requests::FIONBIO | requests::FIOASYNC => Reads(4),
        SIOCATMARK => Writes(4),
        // Requests of network interfaces: `struct ifconf` and `struct ifreq`.
        0x8912 => Both(16),
        0x8910..=0x89ff => Both(40),
        // Other old requests of terminals and files.
        0x5401..=0x54ff if request >> 16 == 0 => Value,
        _ => {
            let len = (request >> 16 & 0x3fff) as usize;
            match request >> 30 {
                1 => Reads(len),
                2 => Writes(len),
                3 => Both(len),
                _ => Value,
            }
        }
    }
}

const TCGETS: u32 = requests::TCGETS;
const TCSETS: u32 = requests::TCSETS;
const TCSETSW: u32 = requests::TCSETSW;
const TCSETSF: u32 = requests::TCSETSF;
const TIOCGWINSZ: u32 = requests::TIOCGWINSZ;
const TIOCSWINSZ: u32 = requests::TIOCSWINSZ;
const TIOCGPGRP: u32 = requests::TIOCGPGRP;
const TIOCSPGRP: u32 = requests::TIOCSPGRP;
const TIOCGSID: u32 = requests::TIOCGSID;
const SIOCATMARK: u32 = requests::SIOCATMARK;
const TIOCOUTQ: u32 = requests::TIOCOUTQ;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_requests_are_listed_and_new_ones_say_their_length() {
        assert_eq!(control_argument(TCGETS), ControlArgument::Writes(36));
        // TIOCGPTN, TIOCSPTLCK, TIOCSCTTY, SIOCGIFCONF.
        assert_eq!(control_argument(0x8004_5430), ControlArgument::Writes(4));
        assert_eq!(control_argument(0x4004_5431), ControlArgument::Reads(4));
        assert_eq!(control_argument(0x540e), ControlArgument::Value);
        assert_eq!(control_argument(0x8912), ControlArgument::Both(16));
        assert_eq!(control_argument(u32::MAX), ControlArgument::Both(0x3fff));
    }
}
