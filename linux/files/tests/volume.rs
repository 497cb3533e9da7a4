//! A volume as a root file system, below an overlay.

mod common;

use common::{CWD, System};
use isola_block::{BlockDevice, BlockSettings};
use isola_block_cache::{BlockCache, CacheSettings};
use isola_linux_abi::numbers as linux;
use isola_linux_files::{
    Allocation, AttributeChange, AttributeMode, Errno, FileSystem, LastLink, MountFlags, MountedFileSystem,
    Namespace, OverlayFs, Timestamp, TmpFs, TmpFsOptions, VolumeChanges, VolumeFs,
};
use isola_linux_memory::UserBuffer;
use isola_need::{Need, need};
use isola_storage_sim::SimDisk;
use isola_test_task::run_task;
use isola_volumes::{Access, FileError, Volume};
use std::future::Future;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::sync::Arc;

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 9)) as u8).collect()
}

/// The length of a larger file.
const LARGE: usize = 1_234_567;

/// Returns the bytes that were read from a disk.
fn reads(disk: &SimDisk) -> u64 {
    disk.bytes().0
}

/// Returns the pages of the layer in memory that are in use.
async fn overlay_pages(caller: &isola_linux_files::Caller<'_>) -> u64 {
    let statistics = caller.file_system_statistics(CWD, b"/", 0).await.unwrap();
    statistics.blocks - statistics.free_blocks
}

/// Makes a file system with a program, links and directories.
fn image() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    std::fs::create_dir_all(at("usr/bin")).unwrap();
    std::fs::write(at("usr/bin/program"), data(300_001)).unwrap();
    std::fs::set_permissions(at("usr/bin/program"), std::fs::Permissions::from_mode(0o4755)).unwrap();
    std::fs::hard_link(at("usr/bin/program"), at("usr/bin/second")).unwrap();
    symlink("usr/bin", at("bin")).unwrap();
    symlink(format!("/usr/{}bin/program", "./".repeat(50)), at("long")).unwrap();
    std::fs::create_dir(at("etc")).unwrap();
    std::fs::write(at("large"), data(LARGE)).unwrap();
    std::fs::write(at("second"), data(LARGE)).unwrap();
    for index in 0..300 {
        std::fs::write(at(&format!("etc/file-{index}")), format!("{index}")).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![0; 16 << 20]).unwrap();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=4", "-d"])
        .arg(folder.path())
        .arg(file.path());
    assert!(mke2fs.status().unwrap().success());
    std::fs::read(file.path()).unwrap()
}

/// Returns a disk with this file system, or `None` if the tests that need it are skipped.
#[track_caller]
fn disk() -> Option<SimDisk> {
    need(Need::E2fsprogs).then(|| SimDisk::new(image()))
}

/// Runs a test with a volume on the disk.
fn run_on<F: Future<Output = ()> + 'static>(
    disk: &SimDisk,
    access: Access,
    changes: VolumeChanges,
    test: impl Fn(Arc<VolumeFs>, Volume) -> F + Copy + Send + Sync + 'static,
) {
    run_task(|| {
        let disk = disk.clone();
        async move {
            let device = BlockDevice::start(disk.port(), BlockSettings::default()).unwrap();
            let settings = CacheSettings { capacity: 1 << 20, dirty: 256 << 10, seed: 1 };
            let cache = BlockCache::new(device, settings).unwrap();
            let volume = Volume::mount(cache, access).await.unwrap();
            let files = VolumeFs::new(volume.share(), changes, 64).await.unwrap();
            test(files, volume).await;
        }
    });
}

/// Checks that a file system that was unmounted is whole.
fn assert_whole(disk: &SimDisk) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), disk.contents()).unwrap();
    let output = Command::new("e2fsck").args(["-f", "-n"]).arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn system_of(files: Arc<VolumeFs>) -> System {
    System::of(Namespace::new(MountedFileSystem::new(files), b"data", MountFlags::default()))
}

