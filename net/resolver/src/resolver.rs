//! Lookups on the cell's network. Each core sends its own queries and has its own cache.

use crate::cache::{Cache, CachedResult};
use crate::error::ResolveError;
use crate::lookup::{Config, Lookup, LookupResult, Outcome, Step};
use crate::name::HostName;
use crate::query::Kind;
use crate::transport;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::cell::{Cell, OnceCell, RefCell};
use core::future::{Future, poll_fn};
use core::net::{IpAddr, SocketAddr};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use isola_ebbs::{CellEbb, Ebb, Representative, platform};
use isola_events::{now, sleep, spawn_task};
use spin::Mutex;

/// The maximum number of concurrent lookups of a core.
pub const MAX_LOOKUPS: usize = 256;

/// The additional wait for IPv6 addresses once there are IPv4 addresses (RFC 8305, 3).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// The port of DNS.
const PORT: u16 = 53;

static RESOLVER: Ebb<CoreResolver> = Ebb::new();
static SERVERS: CellEbb<Servers> = CellEbb::new();

/// A name in lower-case wire format, and the kind of records.
type Key = (Vec<u8>, Kind);

/// The addresses from a lookup.
type Addresses = Result<Vec<IpAddr>, ResolveError>;

/// The servers that the application has set.
#[derive(Default)]
struct Servers {
    configured: Mutex<Vec<SocketAddr>>,
}

impl Representative for Servers {
    fn create() -> Self {
        Self::default()
    }
}

/// The lookups in progress and the cache of a core.
struct CoreResolver {
    config: Config,
    cache: RefCell<Cache>,
    /// The lookups in progress.
    in_progress: RefCell<BTreeMap<Key, Rc<SharedLookup>>>,
    /// The servers from which the cache was filled.
    servers: RefCell<Vec<SocketAddr>>,
    /// The index of the server to query first: the last one that answered.
    first: Cell<usize>,
}

impl Representative for CoreResolver {
    fn create() -> Self {
        let config = Config::default();
        Self {
            config,
            cache: RefCell::new(Cache::new(config.cache_entries, platform().entropy())),
            in_progress: RefCell::default(),
            servers: RefCell::default(),
            first: Cell::new(0),
        }
    }
}

/// Sets the servers to query, on all cores, in place of those from the network; an empty list restores the latter.
pub fn set_servers(servers: &[SocketAddr]) {
    *SERVERS.configured.lock() = servers.to_vec();
}

/// Returns the servers to query: those that the application has set, otherwise those from the network (DHCP, router
/// advertisements, DHCPv6).
fn servers() -> Vec<SocketAddr> {
    let configured = SERVERS.configured.lock().clone();
    if !configured.is_empty() {
        return configured;
    }
    let four = isola_net::address().map(|address| address.dns).unwrap_or_default();
    let four = four.into_iter().flatten().map(IpAddr::from);
    let six = isola_net::ipv6().dns.into_iter().flatten().map(IpAddr::from);
    four.chain(six).map(|server| SocketAddr::new(server, PORT)).collect()
}

/// Returns the addresses of a name, of both families, IPv6 first. For an address it returns the address itself.
///
/// If IPv4 addresses are found and usable, it waits for IPv6 addresses only 50 ms longer (RFC 8305, 3), counted from
/// the time when both were requested and the IPv4 addresses had arrived; so a further caller waits no longer than the
/// earlier ones. A later answer is cached for the next call.
///
/// # Errors
/// [`ResolveError`].
pub async fn resolve(name: &str) -> Result<Vec<IpAddr>, ResolveError> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(Vec::from([address]));
    }
    let same_name = name.to_string();
    let six = spawn_task(async move { lookup(&same_name, Kind::Ipv6).await });
    match both(six, lookup_with_time(name, Kind::Ipv4), || start_of(name, Kind::Ipv6)).await {
        (Ok(mut all), Ok(rest)) => {
            all.extend(rest);
            Ok(all)
        }
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        // Either both errors are the same, or that of IPv4 is more relevant, as IPv4 is available everywhere.
        (Err(_), Err(error)) => Err(error),
    }
}

