//! Lookups query by query, without a network.

mod common;

use common::{A, AAAA, CNAME, Reply, name, question, question_of, record, soa};
use isola_proves::proves;
use isola_resolver::lookup::{
    Config, Lookup, LookupResult, MessageEffect, Outcome, QueryMessage, Step, Transport,
};
use isola_resolver::query::LetterCase;
use isola_resolver::{HostName, Kind, ResolveError};
use std::net::SocketAddr;
use std::time::Duration;

const SERVERS: [&str; 2] = ["10.0.0.1:53", "10.0.0.2:53"];

fn servers() -> Vec<SocketAddr> {
    SERVERS.iter().map(|server| server.parse().unwrap()).collect()
}

/// A lookup of www.example.org, with random bits that the test can predict.
struct Test {
    lookup: Lookup,
    random: u64,
}

impl Test {
    fn new(kind: Kind) -> Self {
        Self::with(Config::default(), kind)
    }

    fn with(config: Config, kind: Kind) -> Self {
        let name = HostName::parse("www.example.org").unwrap();
        Self { lookup: Lookup::new(&config, name, kind, &servers()), random: 0x9e37_79b9_7f4a_7c15 }
    }

    fn step(&mut self) -> Step {
        let random = &mut self.random;
        self.lookup.next(&mut || {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *random ^ *random >> 32
        })
    }

    fn ask(&mut self) -> QueryMessage {
        match self.step() {
            Step::Send(ask) => ask,
            done => panic!("{done:?}"),
        }
    }

    fn done(&mut self) -> Result<LookupResult, ResolveError> {
        match self.step() {
            Step::Done(done) => done,
            ask => panic!("{ask:?}"),
        }
    }

    /// Answers the present query.
    fn answer(&mut self, reply: &Reply) -> MessageEffect {
        let ask = self.ask();
        self.lookup.receive(ask.server, &reply.to(&ask.message))
    }
}

fn www(last: u8) -> Vec<u8> {
    record("www.example.org", A, 300, &[192, 0, 2, last])
}

