//! `isola cp`: copies files to and from a running cell.

use super::attach::open_session;
use super::failure::{REFUSED, USAGE};
use super::{Context, Failure, complete};
use crate::cellctl::sessions::Session;
use crate::copy::{Destination, send_files};
use clap::Args;
use isola_abi::session::{CellMessage, HostMessage, SessionRequest};
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Copies files and folders between this host and a running cell
#[derive(Debug, Args)]
#[command(after_help = "\
One of the two is CELL:PATH with an absolute path. A folder is copied with all that is in it; if the target is a folder, the \
copy gets its own name in it. Permissions and symbolic links are kept, without set-user-id bits on this host; devices, \
pipes and sockets of the cell are left out.

Examples:
  isola cp nginx.conf web:/etc/nginx/
  isola cp web:/var/log ./log")]
pub(super) struct Arguments {
    /// The file or folder to copy
    #[arg(add = complete::cells())]
    from: String,
    /// The copy, or a folder for it
    #[arg(add = complete::cells())]
    to: String,
}

/// A place of a file: in a cell, or on this host.
fn cell_path(text: &str) -> Option<(&str, &str)> {
    // A path with a colon is written with a slash before it, as in ./a:b.
    text.split_once(':').filter(|(cell, _)| !cell.is_empty() && !cell.contains('/'))
}

pub(super) fn cp(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    match (cell_path(&arguments.from), cell_path(&arguments.to)) {
        (None, Some((cell, path))) => store(context, Path::new(&arguments.from), cell, path),
        (Some((cell, path)), None) => fetch(context, cell, path, Path::new(&arguments.to)),
        _ => Err(Failure::new(USAGE, "one of the two must be a cell's path, as in web:/etc/hosts")),
    }
}

fn open(context: &Context, cell: &str, request: SessionRequest) -> Result<Session, Failure> {
    let (SessionRequest::Fetch { path } | SessionRequest::Store { path, .. }) = &request else {
        return Err(Failure::new(USAGE, "no copy"));
    };
    if !path.starts_with('/') {
        return Err(Failure::new(
            USAGE,
            format!("{path:?} is no absolute path of a cell: write {cell}:/PATH"),
        ));
    }
    open_session(context, cell, &request)
}

fn store(context: &Context, from: &Path, cell: &str, path: &str) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::new(REFUSED, format!("{}: {error}", from.display()));
    let name = from.canonicalize().map_err(failed)?;
    let name = name.file_name().and_then(|name| name.to_str()).unwrap_or("copy").to_owned();
    let mut session = open(context, cell, SessionRequest::Store { path: path.to_owned(), name })?;
    let sent = send_files(from, &mut |message: HostMessage| session.send(&message));
    // If the cell has refused a file, its reason counts.
    match (sent, last(&mut session)) {
        (Ok(()), outcome) => outcome,
        (Err(_), Err(failure)) if !failure.message().is_empty() => Err(failure),
        (Err(error), _) => Err(Failure::new(REFUSED, error.to_string())),
    }
}

/// Waits for the last message.
fn last(session: &mut Session) -> Result<ExitCode, Failure> {
    loop {
        match session.receive() {
            Ok(Some(CellMessage::Ended(code))) => return Ok(ExitCode::from(code)),
            Ok(Some(CellMessage::Failed(text, code))) => return Err(Failure::new(code, text)),
            Ok(_) => {}
            Err(error) => return Err(Failure::new(REFUSED, format!("the connection was lost: {error}"))),
        }
    }
}

fn fetch(context: &Context, cell: &str, path: &str, to: &Path) -> Result<ExitCode, Failure> {
    let mut session = open(context, cell, SessionRequest::Fetch { path: path.to_owned() })?;
    let name = path.trim_end_matches('/').rsplit('/').next().filter(|name| *name != "..").unwrap_or_default();
    let mut destination = Destination::new(to, name);
    loop {
        match session.receive()? {
            Some(CellMessage::Entry(entry)) => destination.create(&entry)?,
            Some(CellMessage::Contents(bytes)) => destination.write(&bytes)?,
            Some(CellMessage::Ended(code)) => {
                destination.finish()?;
                return Ok(ExitCode::from(code));
            }
            Some(CellMessage::Failed(text, code)) => return Err(Failure::new(code, text)),
            Some(CellMessage::Output(_) | CellMessage::ErrorOutput(_)) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_separates_cell_and_path() {
        assert_eq!(cell_path("web:/etc"), Some(("web", "/etc")));
        for path in ["/etc", "./a:b", ":/etc", "a"] {
            assert_eq!(cell_path(path), None, "{path}");
        }
    }
}
