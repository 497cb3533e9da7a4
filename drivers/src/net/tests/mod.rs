//! A network device from reset to running, frames in both directions, and reset, over both buses.

mod channel;
mod long_frames;
mod spreading;

use super::*;
use crate::device::DeviceError;
use crate::fake::pci::FakeFunction;
use crate::fake::registers::{FakeDevice, SharedDevice, lock, mmio};
use crate::fake::ring::DeviceRing;
use crate::transport::mmio::MmioTransport;
use crate::transport::pci::PciTransport;
use crate::transport::{QueueIndex, TransportError};
use crate::virtqueue::{Fault, Pending, Refusal, WakeWhen};
use isola_machine::apic::InterruptMessage;
use isola_machine::dma_peer::{SharedBuffer, SharedMemory};
use std::sync::{Arc, Mutex};
use std::vec;
use std::vec::Vec;

type Frame = Vec<SharedBuffer>;
type Pair = NetQueue<SharedBuffer, Frame>;

const VERSION_1: u64 = 1 << 32;
const EVENT_INDEX: u64 = 1 << 29;
const INDIRECT: u64 = 1 << 28;
const QUEUE_RESET: u64 = 1 << 40;
const BASIC: u64 = VERSION_1 | bits::MAC;
const EVERYTHING: u64 = BASIC
    | EVENT_INDEX
    | INDIRECT
    | bits::CHECKSUM
    | bits::GUEST_CHECKSUM
    | bits::MTU
    | bits::STATUS
    | bits::CONTROL_QUEUE
    | bits::SEVERAL_PAIRS;
/// `VIRTIO_NET_F_GUEST_TSO4`, `VIRTIO_NET_F_MRG_RXBUF`, `VIRTIO_NET_F_CTRL_VLAN` and other features that the driver
/// does not use here.
const FURTHER: u64 = 1 << 7 | 1 << 15 | 1 << 19 | 1 << 57 | 1 << 34;

const MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

const LINE: NetOptions<'static> = NetOptions {
    pairs: 1,
    queue_size: 8,
    max_mtu: 1500,
    merging: Merging::Never,
    reception: Reception::Own,
    interrupts: NetInterrupts::Line,
};

const MESSAGES: [InterruptMessage; 2] = [
    InterruptMessage { address: 0xfee0_0000, data: 0x50 },
    InterruptMessage { address: 0xfee0_1000, data: 0x51 },
];

struct Rig {
    memory: SharedMemory,
    device: SharedDevice,
}

impl Rig {
    /// A device with two pairs and a control queue, MTU 1400, link up.
    fn new(offered: u64) -> Self {
        let mut configuration = MAC.to_vec();
        configuration.extend([1, 0, 2, 0, 0x78, 0x05]);
        let mut device = FakeDevice::new(1, offered, 5, configuration);
        let memory = SharedMemory::new(4 << 20);
        device.memory = Some(memory.peer());
        device.control = Some(4);
        Self { memory, device: Arc::new(Mutex::new(device)) }
    }

    fn start_on(
        &self,
        transport: Box<dyn Transport>,
        options: &NetOptions<'_>,
    ) -> Result<(NetDevice, Vec<Pair>), DeviceError> {
        NetDevice::start(transport, options, &mut |len| self.memory.region(len).unwrap())
    }

    fn start(&self, options: &NetOptions<'_>) -> Result<(NetDevice, Vec<Pair>), DeviceError> {
        if channel::is_selected() {
            return self.start_over_channel(options);
        }
        self.start_on(Box::new(MmioTransport::new(mmio(&self.device)).unwrap()), options)
    }

    fn ring(&self, queue: u16) -> DeviceRing {
        lock(&self.device).ring(queue)
    }

    fn buffer(&self, len: usize) -> SharedBuffer {
        self.memory.buffer(len).unwrap()
    }

    fn frame(&self, pieces: &[&[u8]]) -> Frame {
        pieces
            .iter()
            .map(|piece| {
                let mut buffer = self.buffer(piece.len());
                buffer.write(piece);
                buffer
            })
            .collect()
    }
}

