//! Random operations against a model, on file systems that e2fsck checks afterwards.

mod common;

use common::{MemoryDisk, check, make_image, mount, tree};
use isola_need::{Need, need};
use isola_volumes::{Ext4, FileError, FileId, FileSystem};
use std::collections::BTreeMap;

/// Files with their contents, and directories with `None`, by path.
type Model = BTreeMap<String, Option<Vec<u8>>>;

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap()
}

fn find(file_system: &mut Ext4, path: &str) -> Result<FileId, FileError> {
    let mut found = file_system.root();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        found = file_system.lookup(found, part.as_bytes())?.id;
    }
    Ok(found)
}

/// What the model says of an operation that adds `path`.
fn may_add(model: &Model, path: &str) -> Result<(), FileError> {
    let (parent, _) = split(path);
    match model.get(parent) {
        _ if parent.is_empty() => {}
        Some(None) => {}
        Some(Some(_)) => return Err(FileError::NotADirectory),
        None => return Err(FileError::NotFound),
    }
    if model.contains_key(path) { Err(FileError::AlreadyExists) } else { Ok(()) }
}

fn has_entries(model: &Model, path: &str) -> bool {
    let prefix = format!("{path}/");
    model.keys().any(|other| other.starts_with(&prefix))
}

struct Tester {
    file_system: Ext4,
    model: Model,
    random: fastrand::Rng,
}

impl Tester {
    /// Returns a path: mostly of an existing directory, and mostly existing itself.
    fn path(&mut self) -> String {
        let directories: Vec<String> = self
            .model
            .iter()
            .filter(|(_, contents)| contents.is_none())
            .map(|(path, _)| path.clone())
            .collect();
        if !self.model.is_empty() && self.random.u8(..3) > 0 {
            let index = self.random.usize(..self.model.len());
            return self.model.keys().nth(index).unwrap().clone();
        }
        let parent = match directories.is_empty() || self.random.bool() {
            true => String::new(),
            false => directories[self.random.usize(..directories.len())].clone(),
        };
        let long = "x".repeat(self.random.usize(..60));
        format!("{parent}/{}{long}", self.random.u8(..40))
    }

    fn step(&mut self) {
        let path = self.path();
        match self.random.u8(..12) {
            0..2 => self.create(&path),
            2 => self.make_directory(&path),
            3..6 => self.write(&path),
            6 => self.truncate(&path),
            7..9 => self.read(&path),
            9 => self.remove(&path),
            10 => {
                let to = self.path();
                self.rename(&path, &to);
            }
            _ => self.file_system.sync().unwrap(),
        }
    }

    fn parent(&mut self, path: &str) -> Result<FileId, FileError> {
        find(&mut self.file_system, split(path).0)
    }

    fn create(&mut self, path: &str) {
        let expected = may_add(&self.model, path);
        let found = self.parent(path);
        let found = found.and_then(|parent| self.file_system.create(parent, split(path).1.as_bytes()));
        assert_eq!(found.map(drop), expected, "create {path}");
        if expected.is_ok() {
            self.model.insert(path.into(), Some(Vec::new()));
        }
    }

    fn make_directory(&mut self, path: &str) {
        let expected = may_add(&self.model, path);
        let found = self.parent(path);
        let found =
            found.and_then(|parent| self.file_system.make_directory(parent, split(path).1.as_bytes()));
        assert_eq!(found.map(drop), expected, "mkdir {path}");
        if expected.is_ok() {
            self.model.insert(path.into(), None);
        }
    }

    fn write(&mut self, path: &str) {
        let Some(Some(contents)) = self.model.get_mut(path) else { return };
        let most = if self.random.u8(..10) == 0 { 400_000 } else { 9_000 };
        let (at, len) = (self.random.usize(..most), self.random.usize(1..20_000));
        let bytes: Vec<u8> = (0..len).map(|_| self.random.u8(..)).collect();
        let file = find(&mut self.file_system, path).unwrap();
        match self.file_system.write(file, at as u64, &bytes) {
            Ok(()) => {
                contents.resize(contents.len().max(at + len), 0);
                contents[at..at + len].copy_from_slice(&bytes);
            }
            Err(FileError::NoSpace) => {
                // A part may have been written.
                *contents = vec![0; self.file_system.metadata(file).unwrap().len as usize];
                self.file_system.read(file, 0, contents).unwrap();
            }
            Err(error) => panic!("write {path}: {error}"),
        }
    }

    fn truncate(&mut self, path: &str) {
        let Some(Some(contents)) = self.model.get_mut(path) else { return };
        let len = self.random.usize(..30_000);
        let file = find(&mut self.file_system, path).unwrap();
        self.file_system.truncate(file, len as u64).unwrap();
        contents.resize(len, 0);
    }

