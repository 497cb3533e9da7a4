//! Figures: their groups, peers, goals, and values.

use crate::kinds::{KINDS, Kind};
use crate::record::Record;
use crate::statistics::{median, spread};
use serde::Serialize;

/// A group of figures, measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Group {
    /// Booting a standalone image, beside booting the Linux guest
    Boot,
    /// Cells on a machine with a supervisor: creation, start, end
    Cell,
    /// Core and memory moves of cells on a running machine
    Elastic,
    /// A service beside a batch job, under varying load
    Colocation,
    /// Shares of a cell's resources among its activities, and the cost of the resource grid
    Grid,
    /// Requests of a key-value service, and of an echo service
    Kv,
    /// Requests of a web server for a file
    Web,
    /// Requests of a cell under a supervisor, beside the standalone image
    Product,
    /// Bulk data in one direction
    Bulk,
    /// Messages of all sizes, in both directions
    Netpipe,
    /// Connections opened and closed
    Connections,
    /// The heap beside other allocators, natively
    Memory,
    /// Page faults in a large region
    Pager,
    /// System calls of unmodified Linux programs
    Linux,
    /// Messages and packets between cells
    Link,
    /// Unmodified servers of Linux: memcached, redis, nginx
    LinuxServers,
    /// TCP between two cells of one machine
    Loop,
    /// Disk reads through a service cell
    Service,
    /// Costs of Ebb calls, events and interrupts
    Library,
    /// The protocol stack beside another one and the kernel's, natively
    Stack,
}

impl Group {
    /// All groups.
    pub const ALL: [Self; 20] = [
        Self::Boot,
        Self::Cell,
        Self::Elastic,
        Self::Colocation,
        Self::Grid,
        Self::Kv,
        Self::Web,
        Self::Product,
        Self::Bulk,
        Self::Netpipe,
        Self::Connections,
        Self::Memory,
        Self::Pager,
        Self::Linux,
        Self::Link,
        Self::LinuxServers,
        Self::Loop,
        Self::Service,
        Self::Library,
        Self::Stack,
    ];

    /// Returns its name, on the command line and of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Cell => "cell",
            Self::Elastic => "elastic",
            Self::Colocation => "colocation",
            Self::Grid => "grid",
            Self::Kv => "kv",
            Self::Web => "web",
            Self::Product => "product",
            Self::Bulk => "bulk",
            Self::Netpipe => "netpipe",
            Self::Connections => "connections",
            Self::Memory => "memory",
            Self::Pager => "pager",
            Self::Linux => "linux",
            Self::Link => "link",
            Self::LinuxServers => "linux-servers",
            Self::Loop => "loop",
            Self::Service => "service",
            Self::Library => "library",
            Self::Stack => "stack",
        }
    }

    /// Returns the program of its Linux guest; `None` if the group has no guest.
    pub fn guest(self) -> Option<GuestProgram> {
        match self {
            Self::Boot | Self::Cell | Self::Colocation | Self::Kv => Some(GuestProgram::Memcached),
            Self::Web => Some(GuestProgram::Nginx),
            Self::Grid | Self::LinuxServers => Some(GuestProgram::Services),
            Self::Bulk
            | Self::Netpipe
            | Self::Connections
            | Self::Pager
            | Self::Linux
            | Self::Link
            | Self::Loop => Some(GuestProgram::Ours),
            Self::Product | Self::Elastic | Self::Memory | Self::Library | Self::Service | Self::Stack => {
                None
            }
        }
    }

    /// Returns whether the group boots machines.
    pub fn needs_machines(self) -> bool {
        !matches!(self, Self::Memory | Self::Stack)
    }
}

/// The program in the Linux guest of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestProgram {
    /// memcached.
    Memcached,
    /// nginx.
    Nginx,
    /// Programs of this package.
    Ours,
    /// memcached, nginx, and programs of this package.
    Services,
}

/// The peer of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// No peer: nothing comparable exists.
    None,
    /// The Linux guest with memcached.
    Memcached,
    /// The Linux guest with a small echo server.
    Echo,
    /// The Linux guest with nginx.
    Nginx,
    /// The Linux guest with a program that reads and writes messages.
    Messages,
    /// The Linux guest with the same program, which sends by `sendfile`.
    Sendfile,
    /// The Linux guest with an echo server on epoll.
    Epoll,
    /// The C library's allocator.
    Glibc,
    /// jemalloc.
    Jemalloc,
    /// mimalloc.
    Mimalloc,
    /// A process of the Linux guest that touches memory.
    Touch,
    /// The same program in the Linux guest.
    Program,
    /// A pipe between two processes of the Linux guest.
    Pipe,
    /// A pair of unix sockets between two processes of the Linux guest.
    UnixSocket,
    /// A method call on a known object, inlined.
    Inlined,
    /// The same, not inlined.
    NotInlined,
    /// The same, through the object's virtual table.
    Virtual,
    /// The same cell with one core, while no core moves.
    RestOnOne,
    /// The same cell with two cores, while no core moves.
    RestOnTwo,
    /// The same cell, with dry runs of its moves.
    Rehearsed,
    /// The same image, standalone.
    Image,
    /// The same without load.
    Unloaded,
    /// smoltcp's protocol stack.
    Smoltcp,
    /// Two cgroups of the Linux guest: memcached with the largest weight, a batch job with the smallest.
    Shares,
    /// The same with equal weights.
    Alike,
    /// The same with memcached under SCHED_FIFO, and the batch job under SCHED_IDLE.
    RealTime,
    /// The same with `cpu.idle` for the batch job's cgroup.
    Idle,
    /// memcached in its cgroup, without a batch job.
    Alone,
    /// The same with fixed processors for each cgroup.
    Fixed,
    /// The same with processors for each cgroup, which a controller moves.
    Moved,
    /// Three cgroups of the Linux guest with weights for the processor.
    CpuWeights,
    /// The same with weights for the block device, by io.cost.
    IoWeights,
    /// nginx three times in the Linux guest, with classes of HTB.
    TrafficClasses,
    /// The same image without a policy.
    Direct,
    /// The same two cells over their devices.
    Devices,
    /// The same cell with a disk of its own.
    OwnDisk,
}

