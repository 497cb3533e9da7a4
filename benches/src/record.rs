//! Raw data: the numbers of every run, and all settings that a repetition needs. One file for each group and kernel of
//! the peer.

use crate::curve::Curve;
use crate::error::BenchError;
use crate::figure::{Group, Peer};
use crate::kinds::KINDS;
use crate::linux::kernel::Kernel;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The measurement of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    group: String,
    /// The date and time.
    pub taken: String,
    /// The command that repeats it.
    pub command: String,
    /// The platform and the load.
    pub setting: Setting,
    /// The numbers, by the names of figures.
    pub figures: BTreeMap<String, Series>,
    /// Curves over the size of a message, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub curves: BTreeMap<String, Curve>,
}

/// The platform and the load of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// The host's processor.
    pub processor: String,
    /// The number of the host's processors.
    pub processors: usize,
    /// The host's kernel.
    pub host_kernel: String,
    /// The host's load average at the start: 0 without other work.
    pub host_load: String,
    /// QEMU's version; like the following facts about machines, empty if no machine was booted.
    pub qemu: String,
    /// The configuration that all machines share.
    pub machine: String,
    /// The tree from which Isola was built.
    pub isola: String,
    /// The choice of the Linux guest's kernel.
    #[serde(default, skip_serializing_if = "Kernel::is_stable")]
    pub kernel: Kernel,
    /// Package and version of the Linux guest's kernel.
    pub linux: String,
    /// Package and version of its memcached.
    pub memcached: String,
    /// Package and version of its nginx, if it runs.
    #[serde(default)]
    pub nginx: String,
    /// QEMU's command lines of all machines, including those of the guests; without folders.
    #[serde(default)]
    pub machines: BTreeSet<String>,
    /// The use of the host's processors by other work before each run, in percent.
    #[serde(default)]
    pub host_busy_percent: Vec<f64>,
    /// The load.
    pub load: BTreeMap<String, String>,
}

/// The numbers of a figure, one for each run in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Isola's.
    pub isola: Vec<f64>,
    /// The peer's.
    pub peer: Vec<f64>,
}

impl Record {
    /// Creates a record without numbers.
    pub fn new(group: Group, taken: String, command: String, setting: Setting) -> Self {
        let (group, figures, curves) = (group.name().to_owned(), BTreeMap::new(), BTreeMap::new());
        Self { group, taken, command, setting, figures, curves }
    }

    /// Returns the group; the first one if the file names an unknown group.
    pub fn group(&self) -> Group {
        Group::ALL.into_iter().find(|group| group.name() == self.group).unwrap_or(Group::Boot)
    }

    /// Adds a number of Isola.
    pub fn isola(&mut self, figure: &str, value: f64) {
        self.series_mut(figure).isola.push(value);
    }

    /// Adds a number of the peer.
    pub fn peer(&mut self, figure: &str, value: f64) {
        self.series_mut(figure).peer.push(value);
    }

    /// Returns the numbers of a curve's point.
    pub fn point(&mut self, curve: &str, size: u64) -> &mut Series {
        self.curves.entry(curve.to_owned()).or_default().entry(size).or_default()
    }

    /// Returns the numbers of a figure.
    pub fn series(&self, figure: &str) -> Option<&Series> {
        self.figures.get(figure)
    }

    fn series_mut(&mut self, figure: &str) -> &mut Series {
        debug_assert!(KINDS.iter().any(|kind| kind.name == figure), "{figure}");
        self.figures.entry(figure.to_owned()).or_default()
    }

