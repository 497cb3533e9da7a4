//! Random sequences of calls on sealed memory files, here and on the host.

mod common;

use common::{now, write};
use isola_linux_abi::numbers as linux;
use isola_linux_files::{Errno, MemoryFiles, OpenFile, TmpFsOptions};
use isola_linux_memory::UserBuffer;
use proptest::prelude::*;
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use std::os::fd::OwnedFd;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Call {
    Add(u32),
    Get,
    Write { offset: u64, len: usize },
    Append(usize),
    Truncate(i64),
    Allocate { mode: u32, offset: i64, len: i64 },
}

fn call() -> impl Strategy<Value = Call> {
    let seal = prop_oneof![
        Just(linux::F_SEAL_SEAL),
        Just(linux::F_SEAL_SHRINK),
        Just(linux::F_SEAL_GROW),
        Just(linux::F_SEAL_WRITE),
        Just(linux::F_SEAL_FUTURE_WRITE),
        Just(linux::F_SEAL_EXEC),
        Just(0),
        Just(1 << 12),
        Just(linux::F_SEAL_GROW | linux::F_SEAL_SHRINK),
    ];
    prop_oneof![
        2 => seal.prop_map(Call::Add),
        1 => Just(Call::Get),
        4 => (0u64..8000, 0usize..5000).prop_map(|(offset, len)| Call::Write { offset, len }),
        1 => (1usize..100).prop_map(Call::Append),
        3 => (-1i64..8000).prop_map(Call::Truncate),
        2 => (prop_oneof![Just(0u32), Just(1), Just(3)], 0i64..8000, 0i64..5000)
            .prop_map(|(mode, offset, len)| Call::Allocate { mode, offset, len }),
    ]
}

fn ours(file: &Arc<OpenFile>, call: &Call) -> Result<u64, i32> {
    let answer = match *call {
        Call::Add(seals) => file.add_seals(seals).map(|()| 0),
        Call::Get => file.seals().map(u64::from),
        Call::Write { offset, len } => {
            now(file.write_at(offset, &mut UserBuffer::of_bytes(&vec![1; len]))).map(|count| count as u64)
        }
        Call::Append(len) => write(file, &vec![2; len]).map(|count| count as u64),
        Call::Truncate(len) => now(file.truncate(len)).map(|()| 0),
        Call::Allocate { mode, offset, len } => now(file.allocate(mode, offset, len)).map(|()| 0),
    };
    answer.map_err(|error: Errno| error.number().into())
}

fn theirs(file: &OwnedFd, call: &Call) -> Result<u64, i32> {
    let answer = match *call {
        Call::Add(seals) => fs::fcntl_add_seals(file, SealFlags::from_bits_retain(seals)).map(|()| 0),
        Call::Get => fs::fcntl_get_seals(file).map(|seals| seals.bits().into()),
        Call::Write { offset, len } => {
            rustix::io::pwrite(file, &vec![1; len], offset).map(|count| count as u64)
        }
        Call::Append(len) => rustix::io::write(file, &vec![2; len]).map(|count| count as u64),
        Call::Truncate(len) => fs::ftruncate(file, len as u64).map(|()| 0),
        Call::Allocate { mode, offset, len } => {
            fs::fallocate(file, FallocateFlags::from_bits_retain(mode), offset as u64, len as u64).map(|()| 0)
        }
    };
    answer.map_err(|error| error.raw_os_error())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn seals_forbid_what_they_forbid_on_the_host(
        flags in prop_oneof![1 => Just(0u32), 6 => Just(linux::MFD_ALLOW_SEALING), 1 => Just(linux::MFD_NOEXEC_SEAL)],
        calls in prop::collection::vec(call(), 1..40),
    ) {
        let files = MemoryFiles::new(TmpFsOptions::of_len(1 << 20));
        let file = files.create(b"test", flags, 0, 0).unwrap();
        let other = fs::memfd_create("test", MemfdFlags::from_bits_retain(flags)).unwrap();
        for (index, call) in calls.iter().enumerate() {
            prop_assert_eq!(ours(&file, call), theirs(&other, call), "call {}: {:?} of {:?}", index, call, &calls[..=index]);
        }
        prop_assert_eq!(file.metadata().len, fs::fstat(&other).unwrap().st_size as u64);
    }
}

#[test]
fn other_files_cannot_be_sealed() {
    let system = common::System::new();
    let file = system.open("/file", linux::O_RDWR | linux::O_CREAT).unwrap();
    assert_eq!(
        (file.seals(), file.add_seals(linux::F_SEAL_GROW)),
        (Ok(linux::F_SEAL_SEAL), Err(Errno::EPERM))
    );
    let reader = system.open("/file", linux::O_RDONLY).unwrap();
    assert_eq!(reader.add_seals(linux::F_SEAL_GROW), Err(Errno::EPERM));
    let folder = system.open("/", linux::O_RDONLY).unwrap();
    assert_eq!(folder.seals(), Err(Errno::EINVAL));
    let (_, writer) = isola_linux_files::pipe(0).unwrap();
    assert_eq!(writer.add_seals(linux::F_SEAL_GROW), Err(Errno::EINVAL));
    let files = MemoryFiles::new(TmpFsOptions::of_len(1 << 20));
    let both = linux::MFD_EXEC | linux::MFD_NOEXEC_SEAL;
    assert_eq!(files.create(b"", both, 0, 0).err(), Some(Errno::EINVAL));
}
