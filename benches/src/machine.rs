//! A machine in QEMU, configured in the same way for every system.

use crate::error::BenchError;
use crate::gate::frames;
use crate::instructions::{Counts, Plugin};
use crate::interrupt;
use crate::network::{GUEST_MAC, TAP};
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The memory of a machine, in MiB.
pub const MEMORY_MIB: u32 = 512;

/// The processor. Linux uses `rep movsb` if the processor claims that it is fast, but its emulation is slow.
pub const CPU: &str = "max,erms=off,fsrm=off";

/// The time limit for each wait.
const LIMIT: Duration = Duration::from_secs(120);

/// The length of the output's end in error messages.
const LOG_BYTES: usize = 2000;

/// The name of the memory backend in QEMU, by which the process's mappings show it.
const MEMORY_NAME: &str = "isola-bench-memory";

/// Clock ticks per second in `/proc` (`USER_HZ`), the same on every Linux on x86.
const TICKS_PER_SECOND: f64 = 100.0;

/// The configuration of a machine.
#[derive(Clone, Debug)]
pub struct Boot {
    /// Its name in messages.
    pub name: String,
    /// The kernel, or an image of Isola.
    pub kernel: PathBuf,
    /// The initial file system.
    pub initrd: Option<PathBuf>,
    /// The command line.
    pub command_line: String,
    /// The number of processors.
    pub cores: u32,
    /// The number of queue pairs of its network device.
    pub queues: u32,
    /// The memory, in MiB.
    pub memory_mib: u32,
    /// The source of its clocks.
    pub pace: Pace,
    /// The other end of its network device.
    pub network: Network,
    /// Further arguments of QEMU.
    pub extra: Vec<OsString>,
}

/// The source of a machine's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The host's clock.
    Host,
    /// The host's clock, with all processors in turns on one of the host's: a processor that waits for another lets it
    /// run.
    Turns,
    /// The instructions of its processors, 1 ns each. They run in turns on one of the host's. Idle time takes no time.
    Instructions,
    /// The same, but while all processors are idle the host's clock, so that a client of the network keeps up.
    InstructionsWhileBusy,
}

/// The other end of a machine's network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The tap device of the session's network.
    Tap,
    /// A socket in the machine's folder that carries frames ([`crate::gate::frames`]).
    Frames,
}

/// A running machine, killed on drop.
#[derive(Debug)]
pub struct Machine {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<(Instant, Vec<u8>)>,
    console: Vec<u8>,
    started: Instant,
    first_output: Option<Instant>,
    counts: Option<Counts>,
    folder: TempDir,
}

