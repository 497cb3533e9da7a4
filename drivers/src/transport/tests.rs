//! Valid devices behind registers, and the reasons to reject others.

use super::capabilities::CapabilityError;
use super::mmio::MmioTransport;
use super::pci::PciTransport;
use super::*;
use crate::fake::pci::{
    COMMON_AT, DEVICE_AT, FakeFunction, INTERRUPT_AT, MSI_X_AT, NOTIFY_AT, virtio_capability,
};
use crate::fake::registers::{FakeDevice, FakeWindow, SharedDevice, lock, mmio};
use proptest::prelude::*;
use std::string::ToString;
use std::sync::{Arc, Mutex};
use std::vec;

const OFFERED: u64 = 0xa5a5_0001_1234_5678;

fn device() -> SharedDevice {
    Arc::new(Mutex::new(FakeDevice::new(1, OFFERED, 2, vec![1, 2, 3, 4, 5, 6, 7])))
}

fn addresses() -> QueueAddresses {
    QueueAddresses { size: 64, descriptors: 0x1_2345_6000, available: 0x2_3456_7000, used: 0x3_4567_8000 }
}

/// Checks the behaviour common to all buses.
fn check(transport: &mut dyn Transport, device: &SharedDevice, entry: Option<EntryIndex>) {
    assert_eq!(transport.device_type(), 1);
    assert_eq!(transport.device_features(), OFFERED);
    transport.accept_features(0x0000_0001_2000_0020);
    assert_eq!(lock(device).accepted, 0x0000_0001_2000_0020);
    transport.set_status(11);
    assert_eq!((transport.status(), lock(device).status), (11, 11));
    assert_eq!(transport.queue_limit(QueueIndex(1)), 256);
    assert_eq!(transport.queue_limit(QueueIndex(2)), 0);
    let notifier = transport.enable_queue(QueueIndex(1), addresses(), entry).unwrap();
    {
        let device = lock(device);
        let queue = &device.queues[1];
        assert_eq!((queue.ready, queue.size), (true, 64));
        assert_eq!(queue.addresses, [0x1_2345_6000, 0x2_3456_7000, 0x3_4567_8000]);
        assert_eq!(queue.entry, entry.map_or(0xffff, |entry| entry.0));
        assert!(!device.queues[0].ready);
    }
    let again = transport.enable_queue(QueueIndex(1), addresses(), entry);
    assert_eq!(again.unwrap_err(), TransportError::QueueInUse { queue: QueueIndex(1) });
    transport.set_status(15);
    notifier.notify();
    assert_eq!(lock(device).notices, [1]);
    assert_eq!(transport.configuration_u8(6), Some(7));
    assert_eq!(transport.configuration_u16(4), Some(0x0605));
    assert_eq!(transport.configuration_u16(3), None, "not aligned");
    assert_eq!(transport.configuration_u8(usize::MAX), None);
    assert_eq!(transport.configuration_u16(usize::MAX - 1), None);
    assert_eq!(transport.configuration_u32(0), Some(0x0403_0201));
    assert_eq!(transport.configuration_u32(2), None, "not aligned");
    assert_eq!(transport.configuration_u32(4), None, "the configuration has seven bytes");
    assert_eq!(transport.configuration_u32(usize::MAX - 3), None);
    lock(device).interrupt_status = 1;
    let cause = transport.acknowledge();
    assert_eq!(cause, InterruptCause { queue: Cause::Possible, configuration: Cause::No });
    let cause = transport.acknowledge();
    assert_eq!(cause, InterruptCause { queue: Cause::No, configuration: Cause::No });
    lock(device).interrupt_status = 2;
    assert_eq!(transport.acknowledge().configuration, Cause::Possible);
    lock(device).quirks.refuses_queues = true;
    let refused = transport.enable_queue(QueueIndex(0), addresses(), entry);
    assert_eq!(refused.unwrap_err(), TransportError::QueueRefused { queue: QueueIndex(0) });
}

