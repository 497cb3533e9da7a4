//! Requests: of a key-value service under the ETC-like mix, and of an echo service.

use super::note;
use crate::error::BenchError;
use crate::load::echo::ping_pong;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::record::Record;
use crate::session::{Counting, Service, Session, System, cost, mib};
use std::collections::BTreeMap;
use std::time::Duration;

/// Connections of the client.
const CONNECTIONS: usize = 16;

/// Low load, in requests a second.
const LOW_RATE: f64 = 500.0;

/// Before anything is measured, so much load warms up caches, the emulator's above all.
const WARM_UP: Duration = Duration::from_secs(1);

/// Under which load is measured.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let seconds = session.plan.load.as_secs_f64();
    [
        ("mix", "ETC-like: keys of 20 to 70 bytes, values of 1 to 1024, 90 % get, 10,000 keys".to_owned()),
        ("client", format!("one thread, {CONNECTIONS} connections, sleeps while it waits")),
        ("saturation", format!("closed loop, {seconds} s")),
        ("low load", format!("open loop, {LOW_RATE} requests/s, {seconds} s")),
        ("echo", format!("one connection, {seconds} s")),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// What runs have in common.
#[derive(Debug, Default)]
pub struct Kv {
    /// The load at which latencies are compared, in requests a second, once it is known.
    same_load: Option<f64>,
}

impl Kv {
    /// Boots twice: for instructions, and for times.
    pub fn run(&mut self, session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
        for counting in [Counting::On, Counting::Off] {
            self.requests(session, system, counting, record)?;
            self.echo(session, system, counting, record)?;
        }
        Ok(())
    }

    fn requests(
        &mut self,
        session: &Session,
        system: System,
        counting: Counting,
        record: &mut Record,
    ) -> Result<(), BenchError> {
        let mut guest = session.start(system, Service::Kv, counting)?;
        let mut generator = Generator::connect(Service::Kv.address(), CONNECTIONS, Mix::etc())?;
        generator.closed(WARM_UP)?;
        let machine = &mut guest.machine;
        let (saturated, cost_saturated) = cost(machine, || generator.closed(session.plan.load))?;
        let (_, cost_low) = cost(machine, || generator.open(LOW_RATE, session.plan.load))?;
        if counting == Counting::On {
            note(record, system, "kv-instructions", cost_saturated.instructions);
            note(record, system, "kv-instructions-low", cost_low.instructions);
            return Ok(());
        }
        note(record, system, "kv-cpu", cost_saturated.cpu_us);
        note(record, system, "kv-cpu-low", cost_low.cpu_us);
        note(record, system, "kv-throughput", saturated.rate());
        if system == System::Linux && self.same_load.is_none() {
            let rate = (saturated.rate() / 2.0).round();
            self.same_load = Some(rate);
            let how = format!("open loop, {rate} requests/s, {} s", session.plan.load.as_secs_f64());
            record.setting.load.insert("same load".to_owned(), how);
        }
        // The first run begins with Linux.
        if let Some(rate) = self.same_load {
            let outcome = generator.open(rate, session.plan.load)?;
            note(record, system, "kv-p50", outcome.latency_us(0.5));
            note(record, system, "kv-p99", outcome.latency_us(0.99));
        }
        note(record, system, "kv-memory", mib(machine.touched_bytes()?));
        Ok(())
    }

    fn echo(
        &self,
        session: &Session,
        system: System,
        counting: Counting,
        record: &mut Record,
    ) -> Result<(), BenchError> {
        let mut guest = session.start(system, Service::Echo, counting)?;
        ping_pong(&mut guest.stream, WARM_UP)?;
        let (outcome, cost) = cost(&mut guest.machine, || ping_pong(&mut guest.stream, session.plan.load))?;
        if counting == Counting::On {
            note(record, system, "echo-instructions", cost.instructions);
        } else {
            note(record, system, "echo-cpu", cost.cpu_us);
            note(record, system, "echo-round-trip", outcome.latency_us(0.5));
        }
        Ok(())
    }
}
