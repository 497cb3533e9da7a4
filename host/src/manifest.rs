//! The manifest: `isola.toml`, the description of a cell.
//!
//! ```toml
//! image = "kv"                     # a name, or a path relative to the manifest
//! name = "cache"
//! service = "block"                # instead of image: a service cell, "block" or "net"
//! cores = 2
//! placement = "spread"             # compact, spread or siblings
//! node = 0                         # only cores of this NUMA node
//! core_ids = "2,5-7"               # only these cores
//! memory = "64M"
//! memory_max = "256M"              # the most memory that it may have, as it asks for more while it runs
//! memory_low = "32M"               # the memory that it keeps: it lends what else it has free to cells of higher priority
//! arguments = ["--verbose"]
//! publish = ["11211:11211"]
//! volumes = ["data:/data"]         # VOLUME:PATH or VOLUME:PATH:ro, a name or a file relative to the manifest;
//!                                  # VOLUME@CELL:PATH for a volume of a service cell
//! network = "auto"                 # auto, dhcp, none, or ADDRESS/PREFIX[,GATEWAY]; dhcp@CELL etc. on the network of a service cell
//! watchdog = "5s"                  # a cell with a core that makes no progress for this long has crashed
//! sha256 = "9f86d0818884..."       # the image must have this digest: see `isola image digest`
//! signed_by = "release.key.pub"    # and be signed by this key: a file relative to the manifest, or its digits
//! restart = "on-failure:5"         # no, on-failure, on-failure:TIMES or always
//! priority = 9                     # it borrows cores and memory of cells of lower priority, see `isola borrow`
//! borrow_above = "100us"           # and borrows cores by itself if its events wait longer than that
//! lend = 0                         # how many of its cores it lends to cells of higher priority
//! text = "private"                 # a copy of the image's code and constants; or "shared" with all cells of the image
//!
//! # For Linux programs, instead of image and arguments:
//! rootfs = "./debian"              # a folder, an archive, or oci:LAYOUT[:TAG], relative to the manifest; or NAME@CELL
//! command = ["redis-server", "--port", "6379"] # default: that of the OCI image
//! entrypoint = "/bin/sh"           # instead of the OCI image's; "" for none
//! env = ["MODE=fast", "TOKEN"]     # NAME alone takes the value of the command that reads the manifest
//! workdir = "/srv"
//! user = "www-data"                # USER[:GROUP], names of the root file system or numbers
//! tmpfs = ["/run:size=16M,mode=755"]
//! trace = true                     # prints each system call
//! missing_calls = true             # prints the calls that programs did not get, at the end
//!
//! [channels]
//! accept = ["web"]                 # the cells that may open channels to it; "*" stands for all, "web/data" for one service
//! loop = ["web"]                   # the cells with which its network traffic stays in memory, if they agree
//!
//! [elastic]                        # for `isola elastic -f`
//! p99 = "2ms..5ms"                 # bounds of the 99th percentile of its request latency
//! interval = "1s"
//! max = 4                          # the most cores, its own ones included
//!
//! [grid.processor]                 # how it divides its resources among activities
//! policy = "wfq"
//! activities.web = { weight = 300 }
//!
//! [[grid.rules]]                   # which activity a connection is of
//! port = 80
//! activity = "web"
//! ```
//!
//! Only `image`, `service` or `rootfs` is required. Options of the command line replace keys; `-e` replaces single variables. [`grid_setup`](crate::grid_setup) has all keys of `grid`. An unknown key is an error, as it is most likely a misspelling.

