//! Emulated machines in QEMU: configuration, start, serial output, end.
//!
//! ```ignore
//! use isola_tests::qemu::{Machine, MachineType};
//!
//! let outcome = Machine::new(MachineType::Q35, "hello-machine").cores(2).run();
//! assert_eq!(outcome.exit_code, Some(0), "{}", outcome.serial);
//! ```
//!
//! A time limit ends a hung machine; it is generous and measures nothing. QEMU ends when its [`RunningMachine`] is
//! dropped, also in a test that panics.

use crate::images;
use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A machine type of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineType {
    /// A PC with PCI Express.
    Q35,
    /// A small virtual machine, with ACPI.
    Microvm,
    /// A small virtual machine without ACPI: the command line names its devices.
    MicrovmWithoutAcpi,
}

/// All machine types.
pub const MACHINE_TYPES: [MachineType; 3] =
    [MachineType::Q35, MachineType::Microvm, MachineType::MicrovmWithoutAcpi];

/// The configuration of a machine.
#[derive(Clone, Debug)]
pub struct Machine {
    kind: MachineType,
    kernel: PathBuf,
    cores: usize,
    threads: usize,
    nodes: usize,
    memory_mib: usize,
    cpu: String,
    command_line: String,
    extra: Vec<OsString>,
    time: ClockSource,
    reboots: Reboot,
    exits: ExitMethod,
    limit: Duration,
}

/// The source of a machine's clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockSource {
    /// The host's clock.
    #[default]
    Host,
    /// The instructions of all cores together, 1 ns each; only one core executes at a time.
    Instructions,
}

impl ClockSource {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["-accel", "tcg,thread=multi"],
            Self::Instructions => &["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"],
        }
    }
}

/// The means by which an image ends its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExitMethod {
    /// QEMU's debug exit device, with a code.
    ByCode,
    /// ACPI.
    ByAcpi,
}

/// The effect of a machine reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reboot {
    Ends,
    StartsAnew,
}

/// A running machine.
#[derive(Debug)]
pub struct RunningMachine {
    child: Child,
    lines: Receiver<Vec<u8>>,
    serial: Vec<u8>,
    deadline: Instant,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Output of the serial line, and QEMU's standard error.
    pub serial: String,
    /// The code that the image wrote to the debug exit device, if any.
    pub exit_code: Option<u8>,
    /// Whether the image has powered the machine off.
    pub switched_off: bool,
}

/// Returns the QEMU program that `ISOLA_QEMU` names, as for the command's users, or the system's.
fn program() -> OsString {
    let named = std::env::var_os("ISOLA_QEMU").filter(|value| !value.is_empty());
    named.unwrap_or_else(|| "qemu-system-x86_64".into())
}

impl Machine {
    /// Configures a machine of one core and 64 MiB that boots `image`.
    pub fn new(kind: MachineType, image: &str) -> Self {
        Self {
            kind,
            kernel: images::path(image),
            cores: 1,
            threads: 1,
            nodes: 1,
            memory_mib: 64,
            cpu: "max".into(),
            command_line: String::new(),
            extra: Vec::new(),
            time: ClockSource::Host,
            reboots: Reboot::Ends,
            exits: ExitMethod::ByCode,
            limit: Duration::from_secs(180),
        }
    }

    /// Sets the threads of each physical core, and the number of NUMA nodes.
    pub fn topology(mut self, threads: usize, nodes: usize) -> Self {
        (self.threads, self.nodes) = (threads, nodes);
        self
    }

    /// Sets the number of cores.
    pub fn cores(mut self, cores: usize) -> Self {
        self.cores = cores;
        self
    }

    /// Sets the memory.
    pub fn memory_mib(mut self, memory_mib: usize) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// Sets the processor model.
    pub fn cpu(mut self, cpu: &str) -> Self {
        self.cpu = cpu.into();
        self
    }

    /// Sets the image's command line.
    pub fn command_line(mut self, command_line: &str) -> Self {
        self.command_line = command_line.into();
        self
    }

    /// Adds a second image, as a boot module.
    pub fn module(self, image: &str) -> Self {
        self.argument("-initrd").argument(images::path(image))
    }

    /// Adds a virtio device, such as `net`, with further properties, each after a comma.
    pub fn virtio(self, device: &str, properties: &str) -> Self {
        let device = match self.kind {
            MachineType::Q35 => format!("virtio-{device}-pci,disable-legacy=on{properties}"),
            _ => format!("virtio-{device}-device{properties}"),
        };
        self.argument("-device").argument(device)
    }

