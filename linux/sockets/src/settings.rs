//! The options of `SOL_SOCKET` that every socket has (socket(7)).

use crate::Errno;
use crate::socket::SocketCaller;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use isola_linux_abi::net as linux;
use isola_linux_abi::numbers::{CAP_NET_ADMIN, CAP_NET_RAW};

/// The length of a buffer in a new socket, and the largest that a program without `CAP_NET_ADMIN` sets, before it is
/// doubled (`wmem_default`, `wmem_max`, `rmem_default`, `rmem_max`).
pub const BUFFER_LEN: u32 = 212_992;
/// The shortest buffers, as Linux has them on x86-64.
const SHORTEST_SEND_BUFFER: u32 = 4608;
const SHORTEST_RECEIVE_BUFFER: u32 = 2304;
/// The longest buffer that a program with `CAP_NET_ADMIN` sets, before it is doubled. Linux has no such limit.
const LONGEST_FORCED_BUFFER: u32 = 64 << 20;
/// The largest priority for which no capability is needed.
const MOST_FREE_PRIORITY: u32 = 6;
/// No time limit.
const NO_LIMIT: u64 = u64::MAX;
/// Linux's error for a time whose microseconds are no part of a second.
const BAD_TIME: Errno = Errno::EDOM;

/// Options that are on or off: their names (`SO_*`), in the order of their bits.
const SWITCHES: &[u32] = &[
    linux::SO_DEBUG,
    linux::SO_REUSEADDR,
    linux::SO_DONTROUTE,
    linux::SO_BROADCAST,
    linux::SO_KEEPALIVE,
    linux::SO_OOBINLINE,
    linux::SO_REUSEPORT,
    linux::SO_PASSCRED,
    linux::SO_NO_CHECK,
];

/// The options of `SOL_SOCKET` that every socket has.
#[derive(Debug)]
pub struct SocketSettings {
    /// The number of the socket.
    id: u64,
    /// The options of [`SWITCHES`], by their index.
    switches: AtomicU32,
    send_buffer: AtomicU32,
    receive_buffer: AtomicU32,
    send_limit_ns: AtomicU64,
    receive_limit_ns: AtomicU64,
    /// Seconds, or `u64::MAX` if `SO_LINGER` is off; the seconds of an inactive one are not kept.
    linger: AtomicU64,
    priority: AtomicU32,
    mark: AtomicU32,
    receive_low: AtomicU32,
}

impl Default for SocketSettings {
    fn default() -> Self {
        Self::new(BUFFER_LEN, BUFFER_LEN)
    }
}

impl SocketSettings {
    /// Creates the options of a new socket, with the lengths of its buffers.
    pub fn new(send_buffer: u32, receive_buffer: u32) -> Self {
        Self {
            id: isola_linux_files::new_anonymous_inode(),
            switches: AtomicU32::new(0),
            send_buffer: AtomicU32::new(send_buffer),
            receive_buffer: AtomicU32::new(receive_buffer),
            send_limit_ns: AtomicU64::new(NO_LIMIT),
            receive_limit_ns: AtomicU64::new(NO_LIMIT),
            linger: AtomicU64::new(NO_LIMIT),
            priority: AtomicU32::new(0),
            mark: AtomicU32::new(0),
            receive_low: AtomicU32::new(1),
        }
    }

    /// Returns a copy, for a connection that a listening socket accepts.
    pub fn inherited(&self) -> Self {
        let word = |word: &AtomicU32| AtomicU32::new(word.load(Ordering::Relaxed));
        let long = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        Self {
            id: isola_linux_files::new_anonymous_inode(),
            switches: word(&self.switches),
            send_buffer: word(&self.send_buffer),
            receive_buffer: word(&self.receive_buffer),
            send_limit_ns: long(&self.send_limit_ns),
            receive_limit_ns: long(&self.receive_limit_ns),
            linger: long(&self.linger),
            priority: word(&self.priority),
            mark: word(&self.mark),
            receive_low: word(&self.receive_low),
        }
    }