/// Returns the results of both lookups; an error for IPv6 if that takes much longer than IPv4 and is not needed.
/// `ipv6_start` returns the start of the IPv6 lookup if that is still in progress.
async fn both(
    six: impl Future<Output = Addresses>,
    four: impl Future<Output = (Addresses, Duration)>,
    ipv6_start: impl Fn() -> Option<Duration>,
) -> (Addresses, Addresses) {
    let (mut six, mut four) = (pin!(six), pin!(four));
    let (mut found_six, mut found_four, mut delay) = (None, None, None);
    poll_fn(|context| {
        poll_once(six.as_mut(), &mut found_six, context);
        poll_once(four.as_mut(), &mut found_four, context);
        if found_six.is_none()
            && let Some((Ok(_), arrived_at)) = found_four
            && isola_net::address().is_some()
        {
            let delay = delay
                .get_or_insert_with(|| Box::pin(sleep(wait_for_ipv6(ipv6_start(), arrived_at, clock()))));
            if delay.as_mut().poll(context).is_ready() {
                found_six = Some(Err(ResolveError::Unanswered));
            }
        }
        match (&found_six, &found_four) {
            (Some(_), Some(_)) => {
                let four = found_four.take().map(|(four, _)| four);
                found_six.take().zip(four).map_or(Poll::Pending, Poll::Ready)
            }
            _ => Poll::Pending,
        }
    })
    .await
}

/// Returns the remaining wait for IPv6 addresses if there have been IPv4 addresses since `arrived_at`.
fn wait_for_ipv6(ipv6_start: Option<Duration>, arrived_at: Duration, now: Duration) -> Duration {
    let until = ipv6_start.unwrap_or(now).max(arrived_at) + RESOLUTION_DELAY;
    until.saturating_sub(now)
}

/// Polls a lookup that has no result yet.
fn poll_once<T>(lookup: Pin<&mut impl Future<Output = T>>, found: &mut Option<T>, context: &mut Context<'_>) {
    if found.is_none()
        && let Poll::Ready(now) = lookup.poll(context)
    {
        *found = Some(now);
    }
}

/// Returns the addresses of a name, of one family.
///
/// # Errors
/// [`ResolveError`].
pub async fn lookup(name: &str, kind: Kind) -> Result<Vec<IpAddr>, ResolveError> {
    lookup_with_time(name, kind).await.0
}

/// Returns the addresses of a name, of one family, and the time of their arrival.
async fn lookup_with_time(name: &str, kind: Kind) -> (Addresses, Duration) {
    let Some(host) = HostName::parse(name) else {
        return (Err(ResolveError::Name(name.to_string())), clock());
    };
    if let Some(special) = host.special() {
        let is_of_kind = |address: &&IpAddr| address.is_ipv4() == (kind == Kind::Ipv4);
        let addresses: Vec<_> = special.addresses().iter().filter(is_of_kind).copied().collect();
        let found = if addresses.is_empty() { Err(ResolveError::NoName) } else { Ok(addresses) };
        return (found, clock());
    }
    let (known, arrived_at) = RESOLVER.find(&host, kind).await;
    let addresses = known.and_then(|outcome| match outcome {
        Outcome::Addresses(addresses) => Ok(addresses),
        Outcome::Nothing => Err(ResolveError::NoAddresses),
        Outcome::NoName => Err(ResolveError::NoName),
    });
    (addresses, arrived_at)
}

/// Returns the start of the lookup of a name, if one is in progress.
fn start_of(name: &str, kind: Kind) -> Option<Duration> {
    let key = (HostName::parse(name)?.key(), kind);
    RESOLVER.in_progress.borrow().get(&key).map(|shared| shared.started_at)
}

