//! The answers of the fake supervisor's cells to queries.

use isola_abi::grid::{
    Entitlement, GridChange, MemoryBudget, PolicyChange, PolicyKind, Rate, Resource, RuleChange, Weight,
};
use isola_abi::id::ActivityId;
use isola_abi::query::{
    ActivityMemory, ActivityTraffic, ActivityUsage, AnswerPiece, AnswerRecord, Answers, ConnectedMachine,
    Connection, CounterName, Direction, FRAMES_BYTES, FrameFilter, FrameHead, GridClient, GridEntitlement,
    GridSettings, Line, MemoryPart, MemoryUse, Period, PeriodBatch, PeriodKind, ProcessState, ProcessUsage,
    ProfileRecord, Queries, Query, Ring, SampleAccount, SampleBatch, StackSample, TraceActivity, TraceBegin,
    TraceRecord, TraceSite,
};
use std::num::NonZeroU32;

/// A cell that answers at once, with the code of a real cell.
pub struct AnsweringCell {
    queries: Queries,
    answers: Box<Answers>,
    /// The cores of a profile.
    profiled: u64,
}

impl AnsweringCell {
    pub fn new() -> Self {
        Self { queries: Queries::default(), answers: Box::default(), profiled: 0 }
    }

    pub fn ask(&mut self, line: Line, query: &[u8]) -> u32 {
        let number = self.queries.put(line, query).unwrap();
        let ring = self.answers.on(line);
        ring.begin(number);
        match Query::decode(query).unwrap() {
            Query::Capture(spec) => (1..=4).for_each(|count| frame(&ring, count, spec.snap_len)),
            Query::Trace(spec) => trace(spec.cores & 0b11).iter().for_each(|record| {
                ring.push(&record.encode()).unwrap();
            }),
            Query::Profile(spec) => {
                self.profiled = spec.cores & 0b11;
                ring.push(&ProfileRecord::Begin { cores: self.profiled }.encode()).unwrap();
            }
            query => facts(query).iter().for_each(|fact| ring.push(&fact.encode()).unwrap()),
        }
        number
    }

    /// Writes samples of each core at the first request of a profile, as if interrupted at once.
    pub fn sample(&mut self, rate_hz: u32) {
        let cores = if rate_hz > 0 { std::mem::take(&mut self.profiled) } else { 0 };
        let ring = self.answers.on(Line::Frames);
        for core in (0..2).filter(|core| cores >> core & 1 == 1) {
            let mut batch = SampleBatch::new(core);
            (batch.idle, batch.lost) = (10, 1);
            batch.activities.push(TraceActivity { activity: 3, name: "web".into() });
            let sample = |account, addresses: &[u64]| StackSample { account, addresses: addresses.to_vec() };
            let web = SampleAccount::Activity(ActivityId(3));
            batch.push(&sample(web, &[0xffff_ffff_8010_0010, 0xffff_ffff_8010_0020]));
            batch.push(&sample(web, &[0xffff_ffff_8010_0010, 0xffff_ffff_8010_0020]));
            batch.push(&sample(SampleAccount::Loop, &[0xffff_ffff_8010_0020]));
            ring.push(&ProfileRecord::Samples(batch).encode()).unwrap();
        }
    }

    pub fn piece(&self, line: Line, number: u32, from: u64, max_bytes: u32) -> AnswerPiece {
        let current = self.queries.number(line);
        self.answers.on(line).piece(number, current, from, (max_bytes as usize).min(200))
    }
}

