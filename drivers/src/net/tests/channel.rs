//! The same device over a link to a service cell: frames, and a hostile device.

use super::*;
use crate::transport::Notify;
use crate::transport::channel::ChannelTransport;
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
        options: &NetOptions<'_>,
    ) -> Result<(NetDevice, Vec<Pair>), DeviceError> {
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

/// All but the control queue and message interrupts, which a service cell does not have.
#[test]
fn frames_and_hostile_devices_are_as_over_registers() {
    IS_SELECTED.set(true);
    let tests: [fn(); 6] = [
        frames_are_received_into_the_caller_s_buffers,
        a_received_frame_without_a_byte_breaks_the_queue,
        frames_are_sent_without_copies,
        a_full_queue_returns_the_frame_and_interrupts_when_there_is_room,
        interrupts_are_off_until_enabled,
        an_mtu_beyond_the_buffers_is_not_negotiated,
    ];
    tests.into_iter().for_each(|test| test());
    IS_SELECTED.set(false);
}

#[test]
fn an_offer_that_is_no_network_device_is_refused() {
    let rig = Rig::new(EVERYTHING);
    let refused = |change: fn(&mut DeviceOffer)| {
        let mut offer = rig.offer();
        change(&mut offer);
        let (transport, _) = ChannelTransport::new(offer, FakeBell(rig.device.clone()));
        rig.start_on(Box::new(transport), &LINE).map(|_| ()).unwrap_err()
    };
    assert_eq!(refused(|offer| offer.device_type = 2), DeviceError::OtherType { device_type: 2 });
    assert_eq!(
        refused(|offer| offer.features = VERSION_1),
        DeviceError::FeaturesMissing { features: bits::MAC }
    );
    assert_eq!(refused(|offer| offer.queues.truncate(1)), DeviceError::NoQueue { queue: QueueIndex(1) });
    assert_eq!(refused(|offer| offer.configuration.truncate(5)), DeviceError::ConfigurationTooShort);
}

#[test]
fn promiscuous_mode_stays_for_a_device_that_is_shared() {
    let rig = Rig::new(EVERYTHING | bits::CONTROL_RECEIVE);
    lock(&rig.device).control = Some(2);
    let _started = rig.start(&NetOptions { reception: Reception::All, ..LINE }).unwrap();
    let device = lock(&rig.device);
    assert_eq!(device.accepted & bits::CONTROL_RECEIVE, 0);
    assert!(device.commands.is_empty());
}