#[test]
fn an_mmio_device_passes_the_common_checks() {
    let device = device();
    let mut transport = MmioTransport::new(mmio(&device)).unwrap();
    check(&mut transport, &device, None);
    let entry = EntryIndex(0);
    let refused = transport.enable_queue(QueueIndex(0), addresses(), Some(entry));
    assert_eq!(refused.unwrap_err(), TransportError::NoSuchEntry { entry });
    let message = InterruptMessage { address: 0, data: 0 };
    assert_eq!(transport.message_entries(), 0);
    assert_eq!(transport.set_message(entry, message).unwrap_err(), TransportError::NoSuchEntry { entry });
}

#[test]
fn slots_without_a_modern_device_are_rejected_with_the_reason() {
    let refusal = |change: &dyn Fn(&mut FakeDevice)| {
        let device = device();
        change(&mut lock(&device));
        MmioTransport::new(mmio(&device)).unwrap_err()
    };
    assert_eq!(refusal(&|device| device.version = 1), TransportError::Legacy);
    assert!(refusal(&|device| device.version = 1).to_string().contains("force-legacy=false"));
    assert_eq!(refusal(&|device| device.version = 3), TransportError::Version(3));
    assert_eq!(refusal(&|device| device.magic = 0), TransportError::NotVirtio);
    for version in [1, 2] {
        let vacant = refusal(&|device| (device.version, device.device_type) = (version, 0));
        assert_eq!(vacant, TransportError::Vacant);
    }
    let short = FakeWindow::new(device(), 0xff);
    let error = TransportError::WindowTooShort { len: 0xff, needed: 0x100 };
    assert_eq!(MmioTransport::new(short).unwrap_err(), error);
}

fn open(function: &FakeFunction) -> Result<PciTransport<FakeWindow>, TransportError> {
    PciTransport::new(function.config(), &function.bars())
}

#[test]
fn a_pci_function_passes_the_common_checks() {
    let device = device();
    let function = FakeFunction::new(&device, 3);
    let mut transport = open(&function).unwrap();
    // Memory, bus master, no line interrupt; MSI-X enabled, and the function mask clear.
    assert_eq!(function.configuration.lock().unwrap().u16(4), 0x406);
    assert_eq!(function.configuration.lock().unwrap().u16(MSI_X_AT + 2), 0x8002);
    assert_eq!(transport.message_entries(), 3);
    check(&mut transport, &device, Some(EntryIndex(2)));
    assert_eq!(transport.configuration_u8(7), None);
    assert_eq!(transport.configuration_u16(6), None);
}

#[test]
fn message_interrupts_are_masked_until_they_are_configured() {
    let device = device();
    let function = FakeFunction::new(&device, 3);
    let mut transport = open(&function).unwrap();
    let entry = |index: usize, word: usize| function.table.lock().unwrap().u32(index * 16 + word * 4);
    assert_eq!([entry(0, 3), entry(1, 3), entry(2, 3)], [1, 1, 1]);
    let message = InterruptMessage { address: 0xfee0_1000, data: 0x41 };
    let mut control = transport.set_message(EntryIndex(1), message).unwrap();
    assert_eq!([entry(1, 0), entry(1, 1), entry(1, 2), entry(1, 3)], [0xfee0_1000, 0, 0x41, 0]);
    control.mask();
    assert_eq!(entry(1, 3), 1);
    control.unmask();
    assert_eq!(entry(1, 3), 0);
    control.redirect(InterruptMessage { address: 0x1_fee0_2000, data: 0x42 });
    assert_eq!([entry(1, 0), entry(1, 1), entry(1, 2), entry(1, 3)], [0xfee0_2000, 1, 0x42, 0]);
    assert_eq!([entry(0, 3), entry(2, 3)], [1, 1], "other entries changed");
    let none = TransportError::NoSuchEntry { entry: EntryIndex(3) };
    assert_eq!(transport.set_message(EntryIndex(3), message).unwrap_err(), none);
    transport.set_configuration_entry(EntryIndex(2)).unwrap();
    assert_eq!(lock(&device).configuration_entry, 2);
    lock(&device).quirks.has_no_vectors = true;
    let entry = EntryIndex(1);
    let refused = transport.enable_queue(QueueIndex(0), addresses(), Some(entry));
    assert_eq!(refused.unwrap_err(), TransportError::NoSuchEntry { entry });
    assert!(transport.set_configuration_entry(entry).is_err());
}

