//! What `stats` tells, under the names that memcached's clients and tools look for.

use crate::server::Server;
use crate::shard::Report;

/// Which list of statistics a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatsKind {
    General,
    Settings,
    Items,
    Slabs,
    Sizes,
}

impl StatsKind {
    /// The list of that name, the general one for none.
    pub fn of(name: &[u8]) -> Option<Self> {
        match name {
            b"" => Some(Self::General),
            b"settings" => Some(Self::Settings),
            b"items" => Some(Self::Items),
            b"slabs" => Some(Self::Slabs),
            b"sizes" => Some(Self::Sizes),
            _ => None,
        }
    }
}

/// Where the pairs of name and value go.
type Sink<'a> = &'a mut dyn FnMut(&[u8], &[u8]);

/// Gives `sink` the name and the value of each statistic.
pub(crate) fn for_each(kind: StatsKind, report: &Report, server: &Server, sink: Sink<'_>) {
    match kind {
        StatsKind::General => general(report, server, sink),
        StatsKind::Settings => settings(report, server, sink),
        StatsKind::Items => items(report, sink),
        StatsKind::Slabs => slabs(report, sink),
        StatsKind::Sizes => sink(b"sizes_status", b"disabled"),
    }
}

fn number(sink: Sink<'_>, name: &str, value: u64) {
    sink(name.as_bytes(), itoa::Buffer::new().format(value).as_bytes());
}

fn general(report: &Report, server: &Server, sink: Sink<'_>) {
    number(sink, "pid", server.pid.into());
    number(sink, "uptime", report.time.saturating_sub(server.started.0).into());
    number(sink, "time", report.time.into());
    sink(b"version", Server::VERSION.as_bytes());
    number(sink, "pointer_size", usize::BITS.into());
    number(sink, "max_connections", server.max_connections.into());
    number(sink, "curr_connections", report.curr_connections);
    for (name, value) in report.counters.named() {
        number(sink, name, value);
    }
    number(sink, "limit_maxbytes", report.limit_maxbytes);
    number(sink, "threads", report.cores.max(1));
    number(sink, "hash_power_level", report.hash_buckets.max(1).ilog2().into());
    number(sink, "hash_bytes", report.hash_bytes);
    number(sink, "bytes", report.bytes);
    number(sink, "curr_items", report.curr_items);
}

fn settings(report: &Report, server: &Server, sink: Sink<'_>) {
    number(sink, "maxbytes", server.config.memory_limit_bytes() as u64);
    number(sink, "maxconns", server.max_connections.into());
    number(sink, "tcpport", server.port.into());
    number(sink, "udpport", 0);
    number(sink, "verbosity", 0);
    sink(b"evictions", b"on");
    number(sink, "num_threads", report.cores.max(1));
    sink(b"cas_enabled", b"yes");
    sink(b"binding_protocol", b"auto-negotiate");
    sink(b"auth_enabled_sasl", b"no");
    sink(b"auth_enabled_ascii", b"no");
    number(sink, "item_size_max", server.config.max_value_len() as u64);
    sink(b"flush_enabled", b"yes");
    sink(b"dump_enabled", b"no");
    sink(b"hash_algorithm", b"foldhash");
    sink(b"lru_segmented", b"no");
}

/// All items are of one class: memory is not divided by size.
fn items(report: &Report, sink: Sink<'_>) {
    if report.curr_items == 0 {
        return;
    }
    let counters = &report.counters;
    number(sink, "items:1:number", report.curr_items);
    number(sink, "items:1:age", report.oldest_age_s);
    number(sink, "items:1:mem_requested", report.bytes);
    number(sink, "items:1:evicted", counters.evictions);
    number(sink, "items:1:outofmemory", counters.store_no_memory);
    number(sink, "items:1:reclaimed", counters.reclaimed);
    number(sink, "items:1:expired_unfetched", counters.expired_unfetched);
    number(sink, "items:1:evicted_unfetched", counters.evicted_unfetched);
}

/// There are no slabs of fixed chunks: one class stands for all the memory, in chunks of one byte.
fn slabs(report: &Report, sink: Sink<'_>) {
    let counters = &report.counters;
    if report.curr_items > 0 {
        number(sink, "1:chunk_size", 1);
        number(sink, "1:total_chunks", report.limit_maxbytes);
        number(sink, "1:used_chunks", report.bytes);
        number(sink, "1:free_chunks", report.limit_maxbytes.saturating_sub(report.bytes));
        number(sink, "1:get_hits", counters.get_hits);
        number(sink, "1:cmd_set", counters.cmd_set);
        number(sink, "1:delete_hits", counters.delete_hits);
        number(sink, "1:incr_hits", counters.incr_hits);
        number(sink, "1:decr_hits", counters.decr_hits);
        number(sink, "1:cas_hits", counters.cas_hits);
        number(sink, "1:cas_badval", counters.cas_badval);
        number(sink, "1:touch_hits", counters.touch_hits);
    }
    number(sink, "active_slabs", u64::from(report.curr_items > 0));
    number(sink, "total_malloced", report.bytes);
}