fn facts(query: Query) -> Vec<AnswerRecord> {
    let name = |layer: &str, name: &str| CounterName { layer: layer.into(), name: name.into() };
    let begin = AnswerRecord::Begin { cores: 2 };
    let done = |core, connections| AnswerRecord::Done { core, connections, half_open: 1, time_wait: 0 };
    match query {
        Query::Counters => vec![
            begin,
            AnswerRecord::Names(vec![
                name("tcp", "tcp_accepted"),
                name("tcp", "drop_tcp_port"),
                name("udp", "drop_udp_port"),
            ]),
            AnswerRecord::Counters(vec![3, 1000, 0]),
            done(0, 0),
            AnswerRecord::Counters(vec![4, 17, 0]),
            done(1, 0),
        ],
        Query::Connections { filter, most } => {
            let all = [connection(0, 40_001), connection(1, 40_002)];
            let meant: Vec<_> = all.into_iter().filter(|one| filter.matches(one.local, one.remote)).collect();
            let listed =
                meant.iter().take(most as usize).cloned().map(|one| AnswerRecord::Connection(Box::new(one)));
            let is_filtered = filter != FrameFilter::default();
            let machine = |number, over_channel| {
                AnswerRecord::ConnectedMachine(ConnectedMachine { number, over_channel })
            };
            let machines = [machine(70_000, false), machine(1, true)].into_iter();
            let machines = machines.take(if is_filtered { 0 } else { most as usize });
            let done = [done(0, meant.len() as u32), done(1, 0)];
            [begin].into_iter().chain(machines).chain(listed).chain(done).collect()
        }
        Query::ChangeGrid(GridChange { activity: Some((name, _)), .. }) if name == "unknown" => {
            vec![
                AnswerRecord::Begin { cores: 0 },
                AnswerRecord::Refused("the cell has no such activity".into()),
            ]
        }
        Query::Grid | Query::ChangeRules(RuleChange::Clear) => grid(None),
        Query::ChangeRules(RuleChange::Add(rule)) if rule.activity == "refused" => vec![
            AnswerRecord::Begin { cores: 0 },
            AnswerRecord::Refused("a cell has at most 64 rules".into()),
        ],
        Query::ChangeRules(RuleChange::Add(rule)) => {
            let mut records = grid(None);
            records.insert(1, AnswerRecord::ActivityRule(Box::new(rule)));
            records
        }
        Query::ChangeGrid(change) => grid(change.policy.and_then(PolicyChange::policy)),
        Query::Activities { most } => activities(most),
        Query::OpenSession(_) => vec![
            AnswerRecord::Begin { cores: 0 },
            AnswerRecord::Refused("its application executes no commands".into()),
        ],
        Query::Processes { most } => processes(most),
        Query::MemoryParts => vec![
            AnswerRecord::Begin { cores: 1 },
            AnswerRecord::MemoryParts(vec![
                MemoryPart::free("free", 20 << 20),
                MemoryPart::cached("pages of files", 3 << 20),
                MemoryPart::used("pages\nof programs", 2 << 20),
            ]),
            AnswerRecord::Done { core: 0, connections: 0, half_open: 0, time_wait: 0 },
        ],
        Query::Capture(_) | Query::EndCapture | Query::Trace(_) | Query::Profile(_) => Vec::new(),
    }
}

/// The grid of two cores, with this policy for both resources.
fn grid(policy: Option<PolicyKind>) -> Vec<AnswerRecord> {
    let settings = Resource::ALL.map(|resource| {
        let capacity = (resource == Resource::Processor).then(|| Rate::per_second(2_000_000_000).unwrap());
        let (batch, limit) = (NonZeroU32::MIN, capacity.map(|capacity| capacity.part(500).unwrap()));
        AnswerRecord::GridSettings(GridSettings {
            resource,
            policy,
            batch,
            limit,
            capacity,
            entitlements: u32::from(resource == Resource::Memory),
        })
    });
    let client = |core, activity: u32, cost| {
        AnswerRecord::GridClient(Box::new(GridClient {
            resource: Resource::Processor,
            core,
            activity,
            parent: None,
            name: format!("activity-{activity}"),
            entitlement: Entitlement::by_weight(Weight::new(300).unwrap()),
            waiting: 2,
            dispatched: 10,
            cost,
            waited_ns: 50_000,
            longest_wait_ns: 20_000,
        }))
    };
    let done = |core| AnswerRecord::Done { core, connections: 0, half_open: 0, time_wait: 0 };
    let entitlement =
        Entitlement { memory: memory().budget, ..Entitlement::by_weight(Weight::new(7).unwrap()) };
    let (activity, name) = (2, "activity-2".to_owned());
    let set = GridEntitlement { resource: Resource::Memory, name: name.clone(), entitlement };
    let usage = MemoryUse { activity, name, entitlement, memory: memory(), waiting: 1 };
    let memory = [AnswerRecord::GridEntitlement(Box::new(set)), AnswerRecord::MemoryUse(Box::new(usage))];
    let clients = [client(0, 3, 3_000), client(0, 2, 1_000), done(0), client(1, 2, 7), done(1)];
    [AnswerRecord::Begin { cores: 2 }].into_iter().chain(settings).chain(memory).chain(clients).collect()
}

/// The memory of an activity.
fn memory() -> ActivityMemory {
    ActivityMemory {
        charged_bytes: 70 << 20,
        budget: MemoryBudget { soft: Some(64 << 20), hard: Some(128 << 20) },
        reclaimed_bytes: 3 << 20,
    }
}

/// A server with a worker, beside another process.
fn processes(most: u32) -> Vec<AnswerRecord> {
    let process = |pid, parent, user: u32, command: &str| {
        AnswerRecord::Process(Box::new(ProcessUsage {
            pid,
            parent,
            user,
            user_name: (user == 0).then(|| "root".into()),
            state: ProcessState::Sleeping,
            threads: pid,
            resident_bytes: 2 << 20,
            user_ns: 1_000_000,
            system_ns: 500_000,
            cycles: 3_000_000,
            command: command.into(),
        }))
    };
    let all = [process(1, 0, 0, "server"), process(4, 1, 33, "worker"), process(3, 1, 0, "sh")];
    let done = AnswerRecord::Done { core: 0, connections: 0, half_open: 0, time_wait: 0 };
    let listed = all.into_iter().take(most as usize);
    let begin = [AnswerRecord::Begin { cores: 1 }, AnswerRecord::Processes { count: 120 }];
    begin.into_iter().chain(listed).chain([done]).collect()
}

