//! The layout of netlink messages: headers, attributes, and datagrams of several messages.

use crate::Errno;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The length of `struct nlmsghdr`.
pub(super) const HEADER_LEN: usize = 16;
/// Messages and attributes begin at multiples of this.
const ALIGNMENT: usize = 4;
/// The length of a datagram of several messages: programs receive with buffers of a page and more.
const DATAGRAM_LEN: usize = 4096;

/// Types of control messages.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// A message of several.
const NLM_F_MULTI: u16 = 2;
/// An error without the payload of the request.
const NLM_F_CAPPED: u16 = 0x100;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub kind: u16,
    pub flags: u16,
    sequence: u32,
    /// The bytes behind the header.
    pub payload: &'a [u8],
    /// All bytes.
    whole: &'a [u8],
}

/// Splits bytes of a program into requests. A request with a bad length ends them, as on Linux.
pub(super) fn requests(mut bytes: &[u8]) -> impl Iterator<Item = Request<'_>> {
    core::iter::from_fn(move || {
        let header = bytes.first_chunk::<HEADER_LEN>()?;
        let word = |at: usize| u32::from_ne_bytes(core::array::from_fn(|index| header[at + index]));
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let len = usize::try_from(word(0)).ok().filter(|len| (HEADER_LEN..=bytes.len()).contains(len))?;
        let whole = &bytes[..len];
        let payload = &whole[HEADER_LEN..];
        bytes = bytes.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or(&[]);
        Some(Request { kind: half(4), flags: half(6), sequence: word(8), payload, whole })
    })
}

/// Returns the data of the first attribute of this type.
pub(super) fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    /// The bits of the type that are no flags.
    const KIND_BITS: u16 = 0x3fff;
    loop {
        let header = bytes.first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & KIND_BITS;
        let data = bytes.get(4..len)?;
        if kind == wanted {
            return Some(data);
        }
        bytes = bytes.get(len.next_multiple_of(ALIGNMENT)..)?;
    }
}

/// The bytes of a message behind its header.
#[derive(Default)]
pub(super) struct Body(Vec<u8>);

impl Body {
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    /// Adds an attribute.
    pub fn attribute(&mut self, kind: u16, data: &[u8]) -> &mut Self {
        self.u16((4 + data.len()) as u16).u16(kind);
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
        self
    }

    pub fn attribute_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_ne_bytes())
    }
}

/// The answer to a request: datagrams.
pub(super) struct Reply<'a> {
    request: Request<'a>,
    port: u32,
    datagrams: VecDeque<Vec<u8>>,
}

impl<'a> Reply<'a> {
    pub fn new(request: Request<'a>, port: u32) -> Self {
        Self { request, port, datagrams: VecDeque::new() }
    }

    fn message(&self, kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER_LEN + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(self.request.sequence.to_ne_bytes());
        bytes.extend(self.port.to_ne_bytes());
        bytes.extend_from_slice(body);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes
    }

    /// Adds one message of several.
    pub fn add(&mut self, kind: u16, body: &Body) {
        let message = self.message(kind, NLM_F_MULTI, &body.0);
        match self.datagrams.back_mut() {
            Some(last) if last.len() + message.len() <= DATAGRAM_LEN => last.extend(message),
            _ => self.datagrams.push_back(message),
        }
    }

    /// Ends several messages.
    pub fn done(mut self) -> VecDeque<Vec<u8>> {
        let mut body = Body::default();
        body.u32(0);
        self.add(NLMSG_DONE, &body);
        self.datagrams
    }

    /// Returns a single message.
    pub fn single(mut self, kind: u16, body: &Body) -> VecDeque<Vec<u8>> {
        self.datagrams.push_back(self.message(kind, 0, &body.0));
        self.datagrams
    }

    /// Returns an error with the request, or the confirmation of success, with its header.
    pub fn result(mut self, result: Result<(), Errno>) -> VecDeque<Vec<u8>> {
        let number = result.err().map_or(0, |error| -i32::from(error.number().cast_signed()));
        let mut body = number.to_ne_bytes().to_vec();
        let (request, flags) = if number == 0 {
            (&self.request.whole[..HEADER_LEN], NLM_F_CAPPED)
        } else {
            (self.request.whole, 0)
        };
        body.extend_from_slice(request);
        let message = self.message(NLMSG_ERROR, flags, &body);
        self.datagrams.push_back(message);
        self.datagrams
    }
}
