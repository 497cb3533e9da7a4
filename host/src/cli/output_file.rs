//! Files that a command writes: opened before the command acts, and changed only once it has something to write.

use super::Failure;
use super::failure::REFUSED;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Opens a file for the output of a command, or the standard output for `-`. A file that exists keeps its contents until
/// the first write or flush; without one, a new file is removed again.
pub(super) fn open(path: &Path) -> Result<Box<dyn Write>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let is_new = !path.exists();
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let file = file.map_err(|error| unwritable(path, &error))?;
    Ok(Box::new(OutputFile { file, path: path.to_owned(), is_new, has_begun: false }))
}

/// The failure of a write to a file.
pub(super) fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(REFUSED, format!("{} cannot be written: {error}", path.display()))
}

struct OutputFile {
    file: File,
    path: PathBuf,
    is_new: bool,
    has_begun: bool,
}

impl OutputFile {
    fn begin(&mut self) -> io::Result<()> {
        if !self.has_begun {
            // A pipe or a device has no length.
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
            }
            self.has_begun = true;
        }
        Ok(())
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begin()?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.begin()?;
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_new && !self.has_begun {
            // The command fails for another reason; an empty file that stays is no further failure.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_output_leaves_files_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::write(&old, "earlier").unwrap();
        drop((open(&old).unwrap(), open(&new).unwrap()));
        assert_eq!(fs::read(&old).unwrap(), b"earlier");
        assert!(!new.exists());
    }

    #[test]
    fn output_replaces_the_contents_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "earlier and longer").unwrap();
        let mut file = open(&path).unwrap();
        file.write_all(b"now").unwrap();
        file.write_all(b", too").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"now, too");
        open(&path).unwrap().flush().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"", "empty output is output");
    }

    #[test]
    fn a_device_can_be_written_and_a_folder_cannot() {
        open(Path::new("/dev/null")).unwrap().write_all(b"bytes").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let failure = open(folder.path()).err().unwrap();
        assert!(failure.message().contains("cannot be written"), "{}", failure.message());
    }
}