    fn read(&mut self, path: &str) {
        let found = find(&mut self.file_system, path);
        let Some(contents) = self.model.get(path) else {
            assert!(found.is_err(), "{path} exists");
            return;
        };
        let metadata = self.file_system.metadata(found.unwrap()).unwrap();
        let Some(contents) = contents else { return };
        assert_eq!(metadata.len, contents.len() as u64, "{path}");
        let at = self.random.usize(..contents.len() + 1);
        let mut bytes = vec![0; self.random.usize(..20_000)];
        let count = self.file_system.read(metadata.id, at as u64, &mut bytes).unwrap();
        assert_eq!(count, bytes.len().min(contents.len() - at), "{path}");
        assert!(bytes[..count] == contents[at..at + count], "{path}, {count} bytes at {at}");
    }

    fn remove(&mut self, path: &str) {
        let expected = match self.model.get(path) {
            None => Err(FileError::NotFound),
            Some(None) if has_entries(&self.model, path) => Err(FileError::NotEmpty),
            Some(_) => Ok(()),
        };
        let found = self.parent(path);
        let found = found.and_then(|parent| self.file_system.remove(parent, split(path).1.as_bytes()));
        if let Ok(Some(unnamed)) = found {
            self.file_system.release(unnamed).unwrap();
        }
        if expected.is_ok() {
            self.model.remove(path);
        }
        assert_eq!(found.map(drop).is_ok(), expected.is_ok(), "remove {path}");
        assert!(expected != Err(FileError::NotEmpty) || found == Err(FileError::NotEmpty), "{found:?}");
    }

    fn rename(&mut self, from: &str, to: &str) {
        let (Ok(from_parent), Ok(to_parent)) = (self.parent(from), self.parent(to)) else { return };
        let is_in = |path: &str, directory: &str| path.starts_with(&format!("{directory}/"));
        let is_directory = |path: &str| self.model.get(path) == Some(&None);
        let is_possible = self.model.contains_key(from)
            && !is_in(to, from)
            && (from == to
                || match self.model.get(to) {
                    None => true,
                    Some(None) => is_directory(from) && !has_entries(&self.model, to),
                    Some(Some(_)) => !is_directory(from),
                });
        let found = self
            .file_system
            .rename((from_parent, split(from).1.as_bytes()), (to_parent, split(to).1.as_bytes()));
        if let Ok(Some(unnamed)) = found {
            self.file_system.release(unnamed).unwrap();
        }
        assert_eq!(found.is_ok(), is_possible, "rename {from} to {to}: {found:?}");
        if is_possible && from != to {
            self.model.remove(to);
            let moved: Vec<String> =
                self.model.keys().filter(|path| *path == from || is_in(path, from)).cloned().collect();
            for path in moved {
                let contents = self.model.remove(&path).unwrap();
                self.model.insert(format!("{to}{}", &path[from.len()..]), contents);
            }
        }
    }
}

fn test_random(image: Vec<u8>, seed: u64, steps: usize) {
    let disk = MemoryDisk::new(image);
    let mut tester = Tester {
        file_system: mount(&disk).unwrap(),
        model: Model::new(),
        random: fastrand::Rng::with_seed(seed),
    };
    for step in 0..steps {
        tester.step();
        if step % 150 == 149 {
            assert!(tree(&mut tester.file_system).unwrap() == tester.model, "seed {seed}, step {step}");
            tester.file_system.unmount().unwrap();
            check(&disk.contents.borrow())
                .unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
            tester.file_system = mount(&disk).unwrap();
        }
    }
    assert!(tree(&mut tester.file_system).unwrap() == tester.model, "seed {seed}");
    tester.file_system.unmount().unwrap();
    check(&disk.contents.borrow()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

#[test]
fn random_operations_agree_with_a_model_and_with_e2fsck() {
    if !need(Need::E2fsprogs) {
        return;
    }
    for seed in 0..4 {
        test_random(make_image(12 << 20, &["-b", "4096", "-J", "size=4"]), seed, 600);
    }
}

#[test]
fn random_operations_agree_with_a_model_on_other_forms_of_ext4() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let forms: [&[&str]; 5] = [
        &["-b", "1024", "-J", "size=1"],
        &["-b", "2048", "-O", "^metadata_csum"],
        &["-b", "1024", "-g", "1024", "-J", "size=1"],
        &["-b", "4096", "-J", "size=4", "-I", "128"],
        &["-b", "1024", "-O", "^64bit,^flex_bg", "-J", "size=1"],
    ];
    for (seed, form) in forms.iter().enumerate() {
        test_random(make_image(16 << 20, form), 100 + seed as u64, 450);
    }
}

#[test]
fn a_full_file_system_accepts_removals_and_stays_consistent() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = MemoryDisk::new(make_image(6 << 20, &["-b", "1024", "-J", "size=1"]));
    let mut file_system = mount(&disk).unwrap();
    let root = file_system.root();
    let mut names = Vec::new();
    let error = loop {
        let name = format!("file{}", names.len());
        let file = match file_system.create(root, name.as_bytes()) {
            Ok(file) => file.id,
            Err(error) => break error,
        };
        names.push(name);
        if let Err(error) = file_system.write(file, 0, &[7; 300_000]) {
            break error;
        }
    };
    assert_eq!(error, FileError::NoSpace);
    file_system.sync().unwrap();
    for name in &names {
        if let Some(unnamed) = file_system.remove(root, name.as_bytes()).unwrap() {
            file_system.release(unnamed).unwrap();
        }
    }
    let again = file_system.create(root, b"again").unwrap().id;
    file_system.write(again, 0, &[8; 1_000_000]).unwrap();
    file_system.unmount().unwrap();
    check(&disk.contents.borrow()).unwrap();
}

