//! Random sequences of requests and events.

use super::*;
use crate::cells::SCRUB_SLICE;
use crate::fake::every_chunk_has_one_owner;
use alloc::boxed::Box;
use isola_abi::id::{CoreId, PhysAddr, PhysRange};
use isola_abi::management::{CoreOwner, CorePlacement, ImageInfo, LendingSpec};
use isola_abi::unplug::Shortfall;
use isola_supervisor_core::inventory::CHUNK;
use proptest::prelude::*;

/// A valid or invalid request, or another event.
#[derive(Clone, Debug)]
enum Step {
    Ask(Box<RequestBody>),
    Upload,
    Noise(Vec<u8>),
    Say(u8, u32),
    Request(u8, u64, u64),
    Time(u64),
    Lose(u32),
    /// The cells' cores ignore orders from here on.
    Deafen,
    /// The cells' cores carry out their orders.
    Obey,
    /// A cell's own cores request another one.
    CoreRequest(u8),
    /// A cell offers its plugged blocks and some address, or acknowledges the last settlement.
    Offer(u8, u64),
}

fn any_request() -> impl Strategy<Value = RequestBody> {
    let name =
        prop_oneof![Just("a".into()), Just("b".into()), Just("c".into()), ".{0,70}".prop_map(String::from)];
    let name = name.boxed();
    let restart = prop_oneof![
        2 => Just(RestartPolicy::No),
        1 => (0u32..3).prop_map(|most| RestartPolicy::OnFailure { most: Some(most) }),
        1 => Just(RestartPolicy::Always),
    ];
    let memory = (0u64..20, proptest::option::of(0u64..40));
    let lending = (0u8..3, 0u32..3, proptest::option::of(0u64..16)).prop_map(|(priority, lends, low_mib)| {
        let memory_low = low_mib.map(|mib| ByteSize(mib * MIB));
        LendingSpec { priority, lends, borrow_above_us: 100, memory_low }
    });
    let spec = (name.clone(), 0u32..4, memory, restart, 0u32..3, any::<bool>(), lending).prop_map(
        |(name, cores, (mib, most_mib), restart, watchdog, networked, lending)| CellSpec {
            restart,
            cores,
            placement: CorePlacement::default(),
            memory: ByteSize(mib * MIB),
            memory_max: most_mib.map(|mib| ByteSize(mib * MIB)),
            watchdog_ms: watchdog * 10,
            lending,
            network: if networked { NetworkSpec::Dhcp } else { NetworkSpec::None },
            ..spec(&name)
        },
    );
    prop_oneof![
        1 => Just(RequestBody::Hello { version: isola_abi::VERSION }),
        1 => Just(RequestBody::Machine),
        1 => Just(RequestBody::Images),
        1 => (0u64..5_000_000).prop_map(|len_bytes| RequestBody::ImageBegin { len_bytes }),
        1 => (0u64..20, 0usize..20).prop_map(|(offset, len)| RequestBody::ImageChunk { offset, bytes: vec![0; len] }),
        4 => spec.prop_map(|spec| RequestBody::Create(spec.into())),
        4 => name.clone().prop_map(|name| RequestBody::Start { name }),
        3 => name.clone().prop_map(|name| RequestBody::Recreate { name }),
        2 => (name.clone(), 0u32..50).prop_map(|(name, timeout_ms)| RequestBody::Stop { name, timeout_ms }),
        2 => name.clone().prop_map(|name| RequestBody::Destroy { name }),
        3 => (name.clone(), any_change(), any::<bool>()).prop_map(|(name, memory, dry)| {
            RequestBody::ResizeMemory { name, memory, mode: if dry { Mode::DryRun } else { Mode::Apply } }
        }),
        6 => (name.clone(), any_cores(), any::<bool>(), 0u32..50, proptest::collection::vec(0u32..5, 0..3)).prop_map(
            |(name, change, dry, limit_ms, ids)| {
                let cores = ids.into_iter().map(CoreId).collect();
                let mode = if dry { Mode::DryRun } else { Mode::Apply };
                RequestBody::ResizeCores { name, change, cores, limit_ms, mode }
            }
        ),
        4 => (name.clone(), 0u32..100).prop_map(|(name, lease_ms)| RequestBody::Borrow { name, lease_ms }),
        2 => (name.clone(), 0u32..5, 0u32..100).prop_map(|(name, core, lease_ms)| {
            RequestBody::Renew { name, core: CoreId(core), lease_ms }
        }),
        2 => name.clone().prop_map(|name| RequestBody::GiveBack { name }),
        4 => (name.clone(), any_size(), 0u32..100).prop_map(|(name, memory, lease_ms)| {
            RequestBody::BorrowMemory { name, memory, lease_ms }
        }),
        2 => (name.clone(), any_size()).prop_map(|(name, memory)| RequestBody::GiveMemoryBack { name, memory }),
        1 => Just(LIST),
        1 => name.clone().prop_map(|name| RequestBody::Inspect { name }),
        1 => (name.clone(), any::<u64>(), any::<u32>()).prop_map(|(name, from, max_bytes)| RequestBody::Logs { name, from, max_bytes }),
        2 => (name.clone(), 0u32..2000).prop_map(|(name, rate_hz)| RequestBody::Sample { name, rate_hz }),
        1 => (any::<u64>(), any::<u32>()).prop_map(|(from, max_entries)| RequestBody::Events { from, max_entries }),
        1 => (proptest::option::of(any_text()), any_text(), any_text(), any_text()).prop_map(|(cell, by, what, why)| {
            RequestBody::Note { cell, duration_ns: 0, decision: Decision { by, what, why } }
        }),
    ]
}

