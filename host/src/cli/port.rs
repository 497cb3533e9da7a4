//! `isola port` and `isola publish`: list a cell's published ports, and publish more while it runs.

use super::{Context, Failure, complete, show};
use crate::cellctl::{look_up, ports};
use crate::machine::LockedMachine;
use crate::output::view::PortView;
use crate::publish::PublishSpec;
use clap::Args;
use std::process::ExitCode;

/// Lists the published ports of a cell
#[derive(Debug, Args)]
pub(super) struct PortArguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
}

/// Publishes further ports of a cell, while it runs
#[derive(Debug, Args)]
#[command(after_help = "\
A port is [IP:]HOST:CELL[/tcp|udp], or CELL for any free host port. Without IP it is published on \
127.0.0.1 only. It is published again at each start of the cell.

Examples:
  isola publish kv 11212:11211
  isola publish kv 0.0.0.0:11213:11211
  isola publish --remove kv 11212:11211")]
pub(super) struct PublishArguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// The ports
    #[arg(required = true)]
    ports: Vec<PublishSpec>,
    /// Unpublishes the ports
    #[arg(long)]
    remove: bool,
}

pub(super) fn port(context: &Context, arguments: &PortArguments) -> Result<ExitCode, Failure> {
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    list(context, &locked, &arguments.cell)
}

pub(super) fn publish(context: &Context, arguments: &PublishArguments) -> Result<ExitCode, Failure> {
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = locked.client()?;
    if arguments.remove {
        ports::unpublish(&locked, &mut client, &arguments.cell, &arguments.ports)?;
    } else {
        ports::publish(&context.root, &locked, &mut client, &arguments.cell, &arguments.ports)?;
    }
    drop(client);
    list(context, &locked, &arguments.cell)
}

fn list(context: &Context, locked: &LockedMachine, name: &str) -> Result<ExitCode, Failure> {
    let cell = look_up(locked, &mut locked.client()?, name)?;
    let ports = show::ports(&locked.dir, &cell);
    let views: Vec<PortView> = ports.iter().map(PortView::new).collect();
    context.output.answer(&views, || {
        let lines =
            ports.iter().map(|port| format!("{}/{} -> {}", port.cell.port(), port.protocol, port.host));
        lines.collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}
