//! Calls that send and receive.

use super::control::{self, ReceivedControl};
use super::{OpenSocket, read_address, socket_caller, waiting, write_address};
use crate::Errno;
use crate::calls::CallResult;
use crate::calls::time::{read_timespec, timespec};
use crate::signals::{SI_USER, Signal, SignalInfo};
use crate::thread::Thread;
use isola_linux_files::OpenFile;
use isola_linux_memory::{MAX_TRANSFER, UserBuffer};
use isola_linux_sockets::{
    MOST_ADDRESS_LEN, MessageFlags, ReceivedMessage, SentMessage, SocketFile, SocketKind, Waiting,
};
use isola_user_mode::Access;

/// The length of `struct msghdr`.
const HEADER_LEN: usize = 56;
/// The length of `struct mmsghdr`: a header, the number of bytes, padding.
const VECTOR_ENTRY_LEN: u64 = 64;
/// The most buffers of a message, and the most messages of a call.
const MOST_BUFFERS: u64 = 1024;
/// The most bytes of a stream that a call receives at once, so that it makes no more pages of the buffer present.
const MOST_STREAM_LEN: u64 = 256 << 10;

/// `struct msghdr`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageHeader {
    pub name: u64,
    pub name_len: i32,
    pub buffers: u64,
    pub buffer_count: u64,
    pub control: u64,
    pub control_len: u64,
}

impl MessageHeader {
    async fn read(thread: &Thread, address: u64) -> Result<Self, Errno> {
        Self::parse(&thread.memory.read_bytes(address).await?)
    }

    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, Errno> {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        let name = word(0);
        let name_len = if name == 0 { 0 } else { word(8) as u32 as i32 };
        let this = Self {
            name,
            // A longer one is cut, as on Linux.
            name_len: name_len.min(MOST_ADDRESS_LEN as i32),
            buffers: word(16),
            buffer_count: word(24),
            control: word(32),
            control_len: if word(32) == 0 { 0 } else { word(40) },
        };
        match () {
            () if name_len < 0 => Err(Errno::EINVAL),
            () if this.buffer_count > MOST_BUFFERS => Err(Errno::EMSGSIZE),
            () if this.control_len > i32::MAX as u64 => Err(Errno::ENOBUFS),
            () => Ok(this),
        }
    }

    async fn buffer(&self, thread: &Thread, access: Access) -> Result<UserBuffer, Errno> {
        thread.memory.buffers(self.buffers, self.buffer_count, access).await
    }
}

/// Sends SIGPIPE to the thread.
fn send_pipe_signal(thread: &Thread) -> Result<(), Errno> {
    let user = thread.credentials.user.real;
    let info = SignalInfo::sent(Signal::SIGPIPE, SI_USER, thread.process.pid, user);
    thread.system.send_to_thread(&thread.process, &thread.state, info)
}

/// Sends a message, until a signal arrives. Bytes of a stream that were sent count.
async fn send(
    thread: &Thread,
    socket: &SocketFile,
    mut buffer: UserBuffer,
    mut message: SentMessage,
    waiting: Waiting,
) -> CallResult {
    let flags = message.flags;
    let waiting = if flags.has(MessageFlags::DONTWAIT) { Waiting::Refused } else { waiting };
    message.sender = Some(control::sender(thread));
    if let Some(address) = &message.address {
        let files = thread.caller();
        let caller = socket_caller(thread, &files);
        message.destination = socket.socket().destination(address, &caller).await?;
    }
    let len = buffer.len();
    let limit_ns = socket.socket().settings().send_limit_ns();
    match thread.interruptible(socket.send(&mut buffer, &mut message, waiting)).await {
        Ok(Err(Errno::EPIPE)) => {
            if socket.has_pipe_signal() && !flags.has(MessageFlags::NOSIGNAL) {
                send_pipe_signal(thread)?;
            }
            Err(Errno::EPIPE)
        }
        Ok(result) => result.map(|count| count as u64),
        Err(_) if buffer.len() < len => Ok((len - buffer.len()) as u64),
        Err(_) => Err(SocketFile::interrupted(limit_ns)),
    }
}

/// Receives a message, until a signal arrives. Returns the number of bytes in the buffer.
async fn receive(
    thread: &Thread,
    socket: &SocketFile,
    mut buffer: UserBuffer,
    flags: MessageFlags,
    message: &mut ReceivedMessage,
    waiting: Waiting,
) -> CallResult {
    if flags.has(MessageFlags::ERRQUEUE) {
        // The queue of errors is always empty.
        return Err(Errno::EAGAIN);
    }
    let waiting = if flags.has(MessageFlags::DONTWAIT) { Waiting::Refused } else { waiting };
    let len = buffer.len();
    let limit_ns = socket.socket().settings().receive_limit_ns();
    match thread.interruptible(socket.receive(&mut buffer, flags, message, waiting)).await {
        Ok(result) => result.map(|count| count as u64),
        Err(_) if buffer.len() < len => Ok((len - buffer.len()) as u64),
        Err(_) => Err(SocketFile::interrupted(limit_ns)),
    }
}