/// Returns texts of lengths around the limits of journal entries.
fn any_text() -> impl Strategy<Value = String> {
    (0usize..300).prop_map(|len| "t".repeat(len))
}

fn any_change() -> impl Strategy<Value = Change<ByteSize>> {
    (0u8..3, any_size()).prop_map(|(kind, size)| match kind {
        0 => Change::To(size),
        1 => Change::More(size),
        _ => Change::Less(size),
    })
}

fn any_size() -> impl Strategy<Value = ByteSize> {
    prop_oneof![4 => (0..64 * MIB).boxed(), 1 => any::<u64>().boxed()].prop_map(ByteSize)
}

fn any_cores() -> impl Strategy<Value = Change<u32>> {
    (0u8..3, prop_oneof![8 => (0u32..5).boxed(), 1 => any::<u32>().boxed()]).prop_map(|(kind, cores)| {
        match kind {
            0 => Change::To(cores),
            1 => Change::More(cores),
            _ => Change::Less(cores),
        }
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => any_request().prop_map(|request| Step::Ask(Box::new(request))),
        3 => Just(Step::Upload),
        1 => proptest::collection::vec(any::<u8>(), 0..200).prop_map(Step::Noise),
        4 => (any::<u8>(), 0u32..6).prop_map(|(cell, phase)| Step::Say(cell, phase)),
        3 => (any::<u8>(), 0..16 * MIB, any::<u64>()).prop_map(|(cell, least, most)| Step::Request(cell, least, most)),
        2 => (0u64..200).prop_map(Step::Time),
        1 => (0u32..40).prop_map(Step::Lose),
        1 => Just(Step::Deafen),
        3 => Just(Step::Obey),
        2 => any::<u8>().prop_map(Step::CoreRequest),
        4 => (any::<u8>(), any::<u64>()).prop_map(|(cell, start)| Step::Offer(cell, start)),
    ]
}

/// Makes every core of every cell carry out its order.
fn obey(server: &mut Server<FakeMachine>) {
    let mut fake = server.cells().fake();
    fake.cells_are_deaf = false;
    for (id, report) in &fake.reports {
        (0..8).for_each(|slot| obeys(report, &fake.slots[id], slot));
    }
}

/// Checks that every core's owner agrees with the cells, all memory has one owner, and no device has two.
fn has_one_owner_each(server: &mut Server<FakeMachine>) -> Result<(), TestCaseError> {
    let cells = server.cells();
    let machine = cells.machine();
    every_chunk_has_one_owner(cells);
    let mut devices = machine.devices_free;
    for id in (0..200).map(CellId) {
        let owner = CoreOwner::Cell(id);
        let owned = machine.cores.iter().filter(|core| core.owner == owner).map(|core| core.id);
        let mut owned: Vec<CoreId> = owned.collect();
        let Some(info) = cells.info(id) else {
            prop_assert_eq!(owned, []);
            continue;
        };
        let has_ended = info.state.has_ended();
        let held = info.cores.iter().filter(|core| core.is_present && !has_ended).map(|core| core.id);
        let mut held: Vec<CoreId> = held.collect();
        owned.sort_unstable();
        held.sort_unstable();
        prop_assert_eq!(owned, held, "{}", info.spec.name);
        let is_kept = |image: &ImageInfo| image.digest == info.spec.image && image.cells > 0;
        prop_assert!(
            has_ended || cells.images().iter().any(is_kept),
            "the image of {} is not stored",
            info.spec.name
        );
        devices += u32::from(info.spec.network != NetworkSpec::None && !has_ended);
        for loan in &info.loans {
            prop_assert!(!has_ended && loan.from.as_ref() != Some(&info.spec.name));
        }
    }
    for core in &machine.cores {
        let CoreOwner::InTransfer(to) = core.owner else { continue };
        let is_there = cells.info(to).is_some_and(|info| !info.state.has_ended());
        prop_assert!(is_there, "core {} is reserved for {to}, which does not exist", core.id);
    }
    prop_assert!(devices <= machine.devices_total);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// For all requests and all behaviour of cells: the supervisor does not panic, and once all cells are destroyed,
    /// all resources are free except those that a lost core could access.
    #[test]
    fn all_resources_are_free_after_random_requests(steps in proptest::collection::vec(any_step(), 1..60)) {
        let mut server = server(3);
        hello(&mut server);
        for step in steps {
            let scrubbed = server.cells().fake().scrubbed();
            match step {
                Step::Ask(body) => send(&mut server, 1, *body),
                Step::Upload => {
                    let image = image();
                    send(&mut server, 1, RequestBody::ImageBegin { len_bytes: image.len() as u64 });
                    for (number, bytes) in image.chunks(MAX_PART_BYTES).enumerate() {
                        let offset = (number * MAX_PART_BYTES) as u64;
                        send(&mut server, 1, RequestBody::ImageChunk { offset, bytes: bytes.to_vec() });
                    }
                }
                Step::Noise(bytes) => feed(&mut server, &mut &bytes[..]),
                Step::Say(which, phase) => {
                    let report = server.cells().fake().any_report(which.into());
                    if let Some(report) = report {
                        report.phase.store(phase, Ordering::Relaxed);
                        report.console.written.store(u64::from(which) << phase, Ordering::Relaxed);
                        server.on_notification();
                    }
                }
                Step::Request(which, least, most) => {
                    let report = server.cells().fake().any_report(which.into());
                    if let Some(report) = report {
                        report.memory_request.make(least, most, isola_abi::id::NodeId(0));
                        server.on_notification();
                    }
                }
                Step::Time(ms) => {
                    server.cells().pass_ns(ms * 1_000_000);
                    server.tick();
                }
                Step::Lose(core) => {
                    server.cells().fake().lost.insert(CoreId(core));
                }
                Step::Deafen => server.cells().fake().cells_are_deaf = true,
                Step::Obey => {
                    obey(&mut server);
                    server.on_notification();
                }
                Step::Offer(which, start) => {
                    let count = server.cells().fake().reports.len().max(1);
                    let id = server.cells().fake().reports.keys().nth(usize::from(which) % count).copied();
                    if let Some(id) = id {
                        let fake = server.cells().fake();
                        let (report, asked) = (fake.reports[&id].clone(), fake.unplug_requests[&id].clone());
                        let mut blocks: Vec<_> = fake.grown[&id].iter().map(|(block, _)| block).collect();
                        drop(fake);
                        blocks.push(PhysRange::new(PhysAddr(start), CHUNK));
                        report.offer.make(asked.asked().0, &blocks, start, Shortfall::from_u32(which.into()));
                        report.offer.acknowledge(asked.settlement().number);
                        server.on_notification();
                    }
                }
                Step::CoreRequest(which) => {
                    let report = server.cells().fake().any_report(which.into());
                    if let Some(report) = report {
                        report.core_requests.fetch_add(1, Ordering::Relaxed);
                        server.on_notification();
                    }
                }
            }
            // No call scrubs, except that a core's stacks may take the first zero chunk.
            let by_calls = server.cells().fake().scrubbed() - scrubbed;
            prop_assert!(by_calls <= CHUNK, "{by_calls} bytes");
            server.work();
            let by_work = server.cells().fake().scrubbed() - scrubbed - by_calls;
            prop_assert!(by_work <= SCRUB_SLICE, "{by_work} bytes");
            has_one_owner_each(&mut server)?;
            let bytes = server.take_unsent();
            let mut decoder = Decoder::new();
            let mut bytes = bytes.as_slice();
            while let Some(response) = decoder.next::<Response>(&mut bytes) {
                prop_assert!(response.is_ok());
            }
        }
        feed(&mut server, &mut &b"\0"[..]);
        server.take_unsent();
        hello(&mut server);
        let cells = list(&mut server);
        for cell in cells {
            let name = cell.spec.name;
            let _ = ask(&mut server, RequestBody::Stop { name: name.clone(), timeout_ms: 0 });
            prop_assert_eq!(ask(&mut server, RequestBody::Destroy { name }), Ok(ResponseBody::Done));
        }
        let machine = server.cells().machine();
        let lost = machine.cores.iter().filter(|core| core.owner == isola_abi::management::CoreOwner::Failed).count();
        let owned = machine.cores.iter().any(|core| matches!(core.owner, isola_abi::management::CoreOwner::Cell(_)));
        prop_assert!(!owned);
        prop_assert_eq!(server.cells().core().inventory().memory.fragment_bytes(), 0);
        if lost == 0 {
            prop_assert_eq!(machine.memory_free, machine.memory_total);
            prop_assert_eq!(machine.devices_free, machine.devices_total);
        } else {
            prop_assert!(machine.devices_free + lost as u32 >= machine.devices_total);
        }
        // Loans end with the cells; the next tick removes them.
        server.tick();
        prop_assert_eq!(server.next_deadline_ns(), None);
    }
}
