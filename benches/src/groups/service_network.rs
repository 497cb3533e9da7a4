//! Group `service`, the network: three cells that share the network device of a service cell, whose rate is limited. Their
//! shares while one of them floods it, and the latency of a light one beside that flood.

use super::grid::isola::{bytes_of, weights, wfq};
use super::grid::shares::{WEIGHTS, deviation};
use crate::error::BenchError;
use crate::load::download::Downloads;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::machine::Pace;
use crate::network::GUEST;
use crate::record::Record;
use crate::session::{Counting, KV_PORT, Session, WEB_PORT};
use crate::supervised::{MachineSize, SupervisedMachine, spec};
use isola_abi::descriptor::NetworkAddress;
use isola_abi::grid::{GridSetup, Resource};
use isola_abi::management::{CellSpec, NetworkSpec};
use isola_abi::network_service::{NetworkPort, NetworkService};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The clients, and the service cell.
const NAMES: [&str; 3] = ["first", "second", "third"];
const SERVICE: &str = "net";

/// The rate of what the clients send together, in bytes/s: a part of what they could send.
const RATE: u64 = 8_000_000;

/// The file that is downloaded, and its length in bytes.
const FILE: (&str, usize) = ("1m", 1_000_000);

/// The connections to a client; to the third, which floods, it is this many times so many.
const CONNECTIONS: usize = 16;
const FLOOD: usize = 4;

/// The light load of the first client: connections, and requests/s.
const LIGHT: (usize, f64) = (8, 200.0);

/// The time until queues have the length that they keep.
const SETTLE: Duration = Duration::from_secs(1);

/// The memory of the machine, of the service cell and of a client, in MiB.
const MACHINE_MIB: u32 = 1024;
const SERVICE_MIB: u64 = 64;
const CLIENT_MIB: u64 = 192;

/// Returns the description of the load.
pub fn load(seconds: f64) -> String {
    let flood = CONNECTIONS * FLOOD;
    let (connections, rate) = LIGHT;
    format!(
        "{RATE} bytes/s; downloads of 1 MB over {CONNECTIONS}, {CONNECTIONS} and {flood} connections; {rate} requests/s to a \
         key-value server over {connections}; {seconds} s each"
    )
}

/// Measures once.
pub fn run(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let mut machine = boot(session)?;
    let load = session.plan.load;
    let third = address(2, WEB_PORT);
    let mut servers = vec![address(0, WEB_PORT), address(1, WEB_PORT)];
    servers.extend([third; FLOOD]);
    let mut downloads = Downloads::connect(&servers, CONNECTIONS, FILE.0, FILE.1)?;
    downloads.for_a_time(2 * SETTLE)?;
    let before = bytes_of(&mut machine.client, SERVICE, Resource::NetworkWrite, NAMES)?;
    downloads.for_a_time(load)?;
    let after = bytes_of(&mut machine.client, SERVICE, Resource::NetworkWrite, NAMES)?;
    drop(downloads);
    let used = [0, 1, 2].map(|index| after[index] - before[index]);
    record.isola("service-network-shares", deviation(used, WEIGHTS));

    let mut generator = Generator::connect(address(0, KV_PORT), LIGHT.0, Mix::etc())?;
    generator.open(LIGHT.1, SETTLE)?;
    let alone = generator.open(LIGHT.1, load)?;
    let mut flood = Downloads::connect(&[third], CONNECTIONS * FLOOD, FILE.0, FILE.1)?;
    let is_over = AtomicBool::new(false);
    let beside = thread::scope(|scope| {
        let flood = scope.spawn(|| flood.until(|| is_over.load(Ordering::Relaxed)));
        let beside = generator.open(LIGHT.1, 2 * SETTLE).and_then(|_| generator.open(LIGHT.1, load));
        is_over.store(true, Ordering::Relaxed);
        // A panic of the thread is a defect and must surface.
        flood.join().expect("the thread of the client")?;
        beside
    })?;
    record.isola("service-network-p99", beside.latency_us(0.99) / 1e3);
    record.isola("service-network-slowdown", beside.latency_us(0.99) / alone.latency_us(0.99));
    Ok(())
}

/// Returns a client's address, with a port.
fn address(client: u8, port: u16) -> SocketAddr {
    let [a, b, c, d] = GUEST.octets();
    (Ipv4Addr::new(a, b, c, d + 1 + client), port).into()
}

/// Boots a machine with the service cell and its clients, each with a key-value server and a web server.
fn boot(session: &Session) -> Result<SupervisedMachine, BenchError> {
    let size = MachineSize { cores: 5, queues: 1, memory_mib: MACHINE_MIB, pace: Pace::Host };
    let mut machine = SupervisedMachine::boot(session, size, Counting::Off)?;
    let mut changes = vec![wfq(Resource::NetworkWrite, 1, Some(RATE))];
    changes.extend(weights(Resource::NetworkWrite, NAMES, WEIGHTS));
    let image = session.images.cell_image("net")?;
    machine.provide(&image)?;
    machine.client.create(CellSpec {
        accept: vec!["*".into()],
        grid: GridSetup { changes, rules: Vec::new() },
        network_service: NetworkService::Server,
        ..spec(SERVICE, &image, 1, SERVICE_MIB)
    })?;
    machine.client.start(SERVICE)?;
    let image = session.images.cell_image("tenants")?;
    machine.provide(&image)?;
    for (client, name) in (0..).zip(NAMES) {
        let SocketAddr::V4(own) = address(client, 0) else { continue };
        let address = Some(NetworkAddress { ip: *own.ip(), prefix_len: 24, gateway: None });
        machine.client.create(CellSpec {
            network: NetworkSpec::None,
            network_service: NetworkService::Client(NetworkPort { cell: SERVICE.into(), address }),
            arguments: vec![format!("kv:{KV_PORT}"), format!("web:{WEB_PORT}")],
            ..spec(name, &image, 1, CLIENT_MIB)
        })?;
        machine.client.start(name)?;
    }
    for name in NAMES {
        machine.wait_for_log(name, "tenants: running")?;
    }
    Ok(machine)
}