    /// Returns the name of a peer, with versions.
    pub fn peer_name(&self, peer: Peer) -> Option<String> {
        match peer {
            Peer::None => None,
            Peer::Memcached => Some(format!("{}, {}", self.setting.linux, self.setting.memcached)),
            Peer::Nginx => Some(format!("{}, {}", self.setting.linux, self.setting.nginx)),
            Peer::Touch => Some(format!("{}, a process", self.setting.linux)),
            Peer::Program => Some(format!("{}, the same program", self.setting.linux)),
            Peer::Pipe => Some(format!("{}, a pipe between two processes", self.setting.linux)),
            Peer::UnixSocket => Some(format!("{}, unix sockets between two processes", self.setting.linux)),
            Peer::Echo => Some(format!("{}, a blocking echo server", self.setting.linux)),
            Peer::Messages => Some(format!("{}, a blocking program", self.setting.linux)),
            Peer::Sendfile => Some(format!("{}, a blocking program that sends a file", self.setting.linux)),
            Peer::Epoll => Some(format!("{}, an echo server on epoll", self.setting.linux)),
            Peer::Glibc => Some("glibc".into()),
            Peer::Jemalloc => Some("jemalloc".into()),
            Peer::Mimalloc => Some("mimalloc".into()),
            Peer::Inlined => Some("the method inlined".into()),
            Peer::NotInlined => Some("the method called".into()),
            Peer::Virtual => Some("the method called through a virtual table".into()),
            Peer::RestOnOne => Some("the same cell at rest on one core".into()),
            Peer::RestOnTwo => Some("the same cell at rest on two cores".into()),
            Peer::Rehearsed => Some("dry runs of the same moves".into()),
            Peer::Image => Some("the same image standalone".into()),
            Peer::Unloaded => Some("the same without load".into()),
            Peer::Smoltcp => Some("smoltcp".into()),
            Peer::Shares => Some(self.cgroups("weights of 10000 and 1")),
            Peer::Alike => Some(self.cgroups("equal weights")),
            Peer::RealTime => Some(self.cgroups("the classes SCHED_FIFO and SCHED_IDLE")),
            Peer::Idle => Some(self.cgroups("cpu.idle for the batch job's")),
            Peer::Alone => {
                Some(format!("{}, {} with no batch job", self.setting.linux, self.setting.memcached))
            }
            Peer::Fixed => Some(self.cgroups("fixed processors each")),
            Peer::Moved => Some(self.cgroups("processors that a controller moves")),
            Peer::CpuWeights => Some(format!("{}, three cgroups by cpu.weight", self.setting.linux)),
            Peer::IoWeights => {
                Some(format!("{}, three cgroups by io.weight with io.cost", self.setting.linux))
            }
            Peer::TrafficClasses => {
                Some(format!("{}, {} in three classes of HTB", self.setting.linux, self.setting.nginx))
            }
            Peer::Direct => Some("the same image without a policy".into()),
            Peer::Devices => Some("the same cells over their devices".into()),
            Peer::OwnDisk => Some("the same cell with a disk of its own".into()),
        }
    }

    /// Returns the name of two cgroups in the Linux guest.
    fn cgroups(&self, how: &str) -> String {
        format!("{}, {} and a batch job in cgroups with {how}", self.setting.linux, self.setting.memcached)
    }

    /// Returns the stem of the record's file names.
    pub fn file_stem(&self) -> String {
        format!("{}{}", self.group().name(), self.setting.kernel.suffix())
    }

    /// Writes the record to its file in `folder`; returns the file's path.
    ///
    /// # Errors
    /// [`BenchError::File`].
    pub fn save(&self, folder: &Path) -> Result<PathBuf, BenchError> {
        let path = folder.join(format!("{}.json", self.file_stem()));
        let text = serde_json::to_string_pretty(self);
        let text = text.map_err(|error| BenchError::Data { path: path.clone(), error })?;
        fs::create_dir_all(folder).map_err(BenchError::file(folder))?;
        fs::write(&path, text + "\n").map_err(BenchError::file(&path))?;
        Ok(path)
    }

    /// Loads the record of a group with this guest kernel from `folder`; `None` if there is no such file.
    ///
    /// # Errors
    /// [`BenchError::File`], [`BenchError::Data`].
    pub fn load(folder: &Path, group: Group, kernel: Kernel) -> Result<Option<Self>, BenchError> {
        let path = folder.join(format!("{}{}.json", group.name(), kernel.suffix()));
        if !path.is_file() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).map_err(BenchError::file(&path))?;
        serde_json::from_str(&text).map(Some).map_err(|error| BenchError::Data { path, error })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Creates a record of the figure's group with these numbers.
    pub(crate) fn record(figure: &str, isola: &[f64], peer: &[f64]) -> Record {
        let group = KINDS.iter().find(|kind| kind.name == figure).unwrap().group;
        let setting =
            Setting { memcached: "memcached 1.6".into(), linux: "linux 6.1".into(), ..Setting::default() };
        let mut record = Record::new(group, "2026-01-02".into(), "cargo xtask bench".into(), setting);
        isola.iter().for_each(|&value| record.isola(figure, value));
        peer.iter().for_each(|&value| record.peer(figure, value));
        record
    }

    #[test]
    fn a_saved_record_can_be_loaded() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::load(folder.path(), Group::Kv, Kernel::Stable).unwrap(), None);
        let record = record("kv-p99", &[1.5, 2.0], &[3.25]);
        record.save(folder.path()).unwrap();
        assert_eq!(Record::load(folder.path(), Group::Kv, Kernel::Stable).unwrap(), Some(record.clone()));
        assert_eq!(Record::load(folder.path(), Group::Cell, Kernel::Stable).unwrap(), None);
        let mut backports = record.clone();
        backports.setting.kernel = Kernel::Backports;
        backports.save(folder.path()).unwrap();
        for (kernel, of_it) in [(Kernel::Stable, record), (Kernel::Backports, backports)] {
            assert_eq!(Record::load(folder.path(), Group::Kv, kernel).unwrap(), Some(of_it));
        }
    }

    #[test]
    fn a_malformed_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("kv.json"), "{}").unwrap();
        let error = Record::load(folder.path(), Group::Kv, Kernel::Stable).unwrap_err().to_string();
        assert!(error.contains("kv.json") && error.contains("cargo xtask bench"), "{error}");
    }
}
