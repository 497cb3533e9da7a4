//! An answer on the wire: whether it is one to the question, and what it says (RFC 1035, 4.1; RFC 5452).

use crate::name::HostName;
use crate::query::{Kind, Query};
use alloc::vec::Vec;
use core::net::IpAddr;
use domain::base::iana::{Class, OptRcode, Rtype};
use domain::base::{Message, ParsedName, Ttl};
use domain::rdata::{A, Aaaa, Cname, Soa};

/// Aliases that lead from one name to another in an answer, at most.
pub const MAX_CHAIN: usize = 8;

/// Addresses of a name that are kept, at most.
pub const MAX_ADDRESSES: usize = 32;

/// The longest time that anything is good for, in s: a day.
const MAX_TTL_S: u32 = 86_400;

/// The longest time that it is good that there is nothing, in s: three hours (RFC 2308, 5).
const MAX_NEGATIVE_TTL_S: u32 = 3 * 3_600;

/// Bytes of a header.
const HEADER_LEN: usize = 12;

/// Why a message is no answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistrust {
    /// It is too short, or no answer at all.
    NoAnswer,
    /// It has another id.
    Id,
    /// It repeats another question.
    Question,
    /// It repeats the question in other letters: a forger who did not see it, or a server that changes it.
    Letters,
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The name has these addresses, for so many seconds.
    Addresses(Vec<IpAddr>, u32),
    /// It is an alias of another name, which the answer says nothing of.
    Alias(HostName, u32),
    /// It has no addresses of this kind. That is good for so many seconds, where the answer says.
    Nothing(Option<u32>),
    /// There is no such name. That is good for so many seconds, where the answer says.
    NoName(Option<u32>),
    /// It did not fit.
    Truncated,
    /// The server cannot read questions with an offer (RFC 6891, 7).
    NoOffers,
    /// The server does not know, does not want to, or talks nonsense.
    Failed,
}

/// Reads what came as an answer to `query`.
///
/// # Errors
/// [`Mistrust`], where it is none: it is then as if nothing had come.
pub fn read(query: &Query, bytes: &[u8]) -> Result<Answer, Mistrust> {
    let message = Message::from_octets(bytes).map_err(|_| Mistrust::NoAnswer)?;
    let header = message.header();
    if !header.qr() || header.opcode() != domain::base::iana::Opcode::QUERY {
        return Err(Mistrust::NoAnswer);
    }
    if header.id() != query.id() {
        return Err(Mistrust::Id);
    }
    let repeated = bytes.get(HEADER_LEN..HEADER_LEN + query.question().len());
    match repeated.filter(|_| message.header_counts().qdcount() == 1) {
        Some(repeated) if repeated == query.question() => {}
        Some(repeated) if repeated.eq_ignore_ascii_case(query.question()) => return Err(Mistrust::Letters),
        // Who cannot read a question may not repeat it either.
        None if message.header_counts().qdcount() == 0 && header.rcode().to_int() == 1 => {}
        _ => return Err(Mistrust::Question),
    }
    if header.tc() {
        return Ok(Answer::Truncated);
    }
    Ok(match message.opt_rcode() {
        OptRcode::NOERROR => follow(query.kind(), &message).unwrap_or(Answer::Failed),
        OptRcode::NXDOMAIN => Answer::NoName(negative_ttl(&message)),
        OptRcode::FORMERR | OptRcode::NOTIMP | OptRcode::BADVERS => Answer::NoOffers,
        _ => Answer::Failed,
    })
}

/// Follows aliases from the question's name to its addresses. `None` where the message is broken, or aliases go round.
fn follow(kind: Kind, message: &Message<&[u8]>) -> Option<Answer> {
    let mut name = HostName::of(message.sole_question().ok()?.qname());
    let mut ttl_s = MAX_TTL_S;
    for hop in 0..=MAX_CHAIN {
        let (addresses, least_s) = addresses(kind, message, &name)?;
        if !addresses.is_empty() {
            return Some(Answer::Addresses(addresses, ttl_s.min(least_s)));
        }
        let Some((next, next_s)) = alias(message, &name)? else {
            let negative = negative_ttl(message);
            return Some(if hop > 0 && negative.is_none() {
                Answer::Alias(name, ttl_s)
            } else {
                Answer::Nothing(negative.map(|negative_s| negative_s.min(ttl_s)))
            });
        };
        name = next;
        ttl_s = ttl_s.min(next_s);
    }
    None
}

/// The addresses of a name, and how long they are good for.
fn addresses(kind: Kind, message: &Message<&[u8]>, name: &HostName) -> Option<(Vec<IpAddr>, u32)> {
    let mut found = Vec::new();
    let mut ttl_s = MAX_TTL_S;
    for record in message.answer().ok()? {
        let record = record.ok()?;
        let is_asked = record.rtype() == kind.rtype() && record.class() == Class::IN;
        if !is_asked || record.owner() != *name.as_name() || found.len() >= MAX_ADDRESSES {
            continue;
        }
        let address = match kind {
            Kind::Ipv4 => IpAddr::V4(record.to_record::<A>().ok()??.data().addr()),
            Kind::Ipv6 => IpAddr::V6(record.to_record::<Aaaa>().ok()??.data().addr()),
        };
        ttl_s = ttl_s.min(seconds(record.ttl()));
        found.push(address);
    }
    Some((found, ttl_s))
}

/// What a name is an alias of, if it is one, and for how long. `None` where the message is broken.
fn alias(message: &Message<&[u8]>, name: &HostName) -> Option<Option<(HostName, u32)>> {
    for record in message.answer().ok()? {
        let record = record.ok()?;
        if record.rtype() == Rtype::CNAME && record.class() == Class::IN && record.owner() == *name.as_name()
        {
            let data = record.to_record::<Cname<ParsedName<&[u8]>>>().ok()??;
            return Some(Some((HostName::of(data.data().cname()), seconds(record.ttl()))));
        }
    }
    Some(None)
}

/// How long it is good that there is nothing (RFC 2308, 5): as the record SOA says, in two places.
fn negative_ttl(message: &Message<&[u8]>) -> Option<u32> {
    for record in message.authority().ok()? {
        let record = record.ok()?;
        if record.rtype() == Rtype::SOA && record.class() == Class::IN {
            let data = record.to_record::<Soa<ParsedName<&[u8]>>>().ok()??;
            let ttl_s = seconds(record.ttl()).min(seconds(data.data().minimum()));
            return Some(ttl_s.min(MAX_NEGATIVE_TTL_S));
        }
    }
    None
}

/// A time to live (RFC 2181, 8): one with its highest bit set is none.
fn seconds(ttl: Ttl) -> u32 {
    let seconds = ttl.as_secs();
    if seconds > i32::MAX as u32 { 0 } else { seconds.min(MAX_TTL_S) }
}
