//! The table of what is measured.

use crate::figure::{Aim, By, Goal, Group, Peer};

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
    pub goals: &'static [Goal],
    /// The group that takes it.
    pub group: Group,
}

/// Declares the table of kinds.
macro_rules! kinds {
    ($($group:ident: $name:literal, $unit:literal, $peer:ident, [$($by:ident $aim:expr),*], $about:literal;)+) => {
        /// All kinds of figures, in the order in which they are shown.
        pub const KINDS: &[Kind] = &[$(Kind {
            name: $name,
            unit: $unit,
            about: $about,
            peer: Peer::$peer,
            goals: &[$(Goal { by: By::$by, aim: $aim },)*],
            group: Group::$group,
        },)+];
    };
}

kinds! {
    Boot: "boot-first-line", "ms", Memcached, [],
        "from the start of QEMU to the first byte on the serial line";
    Boot: "boot-answer", "ms", Memcached, [Asked Aim::Ratio(0.1)],
        "from the start of QEMU to the first answer to a client";
    Boot: "boot-instructions", "million", Memcached, [Asked Aim::Ratio(0.1)],
        "guest instructions until then, the firmware's included";
    Boot: "boot-image", "KiB", Memcached, [],
        "what the machine loads: the image without its debug information; Linux: kernel and initial file system";
    Boot: "boot-memory", "MiB", Memcached, [],
        "guest memory that was ever touched by then, which the host had to provide";
    Cell: "cell-supervisor", "ms", None, [],
        "from the start of QEMU to a supervisor that answers";
    Cell: "cell-create", "ms", None, [],
        "the image sent and a cell of 64 MiB and 1 core made, as a user waits for it";
    Cell: "cell-start", "ms", None, [],
        "from the request to start it to its first answer to a client";
    Cell: "cell-up", "ms", Memcached, [],
        "both together; Linux: from the start of QEMU to the first answer";
    Cell: "cell-up-2-cores", "ms", None, [],
        "the same of a cell of 2 cores";
    Cell: "cell-destroy", "ms", None, [],
        "stopped and destroyed: cores back, device reset; its memory is scrubbed behind that";
    Cell: "cell-memory", "MiB", Memcached, [Asked Aim::Value(2.0)],
        "memory in use while it serves, image and stacks included, as the cell says; Linux: as /proc/meminfo says";
    Cell: "cell-smallest", "MiB", None, [Asked Aim::Value(2.0)],
        "the smallest cell in which the echo service answers";
    Elastic: "elastic-create-4m", "instructions", None, [],
        "a cell of 6 cores and 4 MiB created, from an image that is kept: instructions of all cores";
    Elastic: "elastic-create-512m", "instructions", None, [Converted Aim::Value(1e6)], "the same with 512 MiB";
    Elastic: "elastic-create-16g", "instructions", None, [Converted Aim::Value(1e6)],
        "the same with 16 GiB (RainForest 6.1 s, LXC 2.1 s, Xen 14.2 s)";
    Elastic: "elastic-destroy", "instructions", None, [Converted Aim::Value(1e6)],
        "that one destroyed; its memory is scrubbed behind that (RainForest and LXC next to nothing, Xen 5.9 s)";
    Elastic: "elastic-launch", "instructions", None, [],
        "a cell of 1 core and 4 MiB created and started, from an image that is kept (XOS 198,846 cycles)";
    Elastic: "elastic-launch-sign", "instructions", None, [],
        "the same until the cell says that it runs";
    Elastic: "elastic-launch-answer", "instructions", None, [],
        "kv created and started, from an image that is kept, until its first answer to a client: of all cores, the way over the console included";
    Elastic: "elastic-destroy-used", "instructions", None, [],
        "that one stopped by force and destroyed, with two cores, after traffic: of all cores until the answer, the way over the console included";
    Elastic: "elastic-core-online-first-supervisor", "instructions", None, [],
        "the first core more in a cell's life: on the supervisor's core, the request and its answer included";
    Elastic: "elastic-core-online-first-cell", "instructions", None, [], "of that on all cores of the cell";
    Elastic: "elastic-core-offline-first-supervisor", "instructions", None, [], "the first core less, on the supervisor's core";
    Elastic: "elastic-core-offline-first-cell", "instructions", None, [], "of that on all cores of the cell";
    Elastic: "elastic-core-online-loaded-time", "us", Unloaded, [],
        "median time of a core that comes, on paced processors under load, from the request to the answer";
    Elastic: "elastic-core-offline-loaded-time", "us", Unloaded, [], "the same of one that leaves";
    Elastic: "elastic-memory-offline-used", "instructions", None, [],
        "32 MiB less of a kv of 128 MiB that had filled its memory and was emptied, until they are free: of all cores, the way over the console included";
    Elastic: "elastic-memory-offline-moved", "instructions", None, [],
        "40 MiB less of a cell of 64 MiB whose application keeps each eighth page of regions of 48 MiB and goes on using some: pages move until \
         chunks are free; by a clock of instructions, which goes on where the cell waits";
    Elastic: "elastic-core-online-supervisor", "instructions", None, [Converted Aim::Value(1e5)],
        "a core more for a cell that runs: on the supervisor's core, the request and its answer included (RainForest 66 ms, \
         LXC 2 ms, Xen 126 ms)";
    Elastic: "elastic-core-online-cell", "instructions", None, [Converted Aim::Value(1e5)],
        "of that on all cores of the cell, until flows are spread and all is quiet";
    Elastic: "elastic-core-offline-supervisor", "instructions", None, [Converted Aim::Value(1e5)],
        "a core less, on the supervisor's core (RainForest 54 ms, LXC 2 ms, Xen 127 ms)";
    Elastic: "elastic-core-offline-cell", "instructions", None, [Converted Aim::Value(1e5)], "of that on all cores of the cell";
    Elastic: "elastic-memory-online", "instructions", None, [Converted Aim::Value(1e5)],
        "512 MiB more for a cell that runs, until it has them: of all cores (RainForest 20 ms, LXC 2 ms, Xen 167 ms)";
    Elastic: "elastic-memory-offline", "instructions", None, [Converted Aim::Value(1e6)],
        "512 MiB less, until they are free; scrubbed behind that (RainForest 60 ms, LXC 2 ms, Xen 166 ms)";
    Elastic: "elastic-one-p50", "us", RestOnOne, [],
        "median latency of kv while a core comes and leaves, a move each half second, beside that at rest on one core";
    Elastic: "elastic-one-p99", "us", RestOnOne, [Asked Aim::Ratio(1.1)], "99th percentile of that";
    Elastic: "elastic-one-p999", "us", RestOnOne, [], "99.9th percentile of that";
    Elastic: "elastic-one-max", "us", RestOnOne, [], "the longest of them";
    Elastic: "elastic-one-met-p50", "us", RestOnOne, [],
        "median of the requests alone that were under way during a move, beside all requests at rest on one core";
    Elastic: "elastic-one-met-p99", "us", RestOnOne, [Asked Aim::Ratio(1.1)], "99th percentile of that";
    Elastic: "elastic-one-met-max", "us", RestOnOne, [], "the longest of them";
    Elastic: "elastic-two-p50", "us", RestOnTwo, [],
        "median latency of kv while a core comes and leaves, a move each half second, beside that at rest on two cores";
    Elastic: "elastic-two-p99", "us", RestOnTwo, [Asked Aim::Ratio(1.1)], "99th percentile of that";
    Elastic: "elastic-two-p999", "us", RestOnTwo, [], "99.9th percentile of that";
    Elastic: "elastic-two-max", "us", RestOnTwo, [], "the longest of them";
    Elastic: "elastic-two-met-p50", "us", RestOnTwo, [],
        "median of the requests alone that were under way during a move, beside all requests at rest on two cores";
    Elastic: "elastic-two-met-p99", "us", RestOnTwo, [Asked Aim::Ratio(1.1)], "99th percentile of that";
    Elastic: "elastic-two-met-max", "us", RestOnTwo, [], "the longest of them";
    Elastic: "elastic-met-part", "percent", None, [], "how many of all requests were under way during a move";
    Elastic: "elastic-moves-p50", "us", Rehearsed, [],
        "median latency while a core moves, beside that with the same moves only rehearsed, half of the time on one core and half on two";
    Elastic: "elastic-moves-p99", "us", Rehearsed, [Ours Aim::Ratio(1.1)], "99th percentile of that";
    Colocation: "colocation-p50", "ms", Shares, [],
        "median latency of kv under a load that rises and falls, beside a batch job; two cgroups on all processors, the service's with the largest weight, the batch job's with the least";
    Colocation: "colocation-p99", "ms", Shares, [Asked Aim::RatioWhile(0.5, "colocation-batch")],
        "99th percentile of that";
    Colocation: "colocation-batch", "s", Shares, [],
        "how long the batch job took meanwhile";
    Colocation: "colocation-alike-p50", "ms", Alike, [],
        "the same beside two cgroups of equal weight";
    Colocation: "colocation-alike-p99", "ms", Alike, [Asked Aim::RatioWhile(0.5, "colocation-alike-batch")],
        "99th percentile of that";
    Colocation: "colocation-alike-batch", "s", Alike, [],
        "how long the batch job took";
    Colocation: "colocation-fixed-p50", "ms", Fixed, [],
        "the same beside two cgroups of which each has its processors, the service three of four";
    Colocation: "colocation-fixed-p99", "ms", Fixed, [Asked Aim::RatioWhile(0.5, "colocation-fixed-batch")],
        "99th percentile of that";
    Colocation: "colocation-fixed-batch", "s", Fixed, [],
        "how long the batch job took";
    Colocation: "colocation-realtime-p50", "ms", RealTime, [],
        "the same beside two cgroups of which the service's threads are SCHED_FIFO and the batch job's SCHED_IDLE, on all processors";
    Colocation: "colocation-realtime-p99", "ms", RealTime, [Asked Aim::RatioWhile(0.5, "colocation-realtime-batch")],
        "99th percentile of that";
    Colocation: "colocation-realtime-batch", "s", RealTime, [],
        "how long the batch job took";
    Colocation: "colocation-idle-p50", "ms", Idle, [],
        "the same beside two cgroups on all processors, the batch job's with cpu.idle";
    Colocation: "colocation-idle-p99", "ms", Idle, [Asked Aim::RatioWhile(0.5, "colocation-idle-batch")],
        "99th percentile of that";
    Colocation: "colocation-idle-batch", "s", Idle, [],
        "how long the batch job took";
    Colocation: "colocation-moved-p50", "ms", Moved, [],
        "the same beside the same controller that looks at the client's latencies and moves cores of two cells, or of two cgroups";
    Colocation: "colocation-moved-p99", "ms", Moved, [Asked Aim::RatioWhile(0.5, "colocation-moved-batch")],
        "99th percentile of that";
    Colocation: "colocation-moved-batch", "s", Moved, [],
        "how long the batch job took";
    Colocation: "colocation-own-p50", "ms", Shares, [],
        "median latency where each gets a load of its own, as near to what saturates it";
    Colocation: "colocation-own-p99", "ms", Shares, [Asked Aim::RatioWhile(0.5, "colocation-own-batch")], "99th percentile of that";
    Colocation: "colocation-own-batch", "s", Shares, [], "how long the batch job took";
    Colocation: "colocation-own-rate", "requests/s", Shares, [], "that load, on average (more is better)";
    Colocation: "colocation-alone-p50", "ms", Alone, [],
        "median latency at the same load with no batch job: kv on all cores that it can have, memcached on all processors";
    Colocation: "colocation-alone-p99", "ms", Alone, [], "99th percentile of that";
    Colocation: "colocation-own-alone-p50", "ms", Alone, [],
        "median latency where each gets a load of its own, with no batch job";
    Colocation: "colocation-own-alone-p99", "ms", Alone, [], "99th percentile of that";
    Colocation: "colocation-lost", "s", Shares, [],
        "time that processors could not keep their pace, as the host was too busy: 0 where the figures count";
    Kv: "kv-instructions", "instructions", Memcached, [Asked Aim::Ratio(0.25)],
        "guest instructions a request of the ETC-like mix, at saturation";
    Kv: "kv-instructions-low", "instructions", Memcached, [Asked Aim::Ratio(0.25)],
        "the same at low load";
    Kv: "kv-cpu", "us", Memcached, [],
        "processor time of the host (all of QEMU) a request, at saturation";
    Kv: "kv-cpu-low", "us", Memcached, [],
        "the same at low load";
    Kv: "kv-throughput", "requests/s", Memcached, [],
        "requests a second at saturation (more is better)";
    Kv: "kv-depth-4-instructions", "instructions", Memcached, [],
        "guest instructions a request with 4 requests a connection under way";
    Kv: "kv-depth-4-throughput", "requests/s", Memcached, [], "requests a second then (more is better)";
    Kv: "kv-depth-16-instructions", "instructions", Memcached, [],
        "guest instructions a request with 16 requests a connection under way";
    Kv: "kv-depth-16-throughput", "requests/s", Memcached, [], "requests a second then (more is better)";
    Kv: "kv-p50", "us", Memcached, [],
        "median latency at the same load for both: half of what saturates Linux";
    Kv: "kv-p99", "us", Memcached, [],
        "99th percentile at that load";
    Kv: "kv-memory", "MiB", Memcached, [],
        "guest memory that was ever touched when all of this is done";
    Kv: "kv-within-99", "requests/s", Memcached, [Asked Aim::Times(4.0)],
        "the largest load at which 99 of 100 requests are answered within 5 ms (more is better)";
    Kv: "kv-within", "requests/s", Memcached, [Ours Aim::Times(4.0)],
        "the same for nine of ten";
    Kv: "kv-2-instructions", "instructions", Memcached, [Asked Aim::Ratio(0.25)],
        "on 2 processors: guest instructions a request at saturation";
    Kv: "kv-2-cpu", "us", Memcached, [], "on 2 processors: processor time of the host a request";
    Kv: "kv-2-throughput", "requests/s", Memcached, [Asked Aim::Times(4.0)],
        "on 2 processors: requests a second at saturation (more is better)";
    Kv: "kv-2-depth-4-instructions", "instructions", Memcached, [],
        "on 2 processors: guest instructions a request with 4 requests a connection under way";
    Kv: "kv-2-depth-4-throughput", "requests/s", Memcached, [], "on 2 processors: requests a second then (more is better)";
    Kv: "kv-2-depth-16-instructions", "instructions", Memcached, [],
        "on 2 processors: guest instructions a request with 16 requests a connection under way";
    Kv: "kv-2-depth-16-throughput", "requests/s", Memcached, [], "on 2 processors: requests a second then (more is better)";
    Kv: "kv-2-p50", "us", Memcached, [], "on 2 processors: median latency at half of what saturates Linux";
    Kv: "kv-2-p99", "us", Memcached, [], "on 2 processors: 99th percentile at that load";
    Kv: "kv-2-within-99", "requests/s", Memcached, [Asked Aim::Times(4.0)],
        "on 2 processors: the largest load at which 99 of 100 are answered within 5 ms (more is better)";
    Kv: "kv-2-within", "requests/s", Memcached, [Ours Aim::Times(4.0)], "the same for nine of ten";
    Kv: "echo-instructions", "instructions", Echo, [Asked Aim::Value(3_000.0), Ours Aim::Ratio(0.25)],
        "guest instructions a round trip of 64 bytes over TCP";
    Kv: "echo-cpu", "us", Echo, [],
        "processor time of the host a round trip";
    Kv: "echo-round-trip", "us", Echo, [],
        "median time of a round trip";
    Web: "web-instructions", "instructions", Nginx, [Asked Aim::Ratio(0.167)],
        "guest instructions a request for a page of 507 bytes, on 16 connections that stay, at saturation";
    Web: "web-cpu", "us", Nginx, [], "processor time of the host (all of QEMU) a request";
    Web: "web-throughput", "requests/s", Nginx, [Asked Aim::Times(6.0)], "requests a second at saturation (more is better)";
    Web: "web-alone-instructions", "instructions", Nginx, [Asked Aim::Ratio(0.167)],
        "guest instructions a request on one connection, each once the one before is answered";
    Web: "web-alone-round-trip", "us", Nginx, [], "median time of that";
    Web: "web-connect-instructions", "instructions", Nginx, [Asked Aim::Ratio(0.167)],
        "guest instructions of a connection made for one request, and closed behind it";
    Web: "web-connect-round-trip", "us", Nginx, [], "median time of that";
    Product: "product-kv-instructions", "instructions", Image, [],
        "a request of kv at saturation, in a cell of one core beside the same image booted alone: all processors' guest instructions";
    Product: "product-kv-throughput", "requests/s", Image, [], "requests a second (more is better)";
    Product: "product-echo-instructions", "instructions", Image, [], "the same of a round trip of 64 bytes with echo";
    Product: "product-echo-round-trip", "us", Image, [], "median time of that";
    Product: "product-web-instructions", "instructions", Image, [], "the same of a request for a page on 16 connections";
    Product: "product-web-throughput", "requests/s", Image, [], "requests a second (more is better)";
    Product: "product-receive-instructions", "instructions", Image, [], "the same of a MiB received";
    Product: "product-receive", "MB/s", Image, [], "how much that is a second (more is better)";
    Product: "product-send-instructions", "instructions", Image, [], "the same of a MiB sent";
    Product: "product-send", "MB/s", Image, [], "how much that is a second (more is better)";
    Bulk: "bulk-receive-instructions", "instructions", Messages, [Asked Aim::Ratio(0.333)],
        "guest instructions a MiB that the machine receives on one connection";
    Bulk: "bulk-receive-cpu", "us", Messages, [], "processor time of the host (all of QEMU) a MiB of that";
    Bulk: "bulk-receive", "MB/s", Messages, [], "how much it receives a second (more is better)";
    Bulk: "bulk-send-instructions", "instructions", Messages, [Asked Aim::Ratio(0.333)],
        "guest instructions a MiB that the machine sends on one connection";
    Bulk: "bulk-send-cpu", "us", Messages, [], "processor time of the host a MiB of that";
    Bulk: "bulk-send", "MB/s", Messages, [], "how much it sends a second (more is better)";
    Bulk: "bulk-sendfile-instructions", "instructions", Sendfile, [],
        "guest instructions a MiB sent, beside Linux's sendfile of a file in memory, which copies nothing";
    Bulk: "bulk-sendfile-cpu", "us", Sendfile, [], "processor time of the host a MiB of that";
    Bulk: "bulk-sendfile", "MB/s", Sendfile, [], "how much that is a second (more is better)";
    Netpipe: "netpipe-1-time", "us", Messages, [],
        "a message of 1 byte, one way: half of its time there and back";
    Netpipe: "netpipe-1-instructions", "instructions", Messages, [],
        "guest instructions of that message there and back";
    Netpipe: "netpipe-1-cpu", "us", Messages, [], "processor time of the host of that";
    Netpipe: "netpipe-64k-time", "us", Messages, [], "a message of 64 KiB, one way";
    Netpipe: "netpipe-64k-instructions", "instructions", Messages, [],
        "guest instructions of that message there and back";
    Netpipe: "netpipe-64k-cpu", "us", Messages, [], "processor time of the host of that";
    Netpipe: "netpipe-4m-time", "us", Messages, [], "a message of 4 MiB, one way";
    Netpipe: "netpipe-4m-instructions", "instructions", Messages, [],
        "guest instructions of that message there and back";
    Netpipe: "netpipe-4m-cpu", "us", Messages, [], "processor time of the host of that";
    Netpipe: "netpipe-most", "MB/s", Messages, [], "what one way carries at the best size (more is better)";
    Connections: "connection-instructions", "instructions", Epoll, [],
        "guest instructions of a connection that is made, carries a byte each way and is closed";
    Connections: "connection-cpu", "us", Epoll, [], "processor time of the host of that";
    Connections: "connection-time", "us", Epoll, [], "median time of that, one connection after the other";
    Connections: "connection-rate", "connections/s", Epoll, [],
        "connections a second, 8 at once (more is better)";
    Connections: "connection-rate-instructions", "instructions", Epoll, [], "guest instructions of one of these";
    Connections: "connection-rate-cpu", "us", Epoll, [], "processor time of the host of one of these";
    Memory: "memory-box-glibc", "ns", Glibc, [],
        "an object of 8 bytes made and freed, by a program that is optimised as a whole: one thread";
    Memory: "memory-box-jemalloc", "ns", Jemalloc, [Asked Aim::Ratio(0.667)], "the same beside jemalloc";
    Memory: "memory-box-mimalloc", "ns", Mimalloc, [Asked Aim::Ratio(1.0)], "the same beside mimalloc";
    Memory: "memory-box-24-glibc", "ns", Glibc, [],
        "the same on each of 24 threads, in their own processor time: per-core state, not parallel speed";
    Memory: "memory-box-24-jemalloc", "ns", Jemalloc, [Asked Aim::Ratio(0.667)], "the same beside jemalloc";
    Memory: "memory-box-24-mimalloc", "ns", Mimalloc, [Asked Aim::Ratio(1.0)], "the same beside mimalloc";
    Memory: "memory-pair-glibc", "ns", Glibc, [], "one thread, the size not known to the compiler";
    Memory: "memory-pair-jemalloc", "ns", Jemalloc, [Asked Aim::Ratio(0.667)], "the same beside jemalloc";
    Memory: "memory-pair-mimalloc", "ns", Mimalloc, [Asked Aim::Ratio(1.0)], "the same beside mimalloc";
    Memory: "memory-churn-glibc", "ns", Glibc, [],
        "the oldest of 4096 objects freed and one of another size made, 16 to 1039 bytes";
    Memory: "memory-churn-jemalloc", "ns", Jemalloc, [], "the same beside jemalloc";
    Memory: "memory-churn-mimalloc", "ns", Mimalloc, [], "the same beside mimalloc";
    Memory: "memory-instructions-glibc", "instructions", Glibc, [],
        "instructions of an object of 8 bytes made and freed, the loop around it included";
    Memory: "memory-instructions-jemalloc", "instructions", Jemalloc, [], "the same beside jemalloc";
    Memory: "memory-instructions-mimalloc", "instructions", Mimalloc, [], "the same beside mimalloc";
    Pager: "page-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "a page of 4 KiB touched that is not there, filled on demand, of memory that is known to be zero";
    Pager: "page-time", "ns", Touch, [], "time of that";
    Pager: "page-again-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "the same of memory that was used before and has to be cleared";
    Pager: "page-again-time", "ns", Touch, [], "time of that";
    Pager: "page-cleared-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "the same of memory that was used before and cleared while the cell was idle";
    Pager: "page-cleared-time", "ns", Touch, [], "time of that";
    Pager: "page-around-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "the same where a fault fills 16 pages";
    Pager: "page-around-time", "ns", Touch, [], "time of that";
    Pager: "page-around-again-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "the same of memory that was used before and has to be cleared";
    Pager: "page-around-again-time", "ns", Touch, [], "time of that";
    Pager: "page-around-cleared-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "the same of memory that was used before and cleared while the cell was idle";
    Pager: "page-around-cleared-time", "ns", Touch, [], "time of that";
    Pager: "page-prefault-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "the same where all pages are filled beforehand, by the page, filling included";
    Pager: "page-prefault-time", "ns", Touch, [], "time of that";
    Pager: "page-prefault-again-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "the same of memory that was used before and has to be cleared";
    Pager: "page-prefault-again-time", "ns", Touch, [], "time of that";
    Pager: "page-prefault-cleared-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "the same of memory that was used before and cleared while the cell was idle";
    Pager: "page-prefault-cleared-time", "ns", Touch, [], "time of that";
    Pager: "page-2m-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "the same with pages of 2 MiB, by 4 KiB; Linux: with transparent huge pages";
    Pager: "page-2m-time", "ns", Touch, [], "time of that";
    Pager: "page-2m-again-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "the same of memory that was used before and has to be cleared";
    Pager: "page-2m-again-time", "ns", Touch, [], "time of that";
    Pager: "page-2m-cleared-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "the same of memory that was used before and cleared while the cell was idle";
    Pager: "page-2m-cleared-time", "ns", Touch, [], "time of that";
    Library: "ebb-inlined", "cycles", Inlined, [Asked Aim::Ratio(1.1)],
        "a method of an Ebb called through its reference, in a process: cycles of the cycle counter";
    Library: "ebb-afresh", "cycles", Inlined, [],
        "the same where each call looks the Ebb up, as an event that makes one call does";
    Library: "ebb-not-inlined", "cycles", NotInlined, [], "the same beside a call";
    Library: "ebb-virtual", "cycles", Virtual, [], "the same beside a call by a table";
    Library: "ebb-dynamic", "cycles", Inlined, [], "a method of an Ebb that is made while the cell runs";
    Library: "ebb-instructions", "instructions", Inlined, [],
        "the first of these on a machine, the loop around it included; a bare cell runs the same instructions as a process";
    Library: "ebb-afresh-instructions", "instructions", Inlined, [], "the second of these on a machine";
    Library: "spawn", "ns", None, [Asked Aim::Value(60.0)], "an event made, until it runs on the same core, in a process";
    Library: "spawn-instructions", "instructions", None, [],
        "the same on a machine: allocated, queued, taken, charged, run, freed, and a pass of the loop";
    Library: "task", "ns", None, [], "a task spawned, run and awaited, in a process";
    Library: "task-instructions", "instructions", None, [], "the same on a machine";
    Library: "start-task", "ns", None, [],
        "a task that is ready at its first poll, which runs at once: no trip through the queue";
    Library: "start-task-instructions", "instructions", None, [], "the same on a machine";
    Library: "yield-instructions", "instructions", None, [], "a task that lets others run first: a pass of the loop";
    Library: "other-core", "ns", None, [],
        "an event made on another core, which is awake, until its answer is seen, in a process";
    Library: "interrupt", "ns", None, [], "from raising an interrupt to its handler, in a process";
    Library: "interrupt-instructions", "instructions", None, [],
        "the same on a machine: the local APIC written to, the pass finished, the entry, the handler found";
    Library: "alarm-instructions", "instructions", None, [],
        "from the moment an alarm is set for to its handler, on a machine whose core is halted";
    Stack: "stack-segment-smoltcp", "ns", Smoltcp, [Asked Aim::Ratio(1.0)],
        "1,448 bytes of a bulk transfer, from one host's application to the other's, both in one thread: headers made, sent, \
         read, acknowledged";
    Stack: "stack-echo-smoltcp", "ns", Smoltcp, [Asked Aim::Ratio(1.0)], "64 bytes there and back: two segments";
    Stack: "stack-connect-smoltcp", "ns", Smoltcp, [Asked Aim::Ratio(1.0)], "a connection made and closed: six or seven segments";
    Stack: "stack-segment-instructions", "instructions", Smoltcp, [Asked Aim::Ratio(1.0)], "instructions of the first of these";
    Stack: "stack-echo-instructions", "instructions", Smoltcp, [Asked Aim::Ratio(1.0)], "of the third";
    Stack: "stack-connect-instructions", "instructions", Smoltcp, [Asked Aim::Ratio(1.0)], "of the fifth";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_another_is_tied_to_is_in_its_group() {
        for kind in KINDS {
            for goal in kind.goals {
                if let Aim::RatioWhile(_, tied) = goal.aim {
                    let other = KINDS.iter().find(|kind| kind.name == tied).unwrap();
                    assert_eq!((other.group, other.peer), (kind.group, kind.peer), "{}", kind.name);
                }
            }
        }
    }

    #[test]
    fn names_are_unlike() {
        let mut names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
    }
}
