//! Random bytes and settings, on a terminal and on a pseudo-terminal of the host: programs and the terminal's user read
//! the same from both.

use isola_linux_abi::numbers as linux;
use isola_linux_abi::requests;
use isola_linux_files::{
    CallerIds, Errno, FileObject, TERMIOS_LEN, TerminalAnswer, TerminalFile, TerminalSettings, Terminals,
};
use isola_linux_memory::UserBuffer;
use proptest::prelude::*;
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, tcgetattr, tcsetattr,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    /// The user types these bytes.
    Type(Vec<u8>),
    /// A program writes these bytes.
    Print(Vec<u8>),
    /// Programs and the user read all that is there, this many bytes at once.
    Read(usize),
    /// A program changes the settings.
    Set(Modes),
}

impl Step {
    /// Divides what the user types at the characters that stop and start output: the host echoes at the end of a write, and
    /// moves it to the line discipline at a time of its own unless a read waits for it.
    fn divided(self) -> Vec<Self> {
        let Self::Type(bytes) = self else { return vec![self] };
        let parts = bytes.split_inclusive(|byte| matches!(byte, 17 | 19));
        let divided = parts.flat_map(|part| {
            let (last, others) = part.split_last().unwrap();
            [others.to_vec(), vec![*last]]
        });
        divided.filter(|part| !part.is_empty()).map(Self::Type).collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct Modes {
    input: u32,
    output: u32,
    local: u32,
    minimum: u8,
}

/// Modes that the test leaves out: a signal character without `NOFLSH` discards output that the host moves at a time of
/// its own, and `XON` of the master's side has no effect here.
fn modes() -> impl Strategy<Value = Modes> {
    let input = [
        linux::ISTRIP,
        linux::INLCR,
        linux::IGNCR,
        linux::ICRNL,
        linux::IUCLC,
        linux::IXON,
        linux::IXANY,
        linux::IUTF8,
        linux::PARMRK,
    ];
    let output =
        [linux::OPOST, linux::OLCUC, linux::ONLCR, linux::OCRNL, linux::ONOCR, linux::ONLRET, linux::XTABS];
    let local = [
        linux::ICANON,
        linux::ECHO,
        linux::ECHOE,
        linux::ECHOK,
        linux::ECHONL,
        linux::IEXTEN,
        linux::ECHOCTL,
        linux::ECHOPRT,
        linux::ECHOKE,
        linux::ISIG,
    ];
    let usual = TerminalSettings::default();
    let any = |flags: Vec<u32>| {
        prop::collection::vec(any::<bool>(), flags.len()).prop_map(move |set| {
            flags
                .iter()
                .zip(set)
                .filter(|(_, is_set)| *is_set)
                .map(|(flag, _)| *flag)
                .fold(0, |all, flag| all | flag)
        })
    };
    let random = (any(input.to_vec()), any(output.to_vec()), any(local.to_vec()), 0..3_u8).prop_map(
        |(input, output, local, minimum)| Modes { input, output, local: local | linux::NOFLSH, minimum },
    );
    let usual =
        Modes { input: usual.input, output: usual.output, local: usual.local | linux::NOFLSH, minimum: 1 };
    prop_oneof![2 => Just(usual), 1 => Just(Modes { input: usual.input | linux::IUTF8, ..usual }), 4 => random]
}

fn typed() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        6 => prop::sample::select(b"abc _-9A.".to_vec()),
        2 => prop::sample::select(b"\n\r\t".to_vec()),
        // Erase, kill, word erase, end of file, literal next, reprint, start, stop, interrupt.
        3 => prop::sample::select(vec![127, 21, 23, 4, 22, 18, 17, 19, 3]),
        1 => prop::sample::select(vec![1, 27, 8, 0, 255]),
        1 => prop::sample::select(vec![0xc3, 0xa4, 0xe2, 0x82, 0xac, 0x80]),
    ];
    prop::collection::vec(byte, 1..30)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => typed().prop_map(Step::Type),
        2 => prop::collection::vec(prop::sample::select(b"ab\n\r\t\x08Z\x1b".to_vec()), 1..20).prop_map(Step::Print),
        3 => prop_oneof![Just(1), Just(3), Just(100)].prop_map(Step::Read),
        1 => modes().prop_map(Step::Set),
    ]
}

/// A terminal of the host.
struct Host {
    master: OwnedFd,
    slave: OwnedFd,
}

impl Host {
    fn new() -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK;
        let slave = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
        rustix::fs::fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
        Self { master, slave }
    }

    fn set(&self, modes: Modes) {
        let mut settings = tcgetattr(&self.slave).unwrap();
        settings.input_modes = InputModes::from_bits_retain(modes.input);
        settings.output_modes = OutputModes::from_bits_retain(modes.output);
        settings.local_modes = LocalModes::from_bits_retain(modes.local);
        settings.special_codes[SpecialCodeIndex::VMIN] = modes.minimum;
        settings.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&self.slave, OptionalActions::Now, &settings).unwrap();
    }

    fn read(file: &OwnedFd, most: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; most];
        let count = rustix::io::read(file, &mut bytes[..]).ok()?;
        bytes.truncate(count);
        Some(bytes)
    }
}

