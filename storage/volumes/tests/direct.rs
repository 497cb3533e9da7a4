//! Reads past the volume's fiber, beside operations that change the files.

mod common;

use common::{
    MemoryDisk, cache, data, make_image, make_image_of, mount, run_on, services, small_image, with_disk,
};
use isola_block_cache::BlockCache;
use isola_events::future::join_all;
use isola_events::{register_activity, spawn_task, spawn_task_for, yield_now};
use isola_iobuf::{Chain, IoBuf};
use isola_need::{LONG, Need, need};
use isola_storage_sim::{SimDisk, Timing};
use isola_volumes::{Access, Ext4, File, FileError, FileSystem, MOST_EXTENTS, Volume};
use std::cell::{Cell, RefCell};
use std::fs;
use std::rc::Rc;

fn bytes(seed: usize, len: usize) -> IoBuf {
    IoBuf::from(data(seed, len))
}

async fn volume(disk: &SimDisk) -> (BlockCache, Volume) {
    let cache = cache(disk);
    let volume = Volume::mount(cache.clone(), Access::ReadWrite).await.unwrap();
    (cache, volume)
}

/// An image with files `/0` to `/7` of 64 KiB each.
fn image_of_files() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..8 {
        fs::write(folder.path().join(number.to_string()), data(number, 64 << 10)).unwrap();
    }
    make_image_of(12 << 20, &["-b", "4096", "-J", "size=4"], folder.path())
}

/// Runs `main` with these files, unless the tests that need them are skipped.
#[track_caller]
fn with_files<F: Future<Output = ()> + 'static>(main: impl Fn(SimDisk) -> F + Sync) {
    if need(Need::E2fsprogs) {
        with_disk(image_of_files(), main);
    }
}

/// Opens a file, and reads its first byte, so that its extents are known.
async fn open(volume: &Volume, path: &str) -> Rc<File> {
    let file = volume.open(path).await.unwrap();
    file.read_chain(0, 1).await.unwrap();
    Rc::new(file)
}

/// Lets the other events of the core run.
async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

#[test]
fn reads_of_several_files_are_in_the_device_at_once_each_as_one_request() {
    with_files(|disk| async move {
        let (cache, volume) = volume(&disk).await;
        let mut files = Vec::new();
        for number in 0..8 {
            files.push(open(&volume, &format!("/{number}")).await);
        }
        cache.shrink(usize::MAX);
        disk.set_timing(Timing::Manual);
        let activity = register_activity("reader").unwrap();
        let reads: Vec<_> = files
            .iter()
            .map(|file| {
                let file = file.clone();
                spawn_task_for(activity, async move { file.read_chain(0, 64 << 10).await })
            })
            .collect();
        settle().await;
        let in_device = disk.in_device();
        assert_eq!(in_device.len(), 8, "{in_device:?}");
        assert!(in_device.iter().all(|(is_write, _, len)| !is_write && *len == 64 << 10), "{in_device:?}");
        disk.complete(usize::MAX);
        for (number, read) in join_all(reads).await.into_iter().enumerate() {
            assert!(read.unwrap().to_vec() == data(number, 64 << 10));
        }
        let (usage, blocks) = (cache.device().usage(activity), cache.usage(activity));
        assert_eq!((usage.read_bytes, blocks.misses), (8 << 16, 128), "{usage:?}, {blocks:?}");
        disk.set_timing(Timing::Immediate);
        drop(files);
        volume.unmount().await.unwrap();
    });
}

#[test]
fn a_read_passes_an_operation_that_waits_for_the_device() {
    with_files(|disk| async move {
        let (cache, volume) = volume(&disk).await;
        let file = open(&volume, "/3").await;
        cache.shrink(usize::MAX);
        file.read_chain(0, 8192).await.unwrap();
        disk.set_timing(Timing::Manual);
        let other = volume.clone();
        let waits = spawn_task(async move { other.open("/5").await });
        settle().await;
        assert_eq!(disk.in_device().len(), 1, "the fiber waits for the directory");
        // From the cache, and from the device.
        assert!(file.read_chain(5, 8000).await.unwrap().to_vec() == data(3, 64 << 10)[5..8005]);
        let reader = file.clone();
        let read = spawn_task(async move { reader.read_chain(60_000, 10_000).await });
        settle().await;
        disk.complete(usize::MAX);
        assert!(read.await.unwrap().to_vec() == data(3, 64 << 10)[60_000..]);
        disk.set_timing(Timing::Immediate);
        drop(waits.await.unwrap());
        drop(file);
        volume.unmount().await.unwrap();
    });
}

