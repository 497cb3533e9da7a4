//! The specification of a hosted cell: a line of words in an environment variable, from the host tool to the process.
//!
//! ```text
//! ISOLA_CELL="name=cache cores=2 memory=64M network=user forward=tcp:127.0.0.1:11211:11211"
//! ```
//!
//! The arguments of the process are the application's arguments. A user can also write the line by hand. In the names
//! and paths of a line, `%` and two hexadecimal digits are a byte (RFC 3986, 2.1), as in `name=my%20cache`: white
//! space, control characters and `%` itself can be written only so.

use crate::descriptor::NetworkAddress;
use crate::id::MAX_CORES;
use crate::management::DeviceLocation;
use crate::size::ByteSize;
use crate::volume::{self, MAX_VOLUME_NAME_LEN, VolumeAccess, VolumeError, VolumeMount, is_mount_path};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write as _};
use core::net::{Ipv4Addr, SocketAddrV4};
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// The name of the environment variable.
pub const VARIABLE: &str = "ISOLA_CELL";

/// The resources of a hosted cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostedSpec {
    /// The cell's name; by default the program's name.
    pub name: Option<String>,
    /// The number of cores.
    pub cores: u32,
    /// The size of the memory.
    pub memory: ByteSize,
    /// The network.
    pub network: HostedNetwork,
    /// The ports of the host that are forwarded to the cell.
    pub forwards: Vec<Forward>,
    /// The volumes.
    pub volumes: Vec<HostedVolume>,
    /// The path of a socket that the cell creates and on which it listens for queries.
    pub control: Option<String>,
    /// The id of a process; the cell ends when that process ends.
    pub parent: Option<u32>,
}

impl Default for HostedSpec {
    fn default() -> Self {
        let (memory, network) = (ByteSize(256 << 20), HostedNetwork::User);
        Self {
            name: None,
            cores: 1,
            memory,
            network,
            forwards: Vec::new(),
            volumes: Vec::new(),
            control: None,
            parent: None,
        }
    }
}

/// The network of a hosted cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostedNetwork {
    /// No network.
    None,
    /// A user-mode network in the process, connected to the host. It needs no privileges.
    User,
    /// A TAP interface of the host.
    Tap {
        /// The interface's name.
        interface: String,
        /// The cell's address; without one the cell uses DHCP.
        address: Option<NetworkAddress>,
    },
}

/// A volume of a hosted cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostedVolume {
    /// The path of its file on the host.
    pub file: String,
    /// The path at which the cell mounts it.
    pub path: String,
    /// What the cell may do with it.
    pub access: VolumeAccess,
}

/// The protocol of a forwarded port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A port of the host that is forwarded to a port of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The protocol.
    pub transport: Transport,
    /// The address and port on the host.
    pub host: SocketAddrV4,
    /// The cell's port.
    pub cell_port: u16,
}

/// The reason why a line is not a valid specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostedSpecError {
    /// A word has an unknown key.
    Unknown(String),
    /// A word has a known key and an invalid value.
    BadValue(String),
    /// The number of cores is 0 or above the maximum of a cell.
    Cores(u32),
    /// The volumes contradict each other.
    Volumes(VolumeError),
    /// Forwarded ports require the user-mode network.
    ForwardWithoutUser,
}

impl fmt::Display for HostedSpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(word) => write!(
                f,
                "{word:?} says nothing of a hosted cell: write name=, cores=, memory=, network=user|none|tap:INTERFACE, \
                 address=IP/PREFIX[,GATEWAY], forward=tcp|udp:IP:PORT:CELL_PORT, volume=FILE:PATH[:ro] or control=PATH"
            ),
            Self::BadValue(word) => {
                write!(f, "{word:?} does not make sense: correct what follows the equals sign")
            }
            Self::Cores(cores) => write!(f, "a cell has 1 to {MAX_CORES} cores, not {cores}"),
            Self::Volumes(error) => error.fmt(f),
            Self::ForwardWithoutUser => f.write_str(
                "forward= goes with network=user: with a TAP interface the cell's own address is reached",
            ),
        }
    }
}

