//! Figures: what is measured, and what came of it.

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
    /// Requests of a key-value service, and of an echo service
    Kv,
    /// Requests of a web server, for a file
    Web,
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
    pub const ALL: [Self; 8] =
        [Self::Boot, Self::Cell, Self::Kv, Self::Web, Self::Memory, Self::Pager, Self::Library, Self::Stack];

    /// Its name, on the command line and of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Cell => "cell",
            Self::Kv => "kv",
            Self::Web => "web",
            Self::Memory => "memory",
            Self::Pager => "pager",
            Self::Library => "library",
            Self::Stack => "stack",
        }
    }

    /// Whether machines are booted for it.
    pub fn needs_machines(self) -> bool {
        !matches!(self, Self::Memory | Self::Stack)
    }
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
    /// smoltcp's protocol stack.
    Smoltcp,
    /// The host's kernel, over its loopback interface.
    Loopback,
}

/// What is aimed at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// Nothing in particular.
    None,
    /// At most this part of the peer's.
    Ratio(f64),
    /// At most this.
    Value(f64),
}

/// A kind of figure.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// What it is called.
    pub name: &'static str,
    /// In what it is measured.
    pub unit: &'static str,
    /// What it means.
    pub about: &'static str,
    /// What it is compared with.
    pub peer: Peer,
    /// What is aimed at.
    pub aim: Aim,
    /// The group that takes it.
    pub group: Group,
}

/// Declares the table of kinds.
macro_rules! kinds {
    ($($group:ident: $name:literal, $unit:literal, $peer:ident, $aim:expr, $about:literal;)+) => {
        /// All kinds of figures, in the order in which they are shown.
        pub const KINDS: &[Kind] = &[$(Kind {
            name: $name,
            unit: $unit,
            about: $about,
            peer: Peer::$peer,
            aim: $aim,
            group: Group::$group,
        },)+];
    };
}

