//! Calls on sockets that are served at once: one attempt of the socket. All memory of the program that the call writes is
//! resolved before, as an attempt that has had an effect cannot be repeated.
//!
//! A call that finds nothing and may wait without a limit of time becomes a wait of its thread ([`Thread::wait_for`]); it is
//! attempted again, from the registers, when the socket is ready.

use super::control::{self, ReceivedControl};
use super::messages::{MessageHeader, received_len, result_flags};
use super::{accept_flags_are_valid, socket_caller, waiting};
use crate::Errno;
use crate::calls::files::{descriptor_limit, install};
use crate::calls::{AtOnce, CallResult, PAGE, now};
use crate::thread::Thread;
use alloc::sync::Arc;
use isola_linux_files::OpenFile;
use isola_linux_memory::{MAX_TRANSFER, UserBuffer};
use isola_linux_sockets::{
    MOST_ADDRESS_LEN, MessageFlags, ReceivedMessage, SentMessage, SocketAddress, SocketFile, SocketKind,
    Waiting,
};
use isola_user_mode::Access;

/// The flags of calls that are served at once: those of all, and those of calls that receive.
const PLAIN: u32 = MessageFlags::DONTWAIT.0 | MessageFlags::NOSIGNAL.0;
const PLAIN_RECEIVED: u32 =
    PLAIN | MessageFlags::PEEK.0 | MessageFlags::TRUNC.0 | MessageFlags::CMSG_CLOEXEC.0;

/// The part of `struct msghdr` that a received message changes beside the length of its address: the length of control
/// messages, and the flags.
const RESULT_OFFSET: u64 = 40;
const RESULT_LEN: usize = 12;
/// The length of the address in `struct msghdr`.
const NAME_LEN_OFFSET: u64 = 8;

/// The room for an address that a call stores, and for its length.
struct AddressRoom(Option<(UserBuffer, UserBuffer)>);

impl AddressRoom {
    /// Resolves the room; `None` if that needs a wait, or fails.
    fn resolve(thread: &Thread, address: u64, len_address: u64) -> Option<Self> {
        if address == 0 {
            return Some(Self(None));
        }
        let len = i32::from_le_bytes(thread.memory.try_read_bytes::<4>(len_address)?);
        let room = resolve(thread, address, usize::try_from(len).ok()?.min(MOST_ADDRESS_LEN))?;
        Some(Self(Some((room, resolve(thread, len_address, 4)?))))
    }

    fn store(self, bytes: &[u8]) {
        if let Some((mut room, mut len)) = self.0 {
            room.write(bytes);
            len.write(&(bytes.len() as u32).to_le_bytes());
        }
    }
}

/// Resolves memory that a call writes, within a page; `None` if that needs a wait, or fails.
fn resolve(thread: &Thread, address: u64, len: usize) -> Option<UserBuffer> {
    match len {
        0 => Some(UserBuffer::default()),
        _ => thread.memory.try_buffer(address, len, Access::Write),
    }
}

/// Returns the file of a call with no flags but these, and whether the call waits.
fn open(thread: &Thread, descriptor: u64, flags: u64, plain: u32) -> Option<(Arc<OpenFile>, Waiting)> {
    let flags = MessageFlags(flags as u32);
    if flags.0 & !plain != 0 {
        return None;
    }
    let file = thread.files.get(descriptor as i32).ok()?;
    let refuses = flags.has(MessageFlags::DONTWAIT);
    let waiting = if refuses { Waiting::Refused } else { waiting(&file) };
    Some((file, waiting))
}

/// Makes the thread wait for a socket, if the call has no limit of time.
fn wait(thread: &mut Thread, file: Arc<OpenFile>, limit_ns: Option<u64>) -> AtOnce {
    match limit_ns {
        None => thread.wait_for(file, None),
        Some(_) => AtOnce::Unserved,
    }
}

/// `accept` and `accept4`.
pub fn accept_at_once(thread: &mut Thread, words: [u64; 6], flags: u32) -> AtOnce {
    match thread.files.get(words[0] as i32) {
        Ok(file) => accept_connection(thread, file, words, flags),
        Err(_) => AtOnce::Unserved,
    }
}

