//! Vortex 4.2 and its figures 5 and 6: three web servers with a file of 1 MB and 16 connections each, on a link of a
//! limited rate that their clients could fill alone.

use super::guest::TenantGuest;
use super::isola::{TenantMachine, rule, weights, wfq};
use super::shares::{EQUAL, WEIGHTS, deviation, percent};
use super::{SETTLE, note};
use crate::error::BenchError;
use crate::load::download::Downloads;
use crate::network::service;
use crate::record::Record;
use crate::session::{Session, System};
use isola_abi::grid::{GridSetup, Resource};
use std::time::Duration;

/// The servers and their ports.
const NAMES: [&str; 3] = ["first", "second", "third"];
const PORTS: [u16; 3] = [80, 81, 82];

/// The file, and its length in bytes.
const FILE: (&str, usize) = ("1m", 1_000_000);

/// The number of the client's connections to each server.
const CONNECTIONS: usize = 16;

/// The rate of the link, in bytes/s: a part of what either system could send.
pub const RATE: u64 = 8_000_000;

/// Takes one run.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    match system {
        System::Isola => {
            let mut machine = TenantMachine::boot(session, Vec::new())?;
            let mut changes =
                vec![wfq(Resource::Processor, 1, None), wfq(Resource::NetworkWrite, 1, Some(RATE))];
            changes.extend(weights(Resource::Processor, NAMES, WEIGHTS));
            changes.extend(weights(Resource::NetworkWrite, NAMES, WEIGHTS));
            let rules = PORTS.into_iter().zip(NAMES).map(|(port, name)| rule(port, name)).collect();
            machine.start(&PORTS.map(|port| format!("web:{port}")), GridSetup { changes, rules })?;
            measure(session, system, record, || {
                machine.change(weights(Resource::Processor, NAMES, EQUAL))?;
                machine.change(weights(Resource::NetworkWrite, NAMES, EQUAL))
            })
        }
        System::Linux => {
            let mut guest = TenantGuest::boot(session, NAMES, Vec::new())?;
            guest.run("/bin/tc qdisc add dev eth0 root handle 1: htb")?;
            guest.run(&format!("/bin/tc class add dev eth0 parent 1: classid 1:1 htb rate {RATE}bps"))?;
            for ((name, port), class) in NAMES.into_iter().zip(PORTS).zip(10..) {
                // Each worker sends large files by sendfile, with full segments.
                guest.run(&format!(
                    "busybox sed 's/listen 80/listen {port}/; s/nginx.pid/{name}.pid/; s/sendfile off/sendfile on/; \
                     s/tcp_nopush off/tcp_nopush on/' /etc/nginx.conf >/etc/{name}.conf"
                ))?;
                guest.tenant(name, &format!("nginx -c /etc/{name}.conf"));
                guest
                    .run(&format!("/bin/tc class add dev eth0 parent 1:1 classid 1:{class} htb rate 1bps"))?;
                guest.run(&format!(
                    "/bin/tc filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip sport {port} 0xffff flowid \
                     1:{class}"
                ))?;
            }
            let classes = |guest: &mut TenantGuest, weights: [u32; 3]| {
                let all: u32 = weights.iter().sum();
                weights.into_iter().zip(10..).try_for_each(|(weight, class)| {
                    let rate = RATE * u64::from(weight) / u64::from(all);
                    guest.run(&format!(
                        "/bin/tc class change dev eth0 parent 1:1 classid 1:{class} htb rate {rate}bps ceil {RATE}bps"
                    ))
                })
            };
            classes(&mut guest, WEIGHTS)?;
            measure(session, system, record, || classes(&mut guest, EQUAL))
        }
    }
}

/// Downloads, with weights and after `make_equal`.
fn measure(
    session: &Session,
    system: System,
    record: &mut Record,
    make_equal: impl FnOnce() -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let mut downloads = Downloads::connect(&PORTS.map(service), CONNECTIONS, FILE.0, FILE.1)?;
    let read = |downloads: &mut Downloads, time: Duration| {
        // The frames that wait are from before.
        downloads.for_a_time(2 * SETTLE)?;
        let done = downloads.for_a_time(time)?;
        Ok::<_, BenchError>([0, 1, 2].map(|server| done.bytes[server] as f64))
    };
    let used = read(&mut downloads, session.plan.load)?;
    note(record, system, "grid-network-error", deviation(used, WEIGHTS));
    let could = RATE as f64 * session.plan.load.as_secs_f64();
    note(record, system, "grid-network-link", percent(used.iter().sum(), could));
    make_equal()?;
    let used = read(&mut downloads, session.plan.load / 2)?;
    note(record, system, "grid-network-equal", deviation(used, EQUAL));
    Ok(())
}