#[test]
fn start_follows_the_steps_of_the_specification() {
    let rig = Rig::new(EVERYTHING | FURTHER);
    let (net, _queues) = rig.start(&LINE).unwrap();
    let device = lock(&rig.device);
    assert_eq!(device.statuses, [0, 1, 3, 11, 15]);
    let one_pair = EVERYTHING & !(bits::CONTROL_QUEUE | bits::SEVERAL_PAIRS);
    assert_eq!(device.accepted, one_pair, "the negotiated features are exactly the used ones");
    assert_eq!((device.queues[0].size, device.queues[1].size), (8, 8));
    assert!(!device.queues[2].ready);
    drop(device);
    assert_eq!((net.mac(), net.mtu(), net.link().unwrap()), (MAC, 1400, Link::Up));
    lock(&rig.device).configuration[6] = 0;
    assert_eq!(net.link().unwrap(), Link::Down);
    assert!(!net.needs_reset());
    lock(&rig.device).status |= 64;
    assert!(net.needs_reset());
    drop(net);
    assert_eq!(lock(&rig.device).status, 0, "a dropped device was not reset");
}

#[test]
fn unusable_devices_are_rejected_with_the_reason() {
    let refusal = |offered, change: &dyn Fn(&mut FakeDevice)| {
        let rig = Rig::new(offered);
        change(&mut lock(&rig.device));
        rig.start(&LINE).map(|_| ()).unwrap_err()
    };
    let missing = |features| DeviceError::FeaturesMissing { features };
    assert_eq!(refusal(EVERYTHING & !VERSION_1, &|_| ()), missing(VERSION_1));
    assert_eq!(refusal(EVERYTHING & !bits::MAC, &|_| ()), missing(bits::MAC));
    assert_eq!(
        refusal(BASIC, &|device| device.quirks.refuses_features = true),
        DeviceError::FeaturesRefused { features: BASIC }
    );
    assert_eq!(refusal(BASIC, &|device| device.device_type = 2), DeviceError::OtherType { device_type: 2 });
    assert_eq!(
        refusal(BASIC, &|device| device.queues[1].limit = 0),
        DeviceError::NoQueue { queue: QueueIndex(1) }
    );
    assert_eq!(
        refusal(BASIC, &|device| device.configuration.truncate(5)),
        DeviceError::ConfigurationTooShort
    );
    assert_eq!(
        refusal(BASIC, &|device| device.quirks.changes_configuration_always = true),
        DeviceError::ConfigurationUnstable
    );
    assert_eq!(
        refusal(BASIC, &|device| device.quirks.refuses_queues = true),
        DeviceError::Transport(TransportError::QueueRefused { queue: QueueIndex(0) })
    );
    let hanging = refusal(BASIC, &|device| {
        device.status = 15;
        device.quirks.hangs_in_reset = true;
    });
    assert_eq!(hanging, DeviceError::ResetHangs);
    let rig = Rig::new(BASIC);
    let none = rig.start(&NetOptions { pairs: 0, ..LINE }).map(|_| ()).unwrap_err();
    assert_eq!(none, DeviceError::NoQueuesAsked);
    assert_eq!(lock(&rig.device).status, 0, "the rejected device was not reset");
}

#[test]
fn an_mtu_beyond_the_buffers_is_not_negotiated() {
    for (mtu, max_mtu, agreed) in
        [(1400_u16, 1500, true), (9000, 1500, false), (9000, 9000, true), (67, 1500, false)]
    {
        let rig = Rig::new(BASIC | bits::MTU);
        lock(&rig.device).configuration[10..12].copy_from_slice(&mtu.to_le_bytes());
        let (net, pairs) = rig.start(&NetOptions { max_mtu, ..LINE }).unwrap();
        assert_eq!(lock(&rig.device).accepted & bits::MTU != 0, agreed);
        assert_eq!(net.mtu(), if agreed { mtu } else { 1500 });
        assert_eq!(pairs[0].receive_buffer_len(), if agreed && mtu == 9000 { 9030 } else { 1530 });
    }
}

