//! Mounts, permissions, descriptors, locks, devices and generated file systems.

mod common;

use common::{CWD, System, Wakes, now, poll, read, write};
use isola_linux_abi::numbers as linux;
use isola_linux_files::locks::{self, FileLock, LockFamily, LockKind, LockOwner, LockRegion};
use isola_linux_files::{
    Caller, CallerIds, Console, ConsoleOutput, Credentials, Detach, DeviceNumber, DeviceTable, Errno,
    FixedDirectory, GeneratedDirectory, InodeKind, LinkTarget, MemoryFiles, MountFlags, MountedFileSystem,
    OnExec, OwnerChange, ProcessDirectories, TimeChange, Timestamp, TmpFs, TmpFsOptions, device_file_system,
    pipe, proc_file_system, sys_file_system,
};
use isola_linux_memory::UserBuffer;
use std::sync::Arc;
use std::task::Poll;

fn mounted(bytes: u64) -> Arc<MountedFileSystem> {
    MountedFileSystem::new(TmpFs::new(TmpFsOptions::of_len(bytes)))
}

#[test]
fn mounts_hide_their_points_and_are_left_by_dot_dot() {
    let system = System::new();
    system.mkdir("/m").unwrap();
    system.write_file("/m/below", b"").unwrap();
    let namespace = system.view.namespace();
    let point = system.locate("/m").unwrap();
    namespace.mount(&point, mounted(1 << 20), b"none", MountFlags::default()).unwrap();
    assert_eq!(system.names("/m").unwrap(), [""; 0]);
    system.mkdir("/m/d").unwrap();
    system.write_file("/m/d/f", b"inside").unwrap();
    assert_eq!(system.read_file("/m/d/../../m/d/f").unwrap(), b"inside");
    assert_eq!(system.rename("/m/d/f", "/f", 0), Err(Errno::EXDEV));
    assert_eq!(system.link("/m/d/f", "/f"), Err(Errno::EXDEV));
    assert_eq!(system.rmdir("/m"), Err(Errno::EBUSY));
    assert_eq!(system.rename("/m", "/n", 0), Err(Errno::EBUSY));
    now(system.caller().change_directory(b"/m/d")).unwrap();
    assert_eq!(system.caller().working_directory_path().unwrap(), b"/m/d");
    system.mkdir("/bound").unwrap();
    namespace.bind(&system.locate("/bound").unwrap(), &system.locate("/m/d").unwrap()).unwrap();
    assert_eq!(system.read_file("/bound/f").unwrap(), b"inside");
    let file = system.open("/bound/f", 0).unwrap();
    assert_eq!(file.description(), b"/bound/f");
    assert_eq!(namespace.unmount(system.locate("/m").unwrap(), Detach::IfUnused), Err(Errno::EBUSY));
    assert_eq!(namespace.unmount(system.locate("/m/d").unwrap(), Detach::Always), Err(Errno::EINVAL));
    assert_eq!(namespace.unmount(system.locate("/").unwrap(), Detach::Always), Err(Errno::EINVAL));
    namespace.unmount(system.locate("/m").unwrap(), Detach::Always).unwrap();
    assert_eq!(system.names("/m").unwrap(), ["below"]);
    assert_eq!(system.read_file("f").unwrap(), b"inside");
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let system = System::new();
    system.mkdir("/m").unwrap();
    let flags = MountFlags { read_only: true, no_execution: true, ..MountFlags::default() };
    let tree = mounted(1 << 20);
    let point = system.locate("/m").unwrap();
    system.view.namespace().mount(&point, tree, b"none", flags).unwrap();
    assert_eq!(system.open("/m/f", linux::O_CREAT | linux::O_RDWR).unwrap_err(), Errno::EROFS);
    assert_eq!(system.mkdir("/m/d"), Err(Errno::EROFS));
    assert_eq!(now(system.caller().chmod_at(CWD, b"/m", 0o700, 0)), Err(Errno::EROFS));
    let statistics = now(system.caller().file_system_statistics(CWD, b"/m", 0)).unwrap();
    assert_eq!((statistics.kind, statistics.flags, statistics.blocks), (0x0102_1994, 9, 256));
}

