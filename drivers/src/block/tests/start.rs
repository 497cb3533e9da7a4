//! A device from reset to running, over both buses, and its end.

use super::*;
use crate::fake::pci::FakeFunction;
use crate::transport::TransportError;
use crate::transport::pci::PciTransport;

/// `VIRTIO_BLK_F_GEOMETRY`, `VIRTIO_BLK_F_CONFIG_WCE`, `VIRTIO_BLK_F_LIFETIME`, `VIRTIO_BLK_F_ZONED` and others that
/// the driver does not use.
const FURTHER: u64 = 1 << 4 | 1 << 11 | 1 << 15 | 1 << 16 | 1 << 17 | 1 << 34;

const MESSAGES: [InterruptMessage; 2] = [
    InterruptMessage { address: 0xfee0_0000, data: 0x50 },
    InterruptMessage { address: 0xfee0_1000, data: 0x51 },
];

#[test]
fn start_follows_the_steps_of_the_specification() {
    let rig = Rig::new(EVERYTHING | FURTHER | bits::READ_ONLY);
    let (device, queues) = rig.start(&LINE).unwrap();
    let fake = lock(&rig.device);
    assert_eq!(fake.statuses, [0, 1, 3, 11, 15]);
    assert_eq!(
        fake.accepted,
        EVERYTHING | bits::READ_ONLY,
        "the negotiated features are exactly the used ones"
    );
    assert_eq!(fake.queues[0].size, 16);
    assert!(!fake.queues[1].ready);
    drop(fake);
    assert_eq!((queues.len(), device.capacity()), (1, 64));
    assert!(!device.needs_reset());
    lock(&rig.device).status |= 64;
    assert!(device.needs_reset());
    drop(device);
    assert_eq!(lock(&rig.device).status, 0, "a dropped device was not reset");
}

#[test]
fn limits_are_those_of_the_device() {
    let rig = Rig::new(EVERYTHING | bits::READ_ONLY);
    let (device, queues) = rig.start(&LINE).unwrap();
    let limits = BlockLimits {
        block_len: 1024,
        physical_block_len: 4096,
        optimal_len: 32 << 10,
        data_len: 4 << 20,
        segments: 6,
        segment_len: 8192,
        writability: Writability::ReadOnly,
        cache: WriteCache::Volatile,
        discard_sectors: 16,
        discard_alignment: 8,
        write_zeroes_sectors: 32,
        write_zeroes_unmap: Unmap::Allowed,
    };
    assert_eq!((device.limits(), queues[0].limits()), (&limits, &limits));
}

#[test]
fn limits_that_the_device_does_not_report_are_those_of_the_driver() {
    let rig = Rig::new(BASIC);
    let options = BlockOptions { queues: 2, queue_size: 64, ..LINE };
    let (device, queues) = rig.start(&options).unwrap();
    let limits = BlockLimits {
        block_len: 512,
        physical_block_len: 512,
        optimal_len: 0,
        data_len: 4 << 20,
        segments: 30,
        segment_len: 4 << 20,
        writability: Writability::Writable,
        cache: WriteCache::None,
        discard_sectors: 0,
        discard_alignment: 0,
        write_zeroes_sectors: 0,
        write_zeroes_unmap: Unmap::Never,
    };
    assert_eq!((device.limits(), queues.len()), (&limits, 1));
}

