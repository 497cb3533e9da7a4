//! File operations within one directory.

use cap_std::ambient_authority;
use cap_std::fs::{Dir, FileExt, FileType, Metadata, OpenOptions};
use cap_std::time::SystemTime;
use isola_fs::{Access, Answer, Entry, FileKind, FileRefusal, FileRequest, MAX_ENTRIES, Status};
use isola_iobuf::{Chain, IoBuf};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;

/// A directory of the host. Its operations are blocking system calls, so cores must not call them.
#[derive(Debug)]
pub struct Directory {
    root: Dir,
    access: Access,
}

impl Directory {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// Returns an error if there is none, or it cannot be opened.
    pub fn open(path: &Path, access: Access) -> io::Result<Self> {
        Ok(Self { root: Dir::open_ambient_dir(path, ambient_authority())?, access })
    }

    /// Carries out a request.
    pub fn answer(&self, request: FileRequest) -> Answer {
        let answer = match request {
            FileRequest::Status { path } => self.status(&path),
            FileRequest::Read { path, offset, len } => self.read(&path, offset, len),
            FileRequest::List { path, after } => self.list(&path, &after),
            FileRequest::Write { path, offset, data } => self.write(&path, offset, &data),
        };
        answer.unwrap_or_else(Answer::Refused)
    }

    fn status(&self, path: &str) -> Result<Answer, FileRefusal> {
        self.root.metadata(within(path)).map(|found| Answer::Status(status_of(&found))).map_err(refused)
    }

    fn read(&self, path: &str, offset: u64, len: u32) -> Result<Answer, FileRefusal> {
        // A blocking open of a named pipe without a writer would occupy the thread forever.
        let mut options = OpenOptions::new();
        options.read(true);
        nonblocking(&mut options);
        let file = self.root.open_with(within(path), &options).map_err(refused)?;
        if !file.metadata().map_err(refused)?.is_file() {
            return Err(FileRefusal::NotAFile);
        }
        let mut bytes = vec![0; len as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(refused(error)),
            }
        }
        bytes.truncate(filled);
        Ok(Answer::Data(Chain::from(IoBuf::from(bytes))))
    }

    fn list(&self, path: &str, after: &str) -> Result<Answer, FileRefusal> {
        let entries = self.root.read_dir(within(path)).map_err(|error| match error.kind() {
            ErrorKind::NotADirectory => FileRefusal::NotADirectory,
            _ => refused(error),
        })?;
        // Keeps the first [`MAX_ENTRIES`] names after `after`, so that a large directory takes no more memory.
        let mut first: BTreeMap<String, FileKind> = BTreeMap::new();
        for entry in entries {
            let entry = entry.map_err(refused)?;
            // A name that is not UTF-8 cannot be requested either.
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.as_str() <= after {
                continue;
            }
            first.insert(name, entry.file_type().map_or(FileKind::Other, kind_of));
            if first.len() > MAX_ENTRIES {
                first.pop_last();
            }
        }
        let entries = first.into_iter().map(|(name, kind)| Entry { name, kind });
        Ok(Answer::Entries(entries.collect()))
    }

    fn write(&self, path: &str, offset: u64, data: &Chain) -> Result<Answer, FileRefusal> {
        if self.access == Access::ReadOnly {
            return Err(FileRefusal::ReadOnly);
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true);
        nonblocking(&mut options);
        let file = self.root.open_with(within(path), &options).map_err(refused)?;
        if !file.metadata().map_err(refused)?.is_file() {
            return Err(FileRefusal::NotAFile);
        }
        let mut offset = offset;
        for part in data.parts() {
            file.write_all_at(part, offset).map_err(refused)?;
            offset = offset.checked_add(part.len() as u64).ok_or(FileRefusal::Host)?;
        }
        Ok(Answer::Written)
    }
}

fn nonblocking(options: &mut OpenOptions) {
    use cap_std::fs::OpenOptionsExt;
    /// Linux's `O_NONBLOCK` on x86-64.
    const NONBLOCK: i32 = 0o4000;
    options.custom_flags(NONBLOCK);
}

/// Returns the path relative to the directory: without a leading `/`, which denotes the directory itself.
fn within(path: &str) -> &str {
    match path.trim_start_matches('/') {
        "" => ".",
        path => path,
    }
}

fn kind_of(kind: FileType) -> FileKind {
    if kind.is_file() {
        FileKind::File
    } else if kind.is_dir() {
        FileKind::Directory
    } else {
        FileKind::Other
    }
}

fn status_of(found: &Metadata) -> Status {
    let epoch = SystemTime::from_std(std::time::SystemTime::UNIX_EPOCH);
    let modified = found.modified().ok().and_then(|modified| modified.duration_since(epoch).ok());
    let modified_s = modified.map_or(0, |since| since.as_secs());
    Status { kind: kind_of(found.file_type()), len_bytes: found.len(), modified_s }
}

