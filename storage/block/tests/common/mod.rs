//! A block device on a simulated disk, and contents.
#![allow(dead_code, reason = "each test file uses a part")]

use isola_block::{BlockDevice, BlockSettings};
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_storage_sim::SimDisk;

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
