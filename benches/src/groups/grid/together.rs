//! A key-value server, a web server and a batch job on one core: their shares while all three are in overload, and the
//! latency of the key-value server under a light load while the others are in overload. The processors are paced
//! ([`crate::pace`]), so that the client saturates the servers and the host keeps up.

use super::guest::TenantGuest;
use super::isola::{TenantMachine, rule, weights, wfq};
use super::shares::{WEIGHTS, deviation};
use super::{SETTLE, note};
use crate::error::BenchError;
use crate::load::Outcome;
use crate::load::download::Downloads;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::machine::Machine;
use crate::network::service;
use crate::pace::{self, RealTimePriority};
use crate::record::Record;
use crate::session::{KV_PORT, Service, Session, System, WEB_PORT};
use isola_abi::grid::{GridSetup, Resource};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

/// The tenants, in the order of the weights.
const NAMES: [&str; 3] = ["kv", "web", "batch"];

/// The rate of each processor, in instructions/s.
pub const PACE: u64 = 20_000_000;

/// The number of the client's connections to each server, with a request in flight on each.
const CONNECTIONS: usize = 32;

/// The file of the web server, and its length in bytes.
const FILE: (&str, usize) = ("507", 507);

/// The light load, in requests/s: for Linux about a quarter of a processor, of which the tenant is entitled to half.
pub const LIGHT: f64 = 200.0;

/// The bound of the batch job's count, as in Isola's image: it does not end during a measurement.
const NUMBER: u64 = 100_000_000;

/// Either system.
trait Tenants {
    /// Returns the machine.
    fn machine(&mut self) -> &mut Machine;

    /// Starts the batch job.
    fn start_batch(&mut self) -> Result<(), BenchError>;

    /// Returns what each tenant has used of the processor in a time.
    fn used(&mut self, time: Duration) -> Result<[f64; 3], BenchError>;
}

impl Tenants for TenantMachine {
    fn machine(&mut self) -> &mut Machine {
        &mut self.supervised.machine
    }

    fn start_batch(&mut self) -> Result<(), BenchError> {
        start(self, true)
    }

    fn used(&mut self, time: Duration) -> Result<[f64; 3], BenchError> {
        let before = self.ledger(NAMES)?;
        sleep(time);
        Ok(self.ledger(NAMES)?.since(&before).tenants)
    }
}

impl Tenants for TenantGuest {
    fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    fn start_batch(&mut self) -> Result<(), BenchError> {
        self.tenant(NAMES[2], &format!("linux-batch {NUMBER} 1"));
        Ok(())
    }

    fn used(&mut self, time: Duration) -> Result<[f64; 3], BenchError> {
        Ok(self.measure(time, "cpu.stat", "usage_usec")?.used)
    }
}

/// Starts the cell, with or without the batch job.
fn start(machine: &mut TenantMachine, with_batch: bool) -> Result<(), BenchError> {
    let mut changes = vec![wfq(Resource::Processor, 1, None), wfq(Resource::NetworkWrite, 1, None)];
    changes.extend(weights(Resource::Processor, NAMES, WEIGHTS));
    changes.extend(weights(Resource::NetworkWrite, NAMES, WEIGHTS));
    let rules = vec![rule(KV_PORT, NAMES[0]), rule(WEB_PORT, NAMES[1])];
    let mut tenants = vec![format!("kv:{KV_PORT}"), format!("web:{WEB_PORT}")];
    if with_batch {
        tenants.push(format!("batch:{}", NAMES[2]));
    }
    machine.start(&tenants, GridSetup { changes, rules })?;
    Service::Kv.first_answer(&mut machine.supervised.machine).map(|_| ())
}