#[test]
fn a_process_does_not_leave_its_root() {
    let system = System::new();
    system.mkdir("/jail").unwrap();
    system.symlink("/outside", "/jail/link").unwrap();
    system.write_file("/outside", b"out").unwrap();
    assert_eq!(now(system.as_user(5).caller().change_root(b"/jail")), Err(Errno::EPERM));
    now(system.caller().change_root(b"/jail")).unwrap();
    assert_eq!(system.caller().working_directory_path().unwrap(), b"(unreachable)/");
    now(system.caller().change_directory(b"/")).unwrap();
    assert_eq!(system.stat("/../outside"), Err(Errno::ENOENT));
    assert_eq!(system.stat("../../outside"), Err(Errno::ENOENT));
    assert_eq!(system.stat("/link"), Err(Errno::ENOENT));
    system.write_file("/outside", b"in").unwrap();
    assert_eq!(system.read_file("/link").unwrap(), b"in");
    assert_eq!(system.caller().working_directory_path().unwrap(), b"/");
}

#[test]
fn permissions_are_checked_on_each_directory() {
    let system = System::new();
    system.view.set_umask(0o077);
    system.mkdir("/private").unwrap();
    system.write_file("/private/f", b"").unwrap();
    system.view.set_umask(0o022);
    system.mkdir("/public").unwrap();
    system.write_file("/public/f", b"x").unwrap();
    let user = system.as_user(1000);
    assert_eq!(user.stat("/private/f"), Err(Errno::EACCES));
    assert!(user.stat("/private").is_ok());
    assert_eq!(user.open("/public/f", linux::O_RDWR).unwrap_err(), Errno::EACCES);
    assert_eq!(user.open("/public/f", linux::O_RDONLY | linux::O_TRUNC).unwrap_err(), Errno::EACCES);
    assert_eq!(user.read_file("/public/f").unwrap(), b"x");
    assert_eq!(user.mkdir("/public/d"), Err(Errno::EACCES));
    assert_eq!(user.mkdir("/public/f"), Err(Errno::EEXIST));
    assert_eq!(now(user.caller().access_at(CWD, b"/public/f", 4, 0)), Ok(()));
    assert_eq!(now(user.caller().access_at(CWD, b"/public/f", 1, 0)), Err(Errno::EACCES));
    assert_eq!(now(user.caller().access_at(CWD, b"/public/f", 8, 0)), Err(Errno::EINVAL));
    assert_eq!(now(user.caller().chmod_at(CWD, b"/public/f", 0o777, 0)), Err(Errno::EPERM));
    let times = (TimeChange::Now, TimeChange::Now);
    assert_eq!(now(user.caller().set_times_at(CWD, b"/public/f", times.0, times.1, 0)), Err(Errno::EACCES));
    // The sticky bit of the root.
    assert_eq!(user.unlink("/public"), Err(Errno::EPERM));
    assert_eq!(user.rename("/public", "/mine", 0), Err(Errno::EPERM));
    user.write_file("/own", b"").unwrap();
    assert_eq!(user.stat("/own").unwrap().user, 1000);
    let to_root = OwnerChange { user: Some(0), group: None };
    assert_eq!(now(user.caller().chown_at(CWD, b"/own", to_root, 0)), Err(Errno::EPERM));
    now(system.caller().chmod_at(CWD, b"/own", 0o6755, 0)).unwrap();
    now(system.caller().chown_at(CWD, b"/own", to_root, 0)).unwrap();
    assert_eq!(system.stat("/own").unwrap().permissions, 0o755);
    let device = DeviceNumber::new(1, 3);
    let caller = user.caller();
    assert_eq!(now(caller.make_node_at(CWD, b"/null", linux::S_IFCHR | 0o666, device)), Err(Errno::EPERM));
}

