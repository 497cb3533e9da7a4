//! The table of what is measured.

use crate::figure::{Aim, Group, Peer};

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
    Elastic: "elastic-create-4m", "instructions", None, Aim::None,
        "a cell of 6 cores and 4 MiB created, from an image that is kept: instructions of all cores";
    Elastic: "elastic-create-512m", "instructions", None, Aim::Value(1e6), "the same with 512 MiB";
    Elastic: "elastic-create-16g", "instructions", None, Aim::Value(1e6),
        "the same with 16 GiB (RainForest 6.1 s, LXC 2.1 s, Xen 14.2 s)";
    Elastic: "elastic-destroy", "instructions", None, Aim::Value(1e6),
        "that one destroyed; its memory is scrubbed behind that (RainForest and LXC next to nothing, Xen 5.9 s)";
    Elastic: "elastic-launch", "instructions", None, Aim::Value(198_846.0),
        "a cell of 1 core and 4 MiB created and started, from an image that is kept (XOS 198,846 cycles)";
    Elastic: "elastic-core-online-supervisor", "instructions", None, Aim::Value(1e5),
        "a core more for a cell that runs: on the supervisor's core, the request and its answer included (RainForest 66 ms, \
         LXC 2 ms, Xen 126 ms)";
    Elastic: "elastic-core-online-cell", "instructions", None, Aim::Value(1e5),
        "of that on all cores of the cell, until flows are spread and all is quiet";
    Elastic: "elastic-core-offline-supervisor", "instructions", None, Aim::Value(1e5),
        "a core less, on the supervisor's core (RainForest 54 ms, LXC 2 ms, Xen 127 ms)";
    Elastic: "elastic-core-offline-cell", "instructions", None, Aim::Value(1e5), "of that on all cores of the cell";
    Elastic: "elastic-memory-online", "instructions", None, Aim::Value(1e5),
        "512 MiB more for a cell that runs, until it has them: of all cores (RainForest 20 ms, LXC 2 ms, Xen 167 ms)";
    Elastic: "elastic-memory-offline", "instructions", None, Aim::Value(1e6),
        "512 MiB less, until they are free; scrubbed behind that (RainForest 60 ms, LXC 2 ms, Xen 166 ms)";
    Elastic: "elastic-p50", "us", AtRest, Aim::None,
        "median latency of kv while a core comes and leaves, a move each half second, beside that at rest";
    Elastic: "elastic-p99", "us", AtRest, Aim::Ratio(1.1), "99th percentile of that";
    Elastic: "elastic-moves-p50", "us", Rehearsed, Aim::None,
        "the same median beside that with the same moves only rehearsed, half of the time on one core and half on two";
    Elastic: "elastic-moves-p99", "us", Rehearsed, Aim::Ratio(1.1), "99th percentile of that";
    Colocation: "colocation-p50", "ms", Shares, Aim::None,
        "median latency of kv under a load that rises and falls, beside a batch job; two cgroups on all processors, the service's with the largest weight, the batch job's with the least";
    Colocation: "colocation-p99", "ms", Shares, Aim::Ratio(0.5),
        "99th percentile of that";
    Colocation: "colocation-batch", "s", Shares, Aim::None,
        "how long the batch job took meanwhile";
    Colocation: "colocation-alike-p50", "ms", Alike, Aim::None,
        "the same beside two cgroups of equal weight";
    Colocation: "colocation-alike-p99", "ms", Alike, Aim::Ratio(0.5),
        "99th percentile of that";
    Colocation: "colocation-alike-batch", "s", Alike, Aim::None,
        "how long the batch job took";
    Colocation: "colocation-fixed-p50", "ms", Fixed, Aim::None,
        "the same beside two cgroups of which each has its processors, the service three of four";
    Colocation: "colocation-fixed-p99", "ms", Fixed, Aim::Ratio(0.5),
        "99th percentile of that";
    Colocation: "colocation-fixed-batch", "s", Fixed, Aim::None,
        "how long the batch job took";
    Colocation: "colocation-moved-p50", "ms", Moved, Aim::None,
        "the same beside the same controller that looks at the client's latencies and moves cores of two cells, or of two cgroups";
    Colocation: "colocation-moved-p99", "ms", Moved, Aim::Ratio(0.5),
        "99th percentile of that";
    Colocation: "colocation-moved-batch", "s", Moved, Aim::None,
        "how long the batch job took";
    Colocation: "colocation-own-p50", "ms", Shares, Aim::None,
        "median latency where each gets a load of its own, as near to what saturates it";
    Colocation: "colocation-own-p99", "ms", Shares, Aim::Ratio(0.5), "99th percentile of that";
    Colocation: "colocation-own-batch", "s", Shares, Aim::None, "how long the batch job took";
    Colocation: "colocation-own-rate", "requests/s", Shares, Aim::None, "that load, on average (more is better)";
    Colocation: "colocation-lost", "s", Shares, Aim::None,
        "time that processors could not keep their pace, as the host was too busy: 0 where the figures count";
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
    Kv: "kv-within", "requests/s", Memcached, Aim::Times(4.0),
        "the largest load of a row at which nine of ten requests are answered within 5 ms (more is better)";
    Kv: "kv-2-instructions", "instructions", Memcached, Aim::Ratio(0.25),
        "on 2 processors: guest instructions a request at saturation";
    Kv: "kv-2-cpu", "us", Memcached, Aim::None, "on 2 processors: processor time of the host a request";
    Kv: "kv-2-throughput", "requests/s", Memcached, Aim::None,
        "on 2 processors: requests a second at saturation (more is better)";
    Kv: "kv-2-p50", "us", Memcached, Aim::None, "on 2 processors: median latency at half of what saturates Linux";
    Kv: "kv-2-p99", "us", Memcached, Aim::None, "on 2 processors: 99th percentile at that load";
    Kv: "kv-2-within", "requests/s", Memcached, Aim::Times(4.0),
        "on 2 processors: the largest load at which nine of ten are answered within 5 ms (more is better)";
    Kv: "echo-instructions", "instructions", Echo, Aim::Ratio(0.25),
        "guest instructions a round trip of 64 bytes over TCP";
    Kv: "echo-cpu", "us", Echo, Aim::None,
        "processor time of the host a round trip";
    Kv: "echo-round-trip", "us", Echo, Aim::None,
        "median time of a round trip";
    Web: "web-instructions", "instructions", Nginx, Aim::Ratio(0.167),
        "guest instructions a request for a page of 507 bytes, on 16 connections that stay, at saturation";
    Web: "web-cpu", "us", Nginx, Aim::None, "processor time of the host (all of QEMU) a request";
    Web: "web-throughput", "requests/s", Nginx, Aim::Times(6.0), "requests a second at saturation (more is better)";
    Web: "web-alone-instructions", "instructions", Nginx, Aim::Ratio(0.167),
        "guest instructions a request on one connection, each once the one before is answered";
    Web: "web-alone-round-trip", "us", Nginx, Aim::None, "median time of that";
    Web: "web-connect-instructions", "instructions", Nginx, Aim::Ratio(0.167),
        "guest instructions of a connection made for one request, and closed behind it";
    Web: "web-connect-round-trip", "us", Nginx, Aim::None, "median time of that";
    Bulk: "bulk-receive-instructions", "instructions", Messages, Aim::Ratio(0.333),
        "guest instructions a MiB that the machine receives on one connection";
    Bulk: "bulk-receive-cpu", "us", Messages, Aim::None, "processor time of the host (all of QEMU) a MiB of that";
    Bulk: "bulk-receive", "MB/s", Messages, Aim::None, "how much it receives a second (more is better)";
    Bulk: "bulk-send-instructions", "instructions", Messages, Aim::Ratio(0.333),
        "guest instructions a MiB that the machine sends on one connection";
    Bulk: "bulk-send-cpu", "us", Messages, Aim::None, "processor time of the host a MiB of that";
    Bulk: "bulk-send", "MB/s", Messages, Aim::None, "how much it sends a second (more is better)";
    Bulk: "bulk-sendfile-instructions", "instructions", Sendfile, Aim::None,
        "guest instructions a MiB sent, beside Linux's sendfile of a file in memory, which copies nothing";
    Bulk: "bulk-sendfile-cpu", "us", Sendfile, Aim::None, "processor time of the host a MiB of that";
    Bulk: "bulk-sendfile", "MB/s", Sendfile, Aim::None, "how much that is a second (more is better)";
    Netpipe: "netpipe-1-time", "us", Messages, Aim::None,
        "a message of 1 byte, one way: half of its time there and back";
    Netpipe: "netpipe-1-instructions", "instructions", Messages, Aim::None,
        "guest instructions of that message there and back";
    Netpipe: "netpipe-1-cpu", "us", Messages, Aim::None, "processor time of the host of that";
    Netpipe: "netpipe-64k-time", "us", Messages, Aim::None, "a message of 64 KiB, one way";
    Netpipe: "netpipe-64k-instructions", "instructions", Messages, Aim::None,
        "guest instructions of that message there and back";
    Netpipe: "netpipe-64k-cpu", "us", Messages, Aim::None, "processor time of the host of that";
    Netpipe: "netpipe-4m-time", "us", Messages, Aim::None, "a message of 4 MiB, one way";
    Netpipe: "netpipe-4m-instructions", "instructions", Messages, Aim::None,
        "guest instructions of that message there and back";
    Netpipe: "netpipe-4m-cpu", "us", Messages, Aim::None, "processor time of the host of that";
    Netpipe: "netpipe-most", "MB/s", Messages, Aim::None, "what one way carries at the best size (more is better)";
    Connections: "connection-instructions", "instructions", Epoll, Aim::None,
        "guest instructions of a connection that is made, carries a byte each way and is closed";
    Connections: "connection-cpu", "us", Epoll, Aim::None, "processor time of the host of that";
    Connections: "connection-time", "us", Epoll, Aim::None, "median time of that, one connection after the other";
    Connections: "connection-rate", "connections/s", Epoll, Aim::None,
        "connections a second, 8 at once (more is better)";
    Connections: "connection-rate-instructions", "instructions", Epoll, Aim::None, "guest instructions of one of these";
    Connections: "connection-rate-cpu", "us", Epoll, Aim::None, "processor time of the host of one of these";
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
    Stack: "stack-echo-smoltcp", "ns", Smoltcp, Aim::Ratio(1.0), "64 bytes there and back: two segments";
    Stack: "stack-connect-smoltcp", "ns", Smoltcp, Aim::Ratio(1.0), "a connection made and closed: six or seven segments";
    Stack: "stack-segment-instructions", "instructions", Smoltcp, Aim::Ratio(1.0), "instructions of the first of these";
    Stack: "stack-echo-instructions", "instructions", Smoltcp, Aim::Ratio(1.0), "of the third";
    Stack: "stack-connect-instructions", "instructions", Smoltcp, Aim::Ratio(1.0), "of the fifth";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unlike() {
        let mut names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
    }
}
