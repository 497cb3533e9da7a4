//! Queries on the wire (RFC 1035, 4.1).

use crate::name::HostName;
use alloc::vec::Vec;
use domain::base::iana::Rtype;
use domain::base::{MessageBuilder, Name};

/// The maximum length of an answer over UDP, in bytes: it passes nearly all networks unfragmented.
pub const UDP_PAYLOAD: u16 = 1232;

/// The kind of records to query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// IPv4 addresses (record A).
    Ipv4,
    /// IPv6 addresses (record AAAA).
    Ipv6,
}

impl Kind {
    pub(crate) const fn rtype(self) -> Rtype {
        match self {
            Self::Ipv4 => Rtype::A,
            Self::Ipv6 => Rtype::AAAA,
        }
    }
}

/// Whether a query has an EDNS record with the sender's capabilities (RFC 6891).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edns {
    /// It has one.
    Offered,
    /// It has none, as the server does not support it.
    Omitted,
}

/// The letter case of a name in a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterCase {
    /// Random: an off-path forger cannot repeat it.
    Mixed,
    /// Lower case.
    Lower,
}

/// A query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    id: u16,
    /// Name, type and class, in wire format.
    question: Vec<u8>,
    kind: Kind,
    edns: Edns,
}

impl Query {
    /// Creates a query for addresses of `name`. `random` returns unpredictable bits.
    pub fn new(
        name: &HostName,
        kind: Kind,
        edns: Edns,
        letter_case: LetterCase,
        random: &mut dyn FnMut() -> u64,
    ) -> Self {
        let mut question = name.key();
        if letter_case == LetterCase::Mixed {
            for letters in question.chunks_mut(64) {
                let bits = random();
                for (number, byte) in letters.iter_mut().enumerate() {
                    if bits >> number & 1 == 1 {
                        byte.make_ascii_uppercase();
                    }
                }
            }
        }
        question.extend(kind.rtype().to_int().to_be_bytes());
        // Class IN.
        question.extend([0, 1]);
        Self { id: random() as u16, question, kind, edns }
    }

    /// Returns the id.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Returns the kind of records.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns name, type and class, in the wire format behind the header.
    pub fn question(&self) -> &[u8] {
        &self.question
    }

    /// Returns the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.build().unwrap_or_default()
    }

    /// Builds the message; `None` if it does not fit, which cannot happen with a vector.
    fn build(&self) -> Option<Vec<u8>> {
        let name = Name::from_octets(&self.question[..self.question.len() - 4]).ok()?;
        let mut message = MessageBuilder::new_vec();
        message.header_mut().set_id(self.id);
        message.header_mut().set_rd(true);
        let mut message = message.question();
        message.push((name, self.kind.rtype())).ok()?;
        let mut message = message.additional();
        if self.edns == Edns::Offered {
            let offer = message.opt(|opt| {
                opt.set_udp_payload_size(UDP_PAYLOAD);
                Ok(())
            });
            offer.ok()?;
        }
        Some(message.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    fn query(edns: Edns, letter_case: LetterCase) -> Query {
        let name = HostName::parse("www.example.org").unwrap();
        Query::new(&name, Kind::Ipv6, edns, letter_case, &mut || 0xaaaa_aaaa_aaaa_aaaa)
    }

    #[proves("RFC 1035 4.1.1", "a query asks for recursion in a header with an id and counts.")]
    #[proves("RFC 6891 6.1.2", "the class of the OPT record is the sender's UDP payload size.")]
    #[test]
    fn a_query_has_the_wire_format_of_the_rfcs() {
        let bytes = query(Edns::Offered, LetterCase::Lower).to_bytes();
        assert_eq!(bytes[..12], [0xaa, 0xaa, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(bytes[12..33], *b"\x03www\x07example\x03org\0\x00\x1c\x00\x01");
        assert_eq!(bytes[33..], [0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0]);
        let bare = query(Edns::Omitted, LetterCase::Lower).to_bytes();
        assert_eq!((bare.len(), bare[11]), (33, 0));
    }

    #[test]
    fn only_letters_have_random_case() {
        let mixed = query(Edns::Omitted, LetterCase::Mixed);
        assert_eq!(mixed.question(), b"\x03WwW\x07ExAmPlE\x03OrG\0\x00\x1c\x00\x01");
        assert_eq!(&mixed.to_bytes()[12..], mixed.question());
    }
}
