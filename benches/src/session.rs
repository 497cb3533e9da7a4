//! Programs, images and the Linux guest, which all groups need; and machines made of them.

use crate::error::BenchError;
use crate::figure::{Group, GuestProgram};
use crate::groups::grid::Experiment;
use crate::instructions::Plugin;
use crate::linux::kernel::Kernel;
use crate::linux::packages::Packages;
use crate::linux::{COSTS, LinuxGuest, READY, Services};
use crate::load::{Outcome, first_answer};
use crate::machine::{Boot, CPU, MEMORY_MIB, Machine, Network, Pace};
use crate::network::{GUEST_NETWORK, service};
use crate::pace::Pacer;
use crate::record::Setting;
use crate::{machine, network, program};
use isola_host::image::ImageStore;
use isola_host::machine::qemu::Qemu;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The port of the key-value services.
pub const KV_PORT: u16 = 11211;

/// The port of the echo services.
pub const ECHO_PORT: u16 = 7;

/// The port of NetPIPE's answering ends; on the next port, Linux's uses `sendfile`.
pub const NETPIPE_PORT: u16 = 5002;

/// The port of the web servers.
pub const WEB_PORT: u16 = 80;

/// The most boots of a Linux guest that hangs before it has measured anything.
const BOOTS: u32 = 3;

/// The number of runs and the length of loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The number of runs of everything.
    pub runs: u32,
    /// The length of a load.
    pub load: Duration,
    /// The Linux guest's kernel.
    pub kernel: Kernel,
    /// Whether the figures will be published, so that each run waits for a quiet host.
    pub publish: bool,
    /// The only experiment of the group `grid` to repeat; `None`: all of them.
    pub experiment: Option<Experiment>,
}

/// The system on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// A standalone image of Isola.
    Isola,
    /// The Linux guest.
    Linux,
}

/// A measured service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The key-value service.
    Kv,
    /// Echo.
    Echo,
    /// The web server.
    Web,
    /// Messages of all sizes.
    Netpipe,
    /// Echo, on short connections.
    Short,
    /// The key-value service, beside a batch job.
    Colocated,
}

impl Service {
    /// Returns the name of Isola's image.
    pub fn image(self) -> &'static str {
        match self {
            Self::Kv | Self::Colocated => "kv",
            Self::Echo | Self::Short => "echo",
            Self::Web => "web",
            Self::Netpipe => "netpipe",
        }
    }

    /// Returns the services of the Linux guest.
    fn services(self) -> Services {
        match self {
            Self::Kv | Self::Echo => Services::Usual,
            Self::Web => Services::Web,
            Self::Netpipe => Services::Netpipe,
            Self::Short => Services::Short,
            Self::Colocated => Services::Colocation,
        }
    }

    /// Returns its address.
    pub fn address(self) -> SocketAddr {
        service(self.conversation().0)
    }

    /// Returns its port, a request, and the beginning of the answer.
    fn conversation(self) -> (u16, &'static [u8], &'static [u8]) {
        match self {
            Self::Kv | Self::Colocated => (KV_PORT, b"version\r\n", b"VERSION "),
            Self::Echo | Self::Short => (ECHO_PORT, b"hello", b"hello"),
            // A round of one message of one byte.
            Self::Netpipe => (NETPIPE_PORT, b"\0\0\0\0\x01\0\0\0\x01n", b"n"),
            Self::Web => (WEB_PORT, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n"),
        }
    }

    /// Waits for its first answer on `machine`; returns the connection.
    ///
    /// # Errors
    /// As [`first_answer`].
    pub fn first_answer(self, machine: &mut Machine) -> Result<TcpStream, BenchError> {
        let (port, question, answer) = self.conversation();
        first_answer(machine, service(port), question, answer)
    }
}

/// Whether a machine's instructions are counted. Counting slows it down, so times are measured without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Instructions are counted.
    On,
    /// Instructions are not counted.
    Off,
}

/// A machine that has given its first answer.
#[derive(Debug)]
pub struct Guest {
    /// The machine.
    pub machine: Machine,
    /// The connection with the answer.
    pub stream: TcpStream,
    /// The time from the start of QEMU to the answer.
    pub answered: Duration,
}

/// The cost of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Guest instructions; 0 if they are not counted.
    pub instructions: f64,
    /// Processor time of the host, in us.
    pub cpu_us: f64,
}

/// The programs, images and Linux guest of a measurement.
#[derive(Debug)]
pub struct Session {
    /// The number of runs and the length of loads.
    pub plan: Plan,
    /// QEMU.
    pub qemu: Qemu,
    /// Images of Isola.
    pub images: ImageStore,
    /// The Linux guest.
    pub linux: LinuxGuest,
    plugin: Plugin,
    /// The plugin that paces processors.
    pub pacer: Pacer,
    /// The tree's commit before the measurement, which writes into the tree.
    pub tree: String,
    /// The commands of machines started since the last [`Self::take_machines`].
    machines: Mutex<BTreeSet<String>>,
    folder: TempDir,
}

