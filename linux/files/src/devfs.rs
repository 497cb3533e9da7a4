//! `/dev`: the devices that every program expects.

use crate::Errno;
use crate::console::Console;
use crate::devices::DeviceTable;
use crate::events::Events;
use crate::inode::{CallerIds, FileSystem, NewContent, NewInode};
use crate::metadata::{DeviceNumber, InodeKind, Metadata};
use crate::object::FileObject;
use crate::outcome::Outcome;
use crate::tmpfs::{TmpFs, TmpFsOptions};
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_memory::UserBuffer;

/// The most bytes of files in `/dev`, such as those of `/dev/shm` if it has no file system of its own.
const LEN: u64 = 16 << 20;

/// A device of memory: no state, always ready.
#[derive(Clone, Copy)]
enum MemoryDevice {
    /// Reads nothing, and accepts everything.
    Null,
    /// Reads zeros, and accepts everything.
    Zero,
    /// Reads zeros, and has no space.
    Full,
    /// Reads random bytes, and accepts everything.
    Random(fn(&mut [u8])),
}

impl FileObject for MemoryDevice {
    fn has_offsets(&self) -> bool {
        true
    }

    fn stays_at_beginning(&self) -> bool {
        true
    }

    fn read_at<'a>(&'a self, _offset: u64, buffer: &'a mut UserBuffer) -> Outcome<'a, usize> {
        Outcome::ok(match self {
            Self::Null => 0,
            Self::Zero | Self::Full => buffer.clear(buffer.len()),
            Self::Random(fill) => {
                let mut bytes = [0; 256];
                let mut count = 0;
                while !buffer.is_empty() {
                    let now = buffer.len().min(bytes.len());
                    fill(&mut bytes[..now]);
                    count += buffer.write(&bytes[..now]);
                }
                count
            }
        })
    }

    fn write_at<'a>(&'a self, _offset: u64, buffer: &'a mut UserBuffer) -> Outcome<'a, usize> {
        if let Self::Full = self {
            return Outcome::error(Errno::ENOSPC);
        }
        let len = buffer.len();
        buffer.advance(len, |_| {});
        Outcome::ok(len)
    }

    fn ready(&self) -> Events {
        Events::IN | Events::OUT
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(InodeKind::CharacterDevice, 0, 0o666)
    }

    fn description(&self) -> Vec<u8> {
        b"/dev/null".to_vec()
    }
}

/// Creates `/dev` with the devices of memory, the console and the usual links, and registers them in `devices`. `random`
/// fills a buffer with random bytes.
///
/// # Errors
/// [`Errno::ENOSPC`] never, as the limits are larger than the number of devices.
pub fn device_file_system(
    devices: &Arc<DeviceTable>,
    console: &Arc<Console>,
    random: fn(&mut [u8]),
) -> Result<Arc<TmpFs>, Errno> {
    let options = TmpFsOptions {
        permissions: 0o755,
        devices: devices.clone(),
        name: "devtmpfs",
        ..TmpFsOptions::of_len(LEN)
    };
    let file_system = TmpFs::new(options);
    let root = file_system.root();
    let make = |name: &str, content, permissions| {
        let new = NewInode { content, permissions, user: 0, group: 0 };
        match root.create(name.as_bytes(), &new) {
            Outcome::Done(created) => created.map(drop),
            // A file system in memory does not wait.
            Outcome::Waits(_) | Outcome::Taken => Err(Errno::EIO),
        }
    };
    let memory = [
        ("null", 3, MemoryDevice::Null),
        ("zero", 5, MemoryDevice::Zero),
        ("full", 7, MemoryDevice::Full),
        ("random", 8, MemoryDevice::Random(random)),
        ("urandom", 9, MemoryDevice::Random(random)),
    ];
    for (name, minor, device) in memory {
        let number = DeviceNumber::new(1, minor);
        devices.register(number, move |_, _: CallerIds| {
            let object: Arc<dyn FileObject> = Arc::new(device);
            Ok(object)
        });
        make(name, NewContent::Device(InodeKind::CharacterDevice, number), 0o666)?;
    }
    // `Terminals::register` serves these two.
    for (name, minor) in [("tty", 0), ("ptmx", 2)] {
        let number = DeviceNumber::new(5, minor);
        make(name, NewContent::Device(InodeKind::CharacterDevice, number), 0o666)?;
    }
    let console_number = DeviceNumber::new(5, 1);
    let console = console.clone();
    devices.register(console_number, move |_, _: CallerIds| {
        let object: Arc<dyn FileObject> = console.clone();
        Ok(object)
    });
    make("console", NewContent::Device(InodeKind::CharacterDevice, console_number), 0o600)?;
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        make(name, NewContent::Symlink(target.as_bytes()), 0o777)?;
    }
    make("shm", NewContent::Directory, 0o1777)?;
    make("pts", NewContent::Directory, 0o755)?;
    Ok(file_system)
}