#[test]
fn a_function_without_message_interrupts_passes_the_common_checks() {
    let device = device();
    let mut transport = open(&FakeFunction::new(&device, 0)).unwrap();
    assert_eq!(transport.message_entries(), 0);
    check(&mut transport, &device, None);
}

#[test]
fn functions_that_are_no_modern_virtio_devices_are_rejected_with_the_reason() {
    let refusal = |offset: usize, bytes: &[u8]| {
        let function = FakeFunction::new(&device(), 2);
        function.put(offset, bytes);
        open(&function).unwrap_err()
    };
    assert_eq!(refusal(0, &[0x86, 0x80]), TransportError::NotVirtio);
    assert_eq!(refusal(2, &[0x80, 0x10]), TransportError::NotVirtio);
    assert_eq!(refusal(2, &[0xff, 0x0f]), TransportError::NotVirtio);
    // No list of capabilities: a modern device needs one, and a transitional device without it is a legacy device.
    assert_eq!(refusal(6, &[0, 0]), TransportError::Capability(CapabilityError::Missing));
    let legacy = FakeFunction::new(&device(), 2);
    legacy.put(2, &[0x00, 0x10]);
    legacy.put(6, &[0, 0]);
    assert_eq!(open(&legacy).unwrap_err(), TransportError::Legacy);
    // A transitional device with capabilities is modern; its type is the subsystem id.
    let transitional = FakeFunction::new(&device(), 2);
    transitional.put(2, &[0x00, 0x10]);
    transitional.put(0x2e, &[3, 0]);
    assert_eq!(open(&transitional).unwrap().device_type(), 3);
    let short = PciTransport::new(transitional.config().window(0, 255).unwrap(), &transitional.bars());
    assert_eq!(short.unwrap_err(), TransportError::WindowTooShort { len: 255, needed: 256 });
}

#[test]
fn invalid_capabilities_are_rejected() {
    let refusal = |puts: &[(usize, &[u8])]| {
        let function = FakeFunction::new(&device(), 2);
        for (offset, bytes) in puts {
            function.put(*offset, bytes);
        }
        match open(&function) {
            Ok(_) => panic!("accepted"),
            Err(TransportError::Capability(error)) => error,
            Err(other) => panic!("{other}"),
        }
    };
    use CapabilityError::*;
    // Loops: to itself, and to the first.
    assert_eq!(refusal(&[(MSI_X_AT + 1, &[MSI_X_AT as u8])]), Endless);
    assert_eq!(refusal(&[(MSI_X_AT + 1, &[COMMON_AT as u8])]), Endless);
    // Into the header, and beyond the end.
    assert_eq!(refusal(&[(0x34, &[0x10])]), OutsideConfiguration { at: 0x10 });
    assert_eq!(refusal(&[(MSI_X_AT + 1, &[0xfc]), (0xfc, &[9])]), OutsideConfiguration { at: 0xfc });
    assert_eq!(refusal(&[(MSI_X_AT + 1, &[0xf8]), (0xf8, &[0x11])]), OutsideConfiguration { at: 0xf8 });
    // A structure outside of all BARs, without an alternative.
    for (bar, offset, len) in [(0, 0, 56), (4, 0x4000, 56), (4, 0, 0x4001), (4, u32::MAX - 3, 56), (4, 2, 56)]
    {
        let bytes = virtio_capability(NOTIFY_AT, 16, 1, bar, offset, len);
        assert_eq!(refusal(&[(COMMON_AT, &bytes)]), Missing, "bar {bar} at {offset:#x}, {len:#x} bytes");
    }
    for (at, kind) in [(NOTIFY_AT, 2), (INTERRUPT_AT, 3)] {
        assert_eq!(refusal(&[(at + 4, &[7])]), Missing, "kind {kind}");
    }
    // The MSI-X table outside of its BAR.
    assert_eq!(refusal(&[(MSI_X_AT + 4, &[2])]), OutsideBar { bar: 2 });
    assert_eq!(refusal(&[(MSI_X_AT + 4, &[0xf1, 0x0f])]), OutsideBar { bar: 1 });
    assert_eq!(refusal(&[(MSI_X_AT + 2, &[0xff, 0x07])]), OutsideBar { bar: 1 });
}