#[test]
fn contents_that_the_reader_keeps_leave_the_cache_and_unwritten_ones_stay() {
    with_files(|disk| async move {
        let (cache, volume) = volume(&disk).await;
        let file = open(&volume, "/3").await;
        cache.shrink(usize::MAX);
        let before = cache.len_bytes().0;
        assert!(
            file.read_once(4096, 32 << 10).await.unwrap().to_vec() == data(3, 64 << 10)[4096..][..32 << 10]
        );
        assert_eq!(cache.len_bytes().0, before, "the blocks stay in the cache");
        assert!(
            file.read_chain(4096, 32 << 10).await.unwrap().to_vec() == data(3, 64 << 10)[4096..][..32 << 10]
        );
        assert_eq!(cache.len_bytes().0, before + (32 << 10));
        // Blocks that the device does not have yet are not forgotten.
        file.write(4096, IoBuf::copy_from_slice(&[7; 4096])).await.unwrap();
        file.read_once(0, 64 << 10).await.unwrap();
        assert_eq!(file.read_once(4096, 4096).await.unwrap().to_vec(), [7; 4096]);
        volume.sync().await.unwrap();
        assert_eq!(file.read_once(4096, 4096).await.unwrap().to_vec(), [7; 4096]);
    });
}

#[test]
fn views_are_shared_and_keep_their_contents_when_the_file_changes() {
    with_files(|disk| async move {
        let (_, volume) = volume(&disk).await;
        let file = open(&volume, "/2").await;
        let [one, two] =
            [file.read_chain(0, 16_384).await.unwrap(), file.read_chain(0, 16_384).await.unwrap()];
        let addresses = |chain: &Chain| chain.parts().map(|part| part.as_ptr()).collect::<Vec<_>>();
        assert_eq!((addresses(&one), one.parts().len()), (addresses(&two), 4));
        let mut cached = Chain::new();
        let read = file.append_cached(4096, 8192, &mut cached).unwrap();
        assert_eq!(
            (read.len, read.at_end, addresses(&cached)),
            (8192, false, addresses(&one)[1..3].to_vec())
        );
        let before = file.version();
        file.write(0, bytes(77, 16_384)).await.unwrap();
        assert!(file.version() > before);
        assert!(one.to_vec() == data(2, 16_384), "a view changed");
        for _ in 0..2 {
            assert!(file.read_chain(0, 16_384).await.unwrap().to_vec() == data(77, 16_384));
            volume.sync().await.unwrap();
        }
        file.truncate(10).await.unwrap();
        assert!(one.to_vec() == data(2, 16_384), "a view changed");
        assert_eq!(file.read_chain(0, 16_384).await.unwrap().to_vec(), data(77, 10));
        drop(file);
        volume.unmount().await.unwrap();
    });
}

#[test]
fn a_read_that_changes_overtake_does_not_mix_old_and_new_contents() {
    with_files(|disk| async move {
        let (cache, volume) = volume(&disk).await;
        let file = open(&volume, "/4").await;
        // So that the writes below need no block of the device.
        file.write(0, bytes(4, 1)).await.unwrap();
        file.write(0, bytes(4, 64 << 10)).await.unwrap();
        volume.sync().await.unwrap();
        cache.shrink(usize::MAX);
        // The third block of five is missing. Whole blocks are written to the cache at once.
        file.read_chain(0, 8192).await.unwrap();
        file.read_chain(12_288, 8192).await.unwrap();
        disk.set_timing(Timing::Manual);
        let (reader, version) = (file.clone(), file.version());
        let read = spawn_task(async move { reader.read_chain(0, 20_480).await });
        settle().await;
        assert_eq!(disk.in_device().len(), 1, "the third block is missing");
        file.write(0, bytes(50, 8192)).await.unwrap();
        file.write(12_288, bytes(51, 8192)).await.unwrap();
        assert_eq!((disk.in_device().len(), file.version()), (1, version + 4));
        disk.set_timing(Timing::Immediate);
        disk.complete(usize::MAX);
        let read = read.await.unwrap().to_vec();
        let old = data(4, 20_480);
        let mut one = old.clone();
        one[..8192].copy_from_slice(&data(50, 8192));
        let mut two = one.clone();
        two[12_288..].copy_from_slice(&data(51, 8192));
        assert!([old, one, two].contains(&read), "the read returns contents that the file never had");
        drop(file);
        volume.unmount().await.unwrap();
    });
}