/// Returns the result of a call that received: the length of the whole message if the program asks for it.
pub(super) fn received_len(
    socket: &SocketFile,
    count: u64,
    flags: MessageFlags,
    message: &ReceivedMessage,
) -> u64 {
    let is_stream = socket.socket().facts().kind == SocketKind::Stream;
    if flags.has(MessageFlags::TRUNC) && !is_stream { message.len as u64 } else { count }
}

/// `write` and `writev` of a socket.
pub async fn write_socket(thread: &Thread, file: &OpenFile, buffer: UserBuffer) -> CallResult {
    let socket = file.object_as::<SocketFile>().ok_or(Errno::ENOTSOCK)?;
    if !file.is_writable() {
        return Err(Errno::EBADF);
    }
    send(thread, socket, buffer, SentMessage::default(), waiting(file)).await
}

/// `read` and `readv` of a socket.
pub async fn read_socket(thread: &Thread, file: &OpenFile, buffer: UserBuffer) -> CallResult {
    let socket = file.object_as::<SocketFile>().ok_or(Errno::ENOTSOCK)?;
    if buffer.is_empty() {
        return Ok(0);
    }
    let mut message = ReceivedMessage::default();
    receive(thread, socket, buffer, MessageFlags::NONE, &mut message, waiting(file)).await
}

pub async fn sendto(
    thread: &mut Thread,
    descriptor: i32,
    buffer: u64,
    len: u64,
    flags: u32,
    address: u64,
    address_len: i32,
) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    let mut message = SentMessage { flags: MessageFlags(flags), ..SentMessage::default() };
    if address != 0 && address_len != 0 {
        message.address = Some(read_address(thread, address, address_len).await?);
    }
    let socket = open.file()?;
    let len = len.min(MAX_TRANSFER);
    let buffer = thread.memory.buffer(buffer, len, Access::Read).await?;
    // A message is sent whole or not at all.
    if (buffer.len() as u64) < len && socket.socket().facts().kind != SocketKind::Stream {
        return Err(Errno::EFAULT);
    }
    send(thread, socket, buffer, message, open.waiting()).await
}

/// Sends the message of a header, with `flags`.
async fn send_header(thread: &Thread, open: &OpenSocket, header: u64, flags: MessageFlags) -> CallResult {
    let header = MessageHeader::read(thread, header).await?;
    let socket = open.file()?;
    let mut message = SentMessage { flags, ..SentMessage::default() };
    if header.name_len > 0 {
        message.address = Some(read_address(thread, header.name, header.name_len).await?);
    }
    if header.control_len > 0 {
        let domain = socket.socket().facts().domain;
        message.ancillary = control::read(thread, domain, header.control, header.control_len).await?;
    }
    let buffer = header.buffer(thread, Access::Read).await?;
    send(thread, socket, buffer, message, open.waiting()).await
}

pub async fn sendmsg(thread: &mut Thread, descriptor: i32, header: u64, flags: u32) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    send_header(thread, &open, header, MessageFlags(flags)).await
}

/// Returns the address of a header in the array of `sendmmsg` and `recvmmsg`.
fn entry(vector: u64, index: u64) -> Result<u64, Errno> {
    vector.checked_add(index * VECTOR_ENTRY_LEN).ok_or(Errno::EFAULT)
}

/// Stores the number of bytes of a message in the array.
async fn store_len(thread: &Thread, entry: u64, len: u64) -> Result<(), Errno> {
    let address = entry.checked_add(HEADER_LEN as u64).ok_or(Errno::EFAULT)?;
    thread.memory.write_bytes(address, &(len as u32).to_le_bytes()).await
}

