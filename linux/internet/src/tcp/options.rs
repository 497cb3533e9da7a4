//! The options of TCP sockets.

use super::socket::TcpSocket;
use super::state::{Link, Phase};
use crate::bytes::number;
use crate::options::IpOptions;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use core::time::Duration;
use isola_linux_abi::net as linux;
use isola_linux_sockets::Errno;
use isola_net::{ConnectionStats, KeepAlive};

/// The options that are numbers: name, first value, least and largest value.
const NUMBERS: &[(u32, i32, i32, i32)] = &[
    (linux::TCP_NODELAY, 0, 0, 1),
    (linux::TCP_MAXSEG, 0, 0, 32767),
    (linux::TCP_KEEPIDLE, 7200, 1, 32767),
    (linux::TCP_KEEPINTVL, 75, 1, 32767),
    (linux::TCP_KEEPCNT, 9, 1, 127),
    (linux::TCP_SYNCNT, 6, 1, 127),
    (linux::TCP_LINGER2, 60, -1, 120),
    (linux::TCP_DEFER_ACCEPT, 0, 0, i32::MAX),
    (linux::TCP_WINDOW_CLAMP, 0, 0, i32::MAX),
    (linux::TCP_QUICKACK, 1, 0, i32::MAX),
    (linux::TCP_USER_TIMEOUT, 0, 0, i32::MAX),
    (linux::TCP_THIN_LINEAR_TIMEOUTS, 0, 0, 1),
    (linux::TCP_FASTOPEN, 0, 0, i32::MAX),
    (linux::TCP_NOTSENT_LOWAT, 0, 0, i32::MAX),
    (linux::TCP_SAVE_SYN, 0, 0, 0),
];

/// The names of congestion control algorithms, as `TCP_CONGESTION` has them: at most 16 bytes with zeros.
const CONGESTION: &[u8; 16] = b"cubic\0\0\0\0\0\0\0\0\0\0\0";
/// The length of `struct tcp_info` in Linux 6.1.
const INFO_LEN: usize = 232;
/// The payload of a segment on a link of 1,500 bytes.
const USUAL_MSS: u32 = 1448;

/// The states of `tcpi_state`, from Linux's `net/tcp_states.h`.
const TCP_ESTABLISHED: u8 = 1;
const TCP_SYN_SENT: u8 = 2;
const TCP_FIN_WAIT2: u8 = 5;
const TCP_CLOSE: u8 = 7;
const TCP_CLOSE_WAIT: u8 = 8;
const TCP_LISTEN: u8 = 10;

/// The options of a TCP socket.
pub(crate) struct TcpOptions {
    pub ip: IpOptions,
    numbers: [AtomicI32; NUMBERS.len()],
    is_corked: AtomicBool,
}

impl Default for TcpOptions {
    fn default() -> Self {
        let numbers = core::array::from_fn(|index| AtomicI32::new(NUMBERS[index].1));
        Self { ip: IpOptions::default(), numbers, is_corked: AtomicBool::new(false) }
    }
}

impl TcpOptions {
    /// Returns a copy, for a connection that a listening socket accepts.
    pub fn inherited(&self) -> Self {
        let numbers =
            core::array::from_fn(|index| AtomicI32::new(self.numbers[index].load(Ordering::Relaxed)));
        Self { ip: self.ip.inherited(), numbers, is_corked: AtomicBool::new(self.is_corked()) }
    }

    /// Returns whether bytes are held back (`TCP_CORK`).
    pub fn is_corked(&self) -> bool {
        self.is_corked.load(Ordering::Relaxed)
    }

    fn number(&self, name: u32) -> i32 {
        let index = NUMBERS.iter().position(|option| option.0 == name);
        index.map_or(0, |index| self.numbers[index].load(Ordering::Relaxed))
    }

    fn keep_alive(&self) -> KeepAlive {
        let seconds = |name| Duration::from_secs(self.number(name) as u64).into();
        KeepAlive {
            idle: seconds(linux::TCP_KEEPIDLE),
            interval: seconds(linux::TCP_KEEPINTVL),
            probes: self.number(linux::TCP_KEEPCNT) as u8,
        }
    }
}

impl TcpSocket {
    /// Passes `SO_KEEPALIVE` and the options of its probes to the stack.
    pub(super) fn apply_keep_alive(&self) {
        let is_on = self.settings.is_on(linux::SO_KEEPALIVE);
        let keep_alive = is_on.then(|| self.options.keep_alive());
        self.on_connection(move |connection| connection.set_keep_alive(keep_alive));
    }