#[test]
fn times_links_and_groups_follow_linux() {
    let system = System::new();
    system.write_file("/f", b"x").unwrap();
    let time = Timestamp { seconds: -5, nanoseconds: 7 };
    let to = TimeChange::To(time);
    now(system.caller().set_times_at(CWD, b"/f", TimeChange::Keep, to, 0)).unwrap();
    assert_eq!(system.stat("/f").unwrap().modified, time);
    assert_eq!(TimeChange::of_timespec(1, 1_000_000_000), Err(Errno::EINVAL));
    assert_eq!(TimeChange::of_timespec(1, i64::from(linux::UTIME_OMIT)), Ok(TimeChange::Keep));
    system.mkdir("/g").unwrap();
    now(system.caller().chown_at(CWD, b"/g", OwnerChange { user: None, group: Some(70) }, 0)).unwrap();
    now(system.caller().chmod_at(CWD, b"/g", 0o2777, 0)).unwrap();
    let user = system.as_user(9);
    user.write_file("/g/f", b"").unwrap();
    user.mkdir("/g/d").unwrap();
    assert_eq!(system.stat("/g/f").unwrap().group, 70);
    assert_eq!(system.stat("/g/d").unwrap().permissions, 0o2755);
}

#[test]
fn hostile_paths_and_names_are_refused() {
    let system = System::new();
    let caller = system.caller();
    let open = |path: &[u8]| now(caller.open_at(CWD, path, linux::O_RDONLY, 0)).map(drop);
    assert_eq!(open(b""), Err(Errno::ENOENT));
    assert_eq!(open(&[b'/'; 4096]), Err(Errno::ENAMETOOLONG));
    assert_eq!(open(&[b'/'; 4095]), Ok(()));
    assert_eq!(open(&[b'n'; 256]), Err(Errno::ENAMETOOLONG));
    assert_eq!(open(b"a\0b"), Err(Errno::EINVAL));
    assert_eq!(now(caller.open_at(99, b"a", 0, 0)).unwrap_err(), Errno::EBADF);
    assert_eq!(now(caller.open_at(-1, b"a", 0, 0)).unwrap_err(), Errno::EBADF);
    system.write_file("/f", b"").unwrap();
    let file = system.descriptor("/f", 0).unwrap();
    assert_eq!(now(caller.open_at(file, b"a", 0, 0)).unwrap_err(), Errno::ENOTDIR);
    assert!(now(caller.open_at(file, b"/f", 0, 0)).is_ok());
    assert_eq!(now(caller.stat_at(file, b"", 0)), Err(Errno::ENOENT));
    assert_eq!(now(caller.stat_at(file, b"", linux::AT_EMPTY_PATH)).unwrap().kind, InodeKind::File);
    assert_eq!(now(caller.stat_at(file, b"", 1 << 20)), Err(Errno::EINVAL));
    assert_eq!(now(caller.make_symlink_at(&[b'x'; 4096], CWD, b"s")), Err(Errno::ENAMETOOLONG));
    assert_eq!(now(caller.truncate(b"/f", -1)), Err(Errno::EINVAL));
    let file = system.open("/f", linux::O_RDWR).unwrap();
    let mut one = UserBuffer::of_bytes(&[1]);
    assert_eq!(now(file.write_at(u64::MAX, &mut one)), Err(Errno::EINVAL));
    assert_eq!(now(file.read_at(i64::MAX as u64, &mut one)), Err(Errno::EINVAL));
    assert_eq!(now(file.read_at(i64::MAX as u64 - 1, &mut one)), Ok(0));
    assert_eq!(now(file.seek(i64::MIN, linux::SEEK_CUR)), Err(Errno::EINVAL));
    assert_eq!(now(file.allocate(0, i64::MAX, 1)), Err(Errno::EFBIG));
}

#[test]
fn a_full_file_system_says_so_and_recovers() {
    let options = TmpFsOptions { most_pages: 2, most_inodes: 3, ..TmpFsOptions::of_len(0) };
    let system = System::with(options, MountFlags::default());
    let file = system.open("/f", linux::O_CREAT | linux::O_RDWR).unwrap();
    assert_eq!(write(&file, &[1; 10_000]), Ok(8192));
    assert_eq!(write(&file, &[1]), Err(Errno::ENOSPC));
    now(file.truncate(4096)).unwrap();
    assert_eq!(now(file.write_at(1 << 30, &mut UserBuffer::of_bytes(&[1; 9]))), Ok(9));
    system.mkdir("/d").unwrap();
    assert_eq!(system.mkdir("/e"), Err(Errno::ENOSPC));
    drop(file);
    system.unlink("/f").unwrap();
    system.write_file("/g", &[1; 8192]).unwrap();
}