use crate::elastic::{Bounds, MeasurementInterval, REPLACED};
use crate::grid_setup::GridTable;
use crate::machine::network_choice::NetworkChoice;
use crate::placement::{CoreIds, PlacementRequest};
use crate::publish::PublishSpec;
use crate::root::RootSpec;
use crate::tmpfs::TmpfsSpec;
use crate::volume::{VolumeSource, VolumeSpec};
use clap::ValueEnum;
use isola_abi::integrity::{ImageDigest, PublicKey};
use isola_abi::management::{PlacementPolicy, RestartPolicy, Text};
use isola_abi::size::ByteSize;
use isola_root_image::RootSource;
use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de};
use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// The manifest of a cell. The command has defaults for missing keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The image's name or path.
    pub image: Option<String>,
    /// The cell's name.
    pub name: Option<String>,
    /// The number of cores.
    pub cores: Option<u32>,
    /// The placement policy.
    pub placement: Option<PlacementPolicy>,
    /// The NUMA node.
    pub node: Option<u32>,
    /// The cores to choose from.
    pub core_ids: Option<CoreIds>,
    /// The amount of memory.
    pub memory: Option<ByteSize>,
    /// The most memory that the cell can have by memory requests.
    pub memory_max: Option<ByteSize>,
    /// The memory that the cell keeps while it lends memory.
    pub memory_low: Option<ByteSize>,
    /// Arguments for the application.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Ports to publish.
    #[serde(default)]
    pub publish: Vec<PublishSpec>,
    /// Volumes to mount.
    #[serde(default)]
    pub volumes: Vec<VolumeSpec>,
    /// The requested network.
    pub network: Option<NetworkChoice>,
    /// The time without progress after which the cell counts as hung.
    pub watchdog: Option<Watchdog>,
    /// The restart policy.
    pub restart: Option<RestartPolicy>,
    /// The digest that the image must have.
    pub sha256: Option<ImageDigest>,
    /// The key that must have signed the image: its digits, or its file.
    pub signed_by: Option<String>,
    /// The priority.
    pub priority: Option<u8>,
    /// The maximum number of cores that the cell lends.
    pub lend: Option<u32>,
    /// The queueing delay above which the cell borrows a core by itself.
    pub borrow_above: Option<Wait>,
    /// Whether the cell shares the image's text.
    pub text: Option<Text>,
    /// The root file system of Linux programs.
    #[serde(default, deserialize_with = "parsed")]
    pub rootfs: Option<RootSpec>,
    /// The Linux program and its arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// The program that replaces the entry point of an OCI image.
    pub entrypoint: Option<String>,
    /// Variables of the program's environment, `NAME=VALUE` or `NAME`.
    #[serde(default)]
    pub env: Vec<String>,
    /// The program's working directory.
    pub workdir: Option<String>,
    /// The program's user.
    pub user: Option<String>,
    /// File systems in memory.
    #[serde(default)]
    pub tmpfs: Vec<TmpfsSpec>,
    /// Whether to print each system call.
    #[serde(default)]
    pub trace: bool,
    /// Whether to print the system calls that programs did not get.
    #[serde(default)]
    pub missing_calls: bool,
    /// The service that the cell offers, instead of an image.
    pub service: Option<ServiceKind>,
    /// The settings of channels to other cells.
    #[serde(default)]
    pub channels: Channels,
    /// The settings of `isola elastic`.
    pub elastic: Option<Elastic>,
    /// The settings of the resource grid.
    #[serde(default)]
    pub grid: GridTable,
}

/// A service that a cell offers to other cells, by an image that comes with isola.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// Its volumes, as block devices.
    Block,
    /// Its network device, through a switch.
    Net,
    /// Folders of its volumes.
    Files,
}

impl ServiceKind {
    /// Returns the name of the image.
    pub const fn image(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Net => "net",
            Self::Files => "folders",
        }
    }
}

/// The settings of channels to other cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channels {
    /// The names of the cells that may open channels to it, or `CELL/SERVICE`; `*` stands for all cells.
    #[serde(default)]
    pub accept: Vec<String>,
    /// The names of the cells with which its network traffic stays in memory, if they agree; `*` stands for all.
    #[serde(default, rename = "loop")]
    pub loop_with: Vec<String>,
}

/// The settings of `isola elastic`. The command has defaults for missing keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elastic {
    /// The bounds of its 99th percentile.
    #[serde(default, deserialize_with = "parsed")]
    pub p99: Option<Bounds>,
    /// The interval of decisions.
    #[serde(default, deserialize_with = "parsed")]
    pub interval: Option<MeasurementInterval>,
    /// The most cores of the service.
    pub max: Option<u32>,
    /// Keys that lending has replaced.
    #[serde(default, rename = "batch", alias = "batch_min", alias = "min", deserialize_with = "replaced")]
    _batch: Option<Infallible>,
}

/// Refuses a key that lending has replaced.
fn replaced<'de, D: Deserializer<'de>>(_: D) -> Result<Option<Infallible>, D::Error> {
    Err(de::Error::custom(REPLACED))
}

/// Deserialises an optional value from its text form.
fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(de::Error::custom)
}