    /// Returns the value of an option.
    pub(super) fn get_option(&self, level: u32, name: u32) -> Result<Vec<u8>, Errno> {
        match (level, name) {
            (linux::SOL_TCP, linux::TCP_CORK) => Ok(number(self.options.is_corked())),
            (linux::SOL_TCP, linux::TCP_CONGESTION) => Ok(CONGESTION.to_vec()),
            (linux::SOL_TCP, linux::TCP_INFO) => Ok(self.information().to_vec()),
            (linux::SOL_TCP, linux::TCP_MAXSEG) => Ok(number(self.statistics().mss)),
            (linux::SOL_TCP, name) if NUMBERS.iter().any(|option| option.0 == name) => {
                Ok(number(self.options.number(name)))
            }
            (linux::SOL_IP | linux::SOL_IPV6, _) => self.options.ip.get(self.domain, level, name),
            (linux::SOL_SOCKET | linux::SOL_TCP, _) => Err(Errno::ENOPROTOOPT),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Sets an option.
    pub(super) fn change_option(&self, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
        if matches!(level, linux::SOL_IP | linux::SOL_IPV6) {
            let is_bound = self.state().binding.is_some();
            return self.options.ip.set(self.domain, level, name, value, is_bound);
        }
        if level != linux::SOL_TCP {
            return Err(Errno::ENOPROTOOPT);
        }
        if name == linux::TCP_CONGESTION {
            let len = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
            return if &value[..len] == b"cubic" { Ok(()) } else { Err(Errno::ENOENT) };
        }
        let new = value.first_chunk::<4>().copied().map(i32::from_ne_bytes).ok_or(Errno::EINVAL)?;
        if name == linux::TCP_CORK {
            let was = self.options.is_corked.swap(new != 0, Ordering::Relaxed);
            if was && new == 0 {
                self.push();
            }
            return Ok(());
        }
        let index = NUMBERS.iter().position(|option| option.0 == name).ok_or(Errno::ENOPROTOOPT)?;
        let (_, _, least, largest) = NUMBERS[index];
        let new = if (least, largest) == (0, 1) { i32::from(new != 0) } else { new };
        if new < least || new > largest {
            return Err(Errno::EINVAL);
        }
        self.options.numbers[index].store(new, Ordering::Relaxed);
        match name {
            linux::TCP_KEEPIDLE | linux::TCP_KEEPINTVL | linux::TCP_KEEPCNT => self.apply_keep_alive(),
            // It sends the bytes that are held back.
            linux::TCP_NODELAY if new != 0 => self.push(),
            _ => {}
        }
        Ok(())
    }

    /// Returns the connection's statistics; those of another core's connections are not known.
    fn statistics(&self) -> ConnectionStats {
        let link = self.state().link.clone();
        let known = match link {
            Link::Native(id) => id.here().and_then(|connection| connection.statistics()),
            _ => None,
        };
        known.unwrap_or(ConnectionStats { mss: USUAL_MSS, ..ConnectionStats::default() })
    }

    /// Returns `struct tcp_info`.
    fn information(&self) -> [u8; INFO_LEN] {
        let state = match self.state() {
            state if state.phase == Phase::Listening => TCP_LISTEN,
            state if state.phase == Phase::Connecting => TCP_SYN_SENT,
            state if state.phase != Phase::Connected => TCP_CLOSE,
            state if state.has_end => TCP_CLOSE_WAIT,
            state if state.is_shut => TCP_FIN_WAIT2,
            _ => TCP_ESTABLISHED,
        };
        let statistics = self.statistics();
        let mut bytes = [0; INFO_LEN];
        bytes[0] = state;
        let micros = |ns: u64| (ns / 1000).min(u32::MAX.into()) as u32;
        let rtt = statistics.smoothed_rtt.map_or(0, |rtt| micros(rtt.as_nanos()));
        let mss = statistics.mss.max(1);
        for (at, value) in [
            (8, micros(statistics.rto.as_nanos())),
            (16, mss),
            (20, mss),
            (24, statistics.in_flight.div_ceil(mss)),
            (60, 1500),
            (64, statistics.receive_window),
            (68, rtt),
            (72, rtt / 2),
            (76, i32::MAX as u32),
            (80, (statistics.congestion_window / mss).max(1)),
            (84, mss),
            (88, 3),
            (96, statistics.receive_window),
            (100, statistics.retransmits as u32),
            (136, statistics.segments_out as u32),
            (140, statistics.segments_in as u32),
        ] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        for (at, value) in [(120, statistics.bytes_acked), (128, statistics.bytes_received)] {
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }
}
