//! Sockets: creation, names, connections, messages, options.

mod at_once;
mod control;
mod messages;
mod options;

pub use at_once::*;
pub use messages::*;
pub use options::*;

use super::CallResult;
use super::files::{descriptor_limit, install, install_pair};
use crate::Errno;
use crate::thread::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::net::{SHUT_RD, SHUT_RDWR, SHUT_WR};
use isola_linux_abi::numbers::{O_CLOEXEC, O_NONBLOCK};
use isola_linux_files::{Caller, OpenFile};
use isola_linux_sockets::{
    MOST_ADDRESS_LEN, PeerCredentials, Shutdown, SocketAddress, SocketCaller, SocketFile, SocketKind, Waiting,
};

/// The bits of the type in the second argument of `socket`.
const KIND_BITS: u32 = 0xf;
/// The domains and types that Linux knows: their numbers are below these.
const DOMAINS: u32 = 46;
const KINDS: u32 = 11;
/// The most connections that wait at a listening socket (`net.core.somaxconn`).
const MOST_WAITING: u32 = 4096;

/// The descriptor's socket.
pub(super) struct OpenSocket(Arc<OpenFile>);

impl OpenSocket {
    /// Returns the socket of a descriptor.
    ///
    /// # Errors
    /// [`Errno::EBADF`], [`Errno::ENOTSOCK`].
    pub fn of(thread: &Thread, descriptor: i32) -> Result<Self, Errno> {
        let file = thread.files.get(descriptor)?;
        if file.object_as::<SocketFile>().is_some() { Ok(Self(file)) } else { Err(Errno::ENOTSOCK) }
    }

    /// Returns the open file as a socket.
    pub fn file(&self) -> Result<&SocketFile, Errno> {
        self.0.object_as().ok_or(Errno::ENOTSOCK)
    }

    /// Returns whether calls wait.
    pub fn waiting(&self) -> Waiting {
        waiting(&self.0)
    }
}

/// Returns whether calls on a file wait.
pub(super) fn waiting(file: &OpenFile) -> Waiting {
    if file.is_nonblocking() { Waiting::Refused } else { Waiting::Permitted }
}

/// Returns the credentials of the thread's process, as peers see them.
pub(super) fn peer_credentials(thread: &Thread) -> PeerCredentials {
    PeerCredentials {
        process: thread.process.pid,
        user: thread.credentials.user.effective,
        group: thread.credentials.group.effective,
    }
}

/// Returns the thread as calls of sockets need it.
pub(super) fn socket_caller<'a>(thread: &Thread, files: &'a Caller<'a>) -> SocketCaller<'a> {
    SocketCaller { files, credentials: peer_credentials(thread) }
}

/// Reads an address of the program.
///
/// # Errors
/// [`Errno::EINVAL`], [`Errno::EFAULT`].
pub(super) async fn read_address(thread: &Thread, address: u64, len: i32) -> Result<SocketAddress, Errno> {
    let len = usize::try_from(len).ok().filter(|len| *len <= MOST_ADDRESS_LEN).ok_or(Errno::EINVAL)?;
    let mut bytes = [0; MOST_ADDRESS_LEN];
    thread.memory.read_to(address, &mut bytes[..len]).await?;
    SocketAddress::parse(&bytes[..len])
}

/// Writes an address to the program: as much as the length at `len_address` permits, and its own length there.
pub(super) async fn write_address(
    thread: &Thread,
    bytes: &[u8],
    address: u64,
    len_address: u64,
) -> Result<(), Errno> {
    let len = i32::from_le_bytes(thread.memory.read_bytes::<4>(len_address).await?);
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    thread.memory.write_bytes(address, &bytes[..len.min(bytes.len())]).await?;
    thread.memory.write_bytes(len_address, &(bytes.len() as u32).to_le_bytes()).await
}