#[test]
fn the_first_usable_of_several_structures_is_used() {
    let device = device();
    let function = FakeFunction::new(&device, 0);
    // Another set of common registers before the valid one, in a BAR that is not mapped.
    function.put(0x34, &[0xc0]);
    function.put(0xc0, &virtio_capability(COMMON_AT, 16, 1, 2, 0, 56));
    // An invalid set after it.
    function.put(DEVICE_AT + 1, &[0xd0]);
    function.put(0xd0, &virtio_capability(0, 16, 1, 4, 0x3000, 56));
    check(&mut open(&function).unwrap(), &device, None);
}

#[test]
fn registers_that_are_too_short_are_rejected() {
    let function = FakeFunction::new(&device(), 0);
    function.put(COMMON_AT + 12, &55_u32.to_le_bytes());
    assert_eq!(open(&function).unwrap_err(), TransportError::WindowTooShort { len: 55, needed: 56 });
    let function = FakeFunction::new(&device(), 0);
    function.put(INTERRUPT_AT + 12, &0_u32.to_le_bytes());
    assert_eq!(open(&function).unwrap_err(), TransportError::WindowTooShort { len: 0, needed: 1 });
}

#[test]
fn notification_registers_outside_of_the_bar_are_rejected() {
    let notify = |multiplier: u32, offset: u16| {
        let device = device();
        lock(&device).queues[0].notify_offset = offset;
        let function = FakeFunction::new(&device, 0);
        function.put(NOTIFY_AT + 16, &multiplier.to_le_bytes());
        open(&function).unwrap().enable_queue(QueueIndex(0), addresses(), None).map(|_| ())
    };
    let outside = Err(TransportError::NotifyOutside { queue: QueueIndex(0) });
    assert_eq!(notify(4, 0x3ff), Ok(()));
    assert_eq!(notify(4, 0x400), outside);
    assert_eq!(notify(u32::MAX, u16::MAX), outside);
    assert_eq!(notify(1, 1), outside, "not aligned");
    assert_eq!(notify(0, 9), Ok(()), "one register for all queues");
}

#[test]
fn a_queue_size_that_the_device_ignores_is_an_error() {
    let device = device();
    lock(&device).quirks.ignores_queue_size = true;
    let mut transport = open(&FakeFunction::new(&device, 0)).unwrap();
    let refused = transport.enable_queue(QueueIndex(0), addresses(), None);
    assert_eq!(refused.unwrap_err(), TransportError::QueueRefused { queue: QueueIndex(0) });
}

proptest! {
    /// The fake's registers panic at any access outside of a window, and at any misaligned one.
    #[test]
    fn accesses_stay_in_their_windows_for_any_configuration_space(
        changes in prop::collection::vec((0x34_usize..0x100, any::<u8>()), 1..24),
        pointers in prop::collection::vec((0_usize..5, any::<u8>()), 0..3),
    ) {
        let device = device();
        let function = FakeFunction::new(&device, 2);
        for (offset, byte) in changes {
            function.put(offset, &[byte]);
        }
        let at = [COMMON_AT, NOTIFY_AT, INTERRUPT_AT, DEVICE_AT, MSI_X_AT];
        for (which, byte) in pointers {
            function.put(at[which] + 1, &[byte]);
        }
        // A table of 4 KiB and registers of 64 KiB that allow every access within them.
        let table = FakeWindow::new(Arc::new(Mutex::new(crate::fake::pci::Bytes(vec![0; 4096]))), 4096);
        let registers = FakeWindow::new(Arc::new(Mutex::new(crate::fake::pci::Bytes(vec![0; 65536]))), 65536);
        let bars = [(1, table), (4, registers)];
        if let Ok(mut transport) = PciTransport::new(function.config(), &bars) {
            transport.device_features();
            transport.acknowledge();
            transport.configuration_u8(3);
            transport.configuration_u16(10);
            transport.configuration_u32(12);
            let message = InterruptMessage { address: 1, data: 2 };
            for entry in [0, 1, 0x7ff, 0xffff] {
                _ = transport.set_message(EntryIndex(entry), message);
            }
            if let Ok(notifier) = transport.enable_queue(QueueIndex(0), addresses(), None) {
                notifier.notify();
            }
        }
    }
}
