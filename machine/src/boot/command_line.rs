//! The command line that a loader passes: `name=kv ip=10.0.2.15/24,10.0.2.2 -- --port 11211`.
//!
//! Words before `--` configure the machine, those after it are the application's arguments. A loader may add words of
//! its own anywhere (QEMU's `virtio_mmio.device=` at the end); they are removed from the arguments.

use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::descriptor::{HaltMode, NetworkAddress};
use isola_abi::grid::{GridChange, GridSetup, PolicyChange};
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::volume::{VolumeAccess, is_mount_path};

/// The prefix of a loader's word for a virtio-mmio device (Linux, `virtio_mmio.c`).
const MMIO_DEVICE: &str = "virtio_mmio.device=";

/// A parsed command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// `name=`.
    pub name: Option<String>,
    /// `ip=ADDRESS/PREFIX[,GATEWAY]`.
    pub address: Option<NetworkAddress>,
    /// `halt=hlt` or `halt=mwait`: the instruction by which cores halt; `None` leaves the choice to the image.
    pub halt_mode: Option<HaltMode>,
    /// `virtio_mmio.device=SIZE@BASE:INTERRUPT`, for each such word.
    pub mmio_devices: Vec<MmioWindow>,
    /// `grid.RESOURCE=POLICY`: a policy of the resource grid from the start.
    pub grid: GridSetup,
    /// `volume=PATH` or `volume=PATH:ro`, for each such word: a volume on the next block device.
    pub volumes: Vec<StandaloneVolume>,
    /// The words after `--`.
    pub arguments: Vec<String>,
    /// Unknown words before `--`.
    pub unknown: Vec<String>,
}

/// The location of a virtio-mmio device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmioWindow {
    /// Its registers.
    pub registers: PhysRange,
    /// Its interrupt line.
    pub interrupt: u32,
}

/// A volume of a standalone image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandaloneVolume {
    /// The path at which it is mounted.
    pub path: String,
    /// What the image may do with it.
    pub access: VolumeAccess,
}

impl CommandLine {
    /// Parses a command line.
    pub fn parse(text: &str) -> Self {
        let mut line = Self::default();
        let mut application = false;
        for word in text.split_ascii_whitespace() {
            if let Some(device) = word.strip_prefix(MMIO_DEVICE).and_then(parse_window) {
                line.mmio_devices.push(device);
            } else if application {
                line.arguments.push(word.into());
            } else if word == "--" {
                application = true;
            } else if let Some(name) = word.strip_prefix("name=") {
                line.name = Some(name.into());
            } else if let Some(address) = word.strip_prefix("ip=").and_then(parse_address) {
                line.address = Some(address);
            } else if let Some(mode) = word.strip_prefix("halt=").and_then(parse_halt_mode) {
                line.halt_mode = Some(mode);
            } else if let Some(change) = word.strip_prefix("grid.").and_then(parse_policy) {
                line.grid.changes.push(change);
            } else if let Some(volume) = word.strip_prefix("volume=").and_then(parse_volume) {
                line.volumes.push(volume);
            } else {
                line.unknown.push(word.into());
            }
        }
        line
    }
}

fn parse_volume(text: &str) -> Option<StandaloneVolume> {
    let (path, access) = match text.strip_suffix(":ro") {
        Some(path) => (path, VolumeAccess::ReadOnly),
        None => (text, VolumeAccess::ReadWrite),
    };
    is_mount_path(path).then(|| StandaloneVolume { path: path.into(), access })
}

fn parse_policy(text: &str) -> Option<GridChange> {
    let (resource, policy) = text.split_once('=')?;
    Some(GridChange {
        resource: resource.parse().ok()?,
        dry_run: false,
        policy: Some(PolicyChange::Policy(policy.parse().ok()?)),
        batch: None,
        limit: None,
        activity: None,
    })
}

fn parse_halt_mode(text: &str) -> Option<HaltMode> {
    match text {
        "hlt" => Some(HaltMode::Hlt),
        "mwait" => Some(HaltMode::Mwait),
        _ => None,
    }
}

