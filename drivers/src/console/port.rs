//! A port: a stream of bytes each way, over a pair of queues (virtio 1.2, 5.3.2).

use super::bytes;
use crate::device::{Device, DeviceError};
use crate::transport::{EntryIndex, QueueIndex};
use crate::virtqueue::{Access, Fault, Part, Pending, QueueOptions, VirtQueue, WakeWhen};
use alloc::vec::Vec;
use isola_machine::dma::DmaRegion;

/// Pages that the device can fill before it has to wait.
pub const RECEIVE_PAGES: u16 = 16;

/// Pages that can wait for the device to read them.
pub const TRANSMIT_PAGES: u16 = 16;

/// Size of a page, in bytes.
pub(super) const PAGE: usize = 4096;

/// The indices of a port's queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortQueues {
    receive: QueueIndex,
    transmit: QueueIndex,
}

impl PortQueues {
    /// Returns the queues of this port number: the control queues follow those of port 0.
    pub(super) fn of(port: u16) -> Self {
        let first = if port == 0 { 0 } else { 2 * port + 2 };
        Self { receive: QueueIndex(first), transmit: QueueIndex(first + 1) }
    }
}

/// A page that the device has filled, and that the caller has partly read.
#[derive(Debug)]
struct Reading {
    page: DmaRegion,
    next: usize,
    end: usize,
}

/// A port. It transfers no bytes until it has pages.
#[derive(Debug)]
pub(super) struct Port {
    receive: VirtQueue<DmaRegion>,
    transmit: VirtQueue<DmaRegion>,
    reading: Option<Reading>,
    spare: Vec<DmaRegion>,
}

impl Port {
    /// Creates the queues of a port.
    pub(super) fn new(
        device: &mut Device,
        queues: PortQueues,
        options: QueueOptions,
        entry: Option<EntryIndex>,
        memory: &mut dyn FnMut(usize) -> DmaRegion,
    ) -> Result<Self, DeviceError> {
        let mut receive = device.queue(queues.receive, RECEIVE_PAGES, options, entry, memory)?;
        let mut transmit = device.queue(queues.transmit, TRANSMIT_PAGES, options, entry, memory)?;
        receive.disarm();
        transmit.disarm();
        Ok(Self { receive, transmit, reading: None, spare: Vec::new() })
    }

    /// Supplies the port with pages of [`PAGE`] bytes. Each direction takes as many as its queue has descriptors. The
    /// device must be running.
    pub(super) fn fill(&mut self, mut pages: Vec<DmaRegion>) {
        self.spare = pages.split_off(pages.len().min(self.receive.size().into()));
        self.spare.truncate(self.transmit.size().into());
        pages.into_iter().for_each(|page| self.offer(page));
        self.receive.publish();
    }

    /// Lends the device a page to fill. Each page has a descriptor, so only a faulty queue rejects it, and such a queue
    /// needs no page.
    fn offer(&mut self, page: DmaRegion) {
        let whole = Part { offset: 0, len: PAGE as u32, access: Access::DeviceWrites };
        _ = self.receive.lend_parts(page, &[whole]);
    }

    /// See [`super::Console::receive`].
    pub(super) fn receive(&mut self, into: &mut [u8]) -> Result<usize, Fault> {
        let mut copied = 0;
        while let Some(rest) = into.get_mut(copied..).filter(|rest| !rest.is_empty()) {
            let Some(mut reading) = self.next_page()? else { break };
            let count = rest.len().min(reading.end - reading.next);
            if let Some(rest) = rest.get_mut(..count) {
                bytes::read(&reading.page, reading.next, rest);
            }
            copied += count;
            reading.next += count;
            if reading.next < reading.end {
                self.reading = Some(reading);
            } else {
                self.offer(reading.page);
            }
        }
        self.receive.publish();
        Ok(copied)
    }

    /// Returns the partly read page, or the next page that the device has filled.
    fn next_page(&mut self) -> Result<Option<Reading>, Fault> {
        if let Some(reading) = self.reading.take() {
            return Ok(Some(reading));
        }
        let returned = self.receive.take_returned()?;
        // The queue has checked that the length is at most the page's.
        Ok(returned.map(|returned| Reading {
            page: returned.buffer,
            next: 0,
            end: returned.written as usize,
        }))
    }

    /// See [`super::Console::transmit`].
    pub(super) fn transmit(&mut self, from: &[u8]) -> Result<usize, Fault> {
        self.reclaim()?;
        let mut copied = 0;
        for chunk in from.chunks(PAGE) {
            let Some(mut page) = self.spare.pop() else { break };
            bytes::write(&mut page, 0, chunk);
            let part = Part { offset: 0, len: chunk.len() as u32, access: Access::DeviceReads };
            if let Err(refused) = self.transmit.lend_parts(page, &[part]) {
                self.spare.push(refused.buffer);
                break;
            }
            copied += chunk.len();
        }
        self.transmit.publish();
        Ok(copied)
    }

    /// Takes back the pages that the device has read.
    fn reclaim(&mut self) -> Result<(), Fault> {
        while let Some(returned) = self.transmit.take_returned()? {
            self.spare.push(returned.buffer);
        }
        Ok(())
    }

    /// Returns whether received bytes wait.
    pub(super) fn has_received(&self) -> bool {
        self.reading.is_some() || self.receive.has_returned()
    }

    /// See [`super::Console::is_drained`].
    pub(super) fn is_drained(&mut self) -> Result<bool, Fault> {
        self.reclaim()?;
        Ok(self.transmit.outstanding() == 0)
    }

    /// See [`super::Console::enable_receive_interrupts`].
    pub(super) fn enable_receive_interrupts(&mut self) -> Pending {
        match self.receive.arm(WakeWhen::Returned) {
            Pending::No if self.reading.is_some() => Pending::Yes,
            pending => pending,
        }
    }

    /// See [`super::Console::disable_receive_interrupts`].
    pub(super) fn disable_receive_interrupts(&mut self) {
        self.receive.disarm();
    }

    /// See [`super::Console::enable_transmit_interrupts`].
    pub(super) fn enable_transmit_interrupts(&mut self) -> Pending {
        self.transmit.arm(WakeWhen::Returned)
    }

    /// See [`super::Console::disable_transmit_interrupts`].
    pub(super) fn disable_transmit_interrupts(&mut self) {
        self.transmit.disarm();
    }
}
