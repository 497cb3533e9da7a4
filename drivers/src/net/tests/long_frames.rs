//! Frames longer than the MTU: segmentation offload and merged receive buffers.

use super::*;

const LONG: u64 = EVERYTHING
    | bits::SEGMENTS_IPV4
    | bits::SEGMENTS_IPV6
    | bits::MERGED_BUFFERS
    | bits::GUEST_SEGMENTS_IPV4
    | bits::GUEST_SEGMENTS_IPV6;

/// Room for two of the longest frames.
const MERGING: NetOptions<'static> =
    NetOptions { queue_size: 128, merging: Merging::Buffers { len: 2048 }, ..LINE };

fn header(buffers: u8) -> [u8; HEADER_LEN] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, buffers, 0]
}

#[test]
fn long_frames_are_negotiated_if_the_queue_has_room() {
    let agreed = |options: &NetOptions<'_>, limit: u16, offered: u64| {
        let rig = Rig::new(offered);
        lock(&rig.device).queues.iter_mut().for_each(|queue| queue.limit = limit);
        let _started = rig.start(options).unwrap();
        let accepted = lock(&rig.device).accepted;
        accepted & (LONG & !EVERYTHING)
    };
    let sending = bits::SEGMENTS_IPV4 | bits::SEGMENTS_IPV6;
    let all = LONG & !EVERYTHING;
    assert_eq!(agreed(&MERGING, 256, LONG), all);
    assert_eq!(agreed(&LINE, 256, LONG), sending, "not requested");
    assert_eq!(agreed(&MERGING, 32, LONG), sending, "the device's queue is too short");
    assert_eq!(agreed(&NetOptions { queue_size: 32, ..MERGING }, 256, LONG), sending, "the driver's queue");
    // Each feature as far as its prerequisites are offered.
    assert_eq!(agreed(&MERGING, 256, LONG & !bits::CHECKSUM), all & !sending);
    assert_eq!(agreed(&MERGING, 256, LONG & !bits::GUEST_CHECKSUM), sending | bits::MERGED_BUFFERS);
    assert_eq!(agreed(&MERGING, 256, LONG & !bits::MERGED_BUFFERS), sending);
}

#[test]
fn a_long_frame_arrives_in_several_buffers() {
    let rig = Rig::new(LONG);
    let (_net, mut pairs) = rig.start(&MERGING).unwrap();
    let pair = &mut pairs[0];
    (0..8).for_each(|_| pair.fill(rig.buffer(2048)).unwrap());
    pair.flush();
    let mut ring = rig.ring(0);
    let chains: Vec<_> = (0..4).map(|_| ring.take().unwrap()).collect();
    ring.answer(&chains[0], &[header(3).as_slice(), b"begins"].concat());
    ring.answer(&chains[1], &[b'x'; 2048]);
    ring.answer(&chains[2], b"ends");
    ring.answer(&chains[3], &[header(1).as_slice(), b"another"].concat());
    let received = pair.receive().unwrap().unwrap();
    assert_eq!((received.len, received.more), (6, 2));
    assert_eq!(pair.receive_more().unwrap().1, 2048);
    let (last, len) = pair.receive_more().unwrap();
    let mut bytes = [0; 4];
    last.read(&mut bytes);
    assert_eq!((len, &bytes), (4, b"ends"));
    let received = pair.receive().unwrap().unwrap();
    assert_eq!((received.len, received.more), (7, 0));
}

#[test]
fn a_large_mtu_needs_merged_or_longer_buffers() {
    let jumbo = NetOptions { max_mtu: 9000, ..MERGING };
    for (offered, buffer_len) in [(LONG, 2048), (LONG & !bits::MERGED_BUFFERS, 9030)] {
        let rig = Rig::new(offered);
        lock(&rig.device).configuration[10..12].copy_from_slice(&9000_u16.to_le_bytes());
        let (net, mut pairs) = rig.start(&jumbo).unwrap();
        assert_eq!((net.mtu(), pairs[0].receive_buffer_len()), (9000, buffer_len));
        pairs[0].fill(rig.buffer(buffer_len)).unwrap();
        let refused = pairs[0].fill(rig.buffer(buffer_len - 1)).unwrap_err();
        assert_eq!(refused.reason, Refusal::TooShort);
    }
}

#[test]
fn a_buffer_count_beyond_the_returned_buffers_is_a_fault() {
    let rig = Rig::new(LONG);
    let (_net, mut pairs) = rig.start(&MERGING).unwrap();
    let pair = &mut pairs[0];
    (0..8).for_each(|_| pair.fill(rig.buffer(2048)).unwrap());
    pair.flush();
    let mut ring = rig.ring(0);
    let chain = ring.take().unwrap();
    ring.answer(&chain, &[header(2).as_slice(), b"begins"].concat());
    assert_eq!(pair.receive().unwrap().unwrap().more, 1);
    assert_eq!(pair.receive_more().unwrap_err(), Fault::TooFew);
    assert_eq!(pair.fault(), Some(Fault::TooFew));
}

#[test]
fn the_buffer_count_is_ignored_without_merging() {
    let rig = Rig::new(EVERYTHING);
    let (_net, mut pairs) = rig.start(&MERGING).unwrap();
    let pair = &mut pairs[0];
    pair.fill(rig.buffer(2048)).unwrap();
    pair.flush();
    let mut ring = rig.ring(0);
    let chain = ring.take().unwrap();
    ring.answer(&chain, &[header(9).as_slice(), b"frame"].concat());
    assert_eq!(pair.receive().unwrap().unwrap().more, 0);
}

#[test]
fn segmentation_offload_needs_the_feature_of_its_kind() {
    let cut = |kind| Offload::Segment { kind, header_len: 54, segment_len: 1460, start: 34, offset: 16 };
    let rig = Rig::new(LONG & !bits::SEGMENTS_IPV6);
    let (_net, mut pairs) = rig.start(&LINE).unwrap();
    let pair = &mut pairs[0];
    assert_eq!(pair.transmit_segments(SegmentKind::TcpIpv4), FeatureSupport::Yes);
    assert_eq!(pair.transmit_segments(SegmentKind::TcpIpv6), FeatureSupport::No);
    let refused = pair.transmit(rig.frame(&[b"long"]), cut(SegmentKind::TcpIpv6)).unwrap_err();
    assert_eq!(refused.reason, Refusal::NotOffered);
    pair.transmit(refused.buffer, cut(SegmentKind::TcpIpv4)).unwrap();
    pair.flush();
    let mut ring = rig.ring(1);
    let chain = ring.take().unwrap();
    let header = [1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0, 0, 0];
    assert_eq!(ring.read(&chain), [header.as_slice(), b"long"].concat());
}

#[test]
fn a_frame_behind_its_header_takes_one_descriptor_fewer() {
    let rig = Rig::new(EVERYTHING);
    let (_net, mut pairs) = rig.start(&LINE).unwrap();
    let pair = &mut pairs[0];
    let header = pair.header(Offload::Checksum { start: 34, offset: 16 }).unwrap();
    pair.transmit_behind_header(rig.frame(&[&[header.as_slice(), b"head"].concat(), b"body"])).unwrap();
    pair.flush();
    let mut ring = rig.ring(1);
    let chain = ring.take().unwrap();
    assert_eq!(chain.segments.len(), 2);
    assert_eq!(ring.read(&chain), [header.as_slice(), b"headbody"].concat());
}