#[test]
fn changes_by_writes_and_mappings_are_permanent_after_a_sync() {
    let Some(disk) = disk() else { return };
    run_on(&disk, Access::ReadWrite, VolumeChanges::Permitted, |files, _| async move {
        let system = system_of(files.clone());
        let caller = system.caller();
        let file = caller.open_at(CWD, b"/new", linux::O_RDWR | linux::O_CREAT, 0o640).await.unwrap();
        file.write_at(10_000, &mut UserBuffer::of_bytes(&data(100_000))).await.unwrap();
        let inode = file.inode().unwrap();
        inode.set_attribute(b"user.note", b"x", AttributeMode::Create).await.unwrap();
        assert_eq!(inode.set_attribute(b"user.note", b"y", AttributeMode::Create).await, Err(Errno::EEXIST));
        assert_eq!(inode.attribute(b"user.none").await, Err(Errno::ENODATA));
        // A mapping writes to a page, which a write of another part does not undo.
        let pages = file.pages().unwrap();
        let frame = pages.fetch(1).await.unwrap();
        pages.mark_dirty(1);
        frame.write(7, b"mapped");
        file.write_at(4096 + 100, &mut UserBuffer::of_bytes(b"written")).await.unwrap();
        assert_eq!(file.read_bytes(4096 + 7, 6).await.unwrap(), b"mapped");
        file.sync().await.unwrap();
        // The page is writable as before: a change without notice is written by the next sync as well.
        frame.write(20, b"again");
        pages.mark_dirty(0);
        files.changed().await;
        files.sync().await.unwrap();
        // A file without a name is used until its end.
        let gone = caller.open_at(CWD, b"/gone", linux::O_RDWR | linux::O_CREAT, 0o600).await.unwrap();
        caller.unlink_at(CWD, b"/gone", 0).await.unwrap();
        gone.write_at(0, &mut UserBuffer::of_bytes(b"still")).await.unwrap();
        assert_eq!((gone.read_bytes(0, 9).await.unwrap(), gone.metadata().links), (b"still".to_vec(), 0));
        caller.unlink_at(CWD, b"/etc/file-7", 0).await.unwrap();
        files.sync().await.unwrap();
        // Not synced: lost with the cell.
        caller.make_directory_at(CWD, b"/lost", 0o755).await.unwrap();
    });
    run_on(&disk, Access::ReadWrite, VolumeChanges::Permitted, |files, volume| async move {
        {
            let system = system_of(files.clone());
            let caller = system.caller();
            let file = caller.open_at(CWD, b"/new", linux::O_RDONLY, 0).await.unwrap();
            assert_eq!((file.metadata().len, file.metadata().permissions), (110_000, 0o640));
            let inode = file.inode().unwrap();
            assert_eq!(inode.attributes().await.unwrap(), [b"user.note"]);
            assert_eq!(inode.attribute(b"user.note").await.unwrap(), b"x");
            let bytes = file.read_bytes(0, 200_000).await.unwrap();
            assert_eq!(&bytes[10_000..], data(100_000));
            assert_eq!((&bytes[4103..4109], &bytes[4116..4121]), (&b"mapped"[..], &b"again"[..]));
            assert_eq!(&bytes[4196..4203], b"written");
            for lost in [&b"/lost"[..], b"/gone", b"/etc/file-7"] {
                assert_eq!(caller.stat_at(CWD, lost, 0).await, Err(Errno::ENOENT));
            }
            // More pages than stay in memory.
            let program = caller.open_at(CWD, b"/usr/bin/program", linux::O_RDONLY, 0).await.unwrap();
            for _ in 0..2 {
                assert_eq!(program.read_bytes(0, 1 << 20).await.unwrap(), data(300_001));
            }
        }
        drop(files);
        volume.unmount().await.unwrap();
    });
    assert_whole(&disk);
}

/// The bytes of each small write, and their number.
const SMALL: usize = 100;
const SMALL_WRITES: usize = 1_000;