fn parse_address(text: &str) -> Option<NetworkAddress> {
    let (network, gateway) = match text.split_once(',') {
        Some((network, gateway)) => (network, Some(gateway.parse().ok()?)),
        None => (text, None),
    };
    let (ip, prefix_len) = network.split_once('/')?;
    let prefix_len = prefix_len.parse().ok().filter(|len| *len <= 32)?;
    Some(NetworkAddress { ip: ip.parse().ok()?, prefix_len, gateway })
}

fn parse_window(text: &str) -> Option<MmioWindow> {
    let (len, rest) = text.split_once('@')?;
    let mut rest = rest.split(':');
    let (base, interrupt) = (rest.next()?, rest.next()?);
    let (number, unit) = match len.strip_suffix(['K', 'k']) {
        Some(number) => (number, 1024),
        None => (len, 1),
    };
    let len_bytes = parse_number(number)?.checked_mul(unit)?;
    let registers = PhysRange::new(PhysAddr(parse_number(base)?), len_bytes);
    Some(MmioWindow { registers, interrupt: parse_number(interrupt)?.try_into().ok()? })
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::grid::{PolicyKind, Resource};

    #[test]
    fn each_word_is_parsed() {
        let line = CommandLine::parse(
            "quiet name=kv ip=10.0.2.15/24,10.0.2.2 -- -p 1 ip=x virtio_mmio.device=512@0xfeb00e00:12",
        );
        assert_eq!(line.name.as_deref(), Some("kv"));
        let address = line.address.unwrap();
        assert_eq!((address.ip.octets(), address.prefix_len), ([10, 0, 2, 15], 24));
        assert_eq!(address.gateway.unwrap().octets(), [10, 0, 2, 2]);
        assert_eq!(line.arguments, ["-p", "1", "ip=x"]);
        assert_eq!(line.unknown, ["quiet"]);
        let registers = PhysRange::new(PhysAddr(0xfeb0_0e00), 512);
        assert_eq!(line.mmio_devices, [MmioWindow { registers, interrupt: 12 }]);
    }

    #[test]
    fn a_volume_has_an_absolute_path_and_perhaps_read_access_only() {
        let line = CommandLine::parse("volume=/data volume=/var/www:ro volume=relative volume=/a/..:ro");
        let volume = |path: &str, access| StandaloneVolume { path: path.into(), access };
        let expected = [volume("/data", VolumeAccess::ReadWrite), volume("/var/www", VolumeAccess::ReadOnly)];
        assert_eq!(line.volumes, expected);
        assert_eq!(line.unknown, ["volume=relative", "volume=/a/..:ro"]);
    }

    proptest::proptest! {
        #[test]
        fn any_text_can_be_parsed(text in "[a-z=./:@,0-9 -]{0,60}|.{0,60}") {
            let line = CommandLine::parse(&text);
            let words = text.split_ascii_whitespace().count();
            proptest::prop_assert!(line.unknown.len() + line.arguments.len() + line.mmio_devices.len() <= words);
        }
    }

    #[test]
    fn policies_of_the_grid_are_parsed_and_others_are_unknown() {
        let line =
            CommandLine::parse("grid.processor=wfq grid.network-write=edf grid.printer=wfq grid.processor=x");
        let policies: Vec<_> =
            line.grid.changes.iter().map(|change| (change.resource, change.policy)).collect();
        let [wfq, edf] = [PolicyKind::Wfq, PolicyKind::Edf].map(|kind| Some(PolicyChange::Policy(kind)));
        assert_eq!(policies, [(Resource::Processor, wfq), (Resource::NetworkWrite, edf)]);
        assert_eq!(line.unknown, ["grid.printer=wfq", "grid.processor=x"]);
    }

    #[test]
    fn malformed_words_are_unknown() {
        let words = [
            "ip=10.0.2.15",
            "ip=10.0.2.15/33",
            "ip=a/24",
            "virtio_mmio.device=512",
            "virtio_mmio.device=0x@1:2",
        ];
        for word in words {
            assert_eq!(CommandLine::parse(word).unknown, [word]);
        }
        assert_eq!(CommandLine::parse("  "), CommandLine::default());
    }
}
