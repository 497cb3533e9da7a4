//! The DNS resolver. The property tests of that crate run the same targets.

use isola_resolver::answer::{Answer, MAX_ADDRESSES, read};
use isola_resolver::lookup::{Config, Lookup, Step};
use isola_resolver::query::{Edns, LetterCase, Query};
use isola_resolver::{HostName, Kind};
use std::net::SocketAddr;

/// The maximum number of queries of a lookup: 10 names along the aliases, for each of them two rounds of two servers,
/// and each of these with EDNS, without it and over TCP.
const MOST_QUESTIONS: usize = 10 * 4 * 3;

/// Decodes a message as an answer: as it is, and with a matching header and question.
pub fn answers(data: &[u8]) {
    let name = HostName::parse("a.example").expect("it is a name");
    let query =
        Query::new(&name, Kind::Ipv4, Edns::Offered, LetterCase::Mixed, &mut || 0x5555_5555_5555_5555);
    let _ = read(&query, data);
    if let Ok(Answer::Addresses(addresses, _)) = read(&query, &fitting(&query.to_bytes(), data)) {
        assert!(!addresses.is_empty() && addresses.len() <= MAX_ADDRESSES);
    }
}

/// Passes messages to a lookup, one after the other: it must end.
pub fn lookups(data: &[u8]) {
    let servers: [SocketAddr; 2] = [([10, 0, 0, 1], 53).into(), ([10, 0, 0, 2], 53).into()];
    let name = HostName::parse("a.example").expect("it is a name");
    let mut lookup = Lookup::new(&Config::default(), name, Kind::Ipv4, &servers);
    let mut messages = data.split(|byte| *byte == 0x7f);
    let mut bits = 0_u64;
    for _ in 0..MOST_QUESTIONS {
        let random = &mut || {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bits
        };
        let Step::Send(ask) = lookup.next(random) else { return };
        let Some(message) = messages.next() else {
            lookup.time_out();
            continue;
        };
        lookup.receive(ask.server, message);
        if lookup.receive(ask.server, &fitting(&ask.message, message))
            == isola_resolver::lookup::MessageEffect::Ignored
        {
            lookup.time_out();
        }
    }
    panic!("the lookup does not received to an end");
}

/// Returns the data as an answer that matches the query: the first bytes are response code and counts.
fn fitting(query: &[u8], data: &[u8]) -> Vec<u8> {
    let byte = |at: usize| data.get(at).copied().unwrap_or_default();
    let mut answer = query.to_vec();
    // The question only, without the EDNS record.
    let end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap_or_default() + 5;
    answer.truncate(end);
    answer[2] = 0x81 | byte(0) & 2;
    answer[3] = 0x80 | byte(1) & 7;
    answer[6..12].copy_from_slice(&[0, byte(2) & 7, 0, byte(3) & 3, 0, byte(4) & 1]);
    answer.extend(data.get(5..).unwrap_or_default());
    answer
}
