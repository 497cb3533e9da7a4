//! Profiles of running cells.

use isola_tests::isola::Isola;
use isola_tests::wait;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The activities of the image `sampled`, and the function in which each is nearly always.
const WORK: [(&str, &str); 5] = [
    ("light", "sampled::light_work"),
    ("heavy", "sampled::heavy_work"),
    ("fiber", "sampled::fiber_work"),
    ("deep", "sampled::deep_work"),
    ("astray", "spin_with_frame_pointer (lib.rs)"),
];

/// Starts a machine with the image `sampled` on two cores.
fn sampled(arguments: &[&str]) -> Isola {
    let isola = Isola::up(&["--cores", "4", "--memory", "512M"]);
    let run =
        ["run", "-d", "--name", "sampled", "--cores", "2", "--memory", "64M", "--network", "none", "sampled"];
    isola.run(&[&run[..], arguments].concat()).ok();
    wait::until_true("the cores work", || isola.run(&["logs", "sampled"]).ok().contains("2 cores work"));
    isola
}

/// Returns the cycles of each activity.
fn cycles(isola: &Isola) -> BTreeMap<String, u64> {
    let view = isola.json(&["grid", "activities", "sampled"]);
    let activities = view["activities"].as_array().unwrap().iter();
    activities
        .map(|one| (one["name"].as_str().unwrap().to_owned(), one["cycles"].as_u64().unwrap()))
        .collect()
}

/// Returns the stacks in a file: account, functions from the outermost on, and samples.
fn stacks(path: &Path) -> Vec<(String, Vec<String>, u64)> {
    let text = fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let mut frames = stack.split(';').map(str::to_owned);
        (frames.next().unwrap(), frames.collect(), count.parse().unwrap())
    };
    text.lines().map(line).collect()
}

#[test]
fn a_profile_agrees_with_the_ledger_and_names_the_functions_that_run() {
    let isola = sampled(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sampled.folded");
    let before = cycles(&isola);
    let profile = ["profile", "sampled", "--rate", "250", "--duration", "8s", "--by", "activity", "-w"];
    let view = isola.json(&[&profile[..], &[path.to_str().unwrap()]].concat());
    let after = cycles(&isola);
    let (samples, idle) = (view["samples"].as_u64().unwrap(), view["idle"].as_u64().unwrap());
    assert_eq!((&view["cores"], &view["lost"]), (&serde_json::json!([0, 1]), &0.into()), "{view:#}");
    assert!(samples >= 1000 && idle <= samples / 20, "{view:#}");

    // Three standard deviations of 1,000 samples are 5 % at most.
    let used = |name: &str| after[name] - before[name];
    let all: u64 = WORK.iter().map(|(name, _)| used(name)).sum();
    let accounts = view["accounts"].as_array().unwrap();
    let of_account = |name: &str| {
        let account = accounts.iter().find(|account| account["name"] == name);
        account.unwrap_or_else(|| panic!("no {name} in {view:#}"))["samples"].as_u64().unwrap()
    };
    for (name, _) in WORK {
        let (by_samples, by_cycles) =
            (of_account(name) as f64 / samples as f64, used(name) as f64 / all as f64);
        eprintln!(
            "{name}: {:.1} % of the samples, {:.1} % of the cycles",
            by_samples * 100.0,
            by_cycles * 100.0
        );
        assert!((by_samples - by_cycles).abs() < 0.05, "{name}: {by_samples} and {by_cycles}");
    }

    let stacks = stacks(&path);
    for (name, function) in WORK {
        let own = stacks.iter().filter(|(account, ..)| account == name);
        let with: u64 = own
            .clone()
            .filter(|(_, functions, _)| functions.iter().any(|one| one == function))
            .map(|(.., count)| count)
            .sum();
        assert!(with >= of_account(name) * 9 / 10, "{with} of {name} in {function}");
        // The outermost function is found from both kinds of stacks, but not from a depth of 40 calls, and not with a
        // wrong frame pointer, which ends the walk.
        let from_entry: u64 = own
            .filter(|(_, functions, _)| functions[0].starts_with("isola_cell_entry"))
            .map(|(.., count)| count)
            .sum();
        match name {
            "deep" | "astray" => assert!(from_entry <= of_account(name) / 10, "{from_entry} of {name}"),
            _ => assert!(from_entry >= of_account(name) * 9 / 10, "{from_entry} of {name}"),
        }
    }
    let deepest = stacks.iter().filter(|(account, ..)| account == "deep");
    let calls = |functions: &[String]| functions.iter().filter(|one| *one == "sampled::deep_work").count();
    assert!(deepest.map(|(_, functions, _)| calls(functions)).max().unwrap() >= 28);

    // Some cores only; and without a profile no samples are taken: the cell starts with empty rings.
    let again = isola.json(&["profile", "sampled", "--rate", "50", "--duration", "1s", "--cores", "1"]);
    assert_eq!(again["cores"], serde_json::json!([1]));
    assert!((10..=60).contains(&again["samples"].as_u64().unwrap()), "{again:#}");
}

#[test]
fn a_crash_ends_a_profile_with_what_was_sampled() {
    let isola = sampled(&["crash"]);
    let outcome = isola.run(&["profile", "sampled", "--duration", "60s", "--top", "1000"]);
    assert!(outcome.err.contains("the cell has ended: it is crashed, see `isola inspect`"), "{outcome:?}");
    assert!(outcome.out.contains("sampled::heavy_work"), "{outcome:?}");
    let crash = isola.cell("sampled");
    assert_eq!(
        crash["crash"]["message"].as_str().map(|text| text.contains("asked to")),
        Some(true),
        "{crash:#}"
    );
}

#[test]
fn cores_and_memory_move_while_a_profile_runs_at_the_highest_rate() {
    let isola = Isola::up(&["--cores", "4", "--memory", "512M"]);
    let hog = [
        "run",
        "-d",
        "--name",
        "hog",
        "--cores",
        "3",
        "--memory",
        "32M",
        "--network",
        "none",
        "faulty",
        "hog",
    ];
    isola.run(&hog).ok();
    wait::until_true("the hog is at work", || isola.run(&["logs", "hog"]).ok().contains("hog: 2 cores"));
    // A core in an event that does not end copies nothing: the other core copies its samples.
    let endless = isola.json(&["profile", "hog", "--duration", "2s", "--cores", "1"]);
    assert!(endless["samples"].as_u64().unwrap() > 20 && endless["lost"] == 0, "{endless:#}");
    let profile = isola.spawn(&["profile", "hog", "--rate", "1000", "--duration", "8s", "-o", "json"]);
    for left in ["2", "1"] {
        isola.run(&["resize", "hog", "--cores", left]).ok();
        // Every unplug of memory sends NMIs of its own.
        isola.run(&["resize", "hog", "--memory", "+16M"]).ok();
        isola.run(&["resize", "hog", "--memory", "-16M"]).ok();
    }
    let taken = isola.run(&["events"]).ok().matches("core-taken").count();
    assert_eq!(taken, 2, "both cores were taken by force");
    let view: Value = serde_json::from_str(&profile.wait().ended_with(0).out).unwrap();
    assert_eq!(view["cores"], serde_json::json!([0, 1, 2]));
    let hogs = view["functions"].as_array().unwrap().iter();
    let names: Vec<&str> = hogs.filter_map(|function| function["function"].as_str()).collect();
    assert!(names.iter().any(|name| name.contains("faulty::")), "{names:#?}");
    isola.run(&["stop", "--time", "60", "hog"]).ok();
    assert!(isola.run(&["logs", "hog"]).ok().contains("hog: ended, nothing is lost"));
}