#[test]
fn frames_are_received_into_the_caller_s_buffers() {
    for offered in [EVERYTHING, BASIC] {
        let rig = Rig::new(offered);
        let (_net, mut pairs) = rig.start(&LINE).unwrap();
        let pair = &mut pairs[0];
        assert_eq!(pair.fill(rig.buffer(1529)).unwrap_err().reason, Refusal::TooShort);
        for _ in 0..8 {
            pair.fill(rig.buffer(2048)).unwrap();
        }
        assert_eq!(pair.fill(rig.buffer(2048)).unwrap_err().reason, Refusal::Full);
        pair.flush();
        assert_eq!(lock(&rig.device).notices, [0]);
        let mut ring = rig.ring(0);
        assert!(pair.receive().unwrap().is_none());
        for (flags, checksum) in [
            (0, ReceivedChecksum::Unchecked),
            (2, ReceivedChecksum::Valid),
            (1, ReceivedChecksum::Partial { start: 2, offset: 3 }),
        ] {
            let chain = ring.take().unwrap();
            assert_eq!(chain.segments.len(), 1);
            let header = [flags, 0, 0, 0, 0, 0, 2, 0, 3, 0, 1, 0];
            ring.answer(&chain, &[header.as_slice(), b"a frame"].concat());
            assert!(pair.has_received());
            let received = pair.receive().unwrap().unwrap();
            assert_eq!((received.len, received.checksum), (7, checksum));
            let mut bytes = [0; HEADER_LEN + 7];
            received.buffer.read(&mut bytes);
            assert_eq!(&bytes[HEADER_LEN..], b"a frame");
        }
        assert_eq!(pair.receive_room(), 3);
    }
}

#[test]
fn a_received_frame_without_a_byte_breaks_the_queue() {
    for written in [0, 11, 12] {
        let rig = Rig::new(BASIC);
        let (_net, mut pairs) = rig.start(&LINE).unwrap();
        pairs[0].fill(rig.buffer(2048)).unwrap();
        pairs[0].flush();
        let mut ring = rig.ring(0);
        let chain = ring.take().unwrap();
        ring.give_back(chain.head, written);
        let fault = Fault::TooShort { written };
        assert_eq!(pairs[0].receive().unwrap_err(), fault);
        assert_eq!(pairs[0].fault(), Some(fault));
        assert_eq!(pairs[0].fill(rig.buffer(2048)).unwrap_err().reason, Refusal::Broken(fault));
    }
}

#[test]
fn frames_are_sent_without_copies() {
    for offered in [EVERYTHING, BASIC] {
        let rig = Rig::new(offered);
        let (_net, mut pairs) = rig.start(&LINE).unwrap();
        let pair = &mut pairs[0];
        pair.transmit(rig.frame(&[b"head", b"body", b"more", b"and more"]), Offload::None).unwrap();
        let offload = Offload::Checksum { start: 34, offset: 16 };
        let result = pair.transmit(rig.frame(&[b"sum"]), offload);
        if offered == BASIC {
            assert_eq!(pair.transmit_checksums(), FeatureSupport::No);
            assert_eq!(result.unwrap_err().reason, Refusal::NotOffered);
        } else {
            assert_eq!(pair.transmit_checksums(), FeatureSupport::Yes);
            result.unwrap();
        }
        let mut ring = rig.ring(1);
        assert!(ring.take().is_none());
        pair.flush();
        let chain = ring.take().unwrap();
        assert_eq!(ring.read(&chain), [[0; 12].as_slice(), b"headbodymoreand more"].concat());
        ring.give_back(chain.head, 0);
        if offered == EVERYTHING {
            let chain = ring.take().unwrap();
            assert_eq!(
                ring.read(&chain),
                [[1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0].as_slice(), b"sum"].concat()
            );
            ring.give_back(chain.head, 0);
            assert_eq!(pair.in_flight(), 2);
        }
        assert!(pair.has_sent());
        assert_eq!(pair.reclaim().unwrap().unwrap().len(), 4);
        while pair.reclaim().unwrap().is_some() {}
        assert_eq!(pair.in_flight(), 0);
    }
}