impl core::error::Error for HostedSpecError {}

impl FromStr for HostedSpec {
    type Err = HostedSpecError;

    fn from_str(line: &str) -> Result<Self, HostedSpecError> {
        let mut spec = Self::default();
        let mut own_address = None;
        for word in line.split_whitespace() {
            let bad = || HostedSpecError::BadValue(word.to_string());
            let (key, value) =
                word.split_once('=').ok_or_else(|| HostedSpecError::Unknown(word.to_string()))?;
            match key {
                "name" => spec.name = Some(decode(value).ok_or_else(bad)?),
                "cores" => spec.cores = value.parse().map_err(|_| bad())?,
                "memory" => spec.memory = value.parse().map_err(|_| bad())?,
                "network" => spec.network = network(value).ok_or_else(bad)?,
                "address" => own_address = Some(address(value).ok_or_else(bad)?),
                "forward" => spec.forwards.push(forward(value).ok_or_else(bad)?),
                "volume" => spec.volumes.push(volume(value).ok_or_else(bad)?),
                "control" => {
                    spec.control = Some(decode(value).ok_or_else(bad)?).filter(|path| !path.is_empty());
                }
                "parent" => spec.parent = Some(value.parse().map_err(|_| bad())?),
                _ => return Err(HostedSpecError::Unknown(word.to_string())),
            }
        }
        match (&mut spec.network, own_address) {
            (_, None) => {}
            (HostedNetwork::Tap { address, .. }, Some(own)) => *address = Some(own),
            (_, Some(_)) => return Err(HostedSpecError::BadValue("address= without a TAP interface".into())),
        }
        if !(1..=MAX_CORES as u32).contains(&spec.cores) {
            return Err(HostedSpecError::Cores(spec.cores));
        }
        if !spec.forwards.is_empty() && spec.network != HostedNetwork::User {
            return Err(HostedSpecError::ForwardWithoutUser);
        }
        volume::validate(&spec.mounts()).map_err(HostedSpecError::Volumes)?;
        Ok(spec)
    }
}

impl HostedSpec {
    /// Returns the mounts of the volumes. Their block devices have numbers as locations, as they are files.
    pub fn mounts(&self) -> Vec<VolumeMount> {
        let mount = |(number, volume): (u64, &HostedVolume)| VolumeMount {
            device: DeviceLocation::Mmio { address: number },
            name: volume.path.trim_start_matches('/').chars().take(MAX_VOLUME_NAME_LEN / 4).collect(),
            path: volume.path.clone(),
            access: volume.access,
        };
        (0..).zip(&self.volumes).map(mount).collect()
    }
}

/// Parses `FILE:PATH` or `FILE:PATH:ro`. The path in the cell is behind the last colon.
fn volume(text: &str) -> Option<HostedVolume> {
    let (rest, access) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, VolumeAccess::ReadOnly),
        None => (text, VolumeAccess::ReadWrite),
    };
    let (file, path) = rest.rsplit_once(':')?;
    let (file, path) = (decode(file)?, decode(path)?);
    (!file.is_empty() && is_mount_path(&path)).then_some(HostedVolume { file, path, access })
}

fn network(text: &str) -> Option<HostedNetwork> {
    match text {
        "none" => Some(HostedNetwork::None),
        "user" => Some(HostedNetwork::User),
        _ => {
            let interface = decode(text.strip_prefix("tap:")?)?;
            // Linux limits interface names to 15 bytes.
            let is_name = (1..16).contains(&interface.len());
            is_name.then_some(HostedNetwork::Tap { interface, address: None })
        }
    }
}

/// A text of any characters as a part of a word, see the module's documentation.
struct Encoded<'a>(&'a str);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A colon separates the parts of a volume.
        let is_plain =
            |letter: char| !(letter.is_whitespace() || letter.is_control() || matches!(letter, '%' | ':'));
        self.0.chars().try_for_each(|letter| match letter {
            letter if is_plain(letter) => f.write_char(letter),
            letter => letter.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(f, "%{byte:02x}")),
        })
    }
}