#[test]
fn mappings_and_reads_share_the_pages_of_a_file() {
    let system = System::new();
    let file = system.open("/f", linux::O_CREAT | linux::O_RDWR).unwrap();
    write(&file, b"written").unwrap();
    let pages = file.pages().unwrap();
    let frame = pages.frame(0).expect("the page is in memory");
    frame.write(0, b"W");
    assert_eq!(system.read_file("/f").unwrap(), b"Written");
    assert_eq!(now(pages.fetch(1)).unwrap_err(), Errno::EFAULT);
    now(file.truncate(5000)).unwrap();
    now(pages.fetch(1)).unwrap().write(0, b"second");
    assert_eq!(now(file.read_bytes(4096, 6)).unwrap(), b"second");
    let memory = MemoryFiles::new(TmpFsOptions::of_len(1 << 20));
    let shared = memory.create(b"heap", 0, 0, 0).unwrap();
    assert_eq!(shared.description(), b"/memfd:heap (deleted)");
    now(shared.truncate(9000)).unwrap();
    assert!(now(shared.pages().unwrap().fetch(2)).is_ok());
    assert_eq!(memory.create(b"huge", linux::MFD_HUGETLB, 0, 0).unwrap_err(), Errno::EINVAL);
}

#[test]
fn unnamed_files_get_a_name_by_their_descriptor() {
    let system = System::new();
    let flags = linux::O_TMPFILE | linux::O_RDWR;
    let file = system.open("/", flags).unwrap();
    write(&file, b"late").unwrap();
    assert_eq!(system.names("/").unwrap(), [""; 0]);
    let descriptor = system.descriptors.install(file, OnExec::Keep, 10).unwrap();
    now(system.caller().link_at(descriptor, b"", CWD, b"/named", linux::AT_EMPTY_PATH)).unwrap();
    assert_eq!(system.read_file("/named").unwrap(), b"late");
    assert_eq!(system.open("/", linux::O_TMPFILE).unwrap_err(), Errno::EINVAL);
}

#[test]
fn extended_attributes_are_kept() {
    let system = System::new();
    system.write_file("/f", b"").unwrap();
    let caller = system.caller();
    let set =
        |name: &[u8], value: &[u8], flags| now(caller.set_attribute_at(CWD, b"/f", name, value, flags, 0));
    assert_eq!(set(b"user.a", b"1", linux::XATTR_REPLACE), Err(Errno::ENODATA));
    set(b"user.a", b"1", 0).unwrap();
    assert_eq!(set(b"user.a", b"2", linux::XATTR_CREATE), Err(Errno::EEXIST));
    assert_eq!(set(b"other", b"", 0), Err(Errno::EOPNOTSUPP));
    assert_eq!(set(b"user.b", &[0; 65537], 0), Err(Errno::E2BIG));
    assert_eq!(set(b"user.b", &[0; 65536], 0), Err(Errno::ENOSPC));
    assert_eq!(now(caller.attributes_at(CWD, b"/f", 0)).unwrap(), b"user.a\0");
    assert_eq!(now(caller.attribute_at(CWD, b"/f", b"user.a", 0)).unwrap(), b"1");
    now(caller.remove_attribute_at(CWD, b"/f", b"user.a", 0)).unwrap();
    assert_eq!(now(caller.attribute_at(CWD, b"/f", b"user.a", 0)), Err(Errno::ENODATA));
    // Those of security modules are the superuser's to change.
    set(b"security.capability", b"1", 0).unwrap();
    now(caller.chown_at(CWD, b"/f", OwnerChange { user: Some(7), group: None }, 0)).unwrap();
    let user = Credentials { user: 7, capabilities: 0, ..system.credentials.clone() };
    let caller = Caller { credentials: &user, ..system.caller() };
    let of_user = |name: &[u8]| now(caller.set_attribute_at(CWD, b"/f", name, b"2", 0, 0));
    assert_eq!((of_user(b"security.capability"), of_user(b"user.a")), (Err(Errno::EPERM), Ok(())));
    assert_eq!(now(caller.remove_attribute_at(CWD, b"/f", b"security.capability", 0)), Err(Errno::EPERM));
    assert_eq!(now(caller.attribute_at(CWD, b"/f", b"security.capability", 0)).unwrap(), b"1");
}

