//! A volume as a root file system, below an overlay.

mod common;

use common::{CWD, System};
use isola_block::{BlockDevice, BlockSettings};
use isola_block_cache::{BlockCache, CacheSettings};
use isola_events::{exit, run, spawn_task};
use isola_hosted::Settings;
use isola_linux_abi::numbers as linux;
use isola_linux_files::{
    Errno, LastLink, MountFlags, MountedFileSystem, Namespace, OverlayFs, TmpFs, TmpFsOptions, VolumeChanges, VolumeFs,
};
use isola_linux_memory::UserBuffer;
use isola_need::{Need, need};
use isola_storage_sim::SimDisk;
use isola_volumes::{Access, Volume};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 9)) as u8).collect()
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

#[test]
fn a_volume_is_read_through_pages_and_changed_in_an_overlay() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = SimDisk::new(image());
    let codes = isola_hosted::run(Settings::default(), Vec::new(), |_| {
        let disk = disk.clone();
        spawn_task(async move {
            check(disk).await;
            exit(0);
        })
        .detach();
        run()
    });
    assert_eq!(codes, [0]);
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
