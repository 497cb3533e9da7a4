//! Messages on a connection.

use isola::iobuf::{Chain, IoBuf};
use isola::net::{ReadHalf, WriteHalf};
use isola_abi::session::{CellMessage, GREETING, HostMessage, MessageReader, encode};

/// The messages of the host tool.
pub struct Incoming<'a> {
    half: ReadHalf<'a>,
    messages: MessageReader,
}

impl<'a> Incoming<'a> {
    pub fn new(half: ReadHalf<'a>) -> Self {
        Self { half, messages: MessageReader::default() }
    }

    /// Waits for the next message; nothing if the connection has ended or has bytes that are no message.
    pub async fn next(&mut self) -> Option<HostMessage> {
        loop {
            match self.messages.take() {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(_) => return None,
            }
            let data = self.half.read().await.ok()??;
            for part in data.parts() {
                self.messages.push(part);
            }
        }
    }
}

/// The messages of the cell.
pub struct Outgoing<'a> {
    half: WriteHalf<'a>,
}

impl<'a> Outgoing<'a> {
    pub fn new(half: WriteHalf<'a>) -> Self {
        Self { half }
    }

    /// Sends the greeting. Returns nothing if the connection has ended.
    pub async fn greet(&mut self) -> Option<()> {
        self.write(GREETING).await
    }

    /// Sends a message, when there is room. Returns nothing if the connection has ended.
    pub async fn send(&mut self, message: &CellMessage) -> Option<()> {
        self.write(&encode(message).ok()?).await
    }

    /// Ends this direction.
    pub fn end(&mut self) {
        self.half.shutdown();
    }

    async fn write(&mut self, bytes: &[u8]) -> Option<()> {
        let mut chain = Chain::new();
        chain.push_back(IoBuf::copy_from_slice(bytes));
        self.half.write(chain).await.ok()
    }
}