#[test]
fn unusable_devices_are_rejected_with_the_reason() {
    let refusal = |offered, change: &dyn Fn(&mut FakeDevice)| {
        let rig = Rig::new(offered);
        change(&mut lock(&rig.device));
        let error = rig.start(&BlockOptions { queues: 2, ..LINE }).map(|_| ()).unwrap_err();
        assert!(
            lock(&rig.device).statuses.last() == Some(&0) || matches!(error, DeviceError::OtherType { .. })
        );
        error
    };
    let set = |offset: usize, value: u32| {
        move |device: &mut FakeDevice| {
            device.configuration[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        }
    };
    let missing = DeviceError::FeaturesMissing { features: VERSION_1 };
    assert_eq!(refusal(EVERYTHING & !VERSION_1, &|_| ()), missing);
    assert_eq!(refusal(BASIC, &|device| device.device_type = 1), DeviceError::OtherType { device_type: 1 });
    for len in [0, 1, 256, 513, 768, 128 << 10, 1 << 31, u32::MAX] {
        assert_eq!(refusal(EVERYTHING, &set(20, len)), DeviceError::InvalidBlockLen { len });
    }
    for len in [0, 1, 511] {
        assert_eq!(refusal(EVERYTHING, &set(8, len)), DeviceError::InvalidSegmentLen { len });
    }
    for (offered, len) in [(BASIC, 7), (EVERYTHING, 35), (EVERYTHING, 56)] {
        let error = refusal(offered, &|device| device.configuration.truncate(len));
        assert_eq!(error, DeviceError::ConfigurationTooShort);
    }
    let unstable = refusal(BASIC, &|device| device.quirks.changes_configuration_always = true);
    assert_eq!(unstable, DeviceError::ConfigurationUnstable);
    for limit in [0, 3] {
        let error = refusal(EVERYTHING, &|device| device.queues[1].limit = limit);
        assert_eq!(error, DeviceError::NoQueue { queue: QueueIndex(1) });
    }
    let refused = DeviceError::Transport(TransportError::QueueRefused { queue: QueueIndex(0) });
    assert_eq!(refusal(BASIC, &|device| device.quirks.refuses_queues = true), refused);
    let rig = Rig::new(BASIC);
    let none = rig.start(&BlockOptions { queues: 0, ..LINE }).map(|_| ()).unwrap_err();
    assert_eq!(none, DeviceError::NoQueuesAsked);
}

#[test]
fn a_device_that_reports_no_or_many_queues_gets_those_that_exist() {
    let rig = Rig::new(EVERYTHING);
    rig.configure(34, &0_u16.to_le_bytes());
    assert_eq!(rig.start(&BlockOptions { queues: 2, ..LINE }).unwrap().1.len(), 1);
    let rig = Rig::new(EVERYTHING);
    rig.configure(34, &u16::MAX.to_le_bytes());
    assert_eq!(rig.start(&BlockOptions { queues: 2, ..LINE }).unwrap().1.len(), 2);
    let error = rig.start(&BlockOptions { queues: 3, ..LINE }).map(|_| ()).unwrap_err();
    assert_eq!(error, DeviceError::NoQueue { queue: QueueIndex(2) });
}

#[test]
fn queues_have_interrupts_of_their_own_on_pci_and_move_between_cores() {
    let rig = Rig::new(EVERYTHING);
    let function = FakeFunction::new(&rig.device, 3);
    let transport = PciTransport::new(function.config(), &function.bars()).unwrap();
    let interrupts = BlockInterrupts::Messages {
        queues: &MESSAGES,
        configuration: Some(InterruptMessage { address: 0xfee0_2000, data: 0x52 }),
    };
    let options = BlockOptions { queues: 8, interrupts, ..LINE };
    let (device, mut queues) = rig.start_on(Box::new(transport), &options).unwrap();
    assert_eq!((queues.len(), device.capacity()), (2, 64));
    let entries: Vec<u16> = lock(&rig.device).queues.iter().map(|queue| queue.entry).collect();
    assert_eq!((entries.as_slice(), lock(&rig.device).configuration_entry), ([0, 1].as_slice(), 2));
    let data = |entry: usize| function.table.lock().unwrap().u32(entry * 16 + 8);
    assert_eq!([data(0), data(1), data(2)], [0x50, 0x51, 0x52]);
    queues[1].redirect(InterruptMessage { address: 0xfee0_3000, data: 0x60 });
    assert_eq!([data(0), data(1)], [0x50, 0x60]);
    let mut second = queues.pop().unwrap();
    let request = rig.write(2, &[1024], 7);
    let moved = std::thread::spawn(move || {
        second.submit(request, 5).unwrap();
        second.publish();
        second
    });
    queues.push(moved.join().unwrap());
    let mut disk = rig.disk(1);
    assert_eq!(disk.execute_all(), 1);
    assert_eq!((queues[1].take_completed().unwrap().tag, disk.bytes[1024]), (5, 7));
    assert_eq!(lock(&rig.device).notices, [1]);
    device.stop(queues).unwrap();
}

#[test]
fn there_are_no_more_queues_than_interrupts() {
    let rig = Rig::new(EVERYTHING);
    let function = FakeFunction::new(&rig.device, 1);
    let transport = PciTransport::new(function.config(), &function.bars()).unwrap();
    let interrupts = BlockInterrupts::Messages { queues: &MESSAGES, configuration: Some(MESSAGES[0]) };
    let options = BlockOptions { queues: 2, interrupts, ..LINE };
    let (_device, queues) = rig.start_on(Box::new(transport), &options).unwrap();
    assert_eq!(queues.len(), 1);
    assert_eq!(lock(&rig.device).configuration_entry, 0xffff, "no entry is left for configuration changes");
    let on_mmio = Rig::new(EVERYTHING).start(&options).map(|_| ()).unwrap_err();
    assert_eq!(on_mmio, DeviceError::NoQueuesAsked, "MMIO has no message interrupts");
}

#[test]
fn stopping_resets_the_device_before_buffers_are_dropped() {
    let rig = Rig::new(BASIC);
    let (device, mut queues) = rig.start(&LINE).unwrap();
    queues[0].submit(rig.read(0, &[512]), 0).unwrap();
    queues[0].publish();
    device.stop(queues).unwrap();
    assert_eq!(lock(&rig.device).statuses.last(), Some(&0));

    let rig = Rig::new(BASIC);
    let (device, queues) = rig.start(&LINE).unwrap();
    lock(&rig.device).quirks.hangs_in_reset = true;
    assert_eq!(device.stop(queues), Err(DeviceError::ResetHangs));
}
