//! Several cores use the same tree at once.

mod common;

use common::System;
use isola_linux_abi::numbers as linux;
use isola_linux_files::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};

const THREADS: usize = 4;
const ROUNDS: usize = 400;

#[test]
fn one_of_several_creators_wins_and_names_stay_whole() {
    let system = System::new();
    system.mkdir("/a").unwrap();
    system.mkdir("/b").unwrap();
    let created = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (system, created) = (&system, &created);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    match system.open(&format!("/a/{round}"), linux::O_CREAT | linux::O_EXCL | linux::O_RDWR)
                    {
                        Ok(_) => {
                            created.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(error) => assert_eq!(error, Errno::EEXIST),
                    }
                    // Each name is moved once, by one of the threads.
                    match common::run(system.caller().rename_at(
                        common::CWD,
                        format!("/a/{round}").as_bytes(),
                        common::CWD,
                        format!("/b/{thread}-{round}").as_bytes(),
                        0,
                    )) {
                        Ok(()) => assert!(system.stat(&format!("/b/{thread}-{round}")).is_ok()),
                        Err(error) => assert_eq!(error, Errno::ENOENT),
                    }
                    assert!(matches!(system.stat(&format!("/a/{round}")), Err(Errno::ENOENT) | Ok(_)));
                }
            });
        }
    });
    let left = system.names("/a").unwrap().len() + system.names("/b").unwrap().len();
    assert_eq!(left, created.load(Ordering::SeqCst));
    for name in system.names("/b").unwrap() {
        system.unlink(&format!("/b/{name}")).unwrap();
    }
    for name in system.names("/a").unwrap() {
        system.unlink(&format!("/a/{name}")).unwrap();
    }
    system.rmdir("/a").unwrap();
    system.rmdir("/b").unwrap();
}

#[test]
fn appends_of_several_threads_do_not_overwrite_each_other() {
    let system = System::new();
    system.write_file("/log", b"").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let system = &system;
            scope.spawn(move || {
                let file = system.open("/log", linux::O_WRONLY | linux::O_APPEND).unwrap();
                for _ in 0..ROUNDS {
                    assert_eq!(common::write(&file, &[b'a' + thread as u8; 100]), Ok(100));
                }
            });
        }
    });
    let log = system.read_file("/log").unwrap();
    assert_eq!(log.len(), THREADS * ROUNDS * 100);
    assert!(log.chunks(100).all(|line| line.iter().all(|byte| *byte == line[0])));
}