#[test]
fn holes_and_reserved_space_read_as_zeros_and_the_end_is_short() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sparse = fs::File::create(folder.path().join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &data(5, 10_000), 300_000).unwrap();
    fs::write(folder.path().join("reserved"), data(6, 4096)).unwrap();
    let image = make_image_of(12 << 20, &["-b", "4096", "-J", "size=4"], folder.path());
    let (output, image) = run_on(&image, "debugfs", &["-w", "-R", "fallocate /reserved 1 20"]);
    assert!(output.status.success(), "{output:?}");
    let (output, image) = run_on(&image, "debugfs", &["-w", "-R", "sif /reserved size 60000"]);
    assert!(output.status.success(), "{output:?}");
    with_disk(image, |disk| async move {
        let (_, volume) = volume(&disk).await;
        let mut expected = vec![0; 1 << 20];
        expected[300_000..310_000].copy_from_slice(&data(5, 10_000));
        let sparse = open(&volume, "/sparse").await;
        let reserved = open(&volume, "/reserved").await;
        let mut with_zeros = data(6, 4096);
        with_zeros.resize(60_000, 0);
        for (file, expected) in [(&sparse, expected), (&reserved, with_zeros)] {
            for (offset, len) in [(0, 1 << 20), (299_999, 3), (1, 40_000), (309_999, 5_000), (59_999, 2)] {
                let read = file.read_chain(offset as u64, len).await.unwrap();
                let end = expected.len().min(offset + len);
                assert!(read.to_vec() == expected.get(offset..end).unwrap_or_default(), "{len} at {offset}");
            }
            let mut cached = Chain::new();
            let last = expected.len() as u64 - 1;
            let read = file.append_cached(last, 100, &mut cached).unwrap();
            assert!(read.len == 1 && read.at_end, "{read:?}");
            let read = file.append_cached(last + 1, 100, &mut cached).unwrap();
            assert!(read.len == 0 && read.at_end, "{read:?}");
            assert!(file.read_chain(u64::MAX - 3, 100).await.unwrap().is_empty());
        }
        drop((sparse, reserved));
        volume.unmount().await.unwrap();
    });
}

#[test]
fn a_file_in_more_pieces_than_a_map_has_is_read_whole() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = MemoryDisk::new(make_image(12 << 20, &["-b", "1024", "-J", "size=1"]));
    let mut file_system = mount(&disk).unwrap();
    let file = file_system.create(file_system.root(), b"pieces").unwrap().id;
    let pieces = MOST_EXTENTS + 100;
    let mut expected = vec![0; pieces * 2048];
    for piece in 0..pieces {
        file_system.write(file, piece as u64 * 2048, &data(piece, 1024)).unwrap();
        expected[piece * 2048..piece * 2048 + 1024].copy_from_slice(&data(piece, 1024));
    }
    expected.truncate(pieces * 2048 - 1024);
    file_system.sync().unwrap();
    let map = file_system.extents(file, 0).unwrap().unwrap();
    assert!(!map.covers(expected.len() as u64 - 1), "the file has too few pieces");
    file_system.unmount().unwrap();
    with_disk(disk.contents.take(), |disk| {
        let expected = expected.clone();
        async move {
            let (_, volume) = volume(&disk).await;
            let file = open(&volume, "/pieces").await;
            let mut read = Chain::new();
            while read.len() < expected.len() {
                read.append(file.read_chain(read.len() as u64, 1 << 20).await.unwrap());
            }
            assert!(read.to_vec() == expected);
            drop(file);
            volume.unmount().await.unwrap();
        }
    });
}