#[test]
fn small_writes_reach_the_volume_together_and_in_order() {
    let Some(disk) = disk() else { return };
    let (log, kept) = (disk.clone(), disk.clone());
    let test = move |files: Arc<VolumeFs>, volume: Volume| {
        let log = log.clone();
        async move {
            {
                let system = system_of(files.clone());
                let caller = system.caller();
                let open = async |path: &[u8], flags| {
                    caller.open_at(CWD, path, linux::O_RDWR | linux::O_CREAT | flags, 0o640).await.unwrap()
                };
                let file = open(b"/log", linux::O_APPEND).await;
                files.sync().await.unwrap();
                log.take_log();
                let bytes = data(SMALL * SMALL_WRITES);
                for piece in bytes.chunks(SMALL) {
                    assert_eq!(file.write(&mut UserBuffer::of_bytes(piece)).await, Ok(SMALL));
                }
                // Programs see length, storage and contents at once.
                let metadata = file.metadata();
                assert_eq!(metadata.len, bytes.len() as u64);
                assert!(metadata.blocks >= metadata.len / 512, "{metadata:?}");
                assert_eq!(file.read_bytes(0, 1 << 20).await.unwrap(), bytes);
                file.sync().await.unwrap();
                let writes = log.take_log().len();
                println!("{writes} writes of the device for {SMALL_WRITES} of {SMALL} bytes");
                assert!(writes < SMALL_WRITES / 10, "{writes}");
                // Overwritten parts, with pages that have to be read first, and a hole.
                let other = open(b"/other", 0).await;
                other.write_at(0, &mut UserBuffer::of_bytes(&bytes[..70_000])).await.unwrap();
                for at in (0..40).rev() {
                    other.write_at(at * 5_000 + 7, &mut UserBuffer::of_bytes(b"small")).await.unwrap();
                }
                let shown = other.metadata();
                files.sync().await.unwrap();
                assert_eq!(other.metadata().modified, shown.modified);
                assert_eq!((shown.len, other.metadata().len), (39 * 5_000 + 12, 39 * 5_000 + 12));
                // A synchronous write is on the volume when it returns.
                log.take_log();
                let exact = open(b"/exact", linux::O_DSYNC).await;
                exact.write(&mut UserBuffer::of_bytes(b"now")).await.unwrap();
                assert!(!log.take_log().is_empty());
                // A file that loses its name and its users before it is written is never written.
                let gone = open(b"/gone", 0).await;
                gone.write(&mut UserBuffer::of_bytes(&bytes[..30_000])).await.unwrap();
                caller.unlink_at(CWD, b"/gone", 0).await.unwrap();
                assert_eq!(gone.read_bytes(29_999, 9).await.unwrap(), &bytes[29_999..30_000]);
                drop(gone);
                // A new name has the contents, also if the file was never synced.
                let new = open(b"/new", 0).await;
                new.write(&mut UserBuffer::of_bytes(b"whole")).await.unwrap();
                caller.rename_at(CWD, b"/new", CWD, b"/exact", 0).await.unwrap();
                // Times that a program sets stay.
                let timed = open(b"/timed", 0).await;
                timed.write(&mut UserBuffer::of_bytes(b"then")).await.unwrap();
                let then = AttributeChange {
                    modified: Some(Timestamp { seconds: 1_000, nanoseconds: 0 }),
                    ..AttributeChange::default()
                };
                timed.inode().unwrap().set_attributes(&then).await.unwrap();
                files.sync().await.unwrap();
                // A file that becomes shorter takes what was behind its end with it.
                let short = open(b"/short", 0).await;
                short.write(&mut UserBuffer::of_bytes(&bytes[..9_000])).await.unwrap();
                short.truncate(5_000).await.unwrap();
                short.write_at(8_000, &mut UserBuffer::of_bytes(b"end")).await.unwrap();
                files.sync().await.unwrap();
            }
            drop(files);
            volume.unmount().await.unwrap();
        }
    };
    let test: &'static _ = Box::leak(Box::new(test));
    run_on(&disk, Access::ReadWrite, VolumeChanges::Permitted, test);
    run_on(&kept, Access::ReadWrite, VolumeChanges::Permitted, |files, volume| async move {
        {
            let system = system_of(files.clone());
            let caller = system.caller();
            let read = async |path: &[u8]| {
                let file = caller.open_at(CWD, path, linux::O_RDONLY, 0).await.unwrap();
                (file.read_bytes(0, 1 << 20).await.unwrap(), file.metadata())
            };
            let bytes = data(SMALL * SMALL_WRITES);
            assert_eq!(read(b"/log").await.0, bytes);
            let mut other = bytes[..70_000].to_vec();
            other.resize(39 * 5_000 + 12, 0);
            for at in 0..40 {
                other[at * 5_000 + 7..][..5].copy_from_slice(b"small");
            }
            assert!(read(b"/other").await.0 == other);
            assert_eq!(read(b"/exact").await.0, b"whole");
            assert_eq!(read(b"/timed").await.1.modified.seconds, 1_000);
            let (short, _) = read(b"/short").await;
            assert!(short[..5_000] == bytes[..5_000] && short[5_000..8_000].iter().all(|byte| *byte == 0));
            assert_eq!(&short[8_000..], b"end");
        }
        drop(files);
        volume.unmount().await.unwrap();
    });
    assert_whole(&disk);
}

