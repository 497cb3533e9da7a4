//! Group `linux-servers`: Debian's memcached, redis and nginx, unmodified, in a cell, beside the same programs in the
//! Linux guest, on one core each.

use super::note;
use crate::error::BenchError;
use crate::linux::{MEMORY_ANSWER, PAGE, Services};
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::load::{Outcome, first_answer, page, redis};
use crate::machine::{MEMORY_MIB, Machine, Pace};
use crate::network::service;
use crate::record::Record;
use crate::session::{Counting, KV_PORT, Session, System, WEB_PORT, cost, mib, ms, ms_since};
use crate::supervised::{LIMIT, MachineSize, SupervisedMachine, spec};
use crate::volume::{DISK_SLOT, HostVolume};
use isola_abi::management::{CellInfo, CellSpec, DeviceLocation};
use isola_abi::query::{MemoryKind, MemoryPart, Query};
use isola_abi::volume::{VolumeAccess, VolumeMount};
use isola_host::image::CellImage;
use isola_host::query::facts;
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The number of the client's connections.
const CONNECTIONS: usize = 16;

/// The number of redis's requests that are sent together.
const DEPTH: usize = 16;

/// The low load of memcached, in requests/s, as in the group `kv`.
const LOW_RATE: f64 = 500.0;

/// The load before the measurement, which warms up caches, above all the emulator's.
const WARM_UP: Duration = Duration::from_secs(1);

/// The time in which interrupts of an idle server are counted, and the time before it.
const IDLE: Duration = Duration::from_secs(4);
const SETTLING: Duration = Duration::from_secs(1);

/// The image, and the name of the cell.
const IMAGE: &str = "linux";

/// The memory of the cell, in MiB.
const CELL_MIB: u64 = 256;

/// The longest time for a cell to stop by itself, in ms.
const STOP_MS: u32 = 10_000;

/// The answer of the Linux guest's first process to a question for a number.
const NUMBER: &str = "guest: number";

/// The name of the part of a cell's memory that its programs have written (`apps/linux/src/memory.rs`).
const PAGES_OF_PROGRAMS: &str = "pages of programs";

const REDIS_PORT: u16 = 6379;

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Memcached,
    Redis,
    Nginx,
}

impl Server {
    const ALL: [Self; 3] = [Self::Memcached, Self::Redis, Self::Nginx];

    /// The command in a cell, which is that of the Linux guest (`benches/linux/init.sh`).
    fn command(self) -> &'static [&'static str] {
        match self {
            Self::Memcached => &["/bin/memcached", "-u", "root", "-U", "0", "-t", "1", "-m", "64"],
            Self::Redis => &["/bin/redis-server", "--save", "", "--protected-mode", "no"],
            Self::Nginx => &["/bin/nginx", "-c", "/etc/nginx.conf"],
        }
    }

    fn services(self) -> Services {
        match self {
            Self::Memcached => Services::Usual,
            Self::Redis => Services::Redis,
            Self::Nginx => Services::Web,
        }
    }

    /// Waits for the first answer; returns the connection.
    fn first_answer(self, machine: &mut Machine) -> Result<TcpStream, BenchError> {
        let (port, question, answer): (_, &[u8], &[u8]) = match self {
            Self::Memcached => (KV_PORT, b"version\r\n", b"VERSION "),
            Self::Redis => (REDIS_PORT, b"PING\r\n", b"+PONG\r\n"),
            Self::Nginx => (WEB_PORT, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n"),
        };
        first_answer(machine, service(port), question, answer)
    }
}

/// Returns the description of the load.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let seconds = duration(session).as_secs_f64();
    [
        ("cell", format!("one core and {CELL_MIB} MiB of a machine of two processors and {MEMORY_MIB} MiB; instructions of all processors count")),
        ("memcached", format!("ETC-like mix, {CONNECTIONS} connections: closed loop, {seconds} s; open loop, {LOW_RATE} requests/s, {seconds} s")),
        ("redis", format!("{}; GET of 64 bytes, {CONNECTIONS} connections in turns, 1 or {DEPTH} requests each, {seconds} s", session.linux.redis_version)),
        ("nginx", format!("a page of {} bytes, {CONNECTIONS} connections in turns, {seconds} s", PAGE.len())),
        ("idle", format!("nginx without connections, {} s", IDLE.as_secs())),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// The length of a load: half the plan's, as instructions repeat well.
fn duration(session: &Session) -> Duration {
    session.plan.load / 2
}

/// Takes one run: with counted instructions, and without for the time of the start.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    match system {
        System::Isola => isola(session, record),
        System::Linux => linux(session, record),
    }
}