#[test]
fn an_error_of_the_device_ends_a_read_and_no_other() {
    with_files(|disk| async move {
        let (cache, volume) = volume(&disk).await;
        let [good, bad] = [open(&volume, "/1").await, open(&volume, "/6").await];
        cache.shrink(usize::MAX);
        let contents = disk.contents();
        let wanted = data(6, 64 << 10);
        let at =
            contents.windows(4096).step_by(4096).position(|block| *block == wanted[8192..12_288]).unwrap();
        disk.set_bad(Some(at * 4096..at * 4096 + 1));
        let outcomes = join_all([bad.read_chain(0, 64 << 10), good.read_chain(0, 64 << 10)]).await;
        assert!(matches!(outcomes[0], Err(FileError::Disk(_))), "{outcomes:?}");
        assert!(outcomes[1].as_ref().unwrap().to_vec() == data(1, 64 << 10));
        assert!(bad.read_chain(0, 8192).await.unwrap().to_vec() == wanted[..8192]);
        disk.set_bad(None);
        assert!(bad.read_chain(0, 64 << 10).await.unwrap().to_vec() == wanted);
        drop((good, bad));
        volume.unmount().await.unwrap();
    });
}

/// The contents that a file has had, in order; the last may be those that an operation under way produces.
struct History {
    contents: Vec<Rc<Vec<u8>>>,
    /// The number of operations that have ended.
    ended: usize,
}

struct Tester {
    volume: Volume,
    files: Vec<(String, Rc<File>, Rc<RefCell<History>>)>,
    random: fastrand::Rng,
    next: usize,
    reads: Rc<Cell<usize>>,
}

impl Tester {
    /// Starts a read, which must return the contents of one moment between its beginning and its end.
    fn read(&mut self) -> isola_events::Task<()> {
        let index = self.random.usize(..self.files.len());
        let (path, file, history) = self.files[index].clone();
        let (offset, len) = (self.random.usize(..60_000), self.random.usize(1..90_000));
        let reads = self.reads.clone();
        spawn_task(async move {
            let first = history.borrow().ended;
            let read = file.read_chain(offset as u64, len).await.unwrap().to_vec();
            let history = history.borrow();
            let is_of = |contents: &Rc<Vec<u8>>| {
                let end = contents.len().min(offset + len);
                read == contents.get(offset..end).unwrap_or_default()
            };
            let possible = &history.contents[first..];
            assert!(possible.iter().any(is_of), "{path}: {} of {len} bytes at {offset}", read.len());
            reads.set(reads.get() + 1);
        })
    }

    /// Changes a file: to contents that no other file ever has.
    async fn change(&mut self) {
        let index = self.random.usize(..self.files.len());
        let (path, file, history) = self.files[index].clone();
        self.next += 1;
        let mut contents = history.borrow().contents.last().unwrap().to_vec();
        let (offset, len) = (self.random.usize(..50_000), self.random.usize(1..30_000));
        let new = data(self.next, len);
        let begin = |contents: Vec<u8>| history.borrow_mut().contents.push(Rc::new(contents));
        match self.random.u8(..10) {
            0..5 => {
                contents.resize(contents.len().max(offset + len), 0);
                contents[offset..offset + len].copy_from_slice(&new);
                begin(contents);
                file.write(offset as u64, IoBuf::from(new)).await.unwrap();
                history.borrow_mut().ended += 1;
            }
            5..7 => {
                contents.resize(offset, 0);
                begin(contents);
                file.truncate(offset as u64).await.unwrap();
                history.borrow_mut().ended += 1;
            }
            7 => {
                // The blocks of the removed file are free for others as soon as its last reader is gone.
                self.volume.remove(&path).await.unwrap();
                let file = Rc::new(self.volume.create(&path).await.unwrap());
                let history = History { contents: vec![Rc::default()], ended: 0 };
                self.files[index] = (path, file, Rc::new(RefCell::new(history)));
            }
            8 => {
                let other = self.random.usize(..self.files.len());
                if other != index {
                    let target = self.files[other].0.clone();
                    self.volume.rename(&path, &target).await.unwrap();
                    self.files[other] = (target, file, history);
                    let file = Rc::new(self.volume.create(&path).await.unwrap());
                    let history = History { contents: vec![Rc::default()], ended: 0 };
                    self.files[index] = (path, file, Rc::new(RefCell::new(history)));
                }
            }
            _ => self.volume.sync().await.unwrap(),
        }
    }
}