    /// Adds an argument of QEMU.
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.extra.push(argument.into());
        self
    }

    /// Sets the source of the machine's clocks.
    pub fn time(mut self, time: ClockSource) -> Self {
        self.time = time;
        self
    }

    /// Makes a reset reboot the machine, with its memory unchanged, instead of ending it.
    pub fn reboots(mut self) -> Self {
        self.reboots = Reboot::StartsAnew;
        self
    }

    /// Removes the debug exit device, as on a machine with a supervisor.
    pub fn without_exit_codes(mut self) -> Self {
        self.exits = ExitMethod::ByAcpi;
        self
    }

    /// Sets the time limit.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts the machine.
    ///
    /// # Panics
    /// If QEMU does not start.
    pub fn start(self) -> RunningMachine {
        let kind = match self.kind {
            MachineType::Q35 => "q35",
            MachineType::Microvm => "microvm,acpi=on,rtc=on",
            MachineType::MicrovmWithoutAcpi => "microvm,acpi=off,rtc=on",
        };
        let (threads, nodes) = (self.threads, self.nodes);
        let physical = self.cores / (threads * nodes);
        let smp = format!("{},sockets={nodes},cores={physical},threads={threads}", self.cores);
        let mut command = Command::new(program());
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(self.time.arguments())
            .args(["-M", kind, "-cpu", &self.cpu, "-smp", &smp])
            .args(["-m", &self.memory_mib.to_string(), "-append", &self.command_line])
            .args(["-global", "virtio-mmio.force-legacy=false"])
            .args(["-serial", "stdio"])
            .arg("-kernel")
            .arg(&self.kernel)
            .args(&self.extra);
        for node in 0..if nodes > 1 { nodes } else { 0 } {
            let (first, last) = (node * self.cores / nodes, (node + 1) * self.cores / nodes - 1);
            command
                .arg("-object")
                .arg(format!("memory-backend-ram,id=m{node},size={}M", self.memory_mib / nodes))
                .arg("-numa")
                .arg(format!("node,nodeid={node},memdev=m{node},cpus={first}-{last}"));
        }
        if self.exits == ExitMethod::ByCode {
            command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        }
        if self.reboots == Reboot::Ends {
            command.arg("-no-reboot");
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("QEMU starts: is it installed, and does ISOLA_QEMU name one?");
        let (sender, lines) = channel();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|output| Box::new(output) as _),
            child.stderr.take().map(|output| Box::new(output) as _),
        ];
        for mut output in outputs.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(len @ 1..) = output.read(&mut bytes) {
                    if sender.send(bytes[..len].to_vec()).is_err() {
                        break;
                    }
                }
            });
        }
        RunningMachine { child, lines, serial: Vec::new(), deadline: Instant::now() + self.limit }
    }

    /// Starts the machine, and waits for its end.
    pub fn run(self) -> Outcome {
        self.start().wait()
    }
}

impl RunningMachine {
    /// Returns QEMU's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the serial output so far.
    pub fn serial(&mut self) -> String {
        while let Ok(bytes) = self.lines.try_recv() {
            self.serial.extend(bytes);
        }
        String::from_utf8_lossy(&self.serial).into_owned()
    }

    /// Waits until the serial output contains `text`.
    ///
    /// # Panics
    /// If the machine ends first, or after the time limit.
    pub fn wait_for(&mut self, text: &str) {
        while !self.serial().contains(text) {
            let left = self.deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(bytes) => self.serial.extend(bytes),
                Err(error) => panic!("{error:?} before {text:?}; the output is:\n{}", self.serial()),
            }
        }
    }

    /// Waits for the machine's end.
    ///
    /// # Panics
    /// After the time limit.
    pub fn wait(mut self) -> Outcome {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(bytes) => self.serial.extend(bytes),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("the machine does not end:\n{}", self.serial()),
            }
        }
        let status = self.child.wait().expect("QEMU was started");
        // The device turns code n into exit status 2n + 1; status 0 means an end by other means.
        let exit_code = status.code().filter(|code| code % 2 == 1).map(|code| (code / 2) as u8);
        Outcome { serial: self.serial(), exit_code, switched_off: status.success() }
    }
}

/// Returns the CPU time that a process has used.
///
/// # Panics
/// If there is no process with this id.
pub fn cpu_time(id: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).expect("the process runs");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // User and system time in ticks of 10 ms: fields 14 and 15, counted from the process id.
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(10 * ticks)
}

impl Drop for RunningMachine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
