//! The control protocol of a machine's switch: a line of JSON in each direction, one request per connection.

use super::fabric::{Address, HostAccess, PortCounters};
use super::frame::Mac;
use crate::machine::socket;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Name of the control socket in a machine's folder.
pub const SOCKET: &str = "switch.sock";

/// How long an answer may take. The switch answers between two frames.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum length of a request or answer, in bytes.
const MAX_LINE: u64 = 64 << 10;

/// The parameters of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchSpec {
    /// The hardware address of each device, in the order of the ports.
    pub macs: Vec<Mac>,
    /// The initial declaration of all devices.
    pub address: Address,
    /// Whether cells reach the host's services.
    pub host: HostAccess,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Declares the address of the cell behind the device with that hardware address.
    Declare(Mac, Address),
    /// Requests the counters of all ports.
    Counters,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The declaration took effect.
    Declared,
    /// No device has the hardware address.
    Unknown,
    /// The counters, in the order of the ports, with the hardware addresses of their devices.
    Counters(Vec<(Mac, PortCounters)>),
}

/// Sends a request to the switch of the machine in the folder `dir`.
///
/// # Errors
/// An error if no switch runs there, or it does not answer.
pub fn ask(dir: &Path, request: &Request) -> io::Result<Answer> {
    let mut stream = socket::connect(dir, SOCKET)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_LINE)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Answers one request on a connection.
///
/// # Errors
/// An error if the client's request is malformed, or the client closes the connection.
pub(super) fn serve(mut stream: UnixStream, answer: impl FnOnce(Request) -> Answer) -> io::Result<()> {
    // The clients are the user's own commands, which send their request at once.
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    stream.set_write_timeout(Some(Duration::from_millis(100)))?;
    let mut line = String::new();
    BufReader::new(stream.try_clone()?.take(MAX_LINE)).read_line(&mut line)?;
    let answer = answer(serde_json::from_str(&line)?);
    writeln!(stream, "{}", serde_json::to_string(&answer)?)
}