/// Takes one run.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    let pacer: Vec<_> = session.pacer.arguments().into();
    match system {
        System::Isola => {
            let mut machine = TenantMachine::boot(session, pacer)?;
            start(&mut machine, false)?;
            measure(session, system, &mut machine, record)
        }
        System::Linux => {
            let mut guest = TenantGuest::boot(session, NAMES, pacer)?;
            guest.set("cpu.weight", WEIGHTS)?;
            guest.tenant(NAMES[0], "memcached -u root -U 0 -t 1 -m 64");
            guest.tenant(NAMES[1], "nginx -c /etc/nginx.conf");
            Service::Kv.first_answer(&mut guest.machine)?;
            Service::Web.first_answer(&mut guest.machine)?;
            measure(session, system, &mut guest, record)
        }
    }
}

fn measure(
    session: &Session,
    system: System,
    tenants: &mut dyn Tenants,
    record: &mut Record,
) -> Result<(), BenchError> {
    let load = session.plan.load;
    // At full speed, so that the emulator has translated the code before the pace begins.
    Generator::connect(service(KV_PORT), CONNECTIONS, Mix::etc())?.closed(SETTLE)?;
    Downloads::connect(&[service(WEB_PORT)], CONNECTIONS, FILE.0, FILE.1)?.for_a_time(SETTLE)?;
    pace::set(tenants.machine(), PACE)?;
    let _priority = RealTimePriority::set_for(tenants.machine());

    let mut generator = Generator::connect(service(KV_PORT), CONNECTIONS, Mix::etc())?;
    generator.open(LIGHT, SETTLE)?;
    let before_s = pace::lost_s(tenants.machine())?;
    let alone = generator.open(LIGHT, load)?;
    let mut lost_s = pace::lost_s(tenants.machine())? - before_s;
    drop(generator);

    // Unpaced: a machine of this speed would need seconds for a new cell.
    pace::set(tenants.machine(), FULL_SPEED)?;
    tenants.start_batch()?;
    let mut generator = Generator::connect(service(KV_PORT), CONNECTIONS, Mix::etc())?;
    pace::set(tenants.machine(), PACE)?;
    let before_s = pace::lost_s(tenants.machine())?;
    let beside = beside_web(|| {
        generator.open(LIGHT, SETTLE)?;
        generator.open(LIGHT, load)
    })?;
    let used = beside_web(|| {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let saturated = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    generator.closed(SETTLE)?;
                }
                Ok::<_, BenchError>(())
            });
            sleep(SETTLE);
            let used = tenants.used(load);
            is_over.store(true, Ordering::Relaxed);
            // A panic of the thread is a defect and must surface.
            saturated.join().expect("the thread of the client")?;
            used
        })
    })?;
    lost_s += pace::lost_s(tenants.machine())? - before_s;
    note_latencies(system, &alone, &beside, record);
    note(record, system, "grid-together-error", deviation(used, WEIGHTS));
    note(record, system, "grid-lost", lost_s);
    Ok(())
}

/// A pace that no emulated processor reaches, in instructions/s.
const FULL_SPEED: u64 = 100_000_000_000;

fn note_latencies(system: System, alone: &Outcome, beside: &Outcome, record: &mut Record) {
    let p99_ms = |outcome: &Outcome| outcome.latency_us(0.99) / 1e3;
    note(record, system, "grid-light-p50", beside.latency_us(0.5) / 1e3);
    note(record, system, "grid-light-p99", p99_ms(beside));
    note(record, system, "grid-light-alone-p99", p99_ms(alone));
    note(record, system, "grid-light-slowdown", p99_ms(beside) / p99_ms(alone));
}

/// Does `work` while the web server is in overload.
fn beside_web<T>(work: impl FnOnce() -> Result<T, BenchError>) -> Result<T, BenchError> {
    let mut downloads = Downloads::connect(&[service(WEB_PORT)], CONNECTIONS, FILE.0, FILE.1)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| downloads.until(|| is_over.load(Ordering::Relaxed)));
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        // A panic of the thread is a defect and must surface.
        load.join().expect("the thread of the client")?;
        done
    })
}
