//! All checks in hosted cells, whose cores are threads.

use isola_conformance::run_some;
use isola_ebbs::current_core;
use isola_events::{exit, run, spawn_task};
use isola_hosted::Settings;
use isola_platform::CoreIndex;

fn holds_on(cores: usize) {
    hold_on(cores, |_| true);
}

/// memcheck reports an access to a page of a region that is filled on demand: it checks the address before the access,
/// when the page does not exist yet. It can follow prefaulted regions and fiber stacks.
fn holds_without_faults_on(cores: usize) {
    hold_on(cores, |name| !name.starts_with("regions::") || WITHOUT_FAULTS.contains(&name));
}

const WITHOUT_FAULTS: [&str; 2] =
    ["regions::prefaulted_pages_never_fault", "regions::impossible_regions_are_refused"];

fn hold_on(cores: usize, is_wanted: fn(&str) -> bool) {
    let settings = Settings { cores, ..Settings::default() };
    let codes = isola_hosted::run(settings, Vec::new(), |_| {
        if current_core() == CoreIndex(0) {
            spawn_task(async move {
                let summary = run_some(is_wanted, |line| println!("{line}")).await;
                exit(if summary.failed == 0 { 0 } else { 1 });
            })
            .detach();
        }
        run()
    });
    assert_eq!(codes, vec![0; cores], "a check failed: see the output above");
}

#[test]
fn every_check_holds_on_1_core() {
    holds_on(1);
}

#[test]
fn every_check_holds_on_2_cores() {
    holds_on(2);
}

#[test]
fn every_check_holds_on_4_cores() {
    holds_on(4);
}

#[test]
fn every_check_holds_on_24_cores() {
    holds_on(24);
}

#[test]
#[ignore = "for memcheck: `cargo xtask test memcheck`"]
fn checks_without_page_faults_hold_on_1_and_2_cores() {
    holds_without_faults_on(1);
    holds_without_faults_on(2);
}
