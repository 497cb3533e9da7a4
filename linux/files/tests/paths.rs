//! Path look-up and the calls on names.

mod common;

use common::{CWD, System, now, read, write};
use isola_linux_abi::numbers as linux;
use isola_linux_files::{Errno, InodeKind};

#[test]
fn a_file_is_created_written_read_and_removed() {
    let system = System::new();
    assert_eq!(system.open("/a", linux::O_RDONLY).unwrap_err(), Errno::ENOENT);
    system.write_file("/a", b"contents").unwrap();
    assert_eq!(system.read_file("/a").unwrap(), b"contents");
    let file = system.open("a", linux::O_RDWR).unwrap();
    assert_eq!(read(&file, 3).unwrap(), b"con");
    assert_eq!(write(&file, b"TENT!").unwrap(), 5);
    assert_eq!(now(file.seek(-2, linux::SEEK_CUR)).unwrap(), 6);
    assert_eq!(read(&file, 30).unwrap(), b"T!");
    system.unlink("/a").unwrap();
    assert_eq!(system.stat("/a"), Err(Errno::ENOENT));
    assert_eq!(now(file.read_bytes(0, 100)).unwrap(), b"conTENT!");
    assert_eq!(file.metadata().links, 0);
    assert_eq!(file.description(), b"/a (deleted)");
}

#[test]
fn links_are_followed_up_to_forty() {
    let system = System::new();
    system.mkdir("/d").unwrap();
    system.write_file("/d/f", b"x").unwrap();
    system.symlink("d", "/s").unwrap();
    system.symlink("/s/../s/f", "/t").unwrap();
    assert_eq!(system.read_file("/t").unwrap(), b"x");
    assert_eq!(now(system.caller().read_link_at(CWD, b"t")).unwrap(), b"/s/../s/f");
    assert_eq!(system.open("t", linux::O_NOFOLLOW).unwrap_err(), Errno::ELOOP);
    let itself = system.open("t", linux::O_NOFOLLOW | linux::O_PATH).unwrap();
    assert_eq!(itself.kind(), InodeKind::Symlink);
    system.symlink("l0", "/l0").unwrap();
    assert_eq!(system.stat("/l0"), Err(Errno::ELOOP));
    for index in 1..=41 {
        let target = if index == 1 { "d/f".to_string() } else { format!("n{}", index - 1) };
        system.symlink(&target, &format!("/n{index}")).unwrap();
    }
    assert!(system.stat("/n40").is_ok());
    assert_eq!(system.stat("/n41"), Err(Errno::ELOOP));
}

#[test]
fn openat2_restricts_the_look_up() {
    const BENEATH: u32 = linux::RESOLVE_BENEATH;
    const IN_ROOT: u32 = linux::RESOLVE_IN_ROOT;
    let system = System::new();
    for path in ["/jail", "/jail/d", "/jail/etc", "/etc"] {
        system.mkdir(path).unwrap();
    }
    system.write_file("/jail/d/f", b"x").unwrap();
    system.write_file("/jail/etc/name", b"inside").unwrap();
    system.write_file("/etc/name", b"outside").unwrap();
    for (target, path) in [
        ("/etc/name", "/jail/absolute"),
        ("../etc/name", "/jail/above"),
        ("d/f", "/jail/within"),
        ("d/../../etc/name", "/jail/deep"),
    ] {
        system.symlink(target, path).unwrap();
    }
    let jail = system.open("/jail", linux::O_PATH).unwrap();
    let jail = system.descriptors.install(jail, isola_linux_files::OnExec::Keep, 9).unwrap();
    let open = |path: &str, resolve: u32| {
        let file = now(system.caller().open_restricted(jail, path.as_bytes(), linux::O_RDONLY, 0, resolve))?;
        now(file.read_bytes(0, 100))
    };
    assert_eq!(open("d/../within", BENEATH).unwrap(), b"x");
    for path in ["..", "../jail/d/f", "/jail/d/f", "absolute", "above", "deep", "d/../../jail"] {
        assert_eq!(open(path, BENEATH), Err(Errno::EXDEV), "{path}");
    }
    for path in ["absolute", "above", "deep", "/etc/name", "/../../etc/name", "../etc/name"] {
        assert_eq!(open(path, IN_ROOT).unwrap(), b"inside", "{path}");
        assert_ne!(open(path, 0).ok(), Some(b"inside".to_vec()), "{path}");
    }
    assert_eq!(open("within", linux::RESOLVE_NO_SYMLINKS), Err(Errno::ELOOP));
    assert_eq!(open("d/f", linux::RESOLVE_NO_SYMLINKS).unwrap(), b"x");
    assert_eq!(open("above", linux::RESOLVE_NO_MAGICLINKS | linux::RESOLVE_NO_XDEV).unwrap(), b"outside");
    assert_eq!(open("d/f", linux::RESOLVE_CACHED), Err(Errno::EAGAIN));
    assert_eq!(open("d/f", BENEATH | IN_ROOT), Err(Errno::EINVAL));
    assert_eq!(open("d/f", 1 << 6), Err(Errno::EINVAL));
    let with = |flags, mode| {
        now(system.caller().open_restricted(jail, b"new", flags, mode, BENEATH)).map(|file| file.metadata())
    };
    assert_eq!(with(linux::O_RDONLY, 0o600), Err(Errno::EINVAL));
    assert_eq!(with(linux::O_PATH | linux::O_CREAT, 0), Err(Errno::EINVAL));
    assert_eq!(with(1 << 30, 0), Err(Errno::EINVAL));
    assert!(with(linux::O_CREAT | linux::O_WRONLY, 0o600).is_ok());
    assert!(system.stat("/jail/new").is_ok());
}
