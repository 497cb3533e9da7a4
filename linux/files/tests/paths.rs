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
