//! A cell of one core with a simulated disk.
#![allow(dead_code, reason = "each test file uses a part")]

use isola_block::{BlockDevice, BlockSettings};
use isola_events::{exit, run, spawn_task};
use isola_hosted::Settings;
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_storage_sim::SimDisk;
use std::future::Future;

pub fn cell<F: Future<Output = ()> + 'static>(main: impl Fn() -> F + Sync) {
    let codes = isola_hosted::run(Settings::default(), Vec::new(), |_| {
        let main = main();
        spawn_task(async move {
            main.await;
            exit(0);
        })
        .detach();
        run()
    });
    assert_eq!(codes, [0]);
}

pub fn start(disk: &SimDisk, settings: BlockSettings) -> BlockDevice {
    BlockDevice::start(disk.port(), settings).unwrap()
}

pub fn buffers(count: usize, len: usize) -> Vec<IoBufMut> {
    let buffer = |_| {
        let mut buffer = IoBufMut::with_room(0, len);
        buffer.extend();
        buffer
    };
    (0..count).map(buffer).collect()
}

pub fn data(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 512) as u8).collect()
}

pub fn chain(bytes: &[u8], view: usize) -> Chain {
    bytes.chunks(view).map(IoBuf::copy_from_slice).collect()
}
