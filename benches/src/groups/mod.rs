//! The groups of figures, one file each.

mod boot;
mod bulk;
mod cell;
mod colocation;
mod connections;
mod elastic;
pub mod grid;
mod kv;
mod library;
mod link;
mod linux;
mod linux_servers;
mod loops;
mod memory;
mod netpipe;
mod pager;
mod product;
mod service;
mod service_network;
mod stack;
mod web;

use crate::error::BenchError;
use crate::figure::Group;
use crate::host;
use crate::record::Record;
use crate::session::{Plan, Session, System};
use std::collections::BTreeMap;

/// Measures a group that boots no machine.
///
/// # Errors
/// Those of the group.
pub fn run_natively(group: Group, plan: Plan, command: String, tree: &str) -> Result<Record, BenchError> {
    if group == Group::Stack { stack::run(plan, command, tree) } else { memory::run(plan, command, tree) }
}

/// Measures a group.
///
/// # Errors
/// Those of the group.
pub fn run(group: Group, session: &Session, command: String) -> Result<Record, BenchError> {
    let load = match group {
        Group::Kv => kv::load(session),
        Group::Web => web::load(session),
        Group::Product => product::load(session),
        Group::Bulk => bulk::load(session),
        Group::Netpipe => netpipe::load(session),
        Group::Connections => connections::load(session),
        Group::Memory | Group::Stack => return run_natively(group, session.plan, command, &session.tree),
        Group::Pager => pager::load(),
        Group::Linux => linux::load(),
        Group::Link => link::load(),
        Group::LinuxServers => linux_servers::load(session),
        Group::Loop => loops::load(session),
        Group::Service => service::load(session),
        Group::Library => return library::run(session, command),
        Group::Elastic => elastic::load(),
        Group::Colocation => colocation::load(session),
        Group::Grid => grid::load(session),
        Group::Boot | Group::Cell => BTreeMap::new(),
    };
    let mut record = Record::new(group, now(), command, session.setting(group, load));
    let runs = session.plan.runs;
    let (mut kv, mut colocation) = (kv::Kv::default(), colocation::Colocation::default());
    for run in 0..runs {
        begin(&mut record, run, session.plan)?;
        // The order of the systems alternates, so that a drift of the host affects both equally.
        let order =
            if run % 2 == 0 { [System::Linux, System::Isola] } else { [System::Isola, System::Linux] };
        for system in order {
            match group {
                Group::Boot => boot::run(session, system, &mut record)?,
                Group::Cell => cell::run(session, system, &mut record)?,
                Group::Product if system == System::Isola => product::run(session, &mut record)?,
                Group::Elastic if system == System::Isola => elastic::run(session, &mut record)?,
                Group::Service if system == System::Isola => {
                    service::run(session, &mut record)?;
                    service_network::run(session, &mut record)?;
                }
                Group::Colocation => colocation.run(session, system, &mut record)?,
                Group::Grid => grid::run(session, system, &mut record)?,
                Group::Kv => kv.run(session, system, &mut record)?,
                Group::Web => web::run(session, system, &mut record)?,
                Group::Bulk => bulk::run(session, system, &mut record)?,
                Group::Netpipe => netpipe::run(session, system, &mut record)?,
                Group::Connections => connections::run(session, system, &mut record)?,
                Group::Product
                | Group::Elastic
                | Group::Memory
                | Group::Library
                | Group::Service
                | Group::Stack => {}
                Group::Pager => pager::run(session, system, &mut record)?,
                Group::Linux => linux::run(session, system, &mut record)?,
                Group::Link => link::run(session, system, &mut record)?,
                Group::LinuxServers => linux_servers::run(session, system, &mut record)?,
                Group::Loop => loops::run(session, system, &mut record)?,
            }
        }
    }
    if group == Group::Grid {
        grid::finish(&mut record);
    }
    record.setting.machines = session.take_machines();
    Ok(record)
}

/// Reports that a run begins and records how busy other work keeps the host. If the figures will be published, waits
/// for a quiet host first.
fn begin(record: &mut Record, run: u32, plan: Plan) -> Result<(), BenchError> {
    eprintln!("bench: {}, run {} of {}", record.group().name(), run + 1, plan.runs);
    let busy = if plan.publish { host::wait_until_quiet()? } else { host::busy_percent()? };
    record.setting.host_busy_percent.push(busy.round());
    Ok(())
}

/// Returns the time in the format of records.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()
}

/// Records a value of a system.
fn note(record: &mut Record, system: System, figure: &str, value: f64) {
    match system {
        System::Isola => record.isola(figure, value),
        System::Linux => record.peer(figure, value),
    }
}
