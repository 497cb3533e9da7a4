//! Queries to a hosted cell: the query part of the management protocol, at a socket of the process.
//!
//! A thread beside the cores serves one client at a time, as a supervisor does. The cell shares this process's memory,
//! but the thread only returns data that the cell has put into its report.

use crate::platform::Hosted;
use isola_abi::frame::{Decoder, MAX_CHUNK, encode};
use isola_abi::management::{ManagementError, Request, RequestBody, Response, ResponseBody};
use isola_abi::query::MAX_QUESTION;
use isola_platform::Platform;
use rustix::fs::{Mode, OFlags, open};
use std::fs::{Permissions, remove_file, set_permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// The time for which a client may be silent before the next one is served.
const SILENCE: Duration = Duration::from_secs(5);

/// The pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens at `path`, replacing an existing socket, for this process's user only.
pub(crate) fn listen(platform: &'static Hosted, path: &Path) -> io::Result<()> {
    let listener = bind(path)?;
    thread::Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                // An error here means that the client disconnected.
                Ok(stream) => _ = serve(platform, stream),
                // Such as a lack of file descriptors, which an immediate retry would not change.
                Err(_) => thread::sleep(PAUSE),
            }
        }
    })?;
    Ok(())
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder = open(folder, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // The address of a socket must be short; by this path the name can have any length.
    let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    match remove_file(&short) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&short)?;
    set_permissions(&short, Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn serve(platform: &Hosted, mut stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut decoder = Decoder::new();
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer)?;
        let mut bytes = buffer.get(..count).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        while let Some(request) = decoder.next::<Request>(&mut bytes) {
            let response = match request {
                Ok(Request { sequence, body }) => Response { sequence, body: answer(platform, body) },
                Err(_) => Response { sequence: 0, body: Err(ManagementError::Malformed) },
            };
            stream.write_all(&encode(&response).unwrap_or_default())?;
        }
    }
}

fn answer(platform: &Hosted, body: RequestBody) -> Result<ResponseBody, ManagementError> {
    match body {
        RequestBody::Hello { version } if version != isola_abi::VERSION => {
            Err(ManagementError::Version { supervisor: isola_abi::VERSION })
        }
        RequestBody::Hello { version } => Ok(ResponseBody::Hello { version }),
        RequestBody::Ask { name: _, line, question } => {
            let number = platform.query(line, &question).ok_or_else(|| {
                ManagementError::OutOfLimits(format!(
                    "a question has at most {MAX_QUESTION} bytes: ask for less"
                ))
            })?;
            Ok(ResponseBody::Asked { number })
        }
        RequestBody::Answers { name: _, line, number, from, max_bytes } => {
            let asked = platform.queries().number(line);
            let max_bytes = (max_bytes as usize).min(MAX_CHUNK);
            let ring = platform.report().answers.on(line);
            Ok(ResponseBody::Answers(ring.piece(number, asked, from, max_bytes)))
        }
        _ => Err(ManagementError::OutOfLimits(
            "a hosted cell is a process, which can be asked, and ended by ^C, and nothing else".into(),
        )),
    }
}