#[test]
fn descriptors_are_the_lowest_free_ones() {
    let system = System::new();
    let table = &system.descriptors;
    let (file, other) = pipe(0).unwrap();
    let install = |limit| table.install(file.clone(), OnExec::Keep, limit);
    assert_eq!((install(3), install(3), install(3), install(3)), (Ok(0), Ok(1), Ok(2), Err(Errno::EMFILE)));
    table.close(1).unwrap();
    assert_eq!(
        (table.close(1), table.close(-1), table.close(i32::MAX)),
        (Err(Errno::EBADF), Err(Errno::EBADF), Err(Errno::EBADF))
    );
    assert_eq!(table.install_from(2, other.clone(), OnExec::Close, 9), Ok(3));
    assert_eq!(table.install_from(9, other.clone(), OnExec::Close, 9), Err(Errno::EINVAL));
    assert_eq!(install(9), Ok(1));
    table.duplicate_to(3, 7, OnExec::Keep, 9).unwrap();
    assert_eq!(table.duplicate_to(3, 9, OnExec::Keep, 9), Err(Errno::EBADF));
    assert_eq!(table.duplicate_to(5, 6, OnExec::Keep, 9), Err(Errno::EBADF));
    let child = table.fork();
    child.exec();
    assert_eq!(child.descriptors(), [0, 1, 2, 7]);
    assert_eq!(table.descriptors(), [0, 1, 2, 3, 7]);
    assert_eq!(child.close_range(2, 1), Err(Errno::EINVAL));
    child.close_range(1, u32::MAX).unwrap();
    assert_eq!(child.descriptors(), [0]);
    table.close_range_on_exec(0, 2).unwrap();
    table.exec();
    assert_eq!(table.descriptors(), [7]);
    // The writer ends with its last descriptor.
    drop(other);
    table.close(7).unwrap();
    assert_eq!(read(&file, 1).unwrap(), b"");
}

fn lock(owner: u64, kind: LockKind, first: u64, last: u64) -> FileLock {
    FileLock { owner: LockOwner::Process(owner, owner as u32), kind, region: LockRegion { first, last } }
}

#[test]
fn record_locks_exclude_split_and_end_with_a_descriptor() {
    use LockKind::{Exclusive, Shared};
    let system = System::new();
    system.write_file("/f", b"").unwrap();
    let file = system.open("/f", linux::O_RDWR).unwrap();
    let (one, other) = (system.descriptors.lock_owner(), u64::MAX);
    let try_lock = |lock| locks::try_lock(&file, LockFamily::Record, lock);
    try_lock(lock(one, Exclusive, 0, 99)).unwrap();
    assert_eq!(try_lock(lock(other, Shared, 50, 50)), Err(Errno::EAGAIN));
    locks::unlock(&file, LockFamily::Record, LockOwner::Process(one, 0), LockRegion { first: 40, last: 59 });
    try_lock(lock(other, Shared, 40, 59)).unwrap();
    assert_eq!(try_lock(lock(other, Shared, 39, 39)), Err(Errno::EAGAIN));
    let conflict = locks::conflicting(&file, &lock(other, Shared, 60, 200)).unwrap();
    assert_eq!((conflict.region, conflict.kind), (LockRegion { first: 60, last: 99 }, Exclusive));
    let descriptor = system.descriptor("/f", 0).unwrap();
    system.descriptors.close(descriptor).unwrap();
    try_lock(lock(other, Exclusive, 0, 1000)).unwrap();
    assert_eq!(LockRegion::of_start_and_len(10, -10), Ok(LockRegion { first: 0, last: 9 }));
    assert_eq!(LockRegion::of_start_and_len(10, -11), Err(Errno::EINVAL));
    assert_eq!(LockRegion::of_start_and_len(i64::MAX, 2), Err(Errno::EOVERFLOW));
    assert_eq!(LockRegion::of_start_and_len(0, i64::MIN), Err(Errno::EINVAL));
}

