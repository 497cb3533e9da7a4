//! The size of the supervisor's heap: the share of a core, and a full list of cells.

use super::*;
use crate::fake::{MIB, crashes, image, machine, spec};
use crate::report;
use crate::server::Server;
use crate::server::tests::{ask, hello, list, upload};
use alloc::vec::Vec;
use allocation_counter::measure;
use core::sync::atomic::Ordering;
use isola_abi::id::CoreId;
use isola_abi::management::{CellSpec, NetworkSpec, RequestBody, ResponseBody};
use isola_abi::report::{CrashKind, Report};
use isola_abi::size::ByteSize;

const CORES: u32 = 24;

/// Sets a count in every bucket of the histograms of all cores.
fn fill(report: &Report) {
    for core in &report.cores {
        let counts = core.queueing.counts.iter().chain(&core.service.counts);
        counts.for_each(|count| count.store(u64::MAX / 1000, Ordering::Relaxed));
    }
}

#[test]
fn the_usage_of_a_core_fits_in_its_share() {
    let report = isola_supervisor_fake::report::blank();
    let ledger = isola_supervisor_fake::report::Activities::new(isola_abi::ledger::LEAST_SLOTS);
    fill(&report);
    let ids: Vec<CoreId> = (0..CORES).map(CoreId).collect();
    let mut kept = Vec::new();
    let used = measure(|| kept = report::cores(&report, ledger.ledger(), &ids));
    assert_eq!(kept.len(), CORES as usize);
    let share = u64::from(CORES) * PER_CORE_OF_CELL;
    assert!(used.bytes_current.cast_unsigned() <= share, "{used:?}");
    assert!(used.bytes_max > share / 2, "the histograms are full: {used:?}");
}

#[test]
fn a_list_of_64_ended_cells_of_24_cores_fits_in_the_heap() {
    let mut server = Server::new(machine(CORES));
    hello(&mut server);
    upload(&mut server, &image());
    for number in 0..64 {
        let name = alloc::format!("{number:063}");
        let spec = CellSpec {
            cores: CORES,
            memory: ByteSize(12 * MIB),
            network: NetworkSpec::None,
            arguments: alloc::vec!["x".repeat(4000)],
            ..spec(&name)
        };
        let Ok(ResponseBody::Cell(info)) = ask(&mut server, RequestBody::Create(spec.into())) else {
            panic!()
        };
        ask(&mut server, RequestBody::Start { name }).unwrap();
        let report = server.cells().fake().reports[&info.id].clone();
        fill(&report);
        crashes(&report, CrashKind::Panic, &"no".repeat(300));
        server.on_notification();
    }
    let mut listed = 0;
    let used = measure(|| {
        listed = list(&mut server).len();
    });
    assert_eq!(listed, 64);
    // The answer exists three times: under construction, as a frame, and as the test decodes it.
    assert!(used.bytes_max < BASE / 2, "{used:?}");
}
