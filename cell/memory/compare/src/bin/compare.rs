//! Runs the workloads under callgrind on every allocator that was built, and prints the instructions of an allocation,
//! of a free and of both, and their ratio to Isola's.

use isola_memory_compare::Workload;
use std::path::Path;
use std::process::{Command, ExitCode};

const ALLOCATORS: [&str; 4] = ["isola", "glibc", "jemalloc", "mimalloc"];

/// The objects of a run: so many that the few hundred of the program's start are negligible.
const OBJECTS: usize = 100_000;

/// Returns the instructions per object that `program` executes in `function` and its callees. The error is a message
/// for the user.
fn cost(program: &Path, workload: Workload, function: &str) -> Result<f64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--demangle=no"])
        .arg(format!("--toggle-collect={function}"))
        .arg(program)
        .args([workload.name(), OBJECTS.to_string()])
        .output()
        .map_err(|error| format!("valgrind cannot be run ({error}): install it"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    log.lines()
        .find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<f64>().ok())
        .filter(|_| output.status.success())
        .map(|instructions| instructions / OBJECTS as f64)
        .ok_or_else(|| format!("{} under valgrind failed:\n{log}", program.display()))
}

fn run() -> Result<(), String> {
    let myself = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    println!(
        "{:<12} {:<10} {:>9} {:>9} {:>9} {:>9}",
        "workload", "allocator", "allocate", "free", "both", "to isola"
    );
    for workload in Workload::ALL {
        let mut isola = f64::NAN;
        for allocator in ALLOCATORS {
            let program = myself.with_file_name(format!("with-{allocator}"));
            if !program.exists() {
                continue;
            }
            let allocate = cost(&program, workload, "*___rust_alloc")?;
            let free = cost(&program, workload, "*___rust_dealloc")?;
            let both = allocate + free;
            if allocator == "isola" {
                isola = both;
            }
            let name = workload.name();
            println!(
                "{name:<12} {allocator:<10} {allocate:>9.1} {free:>9.1} {both:>9.1} {:>8.2}x",
                both / isola
            );
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}
