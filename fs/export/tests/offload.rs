//! A native cell reads and writes files of the hosted process, through the messenger and the network.

use isola_events::{exit, run, sleep, spawn_task, timeout};
use isola_fs::{
    Access, Answer, Entry, FILES, FileError, FileKind, FileRefusal, FileRequest, MAX_ENTRIES, MAX_LISTED,
    MAX_READ, list, list_after, read, status, write,
};
use isola_fs_export::{WorkPanicked, export, off_core};
use isola_hosted::{Loss, Settings, switch};
use isola_iobuf::{Chain, IoBuf};
use isola_link_sim::Machine;
use isola_messenger::{
    AskError, JoinError, MachineId, TransportKind, connected_machines, host, id_map, join,
};
use isola_net::{FailReason, StreamError};
use isola_platform::CoreIndex;
use isola_test_cells::{SERVER, TestCell, run_cells};
use std::fs;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const PORT: u16 = 9000;

/// Runs `serve` on a first machine, which is the home of the files, and `native` in a native cell of two cores. If there is
/// a simulated machine, both are its cells, and find a channel to each other.
fn beside<S, F>(
    machine: Option<&'static Machine>,
    serve: impl FnOnce() -> S + Send + 'static,
    native: impl FnOnce() -> F + Send,
) where
    S: Future<Output = ()> + 'static,
    F: Future<Output = ()> + 'static,
{
    let [a, b] = switch(Loss::EveryNth(211));
    let home = || async {
        let _listening = host(PORT).unwrap();
        let _map = id_map::serve().unwrap();
        serve().await;
    };
    let native = || {
        let body = native();
        async move {
            loop {
                match join(SocketAddr::from((SERVER, PORT))).await {
                    Ok(_) => {
                        let transport =
                            if machine.is_some() { TransportKind::Channel } else { TransportKind::Tcp };
                        assert_eq!(connected_machines().await, [(MachineId::FIRST, transport)]);
                        break;
                    }
                    Err(JoinError::Connect(StreamError::Failed(FailReason::Refused))) => {
                        sleep(Duration::from_millis(5)).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            while status("/").await == Err(FileError::Ask(AskError::NoHome)) {
                sleep(Duration::from_millis(5)).await;
            }
            body.await;
        }
    };
    let on_machine = |cell| match machine {
        Some(machine) => TestCell::on_machine(cell, machine),
        None => cell,
    };
    let cells = [TestCell::new(1, 1, a, home).until_others_end(), TestCell::new(2, 2, b, native)];
    run_cells(cells.map(on_machine));
}

/// Exports `directory`, and runs `native` in a native cell.
fn offload<F: Future<Output = ()> + 'static>(
    machine: Option<&'static Machine>,
    directory: PathBuf,
    access: Access,
    native: impl FnOnce() -> F + Send,
) {
    let serve = move || async move {
        let _files = export(&directory, access).await.unwrap();
        std::future::pending::<()>().await;
    };
    beside(machine, serve, native);
}

#[test]
fn a_native_cell_reads_the_hosts_directory() {
    read_all(None);
}

#[test]
fn a_native_cell_reads_a_directory_over_a_channel() {
    read_all(Some(Machine::new()));
}

fn read_all(machine: Option<&'static Machine>) {
    let all = tempfile::tempdir().unwrap();
    let large: Vec<u8> = (0..1_000_003_u32).map(|n| (n * 7 % 251) as u8).collect();
    fs::create_dir(all.path().join("sub")).unwrap();
    fs::write(all.path().join("sub/large"), &large).unwrap();
    fs::write(all.path().join("empty"), "").unwrap();
    offload(machine, all.path().into(), Access::ReadOnly, move || async move {
        let found = status("sub/large").await.unwrap();
        assert_eq!((found.kind, found.len_bytes), (FileKind::File, large.len() as u64));
        assert!(found.modified_s > 1_700_000_000);
        let mut received = Vec::new();
        loop {
            let more = read("sub/large", received.len() as u64, MAX_READ + 1).await.unwrap();
            if more.is_empty() {
                break;
            }
            received.extend(more.to_vec());
        }
        assert!(received == large);
        // The other core can read as well.
        let there = isola_events::elsewhere(CoreIndex(1), || read("sub/large", 5, 7));
        assert_eq!(there.await.unwrap().to_vec(), large[5..12]);
        assert!(read("empty", 0, 10).await.unwrap().is_empty());
        let entries = list("/").await.unwrap();
        let names: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
        assert_eq!(names, [("empty", FileKind::File), ("sub", FileKind::Directory)]);
        assert_eq!(read("none", 0, 1).await, Err(FileError::Refused(FileRefusal::NotFound)));
        assert_eq!(read("../x", 0, 1).await, Err(FileError::Refused(FileRefusal::NotAllowed)));
        let data = Chain::from(IoBuf::from_static(b"x"));
        assert_eq!(write("new", 0, data).await, Err(FileError::Refused(FileRefusal::ReadOnly)));
    });
}

#[test]
fn a_native_cell_writes_to_the_hosts_directory() {
    write_some(None);
}

#[test]
fn a_native_cell_writes_to_a_directory_over_a_channel() {
    write_some(Some(Machine::new()));
}

fn write_some(machine: Option<&'static Machine>) {
    let all = tempfile::tempdir().unwrap();
    let path = all.path().to_path_buf();
    let block: Vec<u8> = (0..600_001_u32).map(|n| (n * 11 % 253) as u8).collect();
    let expected = [b"head".as_slice(), &block].concat();
    offload(machine, path.clone(), Access::ReadWrite, move || async move {
        let data = [&block[..100_000], &block[100_000..]].map(IoBuf::copy_from_slice).into_iter().collect();
        write("file", 4, data).await.unwrap();
        write("file", 0, Chain::from(IoBuf::from_static(b"head"))).await.unwrap();
        write("made", 0, Chain::new()).await.unwrap();
    });
    assert!(fs::read(path.join("file")).unwrap() == expected);
    assert_eq!(fs::read(path.join("made")).unwrap(), b"");
}

/// Returns the next entries after `after`, of a directory whose names never end.
fn endless(after: &str) -> Vec<Entry> {
    let begin = after.parse().map_or(0, |last: usize| last + 1);
    let names = (begin..).take(MAX_ENTRIES).map(|number| format!("{number:09}"));
    names.map(|name| Entry { name, kind: FileKind::File }).collect()
}

#[test]
fn listings_from_a_home_with_endless_names_are_bounded() {
    let serve = || async {
        let answer = |_, request| async move {
            Ok(match request {
                FileRequest::List { path, after } if path == "endless" => Answer::Entries(endless(&after)),
                // The same entries for every request.
                FileRequest::List { .. } => Answer::Entries(endless("")),
                _ => Answer::Refused(FileRefusal::NotFound),
            })
        };
        let _files = FILES.serve(answer).await.unwrap().unwrap();
        std::future::pending::<()>().await;
    };
    beside(None, serve, || async {
        assert_eq!(list("endless").await, Err(FileError::Refused(FileRefusal::TooLarge)));
        assert_eq!(list("again").await, Err(FileError::Ask(AskError::Malformed)));
        // Parts of a directory of any size can be listed.
        let last = format!("{:09}", 2 * MAX_LISTED);
        let part = list_after("endless", &last).await.unwrap();
        assert_eq!((part.len(), part[0].name.clone()), (MAX_ENTRIES, format!("{:09}", 2 * MAX_LISTED + 1)));
    });
}

#[test]
fn work_that_panics_is_reported_and_its_thread_continues() {
    let codes = isola_hosted::run(Settings::default(), Vec::new(), |_| {
        spawn_task(async {
            let work = async {
                for _ in 0..10 {
                    assert_eq!(off_core::<()>(|| panic!("on purpose")).await, Err(WorkPanicked));
                }
                off_core(|| 7).await
            };
            let outcome = timeout(Duration::from_secs(60), work).await;
            exit(i32::from(outcome != Ok(Ok(7))));
        })
        .detach();
        run()
    });
    assert_eq!(codes, [0]);
}