/// A service with two connections, of three activities in all.
fn activities(most: u32) -> Vec<AnswerRecord> {
    let usage = |activity, parent, name: &str, cycles| {
        AnswerRecord::Activity(Box::new(ActivityUsage {
            activity,
            parent,
            name: name.into(),
            cycles,
            events: cycles / 100,
            traffic: ActivityTraffic {
                received_bytes: cycles << 10,
                sent_bytes: 3 << 20,
                ..Default::default()
            },
            memory: parent.is_none().then(memory),
        }))
    };
    let all = [
        usage(2, None, "web", 7_500),
        usage(800, Some(2), "10.0.2.2:40001", 5_000),
        usage(801, Some(2), "10.0.2.2:40002", 2_000),
    ];
    let total = AnswerRecord::Activities { count: 3, cycles: 10_000 };
    let done = AnswerRecord::Done { core: 0, connections: 0, half_open: 0, time_wait: 0 };
    let listed = all.into_iter().take(most as usize);
    [AnswerRecord::Begin { cores: 1 }, total].into_iter().chain(listed).chain([done]).collect()
}

fn connection(core: u32, port: u16) -> Connection {
    Connection {
        local: ([10, 0, 2, 16], 80).into(),
        remote: ([10, 0, 2, 2], port).into(),
        state: "ESTABLISHED".into(),
        core,
        over_link: false,
        congestion: "CUBIC".into(),
        window: 14_600,
        in_flight: 1460,
        send_queue: 2000,
        receive_queue: 3,
        peer_window: 65_535,
        receive_window: 60_000,
        mss: 1460,
        round_trip_ns: Some(1_500_000),
        timeout_ns: 200_000_000,
        retransmits: 5,
        bytes_in: 4096,
        bytes_out: 1 << 20,
        idle_ns: 2_000_000,
    }
}

/// Captures an ARP frame, and after the second one a frame that exceeds the ring.
fn frame(ring: &Ring<'_>, count: u64, snap_len: u32) {
    let direction = if count.is_multiple_of(2) { Direction::Out } else { Direction::In };
    let unix_ns = 1_800_000_000_000_000_000 + count;
    let mut bytes = vec![0xff; 12];
    bytes.extend([
        8,
        6,
        0,
        1,
        8,
        0,
        6,
        4,
        0,
        1,
        2,
        2,
        2,
        2,
        2,
        2,
        10,
        0,
        2,
        2,
        0,
        0,
        0,
        0,
        0,
        0,
        10,
        0,
        2,
        count as u8,
    ]);
    let head = FrameHead { unix_ns, direction, len_bytes: bytes.len() as u32, sum: None };
    let mut buffer = [0; FrameHead::MAX_ENCODED];
    let mut record = head.encode(&mut buffer).to_vec();
    record.extend(bytes.iter().take(snap_len as usize));
    ring.push(&record).unwrap();
    if count == 2 {
        ring.push(&[0; FRAMES_BYTES]).unwrap_err();
    }
}

/// The trace of some cores: on each an idle period, two events, and lost periods between them.
fn trace(cores: u64) -> Vec<TraceRecord> {
    let begin = TraceBegin {
        cycles_hz: 1_000_000_000,
        zero_cycles: 0,
        unix_ns_at_zero: 1_800_000_000_000_000_000,
        cores,
    };
    let batches = (0..2).filter(|core| cores >> core & 1 == 1).map(|core| {
        let mut batch = PeriodBatch::new(core);
        batch.sites.push(TraceSite { site: core, file: "net/sockets/src/device.rs".into(), line: 40 });
        batch.activities.push(TraceActivity { activity: 2, name: "web".into() });
        let event = PeriodKind::Event { site: core, activity: 2, resource: 0, waiting: 1 };
        batch.push(Period { start: 1_000, cycles: 500, kind: PeriodKind::Idle });
        batch.push(Period { start: 1_500, cycles: 250, kind: event });
        batch.push(Period { start: 1_800, cycles: 100, kind: PeriodKind::Lost { periods: 3 } });
        batch.push(Period { start: 2_000, cycles: 250, kind: event });
        TraceRecord::Periods(batch)
    });
    [TraceRecord::Begin(begin)].into_iter().chain(batches).chain([TraceRecord::Alive]).collect()
}
