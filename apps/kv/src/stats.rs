//! The statistics of `stats`, under the names that memcached's clients and tools expect.

use crate::response::ListedItem;
use crate::server::Server;
use crate::shard::{Report, fits_in_line};

/// The lists of statistics that a client can request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatsKind {
    General,
    Settings,
    Items,
    Slabs,
    Sizes,
}

impl StatsKind {
    /// Returns the list of that name. An empty name is the general list.
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

/// The function that takes each name and value.
type Sink<'a> = &'a mut dyn FnMut(&[u8], &[u8]);

/// Calls `sink` with the name and the value of each statistic.
pub(crate) fn for_each(kind: StatsKind, report: &Report, server: &Server, sink: Sink<'_>) {
    match kind {
        StatsKind::General => general(report, server, sink),
        StatsKind::Settings => settings(report, server, sink),
        StatsKind::Items => items(report, sink),
        StatsKind::Slabs => slabs(report, server, sink),
        StatsKind::Sizes => sink(b"sizes_status", b"disabled"),
    }
}

fn number(sink: Sink<'_>, name: &str, value: u64) {
    sink(name.as_bytes(), itoa::Buffer::new().format(value).as_bytes());
}

/// The counts of memcached's mechanisms that this server does not have, which are always 0: read buffers and response
/// objects apart from their connection, a limit of requests per event, slab reassignment, a log for watchers, a
/// crawler.
const ABSENT: [&str; 36] = [
    "response_obj_oom",
    "response_obj_count",
    "response_obj_bytes",
    "read_buf_count",
    "read_buf_bytes",
    "read_buf_bytes_free",
    "read_buf_oom",
    "reserved_fds",
    "auth_cmds",
    "auth_errors",
    "listen_disabled_num",
    "time_in_listen_disabled_us",
    "conn_yields",
    "hash_is_expanding",
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_running",
    "slabs_moved",
    "malloc_fails",
    "log_worker_dropped",
    "log_worker_written",
    "log_watcher_skipped",
    "log_watcher_sent",
    "log_watchers",
    "unexpected_napi_ids",
    "round_robin_fallback",
    "slab_global_page_pool",
    "crawler_reclaimed",
    "crawler_items_checked",
    "lrutail_reflocked",
    // A cell does not measure these times; `isola ps` shows a cell's use of its cores.
    "rusage_user",
    "rusage_system",
];

fn general(report: &Report, server: &Server, sink: Sink<'_>) {
    number(sink, "pid", server.pid.into());
    number(sink, "uptime", report.time.saturating_sub(server.started.0).into());
    number(sink, "time", report.time.into());
    sink(b"version", Server::VERSION.as_bytes());
    sink(b"libevent", b"none");
    number(sink, "pointer_size", usize::BITS.into());
    number(sink, "max_connections", server.max_connections.into());
    number(sink, "curr_connections", report.curr_connections);
    number(sink, "connection_structures", report.curr_connections);
    for (name, value) in report.counters.named() {
        // memcached also has this one only in the list of items.
        if name != "evicted_nonzero" {
            number(sink, name, value);
        }
    }
    number(sink, "limit_maxbytes", report.limit_maxbytes);
    number(sink, "accepting_conns", 1);
    number(sink, "threads", report.cores.max(1));
    number(sink, "hash_power_level", report.hash_buckets.max(1).ilog2().into());
    number(sink, "hash_bytes", report.hash_bytes);
    number(sink, "bytes", report.bytes);
    number(sink, "curr_items", report.curr_items);
    ABSENT.iter().for_each(|name| number(sink, name, 0));
}

fn settings(report: &Report, server: &Server, sink: Sink<'_>) {
    number(sink, "maxbytes", server.config.memory_limit_bytes() as u64);
    number(sink, "maxconns", server.max_connections.into());
    number(sink, "tcpport", server.port.into());
    number(sink, "udpport", 0);
    sink(b"inter", b"NULL");
    number(sink, "verbosity", 0);
    sink(b"evictions", b"on");
    sink(b"domain_socket", b"NULL");
    sink(b"shutdown_command", b"no");
    number(sink, "num_threads", report.cores.max(1));
    sink(b"stat_key_prefix", b":");
    sink(b"cas_enabled", b"yes");
    sink(b"binding_protocol", b"auto-negotiate");
    sink(b"auth_enabled_sasl", b"no");
    sink(b"auth_enabled_ascii", b"no");
    number(sink, "item_size_max", server.config.max_value_len() as u64);
    sink(b"slab_reassign", b"no");
    number(sink, "slab_automove", 0);
    sink(b"lru_crawler", b"no");
    sink(b"flush_enabled", b"yes");
    sink(b"dump_enabled", b"no");
    sink(b"hash_algorithm", b"foldhash");
    sink(b"lru_maintainer_thread", b"no");
    sink(b"lru_segmented", b"no");
    number(sink, "idle_timeout", 0);
    sink(b"track_sizes", b"no");
    sink(b"ssl_enabled", b"no");
}

/// Reports all items as one class: memory is not divided by size.
fn items(report: &Report, sink: Sink<'_>) {
    if report.curr_items == 0 {
        return;
    }
    let counters = &report.counters;
    number(sink, "items:1:number", report.curr_items);
    number(sink, "items:1:age", report.oldest_age_s);
    number(sink, "items:1:mem_requested", report.bytes);
    number(sink, "items:1:evicted", counters.evictions);
    number(sink, "items:1:evicted_nonzero", counters.evicted_nonzero);
    number(sink, "items:1:outofmemory", counters.store_no_memory);
    number(sink, "items:1:reclaimed", counters.reclaimed);
    number(sink, "items:1:expired_unfetched", counters.expired_unfetched);
    number(sink, "items:1:evicted_unfetched", counters.evicted_unfetched);
}

/// Reports one class of items. There are no slabs of fixed chunks: each item has a chunk of its own size, up to that of
/// the largest value.
fn slabs(report: &Report, server: &Server, sink: Sink<'_>) {
    let counters = &report.counters;
    if report.curr_items > 0 {
        number(sink, "1:chunk_size", server.config.max_value_len() as u64);
        number(sink, "1:total_chunks", report.curr_items);
        number(sink, "1:used_chunks", report.curr_items);
        number(sink, "1:free_chunks", 0);
        number(sink, "1:mem_requested", report.bytes);
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

/// Calls `sink` with the pieces of the line of an item in a list. Skips a key that would break the line, which the
/// binary protocol admits.
pub(crate) fn listed(item: &ListedItem, sink: &mut dyn FnMut(&[u8])) {
    let key = item.body.key();
    if !fits_in_line(key) {
        return;
    }
    let (mut len, mut end) = (itoa::Buffer::new(), itoa::Buffer::new());
    let (len, end) = (len.format(item.body.value_len()), end.format(item.deadline.unix_s()));
    [b"ITEM ", key, b" [", len.as_bytes(), b" b; ", end.as_bytes(), b" s]\r\n"].into_iter().for_each(sink);
}