/// The programs of this package in the Linux guest.
const PROGRAMS: [&str; 6] =
    ["linux-echo", "linux-touch", "linux-netpipe", "linux-short", "linux-batch", "linux-tenants"];

/// Returns the folder of fetched files for a guest with this kernel, below the root of the tree.
fn cache(kernel: Kernel) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../.bench-cache").join(kernel.name())
}

/// Fetches missing packages. Must be called while the process is in the host's network namespace.
///
/// # Errors
/// As [`Packages::fetch`].
pub fn fetch(kernel: Kernel) -> Result<(), BenchError> {
    let cache = cache(kernel);
    fs::create_dir_all(&cache).map_err(BenchError::file(&cache))?;
    Packages::fetch(&cache, kernel).map(|_| ())
}

/// Compiles the program that measures the costs of system calls, without shared libraries, into `folder`.
fn compile_costs(folder: &Path) -> Result<PathBuf, BenchError> {
    program::need(&[("cc", "gcc libc6-dev")])?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("linux/costs.c");
    let path = folder.join(COSTS);
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-Wall", "-Wextra", "-O2", "-static", "-pthread", "-o"]);
    program::run_in(compile.arg(&path).arg(&source))?;
    Ok(path)
}

impl Session {
    /// Prepares QEMU, plugins, images and the Linux guest.
    ///
    /// # Errors
    /// [`BenchError::Qemu`], [`BenchError::File`], and those of [`Plugin::build`] and [`LinuxGuest::prepare`].
    pub fn open(plan: Plan, tree: String) -> Result<Self, BenchError> {
        let folder = tempfile::tempdir().map_err(BenchError::file(std::env::temp_dir()))?;
        let qemu = Qemu::from_environment()?;
        let plugin = Plugin::build(&qemu.program, folder.path())?;
        let pacer = Pacer::build(&qemu.program, folder.path())?;
        let this = std::env::current_exe().map_err(BenchError::file("/proc/self/exe"))?;
        let cache = cache(plan.kernel);
        let costs = compile_costs(folder.path())?;
        let mut programs = PROGRAMS.map(|name| this.with_file_name(name)).to_vec();
        programs.push(costs);
        let linux = LinuxGuest::prepare(&cache, plan.kernel, &programs)?;
        let images = ImageStore::from_environment();
        Ok(Self { plan, qemu, images, linux, plugin, pacer, tree, machines: Mutex::default(), folder })
    }

    /// Returns the path of the program that measures the costs of system calls.
    pub fn costs(&self) -> PathBuf {
        self.folder.path().join(COSTS)
    }

    /// Returns the configuration of a machine with `system` and `service` on `cores` processors.
    ///
    /// # Errors
    /// [`BenchError::Image`].
    pub fn boot(&self, system: System, service: Service, cores: u32) -> Result<Boot, BenchError> {
        if system == System::Linux {
            return Ok(self.linux_boot(service.services(), cores));
        }
        Ok(Boot {
            name: format!("Isola's {}", service.image()),
            kernel: self.images.find(service.image())?,
            initrd: None,
            command_line: format!("ip={GUEST_NETWORK} --"),
            cores,
            queues: cores,
            memory_mib: MEMORY_MIB,
            pace: Pace::Host,
            network: Network::Tap,
            extra: Vec::new(),
        })
    }

    /// Returns the configuration of a Linux guest with `services` on `cores` processors.
    pub fn linux_boot(&self, services: Services, cores: u32) -> Boot {
        Boot {
            name: format!("the Linux guest ({})", services.name()),
            kernel: self.linux.kernel.clone(),
            initrd: Some(self.linux.initramfs_of(services).to_owned()),
            command_line: self.linux.command_line(cores, services),
            cores,
            queues: cores,
            memory_mib: MEMORY_MIB,
            pace: Pace::Host,
            network: Network::Tap,
            extra: Vec::new(),
        }
    }

    /// Boots `system` on one processor, and waits for the first answer of `service`.
    ///
    /// # Errors
    /// As [`Self::start_as`]; [`BenchError::Image`].
    pub fn start(&self, system: System, service: Service, counting: Counting) -> Result<Guest, BenchError> {
        self.start_on(1, system, service, counting)
    }

    /// Boots `system` on `cores` processors, and waits for the first answer of `service`.
    ///
    /// # Errors
    /// As [`Self::start_as`]; [`BenchError::Image`].
    pub fn start_on(
        &self,
        cores: u32,
        system: System,
        service: Service,
        counting: Counting,
    ) -> Result<Guest, BenchError> {
        self.start_as(&self.boot(system, service, cores)?, system, service, counting)
    }