#[test]
fn a_full_queue_returns_the_frame_and_interrupts_when_there_is_room() {
    let rig = Rig::new(BASIC | EVENT_INDEX);
    let (_net, mut pairs) = rig.start(&LINE).unwrap();
    let pair = &mut pairs[0];
    for _ in 0..4 {
        pair.transmit(rig.frame(&[b"frame"]), Offload::None).unwrap();
    }
    let refused = pair.transmit(rig.frame(&[b"frame"]), Offload::None).unwrap_err();
    assert_eq!(refused.reason, Refusal::Full);
    pair.flush();
    assert_eq!(pair.enable_transmit_interrupts(WakeWhen::MostReturned), Pending::No);
    let mut ring = rig.ring(1);
    for nth in 0..4 {
        let chain = ring.take().unwrap();
        ring.give_back(chain.head, 0);
        assert_eq!(ring.wants_interrupt(), nth == 3);
    }
    while pair.reclaim().unwrap().is_some() {}
    pair.transmit(refused.buffer, Offload::None).unwrap();
}

#[test]
fn interrupts_are_off_until_enabled() {
    for offered in [BASIC | EVENT_INDEX, BASIC] {
        let rig = Rig::new(offered);
        let (_net, mut pairs) = rig.start(&LINE).unwrap();
        let pair = &mut pairs[0];
        for _ in 0..4 {
            pair.fill(rig.buffer(2048)).unwrap();
        }
        pair.flush();
        let mut ring = rig.ring(0);
        let receive = |ring: &mut DeviceRing| {
            let chain = ring.take().unwrap();
            ring.answer(&chain, &[0; 72]);
            ring.wants_interrupt()
        };
        assert!(!receive(&mut ring));
        assert_eq!(pair.enable_receive_interrupts(), Pending::Yes);
        assert!(pair.receive().unwrap().is_some());
        assert_eq!(pair.enable_receive_interrupts(), Pending::No);
        assert!(receive(&mut ring));
        pair.disable_receive_interrupts();
        assert!(!receive(&mut ring));
    }
}

/// A device of virtio 1.2 on PCI, with a message interrupt for its pair.
fn start_with_queue_reset(rig: &Rig) -> (NetDevice, Pair) {
    let function = FakeFunction::new(&rig.device, 1);
    let transport = PciTransport::new(function.config(), &function.bars()).unwrap();
    let interrupts = NetInterrupts::Messages { pairs: &MESSAGES[..1], configuration: None };
    let (net, mut pairs) = rig.start_on(Box::new(transport), &NetOptions { interrupts, ..LINE }).unwrap();
    (net, pairs.pop().unwrap())
}

#[test]
fn a_device_returns_its_receive_buffers_and_receives_again() {
    for offered in [EVERYTHING, BASIC] {
        let rig = Rig::new(offered | QUEUE_RESET);
        let (mut net, mut pair) = start_with_queue_reset(&rig);
        assert_eq!(net.can_stop_reception(), FeatureSupport::Yes);
        for _ in 0..4 {
            pair.fill(rig.buffer(2048)).unwrap();
        }
        pair.flush();
        let mut ring = rig.ring(0);
        let frame = [[0; HEADER_LEN].as_slice(), b"a frame"].concat();
        let answer = |ring: &mut DeviceRing| {
            let chain = ring.take().unwrap();
            ring.answer(&chain, &frame);
        };
        answer(&mut ring);
        assert!(pair.receive().unwrap().is_some());
        answer(&mut ring);
        // Staged, and not published.
        pair.fill(rig.buffer(2048)).unwrap();
        net.stop_reception(&mut pair).unwrap();
        assert!(!lock(&rig.device).queues[0].ready);
        let notices = lock(&rig.device).notices.len();
        pair.flush();
        assert_eq!(lock(&rig.device).notices.len(), notices, "a queue in reset was notified");
        assert_eq!(pair.receive().unwrap().unwrap().len, 7, "it was received before");
        assert!(pair.receive().unwrap().is_none());
        let mut kept = Vec::new();
        net.begin_reception(&mut pair, &mut |buffer| kept.push(buffer)).unwrap();
        assert_eq!((kept.len(), pair.receive_room()), (3, 8));
        assert_eq!(pair.receive_buffers().count(), 0);
        {
            let queue = &lock(&rig.device).queues[0];
            assert_eq!((queue.ready, queue.entry), (true, 0));
        }
        let mut ring = rig.ring(0);
        assert!(ring.take().is_none(), "the device sees an empty queue");
        // More than the queue has descriptors.
        for _ in 0..20 {
            pair.fill(kept.pop().unwrap_or_else(|| rig.buffer(2048))).unwrap();
            pair.flush();
            assert_eq!(pair.enable_receive_interrupts(), Pending::No);
            answer(&mut ring);
            assert!(ring.wants_interrupt());
            assert!(pair.receive().unwrap().is_some());
        }
        assert_eq!(pair.fault(), None);
    }
}

