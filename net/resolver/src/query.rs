//! A question on the wire (RFC 1035, 4.1).

use crate::name::HostName;
use alloc::vec::Vec;
use domain::base::iana::Rtype;
use domain::base::{MessageBuilder, Name};

/// Bytes of an answer that the resolver takes by UDP: what goes through nearly everywhere unfragmented.
pub const UDP_PAYLOAD: u16 = 1232;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Addresses of IPv4 (record A).
    Ipv4,
    /// Addresses of IPv6 (record AAAA).
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

/// Whether a question says which answers its sender can take (RFC 6891).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edns {
    /// It does.
    Offered,
    /// It does not: the server does not know how to read that.
    Left,
}

/// How the letters of a name are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Casing {
    /// Large and small at random: who did not see the question cannot repeat it.
    Mixed,
    /// All small.
    Small,
}

/// A question that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    id: u16,
    /// The name, type and class, as they are on the wire.
    question: Vec<u8>,
    kind: Kind,
    edns: Edns,
}

impl Query {
    /// A question for addresses of `name`. `random` gives bits that nobody can foresee.
    pub fn new(
        name: &HostName,
        kind: Kind,
        edns: Edns,
        casing: Casing,
        random: &mut dyn FnMut() -> u64,
    ) -> Self {
        let mut question = name.key();
        if casing == Casing::Mixed {
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

    /// The id.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// What is asked for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The name, type and class, as they are on the wire behind the header.
    pub fn question(&self) -> &[u8] {
        &self.question
    }

    /// The message.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.build().unwrap_or_default()
    }

    /// `None` where it does not fit, which a vector never says.
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

    fn query(edns: Edns, casing: Casing) -> Query {
        let name = HostName::parse("www.example.org").unwrap();
        Query::new(&name, Kind::Ipv6, edns, casing, &mut || 0xaaaa_aaaa_aaaa_aaaa)
    }

    #[proves("RFC 1035 4.1.1", "a query asks for recursion in a header with an id and counts.")]
    #[proves("RFC 6891 6.1.2", "what a sender takes by UDP stands in the class of the record OPT.")]
    #[test]
    fn a_question_is_on_the_wire_as_it_has_to_be() {
        let bytes = query(Edns::Offered, Casing::Small).to_bytes();
        assert_eq!(bytes[..12], [0xaa, 0xaa, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(bytes[12..33], *b"\x03www\x07example\x03org\0\x00\x1c\x00\x01");
        assert_eq!(bytes[33..], [0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0]);
        let bare = query(Edns::Left, Casing::Small).to_bytes();
        assert_eq!((bare.len(), bare[11]), (33, 0));
    }

    #[test]
    fn letters_are_mixed_and_nothing_else_is() {
        let mixed = query(Edns::Left, Casing::Mixed);
        assert_eq!(mixed.question(), b"\x03WwW\x07ExAmPlE\x03OrG\0\x00\x1c\x00\x01");
        assert_eq!(&mixed.to_bytes()[12..], mixed.question());
    }
}
