//! A command on a pseudo-terminal.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// A running command whose standard streams are a terminal.
pub struct Pty {
    master: File,
    slave: Option<File>,
    process: Child,
    output: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    /// Tells the reader to close its end.
    hangs_up: Arc<AtomicBool>,
}

/// The interval at which the reader looks whether it should end.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

impl Pty {
    /// Starts a command on a terminal of this many columns and rows.
    pub fn start(command: &mut Command, size: (u16, u16)) -> Self {
        let master =
            File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap());
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_bytes();
        let path = PathBuf::from(std::ffi::OsString::from_vec(name));
        let slave = File::options().read(true).write(true).open(path).unwrap();
        let stream = || slave.try_clone().unwrap();
        command.stdin(stream()).stdout(stream()).stderr(stream());
        set_size(&master, size);
        let process = command.spawn().unwrap();
        // The command keeps its end of the terminal otherwise.
        for set in [Command::stdin, Command::stdout, Command::stderr] {
            set(command, std::process::Stdio::null());
        }
        let output = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (master.try_clone().unwrap(), Arc::clone(&output));
        let hangs_up = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&hangs_up);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while !ends.load(Ordering::Relaxed) {
                let mut input = [PollFd::new(&from, PollFlags::IN)];
                if poll(&mut input, Some(&GLANCE)).unwrap() == 0 {
                    continue;
                }
                // After the other end is closed, a read of a terminal fails.
                let Ok(count @ 1..) = from.read(&mut buffer) else { return };
                into.lock().unwrap().extend(&buffer[..count]);
            }
        });
        Self { master, slave: Some(slave), process, output, reader, hangs_up }
    }

    /// Changes the size of the terminal.
    pub fn resize(&self, size: (u16, u16)) {
        set_size(&self.master, size);
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Returns the process id of the command.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns whether the terminal edits lines and echoes keys, as a shell needs it.
    pub fn is_cooked(&self) -> bool {
        use rustix::termios::LocalModes;
        let modes = tcgetattr(&self.master).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Returns the output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }

    /// Waits until the output contains `words`, and returns the position behind them.
    pub fn wait_for(&self, words: &str) -> usize {
        self.wait_after(0, words)
    }

    /// Waits until the output contains `words` after a position, and returns the position behind them.
    pub fn wait_after(&self, from: usize, words: &str) -> usize {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let output = self.output();
            if let Some(at) = output.get(from..).and_then(|rest| rest.find(words)) {
                return from + at + words.len();
            }
            let last: String = output.chars().skip(output.chars().count().saturating_sub(2_000)).collect();
            assert!(Instant::now() < end, "no {words:?} after {from}: {last:?}");
            sleep(Duration::from_millis(10));
        }
    }

    /// Closes this end of the terminal, as a connection that breaks does. Returns the exit code of the command.
    pub fn hang_up(self) -> Option<i32> {
        let Self { master, slave, mut process, reader, hangs_up, .. } = self;
        hangs_up.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        drop((master, slave));
        process.wait().unwrap().code()
    }

    /// Waits for the end of the command. Returns its exit code, and its whole output. The command must leave the terminal
    /// as it was.
    pub fn end(mut self) -> (Option<i32>, String) {
        let status = self.process.wait().unwrap();
        assert!(self.is_cooked(), "the terminal is in raw mode: {}", self.output());
        drop(self.slave.take());
        self.reader.join().unwrap();
        let output = String::from_utf8(std::mem::take(&mut *self.output.lock().unwrap())).unwrap();
        (status.code(), output)
    }
}

fn set_size(terminal: &File, (columns, rows): (u16, u16)) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}
