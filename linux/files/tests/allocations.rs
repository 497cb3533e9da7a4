//! Allocations of the calls that servers make for each request, in a cached tree.

mod common;

use common::{CWD, System, now};
use isola_linux_abi::numbers as linux;
use isola_linux_files::{Errno, OnExec, pipe};
use isola_linux_memory::UserBuffer;

fn allocations(call: impl FnOnce()) -> u64 {
    allocation_counter::measure(call).count_total
}

#[test]
fn hot_calls_allocate_little() {
    let system = System::new();
    for directory in ["/srv", "/srv/www", "/srv/www/site"] {
        system.mkdir(directory).unwrap();
    }
    let path = b"/srv/www/site/index.html";
    system.write_file("/srv/www/site/index.html", &[1; 600]).unwrap();
    let caller = system.caller();
    let stat = |path: &[u8]| now(caller.stat_at(CWD, path, 0));
    assert_eq!(stat(b"/srv/www/site/absent"), Err(Errno::ENOENT));
    assert_eq!(allocations(|| assert_eq!(stat(path).unwrap().len, 600)), 0, "newfstatat");
    // The name, for a file that could be created.
    assert_eq!(
        allocations(|| assert!(stat(b"/srv/www/site/absent").is_err())),
        1,
        "newfstatat of an absent name"
    );
    let open = || now(caller.open_at(CWD, path, linux::O_RDONLY, 0)).unwrap();
    system.descriptors.install(open(), OnExec::Keep, 9).unwrap();
    assert_eq!(allocations(|| drop(open())), 1, "openat: the open file");
    let file = open();
    let mut buffer = UserBuffer::of_bytes(&[0; 600]);
    assert_eq!(allocations(|| assert_eq!(now(file.read_at(0, &mut buffer)), Ok(600))), 0, "pread");
    let (reader, writer) = pipe(0).unwrap();
    let mut bytes = UserBuffer::of_bytes(&[1; 600]);
    assert_eq!(now(writer.write(&mut bytes.clone())), Ok(600));
    let mut buffer = UserBuffer::of_bytes(&[0; 1200]);
    let both = allocations(|| {
        assert_eq!(now(writer.write(&mut bytes)), Ok(600));
        assert_eq!(now(reader.read(&mut buffer)), Ok(1200));
    });
    assert_eq!(both, 0, "write and read of a pipe");
}
