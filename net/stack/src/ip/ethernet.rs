//! Ethernet II frames: addresses and payload.

use crate::base::{Counter, MacAddr};
use etherparse::{EtherType, Ethernet2HeaderSlice};
use isola_iobuf::{IoBuf, IoBufMut};

/// Length of the header, in bytes.
pub(crate) const HEADER_LEN: usize = 14;

/// A received frame without its header.
pub(crate) struct EthernetFrame {
    pub source: MacAddr,
    pub destination: MacAddr,
    pub ether_type: EtherType,
    pub payload: IoBuf,
}

/// Removes the header.
pub(crate) fn parse(mut frame: IoBuf) -> Result<EthernetFrame, Counter> {
    let header = Ethernet2HeaderSlice::from_slice(&frame).map_err(|_| Counter::DropEthernetShort)?;
    let (source, destination) = (MacAddr(header.source()), MacAddr(header.destination()));
    let ether_type = header.ether_type();
    frame.advance(HEADER_LEN);
    Ok(EthernetFrame { source, destination, ether_type, payload: frame })
}

/// Prepends a header. Returns `None` if the buffer has no room for it.
pub(crate) fn prepend(
    head: &mut IoBufMut,
    source: MacAddr,
    destination: MacAddr,
    ether_type: EtherType,
) -> Option<()> {
    let bytes: &mut [u8; HEADER_LEN] = head.prepend(HEADER_LEN)?.try_into().ok()?;
    *bytes = header(source, destination, ether_type);
    Some(())
}

/// Returns a header.
#[inline]
pub(crate) const fn header(source: MacAddr, destination: MacAddr, ether_type: EtherType) -> [u8; HEADER_LEN] {
    let ([a, b, c, d, e, f], [g, h, i, j, k, l]) = (destination.0, source.0);
    let [high, low] = ether_type.0.to_be_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_header_parses_to_the_same_header() {
        let mut head = IoBufMut::with_room(HEADER_LEN, 3);
        head.append_slice(b"abc").unwrap();
        let (a, b) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        prepend(&mut head, a, b, EtherType::IPV4).unwrap();
        let frame = parse(head.freeze()).ok().unwrap();
        assert_eq!((frame.source, frame.destination, frame.ether_type), (a, b, EtherType::IPV4));
        assert_eq!(&*frame.payload, b"abc");
        assert!(parse(IoBuf::copy_from_slice(&[0; 13])).is_err());
    }
}