    /// Returns the number of the socket: that of its inode, which `fstat` and `/proc/net` show.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns whether an option that is on or off (`SO_REUSEADDR`, `SO_KEEPALIVE`, ...) is on; `false` for others.
    pub fn is_on(&self, name: u32) -> bool {
        let index = SWITCHES.iter().position(|switch| *switch == name);
        index.is_some_and(|index| self.switches.load(Ordering::Relaxed) & 1 << index != 0)
    }

    /// Sets an option that is on or off.
    pub fn switch(&self, name: u32, is_on: bool) {
        if let Some(index) = SWITCHES.iter().position(|switch| *switch == name) {
            let bit = 1 << index;
            if is_on {
                self.switches.fetch_or(bit, Ordering::Relaxed);
            } else {
                self.switches.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }

    /// Returns the length of the send buffer (`SO_SNDBUF`): the doubled number of the program.
    pub fn send_buffer(&self) -> usize {
        self.send_buffer.load(Ordering::Relaxed) as usize
    }

    /// Returns the length of the receive buffer (`SO_RCVBUF`): the doubled number of the program.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer.load(Ordering::Relaxed) as usize
    }

    /// Returns the time limit of calls that send, in nanoseconds (`SO_SNDTIMEO`).
    pub fn send_limit_ns(&self) -> Option<u64> {
        Some(self.send_limit_ns.load(Ordering::Relaxed)).filter(|limit| *limit != NO_LIMIT)
    }

    /// Returns the time limit of calls that receive, in nanoseconds (`SO_RCVTIMEO`).
    pub fn receive_limit_ns(&self) -> Option<u64> {
        Some(self.receive_limit_ns.load(Ordering::Relaxed)).filter(|limit| *limit != NO_LIMIT)
    }

    /// Returns for how many seconds a close waits for unsent data (`SO_LINGER`); `None` if it is off.
    pub fn linger_s(&self) -> Option<u32> {
        u32::try_from(self.linger.load(Ordering::Relaxed)).ok()
    }

    /// Returns the priority (`SO_PRIORITY`).
    pub fn priority(&self) -> u32 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Sets an option. Returns `false` if it is none of these.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for a short value, [`Errno::EPERM`], [`Errno::EACCES`], [`Errno::EDOM`].
    pub(crate) fn set(&self, name: u32, value: &[u8], caller: &SocketCaller<'_>) -> Result<bool, Errno> {
        let is_time = matches!(
            name,
            linux::SO_RCVTIMEO_OLD | linux::SO_SNDTIMEO_OLD | linux::SO_RCVTIMEO_NEW | linux::SO_SNDTIMEO_NEW
        );
        let is_known = SWITCHES.contains(&name)
            || is_time
            || matches!(
                name,
                linux::SO_SNDBUF
                    | linux::SO_RCVBUF
                    | linux::SO_SNDBUFFORCE
                    | linux::SO_RCVBUFFORCE
                    | linux::SO_LINGER
                    | linux::SO_PRIORITY
                    | linux::SO_MARK
                    | linux::SO_RCVLOWAT
                    | linux::SO_BSDCOMPAT
            );
        if !is_known {
            return Ok(false);
        }
        let Some(number) = value.first_chunk::<4>().copied().map(i32::from_ne_bytes) else {
            return Err(Errno::EINVAL);
        };
        let may_admin = || caller.check_capability(CAP_NET_ADMIN);
        match name {
            linux::SO_DEBUG if number != 0 && may_admin().is_err() => return Err(Errno::EACCES),
            name if SWITCHES.contains(&name) => self.switch(name, number != 0),
            linux::SO_SNDBUF => {
                let len = (number as u32).min(BUFFER_LEN);
                self.send_buffer.store((len * 2).max(SHORTEST_SEND_BUFFER), Ordering::Relaxed);
            }
            linux::SO_RCVBUF => {
                let len = (number as u32).min(BUFFER_LEN);
                self.receive_buffer.store((len * 2).max(SHORTEST_RECEIVE_BUFFER), Ordering::Relaxed);
            }
            linux::SO_SNDBUFFORCE | linux::SO_RCVBUFFORCE => {
                may_admin()?;
                let len = number.max(0).cast_unsigned().min(LONGEST_FORCED_BUFFER) * 2;
                if name == linux::SO_SNDBUFFORCE {
                    self.send_buffer.store(len.max(SHORTEST_SEND_BUFFER), Ordering::Relaxed);
                } else {
                    self.receive_buffer.store(len.max(SHORTEST_RECEIVE_BUFFER), Ordering::Relaxed);
                }
            }
            linux::SO_LINGER => {
                let Some(seconds) = value.get(4..8) else { return Err(Errno::EINVAL) };
                let seconds = u32::from_ne_bytes([seconds[0], seconds[1], seconds[2], seconds[3]]);
                let linger = if number == 0 { NO_LIMIT } else { u64::from(seconds) };
                self.linger.store(linger, Ordering::Relaxed);
            }
            linux::SO_PRIORITY => {
                let priority = number.cast_unsigned();
                if priority > MOST_FREE_PRIORITY && may_admin().is_err() {
                    caller.check_capability(CAP_NET_RAW)?;
                }
                self.priority.store(priority, Ordering::Relaxed);
            }
            linux::SO_MARK => {
                may_admin()?;
                self.mark.store(number.cast_unsigned(), Ordering::Relaxed);
            }
            linux::SO_RCVLOWAT => {
                let low = if number < 0 { i32::MAX } else { number.max(1) };
                self.receive_low.store(low.cast_unsigned(), Ordering::Relaxed);
            }
            linux::SO_BSDCOMPAT => {}
            linux::SO_RCVTIMEO_OLD | linux::SO_RCVTIMEO_NEW => {
                self.receive_limit_ns.store(limit_of_timeval(value)?, Ordering::Relaxed);
            }
            _ => self.send_limit_ns.store(limit_of_timeval(value)?, Ordering::Relaxed),
        }
        Ok(true)
    }

    /// Returns the value of an option, or `None` if it is none of these.
    pub(crate) fn value(&self, name: u32) -> Option<Vec<u8>> {
        let number = |number: u32| Some(number.to_ne_bytes().to_vec());
        match name {
            name if SWITCHES.contains(&name) => number(self.is_on(name).into()),
            linux::SO_SNDBUF => number(self.send_buffer() as u32),
            linux::SO_RCVBUF => number(self.receive_buffer() as u32),
            linux::SO_LINGER => {
                let linger = self.linger_s();
                let words = [u32::from(linger.is_some()), linger.unwrap_or(0)];
                Some(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
            }
            linux::SO_PRIORITY => number(self.priority()),
            linux::SO_MARK => number(self.mark.load(Ordering::Relaxed)),
            linux::SO_RCVLOWAT => number(self.receive_low.load(Ordering::Relaxed)),
            linux::SO_SNDLOWAT => number(1),
            linux::SO_BSDCOMPAT => number(0),
            linux::SO_RCVTIMEO_OLD | linux::SO_RCVTIMEO_NEW => Some(timeval(self.receive_limit_ns())),
            linux::SO_SNDTIMEO_OLD | linux::SO_SNDTIMEO_NEW => Some(timeval(self.send_limit_ns())),
            _ => None,
        }
    }
}

/// Returns the time limit of `struct timeval`, in nanoseconds. Zero is no limit, and a negative one ends at once.
fn limit_of_timeval(value: &[u8]) -> Result<u64, Errno> {
    let Some(bytes) = value.first_chunk::<16>() else { return Err(Errno::EINVAL) };
    let word = |at: usize| i64::from_ne_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (seconds, microseconds) = (word(0), word(8));
    if !(0..1_000_000).contains(&microseconds) {
        return Err(BAD_TIME);
    }
    Ok(match (seconds, microseconds) {
        (..0, _) => 0,
        (0, 0) => NO_LIMIT,
        _ => {
            let ns = i128::from(seconds) * 1_000_000_000 + i128::from(microseconds) * 1000;
            u64::try_from(ns).unwrap_or(NO_LIMIT)
        }
    })
}

fn timeval(limit_ns: Option<u64>) -> Vec<u8> {
    let ns = limit_ns.unwrap_or(0);
    [ns / 1_000_000_000, ns % 1_000_000_000 / 1000].iter().flat_map(|word| word.to_ne_bytes()).collect()
}