    /// Boots `system` with the configuration `boot`, and waits for the first answer of `service`.
    ///
    /// A Linux guest with several processors sometimes hangs in its boot under emulation (its processors wait for each
    /// other, in `migration`). It has measured nothing by then, so it is booted again, at most [`BOOTS`] times in all.
    ///
    /// # Errors
    /// As [`Self::machine`], [`Machine::wait_for`] and [`first_answer`].
    pub fn start_as(
        &self,
        boot: &Boot,
        system: System,
        service: Service,
        counting: Counting,
    ) -> Result<Guest, BenchError> {
        for _ in 1..BOOTS {
            match self.start_once(boot, system, service, counting) {
                Err(BenchError::TooLate { .. }) if system == System::Linux => {
                    eprintln!("bench: the Linux guest hangs in its boot; it is booted again");
                }
                started => return started,
            }
        }
        self.start_once(boot, system, service, counting)
    }

    /// Does the same as [`Self::start_as`], with one attempt.
    fn start_once(
        &self,
        boot: &Boot,
        system: System,
        service: Service,
        counting: Counting,
    ) -> Result<Guest, BenchError> {
        let mut machine = self.machine(boot, counting)?;
        machine.wait_for(match system {
            System::Isola => "TCP port",
            System::Linux => READY,
        })?;
        let stream = service.first_answer(&mut machine)?;
        let answered = machine.started().elapsed();
        Ok(Guest { machine, stream, answered })
    }

    /// Creates the tap device and starts a machine.
    ///
    /// # Errors
    /// As [`Machine::start`]; [`BenchError::NoNamespace`], [`BenchError::Program`].
    pub fn machine(&self, boot: &Boot, counting: Counting) -> Result<Machine, BenchError> {
        network::make_tap(boot.queues)?;
        let plugin = (counting == Counting::On).then_some(&self.plugin);
        if let Ok(mut machines) = self.machines.lock() {
            machines.insert(machine::line(boot, plugin));
        }
        Machine::start(&self.qemu.program, boot, plugin)
    }

    /// Returns the commands of machines started since the last call.
    pub fn take_machines(&self) -> BTreeSet<String> {
        self.machines.lock().map(|mut machines| std::mem::take(&mut *machines)).unwrap_or_default()
    }

    /// Returns the number of bytes that a machine of `system` loads.
    ///
    /// # Errors
    /// [`BenchError::Image`], [`BenchError::File`].
    pub fn image_bytes(&self, system: System) -> Result<u64, BenchError> {
        match system {
            System::Isola => Ok(self.images.cell_image(Service::Kv.image())?.bytes.len() as u64),
            System::Linux => {
                [&self.linux.kernel, &self.linux.initramfs].into_iter().try_fold(0, |sum, path| {
                    let meta = fs::metadata(path).map_err(BenchError::file(path))?;
                    Ok(sum + meta.len())
                })
            }
        }
    }

    /// Returns the platform of a measurement of `group`, with the description of its load.
    pub fn setting(&self, group: Group, load: BTreeMap<String, String>) -> Setting {
        let if_it_runs = |program: GuestProgram, version: &str| {
            let runs = [Some(program), Some(GuestProgram::Services)].contains(&group.guest());
            if runs { version.to_owned() } else { String::new() }
        };
        Setting {
            qemu: self.qemu.version.clone(),
            machine: format!("q35, TCG, -cpu {CPU}, virtio-net on a tap device"),
            kernel: self.plan.kernel,
            linux: group.guest().map(|_| self.linux.kernel_version.clone()).unwrap_or_default(),
            memcached: if_it_runs(GuestProgram::Memcached, &self.linux.memcached_version),
            nginx: if_it_runs(GuestProgram::Nginx, &self.linux.nginx_version),
            ..host_setting(&self.tree, load)
        }
    }
}

/// Returns the platform of a native measurement of `tree`, with the description of its load.
pub fn host_setting(tree: &str, load: BTreeMap<String, String>) -> Setting {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model =
        cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    Setting {
        processor: model.map(|(_, model)| model.to_owned()).unwrap_or_default(),
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        host_kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        host_load: read("/proc/loadavg").split_ascii_whitespace().next().unwrap_or_default().to_owned(),
        isola: tree.to_owned(),
        load,
        ..Setting::default()
    }
}

/// Measures the cost of `work` on `machine`, per request.
///
/// # Errors
/// As `work`; [`BenchError::Ended`] if the machine has ended.
pub fn cost(
    machine: &mut Machine,
    work: impl FnOnce() -> Result<Outcome, BenchError>,
) -> Result<(Outcome, Cost), BenchError> {
    let (instructions, cpu) = (machine.instructions(), machine.cpu_time()?);
    let outcome = work()?;
    let instructions = machine.instructions().unwrap_or_default() - instructions.unwrap_or_default();
    let cpu = machine.cpu_time()? - cpu;
    let requests = outcome.requests.max(1) as f64;
    let cost =
        Cost { instructions: instructions as f64 / requests, cpu_us: cpu.as_secs_f64() * 1e6 / requests };
    Ok((outcome, cost))
}

/// Converts a duration to milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Returns the milliseconds since `start`.
pub fn ms_since(start: Instant) -> f64 {
    ms(start.elapsed())
}

/// Converts bytes to mebibytes.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
