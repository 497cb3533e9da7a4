//! Programs in user mode: the image `programs` checks what ring 0 sees of them, in a cell and standalone, and continues
//! while the supervisor takes samples, cores and memory.

use isola_tests::isola::Isola;
use isola_tests::qemu::{Machine, MachineType};
use isola_tests::{images, wait};
use serde_json::Value;

const PASSED: &str = "programs: all checks passed";

/// Starts the image in a cell, with an argument, and waits until its programs run.
fn start(isola: &Isola, cores: &str, argument: &str) {
    let image = images::path("programs");
    let image = image.to_str().expect("a path in UTF-8");
    let run = ["run", "-d", "--name", "programs", "--memory", "64M", "--network", "none"];
    isola.run(&[&run[..], &["--cores", cores, image, argument]].concat()).ok();
    let begins = format!("programs on {cores} cores");
    wait::until_true("the programs run", || isola.run(&["logs", "programs"]).ok().contains(&begins));
}

/// Resizes the cell. On a busy host, an earlier move of a core may not have ended yet.
fn resize(isola: &Isola, option: &str, amount: &str) {
    let is_done = || isola.run(&["resize", "programs", option, amount]).code == Some(0);
    wait::until_true("the cell is resized", is_done);
}

/// Stops the cell, and returns its output.
#[track_caller]
fn stop(isola: &Isola) -> String {
    isola.run(&["stop", "--time", "60", "programs"]).ok();
    isola.run(&["logs", "programs"]).ok()
}

#[test]
fn programs_run_standalone_on_one_and_on_two_cores() {
    for (kind, cores) in [(MachineType::Q35, 1), (MachineType::Q35, 2), (MachineType::Microvm, 2)] {
        let outcome = Machine::new(kind, "programs").cores(cores).run();
        assert_eq!(outcome.exit_code, Some(0), "{kind:?}, {cores} cores: {}", outcome.serial);
        assert!(outcome.serial.contains(PASSED), "{}", outcome.serial);
    }
}

#[test]
fn programs_run_with_an_apic_in_memory() {
    let outcome = Machine::new(MachineType::Q35, "programs").cpu("max,-x2apic").cores(2).run();
    assert_eq!(outcome.exit_code, Some(0), "{}", outcome.serial);
}

#[test]
fn a_processor_without_smap_runs_no_programs() {
    let outcome = Machine::new(MachineType::Q35, "programs").cpu("max,-smap").run();
    assert_eq!(outcome.exit_code, Some(3), "{}", outcome.serial);
    assert!(outcome.serial.contains("the processor runs no programs"), "{}", outcome.serial);
}

#[test]
fn programs_run_in_a_cell_of_a_supervisor() {
    let isola = Isola::up(&["--cores", "3"]);
    let image = images::path("programs");
    let run = ["run", "--cores", "2", "--memory", "64M", "--network", "none"];
    let outcome = isola.run(&[&run[..], &[image.to_str().expect("a path in UTF-8")]].concat());
    assert!(outcome.out.contains(PASSED), "{outcome:?}");
    assert!(outcome.out.contains("messages interrupt programs"), "two cores: {outcome:?}");
}

/// Non-maskable interrupts at any instruction of entry, exit and program.
#[test]
fn system_calls_continue_while_samples_are_taken_and_memory_moves() {
    continue_while_sampled(&[]);
}

#[test]
fn system_calls_continue_while_samples_are_taken_and_cores_and_memory_move() {
    continue_while_sampled(&["2", "1", "3", "2", "3"]);
}

/// Takes samples and moves memory, and cores to each of these numbers, while programs on three cores make system calls.
fn continue_while_sampled(cores: &[&str]) {
    let isola = Isola::up(&["--cores", "4", "--memory", "512M"]);
    start(&isola, "3", "calls");
    let profile = isola.spawn(&["profile", "programs", "--rate", "1000", "--duration", "8s", "-o", "json"]);
    for turn in 0..5 {
        if let Some(cores) = cores.get(turn) {
            resize(&isola, "--cores", cores);
        }
        resize(&isola, "--memory", "+16M");
        resize(&isola, "--memory", "-16M");
    }
    let view: Value = serde_json::from_str(&profile.wait().ended_with(0).out).unwrap();
    assert!(view["samples"].as_u64() > Some(100), "{view:#}");
    let output = stop(&isola);
    assert!(output.contains("system calls"), "{output}");
}

/// Cores are taken in the middle of an event that makes system calls; another core continues it.
#[test]
fn a_core_is_taken_by_force_between_system_calls() {
    let isola = Isola::up(&["--cores", "4"]);
    start(&isola, "3", "stubborn");
    // A core comes back only when the suspended events have ended.
    for cores in ["2", "1", "3", "1"] {
        resize(&isola, "--cores", cores);
    }
    assert!(isola.run(&["events"]).ok().contains("core-taken"), "no core was taken by force");
    let output = stop(&isola);
    assert!(output.contains("stubborn events"), "{output}");
}

/// A program that computes has no traps of its own: it neither counts as hung, nor delays the departure of its core.
#[test]
fn a_program_that_computes_is_not_hung_and_leaves_its_core_when_ordered() {
    let isola = Isola::up(&["--cores", "3"]);
    start(&isola, "2", "loop");
    for cores in ["1", "2", "1"] {
        resize(&isola, "--cores", cores);
    }
    assert!(isola.run(&["events"]).ok().contains("core-left"), "an interrupt ends user mode");
    std::thread::sleep(std::time::Duration::from_secs(12));
    let output = stop(&isola);
    assert!(output.contains("the loops have ended"), "{output}");
    // The host may keep a core from running for a while; a program that could delay events does so for seconds.
    let held =
        output.lines().filter_map(|line| line.split("held its core up for ").nth(1)?.split(' ').next());
    let held: Vec<u64> = held.map(|milliseconds| milliseconds.parse().unwrap()).collect();
    assert!(held.iter().all(|milliseconds| *milliseconds < 1000), "a program delays no event: {output}");
}
