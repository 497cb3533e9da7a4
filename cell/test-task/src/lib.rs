//! A test as the first task of a cell on threads of this process.
//!
//! Not here: cells with a network (`isola-test-cells`), and tests that exchange parts of the platform.
#![forbid(unsafe_code)]

use isola_ebbs::current_core;
use isola_events::{exit, run, spawn_task};
use isola_hosted::Settings;
use isola_platform::CoreIndex;

/// Runs `main` as a task of a cell with one core, and ends the cell with it.
///
/// # Panics
/// If `main` panics, or the cell ends with another exit code than 0.
pub fn run_task<F: Future<Output = ()> + 'static>(main: impl Fn() -> F + Sync) {
    run_task_on(1, main);
}

/// Runs `main` as a task on the first core of a cell with `cores` cores, and ends the cell with it.
///
/// # Panics
/// As [`run_task`].
pub fn run_task_on<F: Future<Output = ()> + 'static>(cores: usize, main: impl Fn() -> F + Sync) {
    let codes = isola_hosted::run(Settings { cores, ..Settings::default() }, Vec::new(), |_| {
        if current_core() == CoreIndex(0) {
            let main = main();
            spawn_task(async move {
                main.await;
                exit(0);
            })
            .detach();
        }
        run()
    });
    assert_eq!(codes, vec![0; cores], "exit codes of the cores");
}