kinds! {
    Boot: "boot-first-line", "ms", Memcached, Aim::None,
        "from the start of QEMU to the first byte on the serial line";
    Boot: "boot-answer", "ms", Memcached, Aim::Ratio(0.1),
        "from the start of QEMU to the first answer to a client";
    Boot: "boot-instructions", "million", Memcached, Aim::Ratio(0.1),
        "guest instructions until then, the firmware's included";
    Boot: "boot-image", "KiB", Memcached, Aim::None,
        "what the machine loads: the image without its debug information; Linux: kernel and initial file system";
    Boot: "boot-memory", "MiB", Memcached, Aim::None,
        "guest memory that was ever touched by then, which the host had to provide";
    Cell: "cell-supervisor", "ms", None, Aim::None,
        "from the start of QEMU to a supervisor that answers";
    Cell: "cell-create", "ms", None, Aim::None,
        "the image sent and a cell of 64 MiB and 1 core made, as a user waits for it";
    Cell: "cell-start", "ms", None, Aim::None,
        "from the request to start it to its first answer to a client";
    Cell: "cell-up", "ms", Memcached, Aim::None,
        "both together; Linux: from the start of QEMU to the first answer";
    Cell: "cell-up-2-cores", "ms", None, Aim::None,
        "the same of a cell of 2 cores";
    Cell: "cell-destroy", "ms", None, Aim::None,
        "stopped and destroyed: cores back, device reset; its memory is scrubbed behind that";
    Cell: "cell-memory", "MiB", Memcached, Aim::Value(2.0),
        "memory in use while it serves, image and stacks included, as the cell says; Linux: as /proc/meminfo says";
    Cell: "cell-smallest", "MiB", None, Aim::Value(2.0),
        "the smallest cell in which the echo service answers";
    Kv: "kv-instructions", "instructions", Memcached, Aim::Ratio(0.25),
        "guest instructions a request of the ETC-like mix, at saturation";
    Kv: "kv-instructions-low", "instructions", Memcached, Aim::Ratio(0.25),
        "the same at low load";
    Kv: "kv-cpu", "us", Memcached, Aim::None,
        "processor time of the host (all of QEMU) a request, at saturation";
    Kv: "kv-cpu-low", "us", Memcached, Aim::None,
        "the same at low load";
    Kv: "kv-throughput", "requests/s", Memcached, Aim::None,
        "requests a second at saturation (more is better)";
    Kv: "kv-p50", "us", Memcached, Aim::None,
        "median latency at the same load for both: half of what saturates Linux";
    Kv: "kv-p99", "us", Memcached, Aim::None,
        "99th percentile at that load";
    Kv: "kv-memory", "MiB", Memcached, Aim::None,
        "guest memory that was ever touched when all of this is done";
    Kv: "echo-instructions", "instructions", Echo, Aim::Ratio(0.25),
        "guest instructions a round trip of 64 bytes over TCP";
    Kv: "echo-cpu", "us", Echo, Aim::None,
        "processor time of the host a round trip";
    Kv: "echo-round-trip", "us", Echo, Aim::None,
        "median time of a round trip";
    Web: "web-instructions", "instructions", Nginx, Aim::Ratio(0.167),
        "guest instructions a request for a page of 507 bytes, on 16 connections that stay, at saturation";
    Web: "web-cpu", "us", Nginx, Aim::None, "processor time of the host (all of QEMU) a request";
    Web: "web-throughput", "requests/s", Nginx, Aim::None, "requests a second at saturation (more is better)";
    Web: "web-alone-instructions", "instructions", Nginx, Aim::Ratio(0.167),
        "guest instructions a request on one connection, each once the one before is answered";
    Web: "web-alone-round-trip", "us", Nginx, Aim::None, "median time of that";
    Web: "web-connect-instructions", "instructions", Nginx, Aim::Ratio(0.167),
        "guest instructions of a connection made for one request, and closed behind it";
    Web: "web-connect-round-trip", "us", Nginx, Aim::None, "median time of that";
    Memory: "memory-box-glibc", "ns", Glibc, Aim::None,
        "an object of 8 bytes made and freed, by a program that is optimised as a whole: one thread";
    Memory: "memory-box-jemalloc", "ns", Jemalloc, Aim::Ratio(0.667), "the same beside jemalloc";
    Memory: "memory-box-mimalloc", "ns", Mimalloc, Aim::Ratio(1.0), "the same beside mimalloc";
    Memory: "memory-box-24-glibc", "ns", Glibc, Aim::None,
        "the same on each of 24 threads, in their own processor time: per-core state, not parallel speed";
    Memory: "memory-box-24-jemalloc", "ns", Jemalloc, Aim::Ratio(0.667), "the same beside jemalloc";
    Memory: "memory-box-24-mimalloc", "ns", Mimalloc, Aim::Ratio(1.0), "the same beside mimalloc";
    Memory: "memory-pair-glibc", "ns", Glibc, Aim::None, "one thread, the size not known to the compiler";
    Memory: "memory-pair-jemalloc", "ns", Jemalloc, Aim::Ratio(0.667), "the same beside jemalloc";
    Memory: "memory-pair-mimalloc", "ns", Mimalloc, Aim::Ratio(1.0), "the same beside mimalloc";
    Memory: "memory-churn-glibc", "ns", Glibc, Aim::None,
        "the oldest of 4096 objects freed and one of another size made, 16 to 1039 bytes";
    Memory: "memory-churn-jemalloc", "ns", Jemalloc, Aim::None, "the same beside jemalloc";
    Memory: "memory-churn-mimalloc", "ns", Mimalloc, Aim::None, "the same beside mimalloc";
    Memory: "memory-instructions-glibc", "instructions", Glibc, Aim::None,
        "instructions of an object of 8 bytes made and freed, the loop around it included";
    Memory: "memory-instructions-jemalloc", "instructions", Jemalloc, Aim::None, "the same beside jemalloc";
    Memory: "memory-instructions-mimalloc", "instructions", Mimalloc, Aim::None, "the same beside mimalloc";
    Pager: "page-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "a page of 4 KiB touched that is not there, filled on demand, of memory that is known to be zero";
    Pager: "page-time", "ns", Touch, Aim::None, "time of that";
    Pager: "page-again-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "the same of memory that was used before and has to be cleared";
    Pager: "page-again-time", "ns", Touch, Aim::None, "time of that";
    Pager: "page-cleared-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "the same of memory that was used before and cleared while the cell was idle";
    Pager: "page-cleared-time", "ns", Touch, Aim::None, "time of that";
    Pager: "page-around-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "the same where a fault fills 16 pages";
    Pager: "page-around-time", "ns", Touch, Aim::None, "time of that";
    Pager: "page-around-again-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "the same of memory that was used before and has to be cleared";
    Pager: "page-around-again-time", "ns", Touch, Aim::None, "time of that";
    Pager: "page-around-cleared-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "the same of memory that was used before and cleared while the cell was idle";
    Pager: "page-around-cleared-time", "ns", Touch, Aim::None, "time of that";
    Pager: "page-prefault-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "the same where all pages are filled beforehand, by the page, filling included";
    Pager: "page-prefault-time", "ns", Touch, Aim::None, "time of that";
    Pager: "page-prefault-again-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "the same of memory that was used before and has to be cleared";
    Pager: "page-prefault-again-time", "ns", Touch, Aim::None, "time of that";
    Pager: "page-prefault-cleared-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "the same of memory that was used before and cleared while the cell was idle";
    Pager: "page-prefault-cleared-time", "ns", Touch, Aim::None, "time of that";
    Pager: "page-2m-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "the same with pages of 2 MiB, by 4 KiB; Linux: with transparent huge pages";
    Pager: "page-2m-time", "ns", Touch, Aim::None, "time of that";
    Pager: "page-2m-again-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "the same of memory that was used before and has to be cleared";
    Pager: "page-2m-again-time", "ns", Touch, Aim::None, "time of that";
    Pager: "page-2m-cleared-instructions", "instructions", Touch, Aim::Ratio(0.2),
        "the same of memory that was used before and cleared while the cell was idle";
    Pager: "page-2m-cleared-time", "ns", Touch, Aim::None, "time of that";
    Library: "ebb-inlined", "cycles", Inlined, Aim::Ratio(1.1),
        "a method of an Ebb called through its reference, in a process: cycles of the cycle counter";
    Library: "ebb-afresh", "cycles", Inlined, Aim::None,
        "the same where each call looks the Ebb up, as an event that makes one call does";
    Library: "ebb-not-inlined", "cycles", NotInlined, Aim::None, "the same beside a call";
    Library: "ebb-virtual", "cycles", Virtual, Aim::None, "the same beside a call by a table";
    Library: "ebb-dynamic", "cycles", Inlined, Aim::None, "a method of an Ebb that is made while the cell runs";
    Library: "ebb-instructions", "instructions", Inlined, Aim::None,
        "the first of these on a machine, the loop around it included; a bare cell runs the same instructions as a process";
    Library: "ebb-afresh-instructions", "instructions", Inlined, Aim::None, "the second of these on a machine";
    Library: "spawn", "ns", None, Aim::Value(60.0), "an event made, until it runs on the same core, in a process";
    Library: "spawn-instructions", "instructions", None, Aim::None,
        "the same on a machine: allocated, queued, taken, charged, run, freed, and a pass of the loop";
    Library: "task", "ns", None, Aim::None, "a task spawned, run and awaited, in a process";
    Library: "task-instructions", "instructions", None, Aim::None, "the same on a machine";
    Library: "start-task", "ns", None, Aim::None,
        "a task that is ready at its first poll, which runs at once: no trip through the queue";
    Library: "start-task-instructions", "instructions", None, Aim::None, "the same on a machine";
    Library: "yield-instructions", "instructions", None, Aim::None, "a task that lets others run first: a pass of the loop";
    Library: "other-core", "ns", None, Aim::None,
        "an event made on another core, which is awake, until its answer is seen, in a process";
    Library: "interrupt", "ns", None, Aim::None, "from raising an interrupt to its handler, in a process";
    Library: "interrupt-instructions", "instructions", None, Aim::None,
        "the same on a machine: the local APIC written to, the pass finished, the entry, the handler found";
    Library: "alarm-instructions", "instructions", None, Aim::None,
        "from the moment an alarm is set for to its handler, on a machine whose core is halted";
    Stack: "stack-segment-smoltcp", "ns", Smoltcp, Aim::Ratio(1.0),
        "1,448 bytes of a bulk transfer, from one host's application to the other's, both in one thread: headers made, sent, \
         read, acknowledged";
    Stack: "stack-segment-linux", "ns", Loopback, Aim::None,
        "the same beside two sockets of the host's kernel, in two threads, which segments of 64 KiB serve";
    Stack: "stack-echo-smoltcp", "ns", Smoltcp, Aim::Ratio(1.0), "64 bytes there and back: two segments";
    Stack: "stack-echo-linux", "ns", Loopback, Aim::None, "the same beside the kernel, which wakes two threads for it";
    Stack: "stack-connect-smoltcp", "ns", Smoltcp, Aim::Ratio(1.0), "a connection made and closed: six or seven segments";
    Stack: "stack-connect-linux", "ns", Loopback, Aim::None, "the same beside the kernel";
    Stack: "stack-segment-instructions", "instructions", Smoltcp, Aim::Ratio(1.0), "instructions of the first of these";
    Stack: "stack-echo-instructions", "instructions", Smoltcp, Aim::Ratio(1.0), "of the third";
    Stack: "stack-connect-instructions", "instructions", Smoltcp, Aim::Ratio(1.0), "of the fifth";
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
}

/// From the smallest to the largest run, as a part of the median.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Of Isola's runs.
    pub isola: f64,
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
        spread: Spread { isola: spread(&series.isola), peer: peer.map(|_| spread(&series.peer)) },
        runs: series.isola.len(),
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
        assert_eq!(json.as_object().unwrap().len(), 8);
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
    }

    #[test]
    fn names_are_unlike() {
        let mut names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
    }
}
