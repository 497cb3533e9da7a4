//! A TAP interface of the host as a cell's network device: frames pass unchanged between the cell and the host's own
//! TCP/IP. Needs root privileges, or an interface that was created for the user.
//!
//! A header in virtio's format (`IFF_VNET_HDR`) precedes each frame, as on a virtual machine's device: frames that stay
//! on this machine need no checksums, and TCP segments of up to 64 KiB pass in one piece in both directions.

use crate::file::{FileInterrupt, Interest};
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_platform::VacatedMemory;
use isola_platform::network::{
    Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, PartialChecksum, ReceivedChecksum,
    ReceivedFrame,
};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

/// The vector of the first queue; the others follow.
const FIRST_VECTOR: u8 = 0x40;

/// Largest MTU, in bytes, that the interface carries.
const MTU: u16 = 1500;

/// Length of the header before each frame, in bytes (virtio 1.2, 5.1.6).
const HEADER_LEN: usize = 12;

/// Length of the buffer for the start of a frame, header included; a frame of ordinary length fits in it.
const FIRST_LEN: usize = 2048;

/// Length of the buffer for the rest of a frame: the longest IP packet.
const REST_LEN: usize = 65_536;

/// Header flag: the checksum is partial.
const NEEDS_CHECKSUM: u8 = 1;

/// Header flag: the checksum has been verified.
const DATA_VALID: u8 = 2;

/// Header value: a TCP segment to split, over IPv4 and over IPv6.
const SEGMENT_IPV4: u8 = 1;
const SEGMENT_IPV6: u8 = 4;

/// The ioctls `TUNSETVNETHDRSZ` and `TUNSETOFFLOAD`.
const SET_HEADER_LEN: libc::Ioctl = 0x4004_54d8;
const SET_OFFLOADS: libc::Ioctl = 0x4004_54d0;

/// Most pieces of a frame in one system call; a frame of more pieces is copied into one first.
const MOST_PARTS: usize = 24;

/// The work that the two sides of an interface leave to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapOffloads {
    /// None: every frame is complete, as on a wire.
    None,
    /// Checksums, and the splitting of long segments.
    ChecksumsAndSegmentation,
}

/// Opens the interface with `queues` queues, and creates it if it does not exist. An existing interface that was
/// created for one queue is opened with one.
///
/// # Errors
/// The error of Linux: most often the caller lacks the privilege, or another program uses the interface.
pub fn open(interface: &str, queues: usize, offloads: TapOffloads) -> io::Result<NetworkPort> {
    let files = match attach(interface, queues.max(1), libc::IFF_MULTI_QUEUE, offloads) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => attach(interface, 1, 0, offloads)?,
        files => files?,
    };
    let queues = (FIRST_VECTOR..).zip(files).map(|(vector, file)| {
        let rest = IoBufMut::with_room(0, REST_LEN);
        Box::new(TapQueue { file: Arc::new(file), vector, interrupt: None, rest, offloads })
            as Box<dyn NetworkQueue + Send>
    });
    let [a, b, c, d, e, ..] = RandomState::new().hash_one(interface).to_ne_bytes();
    // A locally administered unicast address.
    Ok(NetworkPort {
        mac: [0x02, a, b, c, d, e],
        mtu: MTU,
        headroom: 0,
        queues: queues.collect(),
        spreading: None,
    })
}

fn attach(
    interface: &str,
    queues: usize,
    kind: libc::c_int,
    offloads: TapOffloads,
) -> io::Result<Vec<OwnedFd>> {
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
            let kind = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | kind;
            request.ifr_ifru.ifru_flags = kind as libc::c_short;
            // SAFETY: the file is open, and the request is of `TUNSETIFF`'s type, which reads and writes it.
            let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
            agree_on_header(&file, offloads)?;
            Ok(file)
        })
        .collect()
}

