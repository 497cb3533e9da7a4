//! The same device over a link to a service cell: requests, and a hostile device.

use super::*;
use crate::transport::channel::ChannelTransport;
use crate::transport::{Notify, QueueIndex, TransportError};
use isola_abi::service::DeviceOffer;
use std::cell::Cell;
use std::thread_local;

thread_local! {
    static IS_SELECTED: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling test runs over a channel.
pub(super) fn is_selected() -> bool {
    IS_SELECTED.get()
}

/// The doorbell of the service cell.
#[derive(Clone)]
struct FakeBell(SharedDevice);

impl core::fmt::Debug for FakeBell {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FakeBell")
    }
}

impl Notify for FakeBell {
    fn notify(&self) {
        lock(&self.0).notices.push(0);
    }
}

impl Rig {
    fn offer(&self) -> DeviceOffer {
        let device = lock(&self.device);
        DeviceOffer {
            device_type: device.device_type,
            features: device.offered,
            queues: device.queues.iter().map(|queue| queue.limit).collect(),
            configuration: device.configuration.clone(),
        }
    }

    pub(super) fn start_over_channel(
        &self,
        options: &BlockOptions<'_>,
    ) -> Result<(BlockDevice, Vec<Queue>), DeviceError> {
        let (transport, settings) = ChannelTransport::new(self.offer(), FakeBell(self.device.clone()));
        let started = self.start_on(Box::new(transport), options)?;
        let setup = settings.setup(0);
        let mut device = lock(&self.device);
        device.accepted = setup.features;
        for (queue, made) in device.queues.iter_mut().zip(setup.queues) {
            (queue.size, queue.ready) = (made.size, true);
            queue.addresses = [made.descriptors, made.available, made.used];
        }
        drop(device);
        Ok(started)
    }
}

/// All but the resets that hang: over a link the end of the link is the reset, and the device reaches the shared memory only.
#[test]
fn requests_and_hostile_devices_are_as_over_registers() {
    IS_SELECTED.set(true);
    let tests: [fn(); 16] = [
        requests::data_is_written_and_read_without_copies,
        requests::flushes_discards_and_writes_of_zeros_reach_the_device,
        requests::a_device_that_frees_no_storage_is_not_asked_to,
        requests::errors_of_the_device_complete_with_the_buffer,
        requests::a_full_queue_returns_the_request_until_completions_are_taken,
        requests::completions_report_the_requests_ahead_in_any_order,
        requests::long_requests_use_a_table_while_one_is_free,
        requests::interrupts_are_off_until_enabled,
        requests::a_busy_device_is_not_notified,
        requests::requests_allocate_nothing,
        hostile::a_status_that_does_not_exist_fails_all_requests,
        hostile::a_request_returned_without_a_status_fails_all_requests,
        hostile::success_of_a_read_with_missing_bytes_fails_all_requests,
        hostile::wrong_ids_lengths_and_indices_fail_all_requests,
        hostile::a_request_that_is_returned_twice_completes_once,
        hostile::requests_of_a_device_that_is_given_up_fail,
    ];
    tests.into_iter().for_each(|test| test());
    IS_SELECTED.set(false);
}

#[test]
fn an_offer_that_is_no_block_device_is_refused() {
    let rig = Rig::new(EVERYTHING);
    let refused = |change: fn(&mut DeviceOffer)| {
        let mut offer = rig.offer();
        change(&mut offer);
        let (transport, _) = ChannelTransport::new(offer, FakeBell(rig.device.clone()));
        rig.start_on(Box::new(transport), &LINE).map(|_| ()).unwrap_err()
    };
    let no_queue = DeviceError::NoQueue { queue: QueueIndex(0) };
    assert_eq!(refused(|offer| offer.device_type = 1), DeviceError::OtherType { device_type: 1 });
    assert_eq!(refused(|offer| offer.features = 0), DeviceError::FeaturesMissing { features: VERSION_1 });
    assert_eq!(refused(|offer| offer.queues.clear()), no_queue);
    assert_eq!(refused(|offer| offer.queues[0] = 1), no_queue);
    assert_eq!(refused(|offer| offer.configuration.truncate(20)), DeviceError::ConfigurationTooShort);
}

#[test]
fn a_link_has_no_message_interrupts() {
    let rig = Rig::new(EVERYTHING);
    let message = InterruptMessage { address: 0xfee0_0000, data: 0x50 };
    let (mut transport, settings) = ChannelTransport::new(rig.offer(), FakeBell(rig.device.clone()));
    assert_eq!(transport.message_entries(), 0);
    let refused = transport.set_message(EntryIndex(0), message).map(|_| ()).unwrap_err();
    assert_eq!(refused, TransportError::NoSuchEntry { entry: EntryIndex(0) });
    assert!(settings.setup(7).queues.is_empty());
    let addresses = crate::transport::QueueAddresses { size: 8, descriptors: 1, available: 2, used: 3 };
    transport.enable_queue(QueueIndex(0), addresses, None).unwrap();
    let again = transport.enable_queue(QueueIndex(0), addresses, None).map(|_| ()).unwrap_err();
    assert_eq!(again, TransportError::QueueInUse { queue: QueueIndex(0) });
    assert_eq!((settings.setup(7).base, settings.setup(7).queues.len()), (7, 1));
    transport.set_status(0);
    assert!(settings.setup(7).queues.is_empty(), "a reset disables queues");
}