#[test]
fn a_device_that_cannot_return_buffers_keeps_them() {
    let rig = Rig::new(BASIC);
    let (mut net, mut pair) = start_with_queue_reset(&rig);
    pair.fill(rig.buffer(2048)).unwrap();
    pair.flush();
    assert_eq!(net.can_stop_reception(), FeatureSupport::No);
    assert_eq!(net.stop_reception(&mut pair), Err(DeviceError::CommandRefused));
    assert_eq!((pair.receive_buffers().count(), pair.fault()), (1, None));

    // It neither confirms the reset nor gives up the buffers.
    let rig = Rig::new(BASIC | QUEUE_RESET);
    lock(&rig.device).quirks.hangs_in_queue_reset = true;
    let (mut net, mut pair) = start_with_queue_reset(&rig);
    pair.fill(rig.buffer(2048)).unwrap();
    pair.flush();
    assert_eq!(net.stop_reception(&mut pair), Err(DeviceError::ResetHangs));
    assert_eq!((pair.receive_buffers().count(), pair.fault()), (1, Some(Fault::Silent)));

    // A bus without the registers.
    let rig = Rig::new(BASIC | QUEUE_RESET);
    let (net, _pairs) = rig.start(&LINE).unwrap();
    assert_eq!(net.can_stop_reception(), FeatureSupport::No);
    assert_eq!(lock(&rig.device).accepted, BASIC);
}

#[test]
fn pairs_have_queues_and_interrupts_of_their_own_on_pci() {
    let rig = Rig::new(EVERYTHING);
    let function = FakeFunction::new(&rig.device, 3);
    let transport = PciTransport::new(function.config(), &function.bars()).unwrap();
    let interrupts = NetInterrupts::Messages {
        pairs: &MESSAGES,
        configuration: Some(InterruptMessage { address: 0xfee0_2000, data: 0x52 }),
    };
    let options = NetOptions { pairs: 4, interrupts, ..LINE };
    let (mut net, mut pairs) = rig.start_on(Box::new(transport), &options).unwrap();
    assert_eq!(pairs.len(), 2);
    {
        let device = lock(&rig.device);
        let entries: Vec<u16> = device.queues.iter().map(|queue| queue.entry).collect();
        assert_eq!(entries, [0, 0, 1, 1, 0xffff]);
        assert_eq!(device.configuration_entry, 2);
        assert_eq!(device.commands, [vec![4, 0, 2, 0]]);
    }
    let data = |entry: usize| function.table.lock().unwrap().u32(entry * 16 + 8);
    assert_eq!([data(0), data(1), data(2)], [0x50, 0x51, 0x52]);
    pairs[1].redirect(InterruptMessage { address: 0xfee0_3000, data: 0x60 });
    assert_eq!([data(0), data(1)], [0x50, 0x60]);
    // The second pair moves to another core.
    let mut second = pairs.pop().unwrap();
    let frame = rig.frame(&[b"from the other core"]);
    std::thread::spawn(move || {
        second.transmit(frame, Offload::None).unwrap();
        second.flush();
        second
    })
    .join()
    .map(|second| pairs.push(second))
    .unwrap();
    let mut ring = rig.ring(3);
    let chain = ring.take().unwrap();
    assert_eq!(&ring.read(&chain)[12..], b"from the other core");
    assert_eq!(lock(&rig.device).notices, [4, 3]);
    net.use_pairs(1).unwrap();
    assert_eq!(net.use_pairs(3), Err(DeviceError::CommandRefused), "the device has two pairs");
    assert_eq!(net.use_pairs(0), Err(DeviceError::CommandRefused));
    assert_eq!(lock(&rig.device).commands.last().unwrap(), &[4, 0, 1, 0]);
    net.stop(pairs).unwrap();
}