#[test]
fn a_volume_with_open_files_is_unmounted_cleanly() {
    let Some(disk) = disk() else { return };
    run_on(&disk, Access::ReadWrite, VolumeChanges::Permitted, |files, volume| async move {
        let system = system_of(files.clone());
        let caller = system.caller();
        let flags = linux::O_RDWR | linux::O_CREAT;
        let file = caller.open_at(CWD, b"/open", flags, 0o600).await.unwrap();
        file.write(&mut UserBuffer::of_bytes(b"not synced")).await.unwrap();
        let pages = file.pages().unwrap();
        pages.fetch(0).await.unwrap();
        // A file without a name goes with its last user.
        let gone = caller.open_at(CWD, b"/gone", flags, 0o600).await.unwrap();
        gone.write(&mut UserBuffer::of_bytes(&data(50_000))).await.unwrap();
        caller.unlink_at(CWD, b"/gone", 0).await.unwrap();
        assert_eq!(volume.unmount().await, Err(FileError::InUse));
        files.close().await.unwrap();
        volume.unmount().await.unwrap();
        // A process with open files gets errors.
        assert_eq!(file.write(&mut UserBuffer::of_bytes(b"x")).await, Err(Errno::EIO));
        assert_eq!(caller.open_at(CWD, b"/etc/file-1", 0, 0).await.unwrap_err(), Errno::EIO);
        assert_eq!(files.sync().await, Err(Errno::EIO));
        drop((pages, gone));
    });
    assert_whole(&disk);
    let contents = disk.contents();
    // The state in the superblock: unmounted.
    assert_eq!(contents[1024 + 0x3a] & 1, 1);
    let recovers = u32::from_le_bytes(contents[1024 + 0x60..][..4].try_into().unwrap()) & 4;
    assert_eq!(recovers, 0, "the journal has to be replayed");
    run_on(&disk, Access::ReadOnly, VolumeChanges::Refused, |files, _| async move {
        let system = system_of(files);
        let file = system.caller().open_at(CWD, b"/open", 0, 0).await.unwrap();
        assert_eq!(file.read_bytes(0, 99).await.unwrap(), b"not synced");
    });
}

/// Storage behind the end of a file without a name is free after its last user.
#[test]
fn reserved_storage_of_a_file_without_a_name_is_released() {
    let Some(disk) = disk() else { return };
    run_on(&disk, Access::ReadWrite, VolumeChanges::Permitted, |files, volume| async move {
        let system = system_of(files.clone());
        let caller = system.caller();
        let flags = linux::O_RDWR | linux::O_CREAT;
        let file = caller.open_at(CWD, b"/reserved", flags, 0o600).await.unwrap();
        caller.unlink_at(CWD, b"/reserved", 0).await.unwrap();
        file.inode().unwrap().allocate(Allocation::ReserveKeepLen, 2_946, 18_242).await.unwrap();
        drop(file);
        files.close().await.unwrap();
        volume.unmount().await.unwrap();
    });
    assert_whole(&disk);
}

