//! QEMU's control channel (QMP): a line of JSON in each direction.
//!
//! It uses commands of the human monitor, which forward ports, the commands for block devices, `inject-nmi`, and
//! `quit`.

use super::socket;
use super::state::MachineDir;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// Name of the socket in a machine's folder.
pub const SOCKET: &str = "qmp.sock";

const TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to QEMU's control channel. QEMU serves one at a time: hold the machine's lock.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

/// The reasons why a QMP command failed.
#[derive(Debug, Error)]
pub enum QmpError {
    /// The channel cannot be used.
    #[error(
        "QEMU's control channel does not work: {0}; see `isola doctor`, or end the machine with `isola down`"
    )]
    Io(#[from] io::Error),
    /// QEMU rejected a command.
    #[error("QEMU refused {command:?}: {reason}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's reason.
        reason: String,
    },
}

impl Qmp {
    /// Connects to the QEMU of the machine `dir`.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn connect(dir: &MachineDir) -> Result<Self, QmpError> {
        Self::connect_at(dir.path())
    }

    /// Sends an NMI to the machine, which only its supervisor handles: a hung supervisor restarts.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn wake_supervisor(dir: &Path) -> Result<(), QmpError> {
        Self::connect_at(dir)?.execute("inject-nmi", &Value::Null).map(drop)
    }

    fn connect_at(dir: &Path) -> Result<Self, QmpError> {
        let stream = socket::connect(dir, SOCKET)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut qmp = Self { stream: BufReader::new(stream) };
        // QEMU greets first.
        qmp.receive()?;
        qmp.execute("qmp_capabilities", &Value::Null)?;
        Ok(qmp)
    }

    /// Runs a command of the human monitor; returns its output.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn human(&mut self, command: &str) -> Result<String, QmpError> {
        let answer = self.execute("human-monitor-command", &json!({ "command-line": command }))?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    /// Ends QEMU.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn quit(&mut self) -> Result<(), QmpError> {
        self.execute("quit", &Value::Null).map(drop)
    }

    /// Runs a command, with arguments unless they are null; returns its answer.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        let mut message = json!({ "execute": command });
        if !arguments.is_null() {
            message["arguments"] = arguments.clone();
        }
        let mut line = message.to_string();
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes())?;
        loop {
            let mut answer = self.receive()?;
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = answer.get("error") {
                let reason =
                    error.get("desc").and_then(Value::as_str).unwrap_or("no reason given").to_owned();
                return Err(QmpError::Refused { command: command.to_owned(), reason });
            }
            // Otherwise it is an asynchronous event of QEMU: skip it.
        }
    }

    fn receive(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "QEMU has closed it")),
            Ok(_) => serde_json::from_str(&line).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "QEMU does not answer"))
            }
            Err(error) => Err(error),
        }
    }
}