pub async fn sendmmsg(
    thread: &mut Thread,
    descriptor: i32,
    vector: u64,
    count: u32,
    flags: u32,
) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    let mut sent = 0;
    while sent < u64::from(count).min(MOST_BUFFERS) {
        let header = entry(vector, sent)?;
        let result = match send_header(thread, &open, header, MessageFlags(flags)).await {
            Ok(len) => store_len(thread, header, len).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => sent += 1,
            Err(error) if sent == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(sent)
}

pub async fn recvfrom(
    thread: &mut Thread,
    descriptor: i32,
    buffer: u64,
    len: u64,
    flags: u32,
    address: u64,
    address_len: u64,
) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    let (socket, flags) = (open.file()?, MessageFlags(flags));
    let is_stream = socket.socket().facts().kind == SocketKind::Stream;
    let most = if is_stream && !flags.has(MessageFlags::WAITALL) {
        let waiting = if flags.has(MessageFlags::DONTWAIT) { Waiting::Refused } else { open.waiting() };
        socket.most_received(waiting).map_or(MOST_STREAM_LEN, |most| MOST_STREAM_LEN.min(most as u64))
    } else {
        MAX_TRANSFER
    };
    let buffer = thread.memory.buffer(buffer, len.min(most), Access::Write).await?;
    let mut message = ReceivedMessage::default();
    let count = receive(thread, socket, buffer, flags, &mut message, open.waiting()).await?;
    if address != 0 {
        let bytes = message.address.as_ref().map(|address| address.encode()).unwrap_or_default();
        write_address(thread, &bytes, address, address_len).await?;
    }
    Ok(received_len(socket, count, flags, &message))
}

/// Receives a message with the buffers of a header, and stores its address, control messages and flags.
async fn receive_header(thread: &Thread, open: &OpenSocket, address: u64, flags: MessageFlags) -> CallResult {
    let header = MessageHeader::read(thread, address).await?;
    let socket = open.file()?;
    let buffer = header.buffer(thread, Access::Write).await?;
    let mut message = ReceivedMessage::default();
    let count = receive(thread, socket, buffer, flags, &mut message, open.waiting()).await?;
    let len = received_len(socket, count, flags, &message);
    let ancillary = core::mem::take(&mut message.ancillary);
    let received = ReceivedControl::encode(thread, ancillary, header.control_len, flags);
    let stored = store_header(thread, address, &header, &message, &received, flags).await;
    stored.inspect_err(|_| received.undo(thread))?;
    Ok(len)
}

/// Returns the flags of a received message, as `recvmsg` stores them.
pub(super) fn result_flags(
    message: &ReceivedMessage,
    received: &ReceivedControl,
    flags: MessageFlags,
) -> MessageFlags {
    let mut out = message.flags | received.flags;
    if flags.has(MessageFlags::CMSG_CLOEXEC) {
        out.add(MessageFlags::CMSG_CLOEXEC);
    }
    out
}

async fn store_header(
    thread: &Thread,
    address: u64,
    header: &MessageHeader,
    message: &ReceivedMessage,
    received: &ReceivedControl,
    flags: MessageFlags,
) -> Result<(), Errno> {
    let memory = &thread.memory;
    let field = |at: u64| address.checked_add(at).ok_or(Errno::EFAULT);
    let out = result_flags(message, received, flags);
    if header.name != 0 {
        let bytes = message.address.as_ref().map(|address| address.encode()).unwrap_or_default();
        let len = bytes.len().min(header.name_len as usize);
        memory.write_bytes(header.name, &bytes[..len]).await?;
        memory.write_bytes(field(8)?, &(bytes.len() as u32).to_le_bytes()).await?;
    }
    memory.write_bytes(header.control, &received.bytes).await?;
    memory.write_bytes(field(40)?, &(received.bytes.len() as u64).to_le_bytes()).await?;
    memory.write_bytes(field(48)?, &out.0.to_le_bytes()).await
}

pub async fn recvmsg(thread: &mut Thread, descriptor: i32, header: u64, flags: u32) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    receive_header(thread, &open, header, MessageFlags(flags)).await
}

pub async fn recvmmsg(
    thread: &mut Thread,
    descriptor: i32,
    vector: u64,
    count: u32,
    flags: u32,
    timeout: u64,
) -> CallResult {
    let now_ns = |thread: &Thread| thread.system.environment.monotonic_ns();
    let until_ns = match timeout {
        0 => None,
        _ => Some(now_ns(thread).saturating_add(read_timespec(thread, timeout).await?)),
    };
    let open = OpenSocket::of(thread, descriptor)?;
    let mut flags = MessageFlags(flags);
    let (mut received, mut failure) = (0, None);
    while received < u64::from(count).min(MOST_BUFFERS) {
        let header = entry(vector, received)?;
        let result = match receive_header(thread, &open, header, flags).await {
            Ok(len) => store_len(thread, header, len).await,
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            failure = Some(error);
            break;
        }
        received += 1;
        if flags.has(MessageFlags::WAITFORONE) {
            flags.add(MessageFlags::DONTWAIT);
        }
        // As on Linux, the time is looked at after each message only.
        if until_ns.is_some_and(|until_ns| now_ns(thread) >= until_ns) {
            break;
        }
    }
    if let Some(until_ns) = until_ns {
        let left = timespec(until_ns.saturating_sub(now_ns(thread)));
        thread.memory.write_bytes(timeout, &left).await?;
    }
    match failure {
        Some(error) if received == 0 => Err(error),
        _ => Ok(received),
    }
}