/// Parses domain and type of a new socket. Returns the type and the flags.
fn kind_of(domain: u32, kind: u32) -> Result<(SocketKind, u32), Errno> {
    let (number, flags) = (kind & KIND_BITS, kind & !KIND_BITS);
    if flags & !(O_CLOEXEC | O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    if domain >= DOMAINS {
        return Err(Errno::EAFNOSUPPORT);
    }
    if number >= KINDS {
        return Err(Errno::EINVAL);
    }
    SocketKind::of_number(number).map(|kind| (kind, flags)).ok_or(Errno::ESOCKTNOSUPPORT)
}

pub fn socket(thread: &mut Thread, domain: u32, kind: u32, protocol: u32) -> CallResult {
    let (kind, flags) = kind_of(domain, kind).or_else(|error| {
        // A missing family is reported before a missing type.
        if error == Errno::ESOCKTNOSUPPORT {
            thread.system.sockets.family(domain)?;
        }
        Err(error)
    })?;
    let family = thread.system.sockets.family(domain).inspect_err(|_| {
        thread.system.missing.count(&alloc::format!("socket of family {domain}"));
    })?;
    let files = thread.caller();
    let socket = family.create(kind, protocol, &socket_caller(thread, &files))?;
    let file = thread.system.sockets.open(socket, flags);
    install(thread, file, flags)
}

pub async fn socketpair(
    thread: &mut Thread,
    domain: u32,
    kind: u32,
    protocol: u32,
    descriptors: u64,
) -> CallResult {
    let (kind, flags) = kind_of(domain, kind)?;
    let family = thread.system.sockets.family(domain)?;
    let files = thread.caller();
    let (one, other) = family.create_pair(kind, protocol, &socket_caller(thread, &files))?;
    let sockets = &thread.system.sockets;
    install_pair(thread, [sockets.open(one, flags), sockets.open(other, flags)], flags, descriptors).await
}

pub async fn bind(thread: &mut Thread, descriptor: i32, address: u64, len: i32) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    let address = read_address(thread, address, len).await?;
    let files = thread.caller();
    open.file()?.socket().bind(&address, &socket_caller(thread, &files)).await?;
    Ok(0)
}

pub async fn listen(thread: &mut Thread, descriptor: i32, backlog: u32) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    let files = thread.caller();
    // A negative number is a very large one.
    let backlog = backlog.min(MOST_WAITING) as usize;
    open.file()?.socket().listen(backlog, &socket_caller(thread, &files)).await?;
    Ok(0)
}

/// Returns whether `accept4` knows these flags.
fn accept_flags_are_valid(flags: u32) -> bool {
    flags & !(O_CLOEXEC | O_NONBLOCK) == 0
}

pub async fn accept(thread: &mut Thread, descriptor: i32, address: u64, len: u64) -> CallResult {
    accept4(thread, descriptor, address, len, 0).await
}

pub async fn accept4(thread: &mut Thread, descriptor: i32, address: u64, len: u64, flags: u32) -> CallResult {
    if !accept_flags_are_valid(flags) {
        return Err(Errno::EINVAL);
    }
    let open = OpenSocket::of(thread, descriptor)?;
    // No connection is taken for which there is no descriptor.
    if !thread.files.has_free(descriptor_limit(thread)) {
        return Err(Errno::EMFILE);
    }
    let listener = open.file()?;
    let limit_ns = listener.socket().settings().receive_limit_ns();
    let accepted = thread.interruptible(listener.accept(open.waiting(), flags)).await;
    let accepted = accepted.map_err(|_| SocketFile::interrupted(limit_ns))??;
    if address != 0 {
        let socket = accepted.object_as::<SocketFile>().ok_or(Errno::ENOTSOCK)?.socket().clone();
        // The peer may be gone already.
        let peer = socket.peer_address().map_err(|_| Errno::ECONNABORTED)?;
        write_address(thread, &peer.encode(), address, len).await?;
    }
    install(thread, accepted, flags)
}

pub async fn connect(thread: &mut Thread, descriptor: i32, address: u64, len: i32) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    let address = read_address(thread, address, len).await?;
    let files = thread.caller();
    let (file, caller) = (open.file()?, socket_caller(thread, &files));
    let limit_ns = file.socket().settings().send_limit_ns();
    let connected = thread.interruptible(file.connect(&address, open.waiting(), &caller)).await;
    connected.map_err(|_| SocketFile::interrupted(limit_ns))??;
    Ok(0)
}

/// Writes the address of `getsockname` and `getpeername`.
async fn write_name(
    thread: &Thread,
    name: Result<SocketAddress, Errno>,
    address: u64,
    len: u64,
) -> CallResult {
    let bytes: Vec<u8> = name?.encode();
    write_address(thread, &bytes, address, len).await?;
    Ok(0)
}

pub async fn getsockname(thread: &mut Thread, descriptor: i32, address: u64, len: u64) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    write_name(thread, open.file()?.socket().local_address(), address, len).await
}

pub async fn getpeername(thread: &mut Thread, descriptor: i32, address: u64, len: u64) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    write_name(thread, open.file()?.socket().peer_address(), address, len).await
}

pub fn shutdown(thread: &mut Thread, descriptor: i32, how: u32) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    let how = match how {
        SHUT_RD => Shutdown { receive: true, send: false },
        SHUT_WR => Shutdown { receive: false, send: true },
        SHUT_RDWR => Shutdown { receive: true, send: true },
        _ => return Err(Errno::EINVAL),
    };
    open.file()?.socket().shutdown(how)?;
    Ok(0)
}