fn refused(error: io::Error) -> FileRefusal {
    match error.kind() {
        ErrorKind::NotFound => FileRefusal::NotFound,
        // The error of `cap-std` for a path that leads out of the directory, and of Linux for a missing permission.
        ErrorKind::PermissionDenied => FileRefusal::NotAllowed,
        ErrorKind::IsADirectory | ErrorKind::NotADirectory => FileRefusal::NotAFile,
        ErrorKind::InvalidInput => FileRefusal::NotAllowed,
        // `ENAMETOOLONG` and `ELOOP`.
        _ if matches!(error.raw_os_error(), Some(36 | 40)) => FileRefusal::NotAllowed,
        _ => FileRefusal::Host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn bytes(answer: Answer) -> Vec<u8> {
        match answer {
            Answer::Data(data) => data.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    fn read(directory: &Directory, path: &str, offset: u64, len: u32) -> Answer {
        directory.answer(FileRequest::Read { path: path.into(), offset, len })
    }

    #[test]
    fn paths_out_of_the_directory_are_refused() {
        let all = tempfile::tempdir().unwrap();
        let inside = all.path().join("inside");
        fs::create_dir(&inside).unwrap();
        fs::write(all.path().join("secret"), "secret").unwrap();
        fs::write(inside.join("file"), "0123456789").unwrap();
        symlink("../secret", inside.join("up")).unwrap();
        symlink("/etc/passwd", inside.join("away")).unwrap();
        symlink("file", inside.join("here")).unwrap();
        let directory = Directory::open(&inside, Access::ReadWrite).unwrap();
        for path in ["../secret", "up", "away", "/../secret", "x/../../secret", "here/../../secret"] {
            let answer = read(&directory, path, 0, 10);
            assert!(matches!(answer, Answer::Refused(_)), "{path}: {answer:?}");
            let write =
                FileRequest::Write { path: path.into(), offset: 0, data: Chain::from(IoBuf::from(vec![0])) };
            assert!(matches!(directory.answer(write), Answer::Refused(_)), "{path}");
        }
        assert_eq!(fs::read(all.path().join("secret")).unwrap(), b"secret");
        assert_eq!(bytes(read(&directory, "here", 0, 10)), b"0123456789");
        assert_eq!(bytes(read(&directory, "/file", 8, 10)), b"89");
        assert!(bytes(read(&directory, "file", 10, 10)).is_empty());
        assert!(bytes(read(&directory, "file", u64::MAX - 3, 0)).is_empty());
    }

    #[test]
    fn only_files_are_read_and_a_named_pipe_does_not_block() {
        let all = tempfile::tempdir().unwrap();
        let fifo = all.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let directory = Directory::open(all.path(), Access::ReadWrite).unwrap();
        assert_eq!(read(&directory, "fifo", 0, 1), Answer::Refused(FileRefusal::NotAFile));
        assert_eq!(read(&directory, "/", 0, 1), Answer::Refused(FileRefusal::NotAFile));
        assert_eq!(read(&directory, "none", 0, 1), Answer::Refused(FileRefusal::NotFound));
        let list =
            |path: &str| directory.answer(FileRequest::List { path: path.into(), after: String::new() });
        assert_eq!(list("fifo"), Answer::Refused(FileRefusal::NotADirectory));
    }

    #[test]
    fn a_read_only_export_rejects_writes() {
        let all = tempfile::tempdir().unwrap();
        let directory = Directory::open(all.path(), Access::ReadOnly).unwrap();
        let write = FileRequest::Write { path: "new".into(), offset: 0, data: Chain::new() };
        assert_eq!(directory.answer(write), Answer::Refused(FileRefusal::ReadOnly));
        assert!(fs::read_dir(all.path()).unwrap().next().is_none());
    }

    #[test]
    fn a_large_directory_is_listed_in_parts_and_in_order() {
        let all = tempfile::tempdir().unwrap();
        let mut names: Vec<String> = (0..MAX_ENTRIES + 40).map(|number| format!("n{number}")).collect();
        names.iter().for_each(|name| fs::write(all.path().join(name), name).unwrap());
        names.sort();
        let directory = Directory::open(all.path(), Access::ReadOnly).unwrap();
        let list = |after: &str| match directory
            .answer(FileRequest::List { path: "/".into(), after: after.into() })
        {
            Answer::Entries(entries) => entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let first = list("");
        assert_eq!(first, names[..MAX_ENTRIES]);
        assert_eq!(list(&first[MAX_ENTRIES - 1]), names[MAX_ENTRIES..]);
    }
}