#[test]
fn waiting_for_oneself_over_others_is_a_deadlock() {
    use LockKind::Exclusive;
    let system = System::new();
    system.write_file("/f", b"").unwrap();
    let file = system.open("/f", linux::O_RDWR).unwrap();
    let wakes = Arc::new(Wakes::default());
    let (a, b) = (u64::MAX - 1, u64::MAX - 2);
    for (owner, at) in [(a, 0), (b, 1)] {
        locks::try_lock(&file, LockFamily::Record, lock(owner, Exclusive, at, at)).unwrap();
    }
    let mut waits = Box::pin(locks::lock(&file, LockFamily::Record, lock(a, Exclusive, 1, 1)));
    assert!(poll(&mut waits, &wakes).is_pending());
    assert_eq!(now(locks::lock(&file, LockFamily::Record, lock(b, Exclusive, 0, 0))), Err(Errno::EDEADLK));
    locks::unlock(&file, LockFamily::Record, LockOwner::Process(b, 0), LockRegion::ALL);
    assert_eq!(wakes.count(), 1);
    assert_eq!(poll(&mut waits, &wakes), Poll::Ready(Ok(())));
    drop(waits);
    let whole = FileLock { owner: LockOwner::OpenFile(file.id()), kind: Exclusive, region: LockRegion::ALL };
    locks::try_lock(&file, LockFamily::Whole, whole).unwrap();
    let other = system.open("/f", 0).unwrap();
    let second = FileLock { owner: LockOwner::OpenFile(other.id()), ..whole };
    assert_eq!(locks::try_lock(&other, LockFamily::Whole, second), Err(Errno::EAGAIN));
    drop(file);
    locks::try_lock(&other, LockFamily::Whole, second).unwrap();
}

struct NoOutput;

impl ConsoleOutput for NoOutput {
    fn write(&self, _bytes: &[u8]) {}
}

#[test]
fn devices_behave_as_their_names_say() {
    let system = System::new();
    system.mkdir("/dev").unwrap();
    let (devices, console) = (Arc::new(DeviceTable::default()), Console::new(Arc::new(NoOutput)));
    let tree = device_file_system(&devices, &console, |bytes| bytes.fill(0xab)).unwrap();
    let point = system.locate("/dev").unwrap();
    system
        .view
        .namespace()
        .mount(&point, MountedFileSystem::new(tree), b"dev", MountFlags::default())
        .unwrap();
    let open = |name: &str| system.open(&format!("/dev/{name}"), linux::O_RDWR).unwrap();
    assert_eq!((write(&open("null"), b"abc"), read(&open("null"), 9)), (Ok(3), Ok(Vec::new())));
    assert_eq!((write(&open("zero"), b"abc"), read(&open("zero"), 5000)), (Ok(3), Ok(vec![0; 5000])));
    assert_eq!((write(&open("full"), b"abc"), read(&open("full"), 2)), (Err(Errno::ENOSPC), Ok(vec![0; 2])));
    assert_eq!(read(&open("urandom"), 300).unwrap(), [0xab; 300]);
    assert_eq!(now(open("null").seek(5, linux::SEEK_SET)), Ok(0), "as on Linux");
    assert_eq!(system.open("/dev/tty", linux::O_RDWR).unwrap_err(), Errno::ENXIO);
    let null = system.stat("/dev/null").unwrap();
    assert_eq!((null.special, null.kind), (DeviceNumber::new(1, 3), InodeKind::CharacterDevice));
    system.write_file("/dev/shm/sem.x", b"semaphore").unwrap();
    let no_devices = MountFlags { no_devices: true, ..MountFlags::default() };
    system.mkdir("/m").unwrap();
    let point = system.locate("/m").unwrap();
    system.view.namespace().mount(&point, mounted(1 << 20), b"none", no_devices).unwrap();
    now(system.caller().make_node_at(CWD, b"/m/null", linux::S_IFCHR, DeviceNumber::new(1, 3))).unwrap();
    assert_eq!(system.open("/m/null", 0).unwrap_err(), Errno::EACCES);
    now(system.caller().make_node_at(CWD, b"/nothing", linux::S_IFCHR, DeviceNumber::new(99, 3))).unwrap();
    assert_eq!(system.open("/nothing", 0).unwrap_err(), Errno::ENXIO);
}

