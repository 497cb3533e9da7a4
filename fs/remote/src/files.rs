//! The Ebb, and the functions that an application calls.

use crate::error::{FileError, FileRefusal};
use crate::protocol::{Answer, Entry, FileRequest, MAX_ENTRIES, MAX_READ, Status};
use alloc::string::ToString;
use alloc::vec::Vec;
use isola_ebbs::ebb_id;
use isola_iobuf::Chain;
use isola_messenger::{AskError, Interface, SharedEbb};

/// The files. Their home is the machine that exports them.
pub static FILES: SharedEbb<FileSystem> = SharedEbb::new(ebb_id!(FILES));

/// The most entries that [`list`] returns: with the longest names they take some 5 MiB.
pub const MAX_LISTED: usize = 16_384;

/// The interface of [`FILES`].
#[derive(Debug)]
pub struct FileSystem;

impl Interface for FileSystem {
    type Request = FileRequest;
    type Answer = Answer;
}

/// Returns the status of the file or directory at `path`.
///
/// # Errors
/// Returns a [`FileError`].
pub async fn status(path: &str) -> Result<Status, FileError> {
    match ask(FileRequest::Status { path: path.to_string() }).await? {
        Answer::Status(status) => Ok(status),
        other => Err(unexpected(&other)),
    }
}

/// Returns up to `len` bytes of a file from `offset` on, at most [`MAX_READ`]. Fewer are returned only at the end of
/// the file, and none after it.
///
/// # Errors
/// Returns a [`FileError`].
pub async fn read(path: &str, offset: u64, len: usize) -> Result<Chain, FileError> {
    let len = len.min(MAX_READ) as u32;
    match ask(FileRequest::Read { path: path.to_string(), offset, len }).await? {
        Answer::Data(data) if data.len() <= len as usize => Ok(data),
        other => Err(unexpected(&other)),
    }
}

/// Returns all entries of a directory by name, up to [`MAX_LISTED`]. For a larger directory, use [`list_after`].
///
/// # Errors
/// Returns a [`FileError`]: `FileRefusal(TooLarge)` if there are more entries.
pub async fn list(path: &str) -> Result<Vec<Entry>, FileError> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let after = all.last().map_or("", |last| last.name.as_str());
        let more = list_after(path, after).await?;
        if all.len() + more.len() > MAX_LISTED {
            return Err(FileError::Refused(FileRefusal::TooLarge));
        }
        let is_full = more.len() == MAX_ENTRIES;
        all.extend(more);
        if !is_full {
            return Ok(all);
        }
    }
}

/// Returns the next entries of a directory after the name `after`, by name. Fewer than [`MAX_ENTRIES`] are returned
/// only at the end. The empty name precedes all others.
///
/// # Errors
/// Returns a [`FileError`].
pub async fn list_after(path: &str, after: &str) -> Result<Vec<Entry>, FileError> {
    match ask(FileRequest::List { path: path.to_string(), after: after.to_string() }).await? {
        // A home that repeats entries would keep its callers busy forever.
        Answer::Entries(more) if is_behind(after, &more) => Ok(more),
        other => Err(unexpected(&other)),
    }
}

/// Returns whether the names are in ascending order, all after `after`.
fn is_behind(after: &str, entries: &[Entry]) -> bool {
    let names = entries.iter().map(|entry| entry.name.as_str());
    core::iter::once(after).chain(names).is_sorted_by(|one, next| one < next)
}

/// Writes any number of bytes to a file from `offset` on. Creates the file if there is none, and never truncates it.
///
/// # Errors
/// Returns a [`FileError`]; some of the bytes may be written then.
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

/// Returns the error for an answer of the wrong kind.
fn unexpected(answer: &Answer) -> FileError {
    match answer {
        Answer::Refused(refused) => FileError::Refused(*refused),
        _ => FileError::Ask(AskError::Malformed),
    }
}

/// The conversion for the home, which answers with a refusal.
impl From<FileRefusal> for Answer {
    fn from(refused: FileRefusal) -> Self {
        Self::Refused(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::FileKind;

    #[test]
    fn entries_that_repeat_or_are_out_of_order_are_rejected() {
        let entries = |names: &[&str]| -> Vec<Entry> {
            names.iter().map(|name| Entry { name: name.to_string(), kind: FileKind::File }).collect()
        };
        assert!(is_behind("", &entries(&[])) && is_behind("a", &entries(&["b", "c"])));
        for names in [&["a"][..], &["b", "b"], &["c", "b"], &[""]] {
            assert!(!is_behind("a", &entries(names)), "{names:?}");
        }
    }
}