/// Returns the text that [`Encoded`] writes as `word`; `None` if the word is invalid.
fn decode(word: &str) -> Option<String> {
    let mut parts = word.split('%');
    let mut bytes = Vec::from(parts.next()?);
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        // `from_str_radix` accepts a sign.
        let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_number)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

fn address(text: &str) -> Option<NetworkAddress> {
    let (text, gateway) = match text.split_once(',') {
        Some((text, gateway)) => (text, Some(gateway.parse().ok()?)),
        None => (text, None),
    };
    let (ip, prefix_len) = text.split_once('/')?;
    let prefix_len = prefix_len.parse().ok().filter(|len| *len <= 32)?;
    Some(NetworkAddress { ip: ip.parse().ok()?, prefix_len, gateway })
}

fn forward(text: &str) -> Option<Forward> {
    let (transport, rest) = text.split_once(':')?;
    let transport = match transport {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        _ => return None,
    };
    let (host, cell_port) = rest.rsplit_once(':')?;
    let cell_port = cell_port.parse().ok().filter(|port| *port != 0)?;
    Some(Forward { transport, host: host.parse().ok()?, cell_port })
}

impl fmt::Display for HostedSpec {
    /// Writes the specification as a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cores={} memory={}", self.cores, self.memory.0)?;
        if let Some(name) = &self.name {
            write!(f, " name={}", Encoded(name))?;
        }
        match &self.network {
            HostedNetwork::None => f.write_str(" network=none")?,
            HostedNetwork::User => f.write_str(" network=user")?,
            HostedNetwork::Tap { interface, address } => {
                write!(f, " network=tap:{}", Encoded(interface))?;
                if let Some(NetworkAddress { ip, prefix_len, gateway }) = address {
                    write!(f, " address={ip}/{prefix_len}")?;
                    gateway.map_or(Ok(()), |gateway: Ipv4Addr| write!(f, ",{gateway}"))?;
                }
            }
        }
        for Forward { transport, host, cell_port } in &self.forwards {
            write!(f, " forward={transport}:{host}:{cell_port}")?;
        }
        for HostedVolume { file, path, access } in &self.volumes {
            let suffix = if *access == VolumeAccess::ReadOnly { ":ro" } else { "" };
            write!(f, " volume={}:{}{suffix}", Encoded(file), Encoded(path))?;
        }
        if let Some(path) = &self.control {
            write!(f, " control={}", Encoded(path))?;
        }
        self.parent.map_or(Ok(()), |parent| write!(f, " parent={parent}"))
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Texts with all characters that matter to a line.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof!["[ -~]{1,12}", "[ \t\r\n\u{a0}\u{2003}%=,:/a0]{1,12}", "\\PC{1,6}", any::<String>()]
            .prop_filter("a text that is not empty", |text| !text.is_empty())
    }

    fn interface() -> impl Strategy<Value = String> {
        text().prop_filter("at most 15 bytes", |text| text.len() < 16)
    }

    fn network() -> impl Strategy<Value = HostedNetwork> {
        let address = (any::<[u8; 4]>(), 0_u8..=32, prop::option::of(any::<[u8; 4]>())).prop_map(
            |(ip, prefix_len, gateway)| NetworkAddress {
                ip: ip.into(),
                prefix_len,
                gateway: gateway.map(Ipv4Addr::from),
            },
        );
        prop_oneof![
            Just(HostedNetwork::None),
            Just(HostedNetwork::User),
            (interface(), prop::option::of(address))
                .prop_map(|(interface, address)| HostedNetwork::Tap { interface, address }),
        ]
    }

    fn forwards() -> impl Strategy<Value = Vec<Forward>> {
        let transport = prop_oneof![Just(Transport::Tcp), Just(Transport::Udp)];
        let forward = (transport, any::<[u8; 4]>(), any::<u16>(), 1_u16..).prop_map(
            |(transport, ip, port, cell_port)| Forward {
                transport,
                host: SocketAddrV4::new(ip.into(), port),
                cell_port,
            },
        );
        prop::collection::vec(forward, 0..3)
    }

    fn volumes() -> impl Strategy<Value = Vec<HostedVolume>> {
        let access = prop_oneof![Just(VolumeAccess::ReadWrite), Just(VolumeAccess::ReadOnly)];
        let volume = (text(), "[a-z:% ]{1,9}(/[ -.0-~]{4,9})?", access)
            .prop_map(|(file, path, access)| HostedVolume { file, path: alloc::format!("/{path}"), access });
        prop::collection::vec(volume, 0..3).prop_filter("paths that differ", |volumes| {
            let spec = HostedSpec { volumes: volumes.clone(), ..HostedSpec::default() };
            volume::validate(&spec.mounts()).is_ok()
        })
    }

    proptest! {
        #[test]
        fn any_specification_round_trips_through_its_line(
            name in prop::option::of(text()),
            cores in 1..=MAX_CORES as u32,
            memory in any::<u64>().prop_map(ByteSize),
            network in network(),
            forwards in forwards(),
            volumes in volumes(),
            control in prop::option::of(text()),
            parent in any::<Option<u32>>(),
        ) {
            let forwards = if network == HostedNetwork::User { forwards } else { Vec::new() };
            let spec = HostedSpec { name, cores, memory, network, forwards, volumes, control, parent };
            let line = spec.to_string();
            prop_assert_eq!(line.parse(), Ok(spec), "{:?}", line);
            prop_assert!(!line.contains(|letter: char| letter.is_control()), "an environment variable: {:?}", line);
        }
    }

    #[test]
    fn names_with_white_space_are_written_with_escapes() {
        let spec = HostedSpec { name: Some("50% of it".into()), ..HostedSpec::default() };
        assert_eq!(spec.to_string(), "cores=1 memory=268435456 name=50%25%20of%20it network=user");
        assert_eq!("name=my%20cache%C3%BC".parse::<HostedSpec>().unwrap().name.unwrap(), "my cache\u{fc}");
    }

    #[test]
    fn a_specification_round_trips_through_its_line() {
        let forward = |transport, port| Forward {
            transport,
            host: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            cell_port: port + 1,
        };
        let address = Some(NetworkAddress {
            ip: [10, 0, 0, 2].into(),
            prefix_len: 24,
            gateway: Some([10, 0, 0, 1].into()),
        });
        let tap = HostedNetwork::Tap { interface: "tap0".into(), address };
        let forwards = alloc::vec![forward(Transport::Tcp, 80), forward(Transport::Udp, 7000)];
        let memory = ByteSize(64 << 20);
        for spec in [
            HostedSpec::default(),
            HostedSpec {
                name: Some("cache".into()),
                cores: 3,
                memory,
                control: Some("/run/isola/cache.sock".into()),
                parent: Some(7),
                ..HostedSpec::default()
            },
            HostedSpec { network: tap, ..HostedSpec::default() },
            HostedSpec { network: HostedNetwork::None, ..HostedSpec::default() },
            HostedSpec { forwards, ..HostedSpec::default() },
        ] {
            assert_eq!(spec.to_string().parse(), Ok(spec.clone()), "{spec}");
        }
        assert_eq!("".parse(), Ok(HostedSpec::default()));
        assert_eq!("memory=64M".parse::<HostedSpec>().map(|spec| spec.memory), Ok(memory));
    }

    #[test]
    fn invalid_words_are_refused() {
        for bad in [
            "cores",
            "cores=0",
            "cores=65",
            "cores=-1",
            "memory=much",
            "network=tap:",
            "network=tap:a-name-too-long-for-linux",
            "network=wifi",
            "address=10.0.0.2/24",
            "network=tap:t address=10.0.0.2",
            "forward=80",
            "forward=tcp:127.0.0.1:80:0",
            "network=none forward=tcp:127.0.0.1:80:80",
            "colour=red",
            "name=%",
            "name=a%2",
            "name=%+1",
            "name=%zz",
            "name=%\u{e9}1",
            "control=%ff",
        ] {
            let refused = bad.parse::<HostedSpec>();
            assert!(refused.is_err(), "{bad}: {refused:?}");
        }
    }
}
