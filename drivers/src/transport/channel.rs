//! virtio over a link to a service cell: a device of another cell, which reaches one piece of shared memory only.
//!
//! There are no registers. The service cell describes the device in a message ([`isola_abi::service`]), before the driver
//! starts; the driver's settings go to it in another one, after the start ([`ChannelSettings::setup`]). A status is of
//! the driver alone: the end of the link resets the device. Doorbells of the link are the notifications.

use super::{
    Cause, EntryIndex, InterruptCause, Notify, QueueAddresses, QueueIndex, Transport, TransportError,
};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use isola_abi::service::{DeviceOffer, DriverSetup, MAX_QUEUES, QueueSetup};

/// The addresses of a queue; a size of 0 if it is not enabled.
#[derive(Debug, Default)]
struct QueueWords {
    size: AtomicU16,
    descriptors: AtomicU64,
    available: AtomicU64,
    used: AtomicU64,
}

/// The settings that the driver has made, for the service cell.
#[derive(Clone, Debug, Default)]
pub struct ChannelSettings(Arc<SettingsWords>);

#[derive(Debug, Default)]
struct SettingsWords {
    features: AtomicU64,
    queues: [QueueWords; MAX_QUEUES],
}

impl ChannelSettings {
    /// Returns the message for the service cell, once the driver has started. `base` is the device address of the first
    /// byte of the shared memory.
    pub fn setup(&self, base: u64) -> DriverSetup {
        let queue = |words: &QueueWords| QueueSetup {
            size: words.size.load(Ordering::Relaxed),
            descriptors: words.descriptors.load(Ordering::Relaxed),
            available: words.available.load(Ordering::Relaxed),
            used: words.used.load(Ordering::Relaxed),
        };
        let queues = self.0.queues.iter().map(queue).take_while(|queue| queue.size > 0).collect();
        DriverSetup { features: self.0.features.load(Ordering::Relaxed), base, queues }
    }
}

/// A device of a service cell.
#[derive(Debug)]
pub struct ChannelTransport<N> {
    offer: DeviceOffer,
    settings: ChannelSettings,
    status: u8,
    /// Notifies the service cell.
    notify: N,
}

impl<N: Notify + Clone> ChannelTransport<N> {
    /// Returns the device that a service cell offers, and the settings that the driver is going to make.
    pub fn new(offer: DeviceOffer, notify: N) -> (Self, ChannelSettings) {
        let settings = ChannelSettings::default();
        (Self { offer, settings: settings.clone(), status: 0, notify }, settings)
    }

    fn configuration<const LEN: usize>(&self, offset: usize) -> Option<[u8; LEN]> {
        let bytes = self.offer.configuration.get(offset..offset.checked_add(LEN)?)?;
        bytes.first_chunk().filter(|_| offset.is_multiple_of(LEN)).copied()
    }
}

impl<N: Notify + Clone + fmt::Debug + 'static> Transport for ChannelTransport<N> {
    fn device_type(&self) -> u32 {
        self.offer.device_type
    }

    fn status(&self) -> u8 {
        self.status
    }

    fn set_status(&mut self, status: u8) {
        self.status = status;
        if status == 0 {
            self.settings.0.queues.iter().for_each(|words| words.size.store(0, Ordering::Relaxed));
        }
    }

    fn device_features(&mut self) -> u64 {
        self.offer.features
    }

    fn accept_features(&mut self, features: u64) {
        self.settings.0.features.store(features, Ordering::Relaxed);
    }

    fn queue_limit(&mut self, queue: QueueIndex) -> u16 {
        let offered = self.offer.queues.iter().take(MAX_QUEUES);
        offered.copied().nth(queue.0.into()).unwrap_or(0)
    }

    fn enable_queue(
        &mut self,
        queue: QueueIndex,
        addresses: QueueAddresses,
        entry: Option<EntryIndex>,
    ) -> Result<Box<dyn Notify>, TransportError> {
        if let Some(entry) = entry {
            return Err(TransportError::NoSuchEntry { entry });
        }
        let words = self.settings.0.queues.get(usize::from(queue.0));
        let words = words.ok_or(TransportError::QueueRefused { queue })?;
        if words.size.load(Ordering::Relaxed) != 0 {
            return Err(TransportError::QueueInUse { queue });
        }
        words.descriptors.store(addresses.descriptors, Ordering::Relaxed);
        words.available.store(addresses.available, Ordering::Relaxed);
        words.used.store(addresses.used, Ordering::Relaxed);
        words.size.store(addresses.size, Ordering::Relaxed);
        Ok(Box::new(self.notify.clone()))
    }

    fn generation(&self) -> u32 {
        0
    }

    fn configuration_u8(&self, offset: usize) -> Option<u8> {
        self.configuration(offset).map(u8::from_le_bytes)
    }

    fn configuration_u16(&self, offset: usize) -> Option<u16> {
        self.configuration(offset).map(u16::from_le_bytes)
    }

    fn configuration_u32(&self, offset: usize) -> Option<u32> {
        self.configuration(offset).map(u32::from_le_bytes)
    }

    fn acknowledge(&mut self) -> InterruptCause {
        InterruptCause { queue: Cause::Possible, configuration: Cause::No }
    }
}
