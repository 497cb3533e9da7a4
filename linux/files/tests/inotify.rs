//! `inotify`: its limits, and what random sequences beside the host's kernel do not reach.

mod common;

use common::{System, Wakes, now, poll, read};
use isola_linux_abi::numbers as linux;
use isola_linux_files::{
    Errno, Events, Inotify, MOST_INOTIFY_EVENTS, MOST_INOTIFY_INSTANCES, MountFlags, MountedFileSystem,
    OpenFile, TmpFs, TmpFsOptions,
};
use std::pin::pin;
use std::sync::Arc;

/// Creates an instance of a user that no other test uses.
fn instance(user: u32) -> Arc<OpenFile> {
    Inotify::open(linux::IN_NONBLOCK, user).unwrap()
}

fn watch(system: &System, instance: &OpenFile, path: &str, mask: u32) -> Result<i32, Errno> {
    now(instance.object_as::<Inotify>().unwrap().add_watch(&system.caller(), path.as_bytes(), mask))
}

/// Returns watch, mask and name of each event.
fn events(instance: &OpenFile) -> Vec<(i32, u32, String)> {
    let (mut events, mut at) = (Vec::new(), 0);
    let bytes = read(instance, 1 << 20).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    while at < bytes.len() {
        let len = word(at + 12) as usize;
        let name = String::from_utf8(bytes[at + 16..at + 16 + len].to_vec()).unwrap();
        events.push((word(at) as i32, word(at + 4), name.trim_end_matches('\0').into()));
        at += 16 + len;
    }
    events
}

#[test]
fn mistakes_are_errors() {
    assert_eq!(Inotify::open(1, 100).err(), Some(Errno::EINVAL));
    let (system, instance) = (System::new(), instance(100));
    let error = |path: &str, mask| watch(&system, &instance, path, mask).err();
    assert_eq!(error("/none", linux::IN_OPEN), Some(Errno::ENOENT));
    assert_eq!(error("/", 0), Some(Errno::EINVAL));
    assert_eq!(error("/", 0x1000), Some(Errno::EINVAL));
    system.write_file("/file", b"").unwrap();
    assert_eq!(error("/file", linux::IN_OPEN | linux::IN_ONLYDIR), Some(Errno::ENOTDIR));
    let private = system.open("/private", linux::O_CREAT).unwrap();
    now(system.caller().chmod_at(common::CWD, b"/private", 0, 0)).unwrap();
    drop(private);
    let other = system.as_user(1000);
    assert_eq!(watch(&other, &instance, "/private", linux::IN_OPEN), Err(Errno::EACCES));
    assert_eq!(instance.object_as::<Inotify>().unwrap().remove_watch(1), Err(Errno::EINVAL));
    assert_eq!(watch(&system, &instance, "/", linux::IN_OPEN), Ok(1));
    assert_eq!(watch(&system, &instance, "/", linux::IN_OPEN | linux::IN_MASK_CREATE), Err(Errno::EEXIST));
    assert_eq!(read(&instance, 100), Err(Errno::EAGAIN));
    system.open("/file", 0).unwrap();
    assert_eq!(read(&instance, 31), Err(Errno::EINVAL), "the event has 32 bytes");
    assert_eq!(read(&instance, 32).unwrap().len(), 32);
    assert_eq!(common::write(&instance, b"x"), Err(Errno::EBADF));
}

#[test]
fn a_user_has_a_limit_of_instances() {
    let mut instances: Vec<_> = (0..MOST_INOTIFY_INSTANCES).map(|_| instance(101)).collect();
    assert_eq!(Inotify::open(0, 101).err(), Some(Errno::EMFILE));
    drop(instance(102));
    instances.pop();
    drop(instance(101));
}

#[test]
fn a_full_queue_ends_with_an_overflow() {
    let (system, instance) = (System::new(), instance(103));
    watch(&system, &instance, "/", linux::IN_OPEN | linux::IN_CREATE).unwrap();
    for name in ["a", "b"] {
        system.write_file(name, b"").unwrap();
    }
    // Two different events each time, as equal ones are merged.
    for _ in 0..MOST_INOTIFY_EVENTS {
        system.open("/a", 0).unwrap();
        system.open("/b", 0).unwrap();
    }
    let all = events(&instance);
    assert_eq!(all.len(), MOST_INOTIFY_EVENTS);
    assert_eq!(all.last(), Some(&(-1, linux::IN_Q_OVERFLOW, String::new())));
    system.open("/a", 0).unwrap();
    assert_eq!(events(&instance), [(1, linux::IN_OPEN, "a".into())]);
}

#[test]
fn equal_events_are_merged_and_readers_wait() {
    let (system, instance) = (System::new(), Inotify::open(0, 104).unwrap());
    watch(&system, &instance, "/", linux::IN_OPEN).unwrap();
    system.write_file("/a", b"").unwrap();
    system.open("/a", 0).unwrap();
    assert_eq!(events(&instance), [(1, linux::IN_OPEN, "a".into())]);
    assert!(instance.ready().is_empty());
    let wakes = Arc::new(Wakes::default());
    let mut wait = pin!(instance.wait(Events::IN));
    assert!(poll(&mut wait, &wakes).is_pending());
    system.open("/a", 0).unwrap();
    assert_eq!(wakes.count(), 1);
    assert!(poll(&mut wait, &wakes).is_ready());
}

#[test]
fn watches_end_with_their_file_system_and_with_their_instance() {
    let (system, instance) = (System::new(), instance(105));
    system.mkdir("/mnt").unwrap();
    let mounted = MountedFileSystem::new(TmpFs::new(TmpFsOptions::of_len(1 << 20)));
    let point = system.locate("/mnt").unwrap();
    let namespace = system.view.namespace();
    drop(namespace.mount(&point, mounted, b"mnt", MountFlags::default()).unwrap());
    system.write_file("/mnt/file", b"").unwrap();
    watch(&system, &instance, "/mnt/file", linux::IN_ALL_EVENTS).unwrap();
    watch(&system, &instance, "/mnt", linux::IN_ALL_EVENTS).unwrap();
    watch(&system, &instance, "/", linux::IN_ALL_EVENTS).unwrap();
    namespace.unmount(system.locate("/mnt").unwrap(), isola_linux_files::Detach::IfUnused).unwrap();
    let mut seen = events(&instance);
    seen.sort_by_key(|(number, ..)| *number);
    let event = |number, mask| (number, mask, String::new());
    let ends = |number| [event(number, linux::IN_UNMOUNT), event(number, linux::IN_IGNORED)];
    assert_eq!(seen, [ends(1), ends(2)].concat());
    // The inode of the root has no watch any more once the instance is closed.
    drop(instance);
    let instance = self::instance(105);
    system.write_file("/other", b"").unwrap();
    assert_eq!(read(&instance, 100), Err(Errno::EAGAIN));
    assert_eq!(watch(&system, &instance, "/", linux::IN_CREATE), Ok(1));
}
