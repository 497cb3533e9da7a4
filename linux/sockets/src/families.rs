//! The address families of a system.

use crate::Errno;
use crate::interfaces::{LoopbackOnly, NetworkInterfaces};
use crate::socket::{Socket, SocketCaller, SocketKind};
use crate::socket_file::SocketFile;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use isola_linux_abi::numbers::{O_NONBLOCK, O_RDWR};
use isola_linux_files::OpenFile;
use isola_linux_memory::BoxFuture;
use spin::Mutex;

/// Two connected sockets.
pub type SocketPair = (Arc<dyn Socket>, Arc<dyn Socket>);

/// An address family: it creates sockets.
pub trait AddressFamily: Send + Sync {
    /// Creates a socket. `protocol` is that of the call; 0 is the usual one of the type.
    ///
    /// # Errors
    /// [`Errno::ESOCKTNOSUPPORT`], [`Errno::EPROTONOSUPPORT`], [`Errno::EPERM`], and those of socket(2).
    fn create(
        &self,
        kind: SocketKind,
        protocol: u32,
        caller: &SocketCaller<'_>,
    ) -> Result<Arc<dyn Socket>, Errno>;

    /// Creates two connected sockets (`socketpair`).
    ///
    /// # Errors
    /// [`Errno::EOPNOTSUPP`] if the family has none, and those of [`Self::create`].
    fn create_pair(
        &self,
        _kind: SocketKind,
        _protocol: u32,
        _caller: &SocketCaller<'_>,
    ) -> Result<SocketPair, Errno> {
        Err(Errno::EOPNOTSUPP)
    }
}

/// The clock for time limits of sockets.
pub trait SocketClock: Send + Sync {
    /// Returns the time of the monotonic clock, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Waits until that time.
    fn sleep_until(&self, monotonic_ns: u64) -> BoxFuture<'static, ()>;
}

/// The address families of a system, its network interfaces, and its clock.
pub struct Families {
    families: Mutex<BTreeMap<u32, Arc<dyn AddressFamily>>>,
    interfaces: Mutex<Arc<dyn NetworkInterfaces>>,
    clock: Arc<dyn SocketClock>,
}

impl Families {
    /// Creates a registry without families, with the loopback interface only.
    pub fn new(clock: Arc<dyn SocketClock>) -> Arc<Self> {
        Arc::new(Self { families: Mutex::default(), interfaces: Mutex::new(Arc::new(LoopbackOnly)), clock })
    }

    /// Adds a family for a domain (`AF_*`), or replaces it.
    pub fn register(&self, domain: u32, family: Arc<dyn AddressFamily>) {
        let former = self.families.lock().insert(domain, family);
        drop(former);
    }

    /// Sets the network interfaces that netlink and requests of `ioctl` show.
    pub fn set_interfaces(&self, interfaces: Arc<dyn NetworkInterfaces>) {
        let former = core::mem::replace(&mut *self.interfaces.lock(), interfaces);
        drop(former);
    }

    /// Returns the network interfaces.
    pub fn interfaces(&self) -> Arc<dyn NetworkInterfaces> {
        self.interfaces.lock().clone()
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Arc<dyn SocketClock> {
        &self.clock
    }

    /// Returns the family of a domain.
    ///
    /// # Errors
    /// [`Errno::EAFNOSUPPORT`].
    pub fn family(&self, domain: u32) -> Result<Arc<dyn AddressFamily>, Errno> {
        self.families.lock().get(&domain).cloned().ok_or(Errno::EAFNOSUPPORT)
    }

    /// Makes a socket an open file, with `O_NONBLOCK` or without.
    pub fn open(self: &Arc<Self>, socket: Arc<dyn Socket>, flags: u32) -> Arc<OpenFile> {
        OpenFile::of_object(SocketFile::new(socket, self.clone()), O_RDWR | flags & O_NONBLOCK)
    }
}
