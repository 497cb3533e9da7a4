//! Figures: what is measured, and what came of it.

use crate::kinds::{KINDS, Kind};
use crate::record::Record;
use crate::statistics::{median, spread};
use serde::Serialize;

/// A group of figures: what is taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Group {
    /// Booting an image alone, beside booting the Linux guest
    Boot,
    /// Cells on a divided machine: created, started, destroyed
    Cell,
    /// Cells that grow, shrink, come and go on a running machine
    Elastic,
    /// A service beside a batch job, under a load that rises and falls
    Colocation,
    /// Requests of a key-value service, and of an echo service
    Kv,
    /// Requests of a web server, for a file
    Web,
    /// Requests of a cell under a supervisor, beside the image alone
    Product,
    /// Data in bulk, one way
    Bulk,
    /// Messages of all sizes, there and back
    Netpipe,
    /// Connections made and closed
    Connections,
    /// The heap beside other allocators, natively
    Memory,
    /// Page faults: a large region touched
    Pager,
    /// Calls of Ebbs, events, interrupts
    Library,
    /// The protocol stack beside another and the kernel's, natively
    Stack,
}

impl Group {
    /// All groups.
    pub const ALL: [Self; 14] = [
        Self::Boot,
        Self::Cell,
        Self::Elastic,
        Self::Colocation,
        Self::Kv,
        Self::Web,
        Self::Product,
        Self::Bulk,
        Self::Netpipe,
        Self::Connections,
        Self::Memory,
        Self::Pager,
        Self::Library,
        Self::Stack,
    ];

    /// Its name, on the command line and of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Cell => "cell",
            Self::Elastic => "elastic",
            Self::Colocation => "colocation",
            Self::Kv => "kv",
            Self::Web => "web",
            Self::Product => "product",
            Self::Bulk => "bulk",
            Self::Netpipe => "netpipe",
            Self::Connections => "connections",
            Self::Memory => "memory",
            Self::Pager => "pager",
            Self::Library => "library",
            Self::Stack => "stack",
        }
    }

    /// What its Linux guest runs; `None` where there is no such guest.
    pub fn guest(self) -> Option<GuestProgram> {
        match self {
            Self::Boot | Self::Cell | Self::Colocation | Self::Kv => Some(GuestProgram::Memcached),
            Self::Web => Some(GuestProgram::Nginx),
            Self::Bulk | Self::Netpipe | Self::Connections | Self::Pager => Some(GuestProgram::Ours),
            Self::Product | Self::Elastic | Self::Memory | Self::Library | Self::Stack => None,
        }
    }

    /// Whether machines are booted for it.
    pub fn needs_machines(self) -> bool {
        !matches!(self, Self::Memory | Self::Stack)
    }
}

/// What runs in the Linux guest of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestProgram {
    /// memcached.
    Memcached,
    /// nginx.
    Nginx,
    /// Programs of this package.
    Ours,
}

/// What Isola is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Nothing does the same.
    None,
    /// The Linux guest with memcached.
    Memcached,
    /// The Linux guest with a small echo server.
    Echo,
    /// The Linux guest with nginx.
    Nginx,
    /// The Linux guest with a program that reads and writes messages.
    Messages,
    /// The Linux guest with the same program, which sends files.
    Sendfile,
    /// The Linux guest with an echo server that waits for all connections by epoll.
    Epoll,
    /// The C library's allocator.
    Glibc,
    /// jemalloc.
    Jemalloc,
    /// mimalloc.
    Mimalloc,
    /// A process of the Linux guest that touches memory.
    Touch,
    /// A method of an object at hand, which is inlined.
    Inlined,
    /// The same, called.
    NotInlined,
    /// The same, called by the object's table.
    Virtual,
    /// The same cell while no core moves and it has one.
    RestOnOne,
    /// The same cell while no core moves and it has two.
    RestOnTwo,
    /// The same cell with its moves only rehearsed.
    Rehearsed,
    /// The same image, booted alone.
    Image,
    /// The same while nobody asks.
    Unloaded,
    /// smoltcp's protocol stack.
    Smoltcp,
    /// Two cgroups of the Linux guest: memcached, with the largest weight, and a batch job, with the least.
    Shares,
    /// The same with equal weights.
    Alike,
    /// The same with memcached of a real-time class, and the batch job of the class for idle processors.
    RealTime,
    /// The same with the batch job's cgroup for idle processors.
    Idle,
    /// memcached in its cgroup, and no batch job.
    Alone,
    /// The same with processors of their own.
    Fixed,
    /// The same with processors of their own, which a controller moves.
    Moved,
}

/// What is aimed at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// At most this part of the peer's.
    Ratio(f64),
    /// The same, while another figure is at most [`EQUAL`] times its peer's.
    RatioWhile(f64, &'static str),
    /// At least so many times the peer's.
    Times(f64),
    /// At most this.
    Value(f64),
    /// At least this.
    AtLeast(f64),
}

/// Up to so many times another is no more than that.
pub const EQUAL: f64 = 1.05;

/// Where an aim comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// It was set before anything was measured, in these terms.
    Asked,
    /// The same, in another unit: a time as instructions, of which a ns has one.
    Converted,
    /// It was set later, by those who measure.
    Ours,
}

/// An aim, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Where it comes from.
    pub by: By,
    /// What it is.
    pub aim: Aim,
}

impl Goal {
    /// Whether `figure` of `record` reaches it; what stands in the way, where that is another figure.
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

/// A figure: several runs of both systems as one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What it is called.
    pub name: String,
    /// In what it is measured.
    pub unit: String,
    /// The median of Isola's runs.
    pub isola: f64,
    /// The median of the peer's.
    pub peer: Option<f64>,
    /// Who the peer is.
    pub peer_name: Option<String>,
    /// Isola's median by the peer's.
    pub ratio: Option<f64>,
    /// How far runs are apart.
    pub spread: Spread,
    /// Number of Isola's runs.
    pub runs: usize,
    /// Number of the peer's.
    pub peer_runs: usize,
}

/// From the smallest to the largest run, as a part of the median.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Of Isola's runs; `None` of fewer than two.
    pub isola: Option<f64>,
    /// Of the peer's.
    pub peer: Option<f64>,
}

/// The figures in `record`, in the order of [`KINDS`]; each with its kind.
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
    fn figures_have_the_fields_that_scripts_rely_on() {
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
    fn what_nothing_is_compared_with_has_no_ratio() {
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