struct OneProcess(Arc<dyn GeneratedDirectory>);

impl ProcessDirectories for OneProcess {
    fn ids(&self) -> Vec<u32> {
        vec![7]
    }

    fn directory(&self, id: u32) -> Option<Arc<dyn GeneratedDirectory>> {
        (id == 7).then(|| self.0.clone())
    }
}

#[test]
fn proc_shows_processes_and_generated_texts() {
    let system = System::new();
    system.mkdir("/proc").unwrap();
    system.mkdir("/sys").unwrap();
    system.write_file("/program", b"ELF").unwrap();
    let (program, (reader, writer)) = (system.locate("/program").unwrap(), pipe(linux::O_NONBLOCK).unwrap());
    let process = FixedDirectory::new()
        .text("status", |caller: CallerIds| format!("Pid: {}\n", caller.process).into_bytes())
        .link("exe", move |_: CallerIds| Ok(LinkTarget::Location(program.clone())))
        .link("fd/0", move |_: CallerIds| Ok(LinkTarget::Object(reader.clone())));
    let fixed =
        FixedDirectory::new().constant("sys/kernel/pid_max", "4194304\n").constant("sys/kernel/x", "");
    let tree = proc_file_system(fixed, Arc::new(OneProcess(Arc::new(process))));
    let mount = |at: &str, tree| {
        let point = system.locate(at).unwrap();
        system
            .view
            .namespace()
            .mount(&point, MountedFileSystem::new(tree), b"none", MountFlags::default())
            .unwrap();
    };
    mount("/proc", tree);
    mount("/sys", sys_file_system(|| "0-3\n".into()));
    assert_eq!(system.names("/proc").unwrap(), ["7", "mounts", "self", "sys", "thread-self"]);
    assert_eq!(system.read_file("/sys/devices/system/cpu/online").unwrap(), b"0");
    let text = |path: &str| now(system.open(path, 0).unwrap().read_bytes(0, 100)).unwrap();
    assert_eq!(text("/proc/self/status"), b"Pid: 7\n");
    assert_eq!(text("/proc/sys/kernel/pid_max"), b"4194304\n");
    assert_eq!(text("/sys/devices/system/cpu/possible"), b"0-3\n");
    assert_eq!(text("/proc/self/exe"), b"ELF");
    let link = |path: &[u8]| now(system.caller().read_link_at(CWD, path)).unwrap();
    assert_eq!((link(b"/proc/self"), link(b"/proc/self/exe")), (b"7".to_vec(), b"/program".to_vec()));
    assert!(link(b"/proc/self/fd/0").starts_with(b"pipe:["));
    write(&writer, b"again").unwrap();
    let again = system.open("/proc/self/fd/0", linux::O_RDONLY).unwrap();
    assert_eq!(read(&again, 9).unwrap(), b"again");
    for path in ["/proc/8", "/proc/07", "/proc/+7", "/proc/99999999999"] {
        assert_eq!(system.stat(path), Err(Errno::ENOENT));
    }
    assert_eq!(system.mkdir("/proc/x"), Err(Errno::EACCES).or(Err(Errno::EPERM)));
    let file = system.open("/proc/self/status", 0).unwrap();
    assert_eq!((read(&file, 4).unwrap(), read(&file, 99).unwrap()), (b"Pid:".to_vec(), b" 7\n".to_vec()));
    assert_eq!(system.stat("/proc/7/status").unwrap().inode, system.stat("/proc/self/status").unwrap().inode);
}