#[test]
fn a_small_write_to_a_full_volume_fails_at_once_and_earlier_ones_are_kept() {
    let Some(disk) = disk() else { return };
    run_on(&disk, Access::ReadWrite, VolumeChanges::Permitted, |files, volume| async move {
        {
            let system = system_of(files.clone());
            let caller = system.caller();
            let flags = linux::O_RDWR | linux::O_CREAT;
            let files_of_three = [&b"/a"[..], b"/b", b"/c"];
            let mut open = Vec::new();
            for path in files_of_three {
                open.push((caller.open_at(CWD, path, flags, 0o600).await.unwrap(), 0_u64));
            }
            let piece = data(1_500);
            let mut full = 0;
            while full < 3 {
                full = 0;
                for (file, len) in &mut open {
                    match file.write_at(*len, &mut UserBuffer::of_bytes(&piece)).await {
                        Ok(count) => *len += count as u64,
                        Err(error) => {
                            assert_eq!(error, Errno::ENOSPC);
                            full += 1;
                        }
                    }
                }
            }
            files.sync().await.unwrap();
            for (file, len) in &open {
                assert!(*len > 1 << 20, "{len}");
                assert_eq!(file.metadata().len, *len);
                file.sync().await.unwrap();
                let bytes = file.read_bytes(len - 1_500, 1_500).await.unwrap();
                assert!(bytes.len() == 1_500 && (bytes == piece || *len % 1_500 != 0));
            }
        }
        drop(files);
        volume.unmount().await.unwrap();
    });
    assert_whole(&disk);
}

#[test]
fn a_volume_for_reading_refuses_all_changes_and_a_full_one_says_so() {
    let Some(disk) = disk() else { return };
    run_on(&disk, Access::ReadOnly, VolumeChanges::Refused, |files, _| async move {
        let system = system_of(files);
        let caller = system.caller();
        let read_only = Err(Errno::EROFS);
        assert_eq!(caller.make_directory_at(CWD, b"/d", 0o755).await, read_only);
        assert_eq!(caller.unlink_at(CWD, b"/etc/file-1", 0).await, read_only);
        assert_eq!(caller.rename_at(CWD, b"/etc/file-1", CWD, b"/x", 0).await, read_only);
        let file = caller.open_at(CWD, b"/etc/file-1", linux::O_RDWR, 0).await.unwrap();
        let written = file.write_at(0, &mut UserBuffer::of_bytes(b"x")).await;
        assert_eq!((written, file.truncate(0).await), (Err(Errno::EROFS), read_only));
        assert_eq!(file.read_bytes(0, 9).await.unwrap(), b"1");
    });
    run_on(&disk, Access::ReadWrite, VolumeChanges::Permitted, |files, _| async move {
        let system = system_of(files.clone());
        let caller = system.caller();
        let file = caller.open_at(CWD, b"/full", linux::O_RDWR | linux::O_CREAT, 0o600).await.unwrap();
        let piece = data(1 << 20);
        let mut total = 0;
        let error = loop {
            match file.write_at(total, &mut UserBuffer::of_bytes(&piece)).await {
                Ok(count) => total += count as u64,
                Err(error) => break error,
            }
        };
        assert_eq!((error, file.metadata().len), (Errno::ENOSPC, total));
        assert!(total > 4 << 20, "{total}");
        // Space is there again without the file.
        drop(file);
        caller.unlink_at(CWD, b"/full", 0).await.unwrap();
        files.sync().await.unwrap();
        let file = caller.open_at(CWD, b"/new", linux::O_RDWR | linux::O_CREAT, 0o600).await.unwrap();
        assert_eq!(file.write_at(0, &mut UserBuffer::of_bytes(&piece)).await, Ok(1 << 20));
    });
}

#[test]
fn a_volume_is_read_through_pages_and_changed_in_an_overlay() {
    let Some(disk) = disk() else { return };
    run_task(|| check(disk.clone()));
}

