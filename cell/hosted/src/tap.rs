//! A TAP interface of the host as a cell's network device: frames go between the cell and the host's own TCP/IP as they
//! are. It takes root's rights, or an interface that was made for the user.

use crate::file::{FileInterrupt, Interest};
use isola_iobuf::{Chain, IoBufMut};
use isola_platform::network::{
    FrameToSend, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedChecksum, ReceivedFrame,
};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// The vector of the first queue; the others follow.
const FIRST_VECTOR: u8 = 0x40;

/// Longest IP packet that the interface carries.
const MTU: u16 = 1500;

/// Longest frame, with a tag.
const LONGEST: usize = 1500 + 18;

/// Parts of a frame that are handed to Linux at once; one of more is put together first.
const MOST_PARTS: usize = 16;

/// Opens the interface, which is made where it does not exist, with so many queues: one, where it is there and was made
/// for one.
///
/// # Errors
/// What Linux says: most often that the caller may not, or that another program has the interface.
pub fn open(interface: &str, queues: usize) -> io::Result<NetworkPort> {
    let files = match attach(interface, queues.max(1), libc::IFF_MULTI_QUEUE) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => attach(interface, 1, 0)?,
        files => files?,
    };
    let queues = (FIRST_VECTOR..).zip(files).map(|(vector, file)| {
        Box::new(TapQueue { file: Arc::new(file), vector, interrupt: None }) as Box<dyn NetworkQueue + Send>
    });
    let [a, b, c, d, e, ..] = RandomState::new().hash_one(interface).to_ne_bytes();
    // Locally administered, and of one station.
    Ok(NetworkPort { mac: [0x02, a, b, c, d, e], mtu: MTU, headroom: 0, queues: queues.collect() })
}

fn attach(interface: &str, queues: usize, kind: libc::c_int) -> io::Result<Vec<OwnedFd>> {
    (0..queues)
        .map(|_| {
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
            // SAFETY: a request is plain data, for which zero is a value.
            let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
            // The last byte stays zero.
            let room = request.ifr_name.len() - 1;
            for (letter, byte) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
                *letter = byte as libc::c_char;
            }
            request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | kind) as libc::c_short;
            // SAFETY: the file is open, and the request is one of `TUNSETIFF`'s, which reads and writes it.
            let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
            if result == 0 { Ok(file) } else { Err(io::Error::last_os_error()) }
        })
        .collect()
}

/// A queue of the interface.
struct TapQueue {
    file: Arc<OwnedFd>,
    vector: u8,
    interrupt: Option<FileInterrupt>,
}

impl NetworkQueue for TapQueue {
    fn vector(&self) -> u8 {
        self.vector
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn attach(&mut self) {
        // What fails here fails for want of memory in the kernel: the queue is silent then.
        self.interrupt = FileInterrupt::attach(self.file.clone(), Interest::Readable, self.vector).ok();
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        let mut buffer = IoBufMut::with_room(0, LONGEST);
        let len = rustix::io::read(&*self.file, buffer.append(LONGEST)?).ok()?;
        buffer.truncate(len);
        Some(ReceivedFrame {
            frame: buffer.freeze(),
            rest: Chain::new(),
            checksum: ReceivedChecksum::Unchecked,
        })
    }

    fn send(&mut self, frame: FrameToSend) -> Result<(), FrameToSend> {
        let sent = write(&self.file, &frame);
        match sent {
            Err(rustix::io::Errno::AGAIN) => Err(frame),
            // A frame that Linux does not take, for one while the interface is down, is lost as on any wire.
            _ => Ok(()),
        }
    }

    fn flush(&mut self) {}

    fn reclaim(&mut self) -> Option<IoBufMut> {
        None
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        // Frames that are there already interrupt at once.
        self.interrupt.iter().for_each(FileInterrupt::unmask);
        FramesPending::No
    }

    /// An interrupt masks itself.
    fn disable_interrupts(&mut self) {}
}

fn write(file: &OwnedFd, frame: &FrameToSend) -> rustix::io::Result<usize> {
    let count = 1 + frame.payload.parts().len();
    if count > MOST_PARTS {
        return rustix::io::write(file, &frame.to_vec());
    }
    let mut slices = [IoSlice::new(&[]); MOST_PARTS];
    slices.iter_mut().zip(frame.pieces()).for_each(|(slice, piece)| *slice = IoSlice::new(piece));
    rustix::io::writev(file, &slices[..count])
}
