//! Cores that come and go under a service that is asked at a steady rate.

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

/// How often a core comes and goes; `./isola test --long` takes the second.
const ROUNDS: u32 = 40;
const LONG_ROUNDS: u32 = 1_000;

/// Rounds, before which the service is watched at rest for as long: half of the time with the core, half without.
const BLOCK: u32 = 10;

/// Clients, and how often each asks.
const CLIENTS: u32 = 8;
const PERIOD: Duration = Duration::from_millis(16);

/// How long a core stays, and stays away.
const PAUSE: Duration = Duration::from_millis(40);

/// How long a core may take to come free. A host that has other things to do runs it when it likes.
const LIMIT_MS: u32 = 30_000;

/// Has the cell have a core more, or less; returns how many it has then.
fn resize(client: &mut Client, change: Change<u32>) -> u32 {
    let (name, cores) = (CELL.to_owned(), Vec::new());
    let body = RequestBody::ResizeCores { name, change, cores, limit_ms: LIMIT_MS, mode: Mode::Apply };
    match client.ask(body) {
        Ok(ResponseBody::CoresResized(resized)) => resized.after,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_core_is_taken_from_the_middle_of_an_event_which_another_core_goes_on_with_while_both_want_one_lock() {
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
        // So that the other one is as likely as not in the middle of what was suspended when it is taken.
        sleep(PAUSE);
    }
    isola.run(&["stop", "--time", "60", CELL]).ok();
    let ended = isola.cell(CELL);
    assert_eq!((&ended["state"], &ended["exit_code"]), (&"exited".into(), &0.into()), "{ended:#}");
    assert!(isola.run(&["logs", CELL]).ok().contains("hog: ended, nothing is lost"));
    let taken = isola.run(&["events"]).ok().matches("core-taken").count();
    assert_eq!(taken, 2, "it is by force that they were taken");
    isola.run(&["rm", CELL]).ok();
    isola.wait_for_inventory(&before);
}

#[test]
fn no_request_is_lost_or_answered_wrongly_while_a_core_comes_and_goes() {
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
        eprintln!("a core came and went {} times in {taken:.1?}", rounds.div_ceil(BLOCK) * BLOCK);
        // With the connections that have moved still open, which are the load's alone.
        let connections = client.connections(CELL);
        assert_eq!(connections.len(), CLIENTS as usize);
        assert_eq!(losses.losses(&connections), Losses { to_cell: 0, from_cell: 0 });
        drop(client);
        let answered = load.end();
        assert!(answered >= (at_rest.count() + moving.count()) as u64 && moving.count() > 0);
        moving.assert_near(&at_rest, "while a core came and went");
        service.end();
    });
}
