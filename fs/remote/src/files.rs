//! The Ebb, and what an application calls.

use crate::error::{FileError, Refused};
use crate::protocol::{Answer, Entry, FileRequest, MAX_ENTRIES, MAX_READ, Status};
use alloc::string::ToString;
use alloc::vec::Vec;
use isola_ebbs::ebb_id;
use isola_iobuf::Chain;
use isola_messenger::{AskError, Interface, SharedEbb};

/// The files. Their home is the machine that exports them.
pub static FILES: SharedEbb<FileSystem> = SharedEbb::new(ebb_id!(FILES));

/// Most entries of a directory that is listed as a whole: with the longest names they take some 5 MiB.
pub const MAX_LISTED: usize = 16_384;

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

/// All that is in a directory, in the order of the names: up to [`MAX_LISTED`] entries. Of a larger one, ask for
/// [parts](list_after).
///
/// # Errors
/// [`FileError`]: `Refused(TooLarge)` where there are more.
pub async fn list(path: &str) -> Result<Vec<Entry>, FileError> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let after = all.last().map_or("", |last| last.name.as_str());
        let more = list_after(path, after).await?;
        if all.len() + more.len() > MAX_LISTED {
            return Err(FileError::Refused(Refused::TooLarge));
        }
        let is_full = more.len() == MAX_ENTRIES;
        all.extend(more);
        if !is_full {
            return Ok(all);
        }
    }
}

/// The next entries of a directory whose names are behind `after`, in the order of the names: [`MAX_ENTRIES`] of them where
/// there may be more. An empty name is before all.
///
/// # Errors
/// [`FileError`].
pub async fn list_after(path: &str, after: &str) -> Result<Vec<Entry>, FileError> {
    match ask(FileRequest::List { path: path.to_string(), after: after.to_string() }).await? {
        // A home that repeats itself would keep its callers going for ever.
        Answer::Entries(more) if is_behind(after, &more) => Ok(more),
        other => Err(unexpected(&other)),
    }
}

/// Whether names are in order, and behind that one.
fn is_behind(after: &str, entries: &[Entry]) -> bool {
    let names = entries.iter().map(|entry| entry.name.as_str());
    core::iter::once(after).chain(names).is_sorted_by(|one, next| one < next)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::FileKind;

    #[test]
    fn a_home_that_repeats_itself_or_mixes_names_up_is_no_home() {
        let entries = |names: &[&str]| -> Vec<Entry> {
            names.iter().map(|name| Entry { name: name.to_string(), kind: FileKind::File }).collect()
        };
        assert!(is_behind("", &entries(&[])) && is_behind("a", &entries(&["b", "c"])));
        for names in [&["a"][..], &["b", "b"], &["c", "b"], &[""]] {
            assert!(!is_behind("a", &entries(names)), "{names:?}");
        }
    }
}