fn isola(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let volume = HostVolume::of_folder(&session.linux.cell_root)?;
    let image = session.images.cell_image(IMAGE)?;
    for counting in [Counting::On, Counting::Off] {
        let size = MachineSize { cores: 2, queues: 1, memory_mib: MEMORY_MIB, pace: Pace::Host };
        let mut machine = SupervisedMachine::boot_with(session, size, counting, volume.arguments(None))?;
        machine.provide(&image)?;
        if counting == Counting::Off {
            let (start, _) = start(&mut machine, &image, Server::Redis)?;
            record.isola("servers-start", ms_since(start));
            continue;
        }
        for server in Server::ALL {
            let before = machine.machine.instructions().unwrap_or_default();
            let (_, mut stream) = start(&mut machine, &image, server)?;
            if server == Server::Redis {
                let count = machine.machine.instructions().unwrap_or_default() - before;
                record.isola("servers-start-instructions", count as f64 / 1e6);
                sleep(SETTLING);
                let used = used_bytes(&machine.client.inspect(IMAGE)?);
                record.isola("servers-memory", mib(used.saturating_sub(redis::resident_bytes(&mut stream)?)));
                let parts = facts(&mut machine.client, IMAGE, &Query::MemoryParts)?.memory_parts;
                record.isola("servers-memory-needed", mib(used.saturating_sub(not_needed_bytes(&parts))));
            }
            drop(stream);
            measure(session, &mut machine.machine, System::Isola, server, record)?;
            if server == Server::Nginx {
                sleep(SETTLING);
                let before = interrupts(&machine.client.inspect(IMAGE)?);
                sleep(IDLE);
                let count = interrupts(&machine.client.inspect(IMAGE)?) - before;
                record.isola("servers-idle-interrupts", count as f64 / IDLE.as_secs_f64());
            }
            // The servers may end by the signal, or by force.
            let _ = machine.client.stop(IMAGE, STOP_MS, LIMIT);
            machine.client.destroy(IMAGE)?;
        }
    }
    Ok(())
}

/// Creates and starts a cell with `server`, and waits for its first answer. Returns the time of the request, and the
/// connection.
fn start(
    machine: &mut SupervisedMachine,
    image: &CellImage,
    server: Server,
) -> Result<(Instant, TcpStream), BenchError> {
    let root = VolumeMount {
        device: DeviceLocation::Pci { bus: 0, device: DISK_SLOT, function: 0 },
        name: "root".into(),
        path: "/".into(),
        access: VolumeAccess::ReadOnly,
    };
    let spec = CellSpec {
        arguments: server.command().iter().map(|&word| word.to_owned()).collect(),
        volumes: vec![root],
        ..spec(IMAGE, image, 1, CELL_MIB)
    };
    let start = Instant::now();
    machine.client.create(spec)?;
    machine.client.start(IMAGE)?;
    let stream = server.first_answer(&mut machine.machine)?;
    Ok((start, stream))
}

fn linux(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    for server in Server::ALL {
        let boot = session.linux_boot(server.services(), 1);
        let mut machine = session.machine(&boot, Counting::On)?;
        drop(server.first_answer(&mut machine)?);
        if server == Server::Redis {
            let count = machine.instructions().unwrap_or_default();
            record.peer("servers-start-instructions", count as f64 / 1e6);
            sleep(SETTLING);
            let used = machine.ask("memory", MEMORY_ANSWER)? << 10;
            // Without redis's own memory, and without the files of the initial file system, which stay in memory.
            let own = number(&mut machine, "/RssAnon/", "/proc/$(busybox pidof redis-server)/status")? << 10;
            let files = fs::metadata(&session.linux.redis_initramfs)
                .map_err(BenchError::file(&session.linux.redis_initramfs))?
                .len();
            record.peer("servers-memory", mib(used.saturating_sub(own + files)));
            // The files of the initial file system are all pages of files that it has.
            record.peer("servers-memory-needed", mib(used.saturating_sub(own + files)));
        }
        measure(session, &mut machine, System::Linux, server, record)?;
        if server == Server::Nginx {
            sleep(SETTLING);
            let before = number(&mut machine, "/LOC/", "/proc/interrupts")?;
            sleep(IDLE);
            let count = number(&mut machine, "/LOC/", "/proc/interrupts")? - before;
            record.peer("servers-idle-interrupts", count as f64 / IDLE.as_secs_f64());
        }
    }
    let boot = session.linux_boot(Services::Redis, 1);
    let mut machine = session.machine(&boot, Counting::Off)?;
    Server::Redis.first_answer(&mut machine)?;
    record.peer("servers-start", ms(machine.started().elapsed()));
    Ok(())
}