#[test]
fn positions_beyond_the_limit_are_errors_or_the_end() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = MemoryDisk::new(make_image(4 << 20, &["-b", "1024", "-J", "size=1"]));
    let mut file_system = mount(&disk).unwrap();
    let root = file_system.root();
    let file = file_system.create(root, b"file").unwrap().id;
    for at in [u64::MAX, u64::MAX - 5, 1 << 42, (1 << 42) - 1024] {
        assert_eq!(file_system.write(file, at, &[1; 5]), Err(FileError::TooLarge), "{at}");
        assert_eq!(file_system.read(file, at, &mut [0; 10]), Ok(0), "{at}");
    }
    assert_eq!(file_system.truncate(file, u64::MAX), Err(FileError::TooLarge));
    assert_eq!(file_system.metadata(file).unwrap().len, 0);
    file_system.unmount().unwrap();
    check(&disk.contents.borrow()).unwrap();
}

#[test]
fn fragmented_files_keep_their_contents_and_can_be_removed() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = MemoryDisk::new(make_image(16 << 20, &["-b", "1024", "-J", "size=1"]));
    let mut file_system = mount(&disk).unwrap();
    let root = file_system.root();
    let files: Vec<FileId> =
        (0..6).map(|number| file_system.create(root, &[b'a' + number]).unwrap().id).collect();
    // Blocks of the files alternate, backwards and with holes.
    for block in (0..700_u64).rev().filter(|block| block % 3 > 0) {
        for (number, file) in files.iter().enumerate() {
            file_system.write(*file, block * 1024, &[(block as usize + number) as u8; 1024]).unwrap();
        }
        if block % 100 == 0 {
            file_system.sync().unwrap();
        }
    }
    file_system.unmount().unwrap();
    check(&disk.contents.borrow()).unwrap();
    let mut file_system = mount(&disk).unwrap();
    for (number, file) in files.iter().enumerate() {
        let mut contents = vec![1; 699 * 1024];
        assert_eq!(file_system.read(*file, 0, &mut contents).unwrap(), contents.len());
        for block in 0..699_usize {
            let expected = if block % 3 > 0 { (block + number) as u8 } else { 0 };
            assert!(contents[block * 1024..][..1024].iter().all(|byte| *byte == expected), "block {block}");
        }
        assert_eq!(file_system.truncate(*file, 10_000), Err(FileError::Fragmented));
        if let Some(unnamed) = file_system.remove(root, &[b'a' + number as u8]).unwrap() {
            file_system.release(unnamed).unwrap();
        }
    }
    file_system.unmount().unwrap();
    check(&disk.contents.borrow()).unwrap();
}

#[test]
fn a_formatted_disk_agrees_with_a_model_and_with_e2fsck() {
    if !need(Need::E2fsprogs) {
        return;
    }
    for (seed, len) in [(200, 64 << 20), (201, 200 << 20)] {
        let disk = MemoryDisk::new(vec![0xa5; len]);
        Ext4::format(disk.clone(), common::services()).unwrap();
        check(&disk.contents.borrow()).unwrap();
        test_random(disk.contents.take(), seed, 200);
    }
    let small = MemoryDisk::new(vec![0; 100_000]);
    assert!(Ext4::format(small.clone(), common::services()).is_err());
    assert_eq!(mount(&small).err(), Some(FileError::NotAFileSystem));
}
