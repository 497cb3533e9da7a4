//! The JSON form of cells.

use super::{CrashView, LatencyView};
use crate::machine::network::address;
use crate::output::human::{rfc3339, since};
use crate::publish::Publication;
use isola_abi::management::{ActivityUsage, CellInfo, LoanInfo, NetworkSpec};
use isola_abi::report::{CorePhase, MemoryPressure};
use isola_abi::size::ByteSize;
use serde::Serialize;

/// A cell: of `ps` (an array of them), `inspect`, `run -d`, `start`, `stop`.
#[derive(Clone, Debug, Serialize)]
pub struct CellView {
    /// The machine it runs on.
    pub machine: String,
    /// Its name.
    pub name: String,
    /// Its id, which no later cell of the machine has.
    pub id: u32,
    /// `created`, `running`, `stopping`, `exited`, `crashed` or `killed`.
    pub state: String,
    /// What the application returned.
    pub exit_code: Option<i32>,
    /// Name of its image.
    pub image: String,
    /// The image's SHA-256, as the supervisor measured it when it came.
    pub image_sha256: String,
    /// Whether it must have this digest.
    pub image_is_pinned: bool,
    /// The public key that it must be, and is, signed by.
    pub image_signed_by: Option<String>,
    /// The application's arguments.
    pub arguments: Vec<String>,
    /// What its cores did; once it has ended, up to then.
    pub cores: Vec<CoreView>,
    /// How many of these it has: none once it has ended.
    pub held_cores: u32,
    /// Which cores it gets: `compact`, `spread` or `siblings`...
    pub placement: String,
    /// ...only of that NUMA node...
    pub node: Option<u32>,
    /// ...and only these; any, where there are none.
    pub core_ids: Vec<u32>,
    /// The memory that it was given.
    pub memory_bytes: u64,
    /// How much memory it has: none once it has ended.
    pub held_bytes: u64,
    /// The most memory that it may have.
    pub memory_max_bytes: u64,
    /// What its image takes of it.
    pub image_bytes: u64,
    /// What of its image all cells share that are made from it, beside the cell's own memory.
    pub text_bytes: u64,
    /// What its page allocator has.
    pub pool_bytes: u64,
    /// What of that is in use.
    pub used_bytes: u64,
    /// The most that ever was.
    pub peak_bytes: u64,
    /// How short it is: `none`, `low` or `critical`.
    pub pressure: &'static str,
    /// `static`, `dhcp` or `none`.
    pub network: &'static str,
    /// Its address.
    pub address: Option<String>,
    /// Ports of the host that lead to it.
    pub ports: Vec<PortView>,
    /// Its traffic.
    pub traffic: TrafficView,
    /// How long its requests took.
    pub service: LatencyView,
    /// The cores that it has borrowed.
    pub loans: Vec<LoanView>,
    /// Its priority.
    pub priority: u8,
    /// How many of its cores it lends at most.
    pub lends: u32,
    /// Who used its cores.
    pub activities: Vec<ActivityView>,
    /// What activities used that have ended, all together.
    pub ended_activities: ActivityView,
    /// Whether and how often it is started again when it has ended.
    pub restart: RestartView,
    /// When it counts as hung; 0: never.
    pub watchdog_ms: u32,
    /// When it was created.
    pub created: String,
    /// When it was started last.
    pub started: Option<String>,
    /// For how long it has been running.
    pub uptime_ms: Option<u64>,
    /// How long the supervisor took to create it.
    pub create_ns: Option<u64>,
    /// How long to start it.
    pub start_ns: Option<u64>,
    /// How long it took from there until it said that it runs.
    pub first_sign_ns: Option<u64>,
    /// How long it took to take back what it had.
    pub reclaim_ns: Option<u64>,
    /// What went wrong.
    pub crash: Option<CrashView>,
}

/// How a cell is started again by itself.
#[derive(Clone, Debug, Serialize)]
pub struct RestartView {
    /// `no`, `on-failure`, `on-failure:5` or `always`.
    pub policy: String,
    /// How often it was since somebody asked for its start.
    pub count: u32,
    /// How many of its ends stand in a row, none having come after it ran for a while.
    pub ends_in_row: u32,
    /// When the next try is due.
    pub next: Option<String>,
}

/// A core of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct CoreView {
    /// Its number on the machine.
    pub id: u32,
    /// `asleep`, `halted` or `running`.
    pub phase: &'static str,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Cycles halted.
    pub idle_cycles: u64,
    /// Cycles of the event loop itself.
    pub loop_cycles: u64,
    /// Cycles of interrupt handlers.
    pub interrupt_cycles: u64,
    /// Cycles of events.
    pub event_cycles: u64,
    /// Events that ran for longer than the core's limit.
    pub long_events: u64,
    /// Cycles of the event that ran for longest.
    pub longest_event_cycles: u64,
    /// How long events waited until they ran.
    pub queueing: LatencyView,
}

/// A core that a cell has borrowed.
#[derive(Clone, Debug, Serialize)]
pub struct LoanView {
    /// Which.
    pub core: u32,
    /// The lender; `null` where nobody had it.
    pub from: Option<String>,
    /// For how much longer.
    pub left_ns: u64,
}

impl LoanView {
    /// The JSON form of a loan.
    pub fn new(loan: &LoanInfo) -> Self {
        Self { core: loan.core.0, from: loan.from.clone(), left_ns: loan.left_ns }
    }
}