/// As [`accept_at_once`], of an open file.
pub fn accept_connection(
    thread: &mut Thread,
    file: Arc<OpenFile>,
    [_, address, len, ..]: [u64; 6],
    flags: u32,
) -> AtOnce {
    let Some(listener) = file.object_as::<SocketFile>().filter(|_| accept_flags_are_valid(flags)) else {
        return AtOnce::Unserved;
    };
    // No connection is taken for which there is no descriptor, or whose address cannot be stored.
    let has_free = thread.files.has_free(descriptor_limit(thread));
    let Some(room) = AddressRoom::resolve(thread, address, len).filter(|_| has_free) else {
        return AtOnce::Unserved;
    };
    let socket = match listener.socket().accept() {
        Ok(socket) => socket,
        Err(Errno::EAGAIN) if waiting(&file) == Waiting::Permitted => {
            let limit_ns = listener.socket().settings().receive_limit_ns();
            return wait(thread, file, limit_ns);
        }
        Err(error) => return AtOnce::Served(Err(error)),
    };
    let accepted = listener.families().open(socket.clone(), flags);
    if address != 0 {
        match socket.peer_address() {
            Ok(peer) => room.store(&peer.encode()),
            // It is gone already.
            Err(_) => return AtOnce::Served(Err(Errno::ECONNABORTED)),
        }
    }
    AtOnce::Served(install(thread, accepted, flags))
}

/// `read` of a socket.
pub fn read_socket_at_once(thread: &mut Thread, file: Arc<OpenFile>, address: u64, len: u64) -> AtOnce {
    let waiting = waiting(&file);
    receive_from(thread, file, [0, address, len, 0, 0, 0], waiting)
}

/// `recvfrom`.
pub fn recvfrom_at_once(thread: &mut Thread, words: [u64; 6]) -> AtOnce {
    match open(thread, words[0], words[3], PLAIN_RECEIVED) {
        Some((file, waiting)) => receive_from(thread, file, words, waiting),
        None => AtOnce::Unserved,
    }
}

/// As [`recvfrom_at_once`], of an open file.
pub fn receive_from(thread: &mut Thread, file: Arc<OpenFile>, words: [u64; 6], waiting: Waiting) -> AtOnce {
    let [_, buffer, len, flags, address, address_len] = words;
    let Some(socket) = file.object_as::<SocketFile>() else { return AtOnce::Unserved };
    let most = match (socket.most_received(waiting), socket.socket().facts().kind) {
        (Some(most), _) => most as u64,
        // Without bytes: a page, as a stream receives any part.
        (None, SocketKind::Stream) => PAGE - buffer % PAGE,
        _ => MAX_TRANSFER,
    };
    let buffer = thread.memory.try_range(buffer, len.min(most), Access::Write);
    let (Some(mut buffer), Some(room)) = (buffer, AddressRoom::resolve(thread, address, address_len)) else {
        return AtOnce::Unserved;
    };
    if buffer.is_empty() {
        return AtOnce::Unserved;
    }
    let (flags, mut message) = (MessageFlags(flags as u32), ReceivedMessage::default());
    match socket.socket().receive(&mut buffer, flags, &mut message) {
        Err(Errno::EAGAIN) if waiting == Waiting::Permitted => {
            let limit_ns = socket.socket().settings().receive_limit_ns();
            drop((buffer, room));
            wait(thread, file, limit_ns)
        }
        Err(error) => AtOnce::Served(Err(error)),
        Ok(count) => {
            if address != 0 {
                room.store(&message.address.as_ref().map(SocketAddress::encode).unwrap_or_default());
            }
            AtOnce::Served(Ok(received_len(socket, count as u64, flags, &message)))
        }
    }
}

/// `recvmsg`.
pub fn recvmsg_at_once(thread: &mut Thread, words: [u64; 6]) -> AtOnce {
    match open(thread, words[0], words[2], PLAIN_RECEIVED) {
        Some((file, waiting)) => receive_message(thread, file, words, waiting),
        None => AtOnce::Unserved,
    }
}

/// The memory of a `recvmsg`.
struct MessageRoom {
    header: MessageHeader,
    buffer: UserBuffer,
    name: UserBuffer,
    name_len: UserBuffer,
    control: UserBuffer,
    result: UserBuffer,
}

impl MessageRoom {
    /// Resolves the memory; `None` if that needs a wait, or fails.
    fn resolve(thread: &Thread, address: u64, socket: &SocketFile, waiting: Waiting) -> Option<Self> {
        let memory = &thread.memory;
        let header = MessageHeader::parse(&memory.try_read_bytes(address)?).ok()?;
        let most = match (socket.most_received(waiting), socket.socket().facts().kind) {
            (Some(most), _) => most as u64,
            (None, SocketKind::Stream) => PAGE,
            _ => MAX_TRANSFER,
        };
        let buffer = memory.try_buffers(header.buffers, header.buffer_count, most, Access::Write)?;
        let name_len = if header.name == 0 { 0 } else { 4 };
        Some(Self {
            buffer: Some(buffer).filter(|buffer| !buffer.is_empty())?,
            name: resolve(thread, header.name, header.name_len as usize)?,
            name_len: resolve(thread, address.checked_add(NAME_LEN_OFFSET)?, name_len)?,
            control: resolve(thread, header.control, usize::try_from(header.control_len).ok()?)?,
            result: resolve(thread, address.checked_add(RESULT_OFFSET)?, RESULT_LEN)?,
            header,
        })
    }
}

