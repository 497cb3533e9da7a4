//! What was found out, for as long as it is good: names with addresses, that there are none (RFC 2308), and, for a moment,
//! that nobody knows (RFC 9520).

use crate::error::ResolveError;
use crate::lookup::{Found, Outcome};
use crate::name::HostName;
use crate::query::Kind;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;
use foldhash::quality::SeedableRandomState;
use hashbrown::HashMap;

type Key = (Vec<u8>, Kind);

/// How long it is remembered that nobody knows.
const FAILURE_GOOD: Duration = Duration::from_secs(5);

/// What a lookup came to.
pub type Known = Result<Outcome, ResolveError>;

/// A bounded memory: where it is full, what was remembered first goes first.
#[derive(Debug)]
pub struct Cache {
    entries: HashMap<Key, Entry, SeedableRandomState>,
    /// The keys, in the order in which they came.
    order: VecDeque<Key>,
    limit: usize,
}

#[derive(Debug)]
struct Entry {
    known: Known,
    /// When it came.
    came: Duration,
    /// Until when it is good, on the clock that the cell has.
    until: Duration,
}

impl Cache {
    /// A memory of up to `limit` names and kinds. `seed` is unpredictable.
    pub fn new(limit: usize, seed: u64) -> Self {
        let state = SeedableRandomState::with_seed(seed, foldhash::SharedSeed::global_fixed());
        Self { entries: HashMap::with_hasher(state), order: VecDeque::new(), limit }
    }

    /// What is known at that time, and when it came.
    pub fn get(&self, name: &HostName, kind: Kind, now: Duration) -> Option<(&Known, Duration)> {
        let entry = self.entries.get(&(name.key(), kind))?;
        (now < entry.until).then_some((&entry.known, entry.came))
    }

    /// Remembers what a lookup came to: what was found as long as it is good, and for a moment that nobody answers or knows,
    /// so that not everybody who asks meanwhile waits for that again (RFC 9520 3.2). What went wrong here is not remembered.
    pub fn insert(
        &mut self,
        name: &HostName,
        kind: Kind,
        found: &Result<Found, ResolveError>,
        now: Duration,
    ) {
        let (known, good) = match found {
            Ok(found) => (Ok(found.outcome.clone()), Duration::from_secs(found.ttl_s.into())),
            Err(error @ (ResolveError::Unanswered | ResolveError::Failed | ResolveError::Aliases)) => {
                (Err(error.clone()), FAILURE_GOOD)
            }
            Err(_) => return,
        };
        if good.is_zero() || self.limit == 0 {
            return;
        }
        let key = (name.key(), kind);
        let entry = Entry { known, came: now, until: now.saturating_add(good) };
        if let Some(known) = self.entries.get_mut(&key) {
            *known = entry;
            return;
        }
        while self.entries.len() >= self.limit {
            let Some(oldest) = self.order.pop_front() else { break };
            self.entries.remove(&oldest);
        }
        self.order.push_back(key.clone());
        self.entries.insert(key, entry);
    }

    /// Forgets everything: another network may have other answers.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
    }

    /// How much is remembered, what is not good any more included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;
    use isola_proves::proves;

    fn found(ttl_s: u32) -> Result<Found, ResolveError> {
        Ok(Found { outcome: Outcome::Addresses(vec![[10, 0, 0, 1].into()]), ttl_s })
    }

    fn name(text: &str) -> HostName {
        HostName::parse(text).unwrap()
    }

    #[proves("RFC 1035 3.2.1", "what has a time to live of zero is not remembered.")]
    #[test]
    fn what_was_found_is_known_as_long_as_it_is_good() {
        let mut cache = Cache::new(8, 1);
        let at = Duration::from_secs;
        cache.insert(&name("a.org"), Kind::Ipv4, &found(60), at(100));
        cache.insert(&name("b.org"), Kind::Ipv4, &found(0), at(100));
        assert!(cache.get(&name("A.ORG."), Kind::Ipv4, at(159)).is_some());
        assert!(cache.get(&name("a.org"), Kind::Ipv4, at(160)).is_none());
        assert!(cache.get(&name("a.org"), Kind::Ipv6, at(100)).is_none());
        assert!(cache.get(&name("b.org"), Kind::Ipv4, at(100)).is_none());
        let none = Ok(Found { outcome: Outcome::NoName, ttl_s: 5 });
        cache.insert(&name("a.org"), Kind::Ipv4, &none, at(200));
        assert_eq!(cache.get(&name("a.org"), Kind::Ipv4, at(204)), Some((&Ok(Outcome::NoName), at(200))));
        cache.clear();
        assert!(cache.is_empty() && cache.get(&name("a.org"), Kind::Ipv4, at(204)).is_none());
    }

    #[proves(
        "RFC 9520 3.2",
        "that a lookup failed is remembered for a second at least, and five minutes at most."
    )]
    #[test]
    fn a_failure_is_remembered_for_a_moment_and_what_went_wrong_here_is_not() {
        let (mut cache, at) = (Cache::new(8, 1), Duration::from_secs);
        for error in [ResolveError::Unanswered, ResolveError::Failed, ResolveError::Aliases] {
            cache.insert(&name("a.org"), Kind::Ipv6, &Err(error.clone()), at(100));
            assert_eq!(cache.get(&name("a.org"), Kind::Ipv6, at(101)), Some((&Err(error), at(100))));
            assert!(cache.get(&name("a.org"), Kind::Ipv6, at(400)).is_none());
        }
        for error in [ResolveError::TooMany, ResolveError::NoServers] {
            cache.insert(&name("b.org"), Kind::Ipv6, &Err(error), at(100));
        }
        assert!(cache.get(&name("b.org"), Kind::Ipv6, at(100)).is_none());
    }

    #[test]
    fn no_number_of_names_makes_it_grow_beyond_its_limit() {
        let mut cache = Cache::new(4, 1);
        for number in 0..100 {
            for _ in 0..2 {
                cache.insert(&name(&format!("n{number}.org")), Kind::Ipv4, &found(60), Duration::ZERO);
            }
            assert!(cache.len() <= 4 && cache.order.len() <= 4);
        }
        for number in 0..100 {
            let known = cache.get(&name(&format!("n{number}.org")), Kind::Ipv4, Duration::ZERO);
            assert_eq!(known.is_some(), number >= 96, "{number}");
        }
        let mut none = Cache::new(0, 1);
        none.insert(&name("a"), Kind::Ipv4, &found(60), Duration::ZERO);
        assert!(none.is_empty());
    }
}