impl Machine {
    /// Starts a machine. With a plugin, its instructions are counted.
    ///
    /// Must be called on the process's first thread: the kernel kills the machine when the calling thread ends
    /// (PDEATHSIG).
    ///
    /// # Errors
    /// [`BenchError::File`], [`BenchError::Interrupted`].
    pub fn start(qemu: &Path, boot: &Boot, plugin: Option<&Plugin>) -> Result<Self, BenchError> {
        interrupt::check()?;
        let folder = tempfile::tempdir().map_err(BenchError::file(std::env::temp_dir()))?;
        let counted = plugin.map(|plugin| plugin.option(folder.path()));
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(qemu).current_dir(folder.path());
        command.args(arguments(boot));
        if let Some((option, _)) = &counted {
            command.arg("-plugin").arg(option);
        }
        let started = Instant::now();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(BenchError::file("setpriv"))?;
        let (sender, output) = channel();
        let pipes: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|pipe| Box::new(pipe) as _),
            child.stderr.take().map(|pipe| Box::new(pipe) as _),
        ];
        for mut pipe in pipes.into_iter().flatten() {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(len @ 1..) = pipe.read(&mut bytes) {
                    if sender.send((Instant::now(), bytes[..len].to_vec())).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self {
            name: boot.name.clone(),
            input: child.stdin.take(),
            child,
            output,
            console: Vec::new(),
            started,
            first_output: None,
            counts: counted.map(|(_, counts)| counts),
            folder,
        })
    }

    /// Returns the process id of QEMU.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns the time of QEMU's start.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns the time from the start to the first output; `None` before.
    pub fn first_output(&self) -> Option<Duration> {
        Some(self.first_output?.duration_since(self.started))
    }

    /// Returns QEMU's working folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the number of instructions executed so far, if they are counted.
    pub fn instructions(&self) -> Option<u64> {
        self.counts.as_ref().map(Counts::read)
    }

    /// Returns the number of instructions of each processor so far; empty if they are not counted.
    pub fn instructions_by_processor(&self) -> Vec<u64> {
        self.counts.as_ref().map(Counts::by_processor).unwrap_or_default()
    }

    /// Returns the host's processor time that QEMU has used.
    ///
    /// # Errors
    /// [`BenchError::Ended`] if QEMU has ended.
    pub fn cpu_time(&mut self) -> Result<Duration, BenchError> {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = fs::read_to_string(path).unwrap_or_default();
        cpu_time(&stat).ok_or_else(|| self.ended("its processor time was read"))
    }

    /// Returns the bytes of the machine's memory that were touched so far, which the host had to provide.
    ///
    /// # Errors
    /// [`BenchError::Ended`] if QEMU has ended.
    pub fn touched_bytes(&mut self) -> Result<u64, BenchError> {
        let path = format!("/proc/{}/smaps", self.child.id());
        let mappings = fs::read_to_string(path).unwrap_or_default();
        resident_bytes(&mappings).ok_or_else(|| self.ended("its memory was read"))
    }

    /// Waits until the output contains `text`.
    ///
    /// # Errors
    /// [`BenchError::Ended`], [`BenchError::TooLate`], [`BenchError::Interrupted`].
    pub fn wait_for(&mut self, text: &str) -> Result<(), BenchError> {
        self.wait_until(&format!("{text:?}"), |console| console.contains(text).then_some(()))
    }

    /// Waits until the output contains `label`, and returns the number after it, up to the end of the line.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub fn wait_for_number(&mut self, label: &str) -> Result<u64, BenchError> {
        self.wait_until(label, |console| {
            let (number, _) = console.split_once(label)?.1.split_once('\n')?;
            number.trim().parse().ok()
        })
    }

    /// Returns all output that [`Self::wait_for`] and the like have seen.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&self.console).into_owned()
    }

    /// Writes a line to the serial line.
    pub fn send_line(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            // If QEMU has ended, the next wait returns the error.
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
    }

    /// Writes a line to the serial line, waits for a line that begins with `answer`, and returns the number after it.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub fn ask(&mut self, question: &str, answer: &str) -> Result<u64, BenchError> {
        let from = self.console.len();
        self.send_line(question);
        self.wait_until(answer, |console| {
            let line = console.get(from..)?.lines().find_map(|line| line.strip_prefix(answer));
            // The line is complete only with its newline.
            line.filter(|_| console.ends_with('\n'))?.trim().parse().ok()
        })
    }

    /// Writes a line to the serial line, waits for a line that begins with `answer`, and returns the text after it.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub fn ask_line(&mut self, question: &str, answer: &str) -> Result<String, BenchError> {
        let from = self.console.len();
        self.send_line(question);
        self.wait_until(answer, |console| {
            // The line is complete only with its newline.
            let (complete, _) = console.get(from..)?.rsplit_once('\n')?;
            complete.lines().find_map(|line| line.strip_prefix(answer)).map(str::to_owned)
        })
    }

    /// Returns the length of the output so far, in bytes.
    pub fn output_len(&self) -> usize {
        self.console.len()
    }

    /// Returns the number after `label` in the output behind its first `from` bytes; `None` if there is none yet.
    ///
    /// # Errors
    /// [`BenchError::Ended`], [`BenchError::Interrupted`].
    pub fn number(&mut self, label: &str, from: usize) -> Result<Option<u64>, BenchError> {
        interrupt::check()?;
        while let Ok((at, bytes)) = self.output.try_recv() {
            self.take(at, &bytes);
        }
        if !self.is_running() {
            return Err(self.ended(label));
        }
        let console = String::from_utf8_lossy(self.console.get(from..).unwrap_or_default());
        let behind = console.split_once(label).and_then(|(_, behind)| behind.split_once('\n'));
        Ok(behind.and_then(|(number, _)| number.trim().parse().ok()))
    }

    /// Waits until `found` returns a value for the whole output so far.
    fn wait_until<T>(&mut self, awaited: &str, found: impl Fn(&str) -> Option<T>) -> Result<T, BenchError> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(value) = found(&String::from_utf8_lossy(&self.console)) {
                return Ok(value);
            }
            interrupt::check()?;
            match self.output.recv_timeout(Duration::from_millis(100)) {
                Ok((at, bytes)) => self.take(at, &bytes),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(awaited)),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                    return Err(self.late(awaited));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn take(&mut self, at: Instant, bytes: &[u8]) {
        self.first_output.get_or_insert(at);
        self.console.extend(bytes);
    }

    /// Returns whether QEMU is running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns the error for a machine that has ended before `awaited`.
    pub fn ended(&mut self, awaited: &str) -> BenchError {
        BenchError::Ended { what: self.name.clone(), awaited: awaited.to_owned(), log: self.log() }
    }

    /// Returns the error for a machine that has exceeded the time limit for `awaited`.
    pub fn late(&mut self, awaited: &str) -> BenchError {
        let (what, limit_s) = (self.name.clone(), LIMIT.as_secs());
        BenchError::TooLate { what, awaited: awaited.to_owned(), limit_s, log: self.log() }
    }

    /// Returns the end of its output.
    fn log(&mut self) -> String {
        while let Ok((at, bytes)) = self.output.recv_timeout(Duration::from_millis(50)) {
            self.take(at, &bytes);
        }
        String::from_utf8_lossy(&self.console[self.console.len().saturating_sub(LOG_BYTES)..]).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns QEMU's arguments.
fn arguments(boot: &Boot) -> Vec<OsString> {
    let is_counted = matches!(boot.pace, Pace::Instructions | Pace::InstructionsWhileBusy);
    let memory = format!("memory-backend-memfd,id={MEMORY_NAME},size={}M,share=on", boot.memory_mib);
    let mut device = format!("virtio-net-pci,netdev=net,mac={GUEST_MAC},disable-legacy=on");
    let mut netdev = match boot.network {
        Network::Tap => format!("tap,id=net,ifname={TAP},script=no,downscript=no"),
        Network::Frames => frames::netdev("net"),
    };
    if boot.queues > 1 {
        // Vectors for all queues, the control queue and configuration changes.
        device += &format!(",mq=on,vectors={}", 2 * boot.queues + 2);
        netdev += &format!(",queues={}", boot.queues);
    }
    let mut line: Vec<OsString> =
        ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]
            .map(Into::into)
            .into();
    for (option, value) in [
        ("-machine", format!("q35,memory-backend={MEMORY_NAME}")),
        ("-object", memory),
        ("-accel", if boot.pace == Pace::Host { "tcg,thread=multi" } else { "tcg,thread=single" }.into()),
        // With -icount QEMU does not support the x2APIC, whose timer is read through an MSR.
        ("-cpu", if is_counted { format!("{CPU},x2apic=off") } else { CPU.into() }),
        ("-smp", boot.cores.to_string()),
        ("-m", format!("{}M", boot.memory_mib)),
        ("-netdev", netdev),
        ("-device", device),
        ("-append", boot.command_line.clone()),
    ] {
        line.extend([option.into(), value.into()]);
    }
    if is_counted {
        let sleep = if boot.pace == Pace::Instructions { "off" } else { "on" };
        let count = ["-icount", &format!("shift=0,sleep={sleep}"), "-rtc", "base=2026-01-01,clock=vm"];
        line.extend(count.map(Into::into));
    }
    line.extend(["-kernel".into(), boot.kernel.clone().into()]);
    line.extend(boot.initrd.iter().flat_map(|initrd| ["-initrd".into(), initrd.clone().into()]));
    line.extend(boot.extra.iter().cloned());
    line
}