/// The time for which a core of a cell may make no progress, in ms; 0: for ever. Written `500ms`, `5s`, `1m`, or `off`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Watchdog {
    /// In ms.
    pub ms: u32,
}

/// The time for which events may wait, in us; 0: for ever. Written `100us`, `2ms`, or `off`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Wait {
    /// In us.
    pub us: u32,
}

/// The error for a text that is not such a time.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no time to wait: write a number and its unit, as in 100us or 2ms, or `off`")]
pub struct BadWait(String);

impl FromStr for Wait {
    type Err = BadWait;

    fn from_str(text: &str) -> Result<Self, BadWait> {
        if text == "off" {
            return Ok(Self { us: 0 });
        }
        let us = text.parse::<SignedDuration>().ok().and_then(|wait| u32::try_from(wait.as_micros()).ok());
        us.filter(|us| *us > 0).map(|us| Self { us }).ok_or_else(|| BadWait(text.to_owned()))
    }
}

impl TryFrom<String> for Wait {
    type Error = BadWait;

    fn try_from(text: String) -> Result<Self, BadWait> {
        text.parse()
    }
}

/// The error for a text that is not a time for a watchdog.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no time for a watchdog: write a number and its unit, as in 500ms or 5s, or `off`")]
pub struct BadWatchdog(String);

/// The reasons why a manifest cannot be used.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The file cannot be read.
    #[error("the manifest {path} cannot be read: {error}")]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// Two keys exclude each other, or one needs another.
    #[error("the manifest {path} is contradictory: {text}")]
    Contradictory {
        /// The path.
        path: PathBuf,
        /// The mistake, and its mend.
        text: String,
    },
    /// The content is invalid.
    #[error("the manifest {path} is invalid: {error}")]
    Malformed {
        /// The path.
        path: PathBuf,
        /// The error, with line and column.
        error: Box<toml::de::Error>,
    },
}

impl Manifest {
    /// Returns the requested placement of the cell's cores.
    pub fn placement(&self) -> PlacementRequest {
        PlacementRequest { policy: self.placement, node: self.node, core_ids: self.core_ids.clone() }
    }

    /// Reads the manifest at `path`. Resolves the paths in it relative to its folder.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        let text = fs::read_to_string(path)
            .map_err(|error| ManifestError::Unreadable { path: path.to_owned(), error })?;
        let mut manifest: Self = toml::from_str(&text)
            .map_err(|error| ManifestError::Malformed { path: path.to_owned(), error: Box::new(error) })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        if let Some(text) = manifest.contradiction() {
            return Err(ManifestError::Contradictory { path: path.to_owned(), text });
        }
        let beside = |path: String| folder.join(path).to_string_lossy().into_owned();
        manifest.image = manifest.image.map(|image| if image.contains('/') { beside(image) } else { image });
        let is_key = |text: &str| text.parse::<PublicKey>().is_ok();
        manifest.signed_by = manifest.signed_by.map(|by| if is_key(&by) { by } else { beside(by) });
        for volume in &mut manifest.volumes {
            if let VolumeSource::File(path) = &mut volume.source {
                *path = folder.join(&path);
            }
        }
        manifest.rootfs = manifest.rootfs.map(|root| match root {
            RootSpec::Image(RootSource::Path(path)) => RootSpec::Image(RootSource::Path(folder.join(path))),
            RootSpec::Image(RootSource::Oci { reference }) => {
                RootSpec::Image(RootSource::Oci { reference: beside(reference) })
            }
            served @ RootSpec::Served { .. } => served,
        });
        Ok(manifest)
    }

    /// Returns why the keys of Linux programs and of others do not go together.
    fn contradiction(&self) -> Option<String> {
        if self.service.is_some() && (self.image.is_some() || self.rootfs.is_some()) {
            return Some("`service` names an image of isola: leave out `image` and `rootfs`".to_owned());
        }
        if self.rootfs.is_some() {
            return match (&self.image, self.arguments.is_empty()) {
                (Some(_), _) => {
                    Some("`rootfs` runs Linux programs, `image` another image: leave one out".to_owned())
                }
                (None, false) => {
                    Some("with `rootfs`, write the program and its arguments as `command`".to_owned())
                }
                (None, true) => None,
            };
        }
        let given = [
            (!self.command.is_empty(), "command"),
            (self.entrypoint.is_some(), "entrypoint"),
            (!self.env.is_empty(), "env"),
            (self.workdir.is_some(), "workdir"),
            (self.user.is_some(), "user"),
            (!self.tmpfs.is_empty(), "tmpfs"),
            (self.trace, "trace"),
            (self.missing_calls, "missing_calls"),
        ];
        let key = given.into_iter().find_map(|(is_given, key)| is_given.then_some(key))?;
        let mend = if key == "command" { "; the arguments of an image are `arguments`" } else { "" };
        Some(format!("`{key}` is for Linux programs: name their root file system as `rootfs`{mend}"))
    }
}

