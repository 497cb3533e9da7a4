//! An initial file system for a Linux kernel: a cpio archive in the format "newc" (Linux,
//! `Documentation/driver-api/early-userspace/buffer-format.rst`), uncompressed, because that boots fastest.

use std::fmt::Write;

/// The use of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A data file.
    Data,
    /// An executable.
    Program,
}

const FOLDER: u32 = 0o040_755;
const CONSOLE: u32 = 0o020_600;
/// The device number of the kernel's console: major and minor.
const CONSOLE_DEVICE: (u32, u32) = (5, 1);
const LAST: &str = "TRAILER!!!";

/// An archive under construction.
#[derive(Clone, Debug, Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

impl Initramfs {
    /// Adds a folder, whose parent exists.
    pub fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, (0, 0), &[]);
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: Mode, content: &[u8]) {
        let mode = match mode {
            Mode::Data => 0o100_644,
            Mode::Program => 0o100_755,
        };
        self.entry(path, mode, (0, 0), content);
    }

    /// Adds the console, which is the first process's standard input and output.
    pub fn console(&mut self, path: &str) {
        self.entry(path, CONSOLE, CONSOLE_DEVICE, &[]);
    }

    /// Completes the archive and returns it.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(LAST, 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let (links, time, owner) = (1, 0, 0);
        let fields = [
            self.entries,
            mode,
            owner,
            owner,
            links,
            time,
            content.len() as u32,
            0,
            0,
            device.0,
            device.1,
            path.len() as u32 + 1,
            0,
        ];
        let mut header = String::from("070701");
        for field in fields {
            // Writing to a string cannot fail.
            let _ = write!(header, "{field:08X}");
        }
        self.bytes.extend(header.as_bytes());
        self.bytes.extend(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    /// Pads to a multiple of four bytes, as required after names and contents.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in an archive: path, mode, device, content.
    type Entry = (String, u32, (u32, u32), Vec<u8>);

    /// Parses an archive, as the kernel does.
    fn entries(mut archive: &[u8]) -> Vec<Entry> {
        let mut found = Vec::new();
        loop {
            let (header, rest) = archive.split_at(110);
            assert_eq!(&header[..6], b"070701");
            let field = |index: usize| {
                let digits = std::str::from_utf8(&header[6 + 8 * index..][..8]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            let (path_len, len) = (field(11) as usize, field(6) as usize);
            assert_eq!(rest[path_len - 1], 0);
            let path = String::from_utf8(rest[..path_len - 1].to_vec()).unwrap();
            let start = (110 + path_len).next_multiple_of(4) - 110;
            let content = rest[start..start + len].to_vec();
            let end = (110 + start + len).next_multiple_of(4) - 110;
            archive = &rest[end..];
            if path == LAST {
                assert!(archive.is_empty());
                return found;
            }
            found.push((path, field(1), (field(9), field(10)), content));
        }
    }

    #[test]
    fn an_archive_contains_its_entries() {
        let mut system = Initramfs::default();
        system.folder("dev");
        system.console("dev/console");
        system.file("init", Mode::Program, b"#!/bin/sh\n");
        system.file("empty", Mode::Data, b"");
        let found = entries(&system.finish());
        assert_eq!(found[0], ("dev".into(), 0o040_755, (0, 0), vec![]));
        assert_eq!(found[1], ("dev/console".into(), 0o020_600, (5, 1), vec![]));
        assert_eq!(found[2], ("init".into(), 0o100_755, (0, 0), b"#!/bin/sh\n".to_vec()));
        assert_eq!(found[3], ("empty".into(), 0o100_644, (0, 0), vec![]));
        assert_eq!(found.len(), 4);
    }

    proptest::proptest! {
        #[test]
        fn names_and_contents_of_any_length_fit(files in proptest::collection::vec(("[a-z]{1,12}", 0usize..20), 0..8)) {
            let mut system = Initramfs::default();
            for (name, len) in &files {
                system.file(name, Mode::Data, &vec![b'x'; *len]);
            }
            let found: Vec<_> = entries(&system.finish()).into_iter().map(|entry| (entry.0, entry.3.len())).collect();
            proptest::prop_assert_eq!(found, files);
        }
    }
}
