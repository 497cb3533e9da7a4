//! A native cell reads and writes files of the hosted process, through the messenger and the network.

use isola_abi::descriptor::NetworkAddress;
use isola_ebbs::current_core;
use isola_events::{exit, run, sleep, spawn_task, timeout};
use isola_fs::{Access, FileError, FileKind, MAX_READ, Refused, list, read, status, write};
use isola_fs_export::export;
use isola_hosted::{Loss, Settings, switch};
use isola_iobuf::{Chain, IoBuf};
use isola_messenger::{AskError, JoinError, host, id_map, join};
use isola_net::{FailReason, StreamError, start};
use isola_platform::CoreIndex;
use isola_platform::network::NetworkPort;
use std::fs;
use std::future::Future;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const PORT: u16 = 9000;

fn ip(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, number)
}

/// Runs a cell until its future ends.
fn cell<F: Future<Output = ()> + 'static>(
    number: u8,
    cores: usize,
    port: NetworkPort,
    body: impl FnOnce() -> F + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let address = Some(NetworkAddress { ip: ip(number), prefix_len: 24, gateway: None });
        let body = Mutex::new(Some(body));
        let codes = isola_hosted::run(Settings { cores, address, ..Settings::default() }, vec![port], |_| {
            if current_core() == CoreIndex(0) {
                start().unwrap();
                let body = body.lock().unwrap().take().unwrap();
                spawn_task(async move {
                    let outcome = timeout(Duration::from_secs(60), body()).await;
                    exit(i32::from(outcome.is_err()));
                })
                .detach();
            }
            run()
        });
        assert_eq!(codes[0], 0, "cell {number} took too long");
    })
}

/// Exports `directory` beside a native cell of two cores, which does `native`.
fn offload<F: Future<Output = ()> + 'static>(
    directory: PathBuf,
    access: Access,
    native: impl FnOnce() -> F + Send + 'static,
) {
    let [a, b] = switch(Loss::EveryNth(211));
    let done = Arc::new(AtomicBool::new(false));
    let (home_done, native_done) = (done.clone(), done);
    let home = cell(1, 1, a, move || async move {
        let _listening = host(PORT).unwrap();
        let _map = id_map::keep().unwrap();
        let _files = export(&directory, access).await.unwrap();
        while !home_done.load(Ordering::Acquire) {
            sleep(Duration::from_millis(2)).await;
        }
    });
    let native = cell(2, 2, b, move || async move {
        loop {
            match join((ip(1), PORT).into()).await {
                Ok(_) => break,
                Err(JoinError::Connect(StreamError::Failed(FailReason::Refused))) => {
                    sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        while status("/").await == Err(FileError::Ask(AskError::NoHome)) {
            sleep(Duration::from_millis(5)).await;
        }
        native().await;
        native_done.store(true, Ordering::Release);
    });
    native.join().unwrap();
    home.join().unwrap();
}

#[test]
fn a_native_cell_reads_what_is_in_the_hosts_directory() {
    let all = tempfile::tempdir().unwrap();
    let large: Vec<u8> = (0..1_000_003_u32).map(|n| (n * 7 % 251) as u8).collect();
    fs::create_dir(all.path().join("sub")).unwrap();
    fs::write(all.path().join("sub/large"), &large).unwrap();
    fs::write(all.path().join("empty"), "").unwrap();
    offload(all.path().into(), Access::ReadOnly, move || async move {
        let found = status("sub/large").await.unwrap();
        assert_eq!((found.kind, found.len_bytes), (FileKind::File, large.len() as u64));
        assert!(found.modified_s > 1_700_000_000);
        let mut come = Vec::new();
        loop {
            let more = read("sub/large", come.len() as u64, MAX_READ + 1).await.unwrap();
            if more.is_empty() {
                break;
            }
            come.extend(more.to_vec());
        }
        assert!(come == large);
        // From the other core as well.
        let there = isola_events::elsewhere(CoreIndex(1), || read("sub/large", 5, 7));
        assert_eq!(there.await.unwrap().to_vec(), large[5..12]);
        assert!(read("empty", 0, 10).await.unwrap().is_empty());
        let entries = list("/").await.unwrap();
        let names: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
        assert_eq!(names, [("empty", FileKind::File), ("sub", FileKind::Directory)]);
        assert_eq!(read("none", 0, 1).await, Err(FileError::Refused(Refused::NotFound)));
        assert_eq!(read("../x", 0, 1).await, Err(FileError::Refused(Refused::NotAllowed)));
        let data = Chain::from(IoBuf::from_static(b"x"));
        assert_eq!(write("new", 0, data).await, Err(FileError::Refused(Refused::ReadOnly)));
    });
}

#[test]
fn what_a_native_cell_writes_is_in_the_hosts_directory() {
    let all = tempfile::tempdir().unwrap();
    let path = all.path().to_path_buf();
    let block: Vec<u8> = (0..600_001_u32).map(|n| (n * 11 % 253) as u8).collect();
    let expected = [b"head".as_slice(), &block].concat();
    offload(path.clone(), Access::ReadWrite, move || async move {
        let data = [&block[..100_000], &block[100_000..]].map(IoBuf::copy_from_slice).into_iter().collect();
        write("file", 4, data).await.unwrap();
        write("file", 0, Chain::from(IoBuf::from_static(b"head"))).await.unwrap();
        write("made", 0, Chain::new()).await.unwrap();
    });
    assert!(fs::read(path.join("file")).unwrap() == expected);
    assert_eq!(fs::read(path.join("made")).unwrap(), b"");
}
