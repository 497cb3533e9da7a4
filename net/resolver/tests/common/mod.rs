//! Messages of a server, built byte by byte, so that tests can make any field wrong.
#![allow(dead_code)] // Each test uses only some of these.

/// Record types.
pub const A: u16 = 1;
pub const CNAME: u16 = 5;
pub const SOA: u16 = 6;
pub const AAAA: u16 = 28;

/// Returns a name in wire format.
pub fn name(text: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in text.split('.').filter(|label| !label.is_empty()) {
        wire.push(label.len() as u8);
        wire.extend(label.bytes());
    }
    wire.push(0);
    wire
}

/// Returns a record of class IN in wire format.
pub fn record(owner: &str, kind: u16, ttl_s: u32, data: &[u8]) -> Vec<u8> {
    let mut wire = name(owner);
    wire.extend(kind.to_be_bytes());
    wire.extend([0, 1]);
    wire.extend(ttl_s.to_be_bytes());
    wire.extend((data.len() as u16).to_be_bytes());
    wire.extend(data);
    wire
}

/// Returns a SOA record, which determines the validity of a negative answer.
pub fn soa(owner: &str, ttl_s: u32, minimum_s: u32) -> Vec<u8> {
    let mut data = [name("ns.example"), name("admin.example")].concat();
    [1, 2, 3, 4, minimum_s].iter().for_each(|number| data.extend(number.to_be_bytes()));
    record(owner, SOA, ttl_s, &data)
}

/// An answer of a server.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The response code: 0 for no error, 3 for a name that does not exist.
    pub code: u8,
    /// Whether the answer did not fit.
    pub truncated: bool,
    pub answers: Vec<Vec<u8>>,
    pub authority: Vec<Vec<u8>>,
}

impl Reply {
    /// Returns a reply with these records.
    pub fn of(answers: Vec<Vec<u8>>) -> Self {
        Self { answers, ..Self::default() }
    }

    /// Returns the message that answers a query.
    pub fn to(&self, query: &[u8]) -> Vec<u8> {
        let mut wire = query[..2].to_vec();
        wire.extend([0x81 | u8::from(self.truncated) << 1, 0x80 | self.code, 0, 1]);
        wire.extend((self.answers.len() as u16).to_be_bytes());
        wire.extend((self.authority.len() as u16).to_be_bytes());
        wire.extend([0, 0]);
        wire.extend(question(query));
        wire.extend(self.answers.concat());
        wire.extend(self.authority.concat());
        wire
    }
}

/// Returns the question of a query: name, type and class.
pub fn question(query: &[u8]) -> &[u8] {
    let mut end = 12;
    while query[end] != 0 {
        end += usize::from(query[end]) + 1;
    }
    &query[12..end + 5]
}

/// Returns the name of a query in lower case, and its type.
pub fn question_of(query: &[u8]) -> (String, u16) {
    let question = question(query);
    let (wire, rest) = question.split_at(question.len() - 4);
    let mut labels = Vec::new();
    let mut left = wire;
    while left[0] != 0 {
        let (label, behind) = left[1..].split_at(usize::from(left[0]));
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        left = behind;
    }
    (labels.join("."), u16::from_be_bytes([rest[0], rest[1]]))
}
