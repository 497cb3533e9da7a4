//! Network address translation in a service cell: its options, and the conversions between frames of the stack's queues and
//! those of the gateway.

use super::hub::HUB;
use super::server::HEADROOM;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv4Addr;
use core::sync::atomic::Ordering;
use isola_activities::INFRASTRUCTURE;
use isola_ebbs::platform;
use isola_events::spawn_task;
use isola_iobuf::{Chain, Frame, IoBuf, IoBufMut};
use isola_nat::{DropReason, Forward, ForwardError, Gateway, Limits, Outside, Prefix, PrefixError};
use isola_net::bridge::send_for;
use isola_net::interface::address;
use isola_net::neighbours::{LinkDrop, count_dropped};
use isola_platform::network::ReceivedFrame;
use isola_switch::frame::Mac;

/// The most clients with addresses of the gateway's network.
const MOST_CLIENTS: usize = 256;

/// The clients for which the table of flows is divided, and the part of the cell's memory that it takes with them.
const TYPICAL_CLIENTS: u64 = 64;
const TABLE_PART: u64 = 16;

/// The bytes of a flow in the table with its indices.
const FLOW_BYTES: u64 = 256;

/// Options for the network of the clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatOptions {
    /// The network.
    pub prefix: Prefix,
    /// Published ports.
    pub forwards: Vec<Forward>,
    /// The name server of the clients; by default, those that the service cell got by DHCP.
    pub dns: Option<Ipv4Addr>,
}

/// The reason why options are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatOptionsError {
    /// There is no network.
    NoPrefix,
    /// The network.
    Prefix(PrefixError),
    /// A published port.
    Forward(ForwardError),
    /// A port is published twice.
    Twice(u16),
    /// The name server has no IPv4 address.
    Dns,
}

impl fmt::Display for NatOptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPrefix => PrefixError::Malformed.fmt(f),
            Self::Prefix(error) => error.fmt(f),
            Self::Forward(error) => error.fmt(f),
            Self::Twice(port) => write!(f, "port {port} is published twice"),
            Self::Dns => f.write_str("a name server is dns:ADDRESS, as in dns:10.0.2.3"),
        }
    }
}

impl core::error::Error for NatOptionsError {}

impl NatOptions {
    /// Returns the options of arguments: the network, then `PORT:CELL:PORT[/udp]` for each published port, several of them
    /// with commas between, and `dns:ADDRESS`.
    ///
    /// # Errors
    /// A [`NatOptionsError`].
    pub fn parse<'a>(mut arguments: impl Iterator<Item = &'a str>) -> Result<Self, NatOptionsError> {
        let prefix = arguments.next().ok_or(NatOptionsError::NoPrefix)?;
        let prefix = prefix.parse().map_err(NatOptionsError::Prefix)?;
        let mut options = Self { prefix, forwards: Vec::new(), dns: None };
        for argument in arguments.flat_map(|argument| argument.split(',')) {
            if let Some(address) = argument.strip_prefix("dns:") {
                options.dns = Some(address.parse().map_err(|_| NatOptionsError::Dns)?);
                continue;
            }
            let forward: Forward = argument.parse().map_err(NatOptionsError::Forward)?;
            let is_same = |other: &Forward| (other.protocol, other.port) == (forward.protocol, forward.port);
            if options.forwards.iter().any(is_same) {
                return Err(NatOptionsError::Twice(forward.port));
            }
            options.forwards.push(forward);
        }
        Ok(options)
    }

    /// Returns the gateway with these options, in a cell whose device has this hardware address.
    pub(super) fn gateway(self, mac: Mac) -> Gateway {
        let memory = platform().report().memory.total_bytes.load(Ordering::Relaxed);
        let flows = (memory / TABLE_PART / TYPICAL_CLIENTS / FLOW_BYTES).clamp(64, 4096) as usize;
        Gateway::new(mac, self.prefix, self.forwards, Limits { flows, clients: MOST_CLIENTS })
            .with_name_server(self.dns)
    }
}

/// Passes the present address of the cell to the gateway, if there is one.
pub(super) fn update() {
    HUB.with_gateway(|gateway| {
        let outside = address().map(|own| Outside {
            address: own.address,
            prefix_len: own.prefix_len,
            router: own.gateway,
            dns: [own.dns[0], own.dns[1]],
        });
        gateway.set_outside(outside);
    });
}

/// Counts a dropped packet.
pub(super) fn count(reason: DropReason) {
    count_dropped(match reason {
        DropReason::ForeignAddress => LinkDrop::Source,
        DropReason::Full => LinkDrop::Flows,
        _ => LinkDrop::Untranslated,
    });
}

/// Returns a frame for the device.
pub(super) fn complete(head: IoBufMut) -> Frame {
    Frame { head, payload: Chain::new(), checksum: None, segment_len: None }
}

/// Returns a copy of a frame.
pub(super) fn copy(bytes: &[u8]) -> IoBufMut {
    let mut copy = IoBufMut::with_room(HEADROOM, bytes.len());
    _ = copy.append_slice(bytes);
    copy
}

/// Returns a frame that may be changed: a copy, if it has other owners.
pub(super) fn sole(frame: IoBuf) -> IoBufMut {
    frame.try_into_mut().unwrap_or_else(|shared| copy(&shared))
}

/// Returns a received frame in one piece.
pub(super) fn whole(received: ReceivedFrame) -> IoBufMut {
    let ReceivedFrame { frame, rest, .. } = received;
    let Some(rest) = rest else { return sole(frame) };
    let mut whole = IoBufMut::with_room(HEADROOM, frame.len() + rest.len());
    core::iter::once(&frame).chain(rest.parts()).for_each(|part| _ = whole.append_slice(part));
    whole
}

/// Sends frames from an event of their own, as the caller is in the middle of receiving.
pub(super) fn send_later(frames: Vec<IoBufMut>) {
    if !frames.is_empty() {
        spawn_task(async move { send_for(INFRASTRUCTURE, frames.into_iter().map(complete).collect()) })
            .detach();
    }
}

#[cfg(test)]
mod tests {
    use super::{NatOptions, NatOptionsError};

    fn parse(arguments: &[&str]) -> Result<NatOptions, NatOptionsError> {
        NatOptions::parse(arguments.iter().copied())
    }

    #[test]
    fn ports_are_separate_arguments_or_lists() {
        let separate = parse(&["10.77.0.0/16", "8080:web:80", "5353:kv:53/udp", "dns:10.0.2.3"]).unwrap();
        let lists = parse(&["10.77.0.0/16", "8080:web:80,5353:kv:53/udp,dns:10.0.2.3"]).unwrap();
        assert_eq!(separate, lists);
        assert_eq!(lists.forwards.len(), 2);
        assert_eq!(parse(&["10.77.0.0/16", "80:a:80,80:b:80"]), Err(NatOptionsError::Twice(80)));
        for list in ["80:a:80,", ",80:a:80", "80:a:80,,81:b:80", "80:a:80 81:b:80"] {
            let error = parse(&["10.77.0.0/16", list]).unwrap_err();
            assert!(matches!(error, NatOptionsError::Forward(_)), "{list}: {error}");
        }
    }
}
