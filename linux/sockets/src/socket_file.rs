//! Sockets as open files, and the calls that wait.

use crate::Errno;
use crate::address::SocketAddress;
use crate::families::Families;
use crate::interface_requests;
use crate::message::{MessageFlags, ReceivedMessage, SentMessage};
use crate::socket::{Socket, SocketCaller, SocketKind, Waiting};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use isola_linux_abi::net::{
    SO_ACCEPTCONN, SO_COOKIE, SO_DOMAIN, SO_ERROR, SO_PEERCRED, SO_PEERNAME, SO_PROTOCOL, SO_SNDLOWAT,
    SO_TYPE, SOL_SOCKET,
};
use isola_linux_abi::requests::{FIONREAD, TIOCOUTQ};
use isola_linux_files::{Events, FileObject, InodeKind, Metadata, OpenFile, Outcome, Pollee};
use isola_linux_memory::{BoxFuture, UserBuffer};

/// An open socket.
pub struct SocketFile {
    socket: Arc<dyn Socket>,
    families: Arc<Families>,
}

impl SocketFile {
    pub(crate) fn new(socket: Arc<dyn Socket>, families: Arc<Families>) -> Arc<Self> {
        Arc::new(Self { socket, families })
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Arc<dyn Socket> {
        &self.socket
    }

    /// Returns the address families of the system.
    pub fn families(&self) -> &Arc<Families> {
        &self.families
    }

    /// Accepts a connection. Waits for one as `waiting` and `SO_RCVTIMEO` permit. Returns it as an open file, with the
    /// status flags `O_NONBLOCK` or none.
    ///
    /// # Errors
    /// Those of accept(2).
    pub async fn accept(&self, waiting: Waiting, flags: u32) -> Result<Arc<OpenFile>, Errno> {
        let until_ns = self.until(self.socket.settings().receive_limit_ns());
        loop {
            match self.socket.accept() {
                Err(Errno::EAGAIN) if waiting == Waiting::Permitted => {
                    self.within(until_ns, self.wait_for(Events::IN)).await.ok_or(Errno::EAGAIN)?;
                }
                result => return result.map(|socket| self.families.open(socket, flags)),
            }
        }
    }

    /// Connects the socket. Waits as `waiting` and `SO_SNDTIMEO` permit; the connection continues if the future is dropped.
    ///
    /// # Errors
    /// Those of connect(2).
    pub async fn connect(
        &self,
        address: &SocketAddress,
        waiting: Waiting,
        caller: &SocketCaller<'_>,
    ) -> Result<(), Errno> {
        let until_ns = self.until(self.socket.settings().send_limit_ns());
        let attempt = self.within(until_ns, self.socket.connect(address, waiting, caller)).await;
        match attempt.unwrap_or(Err(Errno::EAGAIN)) {
            Err(Errno::EINPROGRESS | Errno::EALREADY) if waiting == Waiting::Permitted => {
                self.within(until_ns, self.wait_for(Events::OUT)).await.ok_or(Errno::EINPROGRESS)?;
                self.socket.take_error().map_or(Ok(()), Err)
            }
            result => result,
        }
    }

    /// Sends bytes from the buffer's position on. Waits for space as `waiting` and `SO_SNDTIMEO` permit. Returns the number
    /// of bytes; if the future is dropped, they are those by which the buffer's position has advanced.
    ///
    /// # Errors
    /// Those of send(2); for [`Errno::EPIPE`] the caller sends the signal if [`Self::has_pipe_signal`].
    pub async fn send(
        &self,
        buffer: &mut UserBuffer,
        message: &mut SentMessage,
        waiting: Waiting,
    ) -> Result<usize, Errno> {
        let is_stream = self.socket.facts().kind == SocketKind::Stream;
        let mut until_ns = None;
        let mut total = 0;
        loop {
            match self.socket.send(buffer, message) {
                Ok(count) => {
                    total += count;
                    if buffer.is_empty() || !is_stream {
                        return Ok(total);
                    }
                }
                Err(Errno::EAGAIN) if waiting == Waiting::Permitted => {
                    let until_ns =
                        *until_ns.get_or_insert_with(|| self.until(self.socket.settings().send_limit_ns()));
                    let wait = self.within(until_ns, self.socket.wait_to_send(message));
                    if wait.await.is_none() {
                        return if total > 0 { Ok(total) } else { Err(Errno::EAGAIN) };
                    }
                }
                Err(_) if total > 0 => return Ok(total),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the most bytes that a receiver takes from the stream now, so that a call makes no more of its buffer's pages
    /// present. `None` if that is not known: the socket is no stream, or the call waits for bytes.
    pub fn most_received(&self, waiting: Waiting) -> Option<usize> {
        if self.socket.facts().kind != SocketKind::Stream {
            return None;
        }
        match self.socket.readable_len() {
            Ok(len @ 1..) => Some(len),
            // What arrives from here on may be received in part.
            Ok(0) if waiting == Waiting::Refused => Some(1),
            _ => None,
        }
    }

    /// Receives bytes at the buffer's position. Waits as `waiting` and `SO_RCVTIMEO` permit: for the first bytes, or with
    /// [`MessageFlags::WAITALL`] until a stream has filled the buffer, has an error, or passes data beside the bytes.
    /// Returns the number of bytes; if the future is dropped, they are those by which the buffer's position has advanced.
    ///
    /// # Errors
    /// Those of recv(2).
    pub async fn receive(
        &self,
        buffer: &mut UserBuffer,
        flags: MessageFlags,
        message: &mut ReceivedMessage,
        waiting: Waiting,
    ) -> Result<usize, Errno> {
        let is_stream = self.socket.facts().kind == SocketKind::Stream;
        let fills = is_stream && flags.has(MessageFlags::WAITALL) && !flags.has(MessageFlags::PEEK);
        let mut until_ns = None;
        let mut has_ended = false;
        let mut total = 0;
        loop {
            match self.socket.receive(buffer, flags, message) {
                Ok(0) => return Ok(total),
                Ok(count) => {
                    total += count;
                    let is_complete = !fills || buffer.is_empty() || !message.ancillary.is_empty();
                    // An error stays for the next call.
                    if is_complete || self.socket.ready().intersects(Events::ERR) {
                        return Ok(total);
                    }
                }
                Err(Errno::EAGAIN) if waiting == Waiting::Permitted => {
                    // Nothing arrives any more, but something may have arrived before the end.
                    if self.socket.ready().intersects(Events::RDHUP) {
                        if has_ended {
                            return Ok(total);
                        }
                        has_ended = true;
                        continue;
                    }
                    let until_ns = *until_ns
                        .get_or_insert_with(|| self.until(self.socket.settings().receive_limit_ns()));
                    if self.within(until_ns, self.wait_for(Events::IN)).await.is_none() {
                        return if total > 0 { Ok(total) } else { Err(Errno::EAGAIN) };
                    }
                    if total > 0 && self.socket.ready().intersects(Events::ERR) {
                        return Ok(total);
                    }
                }
                Err(_) if total > 0 => return Ok(total),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether a sender gets SIGPIPE with [`Errno::EPIPE`]: that of a stream.
    pub fn has_pipe_signal(&self) -> bool {
        self.socket.facts().kind == SocketKind::Stream
    }

    /// Returns the error of a call that a signal has interrupted: calls with a time limit are not restarted. `limit_ns` is
    /// the limit of the call's direction.
    pub fn interrupted(limit_ns: Option<u64>) -> Errno {
        if limit_ns.is_some() { Errno::EINTR } else { Errno::ERESTARTSYS }
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// [`Errno::ENOPROTOOPT`] and those of the family.
    pub fn option(&self, level: u32, name: u32) -> Result<Vec<u8>, Errno> {
        if level != SOL_SOCKET {
            return self.socket.option(level, name);
        }
        let facts = self.socket.facts();
        let number = |number: u32| Ok(number.to_ne_bytes().to_vec());
        match name {
            SO_TYPE => number(facts.kind.number()),
            SO_DOMAIN => number(facts.domain),
            SO_PROTOCOL => number(facts.protocol),
            SO_ERROR => number(self.socket.take_error().map_or(0, |error| error.number().into())),
            SO_ACCEPTCONN => number(self.socket.is_listening().into()),
            SO_PEERCRED => Ok(self.socket.peer_credentials().encode().to_vec()),
            SO_PEERNAME => self.socket.peer_address().map(|address| address.encode()),
            SO_COOKIE => Ok(self.socket.settings().id().to_ne_bytes().to_vec()),
            _ => match self.socket.settings().value(name) {
                Some(value) => Ok(value),
                None => self.socket.option(level, name),
            },
        }
    }

    /// Sets an option.
    ///
    /// # Errors
    /// [`Errno::ENOPROTOOPT`], [`Errno::EINVAL`], [`Errno::EPERM`], and those of the family.
    pub fn set_option(
        &self,
        level: u32,
        name: u32,
        value: &[u8],
        caller: &SocketCaller<'_>,
    ) -> Result<(), Errno> {
        if level == SOL_SOCKET {
            if matches!(
                name,
                SO_TYPE | SO_DOMAIN | SO_PROTOCOL | SO_ERROR | SO_ACCEPTCONN | SO_PEERCRED | SO_SNDLOWAT
            ) {
                return Err(Errno::ENOPROTOOPT);
            }
            if self.socket.settings().set(name, value, caller)? {
                self.socket.settings_changed();
                return Ok(());
            }
        }
        self.socket.set_option(level, name, value, caller)
    }

    async fn wait_for(&self, events: Events) {
        self.socket.pollee().wait(events, || self.socket.ready()).await;
    }

    /// Returns the time of the clock at which a call with this limit ends.
    fn until(&self, limit_ns: Option<u64>) -> Option<u64> {
        limit_ns.map(|limit_ns| self.families.clock().now_ns().saturating_add(limit_ns))
    }

    /// Waits for a future until a time of the clock. Returns `None` at that time.
    async fn within<F: Future>(&self, until_ns: Option<u64>, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let Some(until_ns) = until_ns else { return Some(future.await) };
        let mut timer = self.families.clock().sleep_until(until_ns);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => timer.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.socket.close();
    }
}

impl FileObject for SocketFile {
    fn read(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let has_ended = self.socket.ready().intersects(Events::RDHUP);
        match self.socket.receive(buffer, MessageFlags::NONE, &mut ReceivedMessage::default()) {
            Err(Errno::EAGAIN) if has_ended => Ok(0),
            result => result,
        }
    }

    fn write(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        self.socket.send(buffer, &mut SentMessage::default())
    }

    fn is_socket(&self) -> bool {
        true
    }

    fn ready(&self) -> Events {
        self.socket.ready()
    }

    fn pollee(&self) -> Option<&Pollee> {
        Some(self.socket.pollee())
    }

    fn wait(&self, events: Events) -> Option<BoxFuture<'_, Result<(), Errno>>> {
        let settings = self.socket.settings();
        let sends = events.intersects(Events::OUT);
        let limit_ns = if sends { settings.send_limit_ns() } else { settings.receive_limit_ns() };
        let until_ns = self.until(limit_ns);
        Some(Box::pin(async move {
            let waited = if sends {
                let message = SentMessage::default();
                self.within(until_ns, self.socket.wait_to_send(&message)).await
            } else {
                self.within(until_ns, self.wait_for(events)).await
            };
            waited.ok_or(Errno::EAGAIN)
        }))
    }

    fn control<'a>(&'a self, request: u32, argument: u64, buffer: &'a mut UserBuffer) -> Outcome<'a, u64> {
        let len = match request {
            FIONREAD => self.socket.readable_len(),
            TIOCOUTQ => self.socket.unsent_len(),
            _ if interface_requests::is_request(request) => {
                let interfaces = self.families.interfaces();
                return interface_requests::serve(&*interfaces, request, buffer).map(|()| 0).into();
            }
            _ => return self.socket.control(request, argument, buffer),
        };
        let result = len.and_then(|len| {
            let bytes = (len.min(i32::MAX as usize) as i32).to_ne_bytes();
            if buffer.write(&bytes) == bytes.len() { Ok(0) } else { Err(Errno::EFAULT) }
        });
        result.into()
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(InodeKind::Socket, self.socket.settings().id(), 0o777)
    }

    fn description(&self) -> Vec<u8> {
        alloc::format!("socket:[{}]", self.socket.settings().id()).into_bytes()
    }

    fn reopen(&self, _flags: u32) -> Option<Result<Arc<dyn FileObject>, Errno>> {
        Some(Err(Errno::ENXIO))
    }
}