async fn check(disk: SimDisk) {
    let device = BlockDevice::start(disk.port(), BlockSettings::default()).unwrap();
    let settings = CacheSettings { capacity: 1 << 20, dirty: 256 << 10, seed: 1 };
    let cache = BlockCache::new(device, settings).unwrap();
    let volume = Volume::mount(cache, Access::ReadOnly).await.unwrap();
    let tree = VolumeFs::new(volume.share(), VolumeChanges::Refused, 4096).await.unwrap();
    let overlay = OverlayFs::new(&*tree, TmpFs::new(TmpFsOptions::of_len(8 << 20)));
    let root = MountedFileSystem::new(overlay);
    let system = System::of(Namespace::new(root, b"/dev/vda", MountFlags::default()));
    let caller = system.caller();

    let metadata = caller.stat_at(CWD, b"/bin/program", 0).await.unwrap();
    assert_eq!((metadata.mode(), metadata.len, metadata.links), (0o104_755, 300_001, 2));
    assert!(metadata.blocks >= 300_001 / 512 && metadata.modified.seconds > 1_500_000_000);
    assert_eq!(caller.stat_at(CWD, b"/bin/absent", 0).await, Err(Errno::ENOENT));
    let target = caller.read_link_at(CWD, b"/long").await.unwrap();
    assert_eq!(target.len(), "/usr/bin/program".len() + 100);
    let file = caller.open_at(CWD, b"/long", linux::O_RDONLY, 0).await.unwrap();
    // A piece that begins in a page in memory and continues in one that is not is read once, and in full.
    let mut read = Vec::new();
    loop {
        let mut piece = UserBuffer::of_bytes(&[0; 3000]);
        let mut contents = piece.clone();
        let count = file.read(&mut piece).await.unwrap();
        if count == 0 {
            break;
        }
        assert!(count == 3000 || read.len() + count == 300_001, "{count} bytes at {}", read.len());
        contents.truncate(count);
        read.extend(contents.read_all());
    }
    assert!(read == data(300_001));
    assert_eq!(file.read_bytes(0, 1 << 20).await.unwrap(), data(300_001));
    let pages = file.pages().unwrap();
    let frame = pages.fetch(1).await.unwrap();
    assert!(pages.frame(1).unwrap().is(&frame));
    let mut bytes = [0; 3];
    frame.read(0, &mut bytes);
    assert_eq!(bytes, data(5000)[4096..4099]);
    assert_eq!(pages.fetch(74).await.unwrap_err(), Errno::EFAULT);

    let directory = caller.open_at(CWD, b"/etc", linux::O_RDONLY | linux::O_DIRECTORY, 0).await.unwrap();
    let (mut names, mut buffer) = (0, UserBuffer::of_bytes(&[0; 4096]));
    while directory.read_entries(&mut buffer, caller.ids).await.unwrap() > 0 {
        let mut bytes = UserBuffer::of_bytes(&[0; 4096]);
        std::mem::swap(&mut buffer, &mut bytes);
        names += 1;
    }
    assert!(names > 1);

    // Reads of which a part is in memory.
    let large = caller.open_at(CWD, b"/large", linux::O_RDONLY, 0).await.unwrap();
    let mut all: Vec<u8> = Vec::new();
    while all.len() < LARGE {
        let mut buffer = UserBuffer::of_bytes(&[0; 100_000]);
        let shown = buffer.clone();
        let count = large.read_at(all.len() as u64, &mut buffer).await.unwrap();
        assert_eq!(count, 100_000.min(LARGE - all.len()));
        all.extend(&shown.clone().read_all()[..count]);
    }
    assert!(all == data(LARGE));

    // A copy has the pages of its original until they change: an append to a file reads its last page.
    let before = reads(&disk);
    let used = overlay_pages(&caller).await;
    let grown = caller.open_at(CWD, b"/second", linux::O_RDWR | linux::O_APPEND, 0).await.unwrap();
    grown.write(&mut UserBuffer::of_bytes(b"appended")).await.unwrap();
    assert!(reads(&disk) - before <= 128 << 10, "{} bytes", reads(&disk) - before);
    assert_eq!(overlay_pages(&caller).await - used, 1);
    assert_eq!(grown.metadata().len, LARGE as u64 + 8);
    grown.write_at(0, &mut UserBuffer::of_bytes(b"!")).await.unwrap();
    let mut expected = data(LARGE);
    expected.extend(b"appended!");
    assert!(grown.read_bytes(0, 4 << 20).await.unwrap() == expected);
    // A mapping may write to a page, which the original does not see.
    let pages = grown.pages().unwrap();
    pages.fetch(3).await.unwrap().write(0, b"mapped");
    expected[3 * 4096..][..6].copy_from_slice(b"mapped");
    // A shorter file has zeros where it grows again; a hole has zeros, and its borders the original's bytes.
    grown.truncate(500_001).await.unwrap();
    grown.truncate(600_000).await.unwrap();
    expected.truncate(500_001);
    expected.resize(600_000, 0);
    let inode = grown.inode().unwrap();
    inode.allocate(Allocation::PunchHole, 100_000, 50_000).await.unwrap();
    expected[100_000..150_000].fill(0);
    assert!(grown.read_bytes(0, 4 << 20).await.unwrap() == expected);
    assert!(
        caller.open_at(CWD, b"/large", 0, 0).await.unwrap().read_bytes(0, LARGE).await.unwrap()
            == data(LARGE)
    );

    // A change by one name of the file shows by the other, and the rest is copied.
    let file = caller.open_at(CWD, b"/bin/program", linux::O_RDWR, 0).await.unwrap();
    file.write_at(100_000, &mut UserBuffer::of_bytes(b"changed")).await.unwrap();
    let mut expected = data(300_001);
    expected[100_000..100_007].copy_from_slice(b"changed");
    let second = caller.open_at(CWD, b"/usr/bin/second", linux::O_RDONLY, 0).await.unwrap();
    assert_eq!(second.read_bytes(0, 1 << 20).await.unwrap(), expected);
    caller.unlink_at(CWD, b"/etc/file-7", 0).await.unwrap();
    assert_eq!(caller.stat_at(CWD, b"/etc/file-7", 0).await, Err(Errno::ENOENT));
    caller.rename_at(CWD, b"/etc", CWD, b"/moved", 0).await.unwrap();
    let file = caller.open_at(CWD, b"/moved/file-8", 0, 0).await.unwrap();
    assert_eq!(file.read_bytes(0, 9).await.unwrap(), b"8");
    assert!(caller.locate(CWD, b"/etc", LastLink::Follow).await.is_err());
}

