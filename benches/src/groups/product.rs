//! Group `product`: a cell on a machine with a supervisor, beside the same image standalone, for the cost of supervisor
//! and division in a request.
//!
//! The other groups with requests boot standalone images.

use crate::error::BenchError;
use crate::groups::bulk;
use crate::linux::PAGE;
use crate::load::echo::ping_pong;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::load::netpipe::{Direction, NetpipeClient};
use crate::load::page::Client;
use crate::machine::{MEMORY_MIB, Machine, Pace};
use crate::record::Record;
use crate::session::{Counting, Service, Session, System, cost};
use crate::supervised::{MachineSize, SupervisedMachine, spec};
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::Duration;

/// The processors of the supervised machine: the supervisor's, and the cell's.
const CORES: u32 = 2;

/// The memory of the cell, in MiB.
const CELL_MIB: u64 = 128;

/// The name of each cell.
const NAME: &str = "product";

/// The number of the client's connections.
const CONNECTIONS: usize = 16;

/// The load before the measurement, which warms up caches, above all the emulator's.
const WARM_UP: Duration = Duration::from_secs(1);

/// The measured services.
const SERVICES: [Service; 4] = [Service::Kv, Service::Echo, Service::Web, Service::Netpipe];

/// Returns the description of the load.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let seconds = session.plan.load.as_secs_f64();
    [
        (
            "cell",
            format!("one core and {CELL_MIB} MiB of a machine of {CORES} processors and {MEMORY_MIB} MiB"),
        ),
        (
            "load",
            format!(
                "as in the groups kv, web and bulk, {seconds} s each; instructions of all processors count"
            ),
        ),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// Takes one run: each image in a cell, and standalone.
pub fn run(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    for counting in [Counting::On, Counting::Off] {
        for service in SERVICES {
            let size = MachineSize { cores: CORES, queues: 1, memory_mib: MEMORY_MIB, pace: Pace::Host };
            let mut supervised = SupervisedMachine::boot(session, size, counting)?;
            let image = session.images.cell_image(service.image())?;
            supervised.provide(&image)?;
            supervised.client.create(spec(NAME, &image, 1, CELL_MIB))?;
            supervised.client.start(NAME)?;
            let mut stream = service.first_answer(&mut supervised.machine)?;
            for (figure, value) in measure(session, service, counting, &mut supervised.machine, &mut stream)?
            {
                record.isola(figure, value);
            }
            drop(supervised);
            let mut alone = session.start(System::Isola, service, counting)?;
            for (figure, value) in measure(session, service, counting, &mut alone.machine, &mut alone.stream)?
            {
                record.peer(figure, value);
            }
        }
    }
    Ok(())
}

/// Measures a service on `machine`, which has answered on `stream`.
fn measure(
    session: &Session,
    service: Service,
    counting: Counting,
    machine: &mut Machine,
    stream: &mut TcpStream,
) -> Result<Vec<(&'static str, f64)>, BenchError> {
    let duration = session.plan.load;
    let counted = counting == Counting::On;
    Ok(match service {
        Service::Kv | Service::Colocated => {
            let mut generator = Generator::connect(service.address(), CONNECTIONS, Mix::etc())?;
            generator.closed(WARM_UP)?;
            let (outcome, cost) = cost(machine, || generator.closed(duration))?;
            match counted {
                true => vec![("product-kv-instructions", cost.instructions)],
                false => vec![("product-kv-throughput", outcome.rate())],
            }
        }
        Service::Echo | Service::Short => {
            ping_pong(stream, WARM_UP)?;
            let (outcome, cost) = cost(machine, || ping_pong(stream, duration))?;
            match counted {
                true => vec![("product-echo-instructions", cost.instructions)],
                false => vec![("product-echo-round-trip", outcome.latency_us(0.5))],
            }
        }
        Service::Web => {
            let client = Client::new(service.address(), PAGE);
            let mut streams = client.connect(CONNECTIONS)?;
            client.staying(&mut streams, WARM_UP)?;
            let (outcome, cost) = cost(machine, || client.staying(&mut streams, duration))?;
            match counted {
                true => vec![("product-web-instructions", cost.instructions)],
                false => vec![("product-web-throughput", outcome.rate())],
            }
        }
        Service::Netpipe => {
            let mut figures = Vec::new();
            for (direction, instructions, rate) in [
                (Direction::ToService, "product-receive-instructions", "product-receive"),
                (Direction::FromService, "product-send-instructions", "product-send"),
            ] {
                let mut client = NetpipeClient::connect(service.address(), bulk::MESSAGE_BYTES)?;
                let mut rounds =
                    |duration| client.repeat_for(direction, bulk::MESSAGE_BYTES, bulk::MESSAGES, duration);
                rounds(WARM_UP)?;
                let (outcome, cost) = cost(machine, || rounds(duration))?;
                figures.push(match counted {
                    true => (instructions, cost.instructions * bulk::PER_MIB),
                    false => (rate, outcome.rate() * bulk::MESSAGE_BYTES as f64 / bulk::MB),
                });
            }
            figures
        }
    })
}
