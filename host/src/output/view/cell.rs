//! The JSON form of cells.

use super::{CrashView, LatencyView};
use crate::machine::network::address;
use crate::output::human::{count, rfc3339, since};
use crate::publish::Publication;
use isola_abi::management::{ActivityUsage, CellInfo, LoanInfo, MemoryLoanInfo, NetworkSpec};
use isola_abi::network_service::NetworkPort;
use isola_abi::report::{CorePhase, MemoryPressure};
use isola_abi::size::ByteSize;
use isola_abi::volume::{VolumeAccess, VolumeMount};
use serde::Serialize;
use std::fmt;

/// A cell: output of `ps` (an array), `inspect`, `run -d`, `start`, `stop`.
#[derive(Clone, Debug, Serialize)]
pub struct CellView {
    /// The machine of the cell.
    pub machine: String,
    /// The name.
    pub name: String,
    /// The id, which no later cell of the machine has.
    pub id: u32,
    /// `created`, `running`, `stopping`, `exited`, `crashed` or `killed`.
    pub state: String,
    /// The exit code of the application.
    pub exit_code: Option<i32>,
    /// The name of the image.
    pub image: String,
    /// The image's SHA-256, as the supervisor computed it during the upload.
    pub image_sha256: String,
    /// Whether the cell demanded this digest.
    pub image_is_pinned: bool,
    /// The public key of the signature that the cell demanded, and that the supervisor verified.
    pub image_signed_by: Option<String>,
    /// The application's arguments.
    pub arguments: Vec<String>,
    /// The usage of its cores; for an ended cell, up to its end.
    pub cores: Vec<CoreView>,
    /// The number of cores that the cell has: 0 after its end.
    pub held_cores: u32,
    /// The placement policy of its cores: `compact`, `spread` or `siblings`.
    pub placement: String,
    /// The NUMA node of its cores, if the placement names one.
    pub node: Option<u32>,
    /// The cores to choose from; empty if all are eligible.
    pub core_ids: Vec<u32>,
    /// The memory that the cell was given, including growth; it remains after the cell's end.
    pub memory_bytes: u64,
    /// The memory that the cell has: 0 after its end.
    pub held_bytes: u64,
    /// The most memory that the cell can have by memory requests.
    pub memory_max_bytes: u64,
    /// The memory that its image takes of that.
    pub image_bytes: u64,
    /// The size of the image's text that all cells of the image share, beside the cell's own memory.
    pub text_bytes: u64,
    /// The memory of its page allocator.
    pub pool_bytes: u64,
    /// The part of the pool that is in use.
    pub used_bytes: u64,
    /// The maximum of `used_bytes` so far.
    pub peak_bytes: u64,
    /// The memory pressure: `none`, `low` or `critical`.
    pub pressure: &'static str,
    /// `static`, `dhcp` or `none`.
    pub network: &'static str,
    /// The service cell that serves the network device; `None` for a device of its own.
    pub network_cell: Option<String>,
    /// The IP address.
    pub address: Option<String>,
    /// The published ports.
    pub ports: Vec<PortView>,
    /// The volumes.
    pub volumes: Vec<VolumeView>,
    /// The traffic.
    pub traffic: TrafficView,
    /// The latency of its requests.
    pub service: LatencyView,
    /// The cores that it has borrowed.
    pub loans: Vec<LoanView>,
    /// The memory that it has borrowed, part of `held_bytes`.
    pub memory_loans: Vec<MemoryLoanView>,
    /// The memory that it has lent, which it does not have.
    pub memory_lent_bytes: u64,
    /// The priority.
    pub priority: u8,
    /// The maximum number of cores that it lends.
    pub lends: u32,
    /// The memory that it keeps while it lends memory; `null` if it lends none.
    pub memory_low_bytes: Option<u64>,
    /// The usage by activity.
    pub activities: Vec<ActivityView>,
    /// The usage of ended activities, summed.
    pub ended_activities: ActivityView,
    /// The restart policy and its state.
    pub restart: RestartView,
    /// The time without progress after which the cell counts as hung; 0: never.
    pub watchdog_ms: u32,
    /// The time of its creation.
    pub created: String,
    /// The time of its latest start.
    pub started: Option<String>,
    /// The time since its latest start.
    pub uptime_ms: Option<u64>,
    /// The duration of its creation.
    pub create_ns: Option<u64>,
    /// The duration of its start.
    pub start_ns: Option<u64>,
    /// The time from then to the cell's first report that it runs.
    pub first_sign_ns: Option<u64>,
    /// The duration of the release of its resources.
    pub reclaim_ns: Option<u64>,
    /// The crash, if it crashed.
    pub crash: Option<CrashView>,
}