#[test]
fn promiscuous_mode_is_disabled_and_all_multicast_enabled() {
    let rig = Rig::new(EVERYTHING | bits::CONTROL_RECEIVE);
    // If the device's several pairs are not negotiated, the control queue follows the first pair.
    lock(&rig.device).control = Some(2);
    let (_net, pairs) = rig.start(&LINE).unwrap();
    assert_eq!(pairs.len(), 1);
    assert_eq!(lock(&rig.device).commands, [[0, 1, 1], [0, 0, 0]]);
}

#[test]
fn there_are_no_more_pairs_than_interrupts() {
    let rig = Rig::new(EVERYTHING);
    let function = FakeFunction::new(&rig.device, 1);
    let transport = PciTransport::new(function.config(), &function.bars()).unwrap();
    let interrupts = NetInterrupts::Messages { pairs: &MESSAGES, configuration: Some(MESSAGES[0]) };
    let options = NetOptions { pairs: 2, interrupts, ..LINE };
    let (_net, pairs) = rig.start_on(Box::new(transport), &options).unwrap();
    assert_eq!(pairs.len(), 1);
    assert_eq!(lock(&rig.device).commands, [vec![4, 0, 1, 0]]);
    assert_eq!(lock(&rig.device).configuration_entry, 0xffff, "no entry is left for configuration changes");

    let rig = Rig::new(EVERYTHING);
    let on_mmio = rig.start(&options).map(|_| ()).unwrap_err();
    assert_eq!(on_mmio, DeviceError::NoQueuesAsked, "MMIO has no message interrupts");
}

#[test]
fn a_rejected_or_unanswered_command_fails_the_start_and_resets() {
    for (answer, silent, error) in
        [(1, false, DeviceError::CommandRefused), (0, true, DeviceError::Fault(Fault::Silent))]
    {
        let rig = Rig::new(EVERYTHING);
        lock(&rig.device).control_answer = answer;
        lock(&rig.device).quirks.never_answers_commands = silent;
        assert_eq!(rig.start(&NetOptions { pairs: 2, ..LINE }).map(|_| ()).unwrap_err(), error);
        assert_eq!(lock(&rig.device).status, 0);
    }
}

#[test]
fn stopping_resets_the_device_before_buffers_are_dropped() {
    let rig = Rig::new(BASIC);
    let (net, mut pairs) = rig.start(&LINE).unwrap();
    pairs[0].fill(rig.buffer(2048)).unwrap();
    pairs[0].flush();
    net.stop(pairs).unwrap();
    assert_eq!(lock(&rig.device).statuses.last(), Some(&0));

    let rig = Rig::new(BASIC);
    let (net, pairs) = rig.start(&LINE).unwrap();
    lock(&rig.device).quirks.hangs_in_reset = true;
    assert_eq!(net.stop(pairs), Err(DeviceError::ResetHangs));
}

#[test]
fn receiving_and_sending_allocate_nothing() {
    let rig = Rig::new(EVERYTHING);
    let (_net, mut pairs) = rig.start(&LINE).unwrap();
    lock(&rig.device).notices.reserve(1000);
    let pair = &mut pairs[0];
    let (mut receive_ring, mut transmit_ring) = (rig.ring(0), rig.ring(1));
    let (mut buffer, mut frame) = (Some(rig.buffer(2048)), Some(rig.frame(&[b"head", b"body"])));
    for _ in 0..100 {
        let giving = allocation_counter::measure(|| {
            pair.fill(buffer.take().unwrap()).unwrap();
            pair.transmit(frame.take().unwrap(), Offload::Checksum { start: 14, offset: 6 }).unwrap();
            pair.flush();
        });
        let chain = receive_ring.take().unwrap();
        receive_ring.answer(&chain, &[0; 72]);
        let chain = transmit_ring.take().unwrap();
        transmit_ring.give_back(chain.head, 0);
        let taking = allocation_counter::measure(|| {
            buffer = pair.receive().unwrap().map(|received| received.buffer);
            frame = pair.reclaim().unwrap();
            _ = pair.enable_receive_interrupts();
            pair.disable_receive_interrupts();
        });
        assert_eq!((giving.count_total, taking.count_total), (0, 0));
    }
}
