//! Binary packets. This encoder and parser are independent of the crate under test.

/// A request.
#[derive(Clone, Default)]
pub struct Request<'a> {
    pub opcode: u8,
    pub key: &'a [u8],
    pub extras: &'a [u8],
    pub value: &'a [u8],
    pub cas: u64,
}

pub const OPAQUE: u32 = 0xdead_beef;

impl Request<'_> {
    pub fn bytes(&self) -> Vec<u8> {
        let body_len = (self.extras.len() + self.key.len() + self.value.len()) as u32;
        let mut out = vec![0x80, self.opcode];
        out.extend((self.key.len() as u16).to_be_bytes());
        out.extend([self.extras.len() as u8, 0, 0, 0]);
        out.extend(body_len.to_be_bytes());
        out.extend(OPAQUE.to_be_bytes());
        out.extend(self.cas.to_be_bytes());
        out.extend(self.extras);
        out.extend(self.key);
        out.extend(self.value);
        out
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub opcode: u8,
    pub status: u16,
    pub opaque: u32,
    pub cas: u64,
    pub extras: Vec<u8>,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// Parses all answers in `bytes`, which must be complete.
pub fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[0], 0x81, "magic of an answer in {bytes:x?}");
        let key_len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        let extras_len = usize::from(bytes[4]);
        let body_len = u32::from_be_bytes(bytes[8..12].try_into().unwrap()) as usize;
        let (body, rest) = bytes[24..].split_at(body_len);
        out.push(Answer {
            opcode: bytes[1],
            status: u16::from_be_bytes([bytes[6], bytes[7]]),
            opaque: u32::from_be_bytes(bytes[12..16].try_into().unwrap()),
            cas: u64::from_be_bytes(bytes[16..24].try_into().unwrap()),
            extras: body[..extras_len].to_vec(),
            key: body[extras_len..extras_len + key_len].to_vec(),
            value: body[extras_len + key_len..].to_vec(),
        });
        bytes = rest;
    }
    out
}

/// Returns the extras of a store.
pub fn store_extras(flags: u32, exptime: u32) -> Vec<u8> {
    [flags.to_be_bytes(), exptime.to_be_bytes()].concat()
}

/// Returns the extras of a count.
pub fn count_extras(delta: u64, initial: u64, exptime: u32) -> Vec<u8> {
    [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &exptime.to_be_bytes()].concat()
}