#[test]
fn pages_that_nothing_uses_are_counted_and_dropped_and_others_stay() {
    let Some(disk) = disk() else { return };
    run_on(&disk, Access::ReadWrite, VolumeChanges::Permitted, |files, _| async move {
        let system = system_of(files.clone());
        let caller = system.caller();
        assert_eq!((files.page_counts(), files.unused_pages()), ((0, 0), 0));
        let program = caller.open_at(CWD, b"/usr/bin/program", linux::O_RDWR, 0).await.unwrap();
        // The reads fetch 16 pages at a time.
        let read = program.read_bytes(0, 20 * 4096).await.unwrap();
        assert_eq!((files.page_counts(), files.unused_pages()), ((32, 0), 32));
        let mapped = program.pages().unwrap().fetch(3).await.unwrap();
        program.write_at(5 * 4096, &mut UserBuffer::of_bytes(b"dirty")).await.unwrap();
        assert_eq!((files.page_counts(), files.unused_pages()), ((31, 1), 30));
        let address = program.pages().unwrap().fetch(7).await.unwrap().address().addr().get();
        files.drop_unused_at(&(address..address + 1));
        assert_eq!((files.page_counts(), files.unused_pages()), ((30, 1), 29));
        let at_mapped = mapped.address().addr().get();
        files.drop_unused_at(&(at_mapped..at_mapped + 1));
        assert_eq!(files.page_counts(), (30, 1), "a page in use was dropped");
        assert_eq!(files.drop_unused(1), 29);
        assert_eq!((files.page_counts(), files.unused_pages(), files.drop_unused(1)), ((1, 1), 0, 0));
        let mut expected = read;
        expected[5 * 4096..][..5].copy_from_slice(b"dirty");
        assert!(program.read_bytes(0, 20 * 4096).await.unwrap() == expected);
    });
}