fn addresses(found: &LookupResult) -> Vec<String> {
    match &found.outcome {
        Outcome::Addresses(addresses) => addresses.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

#[proves("RFC 2181 5.2", "the records of one name and type are valid for their shortest time to live.")]
#[test]
fn a_lookup_returns_the_addresses_of_the_answer() {
    let mut test = Test::new(Kind::Ipv4);
    let short = record("WWW.example.org", A, 60, &[192, 0, 2, 2]);
    assert_eq!(test.answer(&Reply::of(vec![www(1), short])), MessageEffect::Next);
    let found = test.done().unwrap();
    assert_eq!((addresses(&found), found.ttl_s), (vec!["192.0.2.1".into(), "192.0.2.2".into()], 60));
}

#[proves("RFC 3596 2.2", "an IPv6 address is the sixteen bytes of an AAAA record.")]
#[test]
fn ipv6_addresses_are_queried_by_their_own_type() {
    let mut test = Test::new(Kind::Ipv6);
    let ask = test.ask();
    assert_eq!(question_of(&ask.message), ("www.example.org".into(), AAAA));
    let data = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    let reply = Reply::of(vec![record("www.example.org", AAAA, 1, &data)]).to(&ask.message);
    assert_eq!(test.lookup.receive(ask.server, &reply), MessageEffect::Next);
    assert_eq!(addresses(&test.done().unwrap()), ["2001:db8::7"]);
}

#[proves("RFC 5452 9.1", "an answer matches its query in source, id, name, type and class.")]
#[proves("RFC 5452 4", "ids are random.")]
#[test]
fn messages_that_do_not_match_the_query_are_ignored() {
    let mut test = Test::new(Kind::Ipv4);
    let ask = test.ask();
    let good = Reply::of(vec![www(1)]).to(&ask.message);
    let change = |at: usize, bits: u8| {
        let mut wrong = good.clone();
        wrong[at] ^= bits;
        wrong
    };
    let server = ask.server;
    let other_port = SocketAddr::new(server.ip(), 5353);
    let end = 12 + question(&ask.message).len();
    for (from, message) in [
        (servers()[1], good.clone()),
        (other_port, good.clone()),
        (server, change(0, 1)),
        (server, change(1, 1)),
        (server, change(2, 0x80)),
        (server, change(2, 0x08)),
        (server, change(13, 1)),
        (server, change(end - 3, 29)),
        (server, change(end - 1, 2)),
        (server, change(5, 1)),
        (server, good[..11].to_vec()),
        (server, good[..end - 1].to_vec()),
        (server, ask.message.clone()),
        (server, Vec::new()),
    ] {
        assert_eq!(test.lookup.receive(from, &message), MessageEffect::Ignored, "{message:?}");
    }
    assert_eq!(test.lookup.receive(server, &good), MessageEffect::Next);
    assert_eq!(addresses(&test.done().unwrap()), ["192.0.2.1"]);
    let ids: std::collections::BTreeSet<_> = (0..8)
        .map(|seed| Test { random: seed, ..Test::new(Kind::Ipv4) }.ask().message[..2].to_vec())
        .collect();
    assert!(ids.len() >= 7, "{ids:?}");
}

#[proves("RFC 5452 9.3", "a resolver that receives many wrong answers changes the transport.")]
#[test]
fn after_many_forgeries_the_query_is_repeated_over_tcp() {
    let mut test = Test::new(Kind::Ipv4);
    let ask = test.ask();
    let mut forged = Reply::of(vec![www(66)]).to(&ask.message);
    let mut count = 0;
    loop {
        forged[0] = forged[0].wrapping_add(1);
        count += 1;
        if test.lookup.receive(ask.server, &forged) == MessageEffect::Next {
            break;
        }
    }
    assert_eq!(count, 16);
    let again = test.ask();
    assert_eq!((again.transport, again.server), (Transport::Tcp, ask.server));
    // The right answer to the first query comes too late.
    let late = Reply::of(vec![www(66)]).to(&ask.message);
    assert_ne!(ask.message[..2], again.message[..2], "the second query has its own id");
    assert_eq!(test.lookup.receive(ask.server, &late), MessageEffect::Next);
    assert_eq!(test.ask().server, servers()[1]);
}

#[test]
fn a_server_that_changes_the_letter_case_is_queried_over_tcp() {
    let mut test = Test::new(Kind::Ipv4);
    let ask = test.ask();
    assert_ne!(question(&ask.message), question(&ask.message).to_ascii_lowercase());
    let mut changed = Reply::of(vec![www(1)]).to(&ask.message);
    changed.make_ascii_lowercase();
    changed[..12].copy_from_slice(&Reply::of(vec![www(1)]).to(&ask.message)[..12]);
    assert_eq!(test.lookup.receive(ask.server, &changed), MessageEffect::Next);
    assert_eq!(test.ask().transport, Transport::Tcp);
    let small = Config { letter_case: LetterCase::Lower, ..Config::default() };
    let ask = Test::with(small, Kind::Ipv4).ask();
    assert_eq!(question(&ask.message), question(&ask.message).to_ascii_lowercase());
}

#[proves("RFC 1034 5.2.2", "aliases are followed, in the answer and by further queries.")]
#[test]
fn aliases_are_followed() {
    let mut test = Test::new(Kind::Ipv4);
    let to_b = record("www.example.org", CNAME, 50, &name("b.example.net"));
    let to_c = record("B.Example.net", CNAME, 500, &name("c.example.net"));
    assert_eq!(test.answer(&Reply::of(vec![to_c.clone(), to_b.clone()])), MessageEffect::Next);
    let ask = test.ask();
    assert_eq!(question_of(&ask.message).0, "c.example.net");
    let reply = Reply::of(vec![record("c.example.net", A, 400, &[192, 0, 2, 9])]);
    test.lookup.receive(ask.server, &reply.to(&ask.message));
    let found = test.done().unwrap();
    assert_eq!((addresses(&found), found.ttl_s), (vec!["192.0.2.9".to_owned()], 50));
    let mut test = Test::new(Kind::Ipv4);
    test.answer(&Reply::of(vec![to_b, to_c, record("c.example.net", A, 400, &[192, 0, 2, 9])]));
    assert_eq!(addresses(&test.done().unwrap()), ["192.0.2.9"]);
}

#[proves("RFC 1034 3.6.2", "a loop of aliases is an error and ends.")]
#[test]
fn a_loop_of_aliases_ends() {
    let mut test = Test::new(Kind::Ipv4);
    let there = record("www.example.org", CNAME, 50, &name("b.example.net"));
    let back = record("b.example.net", CNAME, 50, &name("www.example.org"));
    test.answer(&Reply::of(vec![there, back]));
    assert_eq!(test.ask().server, servers()[1], "the first server's answer is invalid");
    // One alias per query.
    let mut test = Test::new(Kind::Ipv4);
    let mut count = 0;
    let error = loop {
        match test.step() {
            Step::Done(done) => break done.unwrap_err(),
            Step::Send(ask) => {
                let (question_of, _) = question_of(&ask.message);
                let reply =
                    Reply::of(vec![record(&question_of, CNAME, 5, &name(&format!("x.{question_of}")))]);
                test.lookup.receive(ask.server, &reply.to(&ask.message));
                count += 1;
            }
        }
    };
    assert_eq!((error, count), (ResolveError::Aliases, 9));
}

#[proves("RFC 5452 6", "records of other names than the requested one are ignored.")]
#[test]
fn records_of_other_names_are_ignored() {
    let mut test = Test::new(Kind::Ipv4);
    let other = record("bank.example", A, 300, &[192, 0, 2, 66]);
    let kind = record("www.example.org", 16, 300, b"\x03txt");
    assert_eq!(test.answer(&Reply::of(vec![other, kind])), MessageEffect::Next);
    assert_eq!(test.done(), Ok(LookupResult { outcome: Outcome::Nothing, ttl_s: 0 }));
}

#[proves("RFC 2308 5", "a negative answer is valid for the shorter of the SOA record's two times.")]
#[proves("RFC 2308 2.1", "a name error applies to all types of the name.")]
#[test]
fn negative_answers_have_the_validity_of_their_soa_record() {
    for (code, outcome) in [(0, Outcome::Nothing), (3, Outcome::NoName)] {
        for (ttl_s, minimum_s, good_s) in [(600, 30, 30), (20, 3_600, 20), (90_000, 90_000, 10_800)] {
            let mut test = Test::new(Kind::Ipv4);
            let reply =
                Reply { code, authority: vec![soa("example.org", ttl_s, minimum_s)], ..Reply::default() };
            test.answer(&reply);
            assert_eq!(test.done(), Ok(LookupResult { outcome: outcome.clone(), ttl_s: good_s }));
        }
        let mut test = Test::new(Kind::Ipv4);
        test.answer(&Reply { code, ..Reply::default() });
        assert_eq!(test.done(), Ok(LookupResult { outcome, ttl_s: 0 }));
    }
}

#[proves("RFC 2181 8", "a time to live with its highest bit set counts as zero.")]
#[test]
fn the_time_to_live_is_limited() {
    for (ttl_s, good_s) in [(0xffff_ffff, 0), (0x7fff_ffff, 86_400), (0, 0)] {
        let mut test = Test::new(Kind::Ipv4);
        test.answer(&Reply::of(vec![record("www.example.org", A, ttl_s, &[192, 0, 2, 1])]));
        assert_eq!(test.done().unwrap().ttl_s, good_s);
    }
}

#[proves("RFC 7766 5", "after a truncated answer the same server is queried over TCP.")]
#[test]
fn after_a_truncated_answer_the_query_is_repeated_over_tcp() {
    let mut test = Test::new(Kind::Ipv4);
    let truncated = Reply { truncated: true, ..Reply::of(vec![www(1)]) };
    assert_eq!(test.answer(&truncated), MessageEffect::Next);
    let ask = test.ask();
    assert_eq!((ask.transport, ask.server), (Transport::Tcp, servers()[0]));
    test.lookup.receive(ask.server, &Reply::of(vec![www(2)]).to(&ask.message));
    assert_eq!(addresses(&test.done().unwrap()), ["192.0.2.2"]);
    // A truncated answer over TCP is invalid.
    let mut test = Test::new(Kind::Ipv4);
    test.answer(&truncated);
    test.answer(&truncated);
    let ask = test.ask();
    assert_eq!((ask.transport, ask.server), (Transport::Udp, servers()[1]));
}

#[proves("RFC 6891 7", "a server that does not support EDNS is queried without it.")]
#[test]
fn a_server_without_edns_is_queried_without_it() {
    for code in [1, 4] {
        let mut test = Test::new(Kind::Ipv4);
        assert_eq!(test.ask().message[11], 1, "the query has an EDNS record");
        test.answer(&Reply { code, ..Reply::default() });
        let ask = test.ask();
        assert_eq!((ask.message[11], ask.server), (0, servers()[0]));
        test.answer(&Reply { code, ..Reply::default() });
        assert_eq!(test.ask().server, servers()[1]);
    }
    // An answer without the question, which the server could not parse either.
    let mut test = Test::new(Kind::Ipv4);
    let ask = test.ask();
    let mut bare = ask.message[..12].to_vec();
    bare[2..].copy_from_slice(&[0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(test.lookup.receive(ask.server, &bare), MessageEffect::Next);
    assert_eq!(test.ask().message[11], 0);
}

#[proves("RFC 1035 7.2", "servers are queried in turn, in rounds with increasing timeouts.")]
#[test]
fn servers_that_do_not_answer_or_fail_are_skipped() {
    let mut test = Test::new(Kind::Ipv4);
    for (server, seconds) in [(0, 2), (1, 2), (0, 4), (1, 4)] {
        let ask = test.ask();
        assert_eq!((ask.server, ask.timeout), (servers()[server], Duration::from_secs(seconds)));
        test.lookup.time_out();
    }
    assert_eq!(test.done(), Err(ResolveError::Unanswered));
    let mut test = Test::new(Kind::Ipv4);
    for code in [2, 5, 2, 9] {
        test.answer(&Reply { code, ..Reply::default() });
    }
    assert_eq!(test.done(), Err(ResolveError::Failed));
    let name = HostName::parse("a.org").unwrap();
    let mut without_servers = Lookup::new(&Config::default(), name, Kind::Ipv4, &[]);
    assert_eq!(without_servers.next(&mut || 0), Step::Done(Err(ResolveError::NoServers)));
}

#[proves(
    "RFC 1035 4.1.4",
    "a compression pointer leads backwards; loops and pointers forwards or out of the message are rejected."
)]
#[test]
fn invalid_compression_pointers_are_rejected() {
    let mut test = Test::new(Kind::Ipv4);
    let start = Reply::of(Vec::new()).to(&test.ask().message).len() as u8;
    let tail = [0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 66];
    for pointer in [[0xc0, start], [0xc0, start + 2], [0xff, 0xff], [0xc0, 0], [0x80, 0], [0x40, 0]] {
        let mut test = Test::new(Kind::Ipv4);
        test.answer(&Reply::of(vec![[&pointer[..], &tail].concat()]));
        match test.step() {
            Step::Send(ask) => assert_eq!(ask.server, servers()[1], "{pointer:?}"),
            // A pointer into the header may be a valid name, but not the requested one.
            Step::Done(done) => assert_eq!(done.unwrap().outcome, Outcome::Nothing, "{pointer:?}"),
        }
    }
    // The usual pointer, to the question.
    let mut test = Test::new(Kind::Ipv4);
    test.answer(&Reply::of(vec![[&[0xc0, 12][..], &tail].concat()]));
    assert_eq!(addresses(&test.done().unwrap()), ["192.0.2.66"]);
}

#[test]
fn addresses_beyond_the_limit_are_ignored() {
    let mut test = Test::new(Kind::Ipv4);
    test.answer(&Reply::of((0..100).map(www).collect()));
    assert_eq!(addresses(&test.done().unwrap()).len(), 32);
}