/// As [`recvmsg_at_once`], of an open file.
pub fn receive_message(
    thread: &mut Thread,
    file: Arc<OpenFile>,
    [_, address, flags, ..]: [u64; 6],
    waiting: Waiting,
) -> AtOnce {
    let Some(socket) = file.object_as::<SocketFile>() else { return AtOnce::Unserved };
    let Some(mut room) = MessageRoom::resolve(thread, address, socket, waiting) else {
        return AtOnce::Unserved;
    };
    let (flags, mut message) = (MessageFlags(flags as u32), ReceivedMessage::default());
    let count = match socket.socket().receive(&mut room.buffer, flags, &mut message) {
        Ok(count) => count as u64,
        Err(Errno::EAGAIN) if waiting == Waiting::Permitted => {
            let limit_ns = socket.socket().settings().receive_limit_ns();
            drop(room);
            return wait(thread, file, limit_ns);
        }
        Err(error) => return AtOnce::Served(Err(error)),
    };
    let ancillary = core::mem::take(&mut message.ancillary);
    let received = ReceivedControl::encode(thread, ancillary, room.header.control_len, flags);
    let name = message.address.as_ref().map(SocketAddress::encode).unwrap_or_default();
    room.name.write(&name);
    room.name_len.write(&(name.len() as u32).to_le_bytes());
    room.control.write(&received.bytes);
    room.result.write(&(received.bytes.len() as u64).to_le_bytes());
    room.result.write(&result_flags(&message, &received, flags).0.to_le_bytes());
    AtOnce::Served(Ok(received_len(socket, count, flags, &message)))
}

/// Sends bytes of pages that are mapped: as a message, to `address` if there is one; on a stream, if the call does not wait for
/// space, as a part of the bytes cannot be taken back. `None` for other calls, and without bytes.
pub fn send_at_once(
    thread: &Thread,
    file: &OpenFile,
    waiting: Waiting,
    address: Option<SocketAddress>,
    buffer: impl FnOnce() -> Option<UserBuffer>,
) -> Option<CallResult> {
    let socket = file.object_as::<SocketFile>()?.socket();
    let may_divide = socket.facts().kind == SocketKind::Stream && waiting == Waiting::Permitted;
    if may_divide || !file.is_writable() {
        return None;
    }
    let mut buffer = buffer().filter(|buffer| !buffer.is_empty())?;
    let mut message = SentMessage { sender: Some(control::sender(thread)), ..SentMessage::default() };
    if let Some(address) = address {
        let files = thread.caller();
        message.destination = now(socket.destination(&address, &socket_caller(thread, &files)))?.ok()?;
        message.address = Some(address);
    }
    match socket.send(&mut buffer, &mut message) {
        // With a signal.
        Err(Errno::EPIPE) => None,
        Err(Errno::EAGAIN) if waiting == Waiting::Permitted => None,
        result => Some(result.map(|count| count as u64)),
    }
}

/// Reads the address of a call that sends: `Some(None)` without one, `None` if that needs a wait, or fails.
fn sent_address(thread: &Thread, address: u64, len: i32) -> Option<Option<SocketAddress>> {
    if address == 0 || len == 0 {
        return Some(None);
    }
    let len = usize::try_from(len).ok().filter(|len| *len <= MOST_ADDRESS_LEN)?;
    let part = thread.memory.try_part(address, len, Access::Read)?;
    let mut bytes = [0; MOST_ADDRESS_LEN];
    part.frame.read(part.offset, &mut bytes[..len]);
    SocketAddress::parse(&bytes[..len]).ok().map(Some)
}

/// `sendto`, as [`send_at_once`].
pub fn sendto_at_once(thread: &Thread, words: [u64; 6]) -> Option<CallResult> {
    let [descriptor, buffer, len, flags, address, address_len] = words;
    let (file, waiting) = open(thread, descriptor, flags, PLAIN)?;
    let address = sent_address(thread, address, address_len as i32)?;
    send_at_once(thread, &file, waiting, address, || thread.memory.try_range(buffer, len, Access::Read))
}

/// `sendmsg` without control messages, as [`send_at_once`].
pub fn sendmsg_at_once(thread: &Thread, [descriptor, header, flags, ..]: [u64; 6]) -> Option<CallResult> {
    let (file, waiting) = open(thread, descriptor, flags, PLAIN)?;
    let header = MessageHeader::parse(&thread.memory.try_read_bytes(header)?).ok()?;
    if header.control_len > 0 {
        return None;
    }
    let address = sent_address(thread, header.name, header.name_len)?;
    send_at_once(thread, &file, waiting, address, || {
        thread.memory.try_buffers(header.buffers, header.buffer_count, MAX_TRANSFER, Access::Read)
    })
}