/// A published port.
#[derive(Clone, Debug, Serialize)]
pub struct PortView {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Address and port of the host.
    pub host: String,
    /// Address and port of the cell.
    pub cell: String,
}

/// Traffic of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct TrafficView {
    /// Frames received.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames sent.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames dropped.
    pub dropped_frames: u64,
}

/// What an activity of a cell used.
#[derive(Clone, Debug, Serialize)]
pub struct ActivityView {
    /// Its name.
    pub name: String,
    /// Cycles of its events.
    pub cycles: u64,
    /// Its events.
    pub events: u64,
    /// Bytes of memory that it took, less those that it gave back.
    pub memory_bytes: i64,
}

impl ActivityView {
    fn new(used: &ActivityUsage) -> Self {
        Self {
            name: used.name.clone(),
            cycles: used.cycles,
            events: used.events,
            memory_bytes: used.memory_bytes,
        }
    }
}

impl CellView {
    /// The JSON form of a cell.
    pub fn new(machine: &str, cell: &CellInfo, ports: &[Publication], crash: Option<CrashView>) -> Self {
        let running = cell.started_unix_ns.filter(|_| is_running(cell));
        Self {
            machine: machine.to_owned(),
            name: cell.spec.name.clone(),
            id: cell.id.0,
            state: cell.state.to_string(),
            exit_code: cell.exit_code,
            image: cell.spec.image_name.clone(),
            image_sha256: cell.spec.image.to_string(),
            image_is_pinned: cell.spec.requirement.sha256.is_some(),
            image_signed_by: cell.spec.requirement.signed_by.map(|key| key.to_string()),
            arguments: cell.spec.arguments.clone(),
            cores: cell.cores.iter().map(CoreView::new).collect(),
            held_cores: cell.core_count(),
            placement: cell.spec.placement.policy.to_string(),
            node: cell.spec.placement.node.map(|node| node.0),
            core_ids: cell.spec.placement.ids.iter().map(|id| id.0).collect(),
            memory_bytes: cell.memory_given.0,
            held_bytes: cell.memory.0,
            memory_max_bytes: most_memory(cell).0,
            image_bytes: cell.image.0,
            text_bytes: cell.text.0,
            pool_bytes: cell.memory_usage.total.0,
            used_bytes: cell.memory_usage.used.0,
            peak_bytes: cell.memory_usage.peak.0,
            pressure: match cell.memory_usage.pressure {
                MemoryPressure::None => "none",
                MemoryPressure::Low => "low",
                MemoryPressure::Critical => "critical",
            },
            network: match cell.spec.network {
                NetworkSpec::None => "none",
                NetworkSpec::Dhcp => "dhcp",
                NetworkSpec::Static(_) => "static",
            },
            address: address(cell).map(|ip| ip.to_string()),
            ports: ports.iter().map(PortView::new).collect(),
            traffic: TrafficView {
                received_frames: cell.network.received_frames,
                received_bytes: cell.network.received_bytes,
                sent_frames: cell.network.sent_frames,
                sent_bytes: cell.network.sent_bytes,
                dropped_frames: cell.network.dropped_frames,
            },
            service: LatencyView::new(&cell.service),
            loans: cell.loans.iter().map(LoanView::new).collect(),
            priority: cell.spec.lending.priority,
            lends: cell.spec.lending.lends,
            activities: cell.activities.activities.iter().map(ActivityView::new).collect(),
            ended_activities: ActivityView::new(&cell.activities.ended),
            restart: RestartView {
                policy: cell.spec.restart.to_string(),
                count: cell.restarts.count,
                ends_in_row: cell.restarts.ends_in_row,
                next: cell.restarts.next_unix_ns.map(rfc3339),
            },
            watchdog_ms: cell.spec.watchdog_ms,
            created: rfc3339(cell.created_unix_ns),
            started: cell.started_unix_ns.map(rfc3339),
            uptime_ms: running.map(|started| since(started).as_millis() as u64),
            create_ns: cell.durations.create_ns,
            start_ns: cell.durations.start_ns,
            first_sign_ns: cell.durations.first_sign_ns,
            reclaim_ns: cell.durations.reclaim_ns,
            crash,
        }
    }
}

/// The most memory that a cell may have.
pub fn most_memory(cell: &CellInfo) -> ByteSize {
    cell.spec.memory_max.unwrap_or_default().max(cell.memory_given)
}

/// Whether a cell's cores run it.
pub fn is_running(cell: &CellInfo) -> bool {
    use isola_abi::management::CellState::{Running, Stopping};
    matches!(cell.state, Running | Stopping)
}

impl CoreView {
    fn new(core: &isola_abi::management::CoreUsage) -> Self {
        Self {
            id: core.id.0,
            phase: match core.phase {
                _ if !core.is_present => "left",
                CorePhase::Asleep => "asleep",
                CorePhase::Halted => "halted",
                CorePhase::Running => "running",
            },
            interrupts: core.interrupts,
            idle_cycles: core.idle_cycles,
            loop_cycles: core.loop_cycles,
            interrupt_cycles: core.interrupt_cycles,
            event_cycles: core.event_cycles,
            long_events: core.long_events,
            longest_event_cycles: core.longest_event_cycles,
            queueing: LatencyView::new(&core.queueing),
        }
    }
}

impl PortView {
    /// The JSON form of a published port.
    pub fn new(port: &Publication) -> Self {
        Self { protocol: port.protocol.to_string(), host: port.host.to_string(), cell: port.cell.to_string() }
    }
}
