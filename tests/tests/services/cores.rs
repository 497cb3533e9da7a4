//! Core hot-plug and hot-unplug under a service with a steady load.

use isola_abi::management::{Change, Mode, RequestBody, ResponseBody};
use isola_need::LONG;
use isola_tests::isola::Isola;
use isola_tests::loss::{LossMeter, Losses};
use isola_tests::management::Client;
use isola_tests::namespace::{self, SHARED};
use isola_tests::service::{CELL, Service};
use isola_tests::steady::{Latencies, SteadyLoad};
use isola_tests::wait;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The number of times that a core is plugged and unplugged; the second with `./isola test --long`.
const ROUNDS: u32 = 40;
const LONG_ROUNDS: u32 = 1_000;

/// Rounds in a block. Before each block the service is measured at rest for as long: half of the time with the core,
/// half without.
const BLOCK: u32 = 10;

/// The number of clients, and the period of their requests.
const CLIENTS: u32 = 8;
const PERIOD: Duration = Duration::from_millis(16);

/// The time for which a core is plugged, and then unplugged.
const PAUSE: Duration = Duration::from_millis(40);

/// The longest time for a core to leave its cell. A busy host may not schedule it sooner.
const LIMIT_MS: u32 = 30_000;

/// Changes the cell's cores, and returns their number.
fn resize(client: &mut Client, change: Change<u32>) -> u32 {
    let (name, cores) = (CELL.to_owned(), Vec::new());
    let body = RequestBody::ResizeCores { name, change, cores, limit_ms: LIMIT_MS, mode: Mode::Apply };
    match client.ask(body) {
        Ok(ResponseBody::CoresResized(resized)) => resized.after,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_core_taken_by_force_suspends_its_event_and_another_core_resumes_it_while_both_want_one_lock() {
    let isola = Isola::up(&["--cores", "4", "--memory", "512M"]);
    let before = isola.inventory();
    let hog = [
        "run",
        "-d",
        "--name",
        CELL,
        "--cores",
        "3",
        "--memory",
        "16M",
        "--network",
        "none",
        "faulty",
        "hog",
    ];
    isola.run(&hog).ok();
    wait::until_true("the hog is at work", || isola.run(&["logs", CELL]).ok().contains("hog: 2 cores"));
    for left in ["2", "1"] {
        isola.run(&["resize", CELL, "--cores", left]).ok();
        // The remaining core may be within the suspended event when it is taken as well.
        sleep(PAUSE);
    }
    isola.run(&["stop", "--time", "60", CELL]).ok();
    let ended = isola.cell(CELL);
    assert_eq!((&ended["state"], &ended["exit_code"]), (&"exited".into(), &0.into()), "{ended:#}");
    assert!(isola.run(&["logs", CELL]).ok().contains("hog: ended, nothing is lost"));
    let taken = isola.run(&["events"]).ok().matches("core-taken").count();
    assert_eq!(taken, 2, "both cores were taken by force");
    isola.run(&["rm", CELL]).ok();
    isola.wait_for_inventory(&before);
}

#[test]
fn no_request_is_lost_or_answered_wrongly_during_core_hot_plug() {
    let rounds = if std::env::var_os(LONG).is_some() { LONG_ROUNDS } else { ROUNDS };
    namespace::run(|| {
        let service = Service::on(SHARED, &[], &["--cores", "1", "--memory", "64M"]);
        let mut client = Client::connect(&service.isola.machine_folder("default").join("management.sock"));
        let losses = LossMeter::start();
        let load = SteadyLoad::start(service.address, CLIENTS, PERIOD);
        let (mut at_rest, mut moving) = (Latencies::default(), Latencies::default());
        let mut taken = Duration::ZERO;
        for _ in 0..rounds.div_ceil(BLOCK) {
            sleep(PAUSE);
            load.take();
            sleep(PAUSE * BLOCK);
            at_rest.add(load.take());
            assert_eq!(resize(&mut client, Change::More(1)), 2);
            sleep(PAUSE);
            load.take();
            sleep(PAUSE * BLOCK);
            at_rest.add(load.take());
            let begun = Instant::now();
            for _ in 0..BLOCK {
                assert_eq!(resize(&mut client, Change::Less(1)), 1);
                sleep(PAUSE);
                assert_eq!(resize(&mut client, Change::More(1)), 2);
                sleep(PAUSE);
            }
            assert_eq!(resize(&mut client, Change::Less(1)), 1);
            taken += begun.elapsed();
            moving.add(load.take());
        }
        eprintln!("a core was plugged and unplugged {} times in {taken:.1?}", rounds.div_ceil(BLOCK) * BLOCK);
        // The load's connections, which have migrated between cores, are still open, and there are no others.
        let connections = client.connections(CELL);
        assert_eq!(connections.len(), CLIENTS as usize);
        assert_eq!(losses.losses(&connections), Losses { to_cell: 0, from_cell: 0 });
        drop(client);
        let answered = load.end();
        assert!(answered >= (at_rest.count() + moving.count()) as u64 && moving.count() > 0);
        moving.assert_near(&at_rest, "during core hot-plug");
        service.end();
    });
}
