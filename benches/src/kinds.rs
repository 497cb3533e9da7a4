//! The table of figures.

use crate::figure::{Aim, AimOrigin, Goal, Group, Peer};

/// A kind of figure.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Name, in tables, data files and scripts.
    pub name: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Description, one line of the published table.
    pub about: &'static str,
    /// The peer of the comparison.
    pub peer: Peer,
    /// Aims.
    pub goals: &'static [Goal],
    /// Group that measures it.
    pub group: Group,
}

/// Declares the table of kinds.
macro_rules! kinds {
    ($($group:ident: $name:literal, $unit:literal, $peer:ident, [$($by:ident $aim:expr),*], $about:literal;)+) => {
        /// All kinds of figures, in the order of the tables.
        pub const KINDS: &[Kind] = &[$(Kind {
            name: $name,
            unit: $unit,
            about: $about,
            peer: Peer::$peer,
            goals: &[$(Goal { origin: AimOrigin::$by, aim: $aim },)*],
            group: Group::$group,
        },)+];
    };
}

kinds! {
    Boot: "boot-first-line", "ms", Memcached, [], "from QEMU's start to the first byte on the serial line";
    Boot: "boot-answer", "ms", Memcached, [Asked Aim::Ratio(0.1)],
        "from QEMU's start to the first answer to a client";
    Boot: "boot-instructions", "million", Memcached, [Asked Aim::Ratio(0.1)],
        "guest instructions until the first answer, including firmware";
    Boot: "boot-image", "KiB", Memcached, [],
        "loaded image without debug information; Linux: kernel and initial file system";
    Boot: "boot-memory", "MiB", Memcached, [],
        "guest memory touched until the first answer, which the host had to provide";
    Cell: "cell-supervisor", "ms", None, [], "from QEMU's start to the supervisor's first answer";
    Cell: "cell-create", "ms", None, [], "upload of the image and creation of a cell with 64 MiB and 1 core";
    Cell: "cell-start", "ms", None, [], "from the start request to the cell's first answer to a client";
    Cell: "cell-up", "ms", Memcached, [],
        "creation and start together; Linux: from QEMU's start to the first answer";
    Cell: "cell-up-2-cores", "ms", None, [], "creation and start of a cell with 2 cores, its image stored";
    Cell: "cell-destroy", "ms", None, [],
        "stop and destruction: cores reclaimed, device reset; scrubbing follows, not included";
    Cell: "cell-memory", "MiB", Memcached, [Asked Aim::Value(2.0)],
        "memory in use while serving, image and stacks included, by the cell's report; Linux: by /proc/meminfo";
    Cell: "cell-smallest", "MiB", None, [Asked Aim::Value(2.0)],
        "the smallest cell in which the echo service answers";
    Elastic: "elastic-create-4m", "instructions", None, [],
        "creation of a cell with 6 cores and 4 MiB from a stored image, on all cores";
    Elastic: "elastic-create-512m", "instructions", None, [Converted Aim::Value(1e6)],
        "creation with 512 MiB";
    Elastic: "elastic-create-16g", "instructions", None, [Converted Aim::Value(1e6)],
        "creation with 16 GiB (RainForest 6.1 s, LXC 2.1 s, Xen 14.2 s)";
    Elastic: "elastic-destroy", "instructions", None, [Converted Aim::Value(1e6)],
        "destruction of the 16 GiB cell, never started; scrubbing not included (RainForest and LXC near 0, Xen 5.9 s)";
    Elastic: "elastic-launch", "instructions", None, [],
        "creation and start of a cell with 1 core and 4 MiB from a stored image (XOS 198,846 cycles)";
    Elastic: "elastic-launch-sign", "instructions", None, [],
        "creation and start of that cell until it reports that it runs";
    Elastic: "elastic-launch-answer", "instructions", None, [],
        "creation and start of kv from a stored image until its first answer, on all cores, console included";
    Elastic: "elastic-destroy-used", "instructions", None, [],
        "forced stop and destruction of kv with two cores after traffic, on all cores, console included";
    Elastic: "elastic-core-online-first-supervisor", "instructions", None, [],
        "first core added in a cell's life: supervisor's core, request and answer included";
    Elastic: "elastic-core-online-first-cell", "instructions", None, [],
        "first core added in a cell's life: all cores of the cell";
    Elastic: "elastic-core-offline-first-supervisor", "instructions", None, [],
        "first core removed in a cell's life: supervisor's core";
    Elastic: "elastic-core-offline-first-cell", "instructions", None, [],
        "first core removed in a cell's life: all cores of the cell";
    Elastic: "elastic-core-online-loaded-time", "us", Unloaded, [],
        "median time to add a core, request to answer, on paced processors under load";
    Elastic: "elastic-core-offline-loaded-time", "us", Unloaded, [],
        "median time to remove a core, request to answer, on paced processors under load";
    Elastic: "elastic-memory-offline-used", "instructions", None, [],
        "unplug of 32 MiB from a filled and flushed kv of 128 MiB, on all cores, console included";
    Elastic: "elastic-memory-offline-moved", "instructions", None, [],
        "unplug of 40 MiB from a cell of 64 MiB with sparse regions in use: page migration included, waiting counted";
    Elastic: "elastic-core-online-supervisor", "instructions", None, [Converted Aim::Value(1e5)],
        "core added to a running cell: supervisor's core, request and answer included (RainForest 66 ms, LXC 2 ms, Xen 126 ms)";
    Elastic: "elastic-core-online-cell", "instructions", None, [Converted Aim::Value(1e5)],
        "core added to a running cell: all cores of the cell, until flows are spread and all cores idle";
    Elastic: "elastic-core-offline-supervisor", "instructions", None, [Converted Aim::Value(1e5)],
        "core removed from a running cell: supervisor's core (RainForest 54 ms, LXC 2 ms, Xen 127 ms)";
    Elastic: "elastic-core-offline-cell", "instructions", None, [Converted Aim::Value(1e5)],
        "core removed from a running cell: all cores of the cell";
    Elastic: "elastic-memory-online", "instructions", None, [Converted Aim::Value(1e5)],
        "512 MiB added to a running cell, on all cores (RainForest 20 ms, LXC 2 ms, Xen 167 ms)";
    Elastic: "elastic-memory-offline", "instructions", None, [Converted Aim::Value(1e6)],
        "512 MiB removed from a running cell; scrubbing not included (RainForest 60 ms, LXC 2 ms, Xen 166 ms)";
    Elastic: "elastic-one-p50", "us", RestOnOne, [],
        "kv with a core move every half second, against one core at rest: median latency";
    Elastic: "elastic-one-p99", "us", RestOnOne, [Asked Aim::Ratio(1.1)],
        "kv with core moves, against one core at rest: 99th percentile";
    Elastic: "elastic-one-p999", "us", RestOnOne, [],
        "kv with core moves, against one core at rest: 99.9th percentile";
    Elastic: "elastic-one-max", "us", RestOnOne, [], "kv with core moves, against one core at rest: maximum";
    Elastic: "elastic-one-met-p50", "us", RestOnOne, [],
        "requests in flight during a move, against all requests on one core at rest: median";
    Elastic: "elastic-one-met-p99", "us", RestOnOne, [Asked Aim::Ratio(1.1)],
        "requests in flight during a move, against one core at rest: 99th percentile";
    Elastic: "elastic-one-met-max", "us", RestOnOne, [],
        "requests in flight during a move, against one core at rest: maximum";
    Elastic: "elastic-two-p50", "us", RestOnTwo, [],
        "kv with a core move every half second, against two cores at rest: median latency";
    Elastic: "elastic-two-p99", "us", RestOnTwo, [Asked Aim::Ratio(1.1)],
        "kv with core moves, against two cores at rest: 99th percentile";
    Elastic: "elastic-two-p999", "us", RestOnTwo, [],
        "kv with core moves, against two cores at rest: 99.9th percentile";
    Elastic: "elastic-two-max", "us", RestOnTwo, [], "kv with core moves, against two cores at rest: maximum";
    Elastic: "elastic-two-met-p50", "us", RestOnTwo, [],
        "requests in flight during a move, against all requests on two cores at rest: median";
    Elastic: "elastic-two-met-p99", "us", RestOnTwo, [Asked Aim::Ratio(1.1)],
        "requests in flight during a move, against two cores at rest: 99th percentile";
    Elastic: "elastic-two-met-max", "us", RestOnTwo, [],
        "requests in flight during a move, against two cores at rest: maximum";
    Elastic: "elastic-met-part", "percent", None, [],
        "requests in flight during a move, as a part of all requests";
    Elastic: "elastic-moves-p50", "us", Rehearsed, [],
        "kv with core moves, against the same moves as dry runs on one and two cores: median latency";
    Elastic: "elastic-moves-p99", "us", Rehearsed, [Ours Aim::Ratio(1.1)],
        "kv with core moves, against dry runs: 99th percentile";
    Colocation: "colocation-p50", "ms", Shares, [],
        "kv beside a batch job under a varying load, against cgroup weights, the service's highest: median latency";
    Colocation: "colocation-p99", "ms", Shares, [Asked Aim::RatioWhile(0.5, "colocation-batch")],
        "against cgroup weights: 99th percentile";
    Colocation: "colocation-batch", "s", Shares, [], "against cgroup weights: run time of the batch job";
    Colocation: "colocation-alike-p50", "ms", Alike, [], "against equal cgroup weights: median latency";
    Colocation: "colocation-alike-p99", "ms", Alike, [Asked Aim::RatioWhile(0.5, "colocation-alike-batch")],
        "against equal weights: 99th percentile";
    Colocation: "colocation-alike-batch", "s", Alike, [], "against equal weights: run time of the batch job";
    Colocation: "colocation-fixed-p50", "ms", Fixed, [],
        "against cgroups with fixed processors, three of four for the service: median latency";
    Colocation: "colocation-fixed-p99", "ms", Fixed, [Asked Aim::RatioWhile(0.5, "colocation-fixed-batch")],
        "against fixed processors: 99th percentile";
    Colocation: "colocation-fixed-batch", "s", Fixed, [],
        "against fixed processors: run time of the batch job";
    Colocation: "colocation-realtime-p50", "ms", RealTime, [],
        "against SCHED_FIFO for the service, SCHED_IDLE for the batch job, on all processors: median latency";
    Colocation: "colocation-realtime-p99", "ms", RealTime, [Asked Aim::RatioWhile(0.5, "colocation-realtime-batch")],
        "against SCHED_FIFO and SCHED_IDLE: 99th percentile";
    Colocation: "colocation-realtime-batch", "s", RealTime, [],
        "against SCHED_FIFO and SCHED_IDLE: run time of the batch job";
    Colocation: "colocation-idle-p50", "ms", Idle, [],
        "against cpu.idle for the batch job's cgroup, on all processors: median latency";
    Colocation: "colocation-idle-p99", "ms", Idle, [Asked Aim::RatioWhile(0.5, "colocation-idle-batch")],
        "against cpu.idle: 99th percentile";
    Colocation: "colocation-idle-batch", "s", Idle, [], "against cpu.idle: run time of the batch job";
    Colocation: "colocation-moved-p50", "ms", Moved, [],
        "against one controller that moves cores by client latency, on both systems: median latency";
    Colocation: "colocation-moved-p99", "ms", Moved, [Asked Aim::RatioWhile(0.5, "colocation-moved-batch")],
        "against moved cores: 99th percentile";
    Colocation: "colocation-moved-batch", "s", Moved, [], "against moved cores: run time of the batch job";
    Colocation: "colocation-own-p50", "ms", Shares, [],
        "each system at the same part of its own saturation, against cgroup weights: median latency";
    Colocation: "colocation-own-p99", "ms", Shares, [Asked Aim::RatioWhile(0.5, "colocation-own-batch")],
        "each system at its own load: 99th percentile";
    Colocation: "colocation-own-batch", "s", Shares, [],
        "each system at its own load: run time of the batch job";
    Colocation: "colocation-own-rate", "requests/s", Shares, [],
        "each system's own load, on average (more is better)";
    Colocation: "colocation-alone-p50", "ms", Alone, [],
        "the common load without a batch job, kv on all its possible cores, memcached on all processors: median latency";
    Colocation: "colocation-alone-p99", "ms", Alone, [],
        "the common load without a batch job: 99th percentile";
    Colocation: "colocation-own-alone-p50", "ms", Alone, [],
        "each system at its own load without a batch job: median latency";
    Colocation: "colocation-own-alone-p99", "ms", Alone, [],
        "each system at its own load without a batch job: 99th percentile";
    Colocation: "colocation-lost", "s", Shares, [],
        "the most time that a machine's processors fell behind their pace because the host was busy, of all machines of a \
         run: at most 0.2 s for valid figures";
    Grid: "grid-processor-error", "points", CpuWeights, [Asked Aim::Value(0.5), Asked Aim::Ratio(0.25)],
        "greatest deviation from 50, 33 and 17 % of the core's cycles among tenants that open, read and close a cached file";
    Grid: "grid-processor-worst", "points", CpuWeights, [Asked Aim::Value(0.5), Asked Aim::Ratio(0.25)],
        "the same, of the run in which it was greatest";
    Grid: "grid-processor-rest", "%", CpuWeights, [],
        "the core's cycles that are not charged to one of the three: infrastructure, loop, interrupts, idle; Linux: kernel and idle";
    Grid: "grid-processor-equal", "points", CpuWeights, [], "greatest deviation with equal weights";
    Grid: "grid-processor-alone", "%", CpuWeights, [], "the core's cycles that a tenant without others gets";
    Grid: "grid-network-error", "points", TrafficClasses, [Asked Aim::Value(1.0), Asked Aim::Ratio(0.25)],
        "greatest deviation from 50, 33 and 17 % of the bytes that three web servers send on a full link";
    Grid: "grid-network-worst", "points", TrafficClasses, [Asked Aim::Value(1.0), Asked Aim::Ratio(0.25)],
        "the same, of the run in which it was greatest";
    Grid: "grid-network-link", "%", TrafficClasses, [Ours Aim::AtLeast(98.0)],
        "the link's rate that reaches the client as responses, without the heads of segments";
    Grid: "grid-network-equal", "points", TrafficClasses, [], "greatest deviation with equal weights";
    Grid: "grid-disk-error", "points", IoWeights, [Asked Aim::Value(1.0), Asked Aim::Ratio(0.25)],
        "greatest deviation from 50, 33 and 17 % of the bytes of a device, of 1,023 random reads at a time";
    Grid: "grid-disk-worst", "points", IoWeights, [Asked Aim::Value(1.0), Asked Aim::Ratio(0.25)],
        "the same, of the run in which it was greatest";
    Grid: "grid-disk-link", "%", IoWeights, [], "the device's rate that the three use";
    Grid: "grid-disk-equal", "points", IoWeights, [], "greatest deviation with equal weights";
    Grid: "grid-together-error", "points", CpuWeights, [Asked Aim::Value(1.0), Asked Aim::Ratio(0.25)],
        "greatest deviation from 50, 33 and 17 % of the core among kv, web and a batch job, all in overload";
    Grid: "grid-together-worst", "points", CpuWeights, [Asked Aim::Value(1.0), Asked Aim::Ratio(0.25)],
        "the same, of the run in which it was greatest";
    Grid: "grid-light-p50", "ms", CpuWeights, [],
        "kv under a light load, beside a web server in overload and a batch job: median latency";
    Grid: "grid-light-p99", "ms", CpuWeights, [Asked Aim::Ratio(0.5)], "the same, 99th percentile";
    Grid: "grid-light-alone-p99", "ms", CpuWeights, [], "99th percentile without the others";
    Grid: "grid-light-slowdown", "times", CpuWeights, [Asked Aim::Value(1.1)],
        "99th percentile beside the others, divided by that without";
    Grid: "grid-lost", "s", CpuWeights, [], "time by which the paced processors of these latencies fell behind";
    Grid: "grid-overhead-4m-1", "%", None, [Asked Aim::Value(1.0)],
        "busy instructions of `web` outside of messages, files of 4 MiB, wfq with batches of 1";
    Grid: "grid-overhead-4m-4", "%", None, [Asked Aim::Value(1.0)],
        "busy instructions of `web` outside of messages, files of 4 MiB, wfq with batches of 4";
    Grid: "grid-overhead-4m-8", "%", None, [Asked Aim::Value(1.0)],
        "busy instructions of `web` outside of messages, files of 4 MiB, wfq with batches of 8";
    Grid: "grid-overhead-4m-8-beside", "%", None, [Asked Aim::Value(1.0)],
        "the same with batches of 8, beside a batch job";
    Grid: "grid-overhead-32k-1", "%", None, [Asked Aim::Value(1.0)],
        "busy instructions of `web` outside of messages, files of 32 KiB, wfq with batches of 1";
    Grid: "grid-overhead-32k-4", "%", None, [Asked Aim::Value(1.0)],
        "busy instructions of `web` outside of messages, files of 32 KiB, wfq with batches of 4";
    Grid: "grid-overhead-32k-8", "%", None, [Asked Aim::Value(1.0)],
        "busy instructions of `web` outside of messages, files of 32 KiB, wfq with batches of 8";
    Grid: "grid-overhead-32k-8-beside", "%", None, [Asked Aim::Value(1.0)],
        "the same with batches of 8, beside a batch job";
    Grid: "grid-overhead-507-1", "%", None, [Asked Aim::Value(1.0)],
        "busy instructions of `web` outside of messages, files of 507 bytes, wfq with batches of 1";
    Grid: "grid-overhead-507-4", "%", None, [Asked Aim::Value(1.0)],
        "busy instructions of `web` outside of messages, files of 507 bytes, wfq with batches of 4";
    Grid: "grid-overhead-507-8", "%", None, [Asked Aim::Value(1.0)],
        "busy instructions of `web` outside of messages, files of 507 bytes, wfq with batches of 8";
    Grid: "grid-overhead-507-8-beside", "%", None, [Asked Aim::Value(1.0)],
        "the same with batches of 8, beside a batch job";
    Grid: "grid-kv-wfq", "instructions", Direct, [Asked Aim::Ratio(1.03)],
        "request to kv with wfq at every resource, beside the same without a policy";
    Grid: "grid-echo-wfq", "instructions", Direct, [Asked Aim::Ratio(1.03)],
        "round trip of echo with wfq at every resource, beside the same without a policy";
    Kv: "kv-instructions", "instructions", Memcached, [Asked Aim::Ratio(0.25), Asked Aim::Value(4_500.0)],
        "guest instructions per request of the ETC-like mix, at saturation";
    Kv: "kv-instructions-low", "instructions", Memcached, [Asked Aim::Ratio(0.25), Asked Aim::Value(6_000.0)],
        "guest instructions per request at low load";
    Kv: "kv-cpu", "us", Memcached, [], "host processor time (all of QEMU) per request, at saturation";
    Kv: "kv-cpu-low", "us", Memcached, [], "host processor time per request at low load";
    Kv: "kv-throughput", "requests/s", Memcached, [], "throughput at saturation (more is better)";
    Kv: "kv-depth-4-instructions", "instructions", Memcached, [],
        "guest instructions per request, 4 requests in flight per connection";
    Kv: "kv-depth-4-throughput", "requests/s", Memcached, [],
        "throughput, 4 requests in flight per connection (more is better)";
    Kv: "kv-depth-16-instructions", "instructions", Memcached, [],
        "guest instructions per request, 16 requests in flight per connection";
    Kv: "kv-depth-16-throughput", "requests/s", Memcached, [],
        "throughput, 16 requests in flight per connection (more is better)";
    Kv: "kv-p50", "us", Memcached, [], "median latency of both at half of Linux's saturation load";
    Kv: "kv-p99", "us", Memcached, [], "99th percentile at that load";
    Kv: "kv-memory", "MiB", Memcached, [], "guest memory touched by the end of all loads";
    Kv: "kv-within-99", "requests/s", Memcached, [Asked Aim::Times(4.0)],
        "highest load with 99 of 100 requests answered within 5 ms (more is better)";
    Kv: "kv-within", "requests/s", Memcached, [Ours Aim::Times(4.0)],
        "highest load with 9 of 10 requests answered within 5 ms (more is better)";
    Kv: "kv-2-instructions", "instructions", Memcached, [Asked Aim::Ratio(0.25)],
        "2 processors: guest instructions per request of the ETC-like mix, at saturation";
    Kv: "kv-2-cpu", "us", Memcached, [],
        "2 processors: host processor time (all of QEMU) per request, at saturation";
    Kv: "kv-2-throughput", "requests/s", Memcached, [Asked Aim::Times(4.0)],
        "2 processors: throughput at saturation (more is better)";
    Kv: "kv-2-depth-4-instructions", "instructions", Memcached, [],
        "2 processors: guest instructions per request, 4 requests in flight per connection";
    Kv: "kv-2-depth-4-throughput", "requests/s", Memcached, [],
        "2 processors: throughput, 4 requests in flight per connection (more is better)";
    Kv: "kv-2-depth-16-instructions", "instructions", Memcached, [],
        "2 processors: guest instructions per request, 16 requests in flight per connection";
    Kv: "kv-2-depth-16-throughput", "requests/s", Memcached, [],
        "2 processors: throughput, 16 requests in flight per connection (more is better)";
    Kv: "kv-2-p50", "us", Memcached, [],
        "2 processors: median latency of both at half of Linux's saturation load";
    Kv: "kv-2-p99", "us", Memcached, [], "2 processors: 99th percentile at that load";
    Kv: "kv-2-within-99", "requests/s", Memcached, [Asked Aim::Times(4.0)],
        "2 processors: highest load with 99 of 100 requests answered within 5 ms (more is better)";
    Kv: "kv-2-within", "requests/s", Memcached, [Ours Aim::Times(4.0)],
        "2 processors: highest load with 9 of 10 requests answered within 5 ms (more is better)";
    Kv: "kv-paced-throughput", "requests/s", Memcached, [],
        "1 processor of 20 million instructions a second: throughput at saturation (more is better)";
    Kv: "kv-2-paced-throughput", "requests/s", Memcached, [],
        "2 processors of that pace: throughput at saturation (more is better)";
    Kv: "kv-2-paced-gain", "times", Memcached, [Asked Aim::AtLeast(1.8)],
        "that throughput divided by the throughput on 1 processor of the same system (more is better)";
    Kv: "kv-paced-lost", "s", Memcached, [],
        "time that processors fell behind their pace because the host was busy: 0 for valid figures";
    Kv: "echo-instructions", "instructions", Echo,
        [Asked Aim::Value(3_000.0), Asked Aim::Value(3_500.0), Ours Aim::Ratio(0.25)],
        "guest instructions per round trip of 64 bytes over TCP";
    Kv: "echo-cpu", "us", Echo, [], "host processor time per round trip";
    Kv: "echo-round-trip", "us", Echo, [], "median time of a round trip";
    Web: "web-instructions", "instructions", Nginx, [Asked Aim::Ratio(0.167)],
        "guest instructions per request for a page of 507 bytes, 16 persistent connections at saturation";
    Web: "web-cpu", "us", Nginx, [], "host processor time (all of QEMU) per request at saturation";
    Web: "web-throughput", "requests/s", Nginx, [Asked Aim::Times(6.0)],
        "throughput at saturation (more is better)";
    Web: "web-alone-instructions", "instructions", Nginx, [Asked Aim::Ratio(0.167)],
        "guest instructions per request on one connection, one request at a time";
    Web: "web-alone-round-trip", "us", Nginx, [], "median time of a request on one connection";
    Web: "web-connect-instructions", "instructions", Nginx, [Asked Aim::Ratio(0.167)],
        "guest instructions per request with a connection of its own";
    Web: "web-connect-round-trip", "us", Nginx, [], "median time of a request with a connection of its own";
    Product: "product-kv-instructions", "instructions", Image, [],
        "kv in a one-core cell, against the image alone: guest instructions of all processors per request, at saturation";
    Product: "product-kv-throughput", "requests/s", Image, [],
        "kv: throughput at saturation (more is better)";
    Product: "product-echo-instructions", "instructions", Image, [],
        "echo: guest instructions per round trip of 64 bytes";
    Product: "product-echo-round-trip", "us", Image, [], "echo: median time of a round trip";
    Product: "product-web-instructions", "instructions", Image, [],
        "web: guest instructions per page on 16 connections";
    Product: "product-web-throughput", "requests/s", Image, [], "web: throughput (more is better)";
    Product: "product-receive-instructions", "instructions", Image, [],
        "netpipe: guest instructions per MiB received";
    Product: "product-receive", "MB/s", Image, [], "netpipe: rate of receiving (more is better)";
    Product: "product-send-instructions", "instructions", Image, [],
        "netpipe: guest instructions per MiB sent";
    Product: "product-send", "MB/s", Image, [], "netpipe: rate of sending (more is better)";
    Bulk: "bulk-receive-instructions", "instructions", Messages, [Asked Aim::Ratio(0.333)],
        "guest instructions per MiB received on one connection";
    Bulk: "bulk-receive-cpu", "us", Messages, [], "host processor time (all of QEMU) per MiB received";
    Bulk: "bulk-receive", "MB/s", Messages, [], "rate of receiving (more is better)";
    Bulk: "bulk-send-instructions", "instructions", Messages, [Asked Aim::Ratio(0.333)],
        "guest instructions per MiB sent on one connection";
    Bulk: "bulk-send-cpu", "us", Messages, [], "host processor time per MiB sent";
    Bulk: "bulk-send", "MB/s", Messages, [], "rate of sending (more is better)";
    Bulk: "bulk-sendfile-instructions", "instructions", Sendfile, [],
        "guest instructions per MiB sent; Linux: sendfile of a file in memory, without a copy";
    Bulk: "bulk-sendfile-cpu", "us", Sendfile, [], "host processor time per MiB sent; Linux: sendfile";
    Bulk: "bulk-sendfile", "MB/s", Sendfile, [], "rate of sending; Linux: sendfile (more is better)";
    Netpipe: "netpipe-1-time", "us", Messages, [],
        "one-way time of a message of 1 byte: half of its round trip";
    Netpipe: "netpipe-1-instructions", "instructions", Messages, [],
        "guest instructions per round trip of 1 byte";
    Netpipe: "netpipe-1-cpu", "us", Messages, [], "host processor time per round trip of 1 byte";
    Netpipe: "netpipe-64k-time", "us", Messages, [],
        "one-way time of a message of 64 KiB: half of its round trip";
    Netpipe: "netpipe-64k-instructions", "instructions", Messages, [],
        "guest instructions per round trip of 64 KiB";
    Netpipe: "netpipe-64k-cpu", "us", Messages, [], "host processor time per round trip of 64 KiB";
    Netpipe: "netpipe-4m-time", "us", Messages, [],
        "one-way time of a message of 4 MiB: half of its round trip";
    Netpipe: "netpipe-4m-instructions", "instructions", Messages, [],
        "guest instructions per round trip of 4 MiB";
    Netpipe: "netpipe-4m-cpu", "us", Messages, [], "host processor time per round trip of 4 MiB";
    Netpipe: "netpipe-most", "MB/s", Messages, [],
        "throughput in one direction at the best size (more is better)";
    Connections: "connection-instructions", "instructions", Epoll, [Asked Aim::Value(15_000.0)],
        "guest instructions per connection: opened, one byte each way, closed";
    Connections: "connection-cpu", "us", Epoll, [], "host processor time per connection";
    Connections: "connection-time", "us", Epoll, [], "median time per connection, one after the other";
    Connections: "connection-rate", "connections/s", Epoll, [],
        "rate of connections, 8 at once (more is better)";
    Connections: "connection-rate-instructions", "instructions", Epoll, [],
        "guest instructions per connection, 8 at once";
    Connections: "connection-rate-cpu", "us", Epoll, [], "host processor time per connection, 8 at once";
    Memory: "memory-box-glibc", "ns", Glibc, [],
        "allocation and release of 8 bytes, link-time optimised, one thread";
    Memory: "memory-box-jemalloc", "ns", Jemalloc, [Asked Aim::Ratio(0.667)], "against jemalloc";
    Memory: "memory-box-mimalloc", "ns", Mimalloc, [Asked Aim::Ratio(1.0)], "against mimalloc";
    Memory: "memory-box-24-glibc", "ns", Glibc, [],
        "allocation and release of 8 bytes on each of 24 threads, their processor time: per-core state, not parallel speed";
    Memory: "memory-box-24-jemalloc", "ns", Jemalloc, [Asked Aim::Ratio(0.667)], "against jemalloc";
    Memory: "memory-box-24-mimalloc", "ns", Mimalloc, [Asked Aim::Ratio(1.0)], "against mimalloc";
    Memory: "memory-pair-glibc", "ns", Glibc, [],
        "allocation and release of 8 bytes, size unknown to the compiler, one thread";
    Memory: "memory-pair-jemalloc", "ns", Jemalloc, [Asked Aim::Ratio(0.667)], "against jemalloc";
    Memory: "memory-pair-mimalloc", "ns", Mimalloc, [Asked Aim::Ratio(1.0)], "against mimalloc";
    Memory: "memory-churn-glibc", "ns", Glibc, [],
        "release of the oldest of 4,096 objects and allocation of another, 16 to 1,039 bytes";
    Memory: "memory-churn-jemalloc", "ns", Jemalloc, [], "against jemalloc";
    Memory: "memory-churn-mimalloc", "ns", Mimalloc, [], "against mimalloc";
    Memory: "memory-remote-glibc", "ns", Glibc, [],
        "64 bytes, allocated on one of two threads and released on the other, in batches of 64";
    Memory: "memory-remote-jemalloc", "ns", Jemalloc, [], "against jemalloc";
    Memory: "memory-remote-mimalloc", "ns", Mimalloc, [], "against mimalloc";
    Memory: "memory-instructions-glibc", "instructions", Glibc, [],
        "instructions of allocation and release of 8 bytes, loop included";
    Memory: "memory-instructions-jemalloc", "instructions", Jemalloc, [], "against jemalloc";
    Memory: "memory-instructions-mimalloc", "instructions", Mimalloc, [], "against mimalloc";
    Linux: "linux-call", "instructions", Program, [Asked Aim::Value(120.0)], "system call without work (getppid)";
    Linux: "linux-call-served", "instructions", Program, [Ours Aim::Value(120.0)],
        "the same (getpgrp), not answered by the entry code";
    Linux: "linux-fault", "instructions", Program, [Asked Aim::Value(1200.0)],
        "page of anonymous memory touched for the first time";
    Linux: "linux-futex", "instructions", Program, [Asked Aim::Value(2500.0)],
        "two threads on one core wake each other by futexes, there and back";
    Linux: "linux-pipe", "instructions", Program, [Asked Aim::Value(4000.0)],
        "a byte through a pipe to another process, and one back";
    Linux: "linux-fork", "instructions", Program, [Asked Aim::Value(70_000.0)],
        "fork of a small process, its end, and the parent's wait";
    Linux: "linux-exec", "instructions", Program, [Asked Aim::Value(200_000.0)],
        "the same, and the child executes a static program";
    Linux: "linux-thread", "instructions", Program, [Asked Aim::Value(8000.0)],
        "creation and join of a thread";
    Link: "link-message", "instructions", None, [Asked Aim::Value(200.0)],
        "message of 56 bytes to a cell that polls: writing and reading, of 63 in a row";
    Link: "link-wake", "instructions", None, [Asked Aim::Value(2000.0)],
        "message of 56 bytes to a halted core of another cell, until its task has it";
    Link: "link-pipe", "instructions", Pipe, [Asked Aim::Value(1500.0)],
        "64 bytes to a task of another cell, halted meanwhile, and back to one that polls; Linux: by pipes to a process, on one core";
    Link: "link-socket", "instructions", UnixSocket, [Asked Aim::Value(1500.0)],
        "the same; Linux: by a pair of unix sockets";
    Link: "link-polled", "instructions", None, [Ours Aim::Value(1500.0)],
        "64 bytes to a task of another cell and back without pauses: both poll";
    Link: "link-call", "instructions", None, [],
        "call of the messenger with 64 bytes to another cell, and its answer, over a channel: both sides";
    Link: "link-broadcast-8", "instructions", None, [],
        "message of 56 bytes to eight cells, and the answers of all";
    LinuxServers: "servers-memcached", "instructions", Memcached, [Asked Aim::Value(10_000.0)],
        "memcached: a request of the ETC-like mix at saturation";
    LinuxServers: "servers-memcached-low", "instructions", Memcached, [Asked Aim::Value(15_000.0)],
        "memcached: a request of the mix at low load";
    LinuxServers: "servers-redis", "instructions", Program, [Asked Aim::Value(10_000.0)],
        "redis: GET, one request at a time on each connection";
    LinuxServers: "servers-redis-16", "instructions", Program, [Asked Aim::Value(3000.0)],
        "redis: GET, 16 requests at a time on each connection";
    LinuxServers: "servers-nginx", "instructions", Nginx, [Asked Aim::Value(15_000.0)],
        "nginx: request for a page of 507 bytes on a connection that stays open";
    LinuxServers: "servers-start", "ms", Program, [Asked Aim::Ratio(0.05)],
        "redis's first answer: after the request for the cell, image stored; Linux: after QEMU's start";
    LinuxServers: "servers-start-instructions", "million", Program, [],
        "guest instructions of that";
    LinuxServers: "servers-memory", "MiB", Program, [Asked Aim::Value(4.0)],
        "memory in use while redis is idle, without redis's own";
    LinuxServers: "servers-memory-needed", "MiB", Program, [],
        "the same without copies of the volume's contents, which are freed when memory is short";
    LinuxServers: "servers-idle-interrupts", "per s", Nginx, [Asked Aim::Value(0.0)],
        "while nginx waits: all interrupts of the cell; Linux: those of its timer";
    Pager: "page-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "4 KiB page filled on demand: never used memory, known to be zero";
    Pager: "page-time", "ns", Touch, [], "time per 4 KiB page";
    Pager: "page-again-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "4 KiB page filled on demand: used memory, cleared by the fault";
    Pager: "page-again-time", "ns", Touch, [], "time per 4 KiB page";
    Pager: "page-cleared-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "4 KiB page filled on demand: used memory, cleared while the cell was idle";
    Pager: "page-cleared-time", "ns", Touch, [], "time per 4 KiB page";
    Pager: "page-around-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "16 pages of 4 KiB filled by each fault: never used memory, known to be zero";
    Pager: "page-around-time", "ns", Touch, [], "time per 4 KiB page";
    Pager: "page-around-again-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "16 pages of 4 KiB filled by each fault: used memory, cleared by the fault";
    Pager: "page-around-again-time", "ns", Touch, [], "time per 4 KiB page";
    Pager: "page-around-cleared-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "16 pages of 4 KiB filled by each fault: used memory, cleared while the cell was idle";
    Pager: "page-around-cleared-time", "ns", Touch, [], "time per 4 KiB page";
    Pager: "page-prefault-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "all pages filled in advance, filling included, per 4 KiB page: never used memory, known to be zero";
    Pager: "page-prefault-time", "ns", Touch, [], "time per 4 KiB page";
    Pager: "page-prefault-again-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "all pages filled in advance, filling included, per 4 KiB page: used memory, cleared by the filling";
    Pager: "page-prefault-again-time", "ns", Touch, [], "time per 4 KiB page";
    Pager: "page-prefault-cleared-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "all pages filled in advance, filling included, per 4 KiB page: used memory, cleared while the cell was idle";
    Pager: "page-prefault-cleared-time", "ns", Touch, [], "time per 4 KiB page";
    Pager: "page-2m-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "2 MiB pages, per 4 KiB; Linux: transparent huge pages: never used memory, known to be zero";
    Pager: "page-2m-time", "ns", Touch, [], "time per 4 KiB page";
    Pager: "page-2m-again-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "2 MiB pages, per 4 KiB; Linux: transparent huge pages: used memory, cleared by the fault";
    Pager: "page-2m-again-time", "ns", Touch, [], "time per 4 KiB page";
    Pager: "page-2m-cleared-instructions", "instructions", Touch, [Asked Aim::Ratio(0.2)],
        "2 MiB pages, per 4 KiB; Linux: transparent huge pages: used memory, cleared while the cell was idle";
    Pager: "page-2m-cleared-time", "ns", Touch, [], "time per 4 KiB page";
    Loop: "loop-stream", "instructions", Messages, [Asked Aim::Ratio(0.25)],
        "a byte of a stream between two cells over a link, both sides; Linux: loopback";
    Loop: "loop-round", "instructions", Messages, [Asked Aim::Ratio(0.33)],
        "round trip of 64 bytes between two cells over a link, both sides; Linux: loopback";
    Loop: "loop-call", "instructions", None, [],
        "call of the messenger with 64 bytes to another cell, and its answer, by TCP over a link: both sides";
    Loop: "loop-stream-rate", "MB/s", Messages, [Asked Aim::Times(4.0)],
        "rate of a stream between two cells over a link; Linux: loopback (more is better)";
    Loop: "loop-on-stream", "MB/s", Devices, [],
        "rate of a stream between two cells over a link, against their devices (more is better)";
    Loop: "loop-on-round", "us", Devices, [],
        "round trip of 64 bytes between two cells over a link, against their devices";
    Loop: "loop-on-kv", "requests/s", Devices, [Asked Aim::Times(2.0)],
        "requests of a cell to a key-value cell over a link, against their devices (more is better)";
    Loop: "loop-on-kv-p99", "us", Devices, [Asked Aim::Ratio(0.5)],
        "99th percentile of their latency";
    Service: "service-read", "instructions", OwnDisk, [Asked Aim::Ratio(1.5)],
        "read of 4 KiB past the cache through a service cell, 16 at a time, both cells";
    Service: "service-reads", "per s", OwnDisk, [Asked Aim::Times(0.667)],
        "rate of these reads (more is better)";
    Service: "service-shares", "%", None, [Asked Aim::Value(1.0)],
        "three cells that read from volumes of one service cell, entitled to 50, 33 and 17 % of a limited disk, the third with \
         four times the requests: greatest deviation of a share, percentage points";
    Service: "service-network-shares", "%", None, [Asked Aim::Value(1.0)],
        "three cells that send through the network device of one service cell, entitled to 50, 33 and 17 % of a limited rate, the \
         third with four times the connections: greatest deviation of a share, percentage points";
    Service: "service-network-p99", "ms", None, [],
        "request to a key-value server in the first of them under a light load, while the third sends all that it may: 99th \
         percentile";
    Service: "service-network-slowdown", "times", None, [Asked Aim::Value(1.1)],
        "99th percentile beside the third, divided by that without";
    Library: "ebb-inlined", "cycles", Inlined, [Asked Aim::Ratio(1.1)],
        "call of an Ebb's method through its reference, in a process, in cycles of the cycle counter";
    Library: "ebb-afresh", "cycles", Inlined, [],
        "call with a lookup of the Ebb each time, as in an event with one call";
    Library: "ebb-not-inlined", "cycles", NotInlined, [], "call of an Ebb's method, against a function call";
    Library: "ebb-virtual", "cycles", Virtual, [], "call of an Ebb's method, against a virtual call";
    Library: "ebb-dynamic", "cycles", Inlined, [], "call of an Ebb that was created at run time";
    Library: "ebb-instructions", "instructions", Inlined, [],
        "call of an Ebb's method on a machine, loop included; a process executes the same instructions";
    Library: "ebb-afresh-instructions", "instructions", Inlined, [],
        "call with a lookup each time, on a machine";
    Library: "spawn", "ns", None, [Asked Aim::Value(60.0)],
        "from an event's creation to its run on the same core, in a process";
    Library: "spawn-instructions", "instructions", None, [],
        "event on a machine: allocated, queued, taken, charged, run, freed, with a pass of the loop";
    Library: "task", "ns", None, [], "task spawned, run and awaited, in a process";
    Library: "task-instructions", "instructions", None, [], "task spawned, run and awaited, on a machine";
    Library: "start-task", "ns", None, [],
        "task that is ready at its first poll and runs at once, without the queue";
    Library: "start-task-instructions", "instructions", None, [],
        "task that is ready at its first poll, on a machine";
    Library: "yield-instructions", "instructions", None, [], "yield of a task: a pass of the loop";
    Library: "other-core", "ns", None, [],
        "from an event's creation for another, awake core to its visible answer, in a process";
    Library: "interrupt", "ns", None, [], "from raising an interrupt to its handler, in a process";
    Library: "interrupt-instructions", "instructions", None, [],
        "interrupt on a machine: local APIC write, rest of the pass, entry, handler lookup";
    Library: "alarm-instructions", "instructions", None, [],
        "from an alarm's time to its handler, on a machine with a halted core";
    Stack: "stack-segment-smoltcp", "ns", Smoltcp, [Asked Aim::Ratio(1.0)],
        "1,448 bytes of a bulk transfer between two hosts in one thread: headers, sending, reading, acknowledgement";
    Stack: "stack-echo-smoltcp", "ns", Smoltcp, [Asked Aim::Ratio(1.0)],
        "64 bytes there and back: two segments";
    Stack: "stack-connect-smoltcp", "ns", Smoltcp, [Asked Aim::Ratio(1.0)],
        "connection opened and closed: six or seven segments";
    Stack: "stack-segment-instructions", "instructions", Smoltcp, [Asked Aim::Ratio(1.0)],
        "instructions of 1,448 bytes of a bulk transfer";
    Stack: "stack-echo-instructions", "instructions", Smoltcp, [Asked Aim::Ratio(1.0)],
        "instructions of 64 bytes there and back";
    Stack: "stack-connect-instructions", "instructions", Smoltcp, [Asked Aim::Ratio(1.0)],
        "instructions of a connection opened and closed";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_and_the_one_that_its_goal_depends_on_are_in_one_group() {
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
    fn names_are_unique() {
        let mut names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
    }
}
