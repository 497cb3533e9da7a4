//! `cargo xtask gate`: counts instructions and compares them with the baseline in `benches/gate.toml`; with `--write`
//! it counts three times and writes the baseline. Prints a line for each count, in the format of `cargo test`.

use isola_benches::error::BenchError;
use isola_benches::gate::baseline::Baseline;
use isola_benches::gate::{Counts, Gate};
use isola_benches::interrupt;
use isola_benches::statistics::median;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let writes = match &arguments[..] {
        [] => false,
        [word] if word == "--write" => true,
        _ => {
            eprintln!("usage: cargo xtask gate [--write]");
            return ExitCode::from(2);
        }
    };
    match run(writes) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("gate: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns the number of failed comparisons.
fn run(writes: bool) -> Result<usize, BenchError> {
    interrupt::listen().map_err(BenchError::file("the signals of this process"))?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("gate.toml");
    let baseline = if path.exists() { Baseline::load(&path)? } else { Baseline::default() };
    let gate = Gate::open()?;
    let counts = gate.count()?;
    if writes {
        let more = [gate.count()?, gate.count()?];
        let counts = middle(&counts, &more);
        Baseline::write(&path, &counts)?;
        counts.iter().for_each(|(name, count)| println!("{name}: {count:.1} instructions"));
        return Ok(0);
    }
    let lines = baseline.compare(&counts);
    let failed = lines.iter().filter(|(holds, _)| !holds).count();
    for (holds, line) in &lines {
        println!("test {line} ... {}", if *holds { "ok" } else { "FAILED" });
    }
    let passed = lines.len() - failed;
    println!("test result: {}. {passed} passed; {failed} failed", if failed == 0 { "ok" } else { "FAILED" });
    if failed > 0 {
        println!("if the change is intended, update the baseline: cargo xtask gate --write");
    }
    Ok(failed)
}

/// Returns the median of each count.
fn middle(counts: &Counts, more: &[Counts]) -> Counts {
    let of = |name: &str| more.iter().filter_map(|counts| counts.get(name)).copied().collect::<Vec<_>>();
    counts.iter().map(|(name, &count)| (name.clone(), median(&[&[count][..], &of(name)].concat()))).collect()
}
