//! `cargo xtask bench`: takes figures and prints them.

use clap::Parser;
use isola_benches::cli::{Cli, Output};
use isola_benches::error::BenchError;
use isola_benches::figure::{Group, figures};
use isola_benches::record::Record;
use isola_benches::session::Session;
use isola_benches::{groups, interrupt, network, session, table};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// What a shell gives a program that ^C ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(BenchError::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<(), BenchError> {
    let needs_machines = cli.groups().into_iter().any(Group::needs_machines);
    if needs_machines {
        session::fetch()?;
        network::enter()?;
    }
    interrupt::listen().map_err(BenchError::file("the signals of this process"))?;
    let session = if needs_machines { Some(Session::open(cli.plan())?) } else { None };
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    for group in cli.groups() {
        let record = match &session {
            Some(session) => groups::run(group, session, cli.line(group))?,
            None => groups::run_natively(group, cli.plan(), cli.line(group))?,
        };
        print(cli.output, &record);
        let kept = record.save(&home.join("../.bench-cache/data"))?;
        eprintln!("bench: raw data: {}", kept.display());
        if cli.publish {
            publish(home, &record)?;
        }
    }
    Ok(())
}

fn print(output: Output, record: &Record) {
    match output {
        Output::Human => println!("{}", table::plain(record)),
        Output::Json => {
            for (_, figure) in figures(record) {
                println!("{}", serde_json::json!(figure));
            }
        }
    }
}

/// Puts a record beside the README, and its figures into it.
fn publish(home: &Path, record: &Record) -> Result<(), BenchError> {
    let (data, readme) = (home.join("data"), home.join("README.md"));
    let saved = record.save(&data)?;
    if let Some(picture) = table::picture(record) {
        let path = saved.with_extension("svg");
        fs::write(&path, picture).map_err(BenchError::file(&path))?;
    }
    let mut records = Vec::new();
    for group in Group::ALL {
        records.extend(Record::load(&data, group)?);
    }
    let text = fs::read_to_string(&readme).map_err(BenchError::file(&readme))?;
    let text = table::publish(&text, &records).unwrap_or(text);
    fs::write(&readme, text).map_err(BenchError::file(&readme))
}
