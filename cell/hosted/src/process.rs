//! A process that is one cell: the form of an application's binary on this platform.
//!
//! [`process!`](crate::process!) defines the C `main` of the binary. The application's main function is a task of the
//! cell, so the binary has no Rust `main`. [`Process`] is the state of such a process before its cell starts.

use crate::cell::{enough_processors, start};
use crate::control;
use crate::heap;
use crate::platform::{Hosted, MemorySource};
use crate::settings::Settings;
use isola_abi::descriptor::{NetworkAddress, Request};
use isola_abi::hosted::{HostedSpec, VARIABLE};
use isola_ebbs::current_core;
use isola_platform::CoreIndex;
use isola_platform::network::NetworkPort;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::Barrier;
use std::thread;

/// Exit code if the cell could not start.
pub const NOT_RUN: i32 = 125;

/// Exit code of a cell that was asked to stop a second time before it had stopped.
const KILLED: i32 = 137;

/// Makes the binary a process that is one cell. `$main` is a `fn() -> i32`, which runs on the process's first thread
/// and returns its exit code. `$new`, of type `$allocator`, is the global allocator.
#[macro_export]
macro_rules! process {
    ($main:expr, $allocator:ty = $new:expr) => {
        #[allow(unsafe_code, reason = "the C library starts the process by this name")]
        #[unsafe(export_name = "main")]
        extern "C" fn isola_process_main() -> ::core::ffi::c_int {
            $main()
        }

        #[global_allocator]
        static ALLOCATOR: $allocator = $new;
    };
}

/// The process's specification, and its cell before the start.
pub struct Process {
    /// The specification from the environment.
    pub spec: HostedSpec,
    /// The name of the cell.
    pub name: String,
    arguments: Vec<String>,
}

impl Process {
    /// Reads the specification from the environment, and allocates the cell's memory.
    ///
    /// # Errors
    /// A message for the user.
    pub fn open() -> Result<Self, String> {
        let line = env::var(VARIABLE).unwrap_or_default();
        let spec: HostedSpec = line.parse().map_err(|error| format!("{VARIABLE}: {error}"))?;
        if let Some(parent) = spec.parent {
            end_with(parent).map_err(|error| format!("the process cannot end with its parent: {error}"))?;
        }
        ignore_broken_pipes();
        let mut words = env::args();
        let program = words.next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = spec.name.clone().unwrap_or(program);
        let memory = spec.memory;
        heap::start(memory.0 as usize)
            .map_err(|error| format!("{memory} of memory cannot be had: {error}; give it less"))?;
        Ok(Self { spec, name, arguments: words.collect() })
    }

    /// Runs the cell: `begin` on its first core, then `run` on every core. Returns the first core's result. A first
    /// SIGINT, SIGTERM or SIGHUP asks the cell to stop; a second one ends the process.
    ///
    /// # Errors
    /// A message for the user.
    pub fn run(
        self,
        network: Vec<NetworkPort>,
        address: Option<NetworkAddress>,
        begin: impl Fn() + Sync,
        run: impl Fn() -> i32 + Sync,
    ) -> Result<i32, String> {
        let cores = self.spec.cores as usize;
        let processors = enough_processors(cores);
        if processors.is_empty() {
            eprintln!("{}: fewer processors than {cores} cores: cores are not pinned", self.name);
        }
        let files = self.spec.volumes.iter().map(|volume| PathBuf::from(&volume.file));
        let settings = Settings {
            name: self.name,
            cores,
            arguments: self.arguments,
            volumes: files.zip(self.spec.mounts()).collect(),
            address,
            ..Settings::default()
        };
        let platform: &'static Hosted =
            Box::leak(Box::new(Hosted::new(settings, MemorySource::Pool, network)));
        if let Some(path) = &self.spec.control {
            control::listen(platform, Path::new(path)).map_err(|error| format!("{path}: {error}"))?;
        }
        listen(platform).map_err(|error| format!("signals cannot be taken: {error}"))?;
        // No core calls an Ebb before the application had the opportunity to replace it.
        let begun = Barrier::new(cores);
        let codes = start(platform, &processors, |_| {
            if current_core() == CoreIndex(0) {
                begin();
            }
            begun.wait();
            run()
        });
        Ok(codes.first().copied().unwrap_or_default())
    }
}

/// Makes a write to a closed pipe fail instead of ending the process, as Rust's own `main` would have done.
fn ignore_broken_pipes() {
    // SAFETY: no handler is installed, and no other thread runs yet that could have one.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Makes Linux kill the process when its parent ends.
fn end_with(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before that.
    if getppid().map(Pid::as_raw_nonzero).is_none_or(|pid| pid.get().unsigned_abs() != parent) {
        exit(KILLED);
    }
    Ok(())
}

/// Makes the first termination signal ask the cell to stop, and the second end the process.
fn listen(platform: &'static Hosted) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for (before, _) in signals.forever().enumerate() {
            match before {
                0 => platform.send_request(Request::Stop),
                _ => exit(KILLED),
            }
        }
    })?;
    Ok(())
}