/// Returns the second word of the line of a file of the Linux guest that matches a pattern: a number.
fn number(machine: &mut Machine, pattern: &str, path: &str) -> Result<u64, BenchError> {
    machine.ask(&format!("run echo {NUMBER} $(busybox awk '{pattern} {{print $2}}' {path})"), NUMBER)
}

/// Measures the requests of `server` on a machine whose instructions are counted.
fn measure(
    session: &Session,
    machine: &mut Machine,
    system: System,
    server: Server,
    record: &mut Record,
) -> Result<(), BenchError> {
    let duration = duration(session);
    let mut count = |figure: &str, work: &mut dyn FnMut(Duration) -> Result<Outcome, BenchError>| {
        work(WARM_UP)?;
        let (_, cost) = cost(machine, || work(duration))?;
        note(record, system, figure, cost.instructions);
        Ok::<_, BenchError>(())
    };
    match server {
        Server::Memcached => {
            let mut generator = Generator::connect(service(KV_PORT), CONNECTIONS, Mix::etc())?;
            count("servers-memcached", &mut |duration| generator.closed(duration))?;
            count("servers-memcached-low", &mut |duration| generator.open(LOW_RATE, duration))
        }
        Server::Redis => {
            let mut client = redis::Client::connect(service(REDIS_PORT), CONNECTIONS)?;
            count("servers-redis", &mut |duration| client.get(1, duration))?;
            count("servers-redis-16", &mut |duration| client.get(DEPTH, duration))
        }
        Server::Nginx => {
            let client = page::Client::new(service(WEB_PORT), PAGE);
            let mut streams = client.connect(CONNECTIONS)?;
            count("servers-nginx", &mut |duration| client.staying(&mut streams, duration))
        }
    }
}

/// Returns the memory of a cell that is in use, or taken by image, stacks and tables.
fn used_bytes(info: &CellInfo) -> u64 {
    let left = info.memory_usage.total.0.saturating_sub(info.memory_usage.used.0);
    info.memory.0.saturating_sub(left)
}

/// Returns the bytes in use that are redis's own, or copies of contents of the volume: the cell frees them when memory is short.
fn not_needed_bytes(parts: &[MemoryPart]) -> u64 {
    let is_own = |part: &&MemoryPart| part.kind == MemoryKind::Cached || part.name == PAGES_OF_PROGRAMS;
    parts.iter().filter(is_own).map(|part| part.bytes).sum()
}

/// Returns the number of interrupts of a cell so far.
fn interrupts(info: &CellInfo) -> u64 {
    info.cores.iter().map(|core| core.interrupts).sum()
}

#[cfg(test)]
mod tests {
    use isola_abi::query::MemoryPart;

    #[test]
    fn pages_that_can_be_read_again_and_those_of_programs_are_not_needed() {
        let parts = [
            MemoryPart::used("other objects", 1),
            MemoryPart::used(super::PAGES_OF_PROGRAMS, 20),
            MemoryPart::cached("pages of files", 300),
            MemoryPart::free("free", 4000),
        ];
        assert_eq!(super::not_needed_bytes(&parts), 320);
        let application = include_str!("../../../apps/linux/src/memory.rs");
        assert!(application.contains(&format!("\"{}\"", super::PAGES_OF_PROGRAMS)));
    }

    #[test]
    fn the_guest_runs_the_same_commands() {
        let script = include_str!("../../linux/init.sh");
        assert!(script.contains("memcached -u root -U 0 -t \"$memcached_threads\" -m 64"));
        assert!(script.contains("redis-server --save '' --protected-mode no"));
        assert!(script.contains("nginx -c /etc/nginx.conf"));
    }
}