impl FromStr for Watchdog {
    type Err = BadWatchdog;

    fn from_str(text: &str) -> Result<Self, BadWatchdog> {
        if matches!(text, "off" | "0") {
            return Ok(Self { ms: 0 });
        }
        let ms = text.parse::<SignedDuration>().ok().map(|duration| duration.as_millis());
        match ms.and_then(|ms| u32::try_from(ms).ok()) {
            Some(ms) if ms > 0 => Ok(Self { ms }),
            _ => Err(BadWatchdog(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Watchdog {
    type Error = BadWatchdog;

    fn try_from(text: String) -> Result<Self, BadWatchdog> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::network::NetworkRequest;

    fn read(text: &str) -> Result<Manifest, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("isola.toml");
        fs::write(&path, text).unwrap();
        Manifest::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn all_keys_are_accepted() {
        let manifest = read(
            "image = \"kv\"\nname = \"cache\"\ncores = 2\nmemory = \"64M\"\nmemory_max = \"1G\"\narguments = [\"-v\"]\n\
             publish = [\"11211:11211\", \"53/udp\"]\nnetwork = \"none\"\nwatchdog = \"5s\"\n\
             placement = \"siblings\"\nrestart = \"on-failure:5\"\nnode = 1\ncore_ids = \"2,5-7\"\n",
        )
        .unwrap();
        assert_eq!(manifest.memory, Some(ByteSize(64 << 20)));
        assert_eq!(manifest.memory_max, Some(ByteSize(1 << 30)));
        assert_eq!(manifest.publish.len(), 2);
        assert_eq!(manifest.network, Some(NetworkRequest::None.into()));
        assert_eq!(manifest.watchdog, Some(Watchdog { ms: 5000 }));
        let placement = manifest.placement().placement();
        assert_eq!((placement.policy, placement.ids.len()), (PlacementPolicy::Siblings, 4));
        assert_eq!(manifest.restart, Some(RestartPolicy::OnFailure { most: Some(5) }));
        assert_eq!(read("").unwrap(), Manifest::default());
        let lender =
            read("priority = 9\nlend = 2\nborrow_above = \"100us\"\nmemory_low = \"32M\"\n").unwrap();
        assert_eq!(read("text = \"private\"\n").unwrap().text, Some(Text::Private));
        assert_eq!(read("text = \"shared\"\n").unwrap().text, Some(Text::Shared));
        assert_eq!((lender.priority, lender.lend), (Some(9), Some(2)));
        assert_eq!(lender.borrow_above, Some(Wait { us: 100 }));
        assert_eq!(lender.memory_low, Some(ByteSize(32 << 20)));
        assert!("1".parse::<Wait>().is_err() && "0us".parse::<Wait>().is_err());
        let elastic =
            read("[elastic]\np99 = \"2ms..5ms\"\ninterval = \"500ms\"\nmax = 4\n").unwrap().elastic.unwrap();
        assert_eq!(elastic.p99, "2ms..5ms".parse().ok());
        assert_eq!((elastic.interval, elastic.max), ("500ms".parse().ok(), Some(4)));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line, word) in [
            ("image = \"kv\"\ncoers = 2\n", "line 2", "coers"),
            ("image = \"kv\"\n\nmemory = \"64X\"\n", "line 3", "64M or 1GiB"),
            ("publish = [\"1:2:3\"]\n", "line 1", "HOST_PORT:CELL_PORT"),
            ("cores = \"two\"\n", "line 1", "u32"),
            ("sha256 = \"abc\"\n", "line 1", "64 hexadecimal digits"),
            ("restart = \"sometimes\"\n", "line 1", "on-failure:5"),
            ("watchdog = \"soon\"\n", "line 1", "500ms"),
            ("placement = \"near\"\n", "line 1", "`compact`"),
            ("core_ids = \"3-2\"\n", "line 1", "2,5-7"),
            ("image = \n", "line 1", ""),
            ("[elastic]\np99 = \"5ms\"\n", "line 2", "2ms..5ms"),
            ("[elastic]\nmim = 1\n", "line 2", "mim"),
            ("[elastic]\nbatch = [\"primes\"]\n", "line 2", "cells that lend"),
            ("[elastic]\nmin = 1\n", "line 2", "cells that lend"),
            ("[elastic]\nbatch_min = 1\n", "line 2", "cells that lend"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(line) && error.contains(word), "{error}");
        }
    }

    #[test]
    fn linux_programs_have_keys_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("isola.toml");
        let of = |text: &str| {
            fs::write(&path, text).unwrap();
            Manifest::read(&path).map_err(|error| error.to_string())
        };
        let manifest = of(
            "rootfs = \"./debian\"\ncommand = [\"sh\", \"-c\", \"x\"]\nentrypoint = \"\"\nenv = [\"A=b\", \"C\"]\n\
             workdir = \"/srv\"\nuser = \"www:adm\"\ntmpfs = [\"/run:size=1M\"]\ntrace = true\nmissing_calls = true\n\
             volumes = [\"data:/data\"]\n",
        )
        .unwrap();
        let path = RootSource::Path(dir.path().join("./debian"));
        assert_eq!(manifest.rootfs, Some(RootSpec::Image(path)));
        let served = of("rootfs = \"root@files\"\n").unwrap().rootfs.unwrap().to_string();
        assert_eq!(served, "root@files", "a name is not relative to the manifest");
        assert_eq!((manifest.command.len(), manifest.env.len()), (3, 2));
        assert_eq!(manifest.entrypoint.as_deref(), Some(""));
        assert_eq!((manifest.workdir.as_deref(), manifest.user.as_deref()), (Some("/srv"), Some("www:adm")));
        assert_eq!(manifest.tmpfs[0].to_string(), "/run:size=1048576");
        assert!(manifest.trace && manifest.missing_calls);
        let oci = of("rootfs = \"oci:redis:7\"\n").unwrap().rootfs.unwrap().to_string();
        assert_eq!(oci, format!("oci:{}", dir.path().join("redis:7").display()));
        for (text, mend) in [
            ("rootfs = \"a\"\nimage = \"kv\"\n", "leave one out"),
            ("service = \"block\"\nimage = \"kv\"\n", "leave out `image`"),
            ("rootfs = \"a\"\narguments = [\"x\"]\n", "as `command`"),
            ("image = \"kv\"\ncommand = [\"x\"]\n", "are `arguments`"),
            ("image = \"kv\"\nuser = \"me\"\n", "`user` is for Linux programs"),
            ("image = \"kv\"\ntmpfs = [\"/run\"]\n", "`rootfs`"),
            ("rootfs = \"a\"\ntmpfs = [\"run\"]\n", "absolute path"),
            ("rootfs = 7\n", "line 1"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(mend) && error.contains("isola.toml"), "{error}");
        }
    }

    #[test]
    fn a_path_is_relative_to_the_manifest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("isola.toml");
        fs::write(&path, "image = \"./out/kv\"\n").unwrap();
        let image = Manifest::read(&path).unwrap().image.unwrap();
        assert!(Path::new(&image).starts_with(dir.path()), "{image}");
        let digits = "0a".repeat(32);
        for (text, expected) in [("key.pub", dir.path().join("key.pub")), (&*digits, PathBuf::from(&digits))]
        {
            fs::write(&path, format!("signed_by = \"{text}\"\nsha256 = \"{digits}\"\n")).unwrap();
            let manifest = Manifest::read(&path).unwrap();
            assert_eq!(manifest.signed_by.map(PathBuf::from), Some(expected));
            assert_eq!(manifest.sha256, Some(ImageDigest([0x0a; 32])));
        }
        assert!(Manifest::read(&dir.path().join("none.toml")).unwrap_err().to_string().contains("none.toml"));
    }

    #[test]
    fn watchdogs_need_a_unit() {
        for (text, ms) in [("500ms", 500), ("5s", 5000), ("1m", 60_000), ("off", 0), ("0", 0)] {
            assert_eq!(text.parse(), Ok(Watchdog { ms }), "{text}");
        }
        for bad in ["", "5", "-5s", "100d", "5 parsecs"] {
            assert!(bad.parse::<Watchdog>().is_err(), "{bad}");
        }
    }
}
