//! Decoding of answers: whether a message answers a query, and its contents (RFC 1035, 4.1; RFC 5452).

use crate::name::HostName;
use crate::query::{Kind, Query};
use alloc::vec::Vec;
use core::net::IpAddr;
use domain::base::iana::{Class, OptRcode, Rtype};
use domain::base::{Message, ParsedName, Ttl};
use domain::rdata::{A, Aaaa, Cname, Soa};

/// The maximum number of aliases from one name to the next, within an answer and within a lookup.
pub const MAX_CHAIN: usize = 8;

/// The maximum number of addresses of a name; further ones are ignored.
pub const MAX_ADDRESSES: usize = 32;

/// The maximum time to live, in s: a day.
const MAX_TTL_S: u32 = 86_400;

/// The maximum time to live of a negative answer, in s: three hours (RFC 2308, 5).
const MAX_NEGATIVE_TTL_S: u32 = 3 * 3_600;

/// The length of a header, in bytes.
const HEADER_LEN: usize = 12;

/// The reason why a message does not answer a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// It is too short, or no response.
    NoAnswer,
    /// It has another id.
    Id,
    /// It repeats another question.
    Question,
    /// It repeats the question with other letter case: the sender is an off-path forger, or a server that changes it.
    Letters,
}

/// The contents of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The name has these addresses, valid for this time in s.
    Addresses(Vec<IpAddr>, u32),
    /// The name is an alias of this name, of which the answer has no addresses. Valid for this time in s.
    Alias(HostName, u32),
    /// The name has no addresses of this kind. Valid for this time in s, if the answer has one.
    Nothing(Option<u32>),
    /// The name does not exist. Valid for this time in s, if the answer has one.
    NoName(Option<u32>),
    /// The answer did not fit.
    Truncated,
    /// The server does not support EDNS (RFC 6891, 7).
    NoEdns,
    /// The server failed, refused, or sent an invalid answer.
    Failed,
}

/// Decodes a message as an answer to `query`.
///
/// # Errors
/// [`Mismatch`] if it does not answer the query; the caller ignores the message.
pub fn read(query: &Query, bytes: &[u8]) -> Result<Answer, Mismatch> {
    let message = Message::from_octets(bytes).map_err(|_| Mismatch::NoAnswer)?;
    let header = message.header();
    if !header.qr() || header.opcode() != domain::base::iana::Opcode::QUERY {
        return Err(Mismatch::NoAnswer);
    }
    if header.id() != query.id() {
        return Err(Mismatch::Id);
    }
    let repeated = bytes.get(HEADER_LEN..HEADER_LEN + query.question().len());
    match repeated.filter(|_| message.header_counts().qdcount() == 1) {
        Some(repeated) if repeated == query.question() => {}
        Some(repeated) if repeated.eq_ignore_ascii_case(query.question()) => return Err(Mismatch::Letters),
        // A server that cannot parse the query may omit the question.
        None if message.header_counts().qdcount() == 0 && header.rcode().to_int() == 1 => {}
        _ => return Err(Mismatch::Question),
    }
    if header.tc() {
        return Ok(Answer::Truncated);
    }
    Ok(match message.opt_rcode() {
        OptRcode::NOERROR => follow(query.kind(), &message).unwrap_or(Answer::Failed),
        OptRcode::NXDOMAIN => Answer::NoName(negative_ttl(&message)),
        OptRcode::FORMERR | OptRcode::NOTIMP | OptRcode::BADVERS => Answer::NoEdns,
        _ => Answer::Failed,
    })
}

/// Follows aliases from the question's name to its addresses. Returns `None` if the message is malformed or there are
/// too many aliases, for example in a loop.
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

/// Returns the addresses of a name and their time to live in s; `None` if the message is malformed.
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

/// Returns the name of which a name is an alias, if it is one, and the time to live in s. The outer `None` is a
/// malformed message.
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

/// Returns the time to live of a negative answer, in s (RFC 2308, 5): the lower of the SOA record's own and its minimum
/// field.
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

/// Returns a time to live in s, limited to [`MAX_TTL_S`]. With its highest bit set it counts as 0 (RFC 2181, 8).
fn seconds(ttl: Ttl) -> u32 {
    let seconds = ttl.as_secs();
    if seconds > i32::MAX as u32 { 0 } else { seconds.min(MAX_TTL_S) }
}
