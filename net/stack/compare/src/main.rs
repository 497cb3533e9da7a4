//! `isola-stack-compare STACK WORK COUNT`: does the work and prints nanoseconds per unit and frames per unit.

use isola_stack_compare::{StackKind, Work};
use std::env;
use std::process::ExitCode;

const USAGE: &str = "usage: isola-stack-compare isola|smoltcp bulk|echo|connect COUNT";

fn main() -> ExitCode {
    match run() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<String, String> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [who, work, count] = &arguments[..] else { return Err("three arguments are needed".into()) };
    let who: StackKind = who.parse()?;
    let count = count.parse().map_err(|_| format!("{count:?} is no count"))?;
    let work = Work::named(work, count).map_err(|error| error.to_string())?;
    let outcome = who.run(work);
    let units = f64::from(outcome.units.max(1));
    Ok(format!("{:.1} {:.2}", outcome.elapsed.as_nanos() as f64 / units, outcome.frames as f64 / units))
}