fn test_random(image: Vec<u8>, seed: u64, steps: usize) {
    with_disk(image, |disk| async move {
        disk.complete_slowly();
        let (cache, volume) = volume(&disk).await;
        let mut files = Vec::new();
        for number in 0..6 {
            let path = format!("/f{number}");
            let file = Rc::new(volume.create(&path).await.unwrap());
            let history = History { contents: vec![Rc::default()], ended: 0 };
            files.push((path, file, Rc::new(RefCell::new(history))));
        }
        let (random, reads) = (fastrand::Rng::with_seed(seed), Rc::default());
        let mut tester = Tester { volume, files, random, next: 0, reads };
        let mut reading = Vec::new();
        for step in 0..steps {
            for _ in 0..tester.random.usize(..5) {
                reading.push(tester.read());
            }
            for _ in 0..tester.random.usize(..4) {
                yield_now().await;
            }
            if step % 4 == 0 {
                // Mostly a part, so that reads find some of their blocks and wait for others.
                cache.shrink(tester.random.usize(..1 << 20));
            }
            // Dropped reads leave nothing behind.
            if tester.random.u8(..8) == 0 {
                reading.pop().into_iter().for_each(isola_events::Task::cancel);
            }
            tester.change().await;
        }
        let expected = reading.len();
        join_all(reading).await;
        assert!(tester.reads.get() >= expected && expected > steps);
        for (path, file, history) in &tester.files {
            let contents = history.borrow().contents.last().unwrap().clone();
            assert!(file.read_chain(0, 1 << 20).await.unwrap().to_vec() == *contents, "{path}");
        }
        let Tester { volume, files, .. } = tester;
        drop(files);
        volume.unmount().await.unwrap();
        disk.set_timing(Timing::Immediate);
    });
}

#[test]
fn reads_beside_changes_return_the_contents_of_one_moment() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let (seeds, steps) = if std::env::var_os(LONG).is_some() { (15, 500) } else { (4, 250) };
    for seed in 0..seeds {
        test_random(small_image(), seed, steps);
        test_random(make_image(8 << 20, &["-b", "1024", "-J", "size=1"]), seed, steps);
    }
}

#[test]
fn extents_lead_to_the_contents_that_the_file_system_reads() {
    if !need(Need::E2fsprogs) {
        return;
    }
    for (block_len, journal) in [("1024", "size=1"), ("4096", "size=4")] {
        let disk = MemoryDisk::new(make_image(12 << 20, &["-b", block_len, "-J", journal]));
        let mut file_system: Ext4 = Ext4::mount(disk.clone(), Access::ReadWrite, services()).unwrap();
        let mut random = fastrand::Rng::with_seed(3);
        for number in 0..20_usize {
            let name = number.to_string();
            let file = file_system.create(file_system.root(), name.as_bytes()).unwrap().id;
            for _ in 0..random.usize(1..12) {
                let bytes = data(number, random.usize(1..20_000));
                file_system.write(file, random.u64(..200_000), &bytes).unwrap();
                if random.bool() {
                    file_system.truncate(file, random.u64(..100_000)).unwrap();
                }
            }
            file_system.sync().unwrap();
            let len = file_system.metadata(file).unwrap().len;
            let (mut read, mut direct) = (vec![0; len as usize], Vec::new());
            file_system.read(file, 0, &mut read).unwrap();
            let map = file_system.extents(file, 0).unwrap().unwrap();
            assert!(!map.is_unsynced(&(0..u64::MAX)), "file {number}");
            for piece in map.pieces(0..len) {
                match piece.at {
                    Some(at) => direct.extend_from_slice(&disk.contents.borrow()[at as usize..][..piece.len]),
                    None => direct.resize(direct.len() + piece.len, 0),
                }
            }
            assert!(read == direct, "file {number}, blocks of {block_len}");
        }
    }
}
