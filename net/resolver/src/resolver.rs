//! Names and addresses on the cell's network. Each core asks for itself, and remembers what it heard.

use crate::cache::{Cache, Known};
use crate::error::ResolveError;
use crate::lookup::{Config, Found, Lookup, Outcome, Step};
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

/// Names that a core looks up at once.
pub const MAX_LOOKUPS: usize = 256;

/// How much longer IPv6 addresses are waited for where there are others (RFC 8305, 3).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// The port of DNS.
const PORT: u16 = 53;

static RESOLVER: Ebb<CoreResolver> = Ebb::new();
static SERVERS: CellEbb<Servers> = CellEbb::new();

/// A name on the wire in small letters, and what is asked for.
type Key = (Vec<u8>, Kind);

/// What a lookup finds.
type Addresses = Result<Vec<IpAddr>, ResolveError>;

/// Servers that the application named.
#[derive(Default)]
struct Servers {
    named: Mutex<Vec<SocketAddr>>,
}

impl Representative for Servers {
    fn create() -> Self {
        Self::default()
    }
}

/// Who looks for what, and what is known, on a core.
struct CoreResolver {
    config: Config,
    cache: RefCell<Cache>,
    /// What is being looked up.
    under_way: RefCell<BTreeMap<Key, Rc<Shared>>>,
    /// The servers that the cache is of.
    servers: RefCell<Vec<SocketAddr>>,
    /// The number of the server that is asked first: the last one that answered.
    first: Cell<usize>,
}

impl Representative for CoreResolver {
    fn create() -> Self {
        let config = Config::default();
        Self {
            config,
            cache: RefCell::new(Cache::new(config.cache_entries, platform().entropy())),
            under_way: RefCell::default(),
            servers: RefCell::default(),
            first: Cell::new(0),
        }
    }
}

/// Has these servers asked, on all cores, in the place of those that the network names; none: those again.
pub fn set_servers(servers: &[SocketAddr]) {
    *SERVERS.named.lock() = servers.to_vec();
}

/// The servers to ask: those that the application named, or that the network did (DHCP, routers, DHCPv6).
fn servers() -> Vec<SocketAddr> {
    let named = SERVERS.named.lock().clone();
    if !named.is_empty() {
        return named;
    }
    let four = isola_net::address().map(|address| address.dns).unwrap_or_default();
    let four = four.into_iter().flatten().map(IpAddr::from);
    let six = isola_net::ipv6().dns.into_iter().flatten().map(IpAddr::from);
    four.chain(six).map(|server| SocketAddr::new(server, PORT)).collect()
}

/// The addresses of a name, of both kinds; IPv6 first. An address is its own.
///
/// Where IPv4 addresses are found, and can be used, those of IPv6 are waited for a moment longer and not more (RFC 8305, 3),
/// counted from when both were asked for and the former came: who asks while others wait for them waits no longer than they.
/// What is heard of them later is for the next one who asks.
///
/// # Errors
/// [`ResolveError`].
pub async fn resolve(name: &str) -> Result<Vec<IpAddr>, ResolveError> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(Vec::from([address]));
    }
    let same_name = name.to_string();
    let six = spawn_task(async move { lookup(&same_name, Kind::Ipv6).await });
    match both(six, look_up(name, Kind::Ipv4), || asked_at(name, Kind::Ipv6)).await {
        (Ok(mut all), Ok(rest)) => {
            all.extend(rest);
            Ok(all)
        }
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        // What is wrong with the one kind is wrong with the other, or with the kind that is there everywhere.
        (Err(_), Err(error)) => Err(error),
    }
}