/// The automatic restarts of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct RestartView {
    /// `no`, `on-failure`, `on-failure:5` or `always`.
    pub policy: String,
    /// The number of restarts since the last start by a command.
    pub count: u32,
    /// The number of consecutive ends; a long enough run resets it.
    pub ends_in_row: u32,
    /// The time of the next attempt.
    pub next: Option<String>,
}

/// A core of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct CoreView {
    /// The core's number on the machine.
    pub id: u32,
    /// `asleep`, `halted`, `running`, or `left` if the core has left the cell.
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
    /// The queueing delay of its events.
    pub queueing: LatencyView,
}

/// A core that a cell has borrowed.
#[derive(Clone, Debug, Serialize)]
pub struct LoanView {
    /// The core.
    pub core: u32,
    /// The lender; `null` if the core was free.
    pub from: Option<String>,
    /// The remaining time of the lease.
    pub left_ns: u64,
}

impl LoanView {
    /// Creates the JSON form of a loan.
    pub fn new(loan: &LoanInfo) -> Self {
        Self { core: loan.core.0, from: loan.from.clone(), left_ns: loan.left_ns }
    }
}

/// Memory that a cell has borrowed.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryLoanView {
    /// The memory.
    pub memory_bytes: u64,
    /// The lender; `null` if the memory was free.
    pub from: Option<String>,
    /// The remaining time of the lease.
    pub left_ns: u64,
    /// Whether the lease is renewed while the cell uses the memory.
    pub renews: bool,
}

impl MemoryLoanView {
    /// Creates the JSON form of a loan.
    pub fn new(loan: &MemoryLoanInfo) -> Self {
        let MemoryLoanInfo { memory, from, left_ns, renews } = loan;
        Self { memory_bytes: memory.0, from: from.clone(), left_ns: *left_ns, renews: *renews }
    }
}

/// A volume of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeView {
    /// Its name, or the path of its file as it was given.
    pub volume: String,
    /// The path at which the cell mounts it.
    pub path: String,
    /// Whether the cell may only read it.
    pub read_only: bool,
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

impl fmt::Display for TrafficView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "received {} frames, {}; sent {} frames, {}; dropped {}",
            count(self.received_frames),
            ByteSize(self.received_bytes),
            count(self.sent_frames),
            ByteSize(self.sent_bytes),
            count(self.dropped_frames),
        )
    }
}

/// The usage of an activity of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct ActivityView {
    /// The name.
    pub name: String,
    /// The cycles of its events.
    pub cycles: u64,
    /// The number of its events.
    pub events: u64,
    /// The bytes of memory that it allocated, minus those that it freed.
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
    /// Creates the JSON form of a cell.
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
            network: match (cell.spec.network, cell.spec.network_service.port()) {
                (NetworkSpec::Static(_), _) | (_, Some(NetworkPort { address: Some(_), .. })) => "static",
                (NetworkSpec::Dhcp, _) | (_, Some(NetworkPort { address: None, .. })) => "dhcp",
                (NetworkSpec::None, None) => "none",
            },
            network_cell: cell.spec.network_service.port().map(|port| port.cell.clone()),
            address: address(cell).map(|ip| ip.to_string()),
            ports: ports.iter().map(PortView::new).collect(),
            volumes: cell.spec.volumes.iter().map(VolumeView::new).collect(),
            traffic: TrafficView {
                received_frames: cell.network.received_frames,
                received_bytes: cell.network.received_bytes,
                sent_frames: cell.network.sent_frames,
                sent_bytes: cell.network.sent_bytes,
                dropped_frames: cell.network.dropped_frames,
            },
            service: LatencyView::new(&cell.service),
            loans: cell.loans.iter().map(LoanView::new).collect(),
            memory_loans: cell.memory_loans.iter().map(MemoryLoanView::new).collect(),
            memory_lent_bytes: cell.memory_lent.0,
            priority: cell.spec.lending.priority,
            lends: cell.spec.lending.lends,
            memory_low_bytes: cell.spec.lending.memory_low.map(|low| low.0),
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

/// Returns the most memory that a cell may have.
pub fn most_memory(cell: &CellInfo) -> ByteSize {
    cell.spec.memory_max.unwrap_or_default().max(cell.memory_given)
}

/// Returns whether cores execute the cell.
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

impl VolumeView {
    fn new(volume: &VolumeMount) -> Self {
        let read_only = volume.access == VolumeAccess::ReadOnly;
        Self { volume: volume.name.clone(), path: volume.path.clone(), read_only }
    }
}

impl PortView {
    /// Creates the JSON form of a published port.
    pub fn new(port: &Publication) -> Self {
        Self { protocol: port.protocol.to_string(), host: port.host.to_string(), cell: port.cell.to_string() }
    }
}
