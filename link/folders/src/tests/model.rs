//! Operations of a client beside a model of its files.

use super::{Service, in_cell, mount};
use isola_abi::volume::VolumeAccess;
use isola_events::{spawn_task, yield_now};
use isola_iobuf::IoBuf;
use isola_volumes::{
    AttributeUpdate, ExtendedAttributeMode, File, FileError, FileSystem, ListPosition, NewFile, NewFileKind,
    RangeChange, RenameKind, Volume,
};
use std::boxed::Box;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::format;
use std::rc::Rc;
use std::string::String;
use std::vec;
use std::vec::Vec;

fn bytes(random: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    let seed = random.u8(..);
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect()
}

async fn names(volume: &Volume, path: &str) -> Vec<String> {
    let (mut names, mut position) = (Vec::new(), Some(ListPosition::default()));
    while let Some(from) = position {
        let (entries, next) = volume.list(path, from, 3).await.unwrap();
        names.extend(entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
        position = next;
    }
    names.sort();
    names
}

/// Performs random operations, and checks each result.
struct Model {
    volume: Volume,
    random: fastrand::Rng,
    files: BTreeMap<String, Vec<u8>>,
    /// Open files with their names.
    open: Vec<(String, File)>,
}

impl Model {
    fn path(&mut self) -> String {
        let directory = if self.random.bool() { "" } else { "/d" };
        format!("{directory}/f{}", self.random.u8(..6))
    }

    async fn step(&mut self) {
        let path = self.path();
        match self.random.u8(..10) {
            0 | 1 => match self.volume.create(&path).await {
                Ok(file) => {
                    assert!(self.files.insert(path.clone(), Vec::new()).is_none(), "{path} existed");
                    self.open.push((path, file));
                }
                Err(error) => {
                    assert_eq!(error, FileError::AlreadyExists);
                    assert!(self.files.contains_key(&path), "{path} did not exist");
                }
            },
            2..5 => {
                let Some(index) = self.random.usize(..8).checked_rem(self.open.len()) else { return };
                let (name, file) = &self.open[index];
                let len = self.random.usize(1..9000);
                let offset = self.random.usize(..20_000);
                let data = bytes(&mut self.random, len);
                file.write(offset as u64, IoBuf::from(data.clone())).await.unwrap();
                let contents = self.files.get_mut(name).unwrap();
                contents.resize(contents.len().max(offset + len), 0);
                contents[offset..offset + len].copy_from_slice(&data);
            }
            5 => {
                let Some(index) = self.random.usize(..8).checked_rem(self.open.len()) else { return };
                let (name, file) = &self.open[index];
                let len = self.random.usize(..20_000);
                file.truncate(len as u64).await.unwrap();
                self.files.get_mut(name).unwrap().resize(len, 0);
            }
            6 => {
                let removed = self.volume.remove(&path).await;
                let expected =
                    if self.files.remove(&path).is_some() { Ok(()) } else { Err(FileError::NotFound) };
                assert_eq!(removed, expected, "remove {path}");
                self.open.retain(|(name, _)| *name != path);
            }
            7 => {
                let to = self.path();
                let renamed = self.volume.rename(&path, &to).await;
                let expected = if self.files.contains_key(&path) { Ok(()) } else { Err(FileError::NotFound) };
                assert_eq!(renamed, expected, "rename {path} to {to}");
                if expected.is_ok() && path != to {
                    let contents = self.files.remove(&path).unwrap();
                    self.files.insert(to.clone(), contents);
                    self.open.retain(|(name, _)| *name != to);
                    self.open
                        .iter_mut()
                        .filter(|(name, _)| *name == path)
                        .for_each(|(name, _)| *name = to.clone());
                }
            }
            8 => self.volume.sync().await.unwrap(),
            _ => self.check_one(&path).await,
        }
        if self.open.len() > 6 {
            self.open.remove(0);
        }
    }

    async fn check_one(&self, path: &str) {
        match self.volume.open(path).await {
            Ok(file) => {
                let read = file.read(0, 1 << 20).await.unwrap();
                assert!(read[..] == self.files[path][..], "{path}: {} bytes", read.len());
            }
            Err(error) => {
                assert_eq!(error, FileError::NotFound);
                assert!(!self.files.contains_key(path), "{path} is missing");
            }
        }
    }

    async fn check_all(&self) {
        for directory in ["", "/d"] {
            let mut expected: Vec<String> = self
                .files
                .keys()
                .filter_map(|path| path.strip_prefix(directory)?.strip_prefix('/'))
                .map(String::from)
                .collect();
            expected.retain(|name| !name.contains('/'));
            if directory.is_empty() {
                expected.push("d".into());
                expected.sort();
            }
            let path = if directory.is_empty() { "/" } else { directory };
            let found = names(&self.volume, path).await;
            assert_eq!(found, expected);
        }
        for path in self.files.keys() {
            self.check_one(path).await;
        }
    }
}

async fn run_model(service: &Rc<Service>, seed: u64, steps: usize) -> BTreeMap<String, Vec<u8>> {
    let volume = mount(service, VolumeAccess::ReadWrite).await.unwrap();
    volume.make_directory("/d").await.unwrap();
    let random = fastrand::Rng::with_seed(seed);
    let mut model = Model { volume, random, files: BTreeMap::new(), open: Vec::new() };
    for _ in 0..steps {
        model.step().await;
    }
    model.check_all().await;
    model.open.clear();
    model.volume.unmount().await.unwrap();
    model.files
}

#[test]
fn files_of_a_folder_are_as_those_of_a_volume() {
    in_cell(|| async {
        let service = Service::new(false);
        let files = run_model(&service, 1, 600).await;
        let volume = service.volume().await;
        for (path, contents) in files {
            let file = volume.open(format!("/web{path}")).await.unwrap();
            assert!(file.read(0, 1 << 20).await.unwrap()[..] == contents[..], "{path}");
        }
    });
}

#[test]
fn a_client_does_not_notice_crashes_of_its_service() {
    in_cell(|| async {
        for seed in 0..2 {
            let service = Service::new(true);
            let (crashing, mut random) = (service.clone(), fastrand::Rng::with_seed(seed));
            let is_over = Rc::new(Cell::new(false));
            let ends = is_over.clone();
            let killer = spawn_task(async move {
                loop {
                    for _ in 0..random.usize(1..400) {
                        yield_now().await;
                    }
                    if ends.get() {
                        return;
                    }
                    crashing.crash();
                }
            });
            let files = run_model(&service, seed, 100).await;
            is_over.set(true);
            killer.await;
            // What was synced is on the disk.
            service.crash();
            assert!(service.crashes.get() > 4, "{} crashes", service.crashes.get());
            let volume = service.volume().await;
            for (path, contents) in files {
                let file = volume.open(format!("/web{path}")).await.unwrap();
                assert!(file.read(0, 1 << 20).await.unwrap()[..] == contents[..], "{path}");
            }
        }
    });
}

#[test]
fn writes_since_the_latest_sync_are_repeated_and_a_sync_after_a_crash_holds_for_them() {
    in_cell(|| async {
        let service = Service::new(false);
        let volume = mount(&service, VolumeAccess::ReadWrite).await.unwrap();
        let file = volume.create("/log").await.unwrap();
        file.write(0, IoBuf::from(b"first".to_vec())).await.unwrap();
        service.crash();
        file.write(5, IoBuf::from(b" second".to_vec())).await.unwrap();
        assert_eq!(&file.read(0, 100).await.unwrap()[..], b"first second");
        file.sync().await.unwrap();
        service.crash();
        assert_eq!(&file.read(0, 100).await.unwrap()[..], b"first second");
        // More than the client keeps: it syncs by itself.
        for part in 0..24_u64 {
            file.write(part << 16, IoBuf::from(vec![part as u8; 1 << 16])).await.unwrap();
        }
        service.crash();
        for part in 0..24_u64 {
            assert_eq!(file.read(part << 16, 1 << 16).await.unwrap()[..], vec![part as u8; 1 << 16][..]);
        }
    });
}

#[test]
fn a_file_without_a_name_is_lost_with_its_service_and_is_no_other_file() {
    in_cell(|| async {
        let service = Service::new(false);
        let volume = mount(&service, VolumeAccess::ReadWrite).await.unwrap();
        let file = volume.create("/temporary").await.unwrap();
        file.write(0, IoBuf::from(b"old".to_vec())).await.unwrap();
        volume.remove("/temporary").await.unwrap();
        assert_eq!(&file.read(0, 100).await.unwrap()[..], b"old", "usable until it is closed");
        service.crash();
        let new = volume.create("/new").await.unwrap();
        new.write(0, IoBuf::from(b"new".to_vec())).await.unwrap();
        assert_eq!(file.read(0, 100).await, Err(FileError::NotFound));
        assert_eq!(file.write(0, IoBuf::from(b"bad".to_vec())).await, Err(FileError::NotFound));
        assert_eq!(&new.read(0, 100).await.unwrap()[..], b"new");
        volume.sync().await.unwrap();
    });
}

#[test]
fn one_client_writes_and_others_read_what_it_has_written() {
    in_cell(|| async {
        let service = Service::new(false);
        let writer = mount(&service, VolumeAccess::ReadWrite).await.unwrap();
        let reader = mount(&service, VolumeAccess::ReadOnly).await.unwrap();
        let file = writer.create("/page").await.unwrap();
        let read = reader.open("/page").await.unwrap();
        for round in 0..3_u8 {
            file.write(0, IoBuf::from(vec![round; 5000])).await.unwrap();
            assert_eq!(read.read(0, 10_000).await.unwrap()[..], vec![round; 5000][..]);
        }
        let refused = Err(FileError::ReadOnly);
        assert_eq!(reader.create("/other").await.map(drop), refused);
        assert_eq!(reader.remove("/page").await, refused);
        assert_eq!(reader.rename("/page", "/other").await, refused);
        assert_eq!(read.write(0, IoBuf::from(vec![7])).await, refused);
        assert_eq!(read.truncate(0).await, refused);
        // A reader finds its files again as well, as of the writer's latest sync.
        file.sync().await.unwrap();
        service.crash();
        assert_eq!(read.read(0, 10_000).await.unwrap().len(), 5000);
        assert_eq!(names(&reader, "/").await, ["page"]);
    });
}

#[test]
fn a_reader_sees_names_and_lengths_when_the_writer_has_its_answer() {
    in_cell(|| async {
        let service = Service::new(true);
        let writer = mount(&service, VolumeAccess::ReadWrite).await.unwrap();
        let reader = mount(&service, VolumeAccess::ReadOnly).await.unwrap();
        let file = writer.create("/page").await.unwrap();
        file.write(0, IoBuf::from(vec![1; 5000])).await.unwrap();
        let read = reader.open("/page").await.unwrap();
        file.truncate(100).await.unwrap();
        assert_eq!(read.read(0, 10_000).await.unwrap()[..], [1; 100]);
        assert_eq!(read.metadata().await.unwrap().len, 100);
        // An open file stays the same one, by its number, when its name gets another.
        let next = writer.create("/next").await.unwrap();
        next.write(0, IoBuf::from(vec![2; 7])).await.unwrap();
        writer.rename("/next", "/page").await.unwrap();
        assert_eq!(names(&reader, "/").await, ["page"]);
        assert_eq!(reader.open("/page").await.unwrap().read(0, 100).await.unwrap()[..], [2; 7]);
        assert_eq!(read.read(0, 10_000).await.unwrap()[..], [1; 100]);
        // Also without a name, and though its writer does not use it any more.
        drop(file);
        writer.remove("/page").await.unwrap();
        writer.sync().await.unwrap();
        assert_eq!(read.read(0, 10_000).await.unwrap()[..], [1; 100]);
        assert_eq!(reader.open("/page").await.map(drop), Err(FileError::NotFound));
        // The last reader's end frees its storage.
        let before = writer.space().await.unwrap().free_bytes;
        drop(read);
        for _ in 0..20 {
            reader.metadata("/").await.unwrap();
            yield_now().await;
        }
        assert!(writer.space().await.unwrap().free_bytes > before);
    });
}

#[test]
fn files_of_all_types_have_owners_links_and_attributes() {
    in_cell(|| async {
        let service = Service::new(false);
        let volume = mount(&service, VolumeAccess::ReadWrite).await.unwrap();
        let root = volume.root_attributes().await.unwrap().id;
        let new = |kind| NewFile { kind, permissions: 0o640, user: 7, group: 8 };
        let (_, attributes) =
            volume.create_in(root, "null", new(NewFileKind::CharacterDevice(1, 3))).await.unwrap();
        assert_eq!(attributes[0].device, Some((1, 3)));
        assert_eq!((attributes[0].user, attributes[0].group, attributes[0].mode), (7, 8, 0o20_640));
        let (link, attributes) =
            volume.create_in(root, "link", new(NewFileKind::Symlink(b"a/target".to_vec()))).await.unwrap();
        assert_eq!(attributes[0].mode & 0o170_000, 0o120_000);
        assert_eq!(volume.link_target(link.id()).await.unwrap(), b"a/target");
        let (file, _) = volume.create_in(root, "file", new(NewFileKind::File)).await.unwrap();
        let linked = volume.link_in(file.id(), root, "second").await.unwrap();
        assert_eq!(linked[0].links, 2);
        let update = AttributeUpdate { permissions: Some(0o711), owner: Some((1, 2)), ..Default::default() };
        let updated = volume.update(file.id(), update).await.unwrap();
        assert_eq!((updated.mode, updated.user, updated.group), (0o100_711, 1, 2));
        let id = file.id();
        let set = |name: &'static [u8], mode| {
            volume.with_file_system(move |fs| fs.set_extended_attribute(id, name, b"value", mode))
        };
        set(b"user.one", ExtendedAttributeMode::Create).await.unwrap();
        assert_eq!(set(b"user.one", ExtendedAttributeMode::Create).await, Err(FileError::AlreadyExists));
        let get = move |fs: &mut dyn FileSystem| {
            Ok((fs.extended_attributes(id)?, fs.extended_attribute(id, b"user.one")?))
        };
        let (all, value) = volume.with_file_system(get).await.unwrap();
        assert_eq!((all, value), (vec![b"user.one".to_vec()], b"value".to_vec()));
        let remove = move |fs: &mut dyn FileSystem| fs.remove_extended_attribute(id, b"user.one");
        volume.with_file_system(remove).await.unwrap();
        assert_eq!(volume.with_file_system(remove).await, Err(FileError::NotFound));
        let reserve = |fs: &mut dyn FileSystem, id| fs.change_range(id, RangeChange::Reserve, 0, 9000);
        let (attributes, changed) = file.change(reserve).await.unwrap();
        assert_eq!((changed, attributes.len), (Ok(()), 9000));
        volume
            .rename_in((root, b"file".to_vec()), (root, b"null".to_vec()), RenameKind::Exchange)
            .await
            .unwrap();
        let found = volume.attributes_in(root, "null").await.unwrap().unwrap();
        assert_eq!(found.id, id);
        assert!(volume.space().await.unwrap().free_bytes > 1 << 20);
        let held: Vec<Box<File>> = vec![Box::new(file), Box::new(link)];
        service.crash();
        assert_eq!(volume.attributes_in(root, "null").await.unwrap().unwrap().id, id);
        drop(held);
    });
}