/// Sets the header's length, and whether this side accepts long frames and frames without checksums.
fn agree_on_header(file: &OwnedFd, offloads: TapOffloads) -> io::Result<()> {
    let len = HEADER_LEN as libc::c_int;
    // SAFETY: the file is open, and the request reads a number of the given type.
    if unsafe { libc::ioctl(file.as_raw_fd(), SET_HEADER_LEN, &raw const len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = match offloads {
        TapOffloads::None => 0,
        TapOffloads::ChecksumsAndSegmentation => libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6,
    };
    let flags = libc::c_ulong::from(flags);
    // SAFETY: the file is open, and the request takes a number.
    match unsafe { libc::ioctl(file.as_raw_fd(), SET_OFFLOADS, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A queue of the interface.
struct TapQueue {
    file: Arc<OwnedFd>,
    vector: u8,
    interrupt: Option<FileInterrupt>,
    /// The buffer for the rest of a long frame.
    rest: IoBufMut,
    offloads: TapOffloads,
}

impl NetworkQueue for TapQueue {
    fn vector(&self) -> Option<u8> {
        Some(self.vector)
    }

    fn offloads(&self) -> Offloads {
        let offers = self.offloads == TapOffloads::ChecksumsAndSegmentation;
        Offloads { checksums: offers, segments_ipv4: offers, segments_ipv6: offers }
    }

    fn attach(&mut self) {
        // This fails only if the kernel lacks memory; the queue then raises no interrupts.
        self.interrupt = FileInterrupt::attach(self.file.clone(), Interest::Readable, self.vector).ok();
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        let mut first = IoBufMut::with_room(0, FIRST_LEN);
        self.rest.reset(0);
        let room = self.rest.tailroom();
        let mut buffers =
            [IoSliceMut::new(first.append(FIRST_LEN)?), IoSliceMut::new(self.rest.append(room)?)];
        let len = rustix::io::readv(&*self.file, &mut buffers).ok()?;
        first.truncate(len);
        let flags = *first.first()?;
        first.advance(HEADER_LEN);
        let checksum = match flags & (NEEDS_CHECKSUM | DATA_VALID) {
            0 => ReceivedChecksum::Unchecked,
            _ => ReceivedChecksum::Valid,
        };
        let rest = self.take_rest(len.saturating_sub(FIRST_LEN));
        Some(ReceivedFrame { frame: first.freeze(), rest, checksum })
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        match write(&self.file, &frame) {
            Err(rustix::io::Errno::AGAIN) => Err(frame),
            // A frame that Linux refuses, for example while the interface is down, is lost as on any wire.
            _ => Ok(()),
        }
    }

    fn flush(&mut self) {}

    fn reclaim(&mut self, _recycle: &mut dyn FnMut(IoBufMut)) {}

    fn enable_interrupts(&mut self) -> FramesPending {
        // Frames that are already there interrupt at once.
        self.interrupt.iter().for_each(FileInterrupt::unmask);
        FramesPending::No
    }

    /// An interrupt masks itself.
    fn disable_interrupts(&mut self) {}

    fn redirect(&mut self) {}

    fn vacate(&mut self, _: &VacatedMemory) {}

    fn has_failed(&self) -> bool {
        false
    }
}

impl TapQueue {
    /// Returns the rest of a frame, of which `len` bytes are beyond the first buffer. A short rest is copied, so that
    /// the large buffer can be reused.
    fn take_rest(&mut self, len: usize) -> Option<Box<Chain>> {
        if len == 0 {
            return None;
        }
        self.rest.truncate(len);
        let rest = if len < REST_LEN / 4 {
            IoBuf::copy_from_slice(&self.rest)
        } else {
            core::mem::replace(&mut self.rest, IoBufMut::with_room(0, REST_LEN)).freeze()
        };
        Some(Box::new(rest.into()))
    }
}

/// Returns the header of a frame.
fn header(frame: &Frame) -> [u8; HEADER_LEN] {
    let Some(PartialChecksum { start, offset }) = frame.checksum else { return [0; HEADER_LEN] };
    let (kind, segment_len) = match frame.segment_len {
        None => (0, 0),
        Some(segment_len) if frame.is_ipv6() => (SEGMENT_IPV6, segment_len),
        Some(segment_len) => (SEGMENT_IPV4, segment_len),
    };
    let header_len = if kind == 0 { 0 } else { frame.head.len() as u16 };
    let words = [header_len, segment_len, start, offset, 0].map(u16::to_le_bytes);
    let mut bytes = [0; HEADER_LEN];
    bytes[..2].copy_from_slice(&[NEEDS_CHECKSUM, kind]);
    bytes[2..].copy_from_slice(words.as_flattened());
    bytes
}

fn write(file: &OwnedFd, frame: &Frame) -> rustix::io::Result<usize> {
    let header = header(frame);
    let count = 2 + frame.payload.parts().len();
    if count > MOST_PARTS {
        let whole = frame.to_vec();
        return rustix::io::writev(file, &[IoSlice::new(&header), IoSlice::new(&whole)]);
    }
    let mut slices = [IoSlice::new(&[]); MOST_PARTS];
    slices[0] = IoSlice::new(&header);
    slices[1..].iter_mut().zip(frame.pieces()).for_each(|(slice, piece)| *slice = IoSlice::new(piece));
    rustix::io::writev(file, &slices[..count])
}