/// A lookup in progress, and the tasks that wait for its result.
#[derive(Default)]
struct SharedLookup {
    /// The servers that it queries.
    servers: Vec<SocketAddr>,
    /// The time of its start.
    started_at: Duration,
    found: OnceCell<CachedResult>,
    is_over: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

/// The right to look a name up: only one lookup of a name runs at a time, so that a forger cannot match one answer
/// against several queries (RFC 5452, 5).
struct LookupGuard {
    key: Key,
    shared: Rc<SharedLookup>,
}

impl Drop for LookupGuard {
    fn drop(&mut self) {
        RESOLVER.in_progress.borrow_mut().remove(&self.key);
        self.shared.is_over.set(true);
        self.shared.waiting.take().into_iter().for_each(Waker::wake);
    }
}

/// The result of [`CoreResolver::begin`].
enum LookupStart {
    /// The caller runs the lookup.
    Here(LookupGuard),
    /// Another task already runs it.
    Elsewhere(Rc<SharedLookup>),
}

impl SharedLookup {
    /// Waits for the result; `None` if the lookup was cancelled.
    async fn found(&self) -> Option<CachedResult> {
        poll_fn(|context| {
            if self.is_over.get() {
                return Poll::Ready(self.found.get().cloned());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|known| known.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

impl CoreResolver {
    /// Returns the result of a lookup, from the cache or from servers, and the time of its arrival.
    async fn find(&self, name: &HostName, kind: Kind) -> (CachedResult, Duration) {
        let servers = self.servers_now();
        let key = (name.key(), kind);
        let guard = loop {
            if let Some((known, arrived_at)) = self.cache.borrow().get(name, kind, clock()) {
                return (known.clone(), arrived_at);
            }
            match self.begin(&key, &servers) {
                Ok(LookupStart::Here(guard)) => break guard,
                // The result is also valid for this caller, unless the lookup was cancelled or queried other servers.
                Ok(LookupStart::Elsewhere(shared)) => match shared.found().await {
                    Some(found) if shared.servers == servers => return (found, clock()),
                    _ => {}
                },
                Err(error) => return (Err(error), clock()),
            }
        };
        let first = self.first.get() % servers.len().max(1);
        let in_order: Vec<_> = servers[first..].iter().chain(&servers[..first]).copied().collect();
        let mut lookup = Lookup::new(&self.config, name.clone(), kind, &in_order);
        let found = self.run(&mut lookup).await;
        // Answers from other than the present servers are not cached.
        if self.servers_now() == servers {
            self.first.set(first + lookup.servers_tried());
            self.cache.borrow_mut().insert(name, kind, &found, clock());
        }
        let known = found.map(|found| found.outcome);
        (guard.shared.found.get_or_init(|| known).clone(), clock())
    }

    /// Returns the servers to query. If they have changed, the cache is cleared, as their answers may differ.
    fn servers_now(&self) -> Vec<SocketAddr> {
        let servers = servers();
        let mut known = self.servers.borrow_mut();
        if *known != servers {
            known.clone_from(&servers);
            self.cache.borrow_mut().clear();
            self.first.set(0);
        }
        servers
    }

    /// Begins a lookup, unless one is in progress.
    fn begin(&self, key: &Key, servers: &[SocketAddr]) -> Result<LookupStart, ResolveError> {
        let mut in_progress = self.in_progress.borrow_mut();
        if let Some(shared) = in_progress.get(key) {
            return Ok(LookupStart::Elsewhere(shared.clone()));
        }
        if in_progress.len() >= MAX_LOOKUPS {
            return Err(ResolveError::TooMany);
        }
        let shared = Rc::new(SharedLookup {
            servers: servers.to_vec(),
            started_at: clock(),
            ..SharedLookup::default()
        });
        in_progress.insert(key.clone(), shared.clone());
        Ok(LookupStart::Here(LookupGuard { key: key.clone(), shared }))
    }

    async fn run(&self, lookup: &mut Lookup) -> Result<LookupResult, ResolveError> {
        loop {
            match lookup.next(&mut || platform().entropy()) {
                Step::Done(done) => return done,
                Step::Send(query) => transport::send(lookup, &query).await.map_err(ResolveError::Bind)?,
            }
        }
    }
}

/// Returns the cell's time.
fn clock() -> Duration {
    Duration::from_nanos(now().as_ns())
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    #[proves("RFC 8305 3", "the wait for IPv6 addresses begins with the answer for IPv4.")]
    #[test]
    fn a_later_caller_waits_no_longer_for_ipv6_than_earlier_ones() {
        let at = Duration::from_millis;
        // Both lookups begin now, and IPv4 is answered.
        assert_eq!(wait_for_ipv6(Some(at(900)), at(1000), at(1000)), at(50));
        // IPv4 was cached; the IPv6 lookup is new, or began some time ago.
        assert_eq!(wait_for_ipv6(Some(at(1000)), at(100), at(1000)), at(50));
        assert_eq!(wait_for_ipv6(Some(at(970)), at(100), at(1000)), at(20));
        assert_eq!(wait_for_ipv6(Some(at(500)), at(100), at(1000)), at(0));
        assert_eq!(wait_for_ipv6(None, at(100), at(1000)), at(50));
    }
}
