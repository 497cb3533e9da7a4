//! The Ebb, and what an application calls.

use crate::error::{FileError, Refused};
use crate::protocol::{Answer, Entry, FileRequest, MAX_ENTRIES, MAX_READ, Status};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use isola_ebbs::ebb_id;
use isola_iobuf::Chain;
use isola_messenger::{AskError, Interface, SharedEbb};

/// The files. Their home is the machine that exports them.
pub static FILES: SharedEbb<FileSystem> = SharedEbb::new(ebb_id!(FILES));

/// What can be asked of [`FILES`].
#[derive(Debug)]
pub struct FileSystem;

impl Interface for FileSystem {
    type Request = FileRequest;
    type Answer = Answer;
}

/// What `path` names.
///
/// # Errors
/// [`FileError`].
pub async fn status(path: &str) -> Result<Status, FileError> {
    match ask(FileRequest::Status { path: path.to_string() }).await? {
        Answer::Status(status) => Ok(status),
        other => Err(unexpected(&other)),
    }
}

/// Up to `len` bytes of a file from `offset` on, and no more than [`MAX_READ`]; fewer at its end alone, and none behind it.
///
/// # Errors
/// [`FileError`].
pub async fn read(path: &str, offset: u64, len: usize) -> Result<Chain, FileError> {
    let len = len.min(MAX_READ) as u32;
    match ask(FileRequest::Read { path: path.to_string(), offset, len }).await? {
        Answer::Data(data) if data.len() <= len as usize => Ok(data),
        other => Err(unexpected(&other)),
    }
}

/// All that is in a directory, in the order of the names.
///
/// # Errors
/// [`FileError`].
pub async fn list(path: &str) -> Result<Vec<Entry>, FileError> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let after = all.last().map_or_else(String::new, |last| last.name.clone());
        match ask(FileRequest::List { path: path.to_string(), after: after.clone() }).await? {
            // A home that repeats itself would keep this going for ever.
            Answer::Entries(more) if more.iter().all(|entry| entry.name > after) => {
                let is_full = more.len() == MAX_ENTRIES;
                all.extend(more);
                if !is_full {
                    return Ok(all);
                }
            }
            other => return Err(unexpected(&other)),
        }
    }
}

/// Writes bytes into a file from `offset` on, however many. The file is made if need be; it is not made shorter.
///
/// # Errors
/// [`FileError`]; some of the bytes may then be written.
pub async fn write(path: &str, mut offset: u64, mut data: Chain) -> Result<(), FileError> {
    loop {
        let part = data.split_to(data.len().min(MAX_READ)).unwrap_or_default();
        let next = offset.saturating_add(part.len() as u64);
        match ask(FileRequest::Write { path: path.to_string(), offset, data: part }).await? {
            Answer::Written if data.is_empty() => return Ok(()),
            Answer::Written => offset = next,
            other => return Err(unexpected(&other)),
        }
    }
}

async fn ask(request: FileRequest) -> Result<Answer, FileError> {
    Ok(FILES.ask(request).await?)
}

/// Why an answer is not the one that was hoped for.
fn unexpected(answer: &Answer) -> FileError {
    match answer {
        Answer::Refused(refused) => FileError::Refused(*refused),
        _ => FileError::Ask(AskError::Malformed),
    }
}

/// As [`FileError::Refused`], for who answers.
impl From<Refused> for Answer {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}