/// A target for a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// At most this fraction of the peer's figure.
    Ratio(f64),
    /// The same, if another figure is at most [`EQUAL`] times its peer's.
    RatioWhile(f64, &'static str),
    /// At least this multiple of the peer's figure.
    Times(f64),
    /// At most this value.
    Value(f64),
    /// At least this value.
    AtLeast(f64),
}

/// Figures up to this ratio count as equal.
pub const EQUAL: f64 = 1.05;

/// The origin of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AimOrigin {
    /// A target set in these terms before the measurement.
    Asked,
    /// The same in another unit: 1 ns of time as one instruction.
    Converted,
    /// A target that this project set later.
    Ours,
}

/// A target and its origin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Its origin.
    pub origin: AimOrigin,
    /// The target.
    pub aim: Aim,
}

impl Goal {
    /// Returns whether `figure` of `record` reaches the target; and the reason, if another figure prevents that.
    pub fn verdict(&self, figure: &Figure, record: &Record) -> (bool, Option<String>) {
        let within = |aim: f64| figure.ratio.is_some_and(|ratio| ratio <= aim);
        match self.aim {
            Aim::Ratio(aim) => (within(aim), None),
            Aim::Times(aim) => (figure.ratio.is_some_and(|ratio| ratio >= aim), None),
            Aim::Value(aim) => (figure.isola <= aim, None),
            Aim::AtLeast(aim) => (figure.isola >= aim, None),
            Aim::RatioWhile(aim, other) => {
                let tied =
                    KINDS.iter().find(|kind| kind.name == other).and_then(|kind| self::figure(kind, record));
                match tied.and_then(|tied| tied.ratio) {
                    Some(ratio) if ratio <= EQUAL => (within(aim), None),
                    Some(ratio) => (false, Some(format!("{other} is {ratio:.2} times its peer's"))),
                    None => (false, Some(format!("{other} was not measured"))),
                }
            }
        }
    }
}

/// A figure: several runs of both systems in one row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// The median of Isola's runs.
    pub isola: f64,
    /// The median of the peer's runs.
    pub peer: Option<f64>,
    /// The peer.
    pub peer_name: Option<String>,
    /// Isola's median divided by the peer's.
    pub ratio: Option<f64>,
    /// The spread of the runs.
    pub spread: Spread,
    /// The number of Isola's runs.
    pub runs: usize,
    /// The number of the peer's runs.
    pub peer_runs: usize,
}

/// The difference of the largest and the smallest run, as a fraction of the median.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// That of Isola's runs; `None` with fewer than two.
    pub isola: Option<f64>,
    /// That of the peer's runs.
    pub peer: Option<f64>,
}

/// Returns the figures in `record`, in the order of [`KINDS`], each with its kind.
pub fn figures(record: &Record) -> Vec<(&'static Kind, Figure)> {
    let kinds = KINDS.iter().filter(|kind| kind.group == record.group());
    kinds.filter_map(|kind| Some((kind, figure(kind, record)?))).collect()
}

fn figure(kind: &Kind, record: &Record) -> Option<Figure> {
    let series = record.series(kind.name).filter(|series| !series.isola.is_empty())?;
    let isola = median(&series.isola);
    let peer = (!series.peer.is_empty()).then(|| median(&series.peer));
    Some(Figure {
        name: kind.name.to_owned(),
        unit: kind.unit.to_owned(),
        isola,
        peer,
        peer_name: peer.and_then(|_| record.peer_name(kind.peer)),
        ratio: peer.filter(|&peer| peer != 0.0).map(|peer| isola / peer),
        spread: Spread { isola: spread(&series.isola), peer: spread(&series.peer) },
        runs: series.isola.len(),
        peer_runs: series.peer.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn figures_have_the_fields_that_scripts_use() {
        let record = record("boot-answer", &[200.0, 100.0, 300.0], &[4_000.0, 2_000.0, 2_500.0]);
        let (_, figure) = &figures(&record)[0];
        let json = serde_json::to_value(figure).unwrap();
        assert_eq!(json["name"], "boot-answer");
        assert_eq!(json["unit"], "ms");
        assert_eq!(json["isola"], 200.0);
        assert_eq!(json["peer"], 2_500.0);
        assert!(json["peer_name"].as_str().unwrap().contains("memcached"));
        assert_eq!(json["ratio"], 0.08);
        assert_eq!(json["spread"]["isola"], 1.0);
        assert_eq!(json["spread"]["peer"], 0.8);
        assert_eq!(json["runs"], 3);
        assert_eq!(json["peer_runs"], 3);
        assert_eq!(json.as_object().unwrap().len(), 9);
    }

    #[test]
    fn a_figure_without_a_peer_has_no_ratio() {
        let record = record("cell-create", &[2.0], &[]);
        let (_, figure) = &figures(&record)[0];
        let json = serde_json::to_value(figure).unwrap();
        for field in ["peer", "peer_name", "ratio"] {
            assert!(json[field].is_null(), "{field}");
        }
        assert!(json["spread"]["peer"].is_null());
        assert!(json["spread"]["isola"].is_null(), "one run has no spread");
    }
}