/// What two lookups find; nothing for that of IPv6 where it takes much longer than the other, and can be done without.
/// `asked` says when IPv6 addresses were asked for that are still waited for.
async fn both(
    six: impl Future<Output = Addresses>,
    four: impl Future<Output = (Addresses, Duration)>,
    asked: impl Fn() -> Option<Duration>,
) -> (Addresses, Addresses) {
    let (mut six, mut four) = (pin!(six), pin!(four));
    let (mut found_six, mut found_four, mut delay) = (None, None, None);
    poll_fn(|context| {
        poll_once(six.as_mut(), &mut found_six, context);
        poll_once(four.as_mut(), &mut found_four, context);
        if found_six.is_none()
            && let Some((Ok(_), came)) = found_four
            && isola_net::address().is_some()
        {
            let delay = delay.get_or_insert_with(|| Box::pin(sleep(wait_for_ipv6(asked(), came, clock()))));
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

/// How much longer IPv6 addresses are waited for where there are IPv4 addresses since `came`.
fn wait_for_ipv6(asked: Option<Duration>, came: Duration, now: Duration) -> Duration {
    let until = asked.unwrap_or(now).max(came) + RESOLUTION_DELAY;
    until.saturating_sub(now)
}

/// Lets a lookup go on that has found nothing so far.
fn poll_once<T>(lookup: Pin<&mut impl Future<Output = T>>, found: &mut Option<T>, context: &mut Context<'_>) {
    if found.is_none()
        && let Poll::Ready(now) = lookup.poll(context)
    {
        *found = Some(now);
    }
}

/// The addresses of a name, of one kind.
///
/// # Errors
/// [`ResolveError`].
pub async fn lookup(name: &str, kind: Kind) -> Result<Vec<IpAddr>, ResolveError> {
    look_up(name, kind).await.0
}

/// The addresses of a name, of one kind, and when they came.
async fn look_up(name: &str, kind: Kind) -> (Addresses, Duration) {
    let Some(host) = HostName::parse(name) else {
        return (Err(ResolveError::Name(name.to_string())), clock());
    };
    if let Some(special) = host.special() {
        let is_of_kind = |address: &&IpAddr| address.is_ipv4() == (kind == Kind::Ipv4);
        let addresses: Vec<_> = special.addresses().iter().filter(is_of_kind).copied().collect();
        let found = if addresses.is_empty() { Err(ResolveError::NoName) } else { Ok(addresses) };
        return (found, clock());
    }
    let (known, came) = RESOLVER.find(&host, kind).await;
    let addresses = known.and_then(|outcome| match outcome {
        Outcome::Addresses(addresses) => Ok(addresses),
        Outcome::Nothing => Err(ResolveError::NoAddresses),
        Outcome::NoName => Err(ResolveError::NoName),
    });
    (addresses, came)
}

/// When a name was asked for that is still being looked up.
fn asked_at(name: &str, kind: Kind) -> Option<Duration> {
    let key = (HostName::parse(name)?.key(), kind);
    RESOLVER.under_way.borrow().get(&key).map(|shared| shared.began)
}

/// A lookup that is under way, and who waits for what it finds.
#[derive(Default)]
struct Shared {
    /// The servers that it asks.
    servers: Vec<SocketAddr>,
    /// When it began.
    began: Duration,
    found: OnceCell<Known>,
    is_over: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

/// A name that is being looked up: nobody else does meanwhile, so that no two questions for it can be answered by one forgery
/// (RFC 5452, 5).
struct UnderWay {
    key: Key,
    shared: Rc<Shared>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        RESOLVER.under_way.borrow_mut().remove(&self.key);
        self.shared.is_over.set(true);
        self.shared.waiting.take().into_iter().for_each(Waker::wake);
    }
}

/// Who looks for a name.
enum Begun {
    /// Whoever asked, from now on.
    Here(UnderWay),
    /// Another task, already.
    Elsewhere(Rc<Shared>),
}

impl Shared {
    /// What was found, once it is; `None` where the lookup was given up.
    async fn found(&self) -> Option<Known> {
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
    /// What is known of a name, or can be found out, and when it came.
    async fn find(&self, name: &HostName, kind: Kind) -> (Known, Duration) {
        let servers = self.servers_now();
        let key = (name.key(), kind);
        let under_way = loop {
            if let Some((known, came)) = self.cache.borrow().get(name, kind, clock()) {
                return (known.clone(), came);
            }
            match self.begin(&key, &servers) {
                Ok(Begun::Here(under_way)) => break under_way,
                // What it finds is what would be found by asking again: unless it was given up, or asked others.
                Ok(Begun::Elsewhere(shared)) => match shared.found().await {
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
        // What others say than those that are asked now is not for the next one who asks.
        if self.servers_now() == servers {
            self.first.set(first + lookup.servers_given_up());
            self.cache.borrow_mut().insert(name, kind, &found, clock());
        }
        let known = found.map(|found| found.outcome);
        (under_way.shared.found.get_or_init(|| known).clone(), clock())
    }

    /// The servers; other ones than before may say something else.
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

    /// Begins a lookup, unless it is under way.
    fn begin(&self, key: &Key, servers: &[SocketAddr]) -> Result<Begun, ResolveError> {
        let mut under_way = self.under_way.borrow_mut();
        if let Some(shared) = under_way.get(key) {
            return Ok(Begun::Elsewhere(shared.clone()));
        }
        if under_way.len() >= MAX_LOOKUPS {
            return Err(ResolveError::TooMany);
        }
        let shared = Rc::new(Shared { servers: servers.to_vec(), began: clock(), ..Shared::default() });
        under_way.insert(key.clone(), shared.clone());
        Ok(Begun::Here(UnderWay { key: key.clone(), shared }))
    }

    async fn run(&self, lookup: &mut Lookup) -> Result<Found, ResolveError> {
        loop {
            match lookup.next(&mut || platform().entropy()) {
                Step::Done(done) => return done,
                Step::Ask(ask) => transport::ask(lookup, &ask).await.map_err(ResolveError::Bind)?,
            }
        }
    }
}

/// The cell's clock.
fn clock() -> Duration {
    Duration::from_nanos(now().as_ns())
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    #[proves("RFC 8305 3", "the wait for IPv6 addresses begins with the answer for IPv4.")]
    #[test]
    fn who_asks_while_others_wait_for_ipv6_waits_no_longer_than_they() {
        let at = Duration::from_millis;
        // Both are asked for now, and that for IPv4 is answered.
        assert_eq!(wait_for_ipv6(Some(at(900)), at(1000), at(1000)), at(50));
        // IPv4's were known: the question for IPv6 is new, or a while old.
        assert_eq!(wait_for_ipv6(Some(at(1000)), at(100), at(1000)), at(50));
        assert_eq!(wait_for_ipv6(Some(at(970)), at(100), at(1000)), at(20));
        assert_eq!(wait_for_ipv6(Some(at(500)), at(100), at(1000)), at(0));
        assert_eq!(wait_for_ipv6(None, at(100), at(1000)), at(50));
    }
}
