//! Moves bytes by flows, to count the instructions of a chunk:
//!
//! ```sh
//! cargo build --release -p isola-volumes --example flow-instructions
//! valgrind --tool=callgrind target/release/examples/flow-instructions file 64
//! ```
//!
//! `memory` moves views of 4 KiB in memory, `chunks` the same with a window of one view, `file` cached blocks of a file, `read` the same blocks by
//! `File::read_chain`, and `copy` by `File::read`: each so many MiB. The difference between two numbers has no start.

use isola_block::{BlockDevice, BlockSettings};
use isola_block_cache::{BlockCache, CacheSettings};
use isola_events::{exit, run, spawn_task};
use isola_flows::{DEFAULT_WINDOW, Sink, Source, flow};
use isola_hosted::Settings;
use isola_iobuf::{Chain, IoBuf};
use isola_storage_sim::SimDisk;
use isola_volumes::{Access, FileError, Volume};
use std::convert::Infallible;
use std::env::args;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::{Context, Poll};

const MIB: usize = 1 << 20;

/// Repeats a block of 4 KiB.
struct Repeat(IoBuf);

impl Source for Repeat {
    type Error = Infallible;

    fn poll_read(
        &mut self,
        _: &mut Context<'_>,
        most: usize,
        into: &mut Chain,
    ) -> Poll<Result<usize, Infallible>> {
        let blocks = most / self.0.len();
        (0..blocks).for_each(|_| into.push_back(self.0.clone()));
        Poll::Ready(Ok(blocks * self.0.len()))
    }
}

/// Drops all bytes.
struct Discard;

impl Sink for Discard {
    type Error = Infallible;

    fn poll_write(&mut self, _: &mut Context<'_>, from: &mut Chain) -> Poll<Result<usize, Infallible>> {
        let count = from.len();
        from.drain(drop);
        Poll::Ready(Ok(count))
    }
}

async fn measure(what: &str, mib: usize) -> Result<(), FileError> {
    if what == "memory" || what == "chunks" {
        let source = Repeat(IoBuf::from(vec![7; 4096]));
        let window = if what == "chunks" { 4096 } else { DEFAULT_WINDOW };
        let flowed = flow(source, Discard).window(window).length((mib * MIB) as u64).await;
        assert_eq!(flowed.bytes, (mib * MIB) as u64);
        return Ok(());
    }
    let disk = SimDisk::new(vec![0; 80 * MIB]);
    let device = BlockDevice::start(disk.port(), BlockSettings::default()).expect("the vector is free");
    let cache = BlockCache::new(device, CacheSettings::default())?;
    Volume::format(cache.clone()).await?;
    let volume = Volume::mount(cache, Access::ReadWrite).await?;
    let file = Rc::new(volume.create("/file").await?);
    file.write(0, IoBuf::from(vec![7; MIB])).await?;
    volume.sync().await?;
    file.read_chain(0, MIB).await?;
    for _ in 0..mib {
        match what {
            "file" => {
                let flowed = flow(file.source(0), Discard).length(MIB as u64).await;
                assert_eq!(flowed.bytes, MIB as u64);
            }
            "read" => assert_eq!(file.read_chain(0, MIB).await?.len(), MIB),
            _ => assert_eq!(file.read(0, MIB).await?.len(), MIB),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let what = args().nth(1).unwrap_or_default();
    let mib = args().nth(2).and_then(|count| count.parse().ok());
    let (true, Some(mib)) = (["memory", "chunks", "file", "read", "copy"].contains(&what.as_str()), mib)
    else {
        eprintln!("usage: flow-instructions memory|chunks|file|read|copy MIB");
        return ExitCode::FAILURE;
    };
    let codes = isola_hosted::run(Settings::default(), Vec::new(), |_| {
        let what = what.clone();
        spawn_task(async move {
            exit(i32::from(measure(&what, mib).await.is_err()));
        })
        .detach();
        run()
    });
    if codes == [0] { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