/// A terminal of a cell.
struct Own {
    master: TerminalFile,
    slave: TerminalFile,
}

impl Own {
    fn new(terminals: &Arc<Terminals>) -> Self {
        let owner = isola_linux_files::Ownership { user: 0, group: 0, permissions: 0o620 };
        let (master, slave) = terminals.create_open(owner, [0; 4]).unwrap();
        Self { master, slave }
    }

    fn request(&self, number: u32, buffer: &mut UserBuffer) -> Result<(), Errno> {
        let caller = CallerIds { process: 1, thread: 1 };
        match self.slave.request(caller, false, number, 0, buffer)? {
            TerminalAnswer::Value(0) => Ok(()),
            TerminalAnswer::Value(_) | TerminalAnswer::File(..) => panic!("no such answer"),
        }
    }

    fn set(&self, modes: Modes) {
        let mut settings = TerminalSettings {
            input: modes.input,
            output: modes.output,
            local: modes.local,
            ..TerminalSettings::default()
        };
        settings.characters[linux::VMIN as usize] = modes.minimum;
        let bytes = settings.to_bytes();
        self.request(requests::TCSETS, &mut UserBuffer::of_bytes(&bytes[..TERMIOS_LEN])).unwrap();
        let mut shown = UserBuffer::of_bytes(&[0; TERMIOS_LEN]);
        let mut copy = shown.clone();
        self.request(requests::TCGETS, &mut shown).unwrap();
        assert_eq!(copy.read_all(), bytes[..TERMIOS_LEN]);
    }

    fn read(file: &TerminalFile, most: usize) -> Option<Vec<u8>> {
        let bytes = vec![0; most];
        let mut buffer = UserBuffer::of_bytes(&bytes);
        let mut contents = buffer.clone();
        let count = file.read(&mut buffer).ok()?;
        let mut bytes = contents.read_all();
        bytes.truncate(count);
        Some(bytes)
    }
}

fn write_all(file: &TerminalFile, bytes: &[u8]) -> usize {
    let mut buffer = UserBuffer::of_bytes(bytes);
    while !buffer.is_empty() && file.write(&mut buffer).is_ok() {}
    bytes.len() - buffer.len()
}

/// Reads until there is nothing; without lines, an empty read is that as well.
fn reads(is_canonical: bool, mut read: impl FnMut() -> Option<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(bytes) = read() {
        if bytes.is_empty() && !is_canonical {
            break;
        }
        all.push(bytes);
    }
    if is_canonical { all } else { vec![all.concat()] }
}

fn same(first: Modes, steps: Vec<Step>) {
    let (host, terminals) = (Host::new(), Terminals::new());
    let own = Own::new(&terminals);
    let mut is_canonical = first.local & linux::ICANON != 0;
    host.set(first);
    own.set(first);
    // Bytes for which the line discipline had no room.
    let mut waiting = Vec::new();
    let type_own = |waiting: &mut Vec<u8>| {
        let count = write_all(&own.master, waiting);
        waiting.drain(..count);
    };
    let steps = steps.into_iter().flat_map(Step::divided);
    for (number, step) in steps.enumerate() {
        let most = match step {
            Step::Type(bytes) => {
                rustix::io::write(&host.master, &bytes).unwrap();
                waiting.extend(bytes);
                type_own(&mut waiting);
                100
            }
            Step::Print(bytes) => {
                let count = rustix::io::write(&host.slave, &bytes).unwrap_or(0);
                assert_eq!(write_all(&own.slave, &bytes), count, "step {number}");
                100
            }
            Step::Read(most) => most,
            Step::Set(modes) => {
                is_canonical = modes.local & linux::ICANON != 0;
                host.set(modes);
                own.set(modes);
                continue;
            }
        };
        // A read without a result makes the host process what was written.
        let expected = reads(is_canonical, || Host::read(&host.slave, most));
        let found = reads(is_canonical, || {
            let bytes = Own::read(&own.slave, most);
            type_own(&mut waiting);
            bytes
        });
        assert_eq!(found, expected, "programs, step {number}");
        let expected = reads(false, || Host::read(&host.master, 1000));
        let found = reads(false, || Own::read(&own.master, 1000));
        let text = |bytes: &[Vec<u8>]| String::from_utf8_lossy(&bytes.concat()).into_owned();
        assert_eq!(text(&found), text(&expected), "the user, step {number}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_terminal_does_what_one_of_the_host_does(
        first in modes(),
        steps in prop::collection::vec(step(), 1..12),
    ) {
        same(first, steps);
    }
}

#[test]
fn a_line_that_is_too_long_can_be_ended() {
    let settings = TerminalSettings::default();
    let modes = Modes { input: settings.input, output: settings.output, local: settings.local, minimum: 1 };
    let mut steps = vec![Step::Type(vec![b'x'; 100]); 50];
    steps.extend([Step::Type(b"y\nz".to_vec()), Step::Type(b"\n".to_vec())]);
    same(modes, steps);
}
