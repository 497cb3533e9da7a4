//! The cache of lookups: addresses of names, negative answers (RFC 2308), and for a short time failures (RFC 9520),
//! each while it is valid.

use crate::error::ResolveError;
use crate::lookup::{LookupResult, Outcome};
use crate::name::HostName;
use crate::query::Kind;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;
use foldhash::quality::SeedableRandomState;
use hashbrown::HashMap;

type Key = (Vec<u8>, Kind);

/// The time for which a failure is cached.
const FAILURE_TTL: Duration = Duration::from_secs(5);

/// The result of a lookup.
pub type CachedResult = Result<Outcome, ResolveError>;

/// A bounded cache. If it is full, the entry that was added first is evicted.
#[derive(Debug)]
pub struct Cache {
    entries: HashMap<Key, Entry, SeedableRandomState>,
    /// The keys, in the order of insertion.
    order: VecDeque<Key>,
    limit: usize,
}

#[derive(Debug)]
struct Entry {
    known: CachedResult,
    /// The time of insertion.
    arrived_at: Duration,
    /// The end of its validity, on the cell's clock.
    until: Duration,
}

impl Cache {
    /// Returns a cache of up to `limit` pairs of name and kind. `seed` must be unpredictable, as it protects the hash
    /// table from collisions.
    pub fn new(limit: usize, seed: u64) -> Self {
        let state = SeedableRandomState::with_seed(seed, foldhash::SharedSeed::global_fixed());
        Self { entries: HashMap::with_hasher(state), order: VecDeque::new(), limit }
    }

    /// Returns the cached result that is valid at `now`, and its time of insertion.
    pub fn get(&self, name: &HostName, kind: Kind, now: Duration) -> Option<(&CachedResult, Duration)> {
        let entry = self.entries.get(&(name.key(), kind))?;
        (now < entry.until).then_some((&entry.known, entry.arrived_at))
    }

    /// Caches the result of a lookup: an answer for its time to live, and a failure of the servers for a short time, so
    /// that further lookups do not each wait for it again (RFC 9520 3.2). Local errors are not cached.
    pub fn insert(
        &mut self,
        name: &HostName,
        kind: Kind,
        found: &Result<LookupResult, ResolveError>,
        now: Duration,
    ) {
        let (known, good) = match found {
            Ok(found) => (Ok(found.outcome.clone()), Duration::from_secs(found.ttl_s.into())),
            Err(error @ (ResolveError::Unanswered | ResolveError::Failed | ResolveError::Aliases)) => {
                (Err(error.clone()), FAILURE_TTL)
            }
            Err(_) => return,
        };
        if good.is_zero() || self.limit == 0 {
            return;
        }
        let key = (name.key(), kind);
        let entry = Entry { known, arrived_at: now, until: now.saturating_add(good) };
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

    /// Removes all entries: another network may give other answers.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
    }

    /// Returns the number of entries, including expired ones.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
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

    fn found(ttl_s: u32) -> Result<LookupResult, ResolveError> {
        Ok(LookupResult { outcome: Outcome::Addresses(vec![[10, 0, 0, 1].into()]), ttl_s })
    }

    fn name(text: &str) -> HostName {
        HostName::parse(text).unwrap()
    }

    #[proves("RFC 1035 3.2.1", "a record with a time to live of zero is not cached.")]
    #[test]
    fn an_answer_is_cached_for_its_time_to_live() {
        let mut cache = Cache::new(8, 1);
        let at = Duration::from_secs;
        cache.insert(&name("a.org"), Kind::Ipv4, &found(60), at(100));
        cache.insert(&name("b.org"), Kind::Ipv4, &found(0), at(100));
        assert!(cache.get(&name("A.ORG."), Kind::Ipv4, at(159)).is_some());
        assert!(cache.get(&name("a.org"), Kind::Ipv4, at(160)).is_none());
        assert!(cache.get(&name("a.org"), Kind::Ipv6, at(100)).is_none());
        assert!(cache.get(&name("b.org"), Kind::Ipv4, at(100)).is_none());
        let none = Ok(LookupResult { outcome: Outcome::NoName, ttl_s: 5 });
        cache.insert(&name("a.org"), Kind::Ipv4, &none, at(200));
        assert_eq!(cache.get(&name("a.org"), Kind::Ipv4, at(204)), Some((&Ok(Outcome::NoName), at(200))));
        cache.clear();
        assert!(cache.is_empty() && cache.get(&name("a.org"), Kind::Ipv4, at(204)).is_none());
    }

    #[proves("RFC 9520 3.2", "a failure is cached for at least one second and at most five minutes.")]
    #[test]
    fn failures_of_servers_are_cached_briefly_and_local_errors_are_not() {
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
    fn the_cache_never_exceeds_its_limit() {
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