/// Returns the shell command that starts QEMU for `boot`, with files named without their folders.
pub fn line(boot: &Boot, plugin: Option<&Plugin>) -> String {
    let mut words = arguments(boot);
    if let Some(plugin) = plugin {
        words.extend(["-plugin".into(), plugin.option(Path::new("")).0.into()]);
    }
    let words = words.iter().map(|word| {
        let word = without_folders(&word.to_string_lossy());
        if word.is_empty() || word.contains([' ', '(']) { format!("'{word}'") } else { word }
    });
    std::iter::once("qemu-system-x86_64".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Returns a word with each absolute path reduced to its file name.
fn without_folders(word: &str) -> String {
    let parts = word.split_inclusive([',', '=', ' ']);
    parts
        .map(|part| if part.starts_with('/') { part.rsplit('/').next().unwrap_or(part) } else { part })
        .collect()
}

/// Returns user plus system time in `/proc/PID/stat` (proc(5): fields 14 and 15; the second may contain spaces).
fn cpu_time(stat: &str) -> Option<Duration> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let ticks: u64 = fields.get(11..13)?.iter().map(|field| field.parse::<u64>().unwrap_or_default()).sum();
    Some(Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND))
}

/// Returns the resident bytes of the machine's memory in `/proc/PID/smaps`; `None` if it is not among the mappings.
fn resident_bytes(mappings: &str) -> Option<u64> {
    let mut lines = mappings.lines().skip_while(|line| !line.contains("memfd:memory-backend-memfd"));
    let kib: u64 =
        lines.find_map(|line| line.strip_prefix("Rss:"))?.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_the_sum_of_user_and_system_time() {
        let stat = "42 (qemu (x) y) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 12345 900 800";
        assert_eq!(cpu_time(stat), Some(Duration::from_secs(3)));
        assert_eq!(cpu_time(""), None);
    }

    #[test]
    fn the_memory_of_the_machine_is_found_among_the_mappings() {
        let mappings = "7f00-7f01 rw-p 00000000 00:00 0 [heap]\nRss:  999 kB\n\
            7f10-7f20 rw-s 00000000 00:01 1031 /memfd:memory-backend-memfd (deleted)\nSize: 524288 kB\n\
            Rss:     12288 kB\nPss: 12288 kB\n7f30-7f31 rw-p 0 00:00 0\nRss: 4 kB\n";
        assert_eq!(resident_bytes(mappings), Some(12 << 20));
        assert_eq!(resident_bytes("Rss: 4 kB\n"), None);
    }

    #[test]
    fn the_command_of_a_machine_does_not_depend_on_folders() {
        let boot = Boot {
            name: "x".into(),
            kernel: "/tmp/abc/kv".into(),
            initrd: None,
            command_line: "ip=10.0.0.2/24 -- x".into(),
            cores: 3,
            queues: 2,
            memory_mib: 64,
            pace: Pace::Instructions,
            network: Network::Tap,
            extra: vec!["-plugin".into(), "/tmp/abc/pace.so,pace=pace".into()],
        };
        let line = line(&boot, None);
        for part in [
            "-smp 3",
            "-m 64M",
            "'ip=10.0.0.2/24 -- x'",
            "-kernel kv",
            "-icount",
            " pace.so,pace=pace",
            "x2apic=off",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(!line.contains("/tmp"), "{line}");
    }

    #[test]
    fn machines_differ_only_in_their_boot_files() {
        let boot = |name: &str, initrd: Option<&str>| Boot {
            name: name.into(),
            kernel: name.into(),
            initrd: initrd.map(Into::into),
            command_line: name.into(),
            cores: 1,
            queues: 1,
            memory_mib: MEMORY_MIB,
            pace: Pace::Host,
            network: Network::Tap,
            extra: Vec::new(),
        };
        let of = |boot: &Boot| {
            arguments(boot).iter().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let (isola, linux) = (of(&boot("kv", None)), of(&boot("vmlinuz", Some("initramfs"))));
        let without_names = |line: &[String]| {
            line.iter().filter(|word| *word != "kv" && *word != "vmlinuz").cloned().collect::<Vec<_>>()
        };
        let (isola, mut linux) = (without_names(&isola), without_names(&linux));
        assert_eq!(linux.split_off(linux.len() - 2), ["-initrd", "initramfs"]);
        assert_eq!(isola, linux);
    }
}
