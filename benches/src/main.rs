//! `cargo xtask bench`: takes figures and prints them.

use clap::Parser;
use isola_benches::cli::{Cli, Output, Tables};
use isola_benches::error::BenchError;
use isola_benches::figure::{Group, figures};
use isola_benches::record::Record;
use isola_benches::session::Session;
use isola_benches::{groups, host, interrupt, network, origin, pages, session, table};
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
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    match cli.tables {
        Some(Tables::Check) => return pages::check(home),
        Some(Tables::Write) => return pages::write(home),
        None => {}
    }
    // What is published changes the tree, but not the one that was measured.
    let tree = origin::tree();
    cli.demand_runs()?;
    if cli.publish {
        origin::demand_commit(&tree)?;
        host::demand_quiet([host::wait_until_quiet()?])?;
    }
    let needs_machines = cli.groups().into_iter().any(Group::needs_machines);
    if needs_machines {
        session::fetch(cli.plan().kernel)?;
        network::enter()?;
    }
    interrupt::listen().map_err(BenchError::file("the signals of this process"))?;
    let session = if needs_machines { Some(Session::open(cli.plan(), tree.clone())?) } else { None };
    let mut unpublished = None;
    for group in cli.groups() {
        let record = match &session {
            Some(session) => groups::run(group, session, cli.line(group))?,
            None => groups::run_natively(group, cli.plan(), cli.line(group), &tree)?,
        };
        print(cli.output, &record);
        let path = record.save(&home.join("../.bench-cache/data"))?;
        eprintln!("bench: raw data: {}", path.display());
        if cli.publish {
            match pages::publish(home, &record) {
                // The figures of the other groups do not depend on these.
                Err(error @ (BenchError::HostBusy { .. } | BenchError::PaceLost { .. })) => {
                    eprintln!("bench: {} is not published: {error}", group.name());
                    unpublished = Some(error);
                }
                published => published?,
            }
        }
    }
    unpublished.map_or(Ok(()), Err)
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
