//! A stream of frames to QEMU: four bytes of length, then the frame (QEMU's `-netdev stream`).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// The maximum length of a frame: the most that QEMU itself sends, with offloaded segments and headers.
const MAX_FRAME: usize = 4096 + 65536;

/// The size of one read, in bytes.
const READ_BYTES: usize = 64 << 10;

const LENGTH_BYTES: usize = 4;

/// A connection to one of QEMU's network back ends.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The number of bytes of `output` that are sent.
    sent: usize,
}

/// The reasons why a link ended.
#[derive(Debug)]
pub enum LinkEnd {
    /// The other side closed the connection.
    Closed,
    /// The other side sent an invalid length.
    Malformed,
    /// The socket failed.
    Io(io::Error),
}

impl Link {
    /// Creates a link over a connection.
    ///
    /// # Errors
    /// An error if the connection cannot be made non-blocking.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, input: Vec::new(), output: Vec::new(), sent: 0 })
    }

    /// Returns the socket, for `poll`.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Reads from the socket once, and calls `each` with every complete frame.
    ///
    /// # Errors
    /// [`LinkEnd`].
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) -> Result<(), LinkEnd> {
        let begun = self.input.len();
        self.input.resize(begun + READ_BYTES, 0);
        let count = match self.stream.read(&mut self.input[begun..]) {
            Ok(0) => return Err(LinkEnd::Closed),
            Ok(count) => count,
            Err(error) if is_temporary(&error) => 0,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(LinkEnd::Closed),
            Err(error) => return Err(LinkEnd::Io(error)),
        };
        self.input.truncate(begun + count);
        let mut rest = &self.input[..];
        while let Some((length, more)) = rest.split_first_chunk::<LENGTH_BYTES>() {
            let length = u32::from_be_bytes(*length) as usize;
            if length > MAX_FRAME {
                return Err(LinkEnd::Malformed);
            }
            let Some(frame) = more.get(..length) else { break };
            each(frame);
            rest = &more[length..];
        }
        let read = self.input.len() - rest.len();
        self.input.drain(..read);
        Ok(())
    }

    /// Returns the number of bytes that wait to be sent.
    pub fn queued(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Queues a frame.
    pub fn push(&mut self, frame: &[u8]) {
        let Ok(length) = u32::try_from(frame.len()) else { return };
        self.output.extend_from_slice(&length.to_be_bytes());
        self.output.extend_from_slice(frame);
    }

    /// Sends as many bytes as the socket accepts.
    ///
    /// # Errors
    /// [`LinkEnd`].
    pub fn flush(&mut self) -> Result<(), LinkEnd> {
        while self.queued() > 0 {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_temporary(&error) => break,
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(LinkEnd::Closed),
                Err(error) => return Err(LinkEnd::Io(error)),
            }
        }
        if self.queued() == 0 {
            self.output.clear();
            self.sent = 0;
        } else if self.sent > READ_BYTES {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Link, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Link::new(ours).unwrap(), theirs)
    }

    #[test]
    fn frames_are_complete_however_the_stream_is_split() {
        let (mut link, mut theirs) = pair();
        let mut frames = Vec::new();
        for byte in [0, 0, 0, 2, 7, 8, 0, 0, 0, 0, 0, 0, 0, 1, 9] {
            theirs.write_all(&[byte]).unwrap();
            link.read(|frame| frames.push(frame.to_vec())).unwrap();
        }
        assert_eq!(frames, [vec![7, 8], vec![], vec![9]]);
        theirs.write_all(&u32::MAX.to_be_bytes()).unwrap();
        assert!(matches!(link.read(|_| ()), Err(LinkEnd::Malformed)));
        let (mut link, theirs) = pair();
        drop(theirs);
        assert!(matches!(link.read(|_| ()), Err(LinkEnd::Closed)));
    }

    #[test]
    fn frames_for_a_slow_reader_wait_in_order() {
        let (mut link, mut theirs) = pair();
        let frames = 400_u32;
        (0..frames).for_each(|number| link.push(&[number as u8; 1500]));
        link.flush().unwrap();
        assert!(link.queued() > 0, "the socket took all of it");
        let mut bytes = Vec::new();
        theirs.set_nonblocking(true).unwrap();
        while bytes.len() < frames as usize * 1504 {
            let _ = theirs.read_to_end(&mut bytes);
            link.flush().unwrap();
        }
        assert_eq!(link.queued(), 0);
        for (number, frame) in bytes.chunks(1504).enumerate() {
            assert_eq!((frame[..4].to_vec(), frame[4]), (1500_u32.to_be_bytes().to_vec(), number as u8));
        }
    }
}
